"""Plans are the same for the same seed, and shrink to the faults that matter."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.events import Break, Log
from tests.chaos.named_plans import NAMED
from tests.chaos.plan_history import events_of
from tests.chaos.plan_sparks import ROOT, Sparks
from tests.chaos.random_plans import (
    BROKERS,
    COMPACTED,
    DELETING,
    LATE,
    OF_BROKERS,
    OF_GROUPS,
    OF_MEMBERS,
    OF_NETWORKS,
    OF_PRODUCERS,
    OF_QUERIES,
    OF_TOPICS,
    TOPICS,
    Fault,
    Plan,
    Reader,
    Release,
    as_python,
    make_plan,
    shrink,
)
from tests.chaos.refusals import Gone, refused
from tests.chaos.renewed_topics import Renewal, which_of_its_name

SEEDS = range(400)


def test_a_seed_is_a_plan():
    plans = [make_plan(seed) for seed in SEEDS]
    assert plans == [make_plan(seed) for seed in SEEDS]
    assert len({plan.faults for plan in plans}) == len(plans)


def test_whatever_can_happen_does_happen_to_something_there_is():
    happened = set()
    for plan in map(make_plan, SEEDS):
        kinds = {reader.name: reader.kind for reader in plan.readers}
        places = {
            **dict.fromkeys(map(str, BROKERS), "broker"),
            **dict.fromkeys(TOPICS, "topic"),
            **dict.fromkeys(plan.groups, "group"),
        }
        for fault in plan.faults:
            assert 0 <= fault.at <= plan.lasts_s
            happened.add((fault.what, (kinds | places)[fault.target]))
    for kind, faults in (
        ("query", [*OF_QUERIES, "join", "leave", "vanish"]),
        ("group", OF_GROUPS),
        ("topic", OF_TOPICS),
        ("broker", OF_BROKERS),
        ("member", OF_MEMBERS | OF_NETWORKS),
        ("producer", OF_PRODUCERS | OF_NETWORKS),
        ("librdkafka", OF_MEMBERS),
    ):
        assert {what for what, whose in happened if whose == kind} == set(faults)


def test_one_who_is_late_comes_once_and_goes_once():
    late = [plan for plan in map(make_plan, SEEDS) if any(r.joins for r in plan.readers)]
    assert 60 < len(late) < 200
    for plan in late:
        assert [r.name for r in plan.readers if r.joins] == [LATE]
        its = [f.what for f in plan.faults if f.target == LATE]
        assert sum(what in ("leave", "vanish") for what in its) == 1
        assert its.index("join") < max(map(its.index, set(its) & {"leave", "vanish"}))


def test_where_records_are_deleted_all_queries_go_on_without_them_or_all_have_to_fail():
    strict = []
    for plan in map(make_plan, SEEDS):
        if plan.deletes:
            queries = {reader.is_strict for reader in plan.readers if reader.kind == "query"}
            assert len(queries) == 1
            strict += queries
    assert 5 < sum(strict) < len(strict) / 2


def test_nothing_deletes_records_of_the_compacted_topic():
    """Retention leaves them, and DeleteRecords gets POLICY_VIOLATION."""
    deleted_from = {
        fault.target
        for plan in map(make_plan, SEEDS)
        if plan.compacts
        for fault in plan.faults
        if fault.what in DELETING
    }
    assert deleted_from == TOPICS.keys() - {COMPACTED}


def test_some_runs_end_alone_and_some_beside_others():
    ending = [
        (reader, len([r for r in plan.readers if r.group == reader.group]))
        for plan in map(make_plan, SEEDS)
        for reader in plan.readers
        if reader.trigger != "always"
    ]
    assert {reader.trigger for reader, _ in ending} == {"availableNow", "once"}
    assert {1, 2} <= {count for _, count in ending}
    assert 60 < len(ending) < 200


@given(st.integers(0, 10**6), st.data())
def test_what_matters_is_left(seed, data):
    plan = make_plan(seed)
    needed = data.draw(st.sets(st.sampled_from(plan.faults), max_size=2))
    tried = []

    def still_fails(smaller):
        tried.append(smaller)
        return needed <= set(smaller.faults)

    assert set(shrink(plan, still_fails).faults) == needed
    assert len(tried) == len(set(tried)), "each takes a minute"


def test_a_reader_that_matters_to_nobody_goes():
    plan = Plan(1, "classic", (Reader("q1"), Reader("q2")), (Fault(1.0, "kill", "q1"),))
    assert shrink(plan, lambda smaller: bool(smaller.faults)).readers == (Reader("q1"),)


def test_shrinking_ends_in_time():
    attempts = []

    def still_fails(smaller):
        attempts.append(smaller)
        return True

    plan = make_plan(3)
    assert shrink(plan, still_fails, lambda: len(attempts) < 2) == attempts[-1]
    assert len(attempts) == 2


def test_a_reader_that_has_joined_goes_with_what_happens_to_it():
    plan = NAMED["late"]
    kept = Fault(4.0, "join", "q4")
    smallest = shrink(plan, lambda smaller: kept in smaller.faults)
    assert smallest.faults == (kept,)
    assert [reader.name for reader in smallest.readers] == ["q4"]


@given(st.sampled_from(sorted(NAMED)))
def test_a_named_plan_is_printed_as_python(name):
    there = {"Plan": Plan, "Reader": Reader, "Fault": Fault}
    exec(as_python(NAMED[name]), there)
    assert there["plan"] == NAMED[name]


def test_named_plans_are_of_readers_that_are_there():
    for plan in NAMED.values():
        there = {*(reader.name for reader in plan.readers), *plan.groups, *plan.topics}
        there |= set(map(str, BROKERS))
        assert {fault.target for fault in plan.faults} <= there
        assert list(plan.faults) == sorted(plan.faults, key=lambda fault: fault.at)


@given(st.integers(0, 10**6))
def test_a_plan_is_printed_as_python(seed):
    plan = make_plan(seed)
    there = {"Plan": Plan, "Reader": Reader, "Fault": Fault}
    exec(as_python(plan), there)
    assert there["plan"] == plan


def test_what_a_member_says_it_has_lost_is_a_break_and_not_its_end() -> None:
    """By itself, after a session without an answer: the coordinator's log does not have that."""
    (found,) = events_of("m0", 3, {"event": "lost", "at": 12.5}, None)
    assert found == Break(12.5, 12.5, "m0", 3, "lost", ends_the_run=False)


def test_while_a_query_may_not_know_the_new_topic_nobody_knows_whose_an_offset_is() -> None:
    renewals = [Renewal("n", 10.0, 25.0), Renewal("n", 20.0, 35.0)]
    assert [which_of_its_name(at, renewals) for at in (9.0, 10.0, 22.0, 30.0)] == [
        0,
        None,
        None,
        None,
    ]
    assert which_of_its_name(36.0, renewals) == 2
    assert which_of_its_name(16.0, []) == 0


def test_who_is_left_alone_and_how_many_queries_there_may_be() -> None:
    calm = Plan(1, "classic", (Reader("q1"), Reader("m0", "member")), (Fault(1.0, "stop", "q1"),))
    assert calm.is_left_alone(calm.readers[0])
    assert not calm.is_left_alone(Reader("q1", options=(("revokeTimeoutMs", "6000"),)))
    assert calm.sparks == 1
    killed = replace(calm, faults=(Fault(1.0, "kill", "q1"),))
    assert not killed.is_left_alone(calm.readers[0])
    assert killed.sparks == 2
    assert replace(calm, faults=(Fault(1.0, "kill", "m0"),)).sparks == 1
    assert killed.brokers_are_up
    assert not replace(calm, faults=(Fault(1.0, "restart", "2"),)).brokers_are_up


def test_the_release_before_is_found_instead_of_this_one(tmp_path: Path) -> None:
    sparks = Sparks(tmp_path)
    found = {}
    for release in get_args(Release):
        command = [sys.executable, "-c", "import pyspark_kafka_rebalance as p; print(p.__file__)"]
        environment = os.environ | sparks.path_of(release)
        run = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, check=True)
        found[release] = Path(run.stdout.decode().strip()).parents[1]
    assert found["this"] == ROOT
    assert tmp_path in found["before"].parents


@pytest.mark.parametrize(
    ("said", "gone"),
    [
        (
            "p61-4f-a-0 [40, 96): the log begins at offset 90",
            [Gone(Log("p61-4f-a", "", 0), 40, 96)],
        ),
        (
            "records are gone from Kafka (p-b-1: position 70, end offset 12, p-b-2: position 8, "
            "end offset 0); to go on at the end offsets, set failOnDataLoss=false",
            [Gone(Log("p-b", "", 1), 70, None), Gone(Log("p-b", "", 2), 8, None)],
        ),
        (
            "records may be gone from Kafka (p-n-0: read to 10, deleted, p-n-1: not read, deleted);"
            " to go on without these partitions, set failOnDataLoss=false",
            [Gone(Log("p-n", "", 0), 10, None), Gone(Log("p-n", "", 1), 0, None)],
        ),
        (
            "records to catch up on are gone from Kafka (p-a-0: offsets 10 to 19, 30 to 39 and 2 "
            "more ranges up to 80, the log begins at 90; p-a-1: offsets 3 to 3, the log begins at "
            "9); to go on without them, set failOnDataLoss=false",
            [
                Gone(Log("p-a", "", 0), 10, 20),
                Gone(Log("p-a", "", 0), 30, 81),
                Gone(Log("p-a", "", 1), 3, 4),
            ],
        ),
    ],
)
def test_what_a_query_says_is_gone(said: str, gone: list[Gone]) -> None:
    shown = "[STREAM_FAILED] Query [id = 1] terminated: pyspark_kafka_rebalance.errors."
    assert refused(f"{shown}DataLossError: {said}\n\nDriver stacktrace: [3, 4)") == gone
    assert refused(f"{shown}OtherError: {said}") == []
    assert refused("DataLossError: something is gone") == []
