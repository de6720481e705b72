"""The faults that ``tests/chaos/mutations.py`` puts back: each still has its place in the code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.mutations import MUTATIONS, PACKAGE, Mutation, found_in, mutated, plans_of
from tests.chaos.named_plans import NAMED
from tests.chaos.plan_history import broken_off
from tests.chaos.plan_sparks import ROOT


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda one: one.name)
def test_a_fault_changes_one_place_and_is_python(mutation: Mutation) -> None:
    changed = mutated(mutation)
    compile(changed, mutation.file, "exec")
    assert changed != (ROOT / PACKAGE / mutation.file).read_text()


def test_a_fault_without_a_place_is_an_error() -> None:
    nowhere = Mutation("nowhere", "nothing", "consumer/membership/liveness.py", "no such code", "")
    with pytest.raises(ValueError, match="'no such code' 0 times"):
        mutated(nowhere)


def test_the_plans_that_a_fault_takes_are_there() -> None:
    for mutation in MUTATIONS:
        assert set(filter(None, mutation.named.split(","))) <= NAMED.keys()


def test_names_are_not_used_twice() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)


def test_a_fault_without_a_name_takes_plans_of_seeds() -> None:
    unnamed = Mutation("any", "nothing", "consumer/membership/liveness.py", "", "")
    assert [plan.seed for plan in plans_of(unnamed, 7, 2)] == [7, 8]
    assert plans_of(replace(unnamed, named="calm,reset"), 7, 2) == [NAMED["calm"], NAMED["reset"]]


def test_what_was_found_is_told_shortly() -> None:
    outcome = broken_off("a long story " * 10, Path())
    assert found_in(outcome) == [("a long story " * 10)[:80]]
