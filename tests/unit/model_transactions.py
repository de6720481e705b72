"""Kafka's side of transactions, both versions, for models: coordinator, leaders, a group, a reader.

Written from Kafka's TransactionCoordinator, TransactionMetadata (4.3), ProducerAppendInfo and
ProducerStateManager. A request is handled at once; when it arrives is the test's to say. What the
coordinator has written survives its death; which markers it has sent, and a request under way,
do not.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from itertools import count

from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.produce.requests import (
    AddOffsetsToTxn,
    AddPartitionsToTxn,
    Answer,
    DescribeTransactions,
    EndTxn,
    Fetch,
    FindCoordinator,
    InitProducerId,
    Offset,
    OffsetFetch,
    Produce,
    Request,
    TxnOffsetCommit,
    Versions,
    versions_for,
)
from pyspark_kafka_rebalance.produce.transaction_errors import Errors

#: A partition with records, or the name of a group: what a transaction can have in it.
Member = TopicPartition | str

#: Epochs end here; the last is the coordinator's own, to fence with.
LAST_EPOCH = 32_767

_OFFERED = {0: 13, 1: 17, 9: 9, 10: 6, 22: 5, 24: 5, 25: 4, 26: 5, 28: 5}


def versions_of(transaction_version: int) -> Versions:
    return versions_for(_OFFERED, transaction_version)


class State(enum.Enum):
    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


PREPARED = (State.PREPARE_COMMIT, State.PREPARE_ABORT)
COMPLETE = (State.COMPLETE_COMMIT, State.COMPLETE_ABORT)


@dataclass
class Entry:
    """The state of one transactional id. PrepareEpochFence is passed through in one go."""

    producer_id: int
    epoch: int = -1
    last_epoch: int = -1
    previous_id: int = -1
    next_id: int = -1
    state: State = State.EMPTY
    members: set[Member] = field(default_factory=set)
    #: The transactions of its last request; a coordinator of v1 cannot write what v2 left behind.
    client_version: int = 1
    #: Whether the present coordinator could not write it. Until it dies, it refuses all else.
    stuck: bool = False
    #: Those whose marker the present coordinator has not sent.
    unmarked: set[Member] = field(default_factory=set)

    @property
    def exhausted(self) -> bool:
        return self.epoch >= LAST_EPOCH - 1


@dataclass
class ProducerState:
    epoch: int = -1
    batches: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=5))
    open_from: int | None = None

    def epoch_becomes(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches.clear()


class Leader:
    """A partition: its log, what it knows of producers, and what a read_committed reader sees."""

    def __init__(self) -> None:
        self.log: list[tuple[int, Hashable]] = []  # producer id, value; markers are None
        self.producers: dict[int, ProducerState] = {}
        self.aborted: list[tuple[int, int, int]] = []  # producer id, first offset, marker
        self.lowest: dict[tuple[int, int], int] = {}  # sequence seen before the first append

    def is_open(self, producer_id: int, epoch: int) -> bool:
        known = self.producers.get(producer_id)
        return known is not None and known.open_from is not None and known.epoch == epoch

    def refuses(self, producer_id: int, epoch: int) -> bool:
        known = self.producers.get(producer_id)
        return known is not None and epoch < known.epoch

    def append(self, request: Produce, values: Iterable[Hashable], verified: bool) -> Errors:
        producer_id, epoch = request.producer_id, request.producer_epoch
        known = self.producers.get(producer_id, ProducerState())
        first, last = request.base_sequence, request.base_sequence + request.record_count - 1
        if epoch < known.epoch:
            return Errors.INVALID_PRODUCER_EPOCH
        if epoch == known.epoch and (first, last) in known.batches:
            return Errors.NONE
        lowest = self.lowest.setdefault((producer_id, epoch), first)
        self.lowest[producer_id, epoch] = min(lowest, first)
        if not self._in_order(known, epoch, first) or (
            verified and epoch != known.epoch and first > min(lowest, first)
        ):
            return Errors.OUT_OF_ORDER_SEQUENCE_NUMBER
        known.epoch_becomes(epoch)
        known.batches.append((first, last))
        self.begin(producer_id, known)
        self.log += [(producer_id, value) for value in values]
        return Errors.NONE

    def _in_order(self, known: ProducerState, epoch: int, first: int) -> bool:
        if known.epoch == -1:
            return True  # nothing is known of this producer
        if epoch != known.epoch:
            return first == 0
        return first == (known.batches[-1][1] + 1 if known.batches else 0)

    def begin(self, producer_id: int, known: ProducerState) -> None:
        self.producers[producer_id] = known
        if known.open_from is None:
            known.open_from = len(self.log)

    def mark(self, producer_id: int, epoch: int, committed: bool) -> None:
        known = self.producers.setdefault(producer_id, ProducerState())
        if epoch < known.epoch:
            return
        if known.open_from is not None and not committed:
            self.aborted.append((producer_id, known.open_from, len(self.log)))
        known.open_from = None
        known.epoch_becomes(epoch)
        self.log.append((producer_id, None))

    @property
    def last_stable_offset(self) -> int:
        opened = [p.open_from for p in self.producers.values() if p.open_from is not None]
        return min(opened, default=len(self.log))

    def visible(self) -> list[Hashable]:
        return [
            value
            for offset, (producer_id, value) in enumerate(self.log[: self.last_stable_offset])
            if value is not None
            and not any(p == producer_id and a <= offset < b for p, a, b in self.aborted)
        ]


class Group(Leader):
    """A group's coordinator, the leader of the partition that has its offsets."""

    def __init__(self) -> None:
        super().__init__()
        self.generation = 1
        self.members = {"m"}
        self.committed: dict[TopicPartition, Offset] = {}
        self.pending: dict[int, dict[TopicPartition, Offset]] = {}
        self.history: list[tuple[TopicPartition, Offset]] = []

    def commit(self, request: TxnOffsetCommit) -> Errors:
        if request.group.member_id not in self.members:
            return Errors.UNKNOWN_MEMBER_ID
        if request.group.generation_id != self.generation:
            return Errors.ILLEGAL_GENERATION
        known = self.producers.get(request.producer_id, ProducerState())
        if request.producer_epoch < known.epoch:
            return Errors.INVALID_PRODUCER_EPOCH
        known.epoch_becomes(request.producer_epoch)
        self.begin(request.producer_id, known)
        self.pending.setdefault(request.producer_id, {}).update(request.offsets)
        return Errors.NONE

    def mark(self, producer_id: int, epoch: int, committed: bool) -> None:
        if self.refuses(producer_id, epoch):
            return
        super().mark(producer_id, epoch, committed)
        offsets = self.pending.pop(producer_id, {})
        if committed:
            self.committed.update(offsets)
            self.history += offsets.items()

    def fetch(self, partitions: Iterable[TopicPartition]) -> Answer:
        if any(p in offsets for offsets in self.pending.values() for p in partitions):
            return Answer(Errors.UNSTABLE_OFFSET_COMMIT)
        return Answer(offsets={p: self.committed[p] for p in partitions if p in self.committed})


class Brokers:
    """A cluster.

    Parameters
    ----------
    transaction_version : int
        1 or 2, the finalized feature.
    verification : bool
        Whether leaders ask the coordinator before a transaction's first record (Kafka 3.6 and
        later; ``transaction.partition.verification.enable``).
    epoch : int
        Of transactional ids that are new: -1, or to be near the last.
    fences_twice : bool
        Whether a fence takes two epochs, as with transactions v2 in Kafka 4.0 (KAFKA-19367).
    """

    def __init__(
        self,
        transaction_version: int,
        verification: bool = True,
        epoch: int = -1,
        fences_twice: bool = False,
    ) -> None:
        self.version = transaction_version
        #: As brokers say it; those of v1 may have had v2 before.
        self.feature = 2 if transaction_version >= 2 else 0
        self.verification = verification or transaction_version >= 2
        self.first_epoch = epoch
        self.fences_twice = fences_twice
        self.entries: dict[str, Entry] = {}
        self.leaders: dict[TopicPartition, Leader] = {}
        self.groups: dict[str, Group] = {}
        self.coordinator = 0
        self.loading = False
        self.producer_ids = count(1000)
        #: What the batches have, which the requests only name.
        self.values: dict[tuple[str, int], list[Hashable]] = {}

    def leader(self, partition: TopicPartition) -> Leader:
        return self.leaders.setdefault(partition, Leader())

    def group(self, group_id: str) -> Group:
        return self.groups.setdefault(group_id, Group())

    # What happens by itself.

    def coordinator_dies(self) -> None:
        self.coordinator += 1
        self.loading = True
        for entry in self.entries.values():
            entry.stuck = False
            if entry.state in PREPARED:
                entry.unmarked = set(entry.members)
                self._complete(entry)

    def coordinator_is_loaded(self) -> None:
        self.loading = False

    def markers_due(self) -> list[tuple[str, Member]]:
        return sorted(
            ((name, m) for name, entry in self.entries.items() for m in entry.unmarked), key=str
        )

    def mark(self, name: str, member: Member) -> None:
        entry = self.entries[name]
        leader = self.group(member) if isinstance(member, str) else self.leader(member)
        leader.mark(entry.producer_id, entry.epoch, entry.state is State.PREPARE_COMMIT)
        entry.unmarked.discard(member)
        self._complete(entry)

    def transaction_times_out(self, name: str) -> None:
        entry = self.entries.get(name)
        if entry is not None and entry.state is State.ONGOING and not entry.stuck:
            self._fence(entry)

    def transactional_id_expires(self, name: str) -> None:
        entry = self.entries.get(name)
        if entry is not None and entry.state in (State.EMPTY, *COMPLETE):
            del self.entries[name]

    # Requests.

    def handle(self, sender: str, request: Request) -> Answer:
        if isinstance(request, FindCoordinator):
            return Answer(node=self.coordinator if request.key_type else 100)
        if isinstance(request, Produce):
            return self._produce(sender, request)
        if isinstance(request, Fetch):
            leader = self.leader(request.partition)
            aborted = tuple(
                (who, first)
                for who, first, marker in leader.aborted
                if marker >= request.fetch_offset
            )
            return Answer(last_stable_offset=leader.last_stable_offset, aborted=aborted)
        if isinstance(request, TxnOffsetCommit):
            error = self._commit_offsets(request)
            return Answer(errors=dict.fromkeys(request.offsets, int(error)))
        if isinstance(request, OffsetFetch):
            return self.group(request.group_id).fetch(request.partitions)
        return self._by_coordinator(request)

    def _by_coordinator(self, request: Request) -> Answer:
        if request.node != self.coordinator:
            return _refused(request, Errors.NOT_COORDINATOR)
        if self.loading:
            return _refused(request, Errors.COORDINATOR_LOAD_IN_PROGRESS)
        if isinstance(request, InitProducerId):
            return self._init_producer_id(request)
        if isinstance(request, DescribeTransactions):
            return self._describe(request)
        if isinstance(request, EndTxn):
            return self._end(request)
        assert isinstance(request, (AddPartitionsToTxn, AddOffsetsToTxn))
        is_group = isinstance(request, AddOffsetsToTxn)
        members: set[Member] = {request.group_id} if is_group else set(request.partitions)
        name, producer_id, epoch = _producer(request)
        return _refused(request, self._add(name, producer_id, epoch, members, 1))

    def downgraded(self) -> None:
        """``transaction.version`` is 0 from now on, 1 here."""
        self.version, self.feature = 1, 0

    def _describe(self, request: DescribeTransactions) -> Answer:
        entry = self.entries.get(request.transactional_id)
        if entry is None:
            return Answer(Errors.TRANSACTIONAL_ID_NOT_FOUND)
        is_open = entry.state is State.ONGOING
        return Answer(producer_id=entry.producer_id, producer_epoch=entry.epoch, is_open=is_open)

    def _written(self, entry: Entry, client_version: int) -> Errors:
        """What comes of writing a state that a client of this version leads to."""
        if client_version > self.version:
            entry.stuck = True
            return Errors.UNSUPPORTED_VERSION
        entry.client_version = client_version
        return Errors.NONE

    def _add(
        self, name: str, producer_id: int, epoch: int, members: set[Member], client_version: int
    ) -> Errors:
        entry = self.entries.get(name)
        if entry is None:
            return Errors.INVALID_PRODUCER_ID_MAPPING
        if entry.state in PREPARED:
            return Errors.CONCURRENT_TRANSACTIONS
        if entry.producer_id != producer_id:
            return Errors.INVALID_PRODUCER_ID_MAPPING
        if entry.epoch != epoch:
            return Errors.PRODUCER_FENCED
        if entry.stuck:
            return Errors.CONCURRENT_TRANSACTIONS
        if entry.state is State.ONGOING and members <= entry.members:
            return Errors.NONE
        if error := self._written(entry, client_version):
            return error
        if entry.state is not State.ONGOING:
            entry.state, entry.members = State.ONGOING, set()
        entry.members |= members
        return Errors.NONE

    def _verify(self, name: str, producer_id: int, epoch: int, member: Member) -> Errors:
        """As a leader does, before a transaction's first record (v1)."""
        entry = self.entries.get(name)
        if entry is None or entry.producer_id != producer_id:
            return Errors.INVALID_PRODUCER_ID_MAPPING
        if entry.epoch != epoch:
            return Errors.INVALID_PRODUCER_EPOCH
        if entry.state in PREPARED:
            return Errors.CONCURRENT_TRANSACTIONS
        return Errors.NONE if member in entry.members else Errors.INVALID_TXN_STATE

    def _joins(self, request: Produce | TxnOffsetCommit, leader: Leader, member: Member) -> Errors:
        name, producer_id, epoch = _producer(request)
        if leader.is_open(producer_id, epoch) or leader.refuses(producer_id, epoch):
            return Errors.NONE
        adds = request.version >= 12 if isinstance(request, Produce) else request.version >= 5
        if (adds or self.verification) and self.loading:
            return Errors.COORDINATOR_LOAD_IN_PROGRESS
        if adds:
            error = self._add(name, producer_id, epoch, {member}, 2)
        elif self.verification:
            error = self._verify(name, producer_id, epoch, member)
        else:
            error = Errors.NONE
        return Errors.INVALID_PRODUCER_EPOCH if error == Errors.PRODUCER_FENCED else error

    def _produce(self, sender: str, request: Produce) -> Answer:
        leader = self.leader(request.partition)
        error = self._joins(request, leader, request.partition)
        if error:
            if error != Errors.INVALID_TXN_STATE:
                key = request.producer_id, request.producer_epoch
                lowest = leader.lowest.setdefault(key, request.base_sequence)
                leader.lowest[key] = min(lowest, request.base_sequence)
            return Answer(error)
        base_offset = len(leader.log)
        error = leader.append(request, self.values[sender, request.batch], self.verification)
        appended = len(leader.log) > base_offset
        return Answer(error, base_offset=base_offset if appended else -1)

    def _commit_offsets(self, request: TxnOffsetCommit) -> Errors:
        group = self.group(request.group.group_id)
        error = self._joins(request, group, request.group.group_id)
        return error or group.commit(request)

    def _init_producer_id(self, request: InitProducerId) -> Answer:
        entry = self.entries.setdefault(
            request.transactional_id, Entry(next(self.producer_ids), self.first_epoch)
        )
        expected = None if request.producer_id < 0 else request.producer_epoch
        if entry.state in PREPARED or entry.stuck:
            return Answer(Errors.CONCURRENT_TRANSACTIONS)
        if expected is not None and not self._is_known(entry, request):
            return Answer(Errors.PRODUCER_FENCED)
        if entry.state is State.ONGOING:  # whatever the epoch
            self._fence(entry)
            return Answer(Errors.CONCURRENT_TRANSACTIONS)
        if error := self._written(entry, entry.client_version):
            return Answer(error)
        if entry.exhausted and expected in (None, entry.epoch):
            self._rotate(entry, entry.epoch if expected is not None else -1)
        elif entry.exhausted:
            return Answer(Errors.UNKNOWN_SERVER_ERROR)  # an IllegalStateException there
        elif entry.epoch == -1 or expected == entry.epoch:
            entry.epoch, entry.last_epoch = entry.epoch + 1, entry.epoch
        elif expected is None:
            entry.epoch, entry.last_epoch = entry.epoch + 1, -1
        elif expected != entry.last_epoch:
            return Answer(Errors.PRODUCER_FENCED)
        entry.state, entry.members = State.EMPTY, set()
        return Answer(producer_id=entry.producer_id, producer_epoch=entry.epoch)

    def _is_known(self, entry: Entry, request: InitProducerId) -> bool:
        exhausted = request.producer_epoch >= LAST_EPOCH - 1
        return (
            entry.epoch == -1
            or request.producer_id == entry.producer_id
            or (request.producer_id == entry.previous_id and exhausted)
        )

    def _rotate(self, entry: Entry, last_epoch: int) -> None:
        entry.previous_id, entry.producer_id = entry.producer_id, next(self.producer_ids)
        entry.epoch, entry.last_epoch = 0, last_epoch

    def _fence(self, entry: Entry) -> None:
        """PrepareEpochFence, and at once PrepareAbort."""
        entry.client_version = self.version
        last = entry.epoch if self.version >= 2 else -1
        if self.version >= 2 and not self.fences_twice and entry.exhausted:
            entry.next_id = next(self.producer_ids)
        entry.epoch, entry.last_epoch = min(entry.epoch + 1, LAST_EPOCH), last
        if self.version >= 2 and self.fences_twice:
            entry.epoch, entry.last_epoch = min(entry.epoch + 1, LAST_EPOCH), entry.epoch
        self._prepare(entry, State.PREPARE_ABORT)

    def _prepare(self, entry: Entry, state: State) -> None:
        entry.state, entry.unmarked = state, set(entry.members)
        self._complete(entry)

    def _complete(self, entry: Entry) -> None:
        if entry.state not in PREPARED or entry.unmarked:
            return
        committed = entry.state is State.PREPARE_COMMIT
        entry.state = State.COMPLETE_COMMIT if committed else State.COMPLETE_ABORT
        entry.members = set()
        entry.previous_id = entry.producer_id
        if entry.next_id != -1:
            entry.producer_id, entry.next_id, entry.epoch = entry.next_id, -1, 0

    def _end(self, request: EndTxn) -> Answer:
        entry = self.entries.get(request.transactional_id)
        if entry is None:
            return Answer(Errors.INVALID_PRODUCER_ID_MAPPING)
        decide = self._end_v2 if request.version >= 5 else self._end_v1
        error = decide(entry, request)
        if error or request.version < 5:
            return Answer(error)
        if entry.next_id != -1:
            return Answer(producer_id=entry.next_id, producer_epoch=0)
        return Answer(producer_id=entry.producer_id, producer_epoch=entry.epoch)

    def _end_v1(self, entry: Entry, request: EndTxn) -> Errors:
        if entry.producer_id != request.producer_id:
            return Errors.INVALID_PRODUCER_ID_MAPPING
        if entry.epoch != request.producer_epoch:
            return Errors.PRODUCER_FENCED
        if entry.stuck:
            return Errors.CONCURRENT_TRANSACTIONS
        if entry.state is State.ONGOING:
            entry.client_version = 1
            self._prepare(entry, _prepared(request))
            return Errors.NONE
        return _repeated_end(entry, request)

    def _end_v2(self, entry: Entry, request: EndTxn) -> Errors:
        epoch = request.producer_epoch
        overflow = (
            entry.previous_id == request.producer_id
            and epoch == LAST_EPOCH - 1
            and entry.epoch == 0
        )
        again = entry.epoch == epoch + 1 or overflow
        if entry.producer_id != request.producer_id and not overflow:
            return Errors.INVALID_PRODUCER_ID_MAPPING
        if entry.state in PREPARED:
            valid = entry.epoch == epoch + 1
        else:
            valid = entry.epoch == epoch or (entry.state in COMPLETE and again)
        if not valid:
            return Errors.PRODUCER_FENCED
        if entry.stuck:
            return Errors.CONCURRENT_TRANSACTIONS
        if entry.state in PREPARED or again:
            return _repeated_end(entry, request)
        if entry.state is not State.ONGOING and request.committed:
            return Errors.INVALID_TXN_STATE
        if error := self._written(entry, 2):
            return error
        if entry.state is not State.ONGOING:
            entry.members = set()
        if entry.exhausted:
            entry.next_id = next(self.producer_ids)
        entry.epoch, entry.last_epoch = entry.epoch + 1, entry.epoch
        self._prepare(entry, _prepared(request))
        return Errors.NONE


def _prepared(request: EndTxn) -> State:
    return State.PREPARE_COMMIT if request.committed else State.PREPARE_ABORT


def _repeated_end(entry: Entry, request: EndTxn) -> Errors:
    wanted = (
        (State.PREPARE_COMMIT, State.COMPLETE_COMMIT)
        if request.committed
        else (State.PREPARE_ABORT, State.COMPLETE_ABORT)
    )
    if entry.state not in wanted:
        return Errors.INVALID_TXN_STATE
    return Errors.CONCURRENT_TRANSACTIONS if entry.state in PREPARED else Errors.NONE


def _producer(
    request: AddPartitionsToTxn | AddOffsetsToTxn | Produce | TxnOffsetCommit,
) -> tuple[str, int, int]:
    return request.transactional_id, request.producer_id, request.producer_epoch


def _refused(request: Request, error: Errors) -> Answer:
    if isinstance(request, AddPartitionsToTxn):
        return Answer(errors=dict.fromkeys(request.partitions, int(error)))
    return Answer(error)
