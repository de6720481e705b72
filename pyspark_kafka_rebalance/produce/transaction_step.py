"""What an event of `TransactionMachine` leads to, and what stays between transactions. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from kafka.structs import TopicPartition

from .requests import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    AddOffsetsToTxn,
    Fetch,
    FindCoordinator,
    OffsetFetch,
    Produce,
    Request,
    TxnOffsetCommit,
)
from .transaction_errors import TOO_LARGE, Outcome, error_name


class Standing(enum.Enum):
    """What the producer may do."""

    #: ``initialize`` was not called.
    NEW = "new"
    READY = "ready"
    #: Another producer has the transactional id, or a transaction timed out.
    FENCED = "fenced"
    #: A broker refuses this producer for good.
    FAILED = "failed"


@dataclass(frozen=True)
class Identity:
    """A producer id, and its epoch."""

    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


@dataclass(frozen=True)
class Ended:
    """What became of a transaction.

    Attributes
    ----------
    cause : str
        Why, if it is not committed.
    """

    transaction: int
    outcome: Outcome
    cause: str = ""


@dataclass(frozen=True)
class Halved:
    """A batch that was too large, and goes on as two.

    Attributes
    ----------
    batch, second : int
        The numbers of its halves; the first keeps that of the whole.
    records : int
        How many the first half has.
    """

    batch: int
    second: int
    records: int


@dataclass(frozen=True)
class Step:
    """What one event leads to.

    Attributes
    ----------
    requests : tuple of Request
        To be sent, in this order.
    ended : Ended or None
        The transaction whose outcome became known.
    delivered : tuple of int
        Batches that their leaders have acknowledged.
    batch : int
        The number of the batch that this event added; -1 if none.
    failed : tuple of (int, int)
        Outside of transactions: batches that are given up, each with its error code.
    halved : tuple of Halved
        To be done before ``requests`` are sent.
    """

    requests: tuple[Request, ...] = ()
    ended: Ended | None = None
    delivered: tuple[int, ...] = ()
    batch: int = -1
    failed: tuple[tuple[int, int], ...] = ()
    halved: tuple[Halved, ...] = ()


@dataclass
class Sweep:
    """What an empty transaction of the next epoch has to abort (transactions v1)."""

    partitions: set[TopicPartition] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    joined_partitions: bool = False
    joined_groups: set[str] = field(default_factory=set)
    unanswered: bool = False

    def __bool__(self) -> bool:
        return bool(self.partitions or self.groups or self.joined)

    @property
    def joined(self) -> bool:
        """Whether the coordinator has an open transaction of it."""
        return self.joined_partitions or bool(self.joined_groups)

    def again(self) -> Sweep:
        """The same, for another epoch."""
        return Sweep(self.partitions, self.groups)


def slot_of(request: Request) -> tuple[Any, ...]:
    """What all copies of a request have in common."""
    if isinstance(request, FindCoordinator):
        return FindCoordinator, request.key_type, request.key
    if isinstance(request, Produce):
        return Produce, request.batch
    if isinstance(request, Fetch):
        return Fetch, request.partition
    if isinstance(request, TxnOffsetCommit):
        return TxnOffsetCommit, request.group.group_id
    if isinstance(request, (AddOffsetsToTxn, OffsetFetch)):
        return type(request), request.group_id
    return (type(request),)


def why(request: Request, code: int) -> str:
    """A refusal, for people."""
    if isinstance(request, Produce) and code in TOO_LARGE and request.record_count == 1:
        return too_large(request.partition, code)
    return f"{type(request).__name__}: {error_name(code)}"


def too_large(partition: TopicPartition, code: int) -> str:
    """What to do about a record that cannot be sent, not even alone in its batch."""
    return (
        f"a record for {partition.topic}-{partition.partition} is larger than the topic's "
        f"max.message.bytes allows ({error_name(code)})"
    )
