"""The committed notebooks: what a reader sees of them without running them."""

from __future__ import annotations

import ast
import importlib
import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))

each = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)


def test_they_are_there():
    assert [path.stem for path in NOTEBOOKS] == ["event_time", "rebalance"]


@each
def test_it_was_run_from_top_to_bottom_and_ended_well(notebook):
    cells = [c for c in json.loads(notebook.read_text())["cells"] if c["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} <= {"display_data", "stream"}
    assert {output.get("name", "stdout") for output in outputs} == {"stdout"}, "no warnings"
    assert any("image/png" in output.get("data", {}) for output in outputs)


@each
def test_it_is_small_and_shows_nothing_of_the_machine_it_ran_on(notebook):
    text = notebook.read_text()
    assert len(text) < 100_000
    assert "iopub" not in text, "times of the run"
    assert "/home" not in text
    assert "/tmp" not in text


@each
def test_what_it_imports_of_this_checkout_is_there(notebook):
    """It is run by `make test-notebook` only: a module that moved would be noticed by a reader."""
    imported = [
        (node.module, name.name)
        for cell in json.loads(notebook.read_text())["cells"]
        if cell["cell_type"] == "code"
        for node in ast.walk(ast.parse("".join(cell["source"])))
        if isinstance(node, ast.ImportFrom)
        and node.module.partition(".")[0] in ("demos", "measuring", "pyspark_kafka_rebalance")
        for name in node.names
    ]
    assert len(imported) > 3
    for module, name in imported:
        if not hasattr(importlib.import_module(module), name):
            importlib.import_module(f"{module}.{name}")
