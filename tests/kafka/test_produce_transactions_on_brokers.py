"""Transactions of `Producer` on real brokers, transactions v1 and v2."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest
from flaky_network import FlakyNetwork
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
)
from kafka.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from producer_groups import read_committed
from written import (
    ENDS_SOON,
    PATIENCE_MS,
    PATIENCE_S,
    VERSIONS,
    committed,
    member_of,
    metadata_of,
    producer_of,
    read_by_java,
)

from pyspark_kafka_rebalance import OptionError, TransactionAbortedError
from pyspark_kafka_rebalance.produce.producer import Offset, Producer, Transaction
from pyspark_kafka_rebalance.produce.transaction_errors import Outcome
from pyspark_kafka_rebalance.testing import LocalKafka


@pytest.fixture(scope="module", params=VERSIONS)
def cluster(request: pytest.FixtureRequest) -> Iterator[LocalKafka]:
    features = {"transaction.version": VERSIONS[request.param]}
    with LocalKafka(features=features, broker_config=ENDS_SOON) as local:
        yield local


@pytest.fixture
def version(request: pytest.FixtureRequest, cluster: LocalKafka) -> str:
    name: str = request.node.callspec.params["cluster"]
    return name


@pytest.fixture
def rows(cluster: LocalKafka, topic_name: str) -> str:
    cluster.create_topic(topic_name, 2)
    return topic_name


@pytest.fixture
def producer(cluster: LocalKafka, topic_name: str) -> Iterator[Producer]:
    with producer_of(cluster, topic_name) as made:
        yield made


def test_the_versions_are_those_of_the_feature(producer: Producer, version: str) -> None:
    assert producer.versions.transaction_version == {"v1": 1, "v2": 2}[version]


def test_readers_see_what_is_committed(cluster: LocalKafka, rows: str, producer: Producer) -> None:
    with producer.transaction() as first:
        future = first.send(rows, b"a", key=b"k", partition=0, future=True)
        first.send_batch(rows, pa.table({"value": [b"b", b"c"], "partition": [0, 1]}))
    assert first.outcome is Outcome.COMMITTED
    assert future is not None
    assert future.result(PATIENCE_S) == (rows, 0, 0)
    aborted = producer.transaction()
    aborted.send(rows, b"never", partition=0)
    aborted.flush(PATIENCE_MS)
    aborted.abort()
    with producer.transaction():
        pass  # nothing to say
    with producer.transaction() as last:
        last.send(rows, b"d", partition=1)
    assert read_committed(cluster, rows) == [b"a", b"b", b"c", b"d"]
    assert sorted(read_by_java(cluster, rows, 4)) == [b"a", b"b", b"c", b"d"]


def test_a_handle_whose_transaction_has_ended_says_so(rows: str, producer: Producer) -> None:
    ended = producer.transaction()
    ended.commit()
    later = producer.transaction()
    for call in (lambda: ended.send(rows, b"x"), ended.commit, ended.abort):
        with pytest.raises(TransactionAbortedError, match="has ended"):
            call()
    later.send(rows, b"y")
    later.commit(PATIENCE_MS)
    with pytest.raises(RuntimeError, match="in transactions alone"):
        producer.send(rows, b"z")


def test_what_a_leader_refuses_is_said_by_each_call(
    cluster: LocalKafka, topic_name: str, producer: Producer
) -> None:
    cluster.create_topic(topic_name, config={"cleanup.policy": "compact"})
    refused = producer.transaction()
    refused.send(topic_name, b"without a key")
    for call in (
        lambda: refused.flush(PATIENCE_MS),
        lambda: refused.send(topic_name, b"x", b"k"),
        lambda: refused.commit(PATIENCE_MS),
        lambda: refused.send(topic_name, b"x", b"k"),
        lambda: refused.commit(PATIENCE_MS),
    ):
        with pytest.raises(
            TransactionAbortedError,
            match=rf"{topic_name}-0 refused a batch of 1 record: INVALID_RECORD \(record 1 of the "
            r"batch: .*without key",
        ):
            call()
    with producer.transaction() as later:
        later.send(topic_name, b"y", b"k")
    with pytest.raises(TransactionAbortedError, match="INVALID_RECORD"):
        refused.flush(PATIENCE_MS)
    assert read_committed(cluster, topic_name) == [b"y"]


def test_an_exception_aborts(cluster: LocalKafka, rows: str, producer: Producer) -> None:
    with pytest.raises(KeyError), producer.transaction() as lost:  # noqa: PT012
        lost.send(rows, b"never")
        raise KeyError
    assert lost.outcome is Outcome.ABORTED
    assert read_committed(cluster, rows) == []


def test_closing_aborts(cluster: LocalKafka, rows: str, producer: Producer) -> None:
    left = producer.transaction()
    left.send(rows, b"never")
    left.flush(PATIENCE_MS)
    producer.close()
    assert read_committed(cluster, rows, wait_s=5) == []


def test_back_to_back_transactions(cluster: LocalKafka, rows: str, producer: Producer) -> None:
    """Each meets CONCURRENT_TRANSACTIONS while the markers of the one before are written."""
    for n in range(50):
        with producer.transaction() as one:
            one.send(rows, b"%d" % n, partition=0)
    assert read_committed(cluster, rows) == [b"%d" % n for n in range(50)]


def test_batches_that_are_too_large_for_their_topic_are_sent_in_parts(
    cluster: LocalKafka, topic_name: str
) -> None:
    """An application would repeat the transaction with the same batch, for ever."""
    cluster.create_topic(topic_name, config={"max.message.bytes": 1_000})
    values = [b"%d" % n * 30 for n in range(300)]
    with producer_of(cluster, topic_name, linger_ms=200) as producer:
        with producer.transaction() as one:
            for value in values:
                one.send(topic_name, value)
        large = producer.transaction()
        large.send(topic_name, b"never")
        large.send(topic_name, b"x" * 5_000)
        with pytest.raises(TransactionAbortedError, match=f"a record for {topic_name}-0 is larger"):
            large.commit(PATIENCE_MS)
        with producer.transaction() as last:
            last.send(topic_name, b"last")
    assert read_committed(cluster, topic_name) == [*values, b"last"]


def test_the_newer_producer_fences_the_older(
    cluster: LocalKafka, rows: str, producer: Producer
) -> None:
    old = producer.transaction()
    old.send(rows, b"never", partition=0)
    old.flush(PATIENCE_MS)
    with producer_of(cluster, rows) as newer:
        with newer.transaction() as one:
            one.send(rows, b"newer", partition=0)
        with pytest.raises(TransactionAbortedError):  # noqa: PT012
            old.send(rows, b"zombie", partition=0)
            old.commit(PATIENCE_MS)
        with pytest.raises(TransactionAbortedError):
            producer.transaction()
        with newer.transaction() as one:
            one.send(rows, b"again", partition=0)
    assert read_committed(cluster, rows) == [b"newer", b"again"]


def test_a_timeout_above_the_maximum_is_named(cluster: LocalKafka, rows: str) -> None:
    with (
        producer_of(cluster, rows, transaction_timeout_ms=3_600_000) as producer,
        pytest.raises(OptionError, match=r"transaction\.max\.timeout\.ms"),
    ):
        producer.transaction()


def test_a_transaction_that_takes_too_long_is_aborted_and_the_next_goes_on(
    cluster: LocalKafka, rows: str
) -> None:
    with producer_of(cluster, rows, transaction_timeout_ms=500) as producer:
        late = producer.transaction()
        late.send(rows, b"never", partition=0)
        late.flush(PATIENCE_MS)
        time.sleep(2)
        with pytest.raises(TransactionAbortedError):
            late.commit(PATIENCE_MS)
        producer.initialize()
        with producer.transaction() as next_one:
            next_one.send(rows, b"next", partition=0)
    assert read_committed(cluster, rows) == [b"next"]


def test_offsets_are_committed_with_the_records(
    cluster: LocalKafka, rows: str, group_id: str, producer: Producer, protocol: str
) -> None:
    where = TopicPartition(rows, 0)
    with member_of(cluster, group_id, rows, protocol) as member:
        with producer.transaction() as one:
            one.send(rows, b"a")
            one.send_offsets(metadata_of(member), {where: Offset(7, "m")})
        assert committed(cluster, group_id, where) == 7
        aborted = producer.transaction()
        aborted.send_offsets(metadata_of(member), {where: Offset(9)})
        aborted.abort()
        with producer.transaction() as alone:
            alone.send_offsets(metadata_of(member), {where: Offset(8)})
        assert committed(cluster, group_id, where) == 8


def test_offsets_and_member_in_the_classes_of_a_consumer(
    cluster: LocalKafka, rows: str, group_id: str, producer: Producer, protocol: str
) -> None:
    where = TopicPartition(rows, 0)
    with member_of(cluster, group_id, rows, protocol) as member:
        before = {where: OffsetAndMetadata(-1, None, None)}
        with producer.transaction() as one:
            one.send(rows, b"a")
            one.send_offsets(member.group_metadata(), {where: OffsetAndMetadata(7, "m")}, before)
        assert committed(cluster, group_id, where) == 7
        with producer.transaction() as two:
            two.send_offsets(member.group_metadata(), {where: OffsetAndMetadata(8, None, None)})
        assert committed(cluster, group_id, where) == 8
    nobody = ConsumerGroupMetadata(group_id, -1, "", None)
    with pytest.raises(ValueError, match="without a member's generation"):
        producer.transaction().send_offsets(nobody, {where: OffsetAndMetadata(9)})


def test_the_group_fences_a_generation_that_is_past(
    cluster: LocalKafka, rows: str, group_id: str, producer: Producer, protocol: str
) -> None:
    where = TopicPartition(rows, 0)
    with member_of(cluster, group_id, rows, protocol) as member:
        former = metadata_of(member)
    with member_of(cluster, group_id, rows, protocol):
        zombie = producer.transaction()
        zombie.send(rows, b"never", partition=0)
        zombie.send_offsets(former, {where: Offset(5)})
        with pytest.raises(
            TransactionAbortedError,
            match=rf"group {group_id} refused offsets .* of generation {former.generation_id} for "
            rf"{rows}-0: (UNKNOWN_MEMBER_ID|ILLEGAL_GENERATION)",
        ):
            zombie.commit(PATIENCE_MS)
    with producer.transaction() as one:
        one.send(rows, b"whole", partition=0)
    assert read_committed(cluster, rows) == [b"whole"]
    assert committed(cluster, group_id, where) is None


def test_the_generation_moves_between_two_requests(
    cluster: LocalKafka, rows: str, group_id: str, producer: Producer, protocol: str
) -> None:
    """Report 25: the first offsets are accepted, the next come from a generation that is past."""
    own = {TopicPartition(rows, n): Offset(5) for n in range(2)}
    with member_of(cluster, group_id, rows, protocol) as member:
        before = metadata_of(member)
        one = producer.transaction()
        one.send(rows, b"never", partition=0)
        one.send_offsets(before, own)
        one.flush(PATIENCE_MS)
        with member_of(cluster, group_id, rows, protocol, wait=False) as second:
            deadline = time.monotonic() + PATIENCE_S
            while not second.assignment():
                assert time.monotonic() < deadline
                member.poll(timeout_ms=50)
                second.poll(timeout_ms=50)
            # Kafka 4.3 takes what a member commits of a partition that it has kept (KIP-1251).
            (moved,) = second.assignment()
            one.send_offsets(before, {moved: Offset(6)})
            with pytest.raises(TransactionAbortedError, match=r"ILLEGAL_GENERATION|STALE_MEMBER"):
                one.commit(PATIENCE_MS)
            with producer.transaction() as two:
                two.send(rows, b"whole", partition=0)
                two.send_offsets(metadata_of(second), {moved: Offset(7)})
    assert read_committed(cluster, rows) == [b"whole"]
    assert committed(cluster, group_id, moved) == 7


# What arrives late.

OF_A_TRANSACTION = {
    "v1": (
        *(AddOffsetsToTxnRequest, AddPartitionsToTxnRequest, ProduceRequest),
        *(TxnOffsetCommitRequest, EndTxnRequest),
    ),
    "v2": (ProduceRequest, TxnOffsetCommitRequest, EndTxnRequest),
}


@pytest.mark.parametrize("kind", OF_A_TRANSACTION["v1"])
def test_a_copy_arrives_in_the_next_transaction(
    cluster: LocalKafka,
    version: str,
    rows: str,
    group_id: str,
    network: FlakyNetwork,
    kind: type,
) -> None:
    """The story of the issue: a delayed EndTxn committed half of the next transaction."""
    if kind not in OF_A_TRANSACTION[version]:
        pytest.skip("not sent")
    where = TopicPartition(rows, 0)
    with (
        member_of(cluster, group_id, rows) as member,
        producer_of(cluster, rows, proxy_url=network.url) as producer,
    ):
        producer.initialize()
        first = producer.transaction()
        delayed = network.delay(kind)
        first.send(rows, b"first", partition=0)
        first.send_offsets(metadata_of(member), {where: Offset(1)})
        first.commit(PATIENCE_MS)
        assert delayed.is_sent.is_set()
        second = producer.transaction()
        second.send(rows, b"half", partition=1)
        second.flush(PATIENCE_MS)
        delayed.arrive()
        second.send(rows, b"whole", partition=1)
        second.send_offsets(metadata_of(member), {where: Offset(2)})
        assert committed(cluster, group_id, where, stable=False) == 1
        second.commit(PATIENCE_MS)
    assert read_committed(cluster, rows) == [b"first", b"half", b"whole"]
    assert committed(cluster, group_id, where) == 2


@pytest.mark.parametrize("kind", [ProduceRequest, EndTxnRequest])
def test_a_copy_arrives_after_the_abort(
    cluster: LocalKafka, rows: str, network: FlakyNetwork, kind: type
) -> None:
    """KAFKA-14053: a batch after the abort's marker opened a transaction that nobody ended."""
    with producer_of(cluster, rows, proxy_url=network.url) as producer:
        producer.initialize()
        lost = producer.transaction()
        delayed = network.delay(kind)
        lost.send(rows, b"never", partition=0)
        if kind is ProduceRequest:
            sending = threading.Thread(target=_flush_quietly, args=[lost])
            sending.start()
            assert delayed.is_sent.wait(PATIENCE_S)
            lost.abort(timeout_ms=PATIENCE_MS)
            sending.join(PATIENCE_S)
        else:
            lost.flush(PATIENCE_MS)
            lost.abort(timeout_ms=PATIENCE_MS)
            assert delayed.is_sent.is_set()
        second = producer.transaction()
        second.send(rows, b"half", partition=0)
        second.flush(PATIENCE_MS)
        delayed.arrive()
        second.send(rows, b"whole", partition=1)
        second.commit(PATIENCE_MS)
    assert read_committed(cluster, rows) == [b"half", b"whole"]


@pytest.fixture(scope="module", params=VERSIONS)
def unverified(request: pytest.FixtureRequest) -> Iterator[LocalKafka]:
    """As before Kafka 3.6: a leader does not ask the coordinator which transaction is open."""
    config = {**ENDS_SOON, "transaction.partition.verification.enable": "false"}
    features = {"transaction.version": VERSIONS[request.param]}
    with LocalKafka(features=features, broker_config=config) as local:
        yield local


def test_a_copy_arrives_after_the_abort_where_leaders_verify_nothing(
    unverified: LocalKafka, topic_name: str, network: FlakyNetwork
) -> None:
    """KAFKA-14053: the next transaction committed the batch, as no other had it."""
    unverified.create_topic(topic_name, 2)
    with producer_of(unverified, topic_name, proxy_url=network.url) as producer:
        with producer.transaction() as first:
            first.send(topic_name, b"first", partition=0)
        lost = producer.transaction()
        delayed = network.delay(ProduceRequest)
        lost.send(topic_name, b"never", partition=0)
        sending = threading.Thread(target=_flush_quietly, args=[lost])
        sending.start()
        assert delayed.is_sent.wait(PATIENCE_S)
        lost.abort(timeout_ms=PATIENCE_MS)
        sending.join(PATIENCE_S)
        second = producer.transaction()
        second.send(topic_name, b"other", partition=1)
        second.flush(PATIENCE_MS)
        delayed.arrive()
        second.send(topic_name, b"whole", partition=0)
        second.commit(PATIENCE_MS)
    assert read_committed(unverified, topic_name) == [b"first", b"whole", b"other"]


def _flush_quietly(transaction: Transaction) -> None:
    with contextlib.suppress(TransactionAbortedError):
        transaction.flush(PATIENCE_MS)


@pytest.mark.parametrize("kind", OF_A_TRANSACTION["v1"])
def test_an_answer_is_lost(
    cluster: LocalKafka, version: str, rows: str, group_id: str, network: FlakyNetwork, kind: type
) -> None:
    """Report 17: the commit was done, and its answer lost."""
    if kind not in OF_A_TRANSACTION[version]:
        pytest.skip("not sent")
    where = TopicPartition(rows, 0)
    with (
        member_of(cluster, group_id, rows) as member,
        producer_of(cluster, rows, proxy_url=network.url) as producer,
    ):
        producer.initialize()
        held = network.stop_at(kind, answer=True)
        first = producer.transaction()
        first.send(rows, b"first", partition=0)
        first.send_offsets(metadata_of(member), {where: Offset(1)})
        committing = threading.Thread(target=first.commit, args=[PATIENCE_MS])
        committing.start()
        assert held.wait(PATIENCE_S)
        network.cut()
        network.mend()
        committing.join(PATIENCE_S)
        assert first.outcome is Outcome.COMMITTED
        with producer.transaction() as second:
            second.send(rows, b"second", partition=0)
            second.send_offsets(metadata_of(member), {where: Offset(2)})
    assert read_committed(cluster, rows) == [b"first", b"second"]
    assert committed(cluster, group_id, where) == 2


def test_init_producer_id_is_answered_late_and_repeated(
    cluster: LocalKafka, rows: str, network: FlakyNetwork
) -> None:
    """Report 15: two in a race fenced the producer that had sent both."""
    with producer_of(cluster, rows, proxy_url=network.url) as producer:
        delayed = network.delay(InitProducerIdRequest)
        producer.initialize()
        assert delayed.is_sent.is_set()
        with producer.transaction() as one:
            one.send(rows, b"a", partition=0)
        time.sleep(1)  # else the coordinator may refuse it, since the commit is not complete
        delayed.arrive()
        lost = producer.transaction()
        with pytest.raises(TransactionAbortedError):  # noqa: PT012
            lost.send(rows, b"never", partition=0)
            lost.commit(PATIENCE_MS)
        producer.initialize()
        with producer.transaction() as one:
            one.send(rows, b"b", partition=0)
    assert read_committed(cluster, rows) == [b"a", b"b"]


# In doubt: a copy of the commit has no answer, and another producer takes the id over.


@pytest.mark.parametrize("evidence", ["records", "offsets"])
@pytest.mark.parametrize("was_done", [True, False], ids=["done", "not done"])
def test_a_commit_in_doubt_is_asked_about(
    cluster: LocalKafka,
    rows: str,
    group_id: str,
    network: FlakyNetwork,
    evidence: str,
    was_done: bool,
) -> None:
    where = TopicPartition(rows, 0)
    with (
        member_of(cluster, group_id, rows) as member,
        producer_of(cluster, rows, proxy_url=network.url) as producer,
    ):
        producer.initialize()
        one = producer.transaction()
        if evidence == "records":
            one.send(rows, b"one", partition=0)
        else:
            one.send_offsets(metadata_of(member), {where: Offset(5, "m")}, {where: Offset(-1)})
        one.flush(PATIENCE_MS)
        time.sleep(0.5)  # the offsets are acknowledged, too
        held = network.stop_at(EndTxnRequest, answer=was_done)
        errors: list[Exception] = []

        def commit() -> None:
            try:
                one.commit(PATIENCE_MS)
            except TransactionAbortedError as error:
                errors.append(error)

        committing = threading.Thread(target=commit)
        committing.start()
        assert held.wait(PATIENCE_S)
        with producer_of(cluster, rows) as newer:
            newer.initialize()
            network.cut()
            network.mend()
            committing.join(PATIENCE_S)
            assert not committing.is_alive()
            assert one.outcome is (Outcome.COMMITTED if was_done else Outcome.ABORTED)
            assert bool(errors) is not was_done
            with pytest.raises(TransactionAbortedError):
                producer.transaction()
            with newer.transaction() as two:
                two.send(rows, b"two", partition=0)
    seen = [b"one"] if evidence == "records" and was_done else []
    assert read_committed(cluster, rows) == [*seen, b"two"]
    assert committed(cluster, group_id, where) == (
        5 if evidence == "offsets" and was_done else None
    )
