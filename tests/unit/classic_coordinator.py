"""A coordinator of the classic protocol, as a model.

Written from what the broker does (``GroupCoordinator``): JoinGroup is held until all members have
joined, also those that were given an id and have not come back with it; a generation outlives the
coordinator's broker once the leader's assignment has come.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace as Fields
from typing import Any

from consumer_protocol_coordinator import Clock
from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

Reply = Callable[[Any], None]

_NO_ASSIGNMENT = b""


@dataclass
class Seat:
    """A member as the coordinator knows it."""

    metadata: bytes
    heard_at: float
    assignment: bytes = _NO_ASSIGNMENT
    #: What holds a JoinGroup or a SyncGroup of it.
    joining: Reply | None = None
    syncing: Reply | None = None


@dataclass
class Group:
    """What a coordinator knows of its group."""

    state: str = "Empty"
    generation: int = 0
    leader: str = ""
    seats: dict[str, Seat] = field(default_factory=dict)
    #: Those that were given an id and have not joined with it, since when.
    named: dict[str, float] = field(default_factory=dict)


def failed(error: type[Exception], **fields: Any) -> Any:
    return Fields(error_code=error.errno, **fields)  # type: ignore[attr-defined]


class ClassicCoordinator:
    """Answers requests by calling ``reply``, at once or when the group is complete."""

    def __init__(self, clock: Clock, session_s: float) -> None:
        self.clock = clock
        self.session_s = session_s
        self.group = Group()
        self.committed: dict[TopicPartition, int] = {}
        self.on_commit: Callable[[str, TopicPartition], None] = lambda *_: None
        self._written = copy.deepcopy(self.group)
        self._ids = 0

    def receive(self, request: Any, reply: Reply) -> None:
        self.expire()
        {
            "JoinGroupRequest": self._join,
            "SyncGroupRequest": self._sync,
            "HeartbeatRequest": self._heartbeat,
            "OffsetCommitRequest": self._commit,
            "LeaveGroupRequest": self._leave,
        }[type(request).__name__](request, reply)

    def fail_over(self) -> None:
        """Another broker takes over, and knows what was written. Connections are broken."""
        self.group = copy.deepcopy(self._written)
        for seat in self.group.seats.values():
            seat.heard_at = self.clock.now

    def expire(self) -> None:
        """Who was silent for its session is out; who waits for its join to be answered is not."""
        group, now = self.group, self.clock.now
        for member_id, since in list(group.named.items()):
            if now - since >= self.session_s:
                del group.named[member_id]
        for member_id, seat in list(group.seats.items()):
            if seat.joining is None and now - seat.heard_at >= self.session_s:
                self.remove(member_id)
        self._complete()

    # -- joining ----------------------------------------------------------------------------------

    def _join(self, request: Any, reply: Reply) -> None:
        group, member_id = self.group, request.member_id
        (metadata,) = [p.metadata if hasattr(p, "metadata") else p[1] for p in request.protocols]
        if not member_id:
            self._ids += 1
            named = f"m{self._ids}"
            group.named[named] = self.clock.now
            reply(failed(kafka_errors.MemberIdRequiredError, member_id=named))
            return
        if group.named.pop(member_id, None) is not None:
            group.seats[member_id] = Seat(metadata, self.clock.now)
            self._rebalance()
        elif member_id not in group.seats:
            reply(failed(kafka_errors.UnknownMemberIdError))
            return
        seat = group.seats[member_id]
        same = seat.metadata == metadata
        seat.metadata, seat.heard_at = metadata, self.clock.now
        if group.state == "Completing" and same:
            reply(self._joined(member_id))  # it did not get the answer
            return
        if group.state == "Stable" and same and member_id != group.leader:
            reply(self._joined(member_id))
            return
        if group.state != "Preparing":
            self._rebalance()
        seat.joining = reply
        self._complete()

    def _rebalance(self) -> None:
        for seat in self.group.seats.values():
            if seat.syncing is not None:
                seat.syncing(failed(kafka_errors.RebalanceInProgressError))
                seat.syncing = None
        self.group.state = "Preparing"

    def _complete(self) -> None:
        group = self.group
        if group.state != "Preparing" or group.named:
            return
        if any(seat.joining is None for seat in group.seats.values()):
            return
        group.generation += 1
        if not group.seats:
            group.state, group.leader = "Empty", ""
            self._write()
            return
        group.state = "Completing"
        if group.leader not in group.seats:
            group.leader = next(iter(group.seats))
        for member_id, seat in group.seats.items():
            reply, seat.joining = seat.joining, None
            seat.heard_at, seat.assignment = self.clock.now, _NO_ASSIGNMENT
            assert reply is not None
            reply(self._joined(member_id))

    def _joined(self, member_id: str) -> Any:
        group = self.group
        leads = member_id == group.leader
        members = group.seats.items() if leads else ()
        return Fields(
            error_code=0,
            API_VERSION=9,
            skip_assignment=False,
            generation_id=group.generation,
            member_id=member_id,
            protocol_name="cooperative-sticky",
            leader=group.leader,
            members=[Fields(member_id=name, metadata=s.metadata) for name, s in members],
        )

    def _sync(self, request: Any, reply: Reply) -> None:
        group, seat = self.group, self._seat(request, reply)
        if seat is None:
            return
        if group.state == "Preparing":
            reply(failed(kafka_errors.RebalanceInProgressError))
            return
        seat.heard_at = self.clock.now
        if group.state == "Stable":
            reply(Fields(error_code=0, assignment=seat.assignment))
            return
        seat.syncing = reply
        if request.member_id != group.leader:
            return
        for member_id, assignment in request.assignments:
            group.seats[member_id].assignment = assignment.encode()
        group.state = "Stable"
        for other in group.seats.values():
            answer, other.syncing = other.syncing, None
            other.heard_at = self.clock.now
            if answer is not None:
                answer(Fields(error_code=0, assignment=other.assignment))
        self._write()

    def _write(self) -> None:
        held = [(seat, seat.joining) for seat in self.group.seats.values()]
        assert all(reply is None for _, reply in held)
        self._written = copy.deepcopy(self.group)
        self._written.named = {}

    # -- the lane ---------------------------------------------------------------------------------

    def _heartbeat(self, request: Any, reply: Reply) -> None:
        seat = self._seat(request, reply)
        if seat is None:
            return
        seat.heard_at = self.clock.now
        rebalances = self.group.state == "Preparing"
        reply(failed(kafka_errors.RebalanceInProgressError if rebalances else kafka_errors.NoError))

    def _commit(self, request: Any, reply: Reply) -> None:
        codes: list[Any] = []
        seat = self._seat(request, codes.append, request.generation_id_or_member_epoch)
        code = codes[0].error_code if codes else 0
        if seat is not None:
            seat.heard_at = self.clock.now
            if self.group.state == "Completing":
                code = kafka_errors.RebalanceInProgressError.errno
        topics = []
        for topic in request.topics:
            answers = []
            for p in topic.partitions:
                answers.append(Fields(partition_index=p.partition_index, error_code=code))
                if code == 0:
                    partition = TopicPartition(topic.name, p.partition_index)
                    self.on_commit(request.member_id, partition)
                    self.committed[partition] = p.committed_offset
            topics.append(Fields(name=topic.name, partitions=answers))
        reply(Fields(topics=topics))

    def _leave(self, request: Any, reply: Reply) -> None:
        (identity,) = request.members
        group, member_id = self.group, identity.member_id
        if group.named.pop(member_id, None) is not None:
            self._complete()
            reply(failed(kafka_errors.NoError))
        elif member_id in group.seats:
            self.remove(member_id)
            self._complete()
            reply(failed(kafka_errors.NoError))
        else:
            reply(failed(kafka_errors.UnknownMemberIdError))

    def remove(self, member_id: str) -> None:
        """What is held of it is answered; of a SyncGroup the broker leaves that to the timeout."""
        seat = self.group.seats.pop(member_id)
        for reply in (seat.joining, seat.syncing):
            if reply is not None:
                reply(failed(kafka_errors.UnknownMemberIdError))
        if self.group.state != "Preparing":
            self._rebalance()

    def _seat(self, request: Any, reply: Reply, generation: int | None = None) -> Seat | None:
        """The member's, if it is in the group's generation."""
        seat = self.group.seats.get(request.member_id)
        generation = request.generation_id if generation is None else generation
        if seat is None:
            reply(failed(kafka_errors.UnknownMemberIdError))
        elif generation != self.group.generation:
            reply(failed(kafka_errors.IllegalGenerationError))
        else:
            return seat
        return None
