"""The options of a producer group, checked before any network access; pure."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

from ..consumer.configuration import CONSUMER_HEARTBEAT_INTERVAL_MS
from ..errors import OptionError
from ..produce.producer_settings import ProducerSettings
from ..settings.bootstrap_servers import without_empty_servers
from ..settings.names import NAMES, TOPIC_NAMES, is_name, is_topic_name
from .restart_points import topic_of

#: kafka-python's default, and Java's.
_TRANSACTION_TIMEOUT_MS = 60_000

#: How soon members learn that the source has grown.
_METADATA_MAX_AGE_MS = 5_000

_OURS = {
    "group_id": "the first argument",
    "transactional_id": "no value: each member has its own",
    "enable_idempotence": "no value: transactions need it",
    "acks": "no value: transactions need 'all'",
    "isolation_level": "no value: restart points are always read with read_committed",
    "enable_auto_commit": "no value: commit_transaction commits",
    "partition_assignment_strategy": "no value: every member uses cooperative-sticky",
    "max_poll_interval_ms": "no value: session_timeout_ms limits how long a producer may be silent",
}


#: Settings of kafka-python's producer that this one does without, and what to use instead.
_REPLACED = {
    "partitioner": "no value: a record with a key goes where Java's producer puts it, one without "
    "to the partition of the others until a batch is full; name another with send(partition=...)",
    "retries": "no value: records are sent again for delivery_timeout_ms",
}

#: Settings that only the group's member has.
_OF_THE_MEMBER = ("kafka_client", "metric_reporters", "selector")

#: At most this long passes before what a rebalance held up is sent again.
_RETRY_BACKOFF_MS = 10


@dataclass(frozen=True)
class ProducerOptions:
    """The options of one member.

    Attributes
    ----------
    producer, member, client : dict
        kafka-python's configurations: for ``produce.producer.Producer``, for the group's member,
        and the settings that all of its clients share.
    key_serializer, value_serializer : callable or kafka.serializer.Serializer, optional
        For the application's records.
    """

    group_id: str
    source_partition_count: int
    session_timeout_ms: int
    heartbeat_interval_ms: int
    topic: str
    transactional_id: str
    transaction_timeout_ms: int
    revoke_timeout_ms: int
    commit_interval_ms: int | None
    commit_records: int | None
    producer: dict[str, Any]
    member: dict[str, Any]
    client: dict[str, Any]
    key_serializer: Any = None
    value_serializer: Any = None

    def serialized(self, topic: str, headers: Any, key: Any, value: Any) -> tuple[Any, Any]:
        """Return key and value as bytes."""
        return (
            _serialized(self.key_serializer, topic, headers, key),
            _serialized(self.value_serializer, topic, headers, value),
        )

    @classmethod
    def checked(
        cls,
        group_id: str,
        source_partition_count: int,
        *,
        session_timeout_ms: int = 30_000,
        group_protocol: str = "classic",
        restart_topic: str | None = None,
        commit_interval_ms: int | None = None,
        commit_records: int | None = None,
        transaction_timeout_ms: int | None = None,
        revoke_timeout_ms: int | None = None,
        **config: Any,
    ) -> ProducerOptions:
        """Check the options; OptionError names what is wrong, and what is allowed."""
        if not is_name(group_id):
            raise OptionError("group_id", group_id or None, f"the producer group, {NAMES}")
        if restart_topic is None and not is_topic_name(topic_of(group_id)):
            raise OptionError(
                "group_id",
                group_id,
                f"with the default restart_topic, {topic_of('')} and the group: {TOPIC_NAMES}",
            )
        if restart_topic is not None and not is_topic_name(restart_topic):
            raise OptionError("restart_topic", restart_topic, TOPIC_NAMES)
        positive = {
            "source_partition_count": source_partition_count,
            "session_timeout_ms": session_timeout_ms,
            "commit_interval_ms": commit_interval_ms,
            "commit_records": commit_records,
            "transaction_timeout_ms": transaction_timeout_ms,
            "revoke_timeout_ms": revoke_timeout_ms,
        }
        for name, number in positive.items():
            if number is not None and (isinstance(number, bool) or number < 1):
                raise OptionError(name, number, "a positive number")
        for name, allowed in _OURS.items():
            if name in config:
                raise OptionError(name, config[name], allowed)
        _refuse_replaced(config)
        known = {**KafkaConsumer.DEFAULT_CONFIG, **KafkaProducer.DEFAULT_CONFIG}
        known |= {"group_remote_assignor": None, "buffer_memory": None}
        for name in config:
            if name not in known:
                raise OptionError(name, config[name], "the settings of kafka-python's clients")
        config = without_empty_servers(config)
        if transaction_timeout_ms is None:
            # A member that is silent for longer than the session is out, and its successor ends its
            # transaction. A shorter timeout would only end transactions of live members.
            transaction_timeout_ms = max(_TRANSACTION_TIMEOUT_MS, 2 * session_timeout_ms)
        if commit_interval_ms is not None and commit_interval_ms >= transaction_timeout_ms:
            raise OptionError(
                "commit_interval_ms",
                commit_interval_ms,
                f"less than transaction_timeout_ms={transaction_timeout_ms}",
            )
        instance = config.get("group_instance_id") or uuid.uuid4().hex
        if "/" in instance:
            raise OptionError("group_instance_id", instance, "a name without a slash")
        transactional_id = transactional_id_of(group_id, instance)
        # A revoke waits for the open transaction, which ends at its timeout at the latest.
        longest_ms = max(transaction_timeout_ms, session_timeout_ms, revoke_timeout_ms or 0)
        producer = of_the_producer(config)
        producer.setdefault("retry_backoff_ms", _RETRY_BACKOFF_MS)
        # Only for the application's records: restart points are bytes already.
        serializers = {k: producer.pop(k, None) for k in ("key_serializer", "value_serializer")}
        producer["transaction_timeout_ms"] = transaction_timeout_ms
        ProducerSettings.checked(transactional_id, producer)
        producer["transactional_id"] = transactional_id
        member = {k: v for k, v in config.items() if k in KafkaConsumer.DEFAULT_CONFIG}
        member.setdefault("metadata_max_age_ms", _METADATA_MAX_AGE_MS)
        member |= {
            "group_id": group_id,
            "group_protocol": group_protocol,
            "session_timeout_ms": session_timeout_ms,
            "max_poll_interval_ms": longest_ms,
            "revoke_timeout_ms": revoke_timeout_ms or transaction_timeout_ms,
            "isolation_level": "read_committed",
            "allow_auto_create_topics": False,
        }
        member.setdefault(
            "heartbeat_interval_ms", min(CONSUMER_HEARTBEAT_INTERVAL_MS, session_timeout_ms // 3)
        )
        if config.get("group_remote_assignor"):
            member["group_remote_assignor"] = config["group_remote_assignor"]
        common = set(KafkaAdminClient.DEFAULT_CONFIG) & set(KafkaConsumer.DEFAULT_CONFIG)
        client = {k: v for k, v in config.items() if k in common}
        return cls(
            group_id,
            source_partition_count,
            session_timeout_ms,
            member["heartbeat_interval_ms"],
            restart_topic or topic_of(group_id),
            transactional_id,
            transaction_timeout_ms,
            member["revoke_timeout_ms"],
            commit_interval_ms,
            commit_records,
            producer,
            member,
            client,
            **serializers,
        )


def transactional_id_of(group_id: str, instance: str) -> str:
    """An instance's transactional id; no other group's, because instances have no slash."""
    return f"{group_id}/{instance}"


def of_the_producer(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return those settings that ``produce.producer.Producer`` has."""
    names = {*KafkaProducer.DEFAULT_CONFIG, "buffer_memory"} - {*_OF_THE_MEMBER, *_REPLACED}
    return {name: value for name, value in config.items() if name in names}


def _refuse_replaced(config: Mapping[str, Any]) -> None:
    for name, instead in _REPLACED.items():
        if name in config and config[name] != float("inf"):
            raise OptionError(name, config[name], instead)


def _serialized(serializer: Any, topic: str, headers: Any, data: Any) -> Any:
    if serializer is None:
        return data
    if hasattr(serializer, "serialize"):
        return serializer.serialize(topic, headers or [], data)
    return serializer(data)
