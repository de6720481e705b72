"""The judges themselves: what they must not let pass, and what they must."""

from __future__ import annotations

from typing import Any

import pytest
from consumer_events import (
    MemberError,
    MemberState,
    Phase,
    Redelivery,
    is_valid_assignment,
    judge,
)
from kafka.structs import TopicPartition

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def changed(kind: str, *partitions: int, at: int = 0) -> dict[str, Any]:
    named = [{"topic": "t", "partition": partition} for partition in partitions]
    return {"timestamp": at, "name": f"partitions_{kind}", "partitions": named}


def consumed(first: int, last: int, partition: int = 0, at: int = 0) -> dict[str, Any]:
    batch = {"topic": "t", "partition": partition, "minOffset": first, "maxOffset": last}
    return {
        "timestamp": at,
        "name": "records_consumed",
        "count": last - first + 1,
        "partitions": [{**batch, "count": last - first + 1}],
    }


def committed(offset: int, partition: int = 0, at: int = 0, success: bool = True) -> dict[str, Any]:
    return {
        "timestamp": at,
        "name": "offsets_committed",
        "offsets": [{"topic": "t", "partition": partition, "offset": offset}],
        "success": success,
    }


def told(name: str, at: int = 0) -> dict[str, Any]:
    return {"timestamp": at, "name": name}


@pytest.mark.parametrize(
    ("what", "events"),
    [
        ("assigned twice", [changed("assigned", 0), changed("assigned", 0, 1)]),
        ("revoked without", [changed("assigned", 0), changed("revoked", 1)]),
        ("records while started", [consumed(0, 1)]),
        ("records while rebalancing", [changed("assigned", 0), changed("revoked"), consumed(0, 1)]),
        ("not owned", [changed("assigned", 1), consumed(0, 1)]),
        ("expected offset 2", [changed("assigned", 0), consumed(0, 1), consumed(1, 2)]),
        ("expected offset 2", [changed("assigned", 0), consumed(0, 1), consumed(3, 3)]),
        ("not owned", [changed("assigned", 1), committed(1)]),
        ("ahead of", [changed("assigned", 0), consumed(0, 1), committed(3)]),
        ("ahead of", [changed("assigned", 0), committed(0)]),
        ("after the end", [told("shutdown_complete"), changed("assigned", 0)]),
    ],
)
def test_what_no_member_may_do(what: str, events: list[dict[str, Any]]) -> None:
    member = MemberState()
    *allowed, forbidden = events
    for event in allowed:
        member.apply(event)
    with pytest.raises(MemberError, match=what):
        member.apply(forbidden)


def test_what_a_member_may_do() -> None:
    member = MemberState()
    for event in (
        told("startup_complete"),
        changed("assigned", 0, 1),
        consumed(5, 6),
        committed(7),
        changed("revoked", 1),
        changed("assigned"),
        consumed(7, 7),
        committed(99, success=False),
        changed("lost", 0),
        changed("revoked", 0),
        changed("assigned", 0),
        consumed(7, 7),  # of a new assignment: the group's judge says where it begins
        told("never heard of"),
        told("shutdown_complete"),
        told("shutdown_requested"),
    ):
        member.apply(event)
    assert member.phase is Phase.DEAD
    assert (member.assignments, member.revocations) == (3, 2)
    assert member.lost == {P0}
    assert member.assignment == set()


def test_what_only_a_member_of_the_consumer_protocol_may_do() -> None:
    member = MemberState(consumer_protocol=True)
    for event in (changed("assigned", 0, 1), changed("revoked", 1), consumed(0, 1)):
        member.apply(event)
    member.apply(changed("revoked", 1))
    assert member.assignment == {P0}


def test_a_partition_that_goes_on_where_it_was_left() -> None:
    verdict = judge(
        {
            "a": [
                changed("assigned", 0, at=1),
                consumed(0, 4, at=2),
                committed(5, at=2),
                changed("revoked", 0, at=3),
            ],
            "b": [changed("assigned", 0, at=3), consumed(5, 6, at=4), committed(7, at=5)],
        }
    )
    assert not verdict.overlaps + verdict.jumps
    assert not verdict.redelivered
    assert verdict.position == verdict.committed == {P0: 7}


@pytest.mark.parametrize("ended", [changed("revoked", 0, at=3), told("killed", at=3)])
def test_a_partition_with_two_owners(ended: dict[str, Any]) -> None:
    first = [changed("assigned", 0, at=1), ended]
    assert judge({"a": first, "b": [changed("assigned", 0, at=2)]}).overlaps
    assert not judge({"a": first, "b": [changed("assigned", 0, at=3)]}).overlaps


@pytest.mark.parametrize("begins", [4, 11])
def test_a_new_owner_that_begins_elsewhere(begins: int) -> None:
    first = [changed("assigned", 0, at=1), consumed(0, 9, at=2), committed(5, at=2)]
    second = [changed("assigned", 0, at=4), consumed(begins, 20, at=5)]
    assert judge({"a": [*first, told("killed", at=3)], "b": second}).jumps


def test_a_first_owner_that_does_not_begin_at_the_beginning() -> None:
    assert judge({"a": [changed("assigned", 0), consumed(1, 2)]}).jumps


def test_what_was_not_committed_comes_again() -> None:
    first = [changed("assigned", 0, at=1), consumed(0, 9, at=2), committed(5, at=2)]
    second = [changed("assigned", 0, at=4), consumed(5, 12, at=5)]
    verdict = judge({"a": [*first, told("killed", at=3)], "b": second})
    assert not verdict.jumps
    assert verdict.redelivered == [Redelivery(P0, 5, "a", last_commit_failed=False)]
    assert verdict.position == {P0: 13}


def test_a_member_that_begins_again_after_a_loss() -> None:
    """Its own position from before the loss does not count."""
    verdict = judge(
        {
            "a": [
                changed("assigned", 0, at=1),
                consumed(0, 4, at=1),
                changed("revoked", 0, at=2),
                changed("assigned", 0, at=3),
                consumed(0, 4, at=3),
            ]
        }
    )
    assert verdict.redelivered == [Redelivery(P0, 5, "a", last_commit_failed=False)]


def test_what_a_refused_commit_left() -> None:
    refused = committed(10, at=2, success=False)
    first = [changed("assigned", 0, at=1), consumed(0, 9, at=2), refused]
    second = [changed("assigned", 0, at=4), consumed(0, 12, at=5)]
    (again,) = judge({"a": [*first, changed("revoked", 0, at=3)], "b": second}).redelivered
    assert again == Redelivery(P0, 10, "a", last_commit_failed=True)


def test_an_assignment_is_valid_when_each_partition_has_one_owner() -> None:
    assert is_valid_assignment([{P0}, {P1}, set()], [P1, P0])
    assert not is_valid_assignment([{P0}], [P0, P1])
    assert not is_valid_assignment([{P0, P1}, {P1}], [P0, P1])
