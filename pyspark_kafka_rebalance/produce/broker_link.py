"""BrokerLink: carries a `Delivery`'s parcels to the brokers and their answers back.

All of it runs on kafka-python's I/O thread, but for `wake` and `wait`. A turn takes what is to be
sent, under the lock, and sends it without the lock. Answers, failures, timers and other threads
each cause one.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager
from typing import Any

from kafka import errors as kafka_errors
from kafka.protocol.metadata import MetadataRequest

from ..errors import KafkaRebalanceError, RecordTooLargeError, TransactionAbortedError
from ..fetch.connections import ClusterConnections, explain_final
from . import wire
from .broker_versions import LatestVersions
from .delivery import Delivery
from .outbox import Parcel
from .producer_settings import ProducerSettings
from .requests import Answer, Fetch, FindCoordinator, InitProducerId, OffsetFetch, Produce, Request
from .transaction import TransactionMachine
from .transaction_errors import Errors

log = logging.getLogger(__name__)

#: What is refused before anything has changed. By their very type: a signal's handler may raise
#: others that derive from them.
_RAISED_BETWEEN_CHANGES = (
    *(TypeError, ValueError, OverflowError, RuntimeError, MemoryError),
    *(KafkaRebalanceError, RecordTooLargeError, TransactionAbortedError),
)

#: Between two requests for metadata.
_METADATA_EVERY_S = 0.1


class BrokerLink:
    """A producer's way to its cluster.

    Parameters
    ----------
    connections : ClusterConnections
        Bootstrapped, and for this producer alone.
    delivery : Delivery
        What decides. Only to be used with ``changed`` held.
    settings : ProducerSettings
    latest : LatestVersions, optional
        To be kept up to date.
    transactions : TransactionMachine, optional
        To be told of a downgrade.

    Attributes
    ----------
    lock : threading.Lock
    changed : threading.Condition
        With that lock; notified after each turn.
    """

    def __init__(
        self,
        connections: ClusterConnections,
        delivery: Delivery,
        settings: ProducerSettings,
        latest: LatestVersions | None = None,
        transactions: TransactionMachine | None = None,
    ) -> None:
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self._connections = connections
        self._delivery = delivery
        self._settings = settings
        self._latest = latest
        self._transactions = transactions
        self._lanes: dict[int, str] = {}
        self._turn_is_due = False
        self._io_thread = 0
        #: When timers that are set fire; each is earlier than those before it.
        self._timers: list[float] = []
        self._asks_for_metadata = False
        self._metadata_at = 0.0
        self._metadata_expires_at = 0.0
        self._error: Exception | None = None
        self._end_by = math.inf
        self._closed = False

    def wake(self) -> None:
        """Have a turn soon; ``changed`` is held."""
        if not self._turn_is_due and not self._closed:
            try:
                self._connections.run_soon(self._turn)
            except (RuntimeError, kafka_errors.KafkaError) as error:
                self._fail(KafkaRebalanceError(f"the I/O thread has ended: {error}"))
            self._turn_is_due = True  # after that: a signal's handler may raise in between

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Within it, state changes that only makes sense as a whole; ``changed`` is held.

        The handler of a signal may raise anywhere in a main thread's call. Nobody knows then how
        far the call got, so the producer ends here, instead of going on with half a change.
        """
        try:
            yield
        except BaseException as error:
            if type(error) not in _RAISED_BETWEEN_CHANGES:
                self.is_torn(error)
            raise

    def is_torn(self, error: BaseException) -> None:
        """End: an exception has interrupted a change; ``changed`` is held."""
        self._fail(
            KafkaRebalanceError(
                f"{type(error).__name__} interrupted a call of this producer, and what it had "
                "accepted may not be delivered: make another producer"
            )
        )
        self.wake()

    def _fail(self, error: Exception | None) -> None:
        """Raise this error in all calls from now on, if it is one; ``changed`` is held."""
        if error is not None and self._error is None:
            self._error = error
            self._delivery.refuse()
            self._delivery.abandon(error)
            self.changed.notify_all()

    def wait(self, done: Callable[[], bool], timeout_s: float | None, waits_for: str) -> None:
        """Wait until something is so; ``changed`` is held.

        Raises
        ------
        kafka.errors.KafkaTimeoutError
            It is not, after the time.
        KafkaRebalanceError
            Nothing can be sent any more.
        RuntimeError
            This is the I/O thread, as in the callback of a future: nothing would happen meanwhile.
        """
        began = time.monotonic()
        deadline = math.inf if timeout_s is None else began + timeout_s
        while True:
            self.check()
            if done():
                return
            self.refuse_on_io_thread(waits_for)
            ends_at = min(deadline, self._end_by)
            left = ends_at - time.monotonic()
            if left <= 0:
                waited_s = max(ends_at - began, 0.0)
                raise kafka_errors.KafkaTimeoutError(f"{waits_for}: not after {waited_s:.3g} s")
            self.changed.wait(None if math.isinf(left) else left)

    def refuse_on_io_thread(self, call: str) -> None:
        """Raise RuntimeError on the thread that answers: a call there would wait for itself."""
        if threading.get_ident() == self._io_thread:
            raise RuntimeError(
                f"{call}: the callback of a future runs on the producer's I/O thread, which must "
                "not wait; call this from another thread"
            )

    def end_by(self, when: float) -> None:
        """End each wait at this ``time.monotonic`` time. Any thread."""
        with self.changed:
            self._end_by = min(self._end_by, when)
            self.changed.notify_all()

    @property
    def has_failed(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._error is not None

    def check(self) -> None:
        """Raise the error after which nothing can be sent any more, if there was one."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Send nothing more, and close the connections."""
        with self.changed:
            self._closed = True
            self._fail(KafkaRebalanceError("the producer is closed"))
            resolved = self._delivery.take_resolved()
        self._connections.close()
        for future, result in resolved:
            _resolve(future, result)

    # Of the I/O thread.

    def _turn(self) -> None:
        with self._ended_by_errors():
            self._take_turn()

    @contextmanager
    def _ended_by_errors(self) -> Iterator[None]:
        """All calls raise an unexpected error from then on; kafka-python would only log it."""
        try:
            yield
        except Exception as error:
            log.exception("a producer cannot go on")
            with self.changed:
                self._fail(KafkaRebalanceError(f"the producer cannot go on: {error!r}"))
                self.wake()

    def _take_turn(self) -> None:
        delivery = self._delivery
        with self.changed:
            self._turn_is_due = False
            self._io_thread = threading.get_ident()
            if self._closed:
                return
            now = time.monotonic()
            self._follow_downgrade(now)
            delivery.expire(now)
            delivery.close_lingering(now)
            parcels = delivery.take(now) if self._error is None else []
            messages = [(parcel, self._message_of(parcel.requests)) for parcel in parcels]
            metadata = self._metadata_request(now)
            wake_at = delivery.wake_at(now)
            resolved = delivery.take_resolved()
            self.changed.notify_all()
        for future, result in resolved:
            _resolve(future, result)
        if metadata is not None:
            self._connections.send_soon(metadata, None, self._described)
        for parcel, message in messages:
            self._send(parcel, message)
        if self._error is not None:
            return
        if self._latest is not None and now >= self._latest.due_at:
            self._latest.ask()
        self._set_timer(wake_at, now)

    def _follow_downgrade(self, now: float) -> None:
        """Abort what is open, as the brokers would refuse the rest of it."""
        machine, latest = self._transactions, self._latest
        if machine is None or latest is None:
            return
        if latest.versions.transaction_version < machine.versions.transaction_version:
            self._delivery.apply(machine.downgrade(), now)

    def _set_timer(self, wake_at: float | None, now: float) -> None:
        versions_at = None if self._latest is None else self._latest.due_at
        all_times = (wake_at, self._next_metadata(), versions_at)
        times = [at for at in all_times if at is not None]
        at = max(min(times, default=math.inf), now)
        # A later one is set again when this one has fired.
        if at < min(self._timers, default=math.inf):
            self._timers.append(at)
            self._connections.run_later(at - now, lambda: self._timer_fires(at))

    def _timer_fires(self, at: float) -> None:
        self._timers.remove(at)
        self._turn()

    def _message_of(self, requests: tuple[Request, ...]) -> Any:
        first = requests[0]
        if not isinstance(first, Produce):
            return wire.message(first)
        produces = [request for request in requests if isinstance(request, Produce)]
        batches = [self._delivery.batch_of(request) for request in produces]
        timeout_ms = int(self._settings.request_timeout_s * 1000)
        return wire.ProduceMessage(produces, batches, timeout_ms)

    def _send(self, parcel: Parcel, message: Any) -> None:
        def done(response: Any, error: Exception | None) -> None:
            with self._ended_by_errors():
                self._answered(parcel, message, response, error)

        self._connections.send_soon(message, self._way_to(parcel), done)

    def _way_to(self, parcel: Parcel) -> int | str | None:
        """The connection: a coordinator's answers do not queue behind those to other requests."""
        if parcel.node is None or isinstance(parcel.requests[0], (Produce, Fetch, OffsetFetch)):
            return parcel.node
        return self._lanes.get(parcel.node, parcel.node)

    def _answered(
        self, parcel: Parcel, message: Any, response: Any, error: Exception | None
    ) -> None:
        request = parcel.requests[0]
        with self.changed:
            now = time.monotonic()
            if error is not None:
                log.debug("no answer to %s: %r", type(request).__name__, error)
                self._unanswered(parcel, message, error, now)
            elif isinstance(request, Produce):
                produces = [each for each in parcel.requests if isinstance(each, Produce)]
                answers = wire.produce_answers(produces, response)
                for _, answer in answers:
                    self._note_downgrade(answer, now)
                self._delivery.answered(parcel, answers, now)
                for leader in wire.new_leaders(response):  # in place of the one that refused
                    self._delivery.topics.moved(*leader)
            else:
                self._open_lane(request, response)
                answer = wire.answer(request, response)
                self._note_downgrade(answer, now)
                self._delivery.answered(parcel, [(request, answer)], now)
            self.wake()

    def _note_downgrade(self, answer: Answer, now: float) -> None:
        if self._latest is not None and Errors.UNSUPPORTED_VERSION in (
            answer.error,
            *answer.errors.values(),
        ):
            self._latest.is_refused(now)

    def _unanswered(self, parcel: Parcel, message: Any, error: Exception, now: float) -> None:
        self._delivery.unanswered(parcel, sent=message.header is not None, now=now)
        if isinstance(error, kafka_errors.UnknownBrokerIdError):
            self._delivery.topics.stale = True
        first = parcel.requests[0]
        if isinstance(first, (FindCoordinator, InitProducerId)):
            # No broker lets us in: the same for all that follows.
            self._fail(explain_final(error, type(first).__name__))

    def _open_lane(self, request: Request, response: Any) -> None:
        if isinstance(request, FindCoordinator):
            found = wire.coordinator_of(request, response)
            if not found.error_code:
                self._lanes[found.node_id] = self._connections.add_coordinator(
                    found.node_id, found.host, found.port, request.key_type, request.key
                )

    # Metadata.

    def _next_metadata(self) -> float | None:
        if self._asks_for_metadata:
            return None
        return self._metadata_at if self._delivery.topics.stale else self._metadata_expires_at

    def _metadata_request(self, now: float) -> Any:
        at = self._next_metadata()
        names = self._delivery.topics.names
        if at is None or at > now:
            return None
        self._metadata_at = now + _METADATA_EVERY_S
        self._metadata_expires_at = now + self._settings.metadata_max_age_s
        if not names:
            return None
        self._asks_for_metadata = True
        return MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in names],
            allow_auto_topic_creation=self._settings.allow_auto_create_topics,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
            min_version=4,
        )

    def _described(self, response: Any, error: Exception | None) -> None:
        with self._ended_by_errors():
            self._take_description(response, error)

    def _take_description(self, response: Any, error: Exception | None) -> None:
        if error is None:
            self._connections.take_metadata(response)
        with self.changed:
            self._asks_for_metadata = False
            if error is None:
                self._delivery.take_metadata(response)
            else:
                log.info("no metadata: %r", error)
                self._delivery.topics.stale = True
                self._fail(explain_final(error, "metadata"))
            self.wake()


def _resolve(future: Future[Any], result: Any) -> None:
    try:
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)
    except InvalidStateError:  # cancelled by its owner
        log.debug("nobody waits for %s any more", result)
