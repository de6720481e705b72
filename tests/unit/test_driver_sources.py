"""What a planner says of another one of the same driver that is in its group."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pyspark_kafka_rebalance.source import driver_sources
from pyspark_kafka_rebalance.source.driver_sources import DriverSources
from pyspark_kafka_rebalance.source.options.source_options import SourceOptions

A_PART = "only some of the partitions: give each load() of a query its own kafka.group.id"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def source(run: str, **changed: str) -> DriverSources:
    options = {
        "kafka.bootstrap.servers": "127.0.0.1:1",
        "kafka.group.id": "g",
        "subscribe": "orders,payments",
    }
    named = {name.replace("__", "."): value for name, value in changed.items()}
    given = {name: value for name, value in {**options, **named}.items() if value}
    return DriverSources(SourceOptions.parse(given, default_readers=1), run)


def logged(caplog: pytest.LogCaptureFixture, *sources: DriverSources) -> str:
    for one in sources:
        one.enter()
    return caplog.text


def test_a_source_of_which_the_query_is_not_known(caplog: pytest.LogCaptureFixture) -> None:
    said = logged(caplog, source("A"), source("B"))
    assert "group 'g': another source of this Spark driver is in the group (A)" in said
    another = "if it is another load() of this query, as in a join or a union"
    assert f"{another}, each gets {A_PART}" in said


def test_two_loads_of_one_checkpoint(caplog: pytest.LogCaptureFixture) -> None:
    one, other = (source(run, checkpointLocation="/c") for run in "AB")
    said = logged(caplog, one, other)
    assert f"another load() of this query is in the group (A), so each gets {A_PART}" in said


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"kafka__group__id": "other"}, {}),
        ({"kafka__bootstrap__servers": "127.0.0.1:2"}, {}),
        ({"subscribe": "orders"}, {"subscribe": "payments"}),
        ({"checkpointLocation": "/one"}, {"checkpointLocation": "/other"}),
    ],
)
def test_sources_that_do_not_meet(
    caplog: pytest.LogCaptureFixture, first: dict[str, str], second: dict[str, str]
) -> None:
    assert logged(caplog, source("A", **first), source("B", **second)) == ""


def test_a_pattern_may_meet_any_topic(caplog: pytest.LogCaptureFixture) -> None:
    pattern = source("A", subscribe="", subscribePattern="o.*")
    assert A_PART in logged(caplog, pattern, source("B"))


@pytest.mark.parametrize(
    ("first", "second", "may_be"),
    [
        ({}, {}, True),
        ({"checkpointLocation": "/c"}, {}, True),
        ({"checkpointLocation": "/c"}, {"checkpointLocation": "/c"}, True),
        ({"checkpointLocation": "/one"}, {"checkpointLocation": "/other"}, False),
        ({"kafka__group__id": "other"}, {}, False),
    ],
)
def test_whether_another_load_of_the_query_may_be_in_the_group(
    first: dict[str, str], second: dict[str, str], may_be: bool
) -> None:
    one, other = source("A", **first), source("B", **second)
    one.enter()
    assert not one.may_have_siblings(), "it is none of its own"
    other.enter()
    assert one.may_have_siblings() == other.may_have_siblings() == may_be
    one.leave()
    assert not other.may_have_siblings()


def test_one_that_has_left_or_was_killed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    left = source("A")
    left.enter()
    left.leave()
    left.leave()
    monkeypatch.setattr(driver_sources.os, "getppid", os.getpid)
    enters = "from test_driver_sources import source; source('B').enter(); print('', flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", f"{enters}; input()"],
        cwd=Path(__file__).parent,
        env={**os.environ, "TMPDIR": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as planner:
        assert planner.stdout is not None
        planner.stdout.readline()
        assert source("C").may_have_siblings()
        planner.kill()
    assert len(list(folder.iterdir())) == 1
    assert not source("C").may_have_siblings()
    source("C").enter()
    assert caplog.text == ""
    assert len(list(folder.iterdir())) == 1


def test_a_folder_that_cannot_be_written_is_no_error(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "none"))
    one = source("A")
    one.enter()
    one.leave()


def test_a_file_that_another_user_has_put_there_is_passed_over(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    one = source("A")
    theirs = one._path.with_name(f"{one._prefix}theirs.source")
    theirs.write_text("{}")

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(f"{path} in a folder with the sticky bit")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuse)
        one.enter()
        assert not one.may_have_siblings()
    one.leave()
    assert list(folder.iterdir()) == [theirs]
    assert caplog.text == ""
