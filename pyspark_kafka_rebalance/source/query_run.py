"""QueryRun: one run of a query in its planner process, from its first member to its last.

Every run has its own name. ``stop_gracefully`` uses it to ask the run to stop, and other sources of
the driver know the run by it. A process has one run, and starts another if the caller that asked
the first one to stop did not stop the query in time.
"""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING

from ..errors import KafkaRebalanceError, MembershipError, names_of
from .door.door import Door
from .driver_sources import DriverSources
from .group.batch_state import Gaps, LeftBehind
from .group.group_commits import STOP_TIMEOUT_S
from .group.membership import QueryMembership
from .offsets.query_identity import QueryIdentity
from .spark.load_claim import LoadClaim
from .spark.sigterm import has_ended, stop_on_sigterm
from .stop.stop_request import StopRequest

if TYPE_CHECKING:
    from .offsets.stream_offset import StreamOffset
    from .options.source_options import SourceOptions

log = logging.getLogger(__name__)


class QueryRun:
    """One run. Call :meth:`start` first; the members join once ``membership.join`` is called."""

    def __init__(self, options: SourceOptions, identity: QueryIdentity) -> None:
        self._options = options
        prefix = options.client_config.get("client_id") or "kafka_deferred"
        self.name = f"{prefix}-{secrets.token_hex(4)}"
        self.membership = QueryMembership(options, self.name, identity)
        self.stop_request = StopRequest(self.name)
        self._door = Door(self.name, self.membership.sink_batches)
        self._beside = DriverSources(options, self.name) if options.partitions is None else None
        may_share = options.share_group or options.group_id_prefix is not None
        alone = bool(options.load) and not may_share
        self._claim = LoadClaim(options.load, self.name) if alone else None

    def start(self) -> None:
        """Register the run with other sources, handle SIGTERM, build the members.

        Raises MembershipError if another query reads from the same ``load()``.
        """
        if self._claim is not None and (other := self._claim.take()) is not None:
            raise self._refused(other)
        if self._beside is not None:
            self._beside.enter()
        stop_on_sigterm(self.end)
        self.membership.start()
        self._door.open()

    def restore(self, begin: StreamOffset, before: LeftBehind | None) -> None:
        """Start at Spark's start offset, or where an earlier, abandoned run has ended.

        Spark's log may be behind that, if a partition's log became shorter or a topic was deleted.
        """
        live = self._options.catch_up is not None  # else records below are read in order
        positions = begin.positions() if live else begin.lowest_positions()
        gaps: Gaps = begin.gaps
        if before is not None:
            positions = {p: before.known[p] for p in positions if p in before.known}
            gaps = before.gaps
        self.membership.follow(begin.followed)
        if begin.by_sink:
            self.membership.follow_group()
        self.membership.restore(
            positions, begin.initial, begin.imported, gaps if live else None, begin.first_ends
        )
        if before is not None:
            self.membership.go_on(before)

    def is_asked_to_stop(self) -> bool:
        """Whether ``stop_gracefully`` wants no further batch."""
        if self._claim is not None:
            self._claim.keep()
        return self.stop_request.is_made()

    def may_have_siblings(self) -> bool:
        """Whether another source of this driver in the group may be a ``load()`` of this query."""
        return self._beside is not None and self._beside.may_have_siblings()

    def is_abandoned(self) -> bool:
        """Whether the caller that asked did not stop the query in time, so that it continues."""
        return self.stop_request.is_abandoned()

    def abandon(self) -> LeftBehind:
        """End an abandoned run, and return its state.

        Raises KafkaRebalanceError if Spark tracks its progress asynchronously: its position is not
        proven then.
        """
        log.warning(
            "group %s: stop_gracefully() asked the query to stop and did not stop it; reading "
            "continues",
            self._options.group_id,
        )
        if self.membership.proofs.progress_is_asynchronous:
            raise KafkaRebalanceError(
                "stop_gracefully() asked the query to stop and ended before it stopped it: start "
                "the query again"
            )
        self.end()
        return self.membership.left_behind()

    def leave_if_proven(self) -> None:
        """After a request to stop, leave if every batch is proven, without waiting for it.

        Spark has no batch running then.
        """
        if self._beside is not None:
            self._beside.leave()
        if not self.membership.proofs.are_missing():  # else the caller may prove the last batch
            self.membership.leave(self._stop_timeout_s())

    def end(self) -> None:
        """Commit proven offsets, leave the group, and answer the stop request; idempotent."""
        if self._beside is not None:
            self._beside.leave()
        if self._claim is not None:
            self._claim.release()  # the query plans nothing more
        self._door.close()
        for offset in self.stop_request.proven():
            self.membership.proofs.done(offset)
        self.membership.stop(self._stop_timeout_s())
        missing = self.membership.commits.uncommitted()
        if self.stop_request.answer(committed=not missing):
            log.warning(
                "group %s: stopped before all offsets that were read were committed, so "
                "stop_gracefully() returns False: %s",
                self._options.group_id,
                names_of(missing),
            )
        has_ended(self.end)

    def _refused(self, other: str) -> MembershipError:
        """Return the error for a load that another run reads."""
        options = self._options
        beside = (
            f"group {options.group_id!r}: another query, or another part of this one, reads from "
            f"the same load() ({other})"
        )
        own = "to give each a group of its own, set groupIdPrefix instead of kafka.group.id"
        if options.partitions is not None:
            what = "and each would commit over the other's offsets"
            return MembershipError(f"{beside}, {what}: {own}")
        return MembershipError(
            f"{beside}, so each would get only some of the partitions: {own}; "
            "to have them share the topic, set shareGroup=true"
        )

    def _stop_timeout_s(self) -> float:
        return max(STOP_TIMEOUT_S, self.stop_request.commits_wanted_s())
