"""The picture: both queries' age of the newest row and undelivered records over time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib.figure import Figure

from measuring.rebalance_figures import Window

from ..time_axis import INK, bin_edges, in_thousands, save_stacked
from .course import Course
from .figures import History
from .screen import COLOURS, LABELS

_DOWN = "#eceef0"


def save_picture(
    path: Path, title: str, subtitle: str, course: Course, histories: Mapping[str, History]
) -> None:
    """Draw the picture and save it as PNG.

    Parameters
    ----------
    path : Path
        Its folder is created.
    title, subtitle : str
        The run's settings, and the result.
    course : Course
        The times of the run's events.
    histories : mapping of str to History
        Each query's history.
    """
    window = Window(course.began_at, course.stopping_at)
    figure = Figure(figsize=(10, 6), dpi=150, layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True)
    edges = bin_edges(window)
    for name, history in histories.items():
        style = {"color": COLOURS[name], "label": LABELS[name], "linewidth": 1.8}
        ages = history.ages(window)
        top.plot([at - window.since for at, _ in ages], [age for _, age in ages], **style)
        bottom.plot([at - window.since for at in edges], history.backlog(edges), **style)
    for axes in (top, bottom):
        axes.axvspan(
            course.killed_at - window.since,
            course.restarted_at - window.since,
            color=_DOWN,
            linewidth=0,
            zorder=0,
            label="neither query runs",
        )
    _label(top, "age of the newest row\ndelivered, in seconds")
    _label(bottom, "records not delivered")
    in_thousands(bottom)
    marks = {
        "kill -9": course.killed_at - window.since,
        "restart": course.restarted_at - window.since,
    }
    seconds = window.until - window.since
    save_stacked(path, figure, (top, bottom), seconds, marks, title, subtitle)


def _label(axes: Any, what: str) -> None:
    axes.set_ylim(bottom=0)
    axes.set_ylabel(what, color=INK)
    axes.grid(axis="y", color="#d5d8db", linewidth=0.6)
    axes.set_axisbelow(True)
