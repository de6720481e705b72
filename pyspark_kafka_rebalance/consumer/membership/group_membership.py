"""GroupMembership: one member of a consumer group, in either protocol.

It runs on the consumer's I/O loop, so heartbeats continue however rarely the application polls.
Other modules decide: the member's identity and events (``member_record.py``), when to heartbeat and
whether the application is alive (``liveness.py``), the meaning of errors
(``coordinator_answers.py``), and how to join (``classic.py`` or ``next_generation.py``;
``chosen_protocol`` chooses). Two places decide at a heartbeat that the membership is lost: ``beat``
there, and ``lose_if_expired`` here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from kafka import KafkaConsumer
from kafka.structs import TopicPartition

from ...errors import UnsupportedBrokerError
from ..commits.commit_by_hand import EnteredCommit
from ..kafka_python.questions import offers_consumer_protocol
from ..member_record import AssignmentReceived, Lost, Member, refuse_strangers
from ..observer import Observed
from ..offsets.committable import Committable
from . import classic, next_generation
from .classic import ClassicProtocol
from .member_parts import GroupProtocol, MemberCallbacks, MemberParts
from .next_generation import NextGenerationProtocol

if TYPE_CHECKING:
    from ..kafka_python.coordinator import GroupCoordinator

log = logging.getLogger(__name__)


class GroupMembership:
    """The membership, as the consumer and the seam to kafka-python see it.

    ``committable`` returns the partitions that may be committed: owned, and their revoke not
    completed.
    """

    def __init__(
        self,
        parts: MemberParts,
        protocol: GroupProtocol,
        committable: Callable[[], frozenset[TopicPartition]],
    ) -> None:
        self.record = parts.record
        self.protocol = protocol
        self.commits = parts.commits
        self.lease = parts.lease
        self.parts = parts
        self._committable = committable
        self._started = False
        parts.record.watch(ended=self._ended, lost=self._wake)

    # -- read by any thread -----------------------------------------------------------------------

    @property
    def handed_out_as(self) -> Member:
        """``MemberRecord.handed_out_as``."""
        return self.record.handed_out_as

    def is_stable(self) -> bool:
        """Whether it has joined, with nothing under way and no assignment to be applied."""
        return self.protocol.is_stable()

    # -- called by the consumer, on the thread that polls -----------------------------------------

    def start(self) -> None:
        """Start the loops; idempotent. The first call is the first poll."""
        if not self._started:
            self._started = True
            self.parts.liveness.alive()
            commit_loop = partial(self.commits.run, self.parts.active)
            for loop in (self.protocol.run, self._heartbeat_loop, commit_loop):
                self.parts.loop.spawn(self._guarded, loop)

    def polled(self) -> None:
        """The application is alive (``max_poll_interval_ms`` counts from here)."""
        if self.parts.liveness.alive():
            self._wake()

    def pumped(self) -> None:
        """A poll without records; a sign of life only if ``Liveness.pumping_counts``."""
        if self.parts.liveness.pumped():
            self._wake()

    def raise_if_failed(self) -> None:
        """Raise the error that ended the membership for good."""
        if self.record.failure is not None:
            raise self.record.failure

    def take_event(self) -> AssignmentReceived | Lost | None:
        """The next event to apply, in order."""
        with self.record.lock:
            event = self.record.take_event()
            if isinstance(event, AssignmentReceived):
                self.protocol.taken(event)
            return event

    def loss_waits(self) -> bool:
        """Whether the next event is a loss."""
        return self.record.loss_waits()

    def lose_if_expired(self) -> None:
        """Lose the membership if no heartbeat has succeeded for the session timeout; any thread.

        Also asked by every call that commits or reports progress: a process that was suspended may
        make such a call before its I/O loop runs.
        """
        if not self.lease.expired():  # called for every record, so without the lock
            return
        with self.record.lock:
            if self.lease.expired():  # it may have been lost, and joined again, in the meantime
                self.record.lose(
                    f"no successful heartbeat for {self.lease.session_timeout_ms:g} ms",
                    keep_member_id=True,
                )

    def commit(self, offsets: Mapping[TopicPartition, Committable]) -> None:
        """Commit these next offsets when the lane is free, merged with the waiting ones.

        Raises PartitionsLostError if one of the partitions is lost, even if no poll has reported
        that yet.
        """
        with self.record.lock:
            self.record.refuse_lost(offsets)
            self.commits.add(offsets)

    def commit_by_hand(self, by_hand: EnteredCommit) -> None:
        """Send an explicit commit, in one order with all other commits.

        Raises PartitionsLostError as ``commit``, or if one is not owned; also outside a generation,
        where the broker would take it for the commit of a group without members and accept it.
        """
        committable = self._committable()
        with self.record.lock:
            joined = self.record.member.joined
            refuse_strangers(by_hand.offsets, committable if joined else frozenset())
            self.record.refuse_lost(by_hand.offsets)
            self.commits.enter(by_hand)

    @property
    def by_topic_id(self) -> bool:
        """Whether the partitions of a recreated topic are revoked and assigned again."""
        return self.protocol.by_topic_id

    def on_metadata_update(self) -> None:
        """Topics or partitions may have changed."""
        self.protocol.on_metadata_update()

    def leave(self, timeout_ms: float | None = None, reason: str = "unsubscribed") -> None:
        """Leave the group over the lane."""
        self.protocol.leave(self.record.depart(), reason, timeout_ms)

    def leave_until_polled(self, reason: str) -> None:
        """Leave the group now, as if the application did not poll; the next poll joins again."""
        self.parts.loop.spawn(self._leave_idle, reason)

    def close(self, timeout_ms: float | None = None) -> None:
        """Leave the group and end the loops."""
        if self.record.closed:
            return
        self.record.closed = True
        try:
            self.leave(timeout_ms, "closed")
        finally:
            self._wake()
            self.commits.wake()

    # -- the I/O loop -----------------------------------------------------------------------------

    def _ended(self) -> None:
        """The membership ended; the record is locked."""
        self.commits.forget_all()
        self.lease.give_up()
        self.protocol.forget()

    def _wake(self) -> None:
        """Wake the waiting loops to check for changes."""
        self.parts.heartbeat_alarm.notify()
        self.protocol.wake()

    async def _guarded(self, loop: Callable[[], Any]) -> None:
        """Run a loop; if it dies, the membership ends and the next poll raises the reason."""
        group_id = self.parts.group_id
        try:
            await loop()
        except Exception as error:
            if self.record.closed or self.parts.loop.closed:
                # The connections that the loop waited on are closed.
                log.debug("group %s: a loop ended as the client was closed: %r", group_id, error)
                return
            log.exception("group %s: the membership's loop failed", group_id)
            self.record.failure = error

    async def _heartbeat_loop(self) -> None:
        parts = self.parts
        while parts.active():
            wait = self.protocol.until_beat()
            if wait > 0:
                await parts.heartbeat_alarm(wait)
                continue
            parts.schedule.sent()
            self.lose_if_expired()
            if parts.liveness.silent_too_long():
                await self._leave_idle(parts.liveness.verdict)
                continue
            await self.protocol.beat()

    async def _leave_idle(self, reason: str) -> None:
        """Leave, and stay out of the group until the next poll."""
        member = self.record.member
        self.parts.liveness.stay_out()
        self.record.lose(reason)
        await self.protocol.leave_async(member, reason)


def chosen_protocol(consumer: KafkaConsumer, group_protocol: str) -> str:
    """Choose ``"classic"`` or ``"consumer"``, depending on the brokers.

    If ``group_protocol`` is ``"classic"``, no broker is asked.

    Raises UnsupportedBrokerError if ``"consumer"`` is requested and not offered.
    """
    if group_protocol == "classic":
        return group_protocol
    offered = offers_consumer_protocol(consumer)
    if not offered and group_protocol == "consumer":
        raise UnsupportedBrokerError(
            "the brokers do not offer the consumer group protocol (KIP-848: Apache Kafka 4.0 "
            "or later, with the feature group.version at 1); use group_protocol='classic'"
        )
    chosen = "consumer" if offered else "classic"
    log.info("group %s: the %s protocol", consumer.config["group_id"], chosen)
    return chosen


def membership_in(
    protocol: str,
    group_remote_assignor: str | None,
    io: GroupCoordinator,
    config: Mapping[str, Any],
    callbacks: MemberCallbacks,
    observed: Observed,
) -> GroupMembership:
    """Create a member that speaks this protocol."""
    spoken: GroupProtocol
    parts = MemberParts(
        io,
        config,
        classic.RULES if protocol == "classic" else next_generation.RULES,
        callbacks=callbacks,
        observed=observed,
        topic_id_of=lambda partition: spoken.topic_id_of(partition),
    )
    if protocol == "classic":
        spoken = ClassicProtocol(parts, callbacks.revoking)
    else:
        spoken = NextGenerationProtocol(parts, group_remote_assignor)
    return GroupMembership(parts, spoken, callbacks.committable)
