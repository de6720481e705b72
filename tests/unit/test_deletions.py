"""Deletions: what is noted of the records that a plan's faults delete."""

from __future__ import annotations

import pytest
from kafka.structs import TopicPartition

from tests.chaos import plan_admin
from tests.chaos.deletions import Deletions
from tests.chaos.random_plans import Fault

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


def test_what_is_deleted_late_is_the_last_deletions(monkeypatch: pytest.MonkeyPatch) -> None:
    begins = {A: 5}
    monkeypatch.setattr(plan_admin, "delete", lambda *_: dict(begins))
    monkeypatch.setattr(plan_admin, "begins_of", lambda _, whose: {p: begins[p] for p in whose})
    deletions = Deletions("", lambda topic: [A])
    deletions.carry_out(Fault(0.0, "expire", "a"))
    (at,) = {deletions.when(A, offset) for offset in range(5)}
    assert at is not None
    assert deletions.when(A, 5) is None

    begins[A] = 7
    deletions.look_again()
    assert deletions.when(A, 6) == at
    assert deletions.when(A, 7) is None


def test_of_a_partition_that_nothing_deletes_from_nothing_is_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The compacted topic: its records are asked for, and are gone without a deletion."""
    looked_at: list[TopicPartition] = []
    monkeypatch.setattr(plan_admin, "begins_of", lambda _, whose: looked_at.extend(whose) or {})
    deletions = Deletions("", lambda topic: [A])
    assert deletions.when(B, 0) is None
    deletions.look_again()
    assert looked_at == []
