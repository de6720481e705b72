"""What is to be caught up below a live position: against sets of integers, and in an assignment."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.consumer.offsets.commit_metadata import Remaining
from pyspark_kafka_rebalance.consumer.offsets.offset_set import Gap, runs
from pyspark_kafka_rebalance.fetch.offset_range import OffsetRange
from pyspark_kafka_rebalance.source.group.owned.assignment import QueryAssignment
from pyspark_kafka_rebalance.source.group.owned.marks import GapMarks

P, Q = TopicPartition("t", 0), TopicPartition("t", 1)
LIVE = 40

PIECE = st.tuples(st.integers(0, LIVE), st.integers(0, LIVE)).map(sorted).map(tuple)
STEPS = st.lists(
    st.tuples(st.sampled_from(["set aside", "hand out", "prove", "lose"]), PIECE), max_size=20
)


def a_range(start: int, end: int, partition: TopicPartition = P) -> OffsetRange:
    return OffsetRange(partition.topic, partition.partition, start, end)


def gaps_of(offsets: set[int]) -> list[Gap]:
    return list(runs(sorted(offsets)))


def offsets(gaps: object) -> list[int]:
    return [offset for gap in gaps for offset in range(gap.start, gap.end)]  # type: ignore[attr-defined]


@given(STEPS)
@example([("set aside", (0, 2)), ("hand out", (1, 1)), ("prove", (0, 2))])  # cut the gap in two
def test_as_sets_of_offsets(steps: list[tuple[str, tuple[int, int]]]) -> None:
    marks, unread, unproven = GapMarks(), set[int](), set[int]()
    for step, (start, end) in steps:
        piece = set(range(start, end))
        if step == "set aside":
            unread |= piece
            unproven |= piece
            marks.begin(P, gaps_of(unread), gaps_of(unproven))
        elif step == "hand out":
            marks.hand_out({P: [a_range(start, end)]})
            unread -= piece
        elif step == "lose":
            marks.lose(P, end)
            gone = {offset for offset in unread if offset < end}
            unread -= gone
            unproven -= gone
        else:
            piece -= unread  # nothing is proven that no batch has read
            for offset in piece:
                marks.prove({P: [a_range(offset, offset + 1)]})
            unproven -= piece
        assert offsets(marks.under_way(P)) == sorted(unproven - unread)
        assert offsets(marks.unread(P)) == sorted(unread)
        assert offsets(marks.unproven(P)) == sorted(unproven)
        assert marks.committed(P, LIVE) == min(unproven, default=LIVE)
        if start < end:
            held = set(range(start, end)) <= unread
            assert marks.are_unread(P, [a_range(start, end)]) == held
    assert not marks.unread(Q)
    marks.forget(P)
    assert marks.committed(P, 7) == 7


def behind(position: int) -> bool:
    return True


def near(position: int) -> bool:
    return False


def sure(member: int) -> bool:
    return True


def a_query(*owned: TopicPartition) -> QueryAssignment:
    query = QueryAssignment()
    query.assign(0, 1, owned)
    return query


def test_the_group_is_told_the_lowest_offset_that_is_owed_and_what_lies_beyond() -> None:
    query = a_query(P, Q)
    assert query.positioning.start_live(P, Remaining(10), 100, behind) == 100
    assert query.positioning.start_live(Q, Remaining(0), 100, near) == 0
    assert query.plannable_gaps() == {P: (Gap(10, 100),)}
    assert query.partitions.plannable() == {P: 100, Q: 0}
    assert not query.commits.by_member(), "it is owed what it was owed before"
    caught = {P: [a_range(10, 20)], Q: [a_range(0, 5, Q)]}
    live = query.hand_out({P: a_range(100, 110)}, sure, caught)
    assert live == {P: a_range(100, 110)}
    assert query.batches.have(P)
    assert not query.batches.have(Q), "nothing of it was set aside"
    assert query.undrained([P]) == {P}
    assert query.commits.uncommitted() == {P}
    assert not query.commits.by_member()
    assert query.gaps_left() == {P: [Gap(20, 100)]}
    query.prove()
    assert query.commits.by_member() == {0: {P: 20}}
    assert query.undrained([P]) == query.commits.uncommitted() == {P}
    told = query.commits.remaining([P])
    assert told == {P: Remaining(110, (Gap(20, 100),))}
    query.commits.acknowledge({P: 20})
    assert query.undrained([P]), "of what is live nobody has told the group"
    query.commits.acknowledge_remaining(told)
    assert not query.commits.by_member()
    assert not query.undrained([P])
    assert not query.commits.uncommitted()
    query.hand_out({P: a_range(110, 120)}, sure)
    query.prove()
    assert query.commits.by_member() == {0: {P: 20}}, "the same offset, and more beyond it"
    query.commits.acknowledge_remaining(query.commits.remaining([P]))
    query.hand_out({}, sure, {P: [a_range(20, 100)]})
    query.prove()
    assert query.commits.by_member() == {0: {P: 120}}
    assert query.commits.remaining([P]) == {P: Remaining(120)}
    query.commits.acknowledge_remaining({P: Remaining(120)})
    assert not query.commits.by_member()
    assert not query.commits.uncommitted()


def test_a_gap_is_not_read_on_once_its_partition_is_to_be_revoked_or_in_doubt() -> None:
    query = a_query(P)
    query.positioning.start_live(P, Remaining(10), 30, behind)
    piece = {P: [a_range(10, 20)]}
    query.hand_out({}, lambda member: False, piece)
    assert not query.batches.have(P)
    query.request_revoke([P])
    assert not query.plannable_gaps()
    query.hand_out({}, sure, piece)
    assert not query.batches.have(P)
    assert not query.undrained([P]), "it moves with the partition"
    query.complete_revoke(0, [P])
    assert query.gaps_left() == {P: [Gap(10, 30)]}


def test_what_the_group_and_the_checkpoint_know_is_left_out_by_both() -> None:
    query = a_query(P)
    query.restore({P: 100}, {P: [Gap(10, 20), Gap(40, 60)]})
    assert (
        query.positioning.start_live(P, Remaining(50, (Gap(5, 15), Gap(30, 45))), 120, near) == 100
    )
    assert query.plannable_gaps() == {P: (Gap(10, 15), Gap(40, 45), Gap(50, 60))}
    assert query.commits.remaining([P]) == {
        P: Remaining(100, (Gap(10, 15), Gap(40, 45), Gap(50, 60)))
    }
    assert query.commits.by_member() == {0: {P: 10}}, "the group learns what the checkpoint knows"


def test_a_second_failure_makes_a_second_gap() -> None:
    query = a_query(P)
    query.restore({P: 100}, {P: [Gap(10, 20)]})
    assert query.positioning.start_live(P, Remaining(100, (Gap(10, 20),)), 500, behind) == 500
    assert query.plannable_gaps() == {P: (Gap(10, 20), Gap(100, 500))}
    assert not query.commits.by_member(), "the group is owed no more than it believes"


def test_a_partition_that_another_member_of_the_query_gave_up_is_not_behind() -> None:
    """A new query reads its first backlog in order, while its members join one after the other."""
    query = a_query(P)
    query.positioning.start_at(P, None, otherwise=0)
    query.commits.acknowledge_remaining({P: Remaining(0)})
    query.request_revoke([P])
    query.complete_revoke(0, [P])
    query.assign(1, 2, [P])
    assert query.positioning.start_live(P, Remaining(0), 100, behind) == 0
    query.complete_revoke(1, [P])
    query.assign(0, 3, [P])
    assert query.positioning.start_live(P, Remaining(3), 100, behind) == 100, "another query had it"
    query.lose(0, [P])
    query.assign(0, 4, [P])
    assert query.positioning.start_live(P, Remaining(3), 200, behind) == 200, "so long nobody read"


@pytest.mark.parametrize(
    ("generation", "end", "live"),
    [(2, 15, 10), (3, 15, 500), (3, 450, 10), (3, None, 10)],
)
def test_a_backlog_of_a_partition_that_another_query_may_have_had_in_between(
    generation: int, end: int | None, live: int
) -> None:
    """It has committed nothing. From one owner to the next it takes one generation."""
    query = a_query(P)
    query.positioning.start_at(P, 10, otherwise=0)
    query.complete_revoke(0, [P], {} if end is None else {P: end})
    query.assign(1, generation, [P])
    found = query.positioning.start_live(P, Remaining(10), 500, lambda at: 500 - at > 100)
    assert found == live


def test_what_was_under_way_when_the_live_position_went_on_is_proven_all_the_same() -> None:
    query = a_query(P)
    query.positioning.start_live(P, Remaining(10), 10, near)
    query.hand_out({P: a_range(10, 15)}, sure)
    query.lose(0, [P])
    query.assign(0, 2, [P])
    assert query.positioning.start_live(P, Remaining(10), 100, behind) == 100
    assert query.plannable_gaps() == {P: (Gap(15, 100),)}
    assert query.unproven() == {}
    assert query.unproven_gaps() == {P: [Gap(10, 15)]}
    query.hand_out({P: a_range(100, 101)}, sure)
    assert query.unproven() == {P: a_range(100, 101)}
    query.prove()
    assert query.commits.remaining([P]) == {P: Remaining(101, (Gap(15, 100),))}


def test_records_that_are_gone_leave_the_rest_of_the_gaps() -> None:
    query = a_query(P)
    query.positioning.start_live(P, Remaining(10), 100, behind)
    query.hand_out({}, sure, {P: [a_range(10, 20)]})
    query.positioning.lose_gaps(P, 50)
    assert query.plannable_gaps() == {P: (Gap(50, 100),)}
    assert query.undrained([P]) == {P}, "the batch is still to be proven"
    query.prove()
    assert query.commits.by_member() == {0: {P: 50}}
    query.positioning.move_to(P, 70)  # the log is shorter, and lacks no older records
    assert query.plannable_gaps() == {P: (Gap(50, 70),)}
    assert query.partitions.plannable() == {P: 70}
    assert query.commits.by_member() == {0: {P: 50}}
    query.positioning.delete([P])
    assert not query.gaps_left()


def unlogged(query: QueryAssignment) -> bool:
    """Whether an offset is due for the gaps; which is made."""
    due = query.gaps.are_unlogged()
    query.gaps.logged()
    return due


def test_an_offset_is_due_when_gaps_change_without_a_batch() -> None:
    query = a_query(P)
    query.restore({P: 100}, {P: [Gap(10, 60)]})
    query.positioning.start_live(P, Remaining(100, (Gap(10, 60),)), 100, near)
    assert not unlogged(query), "it is the checkpoint's"
    query.positioning.lose_gaps(P, 5)
    query.hand_out({}, sure, {P: [a_range(10, 20)]})
    query.prove()
    assert not unlogged(query), "the batch's own offset has it"
    query.positioning.lose_gaps(P, 30)
    assert unlogged(query)
    query.lose(0, [P])
    for left in (Remaining(100, (Gap(50, 60),)), Remaining(100)):
        query.assign(0, 2, [P])
        assert query.positioning.start_live(P, left, 100, near) == 100
        assert unlogged(query), "another has read some"
        query.lose(0, [P])
    query.assign(0, 3, [P])
    query.positioning.start_live(P, Remaining(100), 100, near)
    assert not unlogged(query)
    query.positioning.start_live(P, Remaining(100), 300, behind)
    assert unlogged(query)
    query.positioning.delete([P])
    assert unlogged(query)


def test_a_batch_that_is_run_again_holds_its_gaps() -> None:
    query = QueryAssignment()
    query.restore({P: 100, Q: 7})
    query.resume({P: a_range(100, 110)}, {P: [a_range(10, 20)]}, {P: [Gap(20, 30)]})
    query.assign(0, 1, [P, Q])
    assert query.positioning.start_live(P, Remaining(10), 110, near) == 110
    assert query.positioning.start_live(Q, Remaining(7), 7, near) == 7
    assert query.plannable_gaps() == {P: (Gap(20, 30),)}
    query.restore({P: 110, Q: 7}, {P: [Gap(20, 30)], Q: [Gap(0, 1)]})
    assert query.plannable_gaps() == {P: (Gap(20, 30),)}, "nothing new"
    assert query.undrained([P]) == {P}
    query.prove()
    assert query.commits.remaining([P]) == {P: Remaining(110, (Gap(20, 30),))}


# -- any history, against sets of offsets ---------------------------------------------------------

STEPS_OF_A_QUERY = st.lists(
    st.tuples(
        st.sampled_from(
            ["begin", "read", "catch up", "prove", "commit", "lose", "give up", "other", "restart"]
        ),
        st.integers(0, 12),
        st.booleans(),
    ),
    max_size=40,
)


@given(STEPS_OF_A_QUERY)
def test_nothing_is_skipped_and_what_the_group_and_the_checkpoint_know_is_not_repeated(
    steps: list[tuple[str, int, bool]],
) -> None:
    """One partition, of which another query may have its turn while this one has not."""
    query, end = QueryAssignment(), 0
    group = Remaining(0)
    done: set[int] = set()  # in batches that are proven, of whichever query
    unsure: set[int] = set()  # under way when this query lost the partition, or died
    batch: set[int] = set()
    owned = False

    def position() -> int:
        return query.partitions.plannable()[P]

    for step, number, flag in steps:
        end += number
        if step == "begin" and not owned:
            query.assign(0, 1, [P])
            query.positioning.start_live(P, group, end, behind if flag else near)
            owned = True
        elif step in ("read", "catch up") and owned and not batch:
            left = list(query.plannable_gaps().get(P, ()))[:1]
            pieces = [a_range(g.start, min(g.end, g.start + number)) for g in left if number]
            live = {P: a_range(position(), end)} if step == "read" and position() < end else {}
            query.hand_out(live, sure, {P: pieces} if pieces else {})
            batch = {o for r in (*live.values(), *pieces) for o in range(r.start, r.end)}
            repeated = batch & done
            assert not repeated, "delivered twice"
            assert not pieces or min(batch) == min(o for o in range(end) if o in known(query))
        elif step == "prove" and batch:
            query.prove()
            done |= batch
            batch = set()
        elif step == "commit" and owned:
            for offsets in query.commits.by_member().values():
                (told,) = query.commits.remaining(offsets).values()
                assert told.committed() == offsets[P] >= group.committed()
                group = told
                query.commits.acknowledge_remaining({P: told})
        elif step == "lose" and owned:
            query.lose(0, [P])
            owned = False
            # What it has read and the group does not know, the next owner repeats.
            unsure |= {o for o in done if o in group}
            done -= unsure
        elif step == "give up" and owned and not query.undrained([P]):
            query.complete_revoke(0, [P])
            owned = False
            assert not [o for o in done if o in group], "the next owner repeats it"
        elif step == "other" and not owned and not batch:
            low = group.committed()
            if low < end:
                group = group.trim(min(end, low + number))  # all of it is processed
                done |= {o for o in range(end) if o not in group} - unsure
        elif step == "restart" and not batch:
            positions, gaps = query.marks.positions(), query.gaps_left()
            query = QueryAssignment()
            query.restore(positions, gaps)
            owned = False
        skipped = [o for o in range(end) if o not in group and o not in done | unsure]
        assert not skipped, "the group is not owed what nobody has read"


def known(query: QueryAssignment) -> Remaining:
    return query.commits.remaining([P])[P]
