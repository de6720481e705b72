"""The listener given to ``ProducerGroup.subscribe``."""

from __future__ import annotations

from typing import Any

from .ownership import ProducerEvents


class ProducerRebalanceListener:
    """Called within the producer's own calls when its source partitions change; override it."""

    def on_partitions_assigned(self, restart_points: dict[int, str | None]) -> None:
        """You own these source partitions now: read each from its restart point on."""

    def on_revoke_requested(self, source_partitions: frozenset[int]) -> None:
        """The group wants these back; they are owned until the open transaction has ended."""

    def on_partitions_revoked(self, source_partitions: frozenset[int]) -> None:
        """You no longer own these: forget what was read of them and not sent."""

    def on_partitions_lost(self, source_partitions: frozenset[int]) -> None:
        """These were lost: forget them, and what was sent of them since the last commit."""


def tell(listener: Any, events: ProducerEvents) -> None:
    """Call the listener for these events: first for the partitions that are not owned any more."""
    if events.lost:
        listener.on_partitions_lost(events.lost)
    if events.revoked:
        listener.on_partitions_revoked(events.revoked)
    if events.assigned:
        listener.on_partitions_assigned(events.assigned)
    if events.to_be_revoked:
        listener.on_revoke_requested(events.to_be_revoked)
