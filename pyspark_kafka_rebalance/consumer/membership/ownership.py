"""Ownership: the partitions that a member owns, and their revokes (KIP-983). Pure.

A revoke moves a partition through these states; in the first three, the partition is assigned to
the application::

    revoke-next <-> revoke-thereafter   requested, and maybe delayed
         -> completing                  the rebalance listener is called; it may still commit
         -> releasing                   no longer assigned, but still owned: a commit is outstanding
         -> released                    the group may give it to another member

The group may take a request back; then the partition stays. A loss ends every state at once. A
revoke that reaches its deadline ends as a loss, and the partition goes to releasing, because a
commit in flight cannot be recalled.

Invariants:
 1. A partition is in at most one of revoke-next, revoke-thereafter, completing and releasing, and
    is owned while it is in one of them.
 2. A partition is never both lost and assigned.
 3. A revoke that was not taken back ends once: lost, or completed by ``begin`` (by ``assigned`` if
    revokes are not deferred).
 4. Only partitions that were given up are released, and only without an outstanding commit.
 5. Each requested revoke has a deadline until it is taken back, released or lost.

Times are seconds on any clock, the same for all calls. One thread at a time calls the methods. Any
thread can read the properties at any time; each property shows a single moment.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kafka.structs import TopicPartition

_NONE: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True)
class Step:
    """The changes that one event makes, for the consumer to execute."""

    #: All partitions that the library's assignment should hold from now on.
    owned: frozenset[TopicPartition]
    #: The owned partitions of which nothing more is fetched or returned.
    gated: frozenset[TopicPartition]
    #: Their revoke completes: call the listener, which may still commit, then ``give_up``.
    revoked: frozenset[TopicPartition] = _NONE
    lost: frozenset[TopicPartition] = _NONE  # commit nothing more of them, and call the listener
    #: Report them as released: the group may give them to another member.
    released: frozenset[TopicPartition] = _NONE
    added: frozenset[TopicPartition] = _NONE  # newly assigned: call the listener
    return_early: bool = False  # whether the current poll should return without waiting for records
    undrained: bool = False  # whether ``lost`` reached the deadline of its revoke

    @property
    def changes(self) -> bool:
        """Whether there is anything to execute."""
        return bool(self.revoked or self.lost or self.released or self.added)


@dataclass(frozen=True)
class _Standing:
    """The state between two events."""

    generation: int = -1
    turn: int = 0
    owned: frozenset[TopicPartition] = _NONE
    revoke_next: frozenset[TopicPartition] = _NONE
    revoke_thereafter: frozenset[TopicPartition] = _NONE
    completing: frozenset[TopicPartition] = _NONE
    releasing: frozenset[TopicPartition] = _NONE
    deadlines: Mapping[TopicPartition, float] = field(default_factory=dict)
    # Of the current poll.
    lost: frozenset[TopicPartition] = _NONE
    revoked: frozenset[TopicPartition] = _NONE
    added: frozenset[TopicPartition] = _NONE

    @property
    def revoking(self) -> frozenset[TopicPartition]:
        return self.revoke_next | self.revoke_thereafter

    @property
    def gated(self) -> frozenset[TopicPartition]:
        return self.revoking | self.completing | self.releasing

    def overdue(self, now: float) -> frozenset[TopicPartition]:
        return frozenset(p for p, deadline in self.deadlines.items() if now >= deadline)

    def without(self, gone: frozenset[TopicPartition]) -> _Standing:
        """The same state, with these partitions out of all revoke lists."""
        return replace(
            self,
            revoke_next=self.revoke_next - gone,
            revoke_thereafter=self.revoke_thereafter - gone,
            completing=self.completing - gone,
            releasing=self.releasing - gone,
            deadlines={p: at for p, at in self.deadlines.items() if p not in gone},
        )


class Ownership:
    """The assignment of one member, and the lists of KIP-983 ("Proposed changes").

    A revoke that is not completed and released ``revoke_timeout_s`` after its request is lost.
    Without ``defer_revoke`` it is completed at once, in the poll that learns of it.
    """

    def __init__(self, revoke_timeout_s: float, defer_revoke: bool = True) -> None:
        self._revoke_timeout_s = revoke_timeout_s
        self._defer_revoke = defer_revoke
        self._standing = _Standing()  # replaced, never mutated: other threads read it
        #: Steps that the consumer has not executed to their end yet, set together with the state:
        #: an interrupted poll leaves them to the next. Each is part of the one before.
        self.undone: tuple[Step, ...] = ()

    # -- state, on any thread ---------------------------------------------------------------------

    @property
    def generation(self) -> int:
        """The generation, or member epoch, of the assignment in force; -1 before the first."""
        return self._standing.generation

    @property
    def turn(self) -> int:
        """The number of the last turn; its lists are to be reported."""
        return self._standing.turn

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """Partitions that the group assigned and did not get back, even if being released."""
        return self._standing.owned

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The application's assignment: owned partitions that are not given up."""
        standing = self._standing
        return standing.owned - standing.releasing

    @property
    def to_be_revoked(self) -> frozenset[TopicPartition]:
        """The revoke-next list: completed at the start of the next poll unless delayed."""
        return self._standing.revoke_next

    @property
    def revoking(self) -> frozenset[TopicPartition]:
        """Revoke requested, neither completed nor lost: revoke-next and revoke-thereafter."""
        return self._standing.revoking

    @property
    def releasing(self) -> frozenset[TopicPartition]:
        """Given up, but not released to the group yet."""
        return self._standing.releasing

    @property
    def gated(self) -> frozenset[TopicPartition]:
        """Revoke requested and not released yet: nothing more of it is fetched or returned."""
        return self._standing.gated

    @property
    def lost(self) -> frozenset[TopicPartition]:
        """Lost during the last poll."""
        return self._standing.lost

    @property
    def revoked(self) -> frozenset[TopicPartition]:
        """Completed at the start of the last poll."""
        return self._standing.revoked

    @property
    def added(self) -> frozenset[TopicPartition]:
        """Newly assigned during the last poll, and not lost again in it."""
        return self._standing.added

    @property
    def has_deadlines(self) -> bool:
        """Whether any revoke is requested and not ended."""
        return bool(self._standing.deadlines)

    def is_overdue(self, partition: TopicPartition, now: float) -> bool:
        """Whether its revoke is past the deadline, so that the next poll loses it."""
        deadline = self._standing.deadlines.get(partition)
        return deadline is not None and now >= deadline

    def describe(self, now: float, added: int) -> str:
        """One line for the log; ``added`` says how many partitions are new."""
        standing = self._standing
        deadline = ""
        if standing.deadlines:
            deadline = f" deadline in {min(standing.deadlines.values()) - now:.1f} s"
        return (
            f"gen={standing.generation} assigned={len(standing.owned)} (new {added}) "
            f"revoking={len(standing.gated)} (drained {len(standing.releasing)}) "
            f"lost={len(standing.lost)}{deadline}"
        )

    # -- a poll -----------------------------------------------------------------------------------

    def begin(self, lost: Iterable[TopicPartition], now: float) -> Step:
        """Start a poll: the KIP's three steps, in its order.

        Partitions ``lost`` since the last poll ended are removed first, because a lost partition's
        revoke cannot be completed, and are on this poll's lost list. Overdue revokes are not
        completed either: ``overdue``, to be called next, loses them.
        """
        before = self._standing
        gone = before.owned.intersection(lost)
        if gone:
            before = replace(before.without(gone), owned=before.owned - gone)
        kept_back = before.revoke_next & before.overdue(now)
        completed = before.revoke_next - kept_back
        after = replace(
            before,
            turn=before.turn + 1,
            revoke_next=before.revoke_thereafter | kept_back,
            revoke_thereafter=_NONE,
            completing=before.completing | completed,
            lost=gone,
            revoked=completed,
            added=_NONE,
        )
        return self._change(after, revoked=completed, lost=gone, return_early=bool(gone))

    def assigned(self, partitions: frozenset[TopicPartition], generation: int, now: float) -> Step:
        """Apply the group's decision about all partitions that this member should own.

        The revoke of an owned partition that is not in ``partitions`` is requested; a request for
        one that is in ``partitions`` is taken back. A partition that is being released is still
        released, and comes again with a later generation.

        Raises ValueError if this poll has lost partitions: the assignment must wait for the next
        poll (invariant 2).
        """
        before = self._standing
        if before.lost:
            raise ValueError(f"assigned in the poll that has lost {sorted(before.lost)}")
        added = partitions - before.owned
        requested = before.owned - partitions - before.gated
        taken_back = before.revoking & partitions
        at_once = _NONE if self._defer_revoke else requested
        deadlines = {p: at for p, at in before.deadlines.items() if p not in taken_back}
        deadlines |= dict.fromkeys(requested, now + self._revoke_timeout_s)
        after = replace(
            before,
            generation=generation,
            owned=before.owned | added,
            revoke_next=(before.revoke_next - taken_back) | (requested - at_once),
            revoke_thereafter=before.revoke_thereafter - taken_back,
            completing=before.completing | at_once,
            deadlines=deadlines,
            added=before.added | added,
        )
        return self._change(
            after, revoked=at_once, added=added, return_early=bool(requested - at_once)
        )

    def lose(self, partitions: Iterable[TopicPartition]) -> Step:
        """Lose partitions at once, during a poll: out of all lists, into the lost list."""
        gone = self._standing.owned.intersection(partitions)
        before = self._standing.without(gone)
        after = replace(
            before, owned=before.owned - gone, lost=before.lost | gone, added=before.added - gone
        )
        return self._change(after, lost=gone, return_early=bool(gone))

    def overdue(self, now: float) -> Step:
        """Lose the partitions that are not released by their deadline, and only those.

        The group gets them once no commit is outstanding, as after a revoke.
        """
        gone, after = self._standing.overdue(now), self._standing
        if gone:
            before = self._standing.without(gone)
            after = replace(
                before,
                releasing=before.releasing | gone,
                lost=before.lost | gone,
                added=before.added - gone,
            )
        return self._change(after, lost=gone, return_early=bool(gone), undrained=True)

    def give_up(self, partitions: Iterable[TopicPartition]) -> None:
        """Unassign partitions, because the listener was notified that their revoke completes.

        Also called for any partition when the consumer closes; that is final.
        """
        gone = self._standing.owned.intersection(partitions)
        before = self._standing
        self._standing = replace(
            before,
            revoke_next=before.revoke_next - gone,
            revoke_thereafter=before.revoke_thereafter - gone,
            completing=before.completing - gone,
            releasing=before.releasing | gone,
        )

    def drained(self, outstanding: Collection[TopicPartition]) -> Step:
        """Release the partitions that were given up, except with an outstanding commit."""
        released, after = self._standing.releasing.difference(outstanding), self._standing
        if released:
            before = self._standing.without(released)
            after = replace(before, owned=before.owned - released)
        return self._change(after, released=released)

    def delay(self, partitions: Iterable[TopicPartition]) -> None:
        """Move from revoke-next to revoke-thereafter; others are left where they are."""
        before = self._standing
        delayed = before.revoke_next.intersection(partitions)
        if delayed:
            self._standing = replace(
                before,
                revoke_next=before.revoke_next - delayed,
                revoke_thereafter=before.revoke_thereafter | delayed,
            )

    def forget_all(self) -> None:
        """The member left the group by itself: it owns nothing, and nothing was lost."""
        self._standing = _Standing(self._standing.generation, self._standing.turn)
        self.undone = ()

    def resumed(self) -> None:
        """An interrupted turn is continued: its lists are to be reported, maybe again."""
        self._standing = replace(self._standing, turn=self._standing.turn + 1)

    def executed(self) -> None:
        """The last of the steps in ``undone`` is executed to its end."""
        self.undone = self.undone[:-1]

    def _change(self, after: _Standing, **changes: Any) -> Step:
        step = Step(after.owned, after.gated, **changes)
        undone = (*self.undone, step) if step.changes else self.undone
        # Nothing is called between the two: no signal handler can raise an exception there.
        self._standing, self.undone = after, undone
        return step
