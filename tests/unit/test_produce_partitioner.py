"""Java's hash of keys, and the partition of records without one."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as of_kafka_python

from pyspark_kafka_rebalance.produce.encoder.partitioner import (
    StickyPartition,
    murmur2,
    murmur2_in_python,
    partition_of_key,
)

#: Kafka's own, in its UtilsTest.testMurmur2.
JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("form", [murmur2, murmur2_in_python])
@pytest.mark.parametrize(("key", "expected"), JAVA.items())
def test_the_hash_is_that_of_java(form: object, key: bytes, expected: int) -> None:
    assert callable(form)
    assert form(key) == expected


@given(key=st.binary(max_size=40), partitions=st.integers(1, 2**31 - 1))
def test_keys_go_where_kafka_python_sends_them(key: bytes, partitions: int) -> None:
    expected = of_kafka_python(key)
    assert murmur2(key) & 0xFFFFFFFF == murmur2_in_python(key) & 0xFFFFFFFF == expected
    assert partition_of_key(key, partitions) == (expected & 0x7FFFFFFF) % partitions


def test_the_sticky_partitions_take_turns_in_a_random_order() -> None:
    orders = set()
    for seed in range(50):
        sticky = StickyPartition(3, shuffle=random.Random(seed))
        turns = []
        for _ in range(6):
            turns.append(sticky.partition)
            sticky.closed(sticky.partition)
        assert turns[:3] == turns[3:]
        orders.add(tuple(turns[:3]))
    assert len(orders) == 6


def test_another_partition_that_is_closed_changes_nothing() -> None:
    sticky = StickyPartition(3)
    before = sticky.partition
    sticky.closed((before + 1) % 3)
    assert sticky.partition == before


def test_those_without_a_leader_are_left_out_while_others_have_one() -> None:
    sticky = StickyPartition(4, [1, 3])
    turns: Counter[int] = Counter()
    for _ in range(10):
        turns[sticky.partition] += 1
        sticky.closed(sticky.partition)
    assert turns == {1: 5, 3: 5}
    sticky.set_partitions(4, [])
    assert sorted(sticky.order) == [0, 1, 2, 3]


@pytest.mark.parametrize(("partitions", "available"), [(0, None), (2, [2]), (2, [-1])])
def test_partitions_that_cannot_be(partitions: int, available: list[int] | None) -> None:
    with pytest.raises(ValueError, match="partitions"):
        StickyPartition(partitions, available)
