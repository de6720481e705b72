"""The producers of this process: one for each set of options, kept for the next task.

Spark keeps its Python workers for many tasks, and a connection takes longer than a small task. The
producer asks for the topics' metadata, and writes what is written at least once.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import pickle
from typing import TYPE_CHECKING

from kafka.errors import KafkaError

from ..errors import KafkaRebalanceError
from ..produce.producer import Producer

if TYPE_CHECKING:
    from .options.sink_options import SinkOptions

log = logging.getLogger(__name__)

_producers: dict[bytes, Producer] = {}


def producer_for(options: SinkOptions) -> Producer:
    """Return this process's producer for such options; connects if there is none."""
    key = _key(options)
    producer = _producers.get(key)
    if producer is not None and producer.has_failed:
        drop_producer(options)
        producer = None
    if producer is None:
        if not _producers:
            atexit.register(_close_all)
        producer = _producers[key] = Producer(**options.producer_config)
    return producer


def drop_producer(options: SinkOptions) -> None:
    """Close the producer, without what it has not sent: a task has failed."""
    producer = _producers.pop(_key(options), None)
    if producer is not None:
        # What it did not deliver is the failed task's.
        with contextlib.suppress(KafkaError, KafkaRebalanceError):
            producer.close(timeout_ms=0)


def _key(options: SinkOptions) -> bytes:
    return pickle.dumps(options.producer_config)


def _close_all() -> None:
    for producer in _producers.values():
        with contextlib.suppress(KafkaError, KafkaRebalanceError):
            producer.close(timeout_ms=0)
    _producers.clear()
