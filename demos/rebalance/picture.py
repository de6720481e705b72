"""The picture: rows per second by reader, and who reads which partition, over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator

from measuring.rebalance_figures import Delivery, Window, counter_rates, rates, smooth, spans
from measuring.scenario import Course

from ..time_axis import INK, SMOOTH_BINS, bin_edges, in_thousands, middles, save_stacked
from .screen import COLOURS


def save_picture(
    path: Path,
    title: str,
    subtitle: str,
    course: Course,
    deliveries: Sequence[Delivery],
) -> None:
    """Draw the picture and save it as PNG.

    Parameters
    ----------
    path : Path
        Its folder is created.
    title, subtitle : str
        The run's settings, and the result.
    course : Course
        The events of the run.
    deliveries : sequence of Delivery
        From the ledger.
    """
    began = course.began_at
    until = course.stopping_at
    edges = bin_edges(Window(began, until))
    figure = Figure(figsize=(10, 6), dpi=150, layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    _draw_rates(top, deliveries, course, edges)
    _draw_owners(bottom, [d for d in deliveries if d.completed_at > began], began)
    marks = {rebalance.name: rebalance.at - began for rebalance in course.rebalances}
    save_stacked(path, figure, (top, bottom), until - began, marks, title, subtitle)


def _draw_rates(
    axes: Any, deliveries: Sequence[Delivery], course: Course, edges: Sequence[float]
) -> None:
    times = middles(edges)
    by_reader = {r: smooth(v, SMOOTH_BINS) for r, v in sorted(rates(deliveries, edges).items())}
    axes.stackplot(
        times,
        *by_reader.values(),
        colors=[COLOURS[reader] for reader in by_reader],
        labels=[f"read by {reader}" for reader in by_reader],
        edgecolor="white",
        linewidth=0.6,
    )
    produced = smooth(counter_rates(course.produced, edges), SMOOTH_BINS)
    axes.plot(
        times,
        produced,
        "--",
        color=INK,
        linewidth=1.3,
        label="produced, all partitions",
        zorder=6,
    )
    axes.set_ylim(bottom=0)
    axes.set_ylabel("rows per second, stacked\n(mean over 1 s)", color=INK)
    in_thousands(axes)
    axes.grid(axis="y", color="white", linewidth=0.6, alpha=0.5)


def _draw_owners(axes: Any, deliveries: Sequence[Delivery], began: float) -> None:
    """Draw a bar while a partition's records are being processed; white while they wait."""
    numbers = sorted({d.partition.partition for d in deliveries})
    for (reader, partition), windows in _merged(deliveries).items():
        axes.broken_barh(
            [(window.since - began, window.until - window.since) for window in windows],
            (partition - 0.4, 0.8),
            color=COLOURS[reader],
            linewidth=0,
        )
    axes.set_ylim(numbers[-1] + 0.6, -0.6)
    axes.yaxis.set_major_locator(MultipleLocator(max(1, len(numbers) // 6)))
    axes.set_ylabel("partition\n(white: waits)", color=INK)


def _merged(deliveries: Sequence[Delivery]) -> dict[tuple[str, int], list[Window]]:
    """Merge adjacent spans by reader and partition; seams between them would show as breaks."""
    found: dict[tuple[str, int], list[Window]] = {}
    for delivery, span in spans(deliveries).items():
        windows = found.setdefault((delivery.reader, delivery.partition.partition), [])
        if windows and span.since <= windows[-1].until:
            windows[-1] = Window(windows[-1].since, span.until)
        else:
            windows.append(span)
    return found
