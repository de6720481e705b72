"""The file that carries a request to stop to the planner of one run."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from pyspark_kafka_rebalance.source.stop_request import StopRequest, ask_to_stop, is_planner_here


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_from_the_planners_start_to_its_end() -> None:
    assert not ask_to_stop("run", None, 60), "no planner yet"
    request = StopRequest("run")
    assert is_planner_here("run")
    assert not request.is_made()
    assert ask_to_stop("run", None, 60)
    assert request.is_made()
    assert request.proven() == []
    assert ask_to_stop("run", {"version": 1}, 60)
    assert request.proven() == [{"version": 1}]
    request.remove()
    request.remove()
    assert not is_planner_here("run")
    assert not ask_to_stop("run", None, 60)
    assert request.proven() == []


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
    request.remove()
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
