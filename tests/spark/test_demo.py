"""The demos themselves, short."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = [pytest.mark.several_sparks, pytest.mark.newest_spark]

PNG = b"\x89PNG\r\n\x1a\n"


@contextmanager
def demo(
    folder: Path, *options: str, module: str = "demos.rebalance"
) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", module, *options]
    with subprocess.Popen(
        command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        try:
            yield process
        finally:
            process.terminate()  # which is like Ctrl-C, and nothing to one that has ended


def started_by(pid: int) -> set[int]:
    """Process ids of all that this process started, directly or not."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                status = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            children.setdefault(int(status[1]), []).append(int(entry.name))
    found: set[int] = set()
    ahead = [pid]
    while ahead:
        new = children.get(ahead.pop(), [])
        found.update(new)
        ahead.extend(new)
    return found


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_nothing_is_lost_or_duplicated_and_the_picture_is_drawn(tmp_path):
    with demo(tmp_path, "--seconds-per-phase", "1.5", "--rate", "1000") as process:
        printed, _ = process.communicate(timeout=300)
    assert process.returncode == 0, printed
    cells = re.search(r"│\s*([\d,]+) │\s*([\d,]+) │\s*([\d,]+) │\s*([\d,]+) │", printed)
    assert cells, printed
    produced, delivered, lost, duplicated = (int(cell.replace(",", "")) for cell in cells.groups())
    assert produced == delivered > 0
    assert (lost, duplicated) == (0, 0)
    for row, kept, moved in (("B joins", 6, 6), ("C joins", 8, 4), ("B stops", 8, 4)):
        (line,) = (line for line in printed.splitlines() if line.startswith(f"│ {row}"))
        values = [value.strip() for value in line.strip("│").split("│")]
        assert (values[1], values[5]) == (str(kept), str(moved)), printed
    picture = (tmp_path / "artifacts" / "rebalance.png").read_bytes()
    assert picture.startswith(PNG)
    assert len(picture) > 20_000


@pytest.mark.long
def test_a_query_that_is_live_again_at_once_misses_nothing_of_its_backlog(tmp_path):
    numbers = ("--backlog", "45000", "--partitions", "2", "--rate", "300", "--seconds-of-calm", "1")
    with demo(tmp_path, *numbers, module="demos.catch_up") as process:
        printed, _ = process.communicate(timeout=400)
    assert process.returncode == 0, printed
    rows = {}
    for line in printed.splitlines():
        if line.startswith("│"):
            name, live, ordered = (cell.strip() for cell in line.strip("│").split("│"))
            rows[name] = (live, ordered)
    produced = rows["records produced"]
    assert rows["delivered"] == produced
    assert int(produced[0].replace(",", "")) > 45_000
    assert rows["missing"] == rows["twice: others"] == ("0", "0"), printed
    of_gaps, none = rows["of them with catch_up = true"]
    assert int(of_gaps.replace(",", "")) > 40_000
    assert none == "0"
    picture = (tmp_path / "artifacts" / "catch-up.png").read_bytes()
    assert picture.startswith(PNG)
    assert len(picture) > 20_000


@pytest.mark.long
def test_ctrl_c_leaves_no_process_behind(tmp_path):
    options = ("--peer", "blocking", "--seconds-per-phase", "1", "--rate", "500")
    with demo(tmp_path, *options) as process:
        assert process.stdout is not None
        printed = iter(process.stdout)
        assert any("consumer B joins" in line for line in printed)
        children = started_by(process.pid)
        assert len(children) >= 6  # broker and watchdog, producer, three consumers
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130
    deadline = time.monotonic() + 5
    while left := [pid for pid in children if is_alive(pid)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
