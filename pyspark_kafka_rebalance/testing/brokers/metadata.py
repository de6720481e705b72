"""Ask one particular broker for its view of the cluster.

kafka-python's clients ask any broker; here the answer of each one matters.
Protocol: Metadata v4, which every broker since 0.11 has; Kafka 4 has none below (KIP-896).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Collection
from typing import Any

from kafka.protocol.metadata import MetadataRequest, MetadataResponse

_VERSION = 4


def ask_broker(port: int, topics: Collection[str], timeout_s: float = 5.0) -> Any:
    """Send one Metadata request to the broker at 127.0.0.1:``port``, its listener for clients.

    Without topics it asks only about the brokers. The timeout is for each step: connecting, and
    every piece of the answer. Raises OSError if the broker does not answer.
    """
    request = MetadataRequest[_VERSION](
        topics=[MetadataRequest.MetadataRequestTopic(name=topic) for topic in topics],
        allow_auto_topic_creation=False,
    )
    request.with_header(correlation_id=1)
    with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as connection:
        connection.sendall(request.encode(header=True, framed=True))
        (size,) = struct.unpack(">i", _receive(connection, 4))
        answer = _receive(connection, size)
    return MetadataResponse.decode(answer, version=_VERSION, header=True)


def _receive(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        piece = connection.recv(size - len(received))
        if not piece:
            raise ConnectionError("the broker closed the connection")
        received += piece
    return bytes(received)
