"""A checkpoint comes back from a backup: what the query had committed since is read again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from kafka import KafkaConsumer
from kafka.structs import OffsetAndMetadata, TopicPartition

from pyspark_kafka_rebalance.testing import LocalKafka

from . import waiting
from .conftest import Stream, many_batches, offsets_of

wait_until = partial(waiting.wait_until, patience_s=120.0)

WAYS = {
    "classic": {},
    "consumer": {"kafka__group__protocol": "consumer", "kafka__session__timeout__ms": ""},
    "assign": {"subscribe": "", "kafka__session__timeout__ms": ""},
    "live": {"parallelRebalance": "live"},
}


@pytest.fixture
def restorable(
    stream: Callable[..., Stream], kafka: LocalKafka, topic_name: str
) -> Callable[..., Stream]:
    """Make streams of a topic of two partitions, in one of the ways."""
    kafka.create_topic(topic_name, partitions=2)

    def make(way: str = "classic", name: str = "query", **options: str) -> Stream:
        given = dict(WAYS[way])
        if way == "assign":
            given["assign"] = json.dumps({topic_name: [0, 1]})
        return stream(name, readers="1", **{**given, **options})

    return make


def records(*bounds: tuple[int, int]) -> list[tuple[int, int]]:
    return [(p, o) for p, (start, end) in enumerate(bounds) for o in range(start, end)]


def restore(query: Stream, path: Path, backup: Path) -> None:
    """Put back the checkpoint, and the sink."""
    shutil.rmtree(path)
    shutil.copytree(backup, path)
    query.batches = {}


def remove_newest(query: Stream, checkpoint: Path, *logs: str) -> None:
    """To have the last batch again, also in the sink."""
    for log in logs:
        newest = max(int(f.name) for f in (checkpoint / log).iterdir() if f.name.isdigit())
        for file in (checkpoint / log).iterdir():
            if file.name.strip(".").removesuffix(".crc") == str(newest):
                file.unlink()
        query.batches = {n: rows for n, rows in query.batches.items() if n < newest}


@many_batches
@pytest.mark.parametrize("way", WAYS)
def test_what_the_query_had_read_since_the_backup_is_read_again(
    kafka: LocalKafka,
    topic_name: str,
    restorable: Callable[..., Stream],
    committed: Callable[[], dict[TopicPartition, int]],
    tmp_path: Path,
    way: str,
) -> None:
    """40 records, the backup, 30 more; then the backup comes back, with 6 new ones: 36."""
    query = restorable(way)
    kafka.produce(topic_name, [b"x"] * 40)
    assert query.run().num_rows == 40
    backup = Path(shutil.copytree(tmp_path / "query", tmp_path / "backup"))
    kafka.produce(topic_name, [b"x"] * 30)
    assert query.run().num_rows == 30
    for end, more in ((38, 6), (40, 4)):  # restored twice
        restore(query, tmp_path / "query", backup)
        kafka.produce(topic_name, [b"x"] * more)
        rows = query.run()
        assert offsets_of(rows) == records((20, end), (20, end))
        assert set(rows["lost"].to_pylist()) == {False}
        ends = {TopicPartition(topic_name, p): end for p in range(2)}
        wait_until(lambda e=ends: committed() == e, "committed")
    assert query.run().num_rows == 0


@many_batches
@pytest.mark.parametrize("way", ["classic", "assign", "live"])
@pytest.mark.parametrize("logs", [("commits",), ("commits", "offsets")], ids="-".join)
def test_the_last_batch_runs_again_and_is_not_marked_lost(
    kafka: LocalKafka,
    topic_name: str,
    restorable: Callable[..., Stream],
    tmp_path: Path,
    logs: tuple[str, ...],
    way: str,
) -> None:
    """All its rows said ``lost = true``, which allows a sink to drop them."""
    query = restorable(way)
    for _ in range(2):
        kafka.produce(topic_name, [b"x"] * 20)
        assert query.run().num_rows == 20
    remove_newest(query, tmp_path / "query", *logs)
    kafka.produce(topic_name, [b"x"] * 6)
    rows = query.run()
    assert offsets_of(rows) == records((10, 23), (10, 23))
    assert set(rows["lost"].to_pylist()) == {False}


def run_and_back_up(kafka: LocalKafka, topic: str, query: Stream, path: Path) -> Path:
    """20 records of each partition, and then a backup of the query's checkpoint."""
    kafka.produce(topic, [b"x"] * 40)
    assert query.run().num_rows == 40
    return Path(shutil.copytree(path / "query", path / "backup"))


@many_batches
def test_what_another_query_has_committed_is_left_out(
    kafka: LocalKafka, topic_name: str, restorable: Callable[..., Stream], tmp_path: Path
) -> None:
    """As before: the group's offset wins where another query has delivered what lies between."""
    query, other = restorable(), restorable(name="other")
    backup = run_and_back_up(kafka, topic_name, query, tmp_path)
    kafka.produce(topic_name, [b"x"] * 30)
    assert other.run().num_rows == 30
    restore(query, tmp_path / "query", backup)
    kafka.produce(topic_name, [b"x"] * 6)
    assert offsets_of(query.run()) == records((35, 38), (35, 38))


@many_batches
@pytest.mark.parametrize(("way", "others"), [("classic", 5), ("live", 0)])
def test_another_query_went_on_behind_it(
    kafka: LocalKafka,
    topic_name: str,
    restorable: Callable[..., Stream],
    tmp_path: Path,
    way: str,
    others: int,
) -> None:
    """Its own 5 records of each partition are read again.

    What the other has delivered behind them comes again as well if reading goes in order. It is
    left out with "live".
    """
    query, other = restorable(way), restorable(way, name="other")
    backup = run_and_back_up(kafka, topic_name, query, tmp_path)
    for one in (query, other):
        kafka.produce(topic_name, [b"x"] * 10)
        assert one.run().num_rows == 10
    restore(query, tmp_path / "query", backup)
    kafka.produce(topic_name, [b"x"] * 6)
    read = [*range(20, 25 + others), *range(30, 33)]
    assert offsets_of(query.run()) == [(p, o) for p in range(2) for o in read]


@many_batches
def test_who_wants_the_group_to_win_says_so(
    kafka: LocalKafka, topic_name: str, restorable: Callable[..., Stream], tmp_path: Path
) -> None:
    query = restorable(restoredCheckpoint="group")
    backup = run_and_back_up(kafka, topic_name, query, tmp_path)
    kafka.produce(topic_name, [b"x"] * 30)
    assert query.run().num_rows == 30
    restore(query, tmp_path / "query", backup)
    kafka.produce(topic_name, [b"x"] * 6)
    assert offsets_of(query.run()) == records((35, 38), (35, 38))


@many_batches
def test_where_an_administrator_has_moved_the_group_forward_it_wins(
    kafka: LocalKafka,
    topic_name: str,
    group_id: str,
    restorable: Callable[..., Stream],
    tmp_path: Path,
) -> None:
    query = restorable()
    backup = run_and_back_up(kafka, topic_name, query, tmp_path)
    kafka.produce(topic_name, [b"x"] * 30)
    assert query.run().num_rows == 30
    restore(query, tmp_path / "query", backup)
    kafka.produce(topic_name, [b"x"] * 6)
    tool = KafkaConsumer(
        group_id=group_id, enable_auto_commit=False, bootstrap_servers=kafka.bootstrap_servers
    )
    tool.commit({TopicPartition(topic_name, 0): OffsetAndMetadata(36, "", -1)})
    tool.close()
    assert offsets_of(query.run()) == records((36, 38), (20, 38))
