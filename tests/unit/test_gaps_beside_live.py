"""A backlog read beside the live records, against a model of plain sets (KIP-333).

The model knows no ranges: it keeps which records exist and which were ever processed. Owners crash
at any time and forget everything that they have not committed. What must hold:

 1. A record that exists and is not processed is handed out by this owner, or is still to be.
 2. The group's offset is never past one that is not processed, and its metadata leave none out.
 3. What a commit told to be processed is not handed out again.
 4. In order, nothing is handed out before what is lower.
"""

from __future__ import annotations

import pytest
from histories import histories
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance import PartitionsLostError
from pyspark_kafka_rebalance.consumer.catch_up import CatchUpOptions
from pyspark_kafka_rebalance.consumer.offsets.commit_metadata import Remaining
from pyspark_kafka_rebalance.consumer.offsets.offset_set import Gap, holding
from pyspark_kafka_rebalance.consumer.progress.completion import Completion

P = TopicPartition("t", 0)
counts = st.integers(1, 6)


class Backlogs(RuleBasedStateMachine):
    """Owners of one partition, one after the other; no backlog is too short to be set aside."""

    in_order = False

    def __init__(self) -> None:
        super().__init__()
        self.log: set[int] = set()
        self.end = 0
        self.processed: set[int] = set()
        self.group = (0, "")
        self.told: set[int] = set()  # to be processed, by the group's commit
        self.take_over()

    # -- the log ----------------------------------------------------------------------------------

    @initialize(exist=st.lists(st.booleans(), min_size=4, max_size=12))
    def begin(self, exist: list[bool]) -> None:
        self.produce(exist)
        self.take_over()
        self.produce(exist)
        self.poll(2)
        self.read_gaps(2, 0)

    @rule(exist=st.lists(st.booleans(), min_size=1, max_size=8))
    def produce(self, exist: list[bool]) -> None:
        """Some offsets are marks of transactions, or were compacted."""
        self.log |= {self.end + n for n, there in enumerate(exist) if there}
        self.end += len(exist)

    # -- owners -----------------------------------------------------------------------------------

    def take_over(self) -> None:
        self.completion = Completion()
        left = Remaining.decode(*self.group, "t").remaining
        options = CatchUpOptions(self.in_order, threshold=0)
        aside = options.set_aside(left, self.end) or Remaining(self.end)
        assert {o for o in self.log if o in aside} == self.log - self.told, "as the commit told"
        self.completion.partition(P).completion.set_aside(aside, self.in_order)
        self.live_from = self.fetch_from = aside.live
        self.processed = set(self.told)
        self.handed_out: set[int] = set()
        self.last = -1
        self.by_hand: tuple[tuple[Gap, ...], set[int]] | None = None

    @rule(count=counts)
    def poll(self, count: int) -> None:
        if self.in_order and self.completion.unread(P):
            return  # held back
        found = sorted(o for o in self.log if o >= self.fetch_from)[:count]
        if found:
            self.fetch_from = found[-1] + 1
            self.brought(found)
            self.completion.partition(P).hand_out(found)

    @rule(count=counts, beyond=st.integers(0, 3))
    def read_gaps(self, count: int, beyond: int) -> None:
        """Lowest first; the reader may have got to beyond the last record that it found."""
        if unread := self.completion.unread(P):
            at = unread[0].start
            found = sorted(o for o in self.log if o >= at)[:count]
            passed = found[-1] + 1 if found else self.end
            if len(found) == count:
                later = [o for o in self.log if o >= passed]
                passed = min([passed + beyond, self.end, *later])
            wanted = [o for o in found if holding(unread, o)]
            self.brought(wanted)
            catching_up = self.completion.catching_up(P)
            assert catching_up is not None
            catching_up.catch_up(wanted, passed)

    def brought(self, offsets: list[int]) -> None:
        assert not self.told & set(offsets), "told to be processed, and handed out"
        assert not self.handed_out & set(offsets), "handed out twice"
        if self.in_order and offsets:
            assert self.last < offsets[0]
            self.last = offsets[-1]
        self.handed_out |= set(offsets)

    @precondition(lambda self: self.handed_out)
    @rule(data=st.data())
    def workers_finish(self, data: st.DataObject) -> None:
        done = data.draw(st.sets(st.sampled_from(sorted(self.handed_out)), min_size=1))
        self.completion.complete(P, done)
        self.processed |= done

    @rule(offset=st.integers(0, 60))
    def a_worker_names_what_it_was_not_given(self, offset: int) -> None:
        # What does not exist, and was passed by, nobody names; it is not remembered.
        if holding(self.completion.unread(P), offset) or offset in self.log - self.handed_out:
            with pytest.raises((ValueError, PartitionsLostError)):
                self.completion.complete(P, [offset])

    def said_by(self, offset: int) -> set[int]:
        """A commit of a next offset speaks of the part that holds the record before it."""
        above = 0 if self.in_order or offset <= self.live_from else self.live_from
        return {o for o in self.handed_out if above <= o < offset}

    @rule(data=st.data())
    def commit_processed(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from([*(o + 1 for o in self.handed_out), self.live_from]))
        if self.completion.catching_up(P) is None:
            return  # as ever; test_out_of_order_commits.py
        self.processed |= self.said_by(offset)
        reached = self.completion.complete_below({P: offset})
        assert reached == {P: self.completion.position(P)}

    @precondition(lambda self: self.by_hand is None)
    @rule(data=st.data())
    def commit_by_hand(self, data: st.DataObject) -> None:
        """What it says counts for the commit itself, and else from its answer on."""
        found = self.completion.catching_up(P)
        if found is None:
            return
        offset = data.draw(st.sampled_from([*(o + 1 for o in self.handed_out), self.live_from]))
        claims, said = found.aside.claimed_by(offset), self.said_by(offset)
        claimed = found.with_processed(claims)
        assert claimed.position is not None
        before, self.processed = self.processed, self.processed | said
        self.commit_at(claimed.position, *claimed.remaining(claimed.position))
        self.processed = before
        self.by_hand = claims, said

    @precondition(lambda self: self.by_hand is not None)
    @rule()
    def is_answered(self) -> None:
        assert self.by_hand is not None
        (claims, said), self.by_hand = self.by_hand, None
        found = self.completion.catching_up(P)
        if found is not None:
            found.pending.discard_all(claims)
            self.processed |= said

    @precondition(lambda self: self.by_hand is None)
    @rule(limit=st.sampled_from([4_096, 4_096, 26, 0]))
    def commit(self, limit: int) -> None:
        position = self.completion.position(P)
        if position is not None:
            self.commit_at(position, *self.completion.remaining(P, position), limit)

    def commit_at(
        self, offset: int, remaining: Remaining, leader_epoch: int, limit: int = 4_096
    ) -> None:
        assert remaining.committed() == offset
        metadata = remaining.encode(limit, "t", leader_epoch)
        self.group = (offset, metadata)
        told = Remaining.decode(*self.group, "t").remaining
        self.told = {o for o in self.log if o not in told}
        assert self.told <= self.processed, "lost"
        if limit == 4_096 and self.completion.catching_up(P):
            assert self.told == self.processed & self.log

    @rule()
    def crash(self) -> None:
        self.take_over()

    # -- what always holds ------------------------------------------------------------------------

    @invariant()
    def what_is_not_processed_is_still_to_come_or_in_processing(self) -> None:
        unread = self.completion.unread(P)
        to_come = {o for o in self.log if o >= self.fetch_from or holding(unread, o)}
        assert self.log - self.processed <= to_come | self.handed_out
        assert not to_come & self.handed_out
        pending = self.completion.pending()
        assert pending == ({P} if self.handed_out - self.processed else set())


class BacklogsInOrder(Backlogs):
    """ "ordered": the live records are held back until the gaps are handed out."""

    in_order = True


for machine in (Backlogs, BacklogsInOrder):
    machine.TestCase.settings = settings(
        deadline=None, max_examples=histories(80), stateful_step_count=20
    )

TestBacklogs = Backlogs.TestCase
TestBacklogsInOrder = BacklogsInOrder.TestCase


# -- what else happens to a partition -------------------------------------------------------------


def behind(in_order: bool = False) -> Completion:
    """The gaps [70, 120) and [300, 310) and live records from 4,000 on; some of each handed out."""
    completion = Completion()
    completion.partition(P).completion.set_aside(
        Remaining(4_000, (Gap(70, 120), Gap(300, 310))), in_order
    )
    completion.catching_up(P).catch_up(range(70, 90), 90)  # type: ignore[union-attr]
    if not in_order:
        completion.partition(P).hand_out(range(4_000, 4_010))
    return completion


def told(completion: Completion) -> tuple[Gap, ...]:
    position = completion.position(P)
    assert position is not None
    return completion.remaining(P, position)[0].between(0, 5_000)


def test_a_commit_in_the_live_part_says_nothing_of_the_gaps() -> None:
    completion = behind()
    assert completion.complete_below({P: 4_005}) == {P: 70}
    assert told(completion) == (Gap(70, 120), Gap(300, 310), Gap(4_005, 5_000))


def test_a_commit_at_the_boundary_is_one_of_the_gap() -> None:
    completion = behind()
    completion.catching_up(P).catch_up([305], 4_000)  # type: ignore[union-attr]
    assert completion.complete_below({P: 4_000}) == {P: 4_000}
    assert completion.catching_up(P) is None
    assert completion.complete_below({P: 4_005}) == {P: 4_005}


def test_in_order_a_commit_speaks_of_everything_below() -> None:
    completion = behind(in_order=True)
    completion.catching_up(P).catch_up([305], 4_000)  # type: ignore[union-attr]
    completion.partition(P).hand_out(range(4_000, 4_010))
    assert completion.complete_below({P: 4_005}) == {P: 4_005}


def test_a_late_worker_of_the_owner_before_is_not_believed_about_what_is_unread() -> None:
    completion = behind()
    completion.forget([P])
    completion.partition(P).completion.set_aside(Remaining(4_000, (Gap(70, 120),)), False)
    for offset in (70, 4_005):
        with pytest.raises(PartitionsLostError):
            completion.complete(P, [offset])
    assert completion.position(P) == 70


def behind_once_more() -> Completion:
    """Lost, and what was live is in a gap now, all of which is in processing."""
    completion = behind()
    completion.forget([P])
    completion.partition(P).completion.set_aside(
        Remaining(4_010, (Gap(70, 120), Gap(4_000, 4_010))), False
    )
    completion.catching_up(P).catch_up(range(70, 120), 120)  # type: ignore[union-attr]
    completion.catching_up(P).catch_up(range(4_000, 4_010), 4_010)  # type: ignore[union-attr]
    return completion


def test_a_late_worker_of_live_records_does_not_speak_of_the_gap_that_they_are_in_since() -> None:
    completion = behind_once_more()
    for late in (4_003, 4_010):
        completion.refuse_truncated({P: late}, {P: 4_010})
        assert completion.complete_below({P: late}) == {P: 70}
        assert told(completion) == (Gap(70, 120), Gap(late, 5_000))
    assert completion.complete_below({P: 4_010}) == {P: 4_010}, "who says it again is of now"


def test_what_is_said_of_live_records_of_now_says_nothing_of_those_of_before() -> None:
    completion = behind_once_more()
    completion.partition(P).hand_out(range(4_010, 4_020))
    assert completion.complete_below({P: 4_020}) == {P: 70}
    assert completion.complete_below({P: 4_010}) == {P: 70}
    assert told(completion) == (Gap(70, 120), Gap(4_020, 5_000))


def test_nor_does_it_where_nothing_is_set_aside_any_more() -> None:
    completion = behind()
    completion.forget([P])
    completion.partition(P).hand_out(range(70, 4_010))
    assert completion.complete_below({P: 4_010}) == {P: 70}
    assert completion.complete_below({P: 3_000}) == {P: 3_000}
    assert completion.complete_below({P: 4_010}) == {P: 4_010}


@pytest.mark.parametrize("when", ["lost", "over", "assigned"])
def test_who_was_refused_since_is_not_heard_again(when: str) -> None:
    completion = behind()
    if when == "lost":
        completion.refused(P, 4_010)
    completion.forget([P])
    if when == "over":
        completion.refused(P, 4_010)
    completion.partition(P).completion.set_aside(Remaining(4_010, (Gap(70, 4_010),)), False)
    if when == "assigned":
        with pytest.raises(PartitionsLostError):
            completion.refuse_truncated({P: 4_010}, {P: 4_010})
    completion.catching_up(P).catch_up(range(70, 4_010), 4_010)  # type: ignore[union-attr]
    assert completion.complete_below({P: 4_010}) == {P: 4_010}


@pytest.mark.parametrize("what", ["gaps", "live", "in order"])
def test_where_no_live_record_was_in_processing_beside_a_gap_nobody_is_awaited(what: str) -> None:
    completion = behind(in_order=what == "in order")
    if what == "gaps":
        completion.catching_up(P).catch_up([305], 4_000)  # type: ignore[union-attr]
        completion.complete(P, [*range(70, 90), 305])
    elif what == "live":
        completion.complete_below({P: 4_010})
    completion.forget([P])
    completion.partition(P).hand_out(range(70, 4_010))
    assert completion.complete_below({P: 4_010}) == {P: 4_010}


def test_a_seek_leads_the_live_reader_and_leaves_the_gaps_below() -> None:
    completion = behind()
    completion.partition(P).seek(100)
    assert completion.unread(P) == [Gap(90, 100)]
    assert completion.position(P) == 70
    completion.partition(P).hand_out(range(100, 105))
    assert completion.complete_below({P: 105}) == {P: 70}, "the live part begins there now"
    assert told(completion) == (Gap(70, 100), Gap(105, 5_000))
    completion.partition(P).seek(4_005)
    assert completion.unread(P) == [Gap(90, 100)], "a seek forward takes nothing from them"
    completion.partition(P).seek(None)
    assert completion.unread(P) == []


def test_in_order_a_seek_ends_the_catching_up() -> None:
    completion = behind(in_order=True)
    completion.partition(P).seek(100)
    assert completion.unread(P) == []
    completion.partition(P).hand_out(range(100, 110))
    assert completion.complete(P, range(70, 90)) == 100
    assert completion.complete(P, range(100, 110)) == 110


def test_where_a_log_became_shorter_the_gaps_end_too() -> None:
    completion = behind()
    assert completion.partition(P).truncated_at(100)
    completion.partition(P).truncate(100)
    assert completion.unread(P) == [Gap(90, 100)]
    assert completion.complete(P, range(70, 90)) == 90
    completion.partition(P).truncate(0)
    assert completion.unread(P) == []


def test_what_of_a_gap_cannot_be_read_is_left_to_who_is_next() -> None:
    completion = behind()
    completion.catching_up(P).leave_out(90, 91)  # type: ignore[union-attr]
    assert completion.unread(P) == [Gap(91, 120), Gap(300, 310)]
    completion.complete(P, range(71, 90))
    assert told(completion)[:2] == (Gap(70, 71), Gap(90, 120))


def test_what_is_in_the_gaps_goes_with_the_partition() -> None:
    completion = behind()
    completion.complete(P, [4_000, *range(70, 90)])
    completion.leave([P])
    assert completion.unread(P) == ()
    remaining, _ = completion.remaining(P, 90)
    assert remaining.between(0, 5_000) == (Gap(90, 120), Gap(300, 310), Gap(4_001, 5_000))


def test_a_commit_speaks_of_nothing_that_is_handed_out_after_it() -> None:
    catching_up = behind().catching_up(P)
    assert catching_up is not None
    assert catching_up.aside.claimed_by(4_000) == (Gap(0, 90), Gap(120, 300), Gap(310, 4_000))
    assert catching_up.aside.claimed_by(4_005) == (Gap(4_000, 4_005),)
    assert catching_up.with_processed([Gap(70, 80)]).position == 80
    assert catching_up.position == 70
