"""QueryRun: one run of a query in its planner process, from its first member to its last.

It has a name of its own, by which ``stop_gracefully`` asks it to stop, and other sources of the
driver learn of it. A process has one run, and another one if whoever asked it to stop is gone.
"""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING

from ..errors import KafkaRebalanceError, names_of
from .driver_sources import DriverSources
from .group.batch_state import Gaps
from .group.group_commits import STOP_TIMEOUT_S
from .group.left_behind import LeftBehind
from .group.membership import QueryMembership
from .sigterm import stop_on_sigterm
from .stop_request import StopRequest

if TYPE_CHECKING:
    from .offsets import StreamOffset
    from .options import SourceOptions

log = logging.getLogger(__name__)


class QueryRun:
    """Its members join when the membership is told to; :meth:`start` comes first.

    Parameters
    ----------
    options : SourceOptions
        Those of a stream.

    Attributes
    ----------
    name : str
        Prefix of the members' client ids; unique.
    membership : QueryMembership
        Its members.
    stop_request : StopRequest
        Who asks it to stop.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        prefix = options.client_config.get("client_id") or "kafka_deferred"
        self.name = f"{prefix}-{secrets.token_hex(4)}"
        self.membership = QueryMembership(options, self.name)
        self.stop_request = StopRequest(self.name)
        self._beside = DriverSources(options, self.name) if options.partitions is None else None

    def start(self) -> None:
        """Be known to others, end well on SIGTERM, build the members."""
        if self._beside is not None:
            self._beside.enter()
        stop_on_sigterm()
        self.membership.start()

    def restore(self, begin: StreamOffset, before: LeftBehind | None) -> None:
        """Begin at the offset that Spark starts with, or where an abandoned run before has ended.

        Spark's log may be behind that: where a log became shorter, or a topic was deleted.
        """
        live = self._options.catch_up is not None  # else what lies below is read in order
        positions = begin.positions() if live else begin.lowest_positions()
        gaps: Gaps = begin.gaps
        if before is not None:
            positions = {p: before.known[p] for p in positions if p in before.known}
            gaps = before.gaps
        self.membership.restore(positions, begin.initial, begin.imported, gaps if live else None)
        if before is not None:
            self.membership.go_on(before)

    def is_asked_to_stop(self) -> bool:
        """Whether ``stop_gracefully`` wants no further batch."""
        return self.stop_request.is_made()

    def may_have_siblings(self) -> bool:
        """Whether another source of this driver in the group may be a ``load()`` of this query."""
        return self._beside is not None and self._beside.may_have_siblings()

    def is_abandoned(self) -> bool:
        """Whether who has asked to stop is gone, so that the query is to go on."""
        return self.stop_request.is_abandoned()

    def abandon(self) -> LeftBehind:
        """End a run that is abandoned.

        Raises
        ------
        KafkaRebalanceError
            With async progress tracking: where Spark stands is not proven.
        """
        log.warning(
            "group %s: asked to stop by stop_gracefully(), and not stopped: reading on",
            self._options.group_id,
        )
        if self.membership.proofs.progress_is_asynchronous:
            raise KafkaRebalanceError(
                "stop_gracefully() asked the query to stop and was ended before it did: start the "
                "query again"
            )
        self.end()
        return self.membership.left_behind()

    def leave_if_proven(self) -> None:
        """Asked to stop, and Spark has no batch under way: leave, and do not wait for it."""
        if self._beside is not None:
            self._beside.leave()
        if not self.membership.proofs.are_missing():  # else whoever asked may prove it
            self.membership.leave(self._stop_timeout_s())

    def end(self) -> None:
        """Commit what is proven, leave the group, and say so to who has asked; idempotent."""
        if self._beside is not None:
            self._beside.leave()
        for offset in self.stop_request.proven():
            self.membership.proofs.done(offset)
        self.membership.stop(self._stop_timeout_s())
        missing = self.membership.commits.uncommitted()
        if self.stop_request.answer(committed=not missing):
            log.warning(
                "group %s: stopped, and these are not committed as far as they are read, so "
                "that stop_gracefully() returns False: %s",
                self._options.group_id,
                names_of(missing),
            )

    def _stop_timeout_s(self) -> float:
        return max(STOP_TIMEOUT_S, self.stop_request.commits_wanted_s())
