"""The ways to write records in transactions, each measured in a process of its own.

As a program, this is one of them: it sends the same record over and over, commits at intervals, and
prints what that took. It sends for a while before the measurement begins.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark_kafka_rebalance.testing.java import find_java
from pyspark_kafka_rebalance.testing.kafka_jars import KAFKA_TOOLS, broker_jars, single_jars

LINGER_MS = 5
BATCH_BYTES = 1_000_000  # of the others; ours have their default
#: What Arrow data has in one call.
ROWS_BYTES = 1_000_000
_WARM_UP_S = 1.0
_CALLS_AT_ONCE = 50

#: Sends some records and returns how many; commits the transaction.
Form = tuple[Callable[[], int], Callable[[int], None]]


@dataclass(frozen=True)
class Task:
    """What one process does.

    Attributes
    ----------
    size : int
        Bytes of a value; there are no keys.
    interval_ms : int
        How long records are sent before a commit.
    broker_pid : int
        Whose CPU time counts as the broker's.
    """

    form: str
    servers: str
    topic: str
    size: int
    interval_ms: int
    seconds: float
    broker_pid: int


@dataclass(frozen=True)
class Figures:
    """What it took.

    Attributes
    ----------
    records_per_s : float
        Of committed records, with everything that commits take.
    cpu_us, broker_cpu_us : float
        CPU time per record, of the process and of the broker. Microseconds.
    commit_ms : float
        What a commit takes, on average; -1: unknown.
    peak_mib : float
        Peak resident memory of the process.
    """

    records_per_s: float
    cpu_us: float
    broker_cpu_us: float
    commit_ms: float
    peak_mib: float


def run(task: Task) -> Figures:
    """Have a process of its own do it."""
    if task.form == "perf-test":
        return _java(task)
    command = [sys.executable, "-m", __name__, json.dumps(asdict(task))]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, check=True, text=True, cwd=Path(__file__).parents[1]
    )
    return Figures(**json.loads(done.stdout.splitlines()[-1]))


def cpu_s(pid: int) -> float:
    """The CPU seconds of all threads of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_mib(pid: int) -> float:
    """The peak resident memory of a process. MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def measured(task: Task, form: Form) -> Figures:
    """Send and commit for a while."""
    send, commit = form
    commit_s: list[float] = []

    def until(end: float) -> int:
        sent = 0
        while (now := time.perf_counter()) < end:
            due = now + task.interval_ms / 1000
            while time.perf_counter() < due:
                sent += send()
            before = time.perf_counter()
            commit(sent)
            commit_s.append(time.perf_counter() - before)
        return sent

    until(time.perf_counter() + _WARM_UP_S)
    commit_s.clear()
    broker_s, own_s, began = cpu_s(task.broker_pid), time.process_time(), time.perf_counter()
    sent = until(began + task.seconds)
    took = time.perf_counter() - began
    return Figures(
        sent / took,
        (time.process_time() - own_s) / sent * 1e6,
        (cpu_s(task.broker_pid) - broker_s) / sent * 1e6,
        sum(commit_s) / len(commit_s) * 1000,
        peak_mib(os.getpid()),
    )


@contextmanager
def _group(task: Task) -> Iterator[tuple[Any, Callable[[int], None]]]:
    from pyspark_kafka_rebalance import ProducerGroup

    with ProducerGroup(
        uuid.uuid4().hex, 1, bootstrap_servers=task.servers, linger_ms=LINGER_MS
    ) as group:
        group.subscribe()

        def commit(restart_point: int) -> None:
            group.commit_transaction(str(restart_point))

        yield group, commit


@contextmanager
def send(task: Task) -> Iterator[Form]:
    """A member of a producer group that owns the whole source, record by record."""
    value, topic = b"x" * task.size, task.topic
    with _group(task) as (group, commit):

        def some() -> int:
            for _ in range(_CALLS_AT_ONCE):
                group.send(topic, value, source_partition=0)
            return _CALLS_AT_ONCE

        yield some, commit


@contextmanager
def send_batch(task: Task) -> Iterator[Form]:
    """The same, with Arrow data."""
    import pyarrow as pa

    rows = ROWS_BYTES // task.size
    data = pa.table({"value": pa.array([b"x" * task.size] * rows)})
    with _group(task) as (group, commit):

        def some() -> int:
            group.send_batch(task.topic, data, source_partition=0)
            return rows

        yield some, commit


@contextmanager
def kafka_python(task: Task) -> Iterator[Form]:
    """kafka-python's own producer; commits no offsets."""
    from kafka import KafkaProducer

    value = b"x" * task.size
    producer = KafkaProducer(
        bootstrap_servers=task.servers,
        transactional_id=uuid.uuid4().hex,
        linger_ms=LINGER_MS,
        batch_size=BATCH_BYTES,
    )
    producer.init_transactions()
    producer.begin_transaction()

    def some() -> int:
        for _ in range(_CALLS_AT_ONCE):
            producer.send(task.topic, value)
        return _CALLS_AT_ONCE

    def commit(_: int) -> None:
        producer.commit_transaction()
        producer.begin_transaction()

    try:
        yield some, commit
    finally:
        producer.close()


@contextmanager
def _confluent(task: Task) -> Iterator[tuple[Any, Callable[[int], None]]]:
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": task.servers,
            "transactional.id": uuid.uuid4().hex,
            "linger.ms": LINGER_MS,
            "batch.size": BATCH_BYTES,
            "batch.num.messages": 1_000_000,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 65_536,
        }
    )
    producer.init_transactions()
    producer.begin_transaction()

    def commit(_: int) -> None:
        producer.commit_transaction()
        producer.begin_transaction()

    yield producer, commit


@contextmanager
def confluent(task: Task) -> Iterator[Form]:
    """confluent-kafka, record by record, without delivery reports; commits no offsets."""
    value, topic = b"x" * task.size, task.topic
    with _confluent(task) as (producer, commit):

        def some() -> int:
            for _ in range(_CALLS_AT_ONCE):
                try:
                    producer.produce(topic, value)
                except BufferError:
                    while True:
                        producer.poll(0.001)
                        try:
                            producer.produce(topic, value)
                            break
                        except BufferError:
                            continue
            return _CALLS_AT_ONCE

        yield some, commit


@contextmanager
def confluent_batch(task: Task) -> Iterator[Form]:
    """confluent-kafka's ``produce_batch``, with as many records in a call as ``send_batch`` has."""
    rows = ROWS_BYTES // task.size
    messages = [{"value": b"x" * task.size}] * rows
    with _confluent(task) as (producer, commit):

        def some() -> int:
            sent = producer.produce_batch(task.topic, messages)
            if sent < rows:
                producer.poll(0.001)
            return int(sent)

        yield some, commit


#: By what a table says.
FORMS: Mapping[str, Any] = {
    "send": send,
    "send_batch": send_batch,
    "kafka-python": kafka_python,
    "confluent-kafka": confluent,
    "confluent-kafka produce_batch": confluent_batch,
    "perf-test": None,
}


def _java(task: Task) -> Figures:
    """Kafka's kafka-producer-perf-test, which counts from its first record to its last."""
    jars = [f"{broker_jars()}/*", *map(str, single_jars([KAFKA_TOOLS]))]
    guess = 400_000 if task.size <= 100 else 100_000
    properties = [
        f"linger.ms={LINGER_MS}",
        f"batch.size={BATCH_BYTES}",
        f"buffer.memory={64 << 20}",
    ]
    command = [str(find_java().executable), "-Xmx512M", "-cp", ":".join(jars)]
    command += ["org.apache.kafka.tools.ProducerPerformance", "--topic", task.topic]
    command += ["--bootstrap-server", task.servers, "--record-size", str(task.size)]
    command += ["--num-records", str(int(guess * (task.seconds + _WARM_UP_S)))]
    command += ["--warmup-records", str(int(guess * _WARM_UP_S)), "--throughput", "-1"]
    command += ["--transactional-id", uuid.uuid4().hex]
    command += ["--transaction-duration-ms", str(task.interval_ms)]
    command += ["--command-property", *properties]
    said = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    (rate,) = [line for line in said.splitlines() if "99.9th" in line][-1:]
    return Figures(float(rate.split(" records/sec")[0].split()[-1]), -1, -1, -1, -1)


def _main(task: Task) -> None:
    with FORMS[task.form](task) as form:
        figures = measured(task, form)
    print(json.dumps(asdict(figures)))


if __name__ == "__main__":
    _main(Task(**json.loads(sys.argv[1])))
