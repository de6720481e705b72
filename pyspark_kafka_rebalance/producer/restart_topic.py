"""The topic of a producer group: how it is created, checked, and grown.

The topic is compacted and has one partition for each source partition. The group's members
subscribe to it, and it keeps the restart points after the group's offsets have expired.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from kafka import KafkaAdminClient
from kafka import errors as kafka_errors
from kafka.admin import ConfigResource, ConfigResourceType

from ..consumer.kafka_python.questions import offered_versions
from ..errors import AuthorizationError, OptionError
from ..transport.secured_clients import admin_client
from .required_brokers import require_fencing
from .restart_points import MAX_BYTES, OVERHEAD_BYTES

log = logging.getLogger(__name__)

#: The largest record batch with a restart point.
_MAX_MESSAGE_BYTES = MAX_BYTES + OVERHEAD_BYTES

_SETTINGS = {
    "cleanup.policy": "compact",
    "max.message.bytes": str(_MAX_MESSAGE_BYTES),
    # When a source partition moves, its next owner may have to read all that compaction has left.
    "segment.bytes": str(16 * _MAX_MESSAGE_BYTES),
    "min.cleanable.dirty.ratio": "0.1",
}

_PATIENCE_S = 30.0
_ASK_AGAIN_S = 0.05


def ensure_topic(client_config: dict[str, Any], group_id: str, topic: str, partitions: int) -> None:
    """Create the topic, or check it and grow it to this many partitions.

    Asks for nothing if the brokers are too old for a producer group.

    Retriable errors, such as a broker that is gone or no longer leads, are retried for half a
    minute.

    Raises
    ------
    OptionError
        The topic has another cleanup policy, or more partitions; says how to fix it.
    AuthorizationError
        A permission is missing.
    UnsupportedBrokerError
        As ``require_fencing``.
    kafka.errors.KafkaError
        The brokers refused a request.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        admin = admin_client(client_config)
        try:
            require_fencing(group_id, offered_versions(admin))
            return _ensure(admin, topic, partitions)
        except kafka_errors.TopicAuthorizationFailedError as error:
            raise AuthorizationError(
                "a producer group needs CREATE, DESCRIBE, READ, WRITE, DESCRIBE_CONFIGS and, to "
                f"grow, ALTER on the topic {topic!r}: {error!r}"
            ) from error
        except kafka_errors.KafkaError as error:
            if not error.retriable or time.monotonic() > deadline:
                raise
            log.info("topic %s: not ready yet, trying again: %r", topic, error)
        finally:
            admin.close()
        time.sleep(_ASK_AGAIN_S)


def _ensure(admin: KafkaAdminClient, topic: str, partitions: int) -> None:
    found = _partitions_of(admin, topic)
    if found is None:
        _create(admin, topic, partitions)
        found = partitions
    _check_settings(admin, topic)
    if found > partitions:
        raise OptionError(
            "source_partition_count",
            partitions,
            f"{found}, the number of partitions of topic {topic!r}, which other members were "
            "given; to make the source smaller, stop the group and delete the topic, or "
            "use another group_id",
        )
    if found < partitions:
        _grow(admin, topic, partitions)


def _partitions_of(admin: KafkaAdminClient, topic: str) -> int | None:
    (found,) = admin.describe_topics([topic])
    error = kafka_errors.for_code(found["error_code"])
    if error is kafka_errors.UnknownTopicOrPartitionError:
        return None
    if error is not kafka_errors.NoError:
        raise error(topic)
    return len(found["partitions"])


def _create(admin: KafkaAdminClient, topic: str, partitions: int) -> None:
    try:
        admin.create_topics(
            {
                topic: {
                    "num_partitions": partitions,
                    "replication_factor": -1,
                    "configs": _SETTINGS,
                }
            }
        )
    except kafka_errors.TopicAlreadyExistsError:
        pass  # another member was faster
    else:
        log.info("topic %s: created with %d partitions", topic, partitions)
    _wait(lambda: _are_led(admin, topic, 1), topic)


def _grow(admin: KafkaAdminClient, topic: str, partitions: int) -> None:
    try:
        admin.create_partitions({topic: partitions})
    except kafka_errors.InvalidPartitionsError:
        if (_partitions_of(admin, topic) or 0) < partitions:
            raise
        # another member was faster
    else:
        log.info("topic %s: the source has %d partitions now", topic, partitions)
    _wait(lambda: _are_led(admin, topic, partitions), topic)


def _are_led(admin: KafkaAdminClient, topic: str, partitions: int) -> bool:
    (found,) = admin.describe_topics([topic])
    led = [p for p in found["partitions"] if p["leader_id"] >= 0]
    return found["error_code"] == 0 and partitions <= len(led) == len(found["partitions"])


def _wait(done: Callable[[], bool], topic: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not done():
        if time.monotonic() > deadline:
            raise kafka_errors.KafkaTimeoutError(f"topic {topic!r} has partitions without a leader")
        time.sleep(_ASK_AGAIN_S)


def _check_settings(admin: KafkaAdminClient, topic: str) -> None:
    """Refuse a topic that would delete restart points; warn of one too small for large ones."""
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    try:
        answer = admin.describe_configs([resource], config_filter="all")
        settings = {name: found["value"] for name, found in answer["topic"][topic].items()}
    except (kafka_errors.TopicAuthorizationFailedError, KeyError, TypeError) as error:
        log.warning("topic %s: cannot read its settings: %r", topic, error)
        return
    if not settings:  # a broker that does not know a new topic yet returns none
        raise kafka_errors.UnknownTopicOrPartitionError(topic)
    policy = settings.get("cleanup.policy")
    if policy != "compact":
        raise OptionError(
            "restart_topic",
            topic,
            f"a topic with cleanup.policy=compact, not {policy}, which would delete restart "
            f"points; kafka-configs.sh --alter --entity-type topics --entity-name {topic} "
            "--add-config cleanup.policy=compact",
        )
    largest = int(settings.get("max.message.bytes") or 0)
    if largest < _MAX_MESSAGE_BYTES:
        log.warning(
            "topic %s: max.message.bytes=%d, so the broker will reject larger restart points; %d "
            "accepts all allowed sizes",
            topic,
            largest,
            _MAX_MESSAGE_BYTES,
        )
