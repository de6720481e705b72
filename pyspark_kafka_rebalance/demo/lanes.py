"""One lane for each partition: its rows per second over time, in the colour of its reader.

Drawn again and again by ``notebooks/rebalance.ipynb`` while the queries run.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from .figures import Delivery, lane_rates, smooth
from .screen import COLOURS

_BIN_S = 0.1
_SMOOTH_S = 0.5
_INK = "#33383d"
_LANE = "#f2f3f5"

#: How much of the space from one lane to the next a full one takes.
_FULL = 0.82


def draw_lanes(
    deliveries: Sequence[Delivery], since: float, until: float, marks: Mapping[str, float]
) -> bytes:
    """Draw the lanes.

    Parameters
    ----------
    deliveries : sequence of Delivery
        From the ledger.
    since, until : float
        What is shown; ``time.time()``.
    marks : mapping of str to float
        What happened when, as vertical lines.

    Returns
    -------
    bytes
        A PNG.
    """
    count = max(1, int((until - since) / _BIN_S))
    edges = [since + n * _BIN_S for n in range(count + 1)]
    width = round(_SMOOTH_S / _BIN_S) | 1
    lanes = {lane: smooth(values, width) for lane, values in lane_rates(deliveries, edges).items()}
    numbers = {p: n for n, p in enumerate(sorted({p for p, _ in lanes}))}
    reading = [value for values in lanes.values() for value in values if value > 0]
    # A usual rate fills half of a lane. What was waiting comes at once, and is cut.
    full = 2 * median(reading) if reading else 1.0
    figure = Figure(figsize=(10, 1.4 + 0.5 * max(1, len(numbers))), dpi=100, layout="constrained")
    axes = figure.subplots()
    middles = [(left + right) / 2 - since for left, right in pairwise(edges)]
    for number in numbers.values():
        axes.axhspan(number - _FULL / 2, number + _FULL / 2, color=_LANE, linewidth=0)
    for (partition, reader), values in lanes.items():
        base = numbers[partition] + _FULL / 2
        axes.fill_between(
            middles,
            [base - min(1.0, value / full) * _FULL for value in values],
            base,
            where=[value > 0 for value in values],
            color=COLOURS[reader],
            linewidth=0,
        )
    _finish(axes, numbers.values(), [p.partition for p in numbers], full)
    axes.set_xlim(0, max(until - since, 1.0))
    for name, at in marks.items():
        axes.axvline(at - since, color=_INK, linewidth=1.1)
        axes.annotate(
            name,
            (at - since, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(3, 3),
            textcoords="offset points",
            fontsize=10,
            weight="bold",
            color=_INK,
        )
    readers = sorted({reader for _, reader in lanes})
    figure.legend(
        handles=[Patch(color=COLOURS[reader], label=f"read by {reader}") for reader in readers],
        loc="outside lower center",
        ncols=max(1, len(readers)),
        frameon=False,
    )
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    return drawn.getvalue()


def _finish(axes: Any, lanes: Any, partitions: Sequence[int], full: float) -> None:
    axes.set_ylim(max(lanes, default=0) + 0.6, -0.6)
    axes.set_yticks(list(lanes), [str(number) for number in partitions])
    axes.set_ylabel(f"partition\n(half a lane: {full / 2:,.0f} rows/s)", color=_INK)
    axes.set_xlabel("seconds", color=_INK)
    axes.tick_params(colors=_INK, labelsize=9, left=False)
    axes.spines[["top", "right", "left"]].set_visible(False)
