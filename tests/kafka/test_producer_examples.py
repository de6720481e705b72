"""The examples of producer groups, as a user runs them."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from zlib import crc32

import psycopg
import pytest
from group_members import wait_until

from demos.shop.ledger import committed_values, judge, versions_in_table, versions_in_topic
from demos.shop.tables import TABLES
from demos.shop.writer import WriterProcess
from pyspark_kafka_rebalance.testing import LocalKafka

EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE_S = 120.0

Start = Callable[..., subprocess.Popen[str]]


@contextmanager
def processes(script: str, work: Path) -> Iterator[Start]:
    """Start instances of an example; killed at the end. The last that one says: ``said``."""
    with ExitStack() as stack:

        def start(name: str, *arguments: str) -> subprocess.Popen[str]:
            output = stack.enter_context((work / f"{name}.txt").open("w"))
            command = [sys.executable, str(EXAMPLES / script), *arguments]
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, text=True)
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        yield start


def said(work: Path, name: str) -> str:
    return (work / f"{name}.txt").read_text()


def lines_in(kafka: LocalKafka, topic: str) -> list[bytes]:
    (values,) = committed_values(kafka.bootstrap_servers, topic).values()
    return values


@pytest.fixture
def topics(kafka: LocalKafka) -> Iterator[None]:
    """Those of the example, which have the names of its tables."""
    for table in TABLES:
        kafka.create_topic(table)
    yield
    for table in TABLES:
        kafka.delete_topic(table)


@pytest.mark.usefixtures("topics")
@pytest.mark.parametrize(
    ("script", "stops"),
    [("postgresql_tables.py", signal.SIGTERM), ("postgresql_batches.py", signal.SIGINT)],
)
def test_three_tables_by_instances_of_which_one_is_killed(
    kafka: LocalKafka,
    postgres_url: str,
    group_id: str,
    tmp_path: Path,
    script: str,
    stops: signal.Signals,
) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute((EXAMPLES / "postgresql_tables.sql").read_bytes())
    arguments = ("--bootstrap-servers", kafka.bootstrap_servers, "--group-id", group_id)
    arguments += ("--postgres", postgres_url, "--session-timeout-ms", "3000")
    with (
        processes(script, tmp_path) as start,
        WriterProcess(postgres_url, rows_per_s=500, work=tmp_path, longest_s=0.5) as writer,
    ):
        instances = {name: start(name, *arguments) for name in "abc"}
        for name in instances:
            wait_until(lambda name=name: "go on: {'" in said(tmp_path, name), f"a table for {name}")
        instances["a"].kill()
        wait_until(
            lambda: sum(said(tmp_path, n).count("go on: ") for n in "bc") > 2, "the take-over"
        )
        time.sleep(1)
        instances["b"].send_signal(stops)
        assert instances["b"].wait(PATIENCE_S) == 0, said(tmp_path, "b")
        time.sleep(1)
        writer.stop()

        def all_is_there() -> bool:
            return all(
                judge(t, versions_in_table(postgres_url, t), found(t)).lost == 0 for t in TABLES
            )

        def found(table: str) -> dict[int, list[tuple[int, int]]]:
            return versions_in_topic(kafka.bootstrap_servers, table)

        wait_until(all_is_there, "the rest")
        for table in TABLES:
            verdict = judge(table, versions_in_table(postgres_url, table), found(table))
            assert verdict.rows > 100
            assert verdict.is_right, verdict
        instances["c"].send_signal(signal.SIGTERM)
        assert instances["c"].wait(PATIENCE_S) == 0, said(tmp_path, "c")
    for name in "bc":
        assert "Traceback" not in said(tmp_path, name)


@pytest.mark.parametrize("form", [(), ("--blocks",)], ids=["lines", "blocks"])
def test_the_lines_of_files_that_grow(
    kafka: LocalKafka, topic: str, group_id: str, tmp_path: Path, form: tuple[str, ...]
) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    expected: dict[str, list[bytes]] = {}
    stop = threading.Event()

    def write() -> None:
        for day in range(1, 60):
            name = f"2026-11-{day:03}.log"
            lines = [b"%s %d" % (name.encode(), n) for n in range(40)]
            expected[name] = lines
            # Not each program ends a file's last line; the last files would be thought unfinished.
            last_end = b"" if day % 4 == 0 and day < 30 else b"\n"
            with (folder / name).open("wb", buffering=0) as file:
                for line in lines:
                    file.write(line[:5])  # a reader may see half a line
                    file.write(line[5:] + (b"\n" if line is not lines[-1] else last_end))
                    if stop.wait(0.002):
                        return

    writing = threading.Thread(target=write)
    arguments = ("--bootstrap-servers", kafka.bootstrap_servers, "--group-id", group_id)
    arguments += ("--folder", str(folder), "--topic", topic, "--session-timeout-ms", "3000")
    with processes("folder_of_files.py", tmp_path) as start:
        first, second, _ = (start(name, *arguments, *form) for name in ("first", "second", "third"))
        writing.start()
        try:
            wait_until(lambda: len(lines_in(kafka, topic)) > 200, "the first lines")
            second.kill()
            wait_until(lambda: len(lines_in(kafka, topic)) > 500, "more lines")
            first.send_signal(signal.SIGTERM)
            assert first.wait(PATIENCE_S) == 0, said(tmp_path, "first")
            writing.join()
        finally:
            stop.set()
        total = sum(map(len, expected.values()))
        wait_until(lambda: len(lines_in(kafka, topic)) >= total, "the rest")
    lines = lines_in(kafka, topic)
    assert len(lines) == total
    for name, wanted in expected.items():
        assert [line for line in lines if line.startswith(name.encode())] == wanted
    assert len({crc32(name.encode()) % 16 for name in expected}) > 10


def test_the_table_example_is_short() -> None:
    text = (EXAMPLES / "postgresql_tables.py").read_text()
    own = text.rpartition('"""\n\nfrom __future__')[2].splitlines()
    assert len([line for line in own if line.strip() and not line.lstrip().startswith("#")]) <= 60
