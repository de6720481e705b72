"""A record batch that grows by one record at a time: for ``send``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NoReturn

from ...errors import RecordTooLargeError
from ...fetch.compression import NONE
from .compiled_encoder import new_records
from .encoded_batch import EncodedBatch, encoded
from .python_records import Headers
from .settings import EncoderSettings


class BatchBuilder:
    """The batch that is open for one partition. Not thread-safe.

    Parameters
    ----------
    topic, partition : str, int
        Where the batch goes.
    settings : EncoderSettings

    Attributes
    ----------
    append : callable
        ``append(key, value, headers, timestamp_ms)`` takes bytes or None, bytes or None, a
        sequence of (str, bytes or None) or None, and milliseconds since the epoch. It returns the
        size of the batch so far, before compression. It returns 0 if the batch is full: the record
        was not appended, and the batch is to be closed first. An empty builder always takes it.
        Raises `RecordTooLargeError` for a record above ``max_request_bytes``, and TypeError.
    records : Records
        What has them.
    """

    __slots__ = ("_partition", "_settings", "append", "records")

    append: Callable[[bytes | None, bytes | None, Headers, int], int]

    def __init__(self, topic: str, partition: int, settings: EncoderSettings) -> None:
        self._partition = partition
        self._settings = settings
        refuse = partial(_refuse, topic, partition, settings.max_request_bytes)
        self.records = new_records(settings, refuse)
        # The compiled method itself: `send` calls it for each record.
        self.append = self.records.append

    def __len__(self) -> int:
        return len(self.records)

    @property
    def size(self) -> int:
        """The size of the batch so far, before compression."""
        return self.records.size

    def close(self) -> EncodedBatch:
        """Return the batch. The builder is empty afterwards and takes the records of the next.

        Raises
        ------
        ValueError
            There are no records.
        """
        records = len(self.records)
        data = self.records.take(self._settings.codec == NONE)
        return encoded(self._partition, data, records, self._settings)


def _refuse(topic: str, partition: int, most: int, size: int) -> NoReturn:
    raise RecordTooLargeError(topic, partition, size, most)
