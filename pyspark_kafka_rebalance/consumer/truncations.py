"""Truncations: where other records take the place of those that were handed out.

A part of ``HandOuts``, under its lock. A log became shorter, or its topic was created anew. Polls
that go on from a lower offset tell, a record of another leader epoch, or the topic's id. What was
said of the records that are gone counts for no other ones: neither here, nor in commits that are on
their way, nor as gaps in the group's metadata, which are bound to the topic's id.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kafka.structs import TopicPartition

from .told_remaining import bound_to

if TYPE_CHECKING:
    from .hand_outs import HandOuts

log = logging.getLogger(__name__)


class Truncations:
    """What is gone of the records of one consumer's partitions; every call is locked."""

    def __init__(self, hand_outs: HandOuts) -> None:
        self._group_id = hand_outs._group_id
        self._metadata = hand_outs._metadata
        self._completion = hand_outs._completion
        self._commits = hand_outs._membership.commits
        self._by_hand = hand_outs.by_hand
        # What the gaps of each are bound to, from its first records on.
        self._bounds: dict[TopicPartition, str] = {}

    def bound(self, partition: TopicPartition) -> str:
        """What a commit's metadata are bound to: the same offsets elsewhere are other records.

        Metadata that have an error for the topic, and so no id, say nothing of another topic.
        """
        topic_id = self._metadata.topic_id(partition.topic)
        if topic_id is None and partition in self._bounds:
            return self._bounds[partition]
        return bound_to(topic_id, partition)

    def bound_before(self, partition: TopicPartition) -> str | None:
        """What they were bound to when its first records came; None before."""
        return self._bounds.get(partition)

    def bind(self, partition: TopicPartition, bound: str) -> None:
        """Its records are, from now on, those of this topic."""
        self._bounds[partition] = bound

    def is_bound(self, partition: TopicPartition, bound: str) -> bool:
        """Whether its records are those of this topic, as they are if they are the first."""
        if self._bounds.get(partition) in (None, bound_to(None, partition)):
            self._bounds[partition] = bound
        return self._bounds[partition] == bound

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Not owned any more."""
        for partition in partitions:
            self._bounds.pop(partition, None)

    def forget_all(self) -> None:
        """Of whatever partition."""
        self._bounds.clear()

    def goes_on(self, partition: TopicPartition, offset: int) -> None:
        """Polls of the partition go on from this offset, which may be a lower one."""
        if partition in self._completion.sought:
            self._commits.move_back(partition, offset)
        elif self._completion.truncated_at(partition, offset):
            log.warning(
                "group %s: %s-%d goes back to offset %d: its log was truncated or its topic "
                "created anew; what was processed from there on is not committed any more",
                self._group_id,
                *partition,
                offset,
            )
            self.truncate(partition, offset)
            if not self._is_same_topic(partition):
                self._bounds.pop(partition, None)

    def _is_same_topic(self, partition: TopicPartition) -> bool:
        """Whether what is left of it, where polls went back, may be told as that of this topic.

        If its topic was created anew and the metadata do not know yet, nobody takes what is told
        for the new one's: it is bound to the id of before. Without an id nothing tells them apart.
        """
        before = self._bounds.get(partition)
        return before not in (None, bound_to(None, partition)) and before == self.bound(partition)

    def truncate(self, partition: TopicPartition, offset: int) -> None:
        """What was handed out from this offset on is of records that are gone."""
        self._commits.truncate(partition, offset)
        self._completion.truncate(partition, offset)
        self._by_hand.handed_out_again(partition, offset)

    def look_whether_anew(self, partition: TopicPartition, end: int) -> None:
        """Before something is said of what polls have not come to since they were sent back.

        It may be of a topic that is no more, and polls have brought nothing since that is known.
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
        """The records from this offset on are those of a topic created anew.

        What was handed out there before is another log's, and so are the gaps and what an owner
        before had finished. Below, the same may hold of what was handed out; it is kept all the
        same, since the metadata may tell of the new topic later than polls.
        """
        self._bounds[partition] = bound
        if (found := self._completion.of(partition)) is not None:
            self.truncate(partition, offset)
            found.aside.forget(0)
        self._completion.disinherit(partition)
