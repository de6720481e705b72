"""A DeferredRevokeConsumer with the command line and the events of Kafka's VerifiableConsumer.

``python -m tests.verifiable_consumer`` takes the options of
``org.apache.kafka.tools.VerifiableConsumer`` (Apache Kafka 4.3) and prints its JSON lines. So
Kafka's own system tests (``kafkatest``) can judge this consumer, by itself or in one group with
Java's. As in Java's, a poll's records are printed, then committed, then the next poll follows;
SIGTERM and SIGINT finish the commit under way and leave the group, and ``shutdown_complete`` is the
last line.

Differences from Java's:

* ``--assignment-strategy`` is CooperativeStickyAssignor, the default here; others are refused.
* Auto-commit does not exist here. With ``--enable-autocommit``, printed records are committed in
  the background (``commit_processed``), and as in Java no ``offsets_committed`` is printed.
* A revoke is deferred until its records are committed: ``partitions_revoked`` comes in the poll
  after the one that learned of it, once for each poll that completes some, and names only these.
  As with Java's cooperative consumer, one ``partitions_assigned``, maybe empty, follows each. An
  assignment that changes nothing is not printed; Java prints an empty one.
* Lost partitions are printed by ``partitions_lost``, which Kafka's handlers ignore like any unknown
  name, and then, as in Java, by ``partitions_revoked``.
* ``shutdown_requested`` only follows a signal; Java prints it at every end, maybe as the last line.
* A poll without records prints nothing.
* The settings file takes the settings of ``kafka_deferred``; one that it does not support is
  refused, not ignored.
* The exit code is 1 if an error ended it, after ``shutdown_complete``.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from typing import TextIO

from kafka import ConsumerRebalanceListener
from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.consumer.consumer import DeferredRevokeConsumer
from pyspark_kafka_rebalance.errors import KafkaRebalanceError, PartitionsLostError

from .events import (
    Fields,
    event_line,
    offsets_committed,
    partitions_changed,
    record_data,
    records_consumed,
)
from .options import parse

log = logging.getLogger(__name__)

#: How soon a signal is seen while there is nothing to read.
_POLL_MS = 100
#: Java's commitSync gives up after default.api.timeout.ms; this is the default of that.
_COMMIT_MS = 60_000


class VerifiableConsumer(ConsumerRebalanceListener):  # type: ignore[misc]
    """Consumes one topic and prints every event.

    Parameters
    ----------
    consumer : DeferredRevokeConsumer
        Not subscribed yet; closed by :meth:`run`.
    topic : str
        The topic to consume.
    max_messages : int
        How many records to consume; negative for no end.
    auto_commit : bool
        Commit in the background and do not print it.
    verbose : bool
        Print every record, too.
    stop : threading.Event
        Ends :meth:`run` after the poll and the commit under way.
    out : text file
        For the events.
    """

    def __init__(
        self,
        consumer: DeferredRevokeConsumer,
        topic: str,
        *,
        max_messages: int,
        auto_commit: bool,
        verbose: bool,
        stop: threading.Event,
        out: TextIO,
    ) -> None:
        self._consumer = consumer
        self._topic = topic
        self._max_messages = max_messages
        self._auto_commit = auto_commit
        self._verbose = verbose
        self._stop = stop
        self._out = out
        self._consumed = 0
        self._closing = False

    def run(self) -> bool:
        """Consume until ``stop`` is set or enough is consumed; return whether no error ended it."""
        self._tell("startup_complete")
        succeeded = False
        try:
            self._consumer.subscribe([self._topic], listener=self)
            while not self._stop.is_set() and not self._finished():
                self._take_turn()
            if self._stop.is_set():
                self._tell("shutdown_requested")
            succeeded = True
        except Exception:
            log.exception("ended by an error")
        finally:
            self._closing = True
            self._consumer.close()
            self._tell("shutdown_complete")
        return succeeded

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        """Called by the consumer."""
        self._tell("partitions_assigned", partitions_changed(assigned))

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        """Called by the consumer when the revoke is complete, before the group is told."""
        self._tell("partitions_revoked", partitions_changed(revoked))
        if not self._closing:
            # Java ends each rebalance like this. Otherwise Kafka's handler would believe that this
            # member is still rebalancing, and treat records of kept partitions as an error.
            self._tell("partitions_assigned", partitions_changed(()))

    def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        """Called by the consumer."""
        self._tell("partitions_lost", partitions_changed(lost))
        self._tell("partitions_revoked", partitions_changed(lost))
        if self._consumer.assignment() - set(lost):
            self._tell("partitions_assigned", partitions_changed(()))

    def _finished(self) -> bool:
        return 0 <= self._max_messages <= self._consumed

    def _take_turn(self) -> None:
        wanted: int = self._consumer.config["max_poll_records"]
        if self._max_messages >= 0:
            wanted = min(wanted, self._max_messages - self._consumed)
        records = self._consumer.poll_with_rebalance(_POLL_MS, wanted).records
        if not records:
            return
        if self._verbose:
            for batch in records.values():
                for record in batch:
                    self._tell("record_data", record_data(record))
        self._tell("records_consumed", records_consumed(records))
        self._consumed += sum(map(len, records.values()))
        self._commit({p: batch[-1].offset + 1 for p, batch in records.items()})

    def _commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        error = None
        try:
            self._consumer.commit_processed(offsets)
            if self._auto_commit:
                return
            if not self._consumer.drain(_COMMIT_MS):
                error = f"no answer to the commit within {_COMMIT_MS} ms"
            elif missing := [p for p, o in offsets.items() if self._consumer.acknowledged(p) != o]:
                error = f"not committed: {missing}"
        except PartitionsLostError as lost:
            error = str(lost)
        if not self._auto_commit:
            self._tell("offsets_committed", offsets_committed(offsets, error))

    def _tell(self, name: str, fields: Fields | None = None) -> None:
        self._out.write(event_line(time.time_ns() // 1_000_000, name, fields) + "\n")
        self._out.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the consumer; return the exit code."""
    parsed = parse(arguments)
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
        consumer = DeferredRevokeConsumer(**parsed.config)
    except (KafkaRebalanceError, KafkaError) as error:
        log.error("%s", error)
        return 1
    verifiable = VerifiableConsumer(
        consumer,
        parsed.topic,
        max_messages=parsed.max_messages,
        auto_commit=parsed.enable_autocommit,
        verbose=parsed.verbose,
        stop=stop,
        out=sys.stdout,
    )
    return 0 if verifiable.run() else 1
