"""The forms compared: this source, the same decoding in Python, a floor, and Spark's own source."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

from pyspark_kafka_rebalance.testing.child_process import ChildProcess
from pyspark_kafka_rebalance.testing.kafka_jars import SPARK_KAFKA_SOURCE, single_jars

#: As the README recommends: over TCP, a worker gets its task up to 40 ms late, because Spark's
#: second small write waits for the delayed acknowledgement of the first (Nagle's algorithm).
RECOMMENDED = {"spark.python.unix.domain.socket.enabled": "true"}

OURS, PURE, FLOOR, BUILT_IN = "ours", "ours, in Python", "floor", "Spark's built-in"
_KINDS = {FLOOR: "kafka_floor", BUILT_IN: "kafka"}


def spark(form: str, cores: int, work: Path) -> ChildProcess:
    """The process of a form's own Spark session; it reports "ready" once the session runs."""
    conf = RECOMMENDED
    if form == BUILT_IN:
        conf = {"spark.jars": ",".join(str(jar) for jar in single_jars(SPARK_KAFKA_SOURCE))}
    name = form.replace(" ", "-").replace(",", "").replace("'", "")
    settings = {"name": name, "cores": cores, "conf": conf}
    environment = {"PYSPARK_KAFKA_REBALANCE_DECODER": "python"} if form == PURE else {}
    return ChildProcess(
        name, "benchmarks.throughput.spark_process", settings, work=work, environment=environment
    )


def ran(
    process: ChildProcess,
    form: str,
    servers: str,
    topic: str,
    options: dict[str, str],
    timeout_s: float = 600.0,
    **how: Any,
) -> dict[str, Any]:
    """Have a session of :func:`spark` run a query over a topic, and return its measurements.

    ``how`` is for the process: ``sink`` to read the whole topic, or ``triggers`` to follow it.
    """
    source = {"kafka.bootstrap.servers": servers, "subscribe": topic, **options}
    if form != BUILT_IN:
        source["kafka.group.id"] = f"{topic}-{uuid.uuid4().hex[:8]}"
    kind = _KINDS.get(form, "kafka_deferred")
    process.order(json.dumps({"format": kind, "options": source, **how}))
    return process.wait_for("ran", timeout_s)
