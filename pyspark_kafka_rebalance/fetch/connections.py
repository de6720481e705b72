"""Connections to the brokers of a cluster: the seam to kafka-python's network layer.

The only module of ``fetch`` that touches kafka-python's private names. Connections are cached
for each cluster (that is, for each client configuration) in the worker process, because Spark runs
many short tasks in it. Otherwise each would connect, authenticate and request API versions again.

kafka-python's I/O thread sends and receives, so a response arrives while the caller decodes the
previous one.
"""

from __future__ import annotations

import atexit
import logging
import os
import pickle
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

from kafka import errors as kafka_errors
from kafka.cluster import ClusterMetadata
from kafka.future import Future
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.protocol.metadata import MetadataRequest

from ..errors import (
    AuthenticationError,
    AuthorizationError,
    KafkaRebalanceError,
    UnsupportedBrokerError,
)
from ..transport.kafka_python_version import require_names
from ..transport.secured_clients import prepare_connections

log = logging.getLogger(__name__)

#: What to do with a response, or with the error in place of it.
Answered = Callable[[Any, "Exception | None"], None]

#: A larger frame is, as a rule, not a response: its sender is not a Kafka broker. 100 MB is
#: librdkafka's and kafka-python's own bound. A response is as large as the fetch asks for, or as
#: its first record batch, if that is larger.
MIN_RECEIVE_MESSAGE_MAX_BYTES = 100_000_000
_RESPONSE_OVERHEAD = 1024 * 1024

#: The number of clusters whose connections stay open while no fetcher uses them.
_IDLE_CLUSTERS = 4

#: How long to wait for an answer beyond the request timeout, in case kafka-python's own timeout
#: fails to end the wait.
_GRACE_S = 30.0


require_names(
    {
        KafkaConnectionManager: (*("send", "call_soon", "bootstrap_async", "bootstrapped"),),
        NetworkSelector: (*("start", "stop", "close", "call_soon_threadsafe", "call_later"),),
        ClusterMetadata: ("add_coordinator", "brokers", "update_metadata"),
    }
)

#: Errors that a retry does not fix.
_FINAL_ERRORS = (
    kafka_errors.AuthorizationError,
    kafka_errors.SaslAuthenticationFailedError,
    kafka_errors.UnsupportedSaslMechanismError,
    kafka_errors.IllegalSaslStateError,
    kafka_errors.SecurityDisabledError,
    kafka_errors.UnsupportedVersionError,
    kafka_errors.UnsupportedCompressionTypeError,
    kafka_errors.InvalidTopicError,
    kafka_errors.InvalidReceiveError,
    kafka_errors.KafkaConfigurationError,
)


def explain_final(error: Exception, doing: str) -> KafkaRebalanceError | None:
    """Return the error to raise if a retry does not fix this one of kafka-python's, else None.

    ``doing`` names topic, partition and offsets.
    """
    if not isinstance(error, _FINAL_ERRORS):
        return None
    if isinstance(error, AuthenticationError):
        return AuthenticationError(f"{doing}: {error}")
    text = f"{doing}: {error!r}"
    if isinstance(error, kafka_errors.AuthorizationError):
        on_group = isinstance(error, kafka_errors.GroupAuthorizationFailedError)
        return AuthorizationError(
            f"{text}; it needs READ on the {'group' if on_group else 'topic'}"
        )
    if isinstance(error, kafka_errors.UnsupportedVersionError):
        return UnsupportedBrokerError(text)
    if isinstance(error, kafka_errors.InvalidReceiveError):
        text += (
            "; a response this large is refused (receive_message_max_bytes): "
            "is there a Kafka broker at that port, and is security_protocol the listener's?"
        )
    return KafkaRebalanceError(text)


class PendingResponse:
    """A request in flight."""

    def __init__(self, future: Future, timeout_s: float) -> None:
        self._future = future
        #: When it is given up, by the monotonic clock.
        self.deadline = time.monotonic() + timeout_s
        self._done = threading.Event()
        self._done_at: float | None = None
        future.add_both(self._note)

    def _note(self, _: object) -> None:
        self._done_at = time.monotonic()
        self._done.set()

    @property
    def done_at(self) -> float:
        """When the answer or the error came, by the monotonic clock; now if there is none yet."""
        return time.monotonic() if self._done_at is None else self._done_at

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call back from the I/O thread once `wait` would return; at once if it would already."""
        self._future.add_both(lambda _: callback())

    def wait(self) -> Any:
        """Return the response; raises a KafkaError or OSError, the reason why there is none."""
        if not self._done.wait(max(0.0, self.deadline - time.monotonic())):
            raise kafka_errors.KafkaTimeoutError("the I/O thread does not answer")
        if self._future.exception is not None:
            raise self._future.exception
        return self._future.value


class _Coordinator(NamedTuple):
    """A broker, as kafka-python takes a coordinator from an answer."""

    node_id: int
    host: str
    port: int
    error_code: int = 0


class ClusterConnections:
    """Connections to the brokers of one cluster, opened as they are needed.

    The settings that kafka-python's connections do not use are ignored.
    """

    def __init__(self, client_config: Mapping[str, Any], receive_message_max_bytes: int) -> None:
        self.bootstrap_servers = client_config.get("bootstrap_servers")
        self._pid = os.getpid()
        self._net = NetworkSelector(
            **{key: client_config[key] for key in ("client_id",) if key in client_config}
        )
        self._manager = KafkaConnectionManager(
            self._net, **{**client_config, "receive_message_max_bytes": receive_message_max_bytes}
        )
        prepare_connections(self._manager)
        self._timeout_s = self._manager.config["request_timeout_ms"] / 1000 + _GRACE_S
        self._net.start()
        self.closed = False

    @property
    def usable(self) -> bool:
        """Whether the I/O thread is alive. A lost connection is opened again anyway."""
        thread = self._net._io_thread
        return not self.closed and thread is not None and thread.is_alive()

    def bootstrap(self, timeout_s: float, again: bool = False) -> None:
        """Find the cluster's brokers through ``bootstrap_servers``, unless that has been done.

        With ``again`` even then: none of the brokers found then answers now. Raises a KafkaError or
        OSError if none of the servers lets us in.
        """
        if self._manager.bootstrapped and not again:
            return
        future = self._manager.bootstrap_async(timeout_ms=timeout_s * 1000)
        PendingResponse(future, timeout_s + _GRACE_S).wait()

    def send(self, request: Any, node_id: int | None = None) -> PendingResponse:
        """Send a request, and return before its answer arrives.

        It is sent in the highest version that both sides and its ``max_version`` allow, by default
        to the least loaded broker.
        """
        future = self._manager.call_soon(self._manager.send, request, node_id)
        return PendingResponse(future, self._timeout_s)

    def send_soon(self, request: Any, node_id: int | str | None, done: Answered) -> None:
        """Send a request; for the I/O thread alone.

        Parameters
        ----------
        request : kafka.protocol.api_message.ApiMessage
            See `send`. It has a ``header`` as soon as a byte of it may have been sent.
        node_id : int or str, optional
            The broker, or what `add_coordinator` returned; by default the least loaded one.
        done : callable
            Called once, from the I/O thread, with the response and the error; one of both is None.
        """
        try:
            future = self._manager.send(request, node_id)
        except Exception as error:
            done(None, error)
            return
        future.add_callback(lambda response: done(response, None))
        future.add_errback(lambda error: done(None, error))

    def run_soon(self, function: Callable[[], None]) -> None:
        """Have the I/O thread call a function or method. From any thread.

        Raises
        ------
        RuntimeError or kafka.errors.KafkaError
            The I/O thread has ended.
        """
        self._net.call_soon_threadsafe(function)

    def run_later(self, delay_s: float, function: Callable[[], None]) -> None:
        """Have the I/O thread call a function after a while; for the I/O thread alone."""
        self._net.call_later(delay_s, function)

    def add_coordinator(self, node_id: int, host: str, port: int, key_type: int, key: str) -> str:
        """Return the name of a connection to this broker that only a coordinator's requests use.

        For the I/O thread alone. What it has to answer then does not queue behind records.
        """
        found = _Coordinator(node_id, host, port)
        return str(self._manager.cluster.add_coordinator(found, key_type, key))

    def broker_ids(self) -> list[int]:
        """The brokers of the last metadata; for the I/O thread, or after `bootstrap`."""
        return [broker.node_id for broker in self._manager.cluster.brokers()]

    def take_metadata(self, metadata: Any) -> None:
        """`update_brokers` for the I/O thread."""
        self._manager.cluster.update_metadata(metadata)

    def open_all(self) -> None:
        """Open a connection to every known broker that has none; failures are only logged."""
        brokers = [broker.node_id for broker in self._manager.cluster.brokers()]
        pending = {
            broker: self.send(MetadataRequest(topics=[], max_version=1), broker)
            for broker in brokers
        }
        for broker, response in pending.items():
            try:
                response.wait()
            except (kafka_errors.KafkaError, OSError) as error:
                log.info("broker %s cannot be reached yet: %r", broker, error)

    def update_brokers(self, metadata: Any) -> None:
        """Take the brokers' addresses from a MetadataResponse."""
        future = self._manager.call_soon(self._manager.cluster.update_metadata, metadata)
        PendingResponse(future, self._timeout_s).wait()

    def close(self) -> None:
        """Close every connection and end the I/O thread, in the process that opened them."""
        if self.closed or self._pid != os.getpid():
            return
        self.closed = True
        if self._net._io_thread is not None and self._net._io_thread.is_alive():
            future = self._manager.call_soon(self._manager.close)
            try:
                PendingResponse(future, 5.0).wait()
            except kafka_errors.KafkaError as error:
                log.debug("closing the connections to %s: %s", self.bootstrap_servers, error)
            self._net.stop(timeout_ms=5_000)
        self._net.close()


class _Cached:
    """Connections and the number of their users."""

    def __init__(self, connections: ClusterConnections, config: Mapping[str, Any]) -> None:
        self.connections = connections
        # Keeps the objects alive whose id() is in the key.
        self.config = config
        self.users = 0


# Invariants of the cache:
#  1. An entry is only ever touched by the process that made it. After a fork the child has copies
#     of the sockets and shares the selector with its parent: closing or collecting them would cut
#     the parent off. Entries of another process therefore stay where they are.
#  2. An entry with users is closed only at the process's end.
_cache: dict[tuple[int, Hashable], _Cached] = {}
_lock = threading.Lock()


def _new_lock() -> None:
    """Replace the lock: a forked child must not wait for one that a thread of its parent held."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_new_lock)


def acquire(client_config: Mapping[str, Any], fetch_max_bytes: int) -> ClusterConnections:
    """Return connections for a client configuration, kept from an earlier use if there are any.

    Give them back with `release`. ``fetch_max_bytes`` is the size of the largest fetch.
    """
    receive_max = max(
        MIN_RECEIVE_MESSAGE_MAX_BYTES,
        fetch_max_bytes + _RESPONSE_OVERHEAD,
        client_config.get("receive_message_max_bytes", 0),
    )
    key = (os.getpid(), (receive_max, _identity(client_config)))
    with _lock:
        cached = _cache.pop(key, None)
        if cached is None or not cached.connections.usable:
            connections = ClusterConnections(client_config, receive_max)
            cached = _Cached(connections, dict(client_config))
        # At the end, as the one used last.
        _cache[key] = cached
        cached.users += 1
        return cached.connections


def release(connections: ClusterConnections) -> None:
    """Give connections back. They stay open for the next use."""
    with _lock:
        own = [(key, cached) for key, cached in _cache.items() if key[0] == os.getpid()]
        for _, cached in own:
            if cached.connections is connections:
                cached.users -= 1
                break
        else:
            # Replaced in between, because its I/O thread had ended.
            connections.close()
        idle = [key for key, cached in own if cached.users <= 0]
        surplus = [_cache.pop(key) for key in idle[: max(0, len(idle) - _IDLE_CLUSTERS)]]
    for cached in surplus:
        cached.connections.close()


def close_all() -> None:
    """Close the connections of this process, even those in use."""
    with _lock:
        own = [_cache.pop(key) for key in list(_cache) if key[0] == os.getpid()]
    for cached in own:
        cached.connections.close()


atexit.register(close_all)


def _identity(value: Any) -> Hashable:
    """Return a key that is equal for equal configurations."""
    if value is None or isinstance(value, (str, bytes, int, float)):
        return (type(value), value)
    if isinstance(value, Mapping):
        return tuple(sorted((str(key), _identity(item)) for key, item in value.items()))
    if isinstance(value, (list, tuple)):
        return tuple(_identity(item) for item in value)
    try:
        # A token provider that came with a task: a new object each time, but the same provider.
        return pickle.dumps(value)
    except Exception:
        return id(value)
