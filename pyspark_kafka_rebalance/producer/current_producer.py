"""CurrentProducer: the Kafka producer that a member sends with, until it fails or is replaced.

The next one has the same transactional id: to begin with, it ends what the one before has left
open, and fences it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

from kafka import errors as kafka_errors

from .kafka_python.transactional_producer import TransactionalProducer

log = logging.getLogger(__name__)


class CurrentProducer:
    """Of one member; used by one thread at a time, but for ``end_by``.

    Parameters
    ----------
    connect : callable
        Makes one that is connected, which waits for brokers.
    group_id : str
        Its name in the log.

    Attributes
    ----------
    now : TransactionalProducer or None
        The one there is.
    """

    now: TransactionalProducer | None = None

    def __init__(self, connect: Callable[[], TransactionalProducer], group_id: str) -> None:
        self._connect = connect
        self._group_id = group_id
        self._end_by = math.inf

    def ready(self) -> TransactionalProducer:
        """One to begin a transaction with, which is made if there is none that works.

        Raises
        ------
        KafkaError
            It could not be connected; IllegalStateError: after ``end_by`` none is made.
        """
        if self.now is not None and self.now.broken:
            self._drop()
        if self.now is None:
            self._refuse_at_the_end()
            producer = self._connect()
            try:
                self._refuse_at_the_end()  # which may have come meanwhile
            except kafka_errors.IllegalStateError:
                producer.close(0)
                raise
            self.now = producer
        return self.now

    def replace(self) -> None:
        """Have another one; where that is not possible now, ``ready`` tries again."""
        self._drop()
        if self._end_by < math.inf:
            return
        try:
            self.ready()
        except (kafka_errors.KafkaError, OSError) as error:
            log.warning("producer group %s: not connected: %r", self._group_id, error)

    def end_by(self, when: float) -> None:
        """Make no other one, and wait for brokers until then at most; any thread.

        Parameters
        ----------
        when : float
            Of ``time.monotonic``. A call that is under way ends then as one that has failed.
        """
        self._end_by = min(self._end_by, when)
        producer = self.now
        if producer is not None:
            producer.end_by(when)

    def close(self, deadline: float) -> None:
        """Close the connections by then, of ``time.monotonic``."""
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
