"""From Spark's own Kafka source to this one under the same checkpoint, and back again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable

import pyarrow as pa
import pytest
from kafka import KafkaConsumer
from kafka.structs import OffsetAndMetadata, TopicPartition
from pyspark.errors import StreamingQueryException

from pyspark_kafka_rebalance import progress
from pyspark_kafka_rebalance.source.positions import main
from pyspark_kafka_rebalance.testing import LocalKafka

from .conftest import Stream, built_in_source

pytestmark = built_in_source

#: What Spark's own source has no use for.
ONLY_OURS = {"readers": "", "kafka__group__id": "", "checkpointLocation": ""}

Record = tuple[str, int, int]


def records(rows: pa.Table) -> list[Record]:
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
