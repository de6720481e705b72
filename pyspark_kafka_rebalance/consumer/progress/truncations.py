"""Truncations: other records take the place of those that were handed out.

A part of ``HandOuts``, under its lock. A log was truncated, or its topic recreated. The signs are
polls that go on from a lower offset, a record of another leader epoch, or the topic's id. What was
said of the records that are gone does not apply to others: not here, not in commits that are on
their way, and not as gaps in the group's metadata, which are bound to the topic's id.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kafka.structs import TopicPartition

from ..offsets.told_remaining import bound_to

if TYPE_CHECKING:
    from .hand_outs import HandOuts

log = logging.getLogger(__name__)


class Truncations:
    """What is gone of the records of one consumer's partitions; all but ``bound`` need the lock."""

    def __init__(self, hand_outs: HandOuts) -> None:
        self._group_id = hand_outs._group_id
        self._metadata = hand_outs._metadata
        self._completion = hand_outs._completion
        self._commits = hand_outs._membership.commits
        self._by_hand = hand_outs.by_hand
        # What the gaps of each partition are bound to, from its first records on.
        self._bounds: dict[TopicPartition, str] = {}

    def bound(self, partition: TopicPartition) -> str:
        """What a commit's metadata are bound to: elsewhere, the same offsets are other records.

        Topic metadata with an error, and so without an id, do not mean that it is another topic.
        """
        topic_id = self._metadata.topic_id(partition.topic)
        if topic_id is None and partition in self._bounds:
            return self._bounds[partition]
        return bound_to(topic_id, partition)

    def bound_before(self, partition: TopicPartition) -> str | None:
        """What the partition was bound to when its first records came; None before that."""
        return self._bounds.get(partition)

    def bind(self, partition: TopicPartition, bound: str) -> None:
        """Note that the partition's records are those of this topic from now on."""
        self._bounds[partition] = bound

    def is_bound(self, partition: TopicPartition, bound: str) -> bool:
        """Whether the partition's records are those of this topic; its first records always are."""
        if self._bounds.get(partition) in (None, bound_to(None, partition)):
            self._bounds[partition] = bound
        return self._bounds[partition] == bound

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget partitions that are not owned any more."""
        for partition in partitions:
            self._bounds.pop(partition, None)

    def forget_all(self) -> None:
        """Forget all partitions."""
        self._bounds.clear()

    def goes_on(self, partition: TopicPartition, offset: int) -> None:
        """Polls go on from this offset; if it is lower without a seek, the log was truncated."""
        if partition in self._completion.sought:
            self._commits.move_back(partition, offset)
        elif self._completion.truncated_at(partition, offset):
            log.warning(
                "group %s: %s-%d goes back to offset %d: its log was truncated or its topic was "
                "recreated; processed offsets from there on will not be committed",
                self._group_id,
                *partition,
                offset,
            )
            self.truncate(partition, offset)
            if not self._is_same_topic(partition):
                self._bounds.pop(partition, None)

    def _is_same_topic(self, partition: TopicPartition) -> bool:
        """Whether the gaps left after polls went back may be committed as those of this topic.

        If the topic was recreated and the metadata do not know it yet, nobody takes the gaps for
        the new topic's: they are bound to the old id. Without an id, nothing tells the two apart.
        """
        before = self._bounds.get(partition)
        return before not in (None, bound_to(None, partition)) and before == self.bound(partition)

    def truncate(self, partition: TopicPartition, offset: int) -> None:
        """Forget what was handed out from this offset on: those records are gone."""
        self._commits.truncate(partition, offset)
        self._completion.truncate(partition, offset)
        self._by_hand.handed_out_again(partition, offset)

    def look_whether_anew(self, partition: TopicPartition, end: int) -> None:
        """Check for a recreated topic before a commit beyond what polls have reached.

        Such a commit may be about a topic that no longer exists, if polls have brought nothing
        since the new one is known.
        """
        found, before = self._completion.of(partition), self._bounds.get(partition)
        if found is None or found.continues_at is None or before is None:
            return
        reached = 0 if partition in self._completion.sought else found.continues_at
        if end <= reached:
            return
        bound = self.bound(partition)
        if bound != before:
            self.begin_anew(partition, reached, bound)

    def begin_anew(self, partition: TopicPartition, offset: int, bound: str) -> None:
        """The records from this offset on are those of a recreated topic.

        What was handed out there before belongs to another log, and so do the gaps and what a
        previous owner had finished. The same may be true of hand-outs below. They are kept anyway,
        because the metadata may report the new topic later than polls do.
        """
        if (found := self._completion.of(partition)) is not None:
            self.truncate(partition, offset)
            found.aside.forget(0)
        self._completion.disinherit(partition)
        self._bounds[partition] = bound  # last: a poll that is interrupted begins again
