"""Gaps in logs with holes (KIP-333): what is compacted away, aborted, or not committed yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
from gaps_and_live import LIVE, ORDERED, Seen, commit_foreign, produced
from group_members import wait_until
from handed_out_records import told
from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance import UnreadableRecordError
from pyspark_kafka_rebalance.consumer.offsets.found_records import offsets_of
from pyspark_kafka_rebalance.testing import LocalKafka
from tests.compacted_log import CompactedLog

BOTH_MODES = pytest.mark.parametrize("options", [LIVE, ORDERED], ids=["live", "ordered"])


# -- compaction -----------------------------------------------------------------------------------


@pytest.fixture
def compacted(kafka: LocalKafka, topic_name: str) -> CompactedLog:
    return CompactedLog(kafka, topic_name)


@BOTH_MODES
def test_a_gap_with_holes(kafka, group_id, compacted, consumers, options):
    compacted.write(*range(50))
    compacted.write(*range(0, 50, 2))
    compacted.write(*range(100, 120))
    compacted.write(99)  # the active segment is never cleaned
    left = [*range(1, 50, 2), *range(50, 75), *range(75, 95), 95]
    compacted.wait_until_left(*left)
    commit_foreign(kafka, group_id, {compacted.partition: 0})
    first = consumers(compacted.partition.topic, **options)
    seen = Seen(first)
    seen.until(lambda: len(seen.gaps + seen.live) >= 30, max_records=10)
    done = sorted(seen.gaps + seen.live)
    first.processed(compacted.partition, *done[5:])
    first.close()
    second = consumers(compacted.partition.topic, **options)
    again = Seen(second)
    again.until(lambda: len(again.gaps + again.live) >= len(left) - len(done) + 5)
    assert sorted(again.gaps + again.live) == [*left[:5], *left[len(done) :]]
    second.processed(compacted.partition, *again.gaps, *again.live)
    assert second.drain(10_000)
    assert second.committed(compacted.partition) == compacted.end


@BOTH_MODES
@pytest.mark.parametrize("all_of_it", [False, True], ids=["its last records", "all of it"])
def test_records_of_a_gap_are_compacted_away_between_two_owners(
    kafka, group_id, compacted, consumers, options, all_of_it
):
    compacted.write(*range(60), batches=6)
    commit_foreign(kafka, group_id, {compacted.partition: 0})
    topic, partition = compacted.partition.topic, compacted.partition
    first = consumers(topic, **options)
    seen = Seen(first)
    seen.until(lambda: len(seen.gaps + seen.live) >= 5, max_records=5)
    if options is LIVE:
        compacted.write(200)
        seen.until(lambda: seen.live == [60], max_records=1)
    reached = sorted(seen.gaps + seen.live)
    first.processed(partition, *reached)
    first.close()
    again_from = 0 if all_of_it else 40
    compacted.write(*range(again_from, 60))
    compacted.write(99)
    kept = list(range(again_from))
    compacted.wait_until_left(*kept, *range(60, compacted.end))
    second = consumers(topic, **options)
    again = Seen(second)
    owed = [offset for offset in (*kept, *range(60, compacted.end)) if offset not in reached]
    again.until(lambda: len(again.gaps + again.live) >= len(owed))
    assert sorted(again.gaps + again.live) == owed
    again.until(lambda: second.catch_up_lag(partition) == 0)
    second.processed(partition, *owed)
    assert second.drain(10_000)
    assert second.committed(partition) == compacted.end
    assert told(second, partition) == ""


@BOTH_MODES
def test_the_last_records_of_a_gap_are_compacted_away_while_it_is_read(
    kafka, group_id, compacted, consumers, options
):
    compacted.write(*range(60), batches=6)
    commit_foreign(kafka, group_id, {compacted.partition: 0})
    topic, partition = compacted.partition.topic, compacted.partition
    # A record batch a fetch, so that most of the gap is not there yet.
    member = consumers(topic, **options, max_partition_fetch_bytes=100)
    seen = Seen(member)
    seen.until(lambda: len(seen.gaps + seen.live) >= 5, max_records=5)
    compacted.write(*range(40, 60))
    compacted.write(99)
    compacted.wait_until_left(*range(40), *range(60, 81))
    seen.until(lambda: {80} <= {*seen.gaps, *seen.live} and member.catch_up_lag(partition) == 0)
    found = sorted(seen.gaps + seen.live)
    # What was fetched before is handed out; the rest of it is gone.
    assert [offset for offset in found if not 40 <= offset < 60] == [*range(40), *range(60, 81)]
    assert options is LIVE or seen.live == found
    member.processed(partition, *found)
    assert member.drain(10_000)
    assert member.committed(partition) == 81


# -- transactions ---------------------------------------------------------------------------------


class Transactions:
    """A producer of the topic that writes nothing outside transactions."""

    def __init__(self, kafka: LocalKafka, topic: str) -> None:
        self._topic = topic
        self._producer = KafkaProducer(
            bootstrap_servers=kafka.bootstrap_servers, transactional_id=topic
        )
        self._producer.init_transactions()
        self._log = KafkaConsumer(bootstrap_servers=kafka.bootstrap_servers)
        self._partition = TopicPartition(topic, 0)

    def begin(self, number: int) -> None:
        self._producer.begin_transaction()
        for n in range(number):
            self._producer.send(self._topic, b"%d" % n, partition=0)
        self._producer.flush()

    def end(self, ending: str) -> None:
        """Until its marker is in the log, which the broker writes when it has answered."""
        before = self._end_of_log()
        if ending == "committed":
            self._producer.commit_transaction()
        else:
            self._producer.abort_transaction()
        wait_until(lambda: self._end_of_log() > before, "the marker")

    def _end_of_log(self) -> int:
        return int(self._log.end_offsets([self._partition])[self._partition])

    def close(self) -> None:
        self._log.close()
        self._producer.close(timeout=1)


@pytest.fixture
def transactions(kafka: LocalKafka, topic: str) -> Iterator[Transactions]:
    made = Transactions(kafka, topic)
    yield made
    made.close()


COMMITTED = {"isolation_level": "read_committed"}


def read_and_hand_over(
    consumers: Callable[..., object], topic: str, options: dict, owed: Sequence[int], part: int
) -> None:
    """One owner reads some of it, and processes all of that but the first; the next the rest."""
    partition = TopicPartition(topic, 0)
    first = consumers(topic, **options, **COMMITTED)
    seen = Seen(first)
    seen.until(lambda: len(seen.gaps + seen.live) >= part, max_records=10)
    done = sorted(seen.gaps + seen.live)
    assert done == [*owed[: len(done)]]
    first.processed(partition, *done[1:])
    first.close()
    second = consumers(topic, **options, **COMMITTED)
    again = Seen(second)
    rest = [owed[0], *owed[len(done) :]]
    again.until(lambda: len(again.gaps + again.live) >= len(rest))
    assert sorted(again.gaps + again.live) == rest
    again.until(lambda: second.catch_up_lag(partition) == 0)
    second.processed(partition, *rest)
    assert second.drain(10_000)


@BOTH_MODES
def test_aborted_transactions_in_a_gap_and_at_its_end(
    kafka, topic, committed_at, consumers, transactions, group_id, options
):
    committed_at(0)
    produced(kafka, topic, 30)
    transactions.begin(20)
    transactions.end("aborted")  # 30 to 49, and its marker
    produced(kafka, topic, 30)  # 51 to 80
    transactions.begin(20)
    produced(kafka, topic, 5)  # 101 to 105, within it
    transactions.end("aborted")  # and its marker, 106
    owed = [*range(30), *range(51, 81), *range(101, 106)]
    read_and_hand_over(consumers, topic, options, owed, part=40)
    assert kafka.committed(group_id) == {TopicPartition(topic, 0): 107}


@BOTH_MODES
@pytest.mark.parametrize("ending", ["committed", "aborted"])
def test_a_transaction_is_open_where_a_gap_ends_and_over_a_hand_over(
    kafka, topic, committed_at, consumers, transactions, options, ending
):
    partition = committed_at(0)
    produced(kafka, topic, 100)
    transactions.begin(20)
    produced(kafka, topic, 20)
    first = consumers(topic, **options, **COMMITTED)
    seen = Seen(first)
    seen.until(lambda: len(seen.gaps + seen.live) >= 40, max_records=20)
    reached = len(seen.gaps + seen.live)
    first.processed(partition, *range(5, reached))
    first.close()
    second = consumers(topic, **options, **COMMITTED)
    again = Seen(second)
    again.until(lambda: len(again.gaps + again.live) >= 105 - reached)
    assert sorted(again.gaps + again.live) == [*range(5), *range(reached, 100)]
    assert second.position(partition) == 100
    transactions.end(ending)
    since = list(range(100 if ending == "committed" else 120, 140))
    again.until(lambda: 139 in again.live)
    assert again.live[-len(since) :] == since
    assert sorted(again.gaps + again.live) == [*range(5), *range(reached, 100), *since]
    second.processed(partition, *again.gaps, *again.live)
    assert second.drain(10_000)
    again.until(lambda: second.committed(partition) >= 140)


@BOTH_MODES
def test_who_reads_uncommitted_ones_is_followed_by_one_that_does_not(
    kafka, topic, committed_at, consumers, transactions, options
):
    """What is processed lies beyond the last stable offset: it begins where the group is."""
    partition = committed_at(0)
    produced(kafka, topic, 100)
    transactions.begin(20)
    first = consumers(topic, **options)
    seen = Seen(first)
    seen.until(lambda: len(seen.gaps + seen.live) >= 40, max_records=20)
    produced(kafka, topic, 10)  # 120 to 129
    if options is LIVE:
        seen.until(lambda: 129 in seen.live, max_records=20)
    done = sorted(seen.gaps + seen.live)
    first.processed(partition, *done[3:])
    first.close()
    second = consumers(topic, **options, **COMMITTED)
    again = Seen(second)
    below = [offset for offset in range(100) if offset not in done[3:]]
    again.until(lambda: len(again.gaps + again.live) >= len(below))
    assert sorted(again.gaps + again.live) == below
    transactions.end("committed")
    produced(kafka, topic, 1)  # behind the marker
    owed = [offset for offset in (*range(130), 131) if offset not in done[3:]]
    again.until(lambda: 131 in again.live)
    assert sorted(again.gaps + again.live) == owed
    second.processed(partition, *owed)
    assert second.drain(10_000)
    assert second.committed(partition) == 132


@pytest.mark.parametrize("protocol", ["classic"], indirect=True)
@pytest.mark.parametrize("poll", ["poll_with_rebalance", "poll_arrow"])
@BOTH_MODES
def test_a_damaged_batch_behind_a_hole_is_skipped_in_the_gap(
    kafka, topic, committed_at, consumers, transactions, options, poll
):
    """The reader sought the hole before the skipped batch again and again, without an error."""
    for ending in ("committed", "aborted", "committed"):
        transactions.begin(10)
        transactions.end(ending)
    break_batch(kafka, topic, 21)  # the marker of the abort
    partition = committed_at(0)
    member = consumers(topic, **options, **COMMITTED)
    found: list[int] = []
    skipped: list[tuple[int, int | None]] = []

    def read() -> bool:
        try:
            result = getattr(member, poll)(timeout_ms=50)
        except UnreadableRecordError as error:
            skipped.append((error.offset, error.next_offset))
            member.seek(partition, error.next_offset)
            return False
        for each in (*result.records.values(), *result.catch_up.values()):
            for offsets, _ in offsets_of(each):
                found.extend(offsets)
        return len(found) >= 20

    wait_until(read, "what can be read")
    assert found == [*range(10), *range(22, 32)]
    assert skipped == [(21, 22)]
    wait_until(lambda: read() and member.catch_up_lag(partition) == 0, "the gap ends")
    member.processed(partition, *found)
    assert member.drain(10_000)
    assert member.committed(partition) == 33


def break_batch(kafka: LocalKafka, topic: str, offset: int) -> None:
    """Flip a bit of the record batch that begins at this offset, on the broker's disk."""
    (segment,) = kafka.folder.rglob(f"{topic}-0/*.log")
    log = bytearray(segment.read_bytes())
    start = 0
    while int.from_bytes(log[start : start + 8], "big") != offset:
        start += 12 + int.from_bytes(log[start + 8 : start + 12], "big")
    end = start + 12 + int.from_bytes(log[start + 8 : start + 12], "big")
    with segment.open("r+b") as file:
        file.seek(end - 1)
        file.write(bytes([log[end - 1] ^ 1]))
