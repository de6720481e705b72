"""ChangedGaps: partitions whose progress beyond the committed offset is still to be committed.

Their offset is committed once more, with new metadata. That waits a little, because usually the
offset itself advances first. Pure. Not thread-safe; the owner holds a lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kafka.structs import TopicPartition

from ..offsets.committable import Committable, as_entry
from .offset_commits import OffsetCommits

#: Progress behind a slow record is committed this often, while no offset is to be committed.
_TELL_S = 1.0


class ChangedGaps:
    """The partitions whose gaps have changed, but not the offset to commit."""

    def __init__(self) -> None:
        self._offsets: dict[TopicPartition, Committable] = {}
        self._tell_at = 0.0

    def __bool__(self) -> bool:
        return bool(self._offsets)

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._offsets

    def note(self, offsets: Mapping[TopicPartition, Committable]) -> None:
        """The offsets to commit stay the same, but what is processed beyond them has changed."""
        self._offsets.update(offsets)

    def hurry(self) -> None:
        """Commit what is noted at once."""
        self._tell_at = 0.0

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Commit nothing of these."""
        for partition in partitions:
            self._offsets.pop(partition, None)

    def forget_all(self) -> None:
        """Commit nothing of any partition."""
        self._offsets = {}

    def go_back(self, partition: TopicPartition, offset: int) -> None:
        """Polls go on from this offset: the group must not move past what comes again."""
        changed = self._offsets.get(partition)
        if changed is not None and as_entry(changed).offset > offset:
            del self._offsets[partition]

    def repeat(self, commits: OffsetCommits, now: float, idle_s: float) -> float:
        """Commit these offsets again, if it is time; how long to idle, at most ``idle_s``."""
        if not self._offsets:
            return idle_s
        if now < self._tell_at:
            return min(self._tell_at - now, idle_s)
        self._offsets = commits.repeat(self._offsets)
        # What is left waits for the answer to a commit by hand, and is looked at after it.
        self._tell_at = 0.0 if self._offsets else now + _TELL_S
        return idle_s
