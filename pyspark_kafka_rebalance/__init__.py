"""Kafka for PySpark Structured Streaming, as a well-behaved member of a consumer group.

Several Spark processes import every top-level ``pyspark_*`` module in search of ``DefaultSource``,
and one module that fails to import hides all the others. So this package imports its parts lazily
(PEP 562), and has no ``DefaultSource`` if pyspark is not installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "AuthenticationError": "errors",
    "AuthorizationError": "errors",
    "CorruptRecordError": "errors",
    "DataLossError": "errors",
    "KafkaRebalanceError": "errors",
    "MembershipError": "errors",
    "OffsetFormatError": "errors",
    "OptionError": "errors",
    "PartitionsLostError": "errors",
    "RecordDeserializationError": "errors",
    "RecordTooLargeError": "errors",
    "SeveralOptionsError": "errors",
    "TransactionAbortedError": "errors",
    "TransactionInDoubtError": "errors",
    "UnreadableRecordError": "errors",
    "UnsupportedBrokerError": "errors",
    "AsyncDeferredRevokeConsumer": "consumer.aio.asynchronous",
    "AsyncTimestampOrderedRecords": "consumer.aio.async_ordered_records",
    "DeferredRevokeConsumer": "consumer.consumer",
    "OrderedPoll": "consumer.ordered.ordered_records",
    "TimestampOrderedRecords": "consumer.ordered.ordered_records",
    "FetchMetadata": "consumer.fetch_metadata",
    "PollResult": "consumer.poll_result",
    "Producer": "produce.producer",
    "RecordPosition": "produce.delivery",
    "Transaction": "produce.producer",
    "AsyncGroupTransaction": "producer.asynchronous",
    "AsyncProducerGroup": "producer.asynchronous",
    "GroupTransaction": "producer.group",
    "ProducerEvents": "producer.members.ownership",
    "ProducerGroup": "producer.group",
    "ProducerProgress": "producer.progress",
    "ProducerRebalanceListener": "producer.members.listener",
    "SourcePartitionProgress": "producer.progress",
    "RangeFetcher": "fetch.fetcher",
    "OffsetRange": "fetch.offset_range",
    "ConsumerSettings": "settings.typed_settings",
    "ProducerGroupSettings": "settings.typed_settings",
    "ProducerSettings": "settings.typed_settings",
    "KafkaDeferredDataSource": "sink.data_source",
    "QueryProgress": "source.progress_table",
    "PartitionProgress": "source.progress_table",
    "kafka_progress": "source.kafka_progress",
    "progress": "source.progress",
    "stop_gracefully": "source.stop.graceful_stop",
}

__all__ = [*_PUBLIC, "DefaultSource"]

if TYPE_CHECKING:
    from .consumer.aio.async_ordered_records import (
        AsyncTimestampOrderedRecords as AsyncTimestampOrderedRecords,
    )
    from .consumer.aio.asynchronous import (
        AsyncDeferredRevokeConsumer as AsyncDeferredRevokeConsumer,
    )
    from .consumer.consumer import DeferredRevokeConsumer as DeferredRevokeConsumer
    from .consumer.fetch_metadata import FetchMetadata as FetchMetadata
    from .consumer.ordered.ordered_poll import OrderedPoll as OrderedPoll
    from .consumer.ordered.ordered_records import TimestampOrderedRecords as TimestampOrderedRecords
    from .consumer.poll_result import PollResult as PollResult
    from .errors import AuthenticationError as AuthenticationError
    from .errors import AuthorizationError as AuthorizationError
    from .errors import CorruptRecordError as CorruptRecordError
    from .errors import DataLossError as DataLossError
    from .errors import KafkaRebalanceError as KafkaRebalanceError
    from .errors import MembershipError as MembershipError
    from .errors import OffsetFormatError as OffsetFormatError
    from .errors import OptionError as OptionError
    from .errors import PartitionsLostError as PartitionsLostError
    from .errors import RecordDeserializationError as RecordDeserializationError
    from .errors import RecordTooLargeError as RecordTooLargeError
    from .errors import SeveralOptionsError as SeveralOptionsError
    from .errors import TransactionAbortedError as TransactionAbortedError
    from .errors import TransactionInDoubtError as TransactionInDoubtError
    from .errors import UnreadableRecordError as UnreadableRecordError
    from .errors import UnsupportedBrokerError as UnsupportedBrokerError
    from .fetch.fetcher import RangeFetcher as RangeFetcher
    from .fetch.offset_range import OffsetRange as OffsetRange
    from .produce.delivery import RecordPosition as RecordPosition
    from .produce.producer import Producer as Producer
    from .produce.producer import Transaction as Transaction
    from .producer.asynchronous import AsyncGroupTransaction as AsyncGroupTransaction
    from .producer.asynchronous import AsyncProducerGroup as AsyncProducerGroup
    from .producer.group import GroupTransaction as GroupTransaction
    from .producer.group import ProducerGroup as ProducerGroup
    from .producer.members.listener import ProducerRebalanceListener as ProducerRebalanceListener
    from .producer.members.ownership import ProducerEvents as ProducerEvents
    from .producer.progress import ProducerProgress as ProducerProgress
    from .producer.progress import SourcePartitionProgress as SourcePartitionProgress
    from .settings.typed_settings import ConsumerSettings as ConsumerSettings
    from .settings.typed_settings import ProducerGroupSettings as ProducerGroupSettings
    from .settings.typed_settings import ProducerSettings as ProducerSettings
    from .sink.data_source import KafkaDeferredDataSource as KafkaDeferredDataSource
    from .source.kafka_progress import kafka_progress as kafka_progress
    from .source.progress import progress as progress
    from .source.progress_table import PartitionProgress as PartitionProgress
    from .source.progress_table import QueryProgress as QueryProgress
    from .source.stop.graceful_stop import stop_gracefully as stop_gracefully


def __getattr__(name: str) -> Any:
    if name == "DefaultSource":
        return _default_source()
    if name in _PUBLIC:
        try:
            module = import_module(f".{_PUBLIC[name]}", __name__)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "pyspark":
                raise
            raise ModuleNotFoundError(
                f"{name} needs PySpark, which is not installed here: pip install "
                "'pyspark-kafka-rebalance[spark]'",
                name="pyspark",
            ) from None
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _default_source() -> Any:
    """Return the class that Spark registers; raises AttributeError if there is none."""
    try:
        return import_module(".sink.data_source", __name__).KafkaDeferredDataSource
    except ImportError as error:
        raise AttributeError(f"DefaultSource needs the extra 'spark': {error}") from error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
