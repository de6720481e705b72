"""The table, the goals and the JSON of the whole benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.machine import about_this_machine

from .goals import goals
from .judge import BIN_S, Verdict
from .peers import HEARTBEAT_INTERVAL_MS
from .scenario import Settings

_FIGURES = ("before_s", "during_s", "ratio", "hand_over_median_s", "hand_over_longest_s")


def about(settings: Settings, runs: Sequence[Sequence[Verdict]]) -> dict[str, Any]:
    """The machine, versions and amounts of data."""
    records = sum(verdict.records for run in runs for verdict in run)
    return {
        **about_this_machine(),
        "versions": {verdict.peer: verdict.version for run in runs for verdict in run},
        "runs": len(runs),
        "records": records,
        "bytes": records * settings.value_bytes,
        "records_per_second": settings.rate,
        "partitions": settings.partitions,
        "processing_up_to_s": settings.longest_s,
        "heartbeat_interval_ms": HEARTBEAT_INTERVAL_MS,
    }


def as_json(settings: Settings, runs: Sequence[Sequence[Verdict]]) -> dict[str, Any]:
    """All measurements."""
    return {
        "benchmark": "rebalance",
        **about(settings, runs),
        "curve_bin_s": BIN_S,
        "results": [
            [
                {
                    **asdict(verdict),
                    **{name: getattr(verdict, name) for name in (*_FIGURES, "drained_to_first_s")},
                }
                for verdict in run
            ]
            for run in runs
        ],
        "goals": [asdict(goal) for goal in goals(runs)],
    }


_COLUMNS: tuple[tuple[str, Literal["left", "right"]], ...] = (
    ("peer", "left"),
    ("version", "left"),
    ("drains", "left"),
    ("silence\nbefore", "right"),
    ("during", "right"),
    ("÷", "right"),
    ("twice", "right"),
    ("never", "right"),
    ("hand-over\nmedian, longest", "right"),
    ("→ first", "right"),
)


def print_report(console: Console, settings: Settings, runs: Sequence[Sequence[Verdict]]) -> None:
    """Print a row per peer, run by run, the goals, and what was compared."""
    title = "A second and a third member join"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for name, justify in _COLUMNS:
        table.add_column(name, justify=justify, no_wrap=True)
    for run in runs:
        for verdict in run:
            table.add_row(*row(verdict), style="bold" if verdict.ours else None)
        table.add_section()
    console.print(table)
    for goal in goals(runs):
        mark = "[green]met   [/]" if goal.met else "[bold red]missed[/]"
        console.print(f"{mark} {goal.what}: {goal.measured}", highlight=False)
    if len(runs) > 1:
        console.print("Silences there: the median of the runs.", style="dim")
    facts = about(settings, runs)
    console.print(
        f"\n{facts['partitions']} partitions, {facts['records_per_second']:,} records/s of "
        f"{settings.value_bytes} bytes, processed for up to {settings.longest_s:g} s; in all "
        f"{facts['records']:,} records, {facts['bytes']:,} bytes. Heartbeat interval "
        f"{HEARTBEAT_INTERVAL_MS:,} ms: of all classic members, and set on a broker started "
        f"here for the consumer protocol.\n"
        f"{facts['broker']}, Python {facts['python']}, {facts['cores']} cores, "
        f"{facts['system']}.",
        highlight=False,
    )
    console.print(
        "Silence: the longest time without a record of one of the partitions that stay with their "
        "owner. Twice, never: records so delivered. Hand-over: the old owner's last record → the "
        "new owner's first. → first: from the moment when the last partition that moved was "
        "drained until each had its first record.",
        style="dim",
    )


def markdown(run: Sequence[Verdict]) -> str:
    """The table of one run for the documentation."""
    lines = [
        "| peer | drains | longest silence before | during | ÷ | twice | never "
        "| hand-over median, longest | last drained → first |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for verdict in run:
        peer, version, *rest = row(verdict)
        lines.append(f"| {' | '.join((f'{peer} {version}', *rest))} |")
    return "\n".join(lines)


def in_short(verdict: Verdict) -> str:
    """One line for the progress display."""
    before, during = _milliseconds(verdict.before_s), _milliseconds(verdict.during_s)
    return f"silence {before} → {during}, {verdict.duplicates:,} twice, {verdict.holes:,} never"


def row(verdict: Verdict) -> tuple[str, ...]:
    """The verdict's row in the table."""
    return (
        verdict.peer,
        verdict.version,
        "deferred" if verdict.ours else "listener" if verdict.drain else "no",
        _milliseconds(verdict.before_s),
        _milliseconds(verdict.during_s),
        "-" if verdict.ratio is None else f"{verdict.ratio:.1f}",
        f"{verdict.duplicates:,}",
        f"{verdict.holes:,}",
        f"{_seconds(verdict.hand_over_median_s)}, {_seconds(verdict.hand_over_longest_s)}",
        _seconds(verdict.drained_to_first_s),
    )


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:,.0f} ms"


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f} s"
