"""Which partitions were created after the group began to read their topic. Pure.

Members of the source commit the starts of all their partitions as soon as they have found them. So
if a partition has no committed offset although the group has committed others of its topic, no
member has had it yet: it was added to the topic since. Nobody has delivered its records, so it
starts with the first one, like a partition that is found while a query runs.

This is true only of offsets fetched *before* the query's own members join. After that, two members
of a new group may look up their starts at the same time, and the slower one would take its
partitions for new because the other has already committed.
"""

from __future__ import annotations

from collections.abc import Collection

from kafka.structs import TopicPartition


def new_to_group(
    partitions: Collection[TopicPartition], committed: Collection[TopicPartition]
) -> frozenset[TopicPartition]:
    """Find the partitions that are new to the group.

    Parameters
    ----------
    partitions : collection of TopicPartition
        All partitions of the topics.
    committed : collection of TopicPartition
        The partitions for which the group has a committed offset.

    Returns
    -------
    frozenset of TopicPartition
        The partitions without one, in topics that the group reads.
    """
    topics = {p.topic for p in committed}
    return frozenset(p for p in partitions if p.topic in topics and p not in committed)
