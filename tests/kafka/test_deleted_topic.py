"""A topic deleted under a query's members, with a batch of it that Spark commits afterwards."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from group_members import PROTOCOLS, wait_until
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.fetch.offset_range import OffsetRange
from pyspark_kafka_rebalance.source.group.membership import QueryMembership
from pyspark_kafka_rebalance.testing import LocalKafka


def hand_out(query: QueryMembership, *partitions: TopicPartition) -> dict[str, Any]:
    """Plan a batch of 5 records of each partition; what its offset might be."""
    planned = {p: OffsetRange(p.topic, p.partition, 0, 5) for p in partitions}
    handed_out = query.hand_out(planned)
    assert handed_out is not None
    assert handed_out.offset.ranges == planned
    offset = {"batch": 1}
    query.proofs.planned(offset)
    return offset


def owned_of(query: QueryMembership, *partitions: TopicPartition) -> set[TopicPartition]:
    """Which of these the query's members own."""
    return {p for member in query.state_of(partitions).offset.members for p in member.partitions}


@pytest.fixture
def two_topics(kafka: LocalKafka, topic_name: str) -> tuple[TopicPartition, TopicPartition]:
    """A partition that a test deletes, and one that stays; five records each."""
    gone, kept = TopicPartition(f"{topic_name}.gone", 0), TopicPartition(f"{topic_name}.kept", 0)
    for partition in (gone, kept):
        kafka.create_topic(partition.topic, partitions=1)
        kafka.produce(partition.topic, [b"old"] * 5)
    return gone, kept


def test_one_deleted_partition_does_not_keep_the_others_from_being_read(
    kafka: LocalKafka,
    two_topics: tuple[TopicPartition, TopicPartition],
    query_of: Callable[..., QueryMembership],
) -> None:
    gone, kept = two_topics
    query = query_of(subscribe=f"{gone.topic},{kept.topic}")
    ends = query.log_ends
    wait_until(lambda: ends.end_offsets([gone, kept]) == {gone: 5, kept: 5}, "both are told")
    kafka.delete_topic(gone.topic)
    kafka.produce(kept.topic, [b"x"])
    wait_until(lambda: ends.end_offsets([gone, kept]) == {kept: 6}, "the other's end is told")


def test_a_leader_that_is_away_does_not_keep_the_others_from_being_read(
    kafka3: LocalKafka, topic_name: str, query_of: Callable[..., QueryMembership]
) -> None:
    """And those of its partitions that have other replicas are read when these lead them."""
    kafka3.create_topic(topic_name, partitions=3, replication_factor=1)
    kafka3.create_topic(f"{topic_name}.safe", partitions=3, replication_factor=3)
    alone = {TopicPartition(topic_name, n) for n in range(3)}
    safe = {TopicPartition(f"{topic_name}.safe", n) for n in range(3)}
    topics = f"{topic_name},{topic_name}.safe"
    query = query_of(subscribe=topics, kafka__bootstrap__servers=kafka3.bootstrap_servers)

    def told() -> set[TopicPartition]:
        return set(query.log_ends.end_offsets(alone | safe))

    wait_until(lambda: told() == alone | safe, "all are told")
    away = kafka3.broker_ids[-1]
    kafka3.kill(away)
    try:
        wait_until(lambda: told() >= safe and len(told()) == 5, "all but the one without leader")
    finally:
        kafka3.restart(away)
    wait_until(lambda: told() == alone | safe, "all are told")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("by", ["subscribe", "subscribePattern"])
def test_a_commit_that_can_never_be_acknowledged_is_given_up(
    kafka: LocalKafka,
    two_topics: tuple[TopicPartition, TopicPartition],
    topic_name: str,
    group_id: str,
    query_of: Callable[..., QueryMembership],
    protocol: str,
    by: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    gone, kept = two_topics
    topics = {"subscribe": f"{gone.topic},{kept.topic}", "subscribePattern": f"{topic_name}.*"}
    # A pattern finds topics with the metadata: every five minutes, unless somebody asks sooner.
    options = {by: topics[by], "kafka__metadata__max__age__ms": "500"}
    query = query_of(**options, kafka__group__protocol=protocol)
    wait_until(lambda: query.plannable().keys() == {gone, kept}, "both are assigned")
    offset = hand_out(query, gone, kept)
    kafka.delete_topic(gone.topic)
    query.proofs.committed(offset)
    told: dict[TopicPartition, int | None] = {}
    wait_until(lambda: bool(told.update(query.deletions.take()) or told), "it is found deleted")
    assert told == {gone: 5}
    wait_until(lambda: kafka.committed(group_id) == {kept: 5}, "the other's commit goes on")
    query.raise_failure()
    assert query.offset_without_ranges().others.keys() == {kept}
    wait_until(lambda: owned_of(query, gone, kept) == {kept}, "it is released")
    refused = [r for r in caplog.records if "cannot be committed" in r.message]
    assert len(refused) <= 3
    kafka.create_topic(gone.topic, partitions=1)
    wait_until(lambda: query.plannable().get(gone) == 0, "what is created anew is read")
    assert query.deletions.take() == {}


def test_a_commit_holds_no_revoke_up_whose_topic_is_there_again_at_once(
    kafka: LocalKafka,
    two_topics: tuple[TopicPartition, TopicPartition],
    group_id: str,
    query_of: Callable[..., QueryMembership],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The group refused it by the old topic's id, again and again, and could not assign the new."""
    anew, kept = two_topics
    query = query_of(subscribe=f"{anew.topic},{kept.topic}", kafka__group__protocol="consumer")
    wait_until(lambda: query.plannable().keys() == {anew, kept}, "both are assigned")
    offset = hand_out(query, anew, kept)
    kafka.delete_topic(anew.topic)
    kafka.create_topic(anew.topic, partitions=1)
    kafka.produce(anew.topic, [b"new"] * 7)
    query.proofs.committed(offset)
    told: dict[TopicPartition, int | None] = {}
    wait_until(lambda: bool(told.update(query.deletions.take()) or told), "it is found deleted")
    assert told == {anew: 5}
    wait_until(lambda: query.plannable().get(anew) == 0, "the new one is read from its beginning")
    wait_until(lambda: kafka.committed(group_id).get(kept) == 5, "the other's commit goes on")
    query.raise_failure()
    refused = [r for r in caplog.records if "cannot be committed" in r.message]
    assert len(refused) <= 3


@pytest.mark.parametrize("new", [3, 8])
@pytest.mark.parametrize("assigned_by", [*PROTOCOLS, "name"])
def test_a_topic_that_is_there_again_at_once_was_deleted_and_is_read_from_its_first_record(
    kafka: LocalKafka,
    two_topics: tuple[TopicPartition, TopicPartition],
    group_id: str,
    query_of: Callable[..., QueryMembership],
    assigned_by: str,
    new: int,
) -> None:
    """With all that was read committed.

    Where the group takes the partition back, it counted as another's to miss. Where
    it is assigned by name, the query went on at its old position, or at the end of the new log.
    """
    anew, kept = two_topics
    if assigned_by == "name":
        query = query_of(assign=json.dumps({anew.topic: [0], kept.topic: [0]}))
    else:
        query = query_of(subscribe=f"{anew.topic},{kept.topic}", kafka__group__protocol=assigned_by)
    wait_until(lambda: query.plannable().keys() == {anew, kept}, "both are assigned")
    query.proofs.committed(hand_out(query, anew, kept))
    wait_until(lambda: kafka.committed(group_id) == {anew: 5, kept: 5}, "all is committed")

    def topic_id() -> UUID | None:
        return query.state_of([anew]).topic_ids.get(anew)

    wait_until(lambda: topic_id() is not None, "it is known which topic this is")
    old = topic_id()
    kafka.delete_topic(anew.topic)
    kafka.create_topic(anew.topic, partitions=1)
    kafka.produce(anew.topic, [b"new"] * new)
    wait_until(lambda: query.plannable().get(anew) == 0, "the new one is read from its beginning")
    assert query.deletions.take() == {anew: 5}
    assert query.plannable()[kept] == 5
    wait_until(lambda: kafka.committed(group_id) == {anew: 0, kept: 5}, "so the group has it")
    wait_until(lambda: topic_id() not in (None, old), "it is the new one that is read")
    query.raise_failure()


@pytest.mark.parametrize("assigned_by", [*PROTOCOLS, "name"])
def test_a_deletion_is_told_once_also_when_the_topic_is_there_again(
    kafka: LocalKafka,
    two_topics: tuple[TopicPartition, TopicPartition],
    query_of: Callable[..., QueryMembership],
    assigned_by: str,
) -> None:
    """Where it is assigned by name, it was told once more when the new one was found."""
    gone, kept = two_topics
    if assigned_by == "name":
        query = query_of(assign=json.dumps({gone.topic: [0], kept.topic: [0]}))
    else:
        query = query_of(subscribe=f"{gone.topic},{kept.topic}", kafka__group__protocol=assigned_by)
    wait_until(lambda: query.plannable().keys() == {gone, kept}, "both are assigned")
    query.proofs.committed(hand_out(query, gone, kept))
    wait_until(lambda: query.state_of([gone]).topic_ids.keys() == {gone}, "it is known by its id")
    told = {}
    kafka.delete_topic(gone.topic)

    def is_told() -> bool:
        query.log_ends.end_offsets(list(query.plannable()))  # as every trigger asks
        told.update(query.deletions.take())
        return bool(told)

    wait_until(is_told, "it is told")
    assert told == {gone: 5}
    kafka.create_topic(gone.topic, partitions=1)
    kafka.produce(gone.topic, [b"new"])

    def is_read() -> bool:
        query.wait_for_change()  # a classic leader finds topics with the metadata
        return query.plannable().get(gone) == 0

    wait_until(is_read, "the new one is read from its beginning")
    assert query.deletions.take() == {}
    assert query.plannable()[kept] == 5


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("once", ["owned it", "never owned it"])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_topic_that_another_query_had_is_read_from_its_first_record_when_it_is_there_again(
    kafka: LocalKafka,
    topic_name: str,
    query_of: Callable[..., QueryMembership],
    protocol: str,
    once: str,
    at_once: bool,
) -> None:
    """It began as ``startingOffsets`` says, or where it had been, in the topic of before."""
    both = {TopicPartition(f"{topic_name}.{name}", 0) for name in "ab"}
    for partition in both:
        kafka.create_topic(partition.topic, partitions=1)
        kafka.produce(partition.topic, [b"old"] * 5)
    options = {
        "subscribe": ",".join(p.topic for p in both),
        "startingOffsets": "latest",
        "readers": "1",
        "kafka__group__protocol": protocol,
        "kafka__heartbeat__interval__ms": "500",
    }
    first = query_of(**options)
    wait_until(lambda: first.plannable().keys() == both, "the first has both")
    second = query_of(**options)
    wait_until(lambda: len(first.plannable()) == len(second.plannable()) == 1, "they share")
    stays, fails = (first, second) if once == "owned it" else (second, first)
    [kept] = stays.plannable()
    [gone] = both - {kept}
    if once == "owned it":
        time.sleep(4)  # for a while it is looked for as its own
    kafka.delete_topic(gone.topic)

    def is_found_deleted() -> bool:
        fails.log_ends.end_offsets([gone])  # as every trigger asks
        return bool(fails.deletions.take())

    wait_until(is_found_deleted, "who has it finds it deleted")
    fails.stop()
    until = time.monotonic() + (0 if at_once else 6)
    while True:
        # A classic leader may assign by metadata of before what the other has left behind.
        assert stays.deletions.take() == {}, "it is not the other's to miss"
        stays.raise_failure()
        if time.monotonic() >= until:
            break
        time.sleep(0.02)
    kafka.create_topic(gone.topic, partitions=1)
    kafka.produce(gone.topic, [b"anew"] * 7)

    def is_assigned() -> bool:
        stays.wait_for_change()  # a classic leader finds topics with the metadata
        return gone in stays.plannable()

    wait_until(is_assigned, "it has both")
    assert stays.plannable() == {gone: 0, kept: 5}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_was_deleted_between_two_runs_and_is_there_again_in_the_second_is_read_from_the_first(
    kafka: LocalKafka,
    two_topics: tuple[TopicPartition, TopicPartition],
    topic_name: str,
    group_id: str,
    query_of: Callable[..., QueryMembership],
    protocol: str,
) -> None:
    """The checkpoint has where the query had come to in the topic of before."""
    gone, kept = two_topics
    options = {
        "subscribePattern": f"{topic_name}.*",
        "kafka__metadata__max__age__ms": "500",
        "kafka__group__protocol": protocol,
    }
    first = query_of(**options)
    wait_until(lambda: first.plannable().keys() == {gone, kept}, "both are assigned")
    first.proofs.committed(hand_out(first, gone, kept))
    first.commits.wait_until_acknowledged()
    positions = dict(first.offset_without_ranges().others)
    assert positions == {gone: 5, kept: 5}
    first.stop()
    kafka.delete_topic(gone.topic)
    wait_until(lambda: kafka.committed(group_id) == {kept: 5}, "the group has dropped it")
    second = query_of(restored=positions, **options)
    wait_until(lambda: second.plannable() == {kept: 5}, "the other is assigned")
    assert second.offset_without_ranges().others == {kept: 5}, "for a restart"
    kafka.create_topic(gone.topic, partitions=1)
    kafka.produce(gone.topic, [b"anew"] * 7)
    # While one member alone knows the new topic, the other gets what is known to both.
    wait_until(
        lambda: second.plannable().keys() == {gone, kept}, "what is created anew is assigned"
    )
    assert second.plannable() == {gone: 0, kept: 5}
