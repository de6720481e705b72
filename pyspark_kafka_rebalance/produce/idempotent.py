"""Idempotent writing without transactions: events in, requests out. Pure.

As `transaction`, but for batches alone. Each batch is written once, in order within its partition,
or reported as given up. A leader recognizes a repetition by producer id, epoch and sequence number,
and refuses what is out of order.

Each partition has a producer id and epoch of its own, since only its leader compares them. When its
sequence is broken, it gets the next epoch (KIP-360), with sequence numbers from 0, and no other
partition is affected. A sequence is broken when

- the leader has lost what it knew, or part of its log (OUT_OF_ORDER_SEQUENCE_NUMBER or
  UNKNOWN_PRODUCER_ID for the first batch that is not acknowledged);
- a batch was given up that has a sequence number: those behind it would not be taken;
- a batch of several records is too large for its topic: it goes on as two halves.

The batches before that gap are delivered under the old epoch first. Those behind it wait, and are
numbered again under the next epoch, once no request of the partition is under way. The leader
refuses late copies of the old epoch as soon as it has seen the new one. So the first batch of an
epoch is alone under way.

A batch that was given up may still arrive, if a copy of it has no answer, and after it late copies
of those behind it, or they are written already and wait for the followers. So those are given up
with it, with REQUEST_TIMED_OUT: to send them again could write them twice. (Java's client fails
them, too.)

When the epochs of an id are used up, the partition continues with another producer id, and batches
that may still arrive under the old one are given up likewise. No leader compares the two ids, so
these may be written behind later records; that takes 32,767 broken sequences.

Invariants:
 1. Of a partition, only the first batch that is not acknowledged and the four behind it are under
    way, acknowledged or not: a leader recognizes its last five as duplicates. Of a new epoch, the
    first alone.
 2. The sequence numbers of an epoch have no gap, and are given in the order of the batches.
 3. No two batches of a partition have the same epoch and sequence number, but copies of one.
 4. A batch is either delivered or failed, once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count, islice
from typing import Any

from kafka.structs import TopicPartition

from .requests import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    Answer,
    InitProducerId,
    Produce,
    Request,
    Versions,
)
from .transaction_errors import TOO_LARGE, Errors, Verdict, verdict_of
from .transaction_step import Halved, Identity, Step

_MAX_IN_FLIGHT = 5
_LAST_EPOCH = 32_767
_SEQUENCES = 2**31

#: The leader does not have the batch before: the partition gets its next epoch.
_BROKEN = (
    Errors.OUT_OF_ORDER_SEQUENCE_NUMBER,
    Errors.UNKNOWN_PRODUCER_ID,
    Errors.INVALID_PRODUCER_EPOCH,
    Errors.INVALID_PRODUCER_ID_MAPPING,
)

#: The leader has the batch, unless it loses it to another leader.
_APPENDED = (Errors.REQUEST_TIMED_OUT, Errors.NOT_ENOUGH_REPLICAS_AFTER_APPEND)


@dataclass
class _Batch:
    number: int
    record_count: int
    place: int  # among all of its partition
    base_sequence: int | None = None  # when it is first sent under the present epoch
    request: int | None = None  # the copy that is under way
    unanswered: bool = False  # whether another copy may still arrive
    appended: bool = False  # whether its leader may have it, and waits for the followers
    attempts: int = 0
    rank: tuple[int, ...] = ()  # see Produce


@dataclass
class _Partition:
    """A partition, and its batches that are not acknowledged, in order."""

    identity: Identity = field(default_factory=Identity)
    next_sequence: int = 0
    #: Whether the leader has acknowledged a batch of this epoch.
    settled: bool = True
    #: The place of the first batch that cannot be delivered under this epoch.
    gap: int | None = None
    #: Whether the batch that was given up there may still arrive.
    gap_may_close: bool = False
    batches: deque[_Batch] = field(default_factory=deque)
    count: int = 0

    def add(self, number: int, record_count: int) -> None:
        self.batches.append(_Batch(number, record_count, self.count))
        self.count += 1

    def breaks_at(self, batch: _Batch, may_close: bool = False) -> None:
        """From this batch on, nothing can be delivered under this epoch."""
        self.gap = batch.place if self.gap is None else min(self.gap, batch.place)
        self.gap_may_close |= may_close

    def before_gap(self) -> Iterator[_Batch]:
        """What can be sent under this epoch, in order."""
        return (batch for batch in self.batches if self.gap is None or batch.place < self.gap)

    def halve(self, batch: _Batch, number: int) -> Halved:
        """Let a batch go on as two; ``number`` names the second."""
        records = (batch.record_count + 1) // 2
        second = _Batch(number, batch.record_count - records, batch.place)
        rank = batch.rank or (batch.number,)
        batch.record_count, batch.rank, second.rank = records, (*rank, 0), (*rank, 1)
        batch.attempts = 0
        at = self.batches.index(batch) + 1
        self.batches.insert(at, second)
        self.count += 1
        for later in islice(self.batches, at, None):
            later.place += 1
        self.breaks_at(batch)
        return Halved(batch.number, number, records)

    def begin_epoch(self, identity: Identity) -> None:
        """Number what is not acknowledged again, from 0."""
        self.identity, self.next_sequence = identity, 0
        self.gap, self.gap_may_close, self.settled = None, False, False
        for batch in self.batches:
            batch.base_sequence = None
            batch.unanswered = False  # those copies are refused


class IdempotentMachine:
    """A producer's side of idempotent writing.

    Parameters
    ----------
    versions : Versions
        The versions of the requests.
    """

    def __init__(self, versions: Versions) -> None:
        self._versions = versions
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._outstanding: dict[int, Request] = {}
        self._numbers = count(1)
        self._batches = count(1)
        self._touched: dict[TopicPartition, None] = {}
        self._identity = Identity()  # of partitions that begin
        self._asks = False
        self._attempts = 0
        self._refused = 0  # why there is no producer id
        # Of the current event.
        self._delivered: list[int] = []
        self._failed: list[tuple[int, int]] = []
        self._halved: list[Halved] = []

    @property
    def outstanding(self) -> Mapping[int, Request]:
        """The requests without an answer, by number."""
        return self._outstanding

    @property
    def open_transaction(self) -> None:
        """There is none."""
        return

    @property
    def aborting(self) -> bool:
        """There is nothing to abort."""
        return False

    @property
    def doom(self) -> str:
        """There is nothing to abort."""
        return ""

    # Events.

    def add_records(self, transaction: Any, partition: TopicPartition, record_count: int) -> Step:
        """Add a batch of records; its Produce comes when it is its turn."""
        assert transaction is None
        number = next(self._batches)
        self._partitions.setdefault(partition, _Partition()).add(number, record_count)
        self._touched[partition] = None
        return replace(self._step(), batch=number)

    def answered(self, number: int, answer: Answer) -> Step:
        """A broker answered request ``number``, unless it was given up before."""
        request = self._outstanding.pop(number, None)
        if isinstance(request, Produce):
            self._records_answered(request, answer)
        elif isinstance(request, InitProducerId):
            self._identity_answered(answer)
        return self._step()

    def unanswered(self, number: int, *, sent: bool = True) -> Step:
        """There will be no answer; see `TransactionMachine.unanswered`."""
        request = self._outstanding.pop(number, None)
        if isinstance(request, Produce):
            batch = self._returned(request)
            if batch is not None:
                batch.unanswered |= sent
                batch.attempts += 1
        elif isinstance(request, InitProducerId):
            self._asks = False
            self._attempts += 1
        return self._step()

    def expire(self, batch: int, reason: str = "") -> Step:
        """Give up a batch that has waited for too long. Its leader may have written it."""
        for name, partition in self._partitions.items():
            for each in partition.batches:
                if each.number == batch:
                    self._give_up(name, each, Errors.REQUEST_TIMED_OUT)
                    return self._step()
        return self._step()

    # What an answer changes.

    def _identity_answered(self, answer: Answer) -> None:
        self._asks = False
        verdict = verdict_of(InitProducerId, answer.error)
        if verdict is Verdict.DONE:
            self._identity = Identity(answer.producer_id, answer.producer_epoch)
            self._attempts = 0
        elif verdict <= Verdict.RETRY_ELSEWHERE:
            self._attempts += 1
        else:
            self._refused = answer.error
        self._touched.update(dict.fromkeys(self._partitions))

    def _records_answered(self, request: Produce, answer: Answer) -> None:
        batch = self._returned(request)
        if batch is None:
            return
        partition = self._partitions[request.partition]
        verdict = verdict_of(Produce, answer.error)
        if verdict is Verdict.DONE:
            partition.batches.remove(batch)
            partition.settled = True
            self._delivered.append(batch.number)
            return
        batch.attempts += 1
        batch.appended |= answer.error in _APPENDED
        if answer.error in _BROKEN:
            # Behind a batch that is not there, it is only early.
            if partition.batches[0] is batch:
                partition.breaks_at(batch)
        elif answer.error in TOO_LARGE and batch.record_count > 1:
            self._halve(request.partition, batch)
        elif verdict > Verdict.RETRY_ELSEWHERE:
            self._give_up(request.partition, batch, answer.error)

    def _halve(self, name: TopicPartition, batch: _Batch) -> None:
        if batch.unanswered or batch.appended:
            # A copy may have been written, while the topic's bound was higher.
            self._give_up(name, batch, Errors.REQUEST_TIMED_OUT)
        else:
            number = next(self._batches)
            self._halved.append(self._partitions[name].halve(batch, number))

    def _returned(self, request: Produce) -> _Batch | None:
        """The batch of a copy that is not under way any more; None if it was given up."""
        self._touched[request.partition] = None
        for batch in self._partitions[request.partition].batches:
            if batch.request == request.number:
                batch.request = None
                return batch
        return None

    def _give_up(self, name: TopicPartition, batch: _Batch, error: int) -> None:
        """Report a batch as failed; what follows it needs other sequence numbers."""
        partition = self._partitions[name]
        partition.batches.remove(batch)
        if batch.base_sequence is not None:
            partition.breaks_at(batch, batch.unanswered or batch.request is not None)
        self._failed.append((batch.number, error))
        self._touched[name] = None

    # What is to be sent now.

    def _step(self) -> Step:
        requests = list(self._due())
        self._outstanding.update((request.number, request) for request in requests)
        delivered, failed = tuple(self._delivered), tuple(self._failed)
        step = Step(tuple(requests), None, delivered, failed=failed, halved=tuple(self._halved))
        self._delivered, self._failed, self._halved = [], [], []
        return step

    def _due(self) -> Iterator[Request]:
        touched = list(self._touched)
        self._touched.clear()
        for name in touched:
            partition = self._partitions[name]
            if partition.gap is not None and not self._is_under_way(name, partition):
                self._begin_next_epoch(name, partition)
            if partition.identity.producer_id < 0:
                self._begin_first_epoch(name, partition)
            if partition.identity.producer_id >= 0:
                yield from self._records_due(name, partition)
        waits = any(p.batches and p.identity.producer_id < 0 for p in self._partitions.values())
        if waits and self._identity.producer_id < 0 and not self._asks and not self._refused:
            self._asks = True
            head = (next(self._numbers), self._versions.init_producer_id, self._attempts)
            nobody = (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
            yield InitProducerId(*head, None, None, None, 2**31 - 1, *nobody)

    def _is_under_way(self, name: TopicPartition, partition: _Partition) -> bool:
        """Whether the old epoch still has batches to deliver, or requests without an answer."""
        return any(partition.before_gap()) or any(
            isinstance(each, Produce) and each.partition == name
            for each in self._outstanding.values()
        )

    def _begin_next_epoch(self, name: TopicPartition, partition: _Partition) -> None:
        producer_id, epoch = partition.identity.producer_id, partition.identity.producer_epoch
        is_last = epoch >= _LAST_EPOCH
        if partition.gap_may_close or is_last:
            for batch in [b for b in partition.batches if b.unanswered or b.appended]:
                self._give_up(name, batch, Errors.REQUEST_TIMED_OUT)
        if not is_last:
            partition.begin_epoch(Identity(producer_id, epoch + 1))
            return
        if self._identity.producer_id == producer_id:
            self._identity = Identity()
        partition.begin_epoch(Identity())

    def _begin_first_epoch(self, name: TopicPartition, partition: _Partition) -> None:
        if self._refused:
            for batch in list(partition.batches):
                self._give_up(name, batch, self._refused)
        elif self._identity.producer_id >= 0:
            partition.begin_epoch(self._identity)

    def _records_due(self, name: TopicPartition, partition: _Partition) -> Iterator[Produce]:
        most = _MAX_IN_FLIGHT if partition.settled else 1
        first = partition.batches[0].place if partition.batches else 0
        for batch in list(islice(partition.before_gap(), most)):
            if batch.request is None and batch.place < first + most:
                yield self._produce(name, partition, batch)

    def _produce(self, name: TopicPartition, partition: _Partition, batch: _Batch) -> Produce:
        if batch.base_sequence is None:
            batch.base_sequence = partition.next_sequence
            partition.next_sequence = (batch.base_sequence + batch.record_count) % _SEQUENCES
        number = batch.request = next(self._numbers)
        head = (number, self._versions.produce, batch.attempts, None, None)
        identity = (None, partition.identity.producer_id, partition.identity.producer_epoch)
        records = (batch.number, batch.base_sequence, batch.record_count)
        return Produce(*head, *identity, name, *records, batch.rank)
