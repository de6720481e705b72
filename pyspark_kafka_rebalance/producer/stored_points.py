"""StoredPoints: read a group's restart points; set and remove them while it does not run.

They are set in a transaction like a member's: the records, and an offset of the group that only a
group without members accepts. So the brokers themselves refuse it while the group is active, and a
member that joins in the meantime waits for the transaction to end before it reads
(``take_overs.py``). Brokers before Kafka 3.3 accept such an offset from no group, or from any.
There the group is described once the offset is accepted: a member that joins after that waits.

A former member may have left a transaction open. If the group has already accepted its offsets, it
could still be committed, and its records would become visible behind the new restart points. So it
is aborted first.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from kafka import KafkaConsumer
from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from ..consumer.group_description import GroupDescription, describe_group
from ..consumer.kafka_python.questions import inferred_version
from ..errors import (
    KafkaRebalanceError,
    OptionError,
    TransactionAbortedError,
    TransactionInDoubtError,
)
from ..produce.producer import GroupMetadata, Offset
from ..produce.transaction_errors import Errors
from ..transport.secured_clients import admin_client, net_client
from .members.other_transactions import OtherTransactions
from .options import of_the_producer, transactional_id_of
from .restart_points import MAX_BYTES, OVERHEAD_BYTES, encoded, key_of, topic_of
from .writer import Writer

log = logging.getLogger(__name__)

_TRANSACTION_TIMEOUT_MS = 30_000
_PATIENCE_S = 60.0
_ABORT_S = 10.0
_COORDINATOR_S = 20.0
_ASK_AGAIN_S = 0.2

#: A name that no member can have, so that a group with members does not know it. A group without
#: members accepts its offsets, from this version of Kafka on.
_NOBODY = "/offsets-tool"
_ACCEPTS_OF_NOBODY = (3, 3)

#: Without a member id, any group accepts the offset, also one with members.
_ANYBODY = ""


class _UnknownMemberError(Exception):
    """The group does not know ``_NOBODY``."""


class GroupIsActiveError(KafkaRebalanceError):
    """The group has members, and its restart points are theirs to move."""


class UnknownGroupError(KafkaRebalanceError):
    """There is no topic with the group's restart points."""


class StoredPoint(NamedTuple):
    """A restart point as stored in the topic; ``value`` is None if it was removed."""

    value: str | None
    offset: int
    timestamp_ms: int


class StoredPoints:
    """Reads and writes the restart points of one group.

    Parameters
    ----------
    client_config : mapping
        The settings that kafka-python's clients share.
    group_id : str
        The group.
    restart_topic : str, optional
        Its topic, if not the default.
    """

    def __init__(
        self, client_config: Mapping[str, Any], group_id: str, restart_topic: str | None = None
    ) -> None:
        self._client_config = dict(client_config)
        self._group_id = group_id
        self.topic = restart_topic or topic_of(group_id)

    def describe(self) -> GroupDescription:
        """Describe the group and its members."""
        admin = admin_client(self._client_config)
        deadline = time.monotonic() + _COORDINATOR_S
        try:
            while True:
                try:
                    return describe_group(admin, self._group_id)
                except kafka_errors.KafkaError as error:
                    # The coordinator is moving, or a new cluster has none yet.
                    if not error.retriable or time.monotonic() > deadline:
                        raise
                    time.sleep(_ASK_AGAIN_S)
        finally:
            admin.close()

    def read(self) -> dict[int, StoredPoint | None]:
        """Return every source partition's committed restart point; None if there never was one.

        Raises
        ------
        UnknownGroupError
            There is no such topic.
        """
        consumer = KafkaConsumer(
            **{
                name: value
                for name, value in self._client_config.items()
                if name in KafkaConsumer.DEFAULT_CONFIG
            },
            kafka_client=net_client,
            isolation_level="read_committed",
            enable_auto_commit=False,
            allow_auto_create_topics=False,
            max_partition_fetch_bytes=2 * (MAX_BYTES + OVERHEAD_BYTES),
        )
        try:
            numbers = consumer.partitions_for_topic(self.topic)
            if not numbers:
                raise UnknownGroupError(
                    f"no topic {self.topic!r}: there is no producer group {self._group_id!r}, or "
                    "its restart points are in a topic of another name (--restart-topic)"
                )
            partitions = [TopicPartition(self.topic, p) for p in sorted(numbers)]
            ends = consumer.end_offsets(partitions)
            consumer.assign(partitions)
            consumer.seek_to_beginning(*partitions)
            found: dict[int, StoredPoint | None] = dict.fromkeys(sorted(numbers))
            deadline = time.monotonic() + _PATIENCE_S
            while any(consumer.position(p) < ends[p] for p in partitions):
                if time.monotonic() > deadline:
                    raise kafka_errors.KafkaTimeoutError(f"{self.topic} was not read to its end")
                for partition, records in consumer.poll(timeout_ms=200).items():
                    for record in records:
                        if record.key == key_of(self._group_id, partition.partition):
                            value = None if record.value is None else record.value.decode()
                            point = StoredPoint(value, record.offset, record.timestamp)
                            found[partition.partition] = point
            return found
        finally:
            consumer.close()

    def write(self, points: Mapping[int, str | None]) -> dict[int, StoredPoint | None]:
        """Set these, all or none of them; None removes one. Returns what was there before.

        Raises
        ------
        GroupIsActiveError
            The group has members.
        KafkaRebalanceError
            The brokers refuse it, or a former member's open transaction cannot be aborted.
        OptionError
            The group does not have a source partition; or a restart point is too large.
        UnknownGroupError
            As ``read``.
        """
        before = self._before_writing(points)
        values = {p: None if point is None else encoded(point) for p, point in points.items()}
        try:
            self._commit(values, before, _NOBODY, lambda: None)
        except _UnknownMemberError as error:
            if self._broker_version() >= _ACCEPTS_OF_NOBODY:
                raise self._active("they joined just now") from error
            self._commit(values, before, _ANYBODY, self._refuse_if_active)
        return {p: before[p] for p in points}

    def _before_writing(self, points: Collection[int]) -> dict[int, StoredPoint | None]:
        """End former members' transactions; return what is stored, as ``_before`` does."""
        others = OtherTransactions(self._client_config)
        try:
            # List before describing the group: if it then has no members, all are former ones'.
            left_open = others.open_of(self._group_id)
            before = self._before(points)
            for transactional_id in sorted(left_open):
                self._abort(others, transactional_id, points)
            if not others.can_list():
                self._fence_last_owners(others, points)
        finally:
            others.close()
        return before

    def _fence_last_owners(self, others: OtherTransactions, points: Collection[int]) -> None:
        """Fence the producers that the group's offsets name, with or without a transaction."""
        admin = admin_client(self._client_config)
        try:
            asked = [TopicPartition(self.topic, p) for p in points]
            told = admin.list_group_offsets({self._group_id: asked})[self._group_id]
        finally:
            admin.close()
        for transactional_id in sorted({found.metadata for found in told.values()} - {"", None}):
            if not others.fence(transactional_id, _ABORT_S):
                raise KafkaRebalanceError(f"nothing was changed: {_left_open(transactional_id)}")

    def _commit(
        self,
        values: Mapping[int, bytes | None],
        before: Mapping[int, StoredPoint | None],
        member_id: str,
        before_end: Callable[[], None],
    ) -> None:
        """Write them in a transaction in the name of this member.

        ``before_end`` is called once the group has accepted the offset. It may raise
        GroupIsActiveError. A member that joins from then on waits for the transaction.
        """
        transactional_id = transactional_id_of(self._group_id, _NOBODY)
        nobody = GroupMetadata(self._group_id, -1, member_id, is_nobody=True)
        config = {
            **of_the_producer(self._client_config),
            "transactional_id": transactional_id,
            "transaction_timeout_ms": _TRANSACTION_TIMEOUT_MS,
            "max_request_size": MAX_BYTES + OVERHEAD_BYTES,
        }
        offsets = {
            # A member searches from there: the record of the previous restart point.
            TopicPartition(self.topic, p): Offset(
                0 if (point := before[p]) is None else point.offset, transactional_id
            )
            for p in values
        }
        writer = Writer(config, lambda: nobody)
        try:
            writer.connect()
            transaction = writer.begin()
            for p, value in values.items():
                transaction.send(self.topic, value, key_of(self._group_id, p), None, p)
            writer.commit(offsets, before_end)
        except TransactionAbortedError as error:
            if Errors.UNKNOWN_MEMBER_ID.name in error.reason:
                raise _UnknownMemberError from error
            raise KafkaRebalanceError(f"nothing was changed: {error.reason}") from error
        except TransactionInDoubtError as error:
            raise KafkaRebalanceError(
                f"the restart points may or may not have been changed; list them: {error}"
            ) from error
        finally:
            writer.close(time.monotonic() + _ABORT_S)  # aborts what is open

    def _refuse_if_active(self) -> None:
        if members := self.describe().members:
            raise self._active(f"{len(members)} of them joined just now")

    def _broker_version(self) -> tuple[int, ...]:
        admin = admin_client(self._client_config)
        try:
            return inferred_version(admin)
        finally:
            admin.close()

    def _before(self, points: Collection[int]) -> dict[int, StoredPoint | None]:
        """Return the present points; raise for unknown source partitions or an active group."""
        before = self.read()
        if strangers := sorted(set(points) - before.keys()):
            raise OptionError(
                "source partition",
                ", ".join(map(str, strangers)),
                f"0 to {max(before)}, the partitions of topic {self.topic!r}",
            )
        if members := self.describe().members:
            raise self._active(f"{len(members)} of them")
        return before

    def _abort(
        self, others: OtherTransactions, transactional_id: str, points: Collection[int]
    ) -> None:
        mine = {TopicPartition(self.topic, p) for p in points}
        deadline = time.monotonic() + _COORDINATOR_S
        while mine & others.touched_by(transactional_id):
            if others.fence(transactional_id, _ABORT_S):
                log.warning(
                    "the open transaction of %s, which is out of the group, is aborted",
                    transactional_id,
                )
                return
            if time.monotonic() > deadline:
                raise KafkaRebalanceError(f"nothing was changed: {_left_open(transactional_id)}")
            time.sleep(_ASK_AGAIN_S)

    def _active(self, which: str) -> GroupIsActiveError:
        return GroupIsActiveError(
            f"producer group {self._group_id!r} has members ({which}); stop all instances first"
        )


def _left_open(transactional_id: str) -> str:
    return (
        f"{transactional_id!r}, which is out of the group, has an open transaction that cannot be "
        "aborted; it ends at its timeout"
    )
