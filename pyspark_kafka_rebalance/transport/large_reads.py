"""Sockets read in large pieces, for kafka-python's connections.

kafka-python reads a socket in pieces of 4 KiB and copies a response four times on its way to the
decoder, which took most of the time of reading. Here a large response is read straight to where it
stays. kafka-python also drops a response if the broker has already closed the connection after it;
here it is kept. This module touches private names, because only here are sockets set up for both
``fetch/`` and ``consumer/``.
"""

from __future__ import annotations

import socket
import ssl
import sys
from functools import partial
from typing import Any

from kafka import errors as kafka_errors
from kafka.net.manager import KafkaConnectionManager
from kafka.net.transport import KafkaTCPTransport
from kafka.protocol.frame import KafkaBytes

from .kafka_python_version import require_names

require_names({KafkaConnectionManager: ("_build_transport",), KafkaTCPTransport: ("_sock_recv",)})

#: The start of a response is read in pieces of this size, a TLS record's, and copied twice.
_RECEIVE_BYTES = 16 * 1024

#: Wait for this much of a large response before reading more: for data that a broker sends at once,
#: kafka-python's loop costs more than the read itself.
_PIECE_BYTES = 2 * 1024 * 1024

#: Whether the selector honours SO_RCVLOWAT: on Linux, see socket(7).
_WAITS_FOR_PIECES = sys.platform == "linux"


def read_in_large_pieces(manager: KafkaConnectionManager) -> None:
    """Let connections that this manager opens from now on read in large pieces, TLS included."""
    build_transport = manager._build_transport

    async def build(*arguments: Any, **named: Any) -> Any:
        transport = await build_transport(*arguments, **named)
        transport._sock_recv = partial(_receive, transport)
        return transport

    manager._build_transport = build


class _Frame(KafkaBytes):  # type: ignore[misc]
    """A response that is read in place. The decoder requests the part after the header."""

    def read(self, nbytes: int | None = None) -> Any:
        if nbytes is not None:
            return super().read(nbytes)
        rest = memoryview(self)[self.tell() :]
        self.seek(len(self))
        return rest


def _receive(transport: KafkaTCPTransport) -> tuple[bytes, Exception | None]:
    """Return the data that have arrived, and the error if no more will; as ``_sock_recv`` does."""
    connected, protocol = transport._sock, transport._protocol
    if connected is None or protocol is None:  # closed after it became readable
        return b"", kafka_errors.KafkaConnectionError("the connection is closed")
    parser = protocol.parser
    received = b""
    encrypted = isinstance(connected, ssl.SSLSocket)
    try:
        while True:
            missing = len(parser._rbuffer) - parser._rbuffer.tell() if parser._receiving else 0
            # The last byte goes through the parser, which then finds the response complete.
            if missing > 1 and not received:
                parser._rbuffer.__class__ = _Frame
                at = parser._rbuffer.tell()
                with memoryview(parser._rbuffer) as frame:
                    size = connected.recv_into(frame[at : at + missing - 1])
                parser._rbuffer.seek(at + size)
                left = missing - 1 - size
                if _WAITS_FOR_PIECES and not encrypted:
                    lowest = max(1, min(left, _PIECE_BYTES))
                    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, lowest)
                if not left:
                    continue
            else:
                data = connected.recv(_RECEIVE_BYTES)
                size = len(data)
                received += data
            if not size:
                # First the data before the end: a broker answers a bad login, then closes at once.
                if received:
                    return received, None
                return received, kafka_errors.KafkaConnectionError("socket disconnected")
            # No selector reports data that TLS has already decrypted, so take them all.
            if not encrypted:
                return received, None
    except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return received, None
    except OSError as error:
        if received:  # the next call runs into it again, or into the end
            return received, None
        return received, kafka_errors.KafkaConnectionError(error)
