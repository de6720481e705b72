"""AssignClient: owns the partitions that a query names with ``assign``, while they exist.

It is not a member of the group, so nothing rebalances. It still commits to the group, for lag tools
and for the next reader (``simple_commits``). The first poll assigns everything, and no revoke is
ever requested. A partition is lost only when it is deleted; the planner handles that.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from uuid import UUID

from kafka import errors as kafka_errors
from kafka.protocol.consumer import DEFAULT_GENERATION_ID, UNKNOWN_MEMBER_ID
from kafka.structs import TopicPartition

from ....consumer.commits.simple_commits import SimpleCommits
from ....consumer.consumer import DeferredRevokeConsumer
from ....consumer.offsets.commit_metadata import GroupCommit, Remaining
from ....consumer.poll_result import PollResult
from ....errors import KafkaRebalanceError, MembershipError, names_of
from ..owned.deleted_partitions import TOPIC_IDS_TIMEOUT_MS, DeletedPartitions, ask_for_missing

log = logging.getLogger(__name__)

#: How often positions are recommitted. A group without members loses the offset of a partition that
#: was not committed for ``offsets.retention.minutes``, 7 days by default.
_COMMIT_ANEW_S = 3_600.0

#: Timeout of one topic look-up; a later poll tries again.
_LOOKUP_TIMEOUT_MS = 5_000


class AssignClient:
    """The :class:`QueryMember` of ``assign``.

    The client is subscribed to nothing, and closed together with this object, also if the
    constructor raises.

    Raises
    ------
    KafkaRebalanceError
        Some of the partitions do not exist; names them.
    AuthorizationError
        DESCRIBE is not granted on some of the topics.
    kafka.errors.KafkaError
        No broker answers.
    """

    def __init__(
        self, client: DeferredRevokeConsumer, partitions: Collection[TopicPartition]
    ) -> None:
        self._client = client
        self._wanted = frozenset(partitions)
        # The partitions that polls have reported as assigned.
        self._there: frozenset[TopicPartition] = frozenset()
        self._topic_ids: dict[TopicPartition, UUID] = {}  # theirs, as of when they were found
        self._has_read = False  # since the topic ids were last requested
        self._deletions = DeletedPartitions()
        # The group's commits before our first one.
        self._group_has: dict[TopicPartition, Remaining] = {}
        self._commit_anew_at = time.monotonic() + _COMMIT_ANEW_S
        group_id = client.config["group_id"]
        self._commits = SimpleCommits(
            client._io, client.config, lambda named, seen: has_members(group_id, named, seen)
        )
        try:
            if missing := self._ask_for_missing(client.config["request_timeout_ms"]):
                raise KafkaRebalanceError(
                    f"assign names partitions that do not exist: {names_of(missing)}"
                )
        except BaseException:
            self.close(timeout_ms=0)
            raise
        client.assign(sorted(self._wanted))
        self._commits.start()

    # -- as a QueryMember -------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        """Always -1, the generation of a client outside any group."""
        return int(DEFAULT_GENERATION_ID)

    @property
    def is_stable(self) -> bool:
        """Always True: there is no group to join."""
        return True

    @property
    def heard_at(self) -> float:
        """Always inf: there is no coordinator to wait for."""
        return math.inf

    @property
    def member_id(self) -> str:
        """Always empty: the client is not a group member."""
        return str(UNKNOWN_MEMBER_ID)

    @property
    def session_timeout_ms(self) -> float:
        """The configured value, used as a bound when waiting for other members."""
        return self._client.session_timeout_ms

    def may_hand_out(self) -> bool:
        """True unless commits have failed; a stalled process loses no partitions to others."""
        return not self._commits.have_failed

    def poll_membership(self) -> PollResult:
        """Report how the partitions have changed since the last poll; never waits for records.

        Raises MembershipError if the group refuses our commits.
        """
        self._commits.raise_failure()
        now = time.monotonic()
        if now >= self._commit_anew_at:
            self._commit_anew_at = now + _COMMIT_ANEW_S
            self._commit_anew()
        if not self._deletions.is_due():
            return PollResult()
        known = self._client.known_partitions(self._wanted)
        deleted = self._find_deleted(known)
        before, self._there = self._there, (self._there | known) - deleted
        found = self._there - before
        topic_ids = self._client.topic_ids({p.topic for p in found})
        self._topic_ids |= {p: topic_ids[p.topic] for p in found if p.topic in topic_ids}
        if deleted:
            self.forget_commits(deleted)
            for partition in deleted:
                self._topic_ids.pop(partition, None)
        return PollResult(assigned=self._there - before, lost=before - self._there)

    def delay_revoke(self, partitions: Iterable[TopicPartition]) -> bool:
        """Do nothing: no revoke is ever requested."""
        return True

    def leave_until_polled(self, reason: str) -> None:
        """Do nothing: there is no group to leave, and no other member to take over."""

    def close(self, *, timeout_ms: float | None) -> None:
        """Close the connections; there is no group to leave."""
        self._commits.end()
        self._client.close(timeout_ms=timeout_ms)

    def commit_processed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit as a member does: in the background, aggregated, one request at a time.

        Partitions that the coordinator did not know last time are left out until the next look-up
        has checked them: a caller with open commits may call this hundreds of times a second.
        """
        self._doubt_unknown()
        self._has_read = True
        in_doubt = self._deletions.in_doubt
        self._commits.add({p: offset for p, offset in offsets.items() if p not in in_doubt})

    def commit_remaining(self, remaining: Mapping[TopicPartition, Remaining]) -> None:
        """Commit as a member does; leaves out the same partitions as ``commit_processed``."""
        self._doubt_unknown()
        self._has_read = True
        in_doubt = self._deletions.in_doubt
        self._commits.add_remaining({p: left for p, left in remaining.items() if p not in in_doubt})

    def acknowledged_remaining(self, partition: TopicPartition) -> Remaining | None:
        """See :class:`QueryMember`."""
        return self._commits.acknowledged_remaining(partition)

    def acknowledged(self, partition: TopicPartition) -> int | None:
        """The partition's next offset, as last acknowledged by the broker."""
        return self._commits.acknowledged(partition)

    def committed_offsets(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, int]:
        """See :class:`QueryMember`."""
        found = self.group_commits(partitions, timeout_ms)
        return {p: left.committed() for p, (left, _) in found.items()}

    def group_commits(
        self, partitions: Collection[TopicPartition], timeout_ms: float, in_order: bool = False
    ) -> dict[TopicPartition, GroupCommit]:
        """See :class:`QueryMember`."""
        found = self._client.group_commits(partitions, timeout_ms)
        self._group_has.update({p: commit.remaining for p, commit in found.items()})
        if not in_order:
            return found
        return {
            p: GroupCommit(Remaining(left.committed()), origin)
            for p, (left, origin) in found.items()
        }

    def describe_commits(self, describe: Callable[[TopicPartition, int, int, str], str]) -> None:
        """See :class:`QueryMember`."""
        self._commits.describe = describe

    def forget_commits(self, partitions: Collection[TopicPartition]) -> None:
        """Drop the waiting commits of these, and allow a lower offset to be committed next."""
        self._commits.drop(partitions)
        for partition in partitions:
            self._group_has.pop(partition, None)

    def assigned_topic_id(self, partition: TopicPartition) -> UUID | None:
        """The topic's id when the partition was found."""
        return self._topic_ids.get(partition)

    def take_unknown(self) -> frozenset[TopicPartition]:
        """Always empty: this client itself checks partitions the coordinator does not know."""
        return frozenset()

    def drain(self, timeout_ms: float) -> bool:
        """Wait until all commits are acknowledged; False if they are not within ``timeout_ms``."""
        return self._commits.drain(timeout_ms)

    # -- partitions -------------------------------------------------------------------------------

    def _commit_anew(self) -> None:
        """Recommit the group's offsets, so that offsets of quiet partitions do not expire.

        With the gaps of an earlier run's commit: a commit without them would replace them.
        """
        quiet = {p for p in self._there if not self._commits.outstanding(p)}
        own = {p: at for p in quiet if (at := self._commits.acknowledged(p)) is not None}
        self._commits.add_again(own)
        before = {p: self._group_has[p] for p in quiet - own.keys() if p in self._group_has}
        self._commits.add_remaining(before)

    def _doubt_unknown(self) -> None:
        """Have the partitions checked that the coordinator did not know: they may be deleted."""
        self._deletions.doubt(self._commits.take_unknown() & self._wanted)

    def _find_deleted(self, known: frozenset[TopicPartition]) -> frozenset[TopicPartition]:
        """The previously found partitions that no longer exist; see DeletedPartitions."""
        self._doubt_unknown()
        missing: frozenset[TopicPartition] = frozenset()
        try:
            replaced = self._in_another_topic(self._ids_now_and_then())
            if suspects := self._deletions.suspects(self._there, known) | replaced:
                missing = suspects & self._ask_for_missing(_LOOKUP_TIMEOUT_MS)
                now = self._client.topic_ids({p.topic for p in suspects})
                replaced = (self._in_another_topic(now) & suspects) - missing
        except kafka_errors.KafkaError as error:
            log.warning("cannot check whether all partitions exist: %r", error)
            return frozenset()
        replaced = self._deletions.in_another_topic(replaced)
        return self._deletions.answered(missing) | replaced

    def _ids_now_and_then(self) -> dict[str, UUID]:
        """The topics' ids: from the cached metadata, or requested now when that is due."""
        topics = {p.topic for p in self._topic_ids}
        if self._deletions.wants_topic_ids(self._has_read):
            self._has_read = False
            return self._client.topic_ids_now(topics, TOPIC_IDS_TIMEOUT_MS)
        return self._client.topic_ids(topics)

    def _in_another_topic(self, topic_ids: Mapping[str, UUID]) -> frozenset[TopicPartition]:
        """The partitions that were found in another topic of the same name."""
        return frozenset(
            p for p, found in self._topic_ids.items() if topic_ids.get(p.topic, found) != found
        )

    def _ask_for_missing(self, timeout_ms: float) -> frozenset[TopicPartition]:
        """The partitions that do not exist, according to freshly fetched metadata."""
        return ask_for_missing(self._client, self._wanted, "assign", timeout_ms)


def has_members(group_id: str, partitions: str, seen: str) -> MembershipError:
    """The error for a group that has active members: only they may commit to it.

    ``seen`` is the coordinator's error, or the members.
    """
    return MembershipError(
        f"group {group_id!r} has active members ({seen}), so it accepts no offsets for the "
        f"partitions of assign: {partitions}; use a group without members, or subscribe"
    )
