"""A transaction that its coordinator knows nothing of, as brokers before KIP-890 let it arise.

A late Produce arrives after the abort's marker (KAFKA-14053), and opens the transaction again.
"""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest

from pyspark_kafka_rebalance.fetch.connections import ClusterConnections
from pyspark_kafka_rebalance.produce.encoder.batch_builder import BatchBuilder
from pyspark_kafka_rebalance.produce.encoder.batch_header import HEADER_SIZE, Stamp, stamped_header
from pyspark_kafka_rebalance.produce.encoder.settings import EncoderSettings
from pyspark_kafka_rebalance.testing import LocalKafka
from pyspark_kafka_rebalance.transactions import command

#: What a broker needs that would otherwise ask the coordinator about each new transaction.
UNVERIFIED = {"transaction.partition.verification.enable": "false"}

_COORDINATOR_LOAD_IN_PROGRESS = 14


def hang(kafka: LocalKafka, topic: str) -> int:
    """Write a transactional record into partition 0 that no coordinator has; its producer id."""
    connections = ClusterConnections({"bootstrap_servers": kafka.bootstrap_servers}, 2**20)
    try:
        connections.bootstrap(30)
        producer_id, epoch = _producer_id(connections)
        builder = BatchBuilder(topic, 0, EncoderSettings())
        builder.append(None, b"late", None, int(time.time() * 1000))
        data = builder.close().data
        records = stamped_header(data, Stamp(producer_id, epoch, 0, transactional=True))
        topics = ProduceRequest.TopicProduceData
        of_partition = topics.PartitionProduceData(index=0, records=records + data[HEADER_SIZE:])
        request = ProduceRequest(
            transactional_id="late",
            acks=-1,
            timeout_ms=10_000,
            topic_data=[topics(name=topic, partition_data=[of_partition])],
            min_version=3,
            max_version=9,
        )
        (response,) = connections.send(request).wait().responses[0].partition_responses
        assert response.error_code == 0, response
        return producer_id
    finally:
        connections.close()


def _producer_id(connections: ClusterConnections) -> tuple[int, int]:
    """From a broker that may still have to get its first ids."""
    request = InitProducerIdRequest(
        transactional_id=None, transaction_timeout_ms=60_000, min_version=0, max_version=4
    )
    for _ in range(100):
        answer = connections.send(request).wait()
        if answer.error_code != _COORDINATOR_LOAD_IN_PROGRESS:
            break
        time.sleep(0.1)
    assert answer.error_code == 0
    return answer.producer_id, answer.producer_epoch


def assert_it_is_ended(kafka: LocalKafka, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The command names it, and ends it with a marker; the log's end is stable again."""
    where = ("--bootstrap-servers", kafka.bootstrap_servers, "--json")
    kafka.create_topic(topic, 1)
    kafka.produce(topic, [b"before"])
    producer_id = hang(kafka, topic)
    kafka.produce(topic, [b"behind", b"behind"])

    def held() -> dict[str, Any]:
        assert command.main(["describe", "--topic", topic, *where]) == command.DONE
        (partition,) = json.loads(capsys.readouterr().out)["partitions"]
        return dict(partition)

    before = held()
    (hanging,) = before["open"]
    assert (before["last_stable_offset"], before["held_back"]) == (1, 3)
    assert (hanging["producer_id"], hanging["start"]) == (producer_id, 1)
    assert (hanging["hanging"], hanging["transaction"]) == (True, None)
    assert command.main(["list", *where]) == command.DONE
    assert json.loads(capsys.readouterr().out)["transactions"] == []

    of_log = ("--topic", topic, "--partition", "0", "--start-offset", "1")
    assert command.main(["abort", *of_log, "--yes", *where]) == command.DONE
    assert json.loads(capsys.readouterr().out)["aborted"] == {
        "topic": topic,
        "partition": 0,
        "producer_id": producer_id,
        "epoch": hanging["epoch"],
        "last_stable_offset": 5,
    }
    after = held()
    assert (after["held_back"], after["open"]) == (0, [])
