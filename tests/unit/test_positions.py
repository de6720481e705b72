"""Where the queries of some checkpoints stand, printed for Spark's own source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.errors import KafkaRebalanceError
from pyspark_kafka_rebalance.fetch.offset_range import OffsetRange
from pyspark_kafka_rebalance.source.checkpoint.built_in_start import start_of_first_batch
from pyspark_kafka_rebalance.source.offsets.offset_json import offset_to_json
from pyspark_kafka_rebalance.source.offsets.stream_offset import StreamOffset
from pyspark_kafka_rebalance.source.positions import main

P, Q, R = (TopicPartition("t", n) for n in range(3))


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text, "utf-8")


def batch(root: Path, number: int, *sources: Any, committed: bool = True) -> None:
    lines = "\n".join(["v1", "{}", *(json.dumps(source) for source in sources)])
    write(root, f"offsets/{number}", lines)
    if committed:
        write(root, f"commits/{number}", "v1\n{}")


def at(**others: int) -> dict[str, Any]:
    known = {"P": P, "Q": Q, "R": R}
    return offset_to_json(
        StreamOffset(
            ranges={P: OffsetRange(*P, 5, others.pop("P"))} if "P" in others else {},
            others={known[name]: position for name, position in others.items()},
        )
    )


def test_the_position_of_every_partition_at_the_last_committed_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    batch(tmp_path, 9, at(P=6, Q=3))
    batch(tmp_path, 10, {"other": {"0": 99}}, at(P=8, Q=3))
    assert main([str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"t": {"0": 8, "1": 3}}
    assert printed.err == ""


def test_a_batch_under_way_is_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batch(tmp_path, 0, at(P=6))
    batch(tmp_path, 1, at(P=9), committed=False)
    assert main([str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"t": {"0": 6}}
    assert "batch 1 was planned and is not committed" in printed.err


def test_of_the_queries_of_a_group_the_furthest_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    batch(tmp_path / "a", 0, at(P=8, Q=3))
    batch(tmp_path / "b", 4, at(Q=30, R=1))
    assert main([str(tmp_path / "a"), f"file:{tmp_path}/b"]) == 0
    assert json.loads(capsys.readouterr().out) == {"t": {"0": 8, "1": 30, "2": 1}}


def test_of_two_sources_that_differ_one_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    batch(tmp_path, 0, at(P=600, Q=3), at(P=120, R=4))
    assert main([str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "different positions of t-0 (0: 600, 1: 120)" in printed.err
    assert main(["--source", "1", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out) == {"t": {"0": 120, "2": 4}}
    assert main(["--source", "2", str(tmp_path)]) == 1
    assert "no batch of source 2 kafka_deferred" in capsys.readouterr().err
    assert main(["--one-group", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out) == {"t": {"0": 600, "1": 3, "2": 4}}


def test_two_sources_at_the_same_positions_are_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    batch(tmp_path, 0, at(P=600, Q=3), at(P=600, R=4))
    assert main([str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out) == {"t": {"0": 600, "1": 3, "2": 4}}


@pytest.mark.parametrize("what", ["nothing", "another source", "nothing committed"])
def test_a_checkpoint_without_positions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    if what != "nothing":
        source = {"t": {"0": 1}} if what == "another source" else at(P=6)
        batch(tmp_path, 0, source, committed=what == "another source")
    assert main([str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert f"{tmp_path}: no batch of a source kafka_deferred is committed there" in printed.err


# -- where the first batch of Spark's own source starts -------------------------------------------


def test_the_first_batch_of_sparks_own_source_starts_where_its_own_file_says(
    tmp_path: Path,
) -> None:
    write(tmp_path, "sources/0/0", '\0v1\n{"t":{"0":4,"1":0}}')
    write(tmp_path, "sources/other/0", '\0v1\n{"u":{"0":9}}')
    write(tmp_path, "sources/2/0", "v1\nno JSON")
    write(tmp_path, "sources/3/0", "v2\n{}")
    assert start_of_first_batch(str(tmp_path), {P: 9, Q: 9}) == {P: 4, Q: 0}
    with pytest.raises(KafkaRebalanceError, match=r"no file in .* says where it starts"):
        start_of_first_batch(str(tmp_path / "elsewhere"), {P: 9})
    with pytest.raises(KafkaRebalanceError, match="set the source's option checkpointLocation"):
        start_of_first_batch(None, {P: 9})


def test_of_two_loads_of_a_topic_each_starts_where_its_own_file_says(tmp_path: Path) -> None:
    for number, start in enumerate((0, 50, 20)):
        write(tmp_path, f"sources/{number}/0", f'\0v1\n{{"t":{{"0":{start}}}}}')
    batch(tmp_path, 0, {"t": {"0": 40}}, {"t": {"0": 90}}, {"t": {"0": 40}}, committed=False)
    assert start_of_first_batch(str(tmp_path), {P: 90}) == {P: 50}
    assert start_of_first_batch(str(tmp_path), {P: 40}) == {P: 0}, "the lower of two is before both"
