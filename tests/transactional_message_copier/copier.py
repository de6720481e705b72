"""A DeferredRevokeConsumer and a Producer behind the command line of Kafka's own copier.

``python -m tests.transactional_message_copier`` takes the options of
``org.apache.kafka.tools.TransactionalMessageCopier`` (Apache Kafka 4.3) and prints its JSON lines.
So Kafka's own system tests (``transactions_test``, ``group_mode_transactions_test``) can judge
both. As in Java's, a poll's records and the positions behind them are one transaction; after an
abort the consumer goes back to the committed offsets.

Differences from Java's:

* The producer starts before the consumer asks for its position: so the offsets in a transaction
  that a killed copier has left are decided by then.
* ``RebalanceComplete`` comes after the poll that put the assignment in force, and counts the whole
  assignment: what a cooperative rebalance leaves with its member is part of it. Without any
  partition it does not come: a cooperative group's newcomer gets some with the next rebalance, and
  Java's would end as one that has copied everything.
* ``--group-protocol consumer`` joins by KIP-848. The session timeout is the group's then.
* After SIGTERM or SIGINT the transaction under way is finished, and ``ShutdownComplete`` is the
  last line, after both clients are closed.
"""

from __future__ import annotations

import datetime
import logging
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TextIO, TypeVar

from kafka import ConsumerRebalanceListener
from kafka import errors as kafka_errors
from kafka.structs import ConsumerGroupMetadata, TopicPartition

from pyspark_kafka_rebalance.consumer.consumer import DeferredRevokeConsumer
from pyspark_kafka_rebalance.errors import KafkaRebalanceError

from .events import PROCESS_LOOP, REBALANCE_COMPLETE, SHUTDOWN_COMPLETE, Progress, status_line
from .options import Options, parse
from .producers import FencedError, OwnProducer, TransactionalProducer

log = logging.getLogger(__name__)

_POLL_MS = 200
#: Aborted with --enable-random-aborts: one in so many.
_ABORT_ONE_IN = 3
#: Java's ``default.api.timeout.ms``.
_QUERY_S = 60.0

Result = TypeVar("Result")
Records = Mapping[TopicPartition, Sequence[Any]]


class Consumer(Protocol):
    """What a copier needs of a DeferredRevokeConsumer."""

    def subscribe(self, topics: Collection[str], pattern: None, listener: Any) -> None:
        """Join the group."""

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        """Take partitions without a group."""

    def assignment(self) -> set[TopicPartition]:
        """The partitions at present."""

    def poll(self, timeout_ms: float, max_records: int) -> dict[TopicPartition, Any]:
        """Fetch records."""

    def position(self, partition: TopicPartition) -> int | None:
        """The next offset."""

    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The last stable offsets."""

    def committed(self, partition: TopicPartition) -> Any:
        """The group's offset, or None."""

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go to an offset."""

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Go to the first offset."""

    def group_metadata(self) -> ConsumerGroupMetadata:
        """The membership, for a transaction."""

    def close(self) -> None:
        """Leave."""


class MessageCopier(ConsumerRebalanceListener):  # type: ignore[misc]
    """Copies records and commits their offsets in the same transactions.

    Parameters
    ----------
    options : Options
        The command line.
    consumer, producer : Consumer, TransactionalProducer
        Closed by :meth:`run`.
    stop : threading.Event
        Ends :meth:`run` after the transaction under way.
    out : text file
        For the JSON lines.
    chance : random.Random
        Chooses the transactions to abort.
    """

    def __init__(
        self,
        options: Options,
        consumer: Consumer,
        producer: TransactionalProducer,
        *,
        stop: threading.Event,
        out: TextIO,
        chance: random.Random,
    ) -> None:
        self._options = options
        self._consumer = consumer
        self._producer = producer
        self._stop = stop
        self._out = out
        self._chance = chance
        self._progress = Progress()
        self._rebalanced = False

    def run(self) -> None:
        """Copy until enough is copied or ``stop`` is set.

        Raises
        ------
        FencedError
            The producer can write nothing more.
        KafkaError, KafkaRebalanceError
            A transaction could not even be aborted.
        """
        try:
            self._start()
            while not self._stop.is_set() and self._progress.remaining > 0:
                self._tell(PROCESS_LOOP)
                records = self._consumer.poll(_POLL_MS, self._options.transaction_size)
                if self._rebalanced:
                    self._note_rebalance(records)
                if records:
                    self._copy(records)
        finally:
            self._producer.close()
            self._consumer.close()
            self._tell(SHUTDOWN_COMPLETE)

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        """Called by the consumer."""
        self._rebalanced = True

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        """Called by the consumer when the revoke is complete, before the group is told."""
        self._rebalanced = True

    def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        """Called by the consumer."""
        self._rebalanced = True

    def _start(self) -> None:
        most = self._options.max_messages
        if most >= 0:
            self._progress.remaining = most
        if self._options.group_mode:
            self._consumer.subscribe([self._options.input_topic], None, self)
            return
        partition = TopicPartition(self._options.input_topic, self._options.input_partition)
        self._consumer.assign([partition])
        left = self._left([partition])
        self._progress.remaining = min(left, self._progress.remaining)

    def _note_rebalance(self, records: Records) -> None:
        """Count what is left: up to the end, and what this poll has just returned."""
        self._rebalanced = False
        if not (assignment := self._consumer.assignment()):
            return
        left = self._left(assignment)
        self._progress.rebalanced(left + sum(map(len, records.values())))
        self._tell(REBALANCE_COMPLETE)

    def _left(self, partitions: Collection[TopicPartition]) -> int:
        ends = patiently(partial(self._consumer.end_offsets, partitions)) if partitions else {}
        positions = {p: self._consumer.position(p) for p in partitions}
        return sum(ends[p] - at for p, at in positions.items() if at is not None and p in ends)

    def _copy(self, records: Records) -> None:
        try:
            self._producer.begin()
            for partition, values in records.items():
                for record in values:
                    self._producer.send(
                        self._options.output_topic, partition.partition, record.key, record.value
                    )
            self._producer.send_offsets(self._positions(), self._group())
            if self._options.random_aborts and self._chance.randrange(_ABORT_ONE_IN) == 0:
                self._abort()
            else:
                self._producer.commit()
                self._progress.committed(sum(map(len, records.values())))
        except FencedError:
            raise
        except (kafka_errors.KafkaError, KafkaRebalanceError):
            log.info("aborting a transaction", exc_info=True)
            self._abort()

    def _positions(self) -> dict[TopicPartition, int]:
        positions = {p: self._consumer.position(p) for p in self._consumer.assignment()}
        return {p: at for p, at in positions.items() if at is not None}

    def _group(self) -> ConsumerGroupMetadata:
        if self._options.use_group_metadata:
            return self._consumer.group_metadata()
        return ConsumerGroupMetadata(self._options.consumer_group)

    def _abort(self) -> None:
        """Abort, and go back to the committed offsets."""
        self._producer.abort()
        for partition in self._consumer.assignment():
            offset = patiently(partial(self._consumer.committed, partition))
            if offset is None:
                self._consumer.seek_to_beginning(partition)
            else:
                self._consumer.seek(partition, offset)

    def _tell(self, stage: str) -> None:
        now = datetime.datetime.now()
        line = status_line(stage, self._progress, self._options.transactional_id, now)
        self._out.write(f"{line}\n")
        self._out.flush()


def patiently(query: Callable[[], Result]) -> Result:
    """Repeat a query that fails while a leader moves; Java's consumer does so by itself."""
    deadline = time.monotonic() + _QUERY_S
    while True:
        try:
            return query()
        except kafka_errors.KafkaError as error:
            if not error.retriable or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def consumer_of(options: Options) -> DeferredRevokeConsumer:
    """The consumer, set up as Java's tool sets up its own."""
    config: dict[str, Any] = {
        "bootstrap_servers": options.broker_list.split(","),
        "group_id": options.consumer_group,
        "group_protocol": options.group_protocol,
        "isolation_level": "read_committed",
        "max_poll_records": options.transaction_size,
        "max_poll_interval_ms": 180_000,
        "auto_offset_reset": "earliest",
    }
    if options.group_protocol == "classic":
        config |= {"session_timeout_ms": 10_000, "heartbeat_interval_ms": 3_000}
    return DeferredRevokeConsumer(**config)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the copier; return the exit code."""
    options = parse(arguments)
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    logging.getLogger("kafka").setLevel(logging.WARNING)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        producer = OwnProducer(options)
        copier = MessageCopier(
            options,
            consumer_of(options),
            producer,
            stop=stop,
            out=sys.stdout,
            chance=random.Random(),
        )
        copier.run()
    except (kafka_errors.KafkaError, KafkaRebalanceError) as error:
        log.exception("ended by an error")
        print(f"ended by {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0
