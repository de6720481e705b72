"""OffsetCommits with commits by hand, losses and moves back: what lands at the broker, in order.

Each call gets a number, which travels as the commit's metadata. The model replays the calls that
count one after the other, as if each were sent at once to a broker that always answers.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from kafka.structs import OffsetAndMetadata, TopicPartition

from pyspark_kafka_rebalance.consumer.commits.commit_by_hand import CommitByHand
from pyspark_kafka_rebalance.consumer.commits.offset_commits import OffsetCommits

PARTITIONS = [TopicPartition("t", n) for n in range(2)]
partitions = st.sampled_from(PARTITIONS)
offsets = st.integers(0, 12)
some_offsets = st.dictionaries(partitions, offsets, min_size=1)


@dataclass
class Call:
    """What the application said, or what happened, of one partition."""

    number: int
    kind: str  # "background", "by hand", "back", "sought", "truncated"
    offset: int
    by_hand: CommitByHand | None = None


class EveryCommitInOneOrder(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.commits = OffsetCommits()
        self.number = 0
        self.calls: dict[TopicPartition, list[Call]] = {p: [] for p in PARTITIONS}  # while owned
        self.landed: dict[TopicPartition, list[Call]] = {p: [] for p in PARTITIONS}  # likewise
        self.stale: set[TopicPartition] = set()  # in flight, and dropped since
        self.in_flight: dict[TopicPartition, OffsetAndMetadata] = {}
        self.by_hand: CommitByHand | None = None

    def note(self, partition: TopicPartition, kind: str, offset: int) -> Call:
        self.number += 1
        self.calls[partition].append(Call(self.number, kind, offset))
        return self.calls[partition][-1]

    # -- the application --------------------------------------------------------------------------

    @rule(said=some_offsets)
    def processed(self, said: dict[TopicPartition, int]) -> None:
        calls = {p: self.note(p, "background", offset) for p, offset in said.items()}
        self.commits.add({p: entry(call) for p, call in calls.items()})

    @rule(said=some_offsets)
    def commit(self, said: dict[TopicPartition, int]) -> None:
        calls = {p: self.note(p, "by hand", offset) for p, offset in said.items()}
        by_hand = CommitByHand({p: entry(call) for p, call in calls.items()})
        for call in calls.values():
            call.by_hand = by_hand
        self.commits.enter(by_hand)

    @rule(data=st.data())
    def give_up_waiting(self, data: st.DataObject) -> None:
        """What is in flight cannot be recalled."""
        waiting = [b for b in self.commits.all_by_hand() if b is not self.by_hand]
        if waiting:
            self.withdrawn(data.draw(st.sampled_from(waiting)))

    def withdrawn(self, by_hand: CommitByHand) -> None:
        """What was accepted of it counts; of the rest nobody knows whether it has landed."""
        self.commits.withdraw(by_hand)
        for p in by_hand.offsets:
            for told_of in (self.calls, self.landed):
                told_of[p] = [call for call in told_of[p] if call.by_hand is not by_hand]

    # -- the partitions ---------------------------------------------------------------------------

    @rule(partition=partitions, offset=offsets)
    def position_moves_back(self, partition: TopicPartition, offset: int) -> None:
        self.note(partition, "back", offset)
        self.commits.move_back(partition, offset)

    @rule(partition=partitions, offset=offsets)
    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Nothing came from there yet: the next seek may take it back."""
        self.note(partition, "sought", offset)
        self.commits.seek(partition, offset)

    @rule(partition=partitions, offset=offsets)
    def truncation(self, partition: TopicPartition, offset: int) -> None:
        self.note(partition, "truncated", offset)
        self.commits.truncate(partition, offset)

    @rule(partition=partitions)
    def lost(self, partition: TopicPartition) -> None:
        dropped = self.commits.drop([partition])
        for by_hand in dropped:
            assert partition in by_hand.offsets
            assert by_hand is not self.by_hand
            self.withdrawn(by_hand)
        self.calls[partition], self.landed[partition] = [], []
        if partition in self.in_flight:
            self.stale.add(partition)

    # -- the coordinator --------------------------------------------------------------------------

    @precondition(lambda self: not self.in_flight)
    @rule()
    def send(self) -> None:
        self.in_flight = self.commits.take()
        self.by_hand = self.commits.sent_by_hand

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data(), gives_up=st.booleans())
    def answer(self, data: st.DataObject, gives_up: bool) -> None:
        answers = data.draw(
            st.fixed_dictionaries(
                {p: st.sampled_from(["accepted", "refused", "unheard"]) for p in self.in_flight}
            )
        )
        for partition, told in answers.items():
            if told != "refused" and partition not in self.stale:
                self.land(partition, self.in_flight[partition])
        by_hand = self.by_hand
        self.commits.acknowledge([p for p, told in answers.items() if told == "accepted"])
        if by_hand is not None and by_hand.offsets and (gives_up or by_hand.lost):
            self.withdrawn(by_hand)
        self.commits.retry()
        self.in_flight, self.stale, self.by_hand = {}, set(), None

    def land(self, partition: TopicPartition, sent: OffsetAndMetadata) -> None:
        """The broker has it: is it what may come next?"""
        (call,) = (c for c in self.calls[partition] if str(c.number) == sent.metadata)
        assert call.offset == sent.offset
        before = self.landed[partition]
        self.landed[partition] = [*before, call]
        if not before or before[-1] is call:
            return
        last = before[-1]
        if call.kind == "by hand":
            assert call.number > last.number or last.kind == "background", "in another order"
        elif last.kind == "by hand":
            assert call.number > last.number, "an older one landed after it"
        if call.kind == "background" and call.offset <= last.offset:
            moves = [
                move
                for move in self.calls[partition]
                if move.kind in ("back", "sought", "truncated")
                and last.number < move.number < call.number
                and move.offset <= call.offset
            ]
            assert moves, "moved back"

    # -- what always holds ------------------------------------------------------------------------

    @invariant()
    def what_is_gone_does_not_wait(self) -> None:
        for partition in PARTITIONS:
            if not self.calls[partition] and partition not in self.in_flight:
                assert not self.commits.outstanding(partition)

    def teardown(self) -> None:
        """At last the group stands where the calls, one by one, would put it."""
        for partition in self.in_flight.keys() - self.stale:
            self.land(partition, self.in_flight[partition])
        self.commits.acknowledge(self.in_flight)
        if self.by_hand is not None and self.by_hand.offsets:
            self.commits.withdraw(self.by_hand)
        self.commits.retry()
        for _ in range(self.number + 2):
            taken = self.commits.take()
            for partition, sent in taken.items():
                self.land(partition, sent)
            self.commits.acknowledge(taken)
            self.commits.retry()
        assert not self.commits.any_outstanding()
        for partition, calls in self.calls.items():
            if any(call.kind == "truncated" for call in calls):
                continue  # what waited then is forgotten, what was sent before is not
            landed = self.landed[partition]
            assert (landed[-1].offset if landed else None) == replayed(calls)
            assert self.commits.acknowledged(partition) == replayed(calls)


def entry(call: Call) -> OffsetAndMetadata:
    return OffsetAndMetadata(call.offset, str(call.number), -1)


def replayed(calls: list[Call]) -> int | None:
    """Where the group stands after these calls."""
    stands: int | None = None
    floor = -1
    sought: int | None = None
    for call in calls:
        if call.kind == "sought":
            sought = call.offset
            continue
        if call.kind != "background":
            sought = None
        elif sought is not None and call.offset >= sought:  # something of there, or beyond
            floor, sought = min(floor, sought - 1), None
        if call.kind in ("back", "truncated"):
            floor = min(floor, call.offset - 1)
        elif call.kind == "by hand" or call.offset > floor:
            stands = floor = call.offset
    return stands


TestEveryCommitInOneOrder = EveryCommitInOneOrder.TestCase


P = PARTITIONS[0]


def sent(commits: OffsetCommits) -> int | None:
    """Send what waits, and have it acknowledged."""
    taken = commits.take()
    commits.acknowledge(taken)
    commits.retry()
    return taken[P].offset if taken else None


def at_100() -> OffsetCommits:
    commits = OffsetCommits()
    commits.add({P: 100})
    assert sent(commits) == 100
    return commits


def test_a_seek_that_another_takes_back_has_moved_nothing() -> None:
    commits = at_100()
    commits.seek(P, 10)
    commits.seek(P, 150)
    commits.add({P: 20})
    assert sent(commits) is None
    commits.seek(P, 10)
    commits.add({P: 20})
    assert sent(commits) == 20, "from the new position on"
    commits.add({P: 15})
    assert sent(commits) is None, "and forward from there"


def test_what_is_below_a_seek_back_is_not_committed() -> None:
    commits = at_100()
    commits.seek(P, 40)
    commits.add({P: 20})
    assert sent(commits) is None
    commits.move_back(P, 40)
    commits.add({P: 20})
    assert sent(commits) is None
    commits.add({P: 41})
    assert sent(commits) == 41


def test_a_commit_by_hand_below_what_waits_moves_the_group_back() -> None:
    """As it does once that was sent: the same calls are obeyed alike."""
    commits = OffsetCommits()
    commits.add({P: 100})
    by_hand = CommitByHand({P: 60})
    commits.enter(by_hand)
    assert sent(commits) == 60
    assert by_hand.moved_back == {P}


def test_gaps_do_not_move_a_group_back_that_began_higher() -> None:
    commits = OffsetCommits()
    commits.begin(P, 50, described=False)
    commits.seek(P, 10)
    commits.repeat({P: 10})
    assert sent(commits) is None
    commits.repeat({P: 50})
    assert sent(commits) == 50


def test_gaps_do_not_undo_a_rewind_by_hand_after_a_seek() -> None:
    commits = at_100()
    commits.enter(CommitByHand({P: 10}))
    assert sent(commits) == 10
    commits.seek(P, 40)
    commits.repeat({P: 40})
    assert sent(commits) is None
    commits.move_back(P, 40)
    commits.add({P: 41})
    assert sent(commits) == 41


def test_where_a_partition_starts_nothing_replaces_what_the_application_has_described() -> None:
    commits = OffsetCommits()
    commits.begin(P, 50, described=True)
    commits.add({P: 50})
    assert sent(commits) is None
    commits.add({P: 51})
    assert sent(commits) == 51


def test_a_commit_by_hand_takes_the_place_of_where_a_partition_starts() -> None:
    commits = OffsetCommits()
    commits.begin(P, 50, described=False)
    commits.enter(CommitByHand({P: 20}))
    assert sent(commits) == 20
    commits.begin(P, 50, described=False)
    commits.add({P: 30})
    assert sent(commits) == 30
