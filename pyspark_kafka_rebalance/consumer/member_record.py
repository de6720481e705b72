"""MemberRecord: a member's identity at its coordinator, and the events still to be applied.

The I/O loop joins, heartbeats and learns of losses, while another thread polls. The I/O loop never
applies anything: it records each change of the assignment here, as an event, and the consumer's
next poll applies it.

Invariants:
 1. Events are taken in the order in which they happened; a loss drops an unapplied assignment.
 2. A loss invalidates every request in flight. A request starts with ``attempt()``, and ``accept``
    refuses its answer if a loss, or the member's own leave, has overtaken it.
 3. ``handed_out_as`` never belongs to a later membership than the records that polls handed out.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from kafka.protocol.consumer import DEFAULT_GENERATION_ID, UNKNOWN_MEMBER_ID
from kafka.structs import TopicPartition

from ..errors import PartitionsLostError
from .offsets.committable import Committable

log = logging.getLogger(__name__)


class Member(NamedTuple):
    """This member as the coordinator knows it; replaced as a whole, so any thread can read it."""

    generation: int = DEFAULT_GENERATION_ID
    member_id: str = UNKNOWN_MEMBER_ID

    @property
    def joined(self) -> bool:
        """Whether the coordinator has put this member into a generation."""
        return bool(self.generation != DEFAULT_GENERATION_ID)


@dataclass(frozen=True)
class AssignmentReceived:
    """The *whole* assignment of this member in a generation, or at a member epoch.

    ``generation`` is the generation (classic) or member epoch. ``topic_ids`` are empty in the
    classic protocol, which has none.
    """

    generation: int
    partitions: frozenset[TopicPartition]
    topic_ids: Mapping[TopicPartition, UUID] = field(default_factory=dict)


@dataclass(frozen=True)
class Lost:
    """Partitions are lost; if ``partitions`` is None, the membership and everything it owned."""

    reason: str
    partitions: frozenset[TopicPartition] | None = None

    def takes(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """The given partitions that this loss covers."""
        asked = frozenset(partitions)
        return asked if self.partitions is None else asked & self.partitions


class Attempt(NamedTuple):
    """The token of a request: the member that sent it, and which of its memberships."""

    member: Member
    losses: int
    departures: int


def not_owned(offsets: Mapping[TopicPartition, Committable]) -> PartitionsLostError:
    """The error for a commit of partitions that the caller does not own."""
    named = ", ".join(
        f"{p.topic}-{p.partition} at {getattr(offsets[p], 'offset', offsets[p])}"
        for p in sorted(offsets)
    )
    return PartitionsLostError(f"nothing committed, because these are not owned: {named}")


def refuse_strangers(
    offsets: Mapping[TopicPartition, Committable], committable: frozenset[TopicPartition]
) -> None:
    """Raise PartitionsLostError, naming the partitions, if some must not be committed."""
    strangers = offsets.keys() - committable
    if strangers:
        raise not_owned({p: offsets[p] for p in strangers})


class MemberRecord:
    """One member through all its memberships. ``lock`` guards it; any thread reads ``member``."""

    def __init__(self, group_id: str, *, id_survives: bool) -> None:
        #: Guards this record, and the state that a group protocol changes with it in one step, such
        #: as its synced or reconciled assignment. Held only for decisions, never during I/O or a
        #: callback of the application. It nests inside the lock of ``HandOuts``, and that of
        #: ``CommitLoop`` inside it: a commit is added, and all commits are forgotten, under it.
        #: Reentrant, so that a protocol can combine calls in one step.
        self.lock = threading.RLock()
        self.failure: Exception | None = None  # ended the membership for good; raised by polls
        self.closed = False  # nothing new may start
        self._group_id = group_id
        self._id_survives = id_survives  # when the coordinator removes the member
        self._member = Member()
        self._events: list[AssignmentReceived | Lost] = []
        self._former: Member | None = None  # as of a loss, until polls know of it: handed_out_as
        self._unassigned = False  # a membership has ended, and no later assignment is applied
        self._losses = 0  # counts every end of a membership
        self._departures = 0  # counts the ends by this member's own leave
        self._on_end: Callable[[], None] = lambda: None
        self._on_loss: Callable[[], None] = lambda: None

    def watch(self, *, ended: Callable[[], None], lost: Callable[[], None]) -> None:
        """Call ``ended``, under the lock, when a membership ends, and ``lost`` after a loss."""
        self._on_end, self._on_loss = ended, lost

    @property
    def member(self) -> Member:
        """The current member."""
        return self._member

    @property
    def handed_out_as(self) -> Member:
        """The member that owns the handed out records, for transactions of the application.

        Its generation is the newest while nothing is lost: in that one the member still owns
        earlier assignments. After a loss it is the member as of the loss, which the coordinator
        refuses, until the next assignment is applied, if the membership has ended, or until a poll
        has reported the loss, if only some partitions are lost.
        """
        with self.lock:
            return self._member if self._former is None else self._former

    def assigned_by_hand(self) -> None:
        """Manual assignment: later hand-outs belong to no membership."""
        with self.lock:
            self._former, self._unassigned = None, False

    # -- requests and their answers ---------------------------------------------------------------

    def attempt(self) -> Attempt:
        """The token of a request that starts now."""
        with self.lock:
            return Attempt(self._member, self._losses, self._departures)

    def overtaken(self, attempt: Attempt) -> bool:
        """Whether the membership in which the request started has ended."""
        return attempt.losses != self._losses

    def departed(self, attempt: Attempt) -> bool:
        """Whether that membership has ended because this member left."""
        return attempt.departures != self._departures

    def is_current(self, attempt: Attempt) -> bool:
        """Whether the member is still the same; otherwise a newer answer is in force."""
        with self.lock:
            return not self.overtaken(attempt) and attempt.member == self._member

    def accept(
        self, attempt: Attempt, member: Member, event: AssignmentReceived | None = None
    ) -> bool:
        """Apply the coordinator's answer: the new member, and possibly an assignment.

        Returns False if the attempt is overtaken; then nothing changes.
        """
        with self.lock:
            if self.overtaken(attempt):
                return False
            self._member = member
            if event is not None:
                self._events.append(event)
            return True

    def become(self, member: Member) -> None:
        """Change the id or generation; owned partitions stay owned."""
        with self.lock:
            self._member = member

    # -- the end of a membership ------------------------------------------------------------------

    def lose(self, reason: str, keep_member_id: bool = False) -> None:
        """Record the loss of everything owned, if the member has joined; any thread."""
        with self.lock:
            member = self._member
            if not member.joined:
                return
            kept = keep_member_id or self._id_survives
            self._end(Member(member_id=member.member_id if kept else UNKNOWN_MEMBER_ID))
            self._events = [Lost(reason)]  # invariant 1
        log.warning(
            "group %s: member %s of generation %d is out of the group: %s",
            self._group_id,
            member.member_id,
            member.generation,
            reason,
        )
        self._on_loss()

    def depart(self) -> Member:
        """Forget the membership, because this member ends it; return the member as it was."""
        with self.lock:
            member = self._member
            self._departures += 1
            self._end(Member())
            self._events = []
            return member

    def _end(self, member: Member) -> None:
        self._keep_former()
        self._unassigned = True
        self._losses += 1
        self._member = member
        self._on_end()

    # -- events -----------------------------------------------------------------------------------

    def offer(self, event: AssignmentReceived) -> None:
        """Queue this assignment, replacing any that is not applied yet."""
        with self.lock:
            self._events = [e for e in self._events if isinstance(e, Lost)]
            self._events.append(event)

    def lose_partitions(self, reason: str, partitions: frozenset[TopicPartition]) -> None:
        """Record the loss of only these partitions, ahead of the assignments not applied yet."""
        with self.lock:
            self._keep_former()
            losses = [e for e in self._events if isinstance(e, Lost)]
            waiting = [e for e in self._events if not isinstance(e, Lost)]
            self._events = [*losses, Lost(reason, partitions), *waiting]

    def next_event(self) -> AssignmentReceived | Lost | None:
        """The event that ``take_event`` takes."""
        with self.lock:
            return self._events[0] if self._events else None

    def take_event(self) -> AssignmentReceived | Lost | None:
        """The next event to apply, in order."""
        with self.lock:
            event = self._events.pop(0) if self._events else None
            if isinstance(event, AssignmentReceived):
                self._former, self._unassigned = None, False
            elif not self._unassigned and not self.loss_waits():
                self._former = None
            return event

    def _keep_former(self) -> None:
        """Keep the member as of the first loss that polls do not know of."""
        if self._former is None and self._member.joined:
            self._former = self._member

    def any_waits(self) -> bool:
        """Whether an event is still to be applied."""
        return bool(self._events)

    def loss_waits(self) -> bool:
        """Whether the next event is a loss."""
        with self.lock:
            return bool(self._events) and isinstance(self._events[0], Lost)

    def lost_of(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """The given partitions that are lost, although no poll has reported it yet."""
        with self.lock:
            losses = [event for event in self._events if isinstance(event, Lost)]
        return frozenset[TopicPartition]().union(*(loss.takes(partitions) for loss in losses))

    def refuse_lost(self, offsets: Mapping[TopicPartition, Committable]) -> None:
        """Raise PartitionsLostError, naming the partitions, if some are lost."""
        if self._events and (lost := self.lost_of(offsets)):  # called for every record
            raise not_owned({p: offsets[p] for p in lost})
