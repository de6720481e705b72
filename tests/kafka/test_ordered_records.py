"""TimestampOrderedRecords on a real broker: the order, the waits, and who is given what."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pytest
from created_anew import commit_once_assigned_anew, create_anew
from group_members import PATIENCE_S, MakeMember, members_of, owns, parts_of, wait_until
from kafka import KafkaProducer
from kafka.serializer import Deserializer
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance import (
    DeferredRevokeConsumer,
    OptionError,
    TimestampOrderedRecords,
    UnreadableRecordError,
)
from pyspark_kafka_rebalance.consumer.ordered import ordered_records
from pyspark_kafka_rebalance.consumer.ordered.ordered_records import by_number
from pyspark_kafka_rebalance.testing import LocalKafka

BASE_MS = 1_700_000_000_000

Produce = Callable[..., None]


@pytest.fixture
def produce(kafka: LocalKafka) -> Iterator[Produce]:
    """Write records with these timestamps (milliseconds after BASE_MS) to partitions."""
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, linger_ms=20)

    def send(stamps: Mapping[TopicPartition, Iterable[int]]) -> None:
        sent = [
            producer.send(p.topic, b"%d" % at, partition=p.partition, timestamp_ms=BASE_MS + at)
            for p, each in stamps.items()
            for at in each
        ]
        for each in sent:
            each.get(timeout=30)

    yield send
    producer.close()


@pytest.fixture
def make(kafka: LocalKafka, group_id: str, protocol: str) -> Iterator[MakeMember]:
    with members_of(kafka, group_id, protocol, 6_000) as make_member:
        yield lambda *topics, **config: make_member(*topics, **{"fetch_max_wait_ms": 100, **config})


@pytest.fixture
def two_topics(kafka: LocalKafka, topic_name: str) -> list[TopicPartition]:
    """The partitions of two topics: two of each."""
    names = [f"{topic_name}-a", f"{topic_name}-b"]
    for name in names:
        kafka.create_topic(name, 2)
    return [TopicPartition(name, n) for name in names for n in range(2)]


def topics_of(partitions: Iterable[TopicPartition]) -> list[str]:
    return sorted({partition.topic for partition in partitions})


def where(record: Any) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)


def after(record: Any) -> int:
    stamp: int = record.timestamp - BASE_MS
    return stamp


def own_all(consumer: DeferredRevokeConsumer, partitions: int = 4) -> None:
    """Have all partitions assigned: who joins later is waited for only from then on."""
    deadline = time.monotonic() + PATIENCE_S
    while not owns(consumer, partitions)():
        assert time.monotonic() < deadline
        consumer.poll_membership()
        time.sleep(0.01)


def take(ordered: TimestampOrderedRecords, number: int) -> list[Any]:
    """So many records."""
    found: list[Any] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < number:
        assert time.monotonic() < deadline, f"only {len(found)} of {number} records came"
        found += ordered.poll(timeout_ms=200, max_records=number - len(found)).records
    return found


both_protocols = pytest.mark.parametrize("protocol", ["classic", "consumer"], indirect=True)
one_protocol = pytest.mark.parametrize("protocol", ["classic"], indirect=True)


@both_protocols
def test_two_topics_of_different_rates_come_in_one_order(
    make: MakeMember, produce: Produce, two_topics: list[TopicPartition]
) -> None:
    stamps = {
        p: range(n, 2_000, 4 if p.topic == two_topics[0].topic else 100)
        for n, p in enumerate(two_topics)
    }
    produce(stamps)
    consumer = make(*topics_of(two_topics), max_poll_records=50)
    ordered = TimestampOrderedRecords(
        consumer, max_task_idle_ms=0, buffered_records_per_partition=20
    )
    own_all(consumer)
    found = []
    for record in ordered:
        found.append(record)
        assert consumer.position(where(record)) == record.offset + 1
        if len(found) == sum(map(len, stamps.values())):
            break
    assert [after(r) for r in found] == sorted(at for each in stamps.values() for at in each)
    by_partition: dict[TopicPartition, list[int]] = {}
    for record in found:
        by_partition.setdefault(where(record), []).append(record.offset)
    assert all(offsets == list(range(len(offsets))) for offsets in by_partition.values())


class Clock:
    """Time that passes when the test says so, however long a busy machine takes."""

    def __init__(self) -> None:
        self.now = time.monotonic()

    def monotonic(self) -> float:
        return self.now


@one_protocol
def test_it_waits_for_a_stalled_topic_as_long_as_it_is_told_to(
    make: MakeMember,
    produce: Produce,
    two_topics: list[TopicPartition],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy, stalled = two_topics[0], two_topics[2]
    produce({p: [0] for p in two_topics})
    consumer = make(*topics_of(two_topics))
    ordered = TimestampOrderedRecords(consumer, max_task_idle_ms=1_000)
    own_all(consumer)
    consumer.pause(two_topics[1], two_topics[3])  # they are not waited for
    take(ordered, 2)  # the second of them after a real second
    clock = Clock()
    monkeypatch.setattr(ordered_records, "time", clock)

    def polled() -> list[int]:
        return [after(r) for r in ordered.poll().records]

    def comes() -> list[int]:
        found: list[int] = []
        wait_until(lambda: bool(found.extend(polled()) or found), "records")
        return found

    def waits_with(partition: TopicPartition, number: int) -> None:
        """So many records are buffered, and the broker has no more of the other partition."""

        def waits() -> bool:
            assert polled() == []
            return (
                ordered.buffered(partition) == number and ordered._merge.next_deadline() is not None
            )

        wait_until(waits, f"{number} records, which wait")

    produce({busy: [10, 20]})
    waits_with(busy, 2)
    clock.now += 0.9
    assert polled() == []
    clock.now += 0.2
    assert comes() == [10, 20]
    produce({busy: [30]})  # given up is given up, until something comes
    assert comes() == [30]
    produce({stalled: [40]})
    waits_with(stalled, 1)
    clock.now += 1.1
    assert comes() == [40]
    produce({busy: [60]})
    waits_with(busy, 1)
    produce({stalled: [50]})
    assert comes() == [50]
    assert polled() == []
    clock.now += 1.1
    assert comes() == [60]


@both_protocols
def test_nothing_is_lost_or_twice_when_a_member_joins_in_mid_merge(
    make: MakeMember, produce: Produce, two_topics: list[TopicPartition]
) -> None:
    """What is buffered of a partition that goes is delivered by its next owner."""
    number = 2_000
    produce({p: range(n, 4 * number, 4) for n, p in enumerate(two_topics)})
    topics = topics_of(two_topics)
    members: list[DeferredRevokeConsumer] = []
    ordered: list[TimestampOrderedRecords] = []
    ledger: dict[TopicPartition, list[tuple[int, int]]] = {p: [] for p in two_topics}

    def join() -> None:
        members.append(make(*topics, max_poll_records=100))
        ordered.append(TimestampOrderedRecords(members[-1], max_task_idle_ms=0))

    def turn(n: int) -> None:
        # Few until the second has a partition, or the first would be done before.
        few = len(members) == 2 and not members[1].assignment()
        poll = ordered[n].poll(timeout_ms=20, max_records=1 if few else 37)
        for record in poll.records:
            ledger[where(record)].append((record.offset, n))
            assert where(record) not in poll.to_be_revoked | poll.lost
            members[n].commit_processed({where(record): record.offset + 1})

    join()
    deadline = time.monotonic() + PATIENCE_S
    while sum(map(len, ledger.values())) < 4 * number:
        assert time.monotonic() < deadline
        for n in range(len(members)):
            turn(n)
        if len(members) == 1 and sum(map(len, ledger.values())) > number:
            join()
    for partition, delivered in ledger.items():
        assert [offset for offset, _ in delivered] == list(range(number)), partition
    assert {n for delivered in ledger.values() for _, n in delivered} == {0, 1}


@one_protocol
def test_what_is_buffered_is_neither_committed_nor_counted(
    make: MakeMember, produce: Produce, two_topics: list[TopicPartition]
) -> None:
    produce({p: range(n, 400, 4) for n, p in enumerate(two_topics)})
    consumer = make(*topics_of(two_topics))
    ordered = TimestampOrderedRecords(consumer, max_task_idle_ms=0)
    own_all(consumer)
    found = take(ordered, 10)  # 3, 3, 2 and 2 of each
    assert consumer.unprocessed() == frozenset(two_topics)
    at = {p: consumer.position(p) for p in two_topics}
    assert at == dict(zip(two_topics, [3, 3, 2, 2], strict=True))
    assert [consumer.current_lag(p) for p in two_topics] == [97, 97, 98, 98]
    consumer.commit()
    assert {p: consumer.committed(p) for p in two_topics} == at
    assert not consumer.unprocessed()
    with pytest.raises(ValueError, match="handed out"):
        consumer.processed(two_topics[0], 50)
    rest = consumer.poll(timeout_ms=5_000)  # by its own poll: what is buffered comes, too
    for partition, records in rest.items():
        assert records[0].offset == at[partition]
    assert len(found) == 10


@one_protocol
def test_the_application_s_pause_and_the_bound_are_two_things(
    make: MakeMember, produce: Produce, two_topics: list[TopicPartition]
) -> None:
    ahead, behind = two_topics[0], two_topics[2]
    produce({ahead: range(1_000, 4_000), behind: range(5)})
    produce({two_topics[1]: [0], two_topics[3]: [0]})
    consumer = make(*topics_of(two_topics), max_poll_records=100)
    ordered = TimestampOrderedRecords(
        consumer, max_task_idle_ms=3_600_000, buffered_records_per_partition=200
    )
    own_all(consumer)
    consumer.pause(two_topics[1], two_topics[3])
    take(ordered, 5)

    def is_full() -> bool:
        assert not ordered.poll(timeout_ms=20).records
        return ordered.buffered(ahead) > 200

    wait_until(is_full, "as many are buffered as may be")
    for _ in range(40):
        assert not ordered.poll(timeout_ms=20).records
    assert 200 < ordered.buffered(ahead) <= 300
    assert consumer.paused() == {two_topics[1], two_topics[3]}
    consumer.pause(behind)
    assert [after(r) for r in take(ordered, 3_000)] == list(range(1_000, 4_000))
    assert consumer.paused() == {two_topics[1], two_topics[3], behind}
    consumer.pause(ahead)  # else it is waited for
    consumer.resume(two_topics[1])
    assert [where(r) for r in take(ordered, 1)] == [two_topics[1]]


@one_protocol
def test_what_is_buffered_of_a_paused_partition_is_kept(
    make: MakeMember, produce: Produce, two_topics: list[TopicPartition]
) -> None:
    produce({p: range(n, 40, 4) for n, p in enumerate(two_topics)})
    consumer = make(*topics_of(two_topics))
    ordered = TimestampOrderedRecords(consumer, max_task_idle_ms=0)
    own_all(consumer)
    take(ordered, 4)
    assert all(map(ordered.buffered, two_topics))
    consumer.pause(two_topics[0])
    assert [after(next(ordered)) for _ in range(6)] == [5, 6, 7, 9, 10, 11]
    consumer.resume(two_topics[0])
    assert [after(next(ordered)) for _ in range(4)] == [4, 8, 12, 13]


@one_protocol
def test_a_seek_drops_what_is_buffered(
    make: MakeMember, produce: Produce, two_topics: list[TopicPartition]
) -> None:
    produce({p: range(n, 400, 4) for n, p in enumerate(two_topics)})
    consumer = make(*topics_of(two_topics))
    ordered = TimestampOrderedRecords(consumer, max_task_idle_ms=0)
    own_all(consumer)
    take(ordered, 40)
    consumer.seek(two_topics[0], 0)
    assert [after(r) for r in take(ordered, 11)] == list(range(0, 44, 4))
    consumer.seek(two_topics[0], 99)
    found = [after(r) for r in take(ordered, 271)]
    assert found == [n for n in range(40, 400) if n % 4 or n == 4 * 99]


@one_protocol
@pytest.mark.parametrize("more", [0, 1], ids=["nothing", "more"])
def test_a_position_is_committed_with_its_epoch_whatever_is_buffered_behind_it(
    make: MakeMember, produce: Produce, two_topics: list[TopicPartition], more: int
) -> None:
    """KIP-320: the next owner notices by it that the log was truncated."""
    first, *others = two_topics
    produce({first: range(20)})
    consumer = make(*topics_of(two_topics))
    ordered = TimestampOrderedRecords(consumer, max_task_idle_ms=3_600_000)
    own_all(consumer)
    consumer.pause(*others)
    take(ordered, 20)
    consumer.resume(*others)
    produce({first: range(more)})
    deadline = time.monotonic() + PATIENCE_S
    while ordered.buffered(first) < more:
        assert time.monotonic() < deadline
        assert ordered.poll(timeout_ms=50).records == []
    consumer.commit()
    committed = consumer.committed(first, metadata=True)
    assert (committed.offset, committed.leader_epoch) == (20, 0)


@both_protocols
def test_what_is_buffered_of_a_topic_that_is_created_anew_is_returned_to_nobody(
    kafka: LocalKafka, make: MakeMember, produce: Produce, topic_name: str, group_id: str
) -> None:
    """Its commits counted in the new topic."""
    names = [f"{topic_name}-a", f"{topic_name}-b"]
    for name in names:
        kafka.create_topic(name)
    anew, empty = (TopicPartition(name, 0) for name in names)
    produce({anew: range(60)})
    consumer = make(*names, metadata_max_age_ms=300)
    own_all(consumer, 2)
    ordered = TimestampOrderedRecords(consumer, max_task_idle_ms=3_600_000)
    deadline = time.monotonic() + PATIENCE_S

    def poll_until_buffered(number: int) -> None:
        while ordered.buffered(anew) != number:
            assert time.monotonic() < deadline
            assert ordered.poll(timeout_ms=50).records == []

    poll_until_buffered(60)
    create_anew(kafka, anew.topic)
    poll_until_buffered(0)
    # `position()` would wait for the answer to whether the log was truncated, up to 30 s.
    while consumer._io.subscription.position(anew) != 0:
        assert time.monotonic() < deadline
        assert ordered.poll(timeout_ms=50).records == []
    produce({anew: range(1_000, 1_010)})
    poll_until_buffered(10)
    consumer.pause(empty)

    def deliver() -> None:
        assert [after(record) for record in take(ordered, 10)] == list(range(1_000, 1_010))

    commit_once_assigned_anew(consumer, deliver)
    assert kafka.committed(group_id)[anew] == 10


@one_protocol
def test_a_record_that_cannot_be_read_is_told_when_it_is_its_turn(
    make: MakeMember, produce: Produce, two_topics: list[TopicPartition]
) -> None:
    produce({p: range(n, 40, 4) for n, p in enumerate(two_topics)})

    class Picky(Deserializer):  # type: ignore[misc]
        def deserialize(self, topic: str, headers: Any, data: bytes) -> bytes:
            if data == b"20":
                raise ValueError("no twenty")
            return data

    consumer = make(*topics_of(two_topics), value_deserializer=Picky(), max_poll_records=7)
    ordered = TimestampOrderedRecords(consumer, max_task_idle_ms=0)
    found: list[int] = []
    deadline = time.monotonic() + PATIENCE_S
    told = None
    while len(found) < 39:
        assert time.monotonic() < deadline
        try:
            found += [after(r) for r in ordered.poll(timeout_ms=100).records]
        except UnreadableRecordError as error:
            if told is None:
                assert 16 in found
            told = error
            consumer.seek(two_topics[0], 6)
    assert told is not None
    assert (told.topic, told.partition, told.offset) == (*two_topics[0], 5)
    assert sorted(found) == [n for n in range(40) if n != 20]


@one_protocol
def test_groups_of_the_same_number(
    make: MakeMember, produce: Produce, two_topics: list[TopicPartition]
) -> None:
    """A partition without records holds up those of its own number only."""
    a0, a1, b0, b1 = two_topics
    produce({a0: [1, 3], b0: [2, 4], a1: [5]})
    consumer = make(*topics_of(two_topics))
    ordered = TimestampOrderedRecords(consumer, 60_000, partition_group=by_number)
    assert [after(r) for r in take(ordered, 3)] == [1, 2, 3]
    assert not ordered.poll(timeout_ms=500).records
    produce({a0: [10], b1: [6]})
    assert sorted(after(r) for r in take(ordered, 2)) == [4, 5]


@one_protocol
def test_transactions(
    kafka: LocalKafka, make: MakeMember, produce: Produce, two_topics: list[TopicPartition]
) -> None:
    """What is aborted is not waited for; an open transaction ends what can be waited for."""
    a0, _, b0, _ = two_topics
    producer = KafkaProducer(
        bootstrap_servers=kafka.bootstrap_servers, transactional_id=a0.topic, linger_ms=0
    )
    producer.init_transactions()

    def in_one(partition: TopicPartition, *stamps: int) -> None:
        producer.begin_transaction()
        for at in stamps:
            producer.send(
                partition.topic, b"x", partition=partition.partition, timestamp_ms=BASE_MS + at
            ).get(30)

    try:
        in_one(a0, 1, 4)
        producer.commit_transaction()
        in_one(a0, 2, 3)
        producer.abort_transaction()
        produce({b0: [0, 2, 5]})
        consumer = make(*topics_of(two_topics), isolation_level="read_committed")
        ordered = TimestampOrderedRecords(consumer, max_task_idle_ms=0)
        own_all(consumer)
        assert [after(r) for r in take(ordered, 5)] == [0, 1, 2, 4, 5]
        in_one(a0, 6)
        produce({b0: [7]})
        assert [after(r) for r in take(ordered, 1)] == [7]
        producer.commit_transaction()
        assert [after(r) for r in take(ordered, 1)] == [6]
    finally:
        producer.close()


def test_partitions_that_are_assigned_by_hand(
    kafka: LocalKafka, group_id: str, produce: Produce, two_topics: list[TopicPartition]
) -> None:
    produce({p: range(n, 400, 4) for n, p in enumerate(two_topics)})
    consumer = DeferredRevokeConsumer(
        bootstrap_servers=kafka.bootstrap_servers,
        group_id=group_id,
        auto_offset_reset="earliest",
    )
    try:
        consumer.assign(two_topics)
        ordered = TimestampOrderedRecords(consumer, max_task_idle_ms=0)
        assert [after(next(ordered)) for _ in range(10)] == list(range(10))
        consumer.commit()
        at = dict(zip(two_topics, [3, 3, 2, 2], strict=True))
        assert {p: consumer.committed(p) for p in two_topics} == at
        assert [after(next(ordered)) for _ in range(390)] == list(range(10, 400))
        consumer.config["consumer_timeout_ms"] = 200
        assert [after(r) for r in ordered] == []
    finally:
        consumer.close()
    with pytest.raises(StopIteration):
        next(ordered)


@one_protocol
def test_arrow_tables_hold_what_records_say(
    make: MakeMember, produce: Produce, two_topics: list[TopicPartition]
) -> None:
    stamps = {p: [(n * 7 + k * 13) % 997 for k in range(2_000)] for n, p in enumerate(two_topics)}
    produce(stamps)
    consumer = make(*topics_of(two_topics))
    ordered = TimestampOrderedRecords(consumer, max_task_idle_ms=0)
    own_all(consumer)
    by_record = [(where(r), r.offset, r.value) for r in take(ordered, 8_000)]
    consumer.seek_to_beginning()
    by_row: list[Any] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(by_row) < 8_000:
        assert time.monotonic() < deadline
        table = ordered.poll_arrow(timeout_ms=200, max_records=1_234).records
        assert table.num_rows <= 1_234
        for row in table.to_pylist():
            partition = TopicPartition(row["topic"], row["partition"])
            by_row.append((partition, row["offset"], row["value"]))
        if table.num_rows:
            assert consumer.position(by_row[-1][0]) == by_row[-1][1] + 1
    assert by_row == by_record


@one_protocol
def test_forms_take_turns(
    make: MakeMember, produce: Produce, two_topics: list[TopicPartition]
) -> None:
    produce({p: range(n, 4_000, 4) for n, p in enumerate(two_topics)})
    consumer = make(*topics_of(two_topics))
    ordered = TimestampOrderedRecords(consumer, max_task_idle_ms=0)
    own_all(consumer)
    found: list[int] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < 4_000:
        assert time.monotonic() < deadline
        found += [int(r.value) for r in ordered.poll(timeout_ms=50, max_records=300).records]
        table = ordered.poll_arrow(timeout_ms=50, max_records=400).records
        found += [int(value.as_py()) for value in table["value"]]
    assert found == list(range(4_000))


@both_protocols
def test_a_revoke_waits_for_what_was_returned_and_nobody_for_what_is_revoked(
    make: MakeMember, produce: Produce, two_topics: list[TopicPartition]
) -> None:
    produce({p: range(n, 400, 4) for n, p in enumerate(two_topics)})
    consumer = make(*topics_of(two_topics))
    ordered = TimestampOrderedRecords(consumer, max_task_idle_ms=0)
    own_all(consumer)
    take(ordered, 10)
    at = {p: consumer.position(p) for p in two_topics}
    assert all(map(ordered.buffered, two_topics))
    consumer.pause(*two_topics)  # nothing is returned until the revoke is there
    joining = make(*topics_of(two_topics))
    going: frozenset[TopicPartition] = frozenset()
    deadline = time.monotonic() + PATIENCE_S
    while not going:
        assert time.monotonic() < deadline
        going = ordered.poll(timeout_ms=20).to_be_revoked
        joining.poll_membership()
    consumer.delay_revoke(going)
    consumer.resume(*two_topics)
    kept = sorted(set(two_topics) - going)
    found: list[Any] = []
    while len(found) < sum(100 - (at[p] or 0) for p in kept):
        assert time.monotonic() < deadline
        result = ordered.poll(timeout_ms=100)
        found += result.records
        assert result.to_be_revoked == going
        assert consumer.delay_revoke(result.to_be_revoked & consumer.unprocessed())
        assert not any(map(ordered.buffered, going))
        assert {p: consumer.position(p) for p in going} == {p: at[p] for p in going}
    numbers = [two_topics.index(p) for p in kept]
    assert [after(r) for r in found] == [n for n in range(10, 400) if n % 4 in numbers]
    for partition in going:
        consumer.processed(partition, *range(at[partition] or 0))
    assert ordered.poll().to_be_revoked == going  # it was delayed for one poll
    assert ordered.poll().revoked == going
    while not joining.assignment():
        assert time.monotonic() < deadline
        ordered.poll(timeout_ms=20)
        joining.poll_membership()
    assert joining.assignment() == going
    assert {p: joining.position(p) for p in going} == {p: at[p] for p in going}


@one_protocol
def test_a_poll_after_an_iteration_tells_what_that_has_learned_of_a_rebalance(
    make: MakeMember, produce: Produce, two_topics: list[TopicPartition]
) -> None:
    """A requested revoke was completed although nobody had the chance to delay it."""
    produce({p: range(n, 4_000, 4) for n, p in enumerate(two_topics)})
    consumer = make(*topics_of(two_topics), max_poll_records=50)
    ordered = TimestampOrderedRecords(consumer, max_task_idle_ms=0)
    own_all(consumer)
    assert next(ordered)
    assert ordered.poll().records
    joining = make(*topics_of(two_topics))
    deadline = time.monotonic() + PATIENCE_S
    while not parts_of(consumer).record.any_waits():
        assert time.monotonic() < deadline
        joining.poll_membership()
        time.sleep(0.01)  # until the next poll will learn of the rebalance
    while not (asked := consumer.get_to_be_revoked_partitions()):
        assert time.monotonic() < deadline
        assert next(ordered)
    told = ordered.poll()
    assert (told.to_be_revoked, told.revoked) == (asked, frozenset())
    assert consumer.delay_revoke(asked)
    assert not ordered.poll().revoked
    assert asked <= consumer.assignment()


@one_protocol
def test_options(make: MakeMember, topic_name: str) -> None:
    consumer = make(topic_name)
    with pytest.raises(OptionError, match="max_task_idle_ms"):
        TimestampOrderedRecords(consumer, max_task_idle_ms=-2)
    with pytest.raises(OptionError, match="buffered_records_per_partition"):
        TimestampOrderedRecords(consumer, buffered_records_per_partition=0)


@one_protocol
def test_it_says_for_whom_it_waits(
    make: MakeMember,
    produce: Produce,
    two_topics: list[TopicPartition],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when a leader is away: nothing more is heard of a partition."""
    produce({two_topics[0]: [1]})
    consumer = make(*topics_of(two_topics))
    ordered = TimestampOrderedRecords(consumer, max_task_idle_ms=0)
    heard = consumer._reading._ends.take_fresh
    monkeypatch.setattr(consumer._reading._ends, "take_fresh", lambda: heard() - {two_topics[3]})
    own_all(consumer)

    def waits_for_it_alone() -> bool:
        assert not ordered.poll(timeout_ms=20).records
        return ordered._merge.held_back_by() == {two_topics[3]}

    def warnings() -> list[str]:
        return [r.getMessage() for r in caplog.records if "are held back until" in r.getMessage()]

    def has_warned() -> bool:
        assert not ordered.poll(timeout_ms=20).records
        return bool(warnings())

    # All others may take their time to answer.
    wait_until(waits_for_it_alone, "the others have answered")
    monkeypatch.setattr(ordered_records, "_WARN_AFTER_S", 0.2)
    with caplog.at_level(logging.WARNING):
        wait_until(has_warned, "a warning")
        for _ in range(20):
            assert not ordered.poll(timeout_ms=20).records
    (warned,) = warnings()
    assert "{}-{}".format(*two_topics[3]) in warned
    monkeypatch.setattr(consumer._reading._ends, "take_fresh", heard)
    assert [after(r) for r in take(ordered, 1)] == [1]
