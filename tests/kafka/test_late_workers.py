"""Workers that end when the partition was lost, sought or created anew since, on a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest
from group_members import owns, poll_until, wait_until
from handed_out_records import Picky, read_to_end, skipping, told
from kafka.structs import TopicPartition

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
    """The topic is created anew with twenty records, under a member that has it back then."""

    def create(member: DeferredRevokeConsumer) -> None:
        metadata = member._io.metadata
        known = metadata.topic_id(topic_name)
        kafka.delete_topic(topic_name)
        kafka.create_topic(topic_name)
        kafka.produce(topic_name, [b"new"] * 20)

        def is_back() -> bool:
            member.poll_membership()
            return partition in member.assignment() and metadata.topic_id(topic_name) != known

        wait_until(is_back, "it is assigned, and the metadata know the new topic")

    return create


def lose(member: DeferredRevokeConsumer) -> None:
    member.leave_until_polled("lost")
    wait_until(lambda: bool(member.poll_with_rebalance(timeout_ms=20).lost), "it is lost")


def wait_until_assigned(member: DeferredRevokeConsumer, partition: TopicPartition) -> None:
    """Without reading anything."""

    def is_assigned() -> bool:
        member.poll_membership()
        return partition in member.assignment()

    wait_until(is_assigned, "it is assigned")


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
        member.commit_processed({partition: 8})
    else:
        with pytest.raises(PartitionsLostError):
            member.commit_processed({partition: 8})
    assert member.drain(10_000)
    assert member.committed(partition) == 10


@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
def test_the_background_does_not_go_back_behind_where_reading_begins(
    topic_name, partition, consumers, first
):
    former = consumers(topic_name)
    read_to_end(former, 9)
    former.commit_processed({partition: 7})
    assert former.drain(10_000)
    former.close()
    member = consumers(topic_name)
    if first:
        wait_until_assigned(member, partition)
        member.pause(partition)
        poll_until(lambda: member._io.subscription.position(partition) == 7, member)
    else:
        assert read_to_end(member, 9) == [7, 8, 9]
    member.commit_processed({partition: 5})
    assert member.drain(10_000)
    assert member.committed(partition) == 7
    member.commit_processed({partition: 9})
    assert member.drain(10_000)
    assert member.committed(partition) == 9


def test_after_a_seek_back_the_background_commits_lower_all_the_same(
    topic_name, partition, consumers
):
    former = consumers(topic_name)
    read_to_end(former, 9)
    former.commit_processed({partition: 7})
    former.close()
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
