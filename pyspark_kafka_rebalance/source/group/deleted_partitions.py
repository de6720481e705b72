"""DeletedPartitions: which partitions of a query were deleted under it.

A client's metadata may lack a topic that is there: they are old, or those of a broker that has
just started. So what seems to be missing is asked for anew, and is deleted only if two answers in
a row, a second apart, say so.

What others own is not looked at: when it is assigned to this query, ``StartLookup`` sees by the
topic's id whether it is the one of before.

What is looked at: all that is owned; what the coordinator does not know when it is committed; and,
for a while, what went away in a rebalance. The group takes back a deleted partition as any other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from uuid import UUID

from kafka.structs import TopicPartition

from ...consumer.cluster_queries import ClusterQueries
from ...errors import AuthorizationError

#: How often the client's metadata is looked through.
_LOOK_EVERY_S = 1.0

#: How often it is asked whether the topics are still the same, where no group tells because it
#: assigns them by name: if anything was read since, and if not.
_TOPIC_IDS_EVERY_S = 5.0
_IDLE_TOPIC_IDS_EVERY_S = 60.0

#: How long one such question may take, during which the members wait. It can be asked again.
TOPIC_IDS_TIMEOUT_MS = 1_000

#: How many looks a partition gets that went away in a rebalance: its members may learn of a
#: deletion before the metadata that are requested then tell of it.
_LOOKS_AFTER_LEAVING = 3


@dataclass(frozen=True, slots=True)
class Left:
    """A partition that went away in a rebalance.

    Attributes
    ----------
    position : int or None
        How far it was handed out.
    topic_id : UUID or None
        Of the topic in which it was started; None where that is not known.
    looks : int
        How many it still gets.
    """

    position: int | None
    topic_id: UUID | None
    looks: int = _LOOKS_AFTER_LEAVING


class DeletedPartitions:
    """The decision, for the members of one query; asks for nothing itself.

    Parameters
    ----------
    clock : callable
        Seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._look_at = 0.0
        self._topic_ids_at = clock()
        self._left: dict[TopicPartition, Left] = {}
        self._in_doubt: set[TopicPartition] = set()
        self._missed: frozenset[TopicPartition] = frozenset()  # by the answer before
        self._in_another_topic: frozenset[TopicPartition] = frozenset()  # likewise

    def left(self, partitions: Mapping[TopicPartition, Left]) -> None:
        """These went away in a rebalance."""
        self._left.update(partitions)

    def left_lately(self) -> Collection[TopicPartition]:
        """What went away in a rebalance, and still gets looks."""
        return self._left.keys()

    def replaced(self, topic_ids: Mapping[str, UUID]) -> dict[TopicPartition, Left]:
        """Of what went away, that whose topic is another one by now; each is told once.

        The group takes a deleted partition back as any other, and where there is a new one by its
        name at once, no answer ever lacks it.
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
        """The coordinator does not know these: to commit them waits for the next answer."""
        self._in_doubt.update(partitions)

    @property
    def in_doubt(self) -> frozenset[TopicPartition]:
        """Those in doubt now."""
        return frozenset(self._in_doubt)

    def is_due(self) -> bool:
        """Whether it is time for a look; each True begins one."""
        now = self._clock()
        if now < self._look_at:
            return False
        self._look_at = now + _LOOK_EVERY_S
        return True

    def watched(self, owned: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """What to look for, beside what is owned."""
        return frozenset(owned) | self._left.keys() | self._in_doubt

    def suspects(
        self, watched: frozenset[TopicPartition], known: Collection[TopicPartition]
    ) -> frozenset[TopicPartition]:
        """What to ask for anew: what the metadata do not know, or the coordinator."""
        return (watched - frozenset(known)) | self._in_doubt | (self._missed & watched)

    def wants_topic_ids(self, has_read: bool) -> bool:
        """Whether it is time to ask for the topics' ids; each True begins one.

        ``has_read`` is whether anything was read since the last time.
        """
        now = self._clock()
        wait_s = _TOPIC_IDS_EVERY_S if has_read else _IDLE_TOPIC_IDS_EVERY_S
        if now - self._topic_ids_at < wait_s:
            return False
        self._topic_ids_at = now
        return True

    def in_another_topic(self, partitions: frozenset[TopicPartition]) -> frozenset[TopicPartition]:
        """Note that these have another topic by now; those of which the answer before said so.

        One broker may be behind the one by whose answer they were started.
        """
        before, self._in_another_topic = self._in_another_topic, partitions
        return partitions & before

    def answered(self, missing: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Note that these are missing, of the suspects; those that are deleted."""
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
    client: ClusterQueries,
    partitions: Collection[TopicPartition],
    option: str,
    timeout_ms: float,
) -> frozenset[TopicPartition]:
    """Those of the partitions that do not exist, by metadata that are fetched now.

    Parameters
    ----------
    client : ClusterQueries
        Whose metadata are renewed.
    partitions : collection of TopicPartition
        What is asked for.
    option : str
        By which the user named them, for the error.
    timeout_ms : float
        For each of two requests.

    Raises
    ------
    AuthorizationError
        Some of the topics may not be described.
    kafka.errors.KafkaError
        No broker answers.
    """
    client.existing_topics(timeout_ms)
    missing = frozenset(partitions) - client.known_partitions(partitions)
    if hidden := client.hidden_topics({p.topic for p in missing}, timeout_ms):
        raise AuthorizationError(
            f"{option} names topics that take DESCRIBE on the topic, which is not granted "
            f"(brokers do not tell whether they exist): {', '.join(sorted(hidden))}"
        )
    return missing
