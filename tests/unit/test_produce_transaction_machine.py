"""`TransactionMachine`, event by event."""

from __future__ import annotations

import pytest
from kafka.structs import TopicPartition
from model_transactions import LAST_EPOCH, Brokers, versions_of
from transaction_histories import GROUP_ID, PARTITIONS, SOURCE, TRANSACTIONAL_ID, World

from pyspark_kafka_rebalance.errors import TransactionAbortedError
from pyspark_kafka_rebalance.produce.requests import (
    GROUP,
    TRANSACTION,
    AddOffsetsToTxn,
    AddPartitionsToTxn,
    Answer,
    DescribeTransactions,
    EndTxn,
    Fetch,
    FindCoordinator,
    GroupMetadata,
    InitProducerId,
    Offset,
    OffsetFetch,
    Produce,
    Request,
    TxnOffsetCommit,
    versions_for,
)
from pyspark_kafka_rebalance.produce.transaction import TransactionMachine
from pyspark_kafka_rebalance.produce.transaction_errors import Errors, Outcome
from pyspark_kafka_rebalance.produce.transaction_step import Identity, Standing, Step

P, Q = PARTITIONS
MEMBER = GroupMetadata(GROUP_ID, 1, "m")
both_versions = pytest.mark.parametrize("version", [1, 2])


class Wire:
    """A machine whose requests are answered one by one, by hand."""

    def __init__(self, version: int) -> None:
        self.machine = TransactionMachine(TRANSACTIONAL_ID, 60_000, versions_of(version))
        self.requests: list[Request] = []
        self.step = Step()
        self.take(self.machine.initialize())
        self.answer(FindCoordinator, Answer(node=1))
        self.answer(InitProducerId, Answer(producer_id=7, producer_epoch=0))

    def take(self, step: Step) -> None:
        self.step = step
        self.requests += step.requests

    def next(self, kind: type[Request]) -> Request:
        assert self.requests, f"no {kind.__name__}"
        assert isinstance(self.requests[0], kind), f"{self.requests[0]} instead of {kind.__name__}"
        return self.requests.pop(0)

    def answer(self, kind: type[Request], answer: Answer | None = None) -> Request:
        request = self.next(kind)
        self.take(self.machine.answered(request.number, answer or Answer()))
        return request

    def lose(self, kind: type[Request], *, sent: bool = True) -> Request:
        request = self.next(kind)
        self.take(self.machine.unanswered(request.number, sent=sent))
        return request

    def begin(self) -> int:
        self.handle = self.machine.begin()
        return self.handle

    def send(self, partition: TopicPartition = P, records: int = 1) -> int:
        self.take(self.machine.add_records(self.handle, partition, records))
        return self.step.batch

    def offsets(self, offset: int, member: GroupMetadata = MEMBER) -> None:
        offsets = {SOURCE: Offset(offset)}
        self.take(self.machine.add_offsets(self.handle, member, offsets, {SOURCE: Offset(0)}))

    def commit(self) -> None:
        self.take(self.machine.commit(self.handle))

    def delivered(self, version: int) -> None:
        """A transaction with a record that is acknowledged."""
        self.begin()
        self.send()
        if version == 1:
            self.answer(AddPartitionsToTxn)
        self.answer(Produce)


def end(producer_epoch: int) -> Answer:
    return Answer(producer_id=7, producer_epoch=producer_epoch)


def error(code: Errors) -> Answer:
    return Answer(int(code))


def test_v2_adds_partitions_by_producing_and_takes_the_next_epoch_from_the_end() -> None:
    wire = Wire(2)
    wire.begin()
    wire.send()
    wire.offsets(5)
    produce = wire.answer(Produce)
    assert isinstance(produce, Produce)
    assert (produce.version, produce.producer_epoch, produce.base_sequence) == (12, 0, 0)
    assert wire.step.delivered == (produce.batch,)
    found = wire.answer(FindCoordinator, Answer(node=3))
    assert isinstance(found, FindCoordinator)
    assert (found.key, found.key_type) == (GROUP_ID, GROUP)
    offsets = wire.answer(TxnOffsetCommit, Answer(errors={SOURCE: 0}))
    assert (offsets.version, offsets.node) == (5, 3)
    wire.commit()
    ended = wire.answer(EndTxn, end(1))
    assert (ended.version, ended.node) == (5, 1)
    assert wire.step.ended is not None
    assert wire.step.ended.outcome is Outcome.COMMITTED
    assert wire.machine.identity == Identity(7, 1)
    assert wire.requests == []


def test_v1_adds_partitions_and_offsets_first_and_keeps_its_epoch() -> None:
    wire = Wire(1)
    wire.begin()
    wire.send(records=3)
    wire.offsets(5)
    added = wire.answer(AddPartitionsToTxn)
    assert isinstance(added, AddPartitionsToTxn)
    assert added.partitions == (P,)
    group = wire.next(AddOffsetsToTxn)
    assert wire.answer(Produce).version == 11
    wire.take(wire.machine.answered(group.number, Answer()))
    wire.answer(FindCoordinator, Answer(node=3))
    assert wire.answer(TxnOffsetCommit).version == 4
    wire.commit()
    assert wire.answer(EndTxn).version == 4
    assert wire.machine.identity == Identity(7, 0)
    wire.begin()
    wire.send()
    wire.answer(AddPartitionsToTxn)
    produce = wire.next(Produce)
    assert isinstance(produce, Produce)
    assert produce.base_sequence == 3
    assert wire.machine.outstanding == {produce.number: produce}


@both_versions
def test_an_empty_transaction_is_nobodys_business(version: int) -> None:
    wire = Wire(version)
    for commits in (True, False):
        handle = wire.begin()
        wire.take((wire.machine.commit if commits else wire.machine.abort)(handle))
        assert wire.step.ended is not None
        assert wire.step.ended.outcome is (Outcome.COMMITTED if commits else Outcome.ABORTED)
    assert wire.requests == []


@both_versions
def test_a_handle_whose_transaction_has_ended_is_refused_by_every_call(version: int) -> None:
    wire = Wire(version)
    old = wire.begin()
    wire.commit()
    wire.begin()
    for call in (
        lambda: wire.machine.add_records(old, P, 1),
        lambda: wire.machine.add_offsets(old, MEMBER, {SOURCE: Offset(1)}),
        lambda: wire.machine.commit(old),
        lambda: wire.machine.abort(old),
    ):
        with pytest.raises(TransactionAbortedError, match="has ended"):
            call()


def test_one_transaction_at_a_time() -> None:
    wire = Wire(2)
    wire.delivered(2)
    wire.commit()
    with pytest.raises(RuntimeError, match="has not ended"):
        wire.machine.begin()
    with pytest.raises(RuntimeError, match="has not ended"):
        wire.machine.initialize()
    with pytest.raises(RuntimeError, match="was sent"):
        wire.machine.abort(wire.handle)


def test_offsets_without_a_generation_are_refused_because_a_group_would_not() -> None:
    wire = Wire(2)
    wire.begin()
    with pytest.raises(ValueError, match="generation"):
        wire.offsets(1, GroupMetadata(GROUP_ID, -1, ""))


@pytest.mark.parametrize(
    "code",
    [
        Errors.ILLEGAL_GENERATION,
        Errors.UNKNOWN_MEMBER_ID,
        Errors.STALE_MEMBER_EPOCH,
        Errors.FENCED_INSTANCE_ID,
    ],
)
@both_versions
def test_a_member_that_lost_its_partitions_aborts_and_goes_on(version: int, code: Errors) -> None:
    wire = Wire(version)
    handle = wire.begin()
    wire.offsets(5)
    if version == 1:
        wire.answer(AddOffsetsToTxn)
    wire.answer(FindCoordinator, Answer(node=3))
    wire.answer(TxnOffsetCommit, Answer(errors={SOURCE: int(code)}))
    with pytest.raises(TransactionAbortedError, match=code.name):
        wire.machine.add_records(handle, P, 1)
    ended = wire.answer(EndTxn, end(1))
    assert isinstance(ended, EndTxn)
    assert not ended.committed
    assert wire.step.ended is not None
    assert wire.step.ended.outcome is Outcome.ABORTED
    assert code.name in wire.step.ended.cause
    assert wire.requests == []  # no new epoch is needed
    wire.begin()


@both_versions
def test_a_lost_answer_to_the_end_is_asked_for_again(version: int) -> None:
    """And costs v1 a new epoch, which it asks for as the present one's holder (KIP-360)."""
    wire = Wire(version)
    wire.delivered(version)
    wire.commit()
    wire.lose(EndTxn)
    wire.answer(FindCoordinator, Answer(node=2))
    again = wire.answer(EndTxn, end(1) if version == 2 else Answer())
    assert (again.attempt, again.node) == (1, 2)
    assert wire.step.ended is not None
    assert wire.step.ended.outcome is Outcome.COMMITTED
    if version == 1:
        renewed = wire.answer(InitProducerId, Answer(producer_id=7, producer_epoch=1))
        assert isinstance(renewed, InitProducerId)
        assert (renewed.producer_id, renewed.producer_epoch) == (7, 0)
    assert wire.machine.identity == Identity(7, 1)
    assert wire.requests == []


def test_a_request_that_never_left_needs_no_new_epoch() -> None:
    wire = Wire(1)
    wire.delivered(1)
    wire.commit()
    wire.lose(EndTxn, sent=False)
    wire.answer(FindCoordinator, Answer(node=2))
    wire.answer(EndTxn)
    assert wire.requests == []


def test_the_answer_to_a_copy_that_was_given_up_changes_nothing() -> None:
    wire = Wire(2)
    wire.delivered(2)
    wire.commit()
    first = wire.lose(EndTxn)
    assert wire.machine.answered(first.number, end(1)) == Step()
    assert wire.machine.transaction == wire.handle


@both_versions
@pytest.mark.parametrize(
    "code", [Errors.NOT_COORDINATOR, Errors.COORDINATOR_NOT_AVAILABLE, Errors.REQUEST_TIMED_OUT]
)
def test_a_coordinator_that_moves_is_looked_up(version: int, code: Errors) -> None:
    wire = Wire(version)
    wire.delivered(version)
    wire.commit()
    wire.answer(EndTxn, error(code))
    found = wire.answer(FindCoordinator, Answer(node=9))
    assert isinstance(found, FindCoordinator)
    assert (found.key, found.key_type) == (TRANSACTIONAL_ID, TRANSACTION)
    assert wire.answer(EndTxn, end(1)).node == 9


@both_versions
@pytest.mark.parametrize(
    "code", [Errors.COORDINATOR_LOAD_IN_PROGRESS, Errors.CONCURRENT_TRANSACTIONS]
)
def test_a_busy_coordinator_is_asked_again(version: int, code: Errors) -> None:
    wire = Wire(version)
    wire.delivered(version)
    wire.commit()
    for attempt in range(3):
        assert wire.answer(EndTxn, error(code)).attempt == attempt
    wire.answer(EndTxn, end(1))
    assert wire.step.ended is not None
    assert wire.requests == []


@both_versions
def test_a_refused_commit_whose_only_copy_was_answered_is_aborted(version: int) -> None:
    wire = Wire(version)
    wire.delivered(version)
    wire.commit()
    wire.answer(EndTxn, error(Errors.PRODUCER_FENCED))
    assert wire.step.ended is not None
    assert wire.step.ended.outcome is Outcome.ABORTED
    assert wire.machine.standing is Standing.FENCED
    with pytest.raises(TransactionAbortedError, match="PRODUCER_FENCED"):
        wire.machine.begin()
    wire.take(wire.machine.initialize())
    taken = wire.answer(InitProducerId, Answer(producer_id=7, producer_epoch=4))
    assert isinstance(taken, InitProducerId)
    assert (taken.producer_id, taken.producer_epoch) == (-1, -1)
    wire.begin()


@both_versions
@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        ({SOURCE: Offset(5)}, Outcome.COMMITTED),
        ({}, Outcome.NOT_KNOWABLE),  # somebody deleted them
        ({SOURCE: Offset(0)}, Outcome.ABORTED),
        ({SOURCE: Offset(6)}, Outcome.NOT_KNOWABLE),  # another member went on from either
    ],
)
def test_in_doubt_is_resolved_by_the_groups_stable_offsets(
    version: int, found: dict[TopicPartition, Offset], outcome: Outcome
) -> None:
    wire = Wire(version)
    wire.begin()
    wire.offsets(5)
    if version == 1:
        wire.answer(AddOffsetsToTxn)
    wire.answer(FindCoordinator, Answer(node=3))
    wire.answer(TxnOffsetCommit)
    wire.commit()
    wire.lose(EndTxn)
    wire.answer(FindCoordinator, Answer(node=1))
    wire.answer(EndTxn, error(Errors.PRODUCER_FENCED))
    assert wire.step.ended is None
    question = wire.answer(OffsetFetch, error(Errors.UNSTABLE_OFFSET_COMMIT))
    assert isinstance(question, OffsetFetch)
    assert question.require_stable
    wire.answer(OffsetFetch, Answer(offsets=found))
    assert wire.step.ended is not None
    assert wire.step.ended.outcome is outcome
    assert wire.requests == []


@both_versions
@pytest.mark.parametrize("committed", [True, False])
def test_in_doubt_is_resolved_by_what_a_reader_sees(version: int, committed: bool) -> None:
    """Also where the group's offsets would not tell."""
    wire = Wire(version)
    wire.begin()
    wire.send(P)
    wire.send(Q)
    if version == 1:
        added = wire.next(AddPartitionsToTxn)
        wire.take(wire.machine.answered(added.number, Answer()))
        wire.answer(AddPartitionsToTxn)
    wire.answer(Produce, Answer(base_offset=10))
    wire.answer(Produce, Answer(base_offset=20))
    wire.commit()
    wire.lose(EndTxn)
    wire.answer(FindCoordinator, Answer(node=1))
    wire.answer(EndTxn, error(Errors.PRODUCER_FENCED))
    wire.answer(Fetch, error(Errors.OFFSET_OUT_OF_RANGE))  # deleted there
    wire.answer(Fetch, Answer(last_stable_offset=20))
    asked = wire.answer(
        Fetch, Answer(last_stable_offset=30, aborted=() if committed else ((7, 18),))
    )
    assert isinstance(asked, Fetch)
    assert (asked.partition, asked.fetch_offset, asked.attempt) == (Q, 20, 1)
    assert wire.step.ended is not None
    assert wire.step.ended.outcome is (Outcome.COMMITTED if committed else Outcome.ABORTED)


@both_versions
def test_without_offsets_nobody_can_be_asked(version: int) -> None:
    wire = Wire(version)
    wire.delivered(version)
    wire.commit()
    wire.lose(EndTxn)
    wire.answer(FindCoordinator, Answer(node=1))
    wire.answer(EndTxn, error(Errors.PRODUCER_FENCED))
    assert wire.step.ended is not None
    assert wire.step.ended.outcome is Outcome.NOT_KNOWABLE


@both_versions
def test_older_offsets_that_may_arrive_after_newer_ones_abort_the_transaction(version: int) -> None:
    wire = Wire(version)
    wire.begin()
    wire.offsets(5)
    if version == 1:
        wire.answer(AddOffsetsToTxn)
    wire.answer(FindCoordinator, Answer(node=3))
    wire.lose(TxnOffsetCommit)
    wire.answer(FindCoordinator, Answer(node=3))
    wire.answer(TxnOffsetCommit)
    wire.offsets(6)
    with pytest.raises(TransactionAbortedError, match="older offsets"):
        wire.commit()
    wire.answer(EndTxn, end(1))
    assert wire.step.ended is not None
    assert wire.step.ended.outcome is Outcome.ABORTED


@both_versions
def test_five_batches_of_a_partition_are_under_way_and_keep_their_order(version: int) -> None:
    wire = Wire(version)
    wire.begin()
    batches = [wire.send(records=2) for _ in range(7)]
    if version == 1:
        wire.answer(AddPartitionsToTxn)
    sent = wire.requests
    wire.requests = []
    assert [r.base_sequence for r in sent if isinstance(r, Produce)] == [0, 2, 4, 6, 8]
    first, second = sent[:2]
    late = error(Errors.OUT_OF_ORDER_SEQUENCE_NUMBER)
    wire.take(wire.machine.answered(second.number, late))  # the first has not arrived
    again = wire.next(Produce)
    assert isinstance(again, Produce)
    assert (again.batch, again.base_sequence, again.attempt) == (batches[1], 2, 1)
    wire.take(wire.machine.answered(first.number, Answer()))
    sixth = wire.next(Produce)
    assert isinstance(sixth, Produce)
    assert (sixth.batch, sixth.base_sequence) == (batches[5], 10)
    wire.take(wire.machine.answered(again.number, late))  # now it is the first
    with pytest.raises(TransactionAbortedError, match="OUT_OF_ORDER_SEQUENCE_NUMBER"):
        wire.commit()


@pytest.mark.parametrize("code", [Errors.NOT_LEADER_OR_FOLLOWER, Errors.NONE])
def test_a_batch_that_is_given_up_with_its_sequence_number_costs_v1_an_epoch(code: Errors) -> None:
    wire = Wire(1)
    wire.begin()
    wire.send()
    wire.answer(AddPartitionsToTxn)
    wire.take(wire.machine.abort(wire.handle))
    wire.answer(Produce, error(code))
    wire.answer(EndTxn)
    if code:
        wire.answer(InitProducerId, Answer(producer_id=7, producer_epoch=1))
    assert wire.requests == []


def test_an_unanswered_batch_of_an_abort_is_swept_with_the_next_epoch() -> None:
    """AddPartitionsToTxn and EndTxn(abort) of its partition, before the next transaction sends."""
    wire = Wire(1)
    wire.begin()
    wire.send(P)
    wire.answer(AddPartitionsToTxn)
    wire.take(wire.machine.abort(wire.handle))
    wire.lose(Produce)
    wire.answer(EndTxn)
    assert wire.step.ended is not None
    wire.begin()
    wire.send(Q)
    wire.answer(InitProducerId, Answer(producer_id=7, producer_epoch=1))
    swept = wire.answer(AddPartitionsToTxn)
    assert isinstance(swept, AddPartitionsToTxn)
    assert (swept.partitions, swept.producer_epoch, swept.transaction) == ((P,), 1, None)
    ended = wire.answer(EndTxn)
    assert isinstance(ended, EndTxn)
    assert (ended.committed, ended.transaction) == (False, None)
    added = wire.answer(AddPartitionsToTxn)
    assert isinstance(added, AddPartitionsToTxn)
    assert (added.partitions, added.transaction) == ((Q,), wire.handle)


def test_an_epoch_that_is_the_coordinators_is_not_taken() -> None:
    """A broker may answer it where it goes on with another producer id."""
    wire = Wire(2)
    wire.delivered(2)
    wire.commit()
    wire.answer(EndTxn, end(LAST_EPOCH))
    assert wire.step.ended is not None
    assert wire.step.ended.outcome is Outcome.COMMITTED
    asked = wire.answer(InitProducerId, Answer(producer_id=8, producer_epoch=0))
    assert isinstance(asked, InitProducerId)
    assert (asked.producer_id, asked.producer_epoch) == (7, 0)
    assert wire.machine.identity == Identity(8, 0)


@pytest.mark.parametrize(
    "code", [Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, Errors.INVALID_REQUEST]
)
def test_what_no_client_can_mend_fails_the_producer(code: Errors) -> None:
    wire = Wire(2)
    handle = wire.begin()
    wire.send()
    wire.answer(Produce, error(code))
    assert wire.step.ended is not None
    assert wire.step.ended.outcome is Outcome.ABORTED
    assert wire.machine.standing is Standing.FAILED
    assert code.name in wire.machine.cause
    with pytest.raises(TransactionAbortedError):
        wire.machine.add_records(handle, P, 1)


def test_an_upgrade_between_two_transactions_takes_a_new_epoch() -> None:
    wire = Wire(1)
    wire.take(wire.machine.upgrade(versions_of(2)))
    wire.answer(InitProducerId, Answer(producer_id=7, producer_epoch=1))
    wire.delivered(2)
    with pytest.raises(RuntimeError, match="has not ended"):
        wire.machine.upgrade(versions_of(1))


@both_versions
def test_epochs_are_used_up_and_another_producer_id_goes_on(version: int) -> None:
    world = World(Brokers(version, epoch=LAST_EPOCH - 4))
    world.go_on(20)
    ids = set()
    for _ in range(8):
        world.producer.send(P)
        world.producer.send(Q)
        world.producer.send_offsets()
        world.producer.commit()
        world.go_on(3)
        world.breaks(world.producer, world.brokers.coordinator)
        world.go_on(60)
        ids.add(world.producer.machine.identity.producer_id)
    assert len(ids) == 2
    outcomes = [promise.outcome for promise in world.producer.promises.values()]
    assert outcomes == [Outcome.COMMITTED] * 8
    world.settle()
    world.check_at_the_end()


@both_versions
def test_a_transactional_id_that_expired_costs_one_transaction(version: int) -> None:
    world = World(Brokers(version))
    for n in range(3):
        world.go_on(20)
        if n == 1:
            world.brokers.transactional_id_expires(TRANSACTIONAL_ID)
        world.producer.send(P)
        world.producer.commit()
    world.go_on(60)
    outcomes = [promise.outcome for promise in world.producer.promises.values()]
    assert outcomes == [Outcome.COMMITTED, Outcome.ABORTED, Outcome.COMMITTED]
    assert world.producer.machine.standing is Standing.READY
    world.producer.send(P)
    world.producer.commit()
    world.settle()
    world.check_at_the_end()


@pytest.mark.parametrize("breaks", [True, False])
@pytest.mark.parametrize("at", range(12))
@pytest.mark.parametrize("left", [0, 1, 12, 30])
def test_a_producer_starts_after_a_downgrade(left: int, at: int, breaks: bool) -> None:
    """A coordinator of v1 cannot write what InitProducerId makes of a transaction of v2."""
    world = World(Brokers(2))
    world.go_on(20)
    world.producer.send(P)
    world.producer.commit()
    world.go_on(left)
    world.brokers.downgraded()
    world.kill(world.producer)
    world.start()
    for _ in range(at):
        world.go_on(1)
    if breaks:
        for producer, broker, _ in world.connections():
            world.breaks(producer, broker)
    world.go_on(40)
    assert world.producer.machine.standing is Standing.READY
    world.producer.send(P)
    world.producer.commit()
    world.settle()
    assert [each.outcome for each in world.producer.promises.values()] == [Outcome.COMMITTED]
    world.check_at_the_end()


def test_who_may_not_open_a_transaction_for_the_last_producer_is_told_what_to_do() -> None:
    machine = TransactionMachine("mine", 60_000, versions_for(OFFERED, 0))
    step = machine.initialize()
    for kind, answer in (
        (FindCoordinator, Answer(node=1)),
        (DescribeTransactions, error(Errors.COORDINATOR_LOAD_IN_PROGRESS)),
        (DescribeTransactions, Answer(producer_id=7, producer_epoch=3)),
        (AddOffsetsToTxn, error(Errors.CONCURRENT_TRANSACTIONS)),
        (AddOffsetsToTxn, error(Errors.GROUP_AUTHORIZATION_FAILED)),
        (InitProducerId, error(Errors.UNSUPPORTED_VERSION)),
    ):
        (request,) = step.requests
        assert isinstance(request, kind)
        step = machine.answered(request.number, answer)
    assert machine.standing is Standing.FAILED
    assert "READ on a group of the same name" in machine.cause
    (request,) = machine.initialize().requests
    assert isinstance(request, DescribeTransactions), "the coordinator may be another one by now"


OFFERED = {0: 13, 1: 17, 9: 9, 10: 6, 22: 5, 24: 5, 25: 4, 26: 5, 28: 5}


@pytest.mark.parametrize(
    ("changed", "feature", "version"),
    [({}, 2, 2), ({}, 1, 1), ({}, 0, 1), ({0: 11}, 2, 1), ({26: 4}, 2, 1), ({28: 4}, 2, 1)],
)
def test_the_versions_go_together(changed: dict[int, int], feature: int, version: int) -> None:
    versions = versions_for(OFFERED | changed, feature)
    assert versions.transaction_version == version
    new = (versions.produce >= 12, versions.end_txn >= 5, versions.txn_offset_commit >= 5)
    assert set(new) == {version == 2}
    assert versions.add_partitions_to_txn == 3
    assert versions.may_follow_v2 is (feature == 0 and changed == {})


@pytest.mark.parametrize(("api_key", "newest"), [(22, 2), (28, 2), (9, 6), (26, -1)])
def test_brokers_that_cannot_keep_transactions_apart_are_refused(api_key: int, newest: int) -> None:
    with pytest.raises(ValueError, match=r"Kafka 2\.5"):
        versions_for(OFFERED | {api_key: newest}, 0)


def test_a_downgrade_costs_the_transaction_that_is_open_and_nothing_more() -> None:
    """Its end was refused for its version, and the producer was of no use any more."""
    wire = Wire(2)
    wire.begin()
    wire.send()
    wire.answer(Produce)
    wire.commit()
    wire.answer(EndTxn, error(Errors.UNSUPPORTED_VERSION))
    assert wire.step.ended is not None
    assert wire.step.ended.outcome is Outcome.ABORTED
    assert wire.machine.standing is Standing.READY
    wire.take(wire.machine.upgrade(versions_of(1)))
    swept = wire.answer(AddPartitionsToTxn)
    assert isinstance(swept, AddPartitionsToTxn)
    assert (swept.partitions, swept.producer_epoch) == ((P,), 0)
    assert wire.answer(EndTxn).version == 4
    wire.answer(InitProducerId, Answer(producer_id=7, producer_epoch=1))
    wire.delivered(1)


@pytest.mark.parametrize("news_first", [True, False])
@pytest.mark.parametrize("breaks", [True, False])
@pytest.mark.parametrize("at", range(16))
def test_a_downgrade_at_any_step_is_over_once_another_broker_coordinates(
    at: int, breaks: bool, news_first: bool
) -> None:
    """Brokers could not write InitProducerId, or an EndTxn of v2: the producer hung, or failed."""
    world = World(Brokers(2))
    world.go_on(20)
    for n in range(2):
        world.producer.send(P)
        world.producer.send_offsets()
        world.producer.commit()
        world.go_on(at if n else 40)
    world.brokers.downgraded()
    machine = world.producer.machine
    if breaks:
        for producer, broker, _ in world.connections():
            world.breaks(producer, broker)
    if news_first:
        world.producer.take(machine.downgrade())
    for _ in range(3):
        world.go_on(40)
        world.brokers.coordinator_dies()
    for _ in range(2):
        world.go_on(40)
        if machine.versions.transaction_version == 2:
            world.producer.take(machine.downgrade())
        world.producer.send(P)
        world.producer.send(Q)
        world.producer.commit()
        world.go_on(60)
    outcomes = [promise.outcome for promise in world.producer.promises.values()]
    assert outcomes[0] is Outcome.COMMITTED
    assert outcomes[-2:] == [Outcome.COMMITTED] * 2
    assert machine.standing is Standing.READY
    world.settle()
    world.check_at_the_end()
