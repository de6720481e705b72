"""What the coordinator's answers mean, and that requests carry the generation in hand."""

from __future__ import annotations

import asyncio
import inspect
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import errors as kafka_errors
from kafka.structs import OffsetAndMetadata, TopicPartition

from pyspark_kafka_rebalance.consumer.lane import Lane, Member, Verdict, verdict_of

#: What a coordinator answers to Heartbeat, OffsetCommit and LeaveGroup, and what the connection
#: raises instead of an answer.
EXPECTED = {
    "NoError": Verdict.ACCEPTED,
    # The generation in hand is not the group's any more, but the member is still known.
    "RebalanceInProgressError": Verdict.AFTER_JOIN,
    "IllegalGenerationError": Verdict.AFTER_JOIN,
    # To be looked up anew.
    "NotCoordinatorError": Verdict.COORDINATOR_GONE,
    "CoordinatorNotAvailableError": Verdict.COORDINATOR_GONE,
    "KafkaConnectionError": Verdict.COORDINATOR_GONE,
    "KafkaTimeoutError": Verdict.COORDINATOR_GONE,
    "UnknownBrokerIdError": Verdict.COORDINATOR_GONE,
    # The same request again, soon.
    "CoordinatorLoadInProgressError": Verdict.BUSY,
    "RequestTimedOutError": Verdict.BUSY,
    "ThrottlingQuotaExceededError": Verdict.BUSY,
    "UnstableOffsetCommitError": Verdict.BUSY,
    "NetworkExceptionError": Verdict.BUSY,
    "NodeNotReadyError": Verdict.BUSY,
    "TooManyInFlightRequests": Verdict.BUSY,
    "CorrelationIdError": Verdict.BUSY,
    "Cancelled": Verdict.BUSY,
    # Out of the group.
    "UnknownMemberIdError": Verdict.FENCED,
    "FencedMemberEpochError": Verdict.FENCED,
    "GroupIdNotFoundError": Verdict.FENCED,
    "StaleMemberEpochError": Verdict.AFTER_JOIN,
    "FencedInstanceIdError": Verdict.INSTANCE_FENCED,
    # Retriable for the library, which waits for the topic; for us the partition is gone.
    "UnknownTopicOrPartitionError": Verdict.NO_SUCH_PARTITION,
    # Trying again changes nothing.
    "GroupAuthorizationFailedError": Verdict.REFUSED,
    "TopicAuthorizationFailedError": Verdict.REFUSED,
    "ClusterAuthorizationFailedError": Verdict.REFUSED,
    "SaslAuthenticationFailedError": Verdict.REFUSED,
    "InvalidGroupIdError": Verdict.REFUSED,
    "OffsetMetadataTooLargeError": Verdict.REFUSED,
    "InvalidCommitOffsetSizeError": Verdict.REFUSED,
    "GroupMaxSizeReachedError": Verdict.REFUSED,
    "InconsistentGroupProtocolError": Verdict.REFUSED,
    "InvalidRequestError": Verdict.REFUSED,
    "UnsupportedVersionError": Verdict.REFUSED,
    "UnknownError": Verdict.REFUSED,
    "InvalidReceiveError": Verdict.REFUSED,
}


@pytest.mark.parametrize(("name", "verdict"), EXPECTED.items())
def test_verdict(name: str, verdict: Verdict) -> None:
    assert verdict_of(getattr(kafka_errors, name)) is verdict


def test_whatever_else_the_library_knows_is_retried_only_if_it_says_so() -> None:
    others = [
        error
        for name, error in vars(kafka_errors).items()
        if inspect.isclass(error)
        and issubclass(error, kafka_errors.KafkaError)
        and name == error.__name__
        and name not in EXPECTED
    ]
    assert len(others) > 50
    for error in others:
        assert verdict_of(error) is (Verdict.BUSY if error.retriable else Verdict.REFUSED), error


def test_an_error_code_that_the_library_does_not_know_is_refused() -> None:
    assert verdict_of(kafka_errors.for_code(32_000)) is Verdict.REFUSED


class Connection:
    """Keeps what it is sent and gives the answers it was told."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.sent: list[Any] = []

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
