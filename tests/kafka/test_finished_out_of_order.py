"""What workers had finished behind a slow record survives their consumer, on a real broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from group_members import PATIENCE_S, counted, owns, poll_until, wait_until
from kafka import KafkaConsumer
from kafka import errors as kafka_errors
from kafka.protocol.consumer import OffsetCommitRequest
from kafka.structs import OffsetAndMetadata, TopicPartition

from pyspark_kafka_rebalance import DeferredRevokeConsumer

Killed = Callable[..., TopicPartition]


@pytest.fixture
def killed(kafka, topic_name, consumers) -> Killed:
    """A member that dies once the group knows that these of ten records are processed."""

    def die(*processed: int) -> TopicPartition:
        kafka.create_topic(topic_name)
        kafka.produce(topic_name, [b"%d" % n for n in range(10)])
        member = consumers(topic_name)
        poll_until(lambda: bool(member.unprocessed()), member)
        (partition,) = member.assignment()
        member.processed(partition, *processed)
        wait_until(lambda: told(member, partition).startswith("unprocessed/"), "the gaps are told")
        member.leave_until_polled("killed")  # without another commit
        return partition

    return die


def told(member: KafkaConsumer, partition: TopicPartition) -> str:
    found = member.committed(partition, metadata=True)
    return "" if found is None else str(found.metadata)


def read_to_end(
    member: DeferredRevokeConsumer, last: int, poll: Callable[[], Any] | None = None
) -> list[int]:
    """The offsets that polls hand out until this last one; nothing is processed."""
    seen: list[int] = []

    def polled() -> bool:
        records = (poll or (lambda: member.poll(timeout_ms=50)))()
        for found in records.values():
            for batch in found:
                seen.extend(
                    [batch.offset] if hasattr(batch, "offset") else batch["offset"].to_pylist()
                )
        return last in seen

    wait_until(polled, f"offset {last}")
    return seen


def test_the_next_owner_gets_only_what_nobody_had_finished(killed, topic_name, consumers):
    partition = killed(1, 2, 3, 7)
    heir = consumers(topic_name)
    assert read_to_end(heir, 9) == [0, 4, 5, 6, 8, 9]
    heir.processed(partition, 0)
    assert heir.drain(10_000)
    assert heir.acknowledged(partition) == 4
    heir.processed(partition, 9, 8, 6, 5)
    heir.processed(partition, 4)
    assert heir.drain(10_000)
    assert heir.acknowledged(partition) == 10
    assert told(heir, partition) == ""


def test_what_two_owners_had_finished_adds_up(killed, topic_name, consumers):
    partition = killed(1, 2, 8)
    second = consumers(topic_name)
    assert read_to_end(second, 9) == [0, 3, 4, 5, 6, 7, 9]
    second.processed(partition, 5)
    second.close()  # tells what is not told yet
    third = consumers(topic_name)
    assert read_to_end(third, 9) == [0, 3, 4, 6, 7, 9]


def test_the_next_owner_may_poll_arrow(killed, topic_name, consumers):
    killed(1, 2, 3, 7)
    heir = consumers(topic_name)
    arrow = lambda: heir.poll_arrow(timeout_ms=50).records  # noqa: E731
    assert read_to_end(heir, 9, arrow) == [0, 4, 5, 6, 8, 9]


def test_the_next_owner_may_iterate(killed, topic_name, consumers):
    killed(1, 2, 3, 9)
    heir = consumers(topic_name, consumer_timeout_ms=4_000)
    assert [record.offset for record in heir] == [0, 4, 5, 6, 7, 8]


def test_another_client_starts_at_the_lowest(killed, kafka, topic_name, group_id):
    partition = killed(1, 2, 3, 7)
    plain = KafkaConsumer(bootstrap_servers=kafka.bootstrap_servers, group_id=group_id)
    try:
        plain.assign([partition])
        assert plain.position(partition) == 0
    finally:
        plain.close()


@pytest.mark.parametrize(("offset", "keeps_metadata"), [(2, False), (2, True), (0, False)])
def test_a_reset_of_the_group_wins(
    killed, kafka, topic_name, group_id, consumers, offset, keeps_metadata
):
    partition = killed(1, 2, 3, 7)
    plain = KafkaConsumer(bootstrap_servers=kafka.bootstrap_servers, group_id=group_id)
    try:
        plain.assign([partition])
        metadata = told(plain, partition) if keeps_metadata else ""

        def reset() -> bool:
            try:
                plain.commit({partition: OffsetAndMetadata(offset, metadata, -1)})
            except kafka_errors.KafkaError:
                return False  # the member's leaving is on its way
            return True

        wait_until(reset, "the reset")
    finally:
        plain.close()
    heir = consumers(topic_name)
    assert read_to_end(heir, 9) == list(range(offset, 10))


def test_metadata_of_the_application_are_not_replaced_where_it_stands(kafka, topic_name, consumers):
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, [b"x"] * 10)
    member = consumers(topic_name)
    poll_until(lambda: bool(member.unprocessed()), member)
    (partition,) = member.assignment()
    member.commit({partition: OffsetAndMetadata(2, "mine", 0)})
    member.processed(partition, 5)
    assert member.drain(10_000)
    assert member.committed(partition, metadata=True) == OffsetAndMetadata(2, "mine", 0)
    member.processed(partition, 2)
    assert member.drain(10_000)
    assert member.committed(partition) == 3
    assert told(member, partition).startswith("unprocessed/")


def test_a_seek_delivers_what_was_finished_too(killed, topic_name, consumers):
    partition = killed(1, 2, 3, 7)
    heir = consumers(topic_name)
    poll_until(owns(heir, 1), heir)
    heir.seek(partition, 1)
    assert read_to_end(heir, 9)[-9:] == list(range(1, 10))


def test_in_order_there_is_nothing_to_tell(kafka, topic_name, consumers):
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, [b"x"] * 10)
    member = consumers(topic_name)
    poll_until(lambda: bool(member.unprocessed()), member)
    (partition,) = member.assignment()
    with counted(member, OffsetCommitRequest) as sent:
        for offset in range(10):
            member.processed(partition, offset)
        assert member.drain(10_000)
    texts = [p.committed_metadata for r in sent for t in r.topics for p in t.partitions]
    assert set(texts) == {""}


def test_a_broker_without_room_for_the_gaps_gets_fewer(kafka, topic_name, consumers):
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, [b"x"] * 100)
    member = consumers(topic_name)
    poll_until(lambda: bool(member.unprocessed()), member)
    (partition,) = member.assignment()
    io, sent = member._io, []
    send = io.send

    async def without_room(request: Any, node_id: str | None, timeout_ms: float) -> Any:
        response = await send(request, node_id, timeout_ms)
        if isinstance(request, OffsetCommitRequest):
            sent.append(len(request.topics[0].partitions[0].committed_metadata))
            if sent[-1] > 30:
                too_large = kafka_errors.OffsetMetadataTooLargeError.errno
                response.topics[0].partitions[0].error_code = too_large
        return response

    io.send = without_room
    member.processed(partition, *range(0, 100, 3))
    assert member.drain(PATIENCE_S * 1000)
    assert member.acknowledged(partition) == 1
    assert sent[0] > 30 >= sent[-1]
