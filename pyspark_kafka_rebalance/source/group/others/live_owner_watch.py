"""LiveOwnerWatch: asks periodically what the group's other live members own."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from kafka.structs import TopicPartition

from ....consumer.group_description import describe_group
from ...cluster_query import ask_cluster
from .live_owners import owned_by_live_others

if TYPE_CHECKING:
    from ...options import SourceOptions

#: How old an answer may be before other members' ownership is requested again.
_LOOK_EVERY_S = 0.25


class LiveOwnerWatch:
    """Watches for one run of a query; first called when its members have joined.

    Parameters
    ----------
    options : SourceOptions
        The options of a stream that has group members.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._joining_rebalances = not options.consumer_config.get("group_instance_id")
        self._joined_at: float | None = None
        self._joined_epoch: int | None = None
        self._look_at = 0.0
        self._owned: frozenset[TopicPartition] = frozenset()

    def owned(
        self, own_ids: Collection[str], session_timeout_ms: float
    ) -> frozenset[TopicPartition]:
        """Ask what those other members own that were alive after ours joined.

        Parameters
        ----------
        own_ids : collection of str
            The member ids of our own members.
        session_timeout_ms : float
            How long a dead member stays in the group.

        Raises
        ------
        KafkaRebalanceError
            The brokers do not answer, or refuse to.
        """
        now = time.monotonic()
        if self._joined_at is None:
            self._joined_at = now
        if now < self._look_at:
            return self._owned
        group_id = self._options.group_id
        group = ask_cluster(
            self._options,
            f"who owns the partitions of group {group_id!r}",
            lambda admin: describe_group(admin, group_id),
            is_start=False,
        )
        if self._joining_rebalances and self._joined_epoch is None:
            self._joined_epoch = group.epoch or 0
        session_passed = now - self._joined_at > session_timeout_ms / 1000
        self._owned = owned_by_live_others(group, own_ids, self._joined_epoch, session_passed)
        self._look_at = time.monotonic() + _LOOK_EVERY_S
        return self._owned
