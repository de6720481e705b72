"""CommitLoop: sends the commits of OffsetCommits over the lane, one at a time.

It continues during joins. A commit refused for its generation is sent again after the join. Commits
of lost partitions are forgotten, and never sent by a later generation. Explicit commits share one
order with background commits; each has a future for its outcome.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from kafka import errors as kafka_errors
from kafka.structs import OffsetAndMetadata, TopicPartition

from ...errors import names_of
from ..member_record import Member, not_owned
from ..observer import Observed
from ..offsets.commit_metadata import DEFAULT_METADATA_BYTES
from ..offsets.committable import Committable
from ..protocol.coordinator_answers import Verdict, verdict_of
from ..protocol.lane import Lane
from .commit_by_hand import CommitByHand, EnteredCommit, final_error
from .kept_metadata import KeptMetadata
from .offset_commits import ChangedGaps, OffsetCommits

if TYPE_CHECKING:
    from ..kafka_python.coordinator import GroupCoordinator

log = logging.getLogger(__name__)

#: Makes the metadata of a commit; see ``CommitLoop``.
MetadataOf = Callable[[TopicPartition, int, int, CommitByHand | None], str]

_REFUSALS = (Verdict.REFUSED, Verdict.NO_SUCH_PARTITION)
_FINAL = (Verdict.ACCEPTED, *_REFUSALS)

#: The loop checks this often even if there is nothing to send.
_IDLE_S = 5.0

#: The pause between background commits while partitions catch up. Each poll of a gap adds one:
#: hundreds a second would keep the broker busy, and this loop, which also fetches live records.
_REST_S = 0.02


class CommitLoop:
    """Sends the commits of one member. Its lock nests inside that of ``MemberRecord``.

    ``member`` returns the current member; None while it may not commit. ``on_accepted`` is called
    with the send time of an accepted commit, which renews the lease. ``on_verdict`` is called for
    every other answer to the current member, with the partitions, or the reason why there was no
    answer; but not for a refused explicit commit, whose future gets the error. ``metadata_of``
    makes the metadata of a commit that has none, from the partition, the offset, the limit in
    bytes, and the explicit commit, if it is one.
    """

    def __init__(
        self,
        io: GroupCoordinator,
        lane: Lane,
        backoff_s: float,
        *,
        member: Callable[[], Member | None],
        on_accepted: Callable[[float], None],
        on_verdict: Callable[[Verdict, type[Exception], str], None],
        clock: Callable[[], float],
        metadata_of: MetadataOf = lambda *_: "",
        catches_up: Callable[[], bool] = lambda: False,
        observed: Observed | None = None,
    ) -> None:
        self._io = io
        self._lane = lane
        self._backoff_s = backoff_s
        self._member = member
        self._on_accepted = on_accepted
        self._on_verdict = on_verdict
        self._clock = clock
        self._lock = threading.Lock()
        self._commits = OffsetCommits()
        self._unknown: frozenset[TopicPartition] = frozenset()  # to the broker, not reported yet
        self._withdrawn: list[tuple[CommitByHand, Exception]] = []  # their futures not done yet
        self._ended = False
        self._metadata_of = metadata_of
        self._catches_up = catches_up
        self._observed = observed or Observed()
        self._rests = False
        self._metadata_bytes = DEFAULT_METADATA_BYTES
        self._kept = KeptMetadata(lane)
        self._changed = ChangedGaps()
        self._alarm = io.loop.alarm()

    # -- any thread -------------------------------------------------------------------------------

    # Every record may add a commit, and waking the loop costs a system call and a switch of the
    # interpreter lock, which fetches wait for. The loop is not woken while a commit awaits its
    # answer or its retry, or while it rests: it checks again anyway.

    def add(self, offsets: Mapping[TopicPartition, Committable]) -> None:
        """Commit these next offsets when the lane is free, merged with the waiting ones."""
        with self._lock:
            looks_again = self._rests or self._commits.any_outstanding()
            self._commits.add(offsets)
        if not looks_again:
            self.wake()

    def tell_gaps(self, offsets: Mapping[TopicPartition, Committable]) -> None:
        """Commit soon: the offsets are unchanged, but the progress beyond them is not."""
        with self._lock:
            outstanding = bool(self._changed) or self._commits.any_outstanding()
            looks_again = self._rests or self._ended or outstanding
            if not self._ended:
                self._changed.note(offsets)
        if not looks_again:
            self.wake()

    def begin(self, partition: TopicPartition, offset: int, described: bool) -> None:
        """Note a former owner's commit, maybe ``described`` with the application's own metadata."""
        with self._lock:
            self._commits.begin(partition, offset, described)

    def forget_gaps(self, partitions: Collection[TopicPartition]) -> None:
        """Commit no more progress beyond the offsets: the next owner does."""
        with self._lock:
            self._changed.forget(partitions)

    @property
    def metadata_bytes(self) -> int:
        """How many bytes of metadata the broker accepts with a commit, as far as is known."""
        return self._metadata_bytes

    def hurry(self) -> None:
        """Commit the progress beyond the committed offsets now."""
        with self._lock:
            self._changed.hurry()
            waits = bool(self._changed)
        if waits:
            self.wake()

    def enter(self, by_hand: EnteredCommit) -> None:
        """Send this explicit commit after those entered before it.

        Raises PartitionsLostError if the loop has ended.
        """
        with self._lock:
            if self._ended:
                raise not_owned(by_hand.offsets)
            self._commits.enter(by_hand)
        self.wake()

    def give_up(self, by_hand: EnteredCommit) -> None:
        """Do not send this commit (again): its caller has stopped waiting."""
        with self._lock:
            by_hand.retried = False
            if self._commits.sent_by_hand is not by_hand:
                self._commits.withdraw(by_hand)

    def wake(self) -> None:
        """Check for commits now: a generation was joined, or the loop must end."""
        self._alarm.notify()

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Send nothing more for these partitions, neither explicit nor background commits."""
        with self._lock:
            self._changed.forget(partitions)
            for by_hand in self._commits.drop(partitions):
                self._withdrawn.append((by_hand, not_owned(by_hand.offsets)))
        self.wake()

    def seek(self, partition: TopicPartition, offset: int | None) -> None:
        """Polls will continue at this offset, with nothing read there yet; None if unknown."""
        with self._lock:
            self._changed.go_back(partition, offset or 0)
            self._commits.seek(partition, offset)

    def move_back(self, partition: TopicPartition, offset: int) -> None:
        """Polls continue at this offset; it may be lower, and so may the next commit."""
        with self._lock:
            self._changed.go_back(partition, offset)
            self._commits.move_back(partition, offset)

    def truncate(self, partition: TopicPartition, offset: int) -> None:
        """The log was truncated here: forget the commits of the records from this offset on."""
        with self._lock:
            self._changed.forget([partition])
            self._commits.truncate(partition, offset)

    def forget_all(self) -> None:
        """The membership is lost: no later generation may send the waiting commits."""
        with self._lock:
            self._forget_all(not_owned)
        self.wake()

    def _forget_all(
        self, why: Callable[[dict[TopicPartition, OffsetAndMetadata]], Exception]
    ) -> None:
        before, self._commits = self._commits, OffsetCommits()
        self._changed.forget_all()
        for by_hand in before.all_by_hand():
            if by_hand is not before.sent_by_hand:  # the sent one gets its answer
                self._withdrawn.append((by_hand, why(by_hand.offsets)))

    def outstanding(self, partition: TopicPartition) -> bool:
        """Whether a commit of the partition, or progress beyond its offset, is not answered yet."""
        with self._lock:
            return partition in self._changed or self._commits.outstanding(partition)

    def any_outstanding(self) -> bool:
        """Whether any commit, or progress beyond an offset, is not answered yet."""
        with self._lock:
            return bool(self._changed) or self._commits.any_outstanding()

    def acknowledged(self, partition: TopicPartition) -> int | None:
        """The next offset of the partition that the broker acknowledged last."""
        with self._lock:
            return self._commits.acknowledged(partition)

    def take_unknown(self) -> frozenset[TopicPartition]:
        """Partitions that the broker lacks, whose commit was given up since the last call."""
        with self._lock:
            unknown, self._unknown = self._unknown, frozenset()
        return unknown

    # -- the I/O loop -----------------------------------------------------------------------------

    async def run(self, active: Callable[[], bool]) -> None:
        """Send until no longer ``active``."""
        try:
            while active():
                self._tell_withdrawn()
                member = self._member()
                with self._lock:
                    commits = self._commits
                    idle_s = self._changed.repeat(commits, self._clock(), _IDLE_S)
                    offsets = {} if member is None else commits.take()
                if member is None or not offsets:
                    await self._alarm(idle_s)
                elif not await self._send(member, commits, offsets):
                    await self._alarm(self._backoff_s)
                elif self._catches_up():
                    await self._rest()
        finally:
            with self._lock:
                self._ended = True
                self._forget_all(not_owned)
            self._tell_withdrawn()

    async def _rest(self) -> None:
        """Leave the loop to fetches for a while; an explicit commit or ``wake`` ends the rest."""
        with self._lock:
            self._rests = True
        try:
            await self._alarm(_REST_S)
        finally:
            with self._lock:
                self._rests = False

    def _described(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], by_hand: CommitByHand | None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Add metadata with the progress beyond each offset to the entries without metadata.

        Each commit needs them, because it replaces the previous commit's. The application's own
        stay.
        """
        limit = self._metadata_bytes
        return {
            p: entry
            if entry.metadata
            else entry._replace(metadata=self._metadata_of(p, entry.offset, limit, by_hand))
            for p, entry in offsets.items()
        }

    def _tell_withdrawn(self) -> None:
        """Fail the futures of withdrawn commits, without a lock held: callbacks may do anything."""
        with self._lock:
            withdrawn, self._withdrawn = self._withdrawn, []
        for by_hand, error in withdrawn:
            assert isinstance(by_hand, EnteredCommit)
            by_hand.future.failure(error)

    async def _send(
        self,
        member: Member,
        commits: OffsetCommits,
        offsets: dict[TopicPartition, OffsetAndMetadata],
    ) -> bool:
        """Send one commit and record each partition's answer; return whether all were final."""
        sent_at = self._clock()
        by_hand = commits.sent_by_hand
        assert by_hand is None or isinstance(by_hand, EnteredCommit)
        unanswered: Exception | None = None
        too_large: list[TopicPartition] = []
        described: dict[TopicPartition, OffsetAndMetadata] = {}
        try:
            if self._io.coordinator_unknown():
                await self._io.lookup_coordinator()
                with self._lock:  # without partitions lost during the look-up of the coordinator
                    same = commits is self._commits and member == self._member()
                    offsets = commits.recall() if same else {}
            described = self._described(offsets, by_hand)
            errors = await self._lane.commit(member, described) if offsets else {}
            too_large = self._too_large(offsets, described, errors)
            # The application did not ask for our metadata: send again without.
            if too_large and by_hand is not None:
                bare = {p: offsets[p] for p in too_large}
                errors, too_large = {**errors, **await self._lane.commit(member, bare)}, []
                described |= bare
        except kafka_errors.KafkaError as failure:
            errors = dict.fromkeys(offsets, type(failure))
            unanswered = failure
        verdicts = {partition: verdict_of(error) for partition, error in errors.items()}
        for p in too_large:
            verdicts[p] = Verdict.BUSY
        accepted = [p for p, verdict in verdicts.items() if verdict is Verdict.ACCEPTED]
        refused: list[TopicPartition] = []
        failure_by_hand: Exception | None = None
        with self._lock:
            commits.acknowledge(accepted)
            # After a loss another membership may have the same id, at the same epoch.
            ours = commits is self._commits and member == self._member()
            if by_hand is None:
                refused = [p for p, verdict in verdicts.items() if verdict in _REFUSALS]
                commits.settle(refused)
            elif by_hand.offsets:
                if by_hand.lost or commits is not self._commits:
                    failure_by_hand = not_owned(by_hand.offsets)
                else:
                    failure_by_hand = final_error(by_hand, errors, unanswered)
                if failure_by_hand is not None:
                    commits.withdraw(by_hand)
            commits.retry()
            self._unknown |= {p for p in refused if verdicts[p] is Verdict.NO_SUCH_PARTITION}
        if errors and (observer := self._observed.by) is not None:
            others = {p: e for p, e in errors.items() if verdicts[p] is not Verdict.ACCEPTED}
            observer.commit_answered(accepted, others, self._clock() - sent_at)
        for p in refused:
            log.warning(
                "offset %d of %s-%d cannot be committed: %s",
                offsets[p].offset,
                *p,
                errors[p].__name__,
            )
        if ours:
            if accepted:
                self._on_accepted(sent_at)
            for verdict, error in {(verdicts[p], errors[p]) for p in verdicts}:
                # The future of an explicit commit gets the error itself.
                told = by_hand is not None and verdict is Verdict.REFUSED
                if verdict is not Verdict.ACCEPTED and not told:
                    named = names_of(p for p in offsets if errors[p] is error)
                    self._on_verdict(verdict, error, str(unanswered or named))
        if by_hand is None:
            final = all(verdicts.get(p) in _FINAL for p in offsets)
        else:
            if accepted and ours:
                by_hand.on_accepted(by_hand)
            if failure_by_hand is not None:
                by_hand.future.failure(failure_by_hand)
            elif not by_hand.offsets:
                by_hand.future.success(None)
            final = failure_by_hand is not None or not by_hand.offsets
        await self._kept.check({p: described[p] for p in accepted})
        return final

    def _too_large(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        described: Mapping[TopicPartition, OffsetAndMetadata],
        errors: Mapping[TopicPartition, type[Exception]],
    ) -> list[TopicPartition]:
        """Partitions whose gaps exceed ``offset.metadata.max.bytes``; lowers the limit for ours."""
        refused = [
            p
            for p, error in errors.items()
            if error is kafka_errors.OffsetMetadataTooLargeError
            and not offsets[p].metadata
            and described[p].metadata
        ]
        for p in refused:
            self._metadata_bytes = min(self._metadata_bytes, len(described[p].metadata) // 2)
        return refused
