"""DeletedPartitions: which partitions were deleted while the query ran.

A client's metadata can lack an existing topic: it may be stale, or come from a broker that has just
started. So a partition that seems to be missing is requested again. It is deleted only if two
answers in a row, a second apart, lack it.

Partitions that others own are not checked. When one is assigned to this query, ``StartLookup`` sees
from the topic id whether it is still the same topic.

The checks cover all owned partitions, those the coordinator did not know when they were committed,
and, for a while, partitions that left in a rebalance: the group revokes a deleted partition like
any other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from uuid import UUID

from kafka.structs import TopicPartition

from ....errors import AuthorizationError

if TYPE_CHECKING:
    from ....consumer.consumer import DeferredRevokeConsumer

#: How often the client's metadata is checked.
_LOOK_EVERY_S = 1.0

#: How often to ask whether the topics are still the same, if the group assigns them by name and so
#: does not say: if anything was read since the last time, and if not.
_TOPIC_IDS_EVERY_S = 5.0
_IDLE_TOPIC_IDS_EVERY_S = 60.0

#: Timeout of one such request. The members wait for it, and it can be repeated.
TOPIC_IDS_TIMEOUT_MS = 1_000

#: How many checks a partition gets after it left in a rebalance. Its members may learn of a
#: deletion before freshly requested metadata shows it.
_LOOKS_AFTER_LEAVING = 3


@dataclass(frozen=True, slots=True)
class Left:
    """A partition that left in a rebalance."""

    position: int | None  #: how far it was handed out
    topic_id: UUID | None  #: of the topic in which it was started; None if unknown
    looks: int = _LOOKS_AFTER_LEAVING  #: how many checks it still gets


class DeletedPartitions:
    """Remembers which partitions are in doubt; the caller makes the requests."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._look_at = 0.0
        self._topic_ids_at = clock()
        self._left: dict[TopicPartition, Left] = {}
        self._in_doubt: set[TopicPartition] = set()
        self._missed: frozenset[TopicPartition] = frozenset()  # in the previous answer
        self._in_another_topic: frozenset[TopicPartition] = frozenset()  # in the previous answer

    def left(self, partitions: Mapping[TopicPartition, Left]) -> None:
        """These left in a rebalance."""
        self._left.update(partitions)

    def left_lately(self) -> Mapping[TopicPartition, Left]:
        """Partitions that left in a rebalance and are still checked."""
        return dict(self._left)

    def replaced(self, topic_ids: Mapping[str, UUID]) -> dict[TopicPartition, Left]:
        """Partitions that left and whose topic has another id now; each is returned once.

        The group revokes a deleted partition like any other. If a topic of the same name is created
        at once, no answer ever lacks the partition.
        """
        found = {
            p: left
            for p, left in self._left.items()
            if left.topic_id is not None and topic_ids.get(p.topic, left.topic_id) != left.topic_id
        }
        for partition in found:
            del self._left[partition]
        return found

    def doubt(self, partitions: Collection[TopicPartition]) -> None:
        """The coordinator does not know these: their commits wait for the next answer."""
        self._in_doubt.update(partitions)

    @property
    def in_doubt(self) -> frozenset[TopicPartition]:
        """The partitions in doubt now."""
        return frozenset(self._in_doubt)

    def is_due(self) -> bool:
        """Whether the next check is due; each True starts one."""
        now = self._clock()
        if now < self._look_at:
            return False
        self._look_at = now + _LOOK_EVERY_S
        return True

    def watched(self, owned: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """The partitions to check: the owned ones, those that left lately, those in doubt."""
        return frozenset(owned) | self._left.keys() | self._in_doubt

    def suspects(
        self, watched: frozenset[TopicPartition], known: Collection[TopicPartition]
    ) -> frozenset[TopicPartition]:
        """The partitions to request again: unknown to the metadata or to the coordinator."""
        return (watched - frozenset(known)) | self._in_doubt | (self._missed & watched)

    def wants_topic_ids(self, has_read: bool) -> bool:
        """Whether a request for the topics' ids is due; each True starts one.

        ``has_read`` says whether anything was read since the last request.
        """
        now = self._clock()
        wait_s = _TOPIC_IDS_EVERY_S if has_read else _IDLE_TOPIC_IDS_EVERY_S
        if now - self._topic_ids_at < wait_s:
            return False
        self._topic_ids_at = now
        return True

    def in_another_topic(self, partitions: frozenset[TopicPartition]) -> frozenset[TopicPartition]:
        """Note that these have another topic now; returns those the previous answer also had.

        One answer is not enough: its broker may be behind the one by whose answer they started.
        """
        before, self._in_another_topic = self._in_another_topic, partitions
        return partitions & before

    def answered(self, missing: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Note which suspects are missing; returns those now known to be deleted."""
        deleted = self._missed & frozenset(missing)
        self._missed = frozenset(missing) - deleted
        self._in_doubt &= self._missed
        self._left = {
            p: replace(left, looks=left.looks - 1)
            for p, left in self._left.items()
            if p not in deleted and (left.looks > 1 or p in self._missed)
        }
        return deleted


def ask_for_missing(
    client: DeferredRevokeConsumer,
    partitions: Collection[TopicPartition],
    option: str,
    timeout_ms: float,
) -> frozenset[TopicPartition]:
    """The partitions that do not exist, according to freshly fetched metadata.

    ``option`` names them, for the error; ``timeout_ms`` is for each of two requests.

    Raises
    ------
    AuthorizationError
        DESCRIBE is not granted on some of the topics.
    kafka.errors.KafkaError
        No broker answers.
    """
    client.existing_topics(timeout_ms)
    missing = frozenset(partitions) - client.known_partitions(partitions)
    if hidden := client.hidden_topics({p.topic for p in missing}, timeout_ms):
        raise AuthorizationError(
            f"{option} names topics that need DESCRIBE on the topic, which is not granted (brokers "
            f"do not say whether they exist): {', '.join(sorted(hidden))}"
        )
    return missing
