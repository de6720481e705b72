"""A group of verifiable consumers, ours and Java's, each in a process of its own, under load.

Their events go to the judges of ``consumer_events.py`` as they come.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from consumer_events import (
    Event,
    MemberError,
    MemberState,
    Phase,
    Verdict,
    is_valid_assignment,
    judge,
)
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.testing import LocalKafka
from pyspark_kafka_rebalance.testing.java import find_java
from pyspark_kafka_rebalance.testing.kafka_jars import (
    KAFKA_TOOLS,
    broker_jars,
    single_jars,
)
from tests.verifiable_consumer.options import COOPERATIVE

if TYPE_CHECKING:
    from typing_extensions import Self

PATIENCE_S = 60.0

#: Kafka's own verifiable consumer; what it needs is among the broker's jars.

OURS = (sys.executable, "-m", "tests.verifiable_consumer")


def java_command() -> tuple[str, ...]:
    """Kafka's own, in a small JVM."""
    (tools,) = single_jars([KAFKA_TOOLS])
    main = "org.apache.kafka.tools.VerifiableConsumer"
    return (str(find_java().executable), "-Xmx128m", "-cp", f"{tools}:{broker_jars()}/*", main)


class Member:
    """One process of the group. ``take`` is called with each event, on a thread of its own."""

    def __init__(
        self,
        name: str,
        state: MemberState,
        command: list[str],
        log: Path,
        take: Callable[[Member, Event], None],
    ) -> None:
        self.name = name
        self.state = state
        self.events: list[Event] = []
        self._log = log
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self._follower = threading.Thread(target=self._follow, args=(take,))
        self._follower.start()

    def end(self) -> None:
        """Kill it, if it has not ended, and wait until its last event is taken."""
        self.process.kill()
        self.process.wait()
        self._follower.join()
        assert self.process.stdout is not None
        self.process.stdout.close()

    @property
    def crashed(self) -> bool:
        """Whether it ended, all that it told is taken, and the last line is not among it."""
        return not self._follower.is_alive() and self.state.phase is not Phase.DEAD

    def account(self) -> str:
        """Where it stands, and the end of what it said."""
        return (
            f"{self.name}: {self.state.phase.value}, exit code {self.process.poll()}, owns "
            f"{sorted(partition.partition for partition in self.state.assignment)}; its log:\n"
            f"{self.log_end()}"
        )

    def log_end(self, characters: int = 1_500) -> str:
        """The end of what it logged."""
        return self._log.read_text(errors="replace")[-characters:]

    def _follow(self, take: Callable[[Member, Event], None]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                take(self, json.loads(line))


class VerifiableGroup:
    """Members of one group that read one topic, while records are written to it.

    A context manager; what is left of the members ends with it.

    Parameters
    ----------
    kafka : LocalKafka
        Where.
    topic, group_id : str
        The topic is created.
    partitions : int
        The topic's.
    work : Path
        For logs and settings.
    group_protocol : {"classic", "consumer"}
        Of members that are not told otherwise.
    session_timeout_ms : int
        Until the death of a member is noticed.
    """

    def __init__(
        self,
        kafka: LocalKafka,
        topic: str,
        group_id: str,
        *,
        partitions: int,
        work: Path,
        group_protocol: str = "classic",
        session_timeout_ms: int = 6_000,
    ) -> None:
        self.partitions = [TopicPartition(topic, number) for number in range(partitions)]
        self._kafka = kafka
        self._topic = topic
        self._group_id = group_id
        self._work = work
        self.group_protocol = group_protocol
        self._session_timeout_ms = session_timeout_ms
        self._changed = threading.Condition()
        self._members: dict[str, Member] = {}
        self._processes: list[Member] = []  # earlier ones, too
        self._failures: list[Exception] = []
        self._position = dict.fromkeys(self.partitions, 0)
        self._produced = dict.fromkeys(self.partitions, 0)
        self._enough = threading.Event()
        self._load = threading.Thread(target=self._produce)

    def __enter__(self) -> Self:
        self._kafka.create_topic(self._topic, partitions=len(self.partitions))
        self._kafka.configure_group(
            self._group_id,
            {
                "consumer.session.timeout.ms": self._session_timeout_ms,
                "consumer.heartbeat.interval.ms": 500,
            },
        )
        self._load.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._enough.set()
        self._load.join()
        for member in self._processes:
            member.end()

    # -- members ----------------------------------------------------------------------------------

    def start(
        self,
        name: str,
        *,
        java: bool = False,
        group_instance_id: str | None = None,
        group_protocol: str | None = None,
    ) -> None:
        """Start a member; again after it ended, too."""
        protocol = group_protocol or self.group_protocol
        command = [*(java_command() if java else OURS)]
        command += ["--bootstrap-server", self._kafka.bootstrap_servers]
        command += ["--topic", self._topic, "--group-id", self._group_id]
        command += ["--group-protocol", protocol]
        if protocol == "classic":
            # Java's default of 3 s would make every rebalance as slow.
            settings = self._work / "classic.properties"
            settings.write_text("heartbeat.interval.ms=500\n")
            command += ["--session-timeout", str(self._session_timeout_ms)]
            command += ["--assignment-strategy", COOPERATIVE, "--command-config", str(settings)]
        if group_instance_id is not None:
            command += ["--group-instance-id", group_instance_id]
        before = self._members.get(name)
        assert before is None or before.state.phase is Phase.DEAD
        log = self._work / f"{name}-{len(self._processes)}.log"
        with self._changed:
            state = MemberState(consumer_protocol=protocol == "consumer")
            member = Member(name, state, command, log, self._take)
            self._members[name] = member
            self._processes.append(member)

    def stop(self, *names: str) -> None:
        """Stop these members by SIGTERM, all at once, and wait for their last lines."""
        for name in names:
            self._members[name].process.send_signal(signal.SIGTERM)
        self.wait_until(lambda: self.dead() >= set(names), f"{names} to end")
        for name in names:
            self._members[name].process.wait(PATIENCE_S)

    def kill(self, name: str) -> None:
        """End a member by SIGKILL."""
        member = self._members[name]
        member.end()
        self._take(member, {"timestamp": time.time_ns() // 1_000_000, "name": "killed"})

    # -- what they have told ----------------------------------------------------------------------

    def __getitem__(self, name: str) -> MemberState:
        return self._members[name].state

    def log_of(self, name: str) -> str:
        """The end of what a member has logged."""
        return self._members[name].log_end()

    def dead(self) -> set[str]:
        """The members that have ended."""
        return {name for name, m in self._members.items() if m.state.phase is Phase.DEAD}

    def joined(self) -> set[str]:
        """The members that have an assignment, maybe an empty one."""
        return {name for name, m in self._members.items() if m.state.phase is Phase.JOINED}

    def owner(self, partition: TopicPartition) -> str | None:
        """The member that owns the partition."""
        for name, member in self._members.items():
            if partition in member.state.assignment:
                return name
        return None

    def assignments(self) -> dict[str, frozenset[TopicPartition]]:
        """What each living member owns."""
        living = self._members.keys() - self.dead()
        return {name: frozenset(self[name].assignment) for name in living}

    def told(self) -> dict[str, tuple[int, int]]:
        """How many assignments and revocations each member has told."""
        return {n: (m.state.assignments, m.state.revocations) for n, m in self._members.items()}

    def balanced(self) -> bool:
        """Whether each partition has one owner, and the living members own about as many each."""
        assignments = self.assignments()
        sizes = [len(owned) for owned in assignments.values()]
        return (
            self.joined() == assignments.keys()
            and is_valid_assignment(assignments.values(), self.partitions)
            and max(sizes) - min(sizes) <= 1
        )

    # -- waiting ----------------------------------------------------------------------------------

    def wait_until(self, done: Callable[[], bool], what: str) -> None:
        """Wait until ``done``, asked after each event; fail as soon as a member does wrong."""
        deadline = time.monotonic() + PATIENCE_S
        with self._changed:
            while True:
                if self._failures:
                    raise self._failures[0]
                if done():
                    return
                for member in self._members.values():
                    assert not member.crashed, member.account()
                if not self._changed.wait(min(1.0, deadline - time.monotonic())):
                    accounts = "\n".join(m.account() for m in self._members.values())
                    assert time.monotonic() < deadline, f"waited for {what}\n{accounts}"

    def wait_until_balanced(self) -> None:
        """Wait until all living members have joined and share the partitions evenly."""
        self.wait_until(self.balanced, "an even assignment")

    def wait_until_caught_up(self) -> None:
        """Wait until of every partition everything written so far is consumed, and more."""
        with self._changed:
            written = dict(self._produced)
        self.wait_until(
            lambda: all(self._position[p] > end for p, end in written.items()),
            f"records behind {written}",
        )

    def finish(self) -> Verdict:
        """Write no more, wait until all is consumed, stop all members; the verdict.

        Whatever happened: nothing is lost, nobody jumped, and the group's committed offsets are
        its positions.
        """
        self._enough.set()
        self._load.join()
        self.wait_until(lambda: self._position == self._produced, f"all of {self._produced}")
        self.stop(*self._members.keys() - self.dead())
        if self._failures:
            raise self._failures[0]
        verdict = judge({f"{m.name} ({n})": m.events for n, m in enumerate(self._processes)})
        assert all(end > 0 for end in self._produced.values()), "nothing was written"
        assert not verdict.jumps
        assert verdict.position == self._produced, "lost"
        assert verdict.committed == verdict.position
        return verdict

    def finish_exactly_once(self) -> None:
        """Finish; nothing had two owners, and nothing was consumed twice."""
        verdict = self.finish()
        assert not verdict.overlaps
        assert not verdict.redelivered

    def _take(self, member: Member, event: Event) -> None:
        with self._changed:
            member.events.append(event)
            try:
                member.state.apply(event)
            except MemberError as error:
                self._failures.append(MemberError(f"{member.name}: {error}"))
            for partition, offset in member.state.position.items():
                self._position[partition] = max(self._position[partition], offset)
            self._changed.notify_all()

    def _produce(self) -> None:
        """Some records to each partition, about 25 times a second."""
        try:
            while not self._enough.wait(0.04):
                ends = self._kafka.produce(self._topic, [b"x"] * 4 * len(self.partitions))
                with self._changed:
                    for number, end in ends.items():
                        self._produced[TopicPartition(self._topic, number)] = end
        except Exception as error:
            self._failures.append(error)
