"""How much memory a client takes while many partitions catch up."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kafka import KafkaConsumer
from kafka.structs import OffsetAndMetadata, TopicPartition

from pyspark_kafka_rebalance.testing import KafkaCluster

from .client import Settings, end_offsets, member
from .figures import LIVE
from .prepared import write_prepared
from .runs import audit, read_runs

PARTITIONS = 50
#: Small, as there are many records; their size matters little to a bound in bytes.
VALUE_BYTES = 20
_LOOK_EVERY_S = 0.25


def run_memory(
    cluster: KafkaCluster,
    protocol: str,
    per_partition: int,
    at_most_s: float,
    topic: str,
    work: Path,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Watch a member that starts with a gap of ``per_partition`` records in each of 50 partitions.

    Parameters
    ----------
    at_most_s : float
        It is watched until its gaps are done, but at most for this long.
    """
    settings = Settings(partitions=PARTITIONS, protocol=protocol, per_second=0, threshold=1_000)
    records = PARTITIONS * per_partition
    cluster.create_topic(topic, partitions=PARTITIONS)
    say(f"{records:,} records are written")
    write_prepared(cluster, topic, PARTITIONS, per_partition, VALUE_BYTES)
    commit_the_beginning(cluster, topic)
    ends = end_offsets(cluster, settings, topic)
    log = work / f"{topic}-memory.csv"
    with member(cluster, settings, LIVE, topic, "memory", work, ends, {}) as process:
        process.wait_for("ready")
        process.order("go")
        process.wait_for("assigned")
        say("it catches up")
        began_at = time.monotonic()
        sizes: list[float] = []
        while time.monotonic() < began_at + at_most_s:
            sizes.append(resident_mb(process.pid))
            try:
                process.wait_for("caught up", _LOOK_EVERY_S)
                break
            except TimeoutError:
                process.raise_if_ended()
        took_s = time.monotonic() - began_at
        process.kill()
    found = audit(read_runs(log), [], ends, [])
    cluster.delete_topic(topic)
    half = len(sizes) // 2
    return {
        "partitions": PARTITIONS,
        "backlog": sum(ends.values()),
        "record_bytes": VALUE_BYTES,
        "read": found.records,
        "repeated": found.repeated,
        "watched_s": round(took_s, 1),
        "first_half_mb": max(sizes[:half] or sizes),
        "second_half_mb": max(sizes[half:]),
        "peak_mb": max(sizes),
    }


def commit_the_beginning(cluster: KafkaCluster, topic: str) -> None:
    """Commit offset 0 for the group: without a committed offset there would be no gap."""
    plain = KafkaConsumer(
        bootstrap_servers=cluster.bootstrap_servers, group_id=topic, enable_auto_commit=False
    )
    partitions = [TopicPartition(topic, n) for n in range(PARTITIONS)]
    plain.assign(partitions)
    plain.commit({partition: OffsetAndMetadata(0, "", -1) for partition in partitions})
    plain.close()


def resident_mb(pid: int) -> float:
    """The resident memory of a process in MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)
