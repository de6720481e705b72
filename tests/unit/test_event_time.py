"""``maxTaskIdleMs``: up to which timestamp a batch reads, against logs in memory.

Flink's alignment of watermarks and Kafka Streams' task idling have tests of the same rules; where a
case has a counterpart here, the docstring names it.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Mapping
from itertools import accumulate

import pytest
from histories import histories
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.consumer.offsets.found_records import RecordTime
from pyspark_kafka_rebalance.fetch.offset_range import OffsetRange
from pyspark_kafka_rebalance.source.options.event_time_options import EventTimeOptions
from pyspark_kafka_rebalance.source.plan import times as times_module
from pyspark_kafka_rebalance.source.plan.available_now import AvailableNowRun
from pyspark_kafka_rebalance.source.plan.batch_planner import NO_LIMIT, BatchPlanner, Cut, Planned
from pyspark_kafka_rebalance.source.plan.bound import find_bound
from pyspark_kafka_rebalance.source.plan.cuts import (
    AllAtOnce,
    EnoughToRead,
    KnownSizes,
    WithinLogs,
    WithinRun,
)
from pyspark_kafka_rebalance.source.plan.event_time import FUTURE_MS, EventTime
from pyspark_kafka_rebalance.source.plan.timelines import Rows
from pyspark_kafka_rebalance.source.plan.transaction_markers import LOOK_AGAIN_S
from pyspark_kafka_rebalance.source.spark.read_limits import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
)

P, Q, R, S = (TopicPartition("t", n) for n in range(4))
ALL = ReadMaxRows(NO_LIMIT)
NOW_MS = 1_700_000_000_000
MARKER = "marker"


@pytest.fixture(scope="module", autouse=True)
def short_reads() -> Iterator[None]:
    """As long as the logs are, in proportion."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(times_module, "SHORT", 6)
        yield


class Logs:
    """Logs in memory, and a reader that delivers what it plans.

    Each log is a list of its records' timestamps, by offset; ``(MARKER, timestamp)`` is a record
    that nobody is given, which look-ups find all the same; None is none, after compaction.
    """

    def __init__(self, logs, max_idle_ms=0, drift=0, before=(), run=False, has_newest=True):
        self.logs = {p: list(log) for p, log in logs.items()}
        self.positions = dict.fromkeys(self.logs, 0)
        self.away: set[TopicPartition] = set()
        self.starting: list[TopicPartition] = []
        self.elected: list[TopicPartition] = []  # have another leader
        self.transactional: set[TopicPartition] = set()  # even if there is no marker yet
        self.now = self.answers_take_s = 0.0
        self.asked = self.asked_newest = self.asked_newest_of = 0
        self.read_ahead = self.looked_at = self.longest_read = 0
        self._prepared: dict[tuple[TopicPartition, int], RecordTime | None] = {}
        self._wants_newest = True
        self.batches: list[dict[TopicPartition, list[int]]] = []
        self._has_newest = has_newest
        self._idles = max_idle_ms > 0  # or nobody asks for them with the ends
        self._newest: dict[TopicPartition, RecordTime | None] = {}
        self.ends: dict[TopicPartition, int] = {}
        # By partition, the segments: their end, and the latest timestamp that was ever in them.
        self.segments: dict[TopicPartition, list[tuple[int, int]]] = {}
        self.run = AvailableNowRun(self._ends()) if run else None
        self.cut = EventTime(
            EventTimeOptions(max_idle_ms, drift),
            self,
            run,
            clock=lambda: self.now,
            now_ms=lambda: NOW_MS,
        )
        own: list[Cut] = [WithinRun(self.run)] if self.run else [AllAtOnce(lambda: ())]
        self._planner = BatchPlanner([WithinLogs(dict), *own, *before, self.cut])

    def _ends(self):
        return {p: len(log) for p, log in self.logs.items() if p not in self.away}

    @staticmethod
    def _timestamp(record):
        return record[1] if isinstance(record, tuple) else record

    @staticmethod
    def _tells(record):
        return isinstance(record, int) and 0 <= record <= NOW_MS + FUTURE_MS

    # -- as brokers answer ------------------------------------------------------------------------

    def awaited(self, planned):
        return self.starting

    def ends_asked_at(self):
        return self.now - self.answers_take_s

    def anew(self):
        found, self.elected = self.elected, []
        return found

    def first_at(self, timestamps):
        prepared, self._prepared = self._prepared, {}
        told = {
            p: r for (p, at), r in prepared.items() if r is not None and timestamps.get(p) == at
        }
        if asked := {p: at for p, at in timestamps.items() if p not in told}:
            self.asked += 1
            told |= self._told(asked)
        return told

    def _told(self, timestamps):
        found = {}
        for p, wanted in timestamps.items():
            if p in self.away:
                continue
            records = enumerate(map(self._timestamp, self.logs[p]))
            later = (RecordTime(o, at) for o, at in records if at is not None and at >= wanted)
            found[p] = next(later, None)
            searched = next((end for end, at in self.segments.get(p, ()) if at >= wanted), None)
            if searched is not None and found[p] is not None and found[p].offset >= searched:
                found[p] = None
        return found

    def segment(self, partition, *ends):
        """Divide the log into segments that end there."""
        times = [self._timestamp(record) for record in self.logs[partition]]
        self.segments[partition] = [
            (end, max(times[start:end]))
            for start, end in zip([0, *ends], [*ends, len(times)], strict=True)
        ]

    def delete(self, partition, before):
        """Delete what lies before an offset; brokers delete the segments much later."""
        self.logs[partition][:before] = [None] * before

    def newest(self):
        return self._newest if self._has_newest and self._idles else {}

    def newest_of(self, partitions):
        self.asked_newest_of += 1
        return {p: r for p, r in self._latest().items() if p in partitions}

    def prepare(self, first_at, *, newest):
        """Answered with what the logs have now, as brokers do while Spark works."""
        told = self._told(first_at)
        self._prepared = {(p, at): told.get(p) for p, at in first_at.items()}
        self._wants_newest |= newest

    def _look_for_newest(self):
        if not self._wants_newest and self._newest.keys() >= self.logs.keys() - self.away:
            return
        self._wants_newest = False
        self.asked_newest += 1
        self._newest = self._latest()

    def _latest(self):
        newest = {}
        for p, log in self.logs.items():
            if p not in self.away and self._has_newest:
                known = [(self._timestamp(r), -o) for o, r in enumerate(log) if r is not None]
                # Brokers name deleted records as well.
                known += ((at, 1 - end) for end, at in self.segments.get(p, ()))
                at, offset = max(known, default=(-1, 0))
                newest[p] = RecordTime(-offset, at) if at >= 0 else None
        return newest

    def rows(self, ranges: Mapping[TopicPartition, OffsetRange]):
        self.read_ahead += 1
        self.looked_at += len(ranges)
        self.longest_read = max(self.longest_read, *map(len, ranges.values()))
        found = {}
        for p, wanted in ranges.items():
            if p not in self.away:
                assert wanted.end <= len(self.logs[p])
                # Long ones come in parts; real ones are so long that among the records is one that
                # tells its time.
                end = wanted.end
                if len(wanted) > times_module.SHORT:
                    log = self.logs[p]
                    told = (o for o in range(wanted.start, end) if self._tells(log[o]))
                    end = min(end, max(wanted.start + 7, next(told, end) + 1))
                records = [(o, self.logs[p][o]) for o in range(wanted.start, end)]
                known = [(o, r) for o, r in records if isinstance(r, int)]
                found[p] = Rows(
                    [o for o, _ in known],
                    [r for _, r in known],
                    end,
                    has_transactions=p in self.transactional
                    or any(isinstance(r, tuple) for r in self.logs[p][wanted.start :]),
                )
        return found

    # -- as Spark plans ---------------------------------------------------------------------------

    def batch(self, limit: ReadLimit | int = ALL) -> dict[TopicPartition, list[int]]:
        """Plan a batch and deliver it: timestamps, by partition."""
        limit = ReadMaxRows(limit) if isinstance(limit, int) else limit
        self._look_for_newest()
        self.ends = self._ends()
        planned = self._planner.plan(self.positions, self.ends, limit)
        assert isinstance(planned, Planned)
        self.planned = planned
        self._planner.handed_out(planned.ranges)
        batch = {}
        for p, handed in planned.ranges.items():
            assert handed.start == self.positions[p]
            self.positions[p] = handed.end
            batch[p] = [
                r for r in self.logs[p][handed.start : handed.end] if isinstance(r, int)
            ]  # fmt: skip
        self.batches.append(batch)
        return batch

    def read_all(self, limit=ALL, at_most=10_000):
        for _ in range(at_most):
            if self.positions == {p: len(log) for p, log in self.logs.items()}:
                return self.batches
            before = dict(self.positions)
            self.batch(limit)
            assert self.positions != before, "no progress"
        raise AssertionError(f"not read after {at_most} batches: {self.positions}")

    def read_slowly(self, limit=ALL):
        """As above, so that partitions which get no more records are found to be idle."""
        for _ in range(10_000):
            if self.positions == {p: len(log) for p, log in self.logs.items()}:
                return self.batches
            self.now += 1
            self.batch(limit)
        raise AssertionError(f"not read: {self.positions}")


def late_by(batches, disorder):
    """By how much the latest record is late, beyond the disorder of its own partition."""
    reached, most = -(2**63), 0
    for batch in batches:
        for p, timestamps in batch.items():
            for at in timestamps:
                if at >= 0:
                    most = max(most, reached - at - disorder[p])
        known = [at for timestamps in batch.values() for at in timestamps if at < NOW_MS]
        reached = max([reached, *known])
    return most


def disorder_of(logs):
    found = {}
    for p, log in logs.items():
        times = [r for r in log if isinstance(r, int) and r < NOW_MS]
        falls = [top - at for top, at in zip(accumulate(times, max), times, strict=True)]
        found[p] = max(falls, default=0)
    return found


def count(batch):
    return sum(map(len, batch.values()))


# -- shared limits --------------------------------------------------------------------------------


def test_without_a_limit_and_without_idling_a_batch_has_all_there_is_and_nothing_is_asked():
    logs = Logs({P: [1, 2, 3], Q: [100, 200]})
    assert logs.batch() == {P: [1, 2, 3], Q: [100, 200]}
    assert (logs.asked, logs.read_ahead) == (0, 0)


def test_the_lowest_timestamps_come_first():
    """PartitionGroupTest.shouldChooseNextRecordBasedOnHeadTimestamp"""
    logs = Logs({P: [1_000, 3_000, 5_000], Q: [2_000, 4_000, 6_000]})
    assert logs.batch(2) == {P: [1_000], Q: [2_000]}
    assert logs.batch(2) == {P: [3_000], Q: [4_000]}
    assert logs.batch(2) == {P: [5_000], Q: [6_000]}


def test_a_partition_that_is_behind_is_read_alone_until_it_is_level():
    behind, ahead = list(range(1_000)), list(range(900, 1_900))
    logs = Logs({P: behind, Q: ahead})
    first = logs.batch(300)
    assert first.keys() == {P}
    assert 150 <= count(first) <= 300
    batches = logs.read_all(300)
    assert late_by(batches, {P: 0, Q: 0}) == 0
    assert all(count(batch) >= 150 for batch in batches[:-1])
    assert len(batches) <= 9


@pytest.mark.parametrize("max_idle_ms", [0, 1_000])
def test_a_steady_batch_waits_for_hardly_any_answer(max_idle_ms):
    since = NOW_MS - 3_600_000
    times = {p: list(range(since + n, since + 40_000, 3)) for n, p in enumerate((P, Q, R))}
    logs = Logs(times, max_idle_ms)
    for _ in range(3):
        logs.batch(1_000)
    logs.asked = logs.asked_newest = logs.read_ahead = 0
    for _ in range(20):
        assert count(logs.batch(1_000)) >= 900
    assert logs.asked <= 5
    assert (logs.asked_newest, logs.read_ahead) == (0, 0)


def test_the_latest_records_are_asked_for_again_when_a_batch_has_come_up_to_them():
    logs = Logs({P: list(range(1_000)), Q: list(range(1_000))}, max_idle_ms=1_000)
    logs.batch(1_000)
    assert logs.asked_newest == 1
    logs.batch(1_500)
    for log in logs.logs.values():
        log += range(1_000, 2_000)
    assert logs.batch(1_500) == {P: list(range(1_000, 1_750)), Q: list(range(1_000, 1_750))}


def test_a_log_that_begins_anew_holds_the_others_back_by_its_own_latest_record():
    """Whatever was told of the one before, and was good enough for batches that were full."""
    times = list(range(0, 2_000, 2))
    logs = Logs({P: times, Q: times}, max_idle_ms=1_000)
    for _ in range(3):
        logs.batch(200)
    reached = max(logs.batches[-1][Q])
    logs.logs[P], logs.positions[P] = [100] * 1_000 + [reached + 100], 0
    there = len(logs.batches)
    while logs.positions[P] < 1_001:
        logs.batch(5_000)
    read = [at for batch in logs.batches[there:] for at in batch.get(Q, ())]
    assert max(read) <= reached + 100
    logs.logs[P] += range(reached + 100, 2_000)
    for _ in range(20):
        logs.batch(5_000)
    assert late_by(logs.batches[there:], {P: 0, Q: 0}) == 0


@pytest.mark.parametrize("max_idle_ms", [0, 500])
@pytest.mark.parametrize("length", [90, 200, 300])
def test_what_an_elected_leader_has_lost_is_forgotten_though_nobody_has_read_it(
    max_idle_ms, length
):
    """The log goes on with much later records, maybe up to where it ended."""
    logs = Logs({P: list(range(200)), Q: list(range(400))}, max_idle_ms)
    while logs.positions[P] < 80:
        logs.batch(20)
    assert logs.positions[P] < 90
    logs.logs[P][90:] = range(10_000, 10_000 + length)
    logs.elected = [P]
    for _ in range(200):
        logs.now += 0.1
        logs.batch(20)
    assert logs.positions == {p: len(log) for p, log in logs.logs.items()}
    assert late_by(logs.batches, {P: 0, Q: 0}) == 0


def test_equal_timestamps_are_shared_and_nothing_older_is_left():
    logs = Logs({P: [5] * 1_000, Q: [5] * 500 + [6] * 500, R: [4, 5, 7]})
    batches = logs.read_all(100)
    assert late_by(batches, {P: 0, Q: 0, R: 0}) == 0
    assert all(count(batch) <= 100 for batch in batches)
    assert len(batches) < 30


def test_partitions_may_be_apart_by_the_drift():
    logs = Logs({P: list(range(0, 1_000)), Q: list(range(500, 1_500))}, drift=500)
    first = logs.batch(100)
    assert count(first) >= 50
    assert late_by(logs.read_all(100), {P: 0, Q: 0}) <= 500


def test_bytes_are_a_limit_as_well():
    sizes = {P: 10.0, Q: 1.0}
    known = KnownSizes(1_000, lambda ends: sizes)
    logs = Logs({P: list(range(1_000)), Q: list(range(500, 1_500))}, before=[known])
    batches = logs.read_all()
    assert late_by(batches, {P: 0, Q: 0}) == 0
    assert all(sum(sizes[p] * len(r) for p, r in b.items()) <= 1_000 for b in batches)


def test_what_a_trigger_waits_for_is_counted_before_the_cut():
    enough = EnoughToRead(200, 3600.0)
    logs = Logs({P: list(range(150)), Q: list(range(1_000, 1_250))}, before=[enough])
    first = count(logs.batch(300))
    assert first > 200
    assert logs.batch(300) == {}
    logs.logs[Q] += range(1_250, 1_400)
    assert count(logs.batch(300)) == 550 - first


def test_once_reads_everything():
    logs = Logs({P: [1, 2], Q: [1_000]}, max_idle_ms=1_000)
    assert logs.batch(ReadAllAvailable()) == {P: [1, 2], Q: [1_000]}
    assert logs.asked == 0


def test_available_now_reads_to_its_end_in_order_and_waits_for_no_more_records():
    logs = Logs({P: list(range(500)), Q: list(range(400, 900)), R: []}, 10_000, run=True)
    logs.logs[P] += range(500, 600)
    for _ in range(100):
        if not logs.batch(100):
            break
    assert logs.positions == {P: 500, Q: 500, R: 0}
    assert late_by(logs.batches, dict.fromkeys(logs.logs, 0)) == 0


# -- idling ---------------------------------------------------------------------------------------


def test_an_empty_partition_is_not_waited_for_once_that_is_known():
    """PartitionGroupTest.shouldNeverWaitIfIdlingIsDisabled (of what is known to have no lag)"""
    logs = Logs({P: [1, 2], Q: []}, max_idle_ms=0)
    assert logs.batch() == {P: [1, 2]}


def test_what_a_broker_takes_to_answer_is_no_time_without_records():
    """Another has answered at once, and records may have come to its partition since."""
    logs = Logs({P: [1, 2], Q: []}, max_idle_ms=1_000)
    assert logs.batch() == {}
    logs.now, logs.answers_take_s = 2.5, 2.0
    assert logs.batch() == {}
    logs.now = 3.0
    assert logs.batch() == {P: [1, 2]}


def test_an_empty_partition_holds_the_others_back_for_as_long_as_was_said():
    """PartitionGroupTest.shouldIdleAsSpecifiedWhenLagIsZero"""
    logs = Logs({P: [1, 2], Q: []}, max_idle_ms=1_000)
    assert logs.batch() == {}
    logs.now = 0.999
    assert logs.batch() == {}
    logs.now = 1.0
    assert logs.batch() == {P: [1, 2]}


def test_one_that_was_emptied_holds_the_others_back_at_its_last_timestamp():
    """SourceOperatorSplitWatermarkAlignmentTest.testSplitWatermarkAlignment"""
    logs = Logs({P: [1, 5, 9, 10], Q: [2, 9]}, max_idle_ms=1_000)
    assert logs.batch() == {P: [1, 5, 9], Q: [2, 9]}
    assert logs.batch() == {}
    logs.logs[Q] += [9, 12]
    assert logs.batch() == {P: [10], Q: [9]}
    assert logs.batch() == {}
    logs.now = 1.0
    assert logs.batch() == {Q: [12]}


def test_idleness_and_return():
    """SourceCoordinatorAlignmentTest.testWatermarkAlignmentWithIdleness"""
    logs = Logs({P: [10], Q: [10]}, max_idle_ms=1_000)
    assert logs.batch() == {P: [10], Q: [10]}
    logs.logs[P] += [20, 30]
    assert logs.batch() == {}
    logs.now = 1.5
    assert logs.batch() == {P: [20, 30]}, "the other is idle"
    logs.logs[Q] += [15]
    logs.logs[P] += [40]
    assert logs.batch() == {Q: [15]}, "it is back, and is waited for"
    assert logs.batch() == {}
    logs.now = 3.0
    assert logs.batch() == {P: [40]}


def test_two_that_are_further_apart_than_allowed():
    """SourceCoordinatorAlignmentTest.testWatermarkAlignment (two subtasks)"""
    logs = Logs({P: [0, 42], Q: [0, 1_042, 2_000]}, max_idle_ms=1_000, drift=1_000)
    assert logs.batch() == {P: [0, 42], Q: [0, 1_042]}
    logs.logs[P] += [43, 1_000]
    assert logs.batch() == {P: [43, 1_000], Q: [2_000]}


def test_queries_do_not_wait_for_each_other():
    """SourceCoordinatorAlignmentTest.testWatermarkAlignmentWithTwoGroups"""
    one, other = Logs({P: [1, 50], Q: [1]}, 1_000), Logs({R: [100, 200], S: [300]}, 1_000)
    assert one.batch() == {P: [1], Q: [1]}
    assert other.batch() == {R: [100, 200]}
    assert one.batch() == {}


def test_what_is_read_to_its_end_holds_nobody_back():
    """SourceOperatorSplitWatermarkAlignmentTest.testFinishedSplitsAreNotAligned (a run's end)"""
    logs = Logs({P: [1, 2], Q: [1, 50, 60]}, max_idle_ms=60_000, run=True)
    assert logs.batch() == {P: [1, 2], Q: [1, 50, 60]}
    assert logs.batch() == {}


def test_one_whose_end_is_not_known_holds_the_others_back_until_it_is(caplog):
    """PartitionGroupTest.shouldWaitForFetchesWhenMetadataIsIncomplete"""
    logs = Logs({P: [1, 2], Q: [3]}, max_idle_ms=0)
    logs.away.add(Q)
    with caplog.at_level(logging.WARNING):
        for logs.now in (0.0, 0.5, 60.0, 61.0):
            assert logs.batch() == {}
            assert logs.planned.postponed == {P, Q}
    (warned,) = caplog.messages
    assert "t-1" in warned
    assert "t-0" not in warned
    logs.away.clear()
    assert logs.batch() == {P: [1, 2], Q: [3]}


def test_one_whose_start_is_not_known_holds_the_others_back():
    logs = Logs({P: [1, 2]})
    logs.starting = [Q]
    assert logs.batch() == {}
    logs.starting = []
    assert logs.batch() == {P: [1, 2]}


def test_a_leader_that_goes_away_between_two_questions():
    logs = Logs({P: list(range(100)), Q: list(range(100))})
    ends = logs._ends()
    logs.away.add(Q)
    logs._ends = lambda: ends
    assert logs.batch(10) == {}
    assert logs.planned.postponed == {P, Q}
    logs.away.clear()
    assert 5 <= count(logs.batch(10)) <= 10


def test_partitions_come_and_go():
    """PartitionGroupTest.shouldUpdatePartitionQueuesShrinkAndExpand"""
    logs = Logs({P: list(range(100, 200)), Q: list(range(150, 250))})
    logs.batch(20)
    logs.logs[R], logs.positions[R] = list(range(50, 90)), 0
    assert logs.batch(20).keys() == {R}
    del logs.logs[P], logs.positions[P]
    assert late_by(logs.read_all(20)[2:], dict.fromkeys((Q, R), 0)) == 0
    logs.logs[P], logs.positions[P] = list(range(100)), 10
    assert logs.batch(20)[P][0] == 10


def test_brokers_that_do_not_tell_the_latest_record():
    logs = Logs({P: [1, 5, 10], Q: [2, 9]}, max_idle_ms=1_000, has_newest=False)
    assert logs.batch() == {P: [1, 5], Q: [2, 9]}


# -- hard data ------------------------------------------------------------------------------------


def test_a_record_far_in_the_future_holds_nobody_and_nothing_back(caplog):
    far = NOW_MS + 10 * FUTURE_MS
    log = list(range(50))
    log[10] = far
    logs = Logs({P: log, Q: list(range(0, 100))})
    with caplog.at_level(logging.WARNING):
        batches = logs.read_all(10)
    (warned,) = caplog.messages
    assert "t-0" in warned
    assert "offset 10 " in warned
    assert late_by(batches, {P: 0, Q: 0}) == 0


@pytest.mark.parametrize("before", [0, 30])
@pytest.mark.parametrize("limit", [ALL, 20])
def test_a_producer_whose_clock_is_days_ahead_for_good_holds_nobody_back(before, limit):
    far = NOW_MS + 30 * FUTURE_MS
    logs = Logs({P: [*range(before), far], Q: list(range(100))}, max_idle_ms=1_000)
    for number in range(40):
        logs.batch(limit)
        logs.now += 0.1
        logs.logs[P].append(far)
        logs.logs[Q].append(100 + number)
    assert logs.positions[Q] >= 100


def test_a_backlog_of_records_in_the_future_leaves_the_others_their_share():
    far = NOW_MS + 30 * FUTURE_MS
    logs = Logs({P: [1, *[far] * 500], Q: list(range(100))})
    for _ in range(20):
        logs.batch(10)
    assert logs.positions[Q] >= 20
    assert logs.positions[P] >= 20


def test_with_idling_as_well(caplog):
    far = NOW_MS + 10 * FUTURE_MS
    logs = Logs({P: [1, far, 3], Q: [2, 3, 50]}, max_idle_ms=1_000)
    assert logs.batch() == {P: [1, far, 3], Q: [2, 3]}
    assert len(caplog.messages) == 1


def test_markers_of_transactions_are_no_timestamps():
    """They have the time of the commit, hours after the records of a topic that was copied."""
    later = 10_000_000
    copied = [at for n in range(30) for at in [*range(10 * n, 10 * n + 9), (MARKER, later + n)]]
    logs = Logs({P: copied, Q: list(range(0, 300, 2))})
    assert late_by(logs.read_all(40), {P: 0, Q: 0}) == 0


def transactions(times, of, commits_after):
    """Each with so many records and a marker, which is so much later than the last of them."""
    ends = [*times[of - 1 : -1 : of], times[-1]]
    return [
        record
        for number, end in enumerate(ends)
        for record in [*times[of * number : of * (number + 1)], (MARKER, end + commits_after)]
    ]


@pytest.mark.parametrize("commits_after", [1, 200, 24_000])
@pytest.mark.parametrize("max_idle_ms", [0, 1_000])
def test_what_follows_a_commit_some_seconds_after_its_records_is_not_late(
    commits_after, max_idle_ms
):
    times = list(range(0, 60_000, 20))
    logs = Logs({P: transactions(times, 50, commits_after), Q: times}, max_idle_ms)
    assert late_by(logs.read_all(400), {P: 0, Q: 0}) == 0


def test_a_commit_that_comes_with_its_records_has_no_more_read_than_a_record_now_and_then():
    times = list(range(0, 60_000, 20))
    logs = Logs({P: transactions(times, 50, 1), Q: transactions(times, 30, 19)})
    assert late_by(logs.read_all(400), {P: 0, Q: 0}) == 0
    assert logs.longest_read <= times_module.SHORT
    assert len(logs.batches) <= 20


def test_one_whose_records_are_of_no_transactions_is_looked_at_once_and_a_minute_later():
    times = list(range(20_000))
    many = [TopicPartition("t", n) for n in range(40)]
    logs = Logs(dict.fromkeys(many, times))
    for _ in range(3):
        logs.batch(4_000)
    assert (logs.read_ahead, logs.looked_at) == (1, 40)
    logs.now += LOOK_AGAIN_S
    seen = []
    for _ in range(4):
        logs.looked_at = 0
        logs.batch(4_000)
        seen.append(logs.looked_at)
    assert sum(seen) == 40
    assert max(seen) == 16
    assert late_by(logs.batches, dict.fromkeys(many, 0)) == 0


@pytest.mark.parametrize("max_idle_ms", [0, 1_000])
def test_transactions_that_come_later_are_noticed_within_a_minute(max_idle_ms):
    times = list(range(0, 400_000, 100))
    plain, rest = times[:1_000], times[1_000:]
    logs = Logs({P: plain, Q: times}, max_idle_ms)
    logs.batch(80)
    logs.logs[P] += transactions(rest, 10, 24_000)
    while logs.positions[Q] < 800:
        logs.batch(80)
    logs.now += LOOK_AGAIN_S
    logs.batch(80)
    there = len(logs.batches)
    logs.read_all(80)
    assert late_by(logs.batches[there:], {P: 0, Q: 0}) == 0


def test_a_batch_that_is_bounded_anew_and_is_not_full_has_the_latest_records_asked_for_again():
    times = list(range(0, 8_000, 20))
    copied = times[:200] + transactions(times[200:], 10, 100_000)
    logs = Logs({P: copied, Q: times}, max_idle_ms=1_000)
    while count(logs.batch(60)) > 50:
        pass
    assert logs.longest_read > times_module.SHORT, "timestamps of the one are read from now on"
    logs.asked_newest = 0
    logs.batch(60)
    assert logs.asked_newest == 1


def test_a_leader_that_does_not_tell_whether_there_are_transactions_is_waited_for():
    logs = Logs({P: list(range(100)), Q: list(range(100))})
    rows, logs.rows = logs.rows, lambda ranges: {}
    assert logs.batch(20) == {}
    assert logs.planned.postponed == {P, Q}
    logs.rows = rows
    assert count(logs.batch(20)) > 10


def test_one_without_timestamps_holds_nobody_back_when_it_has_run_out():
    logs = Logs({P: [-1], Q: [1]}, max_idle_ms=5_000)
    assert logs.batch() == {P: [-1], Q: [1]}
    logs.logs[Q] += [2, 3]
    assert logs.batch() == {Q: [2, 3]}


def test_markers_that_come_behind_plain_records():
    """The first latest record was none; that says nothing of the next."""
    hours = 7_200_000
    logs = Logs({P: [1], Q: [1]}, max_idle_ms=20_000)
    assert logs.batch() == {P: [1], Q: [1]}
    logs.logs[P] += [1_000, (MARKER, hours)]
    logs.logs[Q] += [1_500 + n * 60_000 for n in range(100)]
    for _ in range(3):  # in the end it has run out of records, and is waited for
        assert logs.batch().get(Q, []) == []
        logs.now += 1
    logs.logs[P] += [*range(2_000, 12_000, 1_000), (MARKER, hours + 2_000)]
    logs.batch()
    assert late_by(logs.batches, {P: 0, Q: 0}) == 0
    for _ in range(10):
        logs.now += 30
        logs.batch()
    assert logs.positions == {p: len(log) for p, log in logs.logs.items()}


def test_markers_and_idling():
    logs = Logs({P: [1, 2, (MARKER, 10_000_000)], Q: [1, 50]}, max_idle_ms=1_000)
    assert logs.batch() == {P: [1, 2], Q: [1]}


def test_the_last_records_of_a_growing_backlog_of_transactions_are_not_read_with_every_batch():
    """What is late enough for the next batch is known; more only makes it later."""
    later = list(range(0, 400_000, 20))
    logs = Logs({P: [], Q: []}, max_idle_ms=1_000)
    read, grown = [], 0
    for _ in range(30):
        for p in (P, Q):
            logs.logs[p] += transactions(later[grown : grown + 400], 50, 1)
        grown += 400
        logs.looked_at = 0
        assert count(logs.batch(100)) > 50
        read.append(logs.looked_at)
    assert read.count(2) > 25, "where the batch ends in each of them"
    assert max(read) <= 6, "and what they have by then, when a batch has come up to the last known"
    grown_to = sum(map(len, logs.logs.values()))
    while sum(logs.positions.values()) < grown_to:
        assert any(logs.batch(2_000).values())
    assert late_by(logs.batches, {P: 0, Q: 0}) == 0


@pytest.mark.parametrize("limit", [ALL, 40])
@pytest.mark.parametrize("ends_with", [[(MARKER, 6)], [(MARKER, 4), (MARKER, 7), (MARKER, 9)]])
def test_a_log_that_ends_with_a_marker_is_read_to_its_end(limit, ends_with):
    """Else it is never empty, and its last timestamp holds the others back for good."""
    logs = Logs({P: [1, 2, *ends_with], Q: [1, 50]}, max_idle_ms=500)
    assert logs.batch(limit) == {P: [1, 2], Q: [1]}
    assert logs.positions[P] == len(logs.logs[P])
    logs.logs[Q] += range(60, 160)
    for _ in range(10):
        logs.now += 1
        logs.batch(limit)
    assert logs.positions == {p: len(log) for p, log in logs.logs.items()}


@pytest.mark.parametrize("is_transaction", [True, False], ids=["transaction", "old broker"])
def test_later_records_before_the_last_ones_wait_for_other_partitions(is_transaction):
    """Only the last records are read: theirs is not the latest timestamp of the partition."""
    last = [(MARKER, 40_000)] if is_transaction else []
    logs = Logs(
        {P: [30_000] + [5_000] * 10 + last, Q: list(range(0, 29_000, 1_000))},
        max_idle_ms=1_000,
        has_newest=is_transaction,
    )
    disorder = disorder_of(logs.logs)
    for _ in range(10):
        logs.batch(100)
        logs.now += 0.4
    assert logs.positions == {p: len(log) for p, log in logs.logs.items()}
    assert late_by(logs.batches, disorder) == 0


def test_records_that_come_after_the_answer_about_the_latest_wait_for_other_partitions():
    logs = Logs({P: [5_000], Q: list(range(0, 29_000, 1_000))}, max_idle_ms=1_000)
    ends_asked = logs._ends

    def ends():
        logs.logs[P][1:] = range(6_000, 30_000, 1_000)
        return ends_asked()

    logs._ends = ends
    for _ in range(10):
        logs.batch(100)
        logs.now += 0.4
    assert logs.positions == {p: len(log) for p, log in logs.logs.items()}
    assert late_by(logs.batches, {P: 0, Q: 0}) == 0


def test_records_without_a_timestamp_are_always_next():
    logs = Logs({P: [-1] * 300, Q: list(range(300)), R: [-1, -1, 7, -1, 300]})
    batches = logs.read_all(30)
    assert late_by(batches, dict.fromkeys(logs.logs, 0)) == 0
    assert batches[0].keys() >= {P, Q}
    assert len(batches) < 40


def test_a_log_with_holes():
    holes = [None if n % 3 else n for n in range(300)]
    logs = Logs({P: holes, Q: [None] * 50 + list(range(250))})
    assert late_by(logs.read_all(20), {P: 0, Q: 0}) == 0


# -- deleted records ------------------------------------------------------------------------------


def purged(max_idle_ms=0, latest=3_990, *, has_newest=True, begun=True):
    """Two logs, and what remains of the first one is later than all of the second one.

    The segment that brokers still search has none of that, but timestamps up to the latest one.
    """
    first = list(range(2_000, 5_000, 10))
    first[100] = latest
    second = list(range(0, 3_000, 10))
    logs = Logs({P: first, Q: second}, max_idle_ms, has_newest=has_newest)
    logs.segment(P, 200)
    while begun and not 10 <= logs.positions[P] < 100:
        logs.batch(20)
    logs.delete(P, 250)
    if not begun:
        logs.positions[P] = 250
    return logs


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("has_newest", [True, False])
@pytest.mark.parametrize("latest", [3_990, 4_600, 9_000, NOW_MS + 2 * FUTURE_MS])
@pytest.mark.parametrize("max_idle_ms", [0, 500])
def test_a_segment_whose_records_are_deleted_hides_no_later_ones(
    max_idle_ms, latest, has_newest, begun
):
    """Brokers search it until they delete it, and then report that there are none."""
    logs = purged(max_idle_ms, latest, has_newest=has_newest, begun=begun)
    read = len(logs.batches)
    batches = logs.read_slowly(20)
    assert late_by(batches, {P: 0, Q: 0}) == 0
    assert [at for batch in batches[read:] for at in batch.get(P, ())] == [*range(4_500, 5_000, 10)]
    assert [at for batch in batches for at in batch.get(Q, ())] == [*range(0, 3_000, 10)]


def test_records_that_came_after_the_end_of_a_purged_log_do_not_stand_for_those_before_it():
    logs = purged()
    ends = logs._ends
    logs._ends = lambda: {**ends(), P: 295}
    while logs.positions[P] < 295:
        logs.batch(20)
    logs._ends = ends
    assert late_by(logs.read_all(20), {P: 0, Q: 0}) == 0


def test_a_leader_that_does_not_tell_the_last_records_of_a_purged_log_is_waited_for():
    logs = purged(has_newest=False)
    rows, logs.rows = logs.rows, lambda ranges: {}
    while logs.batch(20):
        pass
    assert logs.positions[P] < 250
    logs.rows = rows
    assert late_by(logs.read_all(20), {P: 0, Q: 0}) == 0


def test_the_latest_record_of_a_log_that_ends_early_is_asked_for_once():
    logs = Logs({P: list(range(0, 10_000, 10)), Q: list(range(0, 50, 10))})
    logs.read_all(100)
    assert logs.asked_newest_of == 1


@settings(max_examples=histories(200), deadline=None)
@given(
    first=st.lists(st.integers(0, 20), min_size=20, max_size=60),
    second=st.lists(st.integers(0, 20), min_size=1, max_size=60),
    apart=st.integers(-500, 500),
    share=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    after=st.integers(0, 6),
    limit=st.integers(1, 40),
    max_idle_ms=st.sampled_from([0, 500]),
    has_newest=st.booleans(),
)
def test_nothing_is_late_whenever_records_are_deleted(
    first, second, apart, share, after, limit, max_idle_ms, has_newest
):
    logs = Logs(
        {
            P: list(accumulate(first, initial=1_000 + apart)),
            Q: list(accumulate(second, initial=1_000)),
        },
        max_idle_ms,
        has_newest=has_newest,
    )
    logs.segment(P, 1 + int(share[0] * (len(first) - 1)))
    for _ in range(after):
        logs.batch(limit)
    logs.delete(P, int(share[1] * len(first)))
    assert late_by(logs.read_slowly(limit), {P: 0, Q: 0}) == 0


def test_disorder_stays_within_its_partition():
    logs = {P: [0, 5, 90, 10, 20, 30, 100], Q: [0, 20, 40, 60, 80, 100, 120]}
    batches = Logs(logs).read_all(2)
    assert late_by(batches, {P: 80, Q: 0}) == 0


# -- all of it ------------------------------------------------------------------------------------

TIMES = st.integers(0, 5_000)
ORDERED = st.lists(TIMES, max_size=60).map(sorted)
HARD = st.lists(
    st.one_of(
        TIMES,
        st.just(-1),
        st.none(),
        TIMES.map(lambda at: (MARKER, at)),
        TIMES.map(lambda at: (MARKER, at + 1_000_000)),
        st.just(NOW_MS + 2 * FUTURE_MS),
    ),
    max_size=60,
)


@settings(max_examples=histories(400), deadline=None)
@given(
    logs=st.fixed_dictionaries({P: ORDERED, Q: ORDERED, R: ORDERED}),
    limit=st.integers(1, 40),
    drift=st.sampled_from([0, 1, 50, 10_000]),
)
def test_nothing_is_late_beyond_the_drift(logs, limit, drift):
    batches = Logs(logs, drift=drift).read_all(limit)
    assert late_by(batches, dict.fromkeys(logs, 0)) <= drift
    for p, log in logs.items():
        assert [at for batch in batches for at in batch.get(p, ())] == log
    if drift == 0:
        assert all(count(batch) <= max(limit, len(logs)) for batch in batches)


@settings(max_examples=histories(400), deadline=None)
@given(
    logs=st.fixed_dictionaries({P: HARD, Q: ORDERED, R: HARD}),
    limit=st.integers(1, 40),
    drift=st.sampled_from([0, 50]),
)
def test_hard_data_is_read_once_and_late_by_its_own_disorder_alone(logs, limit, drift):
    batches = Logs(logs, drift=drift).read_all(limit)
    assert late_by(batches, disorder_of(logs)) <= drift
    for p, log in logs.items():
        known = [r for r in log if isinstance(r, int)]
        assert [at for batch in batches for at in batch.get(p, ())] == known


@settings(max_examples=histories(300), deadline=None)
@given(
    data=st.data(),
    logs=st.fixed_dictionaries({P: ORDERED, Q: ORDERED, R: ORDERED}),
    limit=st.one_of(st.none(), st.integers(1, 40)),
    drift=st.sampled_from([0, 100]),
    commits_after=st.sampled_from([None, 0, 100, 30_000, 100_000]),
)
def test_records_that_come_in_time_are_not_late(data, logs, limit, drift, commits_after):
    """Records arrive in steps, each partition's in order; a partition is never empty for too long.

    Each step of some may be a transaction.

    As long as every partition gets more before it idles, nothing is late; at the end all is read.
    """
    there = Logs({p: [] for p in logs}, max_idle_ms=1_000, drift=drift)
    there.transactional.update(logs if commits_after is not None else ())
    left = {p: list(log) for p, log in logs.items()}
    while any(left.values()):
        for p, log in left.items():
            most = len(log) if there.positions[p] == len(there.logs[p]) else 5
            arrive = data.draw(st.integers(0, most))
            arrived = log[:arrive]
            there.logs[p] += arrived
            if arrived and commits_after is not None and data.draw(st.booleans()):
                there.logs[p].append((MARKER, arrived[-1] + commits_after))
            del log[:arrive]
        there.batch(ALL if limit is None else limit)
        there.now += 0.3
        emptied = [p for p in left if there.positions[p] == len(there.logs[p])]
        for p in emptied:  # what is still to come arrives before a second has passed
            there.logs[p] += left[p][:1]
            del left[p][:1]
    assert late_by(there.batches, dict.fromkeys(logs, 0)) <= drift
    there.now += 10
    for _ in range(200):
        there.batch(ALL if limit is None else limit)
        there.now += 10
    assert there.positions == {p: len(log) for p, log in there.logs.items()}
    for p, log in logs.items():
        assert [at for batch in there.batches for at in batch.get(p, ())] == log


# -- how the bound is found -----------------------------------------------------------------------


@settings(max_examples=histories(300), deadline=None)
@given(
    times=st.lists(st.integers(0, 10**12), min_size=2, max_size=200).map(sorted),
    fits=st.integers(1, 100),
    drift=st.sampled_from([0, 1_000]),
)
def test_a_bound_is_tight_or_the_batch_is_full(times, fits, drift):
    def load(at):
        return sum(t <= at for t in times) / fits

    def next_after(at):
        return min((t for t in times if t > at), default=None)

    if load(10**12) <= 1:
        return
    bound = find_bound(load, next_after, -1, 10**12, drift, 1_000)
    assert load(bound.low) <= 1 < load(bound.high)
    assert load(bound.low) >= 0.5 or bound.high - bound.low <= 1 + drift
    assert load(bound.asked) == load(bound.low)


def test_a_bound_is_found_by_few_questions():
    for seed in range(20):
        chance = random.Random(seed)
        times = sorted(NOW_MS - chance.randrange(3_600_000) for _ in range(5_000))
        asked = []

        def load(at, times=times, asked=asked):
            asked.append(at)
            return sum(t <= at for t in times) / 1_000

        def next_after(at, times=times):
            return min((t for t in times if t > at), default=None)

        bound = find_bound(load, next_after, -1, NOW_MS + FUTURE_MS, 0, 1_000)
        assert load(bound.low) >= 0.45
        assert len(asked) < 16


@pytest.mark.parametrize("lump", [1, 10**12 - 1])
def test_a_lump_of_equal_timestamps_is_found(lump):
    asked = []

    def load(at):
        asked.append(at)
        return 5.0 if at >= lump else 0.0

    bound = find_bound(load, lambda at: lump if at < lump else None, -1, 10**12, 0, 1_000)
    assert (bound.low, bound.high) == (lump - 1, lump)
    assert len(asked) < 60
