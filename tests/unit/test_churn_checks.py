"""The checks of a churn notice what they are there for, and its plan is what it says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import accumulate
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.consumer.consumer import PollResult
from tests.chaos.invariants import (
    CommittedOffsets,
    Holding,
    PollChecks,
    commits_astray,
    overlaps,
    unheld,
)
from tests.chaos.plan import MAX_MEMBERS, MIN_MEMBERS, make_plan
from tests.chaos.processing import Piece, Processing

P = TopicPartition("t", 0)
Q = TopicPartition("t", 1)

RECORD = {P: [SimpleNamespace(offset=0)]}


def result(**lists: Any) -> PollResult:
    return PollResult(
        **{name: some if name == "records" else frozenset(some) for name, some in lists.items()}
    )


def member(*owned: TopicPartition) -> PollChecks:
    checks = PollChecks()
    assert checks.polled(result(assigned=owned), owned) == []
    return checks


def after_request(delayed: frozenset[TopicPartition]) -> PollChecks:
    checks = member(P, Q)
    assert checks.polled(result(to_be_revoked=[P]), [P, Q]) == []
    checks.delayed(frozenset([P]), delayed)
    return checks


def test_a_hand_over_as_it_should_be_breaks_nothing():
    checks = after_request(frozenset([P]))
    assert checks.polled(result(to_be_revoked=[P], records={Q: []}), [P, Q]) == []
    checks.delayed(frozenset([P]), frozenset())
    assert checks.polled(result(revoked=[P]), [Q]) == []
    assert checks.polled(result(assigned=[P], records=RECORD), [P, Q]) == []
    assert checks.owned == {P, Q}


@pytest.mark.parametrize(
    ("checks", "polled", "assignment", "what"),
    [
        (lambda: member(P, Q), {"lost": [P]}, [Q], "lost: t-0"),
        (lambda: member(P), {"lost": [P]}, [P], "both lost and assigned: t-0"),
        (lambda: member(P), {"assigned": [P]}, [P], "assigned again: t-0"),
        (lambda: member(P), {"revoked": [P]}, [], "revoked without a request: t-0"),
        (lambda: after_request(frozenset()), {}, [P, Q], "not revoked in the poll after: t-0"),
        (
            lambda: after_request(frozenset([P])),
            {"revoked": [P]},
            [Q],
            "revoked without a request: t-0",
        ),
        (
            lambda: member(P),
            {"to_be_revoked": [P], "records": RECORD},
            [P],
            "a record of one that is being revoked: t-0",
        ),
        (lambda: member(Q), {"records": RECORD}, [Q], "a record before its assignment: t-0"),
        (lambda: member(Q), {}, [P, Q], "not as the results say: t-0"),
    ],
)
def test_a_poll_that_breaks_a_promise_is_named(
    checks: Callable[[], PollChecks], polled: dict[str, Any], assignment: Any, what: str
):
    assert what in checks().polled(result(**polled), assignment)


def test_a_commit_ahead_of_the_processing_or_back_is_named():
    checks = member(P)
    checks.processed({P: 5})
    assert checks.acknowledged({P: 5}) == []
    (ahead,) = checks.acknowledged({P: 6})
    assert ahead.startswith("committed 6 before it was processed")
    (back,) = checks.acknowledged({P: 4})
    assert back.startswith("committed 6, then 4")


def test_a_commit_of_an_earlier_holding_counts_no_more():
    checks = member(P)
    checks.processed({P: 5})
    checks.delayed(frozenset([P]), frozenset())
    assert checks.polled(result(revoked=[P], assigned=[P]), [P]) == []
    assert len(checks.acknowledged({P: 5})) == 1


def test_a_partition_in_two_members_hands_is_named():
    apart = [Holding("a", P, 0, 1), Holding("b", P, 1, 2), Holding("c", Q, 0, 2)]
    assert list(overlaps(apart)) == []
    (found,) = overlaps([*apart, Holding("d", Q, 1.5, 3)])
    assert "held by d 0.500 s before c let it go" in found


def test_records_processed_after_their_partition_was_let_go_are_named():
    holdings = [Holding("a", P, 0, 1), Holding("a", P, 5, 6)]
    fine = Piece(P, [0, 1], 0, 0, processed_at=0.9)
    late = Piece(P, [2, 3], 0.9, 0, processed_at=5.5)
    unfinished = Piece(P, [4], 5.5, 0)
    assert list(unheld({"a": [fine]}, holdings)) == []
    assert list(unheld({"a": [fine, late]}, holdings)) == [f"a processed {P} from 2 unheld"]
    assert list(unheld({"a": [unfinished]}, holdings)) == [f"a never finished {P} from 4"]
    assert len(list(unheld({"b": [fine]}, holdings))) == 1


def test_a_group_commit_ahead_of_the_processing_or_back_is_named():
    pieces = [Piece(P, [0, 1], 0, 0, processed_at=1), Piece(P, [2, 3], 0, 0, processed_at=3)]
    fine = [CommittedOffsets(0.5, {}), CommittedOffsets(1, {P: 2}), CommittedOffsets(3, {P: 4})]
    assert list(commits_astray(fine, pieces)) == []
    (ahead,) = commits_astray([CommittedOffsets(2, {P: 4})], pieces)
    assert ahead == f"{P}: 4 committed before [2, 3] processed"
    (back,) = commits_astray([*fine, CommittedOffsets(4, {P: 2})], pieces)
    assert back == f"committed 4, then 2: {P}"
    (gone,) = commits_astray([*fine, CommittedOffsets(4, {})], pieces)
    assert gone == f"committed 4, then nothing: {P}"


def test_records_are_finished_in_order_and_all_in_time():
    processing = Processing(Random(7), longest=5)
    reached = []
    for n in range(200):
        if n < 190:
            processing.begin(P, range(n * 10, n * 10 + 10), now=n)
        reached += processing.finish(n).values()
    assert reached == sorted(reached)
    assert reached[-1] == 1_900
    assert processing.partitions == frozenset()
    took = [piece.processed_at - piece.handed_out_at for piece in processing.pieces]
    assert max(took) == 5
    assert min(took) == 0


@pytest.mark.parametrize("seed", range(20))
def test_every_member_of_a_plan_joins_once_then_leaves_once_within_the_bounds(seed):
    plan = make_plan(seed, 50, {"process": 4, "librdkafka": 9})
    assert plan == make_plan(seed, 50, {"process": 4, "librdkafka": 9})
    joined = [step.member for step in plan.steps if step.joins]
    left = [step.member for step in plan.steps if not step.joins]
    assert len(joined) == len(set(joined)) == 50
    assert sorted(joined) == sorted(left)
    kinds = Counter(step.kind for step in plan.steps if step.joins)
    assert kinds == {"thread": 37, "process": 4, "librdkafka": 9}
    assert len({(step.member, step.kind) for step in plan.steps}) == 50
    assert not plan.steps[0].after_settling, "an empty group shares nothing"
    sizes = list(accumulate(1 if step.joins else -1 for step in plan.steps))
    assert max(sizes) <= MAX_MEMBERS
    assert min(sizes[MIN_MEMBERS - 1 : -MIN_MEMBERS]) >= MIN_MEMBERS
    assert sorted(plan.restarts) == [1, 2, 3]
