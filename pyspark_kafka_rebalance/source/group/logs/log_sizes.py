"""The sizes of the brokers' logs, which ``maxBytesPerTrigger`` plans by."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from kafka import KafkaAdminClient
from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from ....errors import KafkaRebalanceError, names_of
from ....transport.secured_clients import admin_client

log = logging.getLogger(__name__)


def log_sizes(
    client_config: Mapping[str, Any], leaders: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return the bytes of each partition's log, as compressed, without tiered storage.

    Protocol: DescribeLogDirs (KIP-113), sent only to leaders (node ids), so that no other broker
    can keep a size from being known. This leaves out partitions whose leader does not answer now,
    or has no log of them because it is no longer their leader.

    Raises
    ------
    KafkaRebalanceError
        A leader reports no sizes at all.
    kafka.errors.KafkaError
        No broker can be reached, or one refuses for good.
    """
    led_by: dict[int, list[TopicPartition]] = {}
    for partition, leader in sorted(leaders.items()):
        led_by.setdefault(leader, []).append(partition)
    sizes: dict[TopicPartition, int] = {}
    admin = admin_client(client_config)
    try:
        for leader, partitions in led_by.items():
            try:
                log_dirs = _log_dirs(admin, leader, partitions)
            except kafka_errors.KafkaError as error:
                # The admin client's metadata may no longer have a leader that ours still have.
                if not (error.retriable or isinstance(error, kafka_errors.UnknownBrokerIdError)):
                    raise
                log.warning(
                    "broker %s did not return the log sizes: %r (%s)",
                    *(leader, error, names_of(partitions)),
                )
                continue
            sizes.update(_sizes_in(log_dirs))
    finally:
        admin.close()
    return {p: size for p, size in sizes.items() if p in leaders}


def _log_dirs(
    admin: KafkaAdminClient, broker: int, partitions: Collection[TopicPartition]
) -> list[dict[str, Any]]:
    topics: dict[str, list[int]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic, []).append(partition.partition)
    (described,) = admin.describe_log_dirs(topics, brokers=[broker])
    log_dirs: list[dict[str, Any]] = described["log_dirs"]
    if not log_dirs:  # every broker has one; kafka-python drops CLUSTER_AUTHORIZATION_FAILED
        raise KafkaRebalanceError(
            f"maxBytesPerTrigger: broker {broker} did not return the log sizes of "
            f"{names_of(partitions)}; the request (DescribeLogDirs) needs DESCRIBE on the cluster"
        )
    return log_dirs


def _sizes_in(log_dirs: Iterable[Mapping[str, Any]]) -> dict[TopicPartition, int]:
    sizes: dict[TopicPartition, int] = {}
    for topic in (topic for log_dir in log_dirs for topic in log_dir["topics"]):
        for one in topic["partitions"]:
            if not one["is_future_key"]:  # a copy on its way to another disk
                partition = TopicPartition(topic["name"], one["partition_index"])
                sizes[partition] = max(one["partition_size"], sizes.get(partition, 0))
    return sizes
