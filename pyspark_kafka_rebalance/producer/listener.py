"""The listener given to ``ProducerGroup.subscribe``."""

from __future__ import annotations

from typing import Any

from .ownership import ProducerEvents


class ProducerRebalanceListener:
    """Told of what a producer owns, in its own calls; override what is of interest."""

    def on_partitions_assigned(self, restart_points: dict[int, str | None]) -> None:
        """These source partitions are owned now: read each from its restart point on."""

    def on_revoke_requested(self, source_partitions: frozenset[int]) -> None:
        """The group wants these back; they are owned until the open transaction has ended."""

    def on_partitions_revoked(self, source_partitions: frozenset[int]) -> None:
        """These are not owned any more: forget what was read of them and not sent."""

    def on_partitions_lost(self, source_partitions: frozenset[int]) -> None:
        """These were lost: forget them, and what was sent of them since the last commit."""


def tell(listener: Any, events: ProducerEvents) -> None:
    """Call what these events are about: first what is gone."""
    if events.lost:
        listener.on_partitions_lost(events.lost)
    if events.revoked:
        listener.on_partitions_revoked(events.revoked)
    if events.assigned:
        listener.on_partitions_assigned(events.assigned)
    if events.to_be_revoked:
        listener.on_revoke_requested(events.to_be_revoked)
