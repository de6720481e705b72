"""The option checkpointLocation: what is known at load(), and what at the first plan."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspark_kafka_rebalance.errors import OptionError
from pyspark_kafka_rebalance.source.checkpoint import location_check
from pyspark_kafka_rebalance.source.checkpoint.location_check import LocationCheck, refuse_no_folder
from pyspark_kafka_rebalance.source.data_source import KafkaDeferredDataSource

OFFSET: dict[str, Any] = {"version": 2, "ranges": {"orders": {"0": [0, 10]}}}
OTHER: dict[str, Any] = {"version": 2, "ranges": {"orders": {"0": [0, 11]}}}
PATIENCE_S = 60.0


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Of a query that has started, as Spark leaves it before its first batch."""
    root = tmp_path / "c"
    root.mkdir()
    (root / "metadata").write_text('{"id":"8b1d"}')
    return root


def log(checkpoint: Path, batch: int, *sources: Any, version: str = "v1") -> None:
    (checkpoint / "offsets").mkdir(exist_ok=True)
    lines = (one if isinstance(one, str) else json.dumps(one) for one in sources)
    (checkpoint / "offsets" / str(batch)).write_text("\n".join([version, "{}", *lines]))


def check(location: Path | str, stands_at: dict[str, Any] | None) -> None:
    LocationCheck(str(location), stands_at).raise_failure(PATIENCE_S)


# -- load() ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["file", "file/below"])
def test_a_file_is_refused_at_load(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").write_text("x")
    location = str(tmp_path / path)
    options = {
        "kafka.bootstrap.servers": "h:1",
        "kafka.group.id": "g",
        "subscribe": "t",
        "checkpointLocation": location,
    }
    with pytest.raises(OptionError) as raised:
        KafkaDeferredDataSource(options)
    assert str(raised.value) == (
        f"option 'checkpointLocation' names {location}, which is not a folder: set it to the "
        "checkpointLocation of the query's writer"
    )


def test_a_folder_that_cannot_be_listed_is_refused_at_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(OptionError, match=r"cannot be read \(PermissionError: .*Permission denied"):
        refuse_no_folder(str(tmp_path))


@pytest.mark.parametrize("location", ["{}", "{}/new", "{}/new/c", "s3://bucket/c"])
def test_what_may_become_a_checkpoint_is_taken_at_load(tmp_path: Path, location: str) -> None:
    refuse_no_folder(location.format(tmp_path))


# -- the first plan -------------------------------------------------------------------------------


def test_the_checkpoint_of_a_query_that_starts(checkpoint: Path) -> None:
    check(checkpoint, None)
    log(checkpoint, 0, "-", '{"path":"a"}')  # batch 0 was another source's alone
    check(checkpoint, None)


def test_the_checkpoint_of_a_query_that_goes_on(checkpoint: Path) -> None:
    log(checkpoint, 9, OTHER)
    log(checkpoint, 10, "17", OFFSET)
    (checkpoint / "offsets" / ".10.crc").write_text("crc")
    check(checkpoint, OFFSET)


def test_a_restart_at_an_older_batch(checkpoint: Path) -> None:
    """With asynchronous progress tracking, what is logged after it may not count."""
    log(checkpoint, 9, OFFSET)
    log(checkpoint, 10, OTHER)
    check(checkpoint, OFFSET)


def test_a_source_that_was_added_to_a_query_of_sources_with_names(checkpoint: Path) -> None:
    log(checkpoint, 3, f"old:{json.dumps(OTHER)}", version="v2")
    check(checkpoint, None)


def test_offsets_of_an_unknown_version_are_no_error(
    checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log(checkpoint, 0, OFFSET, version="v3")
    check(checkpoint, OFFSET)
    assert "version 'v3'" in caplog.text


def nothing(checkpoint: Path) -> None:
    (checkpoint / "metadata").unlink()
    checkpoint.rmdir()


@pytest.mark.parametrize(
    ("made", "stands_at", "problem"),
    [
        (nothing, None, "where no query has its checkpoint"),
        (nothing, OFFSET, "where no query has its checkpoint"),
        (lambda c: None, OFFSET, "without this query's batches"),
        (lambda c: log(c, 0, OTHER), OFFSET, "the checkpoint of another query"),
        (lambda c: log(c, 0, OTHER), None, "the checkpoint of another query"),
        (lambda c: (c / "offsets").write_text("x"), None, "cannot be read (NotADirectoryError"),
    ],
)
def test_another_place_is_refused_at_the_first_plan(
    checkpoint: Path,
    made: Callable[[Path], Any],
    stands_at: dict[str, Any] | None,
    problem: str,
) -> None:
    made(checkpoint)
    with pytest.raises(OptionError) as raised:
        check(checkpoint, stands_at)
    assert raised.value.option == "checkpointLocation"
    assert f"names {checkpoint}, " in str(raised.value)
    assert problem in str(raised.value)


def test_a_store_that_refuses_is_an_error_without_its_keys() -> None:
    with pytest.raises(OptionError, match="cannot be read") as raised:
        check("s3://bucket/c?no_such_option=hunter2", None)
    assert "hunter2" not in str(raised.value)


def test_a_store_that_does_not_answer_fails_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers = threading.Event()

    def slow(location: str) -> None:
        assert answers.wait(PATIENCE_S)
        raise PermissionError("too late")

    monkeypatch.setattr(location_check, "open_checkpoint", slow)
    begun = LocationCheck("s3://bucket/c?secret_key=hunter2", None)
    try:
        begun.raise_failure(0.0)
        assert "did not answer within 0 s" in caplog.text
        assert "hunter2" not in caplog.text
    finally:
        answers.set()
