"""An owner is killed, a backlog is written, and another owner takes over, beside a steady input."""

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

#: A dead member must be gone before the next one joins, so that it is assigned everything at once.
SESSION_TIMEOUT_MS = 6_000
#: What is new to a process in its first moments is no baseline.
_WARM_UP_S = 2.0
_READ_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Settings:
    """The scenario's figures.

    Attributes
    ----------
    records, value_bytes : int
        Of the backlog.
    per_second : int
        Records of the steady input, over all partitions, of as many bytes.
    threshold : int
        A backlog of more offsets of a partition is set aside.
    calm_s : float
        For how long the input is read without a backlog, to compare with.
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
    """Run the scenario with one form of the client; no process is left, however it ends.

    Parameters
    ----------
    topic : str
        A new one's name, and the group's.
    work : Path
        An existing folder for logs.
    say : callable
        Is told what happens now.

    Raises
    ------
    TimeoutError, RuntimeError
        A process did not get there, or ended; with the end of its log.
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
            # Whichever comes first; `events` keeps what was passed over.
            caught_up = second.wait_for("caught up", _READ_TIMEOUT_S)
            say("reads on")
            time.sleep(_WARM_UP_S)  # what has waited behind the backlog is through
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
    """A producer in a process of its own, not started yet."""
    load = {
        "bootstrap_servers": cluster.bootstrap_servers,
        "topic": topic,
        "partitions": settings.partitions,
        "rate": settings.per_second,
        "value_bytes": settings.value_bytes,
    }
    module = "pyspark_kafka_rebalance.testing.rebalances.load"
    return ChildProcess(f"{topic}-load", module, load, work=work)


def end_offsets(cluster: KafkaCluster, settings: Settings, topic: str) -> dict[int, int]:
    """By partition, now."""
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
    """Until nothing is missing; what is, after that time, is told by the audit."""
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
