"""Responses read from a socket in large pieces, through kafka-python's own parser."""

from __future__ import annotations

import select
import socket
import threading
from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.errors import KafkaConnectionError
from kafka.net.transport import KafkaTCPTransport
from kafka.protocol.parser import KafkaProtocol

from pyspark_kafka_rebalance.transport.large_reads import _PIECE_BYTES, _WAITS_FOR_PIECES, _receive

#: Far longer than anything here takes: a read that is not told of fails instead of hanging.
PATIENCE_S = 10.0


class Parser(KafkaProtocol):
    """kafka-python's, which keeps each response's bytes instead of decoding them."""

    def __init__(self) -> None:
        super().__init__()
        self.responses: list[bytes] = []

    def _process_response(self, read_buffer) -> tuple[int, None]:
        self.responses.append(bytes(read_buffer.read()))
        return 0, None


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    ours.setblocking(False)
    return ours, theirs


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    pair = connected()
    yield pair
    for one in pair:
        one.close()


def frame(response: bytes) -> bytes:
    return len(response).to_bytes(4, "big") + response


def read_until(ours: socket.socket, parser: Parser, responses: int) -> Exception | None:
    """As kafka-python's transport does; the error that the connection ended with, if it did."""
    transport = SimpleNamespace(_sock=ours, _protocol=SimpleNamespace(parser=parser))
    while len(parser.responses) < responses:
        readable, _, _ = select.select([ours], [], [], PATIENCE_S)
        assert readable, f"not told of after {len(parser.responses)} responses"
        data, error = _receive(transport)
        parser.receive_bytes(data)
        if error is not None:
            return error
    return None


SIZES = st.one_of(
    st.integers(4, 200),
    st.integers(16 * 1024 - 8, 16 * 1024 + 8),
    st.integers(_PIECE_BYTES - 8, _PIECE_BYTES + 20_000),
)


@settings(deadline=None, max_examples=50)
@given(st.lists(SIZES, min_size=1, max_size=5), st.lists(st.integers(1, 300_000), max_size=10))
def test_responses_of_any_size_sent_in_any_pieces_arrive_whole(
    sizes: list[int], pieces: list[int]
) -> None:
    """Also a small one behind a large one, which no longer fills the piece that was waited for."""
    ours, theirs = connected()
    responses = [bytes([65 + number]) * size for number, size in enumerate(sizes)]
    sent, cuts = b"".join(map(frame, responses)), deque(pieces)

    def send() -> None:
        at = 0
        while at < len(sent):
            piece = cuts.popleft() if cuts else len(sent)
            theirs.sendall(sent[at : at + piece])
            at += piece

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    parser = Parser()
    try:
        assert read_until(ours, parser, len(responses)) is None
        assert parser.responses == responses
    finally:
        ours.close()
        sender.join(PATIENCE_S)
        theirs.close()


@pytest.mark.skipif(not _WAITS_FOR_PIECES, reason="the selector does not heed SO_RCVLOWAT here")
def test_a_large_response_is_read_when_there_is_much_of_it(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = sockets
    parser = Parser()
    transport = SimpleNamespace(_sock=ours, _protocol=SimpleNamespace(parser=parser))
    response = b"A" * 500_000
    # Its length with a first part, and a second part: from then on the size is known.
    for at in (0, 1000):
        theirs.sendall(frame(response)[at : at + 1000])
        assert select.select([ours], [], [], PATIENCE_S)[0]
        parser.receive_bytes(_receive(transport)[0])
    theirs.sendall(frame(response)[2000:3000])
    assert select.select([ours], [], [], 0) == ([], [], [])
    theirs.sendall(frame(response)[3000:])
    assert read_until(ours, parser, 1) is None
    assert parser.responses == [response]


def test_what_came_before_the_end_of_a_connection_is_not_lost(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = sockets
    parser = Parser()
    theirs.sendall(frame(b"a refused login") + frame(b"B" * 100_000)[:50_000])
    theirs.close()
    error = read_until(ours, parser, 2)
    assert parser.responses == [b"a refused login"]
    assert "disconnected" in str(error)


def test_a_transport_that_was_closed_before_its_turn_is_at_its_end(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    """It was told of something to read, and closed by what ran before: no error of its own."""
    ours, _ = sockets
    transport = KafkaTCPTransport(SimpleNamespace(unregister_event=lambda *_: None), ours)
    lost: list[Exception | None] = []
    transport.set_protocol(SimpleNamespace(parser=Parser(), connection_lost=lost.append))
    transport.close()
    data, error = _receive(transport)
    assert data == b""
    assert isinstance(error, KafkaConnectionError)
    transport.abort(error)  # as kafka-python does with it
    assert lost == [None], "the connection learns of its end once"
