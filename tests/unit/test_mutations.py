"""The faults that ``tests/chaos/mutations.py`` puts back: each still has its place in the code."""

from __future__ import annotations

import pytest

from tests.chaos.mutations import MUTATIONS, PACKAGE, Mutation, found_in, mutated
from tests.chaos.named_plans import NAMED
from tests.chaos.plan_sparks import ROOT


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda one: one.name)
def test_a_fault_changes_one_place_and_is_python(mutation: Mutation) -> None:
    changed = mutated(mutation)
    compile(changed, mutation.file, "exec")
    assert changed != (ROOT / PACKAGE / mutation.file).read_text()


def test_a_fault_without_a_place_is_an_error() -> None:
    nowhere = Mutation("nowhere", "nothing", "consumer/lease.py", "no such code", "")
    with pytest.raises(ValueError, match="'no such code' 0 times"):
        mutated(nowhere)


def test_the_plans_that_a_fault_takes_are_there() -> None:
    for mutation in MUTATIONS:
        assert set(filter(None, mutation.named.split(","))) <= NAMED.keys()


def test_names_are_not_used_twice() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)


def test_what_was_found_is_below_the_plan_that_failed() -> None:
    output = (
        "seed 1: classic: ok\n"
        "seed 2: classic: FAILED\n"
        "  duplicate: a-0 at 3, q1: q2 had delivered it\n"
        "plan = Plan(\n"
        "    seed=2,\n"
        "2 plans, 1 failed: [2]\n"
    )
    assert found_in(output) == ["duplicate: a-0 at 3, q1: q2 had delivered it"]
    assert found_in("seed 1: classic: ok\n") == []
