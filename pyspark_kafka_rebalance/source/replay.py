"""Which partitions of a logged batch have moved on, asked before the batch is replayed.

A batch that was in flight when its process died is replayed by the restarted query with the
ranges in its offset. Its partitions may be another member's by now; the rows say so (``lost``).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from typing import TYPE_CHECKING

from kafka.structs import TopicPartition

from ..consumer.group_description import GroupMember, describe_group
from ..fetch.offset_range import OffsetRange
from .cluster_query import ask_cluster

if TYPE_CHECKING:
    from .options import SourceOptions

log = logging.getLogger(__name__)


def moved_on(
    options: SourceOptions, ranges: Collection[OffsetRange], own_client_id: str | None
) -> frozenset[TopicPartition]:
    """The partitions of which another member may have delivered the same records.

    A partition has moved on when the group's committed offset is past the start of the range, or
    when the group's description shows it with a member that is not of the run that died: that
    run's members stay listed until their session times out. Static members are known by their
    instance, since they are listed with the client id of the first run.

    Parameters
    ----------
    options : SourceOptions
        The source's options.
    ranges : collection of OffsetRange
        The logged batch.
    own_client_id : str or None
        Client id prefix of the run that planned the batch.

    Raises
    ------
    KafkaRebalanceError
        The group cannot be asked.
    """
    if options.partitions is not None:
        return frozenset()  # nobody takes over what is assigned by hand
    group_id = options.group_id
    committed, group = ask_cluster(
        options,
        f"what became of a logged batch of group {group_id!r}",
        lambda admin: (
            admin.list_group_offsets({group_id: [_partition(r) for r in ranges]}),
            describe_group(admin, group_id),
        ),
    )
    passed = {
        _partition(r)
        for r in ranges
        if (found := committed[group_id].get(_partition(r))) is not None and found.offset > r.start
    }
    others = {
        partition
        for member in group.members
        if not _is_own(member, own_client_id, options.consumer_config.get("group_instance_id"))
        for partition in member.assigned
    }
    gone = frozenset(p for p in map(_partition, ranges) if p in passed or p in others)
    log.info(
        "group %s: replaying %d ranges, of which %d have moved on", group_id, len(ranges), len(gone)
    )
    return gone


def _is_own(member: GroupMember, client_id: str | None, instance_id: str | None) -> bool:
    if instance_id is not None and member.instance_id is not None:
        # However many readers that run had.
        return re.fullmatch(rf"{re.escape(instance_id)}-[0-9]+", member.instance_id) is not None
    return client_id is not None and member.client_id.startswith(client_id)


def _partition(offset_range: OffsetRange) -> TopicPartition:
    return TopicPartition(offset_range.topic, offset_range.partition)
