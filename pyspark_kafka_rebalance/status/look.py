"""Requests the state of a consumer group from the brokers, as often as wanted.

It joins nothing, commits nothing, and reads one record of each partition. It needs DESCRIBE on the
group and its topics. The lag in seconds needs READ on the topics, and is unknown without it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kafka import KafkaAdminClient
from kafka import errors as kafka_errors
from kafka.admin import OffsetSpec
from kafka.protocol.consumer import IsolationLevel
from kafka.structs import TopicPartition

from ..consumer.group_description import GroupDescription, describe_group
from ..errors import AuthorizationError, KafkaRebalanceError
from ..transport.secured_clients import LoginRefusedError, admin_client
from .backlog import NO_TOPIC, Logs, Topic
from .first_records import FirstRecords
from .report import GroupReport, backlogs_of, partitions_of, report_of
from .revokes import Revokes, follow

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger(__name__)

_ASK_AGAIN_S = 0.1


class UnknownGroupError(KafkaRebalanceError):
    """There is no such group."""


class GroupLook:
    """Reports on one group; a context manager.

    ``bootstrap_servers`` is a list. With ``read_committed``, logs end before the first open
    transaction. The timeout is for reading offsets; timestamps get the same again.
    """

    def __init__(
        self,
        client_config: Mapping[str, Any],
        group_id: str,
        isolation_level: str = "read_uncommitted",
        timeout_s: float = 10.0,
    ) -> None:
        self._config = {**client_config, "request_timeout_ms": max(1, int(timeout_s * 1000))}
        self._group_id = group_id
        self._isolation = IsolationLevel.build_from(isolation_level)
        self._timeout_s = timeout_s
        self._first_records = FirstRecords(self._config, isolation_level, timeout_s)
        self._admin: KafkaAdminClient | None = None
        self._revokes: Revokes | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._admin is not None:
            self._admin.close()
            self._admin = None

    def report(self) -> GroupReport:
        """Report on the group now.

        Raises
        ------
        UnknownGroupError
            The coordinator knows no such consumer group.
        AuthenticationError, AuthorizationError
            The brokers do not let us in, or a permission is missing.
        KafkaRebalanceError
            No broker answers in time, or one refuses.
        """
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                return self._look()
            except LoginRefusedError:
                raise
            except kafka_errors.AuthorizationError as error:
                raise AuthorizationError(
                    f"it needs DESCRIBE on group {self._group_id!r} and on its topics: {error}"
                ) from error
            except kafka_errors.KafkaError as error:
                if error.retriable and self._admin is not None and time.monotonic() < deadline:
                    # A leader or the coordinator is moving.
                    log.info("group %s: cannot read its state yet: %r", self._group_id, error)
                    time.sleep(_ASK_AGAIN_S)
                    continue
                servers = ",".join(self._config["bootstrap_servers"])
                raise KafkaRebalanceError(
                    f"no answer from {servers} within {self._timeout_s:g} s: {error}"
                    if error.retriable
                    else f"{servers} refuses: {error}"
                ) from error

    def _look(self) -> GroupReport:
        self._admin = self._admin or admin_client(self._config)
        group = self._describe(self._admin)
        committed = self._admin.list_group_offsets(self._group_id)[self._group_id]
        partitions = partitions_of(group, committed)
        logs = self._logs(self._admin, partitions)
        backlogs = backlogs_of(partitions, committed, logs)
        wanted = {
            p: (left.first, left.end)
            for p, left in backlogs.items()
            if left.first is not None and left.end is not None
        }
        timestamps = self._first_records.timestamps(wanted)
        self._revokes = follow(self._revokes, group, logs.at)
        return report_of(self._group_id, logs.at, group, backlogs, timestamps, self._revokes)

    def _describe(self, admin: KafkaAdminClient) -> GroupDescription:
        try:
            group = describe_group(admin, self._group_id)
        except ValueError as error:  # Kafka Connect's member data is not in the consumer format
            text = (
                f"group {self._group_id!r} is not a consumer group: its members' data have another "
                "format"
            )
            raise UnknownGroupError(text) from error
        if group.state == "Dead":
            raise UnknownGroupError(f"there is no consumer group {self._group_id!r}")
        return group

    def _logs(self, admin: KafkaAdminClient, partitions: Collection[TopicPartition]) -> Logs:
        topics = _topics(admin, {p.topic for p in partitions})
        led = [p for p in partitions if p.partition in topics[p.topic].led]
        starts = admin.list_partition_offsets(dict.fromkeys(led, OffsetSpec.EARLIEST))
        ends = admin.list_partition_offsets(dict.fromkeys(led, OffsetSpec.LATEST), self._isolation)
        return Logs(
            time.time(),
            topics,
            {p: told.offset for p, told in starts.items()},
            {p: told.offset for p, told in ends.items()},
        )


def _topics(admin: KafkaAdminClient, names: Collection[str]) -> dict[str, Topic]:
    if not names:  # an empty request would return all topics
        return {}
    return {topic["name"]: _topic(topic) for topic in admin.describe_topics(sorted(names))}


def _topic(told: Mapping[str, Any]) -> Topic:
    error = kafka_errors.for_code(told["error_code"])
    if error is kafka_errors.UnknownTopicOrPartitionError:
        return Topic(problem=NO_TOPIC)
    if error is kafka_errors.TopicAuthorizationFailedError:
        return Topic(problem="not authorized")
    if error is not kafka_errors.NoError:
        return Topic(problem=error.__name__)
    topic_id = UUID(str(told["topic_id"])) if told.get("topic_id") else None
    return Topic(
        topic_id if topic_id is not None and topic_id.int else None,
        frozenset(p["partition_index"] for p in told["partitions"]),
        frozenset(p["partition_index"] for p in told["partitions"] if p["leader_id"] >= 0),
    )
