"""The meaning of a coordinator's answer for the membership, and whether that is lost. Pure.

``verdict_of`` classifies an error, whatever the request was. The consequences depend on the
request: each has a function ``after_…`` here, whose result the group protocols and the commits
apply through ``MemberParts.draw``.
"""

from __future__ import annotations

import enum

from kafka import errors as kafka_errors

from ...errors import AuthenticationError, AuthorizationError, KafkaRebalanceError, MembershipError

#: INVALID_REGULAR_EXPRESSION, an error that kafka-python has no class for.
_INVALID_REGULAR_EXPRESSION = 128


class Verdict(enum.Enum):
    """The meaning of the coordinator's answer for a request of this member."""

    ACCEPTED = "accepted"
    #: A new generation is forming: the request is valid again once this member has joined it.
    AFTER_JOIN = "after the join"
    #: The coordinator is on another broker, or could not be reached.
    COORDINATOR_GONE = "coordinator gone"
    #: Try again soon.
    BUSY = "busy"
    #: This member is out of the group: everything it owned is lost.
    FENCED = "fenced"
    #: Another process uses this ``group.instance.id``: all is lost, and rejoining is forbidden.
    INSTANCE_FENCED = "instance fenced"
    #: The topic or partition no longer exists.
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
    # The epoch was bumped; the answer that says so is on its way.
    kafka_errors.StaleMemberEpochError: Verdict.AFTER_JOIN,
    kafka_errors.FencedInstanceIdError: Verdict.INSTANCE_FENCED,
    kafka_errors.UnknownTopicOrPartitionError: Verdict.NO_SUCH_PARTITION,
    kafka_errors.UnknownTopicIdError: Verdict.NO_SUCH_PARTITION,
}

#: The request may or may not have arrived; find the coordinator again.
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
    """A member's reactions to an answer; with none of these it only tries again."""

    NONE = 0
    #: The coordinator took the request as a sign of life: the lease is renewed.
    ALIVE = enum.auto()
    #: The group is in this member's generation: its ownership is valid.
    STANDS = enum.auto()
    #: Find the coordinator again.
    FIND_COORDINATOR = enum.auto()
    #: A join is due.
    JOIN = enum.auto()
    #: Go back to the last synced generation: the coordinator does not know a later one.
    FALL_BACK = enum.auto()
    #: Join without waiting for the backoff.
    AT_ONCE = enum.auto()
    #: The coordinator does not know the member id: join without one.
    UNNAMED = enum.auto()
    #: Everything owned is lost.
    LOST = enum.auto()
    #: The membership ends for good, and the next poll raises the reason.
    FAILED = enum.auto()
    #: Match the subscription's pattern in this client: the broker cannot parse it.
    MATCH_HERE = enum.auto()
    #: Another member, possibly dead, holds the instance id: wait until its session ends.
    WAIT_FOR_INSTANCE = enum.auto()
    #: The broker does not offer the protocol.
    UNSUPPORTED = enum.auto()


#: The consequences that hold for every request.
_COMMON = {
    Verdict.COORDINATOR_GONE: Consequence.FIND_COORDINATOR,
    Verdict.FENCED: Consequence.LOST,
    Verdict.INSTANCE_FENCED: Consequence.LOST | Consequence.FAILED,
}


def after_heartbeat(error: type[Exception], *, answered: bool) -> Consequence:
    """The consequences of a heartbeat of the classic protocol.

    The error is the broker's, ``NoError`` included, if it has ``answered``; else the connection's.
    """
    verdict = verdict_of(error)
    if verdict is Verdict.BUSY and not answered:
        return Consequence.FIND_COORDINATOR  # it will not answer a held JoinGroup, either
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
    """The consequences of a JoinGroup or SyncGroup that was not accepted; a join is always due."""
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
    """The consequences of a background OffsetCommit that was not accepted, in either protocol.

    A final refusal does not affect the ownership. This takes the verdict, not the error, because
    the commit loop recovers from some errors by itself.
    """
    if verdict is Verdict.REFUSED:
        return Consequence.FAILED
    return _COMMON.get(verdict, Consequence.NONE)


def after_consumer_heartbeat(error: type[Exception], *, joined: bool) -> Consequence:
    """The consequences of a ConsumerGroupHeartbeat (KIP-848) that was not accepted.

    ``joined``: whether the member is in the group. A member that is fenced as it joins would be
    fenced again.
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
    """Whether this answer to a LeaveGroup means that the coordinator no longer has the member."""
    return verdict_of(error) in (Verdict.FENCED, Verdict.INSTANCE_FENCED)


def explained(error: Exception, group_id: str, topics: frozenset[str]) -> KafkaRebalanceError:
    """The application's error for the end of a membership for good."""
    group = f"group {group_id!r}"
    told: KafkaRebalanceError
    if isinstance(error, AuthenticationError):
        told = AuthenticationError(f"{group}: {error}")
    elif isinstance(error, kafka_errors.GroupAuthorizationFailedError):
        told = AuthorizationError(f"{group}: membership needs READ on the group: {error!r}")
    elif isinstance(error, kafka_errors.TopicAuthorizationFailedError):
        told = AuthorizationError(
            f"{group}: membership needs READ on each of its topics, here "
            f"{', '.join(sorted(topics))}: {error!r}"
        )
    else:
        told = MembershipError(f"{group}: the coordinator refuses this member for good: {error!r}")
    told.__cause__ = error
    return told
