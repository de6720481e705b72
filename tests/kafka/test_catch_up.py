"""A backlog read beside the live records (KIP-333), on a real broker and in both protocols."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from gaps_and_live import (
    FEW,
    LIVE,
    ORDERED,
    Seen,
    commit_foreign,
    foreign,
    killed,
    produced,
    values,
)
from group_members import held, lose, owns, wait_until
from handed_out_records import Picky, told
from kafka import KafkaAdminClient, KafkaProducer
from kafka import errors as kafka_errors
from kafka.protocol.consumer import OffsetCommitRequest
from kafka.structs import OffsetAndMetadata, TopicPartition

from pyspark_kafka_rebalance import (
    AsyncDeferredRevokeConsumer,
    DeferredRevokeConsumer,
    OptionError,
    PartitionsLostError,
    UnreadableRecordError,
)
from pyspark_kafka_rebalance.consumer.kafka_python.second_reader import SecondReader
from pyspark_kafka_rebalance.consumer.offsets.commit_metadata import Remaining
from pyspark_kafka_rebalance.consumer.offsets.offset_set import Gap
from pyspark_kafka_rebalance.testing import LocalKafka
from tests.compacted_log import CompactedLog


def test_live_records_do_not_wait_for_the_backlog(kafka, topic, committed_at, consumers):
    produced(kafka, topic, 2_000)
    partition = committed_at(0)
    member = consumers(topic, **LIVE)
    seen = Seen(member)
    seen.until(lambda: owns(member, 1)() and member.position(partition) == 2_000)
    assert member.catch_up_lag(partition) > 0
    produced(kafka, topic, 3)
    seen.until(lambda: seen.live == [2_000, 2_001, 2_002])
    seen.until_gaps(2_000)
    assert seen.gaps == list(range(2_000))
    assert member.catch_up_lag(partition) == member.current_lag(partition) == 0
    member.commit_processed({partition: 2_003})
    member.drain(10_000)
    assert member.committed(partition) == 0, "that says nothing of the gap"
    member.commit_processed({partition: 2_000})
    assert member.drain(10_000)
    assert member.committed(partition) == 2_003
    assert told(member, partition) == ""
    wait_until(
        lambda: not member.poll(timeout_ms=10) and member._catching_up._reader is None, "it ends"
    )


def test_a_poll_has_more_than_a_few_hundred_records_of_a_gap_only_if_asked(
    kafka, topic, committed_at, consumers
):
    produced(kafka, topic, 1_600)
    committed_at(0)
    member = consumers(topic, **LIVE)

    def of_polls_until(number: int, **arguments: Any) -> list[int]:
        seen, of_polls = Seen(member), [0]
        while sum(of_polls) < number:
            before = len(seen.gaps)
            seen.until_gaps(before + 1, **arguments)
            of_polls.append(len(seen.gaps) - before)
        return of_polls

    assert max(of_polls_until(900)) == 300
    assert max(of_polls_until(600, max_records=1_000)) > 300


def test_a_short_backlog_is_none(kafka, topic, committed_at, consumers):
    produced(kafka, topic, 20)
    committed_at(10)
    member = consumers(topic, **LIVE)
    seen = Seen(member)
    seen.until(lambda: 19 in seen.live + seen.gaps)
    assert (seen.live, seen.gaps) == (list(range(10, 20)), [])


def test_where_the_group_has_committed_nothing_its_policy_decides(kafka, topic, consumers):
    produced(kafka, topic, 100)
    seen = Seen(consumers(topic, **LIVE))
    seen.until(lambda: 99 in seen.live + seen.gaps)
    assert (seen.live, seen.gaps) == (list(range(100)), [])


def test_one_that_starts_again_in_mid_gap_goes_on_there(kafka, topic, committed_at, consumers):
    produced(kafka, topic, 1_000)
    partition = committed_at(0)
    first = consumers(topic, **LIVE)
    seen = Seen(first).until_gaps(300, max_records=100)
    produced(kafka, topic, 1)
    seen.until(lambda: seen.live == [1_000], max_records=40)
    first.processed(partition, 1_000)
    first.commit_processed({partition: 200})
    assert first.drain(10_000)
    assert first.committed(partition) == 200
    killed(first)
    second = Seen(consumers(topic, **LIVE)).until_gaps(800)
    assert second.gaps == list(range(200, 1_000))
    assert second.live == []


def test_two_failures_make_two_gaps(kafka, topic, committed_at, consumers):
    produced(kafka, topic, 500)
    partition = committed_at(0)
    first = consumers(topic, **LIVE)
    seen = Seen(first).until_gaps(100, max_records=50)
    produced(kafka, topic, 10)
    seen.until(lambda: 509 in seen.live, max_records=50)
    first.commit_processed({partition: 510})
    first.commit_processed({partition: 100})
    first.drain(10_000)
    killed(first)
    produced(kafka, topic, 200)
    second = consumers(topic, **LIVE)
    again = Seen(second).until_gaps(600)
    assert again.gaps == [*range(100, 500), *range(510, 710)]
    produced(kafka, topic, 1)
    again.until(lambda: again.live == [710])
    second.commit_processed({partition: 711})
    second.commit_processed({partition: 710})
    assert second.drain(10_000)
    assert second.committed(partition) == 711


def test_a_partition_moves_in_mid_gap_with_what_is_left(kafka, topic, committed_at, consumers):
    produced(kafka, topic, 1_000)
    partition = committed_at(0)
    first = consumers(topic, **LIVE)
    seen = Seen(first).until_gaps(300, max_records=100)
    first.processed(partition, *seen.gaps)
    reached = len(seen.gaps)
    first.close()
    second = Seen(consumers(topic, **LIVE)).until_gaps(1_000 - reached)
    assert second.gaps == list(range(reached, 1_000))


def test_a_revoke_waits_for_what_was_handed_out_alone(kafka, topic_name, group_id, consumers):
    kafka.create_topic(topic_name, partitions=2)
    both = [TopicPartition(topic_name, n) for n in range(2)]
    commit_foreign(kafka, group_id, dict.fromkeys(both, 0))
    for p in both:
        kafka.produce(topic_name, values(1_000), partition=p.partition)
    first = consumers(topic_name, **LIVE)
    given: dict[TopicPartition, list[int]] = {p: [] for p in both}

    def handed_out(
        member: DeferredRevokeConsumer, into: dict[TopicPartition, list[int]], most: int = 50
    ) -> Any:
        result = member.poll_with_rebalance(timeout_ms=20, max_records=most)
        for p, found in result.catch_up.items():
            into[p] += [record.offset for record in found]
            member.processed(p, *(record.offset for record in found))
        assert not result.to_be_revoked & result.catch_up.keys()
        return result

    wait_until(lambda: bool(handed_out(first, given)) and all(given.values()), "both catch up")
    second = consumers(topic_name, **LIVE)
    later: dict[TopicPartition, list[int]] = {p: [] for p in both}

    def both_are_read() -> bool:
        # Few until the second has its share, or the first would be done before.
        handed_out(first, given, 50 if second.assignment() else 1)
        handed_out(second, later)
        everything = all(len(given[p]) + len(later[p]) >= 1_000 for p in both)
        return everything and owns(second, 1)()

    wait_until(both_are_read, "all is caught up")
    for p in both:
        assert given[p] + later[p] == list(range(1_000)), "nothing twice, nothing missing"
    assert any(later.values()), "the second goes on in mid-gap"


def test_what_is_lost_is_not_read_on(kafka, topic, committed_at, consumers):
    produced(kafka, topic, 1_000)
    partition = committed_at(0)
    member = consumers(topic, **LIVE)
    seen = Seen(member).until_gaps(100, max_records=50)
    killed(member)
    wait_until(lambda: bool(member.poll_with_rebalance(timeout_ms=20).lost), "it is lost")
    with pytest.raises(PartitionsLostError):
        member.processed(partition, 5)
    again = Seen(member).until_gaps(1_000)
    assert again.gaps == list(range(1_000))
    assert seen.gaps == list(range(len(seen.gaps)))


def test_a_foreign_member_begins_at_the_lowest(kafka, topic, group_id, committed_at, consumers):
    produced(kafka, topic, 500)
    partition = committed_at(0)
    member = consumers(topic, **LIVE)
    seen = Seen(member).until_gaps(100, max_records=50)
    produced(kafka, topic, 5)
    seen.until(lambda: 504 in seen.live, max_records=50)
    member.commit_processed({partition: 505})
    member.commit_processed({partition: 50})
    member.close()
    with foreign(kafka, group_id) as plain:
        plain.assign([partition])
        assert plain.position(partition) == 50
        plain.commit({partition: OffsetAndMetadata(60, "", -1)})
    heir = Seen(consumers(topic, **LIVE)).until_gaps(445)
    assert heir.gaps == list(range(60, 505)), "it gives back without what it does not know"


def test_commits_by_hand_leave_the_gaps_alone(kafka, topic, committed_at, consumers):
    produced(kafka, topic, 500)
    partition = committed_at(0)
    member = consumers(topic, **LIVE)
    seen = Seen(member).until_gaps(100, max_records=50)
    produced(kafka, topic, 5)
    seen.until(lambda: 504 in seen.live, max_records=50)
    member.commit({partition: OffsetAndMetadata(503, "", -1)})
    assert member.committed(partition) == 0
    assert member.unprocessed() == {partition}
    with pytest.raises(ValueError, match="while it catches up"):
        member.commit({partition: OffsetAndMetadata(503, "mine", -1)})
    member.commit({partition: OffsetAndMetadata(90, "", -1)})
    assert member.committed(partition) == 90
    member.commit()
    assert member.unprocessed() == frozenset()
    reached = len(seen.gaps)
    assert member.committed(partition) == min(reached, 500) or reached == 500
    killed(member)
    heir = Seen(consumers(topic, **LIVE))
    if reached < 500:
        heir.until_gaps(500 - reached)
    assert heir.gaps == list(range(reached, 500))


def test_commits_by_hand_on_their_way_add_up(kafka, topic, committed_at, consumers):
    produced(kafka, topic, 500)
    partition = committed_at(0)
    member = consumers(topic, **LIVE)
    seen = Seen(member).until_gaps(100, max_records=50)
    produced(kafka, topic, 5)
    seen.until(lambda: 504 in seen.live, max_records=50)
    with held(member, OffsetCommitRequest, answer=True) as holding:
        futures = [member.commit_async({partition: OffsetAndMetadata(90, "", -1)})]
        assert holding.wait(10)
        futures.append(member.commit_async({partition: OffsetAndMetadata(505, "", -1)}))
    wait_until(lambda: all(future.is_done for future in futures), "the answers")
    assert all(future.succeeded() for future in futures)
    assert member.committed(partition) == 90
    killed(member)
    heir = Seen(consumers(topic, **LIVE)).until_gaps(410)
    assert heir.gaps == list(range(90, 500))


def test_what_retention_deleted_is_told_and_left_out(kafka, topic, committed_at, consumers, caplog):
    produced(kafka, topic, 500)
    partition = committed_at(0)
    with KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers) as admin:
        admin.delete_records({partition: 200})
    member = consumers(topic, **LIVE)
    with caplog.at_level(logging.WARNING):
        seen = Seen(member).until_gaps(300)
    assert seen.gaps == list(range(200, 500))
    assert f"{topic}-0" in caplog.text
    assert "[0, 200) are gone" in caplog.text


@pytest.mark.parametrize("beginning", [True, False], ids=["beginning", "offset"])
def test_without_a_reset_policy_what_retention_deleted_is_an_error(
    kafka, topic, committed_at, consumers, beginning
):
    produced(kafka, topic, 500)
    partition = committed_at(0)
    with KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers) as admin:
        admin.delete_records({partition: 200})
    member = consumers(topic, **{**LIVE, "auto_offset_reset": "none"})
    seen = Seen(member)
    for _ in range(2):  # again and again
        with pytest.raises(kafka_errors.OffsetOutOfRangeError, match=topic):
            seen.until_gaps(1)
    produced(kafka, topic, 5)
    # Met once more, behind live records that the last poll returned.
    assert member._catching_up is not None
    member._catching_up._fails(kafka_errors.OffsetOutOfRangeError({partition: 0}), partition)
    if beginning:
        member.seek_to_beginning(partition)
    else:
        member.seek(partition, 200)
    seen.until(lambda: len(seen.gaps) == 300 and 504 in seen.live)
    assert seen.gaps == list(range(200, 500))
    assert seen.live == list(range(500, 505)), "they do not come again"
    assert member.position(partition) == 505


def test_retention_that_has_overtaken_the_gap_is_skipped_where_the_log_begins(
    kafka, topic, committed_at, consumers
):
    for _ in range(5):
        produced(kafka, topic, 100)
    partition = committed_at(0)
    # A record batch a fetch, so that most of the gap is not there yet.
    options = {"auto_offset_reset": "none", "max_partition_fetch_bytes": 100}
    member = consumers(topic, **LIVE, **options)
    seen = Seen(member).until_gaps(4, max_records=4)
    produced(kafka, topic, 50)
    seen.slowly_until(lambda: 549 in seen.live)
    before = list(seen.live)
    with KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers) as admin:
        admin.delete_records({partition: 540})
    with pytest.raises(kafka_errors.OffsetOutOfRangeError, match=topic):
        seen.until(lambda: member.catch_up_lag(partition) == 0)
    member.seek(partition, 540)
    seen.until(lambda: member.catch_up_lag(partition) == 0)
    produced(kafka, topic, 1)
    seen.until(lambda: 550 in seen.live)
    assert seen.live == [*before, 550]


def test_retention_that_has_overtaken_the_live_reader_too_is_skipped_where_the_log_begins(
    kafka, topic, committed_at, consumers
):
    for _ in range(5):
        produced(kafka, topic, 100)
    partition = committed_at(0)
    options = {"auto_offset_reset": "none", "max_partition_fetch_bytes": 100}
    member = consumers(topic, **LIVE, **options)
    seen = Seen(member).until_gaps(4, max_records=4)
    member.pause(partition)
    produced(kafka, topic, 50)
    with KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers) as admin:
        admin.delete_records({partition: 550})
    member.resume(partition)
    errors = []

    def polled() -> bool:
        try:
            seen.poll()
        except kafka_errors.OffsetOutOfRangeError as error:
            errors.append(error)
            member.seek(partition, 550)
        return member.catch_up_lag(partition) == 0

    wait_until(polled, "what is gone is skipped, although nothing new comes")
    assert len(errors) <= 3
    produced(kafka, topic, 1)
    seen.until(lambda: seen.live[-1:] == [550])


def test_a_topic_that_is_created_anew_ends_its_gaps(kafka, topic, committed_at, consumers):
    produced(kafka, topic, 2_000)
    committed_at(0)
    member = consumers(topic, **LIVE, metadata_max_age_ms=500)
    seen = Seen(member).until_gaps(50, max_records=50)
    kafka.delete_topic(topic)
    kafka.create_topic(topic)
    kafka.produce(topic, [b"new"] * 20)
    anew: list[bytes] = []

    def all_there() -> bool:
        result = member.poll_with_rebalance(timeout_ms=50, max_records=50)
        for found in (*result.records.values(), *result.catch_up.values()):
            anew.extend(record.value for record in found if record.value == b"new")
        return len(anew) >= 20

    wait_until(all_there, "the new topic's records")
    seen.poll()
    assert len(anew) == 20
    assert member.catch_up_lag(TopicPartition(topic, 0)) == 0


def test_metadata_without_the_topics_id_do_not_end_its_gaps(
    kafka, topic, committed_at, consumers, monkeypatch
):
    """They have an error for it: for some seconds it may not be described, say."""
    produced(kafka, topic, 500)
    partition = committed_at(0)
    member = consumers(topic, **LIVE)
    seen = Seen(member).until_gaps(100, max_records=100)
    produced(kafka, topic, 50)
    with monkeypatch.context() as denied:
        denied.setattr(member._io.metadata, "topic_id", lambda topic: None)
        seen.until(lambda: 510 in seen.live, max_records=20)
        member.processed(partition, *range(50), 70)
        assert member.drain(10_000)
        assert told(member, partition), "what is processed behind the offset"
    seen.until_gaps(500)
    seen.until(lambda: 549 in seen.live)
    assert (seen.gaps, seen.live) == (list(range(500)), list(range(500, 550)))


def test_under_read_committed_a_gap_ends_where_a_transaction_is_open(
    kafka, topic, committed_at, consumers
):
    produced(kafka, topic, 100)
    partition = committed_at(0)
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, transactional_id=topic)
    try:
        producer.init_transactions()
        producer.begin_transaction()
        for n in range(5):
            producer.send(topic, b"%d" % n, partition=0)
        producer.flush()
        produced(kafka, topic, 5)
        member = consumers(topic, **LIVE, isolation_level="read_committed")
        seen = Seen(member).until_gaps(100)
        assert member.position(partition) == 100
        assert seen.live == []
        producer.commit_transaction()
        seen.until(lambda: len(seen.live) == 10)
    finally:
        producer.close(timeout=1)
    assert seen.gaps == list(range(100))
    member.commit_processed({partition: 110})
    member.commit_processed({partition: 100})
    assert member.drain(10_000)
    assert member.committed(partition) == 110


def test_a_gap_ends_behind_its_last_record(kafka, topic, committed_at, consumers):
    """Also where there is none at all: aborted, as if compacted."""
    produced(kafka, topic, 30)
    partition = committed_at(0)
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, transactional_id=topic)
    try:
        producer.init_transactions()
        producer.begin_transaction()
        for n in range(20):
            producer.send(topic, b"%d" % n, partition=0)
        producer.flush()
        producer.abort_transaction()
    finally:
        producer.close(timeout=1)
    first = consumers(topic, **LIVE, isolation_level="read_committed")
    seen = Seen(first).until_gaps(30)
    first.processed(partition, *range(30))
    seen.until(lambda: first.catch_up_lag(partition) == 0)
    assert first.drain(10_000)
    assert first.committed(partition) == 51
    first.close()
    committed_at(30)
    second = consumers(topic, **LIVE, isolation_level="read_committed")
    seen = Seen(second)
    seen.until(lambda: second.committed(partition) == 51)
    assert seen.live == seen.gaps == []


@pytest.mark.parametrize("options", [LIVE, ORDERED], ids=["live", "ordered"])
def test_where_a_log_was_truncated_the_live_reader_goes_back(
    kafka, topic, committed_at, consumers, monkeypatch, options
):
    produced(kafka, topic, 500)
    partition = committed_at(0)
    member = consumers(topic, **options)
    seen = Seen(member)
    seen.until(lambda: len(seen.live + seen.gaps) >= 100, max_records=50)
    truncated = kafka_errors.LogTruncationError({partition: OffsetAndMetadata(60, "", 0)})
    read = SecondReader.read

    def read_once(*arguments: Any) -> Any:
        monkeypatch.setattr(SecondReader, "read", read)
        raise truncated

    monkeypatch.setattr(SecondReader, "read", read_once)
    before = len(seen.live)
    seen.until(lambda: 499 in seen.live)
    assert seen.live[before:] == list(range(60, 500))
    assert member.catch_up_lag(partition) == 0
    member.processed(partition, *range(500))
    assert member.drain(10_000)
    assert member.committed(partition) == 500


def test_the_gaps_end_although_there_are_always_enough_live_records(
    kafka, topic, committed_at, consumers
):
    produced(kafka, topic, 200)
    committed_at(0)
    member = consumers(topic, **LIVE, max_poll_records=4)
    seen = Seen(member).until_gaps(4)
    produced(kafka, topic, 2_000)
    wait_until(lambda: bool(member._catching_up._reader.has_some()), "there is something")
    seen.until_gaps(200)
    assert len(seen.live) < 2_000


def test_a_seek_leads_the_live_reader(kafka, topic, committed_at, consumers):
    produced(kafka, topic, 1_000)
    partition = committed_at(0)
    member = consumers(topic, **LIVE)
    seen = Seen(member).until_gaps(50, max_records=50)
    reached = len(seen.gaps)
    member.seek(partition, 600)
    seen.until(lambda: 999 in seen.live and member.catch_up_lag(partition) == 0)
    assert seen.live == list(range(600, 1_000))
    assert seen.gaps == list(range(600))
    assert reached < 600


@pytest.mark.parametrize("pause", [True, False])
def test_a_seek_that_is_taken_back_leaves_the_gap(kafka, topic, committed_at, consumers, pause):
    produced(kafka, topic, 500)
    partition = committed_at(0)
    member = consumers(topic, **LIVE)
    seen = Seen(member).until_gaps(100, max_records=100)
    live = member.position(partition)
    if pause:
        member.pause(partition)
    member.seek(partition, 0)
    assert not member.poll(timeout_ms=200 if pause else 0)
    member.seek(partition, live)
    if pause:
        member.resume(partition)
    seen.until_gaps(500)
    assert (seen.live, seen.gaps) == ([], list(range(500)))
    assert member.catch_up_lag(partition) == 0


def test_a_late_worker_of_live_records_says_nothing_of_the_gap_that_they_are_in_since(
    kafka, topic, committed_at, consumers
):
    produced(kafka, topic, 500)
    partition = committed_at(0)
    member = consumers(topic, **LIVE)
    seen = Seen(member).until_gaps(500)
    produced(kafka, topic, 50)
    seen.until(lambda: 549 in seen.live)
    killed(member)
    again = Seen(member).until_gaps(100, max_records=100)
    assert member.position(partition) == 550
    assert not again.live
    for late in (550, 549):
        with pytest.raises(PartitionsLostError):
            member.commit_processed({partition: late})
    member.processed(partition, *again.gaps)
    assert member.drain(10_000)
    again.until_gaps(550)
    member.commit_processed({partition: 550})
    assert member.drain(10_000)
    assert member.committed(partition) == 550


def test_a_late_worker_of_live_records_says_nothing_of_the_gap_that_is_handed_out_since(
    kafka, topic, committed_at, consumers
):
    """With those records at its end: the next offset is the same as that of the gap's workers."""
    produced(kafka, topic, 500)
    partition = committed_at(0)
    member = consumers(topic, **LIVE)
    seen = Seen(member)
    seen.until(lambda: owns(member, 1)() and member.position(partition) == 500)
    produced(kafka, topic, 50)
    seen.until(lambda: 549 in seen.live)
    killed(member)
    again = Seen(member).until_gaps(550)
    assert not again.live
    member.commit_processed({partition: 550})
    assert member.drain(10_000)
    assert member.committed(partition) == 0
    assert member.unprocessed() == {partition}
    killed(member)
    once_more = Seen(consumers(topic, **LIVE)).until_gaps(500)
    assert once_more.gaps == list(range(500)), "what the late worker spoke of is processed"


def test_who_was_refused_after_a_loss_is_not_waited_for(kafka, topic, committed_at, consumers):
    produced(kafka, topic, 500)
    partition = committed_at(0)
    member = consumers(topic, **LIVE)
    seen = Seen(member)
    seen.until(lambda: owns(member, 1)() and member.position(partition) == 500)
    produced(kafka, topic, 50)
    seen.until(lambda: 549 in seen.live)
    lose(member)
    with pytest.raises(PartitionsLostError):
        member.commit_processed({partition: 550})
    again = Seen(member).until_gaps(550)
    assert not again.live
    member.commit_processed({partition: 550})
    assert member.drain(10_000)
    assert member.committed(partition) == 550
    assert not member.unprocessed()


def test_a_pause_pauses_both(kafka, topic, committed_at, consumers):
    produced(kafka, topic, 1_000)
    partition = committed_at(0)
    member = consumers(topic, **LIVE)
    seen = Seen(member).until_gaps(50, max_records=50)
    member.pause(partition)
    before = len(seen.gaps)
    for _ in range(10):
        seen.poll()
    assert len(seen.gaps) == before
    member.resume(partition)
    seen.until_gaps(1_000)
    assert seen.gaps == list(range(1_000))


def test_what_cannot_be_read_of_a_gap_can_be_skipped_there(kafka, topic, committed_at, consumers):
    kafka.produce(topic, [b"%d" % n for n in range(100)])
    partition = committed_at(0)
    picky = Picky()
    picky.unreadable = b"40"
    member = consumers(topic, **LIVE, value_deserializer=picky)
    seen = Seen(member)
    with pytest.raises(UnreadableRecordError) as caught:
        seen.until_gaps(100)
    assert seen.gaps == list(range(40))
    assert caught.value.offset == 40
    member.seek(partition, caught.value.next_offset)
    assert member.position(partition) == 100
    seen.until_gaps(99)
    assert seen.gaps == [*range(40), *range(41, 100)]


def test_many_partitions_are_read_in_turn(kafka, topic_name, group_id, consumers):
    kafka.create_topic(topic_name, partitions=5)
    all_of_them = [TopicPartition(topic_name, n) for n in range(5)]
    commit_foreign(kafka, group_id, dict.fromkeys(all_of_them, 0))
    for p in all_of_them:
        kafka.produce(topic_name, values(100), partition=p.partition)
    member = consumers(topic_name, **LIVE, max_partition_fetch_bytes=16 * 2**20)
    seen = Seen(member).until_gaps(500)
    assert len(seen.gaps) == 500
    assert sorted(seen.gaps) == sorted(list(range(100)) * 5)


def test_what_cannot_be_read_does_not_keep_other_gaps_waiting(
    kafka, topic_name, group_id, consumers
):
    """One place alone, and the application goes on without a seek."""
    kafka.create_topic(topic_name, partitions=2)
    both = [TopicPartition(topic_name, n) for n in range(2)]
    commit_foreign(kafka, group_id, dict.fromkeys(both, 0))
    kafka.produce(topic_name, [b"4"] * 50, partition=0)
    kafka.produce(topic_name, [b"0"] * 50, partition=1)
    one_place = {"max_partition_fetch_bytes": 32 * 2**20, "fetch_max_bytes": 64 * 2**20}
    member = consumers(topic_name, **LIVE, **one_place, value_deserializer=Picky())
    seen, errors = Seen(member), []

    def read() -> bool:
        try:
            seen.poll()
        except UnreadableRecordError as error:
            errors.append((error.partition, error.offset))
        return len(seen.gaps) == 50 and bool(errors)

    wait_until(read, "the other is read")
    assert set(errors) == {(0, 0)}
    assert [member.catch_up_lag(p) for p in both] == [50, 0]


def test_where_an_assignment_before_began_says_nothing_of_the_gap(
    kafka, topic, committed_at, consumers
):
    """It was at the end of the log, and nothing was handed out."""
    produced(kafka, topic, 100)
    partition = committed_at(100)
    member = consumers(topic, **LIVE)
    seen = Seen(member)
    seen.until(lambda: owns(member, 1)() and member.position(partition) == 100)
    killed(member)
    with consumers(topic) as other:
        Seen(other).until(owns(other, 1))
        other.commit({partition: 0})
    seen.until_gaps(100)
    produced(kafka, topic, 1)
    seen.until(lambda: seen.live == [100])
    member.commit_processed({partition: 60})
    assert member.drain(10_000)
    assert member.committed(partition) == 60


def test_a_gap_is_read_though_the_given_broker_is_away(kafka, topic, committed_at, consumers):
    produced(kafka, topic, 100)
    committed_at(0)
    member = consumers(topic, **LIVE)
    member.config["bootstrap_servers"] = "127.0.0.1:1"  # what it was given long ago
    assert Seen(member).until_gaps(100).gaps == list(range(100))


def test_by_age_only_what_is_old_is_a_backlog(kafka, topic, committed_at, consumers):
    now = int(time.time() * 1000)
    kafka.produce(topic, values(50), timestamps_ms=[now - 60_000] * 25 + [now] * 25)
    committed_at(30)
    young = consumers(topic, parallel_rebalance="live", catch_up_threshold_ms=30_000)
    seen = Seen(young)
    seen.until(lambda: len(seen.live + seen.gaps) == 20)
    assert seen.live == list(range(30, 50))
    young.close()
    committed_at(20)
    old = consumers(topic, parallel_rebalance="live", catch_up_threshold_ms=30_000)
    seen = Seen(old).until_gaps(30)
    assert seen.gaps == list(range(20, 50))


HOUR_MS = 3_600_000
BY_AGE = {"parallel_rebalance": "live", "catch_up_threshold_ms": 300_000}


def test_by_age_a_young_record_below_the_position_changes_nothing(
    kafka, topic, committed_at, consumers
):
    """A record of now was processed, then old events came: ListOffsets finds the former."""
    now = int(time.time() * 1000)
    kafka.produce(topic, values(10), timestamps_ms=[now] * 10)
    kafka.produce(topic, values(300), timestamps_ms=[now - 2 * HOUR_MS] * 300)
    committed_at(10)
    seen = Seen(consumers(topic, **BY_AGE)).until_gaps(300)
    assert seen.gaps == list(range(10, 310))
    kafka.produce(topic, values(1))
    seen.until(lambda: seen.live == [310])


@pytest.mark.parametrize("protocol", ["classic"], indirect=True)
def test_by_age_each_partition_has_its_own_next_record(kafka, topic_name, group_id, consumers):
    """Clocks ahead, no timestamp, nanoseconds, a record deleted below the position, large ones."""
    now = int(time.time() * 1000)
    old, ahead = now - 2 * HOUR_MS, now + HOUR_MS // 2
    logs = [
        [ahead, *[old] * 40],  # a clock that is ahead, below the position
        [old, *[ahead] * 40],
        [now, *[1_700_000_000_123_456_789] * 40],
        [old, *[now] * 40],
        [now, *[old] * 40],  # the position is below where the log begins
        [old, *[now] * 40],  # as well
        [now, *[old] * 40],  # more than is asked for first
    ]
    config = {"message.timestamp.after.max.ms": str(2**63 - 1)}
    kafka.create_topic(topic_name, partitions=len(logs), config=config)
    for partition, stamps in enumerate(logs):
        size = 100_000 if partition == 6 else 10
        kafka.produce(topic_name, values(41, size), partition=partition, timestamps_ms=stamps)
    partitions = [TopicPartition(topic_name, number) for number in range(len(logs))]
    commit_foreign(kafka, group_id, dict.fromkeys(partitions, 1))
    with closing(KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)) as admin:
        admin.delete_records(dict.fromkeys(partitions[4:6], 21))
    member = consumers(topic_name, **BY_AGE)
    live, gaps = Counter(), Counter()

    def polled() -> bool:
        result = member.poll_with_rebalance(timeout_ms=50)
        live.update({p.partition: len(found) for p, found in result.records.items()})
        gaps.update({p.partition: len(found) for p, found in result.catch_up.items()})
        return live.total() + gaps.total() == 5 * 40 + 2 * 20

    wait_until(polled, "all records")
    assert dict(gaps) == {0: 40, 2: 40, 4: 20, 6: 40}
    assert dict(live) == {1: 40, 3: 40, 5: 20}


@pytest.mark.parametrize("protocol", ["classic"], indirect=True)
def test_by_age_aborted_records_and_markers_are_no_records(kafka, topic_name, group_id, consumers):
    """A young marker or aborted record at the position hides no old backlog, and the reverse."""
    now = int(time.time() * 1000)
    old = now - 2 * HOUR_MS
    kafka.create_topic(topic_name, partitions=3)
    partitions = [TopicPartition(topic_name, number) for number in range(3)]
    producer = KafkaProducer(
        bootstrap_servers=kafka.bootstrap_servers, transactional_id=f"{topic_name}-producer"
    )
    producer.init_transactions()

    def write(stamps: list[int], partition: TopicPartition, commit: bool) -> None:
        """So many records, and a marker of now."""
        producer.begin_transaction()
        for at in stamps:
            producer.send(partition.topic, b"v", partition=partition.partition, timestamp_ms=at)
        (producer.commit_transaction if commit else producer.abort_transaction)()

    write([old] * 3, partitions[0], commit=True)  # the position is at the marker of these
    write([old] * 40, partitions[0], commit=True)
    write([now] * 3, partitions[1], commit=False)
    write([old] * 40, partitions[1], commit=True)
    write([old] * 3, partitions[2], commit=False)
    write([now] * 40, partitions[2], commit=True)
    producer.close()
    commit_foreign(kafka, group_id, dict(zip(partitions, (3, 0, 0), strict=True)))
    member = consumers(topic_name, **BY_AGE, isolation_level="read_committed")
    live, gaps = Counter(), Counter()

    def polled() -> bool:
        result = member.poll_with_rebalance(timeout_ms=50)
        live.update({p.partition: len(found) for p, found in result.records.items()})
        gaps.update({p.partition: len(found) for p, found in result.catch_up.items()})
        return live.total() + gaps.total() == 3 * 40

    wait_until(polled, "all records")
    assert dict(gaps) == {0: 40, 1: 40}
    assert dict(live) == {2: 40}


@pytest.mark.parametrize("protocol", ["classic"], indirect=True)
def test_by_age_after_compaction_the_next_record_lies_further_on(
    kafka, topic_name, group_id, consumers
):
    """The record at the position was old and is gone; the next one that is left is young."""
    log = CompactedLog(kafka, topic_name)
    now = int(time.time() * 1000)
    log.write(1, 2, 3, timestamps_ms=[now - 2 * HOUR_MS - n * 200 for n in range(3)])
    log.write(*range(1, 21), timestamps_ms=[now - n for n in range(20)])
    log.write(99)
    wait_until(lambda: log.offsets()[0] == 3, "the cleaner removes the first three")
    commit_foreign(kafka, group_id, {log.partition: 1})
    seen = Seen(consumers(topic_name, **BY_AGE))
    seen.until(lambda: len(seen.live) + len(seen.gaps) == 21)
    assert seen.live == list(range(3, 24))


def test_bad_options_are_refused_before_any_network():
    for option, value in (
        ("parallel_rebalance", "both"),
        ("catch_up_threshold", -1),
        ("catch_up_threshold_ms", "5m"),
    ):
        with pytest.raises(OptionError, match=option):
            DeferredRevokeConsumer(
                "t", group_id="g", bootstrap_servers="127.0.0.1:1", **{option: value}
            )


def test_an_iteration_has_one_order(topic, consumers):
    with pytest.raises(OptionError, match="'ordered'"):
        next(consumers(topic, **LIVE))


def test_poll_has_both_with_the_gap_first(kafka, topic, committed_at, consumers):
    produced(kafka, topic, 300)
    partition = committed_at(0)
    member = consumers(topic, **LIVE)
    seen: list[int] = []

    def polled() -> bool:
        found = [record.offset for record in member.poll(timeout_ms=50).get(partition, [])]
        assert found == sorted(found)
        if found and not seen:
            produced(kafka, topic, 1)
        seen.extend(found)
        return len(seen) == 301

    wait_until(polled, "both")
    assert sorted(seen) == list(range(301))


# -- in order -------------------------------------------------------------------------------------


def test_in_order_the_gap_comes_first_and_then_what_was_kept(kafka, topic, committed_at, consumers):
    produced(kafka, topic, 1_000)
    partition = committed_at(0)
    member = consumers(topic, **ORDERED)
    seen = Seen(member)
    seen.until(lambda: len(seen.live) >= 100, max_records=50)
    produced(kafka, topic, 100)
    assert member.position(partition) == len(seen.live)
    assert member.catch_up_lag(partition) == 1_000 - len(seen.live)
    seen.until(lambda: len(seen.live) >= 1_100)
    assert seen.live == list(range(1_100))
    assert seen.gaps == []
    assert member.paused() == set()
    member.commit_processed({partition: 1_050})
    assert member.drain(10_000)
    assert member.committed(partition) == 1_050, "as in every consumer"


def test_in_order_what_is_kept_is_not_handed_out(kafka, topic, committed_at, consumers):
    produced(kafka, topic, 1_000)
    partition = committed_at(0)
    member = consumers(topic, **ORDERED)
    seen = Seen(member)
    seen.until(lambda: len(seen.live) >= 100, max_records=50)
    produced(kafka, topic, 100)
    seen.slowly_until(lambda: bool(member._fetcher._paused_completed_fetches))
    member.commit()
    assert member.committed(partition) == len(seen.live)
    assert told(member, partition) == ""
    killed(member)
    again = Seen(consumers(topic, **ORDERED))
    again.until(lambda: len(seen.live) + len(again.live) >= 1_100)
    assert seen.live + again.live == list(range(1_100))


def test_in_order_a_commit_by_hand_carries_what_the_application_says(
    kafka, topic, committed_at, consumers
):
    produced(kafka, topic, 1_000)
    partition = committed_at(0)
    member = consumers(topic, **ORDERED)
    seen = Seen(member)
    seen.until(lambda: len(seen.live) >= 100, max_records=50)
    member.commit({partition: OffsetAndMetadata(80, "mine", -1)})
    assert (member.committed(partition), told(member, partition)) == (80, "mine")
    assert member.unprocessed() == {partition}
    member.commit({partition: OffsetAndMetadata(40, "", -1)})
    assert (member.committed(partition), told(member, partition)) == (40, ""), "as in every client"
    member.commit_async()
    assert member.drain(10_000)
    assert member.committed(partition) == len(seen.live)
    assert member.unprocessed() == frozenset()


@pytest.mark.parametrize("offset", [30, 700, 1_020])
def test_in_order_a_seek_is_one_of_a_consumer_that_has_one_position(
    kafka, topic, committed_at, consumers, offset
):
    produced(kafka, topic, 1_000)
    partition = committed_at(0)
    member = consumers(topic, **ORDERED)
    seen = Seen(member)
    seen.until(lambda: len(seen.live) >= 100, max_records=50)
    produced(kafka, topic, 100)
    member.seek(partition, offset)
    assert member.position(partition) == offset
    before = len(seen.live)
    seen.until(lambda: 1_099 in seen.live)
    assert seen.live[before:] == list(range(offset, 1_100))
    assert member.catch_up_lag(partition) == 0


def test_in_order_an_iteration_goes_through_both(kafka, topic, committed_at, consumers):
    produced(kafka, topic, 300)
    partition = committed_at(0)
    member = consumers(topic, **ORDERED)
    seen = []
    for record in member:
        seen.append(record.offset)
        assert member.position(partition) == record.offset + 1
        if record.offset == 50:
            member.commit()
            assert member.committed(partition) == 51
        if record.offset == 100:
            produced(kafka, topic, 20)
        if record.offset == 150:  # what is polled ahead of the iteration is polled again
            found = member.poll(timeout_ms=10_000, max_records=5)[partition]
            seen += [each.offset for each in found]
        if record.offset == 319:
            break
    assert seen == list(range(320))
    member.seek(partition, 100)
    assert [next(member).offset for _ in range(220)] == list(range(100, 320))


def test_in_order_an_iteration_that_lost_a_gap_reads_what_is_no_backlog_any_more(
    kafka, topic, committed_at, consumers
):
    produced(kafka, topic, 300)
    partition = committed_at(0)
    member = consumers(topic, **ORDERED)
    assert [next(member).offset for _ in range(295)] == list(range(295))
    member.commit()
    killed(member)
    produced(kafka, topic, 3)
    fetched_ahead = [next(member).offset for _ in range(5)]
    again = [next(member).offset for _ in range(8)]
    assert (fetched_ahead, again) == (list(range(295, 300)), list(range(295, 303)))
    assert partition in member.assignment()


def test_in_order_workers_may_finish_out_of_it(kafka, topic, committed_at, consumers):
    produced(kafka, topic, 300)
    partition = committed_at(0)
    first = consumers(topic, **ORDERED)
    seen = Seen(first)
    seen.until(lambda: len(seen.live) >= 100, max_records=50)
    reached = len(seen.live)
    first.processed(partition, *range(50, reached))
    first.close()
    second = Seen(consumers(topic, **ORDERED))
    second.until(lambda: 299 in second.live)
    assert second.live == [*range(50), *range(reached, 300)]


def test_in_order_the_kips_own_switch(kafka, topic, committed_at, consumers):
    produced(kafka, topic, 300)
    partition = committed_at(0)
    member = consumers(topic, enable_parallel_rebalance=True, catch_up_threshold=FEW)
    seen = Seen(member)
    seen.until(lambda: bool(seen.live), max_records=10)
    assert member._catching_up is not None
    assert member.catch_up_lag(partition) > 0
    seen.until(lambda: 299 in seen.live)
    assert seen.live == list(range(300))


def test_in_order_what_is_kept_is_bounded(kafka, topic_name, group_id, consumers):
    kafka.create_topic(topic_name, partitions=5)
    all_of_them = [TopicPartition(topic_name, n) for n in range(5)]
    commit_foreign(kafka, group_id, dict.fromkeys(all_of_them, 0))
    for p in all_of_them:
        kafka.produce(topic_name, values(200), partition=p.partition)
    member = consumers(topic_name, **ORDERED, max_partition_fetch_bytes=16 * 2**20)
    seen = Seen(member)
    seen.until(lambda: len(seen.live) >= 10, max_records=1)
    for p in all_of_them:
        kafka.produce(topic_name, values(5), partition=p.partition)
    kept: set[int] = set()

    def keeps() -> bool:
        kept.add(len(member._fetcher._paused_completed_fetches))
        return max(kept) > 0

    seen.slowly_until(keeps)
    seen.until(lambda: keeps() and len(seen.live) >= 1_025, max_records=10)
    assert max(kept) <= 2
    assert sorted(seen.live) == sorted(list(range(205)) * 5)


@pytest.fixture(scope="module")
def own_kafka() -> Iterator[LocalKafka]:
    """A broker to restart."""
    with LocalKafka() as local:
        yield local


@pytest.mark.parametrize("session_timeout_ms", [40_000])  # longer than a restart takes
@pytest.mark.parametrize("options", [LIVE, ORDERED], ids=["live", "ordered"])
def test_a_gap_goes_on_under_another_leader(own_kafka, topic_name, group_id, consumers, options):
    settings = {"bootstrap_servers": own_kafka.bootstrap_servers}
    own_kafka.create_topic(topic_name)
    produced(own_kafka, topic_name, 100)
    partition = TopicPartition(topic_name, 0)
    with foreign(own_kafka, group_id) as plain:
        plain.assign([partition])
        plain.commit({partition: OffsetAndMetadata(50, "", 0)})
    own_kafka.restart()  # a new leader epoch
    produced(own_kafka, topic_name, 100)
    first = consumers(topic_name, **settings, **options)
    seen = Seen(first)
    seen.until(lambda: len(seen.live + seen.gaps) >= 80, max_records=10)
    first.processed(partition, *seen.live, *seen.gaps[:-5])
    own_kafka.restart()
    produced(own_kafka, topic_name, 10)
    seen.until(lambda: {199, 209} <= {*seen.live, *seen.gaps})
    assert sorted(seen.live + seen.gaps) == list(range(50, 210))
    first.processed(partition, *range(50, 210))
    assert first.drain(20_000)
    committed = first.committed(partition, metadata=True)
    assert committed.offset == 210
    assert committed.leader_epoch >= 0


@pytest.mark.parametrize("options", [LIVE, ORDERED], ids=["live", "ordered"])
def test_records_in_the_place_of_lost_ones_are_read(
    own_kafka, topic_name, group_id, consumers, options
):
    """The state that an unclean election leaves: what was processed had an epoch of before."""
    settings = {"bootstrap_servers": own_kafka.bootstrap_servers}
    own_kafka.create_topic(topic_name)
    produced(own_kafka, topic_name, 100)
    partition = TopicPartition(topic_name, 0)
    own_kafka.restart()
    produced(own_kafka, topic_name, 150)
    with consumers(topic_name, **settings) as any_one:
        Seen(any_one).until(owns(any_one, 1))
        bound = any_one._hand_outs.truncations.bound(partition)
    told = Remaining.of([(50, 61)], 200).encode(bound_to=bound, leader_epoch=0)
    with foreign(own_kafka, group_id) as plain:
        plain.assign([partition])
        plain.commit({partition: OffsetAndMetadata(50, told, 0)})
    seen = Seen(consumers(topic_name, **settings, **options))
    seen.until(lambda: len(seen.live + seen.gaps) >= 11 + 150)
    assert sorted(seen.live + seen.gaps) == [*range(50, 61), *range(100, 250)]


@pytest.mark.parametrize("options", [{}, LIVE, ORDERED], ids=["plain", "live", "ordered"])
def test_who_waits_for_the_next_record_keeps_the_leader_epoch_of_those_before(
    kafka, topic, group_id, consumers, options
):
    """An answer without records says nothing of it, and else none would notice a truncation."""
    produced(kafka, topic, 100)
    partition = TopicPartition(topic, 0)
    with foreign(kafka, group_id) as plain:
        plain.assign([partition])
        plain.commit({partition: OffsetAndMetadata(0 if options else 100, "", 0)})
    member = consumers(topic, **options, fetch_max_wait_ms=50)
    seen = Seen(member)
    seen.until(lambda: owns(member, 1)() and member.position(partition) == 100)
    seen.until(lambda: member.current_lag(partition) == 0)
    for _ in range(10):
        seen.poll()
    position = member._subscription.assignment[partition].position
    assert (position.offset, position.leader_epoch) == (100, 0)
    assert len(seen.gaps + seen.live) == (100 if options else 0)


@pytest.mark.parametrize("session_timeout_ms", [40_000])  # longer than the election takes
@pytest.mark.parametrize(
    ("protocol", "options"), [("classic", LIVE), ("consumer", ORDERED)], indirect=["protocol"]
)
def test_an_unclean_election_is_noticed_before_anything_is_read_live(
    quorum, topic_name, group_id, quorum_members, options
):
    partition = TopicPartition(topic_name, 0)
    servers = {"bootstrap_servers": quorum.bootstrap_servers}
    admin = KafkaAdminClient(**servers)
    configs = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    admin.create_topics({topic_name: {"assignments": {0: [1, 2]}, "configs": configs}})

    def is_led_by(leader: int, *in_sync: int) -> bool:
        with contextlib.suppress(kafka_errors.KafkaError):
            (found,) = admin.describe_topics([topic_name])
            led = [(one["leader_id"], sorted(one["isr_nodes"])) for one in found["partitions"]]
            return led == [(leader, sorted(in_sync))]
        return False

    def wait_until_led_by(leader: int, *in_sync: int) -> None:
        wait_until(lambda: is_led_by(leader, *in_sync), f"{leader} leads")

    wait_until_led_by(1, 1, 2)
    produced(quorum, topic_name, 100)
    quorum.stop(2)
    wait_until_led_by(1, 1)
    with KafkaProducer(**servers, acks=1) as producer:
        for value in values(100):  # on one broker alone
            producer.send(topic_name, value).get(30)
    with foreign(quorum, group_id) as plain:
        plain.assign([partition])
        plain.commit({partition: OffsetAndMetadata(0, "", -1)})
    member = quorum_members(topic_name, **options)
    seen = Seen(member)
    seen.until(lambda: len(seen.gaps + seen.live) == 200)
    member.processed(partition, *range(10), *range(12, 200))
    quorum.kill(1)
    quorum.restart(2)
    wait_until_led_by(2, 2)
    seen.until(lambda: member.position(partition) == 100)
    seen.poll()  # by which it is noticed
    member.processed(partition, 10)
    assert member.drain(20_000)
    left = member.committed_remaining([partition], 20_000)
    assert left == {partition: Remaining(100, (Gap(11, 12),))}, "it was told with the next record"
    member.processed(partition, 11)
    produced(quorum, topic_name, 200)
    seen.until(lambda: 299 in seen.live)
    admin.close()
    assert (seen.gaps + seen.live)[200:] == list(range(100, 300))
    member.processed(partition, *range(100, 300))
    assert member.drain(20_000)
    assert member.committed(partition) == 300


# -- as Arrow -------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [LIVE, ORDERED], ids=["live", "ordered"])
def test_arrow_batches_of_both(kafka, topic, committed_at, consumers, options):
    produced(kafka, topic, 1_000)
    partition = committed_at(100)
    member = consumers(topic, **options)
    live: list[int] = []
    gaps: list[int] = []

    def polled() -> bool:
        result = member.poll_arrow(timeout_ms=50, max_records=77)
        for into, found in ((live, result.records), (gaps, result.catch_up)):
            for batches in found.values():
                assert sum(batch.num_rows for batch in batches) <= 77
                for batch in batches:
                    into.extend(batch["offset"].to_pylist())
        if live + gaps and 1_000 not in live and member.catch_up_lag(partition) < 500:
            produced(kafka, topic, 1) if not told_live else None
            told_live.append(True)
        return len(live) + len(gaps) == 901

    told_live: list[bool] = []
    wait_until(polled, "all of both")
    if options is LIVE:
        assert (live, gaps) == ([1_000], list(range(100, 1_000)))
    else:
        assert (live, gaps) == (list(range(100, 1_001)), [])
    member.processed(partition, *range(100, 1_001))
    assert member.drain(10_000)
    assert member.committed(partition) == 1_001


# -- with asyncio ---------------------------------------------------------------------------------


def test_with_asyncio(kafka, topic, group_id, protocol, committed_at, consumers):
    produced(kafka, topic, 500)
    partition = committed_at(0)
    settings = {
        "bootstrap_servers": kafka.bootstrap_servers,
        "group_id": group_id,
        "group_protocol": protocol,
    }

    async def live() -> None:
        async with AsyncDeferredRevokeConsumer(topic, **settings, **LIVE) as consumer:
            with pytest.raises(OptionError, match="'ordered'"):
                await anext(consumer)
            seen: list[int] = []
            while len(seen) < 100:
                result = await consumer.poll_with_rebalance(timeout_ms=50, max_records=60)
                assert not result.records
                found = [r.offset for r in result.catch_up.get(partition, [])]
                seen += found
                if found:
                    consumer.processed(partition, *found)
            assert consumer.catch_up_lag(partition) == 500 - len(seen)
            # What a cancelled poll had brought of the gap is not returned where it comes again.
            polling = asyncio.create_task(consumer.poll_with_rebalance(timeout_ms=10_000))
            await asyncio.sleep(0)
            polling.cancel()
            await asyncio.sleep(0.3)
            await consumer.seek(partition, 450)
            again: list[int] = []
            while len(seen) + len(again) < 500:
                result = await consumer.poll_with_rebalance(timeout_ms=50)
                seen += [r.offset for r in result.catch_up.get(partition, [])]
                again += [r.offset for r in result.records.get(partition, [])]
            assert again[0] == 450
            assert seen == list(range(450))
            consumer.processed(partition, *seen[100:300])

    async def ordered() -> None:
        async with AsyncDeferredRevokeConsumer(topic, **settings, **ORDERED) as consumer:
            seen = []
            async for record in consumer:
                seen.append(record.offset)
                if record.offset == 499:
                    break
            assert seen == list(range(300, 500))

    asyncio.run(live())
    asyncio.run(ordered())
