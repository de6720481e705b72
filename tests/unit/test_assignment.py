"""QueryAssignment against a model of the group, the broker and Spark, and by example."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest
from histories import histories
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.fetch.offset_range import OffsetRange
from pyspark_kafka_rebalance.source.group.owned.assignment import QueryAssignment
from pyspark_kafka_rebalance.source.offsets.stream_offset import RebalanceEvent

PARTITIONS = [TopicPartition("t", n) for n in range(2)]
MEMBERS = range(2)
P, Q = PARTITIONS
Row = tuple[str, TopicPartition, int]

a_partition = st.sampled_from(PARTITIONS)
a_member = st.sampled_from(MEMBERS)
a_length = st.integers(1, 5)


def a_range(partition: TopicPartition, start: int, end: int) -> OffsetRange:
    return OffsetRange(partition.topic, partition.partition, start, end)


def certain(member: int) -> bool:
    return True


def rows(events: Iterable[RebalanceEvent]) -> list[Row]:
    return [(e.event, e.partition, e.generation) for e in events]


def by_partition(rows: Iterable[Row]) -> list[Row]:
    """Each partition's, in their order."""
    return sorted(rows, key=lambda row: row[1])


@dataclass
class Mine:
    """What the query has been told of a partition that one of its members has."""

    member: int
    generation: int
    position: int | None = None
    revoking: int = 0  # the number of the request
    read: bool = False


@dataclass
class Batch:
    """A batch that Spark was given and has not committed yet."""

    ranges: dict[TopicPartition, tuple[int, int]]
    rows: list[Row]
    positions: dict[TopicPartition, int]  # what its offset carries through a kill
    logged: bool = False
    restarted: set[TopicPartition] = field(default_factory=set)  # lost and started anew meanwhile


class AgainstAGroup(RuleBasedStateMachine):
    """One query with two members among other queries of the group.

    The truth is the broker's: who has a partition, and the group's committed offset. The query
    learns of it late or, of an answer to a commit, never.
    """

    def __init__(self) -> None:
        super().__init__()
        # The broker.
        self.has: dict[TopicPartition, int | str] = {}  # one of our members, or "another"
        self.committed: dict[TopicPartition, int] = {}
        self.out: set[int] = set()  # members that are out of the group and do not know it yet
        self.generation = 0
        self.requests = 0
        # Spark.
        self.batch: Batch | None = None
        self.logged: dict[TopicPartition, int] = {}  # positions in the newest logged offset
        self.delivered: dict[TopicPartition, int] = {}  # ends of committed batches
        self.planned: dict[TopicPartition, OffsetRange] | None = None
        # The query.
        self.query = QueryAssignment()
        self.include_events = False
        self.mine: dict[TopicPartition, Mine] = {}
        self.given: dict[TopicPartition, set[int]] = {p: set() for p in PARTITIONS}
        self.handed_out: dict[TopicPartition, int] = {}
        self.proven: dict[TopicPartition, int] = {}
        self.known: dict[TopicPartition, int] = {}  # what the query knows the group has
        self.last_read: dict[TopicPartition, int] = {}  # where the last proven batch with any ends
        self.rows: list[Row] = []
        self.lost: set[TopicPartition] = set()
        self.unlogged = False  # the last offset lacks a position
        self.unflushed: set[TopicPartition] = set()  # of which Spark has kept state in a restart
        # Commits on their way, and whether the broker has them already.
        self.sent: dict[int, dict[TopicPartition, int]] = {}
        self.arrived: set[int] = set()

    @initialize(include_events=st.booleans())
    def begin(self, include_events: bool) -> None:
        self.include_events = include_events
        self.query = QueryAssignment(include_events)

    # -- the group --------------------------------------------------------------------------------

    @rule(partition=a_partition, member=a_member, otherwise=st.none() | st.integers(0, 3))
    def give(self, partition: TopicPartition, member: int, otherwise: int | None) -> None:
        if partition in self.has or member in self.out:
            return
        # Another of our members may have lost it without knowing.
        self.has[partition] = member
        self.generation += 1
        self.mine[partition] = Mine(member, self.generation, read=partition in self.unflushed)
        self.lost.discard(partition)
        self.record("assigned", partition, self.generation)
        self.query.assign(member, self.generation, [partition])
        if otherwise is not None:
            self.find_start_of(partition, otherwise)

    @precondition(lambda self: self.mine)
    @rule(member=a_member)
    def new_generation(self, member: int) -> None:
        self.generation += 1
        for mine in self.mine.values():
            if mine.member == member:
                mine.generation = self.generation
        self.query.partitions.new_generation(member, self.generation)

    @rule(partition=a_partition, length=st.integers(0, 8), leaves=st.booleans())
    def another_query_has_it(self, partition: TopicPartition, length: int, leaves: bool) -> None:
        if isinstance(self.has.get(partition), int):
            return
        if length:
            self.committed[partition] = self.committed.get(partition, 0) + length
        self.has[partition] = "another"
        if leaves:
            del self.has[partition]

    @precondition(lambda self: self.mine)
    @rule(partitions=st.sets(a_partition, min_size=1))
    def request_revoke(self, partitions: set[TopicPartition]) -> None:
        for partition in [p for p in PARTITIONS if p in partitions and p in self.mine]:
            if not self.mine[partition].revoking:
                self.requests += 1
                self.mine[partition].revoking = self.requests
                self.record("revoke_requested", partition, self.mine[partition].generation)
        self.query.request_revoke([p for p in PARTITIONS if p in partitions])

    @precondition(lambda self: self.query.partitions.revoking())
    @rule(member=a_member, still=st.sets(a_partition))
    def take_revokes_back(self, member: int, still: set[TopicPartition]) -> None:
        for partition, mine in sorted(self.mine.items(), key=lambda item: item[1].revoking):
            if mine.member == member and mine.revoking and partition not in still:
                mine.revoking = 0
                self.record("assigned", partition, mine.generation)
        self.query.keep(member, still)

    @precondition(lambda self: self.query.partitions.revoking())
    @rule(member=a_member)
    def complete_what_is_drained(self, member: int) -> None:
        if member in self.out:
            return
        revoking = [p for p, m in self.mine.items() if m.member == member and m.revoking]
        drained = [p for p in revoking if p not in self.query.undrained(revoking)]
        for partition in drained:
            mine = self.mine.pop(partition)
            if mine.position is not None:
                assert self.committed.get(partition) == mine.position, "not all is committed"
            del self.has[partition]
            self.unflushed.discard(partition)
            self.record("revoked", partition, mine.generation)
        self.query.complete_revoke(member, drained)

    @rule(member=a_member, knows=st.booleans())
    def throw_out(self, member: int, knows: bool) -> None:
        """The broker fences a member, which may not know it yet; its lease is over."""
        self.out.add(member)
        self.has = {p: who for p, who in self.has.items() if who != member}
        if knows:
            self.learn_of_the_loss_by(member)

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def learn_of_the_loss(self, data: st.DataObject) -> None:
        self.learn_of_the_loss_by(data.draw(st.sampled_from(sorted(self.out))))

    def learn_of_the_loss_by(self, member: int) -> None:
        self.out.remove(member)
        self.sent.pop(member, None)  # nobody waits for the answer any more
        self.arrived.discard(member)
        for partition in [p for p in PARTITIONS if p in self.mine]:
            if self.mine[partition].member == member:
                mine = self.mine.pop(partition)
                self.lost.add(partition)
                self.unflushed.discard(partition)
                self.record("lost", partition, mine.generation)
        # The consumer names all it had, also what another member of ours has by now.
        self.query.lose(member, PARTITIONS)

    # -- starting positions -----------------------------------------------------------------------

    @precondition(lambda self: self.query.partitions.unpositioned())
    @rule(otherwise=st.integers(0, 3))
    def find_starts(self, otherwise: int) -> None:
        for partitions in self.query.partitions.unpositioned().values():
            for partition in partitions:
                self.find_start_of(partition, otherwise)

    def find_start_of(self, partition: TopicPartition, otherwise: int) -> None:
        mine = self.mine[partition]
        committed = self.committed.get(partition)
        marks = [m for m in (committed, self.handed_out.get(partition)) if m is not None]
        start = max(marks, default=otherwise)
        assert self.query.positioning.start_at(partition, committed, otherwise) == start
        self.unlogged |= self.handed_out.get(partition) != start
        mine.position = self.handed_out[partition] = start
        if committed is not None:
            self.known[partition] = committed
            self.proven[partition] = max(committed, self.proven.get(partition, committed))
        else:
            self.known.pop(partition, None)
            self.proven.setdefault(partition, start)  # "latest" must be the same for the next
        if self.batch is not None and partition in self.batch.ranges:
            self.batch.restarted.add(partition)

    # -- a batch ----------------------------------------------------------------------------------

    @precondition(lambda self: self.mine and (self.batch is None or self.batch.logged))
    @rule(lengths=st.dictionaries(a_partition, a_length, min_size=1))
    def trigger(self, lengths: dict[TopicPartition, int]) -> None:
        """One trigger in which nothing happens."""
        if self.batch is not None:
            self.prove()
        self.decide_ranges(lengths)
        self.hand_out(uncertain=set(), logged=True)

    @precondition(lambda self: self.batch is None)
    @rule(lengths=st.dictionaries(a_partition, a_length))
    def decide_ranges(self, lengths: dict[TopicPartition, int]) -> None:
        """Planning up to its I/O."""
        self.planned = {
            p: a_range(p, position, position + lengths[p])
            for p, position in self.query.partitions.plannable().items()
            if p in lengths
        }

    @precondition(lambda self: self.batch is None and self.planned is not None)
    @rule(uncertain=st.sets(a_member), logged=st.booleans())
    def hand_out(self, uncertain: set[int], logged: bool) -> None:
        """Planning after its I/O: whatever happened in between."""
        planned, self.planned = self.planned or {}, None
        uncertain = uncertain | self.out  # the lease ended before the broker fenced
        allowed = {
            p: r
            for p, r in planned.items()
            if p in self.mine
            and self.mine[p].position == r.start
            and not self.mine[p].revoking
            and self.mine[p].member not in uncertain
        }
        ranges = self.query.hand_out(planned, lambda member: member not in uncertain)
        assert ranges == allowed
        if not ranges and not self.rows:
            assert not self.query.events.wait()
            return
        for partition, handed in ranges.items():
            offsets = set(range(handed.start, handed.end))
            assert self.has[partition] == self.mine[partition].member, "another has it"
            assert not offsets & self.given[partition], "handed out twice"
            self.given[partition] |= offsets
            self.mine[partition].position = self.handed_out[partition] = handed.end
            self.mine[partition].read = True
        # In which order partitions were taken back together says nothing.
        assert by_partition(rows(self.query.take_events())) == by_partition(self.rows)
        assert self.query.events.take_lost() == self.lost
        self.batch = Batch(
            {p: (r.start, r.end) for p, r in ranges.items()},
            self.rows,
            {**self.query.marks.log_positions(), **{p: r.end for p, r in ranges.items()}},
        )
        self.unlogged = False
        self.rows, self.lost = [], set()
        if logged:
            self.log_batch()

    @precondition(lambda self: self.batch and not self.batch.logged)
    @rule()
    def log_batch(self) -> None:
        assert self.batch is not None
        self.batch.logged = True
        self.logged = self.batch.positions

    @precondition(lambda self: self.batch and self.batch.logged)
    @rule()
    def prove(self) -> None:
        assert self.batch is not None
        for partition, (_, end) in self.batch.ranges.items():
            self.proven[partition] = max(end, self.proven.get(partition, end))
            self.delivered[partition] = end
        if self.batch.ranges:
            self.last_read = {p: end for p, (_, end) in self.batch.ranges.items()}
        self.batch = None
        self.query.prove()

    # -- commits ----------------------------------------------------------------------------------

    @precondition(lambda self: self.query.commits.by_member())
    @rule()
    def send_commits(self) -> None:
        for member, offsets in self.query.commits.by_member().items():
            self.sent.setdefault(member, offsets)

    @precondition(lambda self: self.sent)
    @rule(data=st.data(), refused=st.booleans(), answered=st.booleans())
    def commit_arrives(self, data: st.DataObject, refused: bool, answered: bool) -> None:
        member = data.draw(st.sampled_from(sorted(self.sent)))
        if refused or member in self.out:
            del self.sent[member]  # REBALANCE_IN_PROGRESS, UNKNOWN_MEMBER_ID, …
            self.arrived.discard(member)
            return
        for partition, offset in self.sent[member].items():
            assert self.has[partition] == member, "committed what is another's"
            assert offset >= self.committed.get(partition, -1), "the group's offset moved back"
            assert offset <= self.proven[partition], "committed before it was proven"
            self.committed[partition] = offset
        self.arrived.add(member)
        if answered:
            self.answer(member)

    @precondition(lambda self: self.arrived)
    @rule(data=st.data())
    def answer_arrives(self, data: st.DataObject) -> None:
        self.answer(data.draw(st.sampled_from(sorted(self.arrived))))

    def answer(self, member: int) -> None:
        self.arrived.discard(member)
        for partition, offset in self.sent.pop(member).items():
            if partition in self.mine and self.mine[partition].member == member:
                self.known[partition] = max(offset, self.known.get(partition, offset))
                self.query.commits.acknowledge({partition: offset})

    # -- misfortune -------------------------------------------------------------------------------

    @precondition(lambda self: self.batch is None and self.query.partitions.plannable())
    @rule(partition=a_partition, end=st.integers(0, 10))
    def truncate(self, partition: TopicPartition, end: int) -> None:
        """The topic was made anew and is shorter; ``failOnDataLoss`` is false."""
        mine = self.mine.get(partition)
        if mine is None or mine.position is None or mine.position <= end:
            return
        if self.has.get(partition) != mine.member or any(
            partition in o for o in self.sent.values()
        ):
            return
        self.given[partition] = {o for o in self.given[partition] if o < end}
        mine.position = self.handed_out[partition] = self.proven[partition] = end
        self.unlogged = True
        self.known.pop(partition, None)
        self.delivered.pop(partition, None)
        self.last_read.pop(partition, None)
        self.committed.pop(partition, None)  # not another's to go by any more
        self.query.positioning.move_to(partition, end)

    @precondition(lambda self: self.committed and not self.has and not self.mine)
    @rule(partition=a_partition)
    def the_group_forgets(self, partition: TopicPartition) -> None:
        """It had no members for too long, or an administrator deleted it."""
        self.committed.pop(partition, None)

    @rule()
    def kill(self) -> None:
        """kill -9, and a new process that starts from the checkpoint."""
        self.query = QueryAssignment(self.include_events)
        self.query.restore(self.logged)
        if self.batch is not None and not self.batch.logged:
            for partition, (start, end) in self.batch.ranges.items():
                self.given[partition] -= set(range(start, end))  # it never ran
        for partition, proven in self.delivered.items():
            assert self.logged[partition] >= proven, "the checkpoint needs the group"
        self.handed_out, self.proven = dict(self.logged), dict(self.logged)
        self.known, self.last_read = {}, {}
        self.unlogged, self.unflushed = False, set(self.logged)
        self.mine, self.rows, self.lost = {}, [], set()
        self.has = {p: who for p, who in self.has.items() if who == "another"}
        self.out, self.sent, self.arrived = set(), {}, set()
        self.batch = self.planned = None

    # -- what must hold at any time ---------------------------------------------------------------

    def record(self, event: str, partition: TopicPartition, generation: int) -> None:
        if self.include_events:
            self.rows.append((event, partition, generation))

    def ahead(self) -> dict[TopicPartition, int]:
        return {p: o for p, o in self.proven.items() if o > self.known.get(p, -1)}

    @invariant()
    def ranges_only_where_they_are_allowed(self) -> None:
        allowed = {
            p: m.position for p, m in self.mine.items() if m.position is not None and not m.revoking
        }
        assert self.query.partitions.plannable() == allowed
        without_start = {p: m.member for p, m in self.mine.items() if m.position is None}
        asked = {p: m for m, ps in self.query.partitions.unpositioned().items() for p in ps}
        assert asked == without_start

    @invariant()
    def commits_what_is_proven_and_owned(self) -> None:
        commits = {
            (member, partition): offset
            for member, offsets in self.query.commits.by_member().items()
            for partition, offset in offsets.items()
        }
        assert commits == {
            (self.mine[p].member, p): offset
            for p, offset in self.ahead().items()
            if p in self.mine and self.mine[p].position is not None
        }

    @invariant()
    def every_position_is_for_the_next_offset(self) -> None:
        assert self.query.marks.positions() == self.proven
        assert self.query.marks.are_unlogged() == self.unlogged

    @invariant()
    def undrained_is_exact(self) -> None:
        in_batch = self.batch.ranges.keys() if self.batch else set()
        open_rows = self.rows + (self.batch.rows if self.batch else [])
        requested = {p for event, p, _ in open_rows if event == "revoke_requested"}
        expected = {
            p
            for p in PARTITIONS
            if p in in_batch
            or (p in self.ahead() and p in self.mine)
            or (p in requested and p in self.mine and self.mine[p].read)
        }
        assert self.query.undrained(PARTITIONS) == expected
        assert self.query.undrained([]) == set()

    @invariant()
    def uncommitted_is_what_a_stop_now_would_leave_behind(self) -> None:
        in_batch = self.batch.ranges if self.batch else {}
        ends = self.last_read | {p: end for p, (_, end) in in_batch.items()}
        behind = {p for p, end in ends.items() if self.known.get(p, -1) < end}
        owned = {p for p in self.ahead() if p in self.mine and self.mine[p].read}
        assert self.query.commits.uncommitted() == behind | owned

    @invariant()
    def what_there_is_to_see(self) -> None:
        assert self.query.partitions.all().keys() == self.mine.keys()
        for partition, owned in self.query.partitions.all().items():
            mine = self.mine[partition]
            assert (owned.member, owned.generation) == (mine.member, mine.generation)
        assert self.query.partitions.revoking() == {p for p, m in self.mine.items() if m.revoking}
        assert self.query.events.wait() == bool(self.rows)


AgainstAGroup.TestCase.settings = settings(
    deadline=None, max_examples=histories(150), stateful_step_count=50
)
TestAgainstAGroup = AgainstAGroup.TestCase


# -- by example -----------------------------------------------------------------------------------


@pytest.fixture
def query() -> QueryAssignment:
    """Owns P from 100 on, by member 0; the group has committed as much."""
    query = QueryAssignment()
    query.assign(0, 41, [P])
    query.positioning.start_at(P, 100, 0)
    return query


@pytest.fixture
def query_with_events() -> QueryAssignment:
    query = QueryAssignment(include_events=True)
    query.assign(0, 41, [P])
    query.positioning.start_at(P, 100, 0)
    query.take_events()
    return query


def read(query: QueryAssignment, partition: TopicPartition, start: int, end: int) -> None:
    planned = {partition: a_range(partition, start, end)}
    assert query.hand_out(planned, certain) == planned


def test_a_loss_and_quick_rejoin_do_not_hand_out_the_batch_in_flight_again(
    query: QueryAssignment,
) -> None:
    read(query, P, 100, 150)
    query.lose(0, [P])
    assert query.partitions.plannable() == {}
    assert query.events.take_lost() == {P}
    query.assign(0, 43, [P])
    assert query.partitions.plannable() == {}, "its start is not known yet"
    assert query.positioning.start_at(P, 100, 0) == 150, (
        "what the batch in flight reads is not read again"
    )
    assert query.commits.by_member() == {}, "Spark has not committed it"
    assert query.undrained([P]) == {P}
    query.prove()
    assert query.commits.by_member() == {0: {P: 150}}
    query.commits.acknowledge({P: 150})
    assert query.undrained([P]) == set()


def test_what_came_back_before_the_next_batch_is_not_told_as_lost(query: QueryAssignment) -> None:
    query.lose(0, [P])
    query.assign(1, 7, [P])
    assert query.events.take_lost() == set()


def test_after_a_loss_the_next_owner_may_have_gone_further(query: QueryAssignment) -> None:
    read(query, P, 100, 150)
    query.lose(0, [P])
    query.assign(1, 7, [P])
    assert query.positioning.start_at(P, 300, 0) == 300
    query.prove()
    assert query.commits.by_member() == {}, "150 would move the group's offset back"
    assert query.marks.positions() == {P: 300}


def test_a_late_loss_does_not_take_what_another_member_of_ours_has(query: QueryAssignment) -> None:
    query.assign(1, 42, [P])
    query.positioning.start_at(P, 100, 0)
    query.lose(0, [P])
    assert query.partitions.plannable() == {P: 100}
    assert query.events.take_lost() == set()
    query.request_revoke([P])
    query.complete_revoke(0, [P])
    assert query.partitions.all()[P].member == 1


def test_a_kill_after_a_refused_commit_forgets_nothing(query: QueryAssignment) -> None:
    query.assign(0, 41, [Q])
    query.positioning.start_at(Q, 0, 0)
    read(query, P, 100, 150)
    query.prove()
    assert query.commits.by_member() == {0: {P: 150}}  # refused: never acknowledged
    query.lose(0, [P])
    assert query.commits.by_member() == {}, "what is lost is not committed"
    read(query, Q, 0, 10)
    positions = {**query.marks.positions(), Q: 10}
    assert positions == {P: 150, Q: 10}

    restarted = QueryAssignment()
    restarted.restore(positions)
    assert restarted.marks.positions() == positions, "the next offset carries them as well"
    restarted.assign(0, 44, [P])
    assert restarted.positioning.start_at(P, 100, 0) == 150
    assert restarted.commits.by_member() == {0: {P: 150}}


def test_positions_of_the_checkpoint_do_not_move_the_group_back() -> None:
    restarted = QueryAssignment()
    restarted.restore({P: 150})
    restarted.assign(0, 44, [P])
    assert restarted.positioning.start_at(P, 400, 0) == 400
    assert restarted.commits.by_member() == {}


def test_positions_of_the_checkpoint_do_not_count_where_the_group_has_gone_back_since() -> None:
    restarted = QueryAssignment()
    restarted.restore({P: 150, Q: 10})
    assert restarted.marks.unheard_of() == [P, Q]
    restarted.commits.acknowledge({P: 150})
    assert restarted.marks.unheard_of() == [Q]
    restarted.assign(0, 44, [P, Q])
    assert restarted.positioning.start_at(P, 40, 0) == 40
    assert restarted.positioning.start_at(Q, 4, 0) == 10, "its commit was not accepted any more"
    assert restarted.commits.by_member() == {0: {Q: 10}}


def test_what_a_replay_reads_is_not_committed_before_it_is_done() -> None:
    """Another death would leave it to a replay that takes the commit for the next owner's."""
    restarted = QueryAssignment()
    restarted.restore({P: 100})
    restarted.resume({P: a_range(P, 100, 150)})
    restarted.assign(0, 44, [P])
    assert restarted.positioning.start_at(P, 100, 0) == 150, (
        "what the replay reads is not read again"
    )
    assert restarted.commits.by_member() == {}
    restarted.request_revoke([P])
    assert restarted.waits_for_proof()
    assert restarted.undrained([P]) == {P}, "nor released, however long the replay takes"
    restarted.prove()
    assert restarted.commits.by_member() == {0: {P: 150}}


def test_a_partition_whose_log_became_shorter_under_another_query_starts_where_that_one_is() -> (
    None
):
    """Its own old position was committed again, beyond the end; what came meanwhile was skipped."""
    query = QueryAssignment()
    query.assign(0, 41, [P])
    query.positioning.start_at(P, 100, 0)
    read(query, P, 100, 150)
    query.prove()
    query.commits.acknowledge({P: 150})
    read(query, P, 150, 160)
    query.lose(0, [P])
    query.assign(0, 43, [P])
    assert query.positioning.start_at(P, 40, 0) == 40
    assert query.commits.by_member() == {}
    query.prove()
    assert query.commits.by_member() == {}, "160 is of the log before"
    assert query.marks.positions() == {P: 40}


def test_after_a_replay_the_checkpoint_does_not_bring_back_what_was_set_back_or_deleted() -> None:
    """Its end was committed above the position: what came into the new log was skipped."""
    restarted = QueryAssignment()
    restarted.restore({P: 100, Q: 9})
    restarted.resume({P: a_range(P, 100, 150)})
    restarted.commits.acknowledge({P: 100})  # waiting for its owner
    restarted.assign(0, 44, [P, Q])
    assert restarted.positioning.start_at(P, 0, 0) == 0, "the owner has found the log shorter"
    restarted.positioning.start_at(Q, 9, 0)
    restarted.positioning.delete([Q])
    restarted.restore({P: 150, Q: 9})  # the end of the replayed batch
    restarted.prove()
    assert restarted.partitions.plannable() == {P: 0}
    assert restarted.marks.positions() == {P: 0}
    assert restarted.commits.by_member() == {}


def test_a_replay_of_what_the_group_has_forgotten_commits_where_it_starts() -> None:
    """Else the next owner would begin at "latest"."""
    restarted = QueryAssignment()
    restarted.resume({P: a_range(P, 100, 150)})
    restarted.assign(0, 44, [P])
    assert restarted.positioning.start_at(P, None, 900) == 150
    assert restarted.commits.by_member() == {0: {P: 100}}


def test_a_replay_of_what_another_has_gone_beyond_moves_nothing_back() -> None:
    restarted = QueryAssignment()
    restarted.resume({P: a_range(P, 100, 150)})
    restarted.assign(0, 44, [P])
    assert restarted.positioning.start_at(P, 170, 0) == 170
    restarted.prove()
    assert restarted.commits.by_member() == {}


def test_a_start_that_nobody_committed_is_committed_at_once() -> None:
    """Else "latest" is another offset for the next owner, and what came in between is lost."""
    query = QueryAssignment()
    query.assign(1, 41, [P])
    assert query.positioning.start_at(P, None, 500) == 500
    assert query.commits.by_member() == {1: {P: 500}}
    assert query.undrained([P]) == {P}, "nor is it released before"
    query.commits.acknowledge({P: 500})
    assert query.commits.by_member() == {}
    assert query.undrained([P]) == set()


@pytest.mark.parametrize("committed", [0, 17])
def test_a_start_that_the_group_knows_is_not_committed_again(committed: int) -> None:
    query = QueryAssignment()
    query.assign(0, 41, [P])
    assert query.positioning.start_at(P, committed, 500) == committed
    assert query.commits.by_member() == {}


def test_no_range_where_the_revoke_was_requested_after_planning(query: QueryAssignment) -> None:
    planned = {P: a_range(P, *(query.partitions.plannable()[P], 150))}
    query.request_revoke([P])
    assert query.hand_out(planned, certain) == {}
    assert query.undrained([P]) == set()


def test_no_range_for_a_member_whose_lease_is_over(query: QueryAssignment) -> None:
    query.assign(1, 42, [Q])
    query.positioning.start_at(Q, 0, 0)
    planned = {P: a_range(P, 100, 150), Q: a_range(Q, 0, 10)}
    sure: Callable[[int], bool] = [False, True].__getitem__
    assert query.hand_out(planned, sure) == {Q: planned[Q]}
    assert query.partitions.plannable() == {P: 100, Q: 10}


def test_a_whole_batch_is_handed_out_or_nothing_of_it(query: QueryAssignment) -> None:
    """With an order among partitions: the rest would overtake what is left out."""
    query.assign(1, 42, [Q])
    query.positioning.start_at(Q, 0, 0)
    planned = {P: a_range(P, 100, 150), Q: a_range(Q, 0, 10)}
    sure: Callable[[int], bool] = [False, True].__getitem__
    assert query.hand_out(planned, sure, whole=True) == {}
    assert query.partitions.plannable() == {P: 100, Q: 0}
    assert query.hand_out(planned, certain, whole=True) == planned


def test_no_range_from_an_older_position(query: QueryAssignment) -> None:
    """Lost, and back further on, while the end offsets were asked for."""
    planned = {P: a_range(P, 100, 150)}
    query.lose(0, [P])
    query.assign(0, 42, [P])
    query.positioning.start_at(P, 130, 0)
    assert query.hand_out(planned, certain) == {}


def test_a_revoke_waits_for_proof_and_then_for_the_acknowledgement(query: QueryAssignment) -> None:
    read(query, P, 100, 150)
    assert not query.waits_for_proof()
    query.request_revoke([P])
    assert query.waits_for_proof()
    assert query.undrained([P]) == {P}
    query.prove()
    assert not query.waits_for_proof()
    assert query.undrained([P]) == {P}
    query.commits.acknowledge({P: 149})
    assert query.undrained([P]) == {P}
    query.commits.acknowledge({P: 150})
    assert query.undrained([P]) == set()
    query.complete_revoke(0, [P])
    assert query.partitions.plannable() == {}


def test_the_row_of_a_requested_revoke_is_proven_before_the_release(
    query_with_events: QueryAssignment,
) -> None:
    query = query_with_events
    read(query, P, 100, 150)
    assert query.take_events() == []
    query.request_revoke([P])
    query.prove()
    query.commits.acknowledge({P: 150})
    assert query.undrained([P]) == {P}, "its state is still to be flushed"
    assert not query.waits_for_proof(), "there is no batch with the row yet"
    assert query.hand_out({}, certain) == {}
    assert query.events.wait()
    assert query.take_events() == [RebalanceEvent("revoke_requested", P, 41)]
    assert query.undrained([P]) == {P}
    assert query.waits_for_proof()
    query.prove()
    assert query.undrained([P]) == set()


def test_no_row_holds_the_release_of_what_was_never_read(
    query_with_events: QueryAssignment,
) -> None:
    query_with_events.request_revoke([P])
    assert query_with_events.events.wait()
    assert query_with_events.undrained([P]) == set()


@pytest.mark.parametrize("before", ["restart", "replay"])
def test_a_row_holds_the_release_of_what_was_read_before_a_restart(before: str) -> None:
    """Spark has kept the state that is to be flushed."""
    restarted = QueryAssignment(include_events=True)
    if before == "replay":
        restarted.resume({P: a_range(P, 100, 150)})
    else:
        restarted.restore({P: 150})
    restarted.assign(0, 44, [P])
    restarted.positioning.start_at(P, 150, 0)
    restarted.prove()
    restarted.request_revoke([P])
    assert restarted.undrained([P]) == {P}
    restarted.hand_out({}, lambda member: True)
    restarted.take_events()
    assert restarted.undrained([P]) == {P}
    restarted.prove()
    assert restarted.undrained([P]) == set()
    restarted.complete_revoke(0, [P])
    restarted.assign(0, 46, [P])
    restarted.positioning.start_at(P, 200, 0)
    restarted.request_revoke([P])
    assert restarted.undrained([P]) == set(), "flushed when it was given up"


def test_a_query_that_reads_on_with_other_members_tells_that_what_it_had_is_lost() -> None:
    """It was asked to stop, and whoever asked is gone; others may have read on meanwhile."""
    query = QueryAssignment(include_events=True)
    query.assign(0, 44, [P])
    query.assign(1, 44, [Q])
    query.positioning.start_at(P, 150, 0)
    read(query, P, 150, 160)
    query.take_events()
    query.prove()
    query.request_revoke([Q])
    untold = query.end()
    assert [(e.event, e.partition) for e in untold] == [
        ("revoke_requested", Q),
        ("lost", P),
        ("lost", Q),
    ]
    other = TopicPartition("t", 7)
    goes_on = QueryAssignment(include_events=True)
    goes_on.restore({P: 160, Q: 150, other: 150})
    goes_on.begin_after(untold)
    for partition in (P, other):
        goes_on.assign(0, 46, [partition])
        goes_on.commits.acknowledge({partition: 160})
        goes_on.positioning.start_at(partition, 160, 0)
    goes_on.request_revoke([P, other])
    assert goes_on.undrained([P, other]) == {other}, "P is flushed by the row of its loss"
    assert goes_on.take_events()[: len(untold)] == untold
    assert not QueryAssignment().end()


def test_what_members_of_one_run_exchange_before_it_reads_is_flushed_by_who_gets_it() -> None:
    query = QueryAssignment(include_events=True)
    query.restore({P: 150, Q: 150})
    query.assign(0, 44, [P, Q])
    query.commits.acknowledge({P: 150, Q: 150})
    for partition in (P, Q):
        query.positioning.start_at(partition, 150, 0)
    read(query, Q, 150, 160)
    query.request_revoke([P, Q])
    assert query.undrained([P, Q]) == {P, Q}
    query.release_unread()
    assert query.undrained([P, Q]) == {Q}, "in the batch under way"
    query.complete_revoke(0, [P])
    query.assign(1, 45, [P])
    query.positioning.start_at(P, 150, 0)
    query.request_revoke([P])
    assert query.undrained([P]) == {P}, "its state is still to be flushed"
    query.release_unread()
    query.keep(1, [])
    query.request_revoke([P])
    assert query.undrained([P]) == {P}, "likewise, where the revoke was taken back"


def test_a_row_of_before_the_loss_holds_nothing_after_it(
    query_with_events: QueryAssignment,
) -> None:
    query = query_with_events
    read(query, P, 100, 150)
    query.prove()
    query.commits.acknowledge({P: 150})
    query.request_revoke([P])
    query.take_events()
    assert query.waits_for_proof()
    query.lose(0, [P])
    query.assign(0, 42, [P])
    query.positioning.start_at(P, 150, 0)
    query.request_revoke([P])
    assert not query.waits_for_proof()
    assert query.undrained([P]) == set()


def test_rows_tell_what_happened_in_order(query_with_events: QueryAssignment) -> None:
    query = query_with_events
    query.request_revoke([P])
    query.request_revoke([P])  # the consumer lists it in every poll
    query.keep(1, [])  # another member's
    query.keep(0, [P])
    query.keep(0, [])
    query.partitions.new_generation(0, 42)
    query.request_revoke([P])
    query.complete_revoke(0, [P])
    query.assign(1, 8, [P, Q])
    query.lose(1, [Q])
    assert rows(query.take_events()) == [
        ("revoke_requested", P, 41),
        ("assigned", P, 41),
        ("revoke_requested", P, 42),
        ("revoked", P, 42),
        ("assigned", P, 8),
        ("assigned", Q, 8),
        ("lost", Q, 8),
    ]
    assert not query.events.wait()


def test_without_rows_nothing_is_kept_for_them(query: QueryAssignment) -> None:
    query.request_revoke([P])
    assert not query.events.wait()
    assert query.take_events() == []


def test_a_revoke_that_is_taken_back_lets_ranges_through_again(query: QueryAssignment) -> None:
    query.request_revoke([P])
    assert query.partitions.revoking() == {P}
    query.keep(0, [])
    assert query.partitions.revoking() == set()
    read(query, P, 100, 150)


def test_after_data_loss_the_group_moves_back_as_well(query: QueryAssignment) -> None:
    query.positioning.move_to(P, 40)
    assert query.partitions.plannable() == {P: 40}
    assert query.commits.by_member() == {0: {P: 40}}
    query.commits.acknowledge({P: 40})
    assert query.commits.by_member() == {}
    query.lose(0, [P])
    query.assign(0, 42, [P])
    assert query.positioning.start_at(P, 40, 0) == 40, "not where it was before the data loss"


def test_what_a_batch_read_before_data_loss_is_not_committed_after_it(
    query: QueryAssignment,
) -> None:
    read(query, P, 100, 150)
    query.positioning.move_to(P, 40)
    query.prove()
    assert query.commits.by_member() == {0: {P: 40}}
    assert query.unproven() == {}


def test_batches_are_proven_in_order_and_each_with_all_before_it(query: QueryAssignment) -> None:
    """As async progress tracking does."""
    read(query, P, 100, 150)
    first = query.batches.number
    read(query, P, 150, 170)
    read(query, P, 170, 175)
    assert query.unproven() == {P: a_range(P, 100, 175)}
    query.prove(query.batches.prove_up_to(first))
    assert query.commits.by_member() == {0: {P: 150}}
    assert query.undrained([P]) == {P}
    assert query.unproven() == {P: a_range(P, 150, 175)}
    query.prove()
    assert query.commits.by_member() == {0: {P: 175}}
    query.commits.acknowledge({P: 175})
    assert query.undrained([P]) == set()
    assert not query.batches.any()


def test_an_offset_that_the_group_has_forgotten_is_committed_again(
    query: QueryAssignment,
) -> None:
    read(query, P, 100, 150)
    query.prove()
    query.commits.acknowledge({P: 150})
    query.lose(0, [P])
    query.assign(0, 43, [P])
    query.positioning.start_at(P, None, 0)  # expired, deleted, or the topic was made anew
    assert query.partitions.plannable() == {P: 150}
    assert query.commits.by_member() == {0: {P: 150}}


def test_what_is_not_ours_is_not_moved(query: QueryAssignment) -> None:
    query.assign(0, 41, [Q])
    query.positioning.move_to(Q, 3)  # no start yet
    query.lose(0, [P])
    query.positioning.move_to(P, 40)
    assert query.partitions.plannable() == {}
    assert query.commits.by_member() == {}
    assert query.marks.positions() == {P: 100}


def test_an_older_acknowledgement_changes_nothing(query: QueryAssignment) -> None:
    read(query, P, 100, 150)
    query.prove()
    query.commits.acknowledge({P: 150})
    query.commits.acknowledge({P: 120})
    assert query.undrained([P]) == set()
    assert query.commits.by_member() == {}


def test_a_checkpoint_needs_no_group() -> None:
    restarted = QueryAssignment()
    restarted.restore({P: 150})
    restarted.assign(0, 44, [P])
    assert restarted.positioning.start_at(P, None, 999) == 150, "the group was deleted"
    assert restarted.commits.by_member() == {0: {P: 150}}, "and knows it again"
    assert not restarted.marks.are_unlogged()


def test_a_start_is_unlogged_until_an_offset_has_it(query: QueryAssignment) -> None:
    assert query.marks.are_unlogged()
    assert query.marks.log_positions() == {P: 100}
    assert not query.marks.are_unlogged()
    query.lose(0, [P])
    query.assign(1, 42, [P])
    query.positioning.start_at(P, 100, 0)
    assert not query.marks.are_unlogged(), "nothing is new"
    query.positioning.move_to(P, 40)
    assert query.marks.are_unlogged()


def test_only_what_is_neither_owned_nor_in_flight_is_forgotten(query: QueryAssignment) -> None:
    query.positioning.forget([P])
    assert query.marks.positions() == {P: 100}
    read(query, P, 100, 150)
    query.lose(0, [P])
    query.positioning.forget([P])
    assert query.marks.positions() == {P: 100}
    query.prove()
    query.marks.log_positions()
    query.positioning.forget([P])
    assert query.marks.positions() == {}
    assert not query.marks.are_known(P)
    assert query.marks.are_unlogged(), "a restart would go on in what has its name by then"


def test_an_offset_without_what_was_deleted_is_due(query: QueryAssignment) -> None:
    query.marks.log_positions()
    query.positioning.delete([P])
    assert query.marks.are_unlogged()
    assert query.marks.log_positions() == {}


# -- what a stop leaves behind --------------------------------------------------------------------


def test_all_is_committed_when_the_group_has_the_last_batch(query: QueryAssignment) -> None:
    assert query.commits.uncommitted() == set(), "nothing was read"
    read(query, P, 100, 150)
    assert query.commits.uncommitted() == {P}, "not proven"
    query.prove()
    assert query.commits.uncommitted() == {P}, "not acknowledged"
    query.commits.acknowledge({P: 149})
    assert query.commits.uncommitted() == {P}
    query.commits.acknowledge({P: 150})
    assert query.commits.uncommitted() == set()


def test_a_start_that_the_group_lacks_repeats_nothing(query: QueryAssignment) -> None:
    query.assign(0, 41, [Q])
    query.positioning.start_at(Q, None, 7)
    assert query.commits.by_member() == {0: {Q: 7}}
    assert query.commits.uncommitted() == set()


def test_what_the_last_batch_read_is_not_forgotten_when_it_is_lost(query: QueryAssignment) -> None:
    read(query, P, 100, 150)
    query.lose(0, [P])
    query.prove()
    assert query.commits.by_member() == {}, "nobody may commit it"
    assert query.commits.uncommitted() == {P}
    query.commits.acknowledge({P: 150})  # the group was asked
    assert query.commits.uncommitted() == set()


def test_what_was_lost_with_an_earlier_batch_does_not_count_for_good(
    query: QueryAssignment,
) -> None:
    query.assign(0, 41, [Q])
    query.positioning.start_at(Q, 10, 0)
    read(query, P, 100, 150)
    query.lose(0, [P])
    query.prove()
    read(query, Q, 10, 20)
    query.prove()
    query.commits.acknowledge({Q: 20})
    assert query.commits.uncommitted() == set()


def test_what_earlier_batches_read_counts_while_it_is_owned(query: QueryAssignment) -> None:
    """With async progress tracking several batches are proven at once."""
    query.assign(0, 41, [Q])
    query.positioning.start_at(Q, 10, 0)
    read(query, P, 100, 150)
    read(query, Q, 10, 20)
    query.prove()
    query.commits.acknowledge({Q: 20})
    assert query.commits.uncommitted() == {P}


@pytest.mark.parametrize("gone", ["deleted", "gone for good", "shorter", "shorter for another"])
def test_what_is_gone_from_kafka_cannot_be_repeated(query: QueryAssignment, gone: str) -> None:
    read(query, P, 100, 150)
    query.prove()
    if gone == "deleted":
        query.positioning.delete([P])
    elif gone == "gone for good":
        query.lose(0, [P])
        query.positioning.forget([P])
    elif gone == "shorter":
        query.positioning.move_to(P, 120)
        query.commits.acknowledge({P: 120})
    else:
        query.commits.acknowledge({P: 150})
        query.lose(0, [P])
        query.assign(0, 42, [P])
        query.positioning.start_at(P, 30, 0)
    assert query.commits.uncommitted() == set()
