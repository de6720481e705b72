"""The lines of a folder's files into a topic, by any number of processes, every line once.

    python examples/folder_of_files.py --bootstrap-servers broker:9092 --group-id logs \
        --folder /var/log/shop --topic log-lines

With --blocks, whole blocks of lines go as Arrow data: no line is a Python object.

A hash of its name puts a file into one of 16 source partitions, which the instances share. Within a
partition, files are read in order of their names: a new file's name must sort after the others', as
with dates, and only the last file may still grow. All instances must see the folder.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from zlib import crc32

import pyarrow as pa
from pyarrow.compute import split_pattern

from pyspark_kafka_rebalance import PartitionsLostError, ProducerGroup, TransactionAbortedError

PARTITIONS = 16
LINES_AT_ONCE = 1_000
BLOCK_BYTES = 1 << 20


def files_from(folder: Path, partition: int, name: str) -> list[Path]:
    """The files of a source partition, from this name on."""
    return [
        file
        for file in sorted(folder.iterdir())
        if crc32(file.name.encode()) % PARTITIONS == partition and file.name >= name
    ]


def lines_after(folder: Path, partition: int, point: str | None) -> Iterator[tuple[bytes, str]]:
    """The complete lines of a source partition's files, each with the restart point after it."""
    name, _, offset = (point or "").rpartition(":")
    files = files_from(folder, partition, name)
    for file in files:
        with file.open("rb") as lines:
            end = lines.seek(int(offset) if file.name == name else 0)
            prefix = f"{file.name}:"
            for line in lines:
                if not line.endswith(b"\n") and file == files[-1]:
                    break  # still being written; only the last file can be incomplete
                end += len(line)
                yield line.removesuffix(b"\n"), f"{prefix}{end}"


def blocks_after(folder: Path, partition: int, point: str | None) -> Iterator[tuple[bytes, str]]:
    """As ``lines_after``, many complete lines at once."""
    name, _, offset = (point or "").rpartition(":")
    files = files_from(folder, partition, name)
    for file in files:
        with file.open("rb") as lines:
            end = lines.seek(int(offset) if file.name == name else 0)
            while block := lines.read(BLOCK_BYTES) + lines.readline():
                whole = block
                if file == files[-1] and not block.endswith(b"\n"):
                    whole = block[: block.rfind(b"\n") + 1]
                if whole:
                    end += len(whole)
                    yield whole, f"{file.name}:{end}"
                if whole != block:
                    break  # still being written


def produce_lines(group: ProducerGroup, folder: Path, topic: str) -> int:
    """Send the lines since the restart points, and commit; return the number of lines sent."""
    sent = 0
    try:
        for partition, point in group.restart_points.items():
            lines = islice(lines_after(folder, partition, point), LINES_AT_ONCE)
            with contextlib.suppress(PartitionsLostError):  # another instance took them over
                for line, behind in lines:
                    key = behind.rpartition(":")[0].encode()  # a file's lines stay in order
                    group.send(topic, line, key, source_partition=partition, restart_point=behind)
                    sent += 1
        group.commit_transaction()
    except TransactionAbortedError as error:
        print(f"read again from the restart points: {error}", flush=True)
    return sent


def produce_blocks(group: ProducerGroup, folder: Path, topic: str) -> int:
    """As ``produce_lines``, by blocks."""
    sent = 0
    try:
        for partition, point in group.restart_points.items():
            with contextlib.suppress(PartitionsLostError):
                for block, behind in islice(blocks_after(folder, partition, point), 1):
                    lines = split_pattern(pa.array([block.removesuffix(b"\n")]), b"\n").flatten()
                    keys = pa.repeat(behind.rpartition(":")[0], len(lines))
                    rows = pa.table({"key": keys, "value": lines})
                    group.send_batch(topic, rows, source_partition=partition, restart_point=behind)
                    sent += len(lines)
        group.commit_transaction()
    except TransactionAbortedError as error:
        print(f"read again from the restart points: {error}", flush=True)
    return sent


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="The lines of a folder's files into a topic.")
    parser.add_argument("--bootstrap-servers", required=True, metavar="HOST:PORT,…")
    parser.add_argument("--group-id", required=True, help="shared by all instances")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--blocks", action="store_true", help="send whole blocks of lines")
    parser.add_argument("--session-timeout-ms", type=int, default=30_000, metavar="MS")
    given = parser.parse_args(arguments)
    produce = produce_blocks if given.blocks else produce_lines
    stop = threading.Event()  # looked at between two transactions
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with ProducerGroup(
        given.group_id,
        PARTITIONS,
        bootstrap_servers=given.bootstrap_servers,
        session_timeout_ms=given.session_timeout_ms,
    ) as group:
        group.subscribe()
        while not stop.is_set():
            sent = produce(group, given.folder, given.topic)
            group.poll(timeout_ms=0 if sent else 200)


if __name__ == "__main__":
    main()
