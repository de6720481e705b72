"""The scenario, the same for every client: A alone, B joins, C joins, under a steady input."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from kafka import KafkaAdminClient
from kafka.admin import OffsetSpec
from kafka.structs import TopicPartition

from measuring.rebalance_figures import Rebalance, Window
from pyspark_kafka_rebalance.testing import KafkaCluster
from pyspark_kafka_rebalance.testing.child_process import ChildProcess
from pyspark_kafka_rebalance.testing.ledger import tally

from .clients.java import JavaMember
from .peers import Peer
from .polls import read_polls

MEMBERS = ("A", "B", "C")

#: The slowest client joins within a few seconds; a busy machine takes longer.
_JOIN_TIMEOUT_S = 40.0
_READ_TIMEOUT_S = 20.0
#: Wait until this much input is read: a process's first moments are no baseline.
_WARM_UP_S = 2.0
_LOOK_EVERY_S = 0.1


@dataclass(frozen=True)
class Settings:
    """The scenario's settings.

    Attributes
    ----------
    calm_s : float
        Seconds of calm before each join, for comparison.
    rate : int
        Records per second in total.
    longest_s : float
        Processing the records of a poll takes a random time up to this.
    """

    calm_s: float = 5.0
    partitions: int = 12
    rate: int = 1_200
    value_bytes: int = 100
    longest_s: float = 2.0

    @property
    def settle_s(self) -> float:
        """How much longer a rebalance is measured once all partitions are shared."""
        return self.longest_s + 0.5


@dataclass(frozen=True)
class Course:
    """What happened, for the judge.

    Attributes
    ----------
    version : str
        The client's version, as the first member reported it.
    ledger : pyarrow.Table
        All deliveries; a poll is a batch.
    end_offsets : dict of TopicPartition to int
        The end offsets up to which all should have been delivered.
    rebalances : list of Rebalance
    drained : list of (time, partition)
        When a member had processed all its records of a revoked partition.
    began_at, ended_at : float
        When the first member had read the first records; when the input ended.
    """

    version: str
    ledger: pa.Table
    end_offsets: dict[TopicPartition, int]
    rebalances: list[Rebalance]
    drained: list[tuple[float, TopicPartition]]
    began_at: float
    ended_at: float


class Group:
    """The partitions that the members have reported."""

    def __init__(self, topic: str, partitions: int) -> None:
        self._topic = topic
        self._partitions = partitions
        self._changed = threading.Condition()
        self._owned: dict[str, list[int]] = {}
        self.drained: list[tuple[float, TopicPartition]] = []

    def listen_to(self, name: str) -> Callable[[dict[str, Any]], None]:
        """Return the ``on_event`` of the member's process."""

        def note(event: dict[str, Any]) -> None:
            with self._changed:
                if event["event"] == "owns":
                    self._owned[name] = event["partitions"]
                elif event["event"] == "drained":
                    self.drained += [
                        (event["at"], TopicPartition(self._topic, p)) for p in event["partitions"]
                    ]
                self._changed.notify_all()

        return note

    def wait_until_shared_by(self, members: Sequence[ChildProcess]) -> None:
        """Wait until exactly these members share all partitions evenly.

        Raises
        ------
        TimeoutError, RuntimeError
            They take too long; a member has ended.
        """
        deadline = time.monotonic() + _JOIN_TIMEOUT_S
        with self._changed:
            while not self._is_shared_by([member.name for member in members]):
                for member in members:
                    member.raise_if_ended()
                if time.monotonic() > deadline:
                    logs = "\n".join(member.log_end(1_000) for member in members)
                    raise TimeoutError(f"the group did not settle: {self._owned}\n{logs}")
                self._changed.wait(_LOOK_EVERY_S)

    def _is_shared_by(self, names: Sequence[str]) -> bool:
        shares = [self._owned.get(name, []) for name in names]
        sizes = [len(share) for share in shares]
        shared = sorted(partition for share in shares for partition in share)
        return shared == list(range(self._partitions)) and max(sizes) - min(sizes) <= 1


@dataclass(frozen=True)
class Trial:
    """One run of the scenario.

    Attributes
    ----------
    peer, drain : Peer, bool
        The members' client; whether they drain revoked partitions.
    cluster, topic : KafkaCluster, str
        The cluster; the name of a new topic and of the group.
    work : Path
        An existing folder for ledger and logs.
    """

    settings: Settings
    peer: Peer
    drain: bool
    cluster: KafkaCluster
    topic: str
    work: Path

    @property
    def ledger(self) -> Path:
        """The folder of the members' ledgers."""
        return self.work / "ledger"


def run(trial: Trial, say: Callable[[str], None]) -> Course:
    """Run the scenario once; no process is left running, however it ends.

    Parameters
    ----------
    say : callable
        Called with the current step.

    Raises
    ------
    TimeoutError, RuntimeError
        The group did not settle, or a process ended; the message has the end of its log.
    """
    settings = trial.settings
    trial.ledger.mkdir()
    group = Group(trial.topic, settings.partitions)
    rebalances: list[Rebalance] = []
    with ExitStack() as stack:
        trial.cluster.create_topic(trial.topic, partitions=settings.partitions)
        stack.callback(trial.cluster.delete_topic, trial.topic)
        # Leaving is not measured here, so the members can be killed at the end.
        say("starts")
        load = _load(trial)
        stack.callback(load.kill)
        members = [stack.enter_context(_member(trial, name, group)) for name in MEMBERS]
        versions = [member.wait_for("ready")["version"] for member in members]
        first, *newcomers = members
        say("A joins")
        first.order("go")
        group.wait_until_shared_by([first])
        load.start()
        pace = _WARM_UP_S * settings.rate
        if not _wait_until_read(trial, lambda table: table.num_rows > pace, members):
            raise TimeoutError(f"A reads nothing\n{first.log_end()}")
        began_at = time.time()
        for n, newcomer in enumerate(newcomers, start=1):
            say(f"before {newcomer.name} joins")
            calm_since = time.time()
            time.sleep(settings.calm_s)
            say(f"{newcomer.name} joins")
            at = time.time()
            newcomer.order("go")
            group.wait_until_shared_by(members[: n + 1])
            shared_at = time.time()
            # If nobody reads a partition by then, the judge will find it.
            _wait_until_read(trial, partial(_all_read_since, trial, shared_at), members)
            time.sleep(settings.settle_s)
            before, during = Window(calm_since, at), Window(at, time.time())
            rebalances.append(Rebalance(f"{newcomer.name} joins", at, before, during))
        say("reads the rest")
        ended_at = time.time()
        load.stop()
        ends = _end_offsets(trial)
        # What is not read by then is a hole, which the judge will count.
        _wait_until_read(trial, lambda table: not tally(table, ends).lost, members)
        found = read_polls(trial.ledger, trial.topic)
    return Course(versions[0], found, ends, rebalances, group.drained, began_at, ended_at)


def _load(trial: Trial) -> ChildProcess:
    settings = {
        "bootstrap_servers": trial.cluster.bootstrap_servers,
        "topic": trial.topic,
        "partitions": trial.settings.partitions,
        "rate": trial.settings.rate,
        "value_bytes": trial.settings.value_bytes,
    }
    return ChildProcess("load", "measuring.load", settings, work=trial.work)


def _member(trial: Trial, name: str, group: Group) -> ChildProcess:
    settings = {
        "name": name,
        "client": trial.peer.client,
        "config": dict(trial.peer.config),
        "bootstrap_servers": trial.cluster.bootstrap_servers,
        "topic": trial.topic,
        "group_id": trial.topic,
        "drain": trial.drain,
        "longest_s": trial.settings.longest_s,
        "ledger": str(trial.ledger),
    }
    kind = JavaMember if trial.peer.client == "java" else ChildProcess
    module = f"{__package__}.member"
    return kind(name, module, settings, work=trial.work, on_event=group.listen_to(name))


def _wait_until_read(
    trial: Trial, enough: Callable[[pa.Table], bool], members: Sequence[ChildProcess]
) -> bool:
    """Return whether the ledger has enough in time; RuntimeError if a member has ended."""
    deadline = time.monotonic() + _READ_TIMEOUT_S
    while not enough(read_polls(trial.ledger, trial.topic)):
        for member in members:
            member.raise_if_ended()
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_EVERY_S)
    return True


def _all_read_since(trial: Trial, since: float, ledger: pa.Table) -> bool:
    recent = ledger.filter(pc.greater(ledger["completed_at"], since))
    return len(recent["partition"].unique()) == trial.settings.partitions


def _end_offsets(trial: Trial) -> dict[TopicPartition, int]:
    admin = KafkaAdminClient(bootstrap_servers=trial.cluster.bootstrap_servers)
    try:
        partitions = range(trial.settings.partitions)
        asked = {TopicPartition(trial.topic, n): OffsetSpec.LATEST for n in partitions}
        return {p: found.offset for p, found in admin.list_partition_offsets(asked).items()}
    finally:
        admin.close()
