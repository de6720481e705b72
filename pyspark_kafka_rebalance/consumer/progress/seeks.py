"""Seeks: what the application's seeks change about commits.

A part of ``HandOuts``, under its lock; its ``Completion`` knows where polls go on. From a sought
offset on, lower offsets may be committed. A seek past a record at which polls stopped is not a seek
in this sense: it gives up that record, and nothing else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from kafka.structs import TopicPartition

from ...errors import PartitionsLostError, UnreadableRecordError
from ..offsets.gaps import Gap
from .inherited import is_described
from .sought import LOG_END

if TYPE_CHECKING:
    from .hand_outs import HandOuts


class Seeks:
    """The application's seeks in the partitions of one consumer."""

    def __init__(self, hand_outs: HandOuts) -> None:
        self.lock = hand_outs.lock
        self._subscription = hand_outs._subscription
        self._metadata = hand_outs._metadata
        self._starts = hand_outs._starts
        self._membership = hand_outs._membership
        self._commits = hand_outs._membership.commits
        self._completion = hand_outs._completion
        # Unreadable records at which polls stopped, by partition: [start, end).
        self._unreadable: dict[TopicPartition, Gap] = {}

    # -- the thread that polls --------------------------------------------------------------------

    def stopped(self, error: UnreadableRecordError) -> None:
        """Note an error that polls raise, again and again, until the application seeks past it."""
        if error.next_offset is not None:
            with self.lock:
                partition = TopicPartition(error.topic, error.partition)
                self._unreadable[partition] = Gap(error.offset, error.next_offset)

    def sought(self, partitions: Collection[TopicPartition], offset: int | None = None) -> None:
        """Note a seek of the application to this offset; None if the offset is not known.

        `LOG_END` is beyond every record.
        """
        with self.lock:
            self._subscription.taken.carry_out()
            self._subscription.taken.forget(partitions)
            for partition in partitions:
                unreadable = self._unreadable.pop(partition, None)
                if unreadable is not None and unreadable.end == offset:
                    self._completion.skip(partition, *unreadable)
                    return  # an offset is given for only one partition, whose polls go on
            if offset is None:  # its topic may have been recreated; the id tells
                self._metadata.refresh()
            for partition in partitions:
                self._sought(partition, offset)

    # -- locked -----------------------------------------------------------------------------------

    def read_to(self, partition: TopicPartition, after: int) -> None:
        """Note that polls brought records up to this next offset."""
        unreadable = self._unreadable.get(partition)
        if unreadable is not None and after > unreadable.start:  # it could be read now
            del self._unreadable[partition]

    def _sought(self, partition: TopicPartition, offset: int | None) -> None:
        before = self._completion.position(partition)
        if self._subscription.subscribed:
            self.note_start(partition, None if offset == LOG_END else offset)
            self._commits.seek(partition, offset)
        self._completion.seek([partition], offset)
        after = self._completion.position(partition)
        if before is None or after is None or after <= before:
            return
        found = self._completion.of(partition)
        if found is not None and found.singly:  # its position is committed as workers complete it
            # If it is lost by now, the next poll says so.
            with contextlib.suppress(PartitionsLostError):
                self._membership.commit(self._completion.epochs.entries({partition: after}))

    def led_to(self, partition: TopicPartition, position: int) -> None:
        """Resolve a seek to an end of the log: polls are at this position now."""
        if self._completion.sought.leads_to(partition, position):
            self._sought(partition, position)

    def note_start(self, partition: TopicPartition, sought: int | None = None) -> None:
        """Commit nothing in the background that is below the partition's start.

        Until something is handed out, the lowest offset to commit is the one that the group has
        committed, or the sought one if the seek came before anybody looked that up.
        """
        if not self.has_begun(partition):
            if (start := self._starts.of(partition)) is not None:
                self._commits.begin(partition, start.offset, is_described(start))
            elif sought is not None:
                self._commits.begin(partition, sought, described=False)

    def has_begun(self, partition: TopicPartition) -> bool:
        """Whether polls brought records since the assignment, or the application sought."""
        completion = self._completion
        return completion.of(partition) is not None or partition in completion.sought

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget these partitions, which are not polled any more."""
        for partition in partitions:
            self._unreadable.pop(partition, None)

    def forget_all(self) -> None:
        """Forget all partitions."""
        self._unreadable.clear()
