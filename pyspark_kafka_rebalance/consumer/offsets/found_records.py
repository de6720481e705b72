"""The records that a poll found in one partition: ConsumerRecords, or Arrow batches of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from kafka.consumer.fetcher import ConsumerRecord

from .offset_set import Gap, holding


class RecordTime(NamedTuple):
    """A record's offset and timestamp, as brokers report it for ListOffsets."""

    offset: int
    timestamp: int


def offsets_of(found: Sequence[Any]) -> Iterator[tuple[Sequence[int], int]]:
    """The offsets of records, or of each Arrow batch, and their leader epoch (-1: unknown).

    The offsets are a range if none is missing in between. One item per run of equal leader epochs.
    """
    if isinstance(found[0], ConsumerRecord):
        if found[0].leader_epoch != found[-1].leader_epoch:
            for _, same in groupby(found, key=lambda record: record.leader_epoch):
                yield from offsets_of(list(same))
            return
        whole = range(found[0].offset, found[-1].offset + 1)
        offsets = whole if len(whole) == len(found) else [record.offset for record in found]
        yield offsets, found[0].leader_epoch
        return
    for batch in found:
        offsets = batch.column("offset")
        whole = range(offsets[0].as_py(), offsets[-1].as_py() + 1)
        yield whole if len(whole) == batch.num_rows else offsets.to_pylist(), -1


def count(found: Sequence[Any]) -> int:
    """How many records, or rows of batches."""
    if not found or isinstance(found[0], ConsumerRecord):
        return len(found)
    return sum(batch.num_rows for batch in found)


def below(found: list[Any], end: float) -> list[Any]:
    """The records, or the batches' rows, that lie below this offset."""
    if found and isinstance(found[0], ConsumerRecord):
        return [record for record in found if record.offset < end]
    kept = []
    for batch in found:
        rows = bisect_left(batch.column("offset").to_pylist(), end)
        if rows:
            kept.append(batch.slice(0, rows))
    return kept


def within(found: list[Any], gaps: Sequence[Gap]) -> list[Any]:
    """The records, or the batches' rows, that lie in one of the gaps."""
    kept = []
    if found and isinstance(found[0], ConsumerRecord):
        gap = holding(gaps, found[0].offset)
        if gap is not None and found[-1].offset < gap.end:
            return found
        for record in found:
            if gap is None or not gap.start <= record.offset < gap.end:
                gap = holding(gaps, record.offset)
            if gap is not None:
                kept.append(record)
        return kept
    for batch in found:
        offsets = batch.column("offset")
        gap = holding(gaps, offsets[0].as_py())
        if gap is not None and offsets[-1].as_py() < gap.end:
            kept.append(batch)
            continue
        rows = [row for row, at in enumerate(offsets.to_pylist()) if holding(gaps, at)]
        if rows:
            kept.append(batch.take(rows))
    return kept
