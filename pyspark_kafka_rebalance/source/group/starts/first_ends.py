"""FirstEnds: where the logs end when a query starts, for partitions that start at ``latest``.

A partition is assigned a second or more after the query has started, and with other members in the
group much later. Records that were produced in between belong to the query. So the ends are noted
as soon as there is a client, while the other clients are built.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kafka import errors as kafka_errors

from ..query_state import QueryState

if TYPE_CHECKING:
    from ....consumer.consumer import DeferredRevokeConsumer
    from ...options.source_options import SourceOptions

log = logging.getLogger(__name__)

#: How long the start may wait for the ends. A partition whose leader has not answered by then
#: starts at the end as of its assignment.
_WITHIN_MS = 2_000


class FirstEnds:
    """One look-up, requested by the constructor; used by the pump's thread."""

    def __init__(
        self, options: SourceOptions, state: QueryState, cluster: DeferredRevokeConsumer
    ) -> None:
        self._options = options
        self._state = state
        with state as shared:
            asked = shared.starts.may_start_at_end()
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
