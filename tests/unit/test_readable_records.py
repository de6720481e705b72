"""What takes the place of kafka-python's PartitionRecords: the same records, and errors by name.

In two forms: as polls decode, and as the records of gaps are decoded.
"""

from __future__ import annotations

import contextlib
import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.consumer.fetcher import Fetcher
from kafka.protocol.consumer import IsolationLevel
from kafka.record import MemoryRecords
from kafka.structs import TopicPartition
from record_batches import (
    CODECS,
    CONTROL,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    Record,
    build,
    control,
)

from pyspark_kafka_rebalance import CorruptRecordError, RecordDeserializationError
from pyspark_kafka_rebalance.consumer.kafka_python.gap_records import GapRecords
from pyspark_kafka_rebalance.consumer.kafka_python.records import ReadableRecords
from pyspark_kafka_rebalance.fetch.compiled_columns import compiled

PARTITION = TopicPartition("t", 0)

both_forms = pytest.mark.parametrize("form", [ReadableRecords, GapRecords])


def taken(form: Any, data: bytes, at: int, pieces: int = 100, **how: Any) -> list[Any]:
    """Everything, and where the position is after each piece."""
    records = form(at, PARTITION, MemoryRecords(data), **how)
    found: list[Any] = []
    while records:
        found += [*records.take(pieces), (records.next_fetch_offset, records.leader_epoch)]
    return [*found, (records.next_fetch_offset, records.records_read, records.bytes_read)]


@st.composite
def logs(draw: st.DrawFn) -> tuple[bytes, list[Any]]:
    """Batches, some of transactions, some with gaps behind their records; and what was aborted."""
    log, aborted, base = b"", [], 0
    for _ in range(draw(st.integers(1, 6))):
        count, gap = draw(st.integers(1, 4)), draw(st.integers(0, 2))
        producer, is_open = draw(st.sampled_from([-1, 7, 8])), draw(st.booleans())
        headers = draw(st.sampled_from([[], [("h", None)], [("h", b"1"), ("\u00e9", b"")]]))
        key = draw(st.sampled_from([None, b"", b"k"]))
        records = [
            Record(base + n, n * 10**9, key, b"v%d" % n if n else None, headers[:n])
            for n in range(count)
        ]
        flags = draw(st.sampled_from([0, LOG_APPEND_TIME])) | (TRANSACTIONAL if producer > 0 else 0)
        codec = draw(st.sampled_from([0, 0, *CODECS]))
        last = base + count - 1 + gap
        log += build(records, flags=flags, producer_id=producer, last_offset=last, codec=codec)
        if producer > 0 and not is_open:
            last += 1
            commit = draw(st.booleans())
            log += control(last, producer, commit=commit)
            if not commit:
                aborted.append(SimpleNamespace(first_offset=base, producer_id=producer))
        base = last + 1
    return log, aborted


@both_forms
@given(logs(), st.integers(0, 12), st.integers(1, 5), st.sampled_from(IsolationLevel))
def test_records_and_positions_are_those_of_kafka_python(
    form: Any, log: tuple[bytes, list[Any]], at: int, pieces: int, level: IsolationLevel
) -> None:
    data, aborted = log
    how = {"isolation_level": level, "aborted_transactions": aborted}
    theirs = taken(Fetcher.PartitionRecords, data, at, 1_000, **how)
    ours = taken(form, data, at, 1_000, **how)
    assert [r for r in ours if hasattr(r, "value")] == [r for r in theirs if hasattr(r, "value")]
    assert ours[-1][0] == max(theirs[-1][0], at)
    in_pieces = taken(form, data, at, pieces, **how)
    assert [r for r in in_pieces if hasattr(r, "value")] == [r for r in ours if hasattr(r, "value")]
    assert in_pieces[-1] == ours[-1]


@both_forms
@pytest.mark.parametrize("level", IsolationLevel)
def test_batches_that_compaction_has_emptied_are_passed_over(
    form: Any, level: IsolationLevel
) -> None:
    log = build([], flags=CONTROL | TRANSACTIONAL, producer_id=7, base_offset=0, last_offset=3)
    log += build([], producer_id=9, base_offset=4, last_offset=6)
    found = taken(form, log + build([Record(7, 0, None, b"v")]), 0, isolation_level=level)
    assert [record.offset for record in found if hasattr(record, "value")] == [7]
    assert taken(form, log, 0, isolation_level=level)[-1][0] == 7


@both_forms
@given(st.integers(17, 1_000), st.integers(0, 7), st.booleans())
def test_a_flipped_bit_is_an_error_that_tells_where_to_go_on(
    form: Any, place: int, bit: int, check_crcs: bool
) -> None:
    """Of what the CRC covers, and of the CRC."""
    batches = [
        build([Record(n, n, b"k", b"v%d" % n) for n in range(at, at + 3)]) for at in (0, 3, 6)
    ]
    damaged = bytearray(batches[1])
    damaged[17 + place % (len(damaged) - 17)] ^= 1 << bit
    data = batches[0] + bytes(damaged) + batches[2]
    records = form(0, PARTITION, MemoryRecords(data), check_crcs=check_crcs)
    assert [record.offset for record in records.take(3)] == [0, 1, 2]
    if not check_crcs:  # anything may come of it, but it ends
        with contextlib.suppress(CorruptRecordError):
            while records:
                records.take(3)
        return
    with pytest.raises(CorruptRecordError, match=r"t-0 at offset 3.*CRC") as caught:
        records.take(3)
    assert not records, "it is given up, and fetched again"
    assert records.next_fetch_offset == 3
    assert caught.value.next_offset is None or caught.value.next_offset > 3


@both_forms
def test_what_a_seek_skips_is_not_deserialized(form: Any) -> None:
    """Else a seek past a record that a deserializer refuses leads to the same record again."""

    def number(topic: str, headers: Any, data: bytes) -> int:
        return int(data)

    data = build([Record(n, n, None, b"x" if n == 2 else b"%d" % n) for n in range(5)])
    how = {"value_deserializer": SimpleNamespace(deserialize=number)}
    records = form(0, PARTITION, MemoryRecords(data), **how)
    assert [record.value for record in records.take(10)] == [0, 1]
    with pytest.raises(RecordDeserializationError, match="t-0 at offset 2") as caught:
        records.take(10)
    assert not records
    assert records.next_fetch_offset == 2
    found = taken(form, data, caught.value.next_offset or 0, **how)
    assert [record.value for record in found if hasattr(record, "value")] == [3, 4]


@pytest.mark.skipif(compiled is None, reason="the package was installed where no C compiler is")
def test_records_of_gaps_do_not_have_the_whole_process_collected() -> None:
    """Each that the collector follows for long brings its next full collection, 40 ms, nearer."""
    data = build([Record(n, n, b"k", b"v%d" % n) for n in range(1_000)])
    records = GapRecords(0, PARTITION, MemoryRecords(data))
    gc.collect()
    before = len(gc.get_objects())
    found = records.take(1_000)
    assert len(found) == 1_000
    assert len(gc.get_objects()) - before < 100


def test_a_record_with_a_value_that_may_be_in_a_cycle_is_collected_with_it() -> None:
    class Node:
        record: Any = None

    alive: list[Node] = []

    def node(topic: str, headers: Any, data: bytes) -> Node:
        alive.append(Node())
        return alive[-1]

    how = {"value_deserializer": SimpleNamespace(deserialize=node)}
    records = GapRecords(0, PARTITION, MemoryRecords(build([Record(0, 0, None, b"v")])), **how)
    (record,) = records.take(1)
    record.value.record = record
    gone = weakref.ref(alive.pop())
    del record, records
    gc.collect()
    assert gone() is None
