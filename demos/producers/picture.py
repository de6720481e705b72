"""The picture: each table's rows per second, in the colour of the instance that committed them."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib.figure import Figure

from measuring.rebalance_figures import Window, smooth

from ..shop.tables import TABLES
from ..time_axis import INK, SMOOTH_BINS, bin_edges, in_thousands, middles, save_stacked
from .course import Course
from .figures import hand_overs, rates
from .screen import COLOURS


def save_picture(path: Path, title: str, subtitle: str, course: Course) -> None:
    """Draw the picture and save it as PNG.

    Parameters
    ----------
    path : Path
        Its folder is created.
    title, subtitle : str
        The run's settings, and the result.
    course : Course
        The events of the run.
    """
    began = course.began_at
    edges = bin_edges(Window(began, course.stopping_at))
    times = middles(edges)
    figure = Figure(figsize=(10, 6.5), dpi=150, layout="constrained")
    stacked = figure.subplots(len(TABLES), 1, sharex=True, sharey=True)
    found = {
        key: smooth(values, SMOOTH_BINS) for key, values in rates(course.commits, edges).items()
    }
    for number, (axes, table) in enumerate(zip(stacked, TABLES, strict=True)):
        for instance, colour in COLOURS.items():
            values = found.get((number, instance), [0.0] * len(times))
            axes.fill_between(times, values, color=colour, linewidth=0, label=instance, alpha=0.9)
        for each in hand_overs(course.commits):
            if each.table == number and each.first_at >= began:
                axes.plot(
                    each.first_at - began,
                    0,
                    marker="^",
                    color=COLOURS[each.new],
                    markeredgecolor=INK,
                    clip_on=False,
                    zorder=6,
                )
        axes.set_ylabel(f"{table}\nrows/s", color=INK)
        axes.grid(axis="y", color="#d5d8db", linewidth=0.6)
        axes.set_axisbelow(True)
        in_thousands(axes)
    stacked[0].set_ylim(bottom=0)  # shared by all axes; set earlier, it would fit the first only
    marks = {name: at - began for name, at in course.marks.items()}
    seconds = course.stopping_at - began
    save_stacked(path, figure, list(stacked), seconds, marks, title, subtitle)
