"""Writer: the Kafka producer of a member, and its open transaction.

The producer is made by ``connect``, and made again only if it cannot send anything any more. When
it is fenced, or the broker has ended its transaction, it takes its transactional id back before the
next one starts.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from ..errors import (
    AuthorizationError,
    KafkaRebalanceError,
    TransactionAbortedError,
    TransactionInDoubtError,
)
from ..produce.producer import GroupMetadata, Offset, Producer, Transaction
from ..produce.transaction_errors import Outcome

log = logging.getLogger(__name__)

#: What an abort raises that goes on in the background.
_NOT_YET = (kafka_errors.KafkaError, KafkaRebalanceError, RuntimeError)

#: Returns the member as of now; None if it is lost and must not commit anything. Any thread.
MemberNow = Callable[[], "GroupMetadata | None"]


class Writer:
    """Writes the transactions of one member; used by one thread at a time, except ``end_by``
    and ``transaction``, which any thread may ``break_off``.

    Parameters
    ----------
    config : mapping
        The settings of ``produce.producer.Producer``; read when one is made.
    member : MemberNow
        Who commits a transaction.
    largest : mapping of str to int, optional
        Topics with records that may be larger than ``max_request_size``, and how large. Bytes.

    Attributes
    ----------
    transaction : Transaction or None
        The open one.
    """

    transaction: Transaction | None = None

    def __init__(
        self,
        config: Mapping[str, Any],
        member: MemberNow,
        largest: Mapping[str, int] | None = None,
    ) -> None:
        self._config = config
        self._largest = largest or {}
        self._member = member
        self._producer: Producer | None = None
        self._end_by = math.inf
        self._is_torn = False
        self._may_be_open = False

    def connect(self) -> None:
        """Connect, and end what a predecessor with the same transactional id left open.

        Raises
        ------
        KafkaRebalanceError, KafkaError, OSError
            As ``Producer`` and its ``initialize``. IllegalStateError after ``end_by``.
        """
        _initialize(self._connected())

    def begin(self) -> Transaction:
        """Start a transaction, and return it; raises as ``connect``."""
        producer = self._connected()
        if producer.is_refused:
            _initialize(producer)
        self._may_be_open = True
        try:
            self.transaction = producer.transaction()
        except (kafka_errors.KafkaError, KafkaRebalanceError):
            raise
        except BaseException:  # it may have begun
            self.tear()
            self.transaction = None
            raise
        return self.transaction

    def announce(self, topic: str, numbers: Collection[int], group_id: str) -> None:
        """Announce these partitions, so that their next owner sees this transaction and ends it.

        Waits until metadata has them: the topic may have grown.
        """
        assert self._producer is not None
        assert self.transaction is not None
        self._producer.partitions_for(topic, at_least=max(numbers, default=0) + 1)
        self.transaction.announce([TopicPartition(topic, n) for n in numbers], group_id)

    def waits_for(self, topic: str) -> bool:
        """Whether a record for this topic would wait now."""
        return self._producer is None or self._producer.waits_for(topic)

    @property
    def is_over(self) -> bool:
        """Whether nothing more can be sent: the producer has failed, or has to end now."""
        producer = self._producer
        return producer is None or producer.has_failed or time.monotonic() >= self._end_by

    def commit(
        self,
        offsets: Mapping[TopicPartition, Offset],
        before_end: Callable[[], None] | None = None,
    ) -> None:
        """Commit the transaction with these offsets of the member's group.

        ``before_end`` is called when the group has accepted them and all records are delivered; if
        it raises, the transaction is still open. Waits until the transaction's timeout, after which
        the broker has aborted it.

        Raises
        ------
        TransactionAbortedError
            It was not committed, and never will be.
        TransactionInDoubtError
            It may have been committed.
        """
        transaction, member = self.transaction, self._member()
        assert transaction is not None
        if member is None:
            raise TransactionAbortedError("this member is out of the group", {})
        timeout_ms = self._config["transaction_timeout_ms"]
        try:
            transaction.send_offsets(member, offsets, member=self._member)
            if before_end is not None:
                transaction.flush(timeout_ms)
        except TransactionAbortedError:
            raise
        except (kafka_errors.KafkaError, KafkaRebalanceError) as error:
            raise TransactionAbortedError(str(error), {}) from error
        if before_end is not None:
            before_end()
        try:
            transaction.commit(timeout_ms)
        except kafka_errors.KafkaTimeoutError as error:
            self._give_up(transaction, str(error))
        except TransactionAbortedError:
            raise
        except KafkaRebalanceError as error:
            raise TransactionInDoubtError(str(error)) from error
        self.transaction = None
        self._may_be_open = False

    def _give_up(self, transaction: Transaction, cause: str) -> None:
        """Abort a transaction whose commit takes too long, if that was not sent yet."""
        try:
            transaction.abort(cause, timeout_ms=0)
        except TransactionAbortedError:
            pass
        except (RuntimeError, KafkaRebalanceError) as error:
            raise TransactionInDoubtError(cause) from error
        except kafka_errors.KafkaTimeoutError:
            log.debug("%s: it is aborted in the background", cause)
        if transaction.outcome is Outcome.NOT_KNOWABLE:
            raise TransactionInDoubtError(cause)
        if transaction.outcome is not Outcome.COMMITTED:
            raise TransactionAbortedError(cause, {})

    def tear(self) -> None:
        """A signal's handler has raised amid a call: another producer begins the next transaction.

        Until then this one goes on, and may still learn what became of a commit.
        """
        self._is_torn = True

    def abort(self, reason: str, timeout_s: float) -> None:
        """Abort the open transaction; continues in the background if that takes longer."""
        transaction, self.transaction = self.transaction, None
        if transaction is None:
            return
        try:
            transaction.abort(reason, timeout_s * 1000)
            self._may_be_open = False
        except TransactionAbortedError:
            self._may_be_open = False
        except Exception as error:
            if not self._is_torn and not isinstance(error, _NOT_YET):
                raise
            log.info("the transaction is not aborted yet: %s", error)

    def end_by(self, when: float) -> None:
        """Make no new producer, and wait for brokers until then at most; any thread.

        Parameters
        ----------
        when : float
            In ``time.monotonic`` time. A call that is still under way fails then.
        """
        self._end_by = min(self._end_by, when)
        producer = self._producer
        if producer is not None:
            producer.end_by(when)

    def close(self, deadline: float) -> None:
        """Close the connections by ``deadline``, in ``time.monotonic`` time.

        What a torn producer left open is ended by another one: readers would wait for it until its
        timeout.
        """
        producer, self._producer = self._producer, None
        if producer is None:
            return
        try:
            producer.close(max(0.0, deadline - time.monotonic()) * 1000)
        finally:
            if self._may_be_open and (self._is_torn or producer.has_failed):
                self._take_over(deadline)

    def _take_over(self, deadline: float) -> None:
        left_ms = (deadline - time.monotonic()) * 1000
        if left_ms < 1:
            return
        try:
            with Producer(**{**self._config, "bootstrap_timeout_ms": int(left_ms)}) as other:
                other.initialize(left_ms)
        except (KafkaRebalanceError, kafka_errors.KafkaError, OSError) as error:
            log.warning("the open transaction ends with its timeout: %s", error)

    def _connected(self) -> Producer:
        if self._producer is not None and self._is_torn:
            with suppress(Exception):  # nobody knows in which state it was left
                self.close(0)
        if self._producer is not None and self._producer.has_failed:
            self.close(0)
        if self._producer is None:
            self._refuse_at_the_end()
            producer = Producer(**self._config)
            for topic, size in self._largest.items():
                producer.allow(topic, size)
            try:
                self._refuse_at_the_end()  # end_by may have been called in the meantime
            except kafka_errors.IllegalStateError:
                producer.close(0)
                raise
            self._producer, self._is_torn = producer, False
            producer.end_by(self._end_by)
        return self._producer

    def _refuse_at_the_end(self) -> None:
        if self._end_by < math.inf:
            raise kafka_errors.IllegalStateError("the producer group is being closed")


def _initialize(producer: Producer) -> None:
    try:
        producer.initialize()
    except AuthorizationError as error:  # the class that users of producer groups know
        raise kafka_errors.TransactionalIdAuthorizationFailedError(str(error)) from error


def break_off(transaction: Transaction, reason: str) -> bool:
    """Have no call send in a transaction any more, also one that waits; any thread, never waits.

    Returns False if it has ended, or its commit is sent. Otherwise it is aborted in the background.
    """
    try:
        transaction.abort(reason, timeout_ms=0)
    except kafka_errors.KafkaTimeoutError:
        return True
    except (KafkaRebalanceError, RuntimeError):
        return False
    return True


def offset_of(written: Future[Any]) -> int | None:
    """The offset of a record that is committed; None if its leader does not say."""
    offset: int = written.result(timeout=0).offset if written.done() else -1
    return offset if offset >= 0 else None
