"""ReadAhead: the application's positions, if a merge buffers records beyond them (KIP-695).

A merge by timestamps polls records before their turn. To kafka-python they are consumed. To all
others (``position``, commits without offsets, the next owner) the partition is at its mark, the
application's position.

Invariants:
 1. A partition has a mark exactly while records of it are buffered and still wanted. Records of a
    backlog set aside (KIP-333) have an entry in ``gaps`` instead: the live reader must not go back
    there. A partition never has both: live records come only once no gap is unread or buffered.
 2. Any removal of a mark or an entry, except by the merge, adds the partition to ``moved``: the
    merge's buffer of it is then worthless.

The polling thread sets the marks; any thread can read them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kafka.structs import OffsetAndMetadata, TopicPartition

from .found_records import offsets_of


class Mark:
    """The application's position in one partition: the next offset that it will receive."""

    __slots__ = ("bound", "leader_epoch", "offset", "read_to")

    def __init__(self, offset: int, leader_epoch: int = -1) -> None:
        self.offset = offset
        self.leader_epoch = leader_epoch
        self.read_to = offset  # the offset after the buffered records
        #: The topic of the buffered records (``Truncations.bound``); empty: not known yet.
        self.bound = ""

    def as_position(self) -> OffsetAndMetadata:
        """As one of kafka-python's positions."""
        return OffsetAndMetadata(self.offset, "", self.leader_epoch)


class ReadAhead:
    """The marks of one consumer, written by the polling thread."""

    def __init__(self) -> None:
        self.reading = False  # whether the current poll fills buffers, and hands out nothing
        self.marks: dict[TopicPartition, Mark] = {}
        #: The position of the gaps' reader, for partitions with buffered records of a gap.
        self.gaps: dict[TopicPartition, int] = {}
        self._bounds_of_gaps: dict[TopicPartition, str] = {}  # like a mark's bound
        #: Partitions whose buffers are worthless, until the merge has taken notice.
        self.moved: set[TopicPartition] = set()
        #: Whether the merge must check for changes, `moved` included.
        self.dirty = False
        #: Partitions with enough buffered: nothing more is fetched. Not the application's own
        #: pause.
        self.held: set[TopicPartition] = set()
        self.woken = threading.Event()  # set by ``wakeup``
        self.merge: object = None  # the merge whose buffers the marks belong to

    def note(
        self,
        found: Mapping[TopicPartition, list[Any]],
        epoch_before: Callable[[TopicPartition, int], int] = lambda *_: -1,
    ) -> None:
        """Note that these live records, or Arrow batches of them, go into the buffers.

        ``epoch_before`` returns the leader epoch of the last record before an offset, for positions
        and commits.
        """
        self.forget(self.gaps.keys() & found.keys())
        for partition, records in found.items():
            brought = list(offsets_of(records))
            first, after = brought[0][0][0], brought[-1][0][-1] + 1  # as in HandOuts.hand_out
            mark = self.marks.get(partition)
            if mark is None:
                mark = self.marks[partition] = Mark(first, epoch_before(partition, first))
            elif first < mark.offset:  # the log was truncated
                mark.offset, mark.leader_epoch = first, -1
            mark.read_to = after

    def gone(
        self,
        read_position: Callable[[TopicPartition], int | None],
        bound: Callable[[TopicPartition], str],
    ) -> list[TopicPartition]:
        """Partitions whose buffered records were truncated, or belong to another topic.

        ``read_position`` and ``bound`` return the next offset to fetch of a partition, and the
        topic that it belongs to.
        """
        found = []
        for partition, mark in self.marks.items():
            here, position = bound(partition), read_position(partition)
            mark.bound = mark.bound or here
            if here != mark.bound or (position is not None and position < mark.read_to):
                found.append(partition)
        bounds = {partition: bound(partition) for partition in self.gaps}
        before, self._bounds_of_gaps = self._bounds_of_gaps, bounds
        return found + [p for p, here in bounds.items() if before.get(p, here) != here]

    def buffered(self) -> set[TopicPartition]:
        """The partitions in which polls are ahead of the application."""
        return self.marks.keys() | self.gaps.keys()

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget these partitions: polls continue elsewhere, or not at all."""
        if self.merge is None:
            return
        for partition in partitions:
            self.marks.pop(partition, None)
            self.gaps.pop(partition, None)
            self.moved.add(partition)
            self.held.discard(partition)
        self.dirty = True
