"""Sockets read in large pieces, for kafka-python's connections.

kafka-python reads a socket in pieces of 4 KiB and copies a response four times on its way to the
decoder, which took most of the time of reading. Here a large one is read to where it stays. And
kafka-python drops a response behind which the broker has closed the connection already. Touches
its private names: the sockets are made for both rooms, ``fetch/`` and ``consumer/``, here alone.
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

#: What begins a response is read in pieces of this size, a TLS record's: it is copied twice.
_RECEIVE_BYTES = 16 * 1024

#: Of a large response so much is waited for before it is read on. kafka-python's loop costs more
#: than the read itself of what a broker sends at once.
_PIECE_BYTES = 2 * 1024 * 1024

#: Whether the selector heeds SO_RCVLOWAT: Linux, see socket(7).
_WAITS_FOR_PIECES = sys.platform == "linux"


def read_in_large_pieces(manager: KafkaConnectionManager) -> None:
    """Have the connections that this manager opens from now on read that way; TLS as well."""
    build_transport = manager._build_transport

    async def build(*arguments: Any, **named: Any) -> Any:
        transport = await build_transport(*arguments, **named)
        transport._sock_recv = partial(_receive, transport)
        return transport

    manager._build_transport = build


class _Frame(KafkaBytes):  # type: ignore[misc]
    """A response that is read where it is. The decoder asks for the rest behind the header."""

    def read(self, nbytes: int | None = None) -> Any:
        if nbytes is not None:
            return super().read(nbytes)
        rest = memoryview(self)[self.tell() :]
        self.seek(len(self))
        return rest


def _receive(transport: KafkaTCPTransport) -> tuple[bytes, Exception | None]:
    """What is there, and the error that nothing more will come after; as ``_sock_recv``."""
    connected, protocol = transport._sock, transport._protocol
    if connected is None or protocol is None:  # closed by what ran since there was this to read
        return b"", kafka_errors.KafkaConnectionError("the connection is closed")
    parser = protocol.parser
    received = b""
    encrypted = isinstance(connected, ssl.SSLSocket)
    try:
        while True:
            missing = len(parser._rbuffer) - parser._rbuffer.tell() if parser._receiving else 0
            # The last byte goes through the parser, which finds the response whole then.
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
                # First what came before the end: a refused login is answered and closed at once.
                if received:
                    return received, None
                return received, kafka_errors.KafkaConnectionError("socket disconnected")
            # What TLS has decrypted no selector tells of: there all of it is taken.
            if not encrypted:
                return received, None
    except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return received, None
    except OSError as error:
        if received:  # met again by the next call, or then it is the end
            return received, None
        return received, kafka_errors.KafkaConnectionError(error)
