"""SourceOwnership: the source partitions a producer owns, and those in its transaction; pure.

A source partition has these phases; the group has assigned it in all of them::

    reading -> ready -> owned -> given up -> (released)
                 \\________________/

``reading``: its restart point is being read. ``ready``: it has been read, and the next turn assigns
the partition to the application. ``given up``: the revoke was reported to the application, or the
assignment never was; the group may have it back. A turn is a call of the application in which
ownership may change: ``poll``, ``alive``, the end of a transaction. A turn *reports* if the call
returns the events, or a listener is called.

Invariants:
 1. Records are sent and restart points committed only for owned partitions. A partition becomes
    owned, and ceases to be, in a turn; between two turns only a loss takes one away.
 2. Nothing that the transaction touches is given up.
 3. A transaction that touches a lost partition is doomed, and never committed from then on. If its
    commit is already under way, it is not offered to the group again; the broker decides what the
    group has accepted before.
 4. A restart point moves only with a committed transaction.
 5. Each step of a partition is reported once: assigned, then either revoked or lost. If a lost
    partition is assigned again, the turn after reports that.
 6. A partition that was taken away and comes back is owned again in a turn that reports both, or
    after a turn that reported the first. Otherwise the application would continue where it was.
 7. A restart point changes nothing if a loss or a release has overtaken its reading.
 8. The restart point of a partition that the transaction touches is not read before the transaction
    has ended. A partition that was lost and is assigned to the same member again may have a commit
    on its way; the group still accepts that, because the group never missed the member. A restart
    point read before that would be old.

One thread at a time calls the methods; the owner has a lock.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

_NONE: frozenset[int] = frozenset()


class Phase(enum.Enum):
    """The phases of a source partition."""

    READING = "reading"
    READY = "ready"
    OWNED = "owned"
    GIVEN_UP = "given up"


@dataclass(frozen=True)
class ProducerEvents:
    """The changes since the last report: first lost and revoked, then assigned.

    Attributes
    ----------
    assigned : dict of int to str or None
        Source partitions that are owned now, each with its last committed restart point.
    to_be_revoked : frozenset of int
        Source partitions whose revoke waits for the open transaction, which has records of theirs.
    revoked : frozenset of int
        No longer owned. Forget the rows that were read of them and not sent.
    lost : frozenset of int
        Likewise; the group has continued without this member. An open transaction with records of
        theirs is aborted.
    """

    assigned: dict[int, str | None] = field(default_factory=dict)
    to_be_revoked: frozenset[int] = _NONE
    revoked: frozenset[int] = _NONE
    lost: frozenset[int] = _NONE

    def __bool__(self) -> bool:
        return bool(self.assigned or self.to_be_revoked or self.revoked or self.lost)

    def __str__(self) -> str:
        return (
            f"assigned={sorted(self.assigned)} revoke requested={sorted(self.to_be_revoked)} "
            f"revoked={sorted(self.revoked)} lost={sorted(self.lost)}"
        )

    def then(self, later: ProducerEvents) -> ProducerEvents:
        """Merge with later events; leaves out what was assigned and is gone again."""
        gone = later.revoked | later.lost
        return ProducerEvents(
            {p: at for p, at in self.assigned.items() if p not in gone} | later.assigned,
            (self.to_be_revoked - gone) | later.to_be_revoked,
            self.revoked | (later.revoked - self.assigned.keys()),
            self.lost | (later.lost - self.assigned.keys()),
        )


@dataclass
class _Held:
    """A source partition that the group has assigned."""

    number: int
    phase: Phase = Phase.READING
    point: str | None = None
    asked_back: bool = False


class SourceOwnership:
    """One member's share of the source, and its transaction.

    Parameters
    ----------
    source_partition_count : int
        No partition from this number on is reported before the source grows.

    Attributes
    ----------
    doomed : str or None
        Why the open transaction must be aborted.
    """

    def __init__(self, source_partition_count: int) -> None:
        self.source_partition_count = source_partition_count
        self.doomed: str | None = None
        self._held: dict[int, _Held] = {}
        self._touched: set[int] | None = None  # None: no transaction is open
        self._committing = False
        self._has_lost_touched = False
        self._lost_untold: set[int] = set()
        self._gone_untold: set[int] = set()  # no longer owned, since a turn that told nobody
        self._asked_back_told: set[int] = set()
        self._assignments = 0
        self._any_asked_back = False

    # -- how things stand -------------------------------------------------------------------------

    @property
    def restart_points(self) -> dict[int, str | None]:
        """The owned source partitions, with the restart points committed last."""
        return {
            p: held.point for p, held in sorted(self._held.items()) if held.phase is Phase.OWNED
        }

    @property
    def touched(self) -> frozenset[int] | None:
        """The source partitions in the open transaction; None if none is open."""
        return None if self._touched is None else frozenset(self._touched)

    @property
    def may_be_accepted(self) -> bool:
        """Whether the open transaction may be offered to the group: nothing it touches is lost."""
        return not self._has_lost_touched

    @property
    def to_be_revoked(self) -> frozenset[int]:
        """The owned partitions that the group wants back."""
        return frozenset(
            p for p, held in self._held.items() if held.asked_back and held.phase is Phase.OWNED
        )

    @property
    def asked_back_now(self) -> bool:
        """Whether the group waits for an owned partition; takes no lock."""
        return self._any_asked_back

    def has_news(self) -> bool:
        """Whether a turn would have anything to tell."""
        return bool(
            self.ready()
            or self._lost_untold
            or self.doomed
            or self.to_be_revoked - self._asked_back_told
            or self.to_be_revoked - (self._touched or set())
        )

    def reading(self) -> dict[int, int]:
        """Return the partitions whose restart point is to be read, with the number for ``read``."""
        touched = self._touched or _NONE
        return {
            p: held.number
            for p, held in self._held.items()
            if held.phase is Phase.READING and p not in touched
        }

    def ready(self) -> frozenset[int]:
        """Return the partitions that a turn would assign to the application."""
        return frozenset(
            p
            for p, held in self._held.items()
            if held.phase is Phase.READY and p < self.source_partition_count
        )

    def unknown(self) -> frozenset[int]:
        """Return the assigned partitions that this member's source does not have."""
        return frozenset(p for p in self._held if p >= self.source_partition_count)

    def hold(self, asked_back: Collection[int]) -> frozenset[int]:
        """Return those that the group wants back but whose revoke must not be completed yet."""
        return frozenset(
            p for p in asked_back if p in self._held and self._held[p].phase is not Phase.GIVEN_UP
        )

    # -- what the group says ----------------------------------------------------------------------

    def assigned(self, partitions: Collection[int]) -> None:
        """The group has assigned these, which are new to this member."""
        for p in partitions:
            self._held[p] = _Held(0)
            self._begin_reading(p)

    def asked_back(self, partitions: Collection[int]) -> None:
        """The group wants back these, and no others, now; call it after ``released``."""
        touched = self._touched or _NONE
        for p, held in self._held.items():
            held.asked_back = p in partitions
            untold = held.phase in (Phase.READING, Phase.READY)
            if held.asked_back and untold and p not in touched:
                held.phase = Phase.GIVEN_UP  # the application was never told
            elif not held.asked_back and held.phase is Phase.GIVEN_UP:
                self._begin_reading(p)  # the group no longer asks for it
        self._any_asked_back = bool(self.to_be_revoked)

    def released(self, partitions: Collection[int]) -> None:
        """The group has these back."""
        for p in partitions:
            self._held.pop(p, None)

    def lost(self, partitions: Collection[int], reason: str) -> None:
        """These are lost: the group has gone on without this member."""
        for p in partitions:
            held = self._held.pop(p, None)
            if held is not None and held.phase is Phase.OWNED:
                self._lost_untold.add(p)
        if self._touched is not None and self._touched.intersection(partitions):
            self._has_lost_touched = True
            self.doom(reason)

    def read(self, partition: int, number: int, point: str | None) -> bool:
        """Take a restart point that was read; return whether it is still of interest."""
        held = self._held.get(partition)
        if held is None or held.number != number or held.phase is not Phase.READING:
            return False
        held.phase, held.point = Phase.READY, point
        return True

    # -- the application --------------------------------------------------------------------------

    def turn(self, *, tells: bool = True) -> ProducerEvents:
        """Take a turn; return its changes. ``tells``: it tells them, and those of earlier turns."""
        lost, self._lost_untold = frozenset(self._lost_untold), set()
        busy = self._touched or set()
        revoked = self.to_be_revoked - busy
        for p in revoked:
            self._held[p].phase = Phase.GIVEN_UP
        self._gone_untold |= revoked | lost
        assigned = {}
        for p in sorted(self.ready() - (lost if tells else self._gone_untold)):
            self._held[p].phase = Phase.OWNED
            assigned[p] = self._held[p].point
        if tells:
            self._gone_untold.clear()
        waiting = self.to_be_revoked
        untold = waiting - self._asked_back_told
        self._asked_back_told = set(waiting)
        return ProducerEvents(assigned, untold, revoked, lost)

    def owns(self, partition: int) -> bool:
        """Whether the application may send records of this partition."""
        held = self._held.get(partition)
        return held is not None and held.phase is Phase.OWNED

    def touch(self, partitions: Collection[int]) -> None:
        """Add these owned partitions to the transaction; begins one if none is open."""
        if self._touched is None:
            self._touched = set()
        self._touched.update(partitions)

    def doom(self, reason: str) -> None:
        """Rule out a commit of the open transaction, unless that is already under way."""
        if self._touched is not None and not self._committing and self.doomed is None:
            self.doomed = reason

    def begin_commit(self) -> bool:
        """Return whether the transaction may be committed; if so, the broker decides from here."""
        if self.doomed is not None:
            return False
        self._committing = True
        return True

    def committed(self, points: Mapping[int, str]) -> None:
        """The broker has committed the transaction, with these restart points."""
        for p, point in points.items():
            if self.owns(p):
                self._held[p].point = point
        self._ended()

    def aborted(self) -> None:
        """The transaction is aborted: nothing of it will ever be seen."""
        self._ended()

    def in_doubt(self) -> None:
        """The outcome is unknown: treat what is owned as lost, and read its points again."""
        for p, held in self._held.items():
            if held.phase is Phase.OWNED:
                self._lost_untold.add(p)
                self._begin_reading(p)
        self._ended()

    def _begin_reading(self, partition: int) -> None:
        self._assignments += 1
        held = self._held[partition]
        held.number, held.phase = self._assignments, Phase.READING

    def _ended(self) -> None:
        self._touched, self.doomed, self._committing = None, None, False
        self._has_lost_touched = False
