"""The picture of a soak: what every process took over time, and the group's lag."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib.figure import Figure

from .flatness import WHAT, Points, Row
from .process_samples import Sample, by_life

_TITLES = {"memory_mb": "memory, MB", "fds": "descriptors", "threads": "threads"}
_COLOURS = [colour for name in ("tab20", "Dark2") for colour in matplotlib.colormaps[name].colors]
_INK = "#555555"
_LINES = {"solid line": "-", "dotted line": ":"}


def save(
    path: Path,
    samples: Sequence[Sample],
    rows: Sequence[Row],
    lags: Points,
    marks: Mapping[str, Sequence[float]],
    began: float,
) -> None:
    """Draw the picture and save it as PNG.

    Parameters
    ----------
    path : Path
        Its folder is created.
    samples : sequence of Sample
    rows : sequence of Row
        What is said of them: the lines of their slopes.
    lags : sequence of (float, float)
    marks : mapping of str to sequence of float
        When who has left, to come back soon.
    began : float
        Where the axis of time begins.
    """
    lives = by_life(sample for sample in samples if not sample.is_zombie)
    figure = Figure(figsize=(15, 12), dpi=110, layout="constrained")
    grid = figure.add_gridspec(len(WHAT) + 1, 4, width_ratios=(6, 1, 6, 2.3))
    kinds = {
        "JVMs": [life for life in lives if life[-1].heap_mb is not None],
        "other processes": [life for life in lives if life[-1].heap_mb is None],
    }
    for column, (title, some) in enumerate(kinds.items()):
        roles = sorted({life[-1].role for life in some})
        colours = {role: _COLOURS[n % len(_COLOURS)] for n, role in enumerate(roles)}
        for place, what in enumerate(WHAT):
            axes = figure.add_subplot(grid[place, 2 * column])
            for life in some:
                minutes = [(sample.at - began) / 60 for sample in life]
                values = [getattr(sample, what) for sample in life]
                axes.plot(minutes, values, color=colours[life[-1].role], lw=0.8, alpha=0.6)
            for row in rows:
                if row.role in colours and not row.is_short:
                    times, values = zip(*row.trends[what].line, strict=True)
                    minutes = [(at - began) / 60 for at in times]
                    axes.plot(minutes, values, "--", color=colours[row.role], lw=1.8)
            _finish(axes, f"{_TITLES[what]}: {title}", marks, began)
        names = figure.add_subplot(grid[: len(WHAT), 2 * column + 1])
        names.axis("off")
        for role, colour in colours.items():
            names.plot([], [], color=colour, label=role)
        names.legend(loc="upper left", fontsize=7, frameon=False, borderaxespad=0)
    axes = figure.add_subplot(grid[len(WHAT), :3])
    axes.plot([(at - began) / 60 for at, _ in lags], [lag for _, lag in lags], color=_INK, lw=1)
    _finish(axes, "the group's lag, offsets", marks, began)
    left = ", ".join(f"{name} leaves: {line}" for name, line in zip(marks, _LINES, strict=False))
    axes.set_xlabel(f"minutes ({left})")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _finish(axes: Any, title: str, marks: Mapping[str, Sequence[float]], began: float) -> None:
    for line, times in zip(_LINES.values(), marks.values(), strict=False):
        for at in times:
            axes.axvline((at - began) / 60, color=_INK, linestyle=line, lw=0.4, alpha=0.5)
    axes.set_title(title, fontsize=9, loc="left")
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
