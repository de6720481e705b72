"""Shares of the machine, which the processes of a run wait for."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import parallel_run
from tests.parallel_run import (
    SHARES,
    FilesByWhatTheyStart,
    file_of,
    needs_three_brokers,
    shares_of_the_machine,
)

#: Locks of the shares those that are free, says how many, and keeps them until its input ends.
OTHER = """
import fcntl, sys
file = open(sys.argv[1], "a+b")
locked = 0
for share in map(int, sys.argv[2:]):
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, share)
        locked += 1
    except BlockingIOError:
        pass
print(locked, flush=True)
sys.stdin.read()
"""


def other_process(lock: Path, *shares: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", OTHER, str(lock), *map(str, shares)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def end(process: subprocess.Popen[str]) -> int:
    """End it; how many it had locked."""
    return int(process.communicate()[0])


def test_nobody_holds_more_than_asked_for_though_they_become_free_one_by_one(
    tmp_path: Path,
) -> None:
    lock = tmp_path / "shares"
    others = [other_process(lock, *range(SHARES - 1))]
    assert others[0].stdout is not None
    others[0].stdout.readline()
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with shares_of_the_machine(lock, 4):
            held.set()
            done.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        while end(other_process(lock, SHARES - 1)):
            pass  # until it holds the last one, the only one that is free
        assert not held.is_set()
        others.pop().communicate()
        assert held.wait(60)
        assert end(other_process(lock, *range(SHARES))) == SHARES - 4
    finally:
        done.set()
        holder.join()
    assert end(other_process(lock, *range(SHARES))) == SHARES


# -- which process has which file ------------------------------------------------------------------


class Process:
    """A process of a run, which runs what it is given."""

    def __init__(self, number: int) -> None:
        self.gateway = SimpleNamespace(id=f"gw{number}")
        self.shutting_down = False
        self.given: list[int] = []

    def send_runtest_some(self, tests: list[int]) -> None:
        self.given += tests

    def shutdown(self) -> None:
        self.shutting_down = True


def files_of_a_run(processes: int, tests: list[str]) -> dict[str, list[str]]:
    """Go through a run, in which each process has run a test when the next one has; its files."""
    option = SimpleNamespace(loadscopereorder=False, debug=False)
    run = FilesByWhatTheyStart(
        Config(option, ["popen"] * processes),
        None,  # type: ignore[arg-type]
    )
    nodes: list[Any] = [Process(n) for n in range(processes)]
    for node in nodes:
        run.add_node(node)
    for node in nodes:
        run.add_node_collection(node, tests)
    run.schedule()
    files: dict[str, list[str]] = defaultdict(list)
    done = dict.fromkeys(nodes, 0)
    while any(done[node] < len(node.given) for node in nodes):
        for node in nodes:
            if done[node] < len(node.given):
                test = node.given[done[node]]
                done[node] += 1
                file = file_of(tests[test])
                if file not in files[node.gateway.id]:
                    files[node.gateway.id].append(file)
                run.mark_test_complete(node, test)
    assert run.tests_finished
    assert all(node.shutting_down for node in nodes)
    assert sum(done.values()) == len(tests)
    return files


class Config:
    """As much of pytest's as the scheduler reads."""

    def __init__(self, option: Any, processes: list[str]) -> None:
        self.option = option
        self._processes = processes

    def getvalue(self, name: str) -> Any:
        return {"tx": self._processes, "debug": False}.get(name)


def in_folder(folder: str, *names: str, each: int = 5) -> list[str]:
    return [f"tests/{folder}/test_{n}.py::test_{i}" for n in names for i in range(each)]


THREE = {"tests/kafka/test_moves.py", "tests/kafka/test_kills.py", "tests/spark/test_away.py"}


@pytest.fixture
def _three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_run, "needs_three_brokers", THREE.__contains__)


@pytest.mark.usefixtures("_three")
@pytest.mark.parametrize("processes", [2, 4, 6])
def test_three_brokers_are_in_one_process_of_each_kind_one_file_after_the_other(
    processes: int,
) -> None:
    others = [f"other_{n}" for n in range(9)]
    files = files_of_a_run(
        processes,
        in_folder("kafka", *others, "moves", "kills")
        + in_folder("spark", *others, "away")
        + in_folder("unit", *others),
    )
    assert set(files["gw0"][:2]) == {"tests/kafka/test_moves.py", "tests/kafka/test_kills.py"}
    assert files["gw1"][0] == "tests/spark/test_away.py"
    for number in (2, 3, 4, 5):
        assert not THREE & set(files.get(f"gw{number}", ()))
    assert not [f for f in files["gw1"][:5] if "spark" not in f]


@pytest.mark.usefixtures("_three")
def test_the_fifth_process_has_unit_tests_only_and_ends_after_them() -> None:
    several = [f"other_{n}" for n in range(12)]
    files = files_of_a_run(
        6,
        in_folder("kafka", *several) + in_folder("spark", *several) + in_folder("unit", *several),
    )
    assert all("unit" in file for file in files["gw4"])
    assert len(files["gw4"]) >= 5
    assert not [file for file in files["gw5"][:4] if "kafka" not in file]
    assert "gw4" not in files_of_a_run(6, in_folder("kafka", *several))


@pytest.mark.usefixtures("_three")
def test_the_others_have_unit_tests_too_when_nothing_else_is_left() -> None:
    several = [f"other_{n}" for n in range(24)]
    files = files_of_a_run(6, in_folder("kafka", "other") + in_folder("unit", *several))
    assert all(any("unit" in file for file in files[f"gw{n}"]) for n in range(6))


def test_a_file_needs_three_brokers_by_its_fixtures() -> None:
    assert needs_three_brokers("tests/kafka/test_coordinator_moves.py")
    assert needs_three_brokers("tests/spark/test_coordinator_away.py")
    assert not needs_three_brokers("tests/kafka/test_commits.py")
    assert not needs_three_brokers("tests/unit/test_parallel_run.py")
    assert not needs_three_brokers("tests/kafka/test_that_is_not_there.py")
