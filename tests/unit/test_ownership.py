"""Ownership against a model that is written from KIP-983's text, and examples to read.

The model moves no lists about. Of every owned partition it knows what is to become of it: in which
poll its revoke is to be completed, which is what the KIP promises its users, when it is lost at the
latest, and whether the application has given it up. Quoted is the sentence that a rule or a check
comes from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pytest
from histories import ALWAYS_THE_SAME, histories
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.consumer.membership.ownership import Ownership, Step

PARTITIONS = [TopicPartition("t", n) for n in range(4)]
TIMEOUT_S = 5

some_partitions = st.sets(st.sampled_from(PARTITIONS))
one_partition = st.sampled_from(PARTITIONS).map(lambda partition: {partition})


@dataclass
class Fate:
    """What is to become of an owned partition."""

    completed_in: float = math.inf  # the number of the poll
    deadline: float = math.inf
    given_up: bool = False


class AgainstTheKip(RuleBasedStateMachine):
    """A group that gives and takes partitions, and an application that polls and delays."""

    @initialize(defer_revoke=st.sampled_from([True, True, False]))
    def begin(self, defer_revoke: bool) -> None:
        self.defer_revoke = defer_revoke
        self.ownership = Ownership(TIMEOUT_S, defer_revoke)
        self.now = 0
        self.poll_number = 0
        self.generation = -1
        self.fates: dict[TopicPartition, Fate] = {}
        self.lost_in: dict[TopicPartition, int] = {}  # the last poll in which it was lost
        self.completed_in: dict[TopicPartition, int] = {}  # by the start of a poll
        self.added_in: dict[TopicPartition, int] = {}

    # What the model says.

    def those(self, is_so: Callable[[Fate], bool]) -> set[TopicPartition]:
        return {p for p, fate in self.fates.items() if is_so(fate)}

    def requested(self) -> set[TopicPartition]:
        return self.those(lambda fate: fate.completed_in < math.inf)

    def overdue(self) -> set[TopicPartition]:
        return self.those(lambda fate: fate.deadline <= self.now)

    def of_this_poll(self, polls: dict[TopicPartition, int]) -> set[TopicPartition]:
        return {p for p, number in polls.items() if number == self.poll_number}

    def gives_up(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self.fates[partition].given_up = True
            self.fates[partition].completed_in = math.inf

    def loses(self, partitions: Iterable[TopicPartition]) -> None:
        self.lost_in |= dict.fromkeys(partitions, self.poll_number)

    def completes(self, step: Step, completed: set[TopicPartition]) -> None:
        """As the consumer executes it; the listener may commit in between."""
        assert step.revoked == completed
        assert completed <= self.ownership.assignment
        assert not completed & self.ownership.revoking
        assert step.owned == self.fates.keys()
        going = self.requested() | self.those(lambda fate: fate.given_up)
        assert step.gated == self.ownership.gated == going | completed
        self.ownership.give_up(step.revoked)
        self.gives_up(completed)

    # What happens.

    @rule(times=st.integers(1, 3))
    def polls(self, times: int) -> None:
        for _ in range(times):
            self.poll(set())

    @rule(gone=one_partition)
    def poll(self, gone: set[TopicPartition]) -> None:
        """ "complete the revoke of all partitions on the revoke-next list, then empty the list";
        "The deadline is when the partition is lost": that one is not completed."""
        self.poll_number += 1
        step = self.ownership.begin(gone, self.now)
        gone &= self.fates.keys()
        self.loses(gone)
        for partition in gone:
            del self.fates[partition]
        assert step.lost == gone
        assert step.return_early == bool(gone)
        due = self.those(lambda fate: fate.completed_in == self.poll_number) - self.overdue()
        self.completed_in |= dict.fromkeys(due, self.poll_number)
        self.completes(step, due)
        self.deadlines_pass()

    @rule(seconds=st.integers(1, TIMEOUT_S))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds

    @rule()
    def deadlines_pass(self) -> None:
        """ "a partition is lost when a consumer takes too long to release control of the
        partition": also one that is given up, whose commit is not answered."""
        overdue = self.overdue()
        step = self.ownership.overdue(self.now)
        assert step.lost == overdue
        assert step.return_early == bool(overdue)
        self.loses(overdue)
        self.gives_up(overdue)
        for partition in overdue:
            self.fates[partition].deadline = math.inf

    @precondition(lambda self: not self.of_this_poll(self.lost_in))
    @rule(partitions=some_partitions)
    def assigned(self, partitions: set[TopicPartition]) -> None:
        """ "when a revoke is requested in one poll, the revoke will be completed in the next poll";
        once more of the same changes nothing. What is wanted again stays, unless it is given up."""
        self.generation += 1
        held = self.those(lambda fate: not fate.given_up)
        requested = held - partitions - self.requested()
        added = partitions - self.fates.keys()
        for partition in self.requested() & partitions:
            self.fates[partition] = Fate()
        for partition in requested:
            self.fates[partition] = Fate(self.poll_number + 1, self.now + TIMEOUT_S)
        self.fates |= {partition: Fate() for partition in added}
        self.added_in |= dict.fromkeys(added, self.poll_number)
        step = self.ownership.assigned(frozenset(partitions), self.generation, self.now)
        assert step.added == added
        assert step.return_early == (self.defer_revoke and bool(requested))
        self.completes(step, set() if self.defer_revoke else requested)

    @precondition(lambda self: not self.of_this_poll(self.lost_in))
    @rule(taken=some_partitions)
    def takes_some(self, taken: set[TopicPartition]) -> None:
        """A request of a revoke, as rebalances mostly bring."""
        self.assigned(self.those(lambda fate: not fate.given_up) - taken)

    @precondition(lambda self: self.of_this_poll(self.lost_in))
    @rule(partitions=some_partitions)
    def assigned_in_the_poll_of_a_loss(self, partitions: set[TopicPartition]) -> None:
        with pytest.raises(ValueError, match="lost"):
            self.ownership.assigned(frozenset(partitions), self.generation + 1, self.now)

    @rule(partitions=one_partition)
    def lose(self, partitions: set[TopicPartition]) -> None:
        """ "When a partitions is lost, it is removed from the revoke-next and revoke-thereafter
        lists, and added to the list of lost partitions"."""
        step = self.ownership.lose(partitions)
        partitions &= self.fates.keys()
        self.loses(partitions)
        for partition in partitions:
            del self.fates[partition]
        assert step.lost == partitions
        assert step.return_early == bool(partitions)

    @rule(partitions=some_partitions)
    def delay(self, partitions: set[TopicPartition]) -> None:
        """ "request revoke for given partitions to be delayed to the poll following the next
        poll": once for each poll, however often it is asked."""
        for partition in partitions & self.requested():
            self.fates[partition].completed_in = self.poll_number + 2
        self.ownership.delay(partitions)

    @rule()
    def delay_all(self) -> None:
        self.delay(self.requested())

    @rule(outstanding=some_partitions)
    def commits_are_answered(self, outstanding: set[TopicPartition]) -> None:
        """ "revoke completed the consumer has released control of the partition, another consumer
        may start consuming"."""
        released = self.those(lambda fate: fate.given_up) - outstanding
        step = self.ownership.drained(outstanding)
        assert step.released == released
        assert step.owned == self.fates.keys() - released
        for partition in released:
            del self.fates[partition]

    @precondition(lambda self: self.poll_number % 8 == 7)
    @rule()
    def unsubscribe(self) -> None:
        self.ownership.forget_all()
        self.fates.clear()
        self.lost_in.clear()
        self.completed_in.clear()
        self.added_in.clear()

    # What must hold whenever somebody looks.

    @invariant()
    def the_lists_are_the_models(self) -> None:
        next_poll = self.poll_number + 1
        assert self.ownership.to_be_revoked == self.those(lambda f: f.completed_in == next_poll)
        assert self.ownership.revoking == self.requested()
        assert self.ownership.lost == self.of_this_poll(self.lost_in)
        assert self.ownership.revoked == self.of_this_poll(self.completed_in)
        added = self.of_this_poll(self.added_in) - self.of_this_poll(self.lost_in)
        assert self.ownership.added == added
        assert self.ownership.generation == self.generation

    @invariant()
    def the_assignment_is_the_models(self) -> None:
        given_up = self.those(lambda fate: fate.given_up)
        assert self.ownership.owned == self.fates.keys()
        assert self.ownership.assignment == self.fates.keys() - given_up
        assert self.ownership.releasing == given_up
        assert self.ownership.gated == given_up | self.requested()
        overdue = {p for p in PARTITIONS if self.ownership.is_overdue(p, self.now)}
        assert overdue == self.overdue()

    @invariant()
    def nothing_is_lost_and_assigned(self) -> None:
        assert not self.ownership.lost & self.ownership.assignment
        assert not self.ownership.lost & self.ownership.revoking
        assert not self.ownership.lost & self.ownership.added


AgainstTheKip.TestCase.settings = settings(
    max_examples=histories(400), stateful_step_count=40, derandomize=ALWAYS_THE_SAME, deadline=None
)
TestAgainstTheKip = AgainstTheKip.TestCase


# Examples

A, B, C = (TopicPartition("t", n) for n in range(3))
ALL = frozenset({A, B, C})


def owning(*partitions: TopicPartition, defer_revoke: bool = True) -> Ownership:
    ownership = Ownership(TIMEOUT_S, defer_revoke)
    ownership.begin((), now=0)
    ownership.assigned(frozenset(partitions), generation=1, now=0)
    return ownership


def poll(ownership: Ownership, *lost: TopicPartition, now: float = 0) -> Step:
    """The start of a poll, as the consumer executes it with a listener that does nothing."""
    step = ownership.begin(lost, now)
    ownership.give_up(step.revoked)
    ownership.overdue(now)
    return step


def test_the_lists_move_as_in_the_kip() -> None:
    ownership = owning(A, B, C)

    def lists() -> list[set[TopicPartition]]:
        next_list = ownership.to_be_revoked
        thereafter = ownership.revoking - next_list
        return [set(ownership.revoked), set(next_list), set(thereafter), set(ownership.lost)]

    # fmt: off
    #                                                        revoked  next    thereafter  lost
    table = [
        (lambda: ownership.assigned(frozenset({C}), 2, now=0), [set(), {A, B}, set(), set()]),
        (lambda: ownership.delay({A}),                         [set(), {B},    {A},   set()]),
        (lambda: poll(ownership),                              [{B},   {A},    set(), set()]),
        (lambda: ownership.delay({A}),                         [{B},   set(),  {A},   set()]),
        (lambda: poll(ownership),                              [set(), {A},    set(), set()]),
        (lambda: ownership.lose({C}),                          [set(), {A},    set(), {C}]),
        (lambda: poll(ownership),                              [{A},   set(),  set(), set()]),
        (lambda: poll(ownership),                              [set(), set(),  set(), set()]),
    ]
    # fmt: on
    for event, expected in table:
        event()
        assert lists() == expected


def test_what_is_lost_between_two_polls_is_not_completed() -> None:
    ownership = owning(A, B, C)
    ownership.assigned(frozenset({C}), generation=2, now=0)
    step = poll(ownership, A)
    assert step.revoked == {B}
    assert ownership.lost == {A}
    assert ownership.assignment == {C}


def test_the_listener_that_is_told_of_a_revoke_may_still_commit() -> None:
    ownership = owning(A, B)
    ownership.assigned(frozenset({B}), generation=2, now=0)
    step = ownership.begin((), now=0)
    assert A in ownership.assignment
    assert A in step.gated, "fetched, although its revoke is being completed"
    ownership.give_up(step.revoked)
    assert ownership.assignment == {B}
    assert ownership.owned == {A, B}, "released without having been drained"


def test_a_partition_is_released_when_its_last_commit_is_answered() -> None:
    ownership = owning(A, B, C)
    ownership.assigned(frozenset({C}), generation=2, now=0)
    poll(ownership)
    step = ownership.drained(outstanding={A})
    assert step.released == {B}
    assert step.owned == {A, C}
    assert ownership.drained(outstanding=()).released == {A}
    assert ownership.drained(outstanding=()).released == frozenset(), "released twice"


def test_at_the_deadline_only_what_is_not_released_is_lost() -> None:
    ownership = owning(A, B, C)
    ownership.assigned(frozenset({C}), generation=2, now=0)
    ownership.delay({A})
    poll(ownership, now=1)
    ownership.drained(outstanding=())
    assert ownership.overdue(now=TIMEOUT_S - 0.5).lost == frozenset()
    step = ownership.overdue(now=TIMEOUT_S)
    assert step.lost == ownership.lost == {A}
    assert step.return_early
    ownership.delay({A})
    assert ownership.revoking == frozenset(), "a delay of what is lost"
    assert ownership.assignment == {C}


def test_what_is_overdue_at_the_start_of_a_poll_is_lost_and_not_completed() -> None:
    ownership = owning(A, B)
    ownership.assigned(frozenset({B}), generation=2, now=0)
    step = ownership.begin((), now=TIMEOUT_S)
    assert step.revoked == frozenset()
    assert ownership.overdue(now=TIMEOUT_S).lost == {A}
    assert ownership.revoked == frozenset()


def test_a_partition_lost_at_its_deadline_is_released_after_the_commit_in_flight() -> None:
    ownership = owning(A, B)
    ownership.assigned(frozenset({B}), generation=2, now=0)
    ownership.overdue(now=TIMEOUT_S)
    assert ownership.drained(outstanding={A}).released == frozenset()
    assert ownership.overdue(now=99).lost == frozenset(), "lost twice"
    assert ownership.drained(outstanding=()).released == {A}


def test_a_completed_revoke_whose_commit_is_not_answered_by_its_deadline_is_lost() -> None:
    ownership = owning(A, B)
    ownership.assigned(frozenset({B}), generation=2, now=0)
    poll(ownership)
    assert ownership.overdue(now=TIMEOUT_S).lost == {A}


def test_a_revoke_that_is_taken_back_has_no_deadline_any_more() -> None:
    ownership = owning(A, B)
    ownership.assigned(frozenset({B}), generation=2, now=0)
    ownership.delay({A})
    step = ownership.assigned(frozenset({A, B}), generation=3, now=1)
    assert step.added == step.gated == frozenset()
    assert ownership.overdue(now=TIMEOUT_S).lost == frozenset()
    assert poll(ownership, now=TIMEOUT_S).revoked == frozenset()
    assert ownership.assignment == {A, B}


def test_what_is_being_released_comes_again_with_a_later_generation() -> None:
    ownership = owning(A, B)
    ownership.assigned(frozenset({B}), generation=2, now=0)
    poll(ownership)
    step = ownership.assigned(frozenset({A, B}), generation=3, now=1)
    assert step.added == frozenset()
    assert step.gated == {A}
    assert ownership.drained(outstanding=()).released == {A}
    assert ownership.assigned(frozenset({A, B}), generation=4, now=1).added == {A}


def test_a_request_repeated_in_a_deferral_does_not_extend_the_deadline() -> None:
    ownership = owning(A, B)
    ownership.assigned(frozenset({B}), generation=2, now=0)
    ownership.delay({A})
    step = ownership.assigned(frozenset({B}), generation=3, now=TIMEOUT_S - 1)
    assert not step.return_early
    assert ownership.to_be_revoked == frozenset(), "the delay was forgotten"
    assert ownership.is_overdue(A, now=TIMEOUT_S)


def test_a_lost_membership_takes_what_is_being_released_along() -> None:
    ownership = owning(A, B)
    ownership.assigned(frozenset({B}), generation=2, now=0)
    poll(ownership)
    assert ownership.lose(ALL).lost == {A, B}
    assert ownership.drained(outstanding=()).released == frozenset()


def test_assigned_and_lost_in_one_poll() -> None:
    ownership = owning(A)
    assert ownership.added == {A}
    assert ownership.lose({A}).owned == frozenset()
    assert ownership.added == frozenset()


def test_assigned_and_overdue_in_one_long_poll() -> None:
    ownership = owning(A)
    ownership.assigned(frozenset(), generation=2, now=0)
    ownership.overdue(now=TIMEOUT_S)
    assert ownership.lost == {A}
    assert ownership.added == frozenset()


def test_without_deferral_a_revoke_completes_in_the_poll_that_learned_of_it() -> None:
    ownership = owning(A, B, defer_revoke=False)
    step = ownership.assigned(frozenset({B, C}), generation=2, now=0)
    assert step.revoked == {A}
    assert step.added == {C}
    assert not step.return_early
    assert ownership.to_be_revoked == frozenset()


def test_a_closed_member_has_nothing_assigned_and_still_owns_what_it_owned() -> None:
    ownership = owning(A, B)
    ownership.assigned(frozenset({B}), generation=2, now=0)
    ownership.give_up(ownership.owned)
    assert ownership.assignment == frozenset()
    assert ownership.owned == {A, B}


def test_the_line_for_the_log_says_how_far_a_rebalance_is() -> None:
    ownership = owning(A, B, C)
    ownership.assigned(frozenset({C}), generation=2, now=10)
    ownership.delay({A})
    poll(ownership, now=12)
    assert ownership.describe(now=12.5, added=0) == (
        "gen=2 assigned=3 (new 0) revoking=2 (drained 1) lost=0 deadline in 2.5 s"
    )
