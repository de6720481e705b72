"""Which transaction holds which readers back, from what coordinators and leaders answer. Pure.

A coordinator has a transaction by its transactional id: state, epoch, start, partitions. A
partition's leader has the producer ids with an open transaction in its log, and where each starts.
A reader with ``read_committed`` stops at the lowest of these offsets, the last stable offset.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from kafka.structs import TopicPartition

ONGOING = "Ongoing"

#: The outcome is decided, and markers are being written: by state.
DECIDED = {
    "PrepareCommit": "committed",
    "PrepareAbort": "aborted",
    "PrepareEpochFence": "aborted",
}
OPEN_STATES = (ONGOING, *DECIDED)
STATES = (*OPEN_STATES, "Empty", "CompleteCommit", "CompleteAbort", "Dead")

#: Coordinators check for transactions past their timeout this often, unless configured otherwise
#: (``transaction.abort.timed.out.transaction.cleanup.interval.ms``).
_CLEANUP_INTERVAL_S = 10.0

#: How much later than that a transaction is called overdue: clocks differ.
_SLACK_S = 20.0


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transactional id, as its coordinator describes it.

    Attributes
    ----------
    transactional_id : str
        The id.
    producer_id : int
        The producer id that it has at present.
    state : str
        One of Kafka's names, such as ``Ongoing``.
    coordinator : int
        The broker's id.
    epoch : int or None
        The producer's epoch; None, as for the rest, if the coordinator did not describe the id.
    timeout_s : float or None
        How long a transaction may be open, in seconds.
    started : float or None
        When the transaction started, in seconds since 1970 by the coordinator's clock.
    partitions : frozenset of TopicPartition
        Those in the transaction; once it is decided, those that still lack their marker.
    """

    transactional_id: str
    producer_id: int
    state: str
    coordinator: int
    epoch: int | None = None
    timeout_s: float | None = None
    started: float | None = None
    partitions: frozenset[TopicPartition] = frozenset()

    @property
    def is_open(self) -> bool:
        """Whether readers may have to wait for it."""
        return self.state in OPEN_STATES

    def open_for(self, at: float) -> float | None:
        """How long it is open, in seconds; None if it is not, or if its start is unknown."""
        return max(0.0, at - self.started) if self.is_open and self.started is not None else None


@dataclass(frozen=True, slots=True)
class Writer:
    """A producer with an open transaction in a partition, as the leader describes it.

    Attributes
    ----------
    producer_id, epoch : int
        Whose it is.
    start : int
        The offset at which its transaction begins.
    last_write : float or None
        The timestamp of its last record, in seconds since 1970.
    coordinator_epoch : int
        That of the last marker in its log; -1 if there is none.
    """

    producer_id: int
    epoch: int
    start: int
    last_write: float | None = None
    coordinator_epoch: int = -1


@dataclass(frozen=True, slots=True)
class Log:
    """A partition.

    Attributes
    ----------
    stable, end : int or None
        The last stable offset, where readers with ``read_committed`` stop, and the high watermark.
    writers : tuple of Writer
        Those with an open transaction; the one that readers wait for is the first.
    problem : str
        Why something of it is unknown; empty if nothing is.
    """

    stable: int | None = None
    end: int | None = None
    writers: tuple[Writer, ...] = ()
    problem: str = ""


#: A writer's place: the partition, the producer id, and the offset at which its transaction begins.
Place = tuple[TopicPartition, int, int]


@dataclass(frozen=True, slots=True)
class Hold:
    """A transaction that holds back a partition's readers.

    Attributes
    ----------
    partition : TopicPartition
        The partition.
    log : Log
        Its offsets.
    writer : Writer or None
        What the leader has of the transaction; None if it has nothing, so no reader waits.
    transaction : Transaction or None
        What the coordinator has of it; None if no coordinator has it, or its answer is missing.
    is_hanging : bool
        Whether no coordinator has it: it will not end by itself.
    """

    partition: TopicPartition
    log: Log
    writer: Writer | None = None
    transaction: Transaction | None = None
    is_hanging: bool = False

    @property
    def is_first(self) -> bool:
        """Whether it is the one that readers wait for now."""
        return self.writer is not None and self.writer == self.log.writers[0]

    @property
    def records(self) -> int | None:
        """How many offsets wait for its end, others' in between included; None if unknown."""
        if self.writer is None:
            return None if self.log.problem else 0
        return None if self.log.end is None else max(0, self.log.end - self.writer.start)


@dataclass(frozen=True, slots=True)
class Report:
    """Transactions at one moment.

    Attributes
    ----------
    at : float
        The moment; seconds since 1970 by this machine's clock.
    transactions : tuple of Transaction
        The open one for the longest time first.
    logs : mapping of TopicPartition to Log
        The partitions that were requested, or in the open transactions.
    hanging : frozenset of Place
        Transactions that leaders have, and no coordinator.
    silent : mapping of int to str
        Brokers that did not list their transactions, and why.
    """

    at: float
    transactions: tuple[Transaction, ...] = ()
    logs: Mapping[TopicPartition, Log] = field(default_factory=dict)
    hanging: frozenset[Place] = frozenset()
    silent: Mapping[int, str] = field(default_factory=dict)

    def holds(self) -> list[Hold]:
        """What holds each partition back, by partition and offset; leaves out those without."""
        owners = _owners(self.transactions)
        places = [(p, writer) for p, log in sorted(self.logs.items()) for writer in log.writers]
        return [
            Hold(
                partition,
                self.logs[partition],
                writer,
                owners.get((partition, writer.producer_id)),
                (partition, writer.producer_id, writer.start) in self.hanging,
            )
            for partition, writer in places
        ]

    def holds_of(self, transaction: Transaction) -> list[Hold]:
        """The transaction's partitions, also those where it has written nothing yet."""
        found = []
        for partition in sorted(transaction.partitions):
            log = self.logs.get(partition, Log(problem="unknown"))
            writers = [w for w in log.writers if w.producer_id == transaction.producer_id]
            found.append(Hold(partition, log, writers[0] if writers else None, transaction))
        return found

    def held_by(self, transaction: Transaction) -> int | None:
        """How many offsets wait for its end in all partitions; None if one of them is unknown."""
        counts = [hold.records for hold in self.holds_of(transaction)]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None


def unclaimed(
    transactions: Collection[Transaction], logs: Mapping[TopicPartition, Log]
) -> frozenset[Place]:
    """The open transactions of leaders that none of these transactions explains.

    Epochs are not compared: that of the coordinator is ahead while it aborts a transaction.
    """
    owners = _owners(transactions)
    return frozenset(
        (partition, writer.producer_id, writer.start)
        for partition, log in logs.items()
        for writer in log.writers
        if (partition, writer.producer_id) not in owners
    )


def _owners(
    transactions: Collection[Transaction],
) -> dict[tuple[TopicPartition, int], Transaction]:
    return {(p, t.producer_id): t for t in transactions if t.is_open for p in t.partitions}


def is_overdue(transaction: Transaction, at: float) -> bool:
    """Whether its coordinator should have aborted it long ago."""
    open_for = transaction.open_for(at)
    if transaction.state != ONGOING or open_for is None or transaction.timeout_s is None:
        return False
    return open_for > transaction.timeout_s + _CLEANUP_INTERVAL_S + _SLACK_S


def oldest_first(transactions: Collection[Transaction]) -> tuple[Transaction, ...]:
    """Open ones before the others, by their start."""
    return tuple(
        sorted(transactions, key=lambda t: (not t.is_open, t.started or 0.0, t.transactional_id))
    )
