"""What a member's record accepts, and what losses and departures make of it."""

from __future__ import annotations

import threading

import pytest
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.consumer.member_record import (
    AssignmentReceived,
    Lost,
    Member,
    MemberRecord,
)
from pyspark_kafka_rebalance.errors import PartitionsLostError

A, B, C = (TopicPartition("t", n) for n in range(3))
GIVEN = AssignmentReceived(7, frozenset([A, B]))


def joined(*, id_survives: bool = False) -> MemberRecord:
    record = MemberRecord("g", id_survives=id_survives)
    assert record.accept(record.attempt(), Member(7, "m"), GIVEN)
    return record


def test_an_accepted_answer_makes_the_member_and_its_event_at_once() -> None:
    record = joined()
    assert record.member == Member(7, "m")
    assert record.take_event() == GIVEN
    assert record.take_event() is None


def test_an_answer_that_a_loss_has_overtaken_changes_nothing() -> None:
    record = joined()
    attempt = record.attempt()
    record.lose("test", keep_member_id=True)
    assert record.overtaken(attempt)
    assert not record.departed(attempt)
    assert not record.accept(attempt, Member(8, "m"), AssignmentReceived(8, frozenset([C])))
    assert record.member == Member(member_id="m")
    assert record.take_event() == Lost("test"), "the unapplied assignment went before the loss"
    assert record.take_event() is None


def test_an_answer_to_who_has_left_is_refused_and_nothing_is_told() -> None:
    record = joined()
    attempt = record.attempt()
    assert record.depart() == Member(7, "m")
    assert record.overtaken(attempt)
    assert record.departed(attempt)
    assert not record.accept(attempt, Member(8, "m"))
    assert record.member == Member()
    assert not record.any_waits()


def test_the_answer_to_a_former_generation_is_not_current() -> None:
    record = joined()
    attempt = record.attempt()
    assert record.is_current(attempt)
    assert record.accept(record.attempt(), Member(8, "m"))
    assert not record.is_current(attempt)
    assert not record.overtaken(attempt)
    record.become(Member(7, "m"))
    assert record.is_current(attempt)
    record.lose("test")
    assert record.accept(record.attempt(), Member(7, "m"))  # the same again, in another membership
    assert not record.is_current(attempt)


@pytest.mark.parametrize(
    ("id_survives", "keep", "left"), [(False, False, ""), (False, True, "m"), (True, False, "m")]
)
def test_the_member_id_after_a_loss(id_survives: bool, keep: bool, left: str) -> None:
    record = joined(id_survives=id_survives)
    record.lose("test", keep_member_id=keep)
    assert record.member == Member(member_id=left)
    assert record.attempt().losses == 1


def test_who_is_in_no_generation_has_nothing_to_lose() -> None:
    record = MemberRecord("g", id_survives=False)
    record.become(Member(member_id="m"))
    record.lose("test")
    assert record.member.member_id == "m"
    assert record.attempt().losses == 0
    assert not record.any_waits()


def test_what_ends_with_the_membership_ends_in_one_step_and_loops_wake_after_it() -> None:
    record = joined()
    told: list[str] = []

    def locked() -> bool:
        found: list[bool] = []
        thread = threading.Thread(target=lambda: found.append(record.lock.acquire(blocking=False)))
        thread.start()
        thread.join()
        return not found[0]

    record.watch(ended=lambda: told.append(f"ended {locked()}"), lost=lambda: told.append("lost"))
    record.lose("test")
    record.lose("again")
    record.depart()
    assert told == ["ended True", "lost", "ended True"]


def test_a_newer_assignment_is_offered_instead_of_those_that_wait_not_of_losses() -> None:
    record = joined()
    record.lose_partitions("late", frozenset([A]))
    newer = AssignmentReceived(8, frozenset([B]))
    record.offer(newer)
    assert record.loss_waits()
    assert [record.take_event(), record.take_event()] == [Lost("late", frozenset([A])), newer]
    assert not record.loss_waits()


def test_partial_losses_come_in_order_and_before_the_assignment_that_waits() -> None:
    record = joined()
    record.lose_partitions("first", frozenset([A]))
    record.lose_partitions("second", frozenset([B]))
    events = [record.take_event() for _ in range(3)]
    assert events == [Lost("first", frozenset([A])), Lost("second", frozenset([B])), GIVEN]
    assert record.attempt().losses == 0, "the membership goes on"


def test_what_is_lost_is_refused_by_name_before_any_poll_has_told_of_it() -> None:
    record = joined()
    assert record.lost_of([A, B]) == frozenset()
    record.refuse_lost({A: 1})
    record.lose_partitions("late", frozenset([A]))
    assert record.lost_of([A, B]) == {A}
    record.refuse_lost({B: 1})
    with pytest.raises(PartitionsLostError, match=r"owned: t-0 at 1$"):
        record.refuse_lost({A: 1, B: 2})
    record.lose("all")
    assert record.lost_of([A, B]) == {A, B}
    assert record.lost_of([]) == frozenset()
    record.take_event()
    assert record.lost_of([A, B]) == frozenset()


OWNER = Member(7, "m")


def assigned(*, id_survives: bool = False) -> MemberRecord:
    record = joined(id_survives=id_survives)
    record.take_event()
    return record


def test_what_is_handed_out_belongs_to_the_newest_generation_of_an_unbroken_membership() -> None:
    record = assigned()
    assert record.accept(record.attempt(), Member(8, "m"))
    assert record.handed_out_as == Member(8, "m"), "before its assignment has come"
    record.become(Member(7, "m"))  # the coordinator's successor does not know of 8
    assert record.handed_out_as == OWNER


@pytest.mark.parametrize("id_survives", [False, True])
@pytest.mark.parametrize("polled_in_between", [False, True])
def test_after_a_loss_it_belongs_to_the_lost_one_until_the_next_assignment_is_applied(
    id_survives: bool, polled_in_between: bool
) -> None:
    record = assigned(id_survives=id_survives)
    record.lose("test")
    assert record.handed_out_as == OWNER
    if polled_in_between:
        assert record.take_event() == Lost("test")
        assert record.handed_out_as == OWNER
    assert record.accept(record.attempt(), Member(9, "n"), AssignmentReceived(9, frozenset([A])))
    assert record.handed_out_as == OWNER
    if not polled_in_between:
        assert record.take_event() == Lost("test")
    record.lose("once more")
    assert record.handed_out_as == OWNER, "what polls handed out is not the second one's"
    assert record.take_event() == Lost("once more")
    assert record.accept(record.attempt(), Member(10, "o"), AssignmentReceived(10, frozenset([A])))
    assert isinstance(record.take_event(), AssignmentReceived)
    assert record.handed_out_as == Member(10, "o")


def test_after_leaving_it_belongs_to_who_has_left_unless_partitions_are_assigned_by_hand() -> None:
    record = assigned()
    record.depart()
    assert record.handed_out_as == OWNER
    record.assigned_by_hand()
    assert record.handed_out_as == Member()


def test_partitions_lost_alone_hold_it_back_until_a_poll_has_told_of_them() -> None:
    record = assigned(id_survives=True)
    record.lose_partitions("late", frozenset([A]))
    assert record.accept(record.attempt(), Member(8, "m"))
    record.lose_partitions("later", frozenset([B]))
    assert record.handed_out_as == OWNER
    record.take_event()
    assert record.handed_out_as == OWNER
    record.take_event()
    assert record.handed_out_as == Member(8, "m")
    record.lose("test")
    record.lose_partitions("too late", frozenset([B]))
    record.take_event()
    record.take_event()
    assert record.handed_out_as == Member(8, "m"), "the membership has ended"
