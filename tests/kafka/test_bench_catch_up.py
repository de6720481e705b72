"""The benchmark of KIP-333 on a real broker, small: whether it gets through, not how fast."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.catch_up.client import QUICK, run_client

SMALL = replace(QUICK, records=20_000)


@pytest.mark.long
@pytest.mark.parametrize("form", ["live", "ordinary"])
def test_an_owner_is_killed_and_nothing_is_missing_or_there_twice(
    kafka, topic_name, tmp_path, form
):
    stages: list[str] = []
    found = run_client(kafka, SMALL, form, topic_name, tmp_path, stages.append)
    assert found["audit"]["missing"] == found["audit"]["repeated"] == 0
    assert found["backlog"] >= SMALL.records
    assert found["audit"]["records"] > found["backlog"]
    assert found["first_live_s"] > 0
    assert found["before"]["records"]
    assert stages == [
        "an owner reads the input",
        "the owner is killed, a backlog is written",
        "another takes over",
        "reads on",
    ]
