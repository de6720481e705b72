"""Two queries read a steady load, are killed, miss a backlog, and are restarted."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient
from kafka.admin import OffsetSpec
from kafka.structs import TopicPartition

from measuring.load import LoadProcess
from measuring.scenario import Announcer
from pyspark_kafka_rebalance.testing import KafkaCluster
from pyspark_kafka_rebalance.testing.child_process import ChildProcess
from pyspark_kafka_rebalance.testing.query_process import QueryProcess

from .status import Delivered, QueryStatus, left_in_gaps

#: The queries' names.
LIVE, ORDERED = "live", "ordered"
_OPTIONS: dict[str, dict[str, str]] = {LIVE: {"parallelRebalance": "live"}, ORDERED: {}}

#: Rows per second that a sink can take; catching up shares this with the live rows.
SINK_ROWS_PER_S = 10_000

#: A killed query stays a member for this long, and its partitions wait.
_SESSION_TIMEOUT_MS = 6_000

#: Records of the backlog to send between two checks of the processes.
_CHUNK = 5_000

_LOOK_EVERY_S = 0.1
_PATIENCE_S = 300.0
_PATIENCE_PER_RECORD_S = 0.003

#: A producer that reports nothing for this long sends nothing.
_STILL_S = 2.0

#: At the end, a query that delivers nothing for this long has nothing more to deliver.
_QUIET_S = 30.0


@dataclass(frozen=True)
class Settings:
    """The settings of a run.

    Attributes
    ----------
    backlog : int
        Records produced while the queries are down.
    rate : int
        Records produced per second throughout.
    seconds_of_calm : float
        Calm before the kill, and again once both queries have caught up.
    """

    backlog: int = 300_000
    rate: int = 1_000
    partitions: int = 6
    seconds_of_calm: float = 8.0
    value_bytes: int = 100


@dataclass
class Course:
    """The times of a run's events, for the report and the picture.

    Attributes
    ----------
    began_at, killed_at, restarted_at, stopping_at : float
        When both queries kept up with the producer; both were dead; both were started again with
        Spark already warm; the producer was stopped.
    end_offsets : dict of TopicPartition to int
        The end offsets up to which all should have been delivered.
    """

    began_at: float = 0.0
    killed_at: float = 0.0
    restarted_at: float = 0.0
    stopping_at: float = 0.0
    end_offsets: dict[TopicPartition, int] = field(default_factory=dict)


class Outage:
    """One run.

    Parameters
    ----------
    settings : Settings
        The settings of the run.
    kafka : KafkaCluster
        The cluster to use.
    topic : str
        An empty topic; each query has its own new group.
    work : Path
        Folder for checkpoints, logs and the ledger.
    """

    def __init__(self, settings: Settings, kafka: KafkaCluster, topic: str, work: Path) -> None:
        self._settings = settings
        self._kafka = kafka
        self._topic = topic
        self._work = work
        self.ledger = work / "ledger"
        self.course = Course()
        self._lock = threading.Lock()
        self._states = dict.fromkeys(_OPTIONS, "starting")
        self._delivered = {name: Delivered() for name in _OPTIONS}
        self._sent: deque[tuple[float, int]] = deque([(0.0, 0)], maxlen=10)  # by the steady load
        self._in_backlog = 0
        self._queries = {name: self._query(name) for name in _OPTIONS}
        self._load = LoadProcess(
            kafka.bootstrap_servers,
            topic,
            partitions=settings.partitions,
            rate=settings.rate,
            value_bytes=settings.value_bytes,
            work=work,
            on_produced=lambda at, records: self._sent.append((at, records)),
        )
        self._running: list[ChildProcess] = [self._load, *self._queries.values()]

    # -- the course -------------------------------------------------------------------------------

    def run(self, screen: Announcer) -> Course:
        """Run it to its end; no process is left running, however it ends."""
        with ExitStack() as stack:
            for process in (self._load, *self._queries.values()):
                stack.callback(process.kill)
            self._begin(screen)
            self._kill(screen)
            self._miss_a_backlog(screen)
            self._restart(screen)
            self._finish(screen)
        return self.course

    def _begin(self, screen: Announcer) -> None:
        screen.say("starting Spark for both queries, each in a process of its own")
        self._launch()
        self._release("running")
        self._load.start()
        screen.say(f"both read {self._topic}, which gets {self._settings.rate:,} records/s")
        self._wait_until(self._keep_up, "both queries keep up with the producer")
        self.course.began_at = time.time()
        self._calm(screen)

    def _kill(self, screen: Announcer) -> None:
        screen.say("kill -9 of both")
        self._set_states("killed")
        for query in self._queries.values():
            query.kill()
        self.course.killed_at = time.time()

    def _miss_a_backlog(self, screen: Announcer) -> None:
        """Produce a backlog while Spark restarts and the killed members' sessions time out."""
        screen.say(f"{self._settings.backlog:,} records are produced meanwhile; new Sparks start")
        for query in self._queries.values():
            query.start()
        while (missing := self._settings.backlog - self._in_backlog) > 0:
            count = min(_CHUNK, missing)
            self._kafka.produce(self._topic, repeat(b"." * self._settings.value_bytes, count))
            self._in_backlog += count
            self._raise_if_one_ended()

    def _restart(self, screen: Announcer) -> None:
        for query in self._queries.values():
            query.wait_for("ready", _PATIENCE_S)
        left = self.course.killed_at + _SESSION_TIMEOUT_MS / 1000 - time.time()
        time.sleep(max(0.0, left))
        self._release("running")
        self.course.restarted_at = time.time()
        screen.say("both are restarted")
        patience_s = _PATIENCE_S + self._produced() * _PATIENCE_PER_RECORD_S
        try:
            self._wait_until(self._have_caught_up, "both have caught up", patience_s)
        except TimeoutError as error:
            screen.say(str(error))  # the ledger still shows the missing records
            return
        screen.say("both have caught up")
        self._calm(screen)

    def _finish(self, screen: Announcer) -> None:
        screen.say("the producer stops; the rest is read to its end")
        self.course.stopping_at = time.time()
        self._running.remove(self._load)
        self._load.stop()
        self.course.end_offsets = self._end_offsets()
        total = sum(self.course.end_offsets.values())
        stopped_at = time.time()

        def all_is_read_or_nothing_comes() -> bool:
            now = time.time()
            with self._lock:
                return all(
                    d.total >= total or now - max(d.last_at, stopped_at) > _QUIET_S
                    for d in self._delivered.values()
                )

        self._wait_until(all_is_read_or_nothing_comes, "the rest is read")
        self._set_states("stopping")
        for query in self._queries.values():
            query.stop()
        self._set_states("stopped")

    def _launch(self) -> None:
        """Start the processes; they warm up, but do not join their groups yet."""
        for query in self._queries.values():
            query.start()
        for query in self._queries.values():
            query.wait_for("ready", _PATIENCE_S)

    def _release(self, state: str) -> None:
        self._set_states(state)
        for query in self._queries.values():
            query.release()

    def _calm(self, screen: Announcer) -> None:
        seconds = self._settings.seconds_of_calm
        screen.say(f"{seconds:g} s of calm")
        until = time.time() + seconds
        self._wait_until(lambda: time.time() >= until, "calm", seconds + _PATIENCE_S)

    def _wait_until(
        self, is_so: Callable[[], bool], what: str, timeout_s: float = _PATIENCE_S
    ) -> None:
        deadline = time.monotonic() + timeout_s
        while not is_so():
            self._raise_if_one_ended()
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {timeout_s:g} s: {what}; {self.lines()[0]}")
            time.sleep(_LOOK_EVERY_S)

    def _raise_if_one_ended(self) -> None:
        for process in self._running:
            process.raise_if_ended()

    # -- the processes ----------------------------------------------------------------------------

    def _query(self, name: str) -> QueryProcess:
        def note(event: dict[str, Any]) -> None:
            if event["event"] == "batch":
                with self._lock:
                    self._delivered[name].add(event)

        return QueryProcess(
            name,
            {
                "kafka.bootstrap.servers": self._kafka.bootstrap_servers,
                "kafka.group.id": f"{self._topic}-{name}",
                "kafka.client.id": name,
                "kafka.session.timeout.ms": str(_SESSION_TIMEOUT_MS),
                "subscribe": self._topic,
                "startingOffsets": "earliest",
                "readers": "1",
                # One second of the sink; by default, catching up fills a batch up to this.
                "maxOffsetsPerTrigger": str(SINK_ROWS_PER_S),
                **_OPTIONS[name],
            },
            ledger=self.ledger,
            work=self._work,
            # Without a pause, the small batches of two queries would use all the CPU.
            trigger={"processingTime": "500 milliseconds"},
            row_s=1 / SINK_ROWS_PER_S,
            hold=True,
            on_event=note,
        )

    def _end_offsets(self) -> dict[TopicPartition, int]:
        partitions = [TopicPartition(self._topic, n) for n in range(self._settings.partitions)]
        admin = KafkaAdminClient(bootstrap_servers=self._kafka.bootstrap_servers)
        try:
            ends = admin.list_partition_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST))
        finally:
            admin.close()
        return {partition: found.offset for partition, found in ends.items()}

    # -- the live view ----------------------------------------------------------------------------

    def lines(self) -> tuple[list[QueryStatus], float]:
        """The current status of the queries, and the records produced per second."""
        now = time.time()
        (first, few), (last, more) = self._sent[0], self._sent[-1]
        is_sending = first and last > first and now - last < _STILL_S
        rate = (more - few) / (last - first) if is_sending else 0.0
        produced = self._produced()
        found = []
        for name in self._queries:
            gaps = left_in_gaps(self._queries[name].checkpoint)
            with self._lock:
                delivered = self._delivered[name]
                newest = delivered.newest
                found.append(
                    QueryStatus(
                        name,
                        self._states[name],
                        None if newest is None else max(0.0, now - newest),
                        delivered.rows_per_second(now),
                        max(0, produced - delivered.total),
                        len(gaps),
                        sum(gaps),
                    )
                )
        return found, rate

    def _produced(self) -> int:
        return self._sent[-1][1] + self._in_backlog

    def _keep_up(self) -> bool:
        """Whether each query has delivered something and is less than 3 s of records behind."""
        with self._lock:
            produced = self._produced()
            return all(
                d.newest is not None and produced - d.total < 3 * self._settings.rate
                for d in self._delivered.values()
            )

    def _have_caught_up(self) -> bool:
        return self._keep_up() and not any(
            left_in_gaps(query.checkpoint) for query in self._queries.values()
        )

    def _set_states(self, state: str) -> None:
        with self._lock:
            self._states = dict.fromkeys(self._states, state)
