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
from collections.abc import Callable, Collection

from kafka.structs import TopicPartition

from ...consumer.cluster_queries import ClusterQueries
from ...errors import AuthorizationError

#: How often the client's metadata is looked through.
_LOOK_EVERY_S = 1.0

#: How many looks a partition gets that went away in a rebalance: its members may learn of a
#: deletion before the metadata that are requested then tell of it.
_LOOKS_AFTER_LEAVING = 3


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
        self._left: dict[TopicPartition, int] = {}  # the looks that each still gets
        self._in_doubt: set[TopicPartition] = set()
        self._missed: frozenset[TopicPartition] = frozenset()  # by the answer before

    def left(self, partitions: Collection[TopicPartition]) -> None:
        """These went away in a rebalance."""
        self._left.update(dict.fromkeys(partitions, _LOOKS_AFTER_LEAVING))

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

    def answered(self, missing: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Note that these are missing, of the suspects; those that are deleted."""
        deleted = self._missed & frozenset(missing)
        self._missed = frozenset(missing) - deleted
        self._in_doubt &= self._missed
        self._left = {
            p: looks - 1
            for p, looks in self._left.items()
            if p not in deleted and (looks > 1 or p in self._missed)
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
