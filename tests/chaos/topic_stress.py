"""A query over topics that come, grow and go, and that is restarted: every record exactly once.

Spark's own suite has the same for its Kafka source (``KafkaSourceStressSuite``). What is to happen
is decided from a seed alone, ahead of time; what the query makes of it is up to the machine. A
topic is deleted only once all that was in it has been read, as there: what is deleted earlier is
lost to any reader.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_kafka_rebalance.testing import LocalKafka

_MOST_TOPICS = 5
_MOST_PARTITIONS = 6

_WEIGHTS = {"create": 3, "delete": 2, "grow": 3, "restart": 2, "produce": 2}


@dataclass(frozen=True)
class Round:
    """What happens to the topics or the query; then every partition gets some records."""

    action: str  # create, delete, grow, restart (with the records while it is stopped), produce
    topic: int = 0
    partitions: int = 0
    records: int = 0

    def __str__(self) -> str:
        return f"{self.action} {self.topic} ({self.partitions} partitions, {self.records} records)"


def make_rounds(seed: int, count: int) -> list[Round]:
    """Decide what happens. No topic comes again under its name: of one that does, as with Spark's
    own source, what lies before the old one's positions may be passed over."""
    chance = random.Random(seed)
    topics, made = {0: 1}, 1
    rounds = [Round("create", 0, 1, 5)]
    while len(rounds) < count:
        action = chance.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        topic = chance.choice(sorted(topics))
        if action == "create":
            if len(topics) == _MOST_TOPICS:
                continue
            topic, made = made, made + 1
            topics[topic] = chance.randint(1, 3)
        elif action == "delete":
            if len(topics) == 1:
                continue
            del topics[topic]
        elif action == "grow":
            if topics[topic] == _MOST_PARTITIONS:
                continue
            topics[topic] = chance.randint(topics[topic] + 1, _MOST_PARTITIONS)
        rounds.append(Round(action, topic, topics.get(topic, 0), chance.randint(1, 20)))
    return rounds


class TopicStress:
    """One run.

    Parameters
    ----------
    kafka : LocalKafka
        Where the topics are made.
    spark : SparkSession
        Runs the query.
    rounds : sequence of Round
        From :func:`make_rounds`.
    name : str
        Of the group, and what the topics' names begin with.
    work : Path
        For the checkpoint.
    patience_s : float
        How long the records of one round may take.
    """

    def __init__(
        self,
        kafka: LocalKafka,
        spark: SparkSession,
        rounds: Sequence[Round],
        name: str,
        work: Path,
        patience_s: float = 120.0,
    ) -> None:
        self._kafka = kafka
        self._spark = spark
        self._rounds = rounds
        self._name = name
        self._checkpoint = str(work / "checkpoint")
        self._patience_s = patience_s
        self._partitions: dict[str, int] = {}
        self._numbers: Iterator[int] = iter(range(2**31))
        self._produced: Counter[bytes] = Counter()
        #: By batch: one that was under way at a restart is run again with the same rows.
        self._batches: dict[int, list[bytes]] = {}
        self._query: StreamingQuery | None = None

    @property
    def batches(self) -> int:
        """How many batches had rows."""
        return sum(map(bool, self._batches.values()))

    def run(self) -> None:
        """Do one round after the other.

        Raises
        ------
        AssertionError
            The first round after which a record is missing, or came twice.
        """
        try:
            for number, one in enumerate(self._rounds):
                self._do(one)
                for topic in self._partitions:
                    self._produce(topic, one.records)
                if self._query is None:
                    self._start()
                self._check(f"round {number}: {one}")
        finally:
            self._stop()

    def _do(self, one: Round) -> None:
        topic = f"{self._name}.{one.topic}"
        if one.action == "create":
            self._kafka.create_topic(topic, partitions=one.partitions)
            self._partitions[topic] = one.partitions
        elif one.action == "delete":
            self._kafka.delete_topic(topic)
            del self._partitions[topic]
        elif one.action == "grow":
            self._kafka.add_partitions(topic, one.partitions)
            self._partitions[topic] = one.partitions
        elif one.action == "restart":
            self._stop()

    def _produce(self, topic: str, count: int) -> None:
        for partition in range(self._partitions[topic]):
            values = [b"%d" % next(self._numbers) for _ in range(count)]
            self._kafka.produce(topic, values, partition=partition)
            self._produced.update(values)

    def _check(self, what: str) -> None:
        deadline = time.monotonic() + self._patience_s
        while (read := self._read()) != self._produced:
            assert self._query is not None
            if (failure := self._query.exception()) is not None:
                raise AssertionError(f"{what}: the query failed") from failure
            missing, twice = self._produced - read, read - self._produced
            assert not twice, f"{what}: came twice: {sorted(twice)}"
            assert time.monotonic() < deadline, f"{what}: missing: {sorted(missing)}"
            time.sleep(0.05)

    def _read(self) -> Counter[bytes]:
        return Counter(value for batch in list(self._batches.values()) for value in batch)

    def _start(self) -> None:
        def keep(batch: DataFrame, batch_id: int) -> None:
            rows: pa.Table = batch.select("value").toArrow()
            self._batches[batch_id] = rows["value"].to_pylist()

        options: dict[str, Any] = {
            "kafka.bootstrap.servers": self._kafka.bootstrap_servers,
            "kafka.group.id": self._name,
            "subscribePattern": f"{self._name}.*",
            "startingOffsets": "earliest",
            "failOnDataLoss": "false",
            "kafka.metadata.max.age.ms": "200",
            "kafka.session.timeout.ms": "10000",
            "checkpointLocation": self._checkpoint,
            "readers": "2",
        }
        frame = self._spark.readStream.format("kafka_deferred").options(**options).load()
        self._query = (
            frame.writeStream.foreachBatch(keep)
            .option("checkpointLocation", self._checkpoint)
            .trigger(processingTime="0 seconds")
            .start()
        )

    def _stop(self) -> None:
        query, self._query = self._query, None
        if query is not None:
            query.stop()
