"""Which partitions were created after the group began to read their topic. Pure.

Members of the source commit the starts of all their partitions as soon as they have found them. A
partition without a committed offset, in a topic of which the group has committed others, is one
that nobody of the group has had yet: it was added to the topic since. Nobody has delivered its
records, so it starts with the first one, as a partition that is found while a query runs.

This holds of offsets asked for *before* the query's own members join. Afterwards two members of a
new group may find out their starts at the same time, and the one that is slower would take its
partitions for new because the other has committed already.
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
        Those for which the group has a committed offset.

    Returns
    -------
    frozenset of TopicPartition
        Those without, in topics that the group reads.
    """
    topics = {p.topic for p in committed}
    return frozenset(p for p in partitions if p.topic in topics and p not in committed)
