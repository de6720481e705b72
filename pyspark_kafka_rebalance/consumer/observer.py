"""ConsumerObserver: who is told what happens to a consumer, such as its metrics. Nobody by default.

Told once a poll, once an answer of a broker, and once an event of the rebalance; never of single
records. What it is told in, it must not hold up, and nothing that it raises is caught.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from kafka.structs import TopicPartition

from .fetch_metadata import FetchMetadata


class ConsumerObserver(Protocol):
    """What a consumer tells; each call on the thread that it names."""

    def assigned(
        self, added: Collection[TopicPartition], gated: Collection[TopicPartition]
    ) -> None:
        """An assignment is applied: what is new, and all that is being revoked; polling thread."""

    def released(self, partitions: Collection[TopicPartition]) -> None:
        """Revokes have ended: the group has these back; polling thread."""

    def lost(self, partitions: Collection[TopicPartition], undrained: bool) -> None:
        """Lost, with the membership, or not drained by the deadline; polling thread."""

    def polled(
        self,
        records: Mapping[TopicPartition, list[Any]],
        catch_up: Mapping[TopicPartition, list[Any]],
        metadata: Mapping[TopicPartition, FetchMetadata],
    ) -> None:
        """A poll brings this; polling thread."""

    def fetched(self, response: Any) -> None:
        """A broker has answered a fetch; I/O loop."""

    def commit_answered(
        self,
        accepted: Collection[TopicPartition],
        refused: Mapping[TopicPartition, type[Exception]],
        took_s: float,
    ) -> None:
        """The coordinator has answered a commit, or not answered it; I/O loop."""

    def closed(self) -> None:
        """Nothing more will happen; the thread that closes."""


class Observed:
    """Who observes a consumer: one place for all parts that tell.

    Attributes
    ----------
    by : ConsumerObserver or None
        May be set at any time, by any thread.
    """

    by: ConsumerObserver | None = None
