"""SimpleCommits: commits to a group by a client that is not a member of it.

This is Kafka's simple consumer: OffsetCommit v2-8 with generation -1 and an empty member id, which
a coordinator accepts only while the group has no members. Commits run in the background,
aggregated, one at a time, like a member's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from kafka.structs import TopicPartition

from ...errors import KafkaRebalanceError
from ...fetch.connections import explain_final
from ..member_record import Member
from ..offsets.commit_metadata import Remaining
from ..offsets.origin import with_origin
from ..offsets.told_remaining import ToldRemaining, bound_to
from ..protocol.coordinator_answers import Verdict
from ..protocol.lane import Lane
from .commit_loop import CommitLoop

if TYPE_CHECKING:
    from ..kafka_python.coordinator import GroupCoordinator

log = logging.getLogger(__name__)

#: The last version before the consumer protocol's, which requires a member.
_COMMIT_VERSION = 8


class SimpleCommits:
    """Sends one client's commits over its connections; closing those ends them.

    ``refusal`` makes the error for a group that has members, from the partitions and the
    coordinator's error, both as text.
    """

    def __init__(
        self,
        io: GroupCoordinator,
        config: Mapping[str, Any],
        refusal: Callable[[str, str], KafkaRebalanceError],
    ) -> None:
        self._io = io
        self._group_id: str = config["group_id"]
        self._refusal = refusal
        self._failure: KafkaRebalanceError | None = None
        self._ended = False
        lane = Lane(io, self._group_id, None, config["request_timeout_ms"], _COMMIT_VERSION)
        nobody = Member()
        self._told = ToldRemaining()
        self._loop = CommitLoop(
            io,
            lane,
            config["retry_backoff_ms"] / 1000,
            member=lambda: nobody,
            on_accepted=lambda sent_at: None,
            on_verdict=self._consider,
            clock=time.monotonic,
            metadata_of=self._metadata,
        )
        #: Names the committer; see ``DeferredRevokeConsumer.describe_commits``.
        self.describe: Callable[[TopicPartition, int, int, str], str] | None = None

    # -- any thread -------------------------------------------------------------------------------

    def start(self) -> None:
        """Start sending; call it once."""
        self._io.loop.spawn(self._run)

    def add(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit these next offsets if they are higher than those committed before."""
        self._loop.add(offsets)

    def add_remaining(self, remaining: Mapping[TopicPartition, Remaining]) -> None:
        """Commit these unprocessed offsets; again if only the gaps have changed."""
        further, beyond = self._told.news(remaining)
        self._told.tell({p: (remaining[p], self._bound(p)) for p in (*further, *beyond)})
        self._loop.add(further)
        if beyond:
            self._loop.tell_gaps(beyond)
            self._loop.hurry()

    def acknowledged_remaining(self, partition: TopicPartition) -> Remaining | None:
        """The last report to :meth:`add_remaining`, if the broker has accepted it."""
        told = self._told.of(partition)
        if told is None or self._loop.outstanding(partition):
            return None
        return told if self._loop.acknowledged(partition) == told.committed() else None

    def add_again(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit these next offsets, even if they were acknowledged before."""
        self._loop.drop(offsets)
        self._loop.add(offsets)

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Drop the waiting commits, and let a lower offset be committed next."""
        self._told.forget(partitions)
        self._loop.drop(partitions)

    def acknowledged(self, partition: TopicPartition) -> int | None:
        """The next offset of the partition that the broker acknowledged last."""
        return self._loop.acknowledged(partition)

    def outstanding(self, partition: TopicPartition) -> bool:
        """Whether a commit of the partition is waiting or in flight."""
        return self._loop.outstanding(partition)

    def take_unknown(self) -> frozenset[TopicPartition]:
        """Partitions whose commit was given up since the last call: the broker does not know them.

        The same may then be committed for them again.
        """
        unknown = self._loop.take_unknown()
        self._told.forget(unknown)
        return unknown

    @property
    def have_failed(self) -> bool:
        """Whether :meth:`raise_failure` raises."""
        return self._failure is not None

    def raise_failure(self) -> None:
        """Raise the error that ended the commits, if there is one."""
        if self._failure is not None:
            raise self._failure

    def drain(self, timeout_ms: float) -> bool:
        """Wait until all are acknowledged; False if they are not within ``timeout_ms``."""
        deadline = time.monotonic() + timeout_ms / 1000
        while self._loop.any_outstanding():
            self.raise_failure()
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.002)
        return True

    def end(self) -> None:
        """Send nothing more; call it before the client is closed."""
        self._ended = True
        self._loop.wake()

    def _metadata(self, partition: TopicPartition, offset: int, limit: int, _: object) -> str:
        """The committer, and the progress beyond the offset."""
        bound = self._bound(partition)
        origin = "" if self.describe is None else self.describe(partition, offset, limit, bound)
        left = limit - len(origin) - 1
        return with_origin(origin, self._told.metadata(partition, offset, left, bound) or "")

    def _bound(self, partition: TopicPartition) -> str:
        return bound_to(self._io.metadata.topic_id(partition.topic), partition)

    # -- the I/O loop -----------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            await self._loop.run(self._active)
        except Exception as error:  # raised by the client's next call
            if self._ended or self._io.loop.closed:
                log.debug(
                    "group %s: the commit loop ended with the client: %r", self._group_id, error
                )
                return
            log.exception("group %s: the commit loop failed", self._group_id)
            self._failure = KafkaRebalanceError(f"group {self._group_id!r}: {error!r}")
            self._failure.__cause__ = error

    def _active(self) -> bool:
        return not self._ended and not self._io.loop.closed and self._failure is None

    def _consider(self, verdict: Verdict, error: type[Exception], detail: str) -> None:
        """Apply the consequences of an answer that was not an acceptance."""
        if verdict is Verdict.COORDINATOR_GONE:
            self._io.coordinator_dead(error.__name__)
        elif verdict in (Verdict.AFTER_JOIN, Verdict.FENCED):
            self._failure = self._refusal(detail, error.__name__)
        elif verdict not in (Verdict.BUSY, Verdict.NO_SUCH_PARTITION):  # see `take_unknown`
            doing = f"committing {detail} to group {self._group_id!r}"
            final = error(detail)
            self._failure = explain_final(final, doing) or KafkaRebalanceError(
                f"{doing}: {final!r}"
            )
