"""What a producer group asks of `TransactionMachine`: to be found, and to follow its member."""

from __future__ import annotations

import pytest
from kafka.structs import TopicPartition
from test_produce_transaction_machine import MEMBER, Wire, end, error
from transaction_histories import GROUP_ID, PARTITIONS, SOURCE

from pyspark_kafka_rebalance.errors import TransactionAbortedError
from pyspark_kafka_rebalance.produce.requests import (
    AddOffsetsToTxn,
    AddPartitionsToTxn,
    Answer,
    EndTxn,
    FindCoordinator,
    GroupMetadata,
    InitProducerId,
    Offset,
    Produce,
    TxnOffsetCommit,
)
from pyspark_kafka_rebalance.produce.transaction_errors import Errors, Outcome

P, _ = PARTITIONS
POINTS = TopicPartition("points", 0)


class Member:
    """A member that joins again, or is lost."""

    now: GroupMetadata | None = MEMBER

    def __call__(self) -> GroupMetadata | None:
        return self.now


def announced(wire: Wire) -> None:
    wire.begin()
    wire.take(wire.machine.announce(wire.handle, [POINTS], GROUP_ID))


def test_v1_announces_with_the_first_requests() -> None:
    wire = Wire(1)
    announced(wire)
    added = wire.answer(AddPartitionsToTxn)
    assert isinstance(added, AddPartitionsToTxn)
    assert added.partitions == (POINTS,)
    group = wire.answer(AddOffsetsToTxn)
    assert isinstance(group, AddOffsetsToTxn)
    assert group.group_id == GROUP_ID
    wire.send()
    added = wire.answer(AddPartitionsToTxn)
    assert isinstance(added, AddPartitionsToTxn)
    assert added.partitions == (P,)
    wire.answer(Produce)
    wire.commit()
    wire.answer(EndTxn)
    assert wire.step.ended is not None
    assert wire.step.ended.outcome is Outcome.COMMITTED


def test_v2_announces_once_a_record_is_written() -> None:
    wire = Wire(2)
    announced(wire)
    assert wire.requests == []
    wire.send()
    wire.answer(Produce, Answer(base_offset=3))
    added = wire.answer(AddPartitionsToTxn)
    assert isinstance(added, AddPartitionsToTxn)
    assert added.partitions == (POINTS,)
    wire.send()
    wire.answer(Produce, Answer(base_offset=4))
    assert wire.requests == [], "once"
    wire.commit()
    wire.answer(EndTxn, end(1))
    assert wire.requests == []


def test_v2_announces_nothing_in_a_transaction_that_ends_at_once() -> None:
    wire = Wire(2)
    announced(wire)
    wire.send()
    wire.commit()
    wire.answer(Produce, Answer(base_offset=3))
    wire.answer(EndTxn, end(1))


def test_an_announcement_is_sent_again_until_the_end() -> None:
    wire = Wire(2)
    announced(wire)
    wire.send()
    wire.answer(Produce, Answer(base_offset=3))
    wire.answer(AddPartitionsToTxn, error(Errors.CONCURRENT_TRANSACTIONS))
    again = wire.next(AddPartitionsToTxn)
    assert again.attempt == 1
    wire.commit()
    assert wire.requests == [], "its end waits for the answer"
    wire.take(wire.machine.answered(again.number, error(Errors.CONCURRENT_TRANSACTIONS)))
    wire.answer(EndTxn, end(1))


def committing(version: int, member: Member) -> Wire:
    wire = Wire(version)
    wire.delivered(version)
    wire.take(
        wire.machine.add_offsets(wire.handle, MEMBER, {SOURCE: Offset(5)}, None, member=member)
    )
    if version == 1:
        wire.answer(AddOffsetsToTxn)
    wire.answer(FindCoordinator, Answer(node=3))
    return wire


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    "code",
    [Errors.ILLEGAL_GENERATION, Errors.REBALANCE_IN_PROGRESS, Errors.STALE_MEMBER_EPOCH],
)
def test_offsets_follow_their_member_through_a_rebalance(version: int, code: Errors) -> None:
    member = Member()
    wire = committing(version, member)
    wire.commit()
    wire.answer(TxnOffsetCommit, Answer(errors={SOURCE: code}))
    member.now = GroupMetadata(GROUP_ID, 2, "m")
    again = wire.answer(TxnOffsetCommit, Answer(errors={SOURCE: code}))
    assert isinstance(again, TxnOffsetCommit)
    assert again.group.generation_id == 1, "that of the moment at which it was due"
    again = wire.answer(TxnOffsetCommit)
    assert isinstance(again, TxnOffsetCommit)
    assert again.group.generation_id == 2
    wire.answer(EndTxn, end(1) if version == 2 else None)
    assert wire.step.ended is not None
    assert wire.step.ended.outcome is Outcome.COMMITTED


@pytest.mark.parametrize("version", [1, 2])
def test_a_member_that_is_lost_commits_nothing_any_more(version: int) -> None:
    member = Member()
    wire = committing(version, member)
    wire.commit()
    member.now = None
    wire.answer(TxnOffsetCommit, Answer(errors={SOURCE: Errors.ILLEGAL_GENERATION}))
    ended = wire.answer(EndTxn, end(1) if version == 2 else None)
    assert isinstance(ended, EndTxn)
    assert not ended.committed
    assert wire.step.ended is not None
    assert wire.step.ended.outcome is Outcome.ABORTED
    assert wire.step.ended.cause == "this member is out of the group"


def test_offsets_of_a_member_that_does_not_move_are_refused_for_good() -> None:
    wire = Wire(2)
    wire.delivered(2)
    wire.offsets(5)
    wire.answer(FindCoordinator, Answer(node=3))
    wire.answer(TxnOffsetCommit, Answer(errors={SOURCE: Errors.ILLEGAL_GENERATION}))
    with pytest.raises(TransactionAbortedError, match="ILLEGAL_GENERATION"):
        wire.send()


def test_nobody_is_a_member_of_a_group_without_members_alone() -> None:
    wire = Wire(2)
    wire.begin()
    with pytest.raises(ValueError, match="without a member's generation"):
        wire.offsets(5, GroupMetadata(GROUP_ID, -1, "/nobody"))
    wire.offsets(5, GroupMetadata(GROUP_ID, -1, "/nobody", is_nobody=True))
    wire.answer(FindCoordinator, Answer(node=3))
    sent = wire.answer(TxnOffsetCommit)
    assert isinstance(sent, TxnOffsetCommit)
    assert (sent.group.generation_id, sent.group.member_id) == (-1, "/nobody")


def test_only_its_own_transactions_are_announced() -> None:
    wire = Wire(1)
    wire.begin()
    ended = wire.handle
    wire.commit()
    with pytest.raises(TransactionAbortedError):
        wire.machine.announce(ended, [POINTS])
    assert not any(isinstance(each, InitProducerId) for each in wire.requests)
