"""Several queries, or several uses in one query, of one ``load()``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_kafka_rebalance import progress, stop_gracefully
from pyspark_kafka_rebalance.testing import LocalKafka

from .conftest import Stream
from .waiting import wait_until

ORDERS = [json.dumps({"id": n, "amount": n % 7}) for n in range(950)]
BROKEN = [f"not JSON {n}" for n in range(38)]


class Sinks:
    """Queries of one frame, and what each has written."""

    def __init__(self, frame: DataFrame, work: Path) -> None:
        self.frame = frame
        self._work = work
        self.written: dict[str, list[str]] = {}

    def start(self, name: str, condition: str = "true") -> StreamingQuery:
        """Start the query of this name, or start it again."""

        def keep(batch: DataFrame, batch_id: int) -> None:
            values = [row.value.decode() for row in batch.select("value").collect()]
            self.written[name] = [*self.written.get(name, []), *values]

        return (
            self.frame.where(condition)
            .writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(self._work / name))
            .start()
        )

    def wait_for(self, **expected: list[str]) -> None:
        """Wait until the queries of these names have written these values, and nothing else."""
        wanted = {name: sorted(values) for name, values in expected.items()}

        def found() -> dict[str, list[str]]:
            return {name: sorted(self.written.get(name, [])) for name in wanted}

        wait_until(
            lambda: found() == wanted,
            lambda: f"{ {name: len(values) for name, values in found().items()} } were written",
            patience_s=240.0,
        )


@pytest.fixture
def sinks(stream: Callable[..., Stream], tmp_path: Path) -> Callable[..., Sinks]:
    def make(**options: str) -> Sinks:
        return Sinks(stream(checkpointLocation="", **options).load(), tmp_path)

    return make


def test_each_query_of_one_load_has_all_records_and_finds_its_group_again(
    kafka: LocalKafka, topic_name: str, group_id: str, sinks: Callable[..., Sinks]
) -> None:
    """Valid rows and dead letters, as with Spark's own source.

    As members of one group, one of them was given 182 of the 988 records and the other one none,
    without an error.
    """
    kafka.create_topic(topic_name, partitions=3)
    kafka.produce(topic_name, [text.encode() for text in (*ORDERS, *BROKEN)])
    of_one = sinks(kafka__group__id="", groupIdPrefix=group_id)
    is_valid = "try_parse_json(cast(value as string)) is not null"
    conditions = {"valid": is_valid, "dead_letters": f"not ({is_valid})"}
    expected = {"valid": ORDERS, "dead_letters": BROKEN}
    groups: list[set[str]] = []
    for _ in range(2):
        queries = []
        for name, condition in conditions.items():
            queries.append(of_one.start(name, condition))
            of_one.wait_for(**{name: expected[name]})
        assert all(stop_gracefully(query) for query in queries)
        groups.append({group for query in queries for group in progress(query).groups})
        more = [json.dumps({"id": n}) for n in range(1000, 1012)]
        kafka.produce(topic_name, [text.encode() for text in more])
        expected["valid"] = [*expected["valid"], *more]
    assert groups[0] == groups[1], "a restart finds the groups of the queries"
    assert len(groups[0]) == 2
    assert all(group.startswith(f"{group_id}-") for group in groups[0])
    assert {sum(kafka.committed(group).values()) for group in groups[0]} == {1000}


def test_a_second_query_in_the_same_group_is_refused_and_the_first_goes_on(
    kafka: LocalKafka, topic_name: str, sinks: Callable[..., Sinks]
) -> None:
    kafka.create_topic(topic_name, partitions=2)
    kafka.produce(topic_name, [b"a", b"b"])
    of_one = sinks()
    first = of_one.start("first")
    of_one.wait_for(first=["a", "b"])
    second = of_one.start("second")
    with pytest.raises(
        StreamingQueryException, match=r"reads from the same load\(\).*groupIdPrefix"
    ):
        second.awaitTermination(120)
    kafka.produce(topic_name, [b"c", b"d"])
    of_one.wait_for(first=["a", "b", "c", "d"])
    first.processAllAvailable()  # or stop() may interrupt the batch, which is then repeated
    first.stop()
    again = of_one.start("first")  # at once, while its planner may still be leaving the group
    kafka.produce(topic_name, [b"e"])
    of_one.wait_for(first=["a", "b", "c", "d", "e"])
    assert stop_gracefully(again)
    instead = of_one.start("second")
    kafka.produce(topic_name, [b"f"])
    of_one.wait_for(first=["a", "b", "c", "d", "e"], second=["f"])
    instead.stop()


def test_a_frame_that_is_used_twice_in_one_query(
    kafka: LocalKafka, topic_name: str, group_id: str, sinks: Callable[..., Sinks]
) -> None:
    """A union with itself has one source for Spark; a join has two if columns keep their names."""
    kafka.create_topic(topic_name, partitions=2)
    kafka.produce(topic_name, [b"a", b"b", b"c"])
    of_one = sinks()
    frame = of_one.frame
    of_one.frame = frame.union(frame)
    union = of_one.start("union")
    of_one.wait_for(union=["a", "a", "b", "b", "c", "c"])
    union.stop()
    joined = {"refused": frame}
    joined["joined"] = sinks(kafka__group__id="", groupIdPrefix=group_id).frame
    for name, one in joined.items():
        both = one.select("value").alias("x").join(one.select("value").alias("y"), "value")
        of_one.frame = both
        query = of_one.start(name)
        if name == "refused":
            with pytest.raises(StreamingQueryException, match="another part of this one"):
                query.awaitTermination(120)
        else:
            of_one.wait_for(joined=["a", "b", "c"])
            query.stop()
