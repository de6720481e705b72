"""CommitLog on Spark's layout of a checkpoint, as Spark 4 writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pyspark_kafka_rebalance.source.commit_log import CommitLog

METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1760000000000,"conf":{"spark.x":"1"}}'


def offset(end: int) -> dict[str, Any]:
    return {
        "version": 1,
        "ranges": {"orders": {"0": [end - 10, end]}},
        "unacknowledged": {},
        "state": {},
    }


def compact(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))


class Checkpoint:
    """Writes as Spark does: with a temporary file and a checksum beside each file."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = CommitLog(str(root))

    def plan(self, batch: int, *sources: str) -> None:
        self._write("offsets", batch, "\n".join(["v1", METADATA, *sources]))

    def commit(self, batch: int) -> None:
        self._write("commits", batch, 'v1\n{"nextBatchWatermarkMs":0}')

    def _write(self, log: str, batch: int, text: str) -> None:
        folder = self.root / log
        folder.mkdir(parents=True, exist_ok=True)
        (folder / str(batch)).write_text(text, "utf-8")
        (folder / f".{batch}.crc").write_bytes(b"crc\0\xff\xfe")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path / "checkpoint")


def test_committed_once_the_commit_file_is_there(checkpoint: Checkpoint) -> None:
    checkpoint.plan(0, compact(offset(10)))
    assert not checkpoint.log.is_committed(offset(10))
    checkpoint.commit(0)
    assert checkpoint.log.is_committed(offset(10))
    assert not checkpoint.log.is_committed(offset(20))


def test_no_checkpoint_yet(checkpoint: Checkpoint) -> None:
    assert not checkpoint.log.is_committed(offset(10))


def test_folders_without_a_batch(checkpoint: Checkpoint) -> None:
    (checkpoint.root / "offsets").mkdir(parents=True)
    assert not checkpoint.log.is_committed(offset(10))
    checkpoint.plan(0, compact(offset(10)))  # and no folder for commits
    assert not checkpoint.log.is_committed(offset(10))


def test_a_new_batch_is_newest_however_many_digits(checkpoint: Checkpoint) -> None:
    for batch in (9, 10):
        checkpoint.plan(batch, compact(offset(batch * 10)))
    checkpoint.commit(9)
    assert not checkpoint.log.is_committed(offset(100)), "batch 10 is under way"
    checkpoint.commit(10)
    assert checkpoint.log.is_committed(offset(100))


def test_another_batch_is_newest(checkpoint: Checkpoint) -> None:
    checkpoint.plan(4, compact(offset(40)))
    checkpoint.commit(4)
    checkpoint.plan(5, compact(offset(50)))
    checkpoint.commit(5)
    assert not checkpoint.log.is_committed(offset(40))
    assert checkpoint.log.is_committed(offset(50))


def test_a_batch_that_was_not_logged_is_not_committed(checkpoint: Checkpoint) -> None:
    checkpoint.plan(4, compact(offset(40)))
    checkpoint.commit(4)
    assert not checkpoint.log.is_committed(offset(50))


def test_temporary_files_are_no_batches(checkpoint: Checkpoint) -> None:
    checkpoint.plan(0, compact(offset(10)))
    checkpoint.commit(0)
    folder = checkpoint.root / "offsets"
    for name in (".1.crc", ".offsets.tmp", ".1.3f2a8a8e.tmp", "1.tmp", "_metadata"):
        (folder / name).write_text("half a li", "utf-8")
    assert checkpoint.log.is_committed(offset(10))


def test_the_commit_is_not_there_before_spark_renamed_it(checkpoint: Checkpoint) -> None:
    checkpoint.plan(0, compact(offset(10)))
    commits = checkpoint.root / "commits"
    commits.mkdir()
    (commits / ".0.3f2a8a8e.tmp").write_text("v1\n{}", "utf-8")
    (commits / ".0.crc").write_bytes(b"crc\0")
    assert not checkpoint.log.is_committed(offset(10))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_of_several_sources(checkpoint: Checkpoint, place: int) -> None:
    others = ["17", "-"]  # a rate stream's offset; a source without one
    others.insert(place, compact(offset(10)))
    checkpoint.plan(0, *others)
    checkpoint.commit(0)
    assert checkpoint.log.is_committed(offset(10))
    assert not checkpoint.log.is_committed(offset(11))


def test_a_source_whose_offset_is_no_json(checkpoint: Checkpoint) -> None:
    checkpoint.plan(0, "not { json", compact(offset(10)))
    checkpoint.commit(0)
    assert checkpoint.log.is_committed(offset(10))


def test_the_order_of_keys_and_spaces_do_not_count(checkpoint: Checkpoint) -> None:
    turned = dict(reversed(offset(10).items()))
    checkpoint.plan(0, json.dumps(turned))
    checkpoint.commit(0)
    assert checkpoint.log.is_committed(offset(10))


def test_the_metadata_line_is_no_source(checkpoint: Checkpoint) -> None:
    checkpoint.plan(0, compact(offset(10)))
    checkpoint.commit(0)
    assert not checkpoint.log.is_committed(json.loads(METADATA))


def test_topic_names_beyond_ascii_lines_stay_lines(checkpoint: Checkpoint) -> None:
    # Spark writes UTF-8; U+2028 ends a line for str.splitlines, not for Spark. It may stand in
    # another source's offset, a file name for instance.
    checkpoint.plan(0, '{"path":"a\u2028b"}', compact(offset(10)))
    checkpoint.commit(0)
    assert checkpoint.log.is_committed(offset(10))


def test_a_checkpoint_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    root = tmp_path / "checkpoint"
    root.mkdir()
    (root / "offsets").write_text("a file where Spark has a folder", "utf-8")
    with pytest.raises(OSError, match="offsets"):
        CommitLog(str(root)).is_committed(offset(10))
