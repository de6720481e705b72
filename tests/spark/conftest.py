"""Queries of one shared Spark session, and queries in processes of their own."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_kafka_rebalance.source.spark.read_limits import HAS_ADMISSION_CONTROL
from pyspark_kafka_rebalance.testing import LocalKafka, LocalSparkCluster
from pyspark_kafka_rebalance.testing.kafka_jars import SPARK_KAFKA_SOURCE, single_jars
from pyspark_kafka_rebalance.testing.ledger import LedgerReader, Tally, tally
from pyspark_kafka_rebalance.testing.local_spark import local_spark
from pyspark_kafka_rebalance.testing.query_process import QueryProcess

from . import spark_home
from .warm_sparks import WarmQuery, WarmSparks

# Spark starts its Python workers by this name, and they must find this package.
os.environ["PYSPARK_PYTHON"] = sys.executable


#: What docs/spark-versions.md says of AvailableNow and Once.
many_batches = pytest.mark.skipif(
    not HAS_ADMISSION_CONTROL,
    reason="before Spark 4.2 AvailableNow and Once run one batch, with the limits of the options",
)

#: What compares with Spark's own source.
built_in_source = pytest.mark.skipif(
    not HAS_ADMISSION_CONTROL, reason="the built-in source's jars are those of Spark 4.2"
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On an older Spark, only what may differ there.

    One group protocol is enough, since the brokers have both with every Spark, and what they and
    the group decide is not decided anew: the mark ``newest_spark``.
    """
    if HAS_ADMISSION_CONTROL:
        return
    same = {item for item in items if item.get_closest_marker("newest_spark")}
    same |= {i for i in items if i.path.parent.name == "spark" and _is_new_protocol(i)}
    config.hook.pytest_deselected(items=[item for item in items if item in same])
    items[:] = [item for item in items if item not in same]


def _is_new_protocol(item: pytest.Item) -> bool:
    spec = getattr(item, "callspec", None)
    return spec is not None and spec.params.get("protocol") == "consumer"


@pytest.fixture(scope="session", autouse=True)
def _sparks_start_soon() -> Iterator[None]:
    """Those of this process and of those that it starts."""
    with pytest.MonkeyPatch.context() as patched:
        for name, value in spark_home.environment().items():
            patched.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalSparkCluster]:
    """Its executors have what is installed in their Python, and nothing of this process's folders.

    Spark hands the driver's PYTHONPATH on to them, so the queries must not have one either.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv("PYTHONPATH", raising=False)
        with LocalSparkCluster() as running:
            yield running


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """One session for all tests; Spark's built-in Kafka source is there to compare with.

    Its tasks run in this process's JVM, or with TESTS_ON_SPARK_CLUSTER on a cluster.
    """
    master = None
    if os.environ.get("TESTS_ON_SPARK_CLUSTER"):
        master = request.getfixturevalue("cluster").master
    conf = {"spark.sql.session.timeZone": "UTC"}
    conf |= {**spark_home.CONNECT_SERVER, **spark_home.IDLE_SELDOM}
    if HAS_ADMISSION_CONTROL:  # as built_in_source
        conf["spark.jars"] = ",".join(str(jar) for jar in single_jars(SPARK_KAFKA_SOURCE))
    session = local_spark("tests", conf=conf, master=master)
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


def offsets_of(table: pa.Table) -> list[tuple[int, int]]:
    """A table's (partition, offset), sorted."""
    return sorted(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))


class Stream:
    """A query of the shared session that keeps its batches."""

    def __init__(
        self,
        spark: SparkSession,
        options: Mapping[str, str],
        checkpoint: Path,
        writer_options: Mapping[str, str],
    ) -> None:
        self._spark = spark
        self.options = dict(options)
        self._checkpoint = checkpoint
        self._writer_options = writer_options
        self.batches: dict[int, pa.Table] = {}
        self.query: StreamingQuery | None = None
        self.source = "kafka_deferred"
        #: Called by the sink when it has kept a batch.
        self.on_batch: Callable[[int, pa.Table], None] = lambda batch_id, batch: None
        #: What it reads, by default one load().
        self.frame: Callable[[], DataFrame] = self.load

    def load(self) -> DataFrame:
        return self._spark.readStream.format(self.source).options(**self.options).load()

    def start(self, **trigger: Any) -> StreamingQuery:
        def keep(batch: DataFrame, batch_id: int) -> None:
            table = batch.toArrow()
            # Another dict each time: a test may be going through the one before.
            self.batches = {**self.batches, batch_id: table}
            self.on_batch(batch_id, table)

        self.query = (
            self.frame()
            .writeStream.foreachBatch(keep)
            .options(**self._writer_options)
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(**trigger)
            .start()
        )
        return self.query

    def run(self, **trigger: Any) -> pa.Table:
        """Run to its end, by default with AvailableNow; the rows of this run."""
        before = set(self.batches)
        query = self.start(**(trigger or {"availableNow": True}))
        assert query.awaitTermination(120), "the query did not end"
        return self.rows(before)

    def rows(self, without: set[int] = frozenset()) -> pa.Table:  # type: ignore[assignment]
        new = [self.batches[n] for n in sorted(self.batches) if n not in without]
        filled = [table for table in new if table.num_rows]
        return pa.concat_tables(filled) if filled else (new[0] if new else pa.table({}))

    def stop(self) -> None:
        if self.query is not None:
            self.query.stop()


@pytest.fixture
def stream(
    spark: SparkSession, kafka: LocalKafka, topic_name: str, group_id: str, tmp_path: Path
) -> Iterator[Callable[..., Stream]]:
    """Make streams of one topic and group; stopped at the end."""
    made: list[Stream] = []

    def make(
        name: str = "query", writer_options: Mapping[str, str] | None = None, **options: str
    ) -> Stream:
        settings = {
            "kafka.bootstrap.servers": kafka.bootstrap_servers,
            "kafka.group.id": group_id,
            "subscribe": topic_name,
            "startingOffsets": "earliest",
            "readers": "2",
            "kafka.session.timeout.ms": "10000",
            "checkpointLocation": str(tmp_path / name),
        }
        for key, value in options.items():
            settings[key.replace("__", ".")] = value
        given = {key: value for key, value in settings.items() if value}
        made.append(Stream(spark, given, tmp_path / name, writer_options or {}))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture
def quorum(kafka3: LocalKafka) -> Iterator[LocalKafka]:
    """Three brokers, which all run again afterwards."""
    yield kafka3
    for broker_id in set(kafka3.broker_ids) - set(kafka3.running):
        kafka3.restart(broker_id)


@pytest.fixture
def committed(kafka: LocalKafka, group_id: str) -> Callable[[], dict[TopicPartition, int]]:
    """The group's committed offsets, asked as any Kafka tool asks."""

    def ask() -> dict[TopicPartition, int]:
        return kafka.committed(group_id)

    return ask


class SteadyProducer:
    """Records to every partition at a steady rate, from a thread of its own."""

    def __init__(self, kafka: LocalKafka, topic: str, partitions: int, per_second: int) -> None:
        self._producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, linger_ms=5)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(topic, partitions, per_second))

    def _run(self, topic: str, partitions: int, per_second: int) -> None:
        sent, began_at = 0, time.monotonic()
        while not self._stopping.is_set():
            due = int((time.monotonic() - began_at) * per_second)
            for number in range(sent, due):
                self._producer.send(topic, b"%099d" % number, partition=number % partitions)
            sent = max(sent, due)
            time.sleep(0.01)

    def __enter__(self) -> SteadyProducer:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop and flush; idempotent."""
        self._stopping.set()
        self._thread.join()
        self._producer.close()


@pytest.fixture(scope="session")
def warm_sparks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmSparks]:
    """Processes for the queries of one test after another; none is started before the first."""
    sparks = WarmSparks(tmp_path_factory.mktemp("warm-sparks"))
    yield sparks
    sparks.close()


class Queries:
    """Queries of one group, each in its own process, and their ledger."""

    def __init__(
        self, kafka: LocalKafka, topic: str, group_id: str, work: Path, sparks: WarmSparks
    ) -> None:
        self._kafka = kafka
        self._sparks = sparks
        self._work = work
        self._options = {
            "kafka.bootstrap.servers": kafka.bootstrap_servers,
            "kafka.group.id": group_id,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "readers": "2",
            "kafka.session.timeout.ms": "10000",
        }
        self._topic = topic
        self._ledger = LedgerReader(work / "ledger")
        self._made: list[WarmQuery] = []
        self._clustered: list[QueryProcess] = []

    def start(
        self,
        name: str,
        batch_s: float = 0.3,
        trigger: str = "0 seconds",
        hold: bool = False,
        writer_options: Mapping[str, str] | None = None,
        **options: str,
    ) -> WarmQuery:
        query = WarmQuery(
            self._sparks,
            name,
            {**self._options, **{key.replace("__", "."): value for key, value in options.items()}},
            ledger=self._work / "ledger",
            work=self._work,
            batch_s=batch_s,
            trigger={"processingTime": trigger},
            hold=hold,
            writer_options=writer_options,
        )
        self._made.append(query)
        return query.start()

    def start_on(self, master: str, name: str, cores: int = 2, **options: str) -> QueryProcess:
        """One whose driver has a process of its own, and whose tasks run on a Spark cluster."""
        query = QueryProcess(
            name,
            {**self._options, **options},
            ledger=self._work / "ledger",
            work=self._work,
            batch_s=0.3,
            master=master,
            parallelism=cores,
        )
        self._clustered.append(query)
        return query.start()

    def ledger(self) -> pa.Table:
        return self._ledger.read()

    def ends(self) -> dict[TopicPartition, int]:
        """The topic's end offsets."""
        consumer = KafkaConsumer(bootstrap_servers=self._kafka.bootstrap_servers)
        try:
            partitions = consumer.partitions_for_topic(self._topic)
            return consumer.end_offsets([TopicPartition(self._topic, p) for p in partitions])
        finally:
            consumer.close()

    def tally(self) -> Tally:
        return tally(self.ledger(), self.ends())

    def wait_until_all_is_read(self, patience_s: float = 60.0) -> Tally:
        deadline = time.monotonic() + patience_s
        while (result := self.tally()).lost and time.monotonic() < deadline:
            time.sleep(0.5)
        return result

    def end_all(self) -> None:
        for query in self._made:
            query.end()
        for process in self._clustered:
            process.kill()


@pytest.fixture
def queries(
    kafka: LocalKafka, topic_name: str, group_id: str, tmp_path: Path, warm_sparks: WarmSparks
) -> Iterator[Queries]:
    """Make queries in processes of their own; ended at the end."""
    made = Queries(kafka, topic_name, group_id, tmp_path, warm_sparks)
    yield made
    made.end_all()
