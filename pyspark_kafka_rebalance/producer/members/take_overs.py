"""TakeOvers: find the restart points of assigned source partitions, once they are final.

Outline of a round, for all source partitions that wait:

1. Who owned it last? The metadata of the group's offset name the owner's transactional id. If that
   producer has an open transaction that touches the source partition, it can never be committed any
   more. It is aborted (that producer is fenced) instead of waiting for its timeout. With
   transactions v2, a producer announces its source partitions once its first record is written: if
   the open transaction has none of the group's, it is aborted if that is still so a while later.
2. Is the group's offset stable? It is unstable while a transaction is undecided that the group
   accepted before the source partition moved (KIP-447). A transaction that was not accepted by then
   never will be. So once the offset is stable, everything that counts is in the log.
3. Has the last stable offset of the topic's partition reached its high watermark? Markers are
   written only after a transaction is decided.
4. Read the last restart point, from the group's offset on: that is the offset of an earlier one.
5. Commit an offset that names the new owner.

This takes until the last owner's transaction timeout at most, if it cannot be fenced. A restart
point that is not final is requested again in the next round; a partition that is lost or revoked in
the meantime is dropped.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from ...errors import KafkaRebalanceError
from ...fetch.fetcher import RangeFetcher
from ...fetch.offset_range import OffsetRange
from ..options import ProducerOptions
from ..restart_points import RestartPoint, key_of, last_of
from .member import ProducerMember
from .other_transactions import OpenTransaction, OtherTransactions

log = logging.getLogger(__name__)

#: Time until the next round: a marker takes a few milliseconds to be written.
_AGAIN_S = 0.01
_AFTER_A_FAILURE_S = 0.2

#: Until then, a producer that lives has announced its source partitions, or begun another one.
_ANNOUNCED_WITHIN_S = 3.0

_ASK_MS = 5_000
_FENCE_S = 10.0


class TakeOvers:
    """Runs one round after the other, on a thread of its own.

    Parameters
    ----------
    options : ProducerOptions
        This producer's options.
    member : ProducerMember
        Asks the group, and the leaders.
    waiting : callable
        Returns the source partitions that wait, each with the number to pass to ``found``.
    found : callable
        Called with a source partition, its number, what was found (None: nothing), and the offset
        from which to search the next time.
    """

    def __init__(
        self,
        options: ProducerOptions,
        member: ProducerMember,
        waiting: Callable[[], dict[int, int]],
        found: Callable[[int, int, RestartPoint | None, int], None],
    ) -> None:
        self._topic = options.topic
        self._group_id = options.group_id
        self._mine = options.transactional_id
        self._member = member
        self._waiting = waiting
        self._found = found
        self._others = OtherTransactions(options.client)
        #: By transactional id: when it started, and when to look at it again.
        self._unannounced: dict[str, tuple[int, float]] = {}
        self._fetcher = RangeFetcher(
            options.client, isolation_level="read_committed", fail_on_data_loss=False
        )

    def connect(self) -> None:
        """Open the connections, so that the first take-over need not."""
        self._fetcher.connect()

    def tick(self) -> float | None:
        """Run one round; return the seconds until the next, or None if nothing waits."""
        self._fence_unannounced()
        waiting = self._waiting()
        if not waiting:
            return self._next_look_s()
        try:
            self._fence_former_owners(waiting)
            found = self._read(waiting)
        except (kafka_errors.KafkaError, KafkaRebalanceError) as error:
            if isinstance(error, kafka_errors.KafkaError) and not error.retriable:
                raise
            log.info("topic %s: reading the restart points again: %r", self._topic, error)
            return _AFTER_A_FAILURE_S
        for p, (point, after) in found.items():
            self._found(p, waiting[p], point, after)
        return _AGAIN_S if self._waiting() else self._next_look_s()

    def close(self) -> None:
        """Close the connections."""
        self._others.close()
        self._fetcher.close()

    def _fence_former_owners(self, waiting: dict[int, int]) -> None:
        former: dict[str, set[int]] = {}
        for p, told in self._member.committed_by(waiting).items():
            if told.metadata and told.metadata != self._mine:
                former.setdefault(told.metadata, set()).add(p)
        for transactional_id, partitions in former.items():
            mine = {TopicPartition(self._topic, p) for p in partitions & self._waiting().keys()}
            found = self._others.open_transaction(transactional_id)
            if found is not None and self._is_unannounced(found):
                again_at = time.monotonic() + _ANNOUNCED_WITHIN_S
                self._unannounced.setdefault(transactional_id, (found.started_ms, again_at))
            elif found is not None and mine & found.partitions:
                self._fence(
                    transactional_id, f"source partitions {sorted(p.partition for p in mine)}"
                )

    def _fence_unannounced(self) -> None:
        now = time.monotonic()
        for transactional_id, (started_ms, again_at) in list(self._unannounced.items()):
            if again_at > now:
                continue
            del self._unannounced[transactional_id]
            found = self._others.open_transaction(transactional_id)
            if found is None or found.started_ms != started_ms or not self._is_unannounced(found):
                continue
            self._fence(transactional_id, "source partitions")

    def _is_unannounced(self, found: OpenTransaction) -> bool:
        return all(partition.topic != self._topic for partition in found.partitions)

    def _next_look_s(self) -> float | None:
        times = [again_at for _, again_at in self._unannounced.values()]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _fence(self, transactional_id: str, owned: str) -> None:
        # Correctness does not need this check. But a member that is not certain to own what it
        # takes over might fence the member that does.
        if self._member.may_hand_out():
            done = self._others.fence(transactional_id, _FENCE_S)
            log.warning(
                "topic %s: the open transaction of %s, which owned %s before, is %s",
                self._topic,
                transactional_id,
                owned,
                "aborted" if done else "left to its timeout",
            )

    def _read(self, waiting: dict[int, int]) -> dict[int, tuple[RestartPoint | None, int]]:
        stable = self._member.stable_offsets(waiting)
        # In this order: a transaction decided by now is below the end that is fetched next.
        partitions = {p: TopicPartition(self._topic, p) for p in stable}
        ends = self._member.high_watermarks_now(list(partitions.values()), _ASK_MS)
        reached = self._member.end_offsets_now(list(ends), _ASK_MS)
        begins = self._member.beginning_offsets_now(list(ends), _ASK_MS)
        ranges = {}
        for p, partition in partitions.items():
            if partition not in begins or reached.get(partition, -1) < ends[partition]:
                continue
            end, begin, offset = ends[partition], begins[partition], stable[p]
            # An offset past the end is from a topic that no longer exists.
            start = begin if offset is None or not begin <= offset <= end else offset
            ranges[p] = OffsetRange(self._topic, p, start, end)
        rows: dict[int, list[tuple[int, bytes | None, bytes | None]]] = {p: [] for p in ranges}
        for of, batch in self._fetcher.read([r for r in ranges.values() if len(r)]):
            columns = (batch.column(name).to_pylist() for name in ("offset", "key", "value"))
            rows[of.partition].extend(zip(*columns, strict=True))
        found = {}
        for p, read in ranges.items():
            key = key_of(self._group_id, p)
            point = last_of(key, rows[p])
            if point is None and read.start > begins[partitions[p]]:
                # Nothing from there on: overwritten by hand, or compacted. Read all of it.
                everything = OffsetRange(self._topic, p, begins[partitions[p]], read.end)
                point = last_of(key, self._rows_of(everything))
            found[p] = (point, read.end if point is None else point.offset)
        return found

    def _rows_of(self, wanted: OffsetRange) -> list[tuple[int, bytes | None, bytes | None]]:
        rows: list[tuple[int, bytes | None, bytes | None]] = []
        for _, batch in self._fetcher.read([wanted]):
            columns = (batch.column(name).to_pylist() for name in ("offset", "key", "value"))
            rows.extend(zip(*columns, strict=True))
        return rows
