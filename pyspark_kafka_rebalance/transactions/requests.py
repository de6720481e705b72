"""Requests about transactions, to coordinators and leaders, over a kafka-python admin client.

kafka-python's own calls end with the first transactional id or partition that has an error. Here
each has its own.

Protocol: ListTransactions v0-1 (KIP-664, KIP-994), DescribeTransactions v0, DescribeProducers v0,
InitProducerId v0-4 (KIP-360), WriteTxnMarkers v1-2, FindCoordinator.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from kafka import KafkaAdminClient
from kafka import errors as kafka_errors
from kafka.net.manager import KafkaConnectionManager
from kafka.protocol.admin import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)
from kafka.protocol.metadata import CoordinatorType
from kafka.protocol.producer import InitProducerIdRequest, WriteTxnMarkersRequest
from kafka.structs import TopicPartition

from ..consumer.kafka_python.questions import inferred_version, known_brokers, offered_versions
from ..errors import UnsupportedBrokerError
from ..transport.kafka_python_version import require_names
from .report import Transaction, Writer

require_names(
    {KafkaAdminClient: ("_find_coordinator_id",), KafkaConnectionManager: ("run", "send")}
)

_NOT_KNOWN = kafka_errors.TransactionalIdNotFoundError.errno

#: The version of ListTransactions that has a filter by duration (KIP-994).
_WITH_DURATION = 1

_Marker = WriteTxnMarkersRequest.WritableTxnMarker


def require_transactions(admin: KafkaAdminClient) -> None:
    """Refuse brokers that cannot list their transactions.

    Raises
    ------
    UnsupportedBrokerError
        Names the release found.
    """
    if ListTransactionsRequest.API_KEY not in offered_versions(admin):
        release = ".".join(map(str, inferred_version(admin)))
        raise UnsupportedBrokerError(
            f"the brokers cannot list transactions (Kafka {release}): that needs Kafka 3.0 or newer"
        )


def list_transactions(
    admin: KafkaAdminClient,
    states: Collection[str] = (),
    producer_ids: Collection[int] = (),
    longer_than_s: float | None = None,
) -> tuple[list[Transaction], dict[int, str]]:
    """Ask every broker which transactional ids it coordinates.

    Brokers before Kafka 3.8 ignore the duration.

    Returns
    -------
    tuple of list of Transaction and dict of int to str
        The transactions, of which only id, producer id, state and coordinator are known; and the
        brokers that did not answer, with the reason.
    """
    named: dict[str, Any] = {
        "state_filters": list(states),
        "producer_id_filters": list(producer_ids),
    }
    _, newest = offered_versions(admin)[ListTransactionsRequest.API_KEY]
    if longer_than_s is not None and newest >= _WITH_DURATION:
        named |= {"duration_filter": int(longer_than_s * 1000), "min_version": _WITH_DURATION}
    brokers = [broker.node_id for broker in known_brokers(admin)]
    answers = _ask(admin, {broker: ListTransactionsRequest(**named) for broker in brokers})
    found: list[Transaction] = []
    silent: dict[int, str] = {}
    for broker, answer in answers.items():
        if _is_missing(answer) and len(silent) + 1 < len(answers):
            silent[broker] = str(answer)
            continue
        _raise(answer, f"broker {broker} does not list its transactions")
        found += [
            Transaction(t.transactional_id, t.producer_id, t.transaction_state, broker)
            for t in answer.transaction_states
        ]
    return found, silent


def describe_transactions(
    admin: KafkaAdminClient, listed: Iterable[Transaction]
) -> list[Transaction]:
    """Ask the coordinators for the rest; leaves out ids that have expired since."""
    by_coordinator: dict[int, list[str]] = {}
    for transaction in listed:
        by_coordinator.setdefault(transaction.coordinator, []).append(transaction.transactional_id)
    requests = {
        broker: DescribeTransactionsRequest(transactional_ids=ids)
        for broker, ids in by_coordinator.items()
    }
    found = []
    for broker, answer in _ask(admin, requests).items():
        _raise(answer, f"broker {broker} does not describe its transactions")
        for told in answer.transaction_states:
            if told.error_code != _NOT_KNOWN:
                _raise(told, f"transactional id {told.transactional_id!r}")
                found.append(_described(told, broker))
    return found


def _described(told: Any, coordinator: int) -> Transaction:
    started_ms = told.transaction_start_time_ms
    return Transaction(
        told.transactional_id,
        told.producer_id,
        told.transaction_state,
        coordinator,
        told.producer_epoch,
        told.transaction_timeout_ms / 1000,
        started_ms / 1000 if started_ms > 0 else None,
        frozenset(TopicPartition(t.topic, n) for t in told.topics for n in t.partitions),
    )


def coordinator_of(admin: KafkaAdminClient, transactional_id: str) -> int:
    """The broker that coordinates this transactional id, whether or not it knows it."""

    async def ask() -> Any:
        return await admin._find_coordinator_id(transactional_id, CoordinatorType.TRANSACTION)

    return int(admin._manager.run(ask))


def describe_producers(
    admin: KafkaAdminClient, leaders: Mapping[TopicPartition, int]
) -> tuple[dict[TopicPartition, tuple[Writer, ...]], dict[TopicPartition, str]]:
    """Ask leaders for the producers with an open transaction, in the order of their offsets.

    Returns
    -------
    tuple of two dicts
        The writers of each partition, and why those of a partition are unknown.
    """
    by_leader: dict[int, dict[str, list[int]]] = {}
    for (topic, number), leader in leaders.items():
        by_leader.setdefault(leader, {}).setdefault(topic, []).append(number)
    of_topic = DescribeProducersRequest.TopicRequest
    requests = {
        leader: DescribeProducersRequest(
            topics=[of_topic(name=name, partition_indexes=ns) for name, ns in topics.items()]
        )
        for leader, topics in by_leader.items()
    }
    found: dict[TopicPartition, tuple[Writer, ...]] = {}
    problems: dict[TopicPartition, str] = {}
    for leader, answer in _ask(admin, requests).items():
        _raise(answer, f"broker {leader} does not describe producers")
        for topic in answer.topics:
            for told in topic.partitions:
                partition = TopicPartition(topic.name, told.partition_index)
                if problem := _problem(told, partition):
                    problems[partition] = problem
                else:
                    found[partition] = _writers(told.active_producers)
    return found, problems


def _problem(told: Any, partition: TopicPartition) -> str:
    """Why a partition's producers are unknown; raises what passes."""
    error = kafka_errors.for_code(told.error_code)
    if error is kafka_errors.NoError:
        return ""
    if error is kafka_errors.TopicAuthorizationFailedError:
        return "no READ on the topic"
    if error.retriable:
        raise error(f"{partition.topic}-{partition.partition}")
    return str(error.__name__)


def _writers(producers: Iterable[Any]) -> tuple[Writer, ...]:
    found = (
        Writer(
            told.producer_id,
            told.producer_epoch,
            told.current_txn_start_offset,
            told.last_timestamp / 1000 if told.last_timestamp >= 0 else None,
            told.coordinator_epoch,
        )
        for told in producers
        if told.current_txn_start_offset >= 0
    )
    return tuple(sorted(found, key=lambda writer: writer.start))


def take_over(admin: KafkaAdminClient, transaction: Transaction, timeout_ms: int) -> Any:
    """Ask the coordinator once for a new epoch of a transactional id, which aborts what is open.

    As Java's ``Admin#fenceProducers`` does. ``timeout_ms`` is the transactional id's timeout until
    its next producer says its own.

    Returns
    -------
    InitProducerIdResponse
        With the ``producer_id`` and ``producer_epoch`` that it has now.

    Raises
    ------
    kafka.errors.ConcurrentTransactionsError
        Markers are still being written; ask again.
    """
    request = InitProducerIdRequest(
        transactional_id=transaction.transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=-1,
        producer_epoch=-1,
        max_version=4,
    )
    answer = _ask(admin, {transaction.coordinator: request})[transaction.coordinator]
    _raise(answer, f"transactional id {transaction.transactional_id!r}")
    return answer


def write_abort_marker(
    admin: KafkaAdminClient, partition: TopicPartition, leader: int, writer: Writer
) -> None:
    """Have a leader end a transaction that no coordinator has, as kafka-transactions.sh does."""
    of_topic = _Marker.WritableTxnMarkerTopic
    marker = _Marker(
        producer_id=writer.producer_id,
        producer_epoch=writer.epoch,
        transaction_result=False,
        topics=[of_topic(name=partition.topic, partition_indexes=[partition.partition])],
        # -1 stands for a log without markers; the leader takes any epoch from 0 on then.
        coordinator_epoch=max(0, writer.coordinator_epoch),
    )
    answer = _ask(admin, {leader: WriteTxnMarkersRequest(markers=[marker])})[leader]
    _raise(answer, f"broker {leader} writes no marker")
    for told in answer.markers:
        for topic in told.topics:
            for of_partition in topic.partitions:
                _raise(of_partition, f"marker in {partition.topic}-{partition.partition}")


def _ask(admin: KafkaAdminClient, requests: Mapping[int, Any]) -> dict[int, Any]:
    """Send each broker its request, all at once; a failure takes the place of an answer."""
    manager = admin._manager

    async def ask() -> dict[int, Any]:
        sent = {
            broker: manager.send(request, node_id=broker) for broker, request in requests.items()
        }
        answers: dict[int, Any] = {}
        for broker, future in sent.items():
            try:
                answers[broker] = await future
            except kafka_errors.KafkaError as error:
                answers[broker] = error
        return answers

    return dict(manager.run(ask))


def _is_missing(answer: Any) -> bool:
    """Whether an error that passes has taken the answer's place."""
    return isinstance(answer, kafka_errors.KafkaError) and bool(answer.retriable)


def _raise(answer: Any, about: str) -> None:
    """Raise what took an answer's place, or the error that it has."""
    if isinstance(answer, Exception):
        raise answer
    error = kafka_errors.for_code(getattr(answer, "error_code", 0))
    if error is not kafka_errors.NoError:
        raise error(f"{about}: {error.__name__}")
