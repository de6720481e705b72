"""From records to requests and back: `Delivery`, with the model of the brokers and no socket."""

from __future__ import annotations

import random
from concurrent.futures import Future
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kafka.record import MemoryRecords
from kafka.structs import TopicPartition
from model_transactions import Brokers, versions_of

from pyspark_kafka_rebalance.errors import RecordTooLargeError, TransactionAbortedError
from pyspark_kafka_rebalance.produce.delivery import Delivery, DeliverySettings, RecordPosition
from pyspark_kafka_rebalance.produce.encoder.settings import EncoderSettings
from pyspark_kafka_rebalance.produce.idempotent import IdempotentMachine
from pyspark_kafka_rebalance.produce.outbox import Parcel
from pyspark_kafka_rebalance.produce.requests import Answer, InitProducerId, Produce, Request
from pyspark_kafka_rebalance.produce.transaction import TransactionMachine
from pyspark_kafka_rebalance.produce.transaction_errors import Errors, Outcome

PARTITIONS = 2
ID = "id"


class Described:
    """A MetadataResponse, as far as it is read."""

    API_VERSION = 12

    def __init__(
        self,
        partitions: int = PARTITIONS,
        leader: int = 1,
        epoch: int = 0,
        topic_id: UUID | None = None,
        without_leader: int | None = None,
    ) -> None:
        self.topics = [
            _Described(
                name="t",
                topic_id=topic_id,
                error_code=0,
                partitions=[
                    _Described(
                        partition_index=n,
                        leader_id=-1 if n == without_leader else leader,
                        leader_epoch=epoch,
                    )
                    for n in range(partitions)
                ],
            )
        ]


class _Described:
    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


class World:
    """A producer's delivery, its brokers, and a clock."""

    def __init__(self, version: int | None, **bounds: Any) -> None:
        self.now = 0.0
        self.brokers = Brokers(version or 2)
        self.machine: Any = (
            IdempotentMachine(versions_of(2))
            if version is None
            else TransactionMachine(ID, 60_000, versions_of(version))
        )
        encoder = bounds.pop("encoder", EncoderSettings(batch_bytes=150))
        self.delivery = Delivery(
            self.machine, DeliverySettings(encoder, linger_s=1, **bounds), lambda: self.now
        )
        self.delivery.topics.topic("t")
        self.delivery.take_metadata(Described())
        self.flying: list[Parcel] = []
        self.max_message_bytes = 2**31
        self.sizes: dict[int, int] = {}  # of the batches that were sent

    @property
    def batches(self) -> Any:
        return self.delivery.open["t"] if "t" in self.delivery.open else self.opened()

    def opened(self) -> Any:
        batches = self.delivery.open_topic("t")
        assert batches is not None
        return batches

    def send(self, value: bytes, partition: int = 0) -> Future[RecordPosition]:
        self.delivery.append(self.opened(), partition, None, value, None, 0)
        return self.delivery.await_last(self.opened(), partition)

    def send_rows(self, rows: pa.Table) -> None:
        transaction = self.delivery.accepts
        self.delivery.begin_rows(self.opened())
        full = self.opened().encode(rows, 0)
        self.delivery.end_rows(transaction, self.opened(), full)

    def take(self) -> list[Parcel]:
        self.delivery.expire(self.now)
        self.delivery.close_lingering(self.now)
        taken = self.delivery.take(self.now)
        self.flying += taken
        for request in (each for parcel in taken for each in parcel.requests):
            if isinstance(request, Produce):
                batch = self.delivery.batch_of(request)
                records = [r.value for r in next(iter(MemoryRecords(bytes(batch))))]
                assert len(records) == request.record_count
                self.brokers.values[ID, request.batch] = records
                self.sizes[request.number] = len(batch)
        return taken

    def arrive(self, parcel: Parcel) -> list[tuple[Request, Answer]]:
        return [(request, self.answer_to(request)) for request in parcel.requests]

    def answer_to(self, request: Request) -> Answer:
        if isinstance(request, Produce):
            if self.sizes[request.number] > self.max_message_bytes:
                # It knows the sequence number by now, from the transaction's verification.
                lowest = self.brokers.leader(request.partition).lowest
                key = request.producer_id, request.producer_epoch
                lowest[key] = min(lowest.get(key, request.base_sequence), request.base_sequence)
                return Answer(Errors.MESSAGE_TOO_LARGE)
            records = self.brokers.values[ID, request.batch]
            if request.transactional_id is None:
                leader = self.brokers.leader(request.partition)
                base = len(leader.log)
                error = leader.append(request, records, verified=False)
                leader.producers[request.producer_id].open_from = None
                return Answer(error, base_offset=base if len(leader.log) > base else -1)
        if isinstance(request, InitProducerId) and request.transactional_id is None:
            return Answer(producer_id=5, producer_epoch=0)
        return self.brokers.handle(ID, request)

    def answered(self, parcel: Parcel) -> None:
        self.flying.remove(parcel)
        self.delivery.answered(parcel, self.arrive(parcel), self.now)

    def lost(self, parcel: Parcel, arrives: bool) -> None:
        self.flying.remove(parcel)
        if arrives:
            self.arrive(parcel)
        self.delivery.unanswered(parcel, sent=True, now=self.now)
        self.delivery.take_metadata(Described())

    def resolve(self) -> None:
        for future, result in self.delivery.take_resolved():
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)

    def settle(self, until: Any = None) -> None:
        """Until nothing is to be done, on a network that works."""
        for _ in range(2_000):
            self.take()
            if self.flying:
                self.answered(self.flying[0])
            elif (at := self.delivery.wake_at(self.now)) is not None and at < self.now + 30:
                self.now = max(at, self.now)
            else:
                break
            for name, member in self.brokers.markers_due():
                self.brokers.mark(name, member)
            if until is not None and until():
                break
        self.resolve()

    def visible(self, partition: int = 0) -> list[Any]:
        return self.brokers.leader(TopicPartition("t", partition)).visible()


@pytest.fixture(params=[None, 1, 2], ids=["plain", "v1", "v2"])
def world(request: pytest.FixtureRequest) -> World:
    made = World(request.param)
    if request.param is not None:
        begin(made)
    return made


def begin(world: World) -> int:
    if world.machine.identity.producer_id < 0:
        world.delivery.apply(world.machine.initialize())
    handle: int = world.machine.begin()
    world.delivery.look_at_machine()
    return handle


def commit(world: World) -> Outcome:
    handle = world.machine.open_transaction
    world.delivery.close_open()
    world.delivery.apply(world.machine.commit(handle))
    world.settle()
    ended = world.delivery.last_ended
    assert ended is not None
    assert ended.transaction == handle
    return ended.outcome


def is_plain(world: World) -> bool:
    return isinstance(world.machine, IdempotentMachine)


def test_a_record_is_sent_when_its_batch_has_lingered(world: World) -> None:
    future = world.send(b"a")
    world.settle(until=lambda: world.now > 0.5)
    assert world.now == pytest.approx(1)
    world.settle()
    assert future.result(0) == ("t", 0, 0)
    assert world.delivery.used == 0


def test_each_record_gets_its_position(world: World) -> None:
    futures = [world.send(b"%d" % n, n % 2) for n in range(40)]
    world.settle()
    assert [future.result(0) for future in futures] == [("t", n % 2, n // 2) for n in range(40)]


def test_rows_and_records_keep_their_order(world: World) -> None:
    world.send(b"0")
    world.send_rows(pa.table({"value": [b"1", b"2"], "partition": [0, 0]}))
    world.send(b"3")
    last = world.delivery.close_open()
    assert world.delivery.settled == 0
    world.settle()
    assert world.delivery.settled == last
    if not is_plain(world):
        assert commit(world) is Outcome.COMMITTED
    assert world.visible() == [b"0", b"1", b"2", b"3"]


def test_a_record_that_is_too_large_costs_no_other(world: World) -> None:
    world.send_rows(pa.table({"value": [b"1"], "partition": [0]}))
    world.send(b"2")
    with pytest.raises(RecordTooLargeError):
        world.send(b"x" * 2_000_000)
    world.send(b"3")
    world.settle()
    if not is_plain(world):
        assert commit(world) is Outcome.COMMITTED
    assert world.visible() == [b"1", b"2", b"3"]
    assert world.delivery.used == 0


def test_a_partition_that_is_busy_keeps_its_batch_open() -> None:
    world = World(None, encoder=EncoderSettings(batch_records=1))
    for n in range(6):
        world.send(b"%d" % n)
    world.settle(until=lambda: len(world.flying) == 0 and world.now > 0)
    # The answer to the producer id's request, then the first batch alone, then five.
    for n in range(6, 12):
        world.send(b"%d" % n)
    world.now += 2
    world.take()
    assert world.batches.open_in() == [0]
    at = world.delivery.wake_at(world.now)
    assert at is None or at > world.now, "no turn after the other"
    world.settle()
    assert world.visible() == [b"%d" % n for n in range(12)]


def test_a_batch_that_waits_for_too_long_fails() -> None:
    world = World(None, timeout_s=10)
    future = world.send(b"a")
    world.now = 2
    world.take()
    world.now = 13
    world.take()
    world.resolve()
    assert "RequestTimedOut" in type(future.exception(0)).__name__
    (failure,) = world.delivery.take_failures()
    assert "t-0" in str(failure)


def test_a_batch_that_waits_for_too_long_aborts_its_transaction() -> None:
    world = World(2, timeout_s=10)
    begin(world)
    future = world.send(b"a")
    world.now = 2
    world.take()
    world.now = 13
    world.settle()
    assert world.delivery.last_ended is not None
    assert "t-0 were not delivered in time" in world.delivery.last_ended.cause
    assert isinstance(future.exception(0), TransactionAbortedError)
    begin(world)
    world.send(b"b")
    assert commit(world) is Outcome.COMMITTED
    assert world.visible() == [b"b"]


def test_an_abort_waits_for_no_leader() -> None:
    """What was not sent is given back: EndTxn comes at once."""
    world = World(1)
    handle = begin(world)
    world.settle()
    world.delivery.topics.moved(TopicPartition("t", 0), -1, 99)
    world.delivery.topics.forget(TopicPartition("t", 0))
    world.send(b"a")
    world.delivery.close_open()
    world.settle()
    world.delivery.drop_open()
    world.delivery.apply(world.machine.abort(handle))
    world.settle()
    assert world.delivery.last_ended is not None
    assert world.delivery.used == 0


def test_a_topic_that_grows(world: World) -> None:
    world.send(b"a")
    world.delivery.take_metadata(Described(partitions=5))
    assert world.opened().partitions == 5
    world.send(b"b", 4)
    world.settle()
    if not is_plain(world):
        assert commit(world) is Outcome.COMMITTED
    assert world.visible(4) == [b"b"]


def test_a_topic_that_is_created_anew_with_fewer_partitions(world: World) -> None:
    """Keys went to partitions that no longer exist, for as long as the process lived."""
    world.delivery.take_metadata(Described(epoch=7, topic_id=UUID(int=1)))
    gone = world.send(b"a", 1)
    world.delivery.close_open()
    world.delivery.take_metadata(Described(partitions=1, topic_id=UUID(int=2)))
    assert world.opened().partitions == 1
    assert world.delivery.topics.leader_of(TopicPartition("t", 0)) == 1, "its epochs began anew"
    world.settle()
    assert gone.exception(0) is not None
    if not is_plain(world):
        assert world.delivery.last_ended is not None
        assert world.delivery.last_ended.outcome is Outcome.ABORTED
        begin(world)
    world.send(b"b", 0)
    world.settle()
    if not is_plain(world):
        assert commit(world) is Outcome.COMMITTED
    assert world.visible() == [b"b"]
    assert world.delivery.used == 0


def test_a_broker_that_is_behind_takes_no_partition_away(world: World) -> None:
    world.delivery.take_metadata(Described(partitions=3, topic_id=UUID(int=1)))
    world.delivery.take_metadata(Described(partitions=2, topic_id=UUID(int=1)))
    assert world.opened().partitions == 3


def test_records_without_a_key_go_where_there_are_leaders(world: World) -> None:
    """A partition whose leader was away had no part of them ever after."""
    assert sorted(world.opened().sticky.order) == [0, 1]
    world.delivery.take_metadata(Described(without_leader=1))
    assert list(world.opened().sticky.order) == [0]
    world.delivery.begin_rows(world.opened())
    full = world.opened().encode(pa.table({"value": [b"1"]}), 0)
    world.delivery.take_metadata(Described())
    assert list(world.opened().sticky.order) == [0], "not while rows go there"
    world.delivery.end_rows(world.delivery.accepts, world.batches, full)
    assert sorted(world.opened().sticky.order) == [0, 1]


def test_a_leader_that_refuses_is_looked_up(world: World) -> None:
    world.send(b"a")
    world.delivery.close_open()
    where = TopicPartition("t", 0)
    while not any(isinstance(p.requests[0], Produce) for p in world.take()):
        world.answered(world.flying[0])
    (parcel,) = (p for p in world.flying if p.has_records)
    world.flying.remove(parcel)
    refused = Answer(error=Errors.NOT_LEADER_OR_FOLLOWER)
    world.delivery.answered(parcel, [(parcel.requests[0], refused)], world.now)
    assert world.delivery.topics.stale
    world.delivery.take_metadata(Described(leader=2, epoch=1))
    assert world.delivery.topics.leader_of(where) == 2
    world.delivery.take_metadata(Described(leader=1, epoch=0))
    assert world.delivery.topics.leader_of(where) == 2, "of a broker that is behind"
    world.settle()
    assert world.delivery.used == 0


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([None, 1, 2]), st.integers(0, 2**32))
@example(2, 238)  # the records before some rows could not be sent, and the next waited for the rows
@example(2, 99999999)  # an abort was refused since the one before had not written its markers
def test_readers_see_what_was_committed(version: int | None, seed: int) -> None:
    """Whatever is lost on the way; messages of one broker arrive in their order."""
    chance = random.Random(seed)
    world = World(version, max_in_flight=chance.choice([1, 5]))
    committed: list[list[bytes]] = [[], []]
    for first in range(0, 60, 20):
        handle = None if version is None else begin(world)
        sent: list[list[bytes]] = [[], []]
        try:
            for n in range(first, first + 20):
                partition = chance.randrange(PARTITIONS)
                if chance.random() < 0.3:
                    rows = pa.table({"value": [b"%d" % n], "partition": [partition]})
                    world.send_rows(rows)
                else:
                    world.send(b"%d" % n, partition)
                sent[partition].append(b"%d" % n)
                world.take()
                if world.flying and chance.random() < 0.7:
                    parcel = world.flying[0]
                    if chance.random() < 0.3:
                        world.lost(parcel, arrives=chance.random() < 0.5)
                    else:
                        world.answered(parcel)
                world.now += chance.random() / 10
            if version is not None and chance.random() < 0.3:
                world.delivery.drop_open()
                world.delivery.apply(world.machine.abort(handle))
                world.settle()
                continue
            outcome = Outcome.COMMITTED if version is None else commit(world)
        except TransactionAbortedError:
            world.settle()
            continue
        if outcome is Outcome.COMMITTED:
            for n in range(PARTITIONS):
                committed[n] += sent[n]
    world.settle()
    assert [world.visible(n) for n in range(PARTITIONS)] == committed
    assert world.delivery.used == 0
    assert not world.machine.outstanding


def test_a_batch_that_is_given_up_is_not_sent() -> None:
    """It waited to be sent again, and the producer ended with a KeyError."""
    world = World(None, timeout_s=10)
    world.send(b"a")
    world.settle()
    world.send(b"b")
    world.delivery.close_open()
    (parcel,) = world.take()
    world.now = 14
    world.lost(parcel, arrives=True)
    world.now = 14.001
    world.take()
    world.send(b"c")
    world.settle()
    assert world.visible() == [b"a", b"b", b"c"]
    assert world.delivery.used == 0
    assert len(world.delivery.take_failures()) == 1


def test_a_topic_that_is_being_created_is_asked_for_again(world: World) -> None:
    topics = world.delivery.topics
    topics.topic("new")
    described = Described()
    described.topics.append(_Described(name="new", topic_id=None, error_code=3, partitions=[]))
    world.delivery.take_metadata(described)
    assert topics.stale
    topics.leave("new")
    world.delivery.take_metadata(described)
    assert not topics.stale
    assert topics.names == ["t"]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_what_is_given_up_is_there_once_at_most(seed: int) -> None:
    """And what is not given up is there once, in order."""
    chance = random.Random(seed)
    world = World(None, timeout_s=1.5)
    sent: list[tuple[int, bytes, Future[RecordPosition]]] = []
    for n in range(60):
        partition = chance.randrange(PARTITIONS)
        sent.append((partition, b"%d" % n, world.send(b"%d" % n, partition)))
        world.take()
        if world.flying and chance.random() < 0.6:
            parcel = world.flying[0]
            if chance.random() < 0.5:
                world.lost(parcel, arrives=chance.random() < 0.5)
            else:
                world.answered(parcel)
        world.now += chance.random() / 4
    world.settle()
    for partition in range(PARTITIONS):
        found = [int(value) for value in world.visible(partition)]
        assert found == sorted(set(found))
        for where, value, future in sent:
            if where == partition and future.exception(0) is None:
                assert int(value) in found
    assert world.delivery.used == 0
    assert not world.machine.outstanding


@pytest.mark.parametrize("goes_on", [False, True], ids=["aborted", "another begun"])
def test_rows_that_are_being_encoded_when_their_transaction_ends(goes_on: bool) -> None:
    """Another thread aborts it. None of them gets into the next one."""
    world = World(2)
    old = begin(world)
    world.send_rows(pa.table({"value": [b"never"], "partition": [0]}))
    batches = world.opened()
    world.delivery.begin_rows(batches)
    full = batches.encode(pa.table({"value": [b"x" * 100] * 3, "partition": [0] * 3}), 0)
    assert full
    world.delivery.drop_open()
    world.delivery.apply(world.machine.abort(old))
    world.settle()
    if goes_on:
        begin(world)
    world.delivery.end_rows(old, batches, full)
    assert world.delivery.used == 0
    if not goes_on:
        begin(world)
    world.send(b"whole")
    assert commit(world) is Outcome.COMMITTED
    assert world.visible() == [b"whole"]
    assert world.delivery.used == 0


def test_what_is_flushed_while_rows_are_encoded(world: World) -> None:
    """By another thread. The rows, and those before them, are left alone."""
    batches = world.opened()
    world.send_rows(pa.table({"value": [b"0"], "partition": [0]}))
    world.delivery.begin_rows(batches)
    full = batches.encode(pa.table({"value": [b"1"], "partition": [0]}), 0)
    assert world.delivery.close_open() == 0
    world.delivery.end_rows(world.delivery.accepts, batches, full)
    world.send(b"2")
    world.settle()
    if not is_plain(world):
        assert commit(world) is Outcome.COMMITTED
    assert world.visible() == [b"0", b"1", b"2"]
    assert world.delivery.used == 0


def test_a_transaction_that_ends_as_rows_are_to_be_encoded_holds_up_no_later_one() -> None:
    """The topic's next records waited for the end of rows that nobody encoded."""
    world = World(2)
    handle = begin(world)
    world.send(b"never")
    world.machine.abort(handle)  # the delivery does not know yet
    with pytest.raises(TransactionAbortedError):
        world.send_rows(pa.table({"value": [b"never"], "partition": [0]}))
    world.settle()
    begin(world)
    world.send(b"a")
    assert commit(world) is Outcome.COMMITTED
    assert world.visible() == [b"a"]
    assert world.delivery.used == 0


def test_a_batch_that_is_too_large_is_sent_in_parts(world: World) -> None:
    """KIP-126. The parts keep their order, and each record its future."""
    world.max_message_bytes = 110
    futures = [world.send(b"%02d" % n * 3) for n in range(30)]
    world.delivery.close_open()
    world.settle()
    more = [world.send(b"%02d" % n * 3) for n in range(30, 60)]
    world.settle()
    if not is_plain(world):
        assert commit(world) is Outcome.COMMITTED
    world.resolve()
    assert world.visible() == [b"%02d" % n * 3 for n in range(60)]
    offsets = [future.result().offset for future in futures + more]
    assert [offset for offset in offsets if offset >= 0] == list(range(60))
    assert world.delivery.used == 0
    assert world.delivery.settled == world.delivery.closed
    assert not world.delivery.take_failures()


def test_batches_after_one_that_was_too_large_are_smaller(world: World) -> None:
    world.max_message_bytes = 110
    for n in range(9):
        world.send(b"%d" % n * 6)
    world.delivery.close_open()
    world.settle()
    sizes = set()
    for n in range(9):
        world.send(b"%d" % n * 6)
    world.delivery.close_open()
    while parcels := world.take():
        sizes |= {len(world.delivery.batch_of(r)) for p in parcels for r in p.requests}  # type: ignore[arg-type]
        for parcel in parcels:
            world.answered(parcel)
    assert max(sizes) <= world.max_message_bytes


def test_a_record_that_is_too_large_alone_fails_alone(world: World) -> None:
    world.max_message_bytes = 110
    futures = [world.send(value) for value in (b"a", b"x" * 60, b"b")]
    world.delivery.close_open()
    world.settle()
    failed = futures[1].exception()
    assert failed is not None
    if is_plain(world):
        assert world.visible() == [b"a", b"b"]
        assert "a record for t-0 is larger than the topic's max.message.bytes" in str(failed)
    else:
        ended = world.delivery.last_ended
        assert ended is not None
        assert ended.outcome is Outcome.ABORTED
        assert "a record for t-0 is larger than the topic's max.message.bytes" in ended.cause
