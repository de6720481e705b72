"""An assigned partition starts at the group's committed offset, or beyond a backlog.

Invariant: a partition starts with the leader epoch of the record before it, if that is known. So a
truncated log is noticed even if the partition has no new records (KIP-320).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kafka import errors as kafka_errors
from kafka.structs import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from kafka.consumer.subscription_state import SubscriptionState, TopicPartitionState
    from kafka.future import Future

    from ..offsets.commit_metadata import Remaining
    from .io_loop import IoLoop


class Backlog(NamedTuple):
    """The offsets to set aside, and the epoch of the leader that reported the log's end."""

    remaining: Remaining
    leader_epoch: int

    @property
    def live(self) -> OffsetAndMetadata:
        """Where polls start; no record before it has a later leader epoch."""
        return OffsetAndMetadata(self.remaining.live, "", self.leader_epoch)


class Backlogs(Protocol):
    """Decides which partitions start with a backlog to catch up (KIP-333)."""

    async def look_up(
        self, committed: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> dict[TopicPartition, Backlog]:
        """These partitions' backlogs to set aside, and where polls start instead."""
        ...

    def begin(
        self, partition: TopicPartition, start: OffsetAndMetadata, remaining: Remaining
    ) -> None:
        """Start the partition at the live position instead of at this commit."""
        ...


class Starts:
    """Sets the start of assigned partitions; keeps their commits until their first records arrive.

    Parameters
    ----------
    state : SubscriptionState
        The consumer's, whose positions are set.
    loop : IoLoop
        The consumer's.
    committed : callable
        A coroutine function that returns the group's commits of these partitions within a timeout
        (milliseconds).
    look_up_ms : float
        Timeout of a look-up.
    backlogs : Backlogs, optional
        If given, decides where partitions with a backlog start.
    """

    def __init__(
        self,
        state: SubscriptionState,
        loop: IoLoop,
        committed: Callable[
            [list[TopicPartition], float], Coroutine[Any, Any, dict[TopicPartition, Any]]
        ],
        look_up_ms: float,
        backlogs: Backlogs | None = None,
    ) -> None:
        self._state = state
        self._loop = loop
        self._committed = committed
        self._look_up_ms = look_up_ms
        # The assignment whose starts are being looked up, and the pending answer.
        self._asked: tuple[dict[TopicPartition, TopicPartitionState], Future] | None = None
        self._found: dict[TopicPartition, OffsetAndMetadata] = {}
        self._backlogs = backlogs

    def of(self, partition: TopicPartition) -> OffsetAndMetadata | None:
        """The commit at which the partition starts, until the consumer takes it."""
        return self._found.get(partition)

    def take(self, partition: TopicPartition) -> OffsetAndMetadata | None:
        """Take the commit at which the partition has started; once, with its first records."""
        return self._found.pop(partition, None)

    async def look_up(self, timeout_ms: float | None) -> bool:
        """Start at the group's commits, with their leader epochs (KIP-320).

        Runs on the I/O loop; returns whether every assigned partition has a start. The library
        drops the epoch: a log that was truncated before the hand-over, and has grown again, would
        be read from the middle of other records.

        One look-up spans short polls, but ends with its assignment: another owner may commit before
        the next one.
        """
        states = {
            partition: self._state.assignment[partition]
            for partition in self._state.missing_fetch_positions()
        }
        if not states:
            return True
        asked, self._asked = self._asked, None
        # The library makes new states with each assignment.
        if asked is None or asked[0] != states:
            asked = states, self._loop.spawn(self._look_up, list(states))
        try:
            committed, backlogs = await self._loop.wait_for(asked[1], timeout_ms)
        except kafka_errors.KafkaTimeoutError:
            if not asked[1].is_done:
                self._asked = asked
            return False
        for partition in states:  # the commits of an earlier assignment
            self._found.pop(partition, None)
        for partition, found in committed.items():
            if self._backlogs is not None and partition in backlogs:
                self._backlogs.begin(partition, found, backlogs[partition].remaining)
                self._state.seek(partition, backlogs[partition].live)
                continue
            self._found[partition] = found
            self._state.seek(partition, OffsetAndMetadata(found.offset, "", found.leader_epoch))
        return True

    async def _look_up(
        self, partitions: list[TopicPartition]
    ) -> tuple[dict[TopicPartition, OffsetAndMetadata], dict[TopicPartition, Backlog]]:
        committed = await self._committed(partitions, self._look_up_ms)
        if self._backlogs is None or not committed:
            return committed, {}
        return committed, await self._backlogs.look_up(committed)
