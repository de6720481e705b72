"""Transactions as text, as cells of a table, and as JSON. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..status.table import counted, iso_time, printable
from .report import DECIDED, Hold, Report, Transaction, is_overdue

_UNKNOWN = "-"

_OF_TRANSACTIONS = (
    *("transactional id", "state", "open for", "timeout", "producer id", "epoch", "coordinator"),
    *("partitions", "holds back", "note"),
)
_OF_ONE = ("partition", "start", "stable", "end", "holds back", "last write", "note")
_OF_PARTITIONS = (
    *("partition", "stable", "end", "holds back", "start", "open for", "transactional id"),
    *("producer id", "epoch", "coordinator", "state", "last write", "note"),
)
#: The right-aligned columns.
_NUMBERS = frozenset(
    {*_OF_TRANSACTIONS, *_OF_ONE, *_OF_PARTITIONS}
    - {"transactional id", "state", "partition", "note"}
)


@dataclass(frozen=True, slots=True)
class Table:
    """What a command shows.

    Attributes
    ----------
    summary : tuple of str
        The lines above the table.
    headings : tuple of str
        The columns.
    rows : tuple of tuple of str
        A cell for each column.
    numbers : frozenset of str
        The columns that are right-aligned.
    """

    summary: tuple[str, ...]
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: frozenset[str] = _NUMBERS


def listing(report: Report) -> Table:
    """A row for each transaction."""
    is_open = [t for t in report.transactions if t.is_open]
    parts = [counted(len(is_open), "open transaction")]
    if ended := len(report.transactions) - len(is_open):
        parts.append(f"{ended:,} ended")
    ages = [age for t in is_open if (age := t.open_for(report.at)) is not None]
    if ages:
        parts.append(f"the oldest open for {duration(max(ages))}")
    rows = [
        (
            printable(t.transactional_id),
            t.state,
            _age(t, report.at),
            _UNKNOWN if t.timeout_s is None else duration(t.timeout_s),
            *_identity(t),
            f"{len(t.partitions):,}",
            _number(report.held_by(t)),
            note_of(t, report.at),
        )
        for t in report.transactions
    ]
    return Table((", ".join(parts), *_silent(report)), _OF_TRANSACTIONS, tuple(rows))


def of_transaction(report: Report) -> Table:
    """The one transaction of the report, a row for each of its partitions."""
    (t,) = report.transactions
    age = t.open_for(report.at)
    parts = [f"transactional id {t.transactional_id}: {t.state}"]
    parts += [] if age is None else [f"open for {duration(age)}"]
    parts += [] if t.timeout_s is None else [f"timeout {duration(t.timeout_s)}"]
    parts.append(f"producer id {t.producer_id}, epoch {t.epoch}, coordinator {t.coordinator}")
    if t.is_open:
        parts.append(counted(len(t.partitions), "partition"))
        held = report.held_by(t)
        parts.append("holds back " + ("unknown" if held is None else counted(held, "record")))
    parts += [note] if (note := note_of(t, report.at)) else []
    rows = [
        (
            _named(hold),
            _number(None if hold.writer is None else hold.writer.start),
            *(_number(offset) for offset in (hold.log.stable, hold.log.end)),
            _number(hold.records),
            _last_write(hold, report.at),
            _note_of_own(hold),
        )
        for hold in report.holds_of(t)
    ]
    return Table((printable(", ".join(parts)),), _OF_ONE, tuple(rows))


def of_partitions(report: Report) -> Table:
    """What holds the report's partitions back: a row for each open transaction in each of them."""
    holds = report.holds()
    waiting = {p: log for p, log in report.logs.items() if _held(log.stable, log.end)}
    parts = [
        counted(len(report.logs), "partition"),
        f"{len(waiting):,} held back"
        + (f" by {counted(_total(report), 'record')}" if waiting else ""),
    ]
    parts += (
        [f"{counted(n, 'hanging transaction')}"] if (n := sum(h.is_hanging for h in holds)) else []
    )
    rows = [_row(hold, report) for hold in holds]
    with_row = {hold.partition for hold in holds}
    rows += [
        _row(Hold(p, log), report)
        for p, log in sorted(report.logs.items())
        if p not in with_row and (p in waiting or log.problem)
    ]
    summary = (printable(", ".join(parts)), *_silent(report))
    return Table(summary, _OF_PARTITIONS, tuple(rows))


def as_text(table: Table) -> str:
    """The summary, and below it a table in aligned columns."""
    if not table.rows:
        return "\n".join(table.summary)
    shown = [table.headings, *table.rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    lines = (
        "  ".join(
            cell.rjust(width) if heading in table.numbers else cell.ljust(width)
            for cell, width, heading in zip(row, widths, table.headings, strict=True)
        ).rstrip()
        for row in shown
    )
    return "\n".join([*table.summary, *lines])


def listing_as_json(report: Report) -> str:
    """All transactions of a listing as one line of JSON; times are UTC in ISO 8601."""
    return _line(report, transactions=[_transaction(t, report) for t in report.transactions])


def transaction_as_json(report: Report) -> str:
    """The one transaction of the report and its partitions, as one line of JSON."""
    (t,) = report.transactions
    partitions = [_hold(hold) for hold in report.holds_of(t)]
    return _line(report, transaction=_transaction(t, report), partitions=partitions)


def partitions_as_json(report: Report) -> str:
    """All partitions of the report with what holds them back, as one line of JSON."""
    partitions = []
    for p, log in sorted(report.logs.items()):
        holds = [hold for hold in report.holds() if hold.partition == p]
        partitions.append(
            {
                "topic": p.topic,
                "partition": p.partition,
                "last_stable_offset": log.stable,
                "end": log.end,
                "held_back": _held(log.stable, log.end),
                "problem": log.problem or None,
                "open": [_open(hold, report) for hold in holds],
            }
        )
    return _line(report, partitions=partitions)


def note_of(transaction: Transaction, at: float) -> str:
    """What comes next for an open transaction; empty for one that has ended."""
    if (outcome := DECIDED.get(transaction.state)) is not None:
        return f"to be {outcome}: markers are missing"
    open_for = transaction.open_for(at)
    if open_for is None or transaction.timeout_s is None:
        return ""
    if is_overdue(transaction, at):
        return "overdue: its coordinator should have aborted it"
    left = transaction.timeout_s - open_for
    return f"aborted by its timeout in {duration(left)}" if left > 0 else "about to be aborted"


def duration(seconds: float) -> str:
    """Seconds in one or two units: "12.3 s", "2 min 5 s", "3 h 0 min", "2 d 4 h"."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    if whole < 3_600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86_400:
        return f"{whole // 3_600} h {whole % 3_600 // 60} min"
    return f"{whole // 86_400:,} d {whole % 86_400 // 3_600} h"


def _row(hold: Hold, report: Report) -> tuple[str, ...]:
    transaction, writer, log = hold.transaction, hold.writer, hold.log
    held = hold.records if writer is not None else _held(log.stable, log.end)
    who = _UNKNOWN if writer is None else str(writer.producer_id)
    epoch = _UNKNOWN if writer is None else str(writer.epoch)
    told = (
        (_UNKNOWN,) * 2
        if transaction is None
        else (str(transaction.coordinator), transaction.state)
    )
    return (
        _named(hold),
        *map(_number, (log.stable, log.end, held)),
        _number(None if writer is None else writer.start),
        _UNKNOWN if transaction is None else _age(transaction, report.at),
        _UNKNOWN if transaction is None else printable(transaction.transactional_id),
        who,
        epoch,
        *told,
        _last_write(hold, report.at),
        _note_of_partition(hold, report),
    )


def _note_of_partition(hold: Hold, report: Report) -> str:
    if hold.writer is None:
        return hold.log.problem or "a marker that is not replicated yet"
    notes = [] if hold.is_first else ["behind another transaction"]
    if hold.is_hanging:
        notes.append("hanging: no coordinator knows it")
    elif hold.transaction is None:
        silent = "a broker did not answer" if report.silent else "it has just ended"
        notes.append(f"its transactional id is unknown: {silent}")
    else:
        notes.append(note_of(hold.transaction, report.at))
    return ", ".join(filter(None, notes))


def _note_of_own(hold: Hold) -> str:
    if hold.log.problem:
        return hold.log.problem
    if hold.writer is None:
        return "nothing written"
    return "" if hold.is_first else "behind another transaction"


def _identity(t: Transaction) -> tuple[str, str, str]:
    epoch = _UNKNOWN if t.epoch is None else str(t.epoch)
    return str(t.producer_id), epoch, str(t.coordinator)


def _age(t: Transaction, at: float) -> str:
    age = t.open_for(at)
    return _UNKNOWN if age is None else duration(age)


def _last_write(hold: Hold, at: float) -> str:
    if hold.writer is None or hold.writer.last_write is None:
        return _UNKNOWN
    return f"{duration(max(0.0, at - hold.writer.last_write))} ago"


def _named(hold: Hold) -> str:
    return f"{printable(hold.partition.topic)}-{hold.partition.partition}"


def _number(number: int | None) -> str:
    return _UNKNOWN if number is None else f"{number:,}"


def _held(stable: int | None, end: int | None) -> int | None:
    return None if stable is None or end is None else max(0, end - stable)


def _total(report: Report) -> int:
    return sum(_held(log.stable, log.end) or 0 for log in report.logs.values())


def _silent(report: Report) -> Sequence[str]:
    return [
        f"no answer from broker {broker} ({' '.join(why.split())}): its transactions are missing"
        for broker, why in sorted(report.silent.items())
    ]


def _line(report: Report, **more: Any) -> str:
    silent = {str(broker): why for broker, why in sorted(report.silent.items())}
    return json.dumps({"at": iso_time(report.at), **more, "brokers_without_answer": silent})


def _transaction(t: Transaction, report: Report) -> dict[str, Any]:
    age = t.open_for(report.at)
    return {
        "transactional_id": t.transactional_id,
        "state": t.state,
        "producer_id": t.producer_id,
        "epoch": t.epoch,
        "coordinator": t.coordinator,
        "started_at": None if age is None or t.started is None else iso_time(t.started),
        "open_seconds": None if age is None else round(age, 3),
        "timeout_seconds": t.timeout_s,
        "overdue": is_overdue(t, report.at),
        "partitions": len(t.partitions),
        "holds_back": report.held_by(t) if t.is_open else 0,
    }


def _writer(hold: Hold) -> dict[str, Any]:
    writer = hold.writer
    last = None if writer is None else writer.last_write
    return {
        "start": None if writer is None else writer.start,
        "holds_back": hold.records,
        "first": hold.is_first,
        "last_write_at": None if last is None else iso_time(last),
    }


def _hold(hold: Hold) -> dict[str, Any]:
    return {
        "topic": hold.partition.topic,
        "partition": hold.partition.partition,
        "last_stable_offset": hold.log.stable,
        "end": hold.log.end,
        "problem": hold.log.problem or None,
        **_writer(hold),
    }


def _open(hold: Hold, report: Report) -> dict[str, Any]:
    assert hold.writer is not None
    transaction = hold.transaction
    return {
        "producer_id": hold.writer.producer_id,
        "epoch": hold.writer.epoch,
        **_writer(hold),
        "hanging": hold.is_hanging,
        "transaction": None if transaction is None else _transaction_alone(transaction, report.at),
    }


def _transaction_alone(t: Transaction, at: float) -> dict[str, Any]:
    told = _transaction(t, Report(at, (t,)))
    return {name: value for name, value in told.items() if name != "holds_back"}
