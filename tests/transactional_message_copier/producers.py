"""What a copier needs of a transactional producer, and those that have it: kafka-python's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from kafka import KafkaProducer
from kafka import errors as kafka_errors
from kafka.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

from pyspark_kafka_rebalance.errors import KafkaRebalanceError

from .options import Options

#: As in Java's tool: small, so that a transaction has several requests in flight.
_BATCH_BYTES = 512
_IN_FLIGHT = 5


class FencedError(KafkaRebalanceError):
    """Another process has claimed the transactional id."""


class TransactionalProducer(Protocol):
    """What a copier needs of a producer; its constructor fences the one before it.

    Each call raises FencedError if another process has claimed the transactional id, and another
    KafkaError or KafkaRebalanceError if the transaction is to be aborted.
    """

    def begin(self) -> None:
        """Begin a transaction."""

    def send(self, topic: str, partition: int, key: bytes | None, value: bytes | None) -> None:
        """Add a record; returns before it is written."""

    def send_offsets(
        self, offsets: Mapping[TopicPartition, int], group: ConsumerGroupMetadata
    ) -> None:
        """Add the offsets that the group is to continue at."""

    def commit(self) -> None:
        """Commit; returns when that is certain."""

    def abort(self) -> None:
        """Abort; the next transaction can begin."""

    def close(self) -> None:
        """Close the connections; what is open is aborted by its timeout."""


class KafkaPythonProducer:
    """kafka-python's.

    Parameters
    ----------
    options : Options
        The transactional id, the timeout, the brokers.
    """

    def __init__(self, options: Options) -> None:
        self._producer = KafkaProducer(
            bootstrap_servers=options.broker_list.split(","),
            transactional_id=options.transactional_id,
            transaction_timeout_ms=options.transaction_timeout_ms,
            batch_size=_BATCH_BYTES,
            max_in_flight_requests_per_connection=_IN_FLIGHT,
        )
        try:
            self._call(self._producer.init_transactions)
        except BaseException:
            self.close()
            raise

    def begin(self) -> None:
        """Begin a transaction."""
        self._call(self._producer.begin_transaction)

    def send(self, topic: str, partition: int, key: bytes | None, value: bytes | None) -> None:
        """Add a record."""
        self._call(self._producer.send, topic, value, key, partition=partition)

    def send_offsets(
        self, offsets: Mapping[TopicPartition, int], group: ConsumerGroupMetadata
    ) -> None:
        """Add the group's offsets."""
        told = {p: OffsetAndMetadata(offset, "", -1) for p, offset in offsets.items()}
        self._call(self._producer.send_offsets_to_transaction, told, group)

    def commit(self) -> None:
        """Commit."""
        self._call(self._producer.commit_transaction)

    def abort(self) -> None:
        """Abort."""
        self._call(self._producer.abort_transaction)

    def close(self) -> None:
        """Close the connections."""
        self._producer.close(timeout=10)

    def _call(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        try:
            call(*arguments, **named)
        except (kafka_errors.ProducerFencedError, kafka_errors.InvalidProducerEpochError) as error:
            raise FencedError(f"the transactional id is another process's now: {error}") from error


def producer_of(options: Options) -> TransactionalProducer:
    """The producer that the options choose."""
    return KafkaPythonProducer(options)
