"""FixedAssignment: the client of a query that names its partitions itself (``assign``).

Kafka's simple consumer: it is no member of the group, so nothing rebalances, and it commits to the
group all the same, for lag tools and for whoever reads on. OffsetCommit v2-8 with generation -1 and
an empty member id, which a coordinator accepts only as long as the group has no members.

It answers what ``QueryMembership`` asks of a member: everything is assigned with the first poll,
and no revoke is ever requested. A partition goes only when it is deleted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from typing import Any

from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from ..consumer.commit_loop import CommitLoop
from ..consumer.deferred import DeferredRevokeConsumer, PollResult
from ..consumer.lane import Lane, Member, Verdict
from ..errors import DataLossError, KafkaRebalanceError, MembershipError, names_of
from ..fetch.connections import explain_final
from .deleted_partitions import DeletedPartitions, ask_for_missing

log = logging.getLogger(__name__)

#: How often positions are committed anew. A group without members loses the offset of a partition
#: that was not committed for ``offsets.retention.minutes``, 7 days by default.
_COMMIT_ANEW_S = 3_600.0

#: How long one look-up of the topics may take before a later poll tries again.
_LOOKUP_TIMEOUT_MS = 5_000


class FixedAssignment(DeferredRevokeConsumer):
    """A client that reads the same partitions for as long as it lives.

    Parameters
    ----------
    partitions : collection of TopicPartition
        What it reads.
    fail_on_data_loss : bool
        Whether a partition that is deleted is an error of :meth:`poll_membership`.
    **config
        Those of ``DeferredRevokeConsumer``.

    Raises
    ------
    KafkaRebalanceError
        Some of the partitions do not exist; names them.
    AuthorizationError
        Some of the topics may not be described.
    kafka.errors.KafkaError
        No broker answers.
    """

    def __init__(
        self, partitions: Collection[TopicPartition], fail_on_data_loss: bool, **config: Any
    ) -> None:
        super().__init__(**config)
        self._wanted = frozenset(partitions)
        self._fail_on_data_loss = fail_on_data_loss
        # What polls have told.
        self._there: frozenset[TopicPartition] = frozenset()
        self._deletions = DeletedPartitions()
        self._group_has: dict[TopicPartition, int] = {}  # before our first commit
        self._commit_anew_at = time.monotonic() + _COMMIT_ANEW_S
        self._in_doubt = False  # the coordinator does not know a partition
        self._failure: KafkaRebalanceError | None = None
        self._ended = False
        lane = Lane(self._io, self._group_id, None, self.config["request_timeout_ms"], 8)
        nobody = Member()
        self._by_hand = CommitLoop(
            self._io,
            lane,
            self.config["retry_backoff_ms"] / 1000,
            member=lambda: nobody,
            on_accepted=lambda sent_at: None,
            on_verdict=self._consider,
            clock=time.monotonic,
        )
        try:
            if missing := self._ask_for_missing(self.config["request_timeout_ms"]):
                raise KafkaRebalanceError(f"assign names what does not exist: {names_of(missing)}")
        except BaseException:
            self.close(timeout_ms=0)
            raise
        self.assign(sorted(self._wanted))
        self._io.spawn(self._commit_by_hand)

    # -- what QueryMembership asks of a member ----------------------------------------------------

    def poll_membership(self) -> PollResult:
        """What has become of the partitions since the last poll; never waits for records.

        Raises
        ------
        MembershipError
            The group does not take our commits.
        DataLossError
            A partition was deleted, and that is not to be passed over.
        """
        self._raise_failure()
        now = time.monotonic()
        if now >= self._commit_anew_at:
            self._commit_anew_at = now + _COMMIT_ANEW_S
            self._commit_anew()
        if not self._deletions.is_due():
            return PollResult()
        known = self.known_partitions(self._wanted)
        deleted = self._find_deleted(known)
        before, self._there = self._there, (self._there | known) - deleted
        if deleted:
            self.forget_commits(deleted)
            text = f"{names_of(deleted)} deleted"
            if self._fail_on_data_loss:
                raise DataLossError(
                    f"records are gone from Kafka ({text}); to go on without them, set "
                    "failOnDataLoss=false"
                )
            log.warning("records are gone from Kafka, going on without them: %s", text)
        return PollResult(assigned=self._there - before, lost=before - self._there)

    def commit_processed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """As a member's: in the background, aggregated, one at a time."""
        self._by_hand.add(offsets)

    def acknowledged(self, partition: TopicPartition) -> int | None:
        """The next offset of the partition that the broker acknowledged last."""
        return self._by_hand.acknowledged(partition)

    def forget_commits(self, partitions: Collection[TopicPartition]) -> None:
        """Send nothing more of what waits, and let a lower offset be committed next."""
        self._by_hand.drop(partitions)
        for partition in partitions:
            self._group_has.pop(partition, None)

    def committed_offsets(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, int]:
        """As a member's."""
        found = super().committed_offsets(partitions, timeout_ms)
        self._group_has.update(found)
        return found

    @property
    def is_stable(self) -> bool:
        """There is nothing to join."""
        return True

    def may_hand_out(self) -> bool:
        """Nobody takes the partitions away, however long this process stood still."""
        return self._failure is None

    def drain(self, timeout_ms: float) -> bool:
        """Wait until all commits are acknowledged; False when they are not by ``timeout_ms``."""
        deadline = time.monotonic() + timeout_ms / 1000
        while self._by_hand.any_outstanding():
            self._raise_failure()
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.002)
        return True

    def close(self, autocommit: bool = True, timeout_ms: float | None = None) -> None:
        """Close the connections; there is no group to leave."""
        self._ended = True
        self._by_hand.wake()
        super().close(autocommit, timeout_ms)

    def _commit_anew(self) -> None:
        """Commit once more what the group has, lest it forgets quiet partitions."""
        offsets = {}
        for partition in self._there:
            acknowledged = self._by_hand.acknowledged(partition)
            offset = self._group_has.get(partition) if acknowledged is None else acknowledged
            if offset is not None and not self._by_hand.outstanding(partition):
                offsets[partition] = offset
        self._by_hand.drop(offsets)  # what is acknowledged would not be sent
        self._by_hand.add(offsets)

    # -- partitions -------------------------------------------------------------------------------

    def _find_deleted(self, known: frozenset[TopicPartition]) -> frozenset[TopicPartition]:
        """Of the partitions that were there, those that are gone; see DeletedPartitions."""
        if self._in_doubt:
            self._in_doubt = False
            self._deletions.doubt(self._there)
        missing: frozenset[TopicPartition] = frozenset()
        if suspects := self._deletions.suspects(self._there, known):
            try:
                missing = suspects & self._ask_for_missing(_LOOKUP_TIMEOUT_MS)
            except kafka_errors.KafkaError as error:
                log.warning("not known whether all partitions exist: %r", error)
                return frozenset()
        return self._deletions.answered(missing)

    def _ask_for_missing(self, timeout_ms: float) -> frozenset[TopicPartition]:
        """Those of the partitions that do not exist, by metadata that are fetched now."""
        return ask_for_missing(self, self._wanted, "assign", timeout_ms)

    # -- commits, on the I/O loop -----------------------------------------------------------------

    async def _commit_by_hand(self) -> None:
        try:
            await self._by_hand.run(self._active)
        except Exception as error:  # raised by the next poll
            if self._ended or self._io.loop_closed:
                log.debug("group %s: the commits ended with the client: %r", self._group_id, error)
                return
            log.exception("group %s: the commits ended", self._group_id)
            self._failure = KafkaRebalanceError(f"group {self._group_id!r}: {error!r}")
            self._failure.__cause__ = error

    def _active(self) -> bool:
        return not self._ended and not self._io.loop_closed and self._failure is None

    def _consider(self, verdict: Verdict, error: type[Exception], detail: str) -> None:
        """Draw the consequences of an answer that was not an acceptance."""
        if verdict is Verdict.COORDINATOR_GONE:
            self._io.coordinator_dead(error.__name__)
        elif verdict is Verdict.NO_SUCH_PARTITION:
            self._in_doubt = True
        elif verdict in (Verdict.AFTER_JOIN, Verdict.FENCED):
            self._failure = has_members(self._group_id, detail, error.__name__)
        elif verdict is not Verdict.BUSY:
            doing = f"committing {detail} to group {self._group_id!r}"
            final = error(detail)
            self._failure = explain_final(final, doing) or KafkaRebalanceError(
                f"{doing}: {final!r}"
            )

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


def has_members(group_id: str, partitions: str, seen: str) -> MembershipError:
    """The error where a group has members, to whom alone its offsets belong.

    Parameters
    ----------
    group_id : str
        The group.
    partitions : str
        Whose offsets it does not take.
    seen : str
        The coordinator's error, or the members.
    """
    return MembershipError(
        f"group {group_id!r} has active members ({seen}), so it takes no offsets of partitions "
        f"that assign names: {partitions}; name a group without members, or subscribe"
    )
