"""Pump: its order of calls, wake-ups, failures and deadline, without anything to pump."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from pyspark_kafka_rebalance.consumer.pump import Pump
from pyspark_kafka_rebalance.errors import KafkaRebalanceError

#: A wait that is this long has failed.
PATIENCE_S = 20.0


class Owner:
    """What a pump calls, in order; each tick takes the next answer, then waits to be woken."""

    def __init__(self) -> None:
        self.called: list[str] = []
        self.dues: list[float | None] = []
        self.changed = threading.Condition()
        self.failing: dict[str, BaseException] = {}
        self.while_: dict[str, Callable[[], None]] = {}
        self.pump = Pump(
            self.tick,
            name="a-pump",
            what="group g: the pump",
            begin=lambda: self.note("begin"),
            finish=lambda: self.note("finish"),
            close=lambda: self.note("close"),
        )

    def note(self, call: str) -> None:
        assert threading.current_thread().name == "a-pump"
        with self.changed:
            self.called.append(call)
            self.changed.notify_all()
        self.while_.get(call, lambda: None)()
        if call in self.failing:
            raise self.failing[call]

    def tick(self) -> float | None:
        self.note("tick")
        return self.dues.pop(0) if self.dues else None

    def wait_for(self, call: str, times: int = 1) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.called.count(call) >= times, PATIENCE_S)

    def wait_until_ended(self) -> None:
        self.wait_for("close")
        self.pump._thread.join(PATIENCE_S)
        assert not self.pump.is_alive()


@pytest.fixture
def owner() -> Iterator[Owner]:
    made = Owner()
    yield made
    made.while_ = {}
    assert made.pump.stop(PATIENCE_S)


def test_it_begins_ticks_finishes_and_closes_once_each_in_this_order(owner: Owner) -> None:
    owner.dues = [0.0, 0.0]
    owner.pump.start()
    owner.pump.start()
    owner.wait_for("tick", 3)
    assert owner.pump.is_alive()
    assert owner.pump.stop(PATIENCE_S)
    assert owner.pump.stop(PATIENCE_S)
    assert owner.called == ["begin", "tick", "tick", "tick", "finish", "close"]


def test_a_pump_with_nothing_due_ticks_when_it_is_woken(owner: Owner) -> None:
    owner.pump.start()
    for times in (1, 2, 3):
        owner.wait_for("tick", times)
        owner.pump.wake()
    owner.wait_for("tick", 4)


def test_a_wake_up_during_a_tick_is_not_lost(owner: Owner) -> None:
    woken = iter([True])
    owner.while_["tick"] = lambda: owner.pump.wake() if next(woken, False) else None
    owner.pump.start()
    owner.wait_for("tick", 2)


@pytest.mark.parametrize("where", ["begin", "tick", "finish"])
@pytest.mark.parametrize("error", [RuntimeError("a defect"), KafkaRebalanceError("refused")])
def test_a_failure_ends_the_pump_and_is_raised_by_every_later_call(
    owner: Owner, where: str, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    owner.failing[where] = error
    owner.pump.raise_failure()  # nothing yet
    owner.pump.start()
    if where == "finish":
        owner.pump.stop(PATIENCE_S)
    owner.wait_until_ended()
    assert owner.called[-2:] == [where, "close"], "what is left to do after a failure is to close"
    for _ in range(2):
        with pytest.raises(type(error)) as raised:
            owner.pump.raise_failure()
        assert raised.value is error
    (record,) = [r for r in caplog.records if r.getMessage() == "group g: the pump ended"]
    assert (record.levelno == logging.ERROR) == isinstance(error, RuntimeError)


def test_a_failure_is_known_before_anything_is_closed(owner: Owner) -> None:
    seen: list[BaseException] = []

    def look() -> None:
        try:
            owner.pump.raise_failure()
        except RuntimeError as error:
            seen.append(error)

    owner.failing["tick"] = RuntimeError("a defect")
    owner.while_["close"] = look
    owner.pump.start()
    owner.wait_until_ended()
    assert seen == [owner.failing["tick"]]


def test_a_stop_during_begin_skips_the_ticks(owner: Owner) -> None:
    owner.while_["begin"] = lambda: owner.pump.leave(1.0)
    owner.pump.start()
    owner.wait_until_ended()
    assert owner.called == ["begin", "finish", "close"]


def test_a_pump_that_stops_itself_does_not_wait_for_itself(owner: Owner) -> None:
    stopped: list[bool] = []
    owner.while_["tick"] = lambda: stopped.append(owner.pump.stop(PATIENCE_S))
    owner.pump.start()
    owner.wait_until_ended()
    assert stopped == [True]
    assert owner.called == ["begin", "tick", "finish", "close"]


def test_stop_before_start() -> None:
    owner = Owner()
    assert owner.pump.stop(0.0)
    assert owner.called == []


def test_stop_says_when_the_pump_hangs(owner: Owner) -> None:
    go_on = threading.Event()
    owner.while_["tick"] = lambda: go_on.wait(PATIENCE_S) and None
    owner.pump.start()
    owner.wait_for("tick")
    assert not owner.pump.stop(0.01)
    assert owner.called[-1] == "tick"
    go_on.set()
    owner.wait_until_ended()
    assert owner.called[-2:] == ["finish", "close"]


def test_what_is_left_of_the_time_to_stop(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    assert owner.pump.left_s() == 0.0
    owner.pump.leave(3.0)
    now[0] = 102.0
    assert owner.pump.left_s() == 1.0
    owner.pump.leave(3.0)
    assert owner.pump.left_s() == 1.0, "the first deadline stands"
    now[0] = 104.0
    assert owner.pump.left_s() == 0.0


def test_whoever_waits_goes_on_when_the_pump_stops(owner: Owner) -> None:
    assert not owner.pump.wait(0.0)
    waited: list[bool] = []
    waiter = threading.Thread(target=lambda: waited.append(owner.pump.wait(PATIENCE_S)))
    waiter.start()
    owner.pump.leave(1.0)
    waiter.join(PATIENCE_S)
    assert waited == [True]
    assert owner.pump.is_stopping
