"""Records to record batches, in rows per second of CPU time: our encoder, kafka-python's builder.

No broker: the batches are built and thrown away, in one thread, without compression unless asked.
``send`` and kafka-python take Python objects, one by one; the others take an Arrow column. A figure
is the median of its runs, and all runs take turns. Prints a table and a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from array import array
from collections.abc import Callable, Sequence
from functools import cache
from statistics import median
from typing import Any

import pyarrow as pa
from kafka.record.default_records import DefaultRecordBatchBuilder
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from pyspark_kafka_rebalance.fetch.compression import NONE
from pyspark_kafka_rebalance.produce.encoder.arrow_encoder import ArrowEncoder
from pyspark_kafka_rebalance.produce.encoder.arrow_rows import arrow_rows
from pyspark_kafka_rebalance.produce.encoder.batch_builder import BatchBuilder
from pyspark_kafka_rebalance.produce.encoder.python_encoder import PythonEncoder
from pyspark_kafka_rebalance.produce.encoder.settings import EncoderSettings

from .machine import about_this_machine

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
GOAL_ROWS_PER_SECOND = 3_000_000
PARTITIONS = 6
NOW_MS = 1_700_000_000_000
_ROWS_AT_ONCE = 50_000
_OURS = "ours"

#: Encodes the values, and returns how many batches they became.
Encode = Callable[[pa.RecordBatch, EncoderSettings], int]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of CPU time, for each figure")
    parser.add_argument("--codecs", default="none", help=f"of {', '.join(CODECS)}")
    parser.add_argument("--batch-bytes", type=int, default=1_000_000)
    given = parser.parse_args()
    figures: list[dict[str, Any]] = []
    for codec in given.codecs.split(","):
        bounds = EncoderSettings(batch_bytes=given.batch_bytes, codec=CODECS.index(codec))
        for size in (100, 1_000):
            figures += measure(size, bounds, codec, given.runs, given.seconds)
    report(Console(width=120), figures)
    about = about_this_machine()
    about.pop("broker")
    print(json.dumps({"benchmark": "encode", **about, "results": figures}))


def values_of(size: int, rows: int) -> pa.RecordBatch:
    """Text that compresses by about half, as JSON does."""
    shuffle = random.Random(size)
    words = [f"{shuffle.randrange(2**24):06x}" for _ in range(500)]
    count = size // 6 + 1
    lines = [" ".join(shuffle.choices(words, k=count))[:size].encode() for _ in range(rows)]
    return pa.record_batch({"value": pa.array(lines, pa.binary())})


def measure(
    size: int, bounds: EncoderSettings, codec: str, runs: int, seconds: float
) -> list[dict[str, Any]]:
    """Run every form in turn, ``runs`` times."""
    values = values_of(size, _ROWS_AT_ONCE * 100 // size)
    few = values.slice(0, values.num_rows // 10)
    forms: dict[str, tuple[Encode, pa.RecordBatch]] = {
        _OURS: (of_arrow, values),
        "ours, send": (of_single_records, values),
        "ours, in Python": (in_python, few),
        "kafka-python": (of_kafka_python, few),
    }
    rates: dict[str, list[float]] = {form: [] for form in forms}
    for _ in range(runs):
        for form, (encode, rows) in forms.items():
            items(rows)
            found, began = 0, time.process_time()
            while (took := time.process_time() - began) < seconds:
                encode(rows, bounds)
                found += rows.num_rows
            rates[form].append(found / took)
    base = median(rates[_OURS])
    return [
        {
            "codec": codec,
            "bytes": size,
            "batch_bytes": bounds.batch_bytes,
            "form": form,
            "rows_per_second": round(median(rate)),
            "ours_is_faster": round(base / median(rate), 1),
        }
        for form, rate in rates.items()
    ]


@cache
def encoder(bounds: EncoderSettings) -> ArrowEncoder:
    return ArrowEncoder("t", PARTITIONS, bounds)


def of_arrow(values: pa.RecordBatch, bounds: EncoderSettings) -> int:
    return len(encoder(bounds).encode(values, NOW_MS))


def in_python(values: pa.RecordBatch, bounds: EncoderSettings) -> int:
    """What is used where no C compiler was; without its compression."""
    interpreted = PythonEncoder(bounds, bounds.codec == NONE)
    for rows in arrow_rows(values):
        interpreted.append(rows, NOW_MS, PARTITIONS, array("i", range(PARTITIONS)), 0)
    interpreted.close_all()
    return len(interpreted.take())


def of_single_records(values: pa.RecordBatch, bounds: EncoderSettings) -> int:
    builder = BatchBuilder("t", 0, bounds)
    append = builder.append
    closed = 0
    for value in items(values):
        if not append(None, value, None, NOW_MS):
            builder.close()
            closed += 1
            append(None, value, None, NOW_MS)
    builder.close()
    return closed + 1


def of_kafka_python(values: pa.RecordBatch, bounds: EncoderSettings) -> int:
    """As its producer uses it: an append for each record, from Python objects."""

    def builder() -> Any:
        return DefaultRecordBatchBuilder(2, bounds.codec, False, -1, -1, -1, bounds.batch_bytes)

    batch, offset, closed = builder(), 0, 0
    for value in items(values):
        if batch.append(offset, NOW_MS, None, value, []) is None:
            batch.build()
            batch, offset, closed = builder(), 0, closed + 1
            batch.append(offset, NOW_MS, None, value, [])
        offset += 1
    batch.build()
    return closed + 1


#: The values as Python objects, which a producer's application has made before it sends them.
_objects: dict[int, list[bytes]] = {}


def items(values: pa.RecordBatch) -> Sequence[bytes]:
    if id(values) not in _objects:
        _objects.clear()
        _objects[id(values)] = values.column(0).to_pylist()
    return _objects[id(values)]


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
    console.print(
        f"{figures[0]['codec']}, 100 bytes: {figures[0]['rows_per_second']:,} rows/s, "
        f"goal ≥ {GOAL_ROWS_PER_SECOND:,}",
        highlight=False,
    )


if __name__ == "__main__":
    main()
