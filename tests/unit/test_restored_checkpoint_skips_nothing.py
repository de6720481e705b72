"""A query's checkpoint and sink go back, at any time: nothing is skipped.

As ``test_source_skips_and_repeats_nothing``, whose models these are, without what it says of
repeats: a checkpoint goes back in order to repeat. Another query shares the group, dies and
restarts as the first one does; its checkpoint goes back, too. What must hold:

 1. A row says ``lost`` only if somebody has delivered it, in a sink that has kept it.
 2. Once the queries have had each partition again, each record is in a sink.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest
from histories import ALWAYS_THE_SAME, histories
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule, run_state_machine_as_test
from kafka.structs import TopicPartition
from model_group import BOTH, ModelMember
from model_spark import Range, Row, Stage
from test_source_skips_and_repeats_nothing import Queries

from pyspark_kafka_rebalance.consumer.offsets import origin as origin_module
from pyspark_kafka_rebalance.source.group.starts import rival_runs as rival_runs_module
from pyspark_kafka_rebalance.source.offsets.offset_json import parse_offset

RESTORED, OTHER = 0, 1


class RestoredQueries(Queries):
    @initialize(before=st.integers(0, 3), live=st.sampled_from([None, None, 2, 20]))
    def begin(self, before: int, live: int | None = None) -> None:  # type: ignore[override]
        super().begin("earliest", before, live)
        self.group.may_go_back = set(BOTH)
        self.group.on_commit = lambda: None
        for module, name, fake in (
            (origin_module, "MOST_STRETCHES", 50),
            (rival_runs_module, "ask_cluster", lambda _, what, ask: ask(None)),
            (rival_runs_module, "describe_group", lambda *asked: self.group.describe()),
        ):
            self.patches.enter_context(mock.patch.object(module, name, fake))

    @rule(
        share=st.floats(0, 1),
        without_commit=st.booleans(),
        kill=st.booleans(),
        query=st.sampled_from([RESTORED, RESTORED, OTHER]),
    )
    def goes_back(
        self, share: float, without_commit: bool, kill: bool, query: int = RESTORED
    ) -> None:
        """To a moment when it had logged a batch; maybe that one is to run again."""
        model = self.queries[query]
        if model.process is not None:
            model.die() if kill else model.stop()
        self.dead_members_sessions_end()
        if not model.offset_log:
            return
        kept = max(1, round(share * len(model.offset_log)))
        del model.offset_log[kept:]
        model.commit_log = {n for n in model.commit_log if n < kept - without_commit}
        model.rows = [row for row in model.rows if row.batch in model.commit_log]

    # No log becomes shorter.

    is_stopped_gracefully = None
    is_asked_to_stop_by_one_who_is_gone = None
    is_stopped_gracefully_in_a_batch = None
    fails_in_a_batch = None
    the_group_is_forgotten = None
    a_log_becomes_shorter = None
    the_session_of_a_query_ends = None
    the_revoke_times_out = None

    def planned_tasks(self, ranges: list[Range], query: int, replay: bool) -> None:
        """Repeats are not looked at."""

    def gone(self, member: ModelMember, partition: TopicPartition, completed: bool) -> None:
        """Nor what they are owed to."""

    def sunk(self, row: Row) -> None:
        if row.lost:
            assert row.record in self.done(), f"{row}, and no sink has it"

    def teardown(self) -> None:
        """Each query has all partitions once, and reads everything."""
        if not hasattr(self, "group"):
            return
        try:
            self.group.commits = "accepted"
            self.dead_members_sessions_end()
            for name in (OTHER, RESTORED):
                self.begins(name)
            for owner in (OTHER, RESTORED, OTHER):
                self.has_all(owner)
            done = self.done()
            for partition in BOTH:
                for offset, record in self.group.logs[partition].read(0, 1 << 62):
                    assert record in done, f"no sink has {offset} of {partition}"
                end = self.group.ends[partition]
                assert self.group.committed.get(partition) == end
        finally:
            self.patches.close()

    def has_all(self, owner: int) -> None:
        for _ in range(60):
            members = self.members_of(self.queries[owner])
            if members and members[0] in self.group.roster:
                self.group.aim([self.group.roster.index(members[0])] * len(BOTH))
            for query in self.queries:
                query.trigger(1_000)
            self.everybody_pumps()
            for partition in BOTH:
                if self.group.owner[partition] not in members:
                    break
            else:
                if self.group.committed == self.group.ends:
                    return
        raise AssertionError(f"query {owner} does not get everything: {self.group.owner}")


@contextmanager
def a_history(before: int, live: int | None = None) -> Iterator[RestoredQueries]:
    """One that is written down, step by step."""
    queries = RestoredQueries()
    try:
        queries.begin(before, live)
        yield queries
    finally:
        queries.teardown()


@pytest.mark.parametrize("live", [None, 2])
@pytest.mark.parametrize("without_commit", [False, True])
def test_a_query_goes_back_twice(live: int | None, without_commit: bool) -> None:
    with a_history(3, live) as queries:
        for _ in range(2):
            queries.runs_for_a_while(RESTORED, limit=4)
            for partition in BOTH:
                queries.records_are_produced(partition, 5)
            queries.runs_for_a_while(RESTORED, limit=4)
            queries.goes_back(0.4, without_commit, kill=False)


@pytest.mark.parametrize("live", [None, 2])
def test_another_query_restarts_while_records_are_read_again(live: int | None) -> None:
    """Its checkpoint is further than where the group was set back to."""
    with a_history(3, live) as queries:
        queries.runs_for_a_while(RESTORED, limit=4)
        for partition in BOTH:
            queries.records_are_produced(partition, 5)
        queries.runs_for_a_while(RESTORED, limit=1_000)
        queries.is_killed(RESTORED)
        for partition in BOTH:
            queries.records_are_produced(partition, 5)
        queries.takes_over(OTHER, 1_000, 3)
        queries.runs_for_a_while(OTHER, limit=1_000)
        queries.is_killed(OTHER)
        queries.goes_back(0.2, False, kill=True)
        queries.takes_over(RESTORED, 2, 1)
        queries.takes_over(OTHER, 1_000, 3)


def test_a_batch_that_reads_of_a_gap_runs_again_after_another_query_has_read_the_rest() -> None:
    with a_history(3, 2) as queries:
        queries.takes_over(RESTORED, 1, 1)
        queries.is_stopped(RESTORED)
        queries.takes_over(RESTORED, 1, 2)
        queries.is_stopped(RESTORED)
        queries.runs_for_a_while(OTHER, limit=1)
        queries.goes_back(1.0, True, kill=False)


@pytest.mark.parametrize("live", [None, 2])
@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_a_query_that_dies_in_its_first_batch_of_what_was_set_back_reads_it_once(
    live: int | None, steps: int
) -> None:
    """The group's last commit was still the restored query's, so it was set back once more."""
    with a_history(0, live) as queries:
        set_back_to_half(queries, 20)
        other = queries.queries[OTHER]
        delivered = len(other.rows)
        queries.begins(OTHER)
        queries.dead_members_sessions_end()
        process = other.process
        assert process is not None
        for _ in range(60):  # until a batch that reads is planned
            other.step(1_000)
            queries.everybody_pumps()
            if process.stage is Stage.PLANNED and parse_offset(process.end).ranges:
                break
        for _ in range(steps - 1):
            other.step(1_000)
        queries.is_killed(OTHER)
        queries.dead_members_sessions_end()
        queries.runs_for_a_while(OTHER, limit=1_000)
        again = [(row.partition, row.offset) for row in other.rows[delivered:]]
        assert again
        assert len(again) == len(set(again)), "twice after one set-back"


@pytest.mark.parametrize("live", [None, 2])
@pytest.mark.parametrize("kept", [0.3, 0.6, 0.9])
def test_the_checkpoint_of_another_query_goes_back_to_before_the_group_was_set_back(
    live: int | None, kept: float
) -> None:
    """It had read again what was set back, and its checkpoint of before that counted for it."""
    with a_history(0, live) as queries:
        set_back_to_half(queries, 20)
        queries.takes_over(OTHER, 4, 6)
        queries.is_killed(OTHER)
        queries.goes_back(kept, False, kill=True, query=OTHER)


def set_back_to_half(queries: RestoredQueries, number: int) -> None:
    """One query reads a half, the other one the rest; the first goes back, reads some and dies."""
    for query in (RESTORED, OTHER):
        for partition in BOTH:
            queries.records_are_produced(partition, number)
        queries.takes_over(query, 8, 8)
        queries.is_killed(query)
    queries.goes_back(0.6, False, kill=True)
    queries.takes_over(RESTORED, 4, 2)
    queries.is_killed(RESTORED)


def test_in_any_order_of_events() -> None:
    run_state_machine_as_test(
        RestoredQueries,
        settings=settings(
            deadline=None,
            max_examples=histories(80),
            stateful_step_count=25,
            derandomize=ALWAYS_THE_SAME,
        ),
    )
