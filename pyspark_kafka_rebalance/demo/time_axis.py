"""What the demo's pictures have in common: bins along the time, and what happened when."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from ..testing.rebalances.figures import Window

BIN_S = 0.1
SMOOTH_S = 1.0

#: Bins of a moving mean over `SMOOTH_S`; odd, as `smooth` wants it.
SMOOTH_BINS = round(SMOOTH_S / BIN_S) | 1

INK = "#33383d"


def bin_edges(window: Window) -> list[float]:
    """The edges of the whole bins of `BIN_S` in the window."""
    count = int((window.until - window.since) / BIN_S)
    return [window.since + n * BIN_S for n in range(count + 1)]


def middles(edges: Sequence[float]) -> list[float]:
    """The middles of the bins, in seconds from the first edge on."""
    return [(left + right) / 2 - edges[0] for left, right in pairwise(edges)]


def name_above(axes: Any, name: str, at: float) -> None:
    """Write what happened above the time, in the axes' own unit."""
    axes.annotate(
        name,
        (at, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(0, 3),
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=10,
        weight="bold",
        color=INK,
    )
