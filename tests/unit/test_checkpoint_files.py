"""Where a checkpoint may be, and that no key of a store gets into an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_kafka_rebalance import OptionError
from pyspark_kafka_rebalance.source.checkpoint.checkpoint_files import (
    is_local,
    open_checkpoint,
    parse_location,
    redacted,
)


@pytest.mark.parametrize(
    ("given", "parsed"),
    [
        ("/data/c", "/data/c"),
        ("file:/data/c", "/data/c"),
        ("FILE:///data/c/", "/data/c"),
        ("/data/50%25 of/#1", "/data/50%25 of/#1"),
        ("s3://bucket/c", "s3://bucket/c"),
        ("s3a://bucket/a/c/", "s3://bucket/a/c"),
        ("S3N://bucket/c", "s3://bucket/c"),
        ("s3a://bucket/c?region=eu-west-1", "s3://bucket/c?region=eu-west-1"),
        ("gs://bucket/c", "gs://bucket/c"),
        (
            "abfss://box@account.dfs.core.windows.net/c",
            "abfss://box@account.dfs.core.windows.net/c",
        ),
        ("hdfs://name-node:8020/c", "hdfs://name-node:8020/c"),
        ("hdfs:///c", "hdfs:///c"),
        # Hadoop takes these as they are written, pyarrow decodes them.
        ("s3a://bucket/50%25 of/#1", "s3://bucket/50%2525%20of/%231"),
    ],
)
def test_locations_as_hadoop_writes_them(given: str, parsed: str) -> None:
    assert parse_location(given) == parsed
    assert is_local(parsed) == parsed.startswith("/")


@pytest.mark.parametrize(
    "location",
    [
        "",
        " ",
        "dbfs:/c",
        "wasbs://b@a/c",
        "s3:c",
        "s3a:/bucket/c",
        "s3://bucket",
        "s3:///c",
        "file:c",
    ],
)
def test_a_location_that_cannot_be_read_is_named(location: str) -> None:
    with pytest.raises(OptionError, match=r"'checkpointLocation'.*s3a://") as raised:
        parse_location(location)
    assert raised.value.value == location.strip()


def test_keys_get_into_no_error() -> None:
    for location in ("dbfs://hunter2:hunter3@b/c", "s4://b/c?secret_key=hunter2", "s3://hunter2@/"):
        with pytest.raises(OptionError) as raised:
            parse_location(location)
        assert "hunter" not in str(raised.value)
    for location in (
        "s3://hunter2:hunter3@bucket/c?no_such_setting=hunter4",
        "s3://hunter2:hunter3@bucket/c?%zz=hunter4",
    ):
        with pytest.raises(OSError) as failed:
            open_checkpoint(parse_location(location))
        assert "hunter" not in f"{failed.value!r} {failed.value.__cause__!r}"
        assert "bucket/c" in str(failed.value)


def test_a_container_of_azure_is_no_key() -> None:
    assert redacted("abfss://box@account/c") == "abfss://box@account/c"
    assert "hunter2" not in redacted("abfss://account:hunter2@box/c")


def test_a_folder_that_is_not_there_has_no_names(tmp_path: Path) -> None:
    assert open_checkpoint(str(tmp_path / "none")).names("offsets") == []
