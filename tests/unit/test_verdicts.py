"""What a broker's errors mean: in general, and after each request of a member."""

from __future__ import annotations

import inspect

import pytest
from kafka import errors as kafka_errors

from pyspark_kafka_rebalance.consumer.protocol.coordinator_answers import (
    Consequence,
    Verdict,
    after_commit,
    after_consumer_heartbeat,
    after_heartbeat,
    after_join,
    explained,
    gone_already,
    verdict_of,
)
from pyspark_kafka_rebalance.errors import AuthenticationError, AuthorizationError, MembershipError

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
    "UnknownTopicIdError": Verdict.NO_SUCH_PARTITION,
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


ALIVE, STANDS, JOIN = Consequence.ALIVE, Consequence.STANDS, Consequence.JOIN
FALL_BACK, AT_ONCE, UNNAMED = Consequence.FALL_BACK, Consequence.AT_ONCE, Consequence.UNNAMED
LOST, FAILED, NONE = Consequence.LOST, Consequence.FAILED, Consequence.NONE
FIND = Consequence.FIND_COORDINATOR

#: After a heartbeat, after a join (which is due in any case), after a commit in the background,
#: after a heartbeat of the consumer protocol; of a member that has joined.
CONSEQUENCES = {
    "RebalanceInProgressError": (ALIVE | JOIN, AT_ONCE, NONE, NONE),
    "IllegalGenerationError": (FALL_BACK | JOIN, FALL_BACK | AT_ONCE, NONE, NONE),
    "StaleMemberEpochError": (FALL_BACK | JOIN, AT_ONCE, NONE, NONE),
    "NotCoordinatorError": (FIND, FIND, FIND, FIND),
    "CoordinatorNotAvailableError": (FIND, FIND, FIND, FIND),
    "KafkaConnectionError": (FIND, FIND, FIND, FIND),
    "CoordinatorLoadInProgressError": (NONE, NONE, NONE, NONE),
    "UnknownMemberIdError": (LOST, LOST | UNNAMED | AT_ONCE, LOST, LOST),
    "FencedMemberEpochError": (LOST, LOST | UNNAMED | AT_ONCE, LOST, LOST),
    "FencedInstanceIdError": (LOST | FAILED,) * 4,
    "UnknownTopicOrPartitionError": (NONE, NONE, NONE, NONE),
    "GroupAuthorizationFailedError": (LOST | FAILED, LOST | FAILED, FAILED, LOST | FAILED),
    "GroupMaxSizeReachedError": (LOST | FAILED, LOST | FAILED, FAILED, LOST | FAILED),
}


@pytest.mark.parametrize(("name", "expected"), CONSEQUENCES.items())
def test_consequence(name: str, expected: tuple[Consequence, ...]) -> None:
    error = getattr(kafka_errors, name)
    heartbeat, join, commit, consumer_heartbeat = expected
    assert after_heartbeat(error, answered=True) is heartbeat
    assert after_join(error) is join | JOIN
    assert after_commit(verdict_of(error)) is commit
    assert after_consumer_heartbeat(error, joined=True) is consumer_heartbeat


def test_an_accepted_heartbeat_is_a_sign_of_life_in_the_group_s_generation() -> None:
    assert after_heartbeat(kafka_errors.NoError, answered=True) is ALIVE | STANDS


def test_a_coordinator_that_does_not_answer_a_heartbeat_is_looked_up_anew() -> None:
    """It was asked again, and a join that it held waited for the rebalance timeout."""
    timeout = kafka_errors.RequestTimedOutError
    assert after_heartbeat(timeout, answered=False) is FIND
    assert after_heartbeat(timeout, answered=True) is NONE
    assert after_heartbeat(kafka_errors.UnknownMemberIdError, answered=False) is LOST


def test_fenced_as_it_joins_a_member_of_the_consumer_protocol_fails() -> None:
    error = kafka_errors.UnknownMemberIdError
    assert after_consumer_heartbeat(error, joined=False) is LOST | FAILED


@pytest.mark.parametrize("joined", [False, True])
def test_what_only_the_consumer_protocol_answers(joined: bool) -> None:
    for error, expected in [
        (kafka_errors.for_code(128), Consequence.MATCH_HERE),
        (kafka_errors.UnreleasedInstanceIdError, Consequence.WAIT_FOR_INSTANCE),
        (kafka_errors.UnsupportedVersionError, LOST | Consequence.UNSUPPORTED),
    ]:
        assert after_consumer_heartbeat(error, joined=joined) is expected


def test_no_error_costs_an_assignment_unless_the_coordinator_knows_the_member_no_more() -> None:
    """Of all that may be tried again, nothing is lost and nothing fails."""
    for error in vars(kafka_errors).values():
        if not (inspect.isclass(error) and issubclass(error, kafka_errors.KafkaError)):
            continue
        if verdict_of(error) in (Verdict.FENCED, Verdict.INSTANCE_FENCED, Verdict.REFUSED):
            continue
        for found in (
            after_heartbeat(error, answered=False),
            after_join(error),
            after_commit(verdict_of(error)),
            after_consumer_heartbeat(error, joined=True),
        ):
            assert not found & (LOST | FAILED), error


def test_who_leaves_and_is_gone_already_has_left() -> None:
    assert gone_already(kafka_errors.UnknownMemberIdError)
    assert gone_already(kafka_errors.FencedInstanceIdError)
    assert not gone_already(kafka_errors.NotCoordinatorError)


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (AuthenticationError("no"), AuthenticationError, "group 'g': no"),
        (kafka_errors.GroupAuthorizationFailedError("g"), AuthorizationError, "READ on the group"),
        (kafka_errors.TopicAuthorizationFailedError("a"), AuthorizationError, "here a, b"),
        (kafka_errors.GroupMaxSizeReachedError("g"), MembershipError, "refuses this member"),
    ],
)
def test_what_the_application_is_told(error: Exception, kind: type, says: str) -> None:
    told = explained(error, "g", frozenset(["b", "a"]))
    assert type(told) is kind
    assert says in str(told)
    assert told.__cause__ is error
