"""What the fuzzers begin with: ``python -m tests.fuzz.seeds decoder|encoder FOLDER``.

Real record batches for the decoder, columns of Arrow for the encoder.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from record_batches import (
    CONTROL,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    Record,
    build,
    control,
)

_EVERYTHING = bytes([1 | 2, 0, 0, 0, 0, 0, 0, 0])
_RECORDS = bytes([1 | 2 | 4, 0, 0, 3, 0, 0, 0, 0])


def of_decoder() -> dict[str, bytes]:
    records = [
        Record(0, 1_000, b"key", b"value"),
        Record(1, 1_500, None, b"x" * 300, [("h\u00e9ader", b"v"), ("", None)]),
        Record(200, 2**41, b"", None, [("\U0001f600", b"")]),
    ]
    plain = build(records)
    return {
        "plain": _EVERYTHING + plain,
        "two": _EVERYTHING + plain + build(records, base_offset=0, flags=LOG_APPEND_TIME),
        "transaction": _EVERYTHING
        + build(records[:1], flags=TRANSACTIONAL, producer_id=7)
        + control(1, 7, commit=False),
        "compressed": _EVERYTHING + build(records, codec=4) + plain,
        "empty": _EVERYTHING + build([], base_offset=3, last_offset=9, flags=CONTROL),
        "cut": _EVERYTHING + plain + plain[:100],
        "nanoseconds": _EVERYTHING
        + build([Record(n, (1, 10**18, 2)[n], None, b"v") for n in range(3)]),
        "records": _RECORDS + plain[HEADER_SIZE:],
    }


def of_encoder() -> dict[str, bytes]:
    keys = pa.array([b"k1", None, b"k3", b"", b"a longer key"])
    values = pa.array([b"v1", b"v" * 100, None, b"v4", b""])
    headers = pa.array([[0, 1], [], None, [2], [3]], pa.list_(pa.int32()))
    names = pa.array([b"h1", b"h2", "h\u00e9".encode(), b""])
    contents = pa.array([b"1", None, b"", b"4"])
    timestamps = pa.array([1_000, None, 2**41, -5, 3], pa.int64())
    partitions = pa.array([0, None, 1, None, 2], pa.int32())
    columns = (keys, values, headers, names, contents, timestamps, partitions)
    nothing = (None,) * 7
    whole = [None, values, *nothing[2:]]
    return {
        "everything": _columns([1, 5, 4, 255, 255, 0], columns),
        "microseconds": _columns([2, 5, 4, 255, 255, 0], columns),
        "small batches": _columns([1, 5, 4, 12, 1, 0], columns),
        "too large": _columns([1, 5, 4, 255, 255, 10], columns),
        "values": _columns([1, 5, 0, 255, 2, 0], whole),
        "keys": _columns([1, 5, 0, 255, 255, 0], [keys, values, *nothing[2:]]),
        "large": _columns(
            [5, 5, 0, 255, 255, 0],
            [keys.cast(pa.large_binary()), values.cast(pa.large_binary()), *nothing[2:]],
        ),
        "no rows": _columns([1, 0, 0, 1, 1, 0], nothing),
    }


def _columns(first: list[int], columns: Any) -> bytes:
    """The options, in the order of ``fuzz_encoder.c``, and the buffers that they cut."""
    options, buffers = [*first], b""
    for column in columns:
        validity, numbers, *data = (None, None) if column is None else column.buffers()[:3]
        options.append(0 if column is None else 3 if validity else 1)
        of_text = column is not None and not pa.types.is_integer(column.type)
        content = bytes(data[0]) if of_text and data and data[0] else b""
        for buffer in (numbers, validity):
            buffers += bytes(buffer or b"")
        if len(options) in (7, 9, 12, 14):  # keys, values, and those of headers
            options.append(len(content))
            buffers += content
    return bytes([*options, *bytes(24 - len(options))]) + buffers


def main(kind: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, seed in {"decoder": of_decoder, "encoder": of_encoder}[kind]().items():
        (folder / name).write_bytes(seed)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
