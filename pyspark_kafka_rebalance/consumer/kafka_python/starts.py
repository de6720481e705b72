"""Starts: where the group stands is where a partition that is assigned begins."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from kafka import errors as kafka_errors
from kafka.structs import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from kafka.consumer.subscription_state import SubscriptionState, TopicPartitionState
    from kafka.future import Future

    from .io_loop import IoLoop


class Starts:
    """The commits at which partitions start, until polls have handed out their first records.

    Parameters
    ----------
    state : SubscriptionState
        Of the consumer whose positions are set.
    loop : IoLoop
        The consumer's.
    committed : callable
        A coroutine function: what the group has committed of these partitions, asked at most that
        many milliseconds.
    look_up_ms : float
        How long a look-up may take.
    """

    def __init__(
        self,
        state: SubscriptionState,
        loop: IoLoop,
        committed: Callable[
            [list[TopicPartition], float], Coroutine[Any, Any, dict[TopicPartition, Any]]
        ],
        look_up_ms: float,
    ) -> None:
        self._state = state
        self._loop = loop
        self._committed = committed
        self._look_up_ms = look_up_ms
        # For which assignment starts are looked up, and the answer to come.
        self._asked: tuple[dict[TopicPartition, TopicPartitionState], Future] | None = None
        self._found: dict[TopicPartition, OffsetAndMetadata] = {}

    def of(self, partition: TopicPartition) -> OffsetAndMetadata | None:
        """The commit at which the partition starts, until the consumer takes it."""
        return self._found.get(partition)

    def take(self, partition: TopicPartition) -> OffsetAndMetadata | None:
        """The commit at which the partition has started; once, with the first records of it."""
        return self._found.pop(partition, None)

    async def look_up(self, timeout_ms: float | None) -> bool:
        """Start where the group stands, with the leader epoch that was committed (KIP-320).

        On the I/O loop; whether everything that is assigned has been looked up. The library forgets
        the epoch, so that a log that was truncated before the hand-over, and has grown since, would
        be read on in the midst of other records.

        One look-up goes on over short polls, but not beyond the assignment that it is for: whoever
        owns a partition in between commits as well.
        """
        states = {
            partition: self._state.assignment[partition]
            for partition in self._state.missing_fetch_positions()
        }
        if not states:
            return True
        asked, self._asked = self._asked, None
        # The library makes a new state with each assignment.
        if asked is None or asked[0] != states:
            asked = states, self._loop.spawn(self._committed, list(states), self._look_up_ms)
        try:
            committed = await self._loop.wait_for(asked[1], timeout_ms)
        except kafka_errors.KafkaTimeoutError:
            if not asked[1].is_done:
                self._asked = asked
            return False
        for partition, found in committed.items():
            self._found[partition] = found
            self._state.seek(partition, OffsetAndMetadata(found.offset, "", found.leader_epoch))
        return True
