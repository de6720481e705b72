"""Questions to the brokers for which kafka-python has no public call, or one that gives up."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from copy import copy
from typing import TYPE_CHECKING, Any

from kafka import KafkaAdminClient, KafkaConsumer
from kafka import __version__ as kafka_version
from kafka import errors as kafka_errors
from kafka.consumer.fetcher import Fetcher
from kafka.net.manager import KafkaConnectionManager
from kafka.protocol.consumer import IsolationLevel
from kafka.protocol.consumer.offsets import OffsetSpec
from kafka.protocol.metadata import ApiVersionsRequest
from kafka.structs import TopicPartition
from kafka.util import Timer

from ...transport.kafka_python_version import require_names
from ..messages import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest

if TYPE_CHECKING:
    from kafka.future import Future

log = logging.getLogger(__name__)

#: When the next broker is asked: before kafka-python would choose again the one that has just
#: refused a connection (``reconnect_backoff_ms``, 50 by default).
_ASK_AGAIN_S = 0.01

require_names(
    {
        KafkaAdminClient: ("_find_coordinator_ids",),
        Fetcher: ("_group_list_offset_requests", "_send_list_offsets_request"),
    }
)


async def first_answer(
    manager: KafkaConnectionManager, ask: Callable[[], Future], timeout_ms: float
) -> Any:
    """Ask one broker after the other until one answers, on the I/O loop.

    kafka-python chooses the broker, and for a while none whose connection was refused; but it
    tells that one refusal, although the next broker would answer.

    Parameters
    ----------
    manager : KafkaConnectionManager
        That of the client that asks.
    ask : callable
        Sends the question, to a broker of kafka-python's choice.
    timeout_ms : float
        How long to ask, and to wait.

    Raises
    ------
    kafka.errors.KafkaTimeoutError
        None answered; says what the last one met.
    kafka.errors.KafkaError
        An error that does not pass.
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
                text = f"no broker answered within {timeout_ms:g} ms{met or f': {error!r}'}"
                raise kafka_errors.KafkaTimeoutError(text) from error
            log.info("asked again: %r", error)
            met = f": {error!r}"
            await manager._net.sleep(_ASK_AGAIN_S)


def offers_consumer_protocol(consumer: KafkaConsumer) -> bool:
    """Whether the brokers have the consumer group protocol (KIP-848), and it is switched on.

    They list its messages also where the feature ``group.version`` is 0. Raises KafkaTimeoutError.
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


def describe_consumer_group(admin: KafkaAdminClient, group_id: str) -> Any:
    """The DescribedGroup of a ConsumerGroupDescribeResponse; None where brokers are too old."""
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


def offsets_now(
    consumer: KafkaConsumer,
    partitions: Collection[TopicPartition],
    spec: OffsetSpec,
    timeout_ms: float,
    read_uncommitted: bool = False,
) -> dict[TopicPartition, int]:
    """Offsets by one question to each leader (ListOffsets), without those that do not tell.

    kafka-python's own asks again at once, for as long as it may, until every leader has answered,
    and by metadata that it does not renew: one deleted partition keeps it from telling any. It has
    no isolation level for a single question either.
    """
    fetcher, manager = consumer._fetcher, consumer._manager
    if read_uncommitted:
        fetcher = copy(fetcher)  # what is fetched keeps its isolation level
        fetcher._isolation_level = IsolationLevel.READ_UNCOMMITTED

    async def ask() -> dict[TopicPartition, int]:
        by_leader = fetcher._group_list_offset_requests(dict.fromkeys(partitions, spec))
        timer = Timer(timeout_ms)
        asked = [
            manager.call_soon(fetcher._send_list_offsets_request, leader, wanted)
            for leader, wanted in by_leader.items()
        ]
        found: dict[TopicPartition, int] = {}
        for answer in asked:
            try:
                offsets, _ = await manager.wait_for(answer, timer.timeout_ms)
            except kafka_errors.KafkaError as error:
                if not error.retriable:
                    raise
                log.info("%s offsets not told: %r", spec.name.lower(), error)
            else:
                found.update((partition, told.offset) for partition, told in offsets.items())
        if len(found) < len(partitions):
            manager.cluster.request_update()
        return found

    told: dict[TopicPartition, int] = manager.run(ask)
    return told
