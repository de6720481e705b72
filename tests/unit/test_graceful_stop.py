"""How stop_gracefully takes the planners' answers; the queries are in tests/spark."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_kafka_rebalance.source.stop import graceful_stop
from pyspark_kafka_rebalance.source.stop.planner_message import PlannerMessage
from pyspark_kafka_rebalance.source.stop.stop_request import StopRequest, answer_of


class Planners:
    """Each run's answers, one for each second; the last one for good."""

    def __init__(self, **answers: list[str]) -> None:
        self.answers = answers
        self.given_up: list[str] = []
        self.now = 0.0

    def answer_of(self, run: str) -> str:
        answers = self.answers[run]
        return answers[min(int(self.now), len(answers) - 1)]

    def give_up(self, run: str) -> None:
        self.given_up.append(run)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def wait(self, commit_by: float) -> bool:
        return graceful_stop._wait_until_left(self, self.answers, commit_by)  # type: ignore[arg-type]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Planners]]:
    """Put the planners in here whose time it is."""
    theirs: list[Planners] = []
    with monkeypatch.context() as patched:
        patched.setattr(time, "monotonic", lambda: theirs[0].now)
        patched.setattr(time, "sleep", lambda seconds: theirs[0].sleep(seconds))
        yield theirs


@pytest.mark.parametrize(
    ("answers", "complete", "given_up"),
    [
        ({}, True, []),
        ({"a": ["committed"]}, True, []),
        ({"a": ["absent"]}, False, []),  # ended long ago, or was never there
        ({"a": ["reached"] * 50 + ["committed"]}, True, []),
        ({"a": ["reached"] * 50 + ["uncommitted"]}, False, []),
        ({"a": ["uncommitted"], "b": ["reached", "committed"]}, False, []),
        ({"a": ["reached"], "b": ["committed"]}, False, ["a"]),  # dead, or hangs
        ({"a": ["reached"] * 70 + ["committed"]}, False, ["a"]),
    ],
)
def test_only_planners_that_left_with_everything_committed_are_a_success(
    clock: list[Planners], answers: dict[str, list[str]], complete: bool, given_up: list[str]
) -> None:
    planners = Planners(**answers)
    clock.append(planners)
    assert planners.wait(commit_by=60.0) == complete
    assert planners.given_up == given_up


class Query:
    """One that goes on."""

    isActive = True


@pytest.mark.parametrize(
    ("before", "gone"),
    [
        (["dead"], set()),  # the first progress after a restart is of a replay
        (["idle", "living"], {"idle"}),  # the one has read nothing, in this run
        (["living", "idle"], {"idle"}),
    ],
)
def test_every_planner_that_is_there_is_asked(
    monkeypatch: pytest.MonkeyPatch,
    clock: list[Planners],
    before: list[str],
    gone: set[str],
) -> None:
    planners = Planners(living=["reached"], dead=["uncommitted"], idle=["committed"])
    told = []

    def tell(run: str, proven: object) -> bool:
        told.append(run)
        return planners.answer_of(run) == "reached"

    monkeypatch.setattr(planners, "tell", tell, raising=False)
    monkeypatch.setattr(
        graceful_stop, "_ends", lambda query: before if planners.now < 5 else ["living"]
    )
    clock.append(planners)
    found = graceful_stop._ask(Query(), planners, deadline=60.0)  # type: ignore[arg-type]
    assert found == (True, frozenset(gone))
    assert set(told) == {*before, "living"}


def test_a_message_says_what_has_become_of_the_planner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def send(**options: str) -> str:
        return PlannerMessage({"run": "run", **options}).schema()

    asking = {"proven": "null", "stop_within_s": "90"}
    assert send(**asking) == "absent BOOLEAN"
    request = StopRequest("run")
    assert send(**asking) == "reached BOOLEAN", "as an older Spark Connect client asks"
    assert request.commits_wanted_s() == 0
    assert send(**asking, commit_within_s="60") == "reached BOOLEAN"
    assert request.commits_wanted_s() > 0
    request.answer(committed=False)
    assert [send(), send()] == ["uncommitted BOOLEAN"] * 2
    StopRequest("another")
    given_up = PlannerMessage({"run": "another", "give_up": "true"})
    assert given_up.schema() == "uncommitted BOOLEAN"
    assert answer_of("another") == "uncommitted"
