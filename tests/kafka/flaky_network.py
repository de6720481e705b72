"""FlakyNetwork: a way to the brokers that a test can stall or cut for one client alone."""

from __future__ import annotations

import contextlib
import socket
import threading


class FlakyNetwork:
    """A proxy (HTTP CONNECT, RFC 9110) for kafka-python's ``proxy_url``; a context manager.

    Not by way of the advertised listeners: those hold for every client of the broker.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._flows = threading.Event()
        self._flows.set()
        self._is_cut = False
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def url(self) -> str:
        """For ``proxy_url``."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def stall(self) -> None:
        """Connections stay open, new ones are accepted, and nothing gets through any more."""
        self._flows.clear()

    def cut(self) -> None:
        """Break all connections and refuse new ones."""
        with self._lock:
            self._is_cut = True
            for connection in self._sockets:
                _shut(connection)

    def mend(self) -> None:
        """Let everything through again; what a stall held back included."""
        with self._lock:
            self._is_cut = False
        self._flows.set()

    def __enter__(self) -> FlakyNetwork:
        return self

    def __exit__(self, *exception: object) -> None:
        self.cut()
        self._flows.set()
        _shut(self._listener)  # wakes the thread that accepts
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener's end
            while True:
                client, _ = self._listener.accept()
                if self._keep(client):
                    self._start(self._serve, client)

    def _keep(self, connection: socket.socket) -> bool:
        """Whether the connection may live; it is closed if not."""
        with self._lock:
            if not self._is_cut:
                self._sockets.add(connection)
                return True
        connection.close()
        return False

    def _start(self, run: object, *arguments: socket.socket) -> threading.Thread:
        thread = threading.Thread(target=run, args=arguments)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()
        return thread

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += (received := client.recv(4096))
                if not received:
                    break
            else:
                self._flows.wait()
                host, port = head.split()[1].decode().rsplit(":", 1)
                with socket.create_connection((host, int(port))) as broker:
                    if self._keep(broker):
                        client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                        back = threading.Thread(target=self._copy, args=(broker, client))
                        back.start()
                        self._copy(client, broker)
                        back.join()
                        self._forget(broker)
        self._forget(client)

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                self._flows.wait()
                target.sendall(data)
        _shut(source)
        _shut(target)

    def _forget(self, connection: socket.socket) -> None:
        with self._lock:
            self._sockets.discard(connection)


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # not connected any more
        connection.shutdown(socket.SHUT_RDWR)
