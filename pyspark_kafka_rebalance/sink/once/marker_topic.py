"""The topic of the markers: how it is created, checked and read.

It is compacted, and a query's marker is in the partition of its key. All queries with this sink on
a cluster share it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer
from kafka import errors as kafka_errors
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.structs import TopicPartition

from ...errors import AuthorizationError, KafkaRebalanceError, OptionError
from ...produce.encoder.partitioner import partition_of_key
from ...transport.secured_clients import admin_client, net_client
from .marker import Marker, MarkerFormatError, parse_marker

log = logging.getLogger(__name__)

#: Queries that share a partition may wait for each other's transactions: see `read_marker`.
_PARTITIONS = 16
_SETTINGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 * 1024 * 1024),
    "min.cleanable.dirty.ratio": "0.1",
}

_PATIENCE_S = 60.0
_ASK_AGAIN_S = 0.05


def ensure_marker_topic(client_config: Mapping[str, Any], topic: str) -> str | None:
    """Create the topic if it is not there, and check it; return the id of its cluster.

    Raises
    ------
    OptionError
        Its cleanup policy would delete markers.
    AuthorizationError
        A permission is missing.
    kafka.errors.KafkaError
        The brokers refuse a request.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        admin = admin_client(client_config)
        try:
            _ensure(admin, topic)
            found: str | None = admin.describe_cluster()["cluster_id"]
            return found
        except kafka_errors.TopicAuthorizationFailedError as error:
            raise AuthorizationError(
                "an exactly-once sink needs CREATE, DESCRIBE, READ, WRITE and DESCRIBE_CONFIGS on "
                f"the topic {topic!r}, where it notes what is written: {error!r}"
            ) from error
        except kafka_errors.KafkaError as error:
            if not error.retriable or time.monotonic() > deadline:
                raise
            log.info("topic %s: not ready yet, trying again: %r", topic, error)
        finally:
            admin.close()
        time.sleep(_ASK_AGAIN_S)


def _ensure(admin: KafkaAdminClient, topic: str) -> None:
    (found,) = admin.describe_topics([topic])
    error = kafka_errors.for_code(found["error_code"])
    if error is kafka_errors.UnknownTopicOrPartitionError:
        settings = {"num_partitions": _PARTITIONS, "replication_factor": -1, "configs": _SETTINGS}
        try:
            admin.create_topics({topic: settings})
        except kafka_errors.TopicAlreadyExistsError:
            log.info("topic %s: another query has created it", topic)
        raise kafka_errors.LeaderNotAvailableError(topic)  # soon; it is checked then
    if error is not kafka_errors.NoError:
        raise error(topic)
    if any(partition["leader_id"] < 0 for partition in found["partitions"]):
        raise kafka_errors.LeaderNotAvailableError(topic)
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    answer = admin.describe_configs([resource], config_filter="all")
    policy = answer["topic"].get(topic, {}).get("cleanup.policy", {}).get("value")
    if policy is None:  # a broker that does not know a new topic yet returns none
        raise kafka_errors.UnknownTopicOrPartitionError(topic)
    if policy != "compact":
        raise OptionError("sinkTopic", topic, f"a topic with cleanup.policy=compact, not {policy}")


def read_marker(client_config: Mapping[str, Any], topic: str, key: str) -> Marker | None:
    """Return a query's last committed marker; None if there never was one.

    Call it when nobody can write markers of this key any more but the caller, who has none open.
    Transactions of other queries may be open in the same partition, and one of ours may lie behind
    them: so it waits until readers may read what is there now. Those transactions are short, and
    one of a dead query ends by its timeout.

    Raises
    ------
    KafkaRebalanceError
        They do not end within a minute; or the marker is a newer release's.
    kafka.errors.KafkaError
        The brokers refuse a request.
    """
    shared = {n: v for n, v in client_config.items() if n in KafkaConsumer.DEFAULT_CONFIG}
    consumer = KafkaConsumer(
        **shared,
        kafka_client=net_client,
        isolation_level="read_committed",
        enable_auto_commit=False,
        allow_auto_create_topics=False,
    )
    unfenced = KafkaConsumer(**shared, kafka_client=net_client, allow_auto_create_topics=False)
    try:
        partitions = consumer.partitions_for_topic(topic)
        if not partitions:
            raise kafka_errors.UnknownTopicOrPartitionError(topic)
        where = TopicPartition(topic, partition_of_key(key.encode(), len(partitions)))
        end = unfenced.end_offsets([where])[where]
        consumer.assign([where])
        consumer.seek_to_beginning(where)
        value = _last_value(consumer, where, end, key.encode())
    finally:
        consumer.close()
        unfenced.close()
    if value is None:
        return None
    try:
        return parse_marker(value)
    except MarkerFormatError as error:
        raise KafkaRebalanceError(f"the marker of {key} in topic {topic}: {error}") from error


def _last_value(consumer: Any, where: TopicPartition, end: int, key: bytes) -> bytes | None:
    value: bytes | None = None
    began = time.monotonic()
    while (at := consumer.position(where)) < end:
        for records in consumer.poll(timeout_ms=200).values():
            for record in records:
                if record.key == key:
                    value = record.value
        if time.monotonic() - began > _PATIENCE_S and consumer.position(where) == at:
            raise KafkaRebalanceError(
                f"{where.topic}, partition {where.partition}, could not be read from offset {at} "
                f"to {end} within {_PATIENCE_S:g} s: a transaction is open there, which "
                "`python -m pyspark_kafka_rebalance.transactions list` shows"
            )
    return value
