"""Real record batches for the fuzzer to begin with: ``python -m tests.fuzz.seeds FOLDER``."""

from __future__ import annotations

import sys
from pathlib import Path

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


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    records = [
        Record(0, 1_000, b"key", b"value"),
        Record(1, 1_500, None, b"x" * 300, [("h\u00e9ader", b"v"), ("", None)]),
        Record(200, 2**41, b"", None, [("\U0001f600", b"")]),
    ]
    plain = build(records)
    seeds = {
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
    for name, seed in seeds.items():
        (folder / name).write_bytes(seed)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
