"""How a batch's limits are shared among its partitions. Pure.

``maxOffsetsPerTrigger`` is shared pro rata to the backlogs; ``maxBytesPerTrigger`` then reduces all
shares by one factor. Both functions are linear in the number of partitions, except for sorting.
"""

from __future__ import annotations

from collections.abc import Mapping

from kafka.structs import TopicPartition

from ...fetch.offset_range import OffsetRange


def plan_batch(
    positions: Mapping[TopicPartition, int],
    end_offsets: Mapping[TopicPartition, int],
    max_rows: int | None,
    max_bytes: int | None = None,
    bytes_per_offset: Mapping[TopicPartition, float] | None = None,
) -> dict[TopicPartition, OffsetRange]:
    """Decide how far each partition advances in the next micro-batch.

    Parameters
    ----------
    positions : Mapping[TopicPartition, int]
        Next offset to read, inclusive.
    end_offsets : Mapping[TopicPartition, int]
        High watermark, or last stable offset under read_committed; exclusive. Partitions without
        one, or beyond it (:func:`find_beyond_end`), are left out.
    max_rows : int or None
        Offsets for the whole batch, None for all there are; shared pro rata to each backlog, at
        least one to every partition that has one, as Spark's ``maxOffsetsPerTrigger`` does. The sum
        exceeds it only if more partitions than that have a backlog: then each gets one.
    max_bytes : int or None
        Bytes for the whole batch, as the broker stores them, None for no limit. If the rows exceed
        it, every partition's share is reduced by the same factor, down to one row.
    bytes_per_offset : Mapping[TopicPartition, float], optional
        Average size of an offset in each partition, for ``max_bytes``; 0 if it is unknown.

    Returns
    -------
    dict[TopicPartition, OffsetRange]
        Only partitions with something to read.
    """
    # A list, not a set: they are sorted already, or nearly, and a set would lose that.
    behind = [p for p, at in positions.items() if end_offsets.get(p, at) > at]
    shares = shares_of({p: end_offsets[p] - positions[p] for p in sorted(behind)}, max_rows)
    if max_bytes is not None:
        each = bytes_per_offset or {}
        expected = sum(share * each.get(p, 0.0) for p, share in shares.items())
        if expected > max_bytes:
            kept = max_bytes / expected
            shares = {p: max(1, int(share * kept)) for p, share in shares.items()}
    return {
        p: OffsetRange(p.topic, p.partition, positions[p], positions[p] + share)
        for p, share in shares.items()
    }


def shares_of(
    backlogs: Mapping[TopicPartition, int], max_rows: int | None
) -> Mapping[TopicPartition, int]:
    """Share a batch's limit: pro rata to each backlog, at least one to each.

    Parameters
    ----------
    backlogs : mapping
        Number of offsets to read in each partition; only partitions that have some.
    max_rows : int or None
        As in :func:`plan_batch`.
    """
    if max_rows is not None and max_rows < 1:
        raise ValueError(f"max_rows must be at least 1, not {max_rows}")
    total, count = sum(backlogs.values()), len(backlogs)
    if max_rows is None or total <= max_rows:
        return backlogs
    if count >= max_rows:
        return dict.fromkeys(backlogs, 1)
    # One for each, then the rest in proportion to the remaining backlogs. Rounded down, so a
    # greater limit never gives a partition less, and less than one per partition is left over.
    rest, left = max_rows - count, total - count
    return {p: 1 + rest * (backlog - 1) // left for p, backlog in backlogs.items()}
