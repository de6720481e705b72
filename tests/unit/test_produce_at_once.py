"""Records that are appended at once: what they become, and when they are not."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pyspark_kafka_rebalance.errors import RecordTooLargeError
from pyspark_kafka_rebalance.produce.encoder import compiled_encoder
from pyspark_kafka_rebalance.produce.encoder.at_once import (
    PythonAppender,
    PythonRoom,
    Room,
    new_room,
)
from pyspark_kafka_rebalance.produce.encoder.compiled import compiled
from pyspark_kafka_rebalance.produce.encoder.settings import EncoderSettings
from pyspark_kafka_rebalance.produce.open_batches import OpenBatches

SETTINGS = EncoderSettings(batch_bytes=1_000, batch_records=20, max_request_bytes=5_000)
HANDLE = 7

needs_compiled = pytest.mark.skipif(compiled is None, reason="the encoder is not compiled")


class World:
    """One topic whose records may come at once."""

    def __init__(self, partitions: int = 3) -> None:
        self.lock = threading.Lock()
        self.room: Room = new_room(10_000)
        self.room.accepts = HANDLE
        self.room.locked = self.lock.locked
        self.batches = OpenBatches("t", partitions, SETTINGS, list(range(partitions)), self.room)
        self.first: list[tuple[int, Any]] = []

    def open(self, *partitions: int) -> None:
        """Have a record in each of these, and the time of the first."""
        for partition in partitions:
            self.batches.append(partition, None, b"first", None, 1)
            self.batches.opened_at = 0.0
            self.batches.append(partition, None, b"second", None, 1)

    def at_once(
        self,
        value: Any = b"value",
        key: Any = None,
        headers: Any = None,
        partition: Any = 0,
        timestamp_ms: Any = 5,
        handle: Any = HANDLE,
    ) -> bool:
        return self.batches.append_at_once(handle, key, value, headers, partition, timestamp_ms)


RECORDS: list[tuple[Any, ...]] = [
    (b"v", None, None, 0, 5),
    (b"", b"", [], 1, 0),
    (None, b"key", [("a", b"1"), ("b", None)], 2, -1),
    (b"x" * 300, None, ((b"bytes", b""),), 0, 2**62),
]


@needs_compiled
@pytest.mark.parametrize("record", RECORDS)
def test_they_are_the_same_bytes_as_those_that_wait(record: tuple[Any, ...]) -> None:
    quick, slow = World(), World()
    value, key, headers, partition, timestamp_ms = record
    for world in (quick, slow):
        world.open(partition)
    assert quick.at_once(value, key, headers, partition, timestamp_ms)
    slow.batches.append(partition, key, value, headers, timestamp_ms)
    assert quick.batches.size == slow.batches.size
    found = []
    for world in (quick, slow):
        world.batches.close()
        found.append([(b.partition, bytes(b.data), b.records) for b in world.batches.take()])
        assert world.batches.size == 0
    assert found[0] == found[1]


@needs_compiled
def test_what_they_take_counts_in_the_room_and_the_topic() -> None:
    world = World()
    world.open(0, 1)
    before, used = world.batches.size, world.room.used
    assert world.at_once(b"x" * 100)
    grown = world.batches.size - before
    assert 100 < grown < 120
    assert world.room.used - used == grown


@needs_compiled
def test_a_key_and_the_sticky_partition_choose_as_ever() -> None:
    from pyspark_kafka_rebalance.produce.encoder.partitioner import partition_of_key

    world = World()
    world.open(0, 1, 2)
    sticky = world.batches.sticky.partition
    assert world.at_once(partition=None)
    assert world.at_once(key=b"some key", partition=None)
    world.batches.close()
    records = {b.partition: b.records for b in world.batches.take()}
    expected = dict.fromkeys(range(3), 2)
    expected[sticky] += 1
    expected[partition_of_key(b"some key", 3)] += 1
    assert records == expected


@needs_compiled
def test_the_sticky_partition_is_the_current_one() -> None:
    world = World()
    world.open(0, 1, 2)
    for _ in range(200):
        sticky = world.batches.sticky.partition
        before = len(world.batches._builders[sticky])
        if world.at_once(partition=None, value=b"x" * 90):
            assert len(world.batches._builders[sticky]) == before + 1
        else:  # full
            world.batches.append(sticky, None, b"x" * 90, None, 5)
            assert world.batches.sticky.partition != sticky
        world.room.used = 0
    assert len(world.batches.take()) > 3


@needs_compiled
def test_none_comes_at_once_where_there_is_more_to_do() -> None:
    world = World()
    assert not world.at_once(), "no batch is open"
    world.open(0)
    assert world.at_once()
    assert not world.at_once(partition=1), "nothing is known of its batch"
    with world.lock:
        assert not world.at_once(), "another thread has the lock"
    assert not world.at_once(handle=HANDLE + 1), "another transaction"
    world.room.accepts = -1
    assert not world.at_once(), "no transaction"
    assert not world.at_once(handle="x"), "-1 with an error"
    world.room.accepts = HANDLE
    world.room.used = world.room.most
    assert not world.at_once(), "no room"
    world.room.used = 0
    assert not world.at_once(b"x" * 950), "the batch is full"
    assert world.at_once()
    world.room.locked = None
    assert not world.at_once(), "nobody knows of the lock"


@needs_compiled
def test_none_comes_at_once_while_rows_are_open_or_all_is_closed() -> None:
    import pyarrow as pa

    world = World()
    world.open(0)
    world.batches.close_for_rows()
    world.batches.begin_rows()
    assert not world.at_once(), "rows are being encoded"
    full = world.batches.encode(pa.table({"value": [b"row"], "partition": [0]}), 5)
    assert not world.at_once()
    world.batches.end_rows(full, keep=True)
    assert not world.at_once(), "rows are before it"
    world.batches.append(0, None, b"closes them", None, 5)
    assert world.at_once()
    world.batches.close()
    assert not world.at_once(), "the time of the first record is to be noted"


@needs_compiled
def test_none_goes_to_a_batch_that_nobody_will_close() -> None:
    world = World()
    world.open(0, 1)
    world.batches.close_records(but={1})
    assert world.at_once(partition=0), "a batch may be empty"
    world.batches.close_records(but={1})
    world.batches.limit(500)
    assert not world.at_once(partition=0), "its builder has the old limit"
    assert world.at_once(partition=1), "what is open goes on"
    world.batches.close_records()
    assert not world.at_once(partition=1), "but not after that"
    world.batches.append(0, None, b"first", None, 1)
    assert not world.at_once(b"x" * 480), "the new limit"
    world.batches.close()
    assert sum(batch.records for batch in world.batches.take()) == 4 + 3
    assert world.batches.size == 0


@needs_compiled
@pytest.mark.parametrize(
    "wrong",
    [
        {"value": "text"},
        {"value": bytearray(b"its owner might run Python")},
        {"key": 5},
        {"headers": 5},
        {"headers": [("a", "b")]},
        {"headers": [5]},
        {"partition": 3},
        {"partition": -1},
        {"partition": 2**70},
        {"partition": "0"},
        {"partition": True},
        {"partition": 0.0},
        {"timestamp_ms": 2**63},
        {"timestamp_ms": 1.5},
        {"value": b"x" * 6_000},
    ],
)
def test_what_is_wrong_or_odd_is_left_to_the_other_way(wrong: dict[str, Any]) -> None:
    world = World()
    world.open(0)
    before = world.batches.size
    assert not world.at_once(**wrong)
    assert world.batches.size == before
    assert world.at_once(), "nothing is broken"


@needs_compiled
def test_the_other_way_says_what_is_wrong() -> None:
    world = World()
    world.open(0)
    with pytest.raises(RecordTooLargeError):
        world.batches.append(0, None, b"x" * 6_000, None, 5)
    with pytest.raises(TypeError):
        world.batches.append(0, None, "text", None, 5)  # type: ignore[arg-type]


@needs_compiled
def test_refuses_what_is_not_a_batch() -> None:
    assert compiled is not None
    appender = compiled.Appender(new_room(5))
    with pytest.raises(TypeError):
        appender.know(0, object())
    with pytest.raises(ValueError, match="out of range"):
        appender.know(-1, compiled_encoder.new_records(SETTINGS, print))
    with pytest.raises(TypeError):
        compiled.Appender(object())
    with pytest.raises(TypeError, match="6 arguments"):
        appender.append(1)


@needs_compiled
def test_a_batch_outlives_the_builder_that_made_it() -> None:
    assert compiled is not None
    appender = compiled.Appender(new_room(5))
    for _ in range(3):
        appender.know(40, compiled_encoder.new_records(SETTINGS, print))
    assert appender.open() == []


def test_in_python_no_record_comes_at_once() -> None:
    room = PythonRoom(10)
    room.locked = lambda: False
    appender = PythonAppender(room)
    records = compiled_encoder.new_records(SETTINGS, print)
    appender.know(3, records)
    assert appender.open() == []
    records.append(None, b"v", None, 1)
    assert appender.open() == [3]
    appender.ready = True
    assert not appender.append(0, None, b"v", None, 3, 1)
