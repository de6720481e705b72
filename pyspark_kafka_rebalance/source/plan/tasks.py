"""The tasks of a batch, and the ranges that each reads. Pure.

Everything here is linear in the number of partitions, except for sorting, and depends only on its
arguments: a replay makes the same tasks.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple
from uuid import UUID

from kafka.protocol.consumer import DEFAULT_GENERATION_ID
from kafka.structs import TopicPartition

from ...consumer.offsets.commit_metadata import Remaining
from ...fetch.offset_range import OffsetRange
from ..offsets.stream_offset import RebalanceEvent, StreamOffset

#: With fewer offsets, starting a task takes longer than reading it, so catching up has fewer tasks.
_CATCH_UP_TASK = 5_000


class TaskRange(NamedTuple):
    """A range, and the group columns of its rows."""

    range: OffsetRange
    generation: int | None  #: of the owner; None if no member owns the range
    revoking: bool
    lost_below: int = 0  #: rows below this offset are marked ``lost``
    catch_up: bool = False  #: whether it lies in a gap below the live position
    topic_id: UUID | None = None  #: of the intended topic, which another may have replaced


@dataclass(frozen=True, slots=True)
class ReadTask:
    """The input of one Spark task: ranges, then rows for events; a warm-up reads nothing."""

    ranges: tuple[TaskRange, ...] = ()
    events: tuple[RebalanceEvent, ...] = ()
    warm_up: bool = False


def group_into_tasks(
    offset: StreamOffset,
    readers: int,
    min_partitions: int | None = None,
    max_records: int | None = None,
    lost_below: Mapping[TopicPartition, int] | None = None,
    owed: Mapping[TopicPartition, Remaining] | None = None,
    topic_ids: Mapping[TopicPartition, UUID] | None = None,
) -> list[ReadTask]:
    """Group the ranges of the batch that ends at an offset into tasks.

    The ranges of one member make one task, so that a batch has about as many tasks as cores, not as
    Kafka has partitions. If there are more members than ``readers`` (the option was lowered since),
    the ranges of each go to the task with the fewest offsets. So does each range that no member
    owns: in a replay, just lost, or with ``assign``.

    Catching up has its own tasks, after the live ones: as many as ``readers``, with equally many
    offsets each, if there are enough offsets. :func:`split_tasks` may make more of both.

    Rows below ``lost_below`` are marked ``lost``; if there are gaps, rows that are not ``owed`` to
    the group are, instead. Returns no empty tasks, and all events in the first. For a warm-up:
    ``readers`` tasks that read nothing.
    """
    if offset.warm_up is not None:
        return [
            ReadTask(events=offset.events if i == 0 else (), warm_up=True) for i in range(readers)
        ]

    below, revoking, ids = lost_below or {}, offset.revoking, topic_ids or {}

    def task_ranges(
        ranges: Mapping[TopicPartition, OffsetRange], generation: int | None
    ) -> list[TaskRange]:
        found = [
            TaskRange(handed, generation, p in revoking, below.get(p, 0), topic_id=ids.get(p))
            for p, handed in ranges.items()
        ]
        if not owed:
            return found
        marked = zip(ranges, found, strict=True)
        return [part for p, one in marked for part in _marked(one, owed.get(p))]

    tasks: list[list[TaskRange]] = [[] for _ in range(readers)]
    ownerless = dict(offset.ranges)
    crowded: list[list[TaskRange]] = []
    for index, member in enumerate(offset.members):
        owned = {p: ownerless.pop(p) for p in sorted(member.partitions) if p in ownerless}
        ranges = task_ranges(owned, member.generation)
        if member.generation == DEFAULT_GENERATION_ID:
            crowded += [[one] for one in ranges]
        elif index < readers and len(offset.members) <= readers:
            tasks[index] = ranges
        else:
            crowded.append(ranges)
    crowded += [[one] for one in task_ranges(dict(sorted(ownerless.items())), None)]
    if crowded:
        _even_out(tasks, crowded)
    planned = [ReadTask(tuple(ranges)) for ranges in tasks if ranges]
    if offset.catch_up:
        planned += _catching_up(offset, readers, owed or {}, ids)
    planned = split_tasks(planned, min_partitions, max_records)
    if offset.events:
        first = planned[0].ranges if planned else ()
        planned[:1] = [ReadTask(first, offset.events)]
    return planned


def _catching_up(
    offset: StreamOffset,
    readers: int,
    owed: Mapping[TopicPartition, Remaining],
    topic_ids: Mapping[TopicPartition, UUID],
) -> Iterator[ReadTask]:
    generations = {p: member.generation for member in offset.members for p in member.partitions}
    ranges = [
        marked
        for p in sorted(offset.catch_up)
        for piece in offset.catch_up[p]
        for marked in _marked(
            TaskRange(
                piece,
                generations.get(p),
                p in offset.revoking,
                catch_up=True,
                topic_id=topic_ids.get(p),
            ),
            owed.get(p),
        )
    ]
    return _cut(ReadTask(tuple(ranges)), min(readers, _size(ranges) // _CATCH_UP_TASK))


def _marked(one: TaskRange, owed: Remaining | None) -> Iterator[TaskRange]:
    """Split a range into parts that the group is owed as a whole, or that are marked ``lost``."""
    if owed is None:
        yield one
        return
    at, end = one.range.start, one.range.end
    for gap in owed.between(at, end):
        if at < gap.start:
            yield _part(one, at, gap.start)._replace(lost_below=gap.start)
        yield _part(one, gap.start, gap.end)
        at = gap.end
    if at < end:
        yield _part(one, at, end)._replace(lost_below=end)


def _part(one: TaskRange, start: int, end: int) -> TaskRange:
    return one._replace(range=replace(one.range, start=start, end=end))


def _even_out(tasks: list[list[TaskRange]], crowded: list[list[TaskRange]]) -> None:
    """Add each crowded list of ranges, largest first, to the task with the fewest offsets."""
    loads = [(_size(ranges), index) for index, ranges in enumerate(tasks)]
    heapq.heapify(loads)
    for ranges in sorted(crowded, key=_size, reverse=True):
        load, index = heapq.heappop(loads)
        tasks[index] += ranges
        heapq.heappush(loads, (load + _size(ranges), index))


def split_tasks(
    tasks: Sequence[ReadTask], min_partitions: int | None, max_records: int | None
) -> list[ReadTask]:
    """Split tasks into smaller ones, like Spark's ``minPartitions`` and ``maxRecordsPerPartition``.

    If there are fewer than ``min_partitions`` tasks, each is cut into parts by its share of all
    offsets. Rounding may give a few more or less, as it does in Spark. ``max_records`` is per task.
    """
    split = list(tasks)
    if max_records is not None:
        split = [
            part for task in split for part in _cut(task, -(-_size(task.ranges) // max_records))
        ]
    if min_partitions is not None and min_partitions > len(split):
        total = sum(_size(task.ranges) for task in split)
        split = [
            part
            for task in split
            for part in _cut(task, round(min_partitions * _size(task.ranges) / max(1, total)))
        ]
    return split


def _cut(task: ReadTask, parts: int) -> Iterator[ReadTask]:
    """Cut a task's offsets, range by range, into this many parts that differ by at most one."""
    size = _size(task.ranges)
    parts = max(1, min(parts, size))
    if parts == 1:
        yield task
        return
    bounds = [size * part // parts for part in range(parts + 1)]
    begins = [0]
    for one in task.ranges:
        begins.append(begins[-1] + len(one.range))
    first = 0
    for low, high in pairwise(bounds):
        pieces = []
        while begins[first] < high:
            one, begin = task.ranges[first], begins[first]
            start = one.range.start + max(0, low - begin)
            end = min(one.range.end, one.range.start + high - begin)
            pieces.append(_part(one, start, end))
            if begins[first + 1] > high:
                break
            first += 1
        yield ReadTask(tuple(pieces))


def _size(ranges: Sequence[TaskRange]) -> int:
    return sum(len(task_range.range) for task_range in ranges)
