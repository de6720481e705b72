"""ProducerMember: the group member through which a producer owns source partitions."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kafka import errors as kafka_errors
from kafka.structs import OffsetAndMetadata, TopicPartition

from ...consumer.consumer import DeferredRevokeConsumer
from ...produce.producer import GroupMetadata
from ..options import ProducerOptions

#: Timeout of one request to the brokers; then it is sent again.
_ASK_MS = 5_000


class ProducerMember(DeferredRevokeConsumer):
    """A DeferredRevokeConsumer that is polled by a pump and reads nothing.

    The group's offsets for its topic are not positions of a reader. They identify the transaction
    that last committed an offset of a partition: TxnOffsetCommit makes the offset unstable until
    the transaction is decided, and the offset's metadata name the producer.

    Parameters
    ----------
    options : ProducerOptions
        The producer's options.
    """

    def __init__(self, options: ProducerOptions) -> None:
        super().__init__(**options.member)
        liveness = self._membership.parts.liveness
        liveness.pumping_counts = False
        liveness.max_silence_ms = options.session_timeout_ms
        liveness.silence = "no send, commit, poll or alive() for session_timeout_ms"
        self._topic = options.topic
        self._transactional_id = options.transactional_id
        self.subscribe([options.topic])

    def alive(self) -> None:
        """Note a sign of life from the application."""
        self._membership.polled()

    @property
    def revoking(self) -> frozenset[TopicPartition]:
        """The partitions that the group wants back and that are not given up yet."""
        return self._ownership.revoking

    def identity(self) -> GroupMetadata | None:
        """The group metadata to commit a transaction with; None if this member is lost. Any thread.

        In the classic protocol it has the generation whose assignment is in force. The assignment
        of a generation that is still being joined is not known yet. In the consumer protocol it has
        the member epoch: no other member is assigned what this one has not released.
        """
        record = self._membership.record
        member = record.member  # before the losses: after one, it may be a member joined anew
        if not member.joined or record.loss_waits() or record.lost_of(self.assignment()):
            return None
        generation = member.generation if self._membership.by_topic_id else self.generation
        return GroupMetadata(
            group_id=self.config["group_id"],
            generation_id=generation,
            member_id=member.member_id,
            group_instance_id=self.config["group_instance_id"],
        )

    def committed_by(self, partitions: Collection[int]) -> dict[int, OffsetAndMetadata]:
        """Return the group's offsets of these partitions, ignoring undecided transactions."""
        told = self._committed(partitions, stable=False)
        return {p: found for p, found in told.items() if isinstance(found, OffsetAndMetadata)}

    def stable_offsets(self, partitions: Collection[int]) -> dict[int, int | None]:
        """Return the group's offsets, without those that a transaction may yet change."""
        told = self._committed(partitions, stable=True)
        found: dict[int, int | None] = {}
        for p in partitions:
            answer = told.get(p)
            if answer is None:
                found[p] = None
            elif isinstance(answer, OffsetAndMetadata):
                found[p] = answer.offset
            elif answer is not kafka_errors.UnstableOffsetCommitError:
                raise answer(f"{self._topic}-{p}")
        return found

    def claim(self, offsets: Mapping[int, int]) -> None:
        """Commit these offsets with this producer's name as metadata; in the background."""
        self.commit_async(
            {
                TopicPartition(self._topic, p): OffsetAndMetadata(
                    offset, self._transactional_id, -1
                )
                for p, offset in offsets.items()
            },
            callback=_told,
        )

    def _committed(
        self, partitions: Collection[int], *, stable: bool
    ) -> dict[int, OffsetAndMetadata | type[Exception]]:
        asked = [TopicPartition(self._topic, p) for p in partitions]
        lane = self._membership.parts.lane

        async def ask() -> dict[TopicPartition, OffsetAndMetadata | type[Exception]]:
            if not await self._io.ensure_coordinator_ready_async(_ASK_MS):
                raise kafka_errors.CoordinatorNotAvailableError
            return await lane.committed(asked, stable=stable)

        told = self._io.loop.run(ask)
        return {p.partition: found for p, found in told.items()}


def _told(offsets: object, answer: object) -> None:
    """Ignore a refusal: it only takes longer to end this producer's transaction when it dies."""
