"""Two queries of one group, killed, stopped, fenced and revoked in any order.

The queries are the real source; Spark, the group and the logs are models written from their
documentation. What must hold is what ``docs/what-can-be-repeated.md`` promises:

 1. The group's committed offset never moves back, unless the log became shorter.
 2. Nothing is committed by who does not own it.
 3. A record comes twice unflagged only by the batch that was in flight when its process died,
    stopped, or lost the partition; a replay's rows say ``lost`` where the group is past them.
 4. Of what the group is not owed, and where a row is flagged, every record that exists has
    come unflagged, in a batch that Spark has committed.
 5. A completed revoke, and a stop between two batches with ``checkpointLocation``, leave nothing
    to be repeated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar
from unittest import mock

import pytest
from histories import ALWAYS_THE_SAME, histories
from hypothesis import note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from kafka.structs import TopicPartition
from model_group import BOTH, ModelGroup, ModelMember, P, Q
from model_log import Record
from model_spark import (
    ClosedDoor,
    ModelCommitLogWatch,
    ModelLocationCheck,
    ModelQuery,
    ModelStopRequest,
    NoDriverSources,
    Range,
    Row,
    Stage,
    SteppedEvent,
    SteppedPump,
)

from pyspark_kafka_rebalance.consumer.offsets.commit_metadata import Remaining
from pyspark_kafka_rebalance.source import query_run as query_run_module
from pyspark_kafka_rebalance.source import stream as stream_module
from pyspark_kafka_rebalance.source.group import batch_proofs as batch_proofs_module
from pyspark_kafka_rebalance.source.group import membership as membership_module
from pyspark_kafka_rebalance.source.group.clients import query_members as clients_module
from pyspark_kafka_rebalance.source.group.others import joining as joining_module
from pyspark_kafka_rebalance.source.offsets.offset_json import parse_offset

QUERIES = range(2)
Attempt = tuple[int, int]  # query, batch

queries = st.sampled_from(QUERIES)
limits = st.integers(1, 6)
parts = st.sampled_from(BOTH)


class Clock:
    now = 1_000.0

    def monotonic(self) -> float:
        self.now += 0.1  # end offsets are never fresh enough to be reused
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Queries(RuleBasedStateMachine):
    @initialize(
        start=st.sampled_from(["earliest", "latest"]),
        before=st.integers(0, 3),
        live=st.sampled_from([None, None, 2, 20]),
    )
    def begin(self, start: str, before: int, live: int | None = None) -> None:
        """With ``live``, so many offsets of gaps in a batch, at most."""
        self.start = start
        catch_up = {
            "parallelRebalance": "live",
            "catchUpThreshold": "2",
            "maxCatchUpOffsetsPerTrigger": str(live),
        }
        self.group = group = ModelGroup(self.gone)
        self.queries = [
            ModelQuery(
                name,
                group,
                startingOffsets=start,
                checkpointLocation=f"/checkpoint/{name}",
                failOnDataLoss="false",
                **(catch_up if live is not None else {}),
            )
            for name in QUERIES
        ]
        for query in self.queries:
            query.on_sink = self.sunk
            query.on_partitions = self.planned_tasks
        #: Who brought a record unflagged, in which batch.
        self.came: dict[Record, list[Attempt]] = defaultdict(list)
        #: What another query may repeat of what a batch read.
        self.exposed: dict[tuple[Attempt, TopicPartition], Remaining] = {}
        self.shortened: set[TopicPartition] = set()
        #: Of which somebody who will read on remembers a log that is no more.
        self.unsettled: set[TopicPartition] = set()
        for partition in BOTH:
            group.produce(partition, before)
        group.on_commit = self.nothing_is_skipped
        self._patch()

    def _patch(self) -> None:
        clock = Clock()
        group = self.group

        class Fake:
            DEFAULT_CONFIG: ClassVar = {"request_timeout_ms": 30_000}

            def __new__(cls, **config: Any) -> Any:
                return group.build(**config)

        def wait() -> None:
            clock.sleep(2.0)
            self.dead_members_sessions_end()
            for query in self.queries:
                query.pump()
                if query.process is not None and not query.process.waiting:
                    query.step(2)

        ModelCommitLogWatch.queries = self.queries
        self.patches = ExitStack()
        for target, name, fake in (
            (clients_module, "DeferredRevokeConsumer", Fake),
            (batch_proofs_module, "CommitLogWatch", ModelCommitLogWatch),
            (stream_module, "LocationCheck", ModelLocationCheck),
            (membership_module, "Pump", SteppedPump),
            (query_run_module, "StopRequest", ModelStopRequest),
            (query_run_module, "stop_on_sigterm", lambda end: None),
            (query_run_module, "DriverSources", NoDriverSources),
            (query_run_module, "Door", ClosedDoor),
            (joining_module, "ask_cluster", lambda options, what, ask: ask(None)),
            (joining_module, "describe_group", lambda admin, group_id: group.describe()),
            (SteppedEvent, "while_waiting", staticmethod(wait)),
        ):
            self.patches.enter_context(mock.patch.object(target, name, fake))
        for name in ("monotonic", "sleep"):
            self.patches.enter_context(mock.patch(f"time.{name}", getattr(clock, name)))

    # -- what happens to queries ------------------------------------------------------------------

    @rule(query=queries)
    def begins(self, query: int) -> None:
        if self.queries[query].process is None and self.may_begin(query):
            self.queries[query].begin()

    @rule(query=queries, limit=limits)
    def goes_on(self, query: int, limit: int) -> None:
        if self.queries[query].process is not None:
            self.queries[query].step(limit)

    @rule(query=queries, limit=limits)
    def runs_a_trigger(self, query: int, limit: int) -> None:
        if self.queries[query].process is not None:
            self.queries[query].trigger(limit)
            self.queries[query].pump()

    @rule(query=queries, times=st.integers(1, 3))
    def pumps(self, query: int, times: int) -> None:
        for _ in range(times):
            self.queries[query].pump()

    @rule(query=queries, limit=limits)
    def runs_for_a_while(self, query: int, limit: int) -> None:
        if not self.may_begin(query):
            return
        if self.queries[query].process is None:
            self.queries[query].begin()
        for _ in range(4):
            self.queries[query].trigger(limit)
            self.everybody_pumps()

    @rule(query=queries)
    def is_killed(self, query: int) -> None:
        """Its members stay in the group until their sessions end."""
        model = self.queries[query]
        if model.process is not None:
            self.expose(model, BOTH)
            model.die()

    @rule(query=queries)
    def is_stopped(self, query: int) -> None:
        """Or fails, in its sink."""
        model = self.queries[query]
        if model.process is not None:
            between = model.process.stage is Stage.IDLE
            self.clean = between and self.group.commits == "accepted"
            model.stop()
            self.clean = False
            self.expose(model, BOTH)

    @rule(query=queries)
    def is_stopped_gracefully(self, query: int) -> None:
        model = self.queries[query]
        if model.process is not None:
            while model.process.stage is not Stage.IDLE:
                model.step(1)
            self.clean = self.group.commits == "accepted"
            if model.stop_gracefully():
                for row in model.last_read():
                    if row.partition not in self.shortened:
                        assert row.offset not in self.group.owed(row.partition), "not committed"
            self.clean = False
            self.expose(model, BOTH)

    @rule(query=queries, limit=limits, triggers=st.integers(0, 2))
    def is_asked_to_stop_by_one_who_is_gone(self, query: int, limit: int, triggers: int) -> None:
        """Others may read on before it does."""
        model = self.queries[query]
        if model.process is None:
            return
        while model.process.stage is not Stage.IDLE:
            model.step(1)
        request = model.is_asked_to_stop()
        self.expose(model, BOTH)
        for _ in range(triggers):
            for other in self.queries:
                if other is not model and other.process is not None:
                    other.trigger(limit)
            self.everybody_pumps()
        if request is not None:
            request.abandoned = True
            model.trigger(limit)

    @rule(query=queries, how=st.sampled_from(["accepted", "held", "unanswered"]), out=st.booleans())
    def is_stopped_gracefully_in_a_batch(self, query: int, how: str, out: bool) -> None:
        """Whose commit may not reach the group, or whose members are out of it by then."""
        if not self.may_begin(query):
            return
        self.runs_for_a_while(query, 1_000)
        for partition in BOTH:
            self.group.produce(partition, 1)
        self.queries[query].step(1_000)
        self.group.commits = how
        if out:
            self.the_session_of_a_query_ends(query)
            self.queries[query].pump()
        self.is_stopped_gracefully(query)

    @rule(
        query=queries,
        batches=st.integers(0, 2),
        limit=limits,
        number=st.integers(1, 8),
        kill=st.booleans(),
    )
    def fails_in_a_batch(
        self, query: int, batches: int, limit: int, number: int, kill: bool
    ) -> None:
        """Between the offset log and the commit log."""
        if not self.may_begin(query):
            return
        for _ in range(batches):
            self.runs_for_a_while(query, limit)
        for partition in BOTH:
            self.group.produce(partition, number)
        model = self.queries[query]
        for _ in range(3):
            if model.process is not None and model.process.stage is not Stage.READING:
                model.step(limit)
        self.is_killed(query) if kill else self.is_stopped(query)

    @rule(query=queries, limit=limits, batches=st.integers(1, 3))
    def takes_over(self, query: int, limit: int, batches: int) -> None:
        """The partitions of members that are dead."""
        if not self.may_begin(query):
            return
        self.dead_members_sessions_end()
        if self.queries[query].process is None:
            self.queries[query].begin()
        for _ in range(batches):
            self.queries[query].trigger(limit)
            self.everybody_pumps()

    # -- what happens to the group ----------------------------------------------------------------

    @rule(survivor=queries)
    def the_group_is_forgotten(self, survivor: int) -> None:
        """Its offsets expired, or it was deleted, while no query ran.

        A query goes on from its checkpoint alone. What another one has read since it cannot know.
        """
        for query in QUERIES:
            self.is_stopped_gracefully(query)
        self.dead_members_sessions_end()
        committed, model = self.group.committed, self.queries[survivor]
        whole = len(model.offset_log) - 1 in model.commit_log
        gaps = whole and parse_offset(model.offset_log[-1]).gaps  # others may have read them
        if (
            whole
            and not gaps
            and all(p in committed and model.knows.get(p) == committed[p] for p in BOTH)
        ):
            self.group.forget_offsets()
            self.survivor = survivor
            note(f"forgotten, query {survivor} knows {model.knows}")

    @rule(owners=st.lists(queries, min_size=2, max_size=2))
    def the_group_moves_partitions(self, owners: list[int]) -> None:
        self.group.aim(owners)

    @rule()
    def everybody_pumps(self) -> None:
        for _ in range(3):
            for query in self.queries:
                query.pump()

    @rule()
    def dead_members_sessions_end(self) -> None:
        alive = [m for q in self.queries for m in self.members_of(q)]
        for member in list(self.group.roster):
            if member not in alive:
                self.group.remove(member)

    @rule(query=queries)
    def the_session_of_a_query_ends(self, query: int) -> None:
        """Its process stood still."""
        for member in self.members_of(self.queries[query]):
            if member in self.group.roster:
                member.fence()

    @rule(query=queries)
    def the_revoke_times_out(self, query: int) -> None:
        for member in self.members_of(self.queries[query]):
            member.lose(*member.ownership.revoking)

    @rule(how=st.sampled_from(["accepted", "accepted", "held", "unanswered"]))
    def commits_fare(self, how: str) -> None:
        self.group.commits = how

    @rule(partition=parts, number=st.integers(1, 8))
    def records_are_produced(self, partition: TopicPartition, number: int) -> None:
        self.group.produce(partition, number)

    @rule(partition=parts, share=st.floats(0, 1), query=queries)
    def a_log_becomes_shorter(self, partition: TopicPartition, share: float, query: int) -> None:
        """An unclean election; or, to the end, the topic is deleted and created anew.

        Queries go on at the end (``failOnDataLoss=false``), which they find before more is written.
        By offsets alone nobody tells what a checkpoint, or a batch under way, knows of the old log.
        """
        log = self.group.logs[partition]
        if not log.end or not self.may_begin(query):
            return
        self.group.commits = "accepted"
        self.begins(query)
        self.dead_members_sessions_end()
        for model in self.queries:
            asleep = not any(m.has_joined for m in self.members_of(model)) and model.offset_log
            if asleep or (model.process and model.process.stage is not Stage.IDLE):
                self.unsettled.add(partition)
        self.group.truncate(partition, int(log.end * share))
        self.shortened.add(partition)
        for _ in range(4):
            for model in self.queries:
                if model.process is not None:
                    model.trigger(1_000)
            self.everybody_pumps()
        if self.group.committed.get(partition, 0) > log.end:  # nobody reads it now
            self.unsettled.add(partition)

    # -- the books --------------------------------------------------------------------------------

    clean = False
    survivor: int | None = None

    def may_begin(self, query: int) -> bool:
        """After the group was forgotten, the one that knows goes first."""
        model = self.queries[query]
        if model.process is None and model.offset_log:  # asked by whoever is about to begin it
            known = parse_offset(model.offset_log[-1]).positions()
            self.unsettled |= {
                p for p in self.shortened if known.get(p, 0) > self.group.committed.get(p, 0)
            }
        if self.group.committed.keys() == set(BOTH):
            self.survivor = None
        return self.survivor in (None, query)

    def members_of(self, query: ModelQuery) -> list[ModelMember]:
        return [] if query.process is None else query.process.members()

    def attempts(self, query: int) -> set[Attempt]:
        """All batches that a query ever planned."""
        return {(query, batch) for batch in range(len(self.queries[query].offset_log) + 1)}

    def expose(self, query: ModelQuery, partitions: Any) -> None:
        """What the group has not confirmed may be repeated from now on."""
        for partition in partitions:
            if any(self.group.owner[partition] is m for m in self.members_of(query)):
                self.expose_one(query.name, partition)

    def expose_one(self, query: int, partition: TopicPartition) -> None:
        owed = self.group.owed(partition)
        for attempt in self.attempts(query):
            self.exposed.setdefault((attempt, partition), owed)

    def gone(self, member: ModelMember, partition: TopicPartition, completed: bool) -> None:
        """A partition is not a member's any more, for the coordinator."""
        owner = next(
            (q for q in self.queries if member.config["client_id"].startswith(self.run_of(q))), None
        )
        if owner is None:
            return  # a dead one's: exposed when it died
        owed = self.group.owed(partition)
        open_ = sorted(
            offset
            for offset, record in enumerate(self.group.logs[partition].records)
            if offset in owed and any(q == owner.name for q, _ in self.came.get(record, ()))
        )
        if (completed or self.clean) and open_ and partition not in self.shortened:
            how = "revoked" if completed else "stopped"
            raise AssertionError(f"{how}, and {partition} from {open_[0]} on not committed")
        if not completed:
            self.expose_one(owner.name, partition)

    def run_of(self, query: ModelQuery) -> str:
        return query.process.run if query.process is not None and query.process.run else "nobody's"

    def planned_tasks(self, ranges: list[Range], query: int, replay: bool) -> None:
        if not replay:
            return
        for one in (r for r in ranges if r.partition not in self.shortened):
            owed = self.group.owed(one.partition)
            for offset, record in self.group.logs[one.partition].read(one.start, one.end):
                if offset not in owed and {q for q, _ in self.came[record]} - {query}:
                    assert offset < one.lost_below, f"a replay of {one} does not mark {offset}"

    def sunk(self, row: Row) -> None:
        if row.partition in self.shortened:
            return
        if row.lost:
            promised = row.offset >= self.first_promised(row.partition)
            assert row.record in self.done() or not promised, f"{row}, and nobody delivered it"
            return
        attempt = (row.query, row.batch)
        for before in self.came[row.record]:
            assert before == attempt or any(
                row.offset in self.exposed.get((one, row.partition), Remaining(1 << 62))
                for one in (before, attempt)
            ), f"{row} came before, in {before}"
        if attempt not in self.came[row.record]:
            self.came[row.record].append(attempt)

    def done(self) -> set[Record]:
        """What came unflagged in a batch that Spark has committed."""
        return {row.record for q in self.queries for row in q.rows if not row.lost}

    def first_promised(self, partition: TopicPartition) -> int:
        """With "latest", where queries began: several, as long as the group takes no commit."""
        return self.group.latest_start.get(partition, 0)

    def nothing_is_skipped(self) -> None:
        done = self.done()
        for partition, committed in self.group.committed.items():
            first, owed = self.first_promised(partition), self.group.owed(partition)
            for offset, record in self.group.logs[partition].read(first, owed.live):
                assert record in done or offset in owed or partition in self.unsettled, (
                    f"the group has {committed} of {partition}, and nobody delivered {offset}"
                )

    def teardown(self) -> None:
        """Left alone, the queries read everything."""
        if not hasattr(self, "group"):
            return
        try:
            self.group.commits = "accepted"
            self.dead_members_sessions_end()
            if self.survivor is not None:
                self.takes_over(self.survivor, 1_000, 3)
            for name in QUERIES:
                self.begins(name)
            for number in range(200):
                if number >= 12 and self.group.committed == self.group.ends:
                    break  # gaps take as long as they are
                for query in self.queries:
                    query.trigger(1_000)
                self.everybody_pumps()
            self.nothing_is_skipped()
            for partition in BOTH:
                end, committed = self.group.ends[partition], self.group.committed.get(partition)
                assert committed == end, f"{partition} ends at {end}, committed is {committed}"
        finally:
            self.patches.close()


@contextmanager
def a_history(start: str, before: int, live: int | None = None) -> Iterator[Queries]:
    """One that was found by chance, step by step."""
    queries = Queries()
    try:
        queries.begin(start, before, live)
        yield queries
    finally:
        queries.teardown()


def test_a_replay_commits_nothing_of_a_log_that_became_shorter_before_it_was_done() -> None:
    with a_history("earliest", 1) as queries:
        queries.fails_in_a_batch(1, batches=1, limit=1, number=1, kill=False)
        queries.takes_over(0, limit=1, batches=1)
        queries.a_log_becomes_shorter(Q, 0.0, 1)


def test_a_checkpoint_does_not_count_where_the_group_has_gone_back_since_the_query_joined() -> None:
    with a_history("earliest", 1) as queries:
        queries.runs_for_a_while(1, limit=1)
        queries.runs_for_a_while(0, limit=1)
        queries.is_killed(1)
        queries.takes_over(1, limit=1, batches=2)
        queries.a_log_becomes_shorter(P, 0.0, 1)
        queries.records_are_produced(P, 1)
        queries.the_group_moves_partitions([1, 0])
        queries.everybody_pumps()


@pytest.mark.parametrize("kill", [True, False])
def test_a_batch_of_gaps_is_run_again_while_another_query_goes_on_in_them(kill: bool) -> None:
    with a_history("earliest", 3, live=2) as queries:
        queries.runs_for_a_while(0, limit=4)
        queries.is_stopped_gracefully(0)
        for partition in BOTH:
            queries.records_are_produced(partition, 30)
        queries.begins(0)
        for _ in range(3):
            queries.runs_a_trigger(0, limit=4)
        for partition in BOTH:
            queries.records_are_produced(partition, 1)
        queries.runs_for_a_while(0, limit=4)
        assert all(queries.group.owed(partition).gaps for partition in BOTH)
        queries.fails_in_a_batch(0, batches=0, limit=4, number=1, kill=kill)
        queries.takes_over(1, limit=4, batches=4)
        assert all(queries.group.owed(partition).gaps for partition in BOTH)
        queries.runs_for_a_while(0, limit=4)
        marked = [row.offset for row in queries.queries[0].rows if row.lost]
        assert min(marked) < 33 <= max(marked), "of gaps, and live"


def test_what_another_has_caught_up_of_a_gap_is_not_this_querys_own() -> None:
    """Its commits named four stretches at most, so the gap counted as delivered by who left it."""
    with a_history("earliest", 0, live=2) as queries:
        queries.begins(0)
        queries.runs_a_trigger(0, limit=2)
        queries.fails_in_a_batch(0, batches=0, limit=4, number=3, kill=False)
        queries.the_group_is_forgotten(survivor=0)
        queries.fails_in_a_batch(1, batches=1, limit=6, number=7, kill=False)
        queries.is_stopped_gracefully_in_a_batch(0, how="accepted", out=False)
        queries.runs_a_trigger(1, limit=1)
        queries.the_group_is_forgotten(survivor=1)
        queries.records_are_produced(P, 4)
        queries.the_revoke_times_out(1)
        queries.fails_in_a_batch(1, batches=2, limit=5, number=7, kill=False)
        queries.the_session_of_a_query_ends(1)
        queries.is_stopped_gracefully_in_a_batch(0, how="unanswered", out=True)


TestQueries = Queries.TestCase
TestQueries.settings = settings(
    deadline=None,
    max_examples=histories(150),
    stateful_step_count=30,
    derandomize=ALWAYS_THE_SAME,
)
