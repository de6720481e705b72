"""Which request goes where, and when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.produce.outbox import Backoff, Outbox, Parcel
from pyspark_kafka_rebalance.produce.requests import (
    EndTxn,
    Fetch,
    FindCoordinator,
    Produce,
    Request,
)

ANY = range(10_000)  # all numbers are outstanding


def at(partition: int) -> TopicPartition:
    return TopicPartition("t", partition)


def produce(number: int, partition: int = 0, attempt: int = 0, transaction: int = 1) -> Produce:
    return Produce(number, 12, attempt, None, transaction, "id", 7, 0, at(partition), number, 0, 1)


def end(number: int, attempt: int = 0) -> EndTxn:
    return EndTxn(number, 5, attempt, 3, 1, "id", 7, 0, committed=True)


class Leaders(dict[TopicPartition, int]):
    def of(self, partition: TopicPartition) -> int | None:
        return self.get(partition)


@pytest.fixture
def leaders() -> Leaders:
    return Leaders({at(0): 1, at(1): 1, at(2): 2})


@pytest.fixture
def outbox(leaders: Leaders) -> Outbox:
    return Outbox(leaders.of, lambda request: 400, max_bytes=1_000, max_in_flight=2)


def loads(parcels: list[Parcel]) -> list[tuple[int | None, list[int]]]:
    return [(parcel.node, [request.number for request in parcel.requests]) for parcel in parcels]


def test_batches_for_one_leader_share_a_message(outbox: Outbox) -> None:
    outbox.add([produce(1, 0), produce(2, 1), produce(3, 2)], 0)
    assert loads(outbox.take(0, ANY)) == [(1, [1, 2]), (2, [3])]


def test_a_message_has_one_batch_of_a_partition(outbox: Outbox) -> None:
    outbox.add([produce(1), produce(2)], 0)
    assert loads(outbox.take(0, ANY)) == [(1, [1]), (1, [2])]


def test_a_message_is_bounded_in_bytes(leaders: Leaders) -> None:
    outbox = Outbox(leaders.of, lambda request: 400, max_bytes=500)
    outbox.add([produce(1, 0), produce(2, 1)], 0)
    assert loads(outbox.take(0, ANY)) == [(1, [1]), (1, [2])]


def test_a_broker_has_so_many_messages_at_most(outbox: Outbox) -> None:
    outbox.add([produce(n) for n in range(1, 5)], 0)
    first, _ = outbox.take(0, ANY)
    assert outbox.take(0, ANY) == []
    outbox.done(first)
    assert loads(outbox.take(0, ANY)) == [(1, [3])]


def test_what_is_sent_again_waits_and_so_does_what_is_behind_it(outbox: Outbox) -> None:
    outbox.add([produce(3, attempt=1), produce(4)], 0)
    assert outbox.take(0, ANY) == []
    wake_at = outbox.wake_at()
    assert wake_at == pytest.approx(0.02)
    assert loads(outbox.take(wake_at, ANY)) == [(1, [3]), (1, [4])]
    assert outbox.wake_at() is None


def test_an_earlier_batch_that_comes_back_goes_first(outbox: Outbox) -> None:
    outbox.add([produce(2)], 0)
    outbox.add([produce(1, attempt=1)], 0)
    assert loads(outbox.take(1, ANY)) == [(1, [1]), (1, [2])]


def test_a_batch_waits_for_its_leader(outbox: Outbox, leaders: Leaders) -> None:
    del leaders[at(0)]
    outbox.add([produce(1, 0), produce(2, 1)], 0)
    assert loads(outbox.take(0, ANY)) == [(1, [2])]
    leaders[at(0)] = 2
    assert loads(outbox.take(0, ANY)) == [(2, [1])]


def test_partitions_take_turns(leaders: Leaders) -> None:
    outbox = Outbox(leaders.of, lambda request: 900, max_bytes=1_000, max_in_flight=1)
    outbox.add([produce(1, 0), produce(2, 0), produce(3, 1)], 0)
    (first,) = outbox.take(0, ANY)
    outbox.done(first)
    (second,) = outbox.take(0, ANY)
    assert loads([first, second]) == [(1, [1]), (1, [3])]


def test_other_requests_go_to_the_broker_that_they_name(outbox: Outbox) -> None:
    found = FindCoordinator(1, 5, 0, None, None, "id", 1)
    question = Fetch(3, 12, 0, None, 1, at(2), 5)
    outbox.add([found, end(2), question], 0)
    assert loads(outbox.take(0, ANY)) == [(None, [1]), (3, [2]), (2, [3])]


def test_what_is_given_up_is_not_sent(outbox: Outbox) -> None:
    outbox.add([produce(1), produce(2), end(3)], 0)
    assert loads(outbox.take(0, {2})) == [(1, [2])]
    assert outbox.take(0, ANY) == []


def test_what_a_transaction_waits_for_is_given_back_but_its_end(outbox: Outbox) -> None:
    found = FindCoordinator(1, 5, 1, None, None, "id", 1)
    kept: list[Request] = [found, end(2, attempt=1)]
    outbox.add([*kept, produce(3), Fetch(4, 12, 1, None, 1, at(2), 5)], 0)
    assert [request.number for request in outbox.recall()] == [4, 3]
    assert loads(outbox.take(9, ANY)) == [(None, [1]), (3, [2])]


def test_waits_grow_up_to_a_bound() -> None:
    waits = [Backoff(0.5).wait_s(attempt) for attempt in range(8)]
    assert waits == pytest.approx([0, 0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5])
    assert Backoff(1.0).wait_s(10**6) == 1.0


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.floats(0, 0.1)), max_size=40),
    st.integers(1, 3),
)
def test_a_partitions_batches_leave_in_order(
    added: list[tuple[int, int, float]], in_flight: int
) -> None:
    """However they come back, and whoever answers when."""
    leaders = Leaders({at(0): 1, at(1): 1, at(2): 2})
    outbox = Outbox(leaders.of, lambda request: 1, max_bytes=2, max_in_flight=in_flight)
    now = 0.0
    for number, (partition, attempt, _) in enumerate(added):
        outbox.add([produce(number, partition, attempt)], now)
    left: dict[int, list[int]] = {0: [], 1: [], 2: []}
    flying: list[Parcel] = []
    for _ in range(1_000):
        taken = outbox.take(now, ANY)
        for parcel in taken:
            for request in parcel.requests:
                assert isinstance(request, Produce)
                left[request.partition.partition].append(request.batch)
        flying += taken
        assert all(sum(parcel.node == node for parcel in flying) <= in_flight for node in (1, 2))
        if flying:
            outbox.done(flying.pop(0))
        elif (wake_at := outbox.wake_at()) is not None:
            assert wake_at > now
            now = wake_at
        else:
            break
    assert sum(map(len, left.values())) == len(added)
    assert all(batches == sorted(batches) for batches in left.values())
