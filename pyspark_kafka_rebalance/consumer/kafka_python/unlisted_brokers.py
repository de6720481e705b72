"""Leaders that the metadata name but do not list: requests to them fail instead of raising.

While a broker shuts down, metadata may name it as a leader without listing it as a broker. As of
kafka-python 3.0.12, ``send`` then raises ``UnknownBrokerIdError`` instead of returning a future
that fails. During a poll, that loses the records that the poll has taken from the buffer: the
positions are already past them. The broker's fetch also stays in flight for ever, so nothing is
fetched from it when it is back.
"""

from __future__ import annotations

from typing import Any

from kafka import errors as kafka_errors
from kafka.future import Future
from kafka.net.manager import KafkaConnectionManager


def fail_unlisted_brokers(manager: KafkaConnectionManager) -> None:
    """Fail requests to such brokers as if these were unreachable, and request new metadata."""
    send = manager.send

    def send_or_fail(
        request: Any, node_id: Any = None, request_timeout_ms: float | None = None
    ) -> Future:
        try:
            return send(request, node_id=node_id, request_timeout_ms=request_timeout_ms)
        except kafka_errors.UnknownBrokerIdError as error:
            manager.cluster.request_update()
            return Future().failure(kafka_errors.NodeNotReadyError(*error.args))

    manager.send = send_or_fail
