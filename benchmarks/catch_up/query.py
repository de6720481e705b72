"""A Spark query is killed, a backlog is written, and the query restarts from its checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.throughput.forms import RECOMMENDED
from benchmarks.throughput.topics import write
from pyspark_kafka_rebalance.testing import KafkaCluster
from pyspark_kafka_rebalance.testing.child_process import ChildProcess
from pyspark_kafka_rebalance.testing.kafka_jars import SPARK_KAFKA_SOURCE, single_jars

from .client import SESSION_TIMEOUT_MS, Settings, end_offsets, steady_input, wait_until_read
from .figures import BUILT_IN, LIVE, ORDINARY
from .runs import audit, read_runs

FORMS = (LIVE, ORDINARY, BUILT_IN)
_BATCHES_BEFORE = 5
_READ_TIMEOUT_S = 600.0


def run_query(
    cluster: KafkaCluster,
    settings: Settings,
    form: str,
    topic: str,
    work: Path,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Run the scenario with one form of query, as :func:`~.client.run_client` does."""
    cluster.create_topic(topic, partitions=settings.partitions)
    cluster.configure_group(topic, {"consumer.session.timeout.ms": SESSION_TIMEOUT_MS})
    load = steady_input(cluster, settings, topic, work)
    logs = [work / f"{topic}-{name}.csv" for name in ("first", "second")]
    checkpoint = work / f"{topic}-checkpoint"
    try:
        say("a query reads the input")
        with _reader(cluster, settings, form, topic, "first", work) as first:
            first.wait_for("ready")
            first.order("go")
            load.start()
            for _ in range(_BATCHES_BEFORE):
                first.wait_for("batch")
            first.kill()
            killed_at = time.monotonic()
        known_to, planned_to = (newest(checkpoint / log) for log in ("commits", "offsets"))
        say("it is killed, a backlog is written")
        write(cluster, topic, "none", settings.value_bytes, settings.records, work)
        ends = end_offsets(cluster, settings, topic)
        with _reader(cluster, settings, form, topic, "second", work) as second:
            second.wait_for("ready")
            time.sleep(max(0.0, killed_at + SESSION_TIMEOUT_MS / 1000 + 1 - time.monotonic()))
            say("it starts again")
            second.order("go")
            deadline = time.monotonic() + _READ_TIMEOUT_S
            while audit(*map(read_runs, logs), ends, ()).missing:
                last = second.wait_for("batch", max(0.0, deadline - time.monotonic()))
            caught_up_at = last["done_at"]
            say("reads on")
            time.sleep(settings.calm_s / 2)
            load.stop()
            ends_of_all = end_offsets(cluster, settings, topic)
            wait_until_read(logs, ends_of_all, second)
            triggers = second.stop()["triggers"]
            batches = [event for event in second.events if event["event"] == "batch"]
    finally:
        load.kill()
    runs = [read_runs(log) for log in logs]
    # A batch that was not committed is rerun and replaces its first attempt: it was in flight.
    result = audit(*runs, ends_of_all, [run for run in runs[0] if run.batch <= known_to])
    cluster.delete_topic(topic)
    began_at = triggers[0]["began_at"]
    live = next(one for one in batches if one["newest_s"] >= began_at)
    # The batch that the kill interrupted is rerun with the same rows.
    replay_s = triggers[0]["took_s"] if triggers[0]["batch"] <= planned_to else 0.0
    of_live = next(one for one in triggers if one["batch"] == live["batch"] and one["rows"])
    return {
        "form": form,
        "protocol": settings.protocol,
        "first_live_s": round(live["done_at"] - began_at, 3),
        "batch_s": of_live["took_s"],
        "replay_s": replay_s,
        "backlog": settings.records,
        "caught_up_s": round(caught_up_at - began_at, 2),
        "records_per_second": round(settings.records / (caught_up_at - began_at)),
        "batches": sum(one["done_at"] <= caught_up_at for one in batches),
        "audit": result._asdict(),
    }


def newest(log: Path) -> int:
    """The last batch in one of a checkpoint's logs, or -1."""
    return max((int(path.name) for path in log.glob("*") if path.name.isdigit()), default=-1)


def _reader(
    cluster: KafkaCluster, settings: Settings, form: str, topic: str, name: str, work: Path
) -> ChildProcess:
    checkpoint = str(work / f"{topic}-checkpoint")
    options = {
        "kafka.bootstrap.servers": cluster.bootstrap_servers,
        "subscribe": topic,
        "startingOffsets": "earliest",
    }
    conf = {**RECOMMENDED, "spark.sql.streaming.numRecentProgressUpdates": "10000"}
    if form == BUILT_IN:
        conf["spark.jars"] = ",".join(str(jar) for jar in single_jars(SPARK_KAFKA_SOURCE))
    else:
        options |= {
            "kafka.group.id": topic,
            "kafka.group.protocol": settings.protocol,
            "kafka.session.timeout.ms": str(SESSION_TIMEOUT_MS),
            "checkpointLocation": checkpoint,
        }
    if form == LIVE:
        options |= {"parallelRebalance": "live", "catchUpThreshold": str(settings.threshold)}
    query = {
        "name": f"{topic}-{name}",
        "format": "kafka" if form == BUILT_IN else "kafka_deferred",
        "options": options,
        "conf": conf,
        "checkpoint": checkpoint,
        "log": str(work / f"{topic}-{name}.csv"),
    }
    return ChildProcess(f"{topic}-{name}", f"{__package__}.reader", query, work=work)
