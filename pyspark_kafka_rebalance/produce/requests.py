"""The requests of a transaction, as plain data, and what comes back. Pure.

Each request names its API key and version, and has the fields of Kafka's message of that name. Who
sends it encodes it and passes the answer to ``TransactionMachine.answered`` with its ``number``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from kafka.structs import TopicPartition

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1

#: The version of EndTxn from which on its answer has the next epoch.
FIRST_END_WITH_EPOCH = 5
#: Of an answer that says nothing.
UNKNOWN_SERVER_ERROR = -1

#: ``FindCoordinator.key_type``.
GROUP, TRANSACTION = 0, 1


@dataclass(frozen=True)
class Versions:
    """The version of each request, for one of the two transaction protocols.

    A broker takes the protocol from the versions of Produce, TxnOffsetCommit and EndTxn. So they
    go together.

    Attributes
    ----------
    transaction_version : int
        2 if partitions join by Produce and TxnOffsetCommit, and each EndTxn makes a new epoch
        (KIP-890); 1 otherwise.
    may_follow_v2 : bool
        Whether the feature may have been downgraded from 2, so that a coordinator may have states
        that it cannot write any more: see `DescribeTransactions`.
    """

    transaction_version: int
    produce: int
    find_coordinator: int
    init_producer_id: int
    add_partitions_to_txn: int
    add_offsets_to_txn: int
    end_txn: int
    txn_offset_commit: int
    offset_fetch: int
    fetch: int
    may_follow_v2: bool = False

    def downgraded(self) -> Versions:
        """Those for transactions v1, of the same brokers."""
        v1 = _NEWEST[1]
        return replace(
            self,
            transaction_version=1,
            may_follow_v2=True,
            produce=min(self.produce, v1.produce),
            end_txn=min(self.end_txn, v1.end_txn),
            txn_offset_commit=min(self.txn_offset_commit, v1.txn_offset_commit),
        )


#: Our newest version of each, by transaction version. AddPartitionsToTxn 4 is for brokers.
_NEWEST = {
    1: Versions(1, 11, 5, 5, 3, 4, 4, 4, 8, 12),
    2: Versions(2, 12, 5, 5, 3, 4, 5, 5, 8, 12),
}

#: What must be there: a new epoch that is fenced (KIP-360), and offsets with a member (KIP-447).
_OLDEST_INIT_PRODUCER_ID = 3
_OLDEST_TXN_OFFSET_COMMIT = 3
_OLDEST_OFFSET_FETCH = 7
_OLDEST_FETCH = 4  # which says what was aborted


@dataclass(frozen=True)
class Request:
    """What all requests have.

    Attributes
    ----------
    number : int
        Names this copy. One that is sent again has another number.
    attempt : int
        How often it was sent before without success. Wait a little before an attempt that is not 0.
    node : int or None
        The broker to send it to; None for the partition's leader (Produce, Fetch) or any broker
        (FindCoordinator).
    transaction : int or None
        The handle of the transaction that it belongs to; None if it prepares the next one.
    """

    API_KEY: ClassVar[int]

    number: int
    version: int
    attempt: int
    node: int | None
    transaction: int | None


@dataclass(frozen=True)
class FindCoordinator(Request):
    """Which broker coordinates a group, or a transactional id."""

    API_KEY = 10
    key: str
    key_type: int


@dataclass(frozen=True)
class InitProducerId(Request):
    """A new epoch; ends what the transactional id has open.

    Attributes
    ----------
    transactional_id : str or None
        None for a producer without transactions, which gets an id of its own.
    transaction_timeout_ms : int
        Milliseconds.
    producer_id, producer_epoch : int
        The current ones: the coordinator refuses others (KIP-360). Both -1 take the transactional
        id over from its last producer.
    """

    API_KEY = 22
    transactional_id: str | None
    transaction_timeout_ms: int
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True)
class DescribeTransactions(Request):
    """Who had the transactional id last.

    A coordinator whose ``transaction.version`` is 0 cannot write what InitProducerId makes of a
    transactional id whose last transaction was v2 (Kafka 4.3). AddOffsetsToTxn of the last epoch it
    can write, and the InitProducerId that aborts this transaction, too.
    """

    API_KEY = 65
    transactional_id: str


@dataclass(frozen=True)
class AddPartitionsToTxn(Request):
    """Transactions v1: these partitions are going to have records of the transaction."""

    API_KEY = 24
    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True)
class AddOffsetsToTxn(Request):
    """Transactions v1: this group is going to have offsets of the transaction."""

    API_KEY = 25
    transactional_id: str
    producer_id: int
    producer_epoch: int
    group_id: str


@dataclass(frozen=True)
class EndTxn(Request):
    """Commit or abort."""

    API_KEY = 26
    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool


@dataclass(frozen=True)
class GroupMetadata:
    """Who commits the offsets: the group checks that the member owns what it read (KIP-447).

    Attributes
    ----------
    generation_id : int
        The member's generation, or its member epoch; never -1, which a group accepts unchecked.
    is_nobody : bool
        Whether no member is meant, and the generation is -1: a group without members accepts it.
        One with members refuses it for an unknown ``member_id`` (Kafka 3.3 and later).
    """

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None
    is_nobody: bool = False


@dataclass(frozen=True)
class Offset:
    """A group's position in a partition.

    Attributes
    ----------
    offset : int
        The next offset to read; -1 for none.
    metadata : str
        What the committer keeps with it.
    leader_epoch : int
        That of the last record that was read; -1 if unknown.
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


@dataclass(frozen=True)
class TxnOffsetCommit(Request):
    """Offsets of a group that become valid with the transaction."""

    API_KEY = 28
    transactional_id: str
    producer_id: int
    producer_epoch: int
    group: GroupMetadata
    offsets: Mapping[TopicPartition, Offset]


@dataclass(frozen=True)
class Produce(Request):
    """The header of one batch of records, with ``acks=all``.

    Attributes
    ----------
    transactional_id : str or None
        None outside of transactions.
    batch : int
        Names the batch; the same in all copies.
    base_sequence : int
        The sequence number of its first record.
    rank : tuple of int
        Of a part of a batch that was too large: the number of the whole, then 0 or 1 for each time
        that it was halved. Empty for a whole batch.
    """

    API_KEY = 0
    transactional_id: str | None
    producer_id: int
    producer_epoch: int
    partition: TopicPartition
    batch: int
    base_sequence: int
    record_count: int
    rank: tuple[int, ...] = ()

    @property
    def order(self) -> tuple[int, ...]:
        """Its place among the batches of its partition."""
        return self.rank or (self.batch,)


@dataclass(frozen=True)
class OffsetFetch(Request):
    """A group's offsets; waits for those that a transaction may still change."""

    API_KEY = 9
    group_id: str
    partitions: tuple[TopicPartition, ...]
    require_stable: ClassVar[bool] = True


@dataclass(frozen=True)
class Fetch(Request):
    """Whether a record is committed: a few bytes at its offset, with ``read_committed``.

    The answer counts once the last stable offset is past it.
    """

    API_KEY = 1
    isolation_level: ClassVar[int] = 1
    partition: TopicPartition
    fetch_offset: int


@dataclass(frozen=True)
class Answer:
    """What a broker answered; a request uses the fields that its response has.

    Attributes
    ----------
    error : int
        The error code of the whole request (of the one partition of Produce).
    errors : mapping of TopicPartition to int
        AddPartitionsToTxn, TxnOffsetCommit: an error code for each partition.
    producer_id, producer_epoch : int
        InitProducerId, DescribeTransactions, and EndTxn from version 5.
    is_open : bool
        DescribeTransactions: whether a transaction is open.
    node : int
        FindCoordinator.
    offsets : mapping of TopicPartition to Offset
        OffsetFetch; a partition without an offset is left out.
    base_offset : int
        Produce; -1 if the leader does not say.
    last_stable_offset : int
        Fetch.
    aborted : tuple of (int, int)
        Fetch: the producer id and the first offset of each aborted transaction.
    detail : str
        Produce: what the leader says about its refusal, and of which record; empty if nothing.
    """

    error: int = 0
    errors: Mapping[TopicPartition, int] = field(default_factory=dict)
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    node: int = -1
    offsets: Mapping[TopicPartition, Offset] = field(default_factory=dict)
    base_offset: int = -1
    last_stable_offset: int = -1
    aborted: tuple[tuple[int, int], ...] = ()
    detail: str = ""
    is_open: bool = False


def versions_for(offered: Mapping[int, int], transaction_version: int) -> Versions:
    """The versions to use with these brokers.

    Parameters
    ----------
    offered : mapping of int to int
        The newest version that all brokers offer, by API key.
    transaction_version : int
        The finalized level of the feature ``transaction.version``; 0 if there is none.

    Raises
    ------
    ValueError
        The brokers are older than Kafka 2.5: they lack a request that keeps transactions apart.
    """
    newest = _NEWEST[2]
    enough = (
        offered.get(Produce.API_KEY, -1) >= newest.produce
        and offered.get(EndTxn.API_KEY, -1) >= newest.end_txn
        and offered.get(TxnOffsetCommit.API_KEY, -1) >= newest.txn_offset_commit
    )
    ours = newest if transaction_version >= 2 and enough else _NEWEST[1]

    def of(request: type[Request], newest: int, oldest: int = 0) -> int:
        version = min(newest, offered.get(request.API_KEY, -1))
        if version < oldest:
            raise ValueError(
                f"transactions need {request.__name__} v{oldest} (Kafka 2.5 or later); "
                f"the brokers offer {f'v{version}' if version >= 0 else 'none'}"
            )
        return version

    return Versions(
        ours.transaction_version,
        of(Produce, ours.produce, 3),
        of(FindCoordinator, ours.find_coordinator, 1),
        of(InitProducerId, ours.init_producer_id, _OLDEST_INIT_PRODUCER_ID),
        of(AddPartitionsToTxn, ours.add_partitions_to_txn),
        of(AddOffsetsToTxn, ours.add_offsets_to_txn),
        of(EndTxn, ours.end_txn),
        of(TxnOffsetCommit, ours.txn_offset_commit, _OLDEST_TXN_OFFSET_COMMIT),
        of(OffsetFetch, ours.offset_fetch, _OLDEST_OFFSET_FETCH),
        of(Fetch, ours.fetch, _OLDEST_FETCH),
        enough and transaction_version == 0,
    )
