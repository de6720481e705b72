"""Figures of a query that was killed and restarted, from the ledger: ages, backlog, verdict. Pure.

All times are seconds of this machine's clock. A record's timestamp is the time it was produced; a
row is delivered when its batch completes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import pyarrow as pa
import pyarrow.compute as pc
from kafka.structs import TopicPartition

from measuring.rebalance_figures import Window
from pyspark_kafka_rebalance.testing.ledger import duplicated_rows, seconds, tally

_RECORD = ["topic", "partition", "offset"]

#: The interval at which ages are sampled for their median.
_LOOK_EVERY_S = 0.1


@dataclass(frozen=True)
class History:
    """The records produced, and one query's deliveries, over time.

    Attributes
    ----------
    produced : list of float
        When each record was produced, in order; only records that some query has delivered.
    delivered : list of (float, float)
        When each record was first delivered, and when it was produced; ordered by delivery.
    """

    produced: list[float]
    delivered: list[tuple[float, float]]

    def newest(self) -> list[tuple[float, float]]:
        """For each delivery of a newer row: its time, and when the newest row was produced."""
        found: list[tuple[float, float]] = []
        for at, produced in self.delivered:
            if found and found[-1][1] >= produced:
                continue
            if found and found[-1][0] == at:  # a row of the same batch
                found.pop()
            found.append((at, produced))
        return found

    def ages(self, window: Window) -> list[tuple[float, float]]:
        """Age of the newest row delivered so far, as a line; it grows until a newer row comes."""
        points: list[tuple[float, float]] = []
        before: float | None = None
        for at, produced in self.newest():
            if at > window.until:
                break
            if at > window.since:
                if before is not None:
                    points += [] if points else [(window.since, window.since - before)]
                    points.append((at, at - before))
                points.append((at, at - produced))
            before = produced
        if before is not None:
            points += [] if points else [(window.since, window.since - before)]
            points.append((window.until, window.until - before))
        return points

    def backlog(self, times: Sequence[float]) -> list[int]:
        """At each of the times, how many records are produced but not yet delivered."""
        return [
            bisect_right(self.produced, at) - bisect_right(self.delivered, at, key=_delivered_at)
            for at in times
        ]


@dataclass(frozen=True)
class OutageFigures:
    """The outage's cost for one query.

    Attributes
    ----------
    delivered, missing : int
        Distinct records delivered; offsets never delivered.
    of_gaps : int
        Deliveries with ``catch_up``.
    in_flight, repeated : int
        Deliveries beyond the first: records of the batch that the kill interrupted and the restart
        reruns; and all others, of which there must be none.
    first_new_after_s : float or None
        From the restart to the first row that was produced after it.
    backlog_read_after_s : float or None
        From the restart until every record produced before it is delivered.
    age_s : float or None
        The median age of the newest row over that time.
    """

    delivered: int
    missing: int
    of_gaps: int
    in_flight: int
    repeated: int
    first_new_after_s: float | None
    backlog_read_after_s: float | None
    age_s: float | None

    @property
    def is_right(self) -> bool:
        """Whether nothing is missing, and only records in flight at the kill came twice."""
        return not (self.missing or self.repeated)


def histories_of(ledger: pa.Table, readers: Sequence[str]) -> dict[str, History]:
    """Each reader's history, from the ledger of all readers."""
    first = _first_deliveries(ledger)
    produced = sorted(first["produced"].to_pylist())
    found = {}
    for reader in readers:
        own = _first_deliveries(ledger.filter(pc.equal(ledger["reader"], reader)))
        columns = (own[name].to_pylist() for name in ("delivered", "produced"))
        found[reader] = History(produced, sorted(zip(*columns, strict=True)))
    return found


def figures_of(
    ledger: pa.Table,
    reader: str,
    history: History,
    end_offsets: Mapping[TopicPartition, int],
    killed_at: float,
    restarted_at: float,
) -> OutageFigures:
    """Judge one reader by its rows in the ledger.

    Parameters
    ----------
    ledger : pyarrow.Table
        The ledger of all readers.
    reader : str
        The reader to judge.
    history : History
        The reader's history.
    end_offsets : mapping of TopicPartition to int
        The reader should have delivered everything from 0 up to these.
    killed_at, restarted_at : float
        When it was killed and restarted.
    """
    rows = ledger.filter(pc.equal(ledger["reader"], reader))
    found = tally(rows, end_offsets)
    in_flight = _in_flight(rows, killed_at)
    first_new = min(
        (at for at, produced in history.delivered if produced > restarted_at), default=None
    )
    last_old = max(
        (at for at, produced in history.delivered if produced <= restarted_at), default=None
    )
    read_after = None if last_old is None else max(0.0, last_old - restarted_at)
    return OutageFigures(
        delivered=found.records,
        missing=sum(map(len, found.lost.values())),
        of_gaps=_count(rows, "catch_up"),
        in_flight=in_flight,
        repeated=found.duplicated - in_flight,
        first_new_after_s=None if first_new is None else first_new - restarted_at,
        backlog_read_after_s=read_after,
        age_s=_median_age(history, Window(restarted_at, restarted_at + (read_after or 0.0))),
    )


def _first_deliveries(rows: pa.Table) -> pa.Table:
    """One row per record: when it was produced, and when it was first delivered."""
    times = {"produced": seconds(rows["timestamp"]), "delivered": rows["completed_at"]}
    table = pa.table({**{name: rows[name] for name in _RECORD}, **times})
    grouped = table.group_by(_RECORD).aggregate([(name, "min") for name in times])
    return pa.table({name: grouped[f"{name}_min"] for name in times})


def _count(rows: pa.Table, column: str) -> int:
    """The number of rows in which the column is true; 0 if the reader's source has none."""
    return int(pc.sum(rows[column]).as_py() or 0) if column in rows.column_names else 0


def _in_flight(rows: pa.Table, killed_at: float) -> int:
    """Second deliveries of the last batch before the kill, rerun under the same batch number."""
    earlier = rows.filter(pc.less_equal(rows["completed_at"], killed_at))
    twice = duplicated_rows(rows)
    last_batch = pc.max(earlier["batch"]).as_py()
    if last_batch is None or not twice.num_rows:
        return 0
    counts = twice.group_by(_RECORD).aggregate(
        [("batch", "min"), ("batch", "max"), ("completed_at", "min"), ("batch", "count")]
    )
    of_the_kill = pc.and_(
        pc.and_(
            pc.equal(counts["batch_min"], last_batch), pc.equal(counts["batch_max"], last_batch)
        ),
        pc.and_(
            pc.less_equal(counts["completed_at_min"], killed_at),
            pc.equal(counts["batch_count"], 2),
        ),
    )
    return int(pc.sum(of_the_kill).as_py() or 0)


def _median_age(history: History, window: Window) -> float | None:
    newest = history.newest()
    ages = []
    at = window.since
    while at <= window.until:
        # A delivery at exactly this time is taken as later.
        if count := bisect_left(newest, at, key=_delivered_at):
            ages.append(at - newest[count - 1][1])
        at += _LOOK_EVERY_S
    return median(ages) if ages else None


def _delivered_at(record: tuple[float, float]) -> float:
    return record[0]
