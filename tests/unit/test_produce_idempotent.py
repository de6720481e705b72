"""Idempotent writing without transactions, with a model of the leaders."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kafka.structs import TopicPartition
from model_transactions import versions_of

from pyspark_kafka_rebalance.produce import idempotent
from pyspark_kafka_rebalance.produce.idempotent import IdempotentMachine
from pyspark_kafka_rebalance.produce.requests import Answer, InitProducerId, Produce, Request
from pyspark_kafka_rebalance.produce.transaction_errors import Errors
from pyspark_kafka_rebalance.produce.transaction_step import Halved, Step

ROWS = TopicPartition("rows", 0)
OTHERS = TopicPartition("rows", 1)
RECORDS = 3


@dataclass
class Known:
    epoch: int
    batches: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=5))


class Leader:
    """ProducerAppendInfo and ProducerStateManager, without transactions."""

    def __init__(self) -> None:
        self.log: list[tuple[int, ...]] = []
        self.written_as: dict[tuple[int, ...], int] = {}  # the producer id of each batch
        self.producers: dict[int, Known] = {}

    def append(self, request: Produce) -> Errors:
        known = self.producers.get(request.producer_id)
        first, last = request.base_sequence, request.base_sequence + request.record_count - 1
        if known is not None:
            if request.producer_epoch < known.epoch:
                return Errors.INVALID_PRODUCER_EPOCH
            if request.producer_epoch > known.epoch:
                if first != 0:
                    return Errors.OUT_OF_ORDER_SEQUENCE_NUMBER
                known = None
            elif (first, last) in known.batches:
                return Errors.NONE
            elif first != known.batches[-1][1] + 1:
                return Errors.OUT_OF_ORDER_SEQUENCE_NUMBER
        if known is None:
            known = self.producers[request.producer_id] = Known(request.producer_epoch)
        known.batches.append((first, last))
        self.log.append(request.order)
        self.written_as[request.order] = request.producer_id
        return Errors.NONE


class Writing(RuleBasedStateMachine):
    """A producer, its leaders, and a network that delays, repeats and loses."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = IdempotentMachine(versions_of(2))
        self.leaders: dict[TopicPartition, Leader] = {ROWS: Leader(), OTHERS: Leader()}
        self.under_way: dict[int, Request] = {}
        self.late: list[Produce] = []  # copies that nobody waits for any more
        self.added: dict[int, TopicPartition] = {}
        self.orders: dict[int, tuple[int, ...]] = {}
        self.delivered: set[int] = set()
        self.failed: set[int] = set()
        self.ids = 0

    @initialize(epoch=st.sampled_from([0, idempotent._LAST_EPOCH - 1]))
    def starts(self, epoch: int) -> None:
        self.epoch = epoch

    def take(self, step: Step) -> None:
        for request in step.requests:
            assert request.number not in self.under_way
            self.under_way[request.number] = request
            if isinstance(request, Produce):
                self.orders[request.batch] = request.order
        for halved in step.halved:
            self.added[halved.second] = self.added[halved.batch]
        for batch in step.delivered:
            assert batch not in self.delivered | self.failed
            self.delivered.add(batch)
        for batch, _ in step.failed:
            assert batch not in self.delivered | self.failed
            self.failed.add(batch)

    @rule(partition=st.sampled_from([ROWS, ROWS, OTHERS]))
    def add(self, partition: TopicPartition) -> None:
        step = self.machine.add_records(None, partition, RECORDS)
        self.added[step.batch] = partition
        self.take(step)

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), error=st.integers(0, 9))
    def answer(self, data: st.DataObject, error: int) -> None:
        """In whatever order: the connection may have changed in between."""
        number = data.draw(st.sampled_from(sorted(self.under_way)))
        request = self.under_way.pop(number)
        self.take(self.machine.answered(number, self.answer_to(request, error)))

    def answer_to(self, request: Request, error: int) -> Answer:
        if isinstance(request, InitProducerId):
            if error == 9:
                return Answer(error=Errors.COORDINATOR_LOAD_IN_PROGRESS)
            self.ids += 1
            return Answer(producer_id=self.ids, producer_epoch=self.epoch if self.ids == 1 else 0)
        assert isinstance(request, Produce)
        if error == 9:
            return Answer(error=Errors.NOT_LEADER_OR_FOLLOWER)
        if error == 8:
            self.leaders[request.partition].append(request)
            return Answer(error=Errors.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        if error == 7:
            return Answer(error=Errors.MESSAGE_TOO_LARGE)
        return Answer(error=self.leaders[request.partition].append(request))

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), fate=st.sampled_from(["not sent", "lost", "written", "late"]))
    def lose(self, data: st.DataObject, fate: str) -> None:
        number = data.draw(st.sampled_from(sorted(self.under_way)))
        request = self.under_way.pop(number)
        if isinstance(request, Produce):
            if fate == "written":
                self.leaders[request.partition].append(request)
            elif fate == "late":
                self.late.append(request)
        self.take(self.machine.unanswered(number, sent=fate != "not sent"))

    @precondition(lambda self: self.late)
    @rule(data=st.data(), again=st.booleans())
    def arrive(self, data: st.DataObject, again: bool) -> None:
        n = data.draw(st.integers(0, len(self.late) - 1))
        request = self.late[n] if again else self.late.pop(n)
        self.leaders[request.partition].append(request)

    @precondition(lambda self: set(self.added) - self.delivered - self.failed)
    @rule()
    def expire(self) -> None:
        oldest = min(set(self.added) - self.delivered - self.failed)
        self.take(self.machine.expire(oldest))

    @invariant()
    def each_is_written_once_and_in_order(self) -> None:
        for leader in self.leaders.values():
            assert len(leader.log) == len(set(leader.log)), leader.log
            newest = max(leader.producers, default=0)
            given_up = {self.orders.get(batch) for batch in self.failed}  # None: never sent
            in_order = [
                order
                for order in leader.log
                # No leader can tell that it is late, as its id is another.
                if order not in given_up or leader.written_as[order] == newest
            ]
            assert in_order == sorted(in_order), leader.log
            for before, after in itertools.pairwise(sorted(leader.log)):
                assert after[: len(before)] != before, "a batch, and a part of it"
        written = {order for leader in self.leaders.values() for order in leader.log}
        assert {self.orders[batch] for batch in self.delivered} <= written

    @invariant()
    def at_most_five_are_under_way(self) -> None:
        for partition in self.leaders:
            flying = [
                r
                for r in self.machine.outstanding.values()
                if isinstance(r, Produce) and r.partition == partition
            ]
            assert len({r.batch for r in flying} - self.failed) <= 5

    def teardown(self) -> None:
        """On a network that works, all is delivered or failed in the end."""
        for _ in range(1_000):
            if not self.under_way:
                break
            number = min(self.under_way)
            request = self.under_way.pop(number)
            self.take(self.machine.answered(number, self.answer_to(request, 0)))
            self.each_is_written_once_and_in_order()
        assert set(self.added) == self.delivered | self.failed
        assert not self.machine.outstanding


class TestWriting(Writing.TestCase):  # type: ignore[misc,valid-type]
    settings = settings(max_examples=150, stateful_step_count=60, deadline=None)


# Stories.


def first_identity(machine: IdempotentMachine, step: Step) -> Step:
    (asked,) = step.requests
    assert isinstance(asked, InitProducerId)
    assert asked.transactional_id is None
    return machine.answered(asked.number, Answer(producer_id=7, producer_epoch=0))


def test_the_first_batch_of_an_epoch_is_alone_under_way() -> None:
    """A leader that knows nothing of a producer takes any sequence number."""
    machine = IdempotentMachine(versions_of(2))
    step = machine.add_records(None, ROWS, 2)
    for _ in range(7):
        machine.add_records(None, ROWS, 2)
    step = first_identity(machine, step)
    assert [r.base_sequence for r in step.requests if isinstance(r, Produce)] == [0]
    step = machine.answered(step.requests[0].number, Answer(base_offset=0))
    assert step.delivered == (1,)
    assert [r.base_sequence for r in step.requests if isinstance(r, Produce)] == [2, 4, 6, 8, 10]


@pytest.mark.parametrize("error", [Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, Errors.UNKNOWN_PRODUCER_ID])
def test_a_leader_that_has_lost_what_it_knew_meets_a_new_epoch(error: Errors) -> None:
    """KIP-360."""
    machine = IdempotentMachine(versions_of(2))
    step = first_identity(machine, machine.add_records(None, ROWS, 2))
    machine.answered(step.requests[0].number, Answer(base_offset=0))
    step = machine.add_records(None, ROWS, 2)
    step = machine.answered(step.requests[0].number, Answer(error=error))
    (again,) = step.requests
    assert isinstance(again, Produce)
    assert (again.producer_epoch, again.base_sequence, again.attempt) == (1, 0, 1)


def test_a_refusal_fails_its_batch_alone() -> None:
    machine = IdempotentMachine(versions_of(2))
    step = first_identity(machine, machine.add_records(None, ROWS, 2))
    machine.answered(step.requests[0].number, Answer(base_offset=0))
    large, small = (machine.add_records(None, ROWS, count) for count in (1, 2))
    step = machine.answered(large.requests[0].number, Answer(error=Errors.MESSAGE_TOO_LARGE))
    assert step.failed == ((2, Errors.MESSAGE_TOO_LARGE),)
    step = machine.answered(
        small.requests[0].number, Answer(error=Errors.OUT_OF_ORDER_SEQUENCE_NUMBER)
    )
    (again,) = step.requests
    assert isinstance(again, Produce)
    assert (again.batch, again.producer_epoch, again.base_sequence) == (3, 1, 0)


def test_a_batch_that_is_too_large_goes_on_in_halves_of_a_new_epoch() -> None:
    machine = IdempotentMachine(versions_of(2))
    step = first_identity(machine, machine.add_records(None, ROWS, 2))
    machine.answered(step.requests[0].number, Answer(base_offset=0))
    large, small = (machine.add_records(None, ROWS, 3) for _ in range(2))
    step = machine.answered(large.requests[0].number, Answer(error=Errors.MESSAGE_TOO_LARGE))
    assert (step.halved, step.failed) == ((Halved(2, 4, 2),), ())
    early = Answer(error=Errors.OUT_OF_ORDER_SEQUENCE_NUMBER)
    step = machine.answered(small.requests[0].number, early)
    sent = []
    while step.requests:
        (request,) = step.requests[:1]
        assert isinstance(request, Produce)
        sent.append((request.batch, request.producer_epoch, request.base_sequence, request.order))
        step = machine.answered(request.number, Answer(base_offset=0))
        step = replace(step, requests=step.requests or tuple(machine.outstanding.values()))
    assert sent == [(2, 1, 0, (2, 0)), (4, 1, 2, (2, 1)), (3, 1, 3, (3,))]


def test_a_batch_that_may_be_written_is_not_halved() -> None:
    """Its topic may have taken as much when the other copy came."""
    machine = IdempotentMachine(versions_of(2))
    step = first_identity(machine, machine.add_records(None, ROWS, 2))
    step = machine.unanswered(step.requests[0].number)
    step = machine.answered(step.requests[0].number, Answer(error=Errors.MESSAGE_TOO_LARGE))
    assert (step.halved, step.failed) == ((), ((1, Errors.REQUEST_TIMED_OUT),))


def test_a_producer_that_is_refused_fails_its_batches() -> None:
    machine = IdempotentMachine(versions_of(2))
    step = machine.add_records(None, ROWS, 2)
    refused = Answer(error=Errors.CLUSTER_AUTHORIZATION_FAILED)
    step = machine.answered(step.requests[0].number, refused)
    assert step.failed == ((1, Errors.CLUSTER_AUTHORIZATION_FAILED),)
    step = machine.add_records(None, ROWS, 2)
    assert [number for number, _ in step.failed] == [step.batch]


def test_what_may_arrive_behind_a_batch_that_was_given_up_is_given_up_too() -> None:
    """Both copies may still arrive, one after the other: to send the second again doubled it."""
    machine = IdempotentMachine(versions_of(2))
    step = first_identity(machine, machine.add_records(None, ROWS, 2))
    machine.answered(step.requests[0].number, Answer(base_offset=0))
    sent = [machine.add_records(None, ROWS, 2).requests[0].number for _ in range(2)]
    copies = [machine.unanswered(number).requests[0].number for number in sent]
    assert machine.expire(2).failed == ((2, Errors.REQUEST_TIMED_OUT),)
    machine.unanswered(copies[0], sent=False)
    step = machine.unanswered(copies[1], sent=False)
    assert step.failed == ((3, Errors.REQUEST_TIMED_OUT),)


def test_what_waits_for_its_followers_behind_a_batch_that_was_given_up_is_given_up_too() -> None:
    """Both were written, and only the second was answered, with a refusal: it was written twice."""
    machine = IdempotentMachine(versions_of(2))
    step = first_identity(machine, machine.add_records(None, ROWS, 2))
    machine.answered(step.requests[0].number, Answer(base_offset=0))
    first, second = (machine.add_records(None, ROWS, 2).requests[0].number for _ in range(2))
    assert machine.expire(2).failed == ((2, Errors.REQUEST_TIMED_OUT),)
    waits = Answer(error=Errors.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    failed = machine.answered(second, waits).failed + machine.unanswered(first).failed
    assert failed == ((3, Errors.REQUEST_TIMED_OUT),)
