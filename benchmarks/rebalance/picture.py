"""The picture: records of the kept partitions over time, a panel per peer, and the silences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from .judge import BIN_S, Verdict
from .scenario import Settings

_INK = "#33383d"
_OURS = "#3f9b5f"
_DRAINS = "#e08a1e"
_DOES_NOT = "#3b78b8"
_BEFORE = "#c9cfd4"
_LEGEND = {
    _OURS: "deferred revoke",
    _DRAINS: "drains in its listener",
    _DOES_NOT: "revokes at once, and delivers twice",
    _BEFORE: "before the joins",
}
_COLUMNS = 4
#: Curves are cut here: records that were held back come all at once and would dwarf the rest.
_CUT = 3


def save_picture(path: Path, settings: Settings, run: Sequence[Verdict]) -> None:
    """Draw one run and save it as PNG; its folder is created.

    Parameters
    ----------
    path : Path
        The picture's path.
    run : sequence of Verdict
        Every peer once with a draining listener, once without.
    """
    rows = -(-len(run) // _COLUMNS)
    figure = Figure(figsize=(12, 1.7 * rows + 0.3 * len(run) + 1.8), dpi=130, layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(1.7 * rows, 0.3 * len(run) + 1.0))
    _draw_curves(top, settings, run, rows)
    _draw_silences(bottom.subplots(), run)
    title = "A second and a third member join: what reaches the partitions that stay"
    figure.suptitle(title, x=0.01, ha="left", fontsize=14, color=_INK, weight="bold")
    handles = [Patch(color=colour, label=label) for colour, label in _LEGEND.items()]
    figure.legend(handles=handles, loc="outside lower left", ncols=4, fontsize=9, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _draw_curves(figure: Any, settings: Settings, run: Sequence[Verdict], rows: int) -> None:
    panels = list(figure.subplots(rows, _COLUMNS, sharex=True, sharey=True, squeeze=False).flat)
    for panel in panels[len(run) :]:
        panel.set_axis_off()
    per_partition = settings.rate / settings.partitions * BIN_S
    for panel, verdict in zip(panels, run, strict=False):
        # Records ÷ produced records, so that peers that keep different numbers of partitions can
        # be compared; each fetch returns what has come in since the last.
        scale = 1 / max(1, verdict.curve_partitions) / per_partition
        seconds = [n * BIN_S for n in range(len(verdict.curve))]
        panel.fill_between(
            seconds,
            [count * scale for count in verdict.curve],
            step="post",
            color=_colour(verdict),
            linewidth=0,
        )
        for join in verdict.joins:
            panel.axvline(join.at_s, color=_INK, linewidth=0.9)
        panel.set_title(_name(verdict), loc="left", fontsize=9, color=_INK)
        panel.set_ylim(0, _CUT)
        panel.set_xlim(left=0)
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(colors=_INK, labelsize=8, labelbottom=True)
    figure.supylabel(
        f"records per {BIN_S * 1000:.0f} ms of partitions that stay ÷ produced, cut at {_CUT}",
        fontsize=9,
        color=_INK,
    )
    figure.supxlabel("seconds; lines: the joins", fontsize=9, color=_INK)


def _draw_silences(axes: Any, run: Sequence[Verdict]) -> None:
    places = range(len(run))
    before = [(verdict.before_s or 0) * 1000 for verdict in run]
    during = [(verdict.during_s or 0) * 1000 for verdict in run]
    axes.barh([n - 0.2 for n in places], before, 0.36, color=_BEFORE)
    bars = axes.barh(
        [n + 0.2 for n in places], during, 0.36, color=[_colour(verdict) for verdict in run]
    )
    labels = [
        f"{silence:,.0f} ms"
        + (f", {verdict.duplicates:,} records twice" * bool(verdict.duplicates))
        for verdict, silence in zip(run, during, strict=True)
    ]
    axes.bar_label(bars, labels, padding=4, fontsize=8, color=_INK)
    axes.set_yticks(list(places), [_name(verdict) for verdict in run])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(10, 20_000)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_xlabel("longest silence of a partition that stays, ms", color=_INK, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=_INK, labelsize=8)


def _name(verdict: Verdict) -> str:
    if verdict.ours:
        return f"{verdict.peer}: deferred"
    return f"{verdict.peer}: {'drains' if verdict.drain else 'does not drain'}"


def _colour(verdict: Verdict) -> str:
    return _OURS if verdict.ours else _DRAINS if verdict.drain else _DOES_NOT
