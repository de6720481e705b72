"""The requests of `requests` as messages of kafka-python, and its responses as answers. Pure.

kafka-python's producer uses older versions, but its message classes know the ones that we need.
Produce is encoded here: its records are the encoder's, with the header that names their sender, and
are copied once, into the frame that the socket sends.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, ClassVar

from kafka.protocol.admin import DescribeTransactionsRequest
from kafka.protocol.api_header import RequestHeader
from kafka.protocol.consumer import FetchRequest, OffsetFetchRequest
from kafka.protocol.metadata import FindCoordinatorRequest
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from kafka.structs import TopicPartition

from . import requests as ours
from .encoder.batch_header import HEADER_SIZE, Stamp, stamped_header
from .requests import Answer, Offset, Produce, Request

_ACKS_ALL = -1
_FIRST_FLEXIBLE_PRODUCE = 9
_FIRST_FIND_SEVERAL = 4
_FIRST_FETCH_GROUPS = 8
_ONGOING = "Ongoing"

_pack16 = struct.Struct(">h").pack
_pack32 = struct.Struct(">i").pack
_pack_header = struct.Struct(">hhi").pack
_pack_acks = struct.Struct(">hi").pack


# Requests.


def message(request: Request) -> Any:
    """The message of a request other than Produce, in the version that it names."""
    return _MESSAGES[type(request)](request)


def _by_topic(partitions: Iterable[TopicPartition]) -> list[tuple[str, list[TopicPartition]]]:
    return [(topic, list(each)) for topic, each in groupby(sorted(partitions), attrgetter("topic"))]


def _find_coordinator(request: ours.FindCoordinator) -> Any:
    if request.version < _FIRST_FIND_SEVERAL:
        return FindCoordinatorRequest(
            key=request.key, key_type=request.key_type, version=request.version
        )
    return FindCoordinatorRequest(
        coordinator_keys=[request.key], key_type=request.key_type, version=request.version
    )


def _init_producer_id(request: ours.InitProducerId) -> Any:
    return InitProducerIdRequest(
        transactional_id=request.transactional_id,
        transaction_timeout_ms=request.transaction_timeout_ms,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        version=request.version,
    )


def _describe(request: ours.DescribeTransactions) -> Any:
    return DescribeTransactionsRequest(
        transactional_ids=[request.transactional_id], version=request.version
    )


def _add_partitions(request: ours.AddPartitionsToTxn) -> Any:
    topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=request.transactional_id,
        v3_and_below_producer_id=request.producer_id,
        v3_and_below_producer_epoch=request.producer_epoch,
        v3_and_below_topics=[
            topic(name=name, partitions=[each.partition for each in partitions])
            for name, partitions in _by_topic(request.partitions)
        ],
        version=request.version,
    )


def _add_offsets(request: ours.AddOffsetsToTxn) -> Any:
    return AddOffsetsToTxnRequest(
        transactional_id=request.transactional_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        group_id=request.group_id,
        version=request.version,
    )


def _end_txn(request: ours.EndTxn) -> Any:
    return EndTxnRequest(
        transactional_id=request.transactional_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        committed=request.committed,
        version=request.version,
    )


def _txn_offset_commit(request: ours.TxnOffsetCommit) -> Any:
    topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    partition = topic.TxnOffsetCommitRequestPartition
    return TxnOffsetCommitRequest(
        transactional_id=request.transactional_id,
        group_id=request.group.group_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        generation_id=request.group.generation_id,
        member_id=request.group.member_id,
        group_instance_id=request.group.group_instance_id,
        topics=[
            topic(
                name=name,
                partitions=[
                    partition(
                        partition_index=each.partition,
                        committed_offset=request.offsets[each].offset,
                        committed_leader_epoch=request.offsets[each].leader_epoch,
                        committed_metadata=request.offsets[each].metadata,
                    )
                    for each in partitions
                ],
            )
            for name, partitions in _by_topic(request.offsets)
        ],
        version=request.version,
    )


def _offset_fetch(request: ours.OffsetFetch) -> Any:
    asked = [
        {"name": name, "partition_indexes": [each.partition for each in partitions]}
        for name, partitions in _by_topic(request.partitions)
    ]
    stable = {"require_stable": request.require_stable, "version": request.version}
    if request.version < _FIRST_FETCH_GROUPS:
        topic = OffsetFetchRequest.OffsetFetchRequestTopic
        topics = [topic(**each) for each in asked]
        return OffsetFetchRequest(group_id=request.group_id, topics=topics, **stable)
    group = OffsetFetchRequest.OffsetFetchRequestGroup
    topics = [group.OffsetFetchRequestTopics(**each) for each in asked]
    groups = [group(group_id=request.group_id, topics=topics)]
    return OffsetFetchRequest(groups=groups, **stable)


def _fetch(request: ours.Fetch) -> Any:
    topic = FetchRequest.FetchTopic
    partition = topic.FetchPartition(
        partition=request.partition.partition,
        fetch_offset=request.fetch_offset,
        partition_max_bytes=1,
    )
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1,
        isolation_level=request.isolation_level,
        topics=[topic(topic=request.partition.topic, partitions=[partition])],
        version=request.version,
    )


_MESSAGES: Mapping[type[Request], Callable[[Any], Any]] = {
    ours.FindCoordinator: _find_coordinator,
    ours.InitProducerId: _init_producer_id,
    ours.DescribeTransactions: _describe,
    ours.AddPartitionsToTxn: _add_partitions,
    ours.AddOffsetsToTxn: _add_offsets,
    ours.EndTxn: _end_txn,
    ours.TxnOffsetCommit: _txn_offset_commit,
    ours.OffsetFetch: _offset_fetch,
    ours.Fetch: _fetch,
}


class ProduceMessage:
    """Batches of records for one leader, as kafka-python's connections send a message.

    Parameters
    ----------
    requests : sequence of Produce
        Of one version and one transactional id; no two are for one partition.
    batches : sequence of memoryview
        The whole record batch of each.
    timeout_ms : int
        How long the leader may wait for its followers. Milliseconds.
    """

    API_KEY: ClassVar[int] = Produce.API_KEY

    def __init__(
        self, requests: Sequence[Produce], batches: Sequence[memoryview], timeout_ms: int
    ) -> None:
        self.API_VERSION = requests[0].version
        self._requests = requests
        self._batches = batches
        self._timeout_ms = timeout_ms
        self._header: Any = None

    def __repr__(self) -> str:
        partitions = ", ".join(
            f"{r.partition.topic}-{r.partition.partition}" for r in self._requests
        )
        return f"ProduceMessage(version={self.API_VERSION}, partitions=[{partitions}])"

    @property
    def header(self) -> Any:
        """None before it is sent."""
        return self._header

    def expect_response(self) -> bool:
        """Whether the broker answers."""
        return True

    def with_header(self, correlation_id: int, client_id: str) -> None:
        """Set the header; called when the message is about to be sent."""
        self._header = RequestHeader(
            request_api_key=self.API_KEY,
            request_api_version=self.API_VERSION,
            correlation_id=correlation_id,
            client_id=client_id,
        )

    def encode(self, *, framed: bool = True, header: bool = True) -> bytes:
        """The whole frame."""
        assert framed
        assert header
        pieces: list[bytes | memoryview] = [b"", self._encoded_header(), self._encoded_settings()]
        by_topic: dict[str, list[int]] = {}
        for n, request in enumerate(self._requests):
            by_topic.setdefault(request.partition.topic, []).append(n)
        flexible = self.API_VERSION >= _FIRST_FLEXIBLE_PRODUCE
        end = b"\0" if flexible else b""  # no tagged fields
        pieces.append(_count(len(by_topic), flexible))
        for topic, numbers in by_topic.items():
            pieces.append(_string(topic, flexible) + _count(len(numbers), flexible))
            for n in numbers:
                request, batch = self._requests[n], self._batches[n]
                index = _pack32(request.partition.partition)
                pieces.append(index + _count(len(batch), flexible))
                pieces.append(stamped_header(batch, _stamp_of(request)))
                pieces.append(batch[HEADER_SIZE:])
                pieces.append(end)
            pieces.append(end)
        pieces.append(end)
        pieces[0] = _pack32(sum(map(len, pieces)))
        return b"".join(pieces)

    def _encoded_header(self) -> bytes:
        named = self._header
        client = named.client_id.encode()
        tags = b"\0" if self.API_VERSION >= _FIRST_FLEXIBLE_PRODUCE else b""
        start = _pack_header(self.API_KEY, self.API_VERSION, named.correlation_id)
        return b"".join([start, _pack16(len(client)), client, tags])

    def _encoded_settings(self) -> bytes:
        name = self._requests[0].transactional_id
        flexible = self.API_VERSION >= _FIRST_FLEXIBLE_PRODUCE
        if name is not None:
            encoded = _string(name, flexible)
        else:
            encoded = b"\0" if flexible else _pack16(-1)
        return encoded + _pack_acks(_ACKS_ALL, self._timeout_ms)


def _stamp_of(request: Produce) -> Stamp:
    return Stamp(
        request.producer_id,
        request.producer_epoch,
        request.base_sequence,
        transactional=request.transactional_id is not None,
    )


def _count(count: int, flexible: bool) -> bytes:
    """The length of an array or of bytes."""
    return _unsigned(count + 1) if flexible else _pack32(count)


def _string(text: str, flexible: bool) -> bytes:
    encoded = text.encode()
    return (_unsigned(len(encoded) + 1) if flexible else _pack16(len(encoded))) + encoded


def _unsigned(number: int) -> bytes:
    """A varint without a sign."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


# Answers.


def answer(request: Request, response: Any) -> Answer:
    """What a broker answered to a request other than Produce."""
    return _ANSWERS[type(request)](request, response)


def produce_answers(requests: Sequence[Produce], response: Any) -> list[tuple[Produce, Answer]]:
    """What a leader answered to each batch of a message; a missing answer is left out."""
    found = {
        (topic.name, partition.index): Answer(
            error=partition.error_code,
            base_offset=partition.base_offset,
            detail=_detail(partition) if partition.error_code else "",
        )
        for topic in response.responses
        for partition in topic.partition_responses
    }
    return [(each, found[each.partition]) for each in requests if each.partition in found]


def _detail(refused: Any) -> str:
    """What a leader says about its refusal (KIP-467, from Produce v8 on)."""
    for record in refused.record_errors or ():
        if record.batch_index_error_message:
            said: str = record.batch_index_error_message
            return f"record {record.batch_index + 1} of the batch: {said}"
    return refused.error_message or ""


def new_leaders(response: Any) -> list[tuple[TopicPartition, int, int]]:
    """The leaders, with their epochs, that a refusal of Produce names (KIP-951)."""
    return [
        (
            TopicPartition(topic.name, partition.index),
            partition.current_leader.leader_id,
            partition.current_leader.leader_epoch,
        )
        for topic in response.responses
        for partition in topic.partition_responses
        if partition.current_leader is not None and partition.current_leader.leader_id >= 0
    ]


def coordinator_of(request: ours.FindCoordinator, response: Any) -> Any:
    """The part of a response with the error code, or the broker and its address."""
    if request.version < _FIRST_FIND_SEVERAL:
        return response
    (found,) = response.coordinators
    return found


def _coordinator(request: ours.FindCoordinator, response: Any) -> Answer:
    found = coordinator_of(request, response)
    return Answer(error=found.error_code, node=found.node_id)


def _identity(_: Request, response: Any) -> Answer:
    return Answer(
        error=response.error_code,
        producer_id=response.producer_id,
        producer_epoch=response.producer_epoch,
    )


def _described(_: Request, response: Any) -> Answer:
    (found,) = response.transaction_states
    return Answer(
        error=found.error_code,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        is_open=found.transaction_state == _ONGOING,
    )


def _partitions_added(_: Request, response: Any) -> Answer:
    return Answer(
        errors={
            TopicPartition(topic.name, each.partition_index): each.partition_error_code
            for topic in response.results_by_topic_v3_and_below
            for each in topic.results_by_partition
        }
    )


def _error_alone(_: Request, response: Any) -> Answer:
    return Answer(error=response.error_code)


def _ended(request: Request, response: Any) -> Answer:
    if request.version < ours.FIRST_END_WITH_EPOCH:
        return Answer(error=response.error_code)
    return _identity(request, response)


def _offsets_committed(_: Request, response: Any) -> Answer:
    return Answer(
        errors={
            TopicPartition(topic.name, each.partition_index): each.error_code
            for topic in response.topics
            for each in topic.partitions
        }
    )


def _offsets(request: ours.OffsetFetch, response: Any) -> Answer:
    group = response
    if request.version >= _FIRST_FETCH_GROUPS:
        (group,) = response.groups
    found = {
        TopicPartition(topic.name, each.partition_index): each
        for topic in group.topics
        for each in topic.partitions
    }
    return Answer(
        error=group.error_code,
        errors={p: each.error_code for p, each in found.items()},
        offsets={
            p: Offset(each.committed_offset, each.metadata or "", each.committed_leader_epoch)
            for p, each in found.items()
            if each.committed_offset >= 0
        },
    )


def _fetched(_: Request, response: Any) -> Answer:
    if response.error_code or not response.responses:
        return Answer(error=response.error_code or ours.UNKNOWN_SERVER_ERROR)
    (partition,) = response.responses[0].partitions
    return Answer(
        error=partition.error_code,
        last_stable_offset=partition.last_stable_offset,
        aborted=tuple(
            (each.producer_id, each.first_offset) for each in partition.aborted_transactions or ()
        ),
    )


_ANSWERS: Mapping[type[Request], Callable[[Any, Any], Answer]] = {
    ours.FindCoordinator: _coordinator,
    ours.InitProducerId: _identity,
    ours.DescribeTransactions: _described,
    ours.AddPartitionsToTxn: _partitions_added,
    ours.AddOffsetsToTxn: _error_alone,
    ours.EndTxn: _ended,
    ours.TxnOffsetCommit: _offsets_committed,
    ours.OffsetFetch: _offsets,
    ours.Fetch: _fetched,
}
