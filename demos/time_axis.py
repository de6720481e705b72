"""Shared parts of the demos' pictures: bins along the time axis, and marks for events."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from matplotlib.ticker import FuncFormatter
from PIL import Image

from measuring.rebalance_figures import Window

BIN_S = 0.1
SMOOTH_S = 1.0

#: Bins of a moving mean over `SMOOTH_S`; odd, as `smooth` requires.
SMOOTH_BINS = round(SMOOTH_S / BIN_S) | 1

INK = "#33383d"

#: The distance of an event's name from the axes, and of two lines of names, in points.
_ABOVE = 3
_LINE = 12

_PALETTE = 64  # colours, including the shades along edges and letters


def bin_edges(window: Window) -> list[float]:
    """The edges of the bins of `BIN_S` that fit whole into the window."""
    count = int((window.until - window.since) / BIN_S)
    return [window.since + n * BIN_S for n in range(count + 1)]


def middles(edges: Sequence[float]) -> list[float]:
    """The middles of the bins, in seconds after the first edge."""
    return [(left + right) / 2 - edges[0] for left, right in pairwise(edges)]


def name_above(axes: Any, name: str, at: float) -> Any:
    """Write the event's name above the axes, at this position on the time axis; return it."""
    return axes.annotate(
        name,
        (at, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(0, _ABOVE),
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=10,
        weight="bold",
        color=INK,
    )


def in_thousands(axes: Any) -> None:
    """Format the numbers on the y axis as 1,000."""
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def small_png(figure: Any) -> bytes:
    """The figure as a PNG of a fifth of the size, as notebooks are committed with pictures."""
    drawn, small = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png")
    Image.open(drawn).convert("RGB").quantize(_PALETTE).save(small, format="png", optimize=True)
    return small.getvalue()


def save_stacked(
    path: Path,
    figure: Any,
    axes: Sequence[Any],
    seconds: float,
    marks: Mapping[str, float],
    title: str,
    subtitle: str,
) -> None:
    """Finish a figure of stacked axes over the same time, and save it.

    Parameters
    ----------
    path : Path
        Its folder is created.
    figure, axes
        The figure, and its axes from the top down; the legend is the first one's.
    seconds : float
        The length of the time axis.
    marks : mapping of str to float
        Events and their times, drawn as vertical lines.
    title, subtitle : str
        Written above the axes.
    """
    top, bottom = axes[0], axes[-1]
    for one in axes:
        for at in marks.values():
            one.axvline(at, color=INK, linewidth=1.1, zorder=5)
        one.spines[["top", "right"]].set_visible(False)
        one.tick_params(colors=INK, labelsize=9)
        one.set_xlim(0, seconds)
    lines = _names_above(figure, top, marks)
    bottom.set_xlabel("seconds", color=INK)
    figure.suptitle(title, x=0.01, ha="left", fontsize=14, color=INK, weight="bold")
    top.set_title(subtitle, loc="left", fontsize=10, color=INK, pad=12 + lines * _LINE)
    handles, labels = top.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=10, frameon=False)
    save_png(path, figure)


def _names_above(figure: Any, axes: Any, marks: Mapping[str, float]) -> int:
    """Write the events' names, those that would meet another on a line above; return the lines."""
    written = [name_above(axes, *mark) for mark in sorted(marks.items(), key=lambda mark: mark[1])]
    figure.draw_without_rendering()
    ends: list[float] = []
    for name in written:
        extent = name.get_window_extent()
        line = next((n for n, end in enumerate(ends) if end < extent.x0), len(ends))
        ends[line : line + 1] = [extent.x1]
        name.xyann = (0, _ABOVE + line * _LINE)
    return max(1, len(ends))


def save_png(path: Path, figure: Any) -> None:
    """Save the figure; the path's folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
