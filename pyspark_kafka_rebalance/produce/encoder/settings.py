"""How large record batches get, and how they are compressed."""

from __future__ import annotations

from dataclasses import dataclass

from ...fetch.compression import NONE, ZSTD

#: No batch is larger than this, and no record: sizes on the wire are 32 bits wide.
MOST_BYTES = 2**30
MOST_RECORDS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class EncoderSettings:
    """The bounds of a record batch, and its compression.

    Attributes
    ----------
    batch_bytes : int
        A batch is full when the next record would make it larger than this, in bytes before
        compression, its header of 61 bytes included. A record that is larger on its own gets a
        batch of its own. Java's ``batch.size``.
    batch_records : int
        The number of records at which a batch is full.
    max_request_bytes : int
        A larger record is refused with `RecordTooLargeError`. As in Java
        (``max.request.size``), what counts is the most that a batch of this one record can take
        before compression.
    codec : int
        As in a batch's attributes: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.
    level : int, optional
        Of gzip, lz4 and zstd; None for Java's default (6, the fastest, 3).

    Raises
    ------
    ValueError
        A bound or the codec is out of range.
    """

    batch_bytes: int = 1_000_000
    batch_records: int = MOST_RECORDS
    max_request_bytes: int = 1024 * 1024
    codec: int = NONE
    level: int | None = None

    def __post_init__(self) -> None:
        for name, value, most in (
            ("batch_bytes", self.batch_bytes, MOST_BYTES),
            ("batch_records", self.batch_records, MOST_RECORDS),
            ("max_request_bytes", self.max_request_bytes, MOST_BYTES),
        ):
            if not 1 <= value <= most:
                raise ValueError(f"{name} is {value}; allowed: 1 to {most}")
        if not NONE <= self.codec <= ZSTD:
            raise ValueError(f"unknown codec {self.codec}")
