"""The verdict at the end: the ledger's proof, and each rebalance's cost."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from measuring.rebalance_figures import RebalanceFigures
from pyspark_kafka_rebalance.testing.ledger import Tally


def summary(tally: Tally, figures: Sequence[RebalanceFigures]) -> str:
    """Say the verdict in one line."""
    lost = sum(map(len, tally.lost.values()))
    before = [one.pause_before for one in figures if one.pause_before is not None]
    during = [one.pause_during for one in figures if one.pause_during is not None]
    text = f"{tally.records:,} records, {lost:,} lost, {tally.duplicated:,} duplicated"
    if before and during:
        text += (
            f"; longest pause of a partition that stays: {max(during):.2f} s during the "
            f"rebalances, {max(before):.2f} s before"
        )
    return text


def print_report(
    console: Console, title: str, produced: int, tally: Tally, figures: Sequence[RebalanceFigures]
) -> None:
    """Print the result in one line, then both tables and how to read them."""
    lost = sum(map(len, tally.lost.values()))
    console.print(f"\n{title}", style="bold", highlight=False)
    console.print(summary(tally, figures), highlight=False, soft_wrap=True)
    verdict = Table()
    for name in ("records produced", "delivered", "lost", "duplicated"):
        verdict.add_column(name, justify="right", min_width=10)
    verdict.add_row(
        f"{produced:,}",
        f"{tally.records:,}",
        _judged(lost),
        _judged(tally.duplicated),
    )
    console.print(verdict)
    console.print("What each rebalance cost", style="bold")
    costs = Table()
    costs.add_column("")
    for name in (
        "partitions\nthat stay",
        "longest pause\nbefore",
        "longest pause\nduring",
        "rows/s\nduring ÷ before",
        "partitions\nthat move",
        "hand-over\nmedian",
        "hand-over\nlongest",
    ):
        costs.add_column(name, justify="right")
    for one in figures:
        costs.add_row(
            one.rebalance.name,
            str(one.kept),
            _seconds(one.pause_before),
            _seconds(one.pause_during),
            "-" if one.rate_ratio is None else f"{one.rate_ratio:.2f}",
            str(len(one.hand_overs)),
            _seconds(one.median_hand_over),
            _seconds(one.longest_hand_over),
        )
    console.print(costs)
    console.print(
        "A pause: between two finished batches with records of the same partition. A hand-over: "
        "from the end of the old owner's last batch to the new owner's first record in hand.",
        style="dim",
    )


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def _judged(count: int) -> str:
    return f"[bold red]{count:,}[/]" if count else "[green]0[/]"
