"""Which rows of a batch are marked ``lost``: those that somebody else has delivered. Pure.

A batch reads the ranges that its offset spells out, whoever owns the partitions by then: it may be
replayed by a restarted query, or a partition may be lost right after it was planned.

Invariants:
 1. A row is marked only if the group's committed offset is past it. Nothing is committed before it
    was delivered without the mark, so a row that is marked came without it before: it may be
    dropped, and reading goes on behind the batch.
 2. A row is left without the mark only if the partition is the query's own, in which case the batch
    defers its revoke, or if waiting for the owner came to its end.

So a partition that is somebody else's is waited for: until its owner has committed all of the
range, or gives it up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

from kafka.structs import TopicPartition

from ...errors import names_of
from ...fetch.offset_range import OffsetRange

log = logging.getLogger(__name__)

#: How long nothing may move, once the members have joined and dead members are out of the group:
#: neither an owner nor a commit of what is waited for. In that time the coordinator gives away what
#: the dead had, and the new owner commits a batch; two queries that replay each other's partitions
#: do nothing but wait.
STILL_S = 30.0

#: How long an owner may take that commits a little now and then.
AT_MOST_S = 300.0

#: How long joining may take beyond the session, after which dead members are out of the group.
JOIN_S = 60.0


class Standing(NamedTuple):
    """What is known of one partition: whether the query owns it, and the group's offset."""

    is_own: bool
    committed: int | None


class Look(NamedTuple):
    """One look at the group: whether all members have joined, and what the partitions are at."""

    joined: bool
    standings: Mapping[TopicPartition, Standing]


def undecided(
    ranges: Mapping[TopicPartition, OffsetRange], standings: Mapping[TopicPartition, Standing]
) -> frozenset[TopicPartition]:
    """The partitions of which somebody else may still deliver rows, or already has."""
    return frozenset(
        partition
        for partition, standing in standings.items()
        if not standing.is_own and (standing.committed or 0) < ranges[partition].end
    )


def marked_below(
    ranges: Mapping[TopicPartition, OffsetRange], standings: Mapping[TopicPartition, Standing]
) -> dict[TopicPartition, int]:
    """The offset below which a partition's rows are marked, where any are (invariant 1)."""
    return {
        partition: min(standing.committed, ranges[partition].end)
        for partition, standing in standings.items()
        if standing.committed is not None and standing.committed > ranges[partition].start
    }


def wait_for_owners(
    ranges: Mapping[TopicPartition, OffsetRange],
    look: Callable[[], Look],
    wait: Callable[[], None],
    session_s: Callable[[], float],
    clock: Callable[[], float],
) -> dict[TopicPartition, int]:
    """Wait until it is decided which rows are marked (invariant 2).

    Until when: ``JOIN_S`` after the session's end for the members to join; then ``STILL_S``
    without any change, at the earliest as long after the session's end, at the latest
    ``AT_MOST_S`` after it. Ended early when nothing is undecided. At the deadline the rest goes
    out without the mark: it may come twice, and is not skipped.

    The session is counted from the beginning of the wait, since what died before it sends no
    heartbeat after it. A JoinGroup of the classic protocol is held until the dead are out, so the
    session is over by the time that it is answered. Joining does not wait for them in the
    consumer protocol (KIP-848), in a group that both protocols share, or where a static member
    comes back: a dead member then owns its partitions until its session ends, and all is still.

    Parameters
    ----------
    ranges : Mapping[TopicPartition, OffsetRange]
        What the batch reads.
    look : callable
        Looks at the group; a partition that is not to be waited for is left out.
    wait : callable
        Waits a moment; raises what ended the membership.
    session_s : callable
        After which the group gives up dead members, in seconds; asked each time, because the
        broker's is known only when a member joins.
    clock : callable
        Seconds.

    Returns
    -------
    dict of TopicPartition to int
        As :func:`marked_below`.
    """
    began_at = changed_at = clock()
    before: Look | None = None
    while open_ := undecided(ranges, (seen := look()).standings):
        now = clock()
        if before is None:
            log.info("waiting for what is another's of the batch: %s", names_of(open_))
        if seen != before:
            before, changed_at = seen, now
        session_ends_at = began_at + session_s()
        if not seen.joined:
            until = session_ends_at + JOIN_S
        else:
            still_until = max(changed_at, session_ends_at) + STILL_S
            until = min(still_until, session_ends_at + AT_MOST_S)
        if now >= until:
            log.warning(
                "not known whether another delivers what the group has not committed, so it is not "
                "marked lost and may come twice: %s",
                names_of(open_),
            )
            break
        wait()
    return marked_below(ranges, seen.standings)
