"""ChangedGaps: of which partitions what is processed beyond the committed offset is to be told.

Their offset is committed once more, with new metadata. That waits a little, since most of it is
overtaken by the offset itself. Pure. Not thread-safe; the owner holds a lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kafka.structs import TopicPartition

from .commit_by_hand import Committable, as_entry
from .offset_commits import OffsetCommits

#: What is processed behind a slow record is told this often, while no offset is to be committed.
_TELL_S = 1.0


class ChangedGaps:
    """The partitions where the gaps have changed, and not the offset."""

    def __init__(self) -> None:
        self._offsets: dict[TopicPartition, Committable] = {}
        self._tell_at = 0.0

    def __bool__(self) -> bool:
        return bool(self._offsets)

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._offsets

    def note(self, offsets: Mapping[TopicPartition, Committable]) -> None:
        """These partitions stand where they stood, but what is processed beyond has changed."""
        self._offsets.update(offsets)

    def hurry(self) -> None:
        """Tell what there is to tell at once."""
        self._tell_at = 0.0

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """There is nothing to tell of these."""
        for partition in partitions:
            self._offsets.pop(partition, None)

    def forget_all(self) -> None:
        """Of whatever partition."""
        self._offsets = {}

    def go_back(self, partition: TopicPartition, offset: int) -> None:
        """Polls go on from this offset: the group is not to pass what is to come again."""
        changed = self._offsets.get(partition)
        if changed is not None and as_entry(changed).offset > offset:
            del self._offsets[partition]

    def repeat(self, commits: OffsetCommits, now: float, idle_s: float) -> float:
        """Commit these offsets again, if it is time; for how long to idle, this long at most."""
        if not self._offsets:
            return idle_s
        if now < self._tell_at:
            return min(self._tell_at - now, idle_s)
        self._offsets = commits.repeat(self._offsets)
        # What is left waits for an answer, and is looked at after it.
        self._tell_at = 0.0 if self._offsets else now + _TELL_S
        return idle_s
