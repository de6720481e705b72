"""The Python of README and docs, run as it is printed.

A page's blocks run one after the other in one module's names, as a reader would type them. Only the
broker's address and the folders are others. What a page takes for granted ("your sink") is given by
the test; a loop without an end is left when every record has been processed, as by Ctrl-C.

``tests/unit/test_docs.py`` holds all blocks, run or not, to names and options that exist.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from kafka import KafkaConsumer
from kafka.serializer import Deserializer
from kafka.structs import OffsetAndMetadata, TopicPartition
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQuery, StreamingQueryManager

import pyspark_kafka_rebalance
from pyspark_kafka_rebalance import stop_gracefully, testing
from pyspark_kafka_rebalance.consumer.aio.asynchronous import AsyncDeferredRevokeConsumer
from pyspark_kafka_rebalance.consumer.consumer import DeferredRevokeConsumer
from pyspark_kafka_rebalance.producer.group import ProducerGroup
from pyspark_kafka_rebalance.testing import LocalKafka
from pyspark_kafka_rebalance.testing.brokers.certificates import CertificateAuthority

from ..snippets import Snippet, snippets
from .waiting import wait_until

pytestmark = pytest.mark.newest_spark

#: Python blocks that nothing here runs, by page and number, and why.
NOT_RUN = {
    ("README.md", 2): "examples/quickstart.py, run by test_examples.py",
    ("docs/consumer.md", 9): "followed by tests/kafka/test_application_transactions.py",
    ("docs/observability.md", 2): "the process's only meter provider, and a port: test_metrics.py",
    ("docs/producer-groups.md", 3): "tests/kafka/test_async_producer_group.py does the same",
    ("docs/security.md", 3): "tests/kafka/test_secured_brokers.py starts the same broker",
    ("docs/spark-versions.md", 1): "Connect's client needs a process: test_connect.py",
    ("docs/stateful-queries.md", 1): "a part of examples/totals_by_customer.py: test_examples.py",
    ("docs/testing.md", 2): "a process has one SparkContext; tests/cluster starts this cluster",
}

RECORDS = 10

#: Blocks that a test here runs, by page and number.
RUN: set[tuple[str, int]] = set()


def of(page: str, *numbers: int, also: str | None = None) -> pytest.MarkDecorator:
    """Give a test, as ``printed``, these Python blocks of the page, and all of another."""
    printed = [s for s in snippets("python", page) if s.number in numbers]
    assert len(printed) == len(numbers), f"{page} has no blocks {numbers}"
    printed += snippets("python", also) if also else []
    RUN.update((snippet.page, snippet.number) for snippet in printed)
    return pytest.mark.parametrize("printed", [printed], ids=[str(printed[0])])


def test_every_block_is_run_or_has_a_reason() -> None:
    every = {(snippet.page, snippet.number) for snippet in snippets("python")}
    assert every - RUN == NOT_RUN.keys()
    assert not RUN & NOT_RUN.keys()


class _End(BaseException):
    """All is processed: a snippet's loop may end."""


class Until:
    """What is to be processed, and what is."""

    def __init__(self) -> None:
        self.wanted: set[tuple[TopicPartition, int]] = set()
        self.processed: set[tuple[TopicPartition, int]] = set()
        self.ended_by: type[BaseException] = _End

    def up_to(self, offsets: Mapping[TopicPartition, int]) -> None:
        for partition, end in offsets.items():
            self.processed.update((partition, offset) for offset in range(end))
        self.check()

    def check(self) -> None:
        if self.wanted and self.processed >= self.wanted:
            raise self.ended_by


class Page:
    """What the blocks of a page need."""

    def __init__(self, kafka: LocalKafka, folder: Path) -> None:
        self.kafka = kafka
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.until = Until()
        self.topics: list[str] = []
        self._folder = folder

    def create(self, *topics: str, partitions: int = 2, records: int = RECORDS) -> None:
        """Make topics with records, which the page then has to process."""
        for topic in topics:
            self.topics.append(topic)
            self.kafka.create_topic(topic, partitions=partitions)
            if records:
                self.produce(topic, records)

    def produce(self, topic: str, records: int = RECORDS) -> None:
        self.kafka.produce(topic, [b"%d" % n for n in range(records)])
        self.until.wanted |= {(p, o) for p, end in self.ends(topic).items() for o in range(end)}

    def begin(self, group_id: str, topic: str) -> None:
        """Commit the topic's beginning, since a new group begins at its end."""
        consumer = KafkaConsumer(bootstrap_servers=self.kafka.bootstrap_servers, group_id=group_id)
        consumer.commit({p: OffsetAndMetadata(0, "", -1) for p in self.ends(topic)})
        consumer.close()

    def ends(self, topic: str) -> dict[TopicPartition, int]:
        consumer = KafkaConsumer(bootstrap_servers=self.kafka.bootstrap_servers)
        try:
            partitions = consumer.partitions_for_topic(topic)
            return consumer.end_offsets([TopicPartition(topic, n) for n in partitions])
        finally:
            consumer.close()

    def run(self, printed: list[Snippet], **given: Any) -> dict[str, Any]:
        """Run blocks one after the other, each to its end or until all is processed."""
        self.names.update(given)
        for snippet in printed:
            text = snippet.text.replace("127.0.0.1:9092", self.kafka.bootstrap_servers)
            for root in ("/data/", "/checkpoints/", "/tables/", "/etc/kafka/"):
                text = text.replace(f'"{root}', f'"{self._folder}{root}')
            code = compile(text, str(snippet), "exec")
            ended(lambda: exec(code, self.names))  # noqa: B023
        return self.names

    def committed(self, group_id: str) -> int:
        """How many records the group has behind it, when its consumers have ended."""
        self.close()
        return sum(self.kafka.committed(group_id).values())

    def reads_all(self, query: StreamingQuery) -> None:
        """Wait until a query has read all records."""

        def has_all() -> bool:
            assert query.exception() is None
            return sum(batch.numInputRows for batch in query.recentProgress) >= len(
                self.until.wanted
            )

        wait_until(has_all, "all is read")

    def stop_gracefully(self, query: StreamingQuery, **how: Any) -> bool:
        """The package's own, which a snippet calls when its query has read all."""
        self.reads_all(query)
        return stop_gracefully(query, **how)

    def close(self) -> None:
        for value in self.names.values():
            if isinstance(value, DeferredRevokeConsumer):
                value.close(timeout_ms=10_000)


def ended(call: Callable[[], object]) -> None:
    try:
        call()
    except BaseException as error:
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:  # noqa: F821
            (error,) = error.exceptions
        if not isinstance(error, _End):
            raise


@pytest.fixture(autouse=True)
def _no_query_stays(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "spark" in request.fixturenames:
        for query in request.getfixturevalue("spark").streams.active:
            query.stop()


@pytest.fixture
def page(kafka: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    made = Page(kafka, tmp_path)
    until = made.until

    class Consumer(DeferredRevokeConsumer):
        """Ends a snippet's loop; its new groups begin with the records that are there."""

        def commit_processed(self, offsets: Mapping[TopicPartition, int]) -> None:
            super().commit_processed(offsets)
            until.up_to(offsets)

        def processed(self, partition: TopicPartition, *offsets: int) -> None:
            super().processed(partition, *offsets)
            until.processed.update((partition, offset) for offset in offsets)

        def poll_with_rebalance(self, *args: Any, **kwargs: Any) -> Any:
            until.check()
            return super().poll_with_rebalance(*args, **kwargs)

    class AsyncConsumer(AsyncDeferredRevokeConsumer):
        def commit_processed(self, offsets: Mapping[TopicPartition, int]) -> None:
            super().commit_processed(offsets)
            until.up_to(offsets)

        def processed(self, partition: TopicPartition, *offsets: int) -> None:
            super().processed(partition, *offsets)
            until.processed.update((partition, offset) for offset in offsets)

        async def poll_with_rebalance(self, *args: Any, **kwargs: Any) -> Any:
            until.check()
            return await super().poll_with_rebalance(*args, **kwargs)

    class Group(ProducerGroup):
        def commit_transaction(self, *args: Any) -> None:
            super().commit_transaction(*args)
            raise _End

    @contextmanager
    def running_broker() -> Iterator[LocalKafka]:
        yield kafka

    monkeypatch.setitem(KafkaConsumer.DEFAULT_CONFIG, "auto_offset_reset", "earliest")
    for name, value in {
        "DeferredRevokeConsumer": Consumer,
        "AsyncDeferredRevokeConsumer": AsyncConsumer,
        "ProducerGroup": Group,
        "stop_gracefully": made.stop_gracefully,
    }.items():
        monkeypatch.setattr(pyspark_kafka_rebalance, name, value, raising=False)
    monkeypatch.setattr(testing, "LocalKafka", running_broker)
    yield made
    made.close()
    for topic in made.topics:  # and with it what groups have committed
        kafka.delete_topic(topic)


# -- consumers and producers -------------------------------------------------------------------


@of("README.md", 3)
def test_workers_of_the_readme(page: Page, printed: list[Snippet]) -> None:
    def start(found: Mapping[TopicPartition, list[Any]]) -> None:
        for partition, records in found.items():
            for record in records:
                page.names["consumer"].processed(partition, record.offset)

    page.create("orders")
    page.run(printed, workers=SimpleNamespace(start=start, abort=lambda lost: None))
    assert page.committed("g") == RECORDS


@of("docs/consumer.md", 1)
def test_starting_and_stopping(page: Page, printed: list[Snippet]) -> None:
    """With Ctrl-C when all is printed."""
    said: list[str] = []
    page.until.ended_by = KeyboardInterrupt
    page.create("orders")
    page.run(printed, print=lambda *words: said.append(" ".join(map(str, words))))
    assert said.pop() == "stopped"
    assert sorted(said)[:2] == ["0 0 b'0'", "0 1 b'2'"]
    assert len(said) == RECORDS
    assert page.committed("g") == RECORDS


@of("docs/consumer.md", 2)
def test_out_of_order_processing(page: Page, printed: list[Snippet]) -> None:
    page.create("orders")
    page.run(printed)
    assert page.committed("g") == RECORDS


@of("docs/consumer.md", 3)
def test_live_records_first(page: Page, printed: list[Snippet]) -> None:
    shown: list[Any] = []
    page.create("orders")
    consumer = pyspark_kafka_rebalance.DeferredRevokeConsumer
    page.run(printed, DeferredRevokeConsumer=consumer, show=shown.extend, store=shown.extend)
    assert page.committed("g") == RECORDS
    assert len(shown) == RECORDS


@of("docs/consumer.md", 4)
def test_records_that_cannot_be_read(page: Page, printed: list[Snippet]) -> None:
    skipped: list[Any] = []

    class RefusesFour(Deserializer):  # type: ignore[misc]
        def deserialize(self, topic: str, headers: Any, data: bytes) -> bytes:
            if data == b"4":
                raise ValueError("four")
            return data

    class Reader(pyspark_kafka_rebalance.DeferredRevokeConsumer):  # type: ignore[name-defined,misc]
        def poll_with_rebalance(self, *args: Any, **kwargs: Any) -> Any:
            result = super().poll_with_rebalance(*args, **kwargs)
            page.until.processed |= {
                (p, record.offset) for p, records in result.records.items() for record in records
            }
            return result

    page.create("orders", partitions=1)
    partition = TopicPartition("orders", 0)
    page.until.wanted.discard((partition, 4))
    reader = Reader(
        "orders",
        group_id="g",
        bootstrap_servers=page.kafka.bootstrap_servers,
        value_deserializer=RefusesFour(),
    )
    log = SimpleNamespace(error=lambda *said: skipped.append(said))
    page.run(printed, consumer=reader, log=log)
    assert len(skipped) == 1


@of("docs/consumer.md", 5)
def test_where_each_partition_stands(page: Page, printed: list[Snippet]) -> None:
    said: dict[TopicPartition, tuple[str, ...]] = {}

    def note(partition: TopicPartition, *words: str) -> None:
        said[partition] = words

    page.create("orders")
    page.until.wanted.clear()
    consumer = pyspark_kafka_rebalance.DeferredRevokeConsumer(
        "orders", group_id="g", bootstrap_servers=page.kafka.bootstrap_servers
    )
    page.names["consumer"] = consumer

    def is_told() -> bool:
        page.run(printed, print=note, time=time)
        return len(said) == 2 and all(words[0] == "caught up" for words in said.values())

    wait_until(is_told, lambda: str(said))


@of("docs/consumer.md", 6)
def test_arrow_record_batches(page: Page, printed: list[Snippet]) -> None:
    page.create("orders")
    page.run(printed)
    assert page.committed("g") == RECORDS


@pytest.mark.skipif(sys.version_info < (3, 11), reason="asyncio.TaskGroup")
@of("docs/consumer.md", 7, 8)
def test_with_asyncio(page: Page, printed: list[Snippet]) -> None:
    page.create("orders")
    page.run(printed[:1])
    assert page.committed("g") == RECORDS
    page.produce("orders")
    page.run(printed[1:])
    ended(lambda: asyncio.run(page.names["main"]()))
    assert page.committed("g") == 2 * RECORDS


@of("docs/event-time.md", 2)
def test_in_order_of_timestamps(page: Page, printed: list[Snippet]) -> None:
    said: list[int] = []
    page.create("clicks", "views")
    page.run(printed, print=lambda timestamp, *rest: said.append(timestamp))
    assert len(said) == 2 * RECORDS
    assert page.committed("g") == 2 * RECORDS


@of("docs/migrating.md", 2)
def test_from_kafka_consumer(page: Page, printed: list[Snippet]) -> None:
    processed: list[Any] = []
    page.create("orders")
    page.run(printed, process=processed.append)
    assert len(processed) == RECORDS
    assert page.committed("g") == RECORDS


def produce_tables(page: Page, printed: list[Snippet]) -> None:
    """A source of three tables, each with two rows."""

    def changed_after(table: int, restart_point: str | None) -> list[SimpleNamespace]:
        first = 0 if restart_point is None else int(restart_point) + 1
        return [SimpleNamespace(key=None, value=b"row", change=str(n)) for n in range(first, 2)]

    topics = {0: "customers", 1: "orders", 2: "payments"}
    page.create(*topics.values(), partitions=1, records=0)
    page.topics.append("__producer_group.db1")
    page.run(printed, rows_changed_after=changed_after, TOPICS=topics)
    ends = [end for topic in topics.values() for end in page.ends(topic).values()]
    assert ends == [3, 3, 3], "two rows and the marker of their transaction"


@of("README.md", 4)
def test_producers_of_the_readme(page: Page, printed: list[Snippet]) -> None:
    produce_tables(page, printed)


@of("docs/producer-groups.md", 1)
def test_producers(page: Page, printed: list[Snippet]) -> None:
    produce_tables(page, printed)


@of("docs/producer-groups.md", 2)
def test_rows_of_a_source(page: Page, printed: list[Snippet]) -> None:
    page.create("orders", partitions=1, records=0)
    page.topics.append("__producer_group.rows")
    with ProducerGroup("rows", 3, bootstrap_servers=page.kafka.bootstrap_servers) as group:
        group.subscribe()
        page.run(printed, group=group, rows=pa.table({"value": ["a", "b"]}))
        assert group.restart_points[1] == "4711"
    assert list(page.ends("orders").values()) == [3], "with the marker"


@of("docs/producer.md", 1)
def test_a_producer(page: Page, printed: list[Snippet]) -> None:
    page.create("orders", "payments", partitions=1, records=0)
    page.run(printed)
    ends = [sum(page.ends(topic).values()) for topic in page.topics]
    assert ends == [4, 2], "records, and the marker of a transaction"


@of("docs/producer.md", 2)
def test_results_and_offsets_in_one_transaction(
    page: Page, printed: list[Snippet], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = TopicPartition("orders", 0)

    class Reader(DeferredRevokeConsumer):
        def poll(self, *args: Any, **kwargs: Any) -> Any:
            if self.committed(source) == RECORDS:
                raise _End
            return super().poll(*args, **kwargs)

    monkeypatch.setattr(pyspark_kafka_rebalance, "DeferredRevokeConsumer", Reader)
    page.create("orders", partitions=1)
    page.create("enriched", partitions=1, records=0)
    page.run(printed)["producer"].close()
    reader = KafkaConsumer(
        "enriched",
        bootstrap_servers=page.kafka.bootstrap_servers,
        isolation_level="read_committed",
    )
    assert [next(reader).value for _ in range(RECORDS)] == [b"%d" % n for n in range(RECORDS)]
    assert sum(page.ends("enriched").values()) == RECORDS + 1, "with the marker"
    reader.close()


@of("docs/observability.md", 1)
def test_metrics(
    page: Page, printed: list[Snippet], spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    added: list[StreamingQueryListener] = []
    add = StreamingQueryManager.addListener

    def noted(manager: StreamingQueryManager, listener: StreamingQueryListener) -> None:
        added.append(listener)
        add(manager, listener)

    monkeypatch.setattr(StreamingQueryManager, "addListener", noted)
    servers = page.kafka.bootstrap_servers
    consumer = DeferredRevokeConsumer(group_id="observed", bootstrap_servers=servers)
    group = ProducerGroup("observed-source", 1, bootstrap_servers=servers)
    try:
        page.run(printed, consumer=consumer, group=group, spark=spark)
        assert len(added) == 1
        assert consumer._observed.by is not None
    finally:
        for listener in added:
            spark.streams.removeListener(listener)
        group.close()


# -- for tests ----------------------------------------------------------------------------------


@of("README.md", 5)
def test_local_kafka(page: Page, printed: list[Snippet]) -> None:
    seen: list[str] = []
    page.topics.append("orders")
    page.run(printed, run_my_job=seen.append)
    assert seen == [page.kafka.bootstrap_servers]
    assert sum(page.ends("orders").values()) == 2


@of("docs/testing.md", 1)
def test_the_verifiable_consumer(
    page: Page, printed: list[Snippet], capfd: pytest.CaptureFixture[str]
) -> None:
    page.topics.append("orders")
    page.run(printed)
    assert '"name":"records_consumed","count":3' in capfd.readouterr().out


@of("docs/testing.md", 3)
def test_a_postgresql(page: Page, printed: list[Snippet]) -> None:
    names = page.run(printed)
    assert names["connection"].closed


# -- Spark ---------------------------------------------------------------------------------------


@of("README.md", 1)
def test_with_a_broker_of_your_own(
    page: Page,
    printed: list[Snippet],
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page.create("orders")
    page.begin("orders-etl", "orders")

    def await_all(query: StreamingQuery) -> None:
        """Until all is read; then it is stopped, as by somebody else."""
        page.reads_all(query)
        query.stop()

    monkeypatch.setattr(StreamingQuery, "awaitTermination", await_all)
    page.run(printed)
    assert spark.read.parquet(f"{tmp_path}/data/orders").count() == RECORDS


@of("docs/options.md", 1)
def test_several_queries_of_one_load(
    page: Page, printed: list[Snippet], spark: SparkSession
) -> None:
    page.create("orders")
    names = page.run(printed, spark=spark)
    for name in ("raw", "alerts"):
        page.reads_all(names[name])
    assert spark.table("raw").count() == RECORDS
    assert spark.table("alerts").count() == spark.table("raw").where("offset % 7 = 0").count()


@of("docs/options.md", 2)
def test_assign(page: Page, printed: list[Snippet], spark: SparkSession) -> None:
    assert page.run(printed, spark=spark)["frame"].isStreaming


@of("docs/event-time.md", 1)
def test_frame_in_order_of_timestamps(
    page: Page, printed: list[Snippet], spark: SparkSession
) -> None:
    assert page.run(printed, spark=spark)["frame"].isStreaming


@of("docs/security.md", 1, 2)
def test_logins(page: Page, printed: list[Snippet], spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "etc" / "kafka"
    folder.mkdir(parents=True)
    CertificateAuthority("snippets").write_stores(folder, "client", "no such")
    names = page.run(printed[:1], spark=spark, password="no such")
    assert names["orders"].isStreaming
    assert page.run(printed[1:], store_password="no such")["options"]


@of("docs/parallel-rebalance.md", 1, 2, 3)
def test_live_rows_first(
    page: Page, printed: list[Snippet], spark: SparkSession, tmp_path: Path
) -> None:
    page.create("orders")
    page.begin("orders-etl", "orders")
    log = str(tmp_path / "derby.log")
    spark._jvm.java.lang.System.setProperty("derby.stream.error.file", log)  # type: ignore[union-attr]
    dashboard = {"url": "jdbc:derby:memory:snippets;create=true", "dbtable": "newest"}
    names = page.run(printed, spark=spark, DASHBOARD=dashboard)
    # One whose clean-up has failed stays in there, though it has ended.
    (query,) = (query for query in spark.streams.active if query.isActive)
    page.reads_all(query)
    query.stop()
    assert spark.read.parquet(f"{tmp_path}/tables/orders").count() == RECORDS
    assert spark.read.format("jdbc").options(**dashboard).load().count() > 0
    assert names["counts"].isStreaming


@of("docs/what-can-be-repeated.md", 1, 2, also="docs/progress.md")
def test_stopping(
    page: Page,
    printed: list[Snippet],
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    """The second block makes what the first begins with; ``progress`` shows the query."""
    page.create("orders")
    options = {
        "kafka.bootstrap.servers": page.kafka.bootstrap_servers,
        "kafka.group.id": "snippets",
        "subscribe": "orders",
        "startingOffsets": "earliest",
    }
    stopping, loading, *showing = printed
    page.run([loading], spark=spark, options=options, checkpoint=str(tmp_path / "checkpoint"))
    names = page.run([stopping], write=lambda batch, batch_id: batch.collect())
    assert names["complete"]
    assert page.committed("snippets") == RECORDS
    said: list[Any] = []
    lags: list[float] = []
    given = {"StreamingQueryListener": StreamingQueryListener}
    given |= {"lag_gauge": SimpleNamespace(set=lags.append)}
    page.run(showing, print=said.append, query=names["query"], **given)
    assert [p.position for p in said[0]] == [5, 5]
    assert names["behind"] == []
    names["LagGauges"]().onQueryProgress(SimpleNamespace(progress=names["query"].lastProgress))
    assert lags == [0.0]


@of("docs/migrating.md", 1, 3)
def test_migrating(page: Page, printed: list[Snippet], spark: SparkSession) -> None:
    page.create("orders")
    page.begin("orders-etl", "orders")
    start, hand_over = printed
    query = page.run([start], spark=spark)["query"]
    page.reads_all(query)
    said: list[Any] = []
    page.run([hand_over], green=query, blue=query, print=said.append)
    assert [p.position for p in said[0]] == [5, 5]
    assert said[1] is True


@of("docs/exactly-once.md", 1, 2)
def test_exactly_once(
    page: Page, printed: list[Snippet], spark: SparkSession, tmp_path: Path
) -> None:
    page.create("orders-clean", records=0)
    rows = spark.createDataFrame([("k", "a"), (None, "b")], "key string, value string")
    rows.write.parquet(str(tmp_path / "orders"))
    orders = spark.readStream.schema(rows.schema).parquet(str(tmp_path / "orders"))
    streamed, in_each_batch = printed
    query = page.run([streamed], orders=orders)["query"]
    query.processAllAvailable()
    query.stop()
    write = page.run([in_each_batch])["write"]
    write = orders.writeStream.foreachBatch(write).trigger(availableNow=True)
    each = write.option("checkpointLocation", str(tmp_path / "each")).start()
    assert each.awaitTermination(60)
    found = spark.read.format("kafka_deferred").option("subscribe", "orders-clean")
    found = found.option("kafka.bootstrap.servers", page.kafka.bootstrap_servers).load()
    values = sorted(row.value.decode() for row in found.select("value").collect())
    assert values == ["a", "a", "b", "b"]
