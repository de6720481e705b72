"""Run two groups one after the other under the same load: who waits while a slow reader drains?

One reader works on each batch for seconds, and the group takes partitions from it just after it has
started one. The comparison is about the partitions that stay with another, quick reader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from measuring.rebalance_figures import Delivery, RebalanceFigures, Window, kept_partitions, waits
from pyspark_kafka_rebalance.testing.ledger import Tally

from ..time_axis import INK, bin_edges, save_png

#: Each peer's label and colour.
KINDS = {
    "deferred": ("queries with kafka_deferred", "#3b78b8"),
    "blocking": ("consumers that drain inside their rebalance listener", "#e08a1e"),
}

_BEFORE_S = 5.0


@dataclass(frozen=True)
class Run:
    """The run of one group.

    Attributes
    ----------
    tally : Tally
        The ledger's verdict.
    deliveries : sequence of Delivery
        From the ledger.
    figures : RebalanceFigures
        Of the rebalance for which the slow reader has to drain.
    """

    tally: Tally
    deliveries: Sequence[Delivery]
    figures: RebalanceFigures


def verdict(runs: Mapping[str, Run], slow_s: float) -> str:
    """Say in one sentence how long partitions that stay with a quick reader went unread."""
    during = {peer: run.figures.pause_during for peer, run in runs.items()}
    deferred, blocking = during["deferred"], during["blocking"]
    what = f"While one reader ends a batch of {slow_s:g} s that the group waits for, "
    if deferred is None or blocking is None:
        return what + "too little was read to compare."
    return what + (
        f"partitions that stay with another one go without a record for {deferred:.1f} s with "
        f"kafka_deferred, and for {blocking:.1f} s where consumers drain inside their rebalance "
        f"listener."
    )


def save_comparison(path: Path, title: str, runs: Mapping[str, Run], slow: Sequence[str]) -> None:
    """Draw how long the partition that waits longest has waited, for both groups on one axis."""
    figure = Figure(figsize=(10, 4.5), dpi=150, layout="constrained")
    axes = figure.subplots()
    for peer, run in runs.items():
        name, colour = KINDS[peer]
        rebalance = run.figures.rebalance
        kept = kept_partitions(
            run.deliveries, Window(rebalance.before.since, rebalance.during.until), slow
        )
        edges = bin_edges(Window(rebalance.at - _BEFORE_S, rebalance.during.until))
        times = [edge - rebalance.at for edge in edges]
        axes.plot(times, waits(run.deliveries, kept, edges), color=colour, linewidth=2, label=name)
    axes.axvline(0, color=INK, linewidth=1.1)
    axes.set_xlim(left=-_BEFORE_S)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("seconds since a third reader joined", color=INK)
    axes.set_ylabel(
        "seconds since the last finished batch,\nof the partition that waits longest", color=INK
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK, labelsize=9)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=10)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, color=INK, wrap=True)
    save_png(path, figure)
