"""The user's ``max_request_size`` is for the user's records; restart points need more room."""

from __future__ import annotations

import pyarrow as pa
import pytest
from in_memory_connections import in_memory

from pyspark_kafka_rebalance.errors import RecordTooLargeError
from pyspark_kafka_rebalance.producer.options import ProducerOptions
from pyspark_kafka_rebalance.producer.restart_points import MAX_BYTES, OVERHEAD_BYTES
from pyspark_kafka_rebalance.producer.transactions import Transactions

TOO_LARGE = 1_060_000  # above kafka-python's default, and a topic's


@pytest.mark.parametrize("given", [{}, {"max_request_size": 10_000}])
def test_a_group_leaves_the_users_bound_as_it_is(given: dict[str, int]) -> None:
    options = ProducerOptions.checked("g", 1, bootstrap_servers="h:1", **given)
    assert options.producer.get("max_request_size") == given.get("max_request_size")
    writer = Transactions(options)._writer
    assert writer._largest == {options.topic: MAX_BYTES + OVERHEAD_BYTES}


@pytest.mark.parametrize("given", [{}, {"max_request_size": 10_000}])
def test_a_record_above_the_bound_is_refused_and_a_restart_point_is_not(
    given: dict[str, int],
) -> None:
    with in_memory(2, **given) as (producer, connections):
        connections.partitions["points"] = 1
        producer.allow("points", MAX_BYTES + OVERHEAD_BYTES)
        with producer.transaction() as one:
            allowed = f"allowed: {given.get('max_request_size', 1_048_576):,}"
            with pytest.raises(RecordTooLargeError, match=allowed):
                one.send("t", b"x" * TOO_LARGE)
            with pytest.raises(RecordTooLargeError):
                one.send_batch("t", pa.table({"value": [b"x" * TOO_LARGE]}))
            one.send("t", b"x" * 9_000)
            point = one.send("points", b"x" * MAX_BYTES, b"g/0", partition=0, future=True)
            with pytest.raises(RecordTooLargeError):
                one.send("points", b"x" * (MAX_BYTES + OVERHEAD_BYTES))
        assert point is not None
        assert point.result(60).offset == 0


def test_a_larger_bound_is_for_restart_points_too() -> None:
    with in_memory(2, max_request_size=3_000_000) as (producer, _):
        producer.allow("t", MAX_BYTES + OVERHEAD_BYTES)
        with producer.transaction() as one:
            one.send("t", b"x" * 2_000_000)
