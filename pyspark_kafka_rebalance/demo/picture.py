"""The picture: rows per second by reader, and who reads which partition, over time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MultipleLocator

from .figures import Delivery, Rebalance, counter_rates, rates, smooth, spans
from .scenario import Course, Settings
from .screen import COLOURS

_BIN_S = 0.1
_SMOOTH_S = 1.0
_INK = "#33383d"


def save_picture(
    path: Path, settings: Settings, course: Course, deliveries: Sequence[Delivery]
) -> None:
    """Draw it and save it as PNG."""
    began = course.produced[0][0]
    until = course.stopping_at
    edges = [began + n * _BIN_S for n in range(int((until - began) / _BIN_S) + 1)]
    figure = Figure(figsize=(10, 5.6), dpi=150, layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    _draw_rates(top, deliveries, course, edges)
    _draw_owners(bottom, deliveries, began)
    for axes in (top, bottom):
        for rebalance in course.rebalances:
            axes.axvline(rebalance.at - began, color=_INK, linewidth=1.1, zorder=5)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=_INK, labelsize=9)
        axes.set_xlim(0, until - began)
    _mark(top, course.rebalances, began)
    bottom.set_xlabel("seconds since the producer started", color=_INK)
    figure.suptitle(_title(settings), x=0.01, ha="left", fontsize=13, color=_INK, weight="bold")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _title(settings: Settings) -> str:
    if settings.peer == "blocking":
        return "One consumer group, consumers that drain inside their rebalance listener"
    return "One consumer group, Spark queries that come and go: what stays is never interrupted"


def _draw_rates(
    axes: Any, deliveries: Sequence[Delivery], course: Course, edges: Sequence[float]
) -> None:
    began = edges[0]
    middles = [(left + right) / 2 - began for left, right in pairwise(edges)]
    width = round(_SMOOTH_S / _BIN_S) | 1
    by_reader = {r: smooth(v, width) for r, v in sorted(rates(deliveries, edges).items())}
    axes.stackplot(
        middles,
        *by_reader.values(),
        colors=[COLOURS[reader] for reader in by_reader],
        labels=[f"read by {reader}" for reader in by_reader],
        edgecolor="white",
        linewidth=0.6,
        alpha=0.9,
    )
    produced = smooth(counter_rates(course.produced, edges), width)
    axes.plot(middles, produced, "--", color=_INK, linewidth=1.3, label="produced", zorder=6)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("rows/s (mean over 1 s)", color=_INK)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.grid(axis="y", color="white", linewidth=0.6, alpha=0.5)
    axes.legend(loc="lower right", ncols=4, fontsize=9, framealpha=0.9, edgecolor="none")


def _draw_owners(axes: Any, deliveries: Sequence[Delivery], began: float) -> None:
    numbers = sorted({d.partition.partition for d in deliveries})
    for delivery, span in spans(deliveries).items():
        axes.broken_barh(
            [(span.since - began, span.until - span.since)],
            (delivery.partition.partition - 0.4, 0.8),
            color=COLOURS[delivery.reader],
            linewidth=0,
        )
    axes.set_ylim(numbers[-1] + 0.6, -0.6)
    axes.yaxis.set_major_locator(MultipleLocator(max(1, len(numbers) // 6)))
    axes.set_ylabel("partition", color=_INK)


def _mark(axes: Any, rebalances: Sequence[Rebalance], began: float) -> None:
    for rebalance in rebalances:
        axes.annotate(
            rebalance.name,
            (rebalance.at - began, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=10,
            weight="bold",
            color=_INK,
        )
