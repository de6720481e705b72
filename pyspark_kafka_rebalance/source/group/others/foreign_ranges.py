"""ForeignRanges: waits for the owners of partitions that a batch reads but the query does not own.

A batch reads the ranges that its offset names, even if others own the partitions by then: a
restarted query may replay it after another member got its partitions, or a partition may be lost
right after the batch was planned. Rows that another member has delivered are marked ``lost``.

Invariants:
 1. A row is marked only if the group's committed offset is past it. A row is committed only after
    it was delivered without the mark, so a marked row was delivered before and may be dropped, and
    reading continues after the batch.
 2. A row stays unmarked only if the query owns the partition, in which case the batch defers its
    revoke, or if the wait for the owner has ended.

So a batch waits for each partition that another member owns, until that owner has committed all of
the range or gives the partition up. It does not for one that the query cannot own any more.

The planner's thread waits (:meth:`ForeignRanges.lost_below`), while the pump's thread requests the
group's committed offsets (:meth:`ForeignRanges.look`). The functions above that class, which are
pure, decide which rows are marked and how long to wait.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from ....consumer.offsets.commit_metadata import Remaining
from ....consumer.offsets.offset_set import Gap
from ....errors import names_of
from ....fetch.offset_range import OffsetRange
from ..clients.query_members import LOOKUP_TIMEOUT_MS
from ..clients.query_part import QueryCore, QueryPart
from ..query_state import SharedState

log = logging.getLogger(__name__)

#: The wait ends if nothing changes for this long, neither an owner nor a commit of the awaited
#: partitions, once the members have joined and dead members are out of the group. It is enough for
#: the coordinator to reassign the partitions of dead members, and for the new owner to commit a
#: batch. Two queries that replay each other's partitions only wait for each other.
STILL_S = 30.0

#: An owner that catches up is watched for this long, and for this many commits, before it is judged
#: too slow or not.
_WATCHED_S = 5.0
_WATCHED_COMMITS = 3

#: The owner may become this much faster: its first batches are small.
_FASTER = 2

#: How long to wait for an owner that commits only a little now and then.
AT_MOST_S = 300.0

#: How long joining may take after the session timeout, when dead members are out of the group.
JOIN_S = 60.0


#: The ranges that a batch reads of each partition: one, and maybe others below its live position.
Reads: TypeAlias = Mapping[TopicPartition, Sequence[OffsetRange]]


class Standing(NamedTuple):
    """Whether the query owns one partition, and the group's commits of it, as far as known."""

    is_own: bool
    committed: int | None
    known: Remaining | None = None  #: if more than the committed offset is known
    #: The query never owns it again: it was restarted without the topic, or the topic is deleted.
    #: Then the group's present offset decides, without a wait: there may never be an owner.
    is_left_out: bool = False

    @property
    def owed(self) -> Remaining | None:
        """The group's remaining offsets; None if nothing was ever committed."""
        if self.known is not None or self.committed is None:
            return self.known
        return Remaining(max(0, self.committed))

    def has_any_of(self, reads: Sequence[OffsetRange]) -> bool:
        """Whether the group has some of these ranges."""
        if self.known is None:
            return (self.committed or 0) > reads[0].start
        return any(self.known.between(r.start, r.end) != (Gap(r.start, r.end),) for r in reads)

    def has_all_of(self, reads: Sequence[OffsetRange]) -> bool:
        """Whether the group has all of these ranges."""
        if self.known is None:
            return (self.committed or 0) >= reads[-1].end
        return not any(self.known.between(r.start, r.end) for r in reads)

    def nears(self, reads: Sequence[OffsetRange]) -> tuple[object, ...]:
        """A value that changes whenever the owner gets closer to having all of these ranges.

        An owner that catches up reads its lowest gap and live records (KIP-333). It commits nothing
        of another gap until that is its lowest.
        """
        known = self.known
        if known is None or not known.gaps:
            return self.is_own, self.committed
        left = [gap for r in reads for gap in known.between(r.start, r.end)]
        lowest = any(gap.start < known.gaps[0].end for gap in left)
        live = any(gap.end > known.live for gap in left)
        return self.is_own, left, lowest and self.committed, live and known.live

    def before_it_nears(self, reads: Sequence[OffsetRange]) -> int | None:
        """How many offsets the owner reads before it gets closer to having all of these ranges.

        None: it may get closer with its next commit. See ``nears``.
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
    """How fast a partition's owner reads the gaps before the one that the batch waits for.

    That takes seconds or hours. The waiting query reads no live records either, so it gives up as
    soon as the owner's commits show that it will be late.
    """

    def __init__(self) -> None:
        self._commits = 0
        self._since = 0.0  # when the first commit was seen
        self._left_then = 0  # how many offsets were left then
        self._left: int | None = None

    def is_too_slow(self, left: int | None, now: float, until: float) -> bool:
        """Whether the owner will be late, with this many offsets left (``before_it_nears``)."""
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
    """A snapshot of the group: whether our members have joined, and the partitions' standings."""

    joined: bool
    standings: Mapping[TopicPartition, Standing]


def undecided(
    reads: Reads, standings: Mapping[TopicPartition, Standing]
) -> frozenset[TopicPartition]:
    """The partitions whose rows another member may still deliver, or already has."""
    return frozenset(
        partition
        for partition, standing in standings.items()
        if not standing.is_own
        and not standing.is_left_out
        and not standing.has_all_of(reads[partition])
    )


def marked_below(
    ranges: Mapping[TopicPartition, OffsetRange], standings: Mapping[TopicPartition, Standing]
) -> dict[TopicPartition, int]:
    """The offset below which each partition's rows are marked, if any are (invariant 1).

    For batches that read one range of each partition.
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
    """Wait until it is decided which rows are marked (invariant 2); returns the last standings.

    Deadlines: the members may take until ``JOIN_S`` after the session's end to join. Then the wait
    ends after ``STILL_S`` without any change, but no earlier than ``STILL_S`` and no later than
    ``AT_MOST_S`` after the session's end. It ends early when nothing is undecided, or when the
    owners of everything undecided read other gaps first and will be late (``Pace``). Undecided rows
    then go out without the mark: they may come twice, but none is skipped.

    The session is timed from the start of the wait, since a member that died before sends no
    heartbeat after it. In the classic protocol the coordinator answers a JoinGroup only when dead
    members are out, so the session is over by then. Joining does not wait for them in the consumer
    protocol (KIP-848), in a group that both protocols share, or if a static member comes back. A
    dead member then owns its partitions until its session expires, and nothing changes until then.

    ``look`` leaves out partitions that need no wait. ``wait`` waits a moment; it raises the error
    that ended the membership. ``session_s`` is called each time, because the broker's value is
    known only when a member joins.
    """
    began_at = changed_at = clock()
    before: tuple[object, ...] | None = None
    paces: defaultdict[TopicPartition, Pace] = defaultdict(Pace)
    while open_ := undecided(reads, (seen := look()).standings):
        now = clock()
        if before is None:
            log.info(
                "waiting until it is decided whether other members deliver parts of the batch: %s",
                names_of(open_),
            )
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
                "cannot tell whether another member delivers the uncommitted records, so they are "
                "not marked lost and may come twice: %s",
                names_of(open_),
            )
            break
        wait()
    return seen.standings


#: How often to fetch the committed offsets of the partitions that a batch waits for.
_CHECK_EVERY_S = 0.2

#: How often to check whether those offsets, or the ownership, have changed.
_TICK_S = 0.02


class ForeignRanges(QueryPart):
    """The planner's wait for other owners, and the pump's requests while it lasts."""

    def __init__(self, core: QueryCore) -> None:
        super().__init__(core)
        self._looked_at = 0.0
        # Partitions of others that a batch waits for. Replaced, never changed: two threads use it.
        self._awaited: frozenset[TopicPartition] = frozenset()
        # The awaited ones whose committed offsets are in the state; its lock guards this, too.
        self._answered: frozenset[TopicPartition] = frozenset()

    @property
    def are_awaited(self) -> bool:
        """Whether a batch waits for the owners of its ranges, and so is not being read yet."""
        return bool(self._awaited)

    def lost_below(self, ranges: Mapping[TopicPartition, OffsetRange]) -> dict[TopicPartition, int]:
        """The offsets below which others have delivered rows of a batch; waits until known.

        Raises the error that ended the membership.
        """
        return marked_below(ranges, self._decided({p: (one,) for p, one in ranges.items()}))

    def owed(self, reads: Reads) -> dict[TopicPartition, Remaining]:
        """The group's remaining offsets, where others may have delivered rows of a batch.

        As :meth:`lost_below`, but the batch may read several ranges of a partition, some of them
        below the live position.
        """
        return {
            p: standing.owed
            for p, standing in self._decided(reads).items()
            if standing.owed is not None
        }

    def _decided(self, reads: Reads) -> Mapping[TopicPartition, Standing]:
        there: set[TopicPartition] | None = None

        def look() -> Look:
            nonlocal there
            with self._state as state:
                looked, answered = self._standings(state, reads), self._answered
            if open_ := undecided(reads, looked.standings):
                there = self._members.partitions() if there is None else there
                left_out = {
                    p: looked.standings[p]._replace(is_left_out=True)
                    for p in open_ & answered
                    if p not in there
                }
                looked = Look(looked.joined, {**looked.standings, **left_out})
                open_ = open_.difference(left_out)
            self._awaited = open_
            return looked

        def wait() -> None:
            self._pump.wait(_TICK_S)
            self._pump.raise_failure()

        def session_s() -> float:
            return self._members.session_timeout_ms() / 1000

        try:
            return wait_for_owners(reads, look, wait, session_s, time.monotonic)
        finally:
            with self._state:
                self._awaited = self._answered = frozenset()

    def look(self) -> None:
        """Request the commits that a batch waits for, if one waits and it is time."""
        now, awaited = time.monotonic(), self._awaited
        if not awaited or now - self._looked_at < _CHECK_EVERY_S:
            return
        self._looked_at = now
        try:
            committed = self._members.committed(sorted(awaited), LOOKUP_TIMEOUT_MS)
        except kafka_errors.KafkaError as error:
            log.info(
                "cannot look up the committed offsets of the partitions that a batch waits for: %r",
                error,
            )
            return
        with self._state as state:
            state.assignment.commits.acknowledge_remaining(committed)
            if self._awaited:
                self._answered = awaited

    def _standings(self, state: SharedState, reads: Reads) -> Look:
        """The standings of a batch's partitions, as far as they are known.

        Leaves out partitions that the query owns and of which the group has nothing of the batch:
        usually all of them.
        """
        owned = state.assignment.partitions.all()
        sure = [member.may_hand_out() for member in self._members]
        marks = state.assignment.marks
        has_gaps = self._options.catch_up is not None and bool(marks.with_gaps())
        heard, standings = marks.heard(), {}
        for partition, pieces in reads.items():
            found = owned.get(partition)
            is_own = found is not None and found.position is not None and sure[found.member]
            committed = heard.get(partition)
            # Nearly all are the query's own, and this runs for thousands of them in each batch.
            known = marks.group_has(partition) if has_gaps else None
            if is_own and known is None and (committed or 0) <= pieces[0].start:
                continue
            standing = Standing(is_own, committed, known)
            if not is_own or standing.has_any_of(pieces):
                standings[partition] = standing
        return Look(bool(state.generations) and self._members.are_stable(), standings)
