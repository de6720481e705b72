"""TimestampMerge: takes the buffered records of several partitions in timestamp order (KIP-695).

The order is that of Kafka Streams' PartitionGroup and RecordQueue. The next record comes from the
partition whose first buffered record has the lowest timestamp; on a tie, from the lower topic and
partition. Within a partition records keep their order: a record with an earlier timestamp comes
right after the one before it. A record without a timestamp is treated as if it had the highest that
its partition has returned so far; so is one whose timestamp microseconds in 64 bits cannot hold: it
is in another unit, or overflowed.

Pure: times are given. A group consists of buffers and of ``idling.py``'s rule. Buffers may hold any
form of records (records here, Arrow batches in ``arrow_merge.py``).
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, Generic, TypeVar

from kafka.structs import TopicPartition

from ...fetch.records import MAX_TIMESTAMP_MS
from .idling import Idling

#: The time of a partition before its first record: lower than every timestamp.
UNKNOWN = -1


class Group(ABC):
    """Buffers of partitions whose records form one order; it waits for no other group."""

    def __init__(self, idling: Idling) -> None:
        self.idling = idling
        self._queues: dict[TopicPartition, Any] = {}
        self._aside: set[TopicPartition] = set()

    @property
    @abstractmethod
    def any_buffered(self) -> bool:
        """Whether any record is buffered, even if it must not be taken now."""

    def buffered(self, partition: TopicPartition) -> int:
        """How many records of the partition are buffered."""
        return len(self._queues.get(partition, ()))

    @abstractmethod
    def _append(self, partition: TopicPartition, found: Sequence[Any]) -> None:
        """Append records of a partition to its buffer.

        If they start at or below a buffered offset, they replace the buffered ones from there on:
        the log was truncated.
        """

    def _discard(self, partition: TopicPartition) -> None:
        """Drop the buffered records of a partition."""
        self._queues.pop(partition, None)
        self._aside.discard(partition)

    def _put_aside(self, partition: TopicPartition, aside: bool) -> None:
        """Take the buffered records of a partition out of the merge, or back into it."""
        (self._aside.add if aside else self._aside.discard)(partition)

    def add(self, partition: TopicPartition, now: float) -> None:
        """Add a partition, or add it again, with the records that are still buffered."""
        self.idling.add(partition, now)
        self._put_aside(partition, False)
        if self.buffered(partition):
            self.idling.filled(partition)

    def remove(self, partition: TopicPartition, *, keep: bool) -> None:
        """Remove a partition; with ``keep``, its buffered records stay until it is added again."""
        self.idling.remove([partition])
        if keep:
            self._put_aside(partition, True)
        else:
            self._discard(partition)

    def extend(self, partition: TopicPartition, found: Sequence[Any]) -> None:
        """Buffer records of a partition, in offset order."""
        self._append(partition, found)
        if self.buffered(partition):
            self.idling.filled(partition)

    def clear(self, partition: TopicPartition, now: float) -> None:
        """Drop a partition's buffered records, and its state."""
        self._discard(partition)
        self.idling.unknown(partition)
        self.idling.emptied(partition, now)


class _Queue:
    """The buffered records of one partition, and the highest timestamp that was returned."""

    __slots__ = ("records", "time")

    def __init__(self) -> None:
        self.records: deque[Any] = deque()
        self.time = UNKNOWN

    def __len__(self) -> int:
        return len(self.records)

    def next_time(self) -> int:
        timestamp: int = self.records[0].timestamp
        return timestamp if 0 <= timestamp <= MAX_TIMESTAMP_MS else self.time


class RecordGroup(Group):
    """A group that buffers ConsumerRecords."""

    def __init__(self, idling: Idling) -> None:
        super().__init__(idling)
        self._heads: list[tuple[int, TopicPartition]] = []

    @property
    def any_buffered(self) -> bool:
        """Whether any record is buffered, even if it must not be taken now."""
        return bool(self._heads)

    def take(self, now: float) -> tuple[TopicPartition, Any] | None:
        """Take the next record, if there is one and it is its turn."""
        if not self._heads or not self.idling.is_ready(now):
            return None
        time, partition = self._heads[0]
        queue: _Queue = self._queues[partition]
        record = queue.records.popleft()
        queue.time = max(queue.time, time)
        if queue.records:
            heapq.heapreplace(self._heads, (queue.next_time(), partition))
        else:
            heapq.heappop(self._heads)
            self.idling.emptied(partition, now)
        return partition, record

    def _append(self, partition: TopicPartition, found: Sequence[Any]) -> None:
        queue: _Queue = self._queues.setdefault(partition, _Queue())
        records, was_empty = queue.records, not queue.records
        while records and records[-1].offset >= found[0].offset:
            records.pop()
        truncated = not was_empty and not records
        records.extend(found)
        if truncated:
            self._order()
        elif was_empty:
            heapq.heappush(self._heads, (queue.next_time(), partition))

    def _discard(self, partition: TopicPartition) -> None:
        super()._discard(partition)
        self._order()

    def _put_aside(self, partition: TopicPartition, aside: bool) -> None:
        super()._put_aside(partition, aside)
        self._order()

    def _order(self) -> None:
        self._heads = [
            (queue.next_time(), partition)
            for partition, queue in self._queues.items()
            if queue.records and partition not in self._aside
        ]
        heapq.heapify(self._heads)


GroupT = TypeVar("GroupT", bound=Group)


class TimestampMerge(Generic[GroupT]):
    """Routes one consumer's records to their groups, and takes from them in turn.

    ``make_group`` makes a group, of either kind. ``group_of`` returns the group of a partition:
    anything hashable.
    """

    def __init__(
        self,
        make_group: Callable[[Idling], GroupT],
        max_task_idle_ms: int,
        group_of: Callable[[TopicPartition], Hashable],
    ) -> None:
        self._make_group = make_group
        self._max_task_idle_ms = max_task_idle_ms
        self._group_of = group_of
        self._groups: dict[Hashable, GroupT] = {}
        self._in: dict[TopicPartition, Hashable] = {}
        self._active: frozenset[TopicPartition] = frozenset()

    def set_partitions(
        self, wanted: Collection[TopicPartition], paused: Collection[TopicPartition], now: float
    ) -> None:
        """Set the partitions that take part; paused ones do not, but keep their buffers.

        The buffers of other partitions are dropped.
        """
        active = frozenset(wanted).difference(paused)
        kept = frozenset(wanted).intersection(paused)
        if active == self._active and self._in.keys() == active | kept:
            return
        for partition in self._in.keys() - active - kept:
            self._groups[self._in.pop(partition)].remove(partition, keep=False)
        for partition in (self._active & kept) | (kept - self._in.keys()):
            self._group(partition).remove(partition, keep=True)
        for partition in active - (self._active & self._in.keys()):
            self._group(partition).add(partition, now)
        self._active = active
        inhabited = set(self._in.values())
        for name in self._groups.keys() - inhabited:
            del self._groups[name]

    def extend(self, partition: TopicPartition, found: Sequence[Any]) -> None:
        """Buffer records of one of the partitions, in offset order."""
        self._group(partition).extend(partition, found)

    def clear(self, partition: TopicPartition, now: float) -> None:
        """Drop the records and state of a partition that continues elsewhere."""
        if partition in self._in:
            group = self._group(partition)
            group.clear(partition, now)
            if partition not in self._active:
                group.remove(partition, keep=True)

    def answered(self, partition: TopicPartition, lag: int, now: float) -> None:
        """Note a fetch response: ``lag`` offsets follow the buffered ones."""
        if partition in self._active:
            self._group(partition).idling.answered(partition, lag, now)

    def buffered(self, partition: TopicPartition) -> int:
        """How many records of the partition are buffered."""
        return self._group(partition).buffered(partition) if partition in self._in else 0

    def is_ready(self, now: float) -> bool:
        """Whether a record may be taken."""
        return any(g.any_buffered and g.idling.is_ready(now) for g in self._groups.values())

    @property
    def any_buffered(self) -> bool:
        """Whether any record is buffered, even if it must not be taken now."""
        return any(group.any_buffered for group in self._groups.values())

    def next_deadline(self) -> float | None:
        """When a record becomes ready just because time passes; None if that never happens."""
        deadlines = [
            deadline
            for group in self._groups.values()
            if group.any_buffered and (deadline := group.idling.next_deadline()) is not None
        ]
        return min(deadlines, default=None)

    def held_back_by(self) -> set[TopicPartition]:
        """The partitions whose broker must report or send more before others continue."""
        held = (g.idling.held_back_by() for g in self._groups.values() if g.any_buffered)
        return set().union(*held)

    def in_turn(self) -> list[GroupT]:
        """The groups, in the order to take from them; the first one now is the last next time."""
        groups = list(self._groups.values())
        if len(groups) > 1:
            first = next(iter(self._groups))
            self._groups[first] = self._groups.pop(first)
        return groups

    def _group(self, partition: TopicPartition) -> GroupT:
        name = self._in.get(partition)
        if partition not in self._in:
            name = self._in[partition] = self._group_of(partition)
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = self._make_group(Idling(self._max_task_idle_ms))
        return group
