"""How large the brokers' logs are, which ``maxBytesPerTrigger`` plans by."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from kafka.structs import TopicPartition

from ..errors import KafkaRebalanceError, names_of
from ..secured_clients import admin_client


def log_sizes(
    client_config: Mapping[str, Any], partitions: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    """Bytes of each partition's log, compressed as it is, without what tiered storage has.

    Protocol: DescribeLogDirs (KIP-113). Of the replicas' logs the largest counts.

    Raises
    ------
    KafkaRebalanceError
        Some partition's size is not told.
    kafka.errors.KafkaError
        Some broker cannot be asked.
    """
    topics: dict[str, list[int]] = {}
    for partition in sorted(partitions):
        topics.setdefault(partition.topic, []).append(partition.partition)
    admin = admin_client(client_config)
    try:
        described = admin.describe_log_dirs(topics)
    finally:
        admin.close()
    sizes: dict[TopicPartition, int] = {}
    log_dirs = (log_dir for broker in described for log_dir in broker["log_dirs"])
    for topic in (topic for log_dir in log_dirs for topic in log_dir["topics"]):
        for log in topic["partitions"]:
            if not log["is_future_key"]:  # a copy on its way to another disk
                partition = TopicPartition(topic["name"], log["partition_index"])
                sizes[partition] = max(log["partition_size"], sizes.get(partition, 0))
    if untold := set(partitions) - sizes.keys():
        raise KafkaRebalanceError(
            f"maxBytesPerTrigger: no broker tells the size of {names_of(untold)}; to ask takes "
            "the permission to DESCRIBE the cluster (DescribeLogDirs)"
        )
    return sizes
