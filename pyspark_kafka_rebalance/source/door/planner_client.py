"""The sink's side: asks the planner of a batch, on this host, and tells it what was decided.

The batch's end names the run that has planned it. After a restart another run replays it; then the
planners on this host are asked in turn, those of the same JVM first, whether the batch is theirs.
"""

from __future__ import annotations

import errno
import json
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import KafkaRebalanceError
from .door import VERSION
from .snapshot import Outcome, Snapshot, parse_snapshot
from .socket_path import sockets

#: How much longer than the planner itself the sink waits for its answer.
_MARGIN_S = 5.0

#: How long to look for a planner that is not there yet, or that is about to replay the batch.
_LOOK_S = 3.0
_LOOK_EVERY_S = 0.05


def ask_planner(
    run: str, end: Mapping[str, Any], *, by_sink: bool, timeout_s: float = 60.0
) -> Snapshot:
    """Return the snapshot of a batch; see :class:`Snapshot`.

    Parameters
    ----------
    run : str
        The run that planned the batch: ``state.run`` of its end.
    end : mapping
        The batch's end offset, as in Spark's offset log.
    by_sink : bool
        Whether the batch is the sink's from now on: the source commits nothing of it by itself, and
        waits for :func:`tell_planner`. Ask so before the decision, as often as needed.
    timeout_s : float
        How long the planner may wait for the group.

    Raises
    ------
    KafkaRebalanceError
        No planner on this host has the batch, or it cannot tell within ``timeout_s``; says why.
    """
    asked = {"end": dict(end), "by_sink": by_sink, "timeout_s": timeout_s}
    return parse_snapshot(_request(run, {"ask": asked}, timeout_s)["snapshot"])


def tell_planner(
    run: str, end: Mapping[str, Any], outcome: Outcome, timeout_s: float = 30.0
) -> None:
    """Tell the planner what was decided of a batch; idempotent.

    Parameters
    ----------
    run, end
        As for :func:`ask_planner`.
    outcome : {"committed", "dropped"}
        committed: the transaction with its offsets is committed, now or before. dropped: it never
        will be; the source reads again what it still owns.

    Raises
    ------
    KafkaRebalanceError
        As :func:`ask_planner`.
    """
    told = {"end": dict(end), "outcome": outcome, "timeout_s": timeout_s}
    _request(run, {"tell": told}, timeout_s)


def _request(run: str, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    line = f"{json.dumps({'version': VERSION, **request})}\n".encode()
    until = time.monotonic() + min(_LOOK_S, timeout_s)
    while True:
        own, others = sockets(run)
        for path in (*own, *others):
            answer = _exchange(path, line, timeout_s + _MARGIN_S, run)
            if answer is None or "unknown" in answer:
                continue
            if "error" in answer:
                raise KafkaRebalanceError(answer["error"])
            return answer
        if time.monotonic() >= until:
            raise KafkaRebalanceError(
                f"no planner on this host knows the batch of run {run}: its process has ended, or "
                "runs as another user, or with another temporary folder (TMPDIR). The batch is "
                "undecided, and nothing of it is visible: restart the query, which replays it"
            )
        time.sleep(_LOOK_EVERY_S)


def _exchange(path: Path, line: bytes, timeout_s: float, run: str) -> dict[str, Any] | None:
    """Return the answer of one planner; None if it has ended."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        try:
            connection.connect(str(path))
            connection.sendall(line)
            with connection.makefile("rb") as lines:
                answer = lines.readline()
        except TimeoutError:
            raise KafkaRebalanceError(
                f"run {run}: its planner did not answer within {timeout_s:g} s"
            ) from None
        except OSError as error:
            if error.errno == errno.ECONNREFUSED:  # it was killed
                path.unlink(missing_ok=True)
            return None
    if not answer.endswith(b"\n"):
        return None
    found: dict[str, Any] = json.loads(answer)
    return found
