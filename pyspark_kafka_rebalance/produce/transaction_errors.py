"""What an error code means for a transaction: one table, request by error. Pure.

Its source are Kafka's handlers: ``TransactionManager`` and ``Sender`` of the Java client say what a
client does, ``TransactionCoordinator``, ``AddPartitionsToTxnManager``, ``ProducerAppendInfo`` and
``GroupMetadataManager`` of the broker say which codes can come. Where this table differs from the
Java client, a comment says why.

The table has one verdict for each answer. What a refusal of EndTxn means also depends on the copies
that were sent before: see `refused_commit`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping

from kafka.structs import TopicPartition

from .requests import (
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
)


class Errors(enum.IntEnum):
    """Kafka's error codes that concern transactions."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_VERSION = 35
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    UNKNOWN_PRODUCER_ID = 59
    GROUP_ID_NOT_FOUND = 69
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    OFFSET_NOT_AVAILABLE = 78
    FENCED_INSTANCE_ID = 82
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    UNKNOWN_TOPIC_ID = 100
    INCONSISTENT_TOPIC_ID = 103
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FENCED_MEMBER_EPOCH = 110
    STALE_MEMBER_EPOCH = 113
    TRANSACTION_ABORTABLE = 120


class Verdict(enum.IntEnum):
    """What an answer means for its request and its transaction; of several, the highest holds."""

    DONE = 0
    #: Send it again, to the same broker.
    RETRY = 1
    #: Look up the coordinator or the leader, then send it again. A coordinator that moves may have
    #: written what it refused: an EndTxn is in doubt until another copy is answered.
    RETRY_ELSEWHERE = 2
    #: The transaction cannot commit. The next one may use the same epoch.
    ABORT = 3
    #: The transaction cannot commit, and the next one needs a new epoch.
    NEW_EPOCH = 4
    #: The epoch is not the current one: another producer took the transactional id over, or the
    #: coordinator aborted the transaction for its timeout. The producer cannot distinguish them.
    FENCED = 5
    #: No transaction of this producer can commit, and waiting does not help.
    FATAL = 6


class Outcome(enum.Enum):
    """The outcome of a transaction."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    #: A copy of its EndTxn(commit) went unanswered or was refused by a coordinator that moved, a
    #: later one was refused because the epoch is not current any more, its records are deleted or
    #: may not be read, and the group's offsets do not show it.
    NOT_KNOWABLE = "not knowable"


_E = Errors

#: How every coordinator answers while it moves, starts, or writes its log.
_MOVES = {
    _E.NONE: Verdict.DONE,
    _E.REQUEST_TIMED_OUT: Verdict.RETRY_ELSEWHERE,
    _E.NETWORK_EXCEPTION: Verdict.RETRY,
    _E.COORDINATOR_LOAD_IN_PROGRESS: Verdict.RETRY,
    _E.COORDINATOR_NOT_AVAILABLE: Verdict.RETRY_ELSEWHERE,
    _E.NOT_COORDINATOR: Verdict.RETRY_ELSEWHERE,
    _E.BROKER_NOT_AVAILABLE: Verdict.RETRY_ELSEWHERE,
    _E.NOT_LEADER_OR_FOLLOWER: Verdict.RETRY_ELSEWHERE,
    _E.KAFKA_STORAGE_ERROR: Verdict.RETRY_ELSEWHERE,
    _E.NOT_ENOUGH_REPLICAS: Verdict.RETRY,
    _E.NOT_ENOUGH_REPLICAS_AFTER_APPEND: Verdict.RETRY,
    _E.THROTTLING_QUOTA_EXCEEDED: Verdict.RETRY,
}

#: What no client can mend.
_REFUSED = {
    _E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Verdict.FATAL,
    _E.CLUSTER_AUTHORIZATION_FAILED: Verdict.FATAL,
    _E.SECURITY_DISABLED: Verdict.FATAL,
    _E.UNSUPPORTED_VERSION: Verdict.FATAL,
    _E.INVALID_REQUEST: Verdict.FATAL,
}

#: The coordinator's view of this producer. Java gives up at INVALID_TXN_STATE. A new epoch is
#: asked for with the current one, so it is refused if another producer is the cause.
_PRODUCER = {
    _E.CONCURRENT_TRANSACTIONS: Verdict.RETRY,
    _E.INVALID_PRODUCER_EPOCH: Verdict.FENCED,
    _E.PRODUCER_FENCED: Verdict.FENCED,
    _E.TRANSACTION_COORDINATOR_FENCED: Verdict.RETRY_ELSEWHERE,
    _E.INVALID_TXN_STATE: Verdict.NEW_EPOCH,
    _E.INVALID_PRODUCER_ID_MAPPING: Verdict.NEW_EPOCH,
    _E.TRANSACTIONAL_ID_NOT_FOUND: Verdict.NEW_EPOCH,
    _E.UNKNOWN_PRODUCER_ID: Verdict.NEW_EPOCH,
    _E.UNKNOWN_SERVER_ERROR: Verdict.NEW_EPOCH,
    _E.TRANSACTION_ABORTABLE: Verdict.ABORT,
}

#: The brokers' transactions were downgraded from v2 to v1, amid one of v2. `TransactionMachine`
#: aborts it, and goes on with v1.
_DOWNGRADED = {_E.UNSUPPORTED_VERSION: Verdict.NEW_EPOCH}

#: The group and its member.
_GROUP = {
    _E.INVALID_GROUP_ID: Verdict.ABORT,
    _E.GROUP_ID_NOT_FOUND: Verdict.ABORT,
    _E.GROUP_AUTHORIZATION_FAILED: Verdict.ABORT,
}

TABLE: Mapping[type[Request], Mapping[Errors, Verdict]] = {
    FindCoordinator: {
        **_MOVES,
        **_REFUSED,
        **_GROUP,
        # Of a coordinator's topic that is being created, or cannot be.
        _E.UNKNOWN_TOPIC_OR_PARTITION: Verdict.RETRY,
        _E.LEADER_NOT_AVAILABLE: Verdict.RETRY,
        _E.UNKNOWN_SERVER_ERROR: Verdict.RETRY,
        _E.TRANSACTION_ABORTABLE: Verdict.ABORT,
    },
    InitProducerId: {
        **_MOVES,
        **_REFUSED,
        **_PRODUCER,
        # The coordinator aborts what is open first, and answers with what came of that. Another
        # attempt is right: it has its own transaction to end, and a repetition is recognized.
        _E.INVALID_TXN_STATE: Verdict.RETRY,
        _E.INVALID_PRODUCER_ID_MAPPING: Verdict.RETRY,
        _E.TRANSACTION_ABORTABLE: Verdict.RETRY,
        _E.INVALID_TRANSACTION_TIMEOUT: Verdict.FATAL,
        # Also where the coordinator fenced with the last epoch: without an expected epoch, as
        # `TransactionMachine.initialize` asks, it continues with another producer id.
        _E.UNKNOWN_SERVER_ERROR: Verdict.FATAL,
    },
    # About the last producer, before InitProducerId: who cannot be asked is left alone.
    DescribeTransactions: {**_MOVES, **_REFUSED, _E.TRANSACTIONAL_ID_NOT_FOUND: Verdict.ABORT},
    AddPartitionsToTxn: {
        **_MOVES,
        **_REFUSED,
        **_PRODUCER,
        _E.UNKNOWN_TOPIC_OR_PARTITION: Verdict.RETRY,
        _E.LEADER_NOT_AVAILABLE: Verdict.RETRY,
        _E.TOPIC_AUTHORIZATION_FAILED: Verdict.ABORT,
        _E.INVALID_TOPIC_EXCEPTION: Verdict.ABORT,
        # For the sake of another partition, whose own error decides.
        _E.OPERATION_NOT_ATTEMPTED: Verdict.RETRY,
    },
    AddOffsetsToTxn: {**_MOVES, **_REFUSED, **_PRODUCER, **_GROUP},
    TxnOffsetCommit: {
        **_MOVES,
        **_REFUSED,
        **_DOWNGRADED,
        **_PRODUCER,
        **_GROUP,
        _E.UNKNOWN_TOPIC_OR_PARTITION: Verdict.RETRY,
        _E.UNKNOWN_TOPIC_ID: Verdict.RETRY,
        _E.TOPIC_AUTHORIZATION_FAILED: Verdict.ABORT,
        _E.OFFSET_METADATA_TOO_LARGE: Verdict.ABORT,
        _E.INVALID_COMMIT_OFFSET_SIZE: Verdict.ABORT,
        # The member does not own any more what it read. A group of KIP-848 answers
        # ILLEGAL_GENERATION for a stale epoch, newer brokers maybe its own name.
        _E.UNKNOWN_MEMBER_ID: Verdict.ABORT,
        _E.ILLEGAL_GENERATION: Verdict.ABORT,
        _E.STALE_MEMBER_EPOCH: Verdict.ABORT,
        _E.FENCED_MEMBER_EPOCH: Verdict.ABORT,
        _E.FENCED_INSTANCE_ID: Verdict.ABORT,
        _E.REBALANCE_IN_PROGRESS: Verdict.RETRY,
        # From the leader of the group's partition, as Produce has it: EndTxn(abort) finds out.
        _E.INVALID_PRODUCER_EPOCH: Verdict.NEW_EPOCH,
        _E.UNSUPPORTED_FOR_MESSAGE_FORMAT: Verdict.FATAL,
    },
    EndTxn: {
        **_MOVES,
        **_REFUSED,
        **_DOWNGRADED,
        **_PRODUCER,
        _E.UNKNOWN_SERVER_ERROR: Verdict.RETRY_ELSEWHERE,
    },
    # A batch that is refused for good leaves a gap in the sequence numbers: they start again with
    # a new epoch, which an abort of transactions v2 brings anyway.
    Produce: {
        **_MOVES,
        **_REFUSED,
        **_DOWNGRADED,
        **_PRODUCER,
        _E.DUPLICATE_SEQUENCE_NUMBER: Verdict.DONE,
        _E.REQUEST_TIMED_OUT: Verdict.RETRY,
        _E.NETWORK_EXCEPTION: Verdict.RETRY_ELSEWHERE,
        _E.NOT_COORDINATOR: Verdict.RETRY,  # what the leader learned of the transaction's
        _E.COORDINATOR_NOT_AVAILABLE: Verdict.RETRY,
        _E.CORRUPT_MESSAGE: Verdict.RETRY,
        _E.UNKNOWN_TOPIC_OR_PARTITION: Verdict.RETRY_ELSEWHERE,
        _E.LEADER_NOT_AVAILABLE: Verdict.RETRY_ELSEWHERE,
        _E.REPLICA_NOT_AVAILABLE: Verdict.RETRY_ELSEWHERE,
        _E.FENCED_LEADER_EPOCH: Verdict.RETRY_ELSEWHERE,
        _E.UNKNOWN_LEADER_EPOCH: Verdict.RETRY_ELSEWHERE,
        _E.UNKNOWN_TOPIC_ID: Verdict.RETRY_ELSEWHERE,
        _E.INCONSISTENT_TOPIC_ID: Verdict.RETRY_ELSEWHERE,
        # `TransactionMachine` tries again where an earlier batch of the partition is not there.
        _E.OUT_OF_ORDER_SEQUENCE_NUMBER: Verdict.NEW_EPOCH,
        # A leader does not distinguish the causes (KIP-588): EndTxn(abort) finds out.
        _E.INVALID_PRODUCER_EPOCH: Verdict.NEW_EPOCH,
        _E.TRANSACTION_ABORTABLE: Verdict.NEW_EPOCH,
        _E.MESSAGE_TOO_LARGE: Verdict.NEW_EPOCH,
        _E.RECORD_LIST_TOO_LARGE: Verdict.NEW_EPOCH,
        _E.INVALID_TOPIC_EXCEPTION: Verdict.NEW_EPOCH,
        _E.TOPIC_AUTHORIZATION_FAILED: Verdict.NEW_EPOCH,
        _E.INVALID_TIMESTAMP: Verdict.NEW_EPOCH,
        _E.INVALID_RECORD: Verdict.NEW_EPOCH,
        _E.POLICY_VIOLATION: Verdict.NEW_EPOCH,
        _E.UNSUPPORTED_COMPRESSION_TYPE: Verdict.NEW_EPOCH,
        _E.UNSUPPORTED_FOR_MESSAGE_FORMAT: Verdict.NEW_EPOCH,
        _E.INVALID_REQUIRED_ACKS: Verdict.FATAL,
    },
    # A question about the past; a final refusal leaves it open.
    OffsetFetch: {
        **_MOVES,
        **_REFUSED,
        _E.UNSTABLE_OFFSET_COMMIT: Verdict.RETRY,
        _E.UNKNOWN_TOPIC_OR_PARTITION: Verdict.RETRY,
        _E.REBALANCE_IN_PROGRESS: Verdict.RETRY,
        _E.UNKNOWN_SERVER_ERROR: Verdict.RETRY,
        _E.INVALID_GROUP_ID: Verdict.FATAL,
        _E.GROUP_ID_NOT_FOUND: Verdict.FATAL,
        _E.GROUP_AUTHORIZATION_FAILED: Verdict.FATAL,
        _E.TOPIC_AUTHORIZATION_FAILED: Verdict.FATAL,
        _E.UNKNOWN_MEMBER_ID: Verdict.FATAL,
        _E.STALE_MEMBER_EPOCH: Verdict.FATAL,
    },
    Fetch: {
        **_MOVES,
        **_REFUSED,
        _E.LEADER_NOT_AVAILABLE: Verdict.RETRY_ELSEWHERE,
        _E.REPLICA_NOT_AVAILABLE: Verdict.RETRY_ELSEWHERE,
        _E.FENCED_LEADER_EPOCH: Verdict.RETRY_ELSEWHERE,
        _E.UNKNOWN_LEADER_EPOCH: Verdict.RETRY_ELSEWHERE,
        _E.OFFSET_NOT_AVAILABLE: Verdict.RETRY,
        _E.CORRUPT_MESSAGE: Verdict.FATAL,
        _E.UNKNOWN_SERVER_ERROR: Verdict.RETRY,
        _E.OFFSET_OUT_OF_RANGE: Verdict.FATAL,
        _E.UNKNOWN_TOPIC_OR_PARTITION: Verdict.FATAL,  # another partition may show it
        _E.UNKNOWN_TOPIC_ID: Verdict.FATAL,
        _E.TOPIC_AUTHORIZATION_FAILED: Verdict.FATAL,
    },
}

#: For a code that has no row: a newer broker's, most likely. Nothing is assumed to be done.
UNKNOWN_CODE: Mapping[type[Request], Verdict] = {
    FindCoordinator: Verdict.FATAL,
    InitProducerId: Verdict.FATAL,
    DescribeTransactions: Verdict.ABORT,
    AddPartitionsToTxn: Verdict.NEW_EPOCH,
    AddOffsetsToTxn: Verdict.NEW_EPOCH,
    TxnOffsetCommit: Verdict.NEW_EPOCH,
    EndTxn: Verdict.FATAL,
    Produce: Verdict.NEW_EPOCH,
    OffsetFetch: Verdict.FATAL,
    Fetch: Verdict.FATAL,
}


#: A batch is larger than its topic or broker allows; parts of it may not be.
TOO_LARGE = (Errors.MESSAGE_TOO_LARGE, Errors.RECORD_LIST_TOO_LARGE)


def verdict_of(request: type[Request], code: int) -> Verdict:
    """What this error code means as the answer to this kind of request."""
    try:
        error = Errors(code)
    except ValueError:
        return UNKNOWN_CODE[request]
    return TABLE[request].get(error, UNKNOWN_CODE[request])


def worst(request: type[Request], codes: Iterable[int]) -> tuple[Verdict, int]:
    """The verdict that holds for the whole of a request, and the code that has it."""
    return max(((verdict_of(request, code), code) for code in codes), default=(Verdict.DONE, 0))


def error_name(code: int) -> str:
    """Kafka's name of an error code."""
    try:
        return Errors(code).name
    except ValueError:
        return f"error {code}"


#: What is wrong, or what to do about it, where the broker does not say it. ``{topic}`` and
#: ``{group}`` are the ones that were refused.
_OF_RECORDS: Mapping[Errors, str] = {
    Errors.INVALID_RECORD: "a record without a key for a compacted topic, or one that is not valid",
    Errors.INVALID_TIMESTAMP: "a timestamp beyond the topic's message.timestamp.before.max.ms or "
    "message.timestamp.after.max.ms",
    Errors.TOPIC_AUTHORIZATION_FAILED: "it needs WRITE on topic {topic}",
    Errors.CLUSTER_AUTHORIZATION_FAILED: "it needs IDEMPOTENT_WRITE on the cluster",
    Errors.UNKNOWN_TOPIC_OR_PARTITION: "the topic, or this partition of it, does not exist, or is "
    "not to be seen without DESCRIBE",
    Errors.UNKNOWN_TOPIC_ID: "the topic was deleted",
    Errors.INVALID_TOPIC_EXCEPTION: "only brokers write to this topic, or its name is not allowed",
    Errors.UNSUPPORTED_COMPRESSION_TYPE: "choose another compression_type",
    Errors.NOT_ENOUGH_REPLICAS: "fewer replicas are in sync than min.insync.replicas",
    Errors.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "fewer replicas are in sync than min.insync.replicas",
}
_MEMBER_IS_OUT = (
    "the member left the group, or its generation is past: poll, and repeat the transaction"
)
_OF_OFFSETS: Mapping[Errors, str] = {
    Errors.UNKNOWN_MEMBER_ID: _MEMBER_IS_OUT,
    Errors.ILLEGAL_GENERATION: _MEMBER_IS_OUT,
    Errors.STALE_MEMBER_EPOCH: _MEMBER_IS_OUT,
    Errors.FENCED_MEMBER_EPOCH: _MEMBER_IS_OUT,
    Errors.FENCED_INSTANCE_ID: "another member has its group_instance_id",
    Errors.GROUP_AUTHORIZATION_FAILED: "it needs READ on group {group}",
    Errors.TOPIC_AUTHORIZATION_FAILED: "it needs READ on topic {topic}",
    Errors.OFFSET_METADATA_TOO_LARGE: "at most the brokers' offset.metadata.max.bytes",
}
_ANOTHER_HAS_IT = (
    "another producer has the transactional id, or the transaction was open for longer than "
    "transaction_timeout_ms"
)
_OF_THE_PRODUCER: Mapping[Errors, str] = {
    Errors.INVALID_PRODUCER_EPOCH: _ANOTHER_HAS_IT,
    Errors.PRODUCER_FENCED: _ANOTHER_HAS_IT,
    Errors.INVALID_TXN_STATE: "the coordinator has no such open transaction: it was open for "
    "longer than transaction_timeout_ms, or somebody aborted it",
}
_OF_A_PRODUCER_ID: Mapping[Errors, str] = {
    Errors.UNSUPPORTED_VERSION: "transaction.version was downgraded since the last transaction: "
    "allow this user READ on a group of the same name as the transactional id, then restart the "
    "coordinator's broker; or take another transactional id",
}


def explained(
    request: type[Request],
    code: int,
    detail: str = "",
    partition: TopicPartition | None = None,
    group_id: str = "",
) -> str:
    """The name of an error code; in brackets what the broker says, or else what to do."""
    name = error_name(code)
    advice = _OF_OFFSETS if group_id else _OF_RECORDS
    if not detail and name in Errors.__members__:
        error = Errors[name]
        said = advice.get(error) or _OF_THE_PRODUCER.get(error, "")
        if request is InitProducerId:
            said = _OF_A_PRODUCER_ID.get(error, said)
        is_known = partition is not None or "{topic}" not in said
        topic = partition.topic if partition is not None else ""
        detail = said.format(topic=topic, group=group_id) if is_known else ""
    return f"{name} ({detail})" if detail else name


def refused_commit(verdict: Verdict, other_copies: bool) -> Outcome | None:
    """What became of a transaction whose EndTxn(commit) was refused for good.

    Only this producer's EndTxn(commit) can commit it. If this copy is the only one, it did not.

    Parameters
    ----------
    verdict : Verdict
        One of those for good.
    other_copies : bool
        Whether another copy was sent, answered or not.

    Returns
    -------
    Outcome or None
        None if it is in doubt.
    """
    assert verdict > Verdict.RETRY_ELSEWHERE
    return None if other_copies else Outcome.ABORTED


def outcome_by_offsets(
    before: Offset | None, expected: Offset, found: Offset | None
) -> Outcome | None:
    """What a group's stable offset of one partition says about a transaction that had one.

    Parameters
    ----------
    before : Offset or None
        The group's offset before the transaction; None if it is not known.
    expected : Offset
        The transaction's.
    found : Offset or None
        The group's, now; None if it has none.

    Returns
    -------
    Outcome or None
        None if this offset does not show it.
    """
    was = None if before is None else _position(before)
    now = (-1, "") if found is None else _position(found)
    if was is None or was == _position(expected):
        return None
    if now == _position(expected):
        return Outcome.COMMITTED
    return Outcome.ABORTED if now == was else None


def outcome_by_records(producer_id: int, offset: int, answer: Answer) -> Outcome | None:
    """What a reader of committed records makes of a producer's record at this offset.

    Returns
    -------
    Outcome or None
        None while its transaction is not decided.
    """
    if answer.last_stable_offset <= offset:
        return None
    aborted = any(who == producer_id and first <= offset for who, first in answer.aborted)
    return Outcome.ABORTED if aborted else Outcome.COMMITTED


def _position(offset: Offset) -> tuple[int, str]:
    return offset.offset, offset.metadata
