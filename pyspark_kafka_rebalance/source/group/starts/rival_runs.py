"""RivalRuns: whether another run of this query is alive in the group, so that one is a copy.

A run that has committed and is over was this query, before its checkpoint was restored. A run that
is still a member when a dead one would be out was started with a copy of this query's checkpoint,
or with the one that this one is a copy of.

Runs on the pump's thread, once the query has been assigned partitions.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection

from ....consumer.group_description import GroupDescription, describe_group
from ....errors import KafkaRebalanceError
from ...cluster_query import ask_cluster
from ..clients.query_part import QueryCore, QueryPart
from ..owned.own_commits import token_of

log = logging.getLogger(__name__)

#: How often the group is described while a run that may be dead is still a member.
_LOOK_EVERY_S = 0.5

#: How long after its session a dead member may still be described.
_MARGIN_S = 5.0


class RivalRuns(QueryPart):
    """Describes the group at intervals while some other run of the query is in doubt."""

    def __init__(self, core: QueryCore) -> None:
        super().__init__(core)
        self._gone: set[str] = set()
        self._look_at = 0.0
        self._since: float | None = None  # when one of them was first seen

    def is_due(self) -> bool:
        """Whether it is time to ask again."""
        return time.monotonic() >= self._look_at

    def are_gone(self, runs: Collection[str]) -> bool | None:
        """Whether none of these runs is alive; None if that cannot be told yet.

        With ``assign`` the group has no members: nobody can be told to be alive.
        """
        asked = set(runs) - self._gone
        if self._options.partitions is not None or not asked:
            return True
        group_id = self._options.group_id
        try:
            group = ask_cluster(
                self._options,
                f"the members of group {group_id!r}",
                lambda admin: describe_group(admin, group_id),
            )
        except KafkaRebalanceError as error:
            log.warning("%s", error)
            self._look_at = time.monotonic() + _LOOK_EVERY_S
            return None
        there = asked & runs_in(group, {member.member_id for member in self._members})
        self._gone |= asked - there
        if not there:
            return True
        now = time.monotonic()
        if self._since is None:
            self._since = now
            log.info(
                "group %s: waiting until it is certain whether other runs of this query are alive: "
                "%s",
                *(group_id, ", ".join(sorted(there))),
            )
        self._look_at = now + _LOOK_EVERY_S
        session_s = self._members.session_timeout_ms() / 1000
        return False if now - self._since >= session_s + _MARGIN_S else None


def runs_in(group: GroupDescription, own_ids: Collection[str]) -> set[str]:
    """The runs that the group's other members belong to, by their client ids; pure.

    A static member keeps the client id of the run that first had its place, so our own members are
    left out by their member ids.
    """
    return {
        token_of(member.client_id.rpartition("-")[0])
        for member in group.members
        if member.member_id not in own_ids
    }
