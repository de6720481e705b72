"""KnownToGroup: what the group knows of partitions before this query owns any.

Which of them are new to it, and how far it is with what the checkpoint knows. Each is asked once,
and again if a broker fails for a moment. On the pump's thread.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kafka import errors as kafka_errors

from ...consumer.pump import Pump
from .new_to_group import new_to_group
from .query_members import LOOKUP_TIMEOUT_MS, QueryMembers
from .query_state import QueryState

if TYPE_CHECKING:
    from ..options import SourceOptions

log = logging.getLogger(__name__)

#: How soon a failed look-up that members wait for before they join is repeated.
_ASK_AGAIN_S = 0.02


class KnownToGroup:
    """For one query.

    Parameters
    ----------
    options : SourceOptions
        Those of a stream.
    state : QueryState
        Tells what to ask for, and is told the answers.
    members : QueryMembers
        Who ask.
    pump : Pump
        Ends a wait when it is to stop.
    """

    def __init__(
        self, options: SourceOptions, state: QueryState, members: QueryMembers, pump: Pump
    ) -> None:
        self._options = options
        self._state = state
        self._members = members
        self._pump = pump
        # How far the group is with what the checkpoint knows; what is assigned by hand is the
        # query's own from the beginning.
        self._has_asked = options.partitions is not None

    def find_new(self) -> None:
        """Find out, before the members join, which partitions are new to the group."""
        # With ``assign`` a group's offsets say nothing of the partitions it does not name.
        if self._options.partitions is not None:
            return
        with self._state as state:
            asked = state.starts.maybe_new_to_group()
        while asked and not self._pump.is_stopping:
            try:
                committed = self._members[0].committed_offsets(asked, LOOKUP_TIMEOUT_MS)
            except kafka_errors.KafkaError as error:
                if not error.retriable:
                    return  # joining the group says better what is refused
                log.warning("group %s: offsets not known yet: %r", self._options.group_id, error)
                self._pump.wait(_ASK_AGAIN_S)
                continue
            with self._state as state:
                state.starts.found_new_to_group(new_to_group(asked, committed))
            return

    def find_committed(self) -> None:
        """Find out, once, how far the group is with what the checkpoint knows.

        If its offset is a lower one when a partition is assigned, another query has found the log
        shorter since (``Positioning.start_at``).
        """
        if self._has_asked:
            return
        with self._state as state:
            asked = state.starts.may_go_back(state.assignment.marks.unheard_of())
        try:
            committed = self._members.committed(asked, LOOKUP_TIMEOUT_MS) if asked else {}
        except kafka_errors.KafkaError as error:
            self._has_asked = not error.retriable  # a start says better what is refused
            log.info("group %s: offsets not known yet: %r", self._options.group_id, error)
            return
        self._has_asked = True
        with self._state as state:
            state.assignment.commits.acknowledge_remaining(committed)
