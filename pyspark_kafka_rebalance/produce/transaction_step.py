"""What an event of `TransactionMachine` leads to, and what stays between transactions. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from kafka.structs import TopicPartition

from .requests import (
    GROUP,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    AddOffsetsToTxn,
    AddPartitionsToTxn,
    Answer,
    EndTxn,
    Fetch,
    FindCoordinator,
    OffsetFetch,
    Produce,
    Request,
    TxnOffsetCommit,
)
from .transaction_errors import TOO_LARGE, Outcome, error_name, explained

#: As many partitions are named in an error.
_MOST_NAMED = 5


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


def why(request: Request, code: int, answer: Answer | None = None) -> str:
    """A refusal, for people: what was refused, by whom, and why.

    Parameters
    ----------
    code : int
        The error code that decides.
    answer : Answer, optional
        Which partitions have this code, and what a leader says about it.
    """
    name = type(request).__name__
    if isinstance(request, Produce):
        detail = "" if answer is None else answer.detail
        said = explained(Produce, code, detail, request.partition)
        return f"{name}: {refused_batch(request.partition, request.record_count, code, said)}"
    errors = {} if answer is None else answer.errors
    refused = sorted(partition for partition, each in errors.items() if each == code)
    group_id = _group_of(request)
    partition = refused[0] if refused else None
    said = explained(type(request), code, "", partition, group_id)
    return f"{name}: {_refused(request, refused)}{said}"


def refused_batch(partition: TopicPartition, records: int, code: int, said: str) -> str:
    """Which batch a leader refused, and why, for people; ``said`` explains the code."""
    if code in TOO_LARGE and records == 1:
        return too_large(partition, code)
    batch = "a batch of 1 record" if records == 1 else f"a batch of {records} records"
    return f"{name_of(partition)} refused {batch}: {said}"


def name_of(partition: TopicPartition) -> str:
    """A partition, for people."""
    return f"{partition.topic}-{partition.partition}"


def _group_of(request: Request) -> str:
    if isinstance(request, TxnOffsetCommit):
        return request.group.group_id
    if isinstance(request, (AddOffsetsToTxn, OffsetFetch)):
        return request.group_id
    if isinstance(request, FindCoordinator) and request.key_type == GROUP:
        return request.key
    return ""


def _refused(request: Request, refused: list[TopicPartition]) -> str:
    """What was refused, before the reason; empty if the request's name says it."""
    named = ", ".join(map(name_of, refused[:_MOST_NAMED]))
    named += ", …" if len(refused) > _MOST_NAMED else ""
    if isinstance(request, TxnOffsetCommit):
        member = request.group
        return (
            f"group {member.group_id} refused offsets of member {member.member_id!r} of generation "
            f"{member.generation_id}{named and ' for '}{named}: "
        )
    if isinstance(request, AddPartitionsToTxn) and named:
        return f"{named}: "
    if isinstance(request, EndTxn):
        end = "commit" if request.committed else "abort"
        return f"the {end} of producer epoch {request.producer_epoch}: "
    group_id = _group_of(request)
    return f"group {group_id}: " if group_id else ""


def too_large(partition: TopicPartition, code: int) -> str:
    """What to do about a record that cannot be sent, not even alone in its batch."""
    return (
        f"a record for {name_of(partition)} is larger than the topic's max.message.bytes allows "
        f"({error_name(code)}); make it smaller, or raise the topic's max.message.bytes"
    )
