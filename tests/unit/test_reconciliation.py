"""Reconciliation against a model of the coordinator, written from KIP-848's text.

"The group coordinator ... The member revokes ... it acknowledges the revocation to the group
coordinator": a partition is free for others only once the member has listed what it owns without
it; "the group coordinator gives the member the rebalance timeout"; "a member with the previous
epoch and a subset of its assignment" has lost an answer and is let on, any other is fenced.
"""

from __future__ import annotations

import math
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.consumer.membership.reconciliation import Reconciliation

OLD, NEW = UUID(int=1), UUID(int=2)
P = [TopicPartition("orders", n) for n in range(5)]

REBALANCE_TIMEOUT = 100.0
MARGIN = 10.0


def placed(*numbers: int, topic: UUID = OLD) -> dict[TopicPartition, UUID]:
    return {P[n]: topic for n in numbers}


def joined(*numbers: int) -> Reconciliation:
    """A member that owns these, and the coordinator knows."""
    member = Reconciliation(REBALANCE_TIMEOUT - MARGIN)
    member.retarget(placed(*numbers), member.answered(member.sending(0.0, joining=True)))
    member.own(member.assignable)
    member.answered(member.sending(0.0, joining=False))
    assert member.reconciled
    return member


def test_the_acknowledgement_waits_until_everything_surplus_is_released() -> None:
    member = joined(0, 1, 2)
    member.retarget(placed(0), 1.0)
    assert member.surplus == {P[1], P[2]}
    member.release([P[1]])
    assert not member.acknowledgement_due
    assert member.sending(2.0, joining=False).owned is None
    member.release([P[2]])
    assert member.acknowledgement_due
    assert member.sending(3.0, joining=False).owned == placed(0)


def test_a_topic_created_again_is_assigned_when_the_old_one_is_released() -> None:
    member = joined(0)
    member.retarget(placed(0, topic=NEW), 1.0)
    assert member.surplus == {P[0]}
    assert member.assignable == {}
    member.release([P[0]])
    assert member.missing
    assert member.assignable == placed(0, topic=NEW)


def test_what_cannot_be_named_yet_is_not_acknowledged() -> None:
    member = joined(0)
    member.retarget(placed(0), 1.0, complete=False)
    assert not member.acknowledgement_due
    member.retarget(placed(0, 1), 1.0)
    member.own(member.assignable)
    assert member.acknowledgement_due


def test_the_deadline_counts_from_the_first_heartbeat_without_an_answer() -> None:
    member = joined(0, 1)
    member.sending(5.0, joining=False)
    member.not_answered()
    since = member.answered(member.sending(30.0, joining=False))
    member.retarget(placed(0), since)
    assert member.revoke_by == 5.0 + REBALANCE_TIMEOUT - MARGIN


def test_a_later_target_does_not_put_the_deadline_off() -> None:
    member = joined(0, 1, 2)
    member.retarget(placed(0, 1), 1.0)
    before = member.revoke_by
    member.retarget(placed(0), 50.0)
    assert member.revoke_by == before


def test_at_the_deadline_only_the_surplus_is_given_up() -> None:
    member = joined(0, 1, 2)
    member.retarget(placed(0), 1.0)
    assert member.give_up_overdue(member.revoke_by - 0.1) == frozenset()
    assert member.give_up_overdue(member.revoke_by) == {P[1], P[2]}
    assert member.owned == placed(0)
    assert member.acknowledgement_due
    assert math.isinf(member.revoke_by)


def test_an_answer_to_what_was_listed_before_does_not_acknowledge() -> None:
    member = joined(0, 1)
    member.retarget(placed(0), 1.0)
    member.release([P[1]])
    report = member.sending(2.0, joining=False)
    member.retarget(placed(0, 1), 2.0)
    member.own(member.assignable)
    member.answered(report)
    assert not member.reconciled


class Coordinator:
    """One member's part of a group, as KIP-848 describes the coordinator's side."""

    def __init__(self) -> None:
        self.target: frozenset[TopicPartition] = frozenset()
        self.target_epoch = 1
        self.fence()

    def fence(self) -> None:
        self.epoch = self.previous_epoch = 0
        self.assigned: frozenset[TopicPartition] = frozenset()
        self.pending: frozenset[TopicPartition] = frozenset()
        self.fences_at = math.inf

    def retarget(self, target: frozenset[TopicPartition]) -> None:
        self.target = target
        self.target_epoch += 1

    def heartbeat(
        self, now: float, epoch: int, everything: bool, owned: frozenset[TopicPartition] | None
    ) -> tuple[int, frozenset[TopicPartition] | None] | None:
        """The epoch and maybe an assignment; None fences."""
        if now >= self.fences_at:
            self.fence()
        if epoch == 0:
            assert owned == frozenset(), "whoever joins owns nothing"
            self.fence()
        elif epoch != self.epoch:
            lost_an_answer = (
                epoch == self.previous_epoch and owned is not None and owned <= self.assigned
            )
            if not lost_an_answer:
                self.fence()
                return None
        before = self.assigned, self.epoch
        if self.pending and owned is not None and not owned & self.pending:
            self.pending = frozenset()  # others may have them from now on
            self.fences_at = math.inf
        if not self.pending and (self.assigned != self.target or self.epoch != self.target_epoch):
            self.pending = self.assigned - self.target
            if self.pending:
                self.assigned &= self.target
                self.fences_at = now + REBALANCE_TIMEOUT
            else:
                self.assigned = self.target
                self.previous_epoch, self.epoch = self.epoch, self.target_epoch
        tell = everything or before != (self.assigned, self.epoch)
        return self.epoch, self.assigned if tell else None


class Group(RuleBasedStateMachine):
    """A member whose revokes are deferred, a coordinator that changes its mind, lost messages."""

    @initialize(wanted=st.sets(st.sampled_from(P)))
    def begin(self, wanted: set[TopicPartition]) -> None:
        self.now = 0.0
        self.coordinator = Coordinator()
        self.coordinator.retarget(frozenset(wanted))
        self.member = Reconciliation(REBALANCE_TIMEOUT - MARGIN)
        self.epoch = 0
        self.offered: dict[TopicPartition, UUID] = {}

    def beat(self, request: bool = True, answer: bool = True) -> None:
        """One heartbeat; the request or its answer may get lost."""
        self.member.give_up_overdue(self.now)
        report = self.member.sending(self.now, joining=self.epoch == 0)
        owned = None if report.owned is None else frozenset(report.owned)
        said = None
        if request:
            said = self.coordinator.heartbeat(self.now, self.epoch, report.all_fields, owned)
        if not (request and answer):
            self.member.not_answered()
        elif said is None:  # fenced: everything is lost
            self.member = Reconciliation(REBALANCE_TIMEOUT - MARGIN)
            self.epoch = 0
            self.offered = {}
        else:
            since = self.member.answered(report)
            self.epoch, assignment = said
            if assignment is not None:
                self.member.retarget(dict.fromkeys(assignment, OLD), since)
                self.offered = self.member.assignable

    @rule(seconds=st.floats(0.1, 8.0), request=st.booleans(), answer=st.booleans())
    def heartbeat(self, seconds: float, request: bool, answer: bool) -> None:
        # Messages get lost, but not for so long that the session would end.
        self.now += seconds
        self.beat(request, answer)
        if not (request and answer):
            self.beat()

    @rule(wanted=st.sets(st.sampled_from(P)))
    def the_coordinator_changes_its_mind(self, wanted: set[TopicPartition]) -> None:
        self.coordinator.retarget(frozenset(wanted))

    @rule()
    def the_application_polls(self) -> None:
        self.member.own(self.offered)
        self.offered = {}

    @precondition(lambda self: self.member.surplus)
    @rule(data=st.data())
    def the_application_releases(self, data: st.DataObject) -> None:
        self.member.release(data.draw(st.sets(st.sampled_from(sorted(self.member.surplus)))))

    @invariant()
    def nothing_is_owned_that_others_may_have(self) -> None:
        if self.epoch:
            assert self.member.owned.keys() <= self.coordinator.assigned | self.coordinator.pending

    @invariant()
    def the_member_gives_up_before_it_would_be_fenced(self) -> None:
        if self.epoch and self.member.surplus & self.coordinator.pending:
            assert self.member.revoke_by <= self.coordinator.fences_at - MARGIN + 1e-6

    @invariant()
    def nothing_counts_as_acknowledged_that_is_not(self) -> None:
        if self.epoch and self.member.reconciled and not self.offered:
            assert not self.coordinator.pending

    def teardown(self) -> None:
        """Left alone, the member gets to where the coordinator wants it, and then is quiet."""
        if not hasattr(self, "member"):
            return
        for _ in range(8):
            self.beat()
            self.the_application_polls()
            self.member.release(self.member.surplus)
        assert set(self.member.owned) == self.coordinator.target == self.coordinator.assigned
        assert self.member.reconciled
        assert not self.member.acknowledgement_due
        assert self.member.sending(self.now, joining=False).owned is None


TestGroup = Group.TestCase
TestGroup.settings = settings(deadline=None)
