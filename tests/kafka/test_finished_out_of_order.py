"""What workers had finished behind a slow record survives their consumer, on a real broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
from group_members import PATIENCE_S, counted, membership_of, owns, poll_until, wait_until
from handed_out_records import (
    Picky,
    commits_in_the_topic_created_anew,
    read_to_end,
    skipping,
    told,
)
from kafka import KafkaConsumer
from kafka import errors as kafka_errors
from kafka.protocol.consumer import OffsetCommitRequest
from kafka.structs import OffsetAndMetadata, TopicPartition

from pyspark_kafka_rebalance import DeferredRevokeConsumer, PollResult, UnreadableRecordError
from pyspark_kafka_rebalance.consumer.protocol.lane import Lane
from pyspark_kafka_rebalance.testing import LocalKafka

Reader = tuple[DeferredRevokeConsumer, TopicPartition]
Killed = Callable[..., TopicPartition]


@pytest.fixture
def reader(kafka, topic_name, consumers) -> Reader:
    """A member that was handed out the ten records of a partition."""
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, [b"%d" % n for n in range(10)])
    member = consumers(topic_name)
    assert read_to_end(member, 9) == list(range(10))
    return member, TopicPartition(topic_name, 0)


@pytest.fixture
def killed(reader) -> Killed:
    """A member that dies once the group knows that these of ten records are processed."""
    member, partition = reader

    def die(*processed: int) -> TopicPartition:
        member.processed(partition, *processed)
        wait_until(lambda: told(member, partition).startswith("unprocessed/"), "the gaps are told")
        member.leave_until_polled("killed")  # without another commit
        return partition

    return die


@pytest.fixture(scope="module")
def own_kafka() -> Iterator[LocalKafka]:
    """A broker to restart."""
    with LocalKafka() as local:
        yield local


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


def test_metadata_of_the_application_are_not_replaced_where_it_stands(reader):
    member, partition = reader
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


def test_in_order_there_is_nothing_to_tell(reader):
    member, partition = reader
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
    loop, sent = member._io.loop, []
    send = loop.send

    async def without_room(request: Any, node_id: str | None, timeout_ms: float) -> Any:
        response = await send(request, node_id, timeout_ms)
        if isinstance(request, OffsetCommitRequest):
            sent.append(len(request.topics[0].partitions[0].committed_metadata))
            if sent[-1] > 30:
                too_large = kafka_errors.OffsetMetadataTooLargeError.errno
                response.topics[0].partitions[0].error_code = too_large
        return response

    loop.send = without_room
    member.processed(partition, *range(0, 100, 3))
    assert member.drain(PATIENCE_S * 1000)
    assert member.acknowledged(partition) == 1
    assert sent[0] > 30 >= sent[-1]


@pytest.fixture
def heir(killed, topic_name, consumers) -> tuple[DeferredRevokeConsumer, TopicPartition]:
    """Who took over when only 5 was left of what was finished, and has been handed out that one."""
    partition = killed(0, 1, 2, 3, 4, 6, 7, 8, 9)
    member = consumers(topic_name)
    assert read_to_end(member, 5) == [5]
    wait_until(lambda: bool(member.poll(timeout_ms=50)) or member.position(partition) == 10, "10")
    return member, partition


def test_an_heir_commits_the_epoch_of_the_record_before_the_offset(
    own_kafka, topic_name, group_id, consumers
):
    own_kafka.create_topic(topic_name)
    own_kafka.produce(topic_name, [b"old"] * 10)
    own_kafka.restart()  # a new leader epoch
    own_kafka.produce(topic_name, [b"new"] * 10)
    settings = {"bootstrap_servers": own_kafka.bootstrap_servers}
    first = consumers(topic_name, **settings)
    read_to_end(first, 19)
    (partition,) = first.assignment()
    first.processed(partition, *(set(range(20)) - {5}))
    first.close()
    heir = consumers(topic_name, **settings)
    assert read_to_end(heir, 5) == [5]
    poll_until(lambda: heir.position(partition) == 20, heir)
    heir.processed(partition, 5)
    heir.close()
    last = consumers(topic_name, **settings)
    poll_until(owns(last, 1), last)
    committed = last.committed(partition, metadata=True)
    assert committed.offset == 20
    own_kafka.produce(topic_name, [b"last"])
    assert read_to_end(last, 20) == [20]


def test_an_epoch_is_not_forgotten_where_polls_go_back(own_kafka, topic_name, consumers):
    own_kafka.create_topic(topic_name)
    own_kafka.produce(topic_name, [b"old"] * 10)
    own_kafka.restart()
    own_kafka.produce(topic_name, [b"new"] * 10)
    member = consumers(topic_name, bootstrap_servers=own_kafka.bootstrap_servers)
    read_to_end(member, 19)
    (partition,) = member.assignment()
    member.processed(partition, *range(20))
    assert member.drain(10_000)
    before = member.committed(partition, metadata=True)
    member.seek(partition, 2)
    assert [record.offset for record in member.poll(10_000, max_records=3)[partition]] == [2, 3, 4]
    member.processed(partition, 2, 3, 4)
    assert member.drain(10_000)
    again = member.committed(partition, metadata=True)
    assert again.offset == 5
    assert 0 <= again.leader_epoch < before.leader_epoch
    read_to_end(member, 19)
    member.processed(partition, *range(5, 20))
    assert member.drain(10_000)
    assert member.committed(partition, metadata=True) == before


def test_a_record_that_cannot_be_read_hides_nothing_behind_it(kafka, topic_name, consumers):
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, [b"%d" % n for n in range(10)])
    first = consumers(topic_name, value_deserializer=Picky())
    assert read_to_end(first, 9, lambda: skipping(first)) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    (partition,) = first.assignment()
    first.processed(partition, 0, 1, 3, 5, 6, 8, 9)
    first.close()
    second = consumers(topic_name, value_deserializer=Picky())
    assert read_to_end(second, 7, lambda: skipping(second)) == [2, 7]
    second.processed(partition, 2, 7)
    second.drain(10_000)
    assert second.acknowledged(partition) == 10
    second.close()


def test_who_can_read_what_another_skipped_gets_it(killed, topic_name, consumers):
    partition = killed(0, 1, 2, 5)
    first = consumers(topic_name)
    assert read_to_end(first, 9) == [3, 4, 6, 7, 8, 9]
    first.seek(partition, 3)
    assert [r.offset for r in first.poll(10_000, max_records=1)[partition]] == [3]
    first.seek(partition, 6)
    assert read_to_end(first, 9) == [6, 7, 8, 9]
    first.processed(partition, 6, 7, 9)
    first.close()
    second = consumers(topic_name)
    assert read_to_end(second, 8) == [3, 4, 5, 8]


def test_the_first_record_processed_after_a_seek_back_moves_the_group_back(reader):
    member, partition = reader
    member.processed(partition, *range(10))
    assert member.drain(10_000)
    assert member.acknowledged(partition) == 10
    member.seek(partition, 3)
    read_to_end(member, 9)
    member.processed(partition, 6)
    assert member.drain(10_000)
    assert member.committed(partition) == 3
    member.processed(partition, 3)
    assert member.drain(10_000)
    assert member.committed(partition) == 4


def test_metadata_of_another_application_are_not_replaced_where_they_stand(
    reader, topic_name, consumers
):
    first, partition = reader
    first.commit({partition: OffsetAndMetadata(5, "mine", 0)})
    first.close()
    second = consumers(topic_name)
    read_to_end(second, 9)
    second.processed(partition, 7)
    second.close()  # tells what it may
    third = consumers(topic_name)
    assert third.committed(partition, metadata=True) == OffsetAndMetadata(5, "mine", 0)


def test_a_lower_commit_by_hand_is_not_undone_by_what_others_had_finished(heir):
    member, partition = heir
    member.commit({partition: 2})
    assert member.drain(10_000)
    assert member.committed(partition) == 2
    member.processed(partition, 5)
    assert member.drain(10_000)
    assert member.committed(partition) == 10


def test_what_is_written_behind_a_truncation_is_not_left_out(heir, kafka, topic_name):
    """The log ends now between what was handed out and where polls stood, and goes on."""
    member, partition = heir
    member.processed(partition, 5)
    assert member.drain(10_000)
    assert member.committed(partition) == 10
    kafka.delete_topic(topic_name)
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, [b"new"] * 7)
    seen = []  # nothing, or all: with KIP-848 the partition may be assigned anew

    def went_back() -> bool:
        seen.extend(r.offset for r in member.poll(timeout_ms=50).get(partition, ()))
        return bool(member.assignment()) and member.position(partition) == 7

    wait_until(went_back, "the end of the new log")
    kafka.produce(topic_name, [b"new"] * 2)
    seen += read_to_end(member, 8)
    assert seen[-2:] == [7, 8]
    member.processed(partition, *seen)
    assert member.drain(10_000)
    if membership_of(member).by_topic_id:
        commits_in_the_topic_created_anew(member, partition, 9)
    assert member.committed(partition) == 9, "lower than what was committed of the old log"


def test_what_was_finished_of_a_topic_is_not_told_of_the_one_created_anew(
    kafka, topic_name, consumers
):
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, [b"old"] * 10)
    member = consumers(topic_name, metadata_max_age_ms=200)
    read_to_end(member, 9)
    (partition,) = member.assignment()
    old = member._io.metadata.topic_id(topic_name)
    member.pause(partition)
    kafka.delete_topic(topic_name)
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, [b"new"] * 20)
    poll_until(lambda: member._io.metadata.topic_id(topic_name) not in (None, old), member)
    if partition in member.assignment() and member.position(partition) == 10:
        member.processed(partition, 0, 1, 4, 5, 6, 7)
        member.close()
        assert read_to_end(consumers(topic_name), 19)[-18:] == list(range(2, 20))
    else:  # assigned anew, as KIP-848 does it
        assert read_to_end(member, 19) == list(range(20))


def test_polls_go_on_where_iteration_was_left(kafka, topic_name, consumers):
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, [b"x"] * 10)
    member = consumers(topic_name, consumer_timeout_ms=4_000)
    iterated = [record.offset for record in islice(member, 3)]
    (partition,) = member.assignment()
    polled = read_to_end(member, 9)
    member.processed(partition, *iterated, *polled)
    assert member.drain(10_000)
    assert sorted({*iterated, *polled}) == list(range(10)), "none is left out"
    assert [record.offset for record in member] == []
    assert member.committed(partition) == 10


def test_commits_by_hand_that_go_back_are_not_undone_by_the_next_of_them(reader):
    member, partition = reader
    member.processed(partition, *range(10))
    assert member.drain(10_000)
    for offset in (2, 3):
        member.commit({partition: offset})
        assert member.drain(10_000)
        assert member.committed(partition) == offset


@pytest.mark.parametrize("how", ["processed", "commit_processed", "commit"])
def test_after_a_seek_back_the_group_is_where_polls_go_on(reader, topic_name, consumers, how):
    """What the replay has not come to yet, whoever is next goes on with."""
    member, partition = reader
    member.processed(partition, *range(10))
    assert member.drain(10_000)
    member.seek(partition, 3)
    assert [r.offset for r in member.poll(10_000, max_records=2)[partition]] == [3, 4]
    if how == "processed":
        member.processed(partition, 3, 4)
    else:
        getattr(member, how)({partition: 5})
    assert member.drain(10_000)
    assert member.committed(partition, metadata=True).offset == 5
    member.leave_until_polled("killed")
    assert read_to_end(consumers(topic_name), 9) == list(range(5, 10))


@pytest.mark.parametrize("told_before", [False, True])
def test_what_was_finished_goes_with_a_revoke(kafka, topic_name, consumers, told_before):
    """Told long ago, or just before the poll that completes it."""
    kafka.create_topic(topic_name, partitions=2)
    kafka.produce(topic_name, [b"%d" % n for n in range(20)])
    member = consumers(topic_name)
    poll_until(lambda: sum(map(member.position, member.assignment())) == 20, member)
    both = member.assignment()
    for partition in both:
        member.processed(partition, *([5, 6, 7, 8, 9] if told_before else [5]))
    assert member.drain(10_000)
    heir = consumers(topic_name)
    results: list[PollResult] = []
    while not results or not results[-1].to_be_revoked:
        heir.poll(timeout_ms=20)
        results.append(member.poll_with_rebalance(timeout_ms=20))
    (partition,) = results[-1].to_be_revoked
    member.processed(partition, *([0, 1, 2] if told_before else [6, 7, 8, 9]))
    delivered: list[int] = []
    while 4 not in delivered:
        member.poll(timeout_ms=20)
        for found in heir.poll(timeout_ms=50).values():
            delivered += [record.offset for record in found]
    assert delivered == ([3, 4] if told_before else [0, 1, 2, 3, 4])


@pytest.mark.parametrize("at", [0, 4])
def test_a_commit_by_hand_tells_what_is_finished_behind_it(reader, topic_name, consumers, at):
    first, partition = reader
    first.processed(partition, 5, 6, 7, 8, 9)
    assert first.drain(10_000)
    first.commit({partition: at})
    assert told(first, partition).startswith("unprocessed/")
    first.leave_until_polled("killed")
    assert read_to_end(consumers(topic_name), 4) == list(range(at, 5))


def test_a_commit_by_hand_of_a_record_that_is_finished_has_it_come_again(
    reader, topic_name, consumers
):
    first, partition = reader
    first.processed(partition, *range(4), 5, 6)
    assert first.drain(10_000)
    first.commit({partition: 2})
    first.close()
    assert read_to_end(consumers(topic_name), 9) == list(range(2, 10))


def test_a_broker_without_room_for_the_gaps_takes_a_commit_by_hand(kafka, topic_name, consumers):
    with LocalKafka(broker_config={"offset.metadata.max.bytes": 20}) as small:
        small.create_topic(topic_name)
        small.produce(topic_name, [b"%d" % n for n in range(10)])
        member = consumers(topic_name, bootstrap_servers=small.bootstrap_servers)
        read_to_end(member, 9)
        partition = TopicPartition(topic_name, 0)
        member.processed(partition, 1, 3, 5, 7, 9)
        member.commit({partition: 0})
        assert member.committed(partition, metadata=True).offset == 0
        member.commit({partition: 4})
        assert member.committed(partition, metadata=True).offset == 4
        member.close()


def test_an_heir_that_commits_before_its_first_record_keeps_what_was_finished(
    killed, kafka, topic_name, consumers
):
    partition = killed(1, 2, 3, 7)
    second = consumers(topic_name)

    def is_assigned() -> bool:
        second.poll_membership()  # fetches nothing
        return second.assignment() == {partition}

    wait_until(is_assigned, "it is assigned")
    second.pause(partition)
    poll_until(lambda: second._io.subscription.position(partition) == 0, second)
    second.commit()
    assert told(second, partition).startswith("unprocessed/")
    second.close()
    assert read_to_end(consumers(topic_name), 9) == [0, 4, 5, 6, 8, 9]


def test_what_an_heir_skips_the_next_owner_gets_if_it_can_read_it(killed, topic_name, consumers):
    partition = killed(5)
    second = consumers(topic_name, value_deserializer=Picky())
    assert read_to_end(second, 9, lambda: skipping(second)) == [0, 1, 2, 3, 6, 7, 8, 9]
    second.processed(partition, 1, 2, 3, 6, 7, 8, 9)
    second.close()
    assert read_to_end(consumers(topic_name), 4) == [0, 4]


def test_a_seek_to_behind_an_error_that_has_healed_is_no_skip(reader, topic_name, consumers):
    first, partition = reader
    first.close()
    picky = Picky()
    member = consumers(topic_name, value_deserializer=picky)
    with pytest.raises(UnreadableRecordError):
        poll_until(lambda: False, member)
    picky.unreadable = None
    read_to_end(member, 9)
    member.processed(partition, *range(10))
    assert member.drain(10_000)
    member.seek(partition, 5)
    read_to_end(member, 9)
    member.processed(partition, 5)
    assert member.drain(10_000)
    assert member.committed(partition) == 6


def test_what_is_finished_behind_a_seek_forward_is_told(reader, kafka, topic_name, consumers):
    member, partition = reader
    kafka.produce(topic_name, [b"x"] * 20)
    member.processed(partition, *range(5))
    assert member.drain(10_000)
    member.seek(partition, 20)
    read_to_end(member, 29)
    member.processed(partition, *range(5, 10), *range(21, 30))
    member.close()
    assert read_to_end(consumers(topic_name), 20) == [20]


def test_where_a_partition_comes_back_it_may_be_committed_again(reader):
    """As an application may that commits its positions with each poll."""
    member, partition = reader
    member.commit_processed({partition: 10})
    assert member.drain(10_000)
    member.leave_until_polled("lost")
    wait_until(lambda: bool(member.poll_with_rebalance(timeout_ms=20).lost), "it is lost")
    poll_until(owns(member, 1), member)
    poll_until(lambda: member._io.subscription.position(partition) == 10, member)
    member.commit_processed({partition: 10})
    assert member.drain(10_000)
    assert member.committed(partition) == 10


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    return [text for text in found if "does not keep the metadata" in text]


def test_a_server_that_drops_what_is_beyond_the_offset_is_noticed_once(
    topic_name, kafka, consumers, caplog, monkeypatch
):
    """Some proxies and other servers accept a commit's metadata, and keep none."""
    commit = Lane.commit

    async def dropping(self: Lane, member: Any, offsets: dict[Any, Any]) -> Any:
        bare = {p: entry._replace(metadata="") for p, entry in offsets.items()}
        return await commit(self, member, bare)

    monkeypatch.setattr(Lane, "commit", dropping)
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, [b"%d" % n for n in range(10)])
    member = consumers(topic_name)
    assert read_to_end(member, 9) == list(range(10))
    partition = TopicPartition(topic_name, 0)
    for n in (3, 5, 7):
        member.processed(partition, n)
        assert member.drain(10_000)
    member.close()
    heir = consumers(topic_name)
    assert read_to_end(heir, 9) == list(range(10)), "as the log says"
    heir.processed(partition, 3)
    assert heir.drain(10_000)
    (warned,) = warnings_of(caplog)
    assert warned.startswith(f"group {member.config['group_id']}: ")
    assert f"with offset 0 of {topic_name}-0, 0 kept" in warned


def test_of_a_server_that_keeps_metadata_there_is_nothing_to_say(killed, caplog, monkeypatch):
    asked: list[Any] = []
    committed = Lane.committed

    async def noted(self: Lane, partitions: Any, **options: Any) -> Any:
        asked.append(partitions)
        return await committed(self, partitions, **options)

    monkeypatch.setattr(Lane, "committed", noted)
    partition = killed(1, 2, 3, 7)
    assert asked == [[partition]], "it costs one request"
    assert warnings_of(caplog) == []
