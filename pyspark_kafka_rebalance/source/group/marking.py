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
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from kafka.structs import TopicPartition

from ...consumer.gaps import Gap
from ...consumer.remaining import Remaining
from ...errors import names_of
from ...fetch.offset_range import OffsetRange

log = logging.getLogger(__name__)

#: How long nothing may move, once the members have joined and dead members are out of the group:
#: neither an owner nor a commit of what is waited for. In that time the coordinator gives away what
#: the dead had, and the new owner commits a batch; two queries that replay each other's partitions
#: do nothing but wait.
STILL_S = 30.0

#: An owner that catches up is watched for so long, and so many commits, before it is judged whether
#: it comes to what is waited for in time.
_WATCHED_S = 5.0
_WATCHED_COMMITS = 3

#: It may become faster: its first batches are small.
_FASTER = 2

#: How long an owner may take that commits a little now and then.
AT_MOST_S = 300.0

#: How long joining may take beyond the session, after which dead members are out of the group.
JOIN_S = 60.0


#: What a batch reads of each partition: one range, or beside it others below its live position.
Reads: TypeAlias = Mapping[TopicPartition, Sequence[OffsetRange]]


class Standing(NamedTuple):
    """What is known of one partition: whether the query owns it, and what the group has.

    Attributes
    ----------
    is_own : bool
        Whether the query owns it.
    committed : int or None
        The group's offset.
    known : Remaining or None
        What the group is owed, if it is known by more than that.
    """

    is_own: bool
    committed: int | None
    known: Remaining | None = None

    @property
    def owed(self) -> Remaining | None:
        """What the group is owed; None if nothing was ever committed."""
        if self.known is not None or self.committed is None:
            return self.known
        return Remaining(max(0, self.committed))

    def has_any_of(self, reads: Sequence[OffsetRange]) -> bool:
        """Whether the group has some of this."""
        if self.known is None:
            return (self.committed or 0) > reads[0].start
        return any(self.known.between(r.start, r.end) != (Gap(r.start, r.end),) for r in reads)

    def has_all_of(self, reads: Sequence[OffsetRange]) -> bool:
        """Whether the group has all of this."""
        if self.known is None:
            return (self.committed or 0) >= reads[-1].end
        return not any(self.known.between(r.start, r.end) for r in reads)

    def nears(self, reads: Sequence[OffsetRange]) -> tuple[object, ...]:
        """What changes as soon as its owner comes nearer to having all of this.

        An owner that catches up reads its lowest gap, and live records (KIP-333). Of what lies in
        another gap it commits nothing until that is its lowest.
        """
        known = self.known
        if known is None or not known.gaps:
            return self.is_own, self.committed
        left = [gap for r in reads for gap in known.between(r.start, r.end)]
        lowest = any(gap.start < known.gaps[0].end for gap in left)
        live = any(gap.end > known.live for gap in left)
        return self.is_own, left, lowest and self.committed, live and known.live

    def before_it_nears(self, reads: Sequence[OffsetRange]) -> int | None:
        """How many offsets its owner reads before it comes nearer to having all of this.

        None: it may come nearer with its next commit. See ``nears``.
        """
        known = self.known
        if known is None or not known.gaps:
            return None
        left = [gap for r in reads for gap in known.between(r.start, r.end)]
        if not left or max(left).end > known.live:
            return None
        first = min(left).start
        if first < known.gaps[0].end:
            return None
        return sum(gap.end - gap.start for gap in known.between(0, first))


class Pace:
    """How fast the owner of a partition reads the gaps before the one that is waited for.

    That takes seconds or hours. Meanwhile the query that waits reads no live records either, so it
    gives up as soon as the owner's commits show that it will not be there in time.
    """

    def __init__(self) -> None:
        self._commits = 0
        self._since = 0.0  # when the first of them was seen, and how many were left then
        self._left_then = 0
        self._left: int | None = None

    def is_too_slow(self, left: int | None, now: float, until: float) -> bool:
        """Whether the owner, which has so many offsets left before it, will be late.

        Parameters
        ----------
        left : int or None
            As ``Standing.before_it_nears``.
        now, until : float
            Seconds.
        """
        before, self._left = self._left, left
        if left is None or before is None or left > before:
            self._commits = 0
        elif left < before:
            if not self._commits:
                self._since, self._left_then = now, left
            self._commits += 1
        watched_s = now - self._since
        if left is None or self._commits <= _WATCHED_COMMITS or watched_s < _WATCHED_S:
            return False
        return left > _FASTER * (self._left_then - left) / watched_s * (until - now)


class Look(NamedTuple):
    """One look at the group: whether all members have joined, and what the partitions are at."""

    joined: bool
    standings: Mapping[TopicPartition, Standing]


def undecided(
    reads: Reads, standings: Mapping[TopicPartition, Standing]
) -> frozenset[TopicPartition]:
    """The partitions of which somebody else may still deliver rows, or already has."""
    return frozenset(
        partition
        for partition, standing in standings.items()
        if not standing.is_own and not standing.has_all_of(reads[partition])
    )


def marked_below(
    ranges: Mapping[TopicPartition, OffsetRange], standings: Mapping[TopicPartition, Standing]
) -> dict[TopicPartition, int]:
    """The offset below which a partition's rows are marked, where any are (invariant 1).

    Of batches that read one range of each.
    """
    return {
        partition: min(standing.committed, ranges[partition].end)
        for partition, standing in standings.items()
        if standing.committed is not None and standing.committed > ranges[partition].start
    }


def wait_for_owners(
    reads: Reads,
    look: Callable[[], Look],
    wait: Callable[[], None],
    session_s: Callable[[], float],
    clock: Callable[[], float],
) -> Mapping[TopicPartition, Standing]:
    """Wait until it is decided which rows are marked (invariant 2).

    Until when: ``JOIN_S`` after the session's end for the members to join; then ``STILL_S``
    without any change, at the earliest as long after the session's end, at the latest
    ``AT_MOST_S`` after it. Ended early when nothing is undecided, or when the owners of all that is
    read other gaps first and will be late (``Pace``). The rest goes out without the mark: it may
    come twice, and is not skipped.

    The session is counted from the beginning of the wait, since what died before it sends no
    heartbeat after it. A JoinGroup of the classic protocol is held until the dead are out, so the
    session is over by the time that it is answered. Joining does not wait for them in the
    consumer protocol (KIP-848), in a group that both protocols share, or where a static member
    comes back: a dead member then owns its partitions until its session ends, and all is still.

    Parameters
    ----------
    reads : mapping
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
    mapping
        What was known last, from which the marks follow.
    """
    began_at = changed_at = clock()
    before: tuple[object, ...] | None = None
    paces: defaultdict[TopicPartition, Pace] = defaultdict(Pace)
    while open_ := undecided(reads, (seen := look()).standings):
        now = clock()
        if before is None:
            log.info("waiting for what is another's of the batch: %s", names_of(open_))
        nears = seen.joined, {p: at.nears(reads[p]) for p, at in seen.standings.items()}
        if nears != before:
            before, changed_at = nears, now
            paces.clear()
        session_ends_at = began_at + session_s()
        if not seen.joined:
            until = session_ends_at + JOIN_S
        else:
            still_until = max(changed_at, session_ends_at) + STILL_S
            until = min(still_until, session_ends_at + AT_MOST_S)
        slow = [
            paces[p].is_too_slow(seen.standings[p].before_it_nears(reads[p]), now, until)
            for p in open_
        ]
        if now >= until or (seen.joined and all(slow)):
            log.warning(
                "not known whether another delivers what the group has not committed, so it is not "
                "marked lost and may come twice: %s",
                names_of(open_),
            )
            break
        wait()
    return seen.standings
