"""Partitions and offsets of a wrong type are refused in the call, and nothing is lost by that.

pandas turns offsets into floats; a request with one cannot be encoded. If that were found on the
I/O loop only, the membership would end.
"""

from __future__ import annotations

import decimal
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy
import pytest
from kafka import KafkaConsumer
from kafka.structs import OffsetAndMetadata, TopicPartition
from model_log import PartitionLog
from simulated_kafka import TOPIC, Broker, World

from pyspark_kafka_rebalance import DeferredRevokeConsumer

P = TopicPartition(TOPIC, 0)
NO_INTEGERS = [3.0, numpy.float64(3), decimal.Decimal(3), "3", b"3", None, True, numpy.bool_(True)]
OUT_OF_RANGE = [2**63, -1, -(2**63), numpy.int64(-1)]
NO_PARTITIONS = [
    (TOPIC, 0),
    TOPIC,
    None,
    0,
    TopicPartition(TOPIC, 0.0),
    TopicPartition(TOPIC, "0"),
    TopicPartition(TOPIC, None),
    TopicPartition(b"t", 0),
    TopicPartition(TOPIC, True),
]
#: Kafka's partition numbers are signed 32-bit integers.
NO_NUMBERS_OF_PARTITIONS = [
    TopicPartition(TOPIC, -1),
    TopicPartition(TOPIC, 2**31),
    TopicPartition(TOPIC, numpy.int64(-1)),
]
Consumer = DeferredRevokeConsumer

TAKE_OFFSETS: dict[str, Callable[[Consumer, Any], Any]] = {
    "commit_processed": lambda c, offset: c.commit_processed({P: offset}),
    "processed": lambda c, offset: c.processed(P, 0, offset),
    "commit": lambda c, offset: c.commit({P: offset}),
    "commit with metadata": lambda c, offset: c.commit({P: OffsetAndMetadata(offset, "", -1)}),
    "commit_async": lambda c, offset: c.commit_async({P: offset}),
    "seek": lambda c, offset: c.seek(P, offset),
    "offsets_for_times": lambda c, offset: c.offsets_for_times({P: offset}),
}
TAKE_PARTITIONS: dict[str, Callable[[Consumer, Any], Any]] = {
    "commit_processed": lambda c, p: c.commit_processed({p: 1}),
    "processed": lambda c, p: c.processed(p, 0),
    "commit": lambda c, p: c.commit({p: 1}),
    "commit_async": lambda c, p: c.commit_async({p: 1}),
    "seek": lambda c, p: c.seek(p, 1),
    "seek_to_beginning": lambda c, p: c.seek_to_beginning(p),
    "seek_to_end": lambda c, p: c.seek_to_end(p),
    "pause": lambda c, p: c.pause(p),
    "resume": lambda c, p: c.resume(p),
    "position": lambda c, p: c.position(p),
    "committed": lambda c, p: c.committed(p),
    "committed_offsets": lambda c, p: c.committed_offsets([p], 1_000),
    "beginning_offsets": lambda c, p: c.beginning_offsets([p]),
    "end_offsets": lambda c, p: c.end_offsets([p]),
    "offsets_for_times": lambda c, p: c.offsets_for_times({p: 1}),
    "highwater": lambda c, p: c.highwater(p),
    "current_lag": lambda c, p: c.current_lag(p),
    "catch_up_lag": lambda c, p: c.catch_up_lag(p),
    "acknowledged": lambda c, p: c.acknowledged(p),
    "delay_revoke": lambda c, p: c.delay_revoke([p]),
    "forget_commits": lambda c, p: c.forget_commits([p]),
    "commit_remaining": lambda c, p: c.commit_remaining({p: None}),  # type: ignore[dict-item]
}


class Running:
    """A member that was handed out five records."""

    def __init__(self) -> None:
        self.world = World()
        self.open = ExitStack()
        self.open.enter_context(self.world.is_real())
        self.broker = Broker(self.world, {P: PartitionLog()}, 30, 60)
        self.broker.logs[P].produce(5)
        self.consumer = self.make(DeferredRevokeConsumer, TOPIC, group_protocol="consumer")
        self.handed_out: list[int] = []
        while len(self.handed_out) < 5:
            found = self.consumer.poll(100)
            self.handed_out += [r.offset for records in found.values() for r in records]

    def make(self, kind: Any, *topics: str, **options: Any) -> Any:
        return kind(
            *topics,
            group_id="g",
            bootstrap_servers="broker:9092",
            kafka_client=self.broker.client,
            enable_incremental_fetch_sessions=False,
            auto_offset_reset="earliest",
            metrics_enabled=False,
            **options,
        )

    def goes_on(self) -> None:
        """Nothing has changed: what is handed out is committed, and the rest comes."""
        consumer = self.consumer
        self.broker.logs[P].produce(1)
        assert consumer.position(P) == 5
        assert consumer.unprocessed() == {P}
        found: list[Any] = []
        while not found:
            found = consumer.poll(100).get(P, [])
        assert [record.offset for record in found] == [5]
        consumer.commit_processed({P: 6})
        while consumer.acknowledged(P) != 6:
            consumer.poll(10)
        assert self.broker.committed[P] == 6

    def close(self) -> None:
        for net in list(self.world.nets):
            net.die()
        self.open.close()


@pytest.fixture(scope="module")
def refusing() -> Iterator[Running]:
    running = Running()
    yield running
    try:
        running.goes_on()
    finally:
        running.close()


@pytest.fixture
def running() -> Iterator[Running]:
    running = Running()
    yield running
    running.close()


@pytest.mark.parametrize("offset", NO_INTEGERS, ids=repr)
@pytest.mark.parametrize("call", TAKE_OFFSETS)
def test_what_is_no_integer_is_refused_by_the_call(
    refusing: Running, call: str, offset: Any
) -> None:
    with pytest.raises(TypeError, match=rf"{call.split()[0]}: the \w+ of t-0 must be an integer"):
        TAKE_OFFSETS[call](refusing.consumer, offset)


@pytest.mark.parametrize("offset", OUT_OF_RANGE, ids=repr)
@pytest.mark.parametrize("call", TAKE_OFFSETS)
def test_what_is_out_of_range_is_refused_by_the_call(
    refusing: Running, call: str, offset: Any
) -> None:
    with pytest.raises(ValueError, match=rf"{call.split()[0]}: the \w+ of t-0 must be 0 or more"):
        TAKE_OFFSETS[call](refusing.consumer, offset)


@pytest.mark.parametrize("partition", NO_PARTITIONS, ids=repr)
@pytest.mark.parametrize("call", TAKE_PARTITIONS)
def test_what_is_no_partition_is_refused_by_the_call(
    refusing: Running, call: str, partition: Any
) -> None:
    with pytest.raises(TypeError, match=rf"^{call}: "):
        TAKE_PARTITIONS[call](refusing.consumer, partition)


@pytest.mark.parametrize("partition", NO_NUMBERS_OF_PARTITIONS, ids=repr)
@pytest.mark.parametrize("call", TAKE_PARTITIONS)
def test_a_number_that_no_partition_has_is_refused_by_the_call(
    refusing: Running, call: str, partition: TopicPartition
) -> None:
    with pytest.raises(ValueError, match=rf"^{call}: .* must be 0 or more, and less than 2"):
        TAKE_PARTITIONS[call](refusing.consumer, partition)


@pytest.mark.parametrize("given", [None, 3, "t", [P], (P, 3), P], ids=repr)
@pytest.mark.parametrize("call", ["commit_processed", "commit", "commit_async"])
def test_what_is_no_dict_is_refused_by_the_call(refusing: Running, call: str, given: Any) -> None:
    if given is None and call != "commit_processed":
        return  # everything that was handed out
    with pytest.raises(TypeError, match=rf"^{call}: .* is not a dict by TopicPartition"):
        getattr(refusing.consumer, call)(given)


def test_the_rest_of_a_commit_is_checked_too(refusing: Running) -> None:
    commit = refusing.consumer.commit
    with pytest.raises(TypeError, match="commit: the leader epoch of t-0 must be an integer"):
        commit({P: OffsetAndMetadata(1, "", 1.0)})
    with pytest.raises(ValueError, match=r"from -1 \(unknown\) to 2\*\*31 - 1, and is 2147483648"):
        commit({P: OffsetAndMetadata(1, "", 2**31)})
    with pytest.raises(TypeError, match="the metadata of t-0 must be a string, and are b'x'"):
        commit({P: OffsetAndMetadata(1, b"x", -1)})


def test_one_wrong_offset_refuses_the_whole_commit(refusing: Running) -> None:
    before = dict(refusing.broker.committed)
    with pytest.raises(TypeError):
        refusing.consumer.commit({P: 1, TopicPartition(TOPIC, 1): 2.0})
    assert refusing.broker.committed == before


@pytest.mark.parametrize("kind", [int, numpy.int64, numpy.uint8, numpy.int32])
def test_every_kind_of_integer_is_accepted(running: Running, kind: Callable[[int], int]) -> None:
    consumer = running.consumer
    named = TopicPartition(TOPIC, kind(0))
    consumer.processed(named, kind(0), kind(1))
    consumer.commit({named: OffsetAndMetadata(kind(3), None, None)})
    assert running.broker.committed == {P: 3}
    consumer.commit_processed({named: kind(4)})
    consumer.commit_async({named: kind(5)})
    while consumer.acknowledged(P) != 5:
        consumer.poll(10)
    assert consumer.offsets_for_times({P: kind(5)}).keys() == {P}
    consumer.seek(named, kind(4))
    assert [record.offset for record in consumer.poll(1_000)[P]] == [4]


def test_a_partition_that_is_not_assigned_pauses_none(running: Running) -> None:
    with pytest.raises(Exception, match=r"pause: .*partition=7.* is not assigned"):
        running.consumer.pause(P, TopicPartition(TOPIC, 7))
    assert running.consumer.paused() == set()


# -- the library's own face -----------------------------------------------------------------------


QUERIES: dict[str, Callable[[Any], Any]] = {
    "assignment": lambda c: c.assignment(),
    "paused": lambda c: c.paused(),
    "subscription": lambda c: c.subscription(),
    "partitions_for_topic": lambda c: c.partitions_for_topic(TOPIC),
    "position": lambda c: c.position(P),
    "highwater": lambda c: c.highwater(P),
    "beginning_offsets": lambda c: c.beginning_offsets([P]),
    "end_offsets": lambda c: c.end_offsets([P]),
    "offsets_for_times": lambda c: c.offsets_for_times({P: 0}),
    "poll": lambda c: c.poll(10),
}


@pytest.mark.parametrize("query", QUERIES)
def test_answers_are_of_the_librarys_types(running: Running, query: str) -> None:
    library = running.make(KafkaConsumer)
    library.assign([P])
    while not library.poll(10):
        pass
    assert type(QUERIES[query](running.consumer)) is type(QUERIES[query](library)) or (
        query == "subscription"  # None, if it is not subscribed
        and running.consumer.subscription() == {TOPIC}
    )


def test_an_assignment_is_the_callers(running: Running) -> None:
    """As in kafka-python: ``assignment().pop()``."""
    assert running.consumer.assignment().pop() == P
    assert running.consumer.assignment() == {P}


def test_every_call_takes_what_the_librarys_takes() -> None:
    for name, library in inspect.getmembers(KafkaConsumer, inspect.isfunction):
        if name.startswith("_"):
            continue
        ours = inspect.signature(getattr(DeferredRevokeConsumer, name)).parameters
        for parameter in inspect.signature(library).parameters.values():
            assert parameter.name in ours, f"{name} lacks {parameter.name}"
            assert ours[parameter.name].kind is parameter.kind, f"{name}: {parameter.name}"
            assert ours[parameter.name].default == parameter.default, f"{name}: {parameter.name}"
