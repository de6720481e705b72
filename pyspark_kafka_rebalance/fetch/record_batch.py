"""Record batches as they are on the wire, to Arrow: the decoder's interface and its Python form.

A fetch answers with record batches as they lie in the log (KIP-98, "magic 2"; formats 0 and 1 are
in legacy_batch.py). The first holds the offset asked for, but may begin before it; the last may be
cut off. Nothing in them is trusted: the CRC does not cover a batch's offset and length, and does
not help against whoever can compute one, so every length and varint is checked.

RecordBatch => BaseOffset int64, Length int32, PartitionLeaderEpoch int32, Magic int8, CRC uint32,
               Attributes int16, LastOffsetDelta int32, BaseTimestamp int64, MaxTimestamp int64,
               ProducerId int64, ProducerEpoch int16, BaseSequence int32, Count int32, Records
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import pyarrow as pa

from ..errors import CorruptRecordError
from .checksum import crc32c
from .columns import CREATE_TIME, LOG_APPEND_TIME, RecordColumns
from .compression import NONE, DecompressionError, decompress
from .legacy_batch import legacy_rows
from .offset_range import OffsetRange
from .records import MAX_TIMESTAMP_MS, MalformedError, append_records, control_type
from .transactions import AbortedTransaction, AbortedTransactions

_LOG_OVERHEAD = 12  # BaseOffset, Length
_MAGIC_OFFSET = 16
_CRC_START = 21
_HEADER = struct.Struct(">qiibIhiqqqhii")
_SMALLEST_LEGACY = 22

_CODEC_MASK = 0x07
_LOG_APPEND_TIME_FLAG = 0x08
_TRANSACTIONAL_FLAG = 0x10
_CONTROL_FLAG = 0x20
_ABORT_MARKER = 0

_unpack_offset_and_length = struct.Struct(">qi").unpack_from
_unpack_last_offset_delta = struct.Struct(">i").unpack_from


@dataclass(frozen=True, slots=True)
class DecoderSettings:
    """What is the same for every range of a fetcher.

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
    batch_bytes: int = 16 * 1024 * 1024


class RecordDecoder(Protocol):
    """Turns the fetches of one range, in order, into Arrow. Holds the rows not yet handed out."""

    def decode(
        self, records: bytes, position: int, aborted: Sequence[AbortedTransaction] = ()
    ) -> Iterator[pa.RecordBatch]:
        """Take in what one fetch answered, and yield what became full.

        Parameters
        ----------
        records : bytes
            Record batches, the last of them possibly cut off.
        position : int
            The offset that was asked for; rows before it or at the range's end are left out.
        aborted : Sequence[AbortedTransaction]
            As the same response lists them; of use under read_committed only.

        Raises
        ------
        CorruptRecordError
            Names topic, partition, and the record batch's base offset.
        """
        ...

    def finish(self) -> Iterator[pa.RecordBatch]:
        """The rows that are left, when the range has been read."""
        ...


def next_position(records: bytes, position: int, offset_range: OffsetRange) -> int:
    """Where to fetch next, from the batches' headers alone.

    Lets the next fetch be on its way while this one is decoded.

    Parameters
    ----------
    records : bytes
        What a fetch at ``position`` answered; not empty.
    position : int
        The offset that was asked for.
    offset_range : OffsetRange
        Batches from its end on are not looked at.

    Returns
    -------
    int
        The offset after the last whole batch.

    Raises
    ------
    CorruptRecordError
        A header makes no sense, or no batch leads past ``position``.
    """
    after = position
    for base, start, _ in _split(records, position, offset_range):
        if base >= offset_range.end:
            return offset_range.end
        if records[start + _MAGIC_OFFSET] == 2:
            (delta,) = _unpack_last_offset_delta(records, start + 23)
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
    return after


def _split(
    records: bytes, position: int, offset_range: OffsetRange
) -> Iterator[tuple[int, int, int]]:
    """Base offset, start and size of every whole batch, up to the first at the range's end."""
    start = 0
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


def _corrupt(offset_range: OffsetRange, offset: int, reason: str) -> CorruptRecordError:
    return CorruptRecordError(offset_range.topic, offset_range.partition, offset, reason)


class PythonRecordDecoder:
    """The decoder in pure Python.

    Parameters
    ----------
    offset_range : OffsetRange
        What is being read. Nothing at its end or beyond is handed out.
    settings : DecoderSettings
        How to.
    """

    def __init__(self, offset_range: OffsetRange, settings: DecoderSettings) -> None:
        self._range = offset_range
        self._settings = settings
        self._columns = RecordColumns()

    def decode(
        self, records: bytes, position: int, aborted: Sequence[AbortedTransaction] = ()
    ) -> Iterator[pa.RecordBatch]:
        """See :class:`RecordDecoder`."""
        settings = self._settings
        transactions = AbortedTransactions(aborted) if settings.read_committed else None
        for base, start, size in _split(records, position, self._range):
            try:
                if records[start + _MAGIC_OFFSET] == 2:
                    if base >= self._range.end:
                        break
                    self._decode_batch(records, start, size, position, transactions)
                else:
                    self._decode_legacy(records, start, size, position)
            except MalformedError as error:
                raise _corrupt(self._range, base, str(error)) from error
            columns = self._columns
            if len(columns) >= settings.batch_rows or columns.bytes >= settings.batch_bytes:
                yield from self.finish()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """See :class:`RecordDecoder`."""
        columns = self._columns
        rows = len(columns)
        if not rows:
            return
        self._columns = RecordColumns()
        batch = columns.to_record_batch(self._settings.include_headers)
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
                if control_type(*_payload(records, start, end, attributes)) == _ABORT_MARKER:
                    transactions.end(header.producer_id)
            elif attributes & _TRANSACTIONAL_FLAG and transactions.covers(header.producer_id):
                return
        if is_control or last_offset < position or not header.records:
            return
        if attributes & _LOG_APPEND_TIME_FLAG:
            timestamp, timestamp_type = header.max_timestamp, LOG_APPEND_TIME
        else:
            timestamp, timestamp_type = header.base_timestamp, CREATE_TIME
        if not -MAX_TIMESTAMP_MS <= timestamp <= MAX_TIMESTAMP_MS:
            raise MalformedError(f"timestamp {timestamp} ms does not fit microseconds in 64 bits")
        payload, first, limit = _payload(records, start, end, attributes)
        columns = self._columns
        rows = len(columns)
        try:
            append_records(
                columns,
                payload,
                first,
                limit,
                header.records,
                header.base_offset,
                timestamp,
                timestamp_type == LOG_APPEND_TIME,
                position,
                self._range.end,
                self._settings.include_headers,
            )
        except IndexError:
            raise MalformedError("a record reaches past the end of its batch") from None
        columns.add_run(len(columns) - rows, timestamp_type)
        columns.bytes += limit - first

    def _decode_legacy(self, records: bytes, start: int, size: int, position: int) -> None:
        view = memoryview(records)[start : start + size]
        columns = self._columns
        try:
            rows = list(
                legacy_rows(view, records[start + _MAGIC_OFFSET], self._settings.check_crcs)
            )
        except Exception as error:
            # kafka-python's decoder fails in as many ways as there are to damage a message.
            raise MalformedError(f"{type(error).__name__}: {error}") from error
        for offset, timestamp, timestamp_type, key, value in rows:
            if not position <= offset < self._range.end:
                continue
            if not -MAX_TIMESTAMP_MS <= timestamp <= MAX_TIMESTAMP_MS:
                raise MalformedError(
                    f"timestamp {timestamp} ms does not fit microseconds in 64 bits"
                )
            columns.keys.append(key)
            columns.values.append(value)
            columns.offsets.append(offset)
            columns.timestamps.append(timestamp * 1000)
            if self._settings.include_headers:
                columns.headers.append(None)
            columns.add_run(1, timestamp_type)
            columns.bytes += len(key or b"") + len(value or b"")


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
    """The batch's records: a buffer, where they begin in it, and where they end."""
    codec = attributes & _CODEC_MASK
    first = start + _HEADER.size
    if codec == NONE:
        return records, first, end
    try:
        payload = decompress(codec, memoryview(records)[first:end])
    except DecompressionError as error:
        raise MalformedError(str(error)) from error
    return payload, 0, len(payload)
