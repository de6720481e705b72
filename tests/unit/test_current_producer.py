"""CurrentProducer: which producer the next transaction begins with."""

from __future__ import annotations

import pytest

from pyspark_kafka_rebalance.producer.current_producer import CurrentProducer


class Producer:
    broken = unanswered = closed = False

    def close(self, timeout_s: float) -> None:
        self.closed = True


@pytest.mark.parametrize("reason", ["broken", "unanswered"])
def test_one_whose_requests_may_still_arrive_begins_no_transaction(reason: str) -> None:
    made: list[Producer] = []

    def connect() -> Producer:
        made.append(Producer())
        return made[-1]

    current = CurrentProducer(connect, "g")  # type: ignore[arg-type]
    first = current.ready()
    assert current.ready() is first
    setattr(first, reason, True)
    second = current.ready()
    assert (second is first, len(made), made[0].closed) == (False, 2, True)
    assert current.ready() is second
