"""The cost of timestamp order per trigger, in the planner of many partitions.

Every trigger reads two records per partition of a backlog, with and without ``maxTaskIdleMs``:
``latestOffset``, ``partitions`` and ``commit``, without Spark. All forms run at once and take
turns, trigger by trigger, so that other load on the machine affects them equally.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median

from confluent_kafka import Producer
from pyspark.sql.streaming.datasource import ReadMaxRows

from pyspark_kafka_rebalance.source.options.source_options import SourceOptions
from pyspark_kafka_rebalance.source.stream import KafkaDeferredStreamReader
from pyspark_kafka_rebalance.testing import LocalKafka

#: The multiple of the time without the order.
GOAL = 2.0

_TOPIC = "many"
_FORMS: dict[str, dict[str, str]] = {
    "without": {},
    "maxTaskIdleMs=0": {"maxTaskIdleMs": "0"},
    "maxTaskIdleMs=1000": {"maxTaskIdleMs": "1000"},
}
_EACH = 2  # records of each partition in a trigger
_FIRST = 2  # triggers that are not counted: the first ones send more requests

#: Spark works for at least this long between two triggers. Meanwhile commits are sent and requests
#: made ahead are answered, so that no form pays for what another has left to do.
_WORK_S = 0.15


@dataclass(frozen=True)
class Took:
    """The time of a trigger in one form, as medians.

    Attributes
    ----------
    ms, cpu_ms : float
        Elapsed time, and CPU time of all threads.
    ratio, cpu_ratio : float
        The ratio of each to that without the order, in the same turn.
    """

    ms: float
    cpu_ms: float
    ratio: float
    cpu_ratio: float


def measure(partitions: int, triggers: int) -> dict[str, Took]:
    """The time of a trigger by form; the forms take turns, trigger by trigger."""
    took: dict[str, list[tuple[float, float]]] = {form: [] for form in _FORMS}
    with (
        LocalKafka(broker_config={"log.flush.interval.messages": 10**9}) as kafka,
        ExitStack() as readers,
    ):
        kafka.create_topic(_TOPIC, partitions=partitions)
        _fill(kafka.bootstrap_servers, partitions, (triggers + _FIRST + 1) * _EACH)
        running = {}
        for form, options in _FORMS.items():
            given = {
                "kafka.bootstrap.servers": kafka.bootstrap_servers,
                "kafka.group.id": form,
                "subscribe": _TOPIC,
                "startingOffsets": "earliest",
                **{name.lower(): value for name, value in options.items()},
            }
            reader = KafkaDeferredStreamReader(SourceOptions.parse(given, default_readers=2))
            readers.callback(reader.stop)
            running[form] = _triggers(reader, partitions * _EACH)
        forms = list(running)
        for number in range(_FIRST + triggers):
            for form in forms:
                found = next(running[form])
                if number >= _FIRST:
                    took[form].append(found)
            forms.append(forms.pop(0))  # so that no form always follows the same one
    without = took["without"]
    return {form: _medians(found, without) for form, found in took.items()}


def _medians(found: list[tuple[float, float]], without: list[tuple[float, float]]) -> Took:
    ratios = [(a / c, b / d) for (a, b), (c, d) in zip(found, without, strict=True)]
    return Took(
        *(
            round(median(column), 3)
            for part in (found, ratios)
            for column in zip(*part, strict=True)
        )
    )


def _fill(servers: str, partitions: int, records: int) -> None:
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20, "log_level": 0})
    since_ms = int(time.time() * 1_000) - 3_600_000
    for number in range(records):
        for partition in range(partitions):
            at = since_ms + number * 1_000 + partition % 1_000
            producer.produce(_TOPIC, b"value", partition=partition, timestamp=at)
        producer.flush()


def _triggers(reader: KafkaDeferredStreamReader, limit: int) -> Iterator[tuple[float, float]]:
    """Run one trigger after the other; yield the elapsed and CPU time of each in ms."""
    start, has_read = reader.initialOffset(), False
    while True:
        time.sleep(_WORK_S)
        began, began_cpu = time.perf_counter(), time.process_time()
        end = reader.latestOffset(start, ReadMaxRows(limit))
        tasks = reader.partitions(start, end)
        reader.commit(end)
        took = time.perf_counter() - began, time.process_time() - began_cpu
        planned = sum(len(one.range) for task in tasks for one in task.value.ranges)
        start = end
        if not planned and not has_read:
            continue  # the members are still joining
        if not limit // 2 <= planned <= limit:
            raise RuntimeError(f"{planned} records of {limit} were planned")
        has_read = True
        yield took[0] * 1_000, took[1] * 1_000
