"""Where partitions start that another client of the group owned before."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest
from group_members import MakeMember, wait_until
from kafka import KafkaConsumer
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance import MembershipError
from pyspark_kafka_rebalance.fetch.offset_range import OffsetRange
from pyspark_kafka_rebalance.source.group.membership import QueryMembership
from pyspark_kafka_rebalance.testing import LocalKafka

Queries = Callable[..., QueryMembership]


def read(query: QueryMembership, partition: TopicPartition, start: int, end: int) -> None:
    """Plan a batch, which Spark commits."""
    handed_out = query.hand_out({partition: OffsetRange(*partition, start, end)})
    assert handed_out is not None
    assert handed_out.offset.ranges, "nothing was handed out"
    offset = {"end": end}
    query.proofs.planned(offset)
    query.proofs.committed(offset)


@pytest.mark.parametrize("has_read", [True, False])
def test_what_a_foreign_member_owned_and_never_committed(
    kafka: LocalKafka,
    topic_name: str,
    protocol: str,
    consumers: MakeMember,
    query_of: Queries,
    has_read: bool,
) -> None:
    """``latest`` is the end of the log when the query started: what came since is the query's."""
    both = [TopicPartition(topic_name, n) for n in range(2)]
    kafka.create_topic(topic_name, partitions=2)
    kafka.produce(topic_name, [b"old"] * 10)
    foreign = consumers(topic_name)

    def foreign_has(number: int) -> bool:
        foreign.poll_membership()
        return len(foreign.assignment()) == number

    wait_until(lambda: foreign_has(2), "the foreign member has both")
    query = query_of(
        subscribe=topic_name,
        startingOffsets="latest",
        readers="1",
        kafka__group__protocol=protocol,
    )
    wait_until(lambda: foreign_has(1) and bool(query.plannable()), "the query has one")
    [first] = query.plannable()
    [other] = set(both) - {first}
    assert query.plannable() == {first: 5}
    kafka.produce(topic_name, [b"new"] * 8)
    if has_read:
        read(query, first, 5, 9)
    foreign.close()
    wait_until(lambda: other in query.plannable(), "the query has both")
    assert query.plannable()[other] == (0 if has_read else 5)


@pytest.mark.parametrize("protocol", ["classic"], indirect=True)
def test_eager_consumers_are_replaced_at_once(
    kafka: LocalKafka, topic_name: str, group_id: str, consumers: MakeMember
) -> None:
    """A group that revokes everything first takes in nobody who does not; its offsets stay."""
    kafka.create_topic(topic_name, partitions=2)
    kafka.produce(topic_name, [b"x"] * 10)
    eager = KafkaConsumer(
        topic_name,
        bootstrap_servers=kafka.bootstrap_servers,
        group_id=group_id,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_poll_records=3,
    )
    with closing(eager):  # its threads would disturb the tests after this one
        wait_until(lambda: eager.poll(timeout_ms=1_000), "the first has records")
        eager.commit()
        ours = consumers(topic_name)
        with pytest.raises(MembershipError, match="InconsistentGroupProtocol"):
            wait_until(lambda: ours.poll(timeout_ms=100), "the refusal")
    ours = consumers(topic_name)
    read: list[int] = []

    def all_is_read() -> bool:
        read.extend(r.offset for polled in ours.poll(timeout_ms=100).values() for r in polled)
        return len(read) >= 7

    wait_until(all_is_read, "the rest")
    assert sorted(read) == [0, 1, 2, 3, 3, 4, 4]
