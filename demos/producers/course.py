"""Instances of a producer group join, die, leave and stall while a shop writes to its database."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kafka.errors import KafkaError

from measuring.scenario import Announcer
from pyspark_kafka_rebalance.producer.restart_points import topic_of
from pyspark_kafka_rebalance.testing import KafkaCluster

from ..shop.instance import InstanceProcess
from ..shop.ledger import TableVerdict, judge, versions_in_table, versions_in_topic
from ..shop.tables import SCHEMA, TABLES
from ..shop.writer import WriterProcess
from .delta_by_time import DeltaByTime
from .figures import Commit

INSTANCES = ("A", "B", "C", "D")

#: A killed or stalled instance stays a member for this long, and its tables wait.
_SESSION_TIMEOUT_MS = 5_000
_HEARTBEAT_INTERVAL_MS = 300

_LOOK_EVERY_S = 0.1
_PATIENCE_S = 120.0

#: At the end, the topics are first checked once nothing has been committed for this long.
_QUIET_S = 1.0

#: The live table's rates are means over this long.
_RATE_OVER_S = 3.0


@dataclass(frozen=True)
class Settings:
    """The settings of a run.

    Attributes
    ----------
    rate : int
        Rows per second that the shop inserts and updates.
    seconds_per_phase : float
        Seconds of calm after each change of the group.
    """

    rate: int = 600
    seconds_per_phase: float = 5.0


@dataclass(frozen=True)
class InstanceStatus:
    """The current status of one instance."""

    instance: str
    state: str
    tables: tuple[str, ...]
    rows_per_second: float
    committed: int
    aborted: int


@dataclass
class Course:
    """The events of a run, for the report and the picture.

    Attributes
    ----------
    marks : dict of str to float
        Changes of the group, and their times.
    commits : list of Commit
        The commits that the instances have reported.
    written, late : int
        Rows that the shop committed; transactions that committed after one that started later.
    missed_by_time : int
        Rows that a reader by ``last_change_ts`` has missed.
    verdicts : list of TableVerdict
        The ledger's verdict on each table.
    """

    began_at: float = 0.0
    stopping_at: float = 0.0
    marks: dict[str, float] = field(default_factory=dict)
    commits: list[Commit] = field(default_factory=list)
    aborted: int = 0
    written: int = 0
    late: int = 0
    missed_by_time: int = 0
    verdicts: list[TableVerdict] = field(default_factory=list)


class Fleet:
    """One run.

    Parameters
    ----------
    settings : Settings
        The settings of the run.
    kafka : KafkaCluster
        The cluster to write to.
    topic : str
        The group id, and the prefix of the topics' names.
    url : str
        The URL of an empty schema of a database.
    work : Path
        Folder for logs.
    """

    def __init__(
        self, settings: Settings, kafka: KafkaCluster, topic: str, url: str, work: Path
    ) -> None:
        self._settings = settings
        self._kafka = kafka
        self._url = url
        self._group_id = topic
        self.topics = [f"{topic}-{table}" for table in TABLES]
        self.course = Course()
        self._lock = threading.Lock()
        self._states = dict.fromkeys(INSTANCES, "-")
        self._owned: dict[str, Sequence[int]] = dict.fromkeys(INSTANCES, ())
        self._recent: dict[str, deque[tuple[float, int]]] = {n: deque() for n in INSTANCES}
        self._committed = dict.fromkeys(INSTANCES, 0)
        self._aborted = dict.fromkeys(INSTANCES, 0)
        self._written: deque[tuple[float, int]] = deque([(0.0, 0)], maxlen=7)
        self._instances = {
            name: InstanceProcess(
                name,
                url=url,
                bootstrap_servers=kafka.bootstrap_servers,
                group_id=topic,
                topics=self.topics,
                work=work,
                options={
                    "client_id": name,
                    "session_timeout_ms": _SESSION_TIMEOUT_MS,
                    "heartbeat_interval_ms": _HEARTBEAT_INTERVAL_MS,
                },
                on_event=self._noter(name),
            )
            for name in INSTANCES
        }
        self._writer = WriterProcess(
            url, rows_per_s=settings.rate, work=work, on_written=self._note_written
        )
        self._delta = DeltaByTime(url)
        self._running: set[str] = set()

    # -- the course -------------------------------------------------------------------------------

    def run(self, screen: Announcer) -> Course:
        """Run it to its end; no process is left running, however it ends."""
        import psycopg

        with psycopg.connect(self._url) as connection:
            connection.execute(SCHEMA.encode())
        with ExitStack() as stack:
            for topic in self.topics:
                self._kafka.create_topic(topic)
                stack.callback(self._kafka.delete_topic, topic)
            stack.callback(self._delete_restart_points)
            stack.enter_context(self._delta)
            for process in (self._writer, *self._instances.values()):
                stack.callback(process.kill)
            self._begin(screen)
            for name, has in (("B", 1), ("C", 1), ("D", 0)):
                self._join(screen, name, has)
            self._kill(screen, "B")
            self._stop(screen, "C")
            self._stall(screen, "A")
            self._finish(screen)
        return self.course

    def _begin(self, screen: Announcer) -> None:
        self._writer.start()
        screen.say(f"a shop writes {self._settings.rate:,} rows/s, and commits out of order")
        self._start("A")
        self._wait_until(lambda: len(self._owned["A"]) == len(TABLES), "A has all tables")
        self.course.began_at = time.time()
        screen.say("A reads all three tables")
        self._calm()

    def _join(self, screen: Announcer, name: str, has: int) -> None:
        self._start(name)
        self._mark(f"{name} joins")
        self._wait_until(lambda: len(self._owned[name]) >= has, f"{name} has a table")
        screen.say(f"{name} joins" + ("" if has else ", and stands by: a fourth for three tables"))
        self._calm()

    def _kill(self, screen: Announcer, name: str) -> None:
        screen.say(f"kill -9 of {name} in the middle of its work")
        self._running.discard(name)
        self._instances[name].kill()
        self._mark(f"kill -9 {name}")
        self._gone(name, "killed")
        self._wait_until(self._all_owned, "another instance has taken over")
        screen.say("its table continues where its last committed transaction ended")
        self._calm()

    def _stop(self, screen: Announcer, name: str) -> None:
        screen.say(f"{name} is stopped")
        self._running.discard(name)
        self._set_state(name, "stopping")
        self._mark(f"{name} stops")
        self._instances[name].stop()
        self._gone(name, "stopped")
        self._wait_until(self._all_owned, "another instance has taken over")
        self._calm()

    def _stall(self, screen: Announcer, name: str) -> None:
        """Suspend an instance past its session timeout, then resume it with its stale state."""
        screen.say(f"{name} is suspended for longer than its session")
        process = self._instances[name]
        os.killpg(process.pid, signal.SIGSTOP)
        self._mark(f"{name} stalls")
        self._gone(name, "suspended")
        self._wait_until(self._all_owned, "another instance has taken over")
        self._calm(0.5)
        screen.say(f"{name} wakes up: an open transaction of it is refused, and it joins again")
        self._set_state(name, "running")
        self._mark(f"{name} wakes")
        os.killpg(process.pid, signal.SIGCONT)
        self._wait_until(lambda: bool(self._owned[name]), f"{name} has a table again")
        self._calm()

    def _finish(self, screen: Announcer) -> None:
        screen.say("the shop closes; the rest is read to its end")
        self.course.stopping_at = time.time()
        self._writer.stop()
        deadline = time.monotonic() + _PATIENCE_S
        self._wait_until(self._is_quiet, "the rest is read")
        while (lost := sum(v.lost for v in self._verdicts())) and time.monotonic() < deadline:
            self._raise_if_one_ended()
            time.sleep(1)
        for name in sorted(self._running):
            self._instances[name].stop()
            self._gone(name, "stopped")
        if lost:
            screen.say(f"after {_PATIENCE_S:g} s {lost:,} rows are still missing")
        self.course.verdicts = self._verdicts()
        self.course.missed_by_time = self._delta.missed()
        with self._lock:
            self.course.aborted = sum(self._aborted.values())

    def _verdicts(self) -> list[TableVerdict]:
        servers = self._kafka.bootstrap_servers
        return [
            judge(table, versions_in_table(self._url, table), versions_in_topic(servers, topic))
            for table, topic in zip(TABLES, self.topics, strict=True)
        ]

    def _delete_restart_points(self) -> None:
        with suppress(KafkaError):  # the topic does not exist yet
            self._kafka.delete_topic(topic_of(self._group_id))

    # -- the instances ----------------------------------------------------------------------------

    def _start(self, name: str) -> None:
        self._set_state(name, "starting")
        self._instances[name].start().wait_for("owned")
        self._running.add(name)
        self._set_state(name, "running")

    def _noter(self, name: str) -> Callable[[dict[str, Any]], None]:
        def note(event: dict[str, Any]) -> None:
            at = event["at"]
            with self._lock:
                if event["event"] == "owned" and self._states[name] != "suspended":
                    self._owned[name] = event["tables"]
                elif event["event"] == "aborted":
                    self._aborted[name] += 1
                elif event["event"] == "committed":
                    for table, rows in event["rows"].items():
                        self.course.commits.append(Commit(at, name, int(table), rows))
                    total = sum(event["rows"].values())
                    self._recent[name].append((at, total))
                    self._committed[name] += total

        return note

    def _note_written(self, event: dict[str, Any]) -> None:
        with self._lock:
            self._written.append((event["at"], event["rows"]))
            self.course.written, self.course.late = event["rows"], event["late"]

    def _gone(self, name: str, state: str) -> None:
        with self._lock:
            self._states[name] = state
            self._owned[name] = ()

    def _set_state(self, name: str, state: str) -> None:
        with self._lock:
            self._states[name] = state

    def _mark(self, what: str) -> None:
        self.course.marks[what] = time.time()

    def _all_owned(self) -> bool:
        with self._lock:
            return sum(map(len, self._owned.values())) >= len(TABLES)

    def _is_quiet(self) -> bool:
        with self._lock:
            last_at = max((commit.at for commit in self.course.commits), default=0.0)
        return time.time() - max(last_at, self.course.stopping_at) > _QUIET_S

    def _calm(self, share: float = 1.0) -> None:
        until = time.time() + share * self._settings.seconds_per_phase
        self._wait_until(lambda: time.time() >= until, "calm")

    def _wait_until(self, is_so: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not is_so():
            self._raise_if_one_ended()
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {_PATIENCE_S:g} s: {what}; {self.lines()[0]}")
            time.sleep(_LOOK_EVERY_S)

    def _raise_if_one_ended(self) -> None:
        for name in self._running:
            self._instances[name].raise_if_ended()

    # -- the live view ----------------------------------------------------------------------------

    def lines(self) -> tuple[list[InstanceStatus], float]:
        """The current status of the instances, and the rows per second that the shop commits."""
        now = time.time()
        found = []
        with self._lock:
            (first, few), (last, more) = self._written[0], self._written[-1]
            rate = (more - few) / (last - first) if first and last > first else 0.0
            for name in INSTANCES:
                recent = self._recent[name]
                while recent and recent[0][0] < now - _RATE_OVER_S:
                    recent.popleft()
                owned = tuple(TABLES[number] for number in self._owned[name])
                state = self._states[name]
                found.append(
                    InstanceStatus(
                        name,
                        "standby" if state == "running" and not owned else state,
                        owned,
                        sum(rows for _, rows in recent) / _RATE_OVER_S,
                        self._committed[name],
                        self._aborted[name],
                    )
                )
        return found, rate
