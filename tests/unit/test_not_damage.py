"""What is no damage is not called damage: it must not be skippable as an unreadable record.

Each error that is not the data's, raised at each place where a decoder calls out, comes out as it
is; what is fetched stays to be fetched again. Only damage is a CorruptRecordError.
"""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from kafka import errors as kafka_errors
from kafka.record import MemoryRecords, default_records, legacy_records
from kafka.record.default_records import DefaultRecordBatch
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from kafka.structs import TopicPartition
from record_batches import HEADER_SIZE, Record, build, seal

from pyspark_kafka_rebalance import CorruptRecordError, RecordDeserializationError
from pyspark_kafka_rebalance.consumer.arrow_records import ArrowRecords
from pyspark_kafka_rebalance.consumer.kafka_python import gap_records
from pyspark_kafka_rebalance.consumer.kafka_python.gap_records import GapRecords
from pyspark_kafka_rebalance.consumer.kafka_python.records import ReadableRecords
from pyspark_kafka_rebalance.consumer.observer import Observed
from pyspark_kafka_rebalance.fetch import columns, compression, decoder, legacy_batch
from pyspark_kafka_rebalance.fetch.columns import PythonColumns
from pyspark_kafka_rebalance.fetch.compiled_columns import compiled
from pyspark_kafka_rebalance.fetch.damage import is_damage, is_from_signal_handler
from pyspark_kafka_rebalance.fetch.decoder import DecoderSettings, RecordDecoder
from pyspark_kafka_rebalance.fetch.offset_range import OffsetRange

PARTITION = TopicPartition("t", 0)


class OutOfTimeError(Exception):
    """Of an application."""


#: None of them says anything about the bytes.
NOT_OF_THE_DATA = [
    MemoryError("no memory"),
    RecursionError("too deep"),
    ImportError("no library"),
    ModuleNotFoundError("no module"),
    NotImplementedError("no codec"),
    TimeoutError("out of time"),
    ConnectionError("connection lost"),
    FileNotFoundError(2, "gone"),
    OSError(28, "No space left on device"),
    RuntimeError("pip install xxhash for lz4 encoding with 0.8/0.9 brokers"),
    SystemError("a bug"),
    TypeError("a bug"),
    OutOfTimeError("out of time"),
    KeyboardInterrupt(),
    SystemExit(1),
    pa.lib.ArrowMemoryError("malloc of size 1 failed"),
    pa.lib.ArrowNotImplementedError("built without zstd"),
    pa.lib.ArrowCancelled("cancelled"),
    kafka_errors.UnsupportedCodecError("Libraries for zstd compression codec not found"),
]

each_error = pytest.mark.parametrize("error", NOT_OF_THE_DATA, ids=lambda e: type(e).__name__)
both_forms = pytest.mark.parametrize("form", [ReadableRecords, GapRecords])


def log(codec: int = 0) -> bytes:
    """Two batches, of three records each."""
    return b"".join(
        build([Record(n, n, b"k", b"v%d" % n) for n in range(at, at + 3)], codec=codec)
        for at in (0, 3)
    )


def legacy(magic: int, codec: int) -> bytes:
    builder = LegacyRecordBatchBuilder(magic, codec, 2**20)
    for n in range(3):
        builder.append(n, 1_000 + n, b"k", b"v%d" % n)
    return bytes(builder.build())


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


# -- polls -----------------------------------------------------------------------------------------

#: Where kafka-python's decoder, or ours in its place, calls out: an object, a name, and a log.
POLLS_CALL_OUT = [
    pytest.param(default_records, "gzip_decode", 1, id="gzip"),
    pytest.param(default_records, "snappy_decode", 2, id="snappy"),
    pytest.param(default_records, "lz4_decode", 3, id="lz4"),
    pytest.param(default_records, "zstd_decode", 4, id="zstd"),
    pytest.param(default_records, "calc_crc32c", 0, id="checksum"),
    pytest.param(DefaultRecordBatch, "_maybe_uncompress", 3, id="decompression"),
    pytest.param(MemoryRecords, "next_batch", 0, id="batch"),
]


@both_forms
@each_error
@pytest.mark.parametrize(("place", "name", "codec"), POLLS_CALL_OUT)
def test_a_poll_raises_it_as_it_is(
    form: Any, place: Any, name: str, codec: int, error: BaseException
) -> None:
    records = form(0, PARTITION, MemoryRecords(log(codec)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, name, raising(error))
        with pytest.raises(type(error)) as caught:
            records.take(10)
    assert caught.value is error
    assert not records, "it is given up, and fetched again"
    assert records.next_fetch_offset == 0


@each_error
def test_a_poll_of_an_older_format_raises_it_as_it_is(error: BaseException) -> None:
    records = ReadableRecords(0, PARTITION, MemoryRecords(legacy(1, 1)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(legacy_records, "gzip_decode", raising(error))
        with pytest.raises(type(error)) as caught:
            records.take(10)
    assert caught.value is error


@each_error
@pytest.mark.skipif(compiled is None, reason="the package was installed where no C compiler is")
def test_a_poll_of_gaps_raises_what_the_compiled_decoder_does(error: BaseException) -> None:
    records = GapRecords(0, PARTITION, MemoryRecords(log()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gap_records, "compiled", SimpleNamespace(Columns=raising(error), untrack=0))
        with pytest.raises(type(error)) as caught:
            records.take(10)
    assert caught.value is error


@both_forms
def test_a_codec_without_its_library_skips_nothing(form: Any) -> None:
    """50 good records became a CorruptRecordError, whose next_offset the documented loop seeks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kafka.codec.zstd", None)
        for _ in range(2):
            records = form(0, PARTITION, MemoryRecords(log(4)))
            with pytest.raises(kafka_errors.UnsupportedCodecError, match="zstd"):
                records.take(10)
    assert len(form(0, PARTITION, MemoryRecords(log(4))).take(10)) == 6


@both_forms
def test_a_codec_that_kafka_does_not_have_is_damage(form: Any) -> None:
    data = build([Record(0, 0, None, b"v")], flags=7)
    with pytest.raises(CorruptRecordError, match="unknown codec 7") as caught:
        form(0, PARTITION, MemoryRecords(data)).take(10)
    assert caught.value.next_offset == 1


@both_forms
@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_what_a_codec_refuses_is_damage(form: Any, codec: int) -> None:
    batch = build([Record(n, n, b"k" * 50, b"v%d" % n) for n in range(9)], codec=codec)
    damaged = seal(batch[:HEADER_SIZE] + batch[HEADER_SIZE + 9 :])
    with pytest.raises(CorruptRecordError) as caught:
        form(0, PARTITION, MemoryRecords(damaged)).take(10)
    assert (caught.value.offset, caught.value.next_offset) == (0, 9)


@both_forms
@pytest.mark.parametrize(
    "error", [MemoryError("no memory"), ImportError("no fastavro"), RecursionError("too deep")]
)
def test_a_deserializer_raises_it_as_it_is(form: Any, error: Exception) -> None:
    how = {"value_deserializer": SimpleNamespace(deserialize=raising(error))}
    with pytest.raises(type(error)) as caught:
        form(0, PARTITION, MemoryRecords(log()), **how).take(10)
    assert caught.value is error


# -- what a signal handler raises ------------------------------------------------------------------


class Limit:
    """Raises in a signal handler, as a job queue's time limit does: of any type."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __call__(self, *_: Any) -> None:
        raise self.error

    def method(self, *_: Any) -> None:
        raise self.error


ANY_TYPE = [ValueError, IndexError, OSError, EOFError, OutOfTimeError, KeyboardInterrupt]


@pytest.fixture(params=["function", "object", "method", "partial"])
def limit(request: pytest.FixtureRequest) -> Iterator[Callable[[BaseException], None]]:
    """Make a handler raise this error from now on."""
    before = signal.getsignal(signal.SIGUSR1)
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signal handlers run on the main thread")

    def begin(error: BaseException) -> None:
        limit = Limit(error)
        handlers = {
            "function": lambda *_: limit(),
            "object": limit,
            "method": limit.method,
            "partial": functools.partial(Limit.method, limit),
        }
        signal.signal(signal.SIGUSR1, handlers[request.param])

    yield begin
    signal.signal(signal.SIGUSR1, before)


def interrupted(function: Callable[..., Any], calls: int = 1) -> Callable[..., Any]:
    """The function, during whose first calls the signal arrives."""
    left = [calls]

    def call(*args: Any, **kwargs: Any) -> Any:
        if left[0]:
            left[0] -= 1
            os.kill(os.getpid(), signal.SIGUSR1)
        return function(*args, **kwargs)

    return call


@both_forms
@pytest.mark.parametrize("kind", ANY_TYPE)
@pytest.mark.parametrize("name", ["gzip_decode", "calc_crc32c"])
def test_a_poll_raises_what_a_signal_handler_does(
    form: Any, kind: type[BaseException], name: str, limit: Any
) -> None:
    error = kind("out of time")
    limit(error)
    records = form(0, PARTITION, MemoryRecords(log(1)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(default_records, name, interrupted(getattr(default_records, name)))
        with pytest.raises(kind) as caught:
            records.take(10)
    assert caught.value is error
    assert not records


@pytest.mark.parametrize("kind", ANY_TYPE)
def test_kafka_python_replaces_some_of_them(kind: type[BaseException], limit: Any) -> None:
    """It takes a ValueError inside a record for damage, whoever raised it."""
    error = kind("out of time")
    limit(error)
    records = ReadableRecords(0, PARTITION, MemoryRecords(log()))
    read = DefaultRecordBatch._read_msg
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DefaultRecordBatch, "_read_msg", interrupted(read))
        with pytest.raises(kind) as caught:
            records.take(10)
    assert caught.value is error


@both_forms
def test_it_does_not_wait_for_the_next_poll(form: Any, limit: Any) -> None:
    """kafka-python returns the records before an error first, and raises with the next poll."""
    error = OutOfTimeError()
    limit(error)
    at = iter(range(100))

    def deserialize(_: str, __: Any, data: bytes) -> bytes:
        if next(at) == 2:
            os.kill(os.getpid(), signal.SIGUSR1)
        return data

    how = {"value_deserializer": SimpleNamespace(deserialize=deserialize)}
    records = form(0, PARTITION, MemoryRecords(log()), **how)
    with pytest.raises(OutOfTimeError) as caught:
        records.take(10)
    assert caught.value is error
    assert not records


def test_a_handler_that_is_not_set_any_more() -> None:
    """Then only decoding again shows that the bytes are sound."""
    records = ReadableRecords(0, PARTITION, MemoryRecords(log(1)))
    decode = default_records.gzip_decode
    tried = []

    def once(data: Any) -> Any:
        tried.append(data)
        if len(tried) == 1:
            raise EOFError("from anywhere")
        return decode(data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(default_records, "gzip_decode", once)
        with pytest.raises(EOFError, match="from anywhere"):
            records.take(10)
    assert len(tried) == 2


# -- the source and poll_arrow ---------------------------------------------------------------------

#: Where our decoder calls out: an object, a name, and what is decoded.
WE_CALL_OUT = [
    pytest.param(pa, "CompressedInputStream", log(1), id="gzip"),
    pytest.param(pa, "CompressedInputStream", log(3), id="lz4"),
    pytest.param(pa, "CompressedInputStream", log(4), id="zstd"),
    pytest.param(pa, "Codec", log(2), id="snappy"),
    pytest.param(pa, "BufferReader", log(1), id="allocation"),
    pytest.param(decoder, "crc32c", log(1), id="checksum"),
    pytest.param(columns, "append_records", log(), id="records"),
    pytest.param(pa, "array", log(), id="Arrow"),
    pytest.param(legacy_batch, "decompress", legacy(1, 1), id="older format, codec"),
    pytest.param(legacy_batch._BoundedBatch, "validate_crc", legacy(1, 0), id="older format"),
]


def decoded(data: bytes, **options: Any) -> list[pa.RecordBatch]:
    decoder = RecordDecoder(
        OffsetRange("t", 0, 0, 2**60), DecoderSettings(**options), PythonColumns(False)
    )
    return [*decoder.decode(data, 0), *decoder.finish()]


@each_error
@pytest.mark.parametrize(("place", "name", "data"), WE_CALL_OUT)
def test_a_task_raises_it_as_it_is(
    place: Any, name: str, data: bytes, error: BaseException
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, name, raising(error))
        with pytest.raises(type(error)) as caught:
            decoded(data)
    assert caught.value is error


@each_error
def test_poll_arrow_raises_it_as_it_is(error: BaseException) -> None:
    records = ArrowRecords(
        0, PARTITION, MemoryRecords(log(4)), include_headers=False, observed=Observed()
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compression, "_stream", raising(error))
        with pytest.raises(type(error)) as caught:
            records.take(10)
    assert caught.value is error
    assert not records
    assert records.next_fetch_offset == 0


@pytest.mark.parametrize("kind", ANY_TYPE)
@pytest.mark.parametrize(
    ("place", "name", "data"),
    [
        (compression, "_stream", log(4)),
        (compression, "_snappy", log(2)),
        (columns, "append_records", log()),
        (legacy_batch, "_check_lengths", legacy(1, 1)),
    ],
)
def test_a_task_raises_what_a_signal_handler_does(
    kind: type[BaseException], place: Any, name: str, data: bytes, limit: Any
) -> None:
    error = kind("out of time")
    limit(error)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, name, interrupted(getattr(place, name)))
        with pytest.raises(kind) as caught:
            decoded(data)
    assert caught.value is error


# -- the proof -------------------------------------------------------------------------------------


def test_an_error_that_comes_again_is_damage() -> None:
    for error in (ValueError("bytes"), IndexError(), EOFError(), OSError("zlib inflate failed")):
        assert is_damage(error, raising(type(error)("again")))
        assert not is_damage(error, lambda: None)
        assert not is_damage(error, raising(MemoryError()))


def test_what_is_raised_elsewhere_is_not_from_a_signal_handler(limit: Any) -> None:
    limit(ValueError())
    with pytest.raises(ValueError, match="invalid literal") as caught:
        int("x")
    assert not is_from_signal_handler(caught.value)


def test_a_deserializer_that_fails_by_itself_names_its_record() -> None:
    how = {"value_deserializer": SimpleNamespace(deserialize=raising(TimeoutError("registry")))}
    with pytest.raises(RecordDeserializationError, match="registry") as caught:
        ReadableRecords(0, PARTITION, MemoryRecords(log()), **how).take(10)
    assert caught.value.next_offset == 1
