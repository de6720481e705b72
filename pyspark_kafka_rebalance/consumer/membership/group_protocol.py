"""GroupProtocol: what the two group protocols do for a member, each in its own way."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from kafka.structs import TopicPartition

from ..protocol.member_record import AssignmentReceived, Member


class GroupProtocol(Protocol):
    """How to join, what a heartbeat says, and what its answer means.

    ``ClassicProtocol`` and ``NextGenerationProtocol`` get a member's ``MemberParts``. They send
    over its lane and write its record; ``GroupMembership`` calls them. Coroutines run on the I/O
    loop, ``applied``, ``released`` and ``leave`` on the thread that polls.

    Attributes
    ----------
    by_topic_id : bool
        Whether partitions are assigned by topic id: those of a topic created anew are revoked and
        assigned again.
    """

    by_topic_id: bool

    async def run(self) -> None:
        """Do what goes on besides the heartbeats, until the member is no longer active."""

    def wake(self) -> None:
        """Something changed that ``run`` must look at."""

    def until_beat(self) -> float:
        """Seconds until the next heartbeat is due; it is due now if not positive."""

    async def beat(self) -> None:
        """Send one heartbeat and draw the consequences of its answer."""

    def is_stable(self) -> bool:
        """Whether it has joined, with nothing under way and no assignment to be applied."""

    def taken(self, event: AssignmentReceived) -> None:
        """The consumer begins to apply the assignment; the record is locked."""

    def applied(self, event: AssignmentReceived) -> None:
        """The assignment is in force."""

    def released(self, partitions: Collection[TopicPartition]) -> None:
        """The partitions are given up, so that they can go to their new owner."""

    def on_metadata_update(self) -> None:
        """Topics or partitions may have changed, or the subscription."""

    def forget(self) -> None:
        """The membership ended, and with it whatever was under way; the record is locked."""

    def leave(self, member: Member, reason: str, timeout_ms: float | None) -> None:
        """Tell the coordinator that this member leaves; here it is already forgotten."""

    async def leave_async(self, member: Member, reason: str) -> None:
        """The same on the I/O loop."""
