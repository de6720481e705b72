"""Requests to brokers for which kafka-python has no public call, or one that gives up."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kafka import KafkaAdminClient, KafkaConsumer
from kafka import __version__ as kafka_version
from kafka import errors as kafka_errors
from kafka.net.manager import KafkaConnectionManager
from kafka.protocol.consumer import OffsetForLeaderEpochRequest
from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest
from kafka.structs import OffsetAndTimestamp, TopicPartition
from kafka.util import Timer

from ...transport.kafka_python_version import require_names
from ..messages import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest

if TYPE_CHECKING:
    from kafka.consumer.fetcher import Fetcher
    from kafka.future import Future

log = logging.getLogger(__name__)

#: Pause before the next broker is asked: shorter than ``reconnect_backoff_ms`` (50 by default),
#: after which kafka-python may choose the broker that has just refused a connection again.
_ASK_AGAIN_S = 0.01

_EpochOfPartition = OffsetForLeaderEpochRequest.OffsetForLeaderTopic.OffsetForLeaderPartition

require_names(
    {
        KafkaAdminClient: ("_find_coordinator_ids",),
        KafkaConnectionManager: ("broker_version",),  # of broker_version_data
    }
)


async def first_answer(
    manager: KafkaConnectionManager, ask: Callable[[], Future], timeout_ms: float
) -> Any:
    """Ask one broker after another until one answers, on the I/O loop.

    kafka-python chooses the broker, and avoids one that refused a connection for a while. But it
    raises that refusal, although the next broker would answer.

    Parameters
    ----------
    manager : KafkaConnectionManager
        The manager of the client that sends the requests.
    ask : callable
        Sends the question, to a broker of kafka-python's choice.
    timeout_ms : float
        Milliseconds for all attempts together.

    Raises
    ------
    kafka.errors.KafkaTimeoutError
        No broker answered; the text has their addresses and the last error.
    kafka.errors.KafkaError
        An error that is not retriable.
    """
    timer = Timer(timeout_ms)
    met = ""
    while True:
        try:
            return await manager.wait_for(ask(), timer.timeout_ms)
        except kafka_errors.KafkaError as error:
            if not error.retriable:
                raise
            if timer.timeout_ms == 0:
                at = sorted(f"{node.host}:{node.port}" for node in manager.cluster.brokers())
                text = (
                    f"none of the brokers at {', '.join(at)} (their advertised.listeners) "
                    f"answered within {round(timeout_ms / 1000, 2):g} s{met or f': {error!r}'}"
                )
                raise kafka_errors.KafkaTimeoutError(text) from error
            log.info("a request to the brokers failed, sending it again: %r", error)
            met = f": {error!r}"
            await manager._net.sleep(_ASK_AGAIN_S)


def offers_consumer_protocol(consumer: KafkaConsumer) -> bool:
    """Whether the brokers support the consumer group protocol (KIP-848) and it is switched on.

    They list its messages even if the feature ``group.version`` is 0. Raises KafkaTimeoutError.
    """
    request = ApiVersionsRequest(
        client_software_name="kafka-python", client_software_version=kafka_version
    )
    manager = consumer._manager
    response = consumer._net.run(
        first_answer,
        manager,
        lambda: manager.send(request),
        consumer.config["request_timeout_ms"],
    )
    features = {f.name: f.max_version_level for f in response.finalized_features or ()}
    keys = {api.api_key for api in response.api_keys}
    return ConsumerGroupHeartbeatRequest.API_KEY in keys and features.get("group.version", 0) >= 1


def known_brokers(admin: KafkaAdminClient) -> list[Any]:
    """The brokers of the cluster, each with ``node_id``, ``host`` and ``port``.

    kafka-python's ``describe_cluster`` fails on the answer of Kafka 2.8 to 3.6. Raises KafkaError.
    """
    manager = admin._manager
    request = MetadataRequest(topics=[], allow_auto_topic_creation=False)

    async def ask() -> Any:
        return await manager.send(request)

    return list(manager.run(ask).brokers)


def offered_versions(admin: KafkaAdminClient) -> dict[int, tuple[int, int]]:
    """The versions that the broker of the first connection offers, by API key; asks no broker.

    kafka-python's ``api_versions`` fails if the broker has a request that kafka-python lacks.
    """
    return dict(admin._manager.broker_version_data.api_versions)


def inferred_version(admin: KafkaAdminClient) -> tuple[int, ...]:
    """The release of the broker of the first connection, as kafka-python infers it; asks no broker.

    It follows from the versions that the broker offers; for a release newer than kafka-python
    knows, it is the last known one.
    """
    version: tuple[int, ...] = admin._manager.broker_version
    return version


def describe_consumer_group(admin: KafkaAdminClient, group_id: str) -> Any:
    """The DescribedGroup of a ConsumerGroupDescribeResponse; None if the brokers are too old."""
    request = ConsumerGroupDescribeRequest(
        group_ids=[group_id], include_authorized_operations=False
    )

    async def ask() -> Any:
        coordinators = await admin._find_coordinator_ids([group_id])
        return await admin._manager.send(request, node_id=coordinators[group_id])

    try:
        return admin._manager.run(ask).groups[0]
    except kafka_errors.IncompatibleBrokerVersion:
        return None


async def told_offsets(
    fetcher: Fetcher, wanted: Mapping[TopicPartition, int], timeout_ms: float
) -> dict[TopicPartition, int | None]:
    """As :func:`told_places`, but only the offsets."""
    places = await told_places(fetcher, wanted, timeout_ms)
    return {p: None if place is None else place.offset for p, place in places.items()}


async def told_places(
    fetcher: Fetcher, wanted: Mapping[TopicPartition, int], timeout_ms: float
) -> dict[TopicPartition, OffsetAndTimestamp | None]:
    """Ask each leader once, on the I/O loop, for the offset of an OffsetSpec or a timestamp.

    Returns
    -------
    dict of TopicPartition to OffsetAndTimestamp or None
        Partitions without an answer are left out. None: no record has that timestamp, or a later
        one. The leader epoch is that of the record; of a log's end, the leader's own; -1 from older
        brokers.
    """
    manager = fetcher._manager
    by_leader = fetcher._group_list_offset_requests(dict(wanted))
    timer = Timer(timeout_ms)
    asked = [
        (of_leader, manager.call_soon(fetcher._send_list_offsets_request, leader, of_leader))
        for leader, of_leader in by_leader.items()
    ]
    found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
    for of_leader, answer in asked:
        try:
            offsets, again = await manager.wait_for(answer, timer.timeout_ms)
        except kafka_errors.KafkaError as error:
            if not error.retriable:
                raise
            log.info("a leader did not return log offsets (ListOffsets): %r", error)
        else:
            none = {p: None for p in of_leader if p not in again and wanted[p] >= 0}
            found |= none | offsets
    return found


async def epoch_ends(
    manager: KafkaConnectionManager, epochs: Mapping[TopicPartition, int], timeout_ms: float
) -> dict[TopicPartition, int]:
    """Ask each leader once, on the I/O loop, where in its log a leader epoch ends (KIP-320).

    Sends OffsetForLeaderEpoch, as kafka-python does for assigned positions.

    Returns
    -------
    dict of TopicPartition to int
        The offset after the last record of that epoch, or of the highest one below it; -1 if the
        leader knows none. Partitions without an answer are left out.
    """
    by_leader: dict[int, dict[str, list[Any]]] = {}
    for (topic, partition), epoch in epochs.items():
        leader = manager.cluster.leader_for_partition(TopicPartition(topic, partition))
        if leader is None or leader == -1:
            manager.cluster.request_update()
            continue
        asked = _EpochOfPartition(partition=partition, current_leader_epoch=-1, leader_epoch=epoch)
        by_leader.setdefault(leader, {}).setdefault(topic, []).append(asked)
    timer = Timer(timeout_ms)
    answers = [
        manager.send(
            OffsetForLeaderEpochRequest(replica_id=-1, topics=list(topics.items())), node_id=leader
        )
        for leader, topics in by_leader.items()
    ]
    found = {}
    for answer in answers:
        try:
            response = await manager.wait_for(answer, timer.timeout_ms)
        except kafka_errors.KafkaError as error:
            if not error.retriable:
                raise
            log.info("the broker did not return the end offsets of leader epochs: %r", error)
            continue
        for topic in response.topics:
            for told in topic.partitions:
                if told.error_code == 0:
                    found[TopicPartition(topic.topic, told.partition)] = told.end_offset
    return found
