"""Door: the planner's side. Listens on a Unix socket, and answers for the batches of one run.

A request is one line of JSON and so is the answer::

    {"version": 1, "ask": {"end": {…}, "by_sink": true, "timeout_s": 30}}
    {"version": 1, "tell": {"end": {…}, "outcome": "committed", "timeout_s": 30}}

    {"version": 1, "snapshot": {…}}    {"version": 1, "done": true}
    {"version": 1, "unknown": true}    another run's batch
    {"version": 1, "error": "…"}

Each connection has a thread while it is open: an answer may have to wait for the group. Nothing
runs as long as nobody asks, except one thread that waits in ``accept``.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from ...errors import KafkaRebalanceError
from .snapshot import Outcome, Snapshot, UnknownBatchError, snapshot_to_json
from .socket_path import make_folder, socket_of

log = logging.getLogger(__name__)

#: The version of the requests and answers.
VERSION = 1

#: How long a connection may take to send its request: the sink's process is on this host.
_REQUEST_WITHIN_S = 10.0


class Batches(Protocol):
    """Answers for the batches of a run, on any thread, several at a time."""

    def ask(self, end: dict[str, Any], by_sink: bool, timeout_s: float) -> Snapshot:
        """Return the snapshot of the batch that ends here.

        Raises UnknownBatchError, and KafkaRebalanceError if it cannot be told within ``timeout_s``.
        """

    def tell(self, end: dict[str, Any], outcome: Outcome, timeout_s: float) -> None:
        """Take note of the decision; idempotent. Raises as :meth:`ask`."""


class Door:
    """The socket of one run, from :meth:`open` to :meth:`close`; both are idempotent."""

    def __init__(self, run: str, batches: Batches) -> None:
        self._run = run
        self._batches = batches
        self._socket: socket.socket | None = None
        self._path: Path | None = None

    def open(self) -> None:
        """Listen; a failure is logged, since only a query with our sink needs the door."""
        if self._socket is not None:
            return
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            make_folder()
            path = socket_of(self._run)
            with suppress(FileNotFoundError):
                path.unlink()
            listening.bind(str(path))
            os.chmod(path, 0o600)
            listening.listen(8)
        except OSError as error:
            listening.close()
            log.warning("an exactly-once sink of this query will not find its source: %s", error)
            return
        self._socket, self._path = listening, path
        # A daemon: it must not keep a planner alive whose stop() was cut off.
        threading.Thread(
            target=self._accept, args=(listening,), name="planner-door", daemon=True
        ).start()

    def close(self) -> None:
        """Stop listening, and remove the socket. Answers under way are still sent."""
        listening, self._socket = self._socket, None
        if listening is None:
            return
        if self._path is not None:
            with suppress(FileNotFoundError):
                self._path.unlink()
        with suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)  # ends accept(); close() alone does not
        listening.close()

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return  # closed
            threading.Thread(
                target=self._serve, args=(connection,), name="planner-door-answer", daemon=True
            ).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                connection.settimeout(_REQUEST_WITHIN_S)
                with connection.makefile("rb") as lines:
                    request = lines.readline()
                if not request.endswith(b"\n"):
                    return  # its process has ended
                answer = json.dumps({"version": VERSION, **self._answer(request)})
                connection.sendall(f"{answer}\n".encode())
            except OSError as error:
                log.info("run %s: an answer was not received: %s", self._run, error)

    def _answer(self, request: bytes) -> dict[str, Any]:
        try:
            told = json.loads(request)
            if told["version"] != VERSION:
                return {"error": f"run {self._run} understands requests of version {VERSION} only"}
            if "ask" in told:
                asked = told["ask"]
                found = self._batches.ask(asked["end"], asked["by_sink"], asked["timeout_s"])
                return {"snapshot": snapshot_to_json(found)}
            heard = told["tell"]
            self._batches.tell(heard["end"], heard["outcome"], heard["timeout_s"])
        except UnknownBatchError:
            return {"unknown": True}
        except KafkaRebalanceError as error:
            return {"error": str(error)}
        except Exception as error:  # the sink must not wait for an answer that never comes
            log.exception("run %s: a request of the sink failed", self._run)
            return {"error": f"run {self._run}: {error!r}"}
        return {"done": True}
