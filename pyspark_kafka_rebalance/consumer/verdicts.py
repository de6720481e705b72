"""Verdicts: what a broker's error means for the membership, pure.

``verdict_of`` classifies an error, whatever was asked. What follows from it depends on the request:
each has a function ``after_…`` here, which the group protocols and the commits execute through
``MemberParts.draw``.
"""

from __future__ import annotations

import enum

from kafka import errors as kafka_errors

from ..errors import (
    AuthenticationError,
    AuthorizationError,
    KafkaRebalanceError,
    MembershipError,
)

#: INVALID_REGULAR_EXPRESSION, an error that kafka-python has no class for.
_INVALID_REGULAR_EXPRESSION = 128


class Verdict(enum.Enum):
    """What the coordinator's answer means for a request of this member."""

    ACCEPTED = "accepted"
    #: Another generation is being formed: valid again once this member has joined it.
    AFTER_JOIN = "after the join"
    #: The coordinator is another broker, or could not be reached.
    COORDINATOR_GONE = "coordinator gone"
    #: Try again soon.
    BUSY = "busy"
    #: This member is out of the group: everything it owned is lost.
    FENCED = "fenced"
    #: Another process uses this ``group.instance.id``: lost, and not to be joined again.
    INSTANCE_FENCED = "instance fenced"
    #: The topic or partition does not exist any more.
    NO_SUCH_PARTITION = "no such partition"
    #: Refused for good (authorization, limits).
    REFUSED = "refused"


_VERDICTS: dict[type[Exception], Verdict] = {
    kafka_errors.NoError: Verdict.ACCEPTED,
    kafka_errors.RebalanceInProgressError: Verdict.AFTER_JOIN,
    kafka_errors.IllegalGenerationError: Verdict.AFTER_JOIN,
    kafka_errors.NotCoordinatorError: Verdict.COORDINATOR_GONE,
    kafka_errors.CoordinatorNotAvailableError: Verdict.COORDINATOR_GONE,
    kafka_errors.RequestTimedOutError: Verdict.BUSY,
    kafka_errors.CoordinatorLoadInProgressError: Verdict.BUSY,
    kafka_errors.ThrottlingQuotaExceededError: Verdict.BUSY,
    kafka_errors.UnknownMemberIdError: Verdict.FENCED,
    kafka_errors.FencedMemberEpochError: Verdict.FENCED,
    kafka_errors.GroupIdNotFoundError: Verdict.FENCED,
    # The epoch was bumped; the answer that says so is under way.
    kafka_errors.StaleMemberEpochError: Verdict.AFTER_JOIN,
    kafka_errors.FencedInstanceIdError: Verdict.INSTANCE_FENCED,
    kafka_errors.UnknownTopicOrPartitionError: Verdict.NO_SUCH_PARTITION,
    kafka_errors.UnknownTopicIdError: Verdict.NO_SUCH_PARTITION,
}

#: The request may or may not have arrived; the coordinator is looked up anew.
_UNREACHABLE = (
    kafka_errors.KafkaConnectionError,
    kafka_errors.KafkaTimeoutError,
    kafka_errors.UnknownBrokerIdError,
)


def verdict_of(error: type[Exception]) -> Verdict:
    """Classify a broker's error, or a failure to reach the broker."""
    known = _VERDICTS.get(error)
    if known is not None:
        return known
    if issubclass(error, _UNREACHABLE):
        return Verdict.COORDINATOR_GONE
    if issubclass(error, kafka_errors.RetriableError):
        return Verdict.BUSY
    return Verdict.REFUSED


class Consequence(enum.Flag):
    """What a member does about an answer; nothing but trying again, if none of these."""

    NONE = 0
    #: The coordinator took the request for a sign of life: the lease is renewed.
    ALIVE = enum.auto()
    #: The group is in this member's generation: what it owns is its own.
    STANDS = enum.auto()
    #: Look up the coordinator anew.
    FIND_COORDINATOR = enum.auto()
    #: A join is due.
    JOIN = enum.auto()
    #: Speak for the generation that was synced last: the coordinator does not know a later one.
    FALL_BACK = enum.auto()
    #: Join without waiting for the backoff.
    AT_ONCE = enum.auto()
    #: The coordinator does not know the member id: join without one.
    UNNAMED = enum.auto()
    #: Everything owned is lost.
    LOST = enum.auto()
    #: The membership ends for good, and the next poll says why.
    FAILED = enum.auto()
    #: Match the subscription's pattern here: the broker cannot read it.
    MATCH_HERE = enum.auto()
    #: Another member has the instance id, maybe a dead one: wait for the end of its session.
    WAIT_FOR_INSTANCE = enum.auto()
    #: The broker does not offer the protocol.
    UNSUPPORTED = enum.auto()


#: What holds for every request.
_COMMON = {
    Verdict.COORDINATOR_GONE: Consequence.FIND_COORDINATOR,
    Verdict.FENCED: Consequence.LOST,
    Verdict.INSTANCE_FENCED: Consequence.LOST | Consequence.FAILED,
}


def after_heartbeat(error: type[Exception], *, answered: bool) -> Consequence:
    """A heartbeat of the classic protocol.

    Parameters
    ----------
    error : type
        The broker's, ``NoError`` included, or what the connection raised.
    answered : bool
        Whether it is the broker's.
    """
    verdict = verdict_of(error)
    if verdict is Verdict.BUSY and not answered:
        return Consequence.FIND_COORDINATOR  # nor will it answer a JoinGroup that it holds
    if verdict is Verdict.ACCEPTED:
        return Consequence.ALIVE | Consequence.STANDS
    if verdict is Verdict.AFTER_JOIN:
        if error is kafka_errors.RebalanceInProgressError:
            return Consequence.ALIVE | Consequence.JOIN
        return Consequence.FALL_BACK | Consequence.JOIN
    if verdict is Verdict.REFUSED:
        return Consequence.LOST | Consequence.FAILED
    return _COMMON.get(verdict, Consequence.NONE)


def after_join(error: type[Exception]) -> Consequence:
    """A JoinGroup or SyncGroup that was not accepted. Whatever the error, a join is due."""
    verdict = verdict_of(error)
    found = Consequence.JOIN | _COMMON.get(verdict, Consequence.NONE)
    if error is kafka_errors.IllegalGenerationError:
        return found | Consequence.FALL_BACK | Consequence.AT_ONCE
    if verdict is Verdict.FENCED:
        return found | Consequence.UNNAMED | Consequence.AT_ONCE
    if verdict is Verdict.AFTER_JOIN:
        return found | Consequence.AT_ONCE
    if verdict is Verdict.REFUSED:
        return found | Consequence.LOST | Consequence.FAILED
    return found


def after_commit(verdict: Verdict) -> Consequence:
    """An OffsetCommit in the background that was not accepted, in either protocol.

    What is refused for good says nothing about what is owned. Of the verdict, not the error,
    because the loop of commits has ways of its own out of some errors.
    """
    if verdict is Verdict.REFUSED:
        return Consequence.FAILED
    return _COMMON.get(verdict, Consequence.NONE)


def after_consumer_heartbeat(error: type[Exception], *, joined: bool) -> Consequence:
    """A ConsumerGroupHeartbeat (KIP-848) that was not accepted.

    Parameters
    ----------
    error : type
        The broker's, or what the connection raised.
    joined : bool
        Whether the member is in the group. One that is fenced as it joins would be fenced again.
    """
    verdict = verdict_of(error)
    if getattr(error, "errno", None) == _INVALID_REGULAR_EXPRESSION:
        return Consequence.MATCH_HERE
    if error is kafka_errors.UnreleasedInstanceIdError:
        return Consequence.WAIT_FOR_INSTANCE
    if error is kafka_errors.UnsupportedVersionError:
        return Consequence.LOST | Consequence.UNSUPPORTED
    if verdict is Verdict.REFUSED or (verdict is Verdict.FENCED and not joined):
        return Consequence.LOST | Consequence.FAILED
    return _COMMON.get(verdict, Consequence.NONE)


def gone_already(error: type[Exception]) -> bool:
    """Whether the coordinator answers a LeaveGroup so whose member it has not got any more."""
    return verdict_of(error) in (Verdict.FENCED, Verdict.INSTANCE_FENCED)


def explained(error: Exception, group_id: str, topics: frozenset[str]) -> KafkaRebalanceError:
    """What ended a membership for good, as the application is told."""
    group = f"group {group_id!r}"
    told: KafkaRebalanceError
    if isinstance(error, AuthenticationError):
        told = AuthenticationError(f"{group}: {error}")
    elif isinstance(error, kafka_errors.GroupAuthorizationFailedError):
        told = AuthorizationError(f"{group}: membership takes READ on the group: {error!r}")
    elif isinstance(error, kafka_errors.TopicAuthorizationFailedError):
        told = AuthorizationError(
            f"{group}: membership takes READ on each of its topics, here "
            f"{', '.join(sorted(topics))}: {error!r}"
        )
    else:
        told = MembershipError(f"{group}: the coordinator refuses this member for good: {error!r}")
    told.__cause__ = error
    return told
