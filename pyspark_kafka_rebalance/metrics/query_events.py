"""Which instrument each progress of a query adds to, and the query's state; pure.

Like ``progress(query)``, it uses nothing but the progress. Several threads may call it, one at a
time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kafka.structs import TopicPartition

from ..source.progress import QueryStory, is_ours, seconds_of
from ..source.progress_table import LOST, OWNED, REVOKING, PartitionProgress, QueryProgress
from . import catalogue
from .catalogue import Attributes, Instrument, Measured, of_partition
from .waiting import Waiting


class QueryEvents:
    """Counts and gauges of one run of a query, from its progress alone."""

    def __init__(self) -> None:
        self._story = QueryStory()
        self._table = QueryProgress()
        self._reported_at: float | None = None
        self._generations: dict[str, int] = {}
        self._waiting: dict[TopicPartition, Waiting] = {}
        self._revoking_since: dict[TopicPartition, float] = {}
        self._attributes: Attributes = {catalogue.SYSTEM: "kafka"}

    def add(self, progress: Mapping[str, Any], now: float) -> list[Measured]:
        """Take in a progress; return nothing if the query has no source of ours.

        Raises OffsetFormatError if a newer release of this package made the progress.
        """
        self._story.add(progress)
        if self._story.is_foreign:
            return []
        before = {_partition_of(row): row.state for row in self._table}
        generations, self._generations = self._generations, self._story.generations()
        self._table = self._story.table()
        self._reported_at = now
        self._attributes = {catalogue.SYSTEM: "kafka", catalogue.QUERY: str(self._table.query)}
        seconds = seconds_of(progress)
        planned_at = now if seconds is None else seconds[0]
        rows = {_partition_of(row): row for row in self._table}
        owned = {p: row for p, row in rows.items() if row.state in OWNED}
        self._waiting = {p: self._waiting.get(p) or Waiting() for p in owned}
        for p, row in owned.items():
            if row.end_offset is not None:
                self._waiting[p].ended_at(row.end_offset, planned_at)
        self._revoking_since = {
            p: self._revoking_since.get(p, planned_at)
            for p, row in rows.items()
            if row.state == REVOKING
        }
        new = {p.topic for p in rows} - {p.topic for p in before}
        lost = [p for p, row in rows.items() if row.state == LOST and before.get(p) != LOST]
        # Start at 0: an increase that is a counter's first value is not seen.
        measured = [
            Measured(
                catalogue.LOST,
                sum(p.topic == topic for p in lost),
                {**self._attributes, catalogue.TOPIC: topic},
            )
            for topic in sorted(new | {p.topic for p in lost})
        ]
        rebalances = sum(
            generations.get(member, number) != number
            for member, number in self._generations.items()
        )
        measured.append(Measured(catalogue.REBALANCES, rebalances, self._attributes))
        read = sum(
            source.get("numInputRows") or 0 for source in progress["sources"] if is_ours(source)
        )
        if read > 0:
            measured.append(Measured(catalogue.ROWS, read, self._attributes))
            if seconds is not None:
                measured.append(Measured(catalogue.BATCHES, seconds[1], self._attributes))
        return measured

    def reported(self, now: float) -> None:
        """The query has reported a progress that is not known, and read nothing."""
        if self._reported_at is not None:
            self._reported_at = now

    def read(self, instrument: Instrument, now: float) -> Iterator[Measured]:
        """Return this instrument's values now."""
        if self._reported_at is None:
            return
        if instrument is catalogue.PROGRESS_AGE:
            yield Measured(instrument, now - self._reported_at, self._attributes)
        elif instrument is catalogue.ASSIGNED:
            owned = sum(row.state in OWNED for row in self._table)
            yield Measured(instrument, owned, self._attributes)
        elif instrument is catalogue.REVOKING:
            revoking = sum(row.state == REVOKING for row in self._table)
            yield Measured(instrument, revoking, self._attributes)
        else:
            for row in self._table:
                if row.state in OWNED:
                    value = self._of_partition(instrument, row, now)
                    if value is not None:
                        of = of_partition(self._attributes, row.topic, row.partition)
                        yield Measured(instrument, value, of)

    def _of_partition(
        self, instrument: Instrument, row: PartitionProgress, now: float
    ) -> float | None:
        if instrument is catalogue.LAG:
            return row.lag
        if instrument is catalogue.POSITION:
            return row.position
        if instrument is catalogue.CATCH_UP:
            return row.catch_up_lag
        if instrument is catalogue.REVOKE_AGE:
            since = self._revoking_since.get(_partition_of(row))
            return None if since is None else max(0.0, now - since)
        if instrument is catalogue.LAG_TIME and row.lag is not None and row.position is not None:
            since = self._waiting[_partition_of(row)].since(row.position, None)
            return 0.0 if since is None else max(0.0, now - since)
        return None


def _partition_of(row: PartitionProgress) -> TopicPartition:
    return TopicPartition(row.topic, row.partition)
