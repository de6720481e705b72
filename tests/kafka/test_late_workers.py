"""Workers that end when the partition was lost, sought or created anew since, on a real broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from group_members import owns, poll_until, wait_until
from handed_out_records import (
    Picky,
    commits_in_the_topic_created_anew,
    read_to_end,
    skipping,
    told,
)
from kafka import KafkaProducer
from kafka.consumer.subscription_state import ConsumerRebalanceListener
from kafka.structs import OffsetAndMetadata, TopicPartition

from pyspark_kafka_rebalance import DeferredRevokeConsumer, PartitionsLostError
from pyspark_kafka_rebalance.testing import LocalKafka


@pytest.fixture
def partition(kafka, topic_name) -> TopicPartition:
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, [b"old"] * 10)
    return TopicPartition(topic_name, 0)


@pytest.fixture(scope="module")
def own_kafka() -> Iterator[LocalKafka]:
    """A broker to restart."""
    with LocalKafka() as local:
        yield local


@pytest.fixture
def create_anew(kafka, topic_name, partition):
    """The topic is created anew, with twenty records or others, and the member has it back then."""

    def twenty() -> None:
        kafka.produce(topic_name, [b"new"] * 20)

    def create(member: DeferredRevokeConsumer, produce: Callable[[], None] = twenty) -> None:
        metadata = member._io.metadata
        known = metadata.topic_id(topic_name)
        kafka.delete_topic(topic_name)
        kafka.create_topic(topic_name)
        produce()

        def is_back() -> bool:
            member.poll_membership()
            found = metadata.topic_id(topic_name)
            return partition in member.assignment() and found not in (None, known)

        wait_until(is_back, "it is assigned, and the metadata know the new topic")

    return create


@pytest.fixture
def leave_at(topic_name, partition, consumers):
    """A former owner reads all there is, and leaves the group here."""

    def leave(offset: int) -> None:
        former = consumers(topic_name)
        read_to_end(former, 9)
        former.commit_processed({partition: offset})
        assert former.drain(10_000)
        former.close()

    return leave


def lose(member: DeferredRevokeConsumer) -> None:
    member.leave_until_polled("lost")
    wait_until(lambda: bool(member.poll_with_rebalance(timeout_ms=20).lost), "it is lost")


def wait_until_assigned(member: DeferredRevokeConsumer, partition: TopicPartition) -> None:
    """Without reading anything."""

    def is_assigned() -> bool:
        member.poll_membership()
        return partition in member.assignment()

    wait_until(is_assigned, "it is assigned")


def wait_until_known(member: DeferredRevokeConsumer, partition: TopicPartition, start: int) -> None:
    """Where the partition starts, without reading anything."""
    wait_until_assigned(member, partition)
    member.pause(partition)
    poll_until(lambda: member._io.subscription.position(partition) == start, member)
    member.resume(partition)


@pytest.mark.parametrize("more", [0, 5], ids=["before", "after"])
def test_the_group_does_not_go_back_behind_another_owner(
    kafka, topic_name, partition, consumers, more
):
    """Before and after the first records since the partition came back."""
    member = consumers(topic_name)
    read_to_end(member, 9)
    member.leave_until_polled("lost")
    other = consumers(topic_name)
    read_to_end(other, 9)
    other.commit_processed({partition: 10})
    assert other.drain(10_000)
    other.close()
    poll_until(lambda: member._io.subscription.position(partition) == 10, member)
    if more:
        kafka.produce(topic_name, [b"more"] * more)
        read_to_end(member, 14)
    with pytest.raises(PartitionsLostError):
        member.commit_processed({partition: 8})
    assert member.drain(10_000)
    assert member.committed(partition) == 10


@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
def test_the_background_does_not_go_back_behind_where_reading_begins(
    topic_name, partition, consumers, leave_at, first
):
    leave_at(7)
    member = consumers(topic_name)
    if first:
        wait_until_known(member, partition, 7)
    else:
        assert read_to_end(member, 9) == [7, 8, 9]
    member.commit_processed({partition: 5})
    assert member.drain(10_000)
    assert member.committed(partition) == 7
    member.commit_processed({partition: 9})
    assert member.drain(10_000)
    assert member.committed(partition) == 9


def test_after_a_seek_back_the_background_commits_lower_all_the_same(
    topic_name, partition, consumers, leave_at
):
    leave_at(7)
    member = consumers(topic_name)
    poll_until(owns(member, 1), member)
    member.seek(partition, 2)
    assert read_to_end(member, 9)[-8:] == list(range(2, 10))
    member.commit_processed({partition: 5})
    assert member.drain(10_000)
    assert member.committed(partition) == 5


def read_some(member: DeferredRevokeConsumer, partition: TopicPartition, count: int) -> list[int]:
    seen: list[int] = []

    def polled() -> bool:
        records = member.poll(timeout_ms=50, max_records=count - len(seen))
        seen.extend(record.offset for record in records.get(partition, ()))
        return len(seen) == count

    wait_until(polled, f"{count} records")
    return seen


def test_a_worker_of_a_topic_created_anew_hides_no_new_records(
    topic_name, partition, consumers, create_anew
):
    """The docs advise to seek to the beginning then."""
    member = consumers(topic_name, metadata_max_age_ms=300)
    read_to_end(member, 9)
    member.commit_processed({partition: 2})
    assert member.drain(10_000)
    create_anew(member)
    member.seek_to_beginning(partition)
    assert read_some(member, partition, 5) == [0, 1, 2, 3, 4]
    with pytest.raises(PartitionsLostError):
        member.commit_processed({partition: 10})
    with pytest.raises(PartitionsLostError):
        member.processed(partition, 9)
    member.leave_until_polled("killed")
    assert read_to_end(consumers(topic_name), 19) == list(range(20))


def test_a_worker_that_ends_between_a_seek_and_the_first_new_record_hides_none(
    topic_name, partition, consumers, create_anew
):
    member = consumers(topic_name, metadata_max_age_ms=300)
    read_to_end(member, 9)
    member.processed(partition, *range(9))
    assert member.drain(10_000)
    create_anew(member)
    member.seek_to_beginning(partition)
    with suppress(PartitionsLostError):  # it may have been assigned anew
        member.processed(partition, 9)
    assert member.drain(10_000)
    member.leave_until_polled("killed")
    assert read_to_end(consumers(topic_name), 19) == list(range(20))


def test_a_seek_after_a_loss_does_not_let_workers_of_before_commit(
    topic_name, partition, consumers
):
    member = consumers(topic_name)
    read_to_end(member, 9)
    lose(member)
    wait_until_assigned(member, partition)
    member.seek(partition, 3)
    assert read_some(member, partition, 2) == [3, 4]
    with pytest.raises(PartitionsLostError, match="at 10 is past 5"):
        member.commit_processed({partition: 10})
    member.commit_processed({partition: 4})
    assert member.drain(10_000)
    assert member.committed(partition) == 4


def test_a_member_that_gets_back_what_it_finished_may_commit_its_position(
    topic_name, partition, consumers
):
    member = consumers(topic_name)
    read_to_end(member, 9)
    member.processed(partition, *set(range(10)) - {5})
    assert member.drain(10_000)
    wait_until(lambda: told(member, partition).startswith("unprocessed/"), "the gap is told")
    lose(member)
    assert read_to_end(member, 5) == [5]
    poll_until(lambda: member.position(partition) == 10, member)
    member.commit_processed({partition: 10})
    assert member.drain(10_000)
    assert member.committed(partition) == 10


@pytest.mark.parametrize("where", ["end", "forward", "forward, untold"])
def test_a_seek_forward_leaves_the_group_what_was_finished(
    kafka, topic_name, partition, consumers, where
):
    """Whether a worker ends between the seek and the next record, or had ended before it."""
    last = 9 if where == "end" else 29
    kafka.produce(topic_name, [b"more"] * (last - 9))
    member = consumers(topic_name)
    assert read_some(member, partition, 10) == list(range(10))
    member.processed(partition, 1)
    assert member.drain(10_000)
    member.processed(partition, *range(2, 9))
    if where == "forward, untold":
        member.seek(partition, 20)
        assert read_to_end(member, 29) == list(range(20, 30))
        finished = range(1, 9)
    else:
        assert member.drain(10_000)
        if where == "end":
            member.seek_to_end(partition)
        else:
            member.seek(partition, 20)
        member.processed(partition, 9)
        finished = range(1, 10)
    assert member.drain(10_000)
    member.close()
    left = [offset for offset in range(last + 1) if offset not in finished]
    assert read_to_end(consumers(topic_name), left[-1]) == left


@pytest.mark.parametrize("how", ["seek", "skip"])
def test_what_is_left_out_before_the_first_record_has_no_leader_epoch(
    own_kafka, topic_name, consumers, how
):
    """A lower one than that of the record before a commit sends the next owner back."""
    own_kafka.create_topic(topic_name)
    own_kafka.produce(topic_name, [b"old"] * 10)
    partition = TopicPartition(topic_name, 0)
    bootstrap = {"bootstrap_servers": own_kafka.bootstrap_servers}
    former = consumers(topic_name, **bootstrap)
    read_to_end(former, 9)
    former.commit_processed({partition: 10})
    former.close()
    own_kafka.restart()  # a new leader epoch
    own_kafka.produce(topic_name, [b"4", *[b"new"] * 19])
    if how == "skip":
        member = consumers(topic_name, **bootstrap, value_deserializer=Picky())
        assert read_to_end(member, 29, lambda: skipping(member)) == list(range(11, 30))
        member.processed(partition, 12)
        left = [11, *range(13, 30)]
    else:
        member = consumers(topic_name, **bootstrap)
        wait_until_assigned(member, partition)
        assert member.position(partition) == 10, "the group's offset and its epoch are known"
        member.seek(partition, 20)
        assert read_to_end(member, 29) == list(range(20, 30))
        member.processed(partition, 21)
        left = [20, *range(22, 30)]
    assert member.drain(10_000)
    wait_until(lambda: told(member, partition).startswith("unprocessed/"), "the gap is told")
    assert member.committed(partition) == left[0]
    member.close()
    heir = consumers(topic_name, **bootstrap, value_deserializer=Picky())
    assert read_to_end(heir, 29) == left


def test_a_seek_to_the_end_of_a_topic_created_anew_hides_nothing_behind_it(
    kafka, topic_name, partition, consumers, create_anew
):
    kafka.produce(topic_name, [b"old"] * 90)
    member = consumers(topic_name, metadata_max_age_ms=300)
    read_to_end(member, 99)
    member.commit_processed({partition: 2})
    assert member.drain(10_000)
    create_anew(member)
    member.seek_to_end(partition)
    with pytest.raises(PartitionsLostError):
        member.commit_processed({partition: 100})
    poll_until(lambda: member._io.subscription.position(partition) == 20, member)
    with pytest.raises(PartitionsLostError):
        member.commit_processed({partition: 100})
    assert member.position(partition) == 20
    commits_in_the_topic_created_anew(member, partition, 20)


def test_a_worker_of_a_topic_created_anew_under_a_seek_hides_nothing_once_the_id_is_known(
    kafka, topic_name, partition, consumers
):
    """The seek came before the metadata knew, and so did the first new records."""
    kafka.produce(topic_name, [b"old"] * 90)
    member = consumers(topic_name)
    read_to_end(member, 99)
    member.commit_processed({partition: 2})
    assert member.drain(10_000)
    metadata = member._io.metadata
    known = metadata.topic_id(topic_name)
    kafka.delete_topic(topic_name)
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, [b"new"] * 10)
    member.seek_to_beginning(partition)
    assert read_to_end(member, 9)[-10:] == list(range(10))
    poll_until(lambda: metadata.topic_id(topic_name) not in (None, known), member)
    for late in (
        lambda: member.commit_processed({partition: 100}),
        lambda: member.processed(partition, 50),
    ):
        with pytest.raises(PartitionsLostError):
            late()
    kafka.produce(topic_name, [b"new"] * 5)
    read_to_end(member, 14)
    with pytest.raises(PartitionsLostError):
        member.commit_processed({partition: 100})
    commits_in_the_topic_created_anew(member, partition, 15)


def test_behind_a_transaction_of_a_topic_created_anew_the_position_may_be_committed(
    kafka, topic_name, partition, consumers, create_anew
):
    kafka.produce(topic_name, [b"old"] * 90)
    member = consumers(topic_name, metadata_max_age_ms=300)
    read_to_end(member, 99)

    def in_a_transaction() -> None:
        producer = KafkaProducer(
            bootstrap_servers=kafka.bootstrap_servers, transactional_id=f"of-{topic_name}"
        )
        producer.init_transactions()
        producer.begin_transaction()
        for _ in range(9):
            producer.send(topic_name, b"new")
        producer.commit_transaction()
        producer.close()

    create_anew(member, in_a_transaction)
    member.seek_to_beginning(partition)
    read_to_end(member, 8)
    poll_until(lambda: member.position(partition) == 10, member)
    commits_in_the_topic_created_anew(member, partition, 10)


@pytest.mark.parametrize("when", ["known", "unknown", "read"])
def test_a_seek_forward_does_not_let_the_group_move_back(
    topic_name, partition, consumers, leave_at, when
):
    """Before and after where the partition starts is known, and after the first records."""
    leave_at(5)
    member = consumers(topic_name)
    if when == "unknown":
        wait_until_assigned(member, partition)
        member.seek(partition, 5)
    else:
        wait_until_known(member, partition, 5)
        member.seek(partition, 8)
    if when == "read":
        read_to_end(member, 9)
    member.commit_processed({partition: 2})
    assert member.drain(10_000)
    assert member.committed(partition) == 5
    member.commit_processed({partition: 8})
    assert member.drain(10_000)
    assert member.committed(partition) == 8


def test_a_listener_that_seeks_does_not_let_late_workers_move_the_group_back(
    topic_name, partition, consumers
):
    class Seeking(ConsumerRebalanceListener):
        def on_partitions_assigned(self, assigned):
            for one in assigned:
                if others:
                    member.seek(one, 8)

        def on_partitions_revoked(self, revoked):
            pass

    others: list[DeferredRevokeConsumer] = []
    member = consumers()
    member.subscribe([topic_name], listener=Seeking())
    read_some(member, partition, 5)
    member.leave_until_polled("lost")
    others.append(consumers(topic_name))
    read_to_end(others[0], 9)
    others[0].commit_processed({partition: 8})
    others[0].close()
    assert read_to_end(member, 9) == [8, 9]
    with pytest.raises(PartitionsLostError):
        member.commit_processed({partition: 3})
    assert member.drain(10_000)
    assert member.committed(partition) == 8


@pytest.mark.parametrize("more", [False, True], ids=["before", "after"])
def test_a_seek_back_and_forward_again_moves_nothing(kafka, topic_name, partition, consumers, more):
    """Before and after the first record of there."""
    member = consumers(topic_name)
    read_to_end(member, 9)
    member.commit_processed({partition: 8})
    assert member.drain(10_000)
    member.seek(partition, 1)
    member.seek(partition, 9)
    if more:
        assert read_to_end(member, 9) == [9]
    member.commit_processed({partition: 2})
    assert member.drain(10_000)
    assert member.committed(partition) == 8
    member.seek_to_beginning(partition)
    member.commit_processed({partition: member.position(partition)})
    assert member.drain(10_000)
    assert member.committed(partition) == 0, "as the application says"


@pytest.mark.parametrize(("to", "between"), [(1, 4), (8, 7)], ids=["back", "forward"])
def test_a_worker_of_before_a_loss_is_told_so_of_what_a_seek_left_between(
    topic_name, partition, consumers, to, between
):
    member = consumers(topic_name)
    read_to_end(member, 9)
    member.commit_processed({partition: 5})
    assert member.drain(10_000)
    lose(member)
    wait_until_assigned(member, partition)
    assert read_some(member, partition, 2) == [5, 6]
    member.seek(partition, to)
    assert read_some(member, partition, 2) == [to, to + 1]
    with pytest.raises(PartitionsLostError):
        member.processed(partition, between)
    member.processed(partition, 5, 6, to, to + 1)


@pytest.mark.parametrize("committed_before", [False, True])
def test_the_group_moves_back_with_the_first_of_what_is_handed_out_again(
    topic_name, partition, consumers, leave_at, committed_before
):
    leave_at(5)
    member = consumers(topic_name)
    assert read_to_end(member, 9) == [5, 6, 7, 8, 9]
    if committed_before:
        member.processed(partition, 5)
        assert member.drain(10_000)
    stands = member.committed(partition)
    member.seek(partition, 1)
    member.processed(partition, 7)
    assert member.drain(10_000)
    assert member.committed(partition) == stands
    assert read_some(member, partition, 3) == [1, 2, 3]
    member.processed(partition, 8)
    assert member.drain(10_000)
    assert member.committed(partition) == stands
    member.processed(partition, 2)
    assert member.drain(10_000)
    assert member.committed(partition) == 1


def test_a_rewind_by_hand_is_not_undone_by_what_late_workers_finish(
    topic_name, partition, consumers
):
    member = consumers(topic_name)
    read_to_end(member, 9)
    member.processed(partition, *range(8))
    assert member.drain(10_000)
    member.commit({partition: OffsetAndMetadata(1, "", -1)})
    member.seek(partition, 4)
    member.processed(partition, 9)
    assert member.drain(10_000)
    assert member.committed(partition) == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_after_a_look_back_the_group_is_where_it_was(topic_name, partition, consumers, when):
    """Whether what was looked at is processed before or after the seek to the old place."""
    member = consumers(topic_name)
    read_to_end(member, 9)
    member.processed(partition, *range(10))
    assert member.drain(10_000)
    member.seek(partition, 2)
    assert read_some(member, partition, 2) == [2, 3]
    if when == "before":
        member.processed(partition, 2, 3)
        assert member.drain(10_000)
        assert member.committed(partition) == 4
    member.seek(partition, 10)
    if when == "after":
        member.processed(partition, 2)
        member.processed(partition, 3)
    assert member.drain(10_000)
    assert member.committed(partition) == 10
    assert member.unprocessed() == frozenset()


def test_a_former_owners_metadata_stay_until_the_position_moves_on(
    topic_name, partition, consumers
):
    former = consumers(topic_name)
    read_to_end(former, 9)
    former.commit({partition: OffsetAndMetadata(5, "mine", -1)})
    former.close()
    member = consumers(topic_name)
    wait_until_known(member, partition, 5)
    member.commit_processed({partition: 5})
    assert member.drain(10_000)
    assert told(member, partition) == "mine"
    read_to_end(member, 9)
    member.commit_processed({partition: 5})
    assert member.drain(10_000)
    assert told(member, partition) == "mine"
    member.commit_processed({partition: 6})
    assert member.drain(10_000)
    assert told(member, partition) == ""


def test_after_a_lower_commit_by_hand_the_background_goes_on_from_there(
    topic_name, partition, consumers, leave_at
):
    """Also before the first record."""
    leave_at(5)
    member = consumers(topic_name)
    wait_until_known(member, partition, 5)
    member.commit({partition: OffsetAndMetadata(2, "", -1)})
    member.commit_processed({partition: 3})
    assert member.drain(10_000)
    assert member.committed(partition) == 3


def test_a_skip_before_the_first_record_may_be_committed(kafka, topic_name, partition, consumers):
    kafka.produce(topic_name, [b"4"])
    picky = Picky()
    picky.unreadable = None
    member = consumers(topic_name, value_deserializer=picky)
    read_to_end(member, 10)
    member.commit_processed({partition: 10})
    assert member.drain(10_000)
    lose(member)
    picky.unreadable = b"4"

    def skipped() -> bool:
        skipping(member)
        return member._io.subscription.position(partition) == 11

    wait_until(skipped, "it is skipped")
    member.commit_processed({partition: 11})
    assert member.drain(10_000)
    assert member.committed(partition) == 11
