"""Where a query's partitions start that neither the group nor its checkpoint knows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from group_members import MakeMember, wait_until
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.fetch.offset_range import OffsetRange
from pyspark_kafka_rebalance.source.group.membership import QueryMembership
from pyspark_kafka_rebalance.testing import LocalKafka

Queries = Callable[..., QueryMembership]


def read(query: QueryMembership, partition: TopicPartition, start: int, end: int) -> None:
    """Plan a batch, which Spark commits."""
    handed_out = query.hand_out({partition: OffsetRange(*partition, start, end)})
    assert handed_out is not None
    assert handed_out[0], "nothing was handed out"
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
    """By ``latest``, what it got while the query ran would be passed over, without a word."""
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
    assert query.plannable()[other] == (0 if has_read else 9)
