"""Tens of millions of records in a minute: one prepared batch, sent again and again."""

from __future__ import annotations

import time

from kafka import KafkaConsumer
from kafka.errors import for_code
from kafka.protocol.producer import ProduceRequest
from kafka.record.memory_records import MemoryRecordsBuilder
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.testing import KafkaCluster

#: The records of one batch, which is as large as a busy producer's.
_BATCH_RECORDS = 1_000
_TIMEOUT_MS = 60_000


def write_prepared(
    cluster: KafkaCluster, topic: str, partitions: int, per_partition: int, value_bytes: int
) -> None:
    """Write ``per_partition`` records to each of these partitions, which one broker leads."""
    client = KafkaConsumer(bootstrap_servers=cluster.bootstrap_servers)
    try:
        manager = client._manager
        # This returns when each partition has a leader.
        client.end_offsets([TopicPartition(topic, number) for number in range(partitions)])
        (broker,) = manager.cluster.brokers()

        async def send(request: ProduceRequest) -> None:
            answer = await manager.send(
                request, node_id=broker.node_id, request_timeout_ms=_TIMEOUT_MS
            )
            for topic_answer in answer.responses:
                for found in topic_answer.partition_responses:
                    if found.error_code:
                        raise for_code(found.error_code)(f"{topic}-{found.index}")

        for written in range(0, per_partition, _BATCH_RECORDS):
            number = min(_BATCH_RECORDS, per_partition - written)
            manager.run(send, _request(topic, partitions, _batch(number, value_bytes)))
    finally:
        client.close()


def _request(topic: str, partitions: int, batch: bytes) -> ProduceRequest:
    of_topic = ProduceRequest.TopicProduceData
    found = [
        of_topic.PartitionProduceData(index=number, records=batch) for number in range(partitions)
    ]
    return ProduceRequest(
        acks=1,
        timeout_ms=_TIMEOUT_MS,
        topic_data=[of_topic(name=topic, partition_data=found)],
        max_version=12,  # later versions identify topics by id
    )


_batches: dict[tuple[int, int], bytes] = {}


def _batch(number: int, value_bytes: int) -> bytes:
    known = _batches.get((number, value_bytes))
    if known is None:
        builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=2**30)
        now_ms = int(time.time() * 1000)
        for at in range(number):
            builder.append(now_ms, None, b"%0*d" % (value_bytes, at))
        builder.close()
        known = _batches[number, value_bytes] = bytes(builder.buffer())
    return known
