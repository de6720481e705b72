"""CommitLogWatch: whoever asks is not held up by a store."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pyspark_kafka_rebalance.source.checkpoint import commit_log_watch
from pyspark_kafka_rebalance.source.checkpoint.commit_log_watch import CommitLogWatch

OFFSET: dict[str, Any] = {"version": 1, "ranges": {"orders": {"0": [0, 10]}}}
PATIENCE_S = 60.0


class Store:
    """What the look-ups find; each waits until the store is let go on."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.asked = threading.Semaphore(0)
        self.look_ups = 0
        self.committed: dict[str, Any] | None = None
        self.error: Exception | None = None

    def is_committed(self, offset: dict[str, Any]) -> bool:
        self.look_ups += 1
        self.asked.release()
        assert self.answers.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error
        return offset == self.committed


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    made = Store()
    monkeypatch.setattr(commit_log_watch, "CommitLog", lambda location: made)
    yield made
    made.answers.set()


@pytest.fixture
def watch(store: Store) -> CommitLogWatch:
    return CommitLogWatch("s3://bucket/checkpoint")


def ask_until(watch: CommitLogWatch, offset: dict[str, Any] = OFFSET) -> None:
    """Until the store's answer is there; the look-up under way is waited for, not polled."""
    while not watch.is_committed(offset):
        assert watch._last is not None
        assert watch._last.done.wait(PATIENCE_S)


def test_a_store_that_does_not_answer_holds_nobody_up(watch: CommitLogWatch, store: Store) -> None:
    assert not watch.is_committed(OFFSET)
    assert store.asked.acquire(timeout=PATIENCE_S)
    for _ in range(100):
        assert not watch.is_committed(OFFSET)
    assert store.look_ups == 1, "one at a time"
    store.committed = OFFSET
    store.answers.set()
    ask_until(watch)


def test_a_store_is_not_asked_for_every_question(
    watch: CommitLogWatch, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_000.0]
    monkeypatch.setattr(commit_log_watch.time, "monotonic", lambda: now[0])
    store.answers.set()
    for look_ups in (1, 2, 3):
        for _ in range(10):
            assert not watch.is_committed(OFFSET)
            assert watch._last is not None
            assert watch._last.done.wait(PATIENCE_S)
        assert store.look_ups == look_ups
        now[0] += commit_log_watch._STORE_INTERVAL_S


def test_an_answer_about_another_batch_proves_nothing(watch: CommitLogWatch, store: Store) -> None:
    store.committed = OFFSET
    store.answers.set()
    ask_until(watch)
    assert not watch.is_committed({**OFFSET, "ranges": {}})


def test_the_end_waits_for_a_look_up_of_its_own(watch: CommitLogWatch, store: Store) -> None:
    """One that is under way may have looked before the batch was committed."""
    assert not watch.is_committed(OFFSET)
    assert store.asked.acquire(timeout=PATIENCE_S)

    def look() -> None:
        found.append(watch.wait_for_answer(OFFSET, PATIENCE_S))

    found: list[bool] = []
    stopping = threading.Thread(target=look)
    stopping.start()
    store.answers.set()  # the first finds nothing, or what is committed meanwhile
    store.committed = OFFSET
    stopping.join(PATIENCE_S)
    assert found == [True]


def test_the_end_does_not_wait_for_ever(
    watch: CommitLogWatch, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    assert not watch.wait_for_answer(OFFSET, 0.05)
    assert "did not answer within" in caplog.text
    assert not watch.wait_for_answer(OFFSET, 0.05)
    assert store.look_ups == 1


def test_a_store_that_fails_is_logged_once_and_again_when_it_is_back(
    watch: CommitLogWatch, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    store.answers.set()
    store.error = PermissionError("access denied")
    for _ in range(3):
        assert not watch.wait_for_answer(OFFSET, PATIENCE_S)
    assert caplog.text.count("access denied") == 1
    store.error = None
    store.committed = OFFSET
    assert watch.wait_for_answer(OFFSET, PATIENCE_S)
    assert caplog.text.count("can be read again") == 1


def test_the_first_look_is_not_logged_beside_the_error_of_the_start(
    watch: CommitLogWatch, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    store.answers.set()
    store.error = PermissionError("access denied")
    watch.begin()
    assert watch._last is not None
    assert watch._last.done.wait(PATIENCE_S)
    assert caplog.text == ""
    assert not watch.wait_for_answer(OFFSET, PATIENCE_S)
    assert caplog.text.count("access denied") == 1
