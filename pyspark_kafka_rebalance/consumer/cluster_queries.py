"""Queries to the brokers that kafka-python lacks: commits with their progress.

None of them depends on membership.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from kafka.errors import LeaderNotAvailableError
from kafka.structs import TopicPartition

from .kafka_python.coordinator import GroupCoordinator
from .offsets.commit_metadata import GroupCommit, Remaining, Told
from .offsets.origin import Origin
from .offsets.told_remaining import bound_to

log = logging.getLogger(__name__)


def group_commits(
    io: GroupCoordinator,
    partitions: Collection[TopicPartition],
    timeout_ms: float,
    in_order: bool = False,
) -> dict[TopicPartition, GroupCommit]:
    """The group's offsets, the progress beyond them unless ``in_order``, and who committed."""
    found = {}
    committed = io.fetch_committed_offsets(list(partitions), timeout_ms)
    for p, entry in committed.items():
        bound = bound_to(io.metadata.topic_id(p.topic), p)
        left, told = Remaining(entry.offset), Told.NOTHING
        if not in_order:
            left, told, _ = Remaining.decode(entry.offset, entry.metadata, bound)
        found[p] = GroupCommit(left, Origin.decode(entry.offset, entry.metadata, bound))
        if told in (Told.NEWER, Told.ANOTHER_COMMIT):
            log.warning(
                "%s-%d: records from offset %d on may come again: the commit's metadata %s",
                *(*p, entry.offset, told.value),
            )
    return found


@contextmanager
def leader_gone() -> Iterator[None]:
    """Raise a retriable error where kafka-python fails on a partition without a leader."""
    try:
        yield
    except KeyError as error:
        raise LeaderNotAvailableError(*error.args) from error
