"""Which part of the random histories a run goes through."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from types import ModuleType

import histories
import pytest

Imported = Callable[..., ModuleType]


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> Iterator[Imported]:
    """The module as with these variables of the environment."""

    def with_variables(**variables: int) -> ModuleType:
        for name in ("RANDOM_HISTORIES", "HISTORIES_SEED"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, str(value))
        return importlib.reload(histories)

    yield with_variables
    monkeypatch.undo()
    importlib.reload(histories)


def test_a_run_goes_through_all_and_always_the_same(imported: Imported) -> None:
    found = imported()
    assert found.ALWAYS_THE_SAME
    assert found.EVENTS_ALWAYS_THE_SAME
    assert (found.histories(40), found.events(10), found.places(7)) == (40, 10, (7, 7))


def test_more_are_others_each_time(imported: Imported) -> None:
    found = imported(RANDOM_HISTORIES=5, HISTORIES_SEED=3)
    assert not found.ALWAYS_THE_SAME
    assert not found.EVENTS_ALWAYS_THE_SAME
    assert (found.histories(40), found.events(10), found.places(7)) == (200, 50, (1, 1))


def test_a_run_of_ci_goes_through_a_third_and_of_what_is_on_brokers_through_all(
    imported: Imported,
) -> None:
    found = imported(HISTORIES_SEED=12345)
    assert not found.ALWAYS_THE_SAME
    assert found.EVENTS_ALWAYS_THE_SAME
    assert (found.histories(40), found.histories(1), found.events(10)) == (14, 1, 10)


def test_seeds_that_follow_each_other_try_every_place(imported: Imported) -> None:
    tried = set()
    for seed in range(1_000, 1_021):
        first, step = imported(HISTORIES_SEED=seed).places(7)
        tried |= set(range(first, 200, step))
    assert tried == set(range(1, 200))
