"""The producer's requests on the wire: as kafka-python's own messages have them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from kafka.protocol.consumer import FetchResponse, OffsetFetchResponse
from kafka.protocol.metadata import FindCoordinatorResponse
from kafka.protocol.producer import (
    AddPartitionsToTxnResponse,
    EndTxnResponse,
    ProduceRequest,
    ProduceResponse,
    TxnOffsetCommitResponse,
)
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.produce import wire
from pyspark_kafka_rebalance.produce.encoder.batch_builder import BatchBuilder
from pyspark_kafka_rebalance.produce.encoder.batch_header import Stamp, stamp
from pyspark_kafka_rebalance.produce.encoder.encoded_batch import EncodedBatch
from pyspark_kafka_rebalance.produce.encoder.settings import EncoderSettings
from pyspark_kafka_rebalance.produce.requests import (
    AddOffsetsToTxn,
    AddPartitionsToTxn,
    Answer,
    EndTxn,
    Fetch,
    FindCoordinator,
    GroupMetadata,
    InitProducerId,
    Offset,
    OffsetFetch,
    Produce,
    Request,
    TxnOffsetCommit,
)

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def batch(n: int) -> EncodedBatch:
    builder = BatchBuilder("a", 0, EncoderSettings())
    builder.append(None, b"value %d" % n * 50, None, 1_700_000_000_000)
    return builder.close()


def produce(version: int, partition: TopicPartition, name: str | None = "id") -> Produce:
    return Produce(1, version, 0, None, 1, name, 7, 3, partition, 1, 5, 1)


@pytest.mark.parametrize("version", range(3, 13))
@pytest.mark.parametrize("name", [None, "id", "n\u00e4me" * 50])
def test_produce_is_encoded_as_kafka_python_does(version: int, name: str | None) -> None:
    requests = [produce(version, p, name) for p in (A0, B0, A1)]
    batches = [batch(n) for n in range(3)]
    ours = wire.ProduceMessage(requests, [each.data for each in batches], 30_000)
    assert ours.header is None, "it is not sent yet"
    ours.with_header(correlation_id=9, client_id="client")
    for each in batches:
        stamp(each.data, Stamp(7, 3, 5, transactional=name is not None))
    topics = ProduceRequest.TopicProduceData

    def data(n: int, partition: TopicPartition) -> Any:
        return topics.PartitionProduceData(
            index=partition.partition, records=bytes(batches[n].data)
        )

    theirs = ProduceRequest(
        transactional_id=name,
        acks=-1,
        timeout_ms=30_000,
        topic_data=[
            topics(name="a", partition_data=[data(0, A0), data(2, A1)]),
            topics(name="b", partition_data=[data(1, B0)]),
        ],
        version=version,
    )
    theirs.with_header(correlation_id=9, client_id="client")
    assert ours.encode(framed=True, header=True) == theirs.encode(framed=True, header=True)
    assert ours.header.get_response_class() is theirs.header.get_response_class()


IDENTITY = ("id", 7, 3)
GROUP = GroupMetadata("g", 4, "member", "instance")
REQUESTS: list[Request] = [
    FindCoordinator(1, 5, 0, None, None, "id", 1),
    FindCoordinator(1, 3, 0, None, None, "id", 1),
    InitProducerId(1, 5, 0, 1, None, "id", 60_000, 7, 3),
    InitProducerId(1, 3, 0, 1, None, None, 60_000, -1, -1),
    AddPartitionsToTxn(1, 3, 0, 1, 1, *IDENTITY, (A0, B0, A1)),
    AddPartitionsToTxn(1, 1, 0, 1, 1, *IDENTITY, (A0, B0, A1)),
    AddOffsetsToTxn(1, 4, 0, 1, 1, *IDENTITY, "g"),
    EndTxn(1, 5, 0, 1, 1, *IDENTITY, committed=True),
    TxnOffsetCommit(1, 5, 0, 1, 1, *IDENTITY, GROUP, {A0: Offset(1, "m", 2), B0: Offset(2)}),
    OffsetFetch(1, 8, 0, 1, 1, "g", (A0, A1, B0)),
    OffsetFetch(1, 7, 0, 1, 1, "g", (A0, A1, B0)),
    Fetch(1, 12, 0, None, 1, A0, 55),
    Fetch(1, 4, 0, None, 1, A0, 55),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda r: f"{type(r).__name__}-{r.version}")
def test_a_message_says_what_the_request_does(request_: Request) -> None:
    message = wire.message(request_)
    assert (request_.API_KEY, request_.version) == (message.API_KEY, message.API_VERSION)
    decoded = type(message).decode(message.encode(), version=request_.version)
    for field in dataclasses.fields(request_):
        value = getattr(request_, field.name)
        if isinstance(value, (str, bool)) and field.name not in ("key",):
            found = getattr(decoded, field.name, None) or _v3(decoded, field.name)
            assert found in (value, _group(decoded)), field.name


def _v3(decoded: Any, name: str) -> Any:
    return getattr(decoded, f"v3_and_below_{name}", None) or _group(decoded)


def _group(decoded: Any) -> Any:
    groups = getattr(decoded, "groups", None)
    return groups[0].group_id if groups else None


def test_partitions_are_grouped_by_topic() -> None:
    added = wire.message(REQUESTS[4])
    assert [(t.name, list(t.partitions)) for t in added.v3_and_below_topics] == [
        ("a", [0, 1]),
        ("b", [0]),
    ]
    committed = wire.message(REQUESTS[8])
    (topic, _) = committed.topics
    (partition,) = topic.partitions
    assert (partition.committed_offset, partition.committed_metadata) == (1, "m")
    assert partition.committed_leader_epoch == 2
    assert (committed.generation_id, committed.member_id) == (4, "member")
    assert committed.group_instance_id == "instance"


# Answers.


def decoded(response: Any, version: int) -> Any:
    """As it comes from the wire."""
    return type(response).decode(response.encode(version=version), version=version)


def test_coordinators() -> None:
    some = FindCoordinatorResponse.Coordinator
    found = some(key="id", node_id=3, host="h", port=1, error_code=0, error_message=None)
    response = decoded(FindCoordinatorResponse(coordinators=[found]), 5)
    request = FindCoordinator(1, 5, 0, None, None, "id", 1)
    assert wire.answer(request, response) == Answer(node=3)
    assert wire.coordinator_of(request, response).host == "h"


def test_the_next_epoch_is_in_the_answer_of_the_newer_end() -> None:
    response = EndTxnResponse(error_code=0, producer_id=9, producer_epoch=4)
    newer, older = (EndTxn(1, v, 0, 1, 1, *IDENTITY, committed=True) for v in (5, 4))
    assert wire.answer(newer, decoded(response, 5)) == Answer(producer_id=9, producer_epoch=4)
    assert wire.answer(older, decoded(response, 4)) == Answer()


def test_errors_by_partition() -> None:
    topic = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
    each = topic.AddPartitionsToTxnPartitionResult
    added = AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            topic(name="a", results_by_partition=[each(partition_index=1, partition_error_code=51)])
        ]
    )
    assert wire.answer(REQUESTS[4], decoded(added, 3)).errors == {A1: 51}
    topic = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
    part = topic.TxnOffsetCommitResponsePartition(partition_index=0, error_code=22)
    committed = TxnOffsetCommitResponse(topics=[topic(name="a", partitions=[part])])
    assert wire.answer(REQUESTS[8], decoded(committed, 5)).errors == {A0: 22}


def test_offsets_that_are_stable() -> None:
    group = OffsetFetchResponse.OffsetFetchResponseGroup
    topic = group.OffsetFetchResponseTopics
    parts = [
        topic.OffsetFetchResponsePartitions(
            partition_index=n, committed_offset=offset, metadata="m", error_code=0
        )
        for n, offset in enumerate((5, -1))
    ]
    response = OffsetFetchResponse(
        groups=[group(group_id="g", topics=[topic(name="a", partitions=parts)], error_code=0)]
    )
    answer = wire.answer(REQUESTS[9], decoded(response, 8))
    assert answer.offsets == {A0: Offset(5, "m")}
    assert answer.errors == {A0: 0, A1: 0}


def test_what_was_aborted() -> None:
    topic = FetchResponse.FetchableTopicResponse
    aborted = topic.PartitionData.AbortedTransaction(producer_id=7, first_offset=50)
    part = topic.PartitionData(
        partition_index=0, last_stable_offset=60, aborted_transactions=[aborted], records=b""
    )
    response = FetchResponse(responses=[topic(topic="a", partitions=[part])])
    answer = wire.answer(REQUESTS[11], decoded(response, 12))
    assert (answer.last_stable_offset, answer.aborted) == (60, ((7, 50),))
    assert wire.answer(REQUESTS[11], decoded(FetchResponse(error_code=6), 12)).error == 6


def test_a_leader_that_has_moved_names_the_next() -> None:
    topic = ProduceResponse.TopicProduceResponse
    leader = topic.PartitionProduceResponse.LeaderIdAndEpoch(leader_id=2, leader_epoch=8)
    moved = topic.PartitionProduceResponse(
        index=0, error_code=6, base_offset=-1, current_leader=leader
    )
    done = topic.PartitionProduceResponse(index=1, error_code=0, base_offset=40)
    response = decoded(
        ProduceResponse(responses=[topic(name="a", partition_responses=[moved, done])]), 12
    )
    requests = [produce(12, A0), produce(12, A1), produce(12, B0)]
    answers = wire.produce_answers(requests, response)
    assert [(r.partition, a.error, a.base_offset) for r, a in answers] == [
        (A0, 6, -1),
        (A1, 0, 40),
    ]
    assert wire.new_leaders(response) == [(A0, 2, 8)]
