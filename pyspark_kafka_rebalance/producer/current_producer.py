"""CurrentProducer: the Kafka producer that a member sends with, until it fails or is replaced.

The next producer has the same transactional id: it first ends the transaction that its predecessor
left open, and fences it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

from kafka import errors as kafka_errors

from .kafka_python.transactional_producer import TransactionalProducer

log = logging.getLogger(__name__)

_A_NEW_EPOCH = (
    "a request of the last transaction got no answer and may still arrive; the next transaction "
    "gets a new producer epoch"
)


class CurrentProducer:
    """The current producer of one member; used by one thread at a time, except ``end_by``.

    Parameters
    ----------
    connect : callable
        Makes a connected producer; waits for brokers.
    group_id : str
        The group's name in the log.

    Attributes
    ----------
    now : TransactionalProducer or None
        The current producer, if there is one.
    """

    now: TransactionalProducer | None = None

    def __init__(self, connect: Callable[[], TransactionalProducer], group_id: str) -> None:
        self._connect = connect
        self._group_id = group_id
        self._end_by = math.inf

    def ready(self) -> TransactionalProducer:
        """Return a producer to begin a transaction with; makes one if there is none that works.

        The producer of the last transaction will not do if one of its requests got no answer: it
        was sent again, and its first copy, delayed, would be valid in the next transaction. A new
        producer has a new epoch.

        Raises
        ------
        KafkaError
            It could not be connected. IllegalStateError after ``end_by``, which allows no new one.
        """
        if self.now is not None and (self.now.broken or self.now.unanswered):
            if not self.now.broken:
                log.info("producer group %s: %s", self._group_id, _A_NEW_EPOCH)
            self._drop()
        if self.now is None:
            self._refuse_at_the_end()
            producer = self._connect()
            try:
                self._refuse_at_the_end()  # end_by may have been called meanwhile
            except kafka_errors.IllegalStateError:
                producer.close(0)
                raise
            self.now = producer
        return self.now

    def replace(self) -> None:
        """Replace the producer; if that is not possible now, ``ready`` tries again."""
        self._drop()
        if self._end_by < math.inf:
            return
        try:
            self.ready()
        except (kafka_errors.KafkaError, OSError) as error:
            log.warning("producer group %s: not connected: %r", self._group_id, error)

    def end_by(self, when: float) -> None:
        """Make no new producer, and wait for brokers until then at most; any thread.

        Parameters
        ----------
        when : float
            In ``time.monotonic`` time. A call that is still under way fails then.
        """
        self._end_by = min(self._end_by, when)
        producer = self.now
        if producer is not None:
            producer.end_by(when)

    def close(self, deadline: float) -> None:
        """Close the connections by ``deadline``, in ``time.monotonic`` time."""
        producer, self.now = self.now, None
        if producer is not None:
            producer.close(max(0.0, deadline - time.monotonic()))

    def _drop(self) -> None:
        producer, self.now = self.now, None
        if producer is not None:
            producer.close(0)

    def _refuse_at_the_end(self) -> None:
        if self._end_by < math.inf:
            raise kafka_errors.IllegalStateError("the producer group is being closed")
