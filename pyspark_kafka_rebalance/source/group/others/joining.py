"""Joining: how a query's members join their group, as seen by its planner.

It reports whether the group has other members already, and when the query's members are ready.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from kafka import KafkaAdminClient

from ....consumer.group_description import GroupDescription, describe_group
from ....errors import KafkaRebalanceError
from ...cluster_query import ask_cluster
from ..clients.query_part import QueryPart

log = logging.getLogger(__name__)

#: How often to check whether the members are ready.
_LOOK_EVERY_S = 0.005


class Joining(QueryPart):
    """Used by the planner's thread, while the pump polls the members."""

    #: Whether :meth:`has_others` has found any; False if it was not called.
    found_others = False

    def has_others(self) -> bool:
        """Whether others are in the group, before our members join; True if that is unknown.

        Raises the error that ended the membership.
        """
        if self._options.partitions is not None:
            self._members.client()
            return False
        group_id = self._options.group_id
        try:
            group = ask_cluster(  # while the pump builds the members
                self._options, f"whether group {group_id!r} has members", self._describe
            )
        except KafkaRebalanceError as error:
            self._members.client()  # raises a better error if the membership has failed
            log.info("group %s: %s", group_id, error)
            return True
        self._members.client()
        self.found_others = bool(group.members)
        return self.found_others

    def _describe(self, admin: KafkaAdminClient) -> GroupDescription:
        self._pump.raise_failure()  # brokers that do not answer the members: no further look-up
        return describe_group(admin, self._options.group_id)

    def wait_until_positioned(
        self, until: Callable[[], bool], timeout_s: float, unchanged_s: float = 0.0
    ) -> None:
        """Wait until the members have joined and know where their partitions start.

        Ends early when a revoke waits for the next batch, or ``until`` says so. Nothing must have
        changed for ``unchanged_s``; not with ``assign``, which has no other members.
        """
        deadline = time.monotonic() + timeout_s
        unchanged_s = unchanged_s if self._options.partitions is None else 0.0
        while not (
            self._members.have_settled()
            and not self._state.unpositioned()
            and self._state.unchanged_s() >= unchanged_s
        ):
            self._pump.raise_failure()
            if until() or self._state.a_revoke_waits_for_a_batch() or time.monotonic() >= deadline:
                return
            self._pump.wait(_LOOK_EVERY_S)
