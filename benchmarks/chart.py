"""Charts of benchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

COLOURS = ("#1f6fb4", "#9cc3e4", "#c9793b", "#7a9a5b", "#8a6fa8", "#b4493f")


def bars(
    path: Path,
    unit: str,
    groups: Sequence[str],
    panels: Mapping[str, Mapping[str, Sequence[float]]],
) -> None:
    """Draw titled panels, each with a bar per series in each group."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    width_in = len(panels) * (0.7 * len(groups) + 1.5) + 2
    figure, axes = plt.subplots(
        1, len(panels), figsize=(width_in, 4.2), squeeze=False, layout="constrained"
    )
    for axis, (title, series) in zip(axes[0], panels.items(), strict=True):
        width = 0.8 / len(series)
        for index, (name, values) in enumerate(series.items()):
            places = [n + (index - (len(series) - 1) / 2) * width for n in range(len(groups))]
            axis.bar(places, values, width * 0.92, label=name, color=COLOURS[index % len(COLOURS)])
        axis.set_xticks(range(len(groups)), groups)
        axis.set_title(title, fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel(unit)
    axes[0][-1].legend(frameon=False, fontsize=9)
    _save(path, figure)


def lines(
    path: Path, title: str, x: str, y: str, series: Mapping[str, Sequence[tuple[float, float]]]
) -> None:
    """Draw a line per series on logarithmic axes."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6, 4), layout="constrained")
    for index, (name, points) in enumerate(series.items()):
        axis.plot(*zip(*points, strict=True), "o-", label=name, color=COLOURS[index % len(COLOURS)])
    axis.set(xscale="log", yscale="log", xlabel=x, ylabel=y)
    axis.set_title(title, fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=9)
    _save(path, figure)


def _save(path: Path, figure: object) -> None:
    import matplotlib.pyplot as plt

    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)  # type: ignore[attr-defined]
    plt.close(figure)  # type: ignore[arg-type]
