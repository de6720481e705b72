"""What is done to groups and topics in a plan: offsets moved, a group or records deleted."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, OffsetSpec
from kafka.errors import GroupIdNotFoundError, KafkaError, NoError
from kafka.structs import TopicPartition

from .events import Moved
from .surroundings import PATIENCE_S

log = logging.getLogger(__name__)

_AGAIN_S = 0.3

#: Brokers that delete what retention is over for at once, instead of every five minutes, and also
#: right after they have started.
RETENTION_AT_ONCE = {"log.retention.check.interval.ms": 500, "log.initial.task.delay.ms": 500}
#: By then they have looked.
_LOOKED_S = 1.5

#: A topic keeps everything, and after these almost nothing: of each partition what came last.
_KEEP = {"retention.ms": -1, "retention.bytes": -1, "segment.ms": 604_800_000}
_RETENTION = {
    "expire": {"retention.ms": 1_500, "segment.ms": 500},
    "outgrow": {"retention.bytes": 1, "segment.ms": 200},
}


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


def delete(
    servers: str, what: str, partitions: list[TopicPartition], seconds: float = 0.0
) -> dict[TopicPartition, int]:
    """Delete all records that there are; returns where the logs begin since.

    Parameters
    ----------
    servers : str
    what : str
        ``trim``, or leave it to retention: ``expire`` by time, ``outgrow`` by size. Those take some
        that come meanwhile as well, and need traffic in each partition.
    partitions : list of TopicPartition
        All of one topic.
    seconds : float
        So long retention goes on at least.
    """
    until = time.monotonic() + seconds
    (topic,) = {p.topic for p in partitions}
    ends: dict[TopicPartition, int] = {}
    begins: dict[TopicPartition, int] = {}

    def attempt(admin: Any) -> bool:
        if not ends:
            ends.update(_offsets(admin, partitions, OffsetSpec.LATEST))
        if what == "trim":
            admin.delete_records(ends)
        else:
            _configure(admin, topic, _RETENTION[what])
            begins_now = _offsets(admin, partitions, OffsetSpec.EARLIEST)
            if not _reaches(begins_now, ends) or time.monotonic() < until:
                return False
            _configure(admin, topic, _KEEP)
            time.sleep(_LOOKED_S)  # they may be at it
        begins.update(_offsets(admin, partitions, OffsetSpec.EARLIEST))
        return _reaches(begins, ends)

    _until_done(servers, f"{what} of {topic}", attempt)
    return begins


def begins_of(servers: str, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """Where these logs begin now."""
    found: dict[TopicPartition, int] = {}

    def attempt(admin: Any) -> bool:
        found.update(_offsets(admin, partitions, OffsetSpec.EARLIEST))
        return True

    _until_done(servers, "looking where the logs begin", attempt)
    return found


def _reaches(begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> bool:
    return all(begins[p] >= end for p, end in ends.items())


def _offsets(
    admin: Any, partitions: Iterable[TopicPartition], which: OffsetSpec
) -> dict[TopicPartition, int]:
    found = admin.list_partition_offsets(dict.fromkeys(partitions, which))
    return {p: told.offset for p, told in found.items()}


def _configure(admin: Any, topic: str, settings: Mapping[str, int]) -> None:
    given = {name: str(value) for name, value in settings.items()}
    answers = admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs=given)])
    if (answer := answers["topic"][topic]) != "OK":
        raise KafkaError(answer)


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
