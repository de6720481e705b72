"""ConsumerObserver: callbacks for a consumer's events, such as its metrics. None by default.

They are called once per poll, per broker response, per decoded batch and per rebalance event, never
per record. They must not block the caller, and exceptions that they raise are not caught.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from kafka.structs import TopicPartition

from .fetch_metadata import FetchMetadata


class ConsumerObserver(Protocol):
    """A consumer's callbacks; each names the thread that calls it."""

    def assigned(
        self, added: Collection[TopicPartition], gated: Collection[TopicPartition]
    ) -> None:
        """An assignment is applied: new partitions, and all being revoked; polling thread."""

    def released(self, partitions: Collection[TopicPartition]) -> None:
        """Revokes have ended: these are released to the group; polling thread."""

    def lost(self, partitions: Collection[TopicPartition], undrained: bool) -> None:
        """Lost, with the membership or because undrained at the deadline; polling thread."""

    def polled(
        self,
        records: Mapping[TopicPartition, list[Any]],
        catch_up: Mapping[TopicPartition, list[Any]],
        metadata: Mapping[TopicPartition, FetchMetadata],
    ) -> None:
        """A poll returns these records; polling thread."""

    def fetched(self, response: Any) -> None:
        """A broker has answered a fetch; I/O loop."""

    def decoded(self, rows: int, took_s: float) -> None:
        """Record batches were decoded to Arrow; polling thread."""

    def commit_answered(
        self,
        accepted: Collection[TopicPartition],
        refused: Mapping[TopicPartition, type[Exception]],
        took_s: float,
    ) -> None:
        """The coordinator has answered a commit, or the commit failed unanswered; I/O loop."""

    def closed(self) -> None:
        """Nothing more will happen; the thread that closes."""


class Observed:
    """Holds a consumer's observer, for all parts that call it."""

    by: ConsumerObserver | None = None  # may be set at any time, by any thread
