"""The event times that queries read, and their watermarks, batch by batch.

``notebooks/event_time.ipynb`` draws this from the progress that Spark keeps for each query.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MultipleLocator

from .time_axis import INK, small_png

_READ, _LATE, _WATERMARK = "#9db8d2", "#d1495b", "#e08a1e"


class BatchTimes(NamedTuple):
    """The event times of one batch.

    Attributes
    ----------
    earliest, latest : datetime
        The range of its rows' event times.
    watermark : datetime
        The watermark the batch ran with; earlier rows are late.
    """

    earliest: datetime
    latest: datetime
    watermark: datetime


def batch_times(progress: Sequence[Mapping[str, Any]]) -> list[BatchTimes]:
    """The query's batches that have rows; ``progress`` is its ``recentProgress``."""
    names = ("min", "max", "watermark")
    return [
        BatchTimes(*(datetime.fromisoformat(times[name].replace("Z", "+00:00")) for name in names))
        for one in progress
        if "max" in (times := one["eventTime"])
    ]


def draw_watermarks(queries: Mapping[str, Sequence[BatchTimes]]) -> bytes:
    """Draw one panel per query.

    Parameters
    ----------
    queries : mapping
        Each query's batches in order, by the title of its panel.

    Returns
    -------
    bytes
        A PNG.
    """
    figure = Figure(figsize=(10, 4.2), dpi=100, layout="constrained")
    panels = figure.subplots(1, len(queries), sharey=True, squeeze=False)[0]
    begin = min(one.earliest for batches in queries.values() for one in batches)
    midnight = begin.replace(hour=0, minute=0, second=0, microsecond=0)
    for axes, (name, batches) in zip(panels, queries.items(), strict=True):
        axes.set_title(name, loc="left", fontsize=11, color=INK)
        axes.yaxis.set_major_formatter(FuncFormatter(_clock))
        axes.yaxis.set_major_locator(MultipleLocator(5))
        for number, batch in enumerate(batches, start=1):
            _draw(axes, number, *((at - midnight).total_seconds() / 60 for at in batch))
        axes.set_xlabel("batch", color=INK)
        axes.set_xticks(range(1, len(batches) + 1))
        axes.tick_params(colors=INK, labelsize=9)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("time of the events", color=INK)
    figure.legend(
        handles=[
            Patch(color=_READ, label="what a batch reads, from its first event to its last"),
            Patch(color=_LATE, label="of that, below the watermark: late"),
            Patch(color=_WATERMARK, label="watermark"),
        ],
        loc="outside lower center",
        ncols=3,
        frameon=False,
        labelcolor=INK,
    )
    return small_png(figure)


def _draw(axes: Any, number: int, earliest: float, latest: float, watermark: float) -> None:
    late_to = min(max(watermark, earliest), latest)
    axes.bar(number, latest - late_to, 0.8, bottom=late_to, color=_READ)
    axes.bar(number, late_to - earliest, 0.8, bottom=earliest, color=_LATE)
    if watermark > 0:  # otherwise there is no watermark yet
        axes.hlines(watermark, number - 0.5, number + 0.5, color=_WATERMARK, linewidth=2.5)


def _clock(minutes: float, _: object) -> str:
    return f"{minutes // 60:02.0f}:{minutes % 60:02.0f}"
