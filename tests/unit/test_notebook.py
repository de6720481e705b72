"""The committed notebook: what a reader sees of it without running it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "rebalance.ipynb"


@pytest.fixture(scope="module")
def cells():
    return [c for c in json.loads(NOTEBOOK.read_text())["cells"] if c["cell_type"] == "code"]


def test_it_was_run_from_top_to_bottom_and_ended_well(cells):
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} == {"display_data", "stream"}
    assert {output.get("name", "stdout") for output in outputs} == {"stdout"}, "no warnings"
    assert any("image/png" in output.get("data", {}) for output in outputs)


def test_it_is_small_and_shows_nothing_of_the_machine_it_ran_on():
    text = NOTEBOOK.read_text()
    assert len(text) < 100_000
    assert "iopub" not in text, "times of the run"
    assert "/home" not in text
    assert "/tmp" not in text
