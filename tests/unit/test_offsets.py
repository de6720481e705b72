"""StreamOffset: what a batch reads that goes from one offset to another, and where it stands."""

from __future__ import annotations

from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.consumer.offsets.offset_set import Gap
from pyspark_kafka_rebalance.fetch.offset_range import OffsetRange
from pyspark_kafka_rebalance.source.offsets.offset_json import parse_offset
from pyspark_kafka_rebalance.source.offsets.stream_offset import INITIAL_OFFSET, StreamOffset

P, Q = TopicPartition("t", 0), TopicPartition("t", 1)


def a_range(partition: TopicPartition, start: int, end: int) -> OffsetRange:
    return OffsetRange(partition.topic, partition.partition, start, end)


def after(start: StreamOffset, end: StreamOffset) -> dict[TopicPartition, tuple[int, int]]:
    return {p: (r.start, r.end) for p, r in end.ranges_after(start).items()}


def test_a_batch_from_before_what_is_pending_reads_that_as_well() -> None:
    """Spark has forgotten the batches in between; one of them read of Q, the last only of P."""
    logged = StreamOffset(ranges={P: a_range(P, 0, 10)})
    between = StreamOffset(ranges={P: a_range(P, 10, 20), Q: a_range(Q, 5, 9)})
    end = StreamOffset(
        ranges={P: a_range(P, 20, 30)},
        pending={P: a_range(P, 0, 20), Q: a_range(Q, 5, 9)},
    )
    assert after(between, end) == {P: (20, 30)}, "nothing was forgotten"
    assert after(logged, end) == {P: (10, 30), Q: (5, 9)}
    assert after(INITIAL_OFFSET, end) == {P: (0, 30), Q: (5, 9)}
    assert end.positions() == {P: 30, Q: 9}


def test_what_is_pending_and_was_moved_away_from_is_gone() -> None:
    """Records are gone from Kafka, the stream went on elsewhere."""
    end = StreamOffset(ranges={P: a_range(P, 4, 8)}, pending={P: a_range(P, 0, 10)})
    assert after(INITIAL_OFFSET, end) == {P: (4, 8)}


def test_a_batch_of_sparks_own_source_reads_from_the_offset_before() -> None:
    """What that does not have is new, and is read from the beginning."""
    start = parse_offset({"t": {"0": 4, "1": 7}})
    assert after(start, parse_offset({"t": {"0": 9, "1": 7, "2": 3}})) == {
        P: (4, 9),
        TopicPartition("t", 2): (0, 3),
    }
    assert after(start, parse_offset({"t": {"0": 4, "1": 7}})) == {}


def test_a_batch_that_starts_before_pending_ones_reads_what_they_caught_up() -> None:
    """Async progress tracking: a kill makes Spark forget the batches between the two offsets."""
    p = TopicPartition("t", 0)

    def read(start: int, end: int) -> OffsetRange:
        return OffsetRange("t", 0, start, end)

    end = StreamOffset(
        others={p: 100},
        catch_up={p: (read(30, 40),)},
        pending_catch_up={p: (Gap(10, 30),)},
        gaps={p: (Gap(40, 90),)},
    )
    between = StreamOffset(others={p: 100}, gaps={p: (Gap(20, 90),)})
    assert end.catch_up_after(between) == {p: (read(20, 30), read(30, 40))}
    before_the_gap = StreamOffset(others={p: 15})
    assert end.catch_up_after(before_the_gap) == {p: (read(15, 30), read(30, 40))}
    assert end.catch_up_after(StreamOffset()) == {p: (read(10, 30), read(30, 40))}
    alone = StreamOffset(others={p: 100}, catch_up=end.catch_up, gaps=end.gaps)
    assert alone.catch_up_after(between) == end.catch_up


def test_what_is_read_in_order_begins_at_the_lowest_offset_that_is_left() -> None:
    p, q = TopicPartition("t", 0), TopicPartition("t", 1)
    offset = StreamOffset(
        ranges={p: OffsetRange("t", 0, 90, 95)},
        others={q: 7},
        catch_up={p: (OffsetRange("t", 0, 20, 30),)},
        gaps={p: (Gap(30, 40), Gap(60, 70))},
    )
    assert offset.positions() == {p: 95, q: 7}
    assert offset.lowest_positions() == {p: 30, q: 7}
    assert offset.lowest_found() == {p: 20}
    assert [len(pieces) for pieces in offset.reads().values()] == [2]
