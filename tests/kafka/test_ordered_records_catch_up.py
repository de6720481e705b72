"""Records in the order of timestamps beside a backlog that is caught up (KIP-695, KIP-333)."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pytest
from created_anew import commit_once_assigned_anew, create_anew
from gaps_and_live import LIVE, ORDERED, commit_foreign, killed
from group_members import PATIENCE_S, MakeMember, members_of
from kafka import KafkaProducer
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance import DeferredRevokeConsumer, OptionError, TimestampOrderedRecords
from pyspark_kafka_rebalance.testing import LocalKafka

BASE_MS = 1_700_000_000_000
Produce = Callable[[Mapping[TopicPartition, Iterable[int]]], None]

both_protocols = pytest.mark.parametrize("protocol", ["classic", "consumer"], indirect=True)
one_protocol = pytest.mark.parametrize("protocol", ["classic"], indirect=True)


@pytest.fixture
def produce(kafka: LocalKafka) -> Iterator[Produce]:
    """Write records with these timestamps (milliseconds after BASE_MS) to partitions."""
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, linger_ms=20)

    def send(stamps: Mapping[TopicPartition, Iterable[int]]) -> None:
        for p, each in stamps.items():
            for at in each:
                value, stamp = b"%d" % at, BASE_MS + at
                producer.send(p.topic, value, partition=p.partition, timestamp_ms=stamp)
        producer.flush()

    yield send
    producer.close()


@pytest.fixture
def make(kafka: LocalKafka, group_id: str, protocol: str) -> Iterator[MakeMember]:
    with members_of(kafka, group_id, protocol, 6_000) as make_member:
        yield lambda *topics, **config: make_member(*topics, **{"fetch_max_wait_ms": 100, **config})


@pytest.fixture
def both(kafka: LocalKafka, topic_name: str, group_id: str) -> list[TopicPartition]:
    """Two partitions of which the group has committed the beginning."""
    kafka.create_topic(topic_name, 2)
    partitions = [TopicPartition(topic_name, n) for n in range(2)]
    commit_foreign(kafka, group_id, dict.fromkeys(partitions, 0))
    return partitions


def where(record: Any) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)


class Reader:
    """A member that polls in order, and what it was given: timestamps, in turn; and of gaps."""

    def __init__(self, member: DeferredRevokeConsumer, **options: Any) -> None:
        self.member = member
        options = {"max_task_idle_ms": 0, "buffered_records_per_partition": 50, **options}
        self.ordered = TimestampOrderedRecords(member, **options)
        self.found: list[int] = []
        self.of_gaps: list[int] = []
        self.offsets: dict[TopicPartition, list[int]] = defaultdict(list)
        self.commits = True

    def poll(self, number: int = 100) -> None:
        result = self.ordered.poll(timeout_ms=100, max_records=number)
        told = [*result.records, *(r for each in result.catch_up.values() for r in each)]
        self.found += [r.timestamp - BASE_MS for r in result.records]
        self.of_gaps += [r.timestamp - BASE_MS for r in told[len(result.records) :]]
        for record in told:
            assert where(record) not in result.to_be_revoked | result.lost
            self.offsets[where(record)].append(record.offset)
            if self.commits:
                self.member.processed(where(record), record.offset)

    def until(self, done: Callable[[], bool], number: int = 100) -> Reader:
        deadline = time.monotonic() + PATIENCE_S
        while not done():
            assert time.monotonic() < deadline, (len(self.found), len(self.of_gaps))
            self.poll(number)
        return self


@both_protocols
def test_in_order_a_backlog_comes_in_its_place_among_the_others(
    make: MakeMember, produce: Produce, both: list[TopicPartition]
) -> None:
    p, q = both
    produce({p: range(0, 4_000, 2), q: range(1, 4_000, 400)})  # no backlog of the other
    member = make(p.topic, **{**ORDERED, "catch_up_threshold": 100})
    reader = Reader(member)
    reader.until(lambda: len(reader.found) >= 300, number=100)
    assert member.catch_up_lag(p) > 1_000
    assert member.catch_up_lag(q) == 0
    assert member.position(p) == len(reader.offsets[p])
    produce({p: range(4_000, 4_100, 2), q: range(4_001, 4_100, 2)})

    def have_come() -> bool:
        """The live records of both: what is not heard of is not waited for."""
        time.sleep(0.02)  # lest the backlog is done before
        return bool(member._fetcher._paused_completed_fetches) and reader.ordered.buffered(q) >= 50

    reader.until(have_come, number=1)
    assert member.catch_up_lag(p) > 0
    reader.until(lambda: len(reader.found) == 2_010 + 100)
    expected = [*range(0, 4_000, 2), *range(1, 4_000, 400), *range(4_000, 4_100)]
    assert reader.found == sorted(expected)
    assert reader.of_gaps == []
    assert all(offsets == list(range(len(offsets))) for offsets in reader.offsets.values())
    assert member.drain(10_000)
    assert {x: member.committed(x) for x in both} == {p: 2_050, q: 60}


@one_protocol
@pytest.mark.parametrize("arrow", [False, True])
def test_two_backlogs_are_merged_and_buffered_within_bounds(
    make: MakeMember, produce: Produce, both: list[TopicPartition], arrow: bool
) -> None:
    p, q = both
    produce({p: range(0, 3_000), q: range(2_000, 5_000)})
    member = make(p.topic, max_poll_records=50, **ORDERED)
    ordered = TimestampOrderedRecords(member, 0, buffered_records_per_partition=200)
    found: list[int] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < 6_000:
        assert time.monotonic() < deadline, len(found)
        if arrow:
            rows = ordered.poll_arrow(timeout_ms=200, max_records=500).records
            found += [at.timestamp() * 1_000 - BASE_MS for at in rows["timestamp"].to_pylist()]
        else:
            records = ordered.poll(timeout_ms=200, max_records=500).records
            found += [record.timestamp - BASE_MS for record in records]
        assert arrow or all(ordered.buffered(x) <= 700 for x in both)
        assert all(member.position(x) <= 3_000 for x in member.assignment())
    assert found == sorted([*range(0, 3_000), *range(2_000, 5_000)])


@both_protocols
@pytest.mark.parametrize("mode", ["ordered", "live"])
def test_one_that_dies_in_mid_gap_leaves_the_rest_to_the_next(
    make: MakeMember, produce: Produce, both: list[TopicPartition], mode: str
) -> None:
    """What was read ahead of a gap and not returned is not in the group's books."""
    p, q = both
    options = ORDERED if mode == "ordered" else LIVE
    produce({p: range(0, 2_000), q: range(1_000, 3_000)})
    first = Reader(make(p.topic, **options))
    first.until(lambda: len(first.found) + len(first.of_gaps) >= 700, number=50)
    assert first.member.drain(10_000)
    processed = {x: set(offsets) for x, offsets in first.offsets.items()}
    killed(first.member)
    produce({p: range(3_000, 3_100, 2), q: range(3_001, 3_101, 2)})
    second = Reader(make(p.topic, **options))

    def came(x: TopicPartition) -> set[int]:
        return processed.get(x, set()) | set(second.offsets[x])

    second.until(lambda: all(len(came(x)) == 2_050 for x in both))
    twice = {x: processed.get(x, set()) & set(second.offsets[x]) for x in both}
    assert twice == {p: set(), q: set()}
    assert all(len(set(offsets)) == len(offsets) for offsets in second.offsets.values())
    assert second.found == sorted(second.found)
    if mode == "ordered":
        assert first.found + second.found == sorted(first.found + second.found)


@one_protocol
def test_a_gap_that_moves_in_mid_merge_waits_for_nothing_that_was_only_buffered(
    make: MakeMember, produce: Produce, both: list[TopicPartition]
) -> None:
    produce({x: range(x.partition, 6_000, 2) for x in both})
    members = [Reader(make(both[0].topic, **ORDERED))]
    members[0].until(lambda: len(members[0].found) >= 500, number=50)
    members.append(Reader(make(both[0].topic, **ORDERED)))
    deadline = time.monotonic() + PATIENCE_S
    began = time.monotonic()
    while not members[1].found:
        assert time.monotonic() < deadline
        for reader in members:
            reader.poll(20)
    assert time.monotonic() - began < 20, "a revoke waits for what is not handed out"
    while sum(len(o) for reader in members for o in reader.offsets.values()) < 6_000:
        assert time.monotonic() < deadline
        for reader in members:
            reader.poll()
    for x in both:
        came = sorted(offset for reader in members for offset in reader.offsets[x])
        assert came == list(range(3_000))


@one_protocol
def test_a_seek_in_mid_gap_drops_what_is_buffered_of_it(
    make: MakeMember, produce: Produce, both: list[TopicPartition]
) -> None:
    p, q = both
    produce({x: range(x.partition, 4_000, 2) for x in both})
    reader = Reader(make(p.topic, **ORDERED))
    reader.commits = False
    reader.until(lambda: len(reader.found) >= 200, number=20)
    assert reader.ordered.buffered(p) > 0
    before = len(reader.offsets[p])
    reader.member.seek(p, 1_500)
    assert reader.member.position(p) == 1_500
    reader.until(lambda: len(reader.offsets[q]) == 2_000)
    reader.until(lambda: reader.offsets[p][-1:] == [1_999])
    assert reader.offsets[p] == [*range(before), *range(1_500, 2_000)]


@one_protocol
def test_live_records_are_merged_and_backlogs_come_beside_them(
    make: MakeMember, produce: Produce, both: list[TopicPartition]
) -> None:
    p, q = both
    produce({p: range(0, 2_000), q: range(0, 2_000)})
    member = make(p.topic, **LIVE)
    reader = Reader(member, max_task_idle_ms=3_600_000)  # either may be heard of first
    reader.until(lambda: len(reader.of_gaps) > 0, number=20)
    produce({q: range(5_001, 5_100, 2), p: range(5_000, 5_100, 2)})
    reader.until(lambda: len(reader.found) == 99 and len(reader.of_gaps) == 4_000, number=20)
    member.pause(p)  # of which there is nothing more: else it is waited for
    reader.until(lambda: len(reader.found) == 100)
    assert reader.found == list(range(5_000, 5_100))
    assert sorted(reader.of_gaps) == sorted([*range(2_000), *range(2_000)])
    assert member.drain(10_000)
    assert {x: member.committed(x) for x in both} == dict.fromkeys(both, 2_050)
    with pytest.raises(OptionError, match="parallel_rebalance"):
        next(reader.ordered)
    with pytest.raises(OptionError, match="parallel_rebalance"):
        next(iter(reader.ordered))


@pytest.fixture
def two_topics(kafka: LocalKafka, topic_name: str, group_id: str) -> list[TopicPartition]:
    """A partition each, of which the group has committed the beginning."""
    partitions = [TopicPartition(f"{topic_name}-{name}", 0) for name in ("anew", "other")]
    for partition in partitions:
        kafka.create_topic(partition.topic)
    commit_foreign(kafka, group_id, dict.fromkeys(partitions, 0))
    return partitions


@both_protocols
@pytest.mark.parametrize("returned", [0, 40], ids=["none returned", "some returned"])
def test_what_is_buffered_of_a_gap_of_a_topic_that_is_created_anew_is_returned_to_nobody(
    kafka: LocalKafka,
    make: MakeMember,
    produce: Produce,
    two_topics: list[TopicPartition],
    group_id: str,
    returned: int,
) -> None:
    """What the new topic has would be taken for more of the gap, and left out."""
    anew, other = two_topics
    produce({anew: range(60), other: [returned - 1] if returned else []})
    member = make(*(p.topic for p in two_topics), metadata_max_age_ms=300, **ORDERED)
    reader = Reader(member, max_task_idle_ms=3_600_000)
    reader.until(lambda: len(reader.offsets[anew]) == returned)
    reader.until(lambda: reader.ordered.buffered(anew) == 60 - returned)
    create_anew(kafka, anew.topic)
    reader.until(lambda: reader.ordered.buffered(anew) == 0)
    produce({anew: range(10_000, 10_020)})
    reader.until(lambda: reader.ordered.buffered(anew) == 20)
    assert len(reader.offsets[anew]) == returned, "the other one is waited for"
    reader.commits = False
    member.pause(other)

    def deliver() -> None:
        reader.found.clear()
        reader.until(lambda: len(reader.found) >= 20)
        assert reader.found == list(range(10_000, 10_020))

    commit_once_assigned_anew(member, deliver)
    assert kafka.committed(group_id)[anew] == 20


@one_protocol
def test_beside_live_records_the_gap_of_a_topic_that_is_created_anew_ends(
    kafka: LocalKafka, make: MakeMember, produce: Produce, two_topics: list[TopicPartition]
) -> None:
    anew, other = two_topics
    produce({anew: range(4_000), other: range(4_000)})
    member = make(*(p.topic for p in two_topics), metadata_max_age_ms=300, **LIVE)
    reader = Reader(member)
    reader.until(lambda: len(reader.offsets[anew]) >= 50 and len(reader.offsets[other]) >= 50, 20)
    create_anew(kafka, anew.topic)
    # Before it has anything: else the live reader may begin behind that (docs/consumer.md).
    reader.until(lambda: member._io.subscription.read_position(anew) == 0)
    produce({anew: range(10_000, 10_200, 2), other: range(10_001, 10_201, 2)})

    def new(of: TopicPartition, stamps: Iterable[int]) -> list[int]:
        return [at for at in stamps if at >= 10_000 and at % 2 == two_topics.index(of)]

    reader.until(lambda: len(new(anew, reader.found + reader.of_gaps)) >= 100)
    reader.until(lambda: len(reader.offsets[other]) == 4_100)
    assert sorted(new(anew, reader.found + reader.of_gaps)) == list(range(10_000, 10_200, 2))
    assert new(other, reader.found) == list(range(10_001, 10_201, 2))
    assert sorted(reader.offsets[other]) == list(range(4_100))
    assert member.catch_up_lag(anew) == 0
