"""That requests carry the generation in hand, and what is made of their answers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from kafka import errors as kafka_errors
from kafka.structs import OffsetAndMetadata, TopicPartition

from pyspark_kafka_rebalance.consumer.member_record import Member
from pyspark_kafka_rebalance.consumer.protocol.lane import Lane


class Connection:
    """Keeps what it is sent and gives the answers it was told."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.sent: list[Any] = []

        self.loop = self

    def coordinator(self) -> int:
        return 7

    async def send(self, request: Any, node: int, timeout_ms: float) -> Any:
        assert node == 7
        self.sent.append(request)
        return self.answers.pop(0)


def test_a_commit_is_fenced_by_the_generation_and_answered_for_each_partition() -> None:
    answer = SimpleNamespace(
        topics=[
            SimpleNamespace(
                name="a",
                partitions=[
                    SimpleNamespace(partition_index=0, error_code=0),
                    SimpleNamespace(partition_index=1, error_code=22),
                ],
            ),
            SimpleNamespace(
                name="b", partitions=[SimpleNamespace(partition_index=0, error_code=3)]
            ),
        ]
    )
    connection = Connection(answer)
    lane = Lane(connection, "g", "instance-1", 1_000, 8)  # type: ignore[arg-type]
    offsets = {
        TopicPartition("a", 0): OffsetAndMetadata(10, "", -1),
        TopicPartition("b", 0): OffsetAndMetadata(30, "mine", 3),
        TopicPartition("a", 1): OffsetAndMetadata(20, "", 0),
    }
    errors = asyncio.run(lane.commit(Member(41, "member-1"), offsets))
    assert errors == {
        TopicPartition("a", 0): kafka_errors.NoError,
        TopicPartition("a", 1): kafka_errors.IllegalGenerationError,
        TopicPartition("b", 0): kafka_errors.UnknownTopicOrPartitionError,
    }
    (request,) = connection.sent
    assert request.group_id == "g"
    assert request.generation_id_or_member_epoch == 41
    assert request.member_id == "member-1"
    assert request.group_instance_id == "instance-1"
    sent = {
        TopicPartition(topic.name, partition.partition_index): OffsetAndMetadata(
            partition.committed_offset,
            partition.committed_metadata,
            partition.committed_leader_epoch,
        )
        for topic in request.topics
        for partition in topic.partitions
    }
    assert sent == offsets


def test_a_partition_that_the_answer_leaves_out_is_not_taken_for_committed() -> None:
    named = SimpleNamespace(
        name="a", partitions=[SimpleNamespace(partition_index=n, error_code=0) for n in (0, 9)]
    )
    connection = Connection(SimpleNamespace(topics=[named]))
    lane = Lane(connection, "g", None, 1_000, 8)  # type: ignore[arg-type]
    first, second = TopicPartition("a", 0), TopicPartition("a", 1)
    offsets = {first: OffsetAndMetadata(10, "", -1), second: OffsetAndMetadata(20, "", -1)}
    errors = asyncio.run(lane.commit(Member(41, "member-1"), offsets))
    assert errors == {first: kafka_errors.NoError, second: kafka_errors.NetworkExceptionError}


def test_heartbeat_and_leave_say_what_the_broker_said() -> None:
    connection = Connection(SimpleNamespace(error_code=27), SimpleNamespace(error_code=25))
    lane = Lane(connection, "g", None, 1_000, 8)  # type: ignore[arg-type]
    member = Member(41, "member-1")
    assert asyncio.run(lane.heartbeat(member)) is kafka_errors.RebalanceInProgressError
    assert asyncio.run(lane.leave(member, "x" * 300)) is kafka_errors.UnknownMemberIdError
    heartbeat, leave = connection.sent
    assert (heartbeat.generation_id, heartbeat.member_id) == (41, "member-1")
    (identity,) = leave.members
    assert identity.member_id == "member-1"
    assert len(identity.reason) == 255
