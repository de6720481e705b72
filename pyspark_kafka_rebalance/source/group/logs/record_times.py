"""RecordTimes: looks up the records' timestamps on the brokers, for ``maxTaskIdleMs``.

Used only by the planner's thread. If look-ups are not enough, it reads records as executors do, on
connections of its own that are opened only then.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING
from uuid import UUID

from kafka.errors import IncompatibleBrokerVersion
from kafka.structs import TopicPartition

from ....consumer.offsets.found_records import RecordTime
from ....errors import AuthorizationError, CorruptRecordError, KafkaRebalanceError
from ....fetch.offset_range import OffsetRange
from ...plan.timelines import Rows
from ...plan.times import SHORT
from ..clients.query_members import LOOKUP_TIMEOUT_MS, QueryMembers
from ..clients.query_part import QueryCore, QueryPart
from ..query_state import QueryState
from .log_ends import LogEnds

if TYPE_CHECKING:
    import pyarrow as pa

    from ....fetch.fetcher import RangeFetcher

log = logging.getLogger(__name__)

#: How long to wait for a partition that no member owns. Another query of the group may own it by
#: now, and its members can keep ours from settling.
_IN_TRANSIT_AT_MOST_S = 10.0

#: How long nothing must change before the members have settled. If a partition is missing, each
#: must also have had the heartbeat answers that ``LastChange`` requires.
_SETTLED_FOR_S = 1.0


class AwaitedPartitions:
    """The partitions to wait for before the planner orders by timestamps.

    A partition can be on its way from one member of the query to another, above all while they
    join. Its records would come late if the other partitions were read in the meantime.
    """

    def __init__(
        self, state: QueryState, members: QueryMembers, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._state = state
        self._members = members
        self._clock = clock
        #: The query's partitions when the members last settled, and later ones; None before.
        self._had: frozenset[TopicPartition] | None = None
        self._missing_since: dict[TopicPartition, float] = {}

    def now(self, planned: Collection[TopicPartition]) -> Collection[TopicPartition]:
        """Partitions that cannot be read now, or that may come back to a member.

        The batch is planned from the positions of ``planned``. Brokers may take seconds to report
        the ends of those logs; partitions assigned in between are not read.

        A revoked partition is left out once the members have settled, or at once if there is only
        one member. One whose revoke is requested is still the query's: the group may take the
        request back. Before they first settle, every partition of the query's topics is expected.
        """
        with self._state as state:
            partitions = state.assignment.partitions
            positions, owned = partitions.plannable(), partitions.all()
            starting = {p for found in partitions.unpositioned().values() for p in found}
            starting.update(positions.keys() - planned)
            certain = [member.may_hand_out() for member in self._members]
            if not all(certain):
                starting.update(p for p in positions if not certain[owned[p].member])
            gained, state.gained = state.gained, set()
            known = state.assignment.marks.known() if self._had is None else {}
            change = state.last_change
            is_quiet, all_told = change.unchanged_s() >= _SETTLED_FOR_S, change.all_told
        had = frozenset(self._members.partitions()) if self._had is None else self._had
        # A member's new partition can have moved on by now, even without a batch in between.
        had |= owned.keys() | gained
        missing = had - positions.keys()
        if self._had is not None and len(self._members) == 1:
            missing &= owned.keys()  # a partition that left the only member left the query
        # A killed planner's members own their partitions until their sessions end, and KIP-848
        # reports so to ours. Partitions of the checkpoint will come back.
        is_settled = not missing or (all_told and missing.isdisjoint(known))
        if self._members.have_settled() and is_quiet and is_settled:
            self._had, self._missing_since = frozenset(owned), {}
            return starting
        awaited = self._maybe_in_transit(missing, owned, gained)
        gone = missing - awaited
        if self._had is not None or gone:
            self._had = had - gone
        return starting | awaited

    def _maybe_in_transit(
        self,
        missing: frozenset[TopicPartition],
        owned: Collection[TopicPartition],
        gained: Collection[TopicPartition],
    ) -> frozenset[TopicPartition]:
        """The missing partitions that are owned, or were within the last ten seconds.

        Joins can follow each other for minutes, and a revoke can wait for a batch just as long.
        """
        now, since = self._clock(), self._missing_since
        self._missing_since = {
            p: now if p in gained else since.get(p, now) for p in missing.difference(owned)
        }
        gone = {p for p, at in self._missing_since.items() if now - at >= _IN_TRANSIT_AT_MOST_S}
        return missing - gone


#: A read without progress for this long is given up; the next trigger tries again.
_PATIENCE_MS = 5_000

#: About how many bytes are read ahead of one partition.
_AHEAD_BYTES = 4 * 1024 * 1024


class RecordTimes(QueryPart):
    """The brokers' answers by which ``plan/event_time`` orders records by timestamps."""

    def __init__(self, core: QueryCore, log_ends: LogEnds) -> None:
        super().__init__(core)
        self._awaited = AwaitedPartitions(core.state, core.members)
        self._log_ends = log_ends
        self._leaderships: dict[TopicPartition, tuple[UUID | None, int | None]] = {}
        self._leaderships_ms = -1.0
        self._prepared: dict[TopicPartition, int] = {}  # timestamps already requested
        self._answer: Callable[[], dict[TopicPartition, RecordTime | None]] = dict

    def awaited(self, planned: Collection[TopicPartition]) -> Collection[TopicPartition]:
        """Partitions that the query has or is about to get, and a batch of these cannot read."""
        return self._awaited.now(planned)

    def ends_asked_at(self) -> float:
        """When the ends of the logs were last requested; seconds, monotonic."""
        return self._log_ends.asked_at

    def anew(self) -> Collection[TopicPartition]:
        """Partitions whose topic or leader has changed since the last call.

        Checks only if the metadata was refreshed: until then, the same leaders answer.
        """
        with self._members.asking() as client:
            if (renewed_ms := client.metadata_renewed_ms()) == self._leaderships_ms:
                return ()
            before, self._leaderships = self._leaderships, client.leaderships()
        self._leaderships_ms = renewed_ms
        now = self._leaderships
        found = [p for p, known in before.items() if now.get(p, known) != known]
        if found:
            self._prepared = {p: at for p, at in self._prepared.items() if p not in found}
            self._log_ends.renew_latest()
        # A partition without a leader for a while is later compared with its previous one.
        self._leaderships = {**before, **now}
        return found

    def first_at(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, RecordTime | None]:
        """Each log's first record at or after its timestamp; None if there is none.

        One request per broker. Partitions whose leader does not answer are left out.
        """
        with self._members.asking() as client:
            found = self._of_prepared(timestamps)
            if found:
                timestamps = {p: at for p, at in timestamps.items() if p not in found}
            if timestamps:
                found.update(client.first_records_now(timestamps, LOOKUP_TIMEOUT_MS))
            return found

    def prepare(self, first_at: Mapping[TopicPartition, int], *, newest: bool) -> None:
        """Send requests for the next batch's :meth:`first_at` and :meth:`newest` in advance."""
        if newest:
            self._log_ends.renew_latest()
        self._prepared = dict(first_at)
        if first_at:
            with self._members.asking() as client:
                self._answer = client.first_records_soon(first_at, LOOKUP_TIMEOUT_MS)

    def _of_prepared(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, RecordTime | None]:
        """Answers :meth:`prepare` fetched; still the first records at or after these timestamps.

        An answer without a record is not used, since one may have been appended in between.
        """
        prepared, self._prepared = self._prepared, {}
        if not any(prepared.get(p) == at for p, at in timestamps.items()):
            return {}
        return {
            p: found
            for p, found in self._answer().items()
            if found is not None and p in prepared and timestamps.get(p) == prepared[p]
        }

    def newest(self) -> Mapping[TopicPartition, RecordTime | None]:
        """Each log's latest record, from before its end; renewed if :meth:`prepare` asked."""
        return self._log_ends.latest_records()

    def newest_of(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, RecordTime | None]:
        """Each of these logs' latest record; partitions without an answer are left out.

        One request per broker. Empty if brokers are older than 3.0.
        """
        with self._members.asking() as client, suppress(IncompatibleBrokerVersion):
            return client.latest_records_now(partitions, LOOKUP_TIMEOUT_MS)
        return {}

    def rows(self, ranges: Mapping[TopicPartition, OffsetRange]) -> dict[TopicPartition, Rows]:
        """Read these ranges; of a long range maybe only the first part.

        Skips deleted records, and returns no rows for a damaged range, since the read of the
        batch reports both. Partitions whose leader does not answer are left out. Raises
        AuthorizationError if READ is not granted on a topic.
        """
        try:
            return self._read(ranges)
        except AuthorizationError:
            raise
        except CorruptRecordError:
            if len(ranges) == 1:
                return {p: Rows((), (), one.end) for p, one in ranges.items()}
        except KafkaRebalanceError as error:
            if len(ranges) == 1:
                log.info("cannot read timestamps: %s", error)
                return {}
        found: dict[TopicPartition, Rows] = {}
        for p, one in ranges.items():
            found |= self.rows({p: one})
        return found

    def _read(self, ranges: Mapping[TopicPartition, OffsetRange]) -> dict[TopicPartition, Rows]:
        from ....fetch.decoder import has_transactions
        from ....fetch.fetcher import RangeFetcher

        fetch = dict(self._options.fetch_config)
        fetch["retry_timeout_ms"] = min(fetch.get("retry_timeout_ms", _PATIENCE_MS), _PATIENCE_MS)
        fetcher = RangeFetcher(
            self._options.client_config,
            isolation_level=self._options.isolation_level,
            # The records that are left give the times; the read of the batch reports lost ones.
            fail_on_data_loss=False,
            **fetch,
        )
        short = [one for one in ranges.values() if len(one) <= SHORT]
        found: dict[TopicPartition, Rows] = {}
        transactional: set[OffsetRange] = set()

        def look(one: OffsetRange, records: bytes) -> None:
            if has_transactions(records):
                transactional.add(one)

        try:
            read = _by_range(fetcher.read(short, on_fetched=look)) if short else {}
            for partition, wanted in ranges.items():
                if len(wanted) <= SHORT:
                    offsets, timestamps = read.get(wanted, ((), ()))
                    found[partition] = Rows(
                        offsets, timestamps, wanted.end, has_transactions=wanted in transactional
                    )
                else:
                    found[partition] = _first_part(fetcher, wanted)
        finally:
            fetcher.close()
        return found


def _first_part(fetcher: RangeFetcher, wanted: OffsetRange) -> Rows:
    batches, size = [], 0
    reading = fetcher.read([wanted])
    for _, records in reading:
        batches.append(records)
        size += records.nbytes
        if size >= _AHEAD_BYTES:
            return _rows(batches, records.column("offset")[-1].as_py() + 1)
    return _rows(batches, wanted.end)


def _by_range(
    reading: Iterable[tuple[OffsetRange, pa.RecordBatch]],
) -> dict[OffsetRange, tuple[list[int], list[int]]]:
    """Offsets and timestamps by range; leaves out ranges without records."""
    batches = list(reading)
    offsets, timestamps = _columns([records for _, records in batches])
    found: dict[OffsetRange, tuple[list[int], list[int]]] = {}
    at = 0
    for one, records in batches:
        end = at + records.num_rows
        known = found.get(one)
        if known is None:
            found[one] = offsets[at:end], timestamps[at:end]
        else:
            known[0].extend(offsets[at:end])
            known[1].extend(timestamps[at:end])
        at = end
    return found


def _rows(batches: Sequence[pa.RecordBatch], end: int) -> Rows:
    return Rows(*_columns(batches), end)


def _columns(batches: Sequence[pa.RecordBatch]) -> tuple[list[int], list[int]]:
    """Offsets, and timestamps in ms, of all batches at once: there can be a thousand of one row."""
    import pyarrow as pa

    if not batches:
        return [], []
    records = pa.Table.from_batches(batches).select(["offset", "timestamp"]).combine_chunks()
    microseconds = records.column("timestamp").cast(pa.int64()).to_pylist()
    # Null is a timestamp that the column cannot hold; the record is planned as one without any.
    return records.column("offset").to_pylist(), [
        -1 if at is None else at // 1000 for at in microseconds
    ]
