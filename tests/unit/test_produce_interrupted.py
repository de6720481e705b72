"""A signal's handler raises within a call of `Producer`: wherever it does, nothing waits for ever.

Ctrl-C ends a process, as a rule. The alarm of a watchdog does not: the application goes on with its
producer. That either works as before, or says at once that another producer is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pyarrow as pa
import pytest
from in_memory_connections import in_memory
from interruption import Interruption
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.errors import KafkaRebalanceError, TransactionAbortedError
from pyspark_kafka_rebalance.produce.producer import Producer, Transaction

ROWS = pa.table({"value": [b"x" * 100] * 8, "partition": [0, 1] * 4})


class TimeLimitError(Exception):
    """A watchdog's."""


def send(transaction: Transaction) -> None:
    for n in range(4):
        transaction.send("t", b"%d" % n + b"." * 100, partition=0, future=n == 2)


def send_rows(transaction: Transaction) -> None:
    transaction.send_batch("t", ROWS)


def goes_on(producer: Producer, transaction: Transaction) -> bool:
    """Whether the application can use its producer; False if that says that it cannot."""
    error = None
    try:
        with suppress(TransactionAbortedError, RuntimeError):  # it has ended, or is about to
            transaction.abort()
        with producer.transaction() as following:
            following.send("t", b"following", partition=0)
    except KafkaRebalanceError as raised:
        error = raised
    assert producer.has_failed == (error is not None)
    assert error is None or "TimeLimitError interrupted a call" in str(error)
    return error is None


@pytest.mark.parametrize(
    "call",
    [send, send_rows, Transaction.flush, Transaction.commit, Transaction.abort],
    ids=["send", "send_batch", "flush", "commit", "abort"],
)
def test_wherever_a_call_is_interrupted_the_next_ones_work_or_say_so(
    call: Callable[[Transaction], object],
) -> None:
    went_on = places = 0
    while True:
        with in_memory(2, batch_size=200, linger_ms=0, max_block_ms=10_000) as (made, brokers):
            transaction = made.transaction()
            transaction.send("t", b"before", partition=0)
            interruption = Interruption(places + 1, TimeLimitError)
            with suppress(TimeLimitError), interruption:
                call(transaction)
            if not interruption.raised:
                break
            places += 1
            if goes_on(made, transaction):
                went_on += 1
                leader = brokers.brokers.leader(TopicPartition("t", 0))
                assert leader.visible()[-1] == b"following", interruption.where
    assert places > 20
    assert went_on > 0
