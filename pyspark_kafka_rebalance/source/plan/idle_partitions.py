"""KIP-695's rule for partitions without records: they hold the others back for a while. Pure."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from kafka.structs import TopicPartition

from ...errors import names_of
from .batch_planner import Draft

log = logging.getLogger(__name__)

#: A moving leader, or a rebalance, is not worth a log line if it takes less than this.
_NAMED_AFTER_S = 1.0


class IdlePartitions:
    """Decides which empty partitions a batch waits for, and logs the ones that hold it up.

    A partition is waited for ``max_idle_s`` after the answer that it has nothing to read.
    """

    def __init__(self, max_idle_s: float, clock: Callable[[], float]) -> None:
        self._max_idle_s = max_idle_s
        self._clock = clock
        self._empty: dict[TopicPartition, tuple[int, float]] = {}  # its position, and since when
        self._unknown_since: float | None = None
        self._named: frozenset[TopicPartition] = frozenset()

    def waiting(self, draft: Draft, asked_at: float) -> dict[TopicPartition, int]:
        """Return the partitions without records that are waited for, and where they end.

        The ends were requested at ``asked_at``. One broker may take seconds longer to answer than
        another, and the other one's answer lacks records that were appended in between.
        """
        now, before = self._clock(), self._empty
        self._empty = {}
        for p, position in draft.positions.items():
            if draft.ends.get(p, position + 1) <= position:
                known = before.get(p)
                same = known is not None and known[0] == position
                self._empty[p] = known if known is not None and same else (position, now)
        return {
            p: draft.ends[p]
            for p, (_, since) in self._empty.items()
            if asked_at - since < self._max_idle_s
        }

    def are_unknown(self, partitions: Collection[TopicPartition]) -> None:
        """Note partitions that may have something to read or not: all others wait for them."""
        unknown = frozenset(partitions)
        if not unknown:
            self._unknown_since, self._named = None, frozenset()
            return
        now = self._clock()
        if self._unknown_since is None:
            self._unknown_since = now
        if now - self._unknown_since >= _NAMED_AFTER_S and not unknown <= self._named:
            self._named |= unknown
            log.warning(
                "maxTaskIdleMs: reading waits until the brokers say what these partitions hold, "
                "because their records may be older than the others': %s",
                names_of(unknown),
            )
