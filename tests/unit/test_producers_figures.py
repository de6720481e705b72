"""What the demo of producer groups makes of commits."""

from __future__ import annotations

import io
from itertools import combinations
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from rich.console import Console

from demos.producers.course import InstanceStatus
from demos.producers.figures import Commit, HandOver, hand_overs, rates
from demos.producers.figures import median_s as median_of
from demos.producers.screen import COLOURS, Screen
from demos.shop.tables import TABLES
from demos.time_axis import save_stacked

COMMITS = [
    Commit(1.0, "A", 0, 10),
    Commit(1.0, "A", 1, 20),
    Commit(1.2, "A", 0, 10),
    Commit(1.5, "B", 1, 5),
    Commit(4.0, "C", 0, 5),
    Commit(3.0, "B", 0, 5),
]


def test_a_table_moves_where_another_instance_commits() -> None:
    assert hand_overs(COMMITS) == [
        HandOver(1, "A", "B", 1.0, 1.5),
        HandOver(0, "A", "B", 1.2, 3.0),
        HandOver(0, "B", "C", 3.0, 4.0),
    ]
    assert hand_overs([]) == []


def test_the_median_of_those_of_one_change() -> None:
    moved = hand_overs(COMMITS)
    assert median_of(moved, 0, 3.5) == pytest.approx(1.15)
    assert median_of(moved, 3.5, 9) == pytest.approx(1.0)
    assert median_of(moved, 9, 10) is None


def test_rates_of_each_table_by_instance() -> None:
    found = rates(COMMITS, [1.0, 1.1, 1.2, 1.3])
    assert found[0, "A"] == pytest.approx([100.0, 0.0, 100.0], abs=100)
    assert sum(found[0, "A"]) == pytest.approx(200.0)
    assert sum(found[1, "A"]) == pytest.approx(200.0)
    assert (0, "C") not in found


def test_the_live_table_fits_a_terminal_of_80_columns() -> None:
    lines = [InstanceStatus(name, "suspended", TABLES, 1_234, 123_456, 1_234) for name in COLOURS]
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(Screen(console, "group g at 127.0.0.1:9092", lambda: (lines, 600.0)).table())
    text = console.export_text()
    assert all(heading in text for heading in ("state", "tables", "committed", "aborted"))
    assert text.count(f"{', '.join(TABLES)} ") == len(COLOURS)
    assert text.count("1,234 │\n") == len(COLOURS)


def test_the_names_of_events_do_not_meet(tmp_path: Path) -> None:
    figure = Figure(figsize=(10, 6.5), dpi=150, layout="constrained")
    axes = figure.subplots()
    marks = {"B joins": 30, "C stops": 127.0, "A stalls": 136.0, "A wakes": 144.0, "end": 145.0}
    save_stacked(tmp_path / "some.png", figure, [axes], 150, marks, "A title", "and another")
    written = [*axes.texts, axes._left_title, figure._suptitle]
    assert [text.get_text() for text in axes.texts] == list(marks)
    for one, other in combinations(written, 2):
        met = one.get_window_extent().overlaps(other.get_window_extent())
        assert not met, f"{one.get_text()} meets {other.get_text()}"
