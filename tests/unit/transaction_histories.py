"""Producers with `TransactionMachine`, a network that delays, and the ledger of what was promised.

A request goes over the connection of its sender to its broker. A connection delivers in order, and
answers in order. When it breaks, its sender learns of it, and what is still on its way arrives at
any time later, or never.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from kafka.structs import TopicPartition
from model_transactions import Brokers, versions_of

from pyspark_kafka_rebalance.errors import TransactionAbortedError
from pyspark_kafka_rebalance.produce.requests import (
    Answer,
    Fetch,
    GroupMetadata,
    InitProducerId,
    Offset,
    OffsetFetch,
    Produce,
    Request,
)
from pyspark_kafka_rebalance.produce.transaction import TransactionMachine
from pyspark_kafka_rebalance.produce.transaction_errors import Errors, Outcome
from pyspark_kafka_rebalance.produce.transaction_step import Standing, Step

TRANSACTIONAL_ID, GROUP_ID = "tid", "g"
PARTITIONS = [TopicPartition("t", n) for n in range(2)]
SOURCE = TopicPartition("source", 0)

#: Steps until everything has settled, or does not.
PATIENCE = 2_000


@dataclass
class Promise:
    """One transaction as its application sees it."""

    records: dict[TopicPartition, list[Hashable]] = field(default_factory=dict)
    offsets: dict[TopicPartition, Offset] = field(default_factory=dict)
    commits: bool = False
    outcome: Outcome | None = None

    @property
    def is_empty(self) -> bool:
        return not self.records and not self.offsets


@dataclass
class Connection:
    requests: deque[Request] = field(default_factory=deque)
    answers: deque[tuple[Request, Answer]] = field(default_factory=deque)


class Producer:
    """An incarnation of the transactional id, and its application."""

    def __init__(self, name: str, world: World, machine: TransactionMachine) -> None:
        self.name, self.world, self.machine = name, world, machine
        self.connections: dict[Hashable, Connection] = {}
        self.promises: dict[int, Promise] = {}
        self.alive = True
        self.take(machine.initialize())

    @property
    def transaction(self) -> int | None:
        return self.machine.transaction

    @property
    def promise(self) -> Promise:
        assert self.transaction is not None
        return self.promises[self.transaction]

    def take(self, step: Step) -> None:
        for request in step.requests:
            self.connections.setdefault(_broker(request), Connection()).requests.append(request)
        if step.ended is not None:
            promise = self.promises[step.ended.transaction]
            assert promise.outcome is None, "an outcome is reported once"
            promise.outcome = step.ended.outcome

    # The application.

    def begin(self) -> None:
        if self.transaction is None and self.machine.standing is Standing.READY:
            self.promises[self.machine.begin()] = Promise()

    def send(self, partition: TopicPartition, records: int = 1) -> None:
        self.begin()
        if self.transaction is None:
            return
        handle, promise = self.transaction, self.promise
        sent = sum(len(values) for values in promise.records.values())
        values: list[Hashable] = [(self.name, handle, sent + n) for n in range(records)]
        try:
            step = self.machine.add_records(handle, partition, records)
        except TransactionAbortedError:
            return
        self.world.brokers.values[self.name, step.batch] = values
        promise.records.setdefault(partition, []).extend(values)
        self.take(step)

    def send_offsets(self, *, generation: int | None = None) -> None:
        self.begin()
        if self.transaction is None:
            return
        group = self.world.brokers.group(GROUP_ID)
        before = {SOURCE: group.committed.get(SOURCE, Offset(-1))} if not group.pending else {}
        offset = Offset(next(self.world.positions), f"{self.name}/{self.transaction}")
        member = GroupMetadata(GROUP_ID, generation or group.generation, "m")
        handle, promise = self.transaction, self.promise
        try:
            step = self.machine.add_offsets(handle, member, {SOURCE: offset}, before)
        except TransactionAbortedError:
            return
        promise.offsets[SOURCE] = offset
        self.take(step)

    def commit(self) -> None:
        if self.transaction is None:
            return
        promise = self.promise
        try:
            step = self.machine.commit(self.transaction)
        except TransactionAbortedError:
            return
        promise.commits = True
        self.take(step)

    def abort(self) -> None:
        if self.transaction is not None and not self.promise.commits:
            self.take(self.machine.abort(self.transaction))

    def initialize_again(self) -> None:
        if self.transaction is None and self.machine.standing is not Standing.READY:
            self.take(self.machine.initialize())


class World:
    """The brokers, the producers in the order of their starts, and what is between them."""

    def __init__(
        self, brokers: Brokers, machine: type[TransactionMachine] = TransactionMachine
    ) -> None:
        self.brokers, self._machine = brokers, machine
        self.positions = iter(range(1, 1_000_000))
        self.late: list[tuple[Producer, Request]] = []
        self.producers: list[Producer] = []
        self.may_be_unverified = not brokers.verification
        self.start()

    @property
    def producer(self) -> Producer:
        """The one that was started last."""
        return self.producers[-1]

    def start(self) -> None:
        """Another incarnation; those before do not know that they are zombies."""
        machine = self._machine(TRANSACTIONAL_ID, 60_000, versions_of(self.brokers.feature))
        self.producers.append(Producer(f"p{len(self.producers)}", self, machine))

    def kill(self, producer: Producer) -> None:
        """What it has sent still arrives."""
        producer.alive = False
        for connection in producer.connections.values():
            self.late += [(producer, request) for request in connection.requests]
        producer.connections.clear()

    def connections(self) -> list[tuple[Producer, Hashable, Connection]]:
        return [
            (producer, broker, connection)
            for producer in self.producers
            for broker, connection in producer.connections.items()
            if connection.requests or connection.answers
        ]

    # What the network does.

    def arrives(self, producer: Producer, connection: Connection) -> None:
        request = connection.requests.popleft()
        connection.answers.append((request, self.brokers.handle(producer.name, request)))

    def is_answered(self, producer: Producer, connection: Connection) -> None:
        request, answer = connection.answers.popleft()
        producer.take(producer.machine.answered(request.number, answer))

    def breaks(self, producer: Producer, broker: Hashable) -> None:
        connection = producer.connections.pop(broker)
        self.late += [(producer, request) for request in connection.requests]
        for request in [*(r for r, _ in connection.answers), *connection.requests]:
            producer.take(producer.machine.unanswered(request.number))

    def arrives_late(self, index: int) -> None:
        producer, request = self.late.pop(index)
        self.brokers.handle(producer.name, request)

    def moves_after_writing(self, producer: Producer, connection: Connection) -> None:
        """The coordinator does what the request asks for, and moves before it can say so."""
        request = connection.requests.popleft()
        self.brokers.handle(producer.name, request)
        self.brokers.coordinator_dies()
        connection.answers.append((request, _not_coordinator(request)))

    # All at once.

    def go_on(self, steps: int) -> None:
        """Requests arrive and are answered, and markers are written, as if nothing went wrong."""
        for _ in range(steps):
            if not self._one_step():
                return

    def _one_step(self) -> bool:
        if self.brokers.loading:
            self.brokers.coordinator_is_loaded()
        due = self.brokers.markers_due()
        if due:
            self.brokers.mark(*due[0])
        found = self.connections()
        for producer, _, connection in found:
            if connection.answers:
                self.is_answered(producer, connection)
            elif connection.requests:
                self.arrives(producer, connection)
        return bool(found or due)

    def late_requests_do_harm(self, open_first: bool) -> None:
        """Each arrives in an open transaction, or just before it; then that is committed."""
        self._until_quiet()
        while self.late:
            self.producer.initialize_again()
            self._until_quiet()
            if not open_first:
                self.arrives_late(0)
            for partition in PARTITIONS:
                self.producer.send(partition)
            self._until_quiet()
            if open_first:
                self.arrives_late(0)
            self._until_quiet()
            self.check_now()
            self.producer.commit()
            self._until_quiet()
            self.check_now()

    def settle(self) -> None:
        """Everybody ends what is open, and what is late arrives; then there is peace."""
        for _ in range(2):
            for producer in self.producers:
                if producer.alive:
                    producer.abort()
            self._until_quiet()
            while self.late:
                self.arrives_late(0)
            self._until_quiet()
        self.producer.initialize_again()
        self._until_quiet()

    def _until_quiet(self) -> None:
        for _ in range(PATIENCE):
            if not self._one_step():
                return
        raise AssertionError("it does not settle")

    # What must hold.

    def check_now(self) -> None:
        """What a reader sees belongs to transactions whose commit was asked for, whole, once."""
        for partition, leader in self.brokers.leaders.items():
            self._check_partition(partition, leader.visible())
        seen: set[Offset] = set()
        for _, offset in self.brokers.group(GROUP_ID).history:
            assert offset not in seen, f"offsets of {offset.metadata} are committed twice"
            seen.add(offset)
            promise = self._promise_of(offset.metadata)
            assert promise.commits, f"offsets of {offset.metadata} without a commit"
            assert promise.outcome is not Outcome.ABORTED, f"{offset.metadata} was aborted"
            assert promise.offsets[SOURCE] == offset, f"old offsets of {offset.metadata}"

    def _check_partition(self, partition: TopicPartition, visible: list[Hashable]) -> None:
        assert len(visible) == len(set(visible)), f"twice in {partition}: {visible}"
        by_transaction: dict[tuple[str, int], list[Hashable]] = {}
        last = None
        for value in visible:
            assert isinstance(value, tuple)
            key = value[0], value[1]
            assert key == last or key not in by_transaction, f"{key} is torn by others: {visible}"
            by_transaction.setdefault(key, []).append(value)
            last = key
        assert list(by_transaction) == sorted(by_transaction), f"not in order: {visible}"
        for (name, handle), values in by_transaction.items():
            promise = self._promise_of(f"{name}/{handle}")
            assert promise.commits, f"{name}/{handle} is seen before its commit: {values}"
            assert promise.outcome is not Outcome.ABORTED, f"{name}/{handle} was aborted: {values}"
            assert values == promise.records[partition], f"half of {name}/{handle}: {values}"

    def check_at_the_end(self) -> None:
        """All or nothing, as reported; and nothing holds readers back."""
        self.check_now()
        visible = {p: set(leader.visible()) for p, leader in self.brokers.leaders.items()}
        applied = {offset for _, offset in self.brokers.group(GROUP_ID).history}
        for producer, handle, promise in self._promises():
            seen = [
                value in visible.get(partition, set())
                for partition, values in promise.records.items()
                for value in values
            ] + [offset in applied for offset in promise.offsets.values()]
            name = f"{producer.name}/{handle}"
            assert len(set(seen)) <= 1, f"{name} is torn"
            if promise.outcome is Outcome.COMMITTED:
                assert all(seen), f"{name} was reported as committed"
            if promise.outcome is Outcome.ABORTED:
                assert not any(seen), f"{name} was reported as aborted"
            assert promise.outcome or not producer.alive, f"nothing was reported of {name}"
        for partition, leader in self.brokers.leaders.items():
            assert leader.last_stable_offset == len(leader.log), f"{partition} hangs"
        assert not self.brokers.group(GROUP_ID).pending, "offsets hang"

    def _promises(self) -> Iterator[tuple[Producer, int, Promise]]:
        for producer in self.producers:
            for handle, promise in producer.promises.items():
                yield producer, handle, promise

    def _promise_of(self, name: str) -> Promise:
        producer, handle = name.split("/")
        return next(p for p in self.producers if p.name == producer).promises[int(handle)]


def _broker(request: Request) -> Hashable:
    if isinstance(request, Produce):
        return request.partition
    if isinstance(request, (Fetch, OffsetFetch)):
        return "questions"  # a connection of its own: an answer may take long
    return request.node


def _not_coordinator(request: Request) -> Answer:
    partitions = getattr(request, "partitions", ())
    if isinstance(request, InitProducerId) or not partitions:
        return Answer(Errors.NOT_COORDINATOR)
    return Answer(errors=dict.fromkeys(partitions, int(Errors.NOT_COORDINATOR)))
