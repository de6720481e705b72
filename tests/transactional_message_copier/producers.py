"""What a copier needs of a transactional producer, and the one that has it: this project's own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from kafka import errors as kafka_errors
from kafka.structs import ConsumerGroupMetadata, TopicPartition

from pyspark_kafka_rebalance.errors import KafkaRebalanceError
from pyspark_kafka_rebalance.produce.producer import GroupMetadata, Offset, Producer, Transaction

from .options import Options

log = logging.getLogger(__name__)

#: As in Java's tool: small, so that a transaction has several requests in flight.
_BATCH_BYTES = 512
_IN_FLIGHT = 5

Result = TypeVar("Result")


class FencedError(KafkaRebalanceError):
    """Nothing more can be written: another process has claimed the transactional id, mostly."""


class TransactionalProducer(Protocol):
    """What a copier needs of a producer; its constructor fences the one before it.

    Each call raises FencedError if the producer can write nothing more, and another KafkaError or
    KafkaRebalanceError if the transaction is to be aborted.
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
        """Abort, or note that it has ended; the next transaction can begin."""

    def close(self) -> None:
        """Abort what is open, and close the connections."""


class OwnProducer:
    """``pyspark_kafka_rebalance.produce``'s, with a handle for each transaction.

    Parameters
    ----------
    options : Options
        The transactional id, the timeout, the brokers.

    Raises
    ------
    KafkaRebalanceError, kafka.errors.KafkaError, OSError
        The brokers refuse it, or none of them answers.
    """

    def __init__(self, options: Options) -> None:
        # Without a membership of which the group could check the generation, as in Java's.
        self._is_nobody = not (options.group_mode and options.use_group_metadata)
        self._transaction: Transaction | None = None
        self._producer = Producer(
            options.transactional_id,
            bootstrap_servers=options.broker_list.split(","),
            transaction_timeout_ms=options.transaction_timeout_ms,
            batch_size=_BATCH_BYTES,
            max_in_flight_requests_per_connection=_IN_FLIGHT,
        )
        try:
            self._producer.initialize()
        except BaseException:
            self.close()
            raise

    def begin(self) -> None:
        """Begin a transaction."""
        self._transaction = self._call(self._producer.transaction)

    def send(self, topic: str, partition: int, key: bytes | None, value: bytes | None) -> None:
        """Add a record."""
        self._call(self._open.send, topic, value, key, partition=partition)

    def send_offsets(
        self, offsets: Mapping[TopicPartition, int], group: ConsumerGroupMetadata
    ) -> None:
        """Add the group's offsets."""
        member = GroupMetadata(
            group.group_id,
            group.generation_id,
            group.member_id,
            group.group_instance_id,
            is_nobody=self._is_nobody,
        )
        next_ones = {partition: Offset(offset) for partition, offset in offsets.items()}
        self._call(self._open.send_offsets, member, next_ones)

    def commit(self) -> None:
        """Commit, however long it takes until the outcome is known."""
        self._call(self._until_known, self._open.commit)

    def abort(self) -> None:
        """Abort, however long it takes until readers are free."""
        if self._transaction is None or self._transaction.outcome is not None:
            self._call(self._check)
        else:
            self._call(self._until_known, self._transaction.abort)
        self._transaction = None

    def close(self) -> None:
        """Close the connections."""
        self._producer.close(timeout_ms=10_000)

    @property
    def _open(self) -> Transaction:
        assert self._transaction is not None
        return self._transaction

    def _check(self) -> None:
        if self._is_done_for:
            raise KafkaRebalanceError("a new producer is needed")

    @property
    def _is_done_for(self) -> bool:
        return self._producer.has_failed or self._producer.is_refused

    def _until_known(self, end: Callable[[], None]) -> None:
        while True:
            try:
                return end()
            except kafka_errors.KafkaTimeoutError:
                log.info("still waiting for the end of a transaction", exc_info=True)

    def _call(self, call: Callable[..., Result], *arguments: Any, **named: Any) -> Result:
        try:
            return call(*arguments, **named)
        except (kafka_errors.KafkaError, KafkaRebalanceError) as error:
            if self._is_done_for:
                raise FencedError(f"nothing more can be written: {error}") from error
            raise
