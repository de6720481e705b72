"""FirstEnds: where the logs end when a query starts, for partitions that start at ``latest``.

A partition is assigned a second or more after the query has started, and with other members in the
group much later. Records that were produced in between belong to the query. So the ends are noted
as soon as there is a client, while the other clients are built.
"""

from __future__ import annotations

import logging

from kafka import errors as kafka_errors

from ..clients.query_part import QueryCore, QueryPart

log = logging.getLogger(__name__)

#: How long the start may wait for the ends. A partition whose leader has not answered by then
#: starts at the end as of its assignment.
_WITHIN_MS = 2_000


class FirstEnds(QueryPart):
    """One look-up, requested by the constructor; used by the pump's thread."""

    def __init__(self, core: QueryCore) -> None:
        super().__init__(core)
        cluster = self._members.cluster_of(0)
        with self._state as state:
            asked = state.starts.may_start_at_end()
        led = cluster.partitions_with_leader(asked) if asked else []
        self._answer = cluster.end_offsets_soon(led, _WITHIN_MS) if led else None

    def note(self) -> None:
        """Wait for the ends and record them; without those that no leader has told."""
        if self._answer is None:
            return
        try:
            ends = self._answer()
        except kafka_errors.KafkaError as error:
            # The look-up of the starts asks again, and raises a better error.
            log.info("group %s: cannot look up the ends: %r", self._options.group_id, error)
            return
        with self._state as state:
            state.starts.note_first_ends(ends)
