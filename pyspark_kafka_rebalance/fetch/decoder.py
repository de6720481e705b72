"""Decode record batches from the wire to Arrow: the decoder's interface and its Python form.

A fetch returns record batches as they are in the log (KIP-98, "magic 2"; formats 0 and 1 are in
legacy_batch.py). The first holds the requested offset, but may start before it; the last may be
cut off. Nothing in them is trusted: the CRC does not cover a batch's offset and length, and does
not protect against anyone who can compute one, so every length and varint is checked.

RecordBatch => BaseOffset int64, Length int32, PartitionLeaderEpoch int32, Magic int8, CRC uint32,
               Attributes int16, LastOffsetDelta int32, BaseTimestamp int64, MaxTimestamp int64,
               ProducerId int64, ProducerEpoch int16, BaseSequence int32, Count int32, Records
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from ..errors import CorruptRecordError
from .checksum import crc32c
from .columns import Columns, Extent, Row
from .compiled_columns import compiled, new_columns
from .compression import NONE, DecompressionError, decompress
from .damage import is_damage
from .legacy_batch import LegacyRow, legacy_rows
from .offset_range import OffsetRange
from .records import MalformedError, Wanted, control_type, fits_microseconds
from .transactions import AbortedTransaction, AbortedTransactions

log = logging.getLogger(__name__)

_LOG_OVERHEAD = 12  # BaseOffset, Length
_MAGIC_OFFSET = 16
_CRC_START = _ATTRIBUTES_OFFSET = 21
_HEADER = struct.Struct(">qiibIhiqqqhii")
_SMALLEST_LEGACY = 22

#: Topics and partitions with a timestamp that the column cannot hold. A topic may have many.
_warned_of: set[tuple[str, int]] = set()

_CODEC_MASK = 0x07
_LOG_APPEND_TIME_FLAG = 0x08
_TRANSACTIONAL_FLAG = 0x10
_CONTROL_FLAG = 0x20
_ABORT_MARKER = 0

_unpack_offset_and_length = struct.Struct(">qi").unpack_from
_unpack_attributes = struct.Struct(">h").unpack_from
# Leader epoch, magic, CRC and attributes, last offset delta.
_unpack_epoch_and_last_offset_delta = struct.Struct(">i7xi").unpack_from


@dataclass(frozen=True, slots=True)
class DecoderSettings:
    """The settings that all ranges of a fetcher share.

    Attributes
    ----------
    include_headers : bool
        Whether there is a column ``headers``.
    read_committed : bool
        Whether records of aborted transactions are left out.
    check_crcs : bool
        Whether checksums are compared. Lengths are checked in any case.
    batch_rows, batch_bytes : int
        An Arrow batch is handed out once it has this many rows, or rows of this size.
    """

    include_headers: bool = False
    read_committed: bool = False
    check_crcs: bool = True
    batch_rows: int = 16_384
    batch_bytes: int = 2 * 1024 * 1024


def next_position(records: bytes, position: int, offset_range: OffsetRange) -> int:
    """Find where to fetch next: `extent_of` without the leader epoch."""
    return extent_of(records, position, offset_range)[0]


def extent_of(records: bytes, position: int, offset_range: OffsetRange) -> tuple[int, int]:
    """Find where to fetch next, from only the batches' headers.

    So the next fetch can be in flight while this one is decoded.

    Parameters
    ----------
    records : bytes
        The response of a fetch at ``position``; not empty.
    position : int
        The requested offset.
    offset_range : OffsetRange
        Batches from its end on are ignored.

    Returns
    -------
    int, int
        The offset after the last whole batch, and the leader epoch of that batch; -1 if it is of
        an older format, which has none.

    Raises
    ------
    CorruptRecordError
        A header makes no sense, or no batch leads past ``position``.
    """
    after, epoch, at = compiled.skim(records, offset_range.end) if compiled else (-1, -1, 0)
    after = max(after, position)
    for base, start, _ in _split(records, at, position, offset_range):
        if base >= offset_range.end:
            return offset_range.end, epoch
        epoch = -1
        if records[start + _MAGIC_OFFSET] == 2:
            epoch, delta = _unpack_epoch_and_last_offset_delta(records, start + _LOG_OVERHEAD)
            if delta < 0:
                raise _corrupt(offset_range, base, f"last offset delta {delta}")
            base += delta
        # The offset of a compressed message of format 0 or 1 is that of its last record.
        after = max(after, base + 1)
    if after == position:
        raise _corrupt(
            offset_range,
            position,
            f"{len(records)} bytes were fetched at this offset, but no whole record batch in them "
            "leads past it",
        )
    return after, epoch


def _split(
    records: bytes, start: int, position: int, offset_range: OffsetRange
) -> Iterator[tuple[int, int, int]]:
    """Yield base offset, start and size of each whole batch, up to the first at the range's end."""
    base = -1
    available = len(records)
    while available - start > _MAGIC_OFFSET and base < offset_range.end:
        base, length = _unpack_offset_and_length(records, start)
        magic = records[start + _MAGIC_OFFSET]
        size = length + _LOG_OVERHEAD
        if magic > 2 or base < 0:
            at = position if base < 0 else base
            raise _corrupt(offset_range, at, f"base offset {base}, format {magic}")
        if size < (_HEADER.size if magic == 2 else _SMALLEST_LEGACY):
            raise _corrupt(offset_range, base, f"a record batch of {size} bytes")
        if size > available - start and (magic < 2 or base < offset_range.end):
            return  # cut off: it comes again, whole, with the next fetch
        yield base, start, size
        start += size


def has_transactions(records: bytes) -> bool:
    """Whether any of these record batches belongs to a transaction, or marks the end of one.

    Parameters
    ----------
    records : bytes
        The response of a fetch. Anything behind a header that makes no sense is ignored.
    """
    start = 0
    while start + _HEADER.size <= len(records):
        _, length = _unpack_offset_and_length(records, start)
        if records[start + _MAGIC_OFFSET] == 2:  # older formats have none
            (attributes,) = _unpack_attributes(records, start + _ATTRIBUTES_OFFSET)
            if attributes & (_TRANSACTIONAL_FLAG | _CONTROL_FLAG):
                return True
        if length <= 0:
            return False
        start += length + _LOG_OVERHEAD
    return False


def _corrupt(
    offset_range: OffsetRange, offset: int, reason: str, after: int | None = None
) -> CorruptRecordError:
    return CorruptRecordError(offset_range.topic, offset_range.partition, offset, reason, after)


class RecordDecoder:
    """Turns the fetches of one range, in order, into Arrow. Holds the rows not yet handed out.

    Parameters
    ----------
    offset_range : OffsetRange
        Rows before it, at its end or beyond are left out.
    settings : DecoderSettings
        How to decode.
    columns : Columns, optional
        Where the rows are gathered; by default compiled columns if possible.
    """

    def __init__(
        self,
        offset_range: OffsetRange,
        settings: DecoderSettings,
        columns: Columns | None = None,
    ) -> None:
        self._range = offset_range
        self._settings = settings
        self._columns = new_columns(settings.include_headers) if columns is None else columns

    def decode(
        self, records: bytes, position: int, aborted: Sequence[AbortedTransaction] = ()
    ) -> Iterator[pa.RecordBatch]:
        """Decode the response of one fetch, and yield the Arrow batches that are full.

        Parameters
        ----------
        records : bytes
            Record batches, the last of them possibly cut off.
        position : int
            The requested offset; rows before it or at the range's end are left out.
        aborted : Sequence[AbortedTransaction]
            As the same response lists them; used only under read_committed.

        Raises
        ------
        CorruptRecordError
            Names topic, partition, and the record batch's base offset.
        """
        settings = self._settings
        transactions = AbortedTransactions(aborted) if settings.read_committed and aborted else None
        extent = Extent(
            position,
            self._range.end,
            settings.check_crcs,
            transactions is not None,
            settings.batch_rows,
            settings.batch_bytes,
        )
        at = 0
        while True:
            at = self._columns.extend(records, at, extent)
            if self._full():
                yield from self.finish()
                continue
            # This batch is not plain; the next one may be.
            batch = next(_split(records, at, position, self._range), None)
            if batch is None or not self._decode_one(records, *batch, position, transactions):
                return
            _, start, size = batch
            at = start + size
            if self._full():
                yield from self.finish()

    def _full(self) -> bool:
        columns, settings = self._columns, self._settings
        return len(columns) >= settings.batch_rows or columns.bytes >= settings.batch_bytes

    def _decode_one(
        self,
        records: bytes,
        base: int,
        start: int,
        size: int,
        position: int,
        transactions: AbortedTransactions | None,
    ) -> bool:
        """Append a batch's rows; False if no later batch can have rows of the range."""
        within = base < self._range.end
        try:
            if records[start + _MAGIC_OFFSET] != 2:
                self._decode_legacy(records, start, size, position)
            elif within:
                self._decode_batch(records, start, size, position, transactions)
        except MalformedError as error:
            after = None
            if records[start + _MAGIC_OFFSET] == 2:
                _, delta = _unpack_epoch_and_last_offset_delta(records, start + _LOG_OVERHEAD)
                after = base + delta + 1 if delta >= 0 else None
            raise _corrupt(self._range, base, str(error), after) from error
        return within

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows that are left, once the range has been read."""
        rows = len(self._columns)
        if not rows:
            self._columns.bytes = 0  # of records that were not wanted
            return
        batch = self._columns.take()
        # One compressed Kafka batch can hold many times batch_rows.
        pieces = max(1, round(rows / self._settings.batch_rows))
        for piece in range(pieces):
            first, last = rows * piece // pieces, rows * (piece + 1) // pieces
            yield batch if pieces == 1 else batch.slice(first, last - first)

    def _decode_batch(
        self,
        records: bytes,
        start: int,
        size: int,
        position: int,
        transactions: AbortedTransactions | None,
    ) -> None:
        header = _BatchHeader._make(_HEADER.unpack_from(records, start))
        last_offset = header.base_offset + header.last_offset_delta
        if header.last_offset_delta < 0 or header.records < 0:
            raise MalformedError(
                f"{header.records} records, last offset delta {header.last_offset_delta}"
            )
        end = start + size
        if self._settings.check_crcs:
            crc = crc32c(memoryview(records)[start + _CRC_START : end])
            if crc != header.crc:
                raise MalformedError(
                    f"the CRC-32C is {crc:#010x}, the header says {header.crc:#010x}"
                )
        attributes = header.attributes
        is_control = bool(attributes & _CONTROL_FLAG)
        if transactions is not None and header.producer_id >= 0:
            transactions.advance(last_offset)
            if is_control:
                # Compaction keeps a producer's last batch, emptied: nothing aborted is left then.
                if (
                    header.records
                    and control_type(*_payload(records, start, end, attributes)) == _ABORT_MARKER
                ):
                    transactions.end(header.producer_id)
            elif attributes & _TRANSACTIONAL_FLAG and transactions.covers(header.producer_id):
                return
        if is_control or last_offset < position or not header.records:
            return
        append_time = bool(attributes & _LOG_APPEND_TIME_FLAG)
        timestamp = header.max_timestamp if append_time else header.base_timestamp
        payload, first, limit = _payload(records, start, end, attributes)
        wanted = Wanted(
            header.records, header.base_offset, timestamp, append_time, position, self._range.end
        )
        if (unfit := self._columns.append_records(payload, first, limit, wanted)) is not None:
            self._warn(*unfit)

    def _decode_legacy(self, records: bytes, start: int, size: int, position: int) -> None:
        view = memoryview(records)[start : start + size]
        columns = self._columns

        def decoded() -> list[LegacyRow]:
            magic = records[start + _MAGIC_OFFSET]
            return list(legacy_rows(view, magic, self._settings.check_crcs))

        try:
            rows = decoded()
        except Exception as error:
            if not is_damage(error, decoded):
                raise
            raise MalformedError(f"{type(error).__name__}: {error}") from error
        for offset, timestamp, timestamp_type, key, value in rows:
            if not position <= offset < self._range.end:
                continue
            fits = fits_microseconds(timestamp)
            if not fits:
                self._warn(offset, timestamp)
            timestamp_us = timestamp * 1000 if fits else None
            columns.append_row(Row(key, value, offset, timestamp_us, timestamp_type, None))
            columns.bytes += len(key or b"") + len(value or b"")

    def _warn(self, offset: int, timestamp: int) -> None:
        """Warn of a timestamp that is null because the column cannot hold it."""
        partition = self._range.topic, self._range.partition
        if partition not in _warned_of:
            _warned_of.add(partition)
            log.warning(
                "%s-%d: the record at offset %d has the timestamp %d ms, which a column of "
                "microseconds cannot hold; the column has null there. This process does not warn "
                "of further ones in this partition",
                *(*partition, offset, timestamp),
            )


class _BatchHeader(NamedTuple):
    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records: int


def _payload(records: bytes, start: int, end: int, attributes: int) -> tuple[bytes, int, int]:
    """Return the batch's records: a buffer, and where they start and end in it."""
    codec = attributes & _CODEC_MASK
    first = start + _HEADER.size
    if codec == NONE:
        return records, first, end
    try:
        payload = decompress(codec, memoryview(records)[first:end])
    except DecompressionError as error:
        raise MalformedError(str(error)) from error
    return payload, 0, len(payload)
