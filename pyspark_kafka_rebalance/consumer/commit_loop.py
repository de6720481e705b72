"""CommitLoop: sends what OffsetCommits decides, over the lane, one commit at a time.

Goes on during joins. What meets another generation is sent again after the join; what is lost is
forgotten and never sent by a later generation.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from ..errors import names_of
from .lane import Lane, Member, Verdict, verdict_of
from .progress import OffsetCommits

if TYPE_CHECKING:
    from ._kafka_python import GroupCoordinator

log = logging.getLogger(__name__)

_FINAL = (Verdict.ACCEPTED, Verdict.REFUSED, Verdict.NO_SUCH_PARTITION)

#: Without anything to send the loop still looks again this often.
_IDLE_S = 5.0


class CommitLoop:
    """The commits of one member.

    Parameters
    ----------
    io, lane
        Where to send.
    backoff_s : float
        Before what was not accepted is sent again.
    member : callable
        The member as it is now; None while it may not commit.
    on_accepted : callable
        Told the send time of an accepted commit (it renews the lease).
    on_verdict : callable
        Told of every answer to the present member that was not an acceptance, with what it was
        about: the partitions, or why there was no answer.
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
        self._alarm = io.alarm()

    # -- any thread -------------------------------------------------------------------------------

    def add(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit these next offsets when the lane is free, merged with what waits."""
        with self._lock:
            woken = self._commits.any_waiting()
            self._commits.add(offsets)
        if not woken:  # waking costs a system call, and every record may bring a commit
            self.wake()

    def wake(self) -> None:
        """Look again at what waits: a generation was joined, or the loop is to end."""
        self._alarm.notify()

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Send nothing more of these partitions."""
        with self._lock:
            self._commits.drop(partitions)

    def forget_all(self) -> None:
        """The membership is lost: what waits must not be sent by a later generation."""
        with self._lock:
            self._commits = OffsetCommits()

    def outstanding(self, partition: TopicPartition) -> bool:
        """Whether a commit of the partition waits for its answer."""
        with self._lock:
            return self._commits.outstanding(partition)

    def any_outstanding(self) -> bool:
        """Whether any commit waits for its answer."""
        with self._lock:
            return self._commits.any_outstanding()

    def acknowledged(self, partition: TopicPartition) -> int | None:
        """The next offset of the partition that the broker acknowledged last."""
        with self._lock:
            return self._commits.acknowledged(partition)

    # -- the I/O loop -----------------------------------------------------------------------------

    async def run(self, active: Callable[[], bool]) -> None:
        """Send until no longer ``active``."""
        while active():
            member = self._member()
            with self._lock:
                commits = self._commits
                offsets = {} if member is None else commits.take()
            if member is None or not offsets:
                await self._alarm(_IDLE_S)
            elif not await self._send(member, commits, offsets):
                await self._alarm(self._backoff_s)

    async def _send(
        self, member: Member, commits: OffsetCommits, offsets: dict[TopicPartition, int]
    ) -> bool:
        """Send one commit and record each partition's answer; whether all answers were final."""
        sent_at = self._clock()
        unanswered = ""
        try:
            if self._io.coordinator_unknown():
                await self._io.lookup_coordinator()
            errors = await self._lane.commit(member, offsets)
        except kafka_errors.KafkaError as failure:
            errors = dict.fromkeys(offsets, type(failure))
            unanswered = str(failure)
        verdicts = {partition: verdict_of(error) for partition, error in errors.items()}
        accepted = [p for p, verdict in verdicts.items() if verdict is Verdict.ACCEPTED]
        refused = [
            p
            for p, verdict in verdicts.items()
            if verdict in (Verdict.REFUSED, Verdict.NO_SUCH_PARTITION)
        ]
        with self._lock:
            commits.acknowledge(accepted)
            commits.settle(refused)
            commits.retry()
            # After a loss another membership may have the same id, at the same epoch.
            ours = commits is self._commits and member == self._member()
        for p in refused:
            reason = errors[p].__name__
            log.warning("offset %d of %s-%d cannot be committed: %s", offsets[p], *p, reason)
        if ours:
            if accepted:
                self._on_accepted(sent_at)
            for verdict, error in {(verdicts[p], errors[p]) for p in verdicts}:
                if verdict is not Verdict.ACCEPTED:
                    named = names_of(p for p in offsets if errors[p] is error)
                    self._on_verdict(verdict, error, unanswered or named)
        return all(verdicts.get(p) in _FINAL for p in offsets)
