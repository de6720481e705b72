"""What happens to a log in the middle of a gap (KIP-333), and what lag others see meanwhile."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import closing

import pytest
from created_anew import create_anew
from gaps_and_live import LIVE, ORDERED, Commit, Seen, killed, produced, values
from group_members import MakeMember, wait_until
from kafka import KafkaAdminClient, KafkaConsumer
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.status.backlog import Backlog
from pyspark_kafka_rebalance.status.look import GroupLook
from pyspark_kafka_rebalance.testing import LocalKafka

BOTH_MODES = pytest.mark.parametrize("options", [LIVE, ORDERED], ids=["live", "ordered"])

#: A record batch a fetch, so that most of a gap is not there yet.
BIT_BY_BIT = {"max_partition_fetch_bytes": 100}


def delete_records(kafka: LocalKafka, partition: TopicPartition, before: int) -> None:
    with closing(KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)) as admin:
        admin.delete_records({partition: before})


@BOTH_MODES
@pytest.mark.parametrize("before", [350, 505], ids=["in the gap", "beyond it"])
def test_records_are_deleted_in_mid_gap(kafka, topic, committed_at, consumers, options, before):
    """Deleted ones are left out, all others are handed out once, and the group gets to the end."""
    for _ in range(5):
        produced(kafka, topic, 100)
    partition = committed_at(0)
    member = consumers(topic, **options, **BIT_BY_BIT)
    seen = Seen(member)
    seen.until(lambda: len(seen.gaps + seen.live) >= 4, max_records=4)
    produced(kafka, topic, 10)
    delete_records(kafka, partition, before)
    seen.until(lambda: 509 in seen.live and member.catch_up_lag(partition) == 0)
    handed_out = sorted(seen.gaps + seen.live)
    assert handed_out == sorted(set(handed_out))
    assert set(handed_out) >= set(range(before, 510))
    assert len(handed_out) < 510, "nothing was deleted unread, so this shows nothing"
    member.processed(partition, *handed_out)
    assert member.drain(10_000)
    assert member.committed(partition) == 510


@BOTH_MODES
def test_a_topic_is_created_anew_in_mid_gap(kafka, topic, committed_at, consumers, options):
    produced(kafka, topic, 2_000)
    committed_at(0)
    member = consumers(topic, **options, metadata_max_age_ms=300)
    seen = Seen(member)
    seen.until(lambda: len(seen.gaps + seen.live) >= 50, max_records=50)
    create_anew(kafka, topic)
    kafka.produce(topic, [b"new"] * 20)
    anew: list[int] = []

    def all_there() -> bool:
        result = member.poll_with_rebalance(timeout_ms=50, max_records=50)
        for found in (*result.records.values(), *result.catch_up.values()):
            anew.extend(record.offset for record in found if record.value == b"new")
        return len(anew) >= 20

    wait_until(all_there, "the new topic's records")
    seen.poll()
    assert anew == list(range(20))
    assert member.catch_up_lag(TopicPartition(topic, 0)) == 0


@BOTH_MODES
@pytest.mark.parametrize("number", [30, 700], ids=["shorter", "longer"])
def test_a_topic_is_created_anew_between_two_owners(
    kafka, topic, committed_at, consumers, options, number
):
    """The group's offset is gone with it, and so are the gaps: all of it is read in order."""
    produced(kafka, topic, 500)
    partition = committed_at(0)
    first = consumers(topic, **options)
    seen = Seen(first)
    seen.until(lambda: len(seen.gaps + seen.live) >= 50, max_records=50)
    first.processed(partition, *(seen.gaps + seen.live)[10:])
    assert first.drain(10_000)
    killed(first)
    create_anew(kafka, topic)
    produced(kafka, topic, number)
    again = Seen(consumers(topic, **options))
    again.until(lambda: len(again.gaps + again.live) >= number)
    assert (again.gaps, again.live) == ([], list(range(number)))


@BOTH_MODES
def test_partitions_are_added_in_mid_gap(kafka, topic, committed_at, consumers, options):
    """Their records are read from the first on, as live ones; the gap is read on, once."""
    produced(kafka, topic, 2_000)
    committed_at(0)
    member = consumers(topic, **options, metadata_max_age_ms=300)
    live: dict[int, Counter[int]] = defaultdict(Counter)
    gaps: dict[int, Counter[int]] = defaultdict(Counter)

    def poll(max_records: int) -> None:
        result = member.poll_with_rebalance(timeout_ms=20, max_records=max_records)
        for records, seen in ((result.records, live), (result.catch_up, gaps)):
            for p, found in records.items():
                seen[p.partition].update(record.offset for record in found)

    def until(done: Callable[[], bool], what: str, max_records: int = 500) -> None:
        def polled() -> bool:
            poll(max_records)
            return done()

        wait_until(polled, what)

    until(lambda: bool(live[0] or gaps[0]), "it has begun", 10)
    kafka.add_partitions(topic, 3)
    for partition in (1, 2):
        kafka.produce(topic, values(30), partition=partition)
    until(lambda: len(member.assignment()) == 3, "the new partitions", 1)
    assert (live[0] + gaps[0]).total() < 2_000, "the gap is done, so this shows nothing"
    until(lambda: all(live[p].total() >= 30 for p in (1, 2)), "their records")
    until(lambda: (live[0] + gaps[0]).total() >= 2_000, "the gap")
    assert live[0] + gaps[0] == Counter(range(2_000))
    assert live[1] == live[2] == Counter(range(30))
    assert gaps.keys() <= {0}


# -- what lag others see --------------------------------------------------------------------------


class Lags:
    """The lag of the topic's partition 0, as Kafka's tools compute it, and as ``status`` does."""

    def __init__(self, kafka: LocalKafka, group_id: str, partition: TopicPartition) -> None:
        self._kafka = kafka
        self._group_id = group_id
        self._partition = partition

    def of_tools(self) -> int | None:
        """End minus committed offset, as ``kafka-consumer-groups.sh --describe`` computes it."""
        committed = self._kafka.committed(self._group_id).get(self._partition)
        if committed is None:
            return None
        with closing(KafkaConsumer(bootstrap_servers=self._kafka.bootstrap_servers)) as plain:
            end: int = plain.end_offsets([self._partition])[self._partition]
        return end - committed

    def backlog(self) -> Backlog:
        servers = {"bootstrap_servers": [self._kafka.bootstrap_servers]}
        with GroupLook(servers, self._group_id) as look:
            (row,) = [row for row in look.report().rows if row.partition == self._partition]
            return row.backlog

    def all(self) -> tuple[int | None, int | None, int]:
        """Of tools, of status, and how much of that lies in gaps."""
        found = self.backlog()
        return self.of_tools(), found.lag, found.gap_offsets


@pytest.fixture
def lags(kafka: LocalKafka, group_id: str, topic: str) -> Lags:
    return Lags(kafka, group_id, TopicPartition(topic, 0))


@pytest.mark.parametrize("protocol", ["classic"], indirect=True)
def test_the_lag_in_each_phase_of_a_gap(
    kafka: LocalKafka, topic: str, committed_at: Commit, consumers: MakeMember, lags: Lags
) -> None:
    """Tools count from the lowest unprocessed offset on; status leaves out what is processed."""
    produced(kafka, topic, 500)
    partition = committed_at(0)
    assert lags.all() == (500, 500, 0), "nobody reads"

    member = consumers(topic, **LIVE, **BIT_BY_BIT)
    seen = Seen(member)
    seen.until(lambda: len(seen.gaps) >= 100, max_records=100)
    assert lags.all() == (500, 500, 0), "handed out is not processed"

    produced(kafka, topic, 20)
    seen.until(lambda: 519 in seen.live, max_records=20)
    member.processed(partition, *seen.live)
    assert member.drain(10_000)
    assert lags.all() == (520, 500, 500), "the live records are processed"

    member.processed(partition, *range(60), *range(70, 100))
    assert member.drain(10_000)
    assert lags.all() == (460, 410, 410), "and some of the gap, with a gap in it"

    killed(member)
    produced(kafka, topic, 100)
    assert lags.all() == (560, 510, 410), "a second backlog, above the first gap"

    delete_records(kafka, partition, 200)
    assert lags.all() == (560, 400, 300), "tools also count what is deleted"

    again = Seen(consumers(topic, **LIVE))
    again.until(lambda: len(again.gaps + again.live) >= 400)
    assert again.gaps == [*range(200, 500), *range(520, 620)]
    again.member.processed(partition, *again.gaps)
    assert again.member.drain(10_000)
    assert lags.all() == (0, 0, 0), "all is processed"


@pytest.mark.parametrize("protocol", ["classic"], indirect=True)
def test_the_lag_when_a_topic_is_created_anew_in_mid_gap(
    kafka: LocalKafka, topic: str, committed_at: Commit, consumers: MakeMember, lags: Lags
) -> None:
    produced(kafka, topic, 500)
    partition = committed_at(0)
    member = consumers(topic, **LIVE, metadata_max_age_ms=300)
    seen = Seen(member).until_gaps(100, max_records=100)
    member.processed(partition, *range(50, 100))
    assert member.drain(10_000)
    assert lags.all() == (500, 450, 50), "of which nothing beyond the hundredth is processed"
    create_anew(kafka, topic)
    wait_until(lambda: lags.of_tools() is None, "the broker forgets the group's offset")
    kafka.produce(topic, [b"new"] * 20)
    assert lags.backlog().lag is None, "nothing is committed yet"
    seen.until(lambda: seen.live[-1:] == [19])
    member.processed(partition, *range(20))

    def committed() -> bool:
        seen.poll()
        return lags.of_tools() == 0

    wait_until(committed, "the new topic is committed")
    assert lags.all() == (0, 0, 0)
