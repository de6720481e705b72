"""Topics of text records, as Kafka's own producer writes them."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

from pyspark_kafka_rebalance.testing import KafkaCluster
from pyspark_kafka_rebalance.testing.java import find_java
from pyspark_kafka_rebalance.testing.kafka_jars import (
    KAFKA_TOOLS,
    broker_jars,
    single_jars,
)

_WORDS = 500
_LINES = 2_000


def fill(
    cluster: KafkaCluster, topic: str, partitions: int, codec: str, size: int, rows: int, work: Path
) -> None:
    """Create a topic and write ``rows`` records of ``size`` bytes, in batches of the usual size."""
    cluster.create_topic(topic, partitions=partitions)
    write(cluster, topic, codec, size, rows, work)


def write(cluster: KafkaCluster, topic: str, codec: str, size: int, rows: int, work: Path) -> None:
    """Write as :func:`fill` does to an existing topic, about evenly over its partitions."""
    lines = work / f"lines-{size}.txt"
    lines.write_text("\n".join(_lines(size)))
    (tools,) = single_jars([KAFKA_TOOLS])
    command = [
        *(str(find_java().executable), "-Xmx512m", "-cp", f"{tools}:{broker_jars()}/*"),
        *("org.apache.kafka.tools.ProducerPerformance", "--topic", topic),
        *("--num-records", str(rows), "--throughput", "-1", "--payload-file", str(lines)),
        "--producer-props",
        f"bootstrap.servers={cluster.bootstrap_servers}",
        f"compression.type={codec}",
        "acks=1",
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise RuntimeError(f"filling {topic}:\n{done.stdout[-2000:]}")


def _lines(size: int) -> list[str]:
    """Lines of JSON that compress about as well as an application's."""
    chance = random.Random(size)
    words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=8)) for _ in range(_WORDS)]
    lines = []
    for _ in range(_LINES):
        line = f'{{"id":{chance.randrange(10**9)},"at":{chance.randrange(10**12)},"text":"'
        while len(line) < size - 2:
            line += chance.choice(words) + " "
        lines.append(line[: size - 2] + '"}')
    return lines
