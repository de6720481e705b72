"""Kafka's ``transactions_test`` and ``group_mode_transactions_test`` on three brokers.

Brokers and copiers are bounced, cleanly and hard, while the copiers copy, in transactions v1 and
v2, with each group protocol, with and without the group's fencing. A reader of what is committed
reads along; it and one that comes afterwards find each record once, in the order of its partition.

Kafka's schedule, with two differences. A copier that has come to its end is given more to copy, and
started again, before each bounce: so every bounce is amid transactions, however fast the machine.
And a hard bounce lasts until the controller has noticed, instead of 23 s.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from group_members import wait_until
from kafka.structs import TopicPartition
from message_copiers import OURS, Copier
from producer_groups import read_committed
from written import ENDS_SOON

from pyspark_kafka_rebalance import DeferredRevokeConsumer
from pyspark_kafka_rebalance.testing import LocalKafka
from pyspark_kafka_rebalance.testing.brokers.metadata import ask_broker
from tests.chaos.surroundings import wait_until_in_sync

PATIENCE_S = 180.0
#: Of Kafka's tests: each copier is bounced so often, and brokers once each.
ROUNDS = 3
PROGRESS = 0.2


class Copy:
    """Copiers from a topic to another one, and what they have to copy.

    Parameters
    ----------
    cluster : LocalKafka
        Three brokers.
    topic, group_id : str
        The topic is created, and one with ``-out`` behind its name.
    work : Path
        For the copiers' logs.
    partitions, copiers : int
        Without ``--group-mode``, one copier for each partition.
    records, transaction_size : int
        So many records of each partition at a time, and in a transaction at most.
    options : sequence of str
        More of the copiers' options.
    """

    def __init__(
        self,
        cluster: LocalKafka,
        topic: str,
        group_id: str,
        work: Path,
        *,
        partitions: int,
        copiers: int,
        records: int,
        transaction_size: int,
        options: Sequence[str],
    ) -> None:
        self.cluster = cluster
        self.topic = topic
        self.output = f"{topic}-out"
        self.written = dict.fromkeys(range(partitions), 0)
        self._group_id = group_id
        self._records = records
        self._transaction_size = transaction_size
        self._options = options
        cluster.create_topic(topic, partitions)
        cluster.create_topic(self.output, partitions + 1)
        self._seed()
        self.copiers = [Copier(self._command(n), work / f"copier-{n}.log") for n in range(copiers)]

    def _command(self, number: int) -> list[str]:
        options = {
            "broker-list": self.cluster.bootstrap_servers,
            "transactional-id": f"{self._group_id}-copier-{number}",
            "consumer-group": self._group_id,
            "input-topic": self.topic,
            "output-topic": self.output,
            "input-partition": str(number),
            "transaction-size": str(self._transaction_size),
            "transaction-timeout": "40000",
        }
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        return [*OURS, *words, "--enable-random-aborts", *self._options]

    def _seed(self) -> None:
        for partition, at in self.written.items():
            values = values_of(partition, range(at, at + self._records))
            self.cluster.produce(self.topic, values, partition=partition)
            self.written[partition] += self._records

    def amid(self, *copiers: Copier, progress: float = PROGRESS) -> None:
        """Wait until any of them is amid its work; those that have done theirs get more."""

        def is_amid() -> bool:
            self._check()
            if any(copier.is_done() for copier in copiers):
                self._seed()
                for copier in self.copiers:
                    if copier.is_done():
                        copier.start()
            return any(progress <= copier.progress() < 1 for copier in copiers)

        wait_until(is_amid, f"progress: {[copier.said() for copier in copiers]}")

    def finish(self) -> None:
        """Wait until all is copied. What a dead member of a group had, is another's later."""
        deadline = time.monotonic() + PATIENCE_S
        while not self._is_copied():
            assert time.monotonic() < deadline, [copier.said() for copier in self.copiers]
            self._check()
            if all(copier.is_done() for copier in self.copiers):
                for copier in self.copiers:
                    copier.start()
            time.sleep(0.2)

    def _is_copied(self) -> bool:
        committed = self.cluster.committed(self._group_id)
        ends = {TopicPartition(self.topic, p): end for p, end in self.written.items()}
        return committed == ends

    def _check(self) -> None:
        for copier in self.copiers:
            assert not copier.has_failed(), copier.said()

    def close(self) -> None:
        for copier in self.copiers:
            copier.stop()

    def expected(self) -> dict[int, list[bytes]]:
        return {p: values_of(p, range(end)) for p, end in self.written.items()}


def values_of(partition: int, numbers: range) -> list[bytes]:
    return [b"%d-%d" % (partition, n) for n in numbers]


class Reader:
    """Reads along what is committed, as Kafka's tests have it. A context manager."""

    def __init__(self, cluster: LocalKafka, topic: str, group_id: str, protocol: str) -> None:
        self.found: dict[int, list[bytes]] = defaultdict(list)
        self.error: BaseException | None = None
        self._ends = threading.Event()
        self._consumer = DeferredRevokeConsumer(
            topic,
            bootstrap_servers=cluster.bootstrap_servers,
            group_id=group_id,
            group_protocol=protocol,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            reconnect_backoff_max_ms=200,
        )
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ends.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        self._consumer.close()

    def wait_for(self, records: int) -> None:
        def has_all() -> bool:
            assert self.error is None, self.error
            return sum(map(len, self.found.values())) >= records

        wait_until(has_all, f"{records} records")

    def _run(self) -> None:
        try:
            while not self._ends.is_set():
                for partition, records in self._consumer.poll(timeout_ms=100).items():
                    self.found[partition.partition] += [record.value for record in records]
        except BaseException as error:
            self.error = error


def bounce_brokers(copy: Copy, clean: bool) -> None:
    for broker_id in copy.cluster.broker_ids:
        copy.amid(*copy.copiers)
        if clean:
            copy.cluster.restart(broker_id)
        else:
            copy.cluster.kill(broker_id)
            wait_until(lambda b=broker_id: is_noticed(copy, b), "other leaders")
            copy.cluster.restart(broker_id)
        wait_until_in_sync(copy.cluster, [copy.topic, copy.output], broker_id)


def bounce_copiers(copy: Copy, clean: bool, rounds: int = ROUNDS) -> None:
    for _ in range(rounds):
        for copier in copy.copiers:
            copy.amid(copier)
            copier.restart(signal.SIGTERM if clean else signal.SIGKILL)


Bounces = Callable[[Copy, bool], None]
BOUNCES: Mapping[str, Bounces] = {"brokers": bounce_brokers, "copiers": bounce_copiers}


def is_noticed(copy: Copy, killed: int) -> bool:
    """Whether other brokers lead what a killed one led, and know that it lags behind."""
    alive = copy.cluster.running[0]
    port = int(copy.cluster.bootstrap_servers.split(",")[alive - 1].rpartition(":")[2])
    topics = ask_broker(port, [copy.topic, copy.output]).topics
    return all(killed not in p.isr_nodes for topic in topics for p in topic.partitions)


def judge(copy: Copy, reader: Reader) -> None:
    """Both readers have found each record once, in order."""
    expected = copy.expected()
    reader.wait_for(sum(map(len, expected.values())))
    later: dict[int, list[bytes]] = {p: [] for p in expected}
    for value in read_committed(copy.cluster, copy.output):
        later[int(value.partition(b"-")[0])].append(value)
    assert later == expected
    assert dict(reader.found) == expected


@pytest.fixture(scope="module")
def v1() -> Iterator[LocalKafka]:
    with LocalKafka(3, features={"transaction.version": 0}, broker_config=ENDS_SOON) as brokers:
        yield brokers


@pytest.fixture(params=["v2", "v1"])
def cluster(request: pytest.FixtureRequest) -> LocalKafka:
    name = "quorum" if request.param == "v2" else "v1"
    brokers: LocalKafka = request.getfixturevalue(name)
    return brokers


def grouped(cluster: LocalKafka, group_id: str, protocol: str) -> tuple[str, ...]:
    """The options of members of a group, whose sessions end soon."""
    if protocol == "consumer":  # there it is the group's
        timeouts = {"consumer.session.timeout.ms": 6_000, "consumer.heartbeat.interval.ms": 500}
        cluster.configure_group(group_id, timeouts)
    return ("--group-mode", "--use-group-metadata", "--group-protocol", protocol)


def test_a_broker_and_copiers_are_killed(
    quorum: LocalKafka, topic_name: str, group_id: str, tmp_path: Path, protocol: str
) -> None:
    """In small: two copiers of a group, all bounces hard."""
    options = grouped(quorum, group_id, protocol)
    copy = Copy(
        *(quorum, topic_name, group_id, tmp_path),
        **{"partitions": 4, "copiers": 2, "records": 600, "transaction_size": 30},
        options=options,
    )
    try:
        with Reader(quorum, copy.output, f"{group_id}-reader", protocol) as reader:
            copy.amid(*copy.copiers)
            quorum.kill(2)
            bounce_copiers(copy, clean=False, rounds=1)
            quorum.restart(2)
            copy.finish()
            judge(copy, reader)
    finally:
        copy.close()


@pytest.mark.long
@pytest.mark.parametrize("clean", [False, True], ids=["hard", "clean"])
@pytest.mark.parametrize("target", BOUNCES)
@pytest.mark.parametrize("fencing", [True, False], ids=["metadata", "no metadata"])
def test_transactions(
    cluster: LocalKafka,
    topic_name: str,
    group_id: str,
    tmp_path: Path,
    protocol: str,
    target: str,
    clean: bool,
    fencing: bool,
) -> None:
    """``transactions_test``: copiers with partitions of their own; the readers' protocol varies."""
    copy = Copy(
        *(cluster, topic_name, group_id, tmp_path),
        **{"partitions": 2, "copiers": 2, "records": 10_000, "transaction_size": 75},
        options=("--use-group-metadata",) if fencing else (),
    )
    try:
        with Reader(cluster, copy.output, f"{group_id}-reader", protocol) as reader:
            BOUNCES[target](copy, clean)
            copy.finish()
            judge(copy, reader)
    finally:
        copy.close()


@pytest.mark.long
@pytest.mark.parametrize("clean", [False, True], ids=["hard", "clean"])
@pytest.mark.parametrize("target", BOUNCES)
def test_transactions_of_a_group(
    cluster: LocalKafka,
    topic_name: str,
    group_id: str,
    tmp_path: Path,
    protocol: str,
    target: str,
    clean: bool,
) -> None:
    """``group_mode_transactions_test``: nine partitions, three copiers that share them."""
    options = grouped(cluster, group_id, protocol)
    copy = Copy(
        *(cluster, topic_name, group_id, tmp_path),
        **{"partitions": 9, "copiers": 3, "records": 4_000, "transaction_size": 100},
        options=options,
    )
    try:
        with Reader(cluster, copy.output, f"{group_id}-reader", protocol) as reader:
            BOUNCES[target](copy, clean)
            copy.finish()
            judge(copy, reader)
    finally:
        copy.close()
