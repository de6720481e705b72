"""CommitLog on Spark's layout of a checkpoint, as Spark 4 writes it, here and in an S3 server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from pyarrow import fs

from pyspark_kafka_rebalance.source.checkpoint.checkpoint_files import parse_location
from pyspark_kafka_rebalance.source.checkpoint.commit_log import CommitLog
from tests.s3_server import KEYS, FolderAsBucket, S3Server

METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1760000000000,"conf":{"spark.x":"1"}}'


def offset(end: int) -> dict[str, Any]:
    return {
        "version": 2,
        "ranges": {"orders": {"0": [end - 10, end]}},
        "positions": {},
        "state": {},
    }


def compact(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))


class Checkpoint:
    """Writes as Spark does: with a temporary file and a checksum beside each file."""

    def __init__(self, location: str, filesystem: fs.FileSystem, root: str) -> None:
        self.log = CommitLog(parse_location(location))
        self._filesystem = filesystem
        self._root = root

    def plan(self, batch: int, *sources: str, version: str = "v1") -> None:
        self._write("offsets", batch, "\n".join([version, METADATA, *sources]))

    def commit(self, batch: int) -> None:
        self._write("commits", batch, 'v1\n{"nextBatchWatermarkMs":0}')

    def make(self, folder: str) -> None:
        self._filesystem.create_dir(f"{self._root}/{folder}".rstrip("/"))

    def write(self, path: str, content: bytes) -> None:
        self.make(path.rpartition("/")[0])
        with self._filesystem.open_output_stream(f"{self._root}/{path}") as file:
            file.write(content)

    def _write(self, log: str, batch: int, text: str) -> None:
        self.write(f"{log}/{batch}", text.encode())
        self.write(f"{log}/.{batch}.crc", b"crc\0\xff\xfe")


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in KEYS.items():
            patch.setenv(name, value)
        with S3Server(tmp_path_factory.mktemp("s3") / "server.log") as server:
            yield server


@pytest.fixture(params=["local", "s3"])
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Checkpoint:
    if request.param == "local":
        root = tmp_path / "checkpoint"
        return Checkpoint(str(root), fs.LocalFileSystem(), str(root))
    server: S3Server = request.getfixturevalue("s3")
    folder = f"{tmp_path.name}/check point"
    return Checkpoint(server.uri(folder), *server.open(quote(folder)))


def test_committed_once_the_commit_file_is_there(checkpoint: Checkpoint) -> None:
    checkpoint.plan(0, compact(offset(10)))
    assert not checkpoint.log.is_committed(offset(10))
    checkpoint.commit(0)
    assert checkpoint.log.is_committed(offset(10))
    assert not checkpoint.log.is_committed(offset(20))


def test_a_source_that_has_a_name(checkpoint: Checkpoint) -> None:
    """Spark 4.2 and later, if told to, write version 2."""
    checkpoint.plan(0, "rates:17", f"orders:{compact(offset(10))}", version="v2")
    checkpoint.commit(0)
    assert checkpoint.log.is_committed(offset(10))
    assert not checkpoint.log.is_committed(offset(20))


def test_an_unknown_version_is_not_passed_over_in_silence(checkpoint: Checkpoint) -> None:
    checkpoint.plan(0, compact(offset(10)), version="v3")
    checkpoint.commit(0)
    with pytest.raises(ValueError, match="version 'v3'"):
        checkpoint.log.is_committed(offset(10))


def test_no_batch_yet(checkpoint: Checkpoint) -> None:
    checkpoint.write("metadata", b'{"id":"8b1d"}')
    assert not checkpoint.log.is_committed(offset(10))


def test_another_path_than_the_querys(checkpoint: Checkpoint) -> None:
    with pytest.raises(FileNotFoundError, match="no query"):
        checkpoint.log.is_committed(offset(10))


def test_folders_without_a_batch(checkpoint: Checkpoint) -> None:
    checkpoint.write("metadata", b'{"id":"8b1d"}')
    checkpoint.make("offsets")
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
    for name in (".1.crc", ".offsets.tmp", ".1.3f2a8a8e.tmp", "1.tmp", "_metadata"):
        checkpoint.write(f"offsets/{name}", b"half a li")
    assert checkpoint.log.is_committed(offset(10))


def test_the_commit_is_not_there_before_spark_renamed_it(checkpoint: Checkpoint) -> None:
    checkpoint.plan(0, compact(offset(10)))
    checkpoint.make("commits")
    checkpoint.write("commits/.0.3f2a8a8e.tmp", b"v1\n{}")
    checkpoint.write("commits/.0.crc", b"crc\0")
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


def test_a_bucket_that_is_not_there_is_an_error(s3: S3Server) -> None:
    location = parse_location(s3.uri("c").replace("checkpoints", "no-such-bucket"))
    with pytest.raises(FileNotFoundError, match="no query"):
        CommitLog(location).is_committed(offset(10))


def test_a_folder_as_a_bucket(tmp_path: Path) -> None:
    """What tests/spark reads a running query's checkpoint through."""
    root = tmp_path / "a query"
    local = Checkpoint(str(root), fs.LocalFileSystem(), str(root))
    local.plan(0, compact(offset(10)))
    with FolderAsBucket(tmp_path) as bucket:
        log = CommitLog(parse_location(bucket.uri("a query")))
        assert not log.is_committed(offset(10))
        local.commit(0)
        assert log.is_committed(offset(10))
