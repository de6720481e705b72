"""The figures as bars."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def draw(figures: Sequence[dict[str, Any]], path: Path) -> None:
    """A panel for each sink and size, a group of bars for each codec, a bar for each form."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = list(dict.fromkeys((one["sink"], one["bytes"]) for one in figures))
    forms = list(dict.fromkeys(one["form"] for one in figures))
    codecs = list(dict.fromkeys(one["codec"] for one in figures))
    colours = dict(zip(forms, ("#1f6fb4", "#9cc3e4", "#c9793b"), strict=False))
    figure, axes = plt.subplots(
        1, len(panels), figsize=(3.6 * len(panels) + 1, 4.2), squeeze=False, layout="constrained"
    )
    width = 0.8 / len(forms)
    for axis, (sink, size) in zip(axes[0], panels, strict=True):
        for index, form in enumerate(forms):
            heights = [
                next(
                    one["rows_per_second"] / 1e6
                    for one in figures
                    if (one["sink"], one["bytes"], one["codec"], one["form"])
                    == (sink, size, codec, form)
                )
                for codec in codecs
            ]
            places = [n + (index - (len(forms) - 1) / 2) * width for n in range(len(codecs))]
            axis.bar(places, heights, width * 0.92, label=form, color=colours[form])
        axis.set_xticks(range(len(codecs)), codecs)
        axis.set_title(f"{sink}, records of {size:,} bytes", fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("million rows a second")
    axes[0][-1].legend(frameon=False, fontsize=9)
    figure.savefig(path, dpi=130)
    plt.close(figure)
