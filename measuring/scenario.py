"""The scenario: A runs, B joins, C joins, B leaves, the rest ends; under a steady load."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.testing.child_process import ChildProcess
from pyspark_kafka_rebalance.testing.query_process import QueryProcess

from .blocking import BlockingConsumerProcess
from .group_watch import GroupWatch, View
from .load import LoadProcess
from .rebalance_figures import Rebalance, Window

READERS = ("A", "B", "C")

#: Batches that are under way when the group reports that all has moved still belong to a rebalance.
_SETTLE_S = 3.0

#: The live table's rates are means over this time.
_RATE_OVER_S = 3.0


@dataclass(frozen=True)
class Settings:
    """The settings of a run.

    Attributes
    ----------
    peer : str
        "deferred" for queries with ``kafka_deferred``; "blocking" for consumers that drain inside
        their rebalance listener.
    seconds_per_phase : float
        Seconds without a change before each change of the group.
    rate : int
        Records per second in total.
    batch_s : float
        How long processing a batch takes.
    slow : mapping of str to float
        Readers whose batches take longer, and how long. Others join when such a batch has just
        started, so that the rebalance has to wait for it.
    """

    peer: str = "deferred"
    seconds_per_phase: float = 6.0
    rate: int = 4_000
    partitions: int = 12
    batch_s: float = 0.5
    value_bytes: int = 100
    slow: Mapping[str, float] = field(default_factory=dict)

    @property
    def reader(self) -> str:
        """The word for one reader."""
        return "query" if self.peer == "deferred" else "consumer"

    @property
    def readers(self) -> str:
        """The word for several readers."""
        return "queries" if self.peer == "deferred" else "consumers"


@dataclass
class Course:
    """The events of a run, for the report and the picture.

    Attributes
    ----------
    produced : list of (time, records so far)
    marks : dict of str to float
        When each change of the group started, by its name; set as it starts.
    rebalances : list of Rebalance
        The same changes, added when they are over.
    progress : dict of str to list of str
        By query, its last progress reports as JSON.
    end_offsets : dict of TopicPartition to int
        The end offsets up to which all should have been delivered.
    began_at, stopping_at : float
        When the first reader had reached its pace, and when the producer was stopped.
    """

    produced: list[tuple[float, int]] = field(default_factory=list)
    marks: dict[str, float] = field(default_factory=dict)
    rebalances: list[Rebalance] = field(default_factory=list)
    progress: dict[str, list[str]] = field(default_factory=dict)
    end_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    began_at: float = 0.0
    stopping_at: float = 0.0


@dataclass(frozen=True)
class ReaderStatus:
    """One reader right now."""

    reader: str
    state: str
    partitions: int = 0
    rows_per_second: float = 0.0
    revoking: int = 0
    lost: int = 0
    lag: int = 0
    committed: int = 0


class Announcer(Protocol):
    """Shows the current step: a ``Screen``, a notebook."""

    def say(self, status: str) -> None:
        """Show this status."""


class Scenario:
    """One run.

    Parameters
    ----------
    settings : Settings
        The settings of the run.
    bootstrap_servers, topic, group_id : str
        An existing empty topic, and a group of its own.
    work : Path
        Folder for checkpoints, logs and the ledger.
    """

    def __init__(
        self, settings: Settings, bootstrap_servers: str, topic: str, group_id: str, work: Path
    ) -> None:
        self._settings = settings
        self._bootstrap_servers = bootstrap_servers
        self._topic = topic
        self._group_id = group_id
        self._work = work
        self._partitions = [TopicPartition(topic, n) for n in range(settings.partitions)]
        self.ledger = work / "ledger"
        self.course = Course()
        self._lock = threading.Lock()
        self._states = dict.fromkeys(READERS, "")
        self._batches: dict[str, deque[tuple[float, int]]] = {name: deque() for name in READERS}
        self._lost = dict.fromkeys(READERS, 0)
        self._watch: GroupWatch | None = None

    # -- the course -------------------------------------------------------------------------------

    def run(self, screen: Announcer) -> Course:
        """Run the scenario to its end; no process is left, however it ends."""
        with ExitStack() as stack:
            self._watch = stack.enter_context(
                GroupWatch(self._bootstrap_servers, self._group_id, self._partitions)
            )
            load = self._load()
            stack.callback(load.kill)
            readers = {name: self._reader(name) for name in READERS}
            for reader in readers.values():
                stack.callback(reader.kill)
            self._launch(screen, readers.values())
            self._start_first(screen, readers["A"], load)
            self._join(screen, readers["B"], [readers["A"]])
            self._join(screen, readers["C"], [readers["A"], readers["B"]])
            self._leave(screen, readers["B"], [readers["A"], readers["C"]])
            self._finish(screen, load, (readers["A"], readers["C"]))
        return self.course

    def _start_first(self, screen: Announcer, reader: ChildProcess, load: ChildProcess) -> None:
        self._release(reader)
        screen.say(f"{self._settings.reader} {reader.name} joins the group")
        self._wait_until_shared_by(screen, [reader], delivering=False)
        load.start()
        load.wait_for("produced")
        screen.say(f"the producer sends {self._settings.rate:,} records/s to {self._topic}")
        for _ in range(3):  # the first batches are slow: the JVM is still cold
            _wait_for_rows(reader)
        self._states[reader.name] = "running"
        self.course.began_at = time.time()

    def _join(self, screen: Announcer, reader: ChildProcess, others: list[ChildProcess]) -> None:
        """Let a new reader join between two measuring windows."""
        before = self._calm(screen)
        with self._rebalance(f"{reader.name} joins", before) as begin:
            how = "warms up and joins" if self._settings.peer == "deferred" else "joins"
            screen.say(f"{self._settings.reader} {reader.name} {how}")
            self._states[reader.name] = "warming up"
            for other in others:
                if other.name in self._settings.slow:
                    _wait_for_rows(other, "began")
            self._release(reader)
            assert self._watch is not None
            self._watch.wait_until(
                lambda view: reader.name in view.members, f"{reader.name} is a member"
            )
            begin()
            self._states[reader.name] = "joining"
            self._wait_until_shared_by(screen, [*others, reader])
            self._states[reader.name] = "running"

    def _leave(self, screen: Announcer, reader: ChildProcess, rest: list[ChildProcess]) -> None:
        before = self._calm(screen)
        with self._rebalance(f"{reader.name} stops", before) as begin:
            screen.say(f"{self._settings.reader} {reader.name} stops gracefully")
            begin()
            self._stop(reader)
            self._wait_until_shared_by(screen, rest)

    def _finish(
        self, screen: Announcer, load: ChildProcess, readers: Collection[ChildProcess]
    ) -> None:
        self._calm(screen, measure=False)
        screen.say("the producer stops; the rest is read to its end")
        self.course.stopping_at = time.time()
        sent = load.stop()["records"]
        assert self._watch is not None
        view = self._watch.wait_until(
            lambda view: sum(view.ends.values()) == sent and view.lag(self._partitions) == 0,
            "everything is read and committed",
        )
        self.course.end_offsets = dict(view.ends)
        screen.say(f"{self._settings.readers} {' and '.join(r.name for r in readers)} stop")
        for reader in readers:
            self._stop(reader)

    def _stop(self, reader: ChildProcess) -> None:
        self._states[reader.name] = "stopping"
        self.course.progress[reader.name] = reader.stop().get("progress", [])
        self._states[reader.name] = "stopped"

    def _launch(self, screen: Announcer, readers: Collection[ChildProcess]) -> None:
        """Start the processes; they do not touch the group yet.

        All at once and before anything is measured: a JVM that starts takes a core for seconds,
        which is not a cost of a rebalance.
        """
        what = "Spark for the queries" if self._settings.peer == "deferred" else "the consumers"
        names = ", ".join(reader.name for reader in readers)
        screen.say(f"starting {what} {names}, each in a process of its own")
        for reader in readers:
            self._states[reader.name] = "starting"
            reader.start()
        for reader in readers:
            reader.wait_for("ready")
            self._states[reader.name] = "ready"

    def _calm(self, screen: Announcer, *, measure: bool = True) -> Window:
        seconds = self._settings.seconds_per_phase
        screen.say(f"{seconds:g} s of calm" + (", to compare with" if measure else ""))
        since = time.time()
        time.sleep(seconds)
        return Window(since, time.time())

    @contextmanager
    def _rebalance(self, name: str, before: Window) -> Iterator[Any]:
        marks = self.course.marks
        yield lambda: marks.update({name: time.time()})
        time.sleep(_SETTLE_S)
        during = Window(marks[name], time.time())
        self.course.rebalances.append(Rebalance(name, marks[name], before, during))

    def _wait_until_shared_by(
        self, screen: Announcer, readers: Collection[ChildProcess], *, delivering: bool = True
    ) -> None:
        """Wait until the group says so and each has delivered since, later on a busy machine."""
        assert self._watch is not None
        names = sorted(reader.name for reader in readers)

        def shared(view: View) -> bool:
            for reader in readers:
                reader.raise_if_ended()
            return view.is_shared_by(names)

        self._watch.wait_until(shared, f"the partitions are shared by {names}")
        screen.say(f"the partitions are shared by {', '.join(names)}")
        if delivering:
            for reader in readers:
                _wait_for_rows(reader)

    # -- the processes ----------------------------------------------------------------------------

    def _load(self) -> ChildProcess:
        def note(at: float, records: int) -> None:
            with self._lock:
                self.course.produced.append((at, records))

        settings = self._settings
        return LoadProcess(
            self._bootstrap_servers,
            self._topic,
            partitions=settings.partitions,
            rate=settings.rate,
            value_bytes=settings.value_bytes,
            work=self._work,
            on_produced=note,
        )

    def _reader(self, name: str) -> ChildProcess:
        def note(event: dict[str, Any]) -> None:
            if event["event"] == "batch":
                with self._lock:
                    self._batches[name].append((event["at"], event["rows"]))
                    self._lost[name] += event["lost"]

        batch_s = self._settings.slow.get(name, self._settings.batch_s)
        if self._settings.peer == "blocking":
            return BlockingConsumerProcess(
                name,
                {
                    "bootstrap_servers": self._bootstrap_servers,
                    "group_id": self._group_id,
                    # As kafka_deferred, not the default of 3 s: a hand-over takes about one.
                    "heartbeat_interval_ms": 300,
                },
                topic=self._topic,
                ledger=self.ledger,
                work=self._work,
                batch_s=batch_s,
                on_event=note,
            )
        return QueryProcess(
            name,
            {
                "kafka.bootstrap.servers": self._bootstrap_servers,
                "kafka.group.id": self._group_id,
                "kafka.client.id": name,
                "subscribe": self._topic,
                "startingOffsets": "earliest",
                "readers": "1",
            },
            ledger=self.ledger,
            work=self._work,
            batch_s=batch_s,
            hold=True,
            on_event=note,
        )

    def _release(self, reader: ChildProcess) -> None:
        assert isinstance(reader, (QueryProcess, BlockingConsumerProcess))
        reader.release()

    # -- the live view ----------------------------------------------------------------------------

    def lines(self) -> tuple[list[ReaderStatus], float]:
        """Return the readers' status now, and the records produced per second."""
        now = time.time()
        with self._lock:
            rows = {}
            for name, batches in self._batches.items():
                while batches and batches[0][0] < now - _RATE_OVER_S:
                    batches.popleft()
                rows[name] = sum(n for _, n in batches)
            recent = [reading for reading in self.course.produced if reading[0] > now - 2.0]
        produced = 0.0
        if len(recent) > 1:
            produced = (recent[-1][1] - recent[0][1]) / (recent[-1][0] - recent[0][0])
        if self._watch is None:
            return [], produced
        view = self._watch.view
        found = []
        for name in READERS:
            revoking = view.revoking.get(name, frozenset())
            # The broker names a reader's target; it has more until it has released the rest.
            owned = view.owned.get(name, frozenset()) | revoking
            found.append(
                ReaderStatus(
                    name,
                    self._states[name],
                    len(owned),
                    rows[name] / _RATE_OVER_S,
                    len(revoking),
                    self._lost[name],
                    view.lag(owned),
                    sum(view.committed.get(p, 0) for p in owned),
                )
            )
        return found, produced


def _wait_for_rows(reader: ChildProcess, event: str = "batch") -> None:
    """Wait for a new batch with rows to complete, or to start."""
    now = time.time()
    while True:
        batch = reader.wait_for(event)
        if batch["at"] > now and batch["rows"]:
            return
