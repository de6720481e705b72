"""The steps of docs/migrating.md: from Spark's own Kafka source, from consumers, and back again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable

import pyarrow as pa
import pytest
from kafka import KafkaConsumer
from kafka.structs import OffsetAndMetadata, TopicPartition
from pyspark.errors import StreamingQueryException

from pyspark_kafka_rebalance import progress, stop_gracefully
from pyspark_kafka_rebalance.source.positions import main
from pyspark_kafka_rebalance.testing import LocalKafka

from .conftest import Stream, built_in_source
from .waiting import wait_until

#: What Spark's own source has no use for.
ONLY_OURS = {"readers": "", "kafka__group__id": "", "checkpointLocation": ""}

Record = tuple[str, int, int]


def records(rows: pa.Table) -> list[Record]:
    if not rows.num_rows:
        return []
    columns = (rows[name].to_pylist() for name in ("topic", "partition", "offset"))
    return sorted(zip(*columns, strict=True))


@pytest.fixture
def topics(kafka: LocalKafka, topic_name: str) -> dict[str, int]:
    """Two topics and their partitions, with ten records in each."""
    topics = {topic_name: 3, f"{topic_name}.more": 2}
    for topic, partitions in topics.items():
        kafka.create_topic(topic, partitions=partitions)
    produce(kafka, topics)
    return topics


def produce(kafka: LocalKafka, topics: dict[str, int]) -> None:
    for topic, partitions in topics.items():
        kafka.produce(topic, [b"x"] * 10 * partitions)


def up_to(end: int, topics: dict[str, int]) -> dict[Record, int]:
    """Every record, once."""
    return {(t, p, o): 1 for t, n in topics.items() for p in range(n) for o in range(end)}


@built_in_source
@pytest.mark.parametrize("fails", [0, 1, None], ids=["first batch", "second batch", "none"])
def test_a_checkpoint_of_sparks_own_source_is_gone_on_from(
    kafka: LocalKafka,
    topics: dict[str, int],
    group_id: str,
    stream: Callable[..., Stream],
    fails: int | None,
) -> None:
    """Also where its last batch was not completed, and where the group is ahead by itself."""
    options = {"subscribe": ",".join(topics), "maxOffsetsPerTrigger": "20", "minPartitions": "7"}
    theirs, ours = stream(**ONLY_OURS, **options), stream(**options, startingOffsets="latest")
    theirs.source = "kafka"

    def fail(batch_id: int, rows: pa.Table) -> None:
        if batch_id == fails:
            raise RuntimeError("not completed")

    theirs.on_batch = fail
    if fails is None:
        theirs.run()
    else:
        with pytest.raises(StreamingQueryException, match="not completed"):
            theirs.run()
    first = TopicPartition(next(iter(topics)), 0)
    consumer = KafkaConsumer(bootstrap_servers=kafka.bootstrap_servers, group_id=group_id)
    consumer.commit({first: OffsetAndMetadata(15, "", -1)})
    consumer.close()
    produce(kafka, topics)
    ours.run()
    delivered: Counter[Record] = Counter()
    for batch_id, rows in theirs.batches.items():
        if batch_id == fails:
            assert records(ours.batches[batch_id]) == records(rows), "the same batch again"
        else:
            delivered.update(records(rows))
    for rows in ours.batches.values():
        if rows.num_rows:
            delivered.update(records(rows))
            assert set(rows["lost"].to_pylist()) == {False}
    assert delivered == up_to(20, topics)
    told = {(p.topic, p.partition, p.position) for p in progress(ours.query)}
    assert told == {(t, p, 20) for t, n in topics.items() for p in range(n)}


@built_in_source
def test_the_way_back_to_sparks_own_source(
    kafka: LocalKafka,
    topics: dict[str, int],
    stream: Callable[..., Stream],
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = {"subscribe": ",".join(topics)}
    ours = stream(**options)
    delivered = Counter(records(ours.run()))
    first, *_ = topics
    kafka.produce(first, [b"x"] * 5, partition=1)  # the last batch is of this one alone
    delivered.update(records(ours.run()))
    capsys.readouterr()
    assert main([ours.options["checkpointLocation"]]) == 0
    printed = capsys.readouterr().out
    assert json.loads(printed)[first] == {"0": 10, "1": 15, "2": 10}
    produce(kafka, topics)
    theirs = stream("theirs", **ONLY_OURS, **options, startingOffsets=printed)
    theirs.source = "kafka"
    delivered.update(records(theirs.run()))
    assert delivered == up_to(20, topics) | {(first, 1, o): 1 for o in range(20, 25)}


@pytest.mark.newest_spark
def test_consumers_leave_their_group_to_a_query_and_get_it_back(
    kafka: LocalKafka, topics: dict[str, int], group_id: str, stream: Callable[..., Stream]
) -> None:
    delivered: Counter[Record] = Counter()

    def consume(to_read: int) -> None:
        """As applications do that process and commit what each poll brings."""
        consumer = KafkaConsumer(
            *topics,
            bootstrap_servers=kafka.bootstrap_servers,
            group_id=group_id,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            max_poll_records=7,
        )
        before = delivered.total()
        while delivered.total() < before + to_read:
            for partition, polled in consumer.poll(timeout_ms=500).items():
                delivered.update((*partition, record.offset) for record in polled)
            consumer.commit()
        consumer.close(autocommit=False)

    consume(20)
    produce(kafka, topics)
    query = stream(subscribe=",".join(topics), startingOffsets="group", checkpointLocation="")
    query.start(processingTime="0 seconds")
    left = 100 - delivered.total()
    wait_until(lambda: query.rows().num_rows >= left, "the query has the rest")
    assert stop_gracefully(query.query)
    delivered.update(records(query.rows()))
    assert delivered == up_to(20, topics)
    produce(kafka, topics)
    consume(50)
    assert delivered == up_to(30, topics)


@pytest.mark.newest_spark
def test_blue_leaves_to_green_and_comes_back(
    kafka: LocalKafka,
    topics: dict[str, int],
    stream: Callable[..., Stream],
) -> None:
    """Each under its own checkpoint."""
    options = {"subscribe": ",".join(topics)}
    blue, green = stream("blue", **options), stream("green", **options)

    def delivered() -> dict[Record, int]:
        return Counter(records(blue.rows()) + records(green.rows()))

    def read(end: int) -> None:
        everything = up_to(end, topics)
        wait_until(lambda: delivered().keys() >= everything.keys(), f"all up to {end}")
        assert delivered() == everything

    blue.start(processingTime="0 seconds")
    read(10)
    green.start(processingTime="0 seconds")
    wait_until(lambda: len(progress(green.query)) > 0, "green has its share")
    produce(kafka, topics)
    read(20)
    assert records(green.rows())
    assert stop_gracefully(blue.query)
    produce(kafka, topics)
    read(30)
    blue.start(processingTime="0 seconds")  # a roll-back
    assert stop_gracefully(green.query)
    produce(kafka, topics)
    read(40)
