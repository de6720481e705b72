"""Coverage: whether a run with an end (AvailableNow, Once) would leave records unread.

A partition is covered if it is ours, if another live member owns it, or if the group has read all
of it. A run ends only when every partition is covered. ``live_owners`` decides which members are
alive.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping

from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from ....errors import KafkaRebalanceError, names_of
from ..clients.query_members import LOOKUP_TIMEOUT_MS
from ..clients.query_part import QueryCore, QueryPart
from ..logs.log_ends import LogEnds
from .live_owners import LiveOwnerWatch

log = logging.getLogger(__name__)

#: How often such a run rechecks other members, its own, and its partitions' starts.
COVERAGE_TICK_S = 0.1
_OWN_TICK_S = 0.02
_STARTS_TICK_S = 0.005

#: How long to wait until the starts of our partitions are known: enough for a broker restart.
_STARTS_WITHIN_S = 60.0


class Coverage(QueryPart):
    """Waits until every partition is covered, or says which are not; for the planner's thread."""

    def __init__(self, core: QueryCore, log_ends: LogEnds) -> None:
        super().__init__(core)
        self._log_ends = log_ends
        self._live_owners = LiveOwnerWatch(core.options)
        self._read_by_group: frozenset[TopicPartition] = frozenset()

    @property
    def read_by_group(self) -> frozenset[TopicPartition]:
        """Partitions of others that the group had read to the given ends in some check so far."""
        return self._read_by_group

    @property
    def within_s(self) -> float:
        """How long the group may take to give every partition to a live member, in seconds.

        Other members may use the whole rebalance timeout to rejoin or to release. A dead member
        stays in the group until its session expires.
        """
        rebalance_ms: float = self._options.consumer_config["max_poll_interval_ms"]
        return (rebalance_ms + self._members.session_timeout_ms()) / 1000

    def wait(
        self,
        ends: Mapping[TopicPartition, int] | None = None,
        until: Callable[[], bool] = lambda: False,
        patience_s: Callable[[], float | None] = lambda: None,
    ) -> None:
        """Wait until the members have joined and nothing is :meth:`uncovered`.

        The members do not all join at the same moment, so the first must give most of its
        partitions to the others. Those revokes do not wait for their rows in the next batch: it is
        planned only after this wait, and the batch of Once would miss the records. A revoke that
        waits for a batch under way ends the wait.

        The wait lasts at most :attr:`within_s`, then raises KafkaRebalanceError with the
        partitions. It then waits for the starts of our partitions as long as a broker may take to
        restart, and continues without them.

        ``until`` ends the wait early. It ends without an error ``patience_s`` after the members
        have joined, even if something is uncovered; None: never.
        """
        deadline = time.monotonic() + self.within_s
        joined_at: float | None = None
        while not until() and not self._pump.is_stopping:
            uncovered = self.uncovered(ends)
            if not uncovered and self._members.have_settled():
                break
            if self._state.a_revoke_waits_for_a_batch(release_unread=True):
                break
            now = time.monotonic()
            if now >= deadline:
                raise self.error(uncovered)
            has_joined = self._members.has_joined()
            if has_joined:
                joined_at = now if joined_at is None else joined_at
                at_most_s = patience_s()
                if at_most_s is not None and now - joined_at >= at_most_s:
                    break
            waits_for_others = uncovered and has_joined
            self._pump.wait(COVERAGE_TICK_S if waits_for_others else _OWN_TICK_S)
        deadline = time.monotonic() + _STARTS_WITHIN_S
        while (starting := self._state.unpositioned()) and not until():
            if time.monotonic() >= deadline:
                log.warning(
                    "group %s: start offsets still unknown: %s", self._options.group_id, starting
                )
                return
            self._pump.wait(_STARTS_TICK_S)
            self._pump.raise_failure()

    def error(self, uncovered: Collection[TopicPartition]) -> KafkaRebalanceError:
        """The error for partitions that stay uncovered."""
        what = names_of(sorted(uncovered)) if uncovered else "its members have not joined"
        return KafkaRebalanceError(
            f"group {self._options.group_id!r}: not read to the end, because after "
            f"{self.within_s:g} s neither this query nor another live member owned some "
            f"partitions: {what}"
        )

    def uncovered(self, ends: Mapping[TopicPartition, int] | None = None) -> list[TopicPartition]:
        """Partitions with unread records that neither we nor another live member own.

        ``ends`` are the end offsets to read to, exclusive; by default the current ones. Raises
        KafkaRebalanceError if the brokers do not report ownership, or the membership has failed.
        """
        self._members.client()  # waits until they are built
        if self._options.partitions is not None:
            return []  # there are no other members
        there = self._members.partitions() if ends is None else ends.keys()
        with self._state as state:
            ours = state.assignment.partitions.all().keys() - state.assignment.partitions.revoking()
        foreign = sorted(there - ours)
        if not foreign or not self._members.has_joined():
            return foreign
        if ends is None:
            ends = self._log_ends.end_offsets(foreign)
        try:
            left = self._members.committed(foreign, LOOKUP_TIMEOUT_MS)
        except kafka_errors.KafkaError as error:
            if not error.retriable:
                raise
            return foreign
        committed = {p: one.committed() for p, one in left.items()}
        unread = [p for p in foreign if committed.get(p, 0) < ends.get(p, 1)]
        self._read_by_group |= set(foreign) - set(unread)
        if not unread:
            return []
        own_ids = {member.member_id for member in self._members}
        others = self._live_owners.owned(own_ids, self._members.session_timeout_ms())
        return [p for p in unread if p not in others]
