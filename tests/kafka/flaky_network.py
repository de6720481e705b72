"""FlakyNetwork: a way to the brokers that a test can stall or cut for some clients alone."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from pyspark_kafka_rebalance.testing.processes.ports import ReservedPort


@dataclass(frozen=True)
class Delayed:
    """A request on its way: the client has lost the connection, the broker has not got it yet."""

    kinds: frozenset[int]
    #: It is sent, and its connection is gone for the client.
    is_sent: threading.Event = field(default_factory=threading.Event)
    _may_arrive: threading.Event = field(default_factory=threading.Event)
    _is_answered: threading.Event = field(default_factory=threading.Event)

    def arrive(self) -> None:
        """Let it through to the broker, and wait for its answer, which nobody receives."""
        self._may_arrive.set()
        assert self._is_answered.wait(30), "the broker gives no answer"

    def travel(self, client: socket.socket, broker: socket.socket, request: bytes) -> None:
        _shut(client)
        self.is_sent.set()
        self._may_arrive.wait()
        broker.sendall(request)

    def wait(self) -> None:
        """Until the broker has answered."""
        self._is_answered.wait()

    def answered(self) -> None:
        self._is_answered.set()

    def give_up(self) -> None:
        """At the end of the test: wait for nothing any more."""
        self._may_arrive.set()
        self._is_answered.set()


class FlakyNetwork:
    """A proxy (HTTP CONNECT, RFC 9110) for kafka-python's ``proxy_url``; a context manager.

    Not by way of the advertised listeners: those hold for every client of the broker.
    """

    def __init__(self) -> None:
        self._port = ReservedPort()
        self._flows = threading.Event()
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._forgotten: set[socket.socket] = set()
        self._names: dict[str, int] = {}
        self._left: set[int] = set()
        self._stop_at: tuple[frozenset[int], bool, threading.Event] | None = None
        self._delay: Delayed | None = None
        self._delayed: list[Delayed] = []
        self._threads: list[threading.Thread] = []
        self._listener: socket.socket | None = None
        self.mend()

    @property
    def url(self) -> str:
        """For ``proxy_url``."""
        return f"http://127.0.0.1:{self._port.number}"

    def stall(self) -> None:
        """Connections stay open, new ones are accepted, and nothing gets through any more."""
        self._flows.clear()

    def cut(self) -> None:
        """Break all connections and refuse new ones."""
        with self._lock:
            assert self._listener is not None, "cut already"
            _shut(self._listener)  # wakes the thread that accepts, which closes it
            self._listener = None
            for connection in self._sockets:
                _shut(connection)

    def stop_at(self, *request_types: type, answer: bool = False) -> threading.Event:
        """Stall at the next request of some kinds, or at the answer to one, which is held back too.

        The event says that it has come so far.
        """
        stopped = threading.Event()
        with self._lock:
            kinds = frozenset(request_type.API_KEY for request_type in request_types)
            self._stop_at = (kinds, answer, stopped)
        return stopped

    def name(self, host: str, port: int) -> None:
        """Have a host's name, with whatever port, lead to this port of this machine."""
        self._names[host] = port

    def leave(self, port: int, *, silently: bool = False) -> None:
        """As if nobody listened at this port any more; breaks the connections to others, too.

        Or as if the host had vanished, ``silently``: connections stay open, and are silent.
        """
        with self._lock:
            self._left.add(port)
            if silently:
                self._forgotten |= self._sockets
                return
            for connection in self._sockets:
                _shut(connection)

    def delay(self, *request_types: type) -> Delayed:
        """Delay the next request of some kinds beyond the end of its connection."""
        delayed = Delayed(frozenset(request_type.API_KEY for request_type in request_types))
        with self._lock:
            self._delay = delayed
            self._delayed.append(delayed)
        return delayed

    def forget(self) -> None:
        """As a host that vanishes: what is connected stays so, and nothing gets through for ever.

        New connections work.
        """
        with self._lock:
            self._forgotten |= self._sockets

    def mend(self) -> None:
        """Let everything through again; what a stall held back included."""
        with self._lock:
            if self._listener is None:
                self._listener = socket.create_server(("127.0.0.1", self._port.number))
                self._start(self._accept, self._listener)
        self._flows.set()

    def __enter__(self) -> FlakyNetwork:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._listener is not None:
            self.cut()
        self._flows.set()
        for delayed in self._delayed:
            delayed.give_up()
        for thread in self._threads:
            thread.join()
        self._port.release()

    def _start(self, run: Callable[..., None], *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=run, args=arguments)
        self._threads.append(thread)
        thread.start()
        return thread

    def _accept(self, listener: socket.socket) -> None:
        with listener, contextlib.suppress(OSError):  # the listener's end
            while True:
                client, _ = listener.accept()
                self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with self._kept(client), contextlib.suppress(OSError):
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += (received := client.recv(4096))
                if not received:
                    return
            self._flows.wait()
            host, port = head.split()[1].decode().rsplit(":", 1)
            to = self._names.get(host)
            target = (host, int(port)) if to is None else ("127.0.0.1", to)
            if target[1] in self._left:
                return
            with self._kept(socket.create_connection(target)) as broker:
                client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                asked: dict[bytes, int] = {}  # by correlation id
                delayed: dict[bytes, Delayed] = {}
                back = self._start(self._copy, broker, client, asked, delayed, True)
                self._copy(client, broker, asked, delayed, False)
                back.join()

    @contextlib.contextmanager
    def _kept(self, connection: socket.socket) -> Iterator[socket.socket]:
        """The connection, known to ``cut`` until it is closed."""
        with connection:
            with self._lock:
                self._sockets.add(connection)
                if self._listener is None:
                    _shut(connection)
            try:
                yield connection
            finally:
                with self._lock:
                    self._sockets.discard(connection)

    def _copy(
        self,
        source: socket.socket,
        target: socket.socket,
        asked: dict[bytes, int],
        delayed: dict[bytes, Delayed],
        back: bool,
    ) -> None:
        """Pass requests, or what comes ``back``, on; the frames of Kafka's protocol, one by one."""
        with contextlib.suppress(OSError), source.makefile("rb") as frames:
            while size := frames.read(4):
                frame = frames.read(int.from_bytes(size, "big"))
                correlation_id = frame[:4] if back else frame[4:8]
                if back:
                    api_key = asked.pop(correlation_id)
                else:
                    api_key = asked[correlation_id] = int.from_bytes(frame[:2], "big")
                    if (late := self._delay_if_awaited(api_key)) is not None:
                        delayed[correlation_id] = late
                        late.travel(source, target, size + frame)
                        late.wait()
                        return
                self._stop_if_awaited(api_key, back)
                self._flows.wait()
                if correlation_id in delayed:
                    delayed[correlation_id].answered()
                elif source not in self._forgotten and not delayed:
                    target.sendall(size + frame)
        if source not in self._forgotten:
            _shut(source)
            _shut(target)

    def _delay_if_awaited(self, api_key: int) -> Delayed | None:
        with self._lock:
            delay = self._delay
            if delay is None or api_key not in delay.kinds:
                return None
            self._delay = None
            return delay

    def _stop_if_awaited(self, api_key: int, answer: bool) -> None:
        with self._lock:
            if self._stop_at is None:
                return
            kinds, at_answer, stopped = self._stop_at
            if api_key not in kinds or answer != at_answer:
                return
            self._stop_at = None
            self._flows.clear()
        stopped.set()


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # not connected any more
        connection.shutdown(socket.SHUT_RDWR)
