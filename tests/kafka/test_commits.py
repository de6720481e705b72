"""The order of all commits of a consumer, by hand and in the background, on a real broker."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from group_members import (
    PATIENCE_S,
    held,
    lose,
    lost,
    owns,
    poll_until,
    request_revoke,
    wait_until,
    waits_for_loop,
)
from kafka import errors as kafka_errors
from kafka.protocol.consumer import OffsetCommitRequest
from kafka.structs import OffsetAndMetadata, TopicPartition

from pyspark_kafka_rebalance import DeferredRevokeConsumer, PartitionsLostError

pytestmark = pytest.mark.each_protocol

Member = tuple[DeferredRevokeConsumer, TopicPartition]

only_classic = pytest.mark.parametrize("protocol", ["classic"], indirect=True)
only_consumer = pytest.mark.parametrize("protocol", ["consumer"], indirect=True)


def at(offset: int, metadata: str = "", leader_epoch: int = -1) -> OffsetAndMetadata:
    return OffsetAndMetadata(offset, metadata, leader_epoch)


@pytest.fixture
def with_records(kafka, topic_name, consumers) -> Member:
    """A member with 300 records of one partition in processing."""
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, [b"x"] * 300)
    member = consumers(topic_name)
    partition = TopicPartition(topic_name, 0)
    polled: list[Any] = []

    def all_polled() -> bool:
        polled.extend(member.poll(timeout_ms=20).get(partition, ()))
        return len(polled) == 300

    wait_until(all_polled, "the records")
    return member, partition


def commit_by_hand(member: DeferredRevokeConsumer, how: str, offsets: Any) -> Callable[[], None]:
    """Commit in one of the two ways; what is returned waits for the answer."""
    if how == "commit":
        thread = threading.Thread(target=member.commit, args=(offsets,))
        with waits_for_loop(member) as in_its_place:
            thread.start()
            assert in_its_place.wait(PATIENCE_S)
        return lambda: thread.join(PATIENCE_S)
    future = member.commit_async(offsets)
    return lambda: wait_until(lambda: future.succeeded(), "the answer")


@pytest.mark.parametrize("how", ["commit", "commit_async"])
def test_an_older_background_commit_does_not_land_after_one_by_hand(
    with_records, kafka, group_id, how
):
    """It waited behind the one in flight, and moved the group back from 250 to 150."""
    member, partition = with_records
    with held(member, OffsetCommitRequest, answer=True) as committing:
        member.commit_processed({partition: 1})
        assert committing.wait(PATIENCE_S)
        member.commit_processed({partition: 150})  # waits
        wait_for_answer = commit_by_hand(member, how, {partition: at(250)})
        member.commit_processed({partition: 200})
    wait_for_answer()
    assert member.drain(10_000)
    assert kafka.committed(group_id) == {partition: 250}
    assert member.acknowledged(partition) == 250
    member.processed(partition, *range(150, 220))  # a worker that was slow
    member.commit_processed({partition: 249})
    assert member.drain(10_000)
    assert kafka.committed(group_id) == {partition: 250}
    member.commit_processed({partition: 251})
    assert member.drain(10_000)
    assert kafka.committed(group_id) == {partition: 251}


def test_workers_beside_a_loop_that_commits_do_not_move_the_group_back(
    kafka, topic_name, consumers
):
    kafka.create_topic(topic_name)
    member = consumers(topic_name)
    partition = TopicPartition(topic_name, 0)
    poll_until(owns(member, 1), member)
    kafka.produce(topic_name, [b"x"] * 600)
    lower: list[tuple[int, int]] = []

    def another() -> bool:
        for records in member.poll(timeout_ms=20, max_records=20).values():
            following = records[-1].offset + 1
            for record in records:
                workers.submit(member.processed, partition, record.offset)
            member.commit({partition: at(following)})
            if (stands := member.committed(partition)) < following:
                lower.append((stands, following))
            return following == 600
        return False

    with ThreadPoolExecutor(2) as workers:
        wait_until(another, "the last record")
    assert not lower


def test_a_lower_commit_by_hand_is_obeyed_and_nothing_lower_follows(with_records, kafka, group_id):
    member, partition = with_records
    member.commit_processed({partition: 250})
    assert member.drain(10_000)
    member.commit({partition: at(100)})
    assert kafka.committed(group_id) == {partition: 100}
    member.commit_processed({partition: 90})
    assert member.drain(10_000)
    assert kafka.committed(group_id) == {partition: 100}
    member.commit_processed({partition: 120})
    assert member.drain(10_000)
    assert kafka.committed(group_id) == {partition: 120}


def test_what_waits_is_sent_after_all_when_the_commit_by_hand_fails(with_records, kafka, group_id):
    member, partition = with_records
    no_such = TopicPartition(partition.topic, 7)
    with held(member, OffsetCommitRequest, answer=True) as committing:
        member.commit_processed({partition: 1})
        assert committing.wait(PATIENCE_S)
        member.commit_processed({partition: 150})
        future = member.commit_async({partition: at(250, "x" * 5_000)})
    wait_until(lambda: future.is_done, "the answer")
    assert isinstance(future.exception, kafka_errors.OffsetMetadataTooLargeError)
    assert member.drain(10_000)
    assert kafka.committed(group_id) == {partition: 150}
    with pytest.raises(PartitionsLostError, match=f"not owned: {partition.topic}-7 at 3"):
        member.commit({no_such: at(3), partition: at(200)})
    assert kafka.committed(group_id) == {partition: 150}


def test_commits_by_hand_land_in_the_order_of_the_calls(with_records, kafka, group_id):
    member, partition = with_records
    answers = []
    with held(member, OffsetCommitRequest, answer=True) as committing:
        member.commit_async({partition: at(10)}, lambda *_: answers.append(10))
        assert committing.wait(PATIENCE_S)
        for offset in (200, 150, 170):
            last = member.commit_async(
                {partition: at(offset)},
                lambda offsets, _: answers.append(offsets[partition].offset),
            )
    wait_until(lambda: last.succeeded(), "the last answer")
    assert kafka.committed(group_id) == {partition: 170}
    member.poll()
    assert answers == [10, 200, 150, 170]


def test_a_commit_by_hand_that_nobody_waits_for_any_longer_is_not_sent(
    with_records, kafka, group_id
):
    """The application goes another way after the timeout; a late 250 would undo it."""
    member, partition = with_records
    with held(member, OffsetCommitRequest, answer=True) as committing:
        member.commit_processed({partition: 1})
        assert committing.wait(PATIENCE_S)
        with pytest.raises(kafka_errors.KafkaTimeoutError):
            member.commit({partition: at(250)}, timeout_ms=200)
    member.commit_processed({partition: 100})
    assert member.drain(10_000)
    assert kafka.committed(group_id) == {partition: 100}


@only_classic
def test_a_callback_that_raises_does_so_in_a_poll_and_stops_no_other_commit(
    with_records, kafka, group_id
):
    """It ran in the next commit, which raised the callback's error and sent nothing."""
    member, partition = with_records

    def fails(*_: Any) -> None:
        raise ZeroDivisionError

    first = member.commit_async({partition: at(5)}, fails)
    wait_until(lambda: first.succeeded(), "the answer")
    second = member.commit_async({partition: at(6)})
    wait_until(lambda: second.succeeded(), "the next answer")
    member.commit({partition: at(8)})
    assert kafka.committed(group_id) == {partition: 8}
    with pytest.raises(ZeroDivisionError):
        member.poll()
    member.poll()  # once is enough


# What is lost


@only_consumer
def test_a_commit_by_hand_after_the_loss_is_refused_before_a_poll_tells_of_it(
    kafka, topic_name, group_id, consumers
):
    """It was accepted, and moved the group back from where the new owner was."""
    kafka.create_topic(topic_name, partitions=2)
    kafka.produce(topic_name, [b"x"] * 200)
    slow = consumers(topic_name, max_poll_interval_ms=4_000)
    poll_until(owns(slow, 2), slow)
    second = consumers(topic_name)
    poll_until(lambda: bool(slow._ownership.revoking), slow, second, hold=True)
    (given_up,) = slow._ownership.revoking
    poll_until(owns(second, 1), second)  # slow is not polled
    second.commit({given_up: at(80)})
    named = f"not owned: {given_up.topic}-{given_up.partition} at 20"
    with pytest.raises(PartitionsLostError, match=named):
        slow.commit({given_up: at(20)})
    future = slow.commit_async({given_up: at(20)})
    assert isinstance(future.exception, PartitionsLostError)
    assert kafka.committed(group_id)[given_up] == 80
    told = poll_until(lambda: bool(slow.get_lost_partitions()), slow)
    assert lost(told[slow]) == {given_up}


@pytest.mark.parametrize("how", ["all", "one"])
def test_a_commit_by_hand_that_waits_at_the_loss_is_never_sent(with_records, kafka, group_id, how):
    member, partition = with_records
    with held(member, OffsetCommitRequest, answer=True) as committing:
        member.commit_processed({partition: 1})
        assert committing.wait(PATIENCE_S)
        future = member.commit_async({partition: at(250)})
        if how == "all":
            lose(member)
        else:
            request_revoke(member, partition, at=-1e9)  # long overdue
            assert member.poll_with_rebalance().lost == {partition}
    wait_until(lambda: future.is_done, "the refusal")
    assert isinstance(future.exception, PartitionsLostError)
    assert kafka.committed(group_id) == {partition: 1}


@only_classic
def test_after_its_deadline_nothing_is_committed_although_no_poll_has_told_of_the_loss(
    with_records, kafka, group_id
):
    """It was committed, by hand and in the background, and the next poll said that it is lost."""
    member, partition = with_records
    request_revoke(member, partition, at=-1e9)  # long overdue
    with pytest.raises(PartitionsLostError):
        member.commit({partition: at(7)})
    assert isinstance(member.commit_async({partition: at(7)}).exception, PartitionsLostError)
    with pytest.raises(PartitionsLostError):
        member.commit_processed({partition: 7})
    with pytest.raises(PartitionsLostError):
        member.processed(partition, *range(7))
    assert member.drain(10_000)
    assert kafka.committed(group_id) == {}
    result = member.poll_with_rebalance()
    assert result.lost == {partition}
    assert not result.revoked


# Positions that go back


@only_classic
def test_after_a_topic_is_created_anew_what_is_processed_is_committed(
    with_records, kafka, group_id
):
    """Lower offsets than before were dropped in silence, and drain said that all was committed."""
    member, partition = with_records
    member.processed(partition, *range(100))
    assert member.drain(10_000)
    kafka.delete_topic(partition.topic)
    kafka.create_topic(partition.topic)
    kafka.produce(partition.topic, [b"new"] * 40)
    new: list[int] = []

    def poll() -> None:
        new.extend(record.offset for record in member.poll(timeout_ms=20).get(partition, ()))

    def went_back() -> bool:
        poll()
        return member._io.subscription.position(partition) == 40  # having read those before, or not

    def all_new_ones() -> bool:
        poll()
        return new[-1:] == [49]

    wait_until(went_back, "the position in the new topic")
    kafka.produce(partition.topic, [b"new"] * 10)
    wait_until(all_new_ones, "the new records")
    assert member.unprocessed() == {partition}
    member.commit_processed({partition: 45})
    assert member.drain(10_000)
    assert kafka.committed(group_id) == {partition: 45}
    with pytest.raises(PartitionsLostError, match="offset 150 was handed out"):
        member.processed(partition, 150)  # its record is gone
    member.processed(partition, *new)
    assert member.unprocessed() == frozenset()
    assert member.drain(10_000)
    assert kafka.committed(group_id) == {partition: 50}
    assert member.acknowledged(partition) == 50


@pytest.mark.parametrize("how", ["seek", "seek_to_beginning"])
def test_after_a_seek_back_what_is_processed_is_committed(with_records, kafka, group_id, how):
    member, partition = with_records
    member.processed(partition, *range(300))
    assert member.drain(10_000)
    start = 40 if how == "seek" else 0
    if how == "seek":
        member.seek(partition, start)
    else:
        member.seek_to_beginning(partition)
    wait_until(lambda: bool(member.poll(timeout_ms=20, max_records=20)), "the records again")
    member.commit_processed({partition: start + 10})
    assert member.drain(10_000)
    assert kafka.committed(group_id) == {partition: start + 10}


def poll_for(member: DeferredRevokeConsumer, partition: TopicPartition, last: int) -> None:
    """Poll until the record at this offset is handed out."""
    polled: list[int] = []

    def there() -> bool:
        polled.extend(record.offset for record in member.poll(timeout_ms=20).get(partition, ()))
        return polled[-1:] == [last]

    wait_until(there, f"the record at {last}")


@only_classic
@pytest.mark.parametrize("how", ["seek", "seek_to_beginning"])
def test_a_late_answer_does_not_complete_what_a_seek_handed_out_again(
    with_records, kafka, group_id, how
):
    """They counted as processed: the position did not move back, and no revoke waited for them."""
    member, partition = with_records
    with held(member, OffsetCommitRequest, answer=True) as committing:
        wait_for_answer = commit_by_hand(member, "commit_async", {partition: at(300)})
        assert committing.wait(PATIENCE_S)
        start = 100 if how == "seek" else 0
        if how == "seek":
            member.seek(partition, start)
        else:
            member.seek_to_beginning(partition)
        poll_for(member, partition, 299)
    wait_for_answer()
    assert kafka.committed(group_id) == {partition: 300}
    assert member.unprocessed() == {partition}
    member.processed(partition, start)  # the records before are processed
    assert member.drain(10_000)
    assert kafka.committed(group_id) == {partition: start + 1}
    assert member.unprocessed() == {partition}


@only_classic
def test_what_is_processed_again_before_a_late_answer_is_committed_after_it(
    with_records, kafka, group_id
):
    """The group stayed where the commit by hand had left it: the rest of a replay was lost."""
    member, partition = with_records
    with held(member, OffsetCommitRequest, answer=True) as committing:
        wait_for_answer = commit_by_hand(member, "commit_async", {partition: at(300)})
        assert committing.wait(PATIENCE_S)
        member.seek(partition, 100)
        poll_for(member, partition, 299)
        member.processed(partition, 100)
    wait_for_answer()
    assert member.drain(10_000)
    assert kafka.committed(group_id) == {partition: 101}
    assert member.unprocessed() == {partition}


@only_classic
def test_a_late_answer_says_nothing_of_a_topic_that_was_created_anew(with_records, kafka, group_id):
    """The new records counted as processed, and the old position as acknowledged."""
    member, partition = with_records
    with held(member, OffsetCommitRequest, answer=True) as committing:
        wait_for_answer = commit_by_hand(member, "commit_async", {partition: at(300)})
        assert committing.wait(PATIENCE_S)
        kafka.delete_topic(partition.topic)
        kafka.create_topic(partition.topic)
        kafka.produce(partition.topic, [b"new"] * 10)

        def went_back() -> bool:
            member.poll(timeout_ms=20)
            return (
                member._io.subscription.position(partition) == 10
            )  # having read those before, or not

        wait_until(went_back, "the position in the new topic")
        kafka.produce(partition.topic, [b"new"])
        poll_for(member, partition, 10)
    wait_for_answer()
    assert kafka.committed(group_id) in ({partition: 300}, {})  # the topic's offsets went with it
    assert member.unprocessed() == {partition}
    assert member.acknowledged(partition) is None
    member.commit_processed({partition: 11})
    assert member.drain(10_000)
    assert kafka.committed(group_id) == {partition: 11}
    assert member.acknowledged(partition) == 11


# Metadata and leader epochs


def test_metadata_and_leader_epochs_come_back(with_records, kafka):
    member, partition = with_records
    member.commit({partition: at(5, "mine", 0)})
    assert member.committed(partition, metadata=True) == at(5, "mine", 0)
    future = member.commit_async({partition: at(6, "also mine", 0)})
    wait_until(lambda: future.succeeded(), "the answer")
    assert member.committed(partition, metadata=True) == at(6, "also mine", 0)
    member.commit_processed({partition: 7})
    assert member.drain(10_000)
    assert member.committed(partition, metadata=True) == at(7, "", 0)
    member.processed(partition, *range(8))
    assert member.drain(10_000)
    assert member.committed(partition, metadata=True) == at(8, "", 0)
    member.commit()
    assert member.committed(partition, metadata=True) == at(300, "", 0)


def test_a_new_owner_goes_on_with_the_committed_leader_epoch(
    with_records, kafka, topic_name, consumers
):
    """Without it a log that was truncated before the hand-over is not noticed (KIP-320)."""
    first, partition = with_records
    first.commit({partition: at(5, "mine", 0)})
    first.close()
    second = consumers(topic_name)
    poll_until(lambda: partition in second._io.subscription.consumed(), second)
    poll_until(lambda: second._io.subscription.consumed()[partition] == at(300, "", 0), second)
    second.unsubscribe()
    third = consumers(topic_name)
    third.poll_membership()
    wait_until(lambda: bool(third.poll_membership().assigned), "the assignment")
    third.pause(partition)
    third.poll(timeout_ms=200)
    wait_until(
        lambda: partition in third._io.subscription.consumed() or bool(third.poll()), "the position"
    )
    assert third._io.subscription.consumed()[partition] == at(5, "", 0)


def test_background_commits_do_not_go_back_after_a_seek_while_the_partition_is_paused(
    with_records, kafka, group_id
):
    member, partition = with_records
    member.commit_processed({partition: 300})
    assert member.drain(timeout_ms=10_000)
    member.seek(partition, 50)
    member.pause(partition)
    for offset in (80, 60):
        member.poll(timeout_ms=20)
        member.commit_processed({partition: offset})
        assert member.drain(timeout_ms=10_000)
        assert kafka.committed(group_id) == {partition: 80}


def test_what_is_processed_is_committed_before_an_unsubscribe(with_records, kafka, group_id):
    member, partition = with_records
    with held(member, OffsetCommitRequest, answer=True) as under_way:
        member.processed(partition, *range(10))
        assert under_way.wait(PATIENCE_S)
        member.processed(partition, *range(10, 300))
        thread = threading.Thread(target=member.unsubscribe)
        thread.start()
    thread.join(PATIENCE_S)
    assert kafka.committed(group_id) == {partition: 300}


def test_a_revoke_of_what_is_lost_cannot_be_delayed(kafka, topic_name, consumers):
    kafka.create_topic(topic_name, partitions=2)
    member = consumers(topic_name, max_poll_interval_ms=2_000)
    poll_until(owns(member, 2), member)
    other = consumers(topic_name)
    poll_until(lambda: bool(member.get_to_be_revoked_partitions()), member, other)
    requested = member.get_to_be_revoked_partitions()
    poll_until(owns(other, 2), other)
    assert not member.delay_revoke(requested), "another member owns them"
