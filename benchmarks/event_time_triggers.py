"""What the order of timestamps costs the planner of many partitions with every trigger.

A backlog of which every trigger reads two records a partition, with and without ``maxTaskIdleMs``:
``latestOffset``, ``partitions`` and ``commit``, without Spark.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median

from confluent_kafka import Producer
from pyspark.sql.streaming.datasource import ReadMaxRows

from pyspark_kafka_rebalance.source.group.log_ends import END_OFFSETS_MAX_AGE_S
from pyspark_kafka_rebalance.source.options import SourceOptions
from pyspark_kafka_rebalance.source.stream import KafkaDeferredStreamReader
from pyspark_kafka_rebalance.testing import LocalKafka

#: Of the time without the order.
GOAL = 2.0

_TOPIC = "many"
_FORMS: dict[str, dict[str, str]] = {
    "without": {},
    "maxTaskIdleMs=0": {"maxTaskIdleMs": "0"},
    "maxTaskIdleMs=1000": {"maxTaskIdleMs": "1000"},
}
_EACH = 2  # records of each partition in a trigger
_ROUNDS = 3  # of each form, in turn
_FIRST = 2  # triggers that are not counted: the first costs more questions


def measure(partitions: int, triggers: int) -> dict[str, float]:
    """Median ms of a trigger, by form."""
    took: dict[str, list[float]] = {form: [] for form in _FORMS}
    with LocalKafka(broker_config={"log.flush.interval.messages": 10**9}) as kafka:
        kafka.create_topic(_TOPIC, partitions=partitions)
        _fill(kafka.bootstrap_servers, partitions, (triggers + _FIRST + 1) * _EACH)
        for turn in range(_ROUNDS):
            for form, options in _FORMS.items():
                given = {
                    "kafka.bootstrap.servers": kafka.bootstrap_servers,
                    "kafka.group.id": f"{form}-{turn}",
                    "subscribe": _TOPIC,
                    "startingOffsets": "earliest",
                    **{name.lower(): value for name, value in options.items()},
                }
                reader = KafkaDeferredStreamReader(SourceOptions.parse(given, default_readers=2))
                try:
                    took[form] += _triggers(reader, partitions * _EACH, triggers)
                finally:
                    reader.stop()
    return {form: round(median(found), 3) for form, found in took.items()}


def _fill(servers: str, partitions: int, records: int) -> None:
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20, "log_level": 0})
    since_ms = int(time.time() * 1_000) - 3_600_000
    for number in range(records):
        for partition in range(partitions):
            at = since_ms + number * 1_000 + partition % 1_000
            producer.produce(_TOPIC, b"value", partition=partition, timestamp=at)
        producer.flush()


def _triggers(reader: KafkaDeferredStreamReader, limit: int, triggers: int) -> Iterator[float]:
    start = reader.initialOffset()
    for number in range(_FIRST + triggers):
        time.sleep(END_OFFSETS_MAX_AGE_S)  # or nothing would be asked of the broker
        began = time.perf_counter()
        end = reader.latestOffset(start, ReadMaxRows(limit))
        tasks = reader.partitions(start, end)
        reader.commit(end)
        took_ms = (time.perf_counter() - began) * 1_000
        planned = sum(len(one.range) for task in tasks for one in task.value.ranges)
        if not limit // 2 <= planned <= limit:
            raise RuntimeError(f"{planned} records of {limit} were planned")
        start = end
        if number >= _FIRST:
            yield took_ms
