"""AsyncMember: an asyncio application's calls to a group member, apart from polls."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from kafka.structs import TopicPartition

from .consumer_thread import ConsumerThread


class AsyncMember:
    """Queries to a DeferredRevokeConsumer on its thread, and calls that take turns with its polls.

    None of them changes what a poll has brought.
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
        """Owned partitions with records that polls handed out and nobody has ``processed``."""
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

    def acknowledged(self, partition: TopicPartition) -> int | None:
        """The next offset of an owned partition whose commit the broker has acknowledged."""
        return self._thread.opened().acknowledged(partition)

    def current_lag(self, partition: TopicPartition) -> int | None:
        """How many offsets lie between the position and the end, as of the last poll."""
        return self._thread.opened().current_lag(partition)

    def catch_up_lag(self, partition: TopicPartition) -> int:
        """How many offsets of the set-aside backlog are still to be handed out (KIP-333)."""
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
        return await asyncio.to_thread(
            self._thread.opened().drain, timeout_ms
        )  # not on the thread that polls

    async def subscribe(
        self, topics: Collection[str] = (), pattern: str | None = None, listener: Any = None
    ) -> None:
        """Change the subscription."""
        await self._thread.in_turn(self._thread.opened().subscribe, topics, pattern, listener)

    async def pause(self, *partitions: TopicPartition) -> None:
        """Stop fetching these; what the consumer's polls have brought is still returned."""
        await self._thread.in_turn(self._thread.opened().pause, *partitions)

    async def resume(self, *partitions: TopicPartition) -> None:
        """Fetch paused partitions again."""
        await self._thread.in_turn(self._thread.opened().resume, *partitions)

    async def position(
        self, partition: TopicPartition, timeout_ms: float | None = None
    ) -> int | None:
        """The next offset that a poll on the consumer's thread will bring."""
        position: int | None = await self._thread.in_turn(
            self._thread.opened().position, partition, timeout_ms
        )
        return position

    async def committed_offsets(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, int]:
        """The group's committed offsets; without the partitions that have none."""
        return await self._thread.in_turn(
            self._thread.opened().committed_offsets, partitions, timeout_ms
        )

    async def beginning_offsets(
        self, partitions: Collection[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """The first offset of each partition, assigned or not."""
        found: dict[TopicPartition, int] = await self._thread.in_turn(
            self._thread.opened().beginning_offsets, partitions, timeout_ms
        )
        return found

    async def end_offsets(
        self, partitions: Collection[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """The end offset of each partition, assigned or not."""
        found: dict[TopicPartition, int] = await self._thread.in_turn(
            self._thread.opened().end_offsets, partitions, timeout_ms
        )
        return found
