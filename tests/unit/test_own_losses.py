"""What members log of their own end, as a query does in the log of its Spark."""

from __future__ import annotations

import time
from pathlib import Path

from tests.chaos.own_losses import MembersLog

BAR = "[Stage 1:>                              (0 + 1) / 1]" + " " * 20
OUT = "member 2cf4-0 of generation 3 is out of the group"
GIVEN_UP = f"{OUT}: no successful heartbeat for 8000 ms\n"
OTHERS = f"{OUT}: the broker has removed it\n"


def test_who_gave_up_and_between_which_looks(tmp_path: Path) -> None:
    path = tmp_path / "spark-0.log"
    path.write_text(f"group p7-g: {GIVEN_UP}")  # of the query before
    began = time.time()
    log = MembersLog(path, "p7-g")
    assert log.gives_up() is None

    with path.open("a") as file:
        file.write(f"{BAR}group p7-g: {GIVEN_UP[:30]}")
        file.flush()
        assert log.gives_up() is None  # a line is still being written
        first_look = time.time()
        file.write(GIVEN_UP[30:])
    gave_up = log.gives_up()
    assert gave_up is not None
    since, until = gave_up
    assert began <= since <= first_look <= until <= time.time()
    assert log.gives_up() is None


def test_other_groups_and_other_ends_are_not_it(tmp_path: Path) -> None:
    path = tmp_path / "spark-0.log"
    path.touch()
    log = MembersLog(path, "p7-g")
    path.write_text(f"group p7-alone: {GIVEN_UP}group p7-g: {OTHERS}")
    assert log.gives_up() is None
