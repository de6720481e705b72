"""Which errors of a decoder prove that the bytes are damaged. Pure.

Damaged bytes may be skipped: the error says where their record batch ends. So nothing else may be
called damaged. A decoder also fails because a codec's library is missing, because memory or the
stack is exhausted, or because a signal handler raises in the middle of it, and each of these would
skip sound records.

An error proves damage if bytes can cause an error of its type, and the same bytes cause it again.
"""

from __future__ import annotations

import gzip
import signal
import struct
import sys
import zlib
from collections.abc import Callable, Iterator
from types import CodeType, TracebackType
from typing import Any

from kafka import errors as kafka_errors

#: Raised by bytes that a decoder does not expect. Subclasses count as well.
_OF_BYTES = (
    ValueError,  # also UnicodeDecodeError, and Arrow's for invalid data
    LookupError,
    OverflowError,
    AssertionError,  # kafka-python checks the older formats with `assert`
    EOFError,
    struct.error,
    zlib.error,
    gzip.BadGzipFile,
    kafka_errors.CorruptRecordError,
)

#: The errors of codecs, by module and name; a module that is not imported raised nothing.
_OF_CODECS = (
    ("zstandard", "ZstdError"),
    ("snappy", "UncompressError"),
    ("cramjam", "DecompressionError"),
    ("lz4framed", "Lz4FramedError"),
)


def is_damage(error: BaseException, decode_again: Callable[[], object]) -> bool:
    """Whether an error of the decoder proves that the decoded bytes are damaged.

    ``decode_again`` decodes the same bytes, and changes nothing else. If it raises something other
    than an Exception, such as KeyboardInterrupt, that passes through.
    """
    if not _can_be_of_bytes(error) or is_from_signal_handler(error):
        return False
    try:
        decode_again()
    except Exception as again:
        return type(again) is type(error)
    return False


def is_from_signal_handler(error: BaseException) -> bool:
    """Whether a signal handler, as they are set now, has raised this."""
    handlers = set(_handlers())
    if not handlers:
        return False
    return any(at.tb_frame.f_code in handlers for at in _traceback(error.__traceback__))


def _can_be_of_bytes(error: BaseException) -> bool:
    if isinstance(error, (*_OF_BYTES, *_of_codecs())):
        return True
    # Arrow says OSError and lz4 RuntimeError. Their subclasses are something else: timeouts, lost
    # connections, a missing file; RecursionError, NotImplementedError.
    if type(error) is RuntimeError:  # kafka-python raises it as well if xxhash is missing
        return "lz4f" in str(error).lower()
    return type(error) is OSError and error.errno is None


def _of_codecs() -> Iterator[type[BaseException]]:
    for module, name in _OF_CODECS:
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type) and issubclass(kind, BaseException):
            yield kind


def _traceback(at: TracebackType | None) -> Iterator[TracebackType]:
    while at is not None:
        yield at
        at = at.tb_next


def _handlers() -> Iterator[CodeType]:
    """The code of all signal handlers that are written in Python."""
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        while hasattr(handler, "func"):  # functools.partial
            handler = handler.func
        if not callable(handler):
            continue
        handler = getattr(handler, "__func__", handler)  # a bound method
        if not hasattr(handler, "__code__"):
            handler = type(handler).__call__  # an object that can be called
        code = getattr(handler, "__code__", None)
        if isinstance(code, CodeType):
            yield code
