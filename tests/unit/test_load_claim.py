"""Which planner may read a ``load()`` that several queries were started from."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from pyspark_kafka_rebalance.source.data_source import KafkaDeferredDataSource
from pyspark_kafka_rebalance.source.spark.load_claim import LoadClaim
from pyspark_kafka_rebalance.source.spark.refused_stream import RefusedStreamReader

OPTIONS = {
    "kafka.bootstrap.servers": "127.0.0.1:1",
    "kafka.group.id": "g",
    "subscribe": "orders",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def load_of(source: KafkaDeferredDataSource) -> str:
    reader = pickle.loads(pickle.dumps(source.streamReader(source.schema())))
    of_newer_spark = getattr(reader, "_reader", reader)  # which Spark 4.0's passes its calls to
    return str(of_newer_spark.__getstate__()["options"].load)


def test_all_readers_of_a_load_have_its_name_and_two_loads_have_two() -> None:
    one, other = KafkaDeferredDataSource(OPTIONS), KafkaDeferredDataSource(OPTIONS)
    one.schema()
    assert not isinstance(one.streamReader(one.schema()), RefusedStreamReader)
    assert load_of(one) == load_of(one) == load_of(pickle.loads(pickle.dumps(one)))
    assert load_of(one) != load_of(other)


def test_the_second_is_refused_while_the_first_has_it() -> None:
    first, second = LoadClaim("a", "run-1"), LoadClaim("a", "run-2")
    assert first.take(0) is None
    assert second.take(0) == "run-1"
    assert LoadClaim("b", "run-3").take(0) is None, "another load"
    first.release()
    first.release()
    assert second.take(0) is None
    assert first.take(0) == "run-2"


def test_it_waits_for_one_that_is_just_ending() -> None:
    first = LoadClaim("a", "run-1")
    assert first.take(0) is None
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            first.release()

    assert LoadClaim("a", "run-2", sleep=wait).take(60) is None
    assert len(waits) == 3


def test_a_killed_planner_holds_nothing(folder: Path) -> None:
    code = (
        "import sys, tempfile; tempfile.tempdir = sys.argv[1]\n"
        "from pyspark_kafka_rebalance.source.spark.load_claim import LoadClaim\n"
        "assert LoadClaim('a', 'killed').take(0) is None\n"
        "print('has it', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as planner:
        assert planner.stdout is not None
        assert planner.stdout.readline() == b"has it\n"
        assert LoadClaim("a", "run-2").take(0) == "killed"
        planner.kill()
        planner.wait()
        assert LoadClaim("a", "run-2").take(0) is None


def test_a_file_that_a_cleaner_removed_is_made_again(folder: Path) -> None:
    first = LoadClaim("a", "run-1")
    first.take(0)
    (file,) = folder.iterdir()
    file.unlink()
    first.keep()
    assert LoadClaim("a", "run-2").take(0) == "run-1"


def test_the_files_of_killed_planners_are_removed_and_no_others(folder: Path) -> None:
    held = LoadClaim("held", "run-1")
    held.take(0)
    left = folder / "pyspark-kafka-rebalance-load-left.claim"
    left.touch()
    for file in folder.iterdir():
        os.utime(file, (0, time.time() - 7200))
    LoadClaim("new", "run-2").take(0)
    assert not left.exists()
    assert LoadClaim("held", "run-3").take(0) == "run-1"


def test_a_host_where_nothing_can_be_written_refuses_nobody(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "missing"))
    assert LoadClaim("a", "run-1").take(0) is None
    assert "cannot tell whether another query reads the same load()" in caplog.text
