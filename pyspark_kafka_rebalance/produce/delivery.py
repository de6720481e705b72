"""From records to requests, and from answers to what became of the records. Pure.

`Delivery` joins the parts that decide: the open batches of each topic, the machine that gives them
sequence numbers, the outbox that says what goes where and when. Its owner sends the parcels,
reports answers, and passes the time. One thread at a time calls the methods.

Invariants:
 1. A record is in one place: an open batch, or a batch that the machine knows; when its leader has
    acknowledged it or it is given up, in none.
 2. ``used`` is the size of all of them.
 3. Batches of a transaction that has ended, or is about to be aborted, are dropped at once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from ..errors import TransactionAbortedError
from .encoder.at_once import new_room
from .encoder.encoded_batch import EncodedBatch
from .encoder.halves import halves_of
from .encoder.settings import EncoderSettings
from .open_batches import OpenBatches
from .open_transaction import MAX_IN_FLIGHT
from .outbox import Backoff, Outbox, Parcel
from .requests import Answer, Produce, Request
from .topics import Topics
from .transaction_errors import Errors, Outcome, Verdict, explained, verdict_of
from .transaction_step import Ended, Halved, Step, name_of, refused_batch

if TYPE_CHECKING:
    from .encoder.python_records import Headers


class RecordPosition(NamedTuple):
    """Where a record is in the log.

    Attributes
    ----------
    offset : int
        -1 if its leader does not say, since it knew the batch already.
    """

    topic: str
    partition: int
    offset: int


class Machine(Protocol):
    """What gives batches their producer, epoch and sequence: with or without transactions."""

    @property
    def outstanding(self) -> Mapping[int, Request]:
        """The requests without an answer, by number."""

    @property
    def open_transaction(self) -> int | None:
        """The handle of the transaction that takes records; None outside of transactions."""

    @property
    def aborting(self) -> bool:
        """Whether requests that were not sent yet need not be."""

    def add_records(self, transaction: Any, partition: TopicPartition, record_count: int) -> Step:
        """Add a batch; ``Step.batch`` is its number."""

    @property
    def doom(self) -> str:
        """Why they need not be; empty if they have to be."""

    def expire(self, batch: int, reason: str = "") -> Step:
        """A batch has waited for too long; for this reason, if it is known."""

    def answered(self, number: int, answer: Answer) -> Step:
        """A broker answered."""

    def unanswered(self, number: int, *, sent: bool = True) -> Step:
        """There will be no answer."""


#: No transaction's handle.
_NOTHING = -1

#: Stands for None, outside of transactions, where numbers are needed.
OUTSIDE = -2

#: A record's number in its batch, and the future that is to have its position.
_Awaited = tuple[int, "Future[RecordPosition]"]


@dataclass(frozen=True)
class DeliverySettings:
    """The bounds of what is on its way.

    Attributes
    ----------
    buffer_memory : int
        Bytes of records that may wait for their leaders' acknowledgement.
    linger_s : float
        How long a batch stays open for more records. Seconds.
    max_request_size, message_bytes : int
        Bytes of the batches in one message: the larger of the two.
    max_in_flight : int
        Messages with records that one broker may have.
    timeout_s : float
        How long a batch may wait for its acknowledgement, from its closing on. Seconds.
    backoff : Backoff
    """

    encoder: EncoderSettings
    buffer_memory: int = 64 * 1024 * 1024
    linger_s: float = 0.005
    max_request_size: int = 1024 * 1024
    max_in_flight: int = 5
    timeout_s: float = 120.0
    backoff: Backoff = field(default_factory=Backoff)
    message_bytes: int = 0


@dataclass
class _OnItsWay:
    """A batch that the machine knows."""

    partition: TopicPartition
    encoded: EncodedBatch
    order: int
    deadline: float
    awaited: list[_Awaited]
    #: What became of its last copy, for people; its error code, 0 if that had no answer.
    last: str = ""
    last_code: int = 0

    def position(self, offset: int) -> RecordPosition:
        return RecordPosition(self.partition.topic, self.partition.partition, offset)


class Delivery:
    """What a producer has to deliver.

    Parameters
    ----------
    machine : TransactionMachine or IdempotentMachine
    settings : DeliverySettings
    clock : callable
        Seconds, by any steady clock.

    Attributes
    ----------
    topics : Topics
        What metadata says; the owner keeps it up to date.
    open : dict of str to OpenBatches
        The open batches, by topic.
    room : Room
        ``used`` and ``accepts``, for the records that come at once.
    closed, settled : int
        How many batches were closed so far; all up to number ``settled`` are acknowledged or given
        up.
    last_ended : Ended or None
        The last transaction whose outcome is known.
    """

    def __init__(
        self, machine: Machine, settings: DeliverySettings, clock: Callable[[], float]
    ) -> None:
        self.machine = machine
        self._clock = clock
        self.topics = Topics()
        self._settings = settings
        self.open: dict[str, OpenBatches] = {}
        self._largest: dict[str, int] = {}
        self._awaited: dict[TopicPartition, list[_Awaited]] = {}
        self._on_their_way: dict[int, _OnItsWay] = {}
        self._unacknowledged: Counter[TopicPartition] = Counter()
        self._outbox = Outbox(
            self.topics.leader_of,
            lambda request: len(self._on_their_way[request.batch].encoded.data),
            max(settings.max_request_size, settings.message_bytes),
            settings.max_in_flight,
            settings.backoff,
        )
        self.room = new_room(settings.buffer_memory)
        self.accepts = None
        self._refuses = False
        self.closed = 0
        self.last_ended: Ended | None = None
        self._failures: list[Exception] = []
        self._resolved: list[tuple[Future[RecordPosition], RecordPosition | Exception]] = []

    @property
    def used(self) -> int:
        """Bytes of records that are open or on their way."""
        return self.room.used

    @used.setter
    def used(self, used: int) -> None:
        self.room.used = used

    @property
    def accepts(self) -> int | None:
        """The transaction that takes records; None outside of transactions."""
        accepts = self.room.accepts
        return None if accepts == OUTSIDE else accepts

    @accepts.setter
    def accepts(self, transaction: int | None) -> None:
        self.room.accepts = OUTSIDE if transaction is None else transaction

    @property
    def has_room(self) -> bool:
        """Whether another record may come."""
        return self.used < self._settings.buffer_memory

    @property
    def settled(self) -> int:
        """All batches up to this number, counted from 1, are acknowledged or given up."""
        unsettled = (each.order for each in self._on_their_way.values())
        return min(unsettled, default=self.closed + 1) - 1

    # Records.

    def allow(self, topic: str, size: int) -> None:
        """Take records of this many bytes for a topic, if that is more than for others.

        Before the first record for it.
        """
        self._largest[topic] = size

    def open_topic(self, name: str) -> OpenBatches | None:
        """The open batches of a topic; None while metadata does not describe it."""
        topic = self.topics.topic(name)
        if not topic.partitions:
            return None
        batches = self.open.get(name)
        if batches is None:
            encoder = self._settings.encoder
            if (largest := self._largest.get(name, 0)) > encoder.max_request_bytes:
                encoder = replace(encoder, max_request_bytes=largest)
            batches = self.open[name] = OpenBatches(
                name, topic.partitions, encoder, topic.available, self.room
            )
        elif not batches.encodes and (topic.partitions, topic.available) != (
            batches.partitions,
            batches.available,
        ):
            batches.follow(topic.partitions, topic.available)
        return batches

    def append(
        self,
        batches: OpenBatches,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        timestamp_ms: int,
    ) -> bool:
        """Append a record; return whether the owner has something to do for it.

        Errors are those of `OpenBatches.append`, and TransactionAbortedError.
        """
        before = batches.size
        try:
            batches.append(partition, key, value, headers, timestamp_ms)
        finally:
            self.used += batches.size - before
            is_news = bool(batches.closed)
            if is_news:
                self._add(batches, self._clock())
        if batches.opened_at is None:
            batches.opened_at = self._clock()
            return True
        return is_news

    def await_last(self, batches: OpenBatches, partition: int) -> Future[RecordPosition]:
        """A future of the position of the record that was appended last."""
        where = TopicPartition(batches.topic, partition)
        awaited: Future[RecordPosition] = Future()
        self._awaited.setdefault(where, []).append((batches.last_in(partition), awaited))
        return awaited

    def begin_rows(self, batches: OpenBatches) -> None:
        """Rows are about to be encoded: `OpenBatches.encode`.

        TransactionAbortedError is raised if the records before them cannot be sent any more.
        """
        before = batches.size
        batches.close_for_rows()
        self.used += batches.size - before
        self._add(batches, self._clock())
        batches.begin_rows()

    def end_rows(
        self, transaction: int | None, batches: OpenBatches, full: list[EncodedBatch]
    ) -> None:
        """Rows are encoded; they are dropped if their transaction takes no records any more."""
        before = batches.size
        batches.end_rows(full, keep=self.machine.open_transaction == transaction)
        self.used += batches.size - before
        if batches.opened_at is None:
            batches.opened_at = self._clock()
        self._add(batches, self._clock())
        self.open_topic(batches.topic)  # what metadata said meanwhile

    def add_encoded(self, batches: OpenBatches, encoded: EncodedBatch) -> None:
        """Add a batch that somebody else has encoded, behind the topic's records so far.

        Not while rows are being encoded. TransactionAbortedError is raised as by `append`.
        """
        now = self._clock()
        if batches.size:
            self._close(batches, now)
        batches.closed.append(encoded)
        self._add(batches, now)

    def close_open(self) -> int:
        """Close all open batches; return the number of the last, counted from 1."""
        for batches in self.open.values():
            self._close(batches, self._clock())
        return self.closed

    def close_lingering(self, now: float) -> None:
        """Close what has been open for long enough, unless its partition is busy anyway."""
        if self.machine.aborting:
            self.drop_open()
        for batches in self.open.values():
            if batches.opened_at is None or now < batches.opened_at + self._settings.linger_s:
                continue
            busy = {
                partition
                for partition in batches.open_in()
                if self._unacknowledged[TopicPartition(batches.topic, partition)] >= MAX_IN_FLIGHT
            }
            self._close(batches, now, busy)

    def _close(self, batches: OpenBatches, now: float, but: Container[int] = ()) -> None:
        before = batches.size
        batches.close(but)
        self.used += batches.size - before
        self._add(batches, now)

    def take_metadata(self, metadata: Any) -> None:
        """Take a MetadataResponse.

        What is for partitions that a topic no longer has, as it was created anew, is given up.
        """
        self.topics.apply(metadata)
        for name in list(self.open):
            self.open_topic(name)
        for number, batch in list(self._on_their_way.items()):
            partitions = self.topics.topic(batch.partition.topic).partitions
            if batch.partition.partition >= partitions and number in self._on_their_way:
                self.apply(
                    self.machine.expire(number, f"the topic has {partitions} partitions now")
                )

    def abandon(self, error: Exception) -> None:
        """Give everything up: nothing is sent any more."""
        self.drop_open(error)
        for number in list(self._on_their_way):
            self._settle(number, error)

    def drop_open(self, error: Exception | None = None) -> None:
        """Forget the open batches; their transaction is aborted, if there is no other error."""
        if error is None:
            error = TransactionAbortedError(self.machine.doom or "its records were not sent", {})
        for batches in self.open.values():
            before = batches.size
            batches.drop()
            self.used += batches.size - before
        for awaited in self._awaited.values():
            self._resolved += [(future, error) for _, future in awaited]
        self._awaited.clear()

    def _add(self, batches: OpenBatches, now: float) -> None:
        """Give the machine what is closed."""
        for encoded in batches.take():
            where = TopicPartition(batches.topic, encoded.partition)
            try:
                step = self.machine.add_records(
                    self.machine.open_transaction, where, encoded.records
                )
            except TransactionAbortedError:
                self.drop_open()
                raise
            self.closed += 1
            self._on_their_way[step.batch] = _OnItsWay(
                where,
                encoded,
                self.closed,
                now + self._settings.timeout_s,
                self._awaited.pop(where, []),
            )
            self.used += len(encoded.data)
            self._unacknowledged[where] += 1
            self.apply(step, now)

    # The network.

    def take(self, now: float) -> list[Parcel]:
        """What to send now."""
        return self._outbox.take(now, self.machine.outstanding)

    def batch_of(self, request: Produce) -> memoryview:
        """The records of a Produce, as the encoder left them."""
        return self._on_their_way[request.batch].encoded.data

    def answered(
        self, parcel: Parcel, answers: Iterable[tuple[Request, Answer]], now: float
    ) -> None:
        """A broker answered a message; what it left out counts as unanswered."""
        self._outbox.done(parcel)
        missing = {request.number for request in parcel.requests}
        for request, answer in answers:
            missing.discard(request.number)
            if isinstance(request, Produce):
                self._note(request, answer)
            self.apply(self.machine.answered(request.number, answer), now)
        for number in missing:
            self.apply(self.machine.unanswered(number), now)

    def unanswered(self, parcel: Parcel, *, sent: bool, now: float) -> None:
        """There will be no answer to a message."""
        self._outbox.done(parcel)
        for request in parcel.requests:
            partition = getattr(request, "partition", None)
            if partition is not None:
                self.topics.forget(partition)
            if isinstance(request, Produce) and (batch := self._on_their_way.get(request.batch)):
                said = "its leader did not answer" if sent else "its leader was not reached"
                batch.last, batch.last_code = said, 0
            self.apply(self.machine.unanswered(request.number, sent=sent), now)

    def _note(self, request: Produce, answer: Answer) -> None:
        verdict = verdict_of(Produce, answer.error)
        batch = self._on_their_way.get(request.batch)
        if verdict is Verdict.RETRY_ELSEWHERE:
            self.topics.forget(request.partition)
        if verdict is Verdict.DONE and batch is not None:
            batch.awaited[:] = self._resolve(batch, answer.base_offset)
        elif batch is not None:
            batch.last_code = answer.error
            batch.last = explained(Produce, answer.error, answer.detail, request.partition)

    def apply(self, step: Step, now: float | None = None) -> None:
        """Carry out what an event of the machine leads to."""
        if now is None:
            now = self._clock()
        self._carry_out(step, now)
        if self.machine.aborting:
            for request in self._outbox.recall():
                self._carry_out(self.machine.unanswered(request.number, sent=False), now)

    def look_at_machine(self) -> None:
        """Note which transaction takes records now; after each event of the machine."""
        self.accepts = _NOTHING if self._refuses else self.machine.open_transaction

    def refuse(self) -> None:
        """Take no records any more."""
        self._refuses = True
        self.look_at_machine()

    def _carry_out(self, step: Step, now: float) -> None:
        self.look_at_machine()
        for halved in step.halved:
            self._halve(halved)
        self._outbox.add(step.requests, now)
        for number in step.delivered:
            self._settle(number, None)
        for number, code in step.failed:
            self._give_up(number, code, now)
        if step.ended is not None:
            self._end(step.ended)

    def _give_up(self, number: int, code: int, now: float) -> None:
        batch = self._on_their_way[number]
        where = batch.partition
        self._settle(number, kafka_errors.for_code(code)(self._why_given_up(batch, code)))
        for request in self._outbox.withdraw(where, number):
            self._carry_out(self.machine.unanswered(request.number, sent=False), now)

    def _why_given_up(self, batch: _OnItsWay, code: int) -> str:
        where = batch.partition
        if batch.last_code == code and verdict_of(Produce, code) > Verdict.RETRY_ELSEWHERE:
            return refused_batch(where, batch.encoded.records, code, batch.last)
        if code == Errors.REQUEST_TIMED_OUT:
            said = self._why_late(batch)
            late = f"records for {name_of(where)} were not acknowledged in time"
            return f"{late}: {said}" if said else late
        return f"records for {name_of(where)}: {explained(Produce, code, '', where)}"

    def _why_late(self, batch: _OnItsWay) -> str:
        """What keeps a batch from being acknowledged, for people; empty if that is not known."""
        topic = self.topics.topic(batch.partition.topic)
        if topic.error:
            return explained(Produce, topic.error, "", batch.partition)
        if batch.last or batch.partition.partition in topic.available:
            return batch.last
        return "no leader is known"

    def what_waits(self) -> str:
        """The batch that waits for the longest, and why, for people; empty if there is none."""
        batch = next(iter(self._on_their_way.values()), None)
        if batch is None:
            return ""
        said, where = self._why_late(batch), name_of(batch.partition)
        return f"records for {where} wait" + (f": {said}" if said else "")

    def _halve(self, halved: Halved) -> None:
        """Put two batches in place of one that was too large; those to come are smaller."""
        whole = self._on_their_way[halved.batch]
        halves = halves_of(whole.encoded, halved.records, self._settings.encoder)
        awaited: list[list[_Awaited]] = [[], []]
        for n, future in whole.awaited:
            is_behind = n >= halved.records
            awaited[is_behind].append((n - halved.records if is_behind else n, future))
        numbers = (halved.batch, halved.second)
        for number, encoded, waits in zip(numbers, halves, awaited, strict=True):
            self._on_their_way[number] = replace(
                whole, encoded=encoded, awaited=waits, last="", last_code=0
            )
            self.used += len(encoded.data)
        self.used -= len(whole.encoded.data)
        self._unacknowledged[whole.partition] += 1
        in_order = sorted(self._on_their_way.items(), key=lambda each: each[1].order)
        self._on_their_way = dict(in_order)  # by their deadlines
        if (batches := self.open.get(whole.partition.topic)) is not None:
            batches.limit(max(each.plain_bytes for each in halves))

    def _end(self, ended: Ended) -> None:
        self.last_ended = ended
        error = None
        if ended.outcome is not Outcome.COMMITTED:
            error = TransactionAbortedError(ended.cause, {})
        self.drop_open(error)
        for number in list(self._on_their_way):
            self._settle(number, error)

    def _settle(self, number: int, error: Exception | None) -> None:
        batch = self._on_their_way.pop(number, None)
        if batch is None:
            return
        self.used -= len(batch.encoded.data)
        self._unacknowledged[batch.partition] -= 1
        if error is not None and not isinstance(error, TransactionAbortedError):
            self._failures.append(error)
        self._resolved += [(future, error or batch.position(-1)) for _, future in batch.awaited]

    def _resolve(self, batch: _OnItsWay, base_offset: int) -> list[_Awaited]:
        """Give the positions to those who wait; return who is left."""
        if base_offset < 0:
            return batch.awaited
        self._resolved += [(future, batch.position(base_offset + n)) for n, future in batch.awaited]
        return []

    # Time.

    def expire(self, now: float) -> None:
        """Give up the batches that have waited for too long, or the whole transaction of one."""
        overdue = []
        for number, batch in self._on_their_way.items():
            if batch.deadline > now:
                break
            overdue.append(number)
            batch.deadline = math.inf
        for number in overdue:
            late = self._on_their_way.get(number)
            if late is not None:
                self.apply(self.machine.expire(number, self._why_late(late)), now)

    def wake_at(self, now: float) -> float | None:
        """When there may be something to do without another event."""
        linger_s = self._settings.linger_s
        opened = [each.opened_at for each in self.open.values() if each.opened_at is not None]
        times = [at + linger_s for at in opened if at + linger_s > now]
        times += [each.deadline for each in islice(self._on_their_way.values(), 1)]
        if (at := self._outbox.wake_at()) is not None:
            times.append(at)
        return min(times, default=None)

    # What is to be reported.

    def take_resolved(self) -> list[tuple[Future[RecordPosition], RecordPosition | Exception]]:
        """The futures that have a result now; to be set where no lock is held."""
        resolved, self._resolved = self._resolved, []
        return resolved

    def take_failures(self) -> list[Exception]:
        """Why batches could not be delivered, since the last call."""
        failures, self._failures = self._failures, []
        return failures
