"""An owner is killed, a backlog is written, and another owner takes over, under a steady input."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient
from kafka.admin import OffsetSpec
from kafka.structs import TopicPartition

from benchmarks.throughput.topics import write
from pyspark_kafka_rebalance.testing import KafkaCluster
from pyspark_kafka_rebalance.testing.child_process import ChildProcess

from .figures import LIVE, ORDERED, ORDINARY
from .runs import audit, below, read_runs

FORMS = (LIVE, ORDINARY, ORDERED)
_MODES = {LIVE: "live", ORDINARY: None, ORDERED: "ordered"}

#: A dead member must be gone before the next one joins, which then gets everything at once.
SESSION_TIMEOUT_MS = 6_000
#: Wait this long before measuring: a process's first moments are no baseline.
_WARM_UP_S = 2.0
_READ_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Settings:
    """The scenario's settings.

    Attributes
    ----------
    records, value_bytes : int
        The number of records in the backlog, and the bytes of each value.
    per_second : int
        Records per second of the steady input, over all partitions, of the same size.
    threshold : int
        A partition's backlog of more offsets than this is set aside.
    calm_s : float
        How long the input is read without a backlog, for comparison.
    """

    records: int = 3_000_000
    value_bytes: int = 100
    partitions: int = 12
    per_second: int = 600
    threshold: int = 10_000
    calm_s: float = 8.0
    protocol: str = "consumer"


QUICK = Settings(records=60_000, partitions=4, per_second=200, threshold=1_000, calm_s=2.0)


def run_client(
    cluster: KafkaCluster,
    settings: Settings,
    form: str,
    topic: str,
    work: Path,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Run the scenario with one form of the client; no process is left running, however it ends.

    Parameters
    ----------
    topic : str
        The name of a new topic and of the group.
    work : Path
        An existing folder for logs.
    say : callable
        Called with the current step.

    Raises
    ------
    TimeoutError, RuntimeError
        A process was too slow, or ended; the message has the end of its log.
    """
    cluster.create_topic(topic, partitions=settings.partitions)
    cluster.configure_group(topic, {"consumer.session.timeout.ms": SESSION_TIMEOUT_MS})
    load = steady_input(cluster, settings, topic, work)
    try:
        say("an owner reads the input")
        with member(cluster, settings, form, topic, "first", work, {}) as first:
            first.wait_for("ready")
            first.order("go")
            first.wait_for("assigned")
            load.start()
            first.wait_for("live")  # a producer takes seconds to begin on a busy machine
            time.sleep(_WARM_UP_S)
            before = _waits(first, settings.calm_s)
            first.kill()
            killed_at = time.monotonic()
        known = cluster.committed(topic)
        say("the owner is killed, a backlog is written")
        write(cluster, topic, "none", settings.value_bytes, settings.records, work)
        gone_at = killed_at + SESSION_TIMEOUT_MS / 1000 + 1
        ends = end_offsets(cluster, settings, topic)
        with member(cluster, settings, form, topic, "second", work, ends, known) as second:
            second.wait_for("ready")
            time.sleep(max(0.0, gone_at - time.monotonic()))
            say("another takes over")
            second.order("go")
            second.wait_for("assigned")
            # The event "live" comes before or after this one; `events` keeps both.
            caught_up = second.wait_for("caught up", _READ_TIMEOUT_S)
            say("reads on")
            time.sleep(_WARM_UP_S)  # until the records that waited behind the backlog are read
            after = _waits(second, settings.calm_s)
            load.stop()
            logs = [work / f"{topic}-{name}.csv" for name in ("first", "second")]
            ends = end_offsets(cluster, settings, topic)
            wait_until_read(logs, ends, second)
            second.stop()
    finally:
        load.kill()
    live = next(event for event in second.events if event["event"] == "live")
    runs = [read_runs(log) for log in logs]
    result = audit(*runs, ends, below(runs[0], {p.partition: o for p, o in known.items()}))
    cluster.delete_topic(topic)
    return {
        "form": form,
        "protocol": settings.protocol,
        "first_live_s": round(live["after_s"], 3),
        "backlog": caught_up["records"],
        "caught_up_s": round(caught_up["took_s"], 2),
        "records_per_second": round(caught_up["records"] / caught_up["took_s"]),
        "records_per_cpu_second": round(caught_up["records"] / caught_up["cpu_s"]),
        "before": before,
        "during": caught_up["waits"],
        "after": after,
        "audit": result._asdict(),
    }


def steady_input(cluster: KafkaCluster, settings: Settings, topic: str, work: Path) -> ChildProcess:
    """A producer in its own process, not started yet."""
    load = {
        "bootstrap_servers": cluster.bootstrap_servers,
        "topic": topic,
        "partitions": settings.partitions,
        "rate": settings.per_second,
        "value_bytes": settings.value_bytes,
    }
    module = "measuring.load"
    return ChildProcess(f"{topic}-load", module, load, work=work)


def end_offsets(cluster: KafkaCluster, settings: Settings, topic: str) -> dict[int, int]:
    """The current end offsets by partition."""
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    try:
        asked = {TopicPartition(topic, n): OffsetSpec.LATEST for n in range(settings.partitions)}
        return {
            p.partition: found.offset for p, found in admin.list_partition_offsets(asked).items()
        }
    finally:
        admin.close()


def wait_until_read(
    logs: list[Path], ends: Mapping[int, int], reader: ChildProcess, timeout_s: float = 30.0
) -> None:
    """Wait until nothing is missing; after the timeout, the audit will report what is."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        reader.raise_if_ended()
        if not audit(*(read_runs(log) for log in logs), ends, ()).missing:
            return
        time.sleep(0.5)


def member(
    cluster: KafkaCluster,
    settings: Settings,
    form: str,
    topic: str,
    name: str,
    work: Path,
    ends: Mapping[int, int],
    known: Mapping[TopicPartition, int] | None = None,
) -> ChildProcess:
    begins = {p.partition: offset for p, offset in (known or {}).items()}
    config: dict[str, Any] = {
        "bootstrap_servers": cluster.bootstrap_servers,
        "group_id": topic,
        "group_protocol": settings.protocol,
        "client_id": name,
        "auto_offset_reset": "earliest",
        "session_timeout_ms": SESSION_TIMEOUT_MS,
    }
    if mode := _MODES[form]:
        config |= {"parallel_rebalance": mode, "catch_up_threshold": settings.threshold}
    given = {
        "topic": topic,
        "config": config,
        "partitions": settings.partitions,
        "log": str(work / f"{topic}-{name}.csv"),
        "ends": dict(ends),
        "backlog": sum(end - begins.get(p, 0) for p, end in ends.items()),
    }
    return ChildProcess(f"{topic}-{name}", f"{__package__}.member", given, work=work)


def _waits(member: ChildProcess, seconds: float) -> dict[str, Any]:
    member.order("begin")
    time.sleep(seconds)
    member.order("figures")
    told = member.wait_for("figures")
    return {name: told[name] for name in ("records", "p50_ms", "p99_ms")}
