"""Brokers of other versions of Apache Kafka. Each is started once, for all that is tried on it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from flaky_network import FlakyNetwork
from group_members import wait_until
from hanging_transaction import assert_it_is_ended
from kafka import KafkaAdminClient
from kafka.protocol.producer import EndTxnRequest
from producer_groups import PATIENCE_S, Zombie, owns, poll_until, read_committed

from pyspark_kafka_rebalance import (
    ProducerGroup,
    TransactionAbortedError,
    UnsupportedBrokerError,
)
from pyspark_kafka_rebalance.doctor.broker_probe import BrokerProbe, connected
from pyspark_kafka_rebalance.doctor.findings import Level
from pyspark_kafka_rebalance.doctor.judgement import judge_brokers
from pyspark_kafka_rebalance.producer import offsets_tool
from pyspark_kafka_rebalance.producer.stored_points import GroupIsActiveError, StoredPoints
from pyspark_kafka_rebalance.testing import LocalKafka
from pyspark_kafka_rebalance.transactions import command as transactions


def brokers_of(version: str) -> Iterator[LocalKafka]:
    with LocalKafka(version=version) as kafka:
        yield kafka


@pytest.fixture(scope="module")
def unfenced() -> Iterator[LocalKafka]:
    """Before 2.5, so it fences no members; before 2.4, so a new topic needs its replication."""
    yield from brokers_of("2.3.1")


@pytest.fixture(
    scope="module",
    params=[
        "3.2.3",
        *(pytest.param(v, marks=pytest.mark.long) for v in ("2.5.1", "2.8.2", "3.6.2")),
    ],
)
def fenced(request: pytest.FixtureRequest) -> Iterator[LocalKafka]:
    """Brokers that a producer group works with. Before 3.3 an empty group knows no member."""
    yield from brokers_of(request.param)


def member(kafka: LocalKafka, group_id: str) -> ProducerGroup:
    return ProducerGroup(
        group_id, 2, bootstrap_servers=kafka.bootstrap_servers, session_timeout_ms=25_000
    )


def assert_the_doctor_knows(kafka: LocalKafka) -> None:
    servers = kafka.bootstrap_servers
    with connected(servers, {"bootstrap_servers": servers}) as probe:
        assert isinstance(probe, BrokerProbe)
        facts = probe.brokers()
    release = f"Kafka {kafka.version.rpartition('.')[0]} without KIP-848's group protocol"
    assert [(finding.level, finding.found) for finding in judge_brokers(facts)] == [
        (Level.OK, f"{servers} answers for 1 broker, {release}"),
        (Level.OK, f"{servers}: reached from this host"),
    ]


def test_the_doctor_on_the_oldest(unfenced: LocalKafka) -> None:
    assert_the_doctor_knows(unfenced)


def test_the_doctor(fenced: LocalKafka) -> None:
    """It died with a KeyError of kafka-python's on Kafka 2.8 to 3.6."""
    assert_the_doctor_knows(fenced)


def test_a_topic_is_created_with_the_brokers_replication(
    unfenced: LocalKafka, topic_name: str
) -> None:
    """IncompatibleBrokerVersion: these brokers choose no number of replicas themselves."""
    unfenced.create_topic(topic_name, 2)
    assert unfenced.produce(topic_name, [b"a", b"b"]) == {0: 1, 1: 1}


def test_a_producer_group_is_refused_where_nothing_fences_its_members(
    unfenced: LocalKafka, group_id: str
) -> None:
    """Of 10,270 rows 25 came twice."""
    with (
        member(unfenced, group_id) as group,
        pytest.raises(UnsupportedBrokerError, match=r"2\.5 or later.*TxnOffsetCommit v3 \(v2 the"),
    ):
        group.subscribe()
    admin = KafkaAdminClient(bootstrap_servers=unfenced.bootstrap_servers)
    try:
        assert group.restart_topic not in admin.list_topics(), "it is refused before that"
    finally:
        admin.close()


def test_a_producer_group(fenced: LocalKafka, topic_name: str, group_id: str) -> None:
    fenced.create_topic(topic_name, 2)
    for n in range(2):
        with member(fenced, group_id) as group:
            assert group.subscribe() == {0: str(n) if n else None, 1: None}
            group.send(topic_name, b"%d" % n, partition=0, source_partition=0)
            group.commit_transaction({0: str(n + 1)})
    assert read_committed(fenced, topic_name) == [b"0", b"1"]


def test_restart_points_are_set_and_reset(
    fenced: LocalKafka, topic_name: str, group_id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty group was said to have members. An active one still is."""

    def run(*command: str) -> int:
        where = ("--bootstrap-servers", fenced.bootstrap_servers, "--group", group_id)
        return offsets_tool.main(["offsets", *command, *where])

    fenced.create_topic(topic_name, 1)
    with member(fenced, group_id) as group:
        group.subscribe()
        group.send(topic_name, b"x", source_partition=0)
        group.commit_transaction({0: "a"})
        assert run("set", "0=b") == offsets_tool.ACTIVE
    assert run("set", "0=b", "1=c") == offsets_tool.DONE
    with member(fenced, group_id) as group:
        assert group.subscribe() == {0: "b", 1: "c"}
    assert run("reset", "--all") == offsets_tool.DONE
    with member(fenced, group_id) as group:
        assert group.subscribe() == {0: None, 1: None}


def test_a_member_that_joins_while_restart_points_are_set(
    fenced: LocalKafka, topic_name: str, group_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Kafka 3.3 the group itself would accept the tool's offsets beside it."""
    fenced.create_topic(topic_name, 1)
    with member(fenced, group_id) as group:
        group.subscribe()
        group.commit_transaction({0: "a"})
    refuse, joining = StoredPoints._refuse_if_active, member(fenced, group_id)

    def joined_just_before(self: StoredPoints) -> None:
        joining.subscribe(timeout_ms=0)
        wait_until(lambda: bool(self.describe().members), "the newcomer")
        refuse(self)

    def nobody(self: StoredPoints, points: Collection[int]) -> Any:
        before = look(self, points)
        if fenced.version >= "3.3":  # the group itself refuses the offset
            joining.subscribe(timeout_ms=0)
            wait_until(lambda: bool(self.describe().members), "the newcomer")
        return before

    look = StoredPoints._before
    monkeypatch.setattr(StoredPoints, "_before", nobody)
    monkeypatch.setattr(StoredPoints, "_refuse_if_active", joined_just_before)
    tool = StoredPoints({"bootstrap_servers": fenced.bootstrap_servers}, group_id)
    with joining:
        with pytest.raises(GroupIsActiveError, match="just now"):
            tool.write({0: "b"})
        poll_until(owns(joining, 0, 1), joining)
        assert joining.restart_points == {0: "a", 1: None}


def test_a_former_member_s_transaction_ends_before_restart_points_are_set(
    fenced: LocalKafka, topic_name: str, group_id: str, network: FlakyNetwork
) -> None:
    """The group has accepted its offsets, so it could still be committed behind the new points."""
    fenced.create_topic(topic_name, 1)
    former = member(fenced, group_id)
    zombie = Zombie(former)
    former._options.producer["proxy_url"] = network.url
    tool = StoredPoints({"bootstrap_servers": fenced.bootstrap_servers}, group_id)
    with former:
        former.subscribe()
        former.commit_transaction({0: "a"})
        former.send(topic_name, b"never", source_partition=0)
        stopped = network.stop_at(EndTxnRequest)
        with ThreadPoolExecutor() as threads:
            outcome = threads.submit(former.commit_transaction, {0: "b"})
            assert stopped.wait(PATIENCE_S)
            zombie.believe()
            zombie.leave_for_good()
            wait_until(lambda: not tool.describe().members, "the member to leave")
            assert tool.write({0: "c"}).keys() == {0}
            network.mend()
            assert isinstance(outcome.exception(PATIENCE_S), TransactionAbortedError)
    points = {p: None if found is None else found.value for p, found in tool.read().items()}
    assert points == {0: "c", 1: None}
    assert read_committed(fenced, topic_name) == []


def test_transactions_cannot_be_listed_on_the_oldest(
    unfenced: LocalKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--bootstrap-servers", unfenced.bootstrap_servers)
    for words in (["list"], ["describe", "--topic", "t"], ["abort", "--transactional-id", "t"]):
        assert transactions.main([*words, *where]) == transactions.FAILED
        assert capsys.readouterr().err == (
            "error: the brokers cannot list transactions (Kafka 2.3): that needs Kafka 3.0 or "
            "newer\n"
        )


def test_a_hanging_transaction_is_named_and_ended(
    fenced: LocalKafka, topic_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kafka before 3.8 does not filter by duration; 3.6 is the first to prevent this."""
    if not "3.0" <= fenced.version < "3.6":
        pytest.skip(f"Kafka {fenced.version}")
    assert_it_is_ended(fenced, topic_name, capsys)
    where = ("--bootstrap-servers", fenced.bootstrap_servers)
    assert transactions.main(["list", "--open-for", "1", *where]) == transactions.DONE
    assert capsys.readouterr().out == "0 open transactions\n"
