"""What type checkers say to users of the clients' settings. `make lint` checks it; nothing runs it.

Where an error is expected, `warn_unused_ignores` reports that there is none.
"""

from __future__ import annotations

from typing import Any

from kafka.structs import TopicPartition

from pyspark_kafka_rebalance import (
    AsyncDeferredRevokeConsumer,
    AsyncProducerGroup,
    ConsumerSettings,
    DeferredRevokeConsumer,
    Producer,
    ProducerGroup,
    ProducerGroupSettings,
    ProducerSettings,
    TimestampOrderedRecords,
)


def what_is_right(read_from_a_file: dict[str, Any]) -> None:
    DeferredRevokeConsumer("t", group_id="g", session_timeout_ms=6_000, parallel_rebalance="live")
    DeferredRevokeConsumer(group_id="g", bootstrap_servers=["a:9092"], ssl_cafile=None)
    DeferredRevokeConsumer("t", value_deserializer=bytes.decode, enable_auto_commit=False)
    DeferredRevokeConsumer("t", **read_from_a_file)
    AsyncDeferredRevokeConsumer("t", **read_from_a_file)
    ProducerGroup("g", 3, linger_ms=5, commit_records=100, heartbeat_interval_ms=500)
    ProducerGroup("g", 3, **read_from_a_file)
    AsyncProducerGroup("g", source_partition_count=3, **read_from_a_file)
    settings = ConsumerSettings(group_id="g", group_protocol="auto")
    DeferredRevokeConsumer("t", **settings)
    with_more: ConsumerSettings = {**settings, "client_rack": "r1"}
    AsyncDeferredRevokeConsumer("t", **with_more)
    shared: ProducerGroupSettings = {"bootstrap_servers": "a:9092,b:9092", "restart_topic": "r"}
    ProducerGroup("g", 3, **shared)
    AsyncProducerGroup("g", 3, **shared)
    for_writing: ProducerSettings = {"bootstrap_servers": "a:9092", "compression_type": "lz4"}
    Producer("t", **for_writing)
    Producer(buffer_memory=1_000_000, acks="all")


def a_wrong_name() -> None:
    DeferredRevokeConsumer("t", group_id="g", sesion=1)  # type: ignore[call-arg]
    DeferredRevokeConsumer("t", group_id="g", linger_ms=5)  # type: ignore[call-arg]
    AsyncDeferredRevokeConsumer("t", group_id="g", sesion=1)  # type: ignore[call-arg]
    ProducerGroup("g", 3, sesion=1)  # type: ignore[call-arg]
    AsyncProducerGroup("g", 3, sesion=1)  # type: ignore[call-arg]
    Producer("t", partitioner=hash)  # type: ignore[call-arg]
    ConsumerSettings(sesion=1)  # type: ignore[typeddict-unknown-key]


def a_wrong_type() -> None:
    DeferredRevokeConsumer("t", session_timeout_ms="6s")  # type: ignore[arg-type]
    DeferredRevokeConsumer("t", group_protocol="consumers")  # type: ignore[arg-type]
    AsyncDeferredRevokeConsumer("t", catch_up_threshold="5m")  # type: ignore[arg-type]
    ProducerGroup("g", 3, commit_interval_ms="1s")  # type: ignore[arg-type]
    AsyncProducerGroup("g", "three")  # type: ignore[arg-type]
    ProducerGroupSettings(compression_type="zip")  # type: ignore[typeddict-item]


def what_polls_return(partition: TopicPartition) -> None:
    with DeferredRevokeConsumer("t", group_id="g") as consumer:
        result = consumer.poll_with_rebalance(timeout="1s")  # type: ignore[call-arg]
        print(result.records[partition].offset)  # type: ignore[attr-defined]
        result.to_be_revoked.add(partition)  # type: ignore[attr-defined]
        ordered = TimestampOrderedRecords(consumer).poll()
        print(ordered.records.num_rows)  # type: ignore[attr-defined]


def what_the_clients_refuse() -> None:
    DeferredRevokeConsumer("t", enable_auto_commit=True)  # type: ignore[arg-type]
    DeferredRevokeConsumer("t", partition_assignment_strategy=())  # type: ignore[call-arg]
    Producer(acks=1)  # type: ignore[arg-type]
    ProducerGroup("g", 3, acks=1)  # type: ignore[call-arg]
    ProducerGroup("g", 3, transactional_id="t")  # type: ignore[call-arg]
