"""What is done to groups and topics in a plan: offsets moved, a group or old records deleted."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, OffsetSpec
from kafka.errors import GroupIdNotFoundError, KafkaError, NoError
from kafka.structs import TopicPartition

from .oracle import Moved
from .surroundings import PATIENCE_S

log = logging.getLogger(__name__)

_AGAIN_S = 0.3

#: Brokers that delete what retention is over for at once, instead of every five minutes, and also
#: right after they have started.
RETENTION_AT_ONCE = {"log.retention.check.interval.ms": 500, "log.initial.task.delay.ms": 500}
#: Of a topic while its records expire, in place of Kafka's defaults.
_EXPIRES = {"retention.ms": "1500", "segment.ms": "500"}
_USUAL = {"retention.ms": "604800000", "segment.ms": "604800000"}


def move(servers: str, group: str, what: str, partitions: Iterable[TopicPartition]) -> list[Moved]:
    """Move the offsets of a group ``to beginning`` or ``to end``, or ``delete`` it.

    The group's last members may still be on their way out, static ones for as long as a session:
    the coordinator refuses it until then.
    """
    moved: list[Moved] = []
    left = set(partitions)

    def delete(admin: Any) -> bool:
        at = time.time()
        answer = dict(admin.delete_groups([group]))[group]
        if answer not in ("OK", GroupIdNotFoundError.__name__):
            raise KafkaError(answer)
        moved.append(Moved(at))
        return True

    def reset(admin: Any) -> bool:
        at = time.time()
        spec = OffsetSpec.EARLIEST if what == "to beginning" else OffsetSpec.LATEST
        answer = admin.reset_group_offsets(group, dict.fromkeys(left, spec))
        for partition, told in answer.items():
            if told["error"] is NoError:
                left.discard(partition)
                moved.append(Moved(at, partition.topic, told["offset"], partition.partition))
            else:
                log.info("%s of %s: %s", what, partition, told["error"].__name__)
        return not left

    _until_done(servers, f"{what} of {group}", delete if what == "delete" else reset)
    return moved


def trim(servers: str, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
    """Delete all records that there are; returns where the logs begin since."""
    begins: dict[TopicPartition, int] = {}

    def delete(admin: Any) -> bool:
        if not begins:
            ends = admin.list_partition_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST))
            begins.update({p: told.offset for p, told in ends.items()})
        admin.delete_records(begins)
        return True

    _until_done(servers, f"trim of {partitions[0].topic}", delete)
    return begins


def expire(servers: str, topic: str, seconds: float) -> None:
    """Let retention delete what is older than a second and a half, for so long."""

    def alter(config: dict[str, str]) -> Callable[[Any], bool]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs=config)
        return lambda admin: admin.alter_configs([resource])["topic"][topic] == "OK"

    _until_done(servers, f"records of {topic} expire", alter(_EXPIRES))
    time.sleep(seconds)
    _until_done(servers, f"records of {topic} stay", alter(_USUAL))


def begins_of(servers: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Where logs begin."""
    begins: dict[TopicPartition, int] = {}

    def look(admin: Any) -> bool:
        found = admin.list_partition_offsets(dict.fromkeys(partitions, OffsetSpec.EARLIEST))
        begins.update({p: told.offset for p, told in found.items()})
        return True

    _until_done(servers, "where logs begin", look)
    return begins


def _until_done(servers: str, what: str, attempt: Callable[[Any], bool]) -> None:
    """Again and again, since brokers come and go."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            admin = KafkaAdminClient(bootstrap_servers=servers)
            try:
                if attempt(admin):
                    log.info("%s: done", what)
                    return
            finally:
                admin.close()
        except (KafkaError, OSError) as error:
            log.info("%s: %r", what, error)
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(_AGAIN_S)
