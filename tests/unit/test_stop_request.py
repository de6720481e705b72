"""The file that carries a request to stop to the planner of one run."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from pyspark_kafka_rebalance.source.stop.stop_request import (
    StopRequest,
    answer_of,
    ask_to_stop,
    give_up,
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_from_the_planners_start_to_its_end(folder: Path) -> None:
    assert not ask_to_stop("run", None, 60), "no planner yet"
    request = StopRequest("run")
    assert answer_of("run") == "reached"
    assert not request.is_made()
    assert ask_to_stop("run", None, 60)
    assert request.is_made()
    assert request.proven() == []
    assert ask_to_stop("run", {"version": 1}, 60)
    assert request.proven() == [{"version": 1}]
    assert not request.answer(committed=True)
    assert not request.answer(committed=True)
    assert answer_of("run") == "committed"
    assert not ask_to_stop("run", None, 60)
    assert request.proven() == []


def test_what_is_not_committed_is_told_to_who_asked(folder: Path) -> None:
    request = StopRequest("run")
    ask_to_stop("run", None, 60)
    assert request.answer(committed=False)
    assert not request.answer(committed=False), "stop() is called again"
    assert [answer_of("run") for _ in range(2)] == ["uncommitted"] * 2
    assert not ask_to_stop("run", None, 60), "it has left"


@pytest.mark.parametrize("committed", [True, False])
def test_who_asks_only_when_the_query_has_ended_is_answered_as_well(committed: bool) -> None:
    request = StopRequest("run")
    assert not request.answer(committed), "nobody waits"
    assert [answer_of("run") for _ in range(2)] == ["committed" if committed else "uncommitted"] * 2


def test_the_answer_for_a_planner_that_is_late_stays_as_it_was_given() -> None:
    request = StopRequest("run")
    ask_to_stop("run", None, 60)
    give_up("run")
    give_up("run")
    assert not request.answer(committed=True)
    assert answer_of("run") == "uncommitted"


def test_answers_are_kept_for_an_hour(folder: Path) -> None:
    for n in range(4):
        StopRequest(f"old {n}").answer(committed=n < 2)
    hour = 3600
    for file in folder.iterdir():
        os.utime(file, (time.time() - hour - 1,) * 2)
    StopRequest("young").answer(committed=True)
    running = StopRequest("running")
    assert [answer_of(f"old {n}") for n in range(4)] == ["absent"] * 4
    assert answer_of("young") == "committed"
    os.utime(running._path, (time.time() - 100 * hour,) * 2)
    StopRequest("another")
    assert answer_of("running") == "reached"


def test_a_planner_that_was_killed_cannot_be_asked(folder: Path) -> None:
    """Who asked it waited for its answer, and did not look for the one that is there instead."""
    code = (
        "import sys, tempfile; tempfile.tempdir = sys.argv[1]\n"
        "from pyspark_kafka_rebalance.source.stop.stop_request import StopRequest\n"
        "request = StopRequest('run'); print('there', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as planner:
        assert planner.stdout is not None
        assert planner.stdout.readline() == b"there\n"
        assert ask_to_stop("run", None, 60)
        assert answer_of("run") == "reached"
        planner.kill()
        planner.wait()
        assert answer_of("run") == "uncommitted"
        assert not ask_to_stop("run", None, 60)
        (file,) = folder.iterdir()
        os.utime(file, (time.time() - 3601,) * 2)
        StopRequest("another").answer(committed=True)
        assert answer_of("run") == "absent", "nothing else would ever remove it"


def test_nothing_is_left_behind_when_who_asked_is_gone(folder: Path) -> None:
    now = [0.0]
    request = StopRequest("run", clock=lambda: now[0])
    ask_to_stop("run", None, 10)
    assert request.is_made()
    now[0] = 10.0
    assert not request.answer(committed=False)
    assert list(folder.iterdir()) == []


def test_commits_are_wanted_for_as_long_as_the_last_of_those_who_asked_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    request = StopRequest("run", clock=lambda: now[0])
    assert request.commits_wanted_s() == 0, "nobody asked"
    ask_to_stop("run", None, 90, commit_within_s=60)
    now[0] = 110.0
    assert request.commits_wanted_s() == 50, "counted from when it was asked for"
    ask_to_stop("run", {"version": 1}, 90, commit_within_s=20)
    assert request.commits_wanted_s() == 50
    now[0] = 170.0
    assert request.commits_wanted_s() == 0


def test_runs_are_kept_apart_whatever_their_client_id() -> None:
    requests = {run: StopRequest(run) for run in ("a-1", "../a-1", "a/../../1", "x" * 5_000)}
    assert ask_to_stop("../a-1", None, 60)
    assert [run for run, request in requests.items() if request.is_made()] == ["../a-1"]


def test_what_cleans_up_temporary_files_does_not_end_it(folder: Path) -> None:
    request = StopRequest("run")
    for file in folder.iterdir():
        file.unlink()
    assert not request.is_made()
    assert ask_to_stop("run", None, 60)
    assert request.is_made()


def test_a_link_that_another_user_laid_is_not_followed(folder: Path) -> None:
    StopRequest("run")
    (path,) = folder.iterdir()
    path.unlink()
    target = folder / "target"
    target.write_text("precious")
    path.symlink_to(target)
    with pytest.raises(OSError):
        ask_to_stop("run", None, 60)
    assert target.read_text() == "precious"


def test_a_folder_that_cannot_be_written_is_logged_once(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "none"))
    request = StopRequest("run")
    for _ in range(3):
        assert not request.is_made()
    assert not request.answer(committed=False)
    assert caplog.text.count("stop_gracefully") == 1


def test_who_asks_and_does_not_stop_in_time_is_gone() -> None:
    now = [0.0]
    request = StopRequest("run", clock=lambda: now[0])
    now[0] = 100.0
    assert not request.is_abandoned(), "nobody asked"
    ask_to_stop("run", None, 10)
    assert not request.is_abandoned(), "it counts from when it is seen"
    now[0] = 109.0
    ask_to_stop("run", {"version": 1}, 10)
    assert not request.is_abandoned()
    now[0] = 118.0
    assert not request.is_abandoned(), "somebody asked again"
    now[0] = 119.0
    assert request.is_made()
    assert request.is_abandoned()
