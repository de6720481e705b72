"""AsyncMember: an asyncio application's calls to a group member, except polls."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from kafka.structs import TopicPartition

from .consumer_thread import ConsumerThread
from .listener_on_loop import on_loop


class AsyncMember:
    """Queries to a DeferredRevokeConsumer on its thread, and calls that take turns with its polls.

    None of them changes the records that a poll returned.
    """

    _thread: ConsumerThread

    # -- at any time, without waiting -------------------------------------------------------------

    def commit_processed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Records below these next offsets are processed: commit them in the background."""
        self._thread.opened().commit_processed(offsets)

    def processed(self, partition: TopicPartition, *offsets: int) -> None:
        """The records at these offsets are processed, in any order: commit as far as all are."""
        self._thread.opened().processed(partition, *offsets)

    def unprocessed(self) -> frozenset[TopicPartition]:
        """Owned partitions with records that were handed out and are not ``processed``."""
        return self._thread.opened().unprocessed()

    def get_to_be_revoked_partitions(self) -> frozenset[TopicPartition]:
        """Partitions whose revoke is completed in the next poll, unless it is delayed."""
        return self._thread.opened().get_to_be_revoked_partitions()

    def get_lost_partitions(self) -> frozenset[TopicPartition]:
        """Partitions that were lost during the last poll."""
        return self._thread.opened().get_lost_partitions()

    def assignment(self) -> set[TopicPartition]:
        """The partitions assigned now, those to be revoked included; a snapshot."""
        return self._thread.opened().assignment()

    def subscription(self) -> set[str] | None:
        """The topics subscribed to; None without a subscription."""
        subscription: set[str] | None = self._thread.opened().subscription()
        return subscription

    def paused(self) -> set[TopicPartition]:
        """The partitions that the application has paused; a snapshot."""
        return set(self._thread.opened().paused())

    def highwater(self, partition: TopicPartition) -> int | None:
        """The end of the partition's log, as of the last fetch."""
        return self._thread.opened().highwater(partition)

    def group_metadata(self) -> Any:
        """The member, for a transactional producer; ``KafkaConsumer.group_metadata``."""
        return self._thread.opened().group_metadata()

    def metrics(self, raw: bool = False) -> Any:
        """``KafkaConsumer.metrics``."""
        return self._thread.opened().metrics(raw)

    def bootstrap_connected(self) -> bool:
        """Whether the consumer has reached a broker."""
        return bool(self._thread.opened().bootstrap_connected())

    def leave_until_polled(self, reason: str) -> None:
        """Leave the group at once, and join again with the next poll, which reports the loss."""
        self._thread.opened().leave_until_polled(reason)

    def acknowledged(self, partition: TopicPartition) -> int | None:
        """The next offset of an owned partition whose commit the broker has acknowledged."""
        return self._thread.opened().acknowledged(partition)

    def current_lag(self, partition: TopicPartition) -> int | None:
        """The number of offsets between the position and the end, as of the last poll."""
        return self._thread.opened().current_lag(partition)

    def catch_up_lag(self, partition: TopicPartition) -> int:
        """The number of offsets of the set-aside backlog that are not handed out yet (KIP-333)."""
        return self._thread.opened().catch_up_lag(partition)

    @property
    def generation(self) -> int:
        """The generation of the assignment in force; -1 before the first."""
        return self._thread.opened().generation

    @property
    def is_stable(self) -> bool:
        """Whether this member has joined and its assignment is in force."""
        return self._thread.opened().is_stable

    # -- in turn, on the consumer's thread --------------------------------------------------------

    async def delay_revoke(self, partitions: Iterable[TopicPartition]) -> bool:
        """Delay the revoke of these partitions to the poll after the next."""
        return await self._thread.in_turn(self._thread.opened().delay_revoke, frozenset(partitions))

    async def drain(self, timeout_ms: float) -> bool:
        """Wait until all commits are acknowledged; False if ``timeout_ms`` runs out first."""
        drain = self._thread.opened().drain
        return await asyncio.to_thread(drain, timeout_ms)  # not on the thread that polls

    async def subscribe(
        self, topics: Collection[str] = (), pattern: str | None = None, listener: Any = None
    ) -> None:
        """Change the subscription.

        Parameters
        ----------
        topics, pattern
            As for ``KafkaConsumer.subscribe``.
        listener : ConsumerRebalanceListener or AsyncConsumerRebalanceListener, optional
            Its coroutine functions run on the event loop, and may await calls of this consumer,
            apart from polls. Others run on the consumer's thread.
        """
        subscribe = self._thread.opened().subscribe
        await self._thread.in_turn(subscribe, topics, pattern, on_loop(listener))

    async def pause(self, *partitions: TopicPartition) -> None:
        """Stop fetching these partitions; records that are already polled are still returned."""
        await self._thread.in_turn(self._thread.opened().pause, *partitions)

    async def resume(self, *partitions: TopicPartition) -> None:
        """Fetch paused partitions again."""
        await self._thread.in_turn(self._thread.opened().resume, *partitions)

    async def committed(
        self, partition: TopicPartition, metadata: bool = False, timeout_ms: float | None = None
    ) -> Any:
        """The group's next offset, as ``OffsetAndMetadata`` with ``metadata``; None without one."""
        committed = self._thread.opened().committed
        return await self._thread.in_turn(committed, partition, metadata, timeout_ms)

    async def topics(self) -> set[str]:
        """The names of all topics that this client may see; asks a broker."""
        topics: set[str] = await self._thread.in_turn(self._thread.opened().topics)
        return topics

    async def partitions_for_topic(self, topic: str) -> set[int] | None:
        """The partition numbers of a topic; None if it is unknown."""
        numbers: set[int] | None = await self._thread.in_turn(
            self._thread.opened().partitions_for_topic, topic
        )
        return numbers

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], timeout_ms: float | None = None
    ) -> dict[TopicPartition, Any]:
        """The first record of each partition from its timestamp on, assigned or not."""
        find = self._thread.opened().offsets_for_times
        return await self._thread.in_turn(find, timestamps, timeout_ms)

    async def committed_offsets(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, int]:
        """The group's committed offsets; without the partitions that have none."""
        fetch = self._thread.opened().committed_offsets
        return await self._thread.in_turn(fetch, partitions, timeout_ms)

    async def beginning_offsets(
        self, partitions: Collection[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """The first offset of each partition, assigned or not."""
        find = self._thread.opened().beginning_offsets
        return await self._thread.in_turn(find, partitions, timeout_ms)

    async def end_offsets(
        self, partitions: Collection[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """The end offset of each partition, assigned or not."""
        find = self._thread.opened().end_offsets
        return await self._thread.in_turn(find, partitions, timeout_ms)
