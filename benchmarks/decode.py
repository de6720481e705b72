"""Record batches to Arrow, in rows per second of CPU time: our decoder and other clients' decoders.

The bytes come from a real broker's fetch response, read once and decoded over and over. Two
consumers read them from the broker each time: ours with ``poll_arrow``, and confluent-kafka's,
whose decoder cannot be used without it. A figure is rows ÷ CPU time of the whole process, all its
threads included: rows per second and core. Prints a table and a line of JSON, and draws.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
from kafka.structs import TopicPartition
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from pyspark_kafka_rebalance import DeferredRevokeConsumer
from pyspark_kafka_rebalance.fetch.columns import PythonColumns
from pyspark_kafka_rebalance.fetch.compiled_columns import CompiledColumns
from pyspark_kafka_rebalance.fetch.decoder import DecoderSettings, RecordDecoder
from pyspark_kafka_rebalance.fetch.fetch_pipeline import FetchPipeline
from pyspark_kafka_rebalance.fetch.fetcher import RangeFetcher
from pyspark_kafka_rebalance.fetch.leaders import PartitionLeaders
from pyspark_kafka_rebalance.fetch.offset_range import OffsetRange
from pyspark_kafka_rebalance.fetch.range_reader import RangeReader
from pyspark_kafka_rebalance.testing import LocalKafka

from .chart import bars
from .machine import about_this_machine
from .throughput.topics import fill

CODECS = ("none", "lz4", "zstd", "snappy", "gzip")
GOAL_ROWS_PER_SECOND = 5_000_000
_SECONDS = 1.5
_OURS = "ours"

Decode = Callable[[bytes], int]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=40, help="of values in a topic")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--picture", type=Path, default=Path("artifacts/decode.png"))
    given = parser.parse_args()
    logging.getLogger("kafka").setLevel(logging.ERROR)
    console = Console(width=140)
    figures: list[dict[str, Any]] = []
    with LocalKafka() as kafka, tempfile.TemporaryDirectory() as work:
        for size in (100, 1_000):
            for codec in CODECS:
                topic = f"decode-{codec}-{size}"
                rows = given.megabytes * 1_000_000 // size
                fill(kafka, topic, 1, codec, size, rows, Path(work))
                log = read_log(kafka.bootstrap_servers, topic, rows)
                what = {"codec": codec, "bytes": size, "rows": rows}
                figures += measure(kafka.bootstrap_servers, topic, log, what, given.runs)
                console.print(f"{codec}, {size} bytes: measured", highlight=False)
    report(console, figures)
    of_100 = [one for one in figures if one["bytes"] == 100]
    bars(
        given.picture,
        "million rows a second and core",
        CODECS,
        {
            "Record batches of 100-byte records to Arrow, CRC checked": {
                form: [one["rows_per_second"] / 1e6 for one in of_100 if one["form"] == form]
                for form in dict.fromkeys(one["form"] for one in figures)
            }
        },
    )
    console.print(f"drawn: {given.picture}", highlight=False)
    print(json.dumps({"benchmark": "decode", **about_this_machine(), "results": figures}))


def read_log(servers: str, topic: str, rows: int) -> list[bytes]:
    """The topic's record batches, as in fetch responses."""
    fetcher = RangeFetcher({"bootstrap_servers": servers})
    cluster = fetcher._connected()
    settings = fetcher._fetch_settings
    reader = RangeReader(
        OffsetRange(topic, 0, 0, rows), PartitionLeaders(cluster, [topic]), settings, {}
    )
    fetches = FetchPipeline([reader], cluster, settings).fetches()
    log = [fetched.records for _, fetched in fetches if fetched is not None]
    fetcher.close()
    return log


def measure(
    servers: str, topic: str, log: list[bytes], what: dict[str, Any], runs: int
) -> list[dict[str, Any]]:
    """Run every decoder in turn, ``runs`` times."""
    consumer = DeferredRevokeConsumer(
        bootstrap_servers=servers, group_id=topic, max_partition_fetch_bytes=4 * 1024 * 1024
    )
    consumer.assign([TopicPartition(topic, 0)])
    forms: dict[str, Callable[[], int]] = {
        _OURS: lambda: sum(map(ours(CompiledColumns), log)),
        "ours, in Python": lambda: sum(map(ours(PythonColumns), log)),
        "ours, poll_arrow": lambda: poll_arrow(consumer, what["rows"]),
        "kafka-python": lambda: sum(map(kafka_python, log)),
        "aiokafka": lambda: sum(map(aiokafka, log)),
        "confluent-kafka": lambda: confluent_kafka(servers, topic, what["rows"]),
    }
    rates: dict[str, list[float]] = {form: [] for form in forms}
    for _ in range(runs):
        for form, decode in forms.items():
            found, began, began_at = 0, time.process_time(), time.monotonic()
            while time.monotonic() - began_at < _SECONDS:
                found += decode()
            rates[form].append(found / (time.process_time() - began))
    consumer.close()
    base = median(rates[_OURS])
    return [
        {
            **what,
            "form": form,
            "log_bytes": sum(map(len, log)),
            "rows_per_second": round(median(rate)),
            "ours_is_faster": round(base / median(rate), 1),
        }
        for form, rate in rates.items()
    ]


def ours(form: Callable[[bool], Any]) -> Decode:
    def decode(records: bytes) -> int:
        every = OffsetRange("t", 0, 0, 2**62)
        decoder = RecordDecoder(every, DecoderSettings(), form(False))
        batches = [*decoder.decode(records, 0), *decoder.finish()]
        return sum(batch.num_rows for batch in batches)

    return decode


def poll_arrow(consumer: DeferredRevokeConsumer, rows: int) -> int:
    consumer.seek_to_beginning()
    found = 0
    while found < rows:
        polled = consumer.poll_arrow(timeout_ms=10_000).records
        if not polled:
            raise TimeoutError(f"poll_arrow read {found} of {rows} records")
        found += sum(batch.num_rows for batches in polled.values() for batch in batches)
    return found


def kafka_python(records: bytes) -> int:
    from kafka.record.memory_records import MemoryRecords

    def of(batch: Any) -> Any:
        if not batch.validate_crc():
            raise ValueError("CRC")
        return batch

    memory = MemoryRecords(records)
    rows = [record for batch in iter(memory.next_batch, None) for record in of(batch)]
    return to_arrow(rows).num_rows


def aiokafka(records: bytes) -> int:
    from aiokafka.record.memory_records import MemoryRecords

    def batches() -> Iterator[Any]:
        memory = MemoryRecords(records)
        while memory.has_next():
            batch = memory.next_batch()
            if not batch.validate_crc():
                raise ValueError("CRC")
            yield batch

    return to_arrow([record for batch in batches() for record in batch]).num_rows


def to_arrow(rows: list[Any]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "key": pa.array([row.key for row in rows], pa.binary()),
            "value": pa.array([row.value for row in rows], pa.binary()),
            "offset": pa.array([row.offset for row in rows], pa.int64()),
            "timestamp": pa.array([row.timestamp for row in rows], pa.timestamp("ms", tz="UTC")),
        }
    )


def confluent_kafka(servers: str, topic: str, rows: int) -> int:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": topic,
            "enable.auto.commit": False,
            "check.crcs": True,
            "queued.max.messages.kbytes": 65_536,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = 0
    while found < rows:
        messages = consumer.consume(10_000, timeout=10)
        if not messages:
            raise TimeoutError(f"confluent-kafka read {found} of {rows} records")
        found += pa.record_batch(
            {
                "key": pa.array([message.key() for message in messages], pa.binary()),
                "value": pa.array([message.value() for message in messages], pa.binary()),
                "offset": pa.array([message.offset() for message in messages], pa.int64()),
                "timestamp": pa.array([message.timestamp()[1] for message in messages], pa.int64()),
            }
        ).num_rows
    consumer.close()
    return found


def report(console: Console, figures: list[dict[str, Any]]) -> None:
    forms = list(dict.fromkeys(one["form"] for one in figures))
    table = Table(title="rows a second and core; how often ours is faster", box=SIMPLE_HEAD)
    table.add_column("codec")
    table.add_column("bytes", justify="right")
    for form in forms:
        table.add_column(form, justify="right")
    for codec, size in dict.fromkeys((one["codec"], one["bytes"]) for one in figures):
        cells = [
            f"{one['rows_per_second']:,}"
            + ("" if one["form"] == _OURS else f"  x{one['ours_is_faster']:g}")
            for one in figures
            if (one["codec"], one["bytes"]) == (codec, size)
        ]
        table.add_row(codec, str(size), *cells)
    console.print(table)
    plain = next(one for one in figures if one["form"] == _OURS)
    console.print(
        f"uncompressed, 100 bytes: {plain['rows_per_second']:,} rows/s, "
        f"goal ≥ {GOAL_ROWS_PER_SECOND:,}",
        highlight=False,
    )


if __name__ == "__main__":
    main()
