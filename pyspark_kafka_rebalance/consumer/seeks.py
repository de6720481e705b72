"""Seeks: what it changes of commits when the application says where polls go on.

A part of ``HandOuts``, under its lock: where polls go on is in its ``Completion``. From there on
lower offsets may be committed. A seek past a record at which polls stopped is none: it gives up
that record, and nothing else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from kafka.structs import TopicPartition

from ..errors import PartitionsLostError, UnreadableRecordError
from .gaps import Gap
from .inherited import is_described
from .sought import LOG_END

if TYPE_CHECKING:
    from .hand_outs import HandOuts


class Seeks:
    """The application's seeks in the partitions of one consumer."""

    def __init__(self, hand_outs: HandOuts) -> None:
        self._lock = hand_outs.lock
        self._subscription = hand_outs._subscription
        self._metadata = hand_outs._metadata
        self._starts = hand_outs._starts
        self._membership = hand_outs._membership
        self._commits = hand_outs._membership.commits
        self._completion = hand_outs._completion
        # Records at which polls stopped, by partition: what cannot be read, [start, end).
        self._unreadable: dict[TopicPartition, Gap] = {}

    # -- the thread that polls --------------------------------------------------------------------

    def stopped(self, error: UnreadableRecordError) -> None:
        """A poll raises this, and will again until the application seeks past it."""
        if error.next_offset is not None:
            with self._lock:
                partition = TopicPartition(error.topic, error.partition)
                self._unreadable[partition] = Gap(error.offset, error.next_offset)

    def sought(self, partitions: Collection[TopicPartition], offset: int | None = None) -> None:
        """The application said where polls go on; at which offset, as far as that is known.

        `LOG_END` is beyond every record.
        """
        with self._lock:
            for partition in partitions:
                unreadable = self._unreadable.pop(partition, None)
                if unreadable is not None and unreadable.end == offset:
                    self._completion.skip(partition, *unreadable)
                    return  # an offset is given for one partition alone, whose polls go on
            if offset is None:  # its topic may have been created anew, and the id tells
                self._metadata.refresh()
            for partition in partitions:
                self._sought(partition, offset)

    # -- locked -----------------------------------------------------------------------------------

    def read_to(self, partition: TopicPartition, after: int) -> None:
        """Polls brought records up to this next offset."""
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
            # Lost since: then the next poll says so.
            with contextlib.suppress(PartitionsLostError):
                self._membership.commit(self._completion.epochs.entries({partition: after}))

    def led_to(self, partition: TopicPartition, position: int) -> None:
        """Polls stand there; where the application sought an end, that is where it is."""
        if self._completion.sought.leads_to(partition, position):
            self._sought(partition, position)

    def note_start(self, partition: TopicPartition, sought: int | None = None) -> None:
        """Lower than where the partition starts nothing is committed in the background.

        As long as nothing is handed out, it may be where the group is, and no less; what was sought
        before anybody asked where that is.
        """
        if not self.has_begun(partition):
            if (start := self._starts.of(partition)) is not None:
                self._commits.begin(partition, start.offset, is_described(start))
            elif sought is not None:
                self._commits.begin(partition, sought, described=False)

    def has_begun(self, partition: TopicPartition) -> bool:
        """Whether polls brought something since it is assigned, or the application has sought."""
        completion = self._completion
        return completion.of(partition) is not None or partition in completion.sought

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Polls of these go on no more."""
        for partition in partitions:
            self._unreadable.pop(partition, None)

    def forget_all(self) -> None:
        """Of whatever partition."""
        self._unreadable.clear()
