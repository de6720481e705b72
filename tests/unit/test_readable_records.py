"""What takes the place of kafka-python's PartitionRecords: the same records, and errors by name."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.consumer.fetcher import Fetcher
from kafka.protocol.consumer import IsolationLevel
from kafka.record import MemoryRecords
from kafka.structs import TopicPartition
from record_batches import CONTROL, TRANSACTIONAL, Record, build, control

from pyspark_kafka_rebalance import CorruptRecordError, RecordDeserializationError
from pyspark_kafka_rebalance.consumer.kafka_python.records import ReadableRecords

PARTITION = TopicPartition("t", 0)


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
        records = [Record(base + n, n, b"k", b"v%d" % n, [("h", None)][:n]) for n in range(count)]
        flags = TRANSACTIONAL if producer > 0 else 0
        last = base + count - 1 + gap
        log += build(records, flags=flags, producer_id=producer, last_offset=last)
        if producer > 0 and not is_open:
            last += 1
            commit = draw(st.booleans())
            log += control(last, producer, commit=commit)
            if not commit:
                aborted.append(SimpleNamespace(first_offset=base, producer_id=producer))
        base = last + 1
    return log, aborted


@given(logs(), st.integers(0, 12), st.integers(1, 5), st.sampled_from(IsolationLevel))
def test_records_and_positions_are_those_of_kafka_python(
    log: tuple[bytes, list[Any]], at: int, pieces: int, level: IsolationLevel
) -> None:
    data, aborted = log
    how = {"isolation_level": level, "aborted_transactions": aborted}
    theirs = taken(Fetcher.PartitionRecords, data, at, 1_000, **how)
    ours = taken(ReadableRecords, data, at, 1_000, **how)
    assert [r for r in ours if hasattr(r, "value")] == [r for r in theirs if hasattr(r, "value")]
    assert ours[-1][0] == max(theirs[-1][0], at)
    in_pieces = taken(ReadableRecords, data, at, pieces, **how)
    assert [r for r in in_pieces if hasattr(r, "value")] == [r for r in ours if hasattr(r, "value")]
    assert in_pieces[-1] == ours[-1]


@pytest.mark.parametrize("level", IsolationLevel)
def test_batches_that_compaction_has_emptied_are_passed_over(level: IsolationLevel) -> None:
    log = build([], flags=CONTROL | TRANSACTIONAL, producer_id=7, base_offset=0, last_offset=3)
    log += build([], producer_id=9, base_offset=4, last_offset=6)
    found = taken(
        ReadableRecords, log + build([Record(7, 0, None, b"v")]), 0, isolation_level=level
    )
    assert [record.offset for record in found if hasattr(record, "value")] == [7]
    assert taken(ReadableRecords, log, 0, isolation_level=level)[-1][0] == 7


@given(st.integers(17, 1_000), st.integers(0, 7), st.booleans())
def test_a_flipped_bit_is_an_error_that_tells_where_to_go_on(
    place: int, bit: int, check_crcs: bool
) -> None:
    """Of what the CRC covers, and of the CRC."""
    batches = [
        build([Record(n, n, b"k", b"v%d" % n) for n in range(at, at + 3)]) for at in (0, 3, 6)
    ]
    damaged = bytearray(batches[1])
    damaged[17 + place % (len(damaged) - 17)] ^= 1 << bit
    data = batches[0] + bytes(damaged) + batches[2]
    records = ReadableRecords(0, PARTITION, MemoryRecords(data), check_crcs=check_crcs)
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


def test_what_a_seek_skips_is_not_deserialized() -> None:
    """Else a seek past a record that a deserializer refuses leads to the same record again."""

    def number(topic: str, headers: Any, data: bytes) -> int:
        return int(data)

    data = build([Record(n, n, None, b"x" if n == 2 else b"%d" % n) for n in range(5)])
    how = {"value_deserializer": SimpleNamespace(deserialize=number)}
    records = ReadableRecords(0, PARTITION, MemoryRecords(data), **how)
    assert [record.value for record in records.take(10)] == [0, 1]
    with pytest.raises(RecordDeserializationError, match="t-0 at offset 2") as caught:
        records.take(10)
    assert not records
    assert records.next_fetch_offset == 2
    found = taken(ReadableRecords, data, caught.value.next_offset or 0, **how)
    assert [record.value for record in found if hasattr(record, "value")] == [3, 4]
