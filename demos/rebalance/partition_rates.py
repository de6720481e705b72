"""One band per partition: its rows per second over time, in the colour of its reader.

``notebooks/rebalance.ipynb`` redraws it while the queries run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from measuring.rebalance_figures import Delivery, Window, partition_rates, smooth

from ..time_axis import INK, SMOOTH_BINS, SMOOTH_S, bin_edges, middles, name_above, small_png
from .screen import COLOURS

_EMPTY = "#eceef0"

#: The share of the distance between two bands that a full band takes.
_FULL = 0.84

#: The rate that fills a band, as a multiple of the produced rate. Higher rates, as when a backlog
#: is read at once, are cut off.
_CUT_AT = 2.0


def draw_partition_rates(
    deliveries: Sequence[Delivery],
    window: Window,
    marks: Mapping[str, float],
    produced: float,
    title: str = "",
) -> bytes:
    """Draw the bands.

    Parameters
    ----------
    deliveries : sequence of Delivery
        From the ledger.
    window : Window
        The time to show.
    marks : mapping of str to float
        Events and their times, drawn as vertical lines.
    produced : float
        Records produced per second to each partition.
    title : str
        The figure's title.

    Returns
    -------
    bytes
        A PNG.
    """
    began, seconds = window.since, max(window.until - window.since, 1.0)
    edges = bin_edges(Window(began, began + seconds))
    rates = {
        of: smooth(values, SMOOTH_BINS) for of, values in partition_rates(deliveries, edges).items()
    }
    partitions = sorted({partition for partition, _ in rates})
    height = 1.7 + 0.5 * max(1, len(partitions))
    figure = Figure(figsize=(10, height), dpi=100, layout="constrained")
    axes = figure.subplots()
    times = middles(edges)
    bottoms = {partition: n + _FULL / 2 for n, partition in enumerate(partitions)}
    for (partition, reader), values in rates.items():
        bottom = bottoms[partition]
        heights = [min(1.0, value / produced / _CUT_AT) * _FULL for value in values]
        axes.fill_between(
            times,
            [bottom - height for height in heights],
            bottom,
            where=[height > 0 for height in heights],
            color=COLOURS[reader],
            linewidth=0,
        )
    for bottom in bottoms.values():
        axes.axhspan(bottom - _FULL, bottom, color=_EMPTY, linewidth=0, zorder=0)
        axes.axhline(bottom - _FULL / _CUT_AT, color="white", linewidth=1.0, linestyle="--")
    for name, at in marks.items():
        axes.axvline(at - began, color=INK, linewidth=1.1)
        name_above(axes, name, at - began)
    _label(axes, [str(partition.partition) for partition in partitions], seconds)
    axes.set_title(title, loc="left", fontsize=11, color=INK, pad=22)
    figure.legend(
        handles=[
            *(Patch(color=COLOURS[r], label=f"read by {r}") for r in sorted({r for _, r in rates})),
            Patch(color=_EMPTY, label="nothing yet"),
            Line2D(
                [], [], color="#9aa0a6", linestyle="--", label=f"produced: {produced:,.0f} rows/s"
            ),
        ],
        loc="outside lower center",
        ncols=len(COLOURS) + 2,
        frameon=False,
        labelcolor=INK,
    )
    return small_png(figure)


def _label(axes: Any, partitions: Sequence[str], seconds: float) -> None:
    axes.set_xlim(0, seconds)
    axes.set_ylim(max(len(partitions), 1) - 0.5, -0.5)
    axes.set_yticks(range(len(partitions)), partitions)
    axes.set_ylabel(f"partition\n(rows per second, mean over {SMOOTH_S:g} s)", color=INK)
    axes.set_xlabel("seconds", color=INK)
    axes.tick_params(colors=INK, labelsize=9)
    axes.tick_params(axis="y", left=False)
    axes.spines[["top", "right", "left"]].set_visible(False)
