"""Which tests ``make test`` leaves out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.chosen_tests import left_out


class Item:
    """A test as pytest collects it, as far as the choice looks at it."""

    def __init__(self, name: str, protocol: str | None = None, *marks: str) -> None:
        self.nodeid = f"tests/kafka/test_x.py::{name}"
        self._marks = marks
        if protocol is not None:
            self.nodeid += f"[{protocol}-6000]"
            self.callspec = SimpleNamespace(params={"protocol": protocol, "timeout_ms": 6_000})

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self._marks else None


def item(name: str, protocol: str | None = None, *marks: str) -> Any:
    return Item(name, protocol, *marks)


def both(name: str, *marks: str) -> list[Any]:
    return [item(name, protocol, *marks) for protocol in ("classic", "consumer")]


def protocols_of(left: list[Any]) -> list[str]:
    return [one.callspec.params["protocol"] for one in left]


def test_long_ones_are_left_out() -> None:
    long = [item("test_long", None, "long"), *both("test_long", "long")]
    short = [item("test_short"), item("test_of_one", "consumer")]
    assert left_out([*long, *short]) == set(long)


def test_of_two_protocols_one_is_left_and_the_same_each_time() -> None:
    names = [f"test_{n}" for n in range(40)]
    kept = {}
    for _ in range(2):
        for name in names:
            twins = both(name)
            left = [one for one in twins if one not in left_out(twins)]
            (protocol,) = protocols_of(left)
            assert kept.setdefault(name, protocol) == protocol
    assert 10 < list(kept.values()).count("classic") < 30, "both have their share"


def test_what_the_protocols_decide_is_repeated() -> None:
    assert left_out(both("test_x", "each_protocol")) == set()


def test_it_is_not_with_one_protocol() -> None:
    assert len(left_out(both("test_x", "each_protocol"), one_protocol=True)) == 1


def test_the_core_set_stays_whole() -> None:
    """It runs on the other Sparks, and must not shrink with a test's name."""
    for name in (f"test_{n}" for n in range(10)):
        twins = [item(name, "classic", "core"), item(name, "consumer")]
        assert protocols_of(list(left_out(twins))) == ["consumer"]
        assert left_out(both(name, "core")) == set()
