"""How fast a file's lines become visible, and how long none do after its reader stops or dies.

A separate ``read_committed`` consumer notes when it gets which line, and checks that each comes
once and in order. It decodes into Arrow, so it disturbs the measurement little.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from kafka import KafkaConsumer
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance import DeferredRevokeConsumer
from pyspark_kafka_rebalance.testing.processes.watched_process import WatchedProcess

from ..producer_forms import cpu_s, peak_mib
from . import instance
from .worker import ConnectWorker

LINE_BYTES = 100  # with the newline
LINES_AT_ONCE = 1_000  # per read, of the example and of Connect's task
SESSION_TIMEOUT_MS = 10_000
#: The commit interval of the runs in which a reader is stopped or killed.
HAND_OVER_INTERVAL_MS = 100

_ROOT = Path(__file__).parents[2]
_CONNECTOR = "file"
_DIGITS = 12  # a line begins with its number
_SETTLED_S = 8.0
_CALM_S = 4.0
#: After this the broker has received what an ended process left in its socket.
_ON_ITS_WAY_S = 2.0
_PATIENCE_S = 120.0


class Side(Protocol):
    """A process of a producer group, or of a Connect cluster, that can read the file.

    If there are several, the one whose ``reads_since`` is the latest reads it.
    """

    @property
    def pid(self) -> int: ...
    def start(self) -> None: ...
    def begin(self) -> None: ...
    def reads_since(self) -> float: ...
    def kill(self) -> None: ...
    def stop(self) -> None: ...
    def finish(self) -> None: ...


@dataclass(frozen=True)
class Job:
    """One file into one topic.

    Attributes
    ----------
    interval_ms : int, optional
        How long a transaction lasts; None: it has one read of up to 1,000 lines.
    """

    servers: str
    file: Path
    topic: str
    interval_ms: int | None
    work: Path


class Ours:
    """An instance of the example, or of its loop with another interval."""

    _blocks = False

    def __init__(self, name: str, job: Job, group_id: str) -> None:
        self._settings = {
            "blocks": self._blocks,
            "servers": job.servers,
            "group_id": group_id,
            "folder": str(job.file.parent),
            "topic": job.topic,
            "commit_interval_ms": job.interval_ms,
            "session_timeout_ms": SESSION_TIMEOUT_MS,
        }
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        self._log = job.work / f"{group_id}-{name}.log"
        self._process = WatchedProcess(
            job.work, self._log, None, environment={**os.environ, "PYTHONPATH": path}
        )

    @property
    def pid(self) -> int:
        assert self._process.pid is not None, self._process.log_end()
        return self._process.pid

    def start(self) -> None:
        assert self._process.start(
            [sys.executable, "-m", instance.__name__, json.dumps(self._settings)]
        )

    def begin(self) -> None:
        """Do nothing: it begins by itself."""

    def reads_since(self) -> float:
        said = [line for line in self._log.read_text().splitlines() if instance.READS in line]
        return float(said[-1].split()[-1]) if said else 0.0

    def kill(self) -> None:
        self._process.send(signal.SIGKILL)
        self._process.wait_until_ended(30)

    def stop(self) -> None:
        self._process.send(signal.SIGTERM)
        if not self._process.wait_until_ended(60):
            self.kill()

    def finish(self) -> None:
        self.kill()


class OursInBlocks(Ours):
    """The same, with ``send_batch``."""

    _blocks = True


class Connect:
    """A worker of a cluster that has a connector for the file."""

    def __init__(self, name: str, job: Job, cluster: str) -> None:
        self._job = job
        settings = {
            # The same as ours; by default a lost worker's tasks stay unassigned for five minutes.
            "scheduled.rebalance.max.delay.ms": 0,
            "session.timeout.ms": SESSION_TIMEOUT_MS,
        }
        self._worker = ConnectWorker(f"{cluster}-{name}", job.servers, cluster, settings, job.work)

    @property
    def pid(self) -> int:
        return self._worker.pid

    def start(self) -> None:
        self._worker.start()

    def begin(self) -> None:
        """Create the connector."""
        boundary: dict[str, object] = {"transaction.boundary": "poll"}
        if self._job.interval_ms is not None:
            boundary = {
                "transaction.boundary": "interval",
                "transaction.boundary.interval.ms": self._job.interval_ms,
            }
        self._worker.read_file(
            _CONNECTOR,
            self._job.file,
            self._job.topic,
            **{"batch.size": LINES_AT_ONCE},
            **boundary,
        )

    def reads_since(self) -> float:
        return float(self._worker.owner_of(_CONNECTOR) == self._worker.address)

    def kill(self) -> None:
        self._worker.kill()

    def stop(self) -> None:
        self._worker.stop()

    def finish(self) -> None:
        self._worker.close()


SIDES: dict[str, Callable[[str, Job, str], Side]] = {"producer group": Ours, "Connect": Connect}
#: Also with blocks, where a transaction has as many lines as there are in its time.
PACES: dict[str, Callable[[str, Job, str], Side]] = {
    "send": Ours,
    "send_batch": OursInBlocks,
    "Connect": Connect,
}
#: A run lasts this long after its first line is visible.
SECONDS = 8.0


KILLED, STOPPED = "kill -9", "SIGTERM"
BOUNDARIES = {"1,000 lines": None, "1 s": 1_000}


class Seen(NamedTuple):
    """A transaction became visible: when its first line did, and how many lines are in all."""

    at: float
    lines: int
    cpu_s: float


@dataclass(frozen=True)
class Pace:
    """One process read the whole file.

    Attributes
    ----------
    start_s : float
        From the start of the process until its first record is visible.
    records_per_s : float
        From then to the last transaction but one; the last one may wait for its interval.
    cpu_us : float
        CPU time of the process per record, over the same period.
    peak_mib : float
        Peak resident memory of the process.
    """

    start_s: float
    records_per_s: float
    cpu_us: float
    peak_mib: float


class Silence(NamedTuple):
    """The longest times without a new record, before the reader was stopped or killed and after."""

    before_s: float
    during_s: float


def write_file(file: Path, lines: int) -> None:
    """Write lines that begin with their number."""
    rest = "x" * (LINE_BYTES - _DIGITS - 2)
    file.parent.mkdir(exist_ok=True)
    with file.open("w") as out:
        out.writelines(f"{n:0{_DIGITS}d} {rest}\n" for n in range(lines))


def pace(side: str, job: Job, lines: int) -> Pace | None:
    """Measure one process from its start on; None if the file of so many lines is too short."""
    (reader,) = _sides(side, job, "a")
    seen: list[Seen] = []
    try:
        with _Visible(job) as visible:
            started = latest = time.monotonic()
            reader.start()
            reader.begin()
            while not seen or (seen[-1].lines < lines and latest < seen[0].at + SECONDS):
                now = time.monotonic()
                for at, count in visible.new():
                    seen.append(Seen(at, count, cpu_s(reader.pid)))
                    latest = at
                assert now < latest + _PATIENCE_S, f"{side} went no further"
        peak = peak_mib(reader.pid)
    finally:
        reader.finish()
    if seen[-1].lines >= lines and latest < seen[0].at + SECONDS / 2:
        return None
    first, last = _measured(seen, 0.3 * (job.interval_ms or 0) / 1000)
    records = last.lines - first.lines
    return Pace(
        first.at - started,
        records / (last.at - first.at),
        (last.cpu_s - first.cpu_s) / records * 1e6,
        peak,
    )


def _measured(seen: list[Seen], apart_s: float) -> tuple[Seen, Seen]:
    """The first transaction, and the last but one: another may have been cut off.

    A transaction arrives in many fetches. If they follow each other without a break, the reader was
    busy all the time.
    """
    transactions = seen[:1]
    for before, fetch in pairwise(seen):
        if fetch.at > before.at + apart_s:
            transactions.append(fetch)
        else:
            transactions[-1] = transactions[-1]._replace(lines=fetch.lines)
    if len(transactions) > 4:
        return transactions[0], transactions[-2]
    return seen[0], seen[-1]


def silence(side: str, job: Job, how: str) -> Silence:
    """Run two processes, and kill or stop the one that reads the file."""
    readers = _sides(side, job, "a", "b")
    times: list[float] = []
    with ExitStack() as stack:
        for reader in readers:
            stack.callback(reader.finish)
            reader.start()
        readers[0].begin()
        visible = stack.enter_context(_Visible(job))

        def follow(until: Callable[[], bool]) -> None:
            began = time.monotonic()
            while not until():
                times.extend(at for at, _ in visible.new())
                assert time.monotonic() < began + _PATIENCE_S, f"{side} went no further"

        follow(lambda: bool(times))
        settled = time.monotonic() + _SETTLED_S
        follow(lambda: time.monotonic() > settled)
        before = _longest(times, settled - _CALM_S)
        reads = max(readers, key=lambda reader: reader.reads_since())
        went = time.monotonic()
        (reads.kill if how == KILLED else reads.stop)()
        ended = time.monotonic()
        follow(lambda: time.monotonic() > ended + _ON_ITS_WAY_S)
        end = visible.end()  # whatever comes after that is from its successor
        follow(lambda: visible.last_offset >= end)
        again = times[-1]
        follow(lambda: time.monotonic() > again + _CALM_S)
        return Silence(before, _longest(times, went - 1.0))


def _sides(side: str, job: Job, *names: str) -> list[Side]:
    together = f"{side.split()[-1].lower()}-{uuid.uuid4().hex[:8]}"
    return [{**SIDES, **PACES}[side](name, job, together) for name in names]


def _longest(times: list[float], since: float) -> float:
    return max(b - a for a, b in pairwise(times) if b > since)


class _Visible:
    """Reads the committed records."""

    def __init__(self, job: Job) -> None:
        self._partition = TopicPartition(job.topic, 0)
        self._servers = job.servers
        self._consumer = DeferredRevokeConsumer(
            bootstrap_servers=job.servers,
            group_id=f"reader-{uuid.uuid4().hex}",
            isolation_level="read_committed",
            auto_offset_reset="earliest",
        )
        self._consumer.assign([self._partition])
        self._count = 0
        self.last_offset = -1  # of a record

    def __enter__(self) -> _Visible:
        return self

    def __exit__(self, *exception: object) -> None:
        self._consumer.close(timeout_ms=2_000)

    def new(self) -> list[tuple[float, int]]:
        """Poll once; if new lines have come, return when, and how many lines there are in all."""
        polled = self._consumer.poll_arrow(timeout_ms=20).records
        at, before = time.monotonic(), self._count
        for batches in polled.values():
            for batch in batches:
                first, end = self._count, self._count + len(batch)
                numbers = pc.utf8_slice_codeunits(batch["value"].cast(pa.string()), 0, _DIGITS)
                expected = pa.array(range(first, end), pa.int64())
                assert numbers.cast(pa.int64()).equals(expected), f"not in order at line {first}"
                self._count = end
                self.last_offset = batch["offset"][-1].as_py()
        return [(at, self._count)] if self._count > before else []

    def end(self) -> int:
        """Return the end of the log, uncommitted records included."""
        consumer = KafkaConsumer(bootstrap_servers=self._servers)
        try:
            return int(consumer.end_offsets([self._partition])[self._partition])
        finally:
            consumer.close()
