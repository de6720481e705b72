"""A checkpoint is older than what its query has committed: restored, copied, or both.

tests/spark/test_restored_checkpoint.py has whole queries.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from group_members import wait_until
from kafka import KafkaAdminClient
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance import DeferredRevokeConsumer
from pyspark_kafka_rebalance.consumer.offsets.offset_set import Gap
from pyspark_kafka_rebalance.fetch.offset_range import OffsetRange
from pyspark_kafka_rebalance.source.group.membership import QueryMembership
from pyspark_kafka_rebalance.source.group.starts import rival_runs
from pyspark_kafka_rebalance.source.offsets.query_identity import QueryIdentity
from pyspark_kafka_rebalance.source.offsets.stream_offset import StreamOffset
from pyspark_kafka_rebalance.testing import LocalKafka

Queries = Callable[..., QueryMembership]

ANOTHER = "aa11bb22cc33dd44"


def identity(query: str = "90a1c3e5f7b2d4e6", batch: int = 1) -> QueryIdentity:
    found = QueryIdentity()
    found.restore(StreamOffset(query=query, batch=batch))
    return found


def read(query: QueryMembership, partition: TopicPartition, start: int, end: int) -> None:
    """Plan a batch, which Spark commits."""
    handed_out = query.hand_out({partition: OffsetRange(*partition, start, end)})
    assert handed_out is not None
    assert handed_out.offset.ranges, "nothing was handed out"
    offset = {"end": [partition, end]}
    query.proofs.planned(offset)
    query.proofs.committed(offset)


@pytest.fixture
def both(kafka: LocalKafka, topic_name: str) -> list[TopicPartition]:
    kafka.create_topic(topic_name, partitions=2)
    kafka.produce(topic_name, [b"x"] * 200)
    return [TopicPartition(topic_name, n) for n in range(2)]


@pytest.fixture
def original(query_of: Queries, protocol: str, topic_name: str) -> QueryMembership:
    return query_of(run="o-0riginal", identity=identity(), **options(topic_name, protocol))


def options(topic: str, protocol: str) -> dict[str, str]:
    return {"subscribe": topic, "readers": "1", "kafka__group__protocol": protocol}


def has_read(
    kafka: LocalKafka, group_id: str, query: QueryMembership, both: list[TopicPartition]
) -> None:
    wait_until(lambda: query.plannable().keys() == set(both), "the original has both")
    for partition in both:
        read(query, partition, 0, 70)
    wait_until(lambda: kafka.committed(group_id) == dict.fromkeys(both, 70), "it has committed")


def test_a_copy_of_a_live_querys_checkpoint_is_another_query(
    kafka: LocalKafka,
    topic_name: str,
    group_id: str,
    protocol: str,
    both: list[TopicPartition],
    original: QueryMembership,
    query_of: Queries,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What the original has delivered is not read again, and the group is not set back."""
    has_read(kafka, group_id, original, both)
    copied = identity()
    copy = query_of(dict.fromkeys(both, 40), "c-0copy", copied, **options(topic_name, protocol))
    with caplog.at_level(logging.INFO):
        wait_until(lambda: "other runs of this query are alive" in caplog.text, "it waits")
    assert copy.plannable() == {}
    monkeypatch.setattr(rival_runs, "_MARGIN_S", -1_000.0)  # its session is over
    wait_until(lambda: bool(copy.plannable()), "the copy has one")
    assert set(copy.plannable().values()) == {70}
    assert copied.id != identity().id
    assert f"query {identity().id} also runs elsewhere (0riginal)" in caplog.text
    assert kafka.committed(group_id) == dict.fromkeys(both, 70)
    # Each reads on, under its own id.
    [taken] = copy.plannable()
    [kept] = set(both) - {taken}
    read(copy, taken, 70, 90)
    read(original, kept, 70, 80)
    wait_until(lambda: kafka.committed(group_id) == {taken: 90, kept: 80}, "both are committed")


def test_a_query_that_is_only_about_to_end_is_no_other(
    kafka: LocalKafka,
    topic_name: str,
    group_id: str,
    protocol: str,
    both: list[TopicPartition],
    original: QueryMembership,
    query_of: Queries,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The checkpoint was restored while the planner before had not left its group."""
    has_read(kafka, group_id, original, both)
    restored = identity()
    query = query_of(
        dict.fromkeys(both, 40), "r-0restored", restored, **options(topic_name, protocol)
    )
    with caplog.at_level(logging.INFO):
        wait_until(lambda: "other runs of this query are alive" in caplog.text, "it waits")
    original.stop()
    wait_until(lambda: query.plannable() == dict.fromkeys(both, 40), "it follows its checkpoint")
    assert restored.id == identity().id
    assert kafka.committed(group_id) == dict.fromkeys(both, 40)
    assert f"{topic_name}-0 from 40 on, committed: 70" in caplog.text


def test_a_checkpoint_that_does_not_know_a_partition_yet(
    kafka: LocalKafka,
    topic_name: str,
    group_id: str,
    protocol: str,
    both: list[TopicPartition],
    original: QueryMembership,
    query_of: Queries,
) -> None:
    """The backup is of the query's first moments: it begins where it had begun."""
    has_read(kafka, group_id, original, both)
    original.stop()
    query = query_of({both[0]: 40}, "r-0restored", identity(), **options(topic_name, protocol))
    wait_until(lambda: query.plannable() == {both[0]: 40, both[1]: 0}, "it has both")


def test_the_groups_offsets_were_deleted_and_then_the_checkpoint_went_back(
    kafka: LocalKafka,
    topic_name: str,
    group_id: str,
    protocol: str,
    both: list[TopicPartition],
    original: QueryMembership,
    query_of: Queries,
) -> None:
    """What only the checkpoint knew counts as the query's own, also below that."""
    has_read(kafka, group_id, original, both)
    original.stop()
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    admin.delete_groups([group_id])
    admin.close()
    again = query_of(
        dict.fromkeys(both, 70), "r-1again", identity(), **options(topic_name, protocol)
    )
    wait_until(lambda: kafka.committed(group_id) == dict.fromkeys(both, 70), "it is back")
    again.stop()
    query = query_of(
        dict.fromkeys(both, 40), "r-2back", identity(), **options(topic_name, protocol)
    )
    wait_until(lambda: query.plannable() == dict.fromkeys(both, 40), "it follows its checkpoint")


def test_the_backup_was_made_while_catching_up_and_another_query_went_on_behind(
    kafka: LocalKafka,
    topic_name: str,
    group_id: str,
    protocol: str,
    both: list[TopicPartition],
    original: QueryMembership,
    query_of: Queries,
) -> None:
    """The gaps of the backup were left out: the restored sink lacks what the query had read of
    them since.
    """
    has_read(kafka, group_id, original, both)
    original.stop()
    other = query_of(run="o-1other", **options(topic_name, protocol))
    wait_until(lambda: other.plannable() == dict.fromkeys(both, 70), "the other has both")
    for partition in both:
        read(other, partition, 70, 90)
    other.stop()
    assert kafka.committed(group_id) == dict.fromkeys(both, 90)
    query = query_of(
        dict.fromkeys(both, 40),
        "r-2restored",
        identity(),
        gaps=dict.fromkeys(both, (Gap(10, 20),)),
        parallelRebalance="live",
        **options(topic_name, protocol),
    )
    wait_until(lambda: query.plannable() == dict.fromkeys(both, 90), "live behind the other")
    assert kafka.committed(group_id) == dict.fromkeys(both, 10)
    gaps = query.offset_without_ranges().gaps
    left = (Gap(10, 20), Gap(40, 70))
    assert {p: tuple(found) for p, found in gaps.items()} == dict.fromkeys(both, left)


@pytest.fixture
def set_back(
    kafka: LocalKafka,
    topic_name: str,
    group_id: str,
    protocol: str,
    both: list[TopicPartition],
    original: QueryMembership,
    query_of: Queries,
) -> None:
    """It has read up to 70, and another query up to 100. Its backup of 40 is back, and it read on.

    It has stopped at 50.
    """
    has_read(kafka, group_id, original, both)
    original.stop()
    given = options(topic_name, protocol)
    other = query_of(dict.fromkeys(both, 70), "o-1other", identity(ANOTHER), **given)
    wait_until(lambda: other.plannable() == dict.fromkeys(both, 70), "the other has both")
    for partition in both:
        read(other, partition, 70, 100)
    other.stop()
    restored = query_of(dict.fromkeys(both, 40), "r-2restored", identity(), **given)
    wait_until(lambda: restored.plannable() == dict.fromkeys(both, 40), "it is set back")
    for partition in both:
        read(restored, partition, 40, 50)
    restored.stop()
    assert kafka.committed(group_id) == dict.fromkeys(both, 50)


def at_the_groups_offsets(
    run: str, both: list[TopicPartition], query_of: Queries, given: dict[str, str]
) -> QueryMembership:
    """The other query, whose checkpoint has 100: it does not know of the set-back to 50."""
    other = query_of(dict.fromkeys(both, 100), run, identity(ANOTHER), **given)
    wait_until(lambda: other.plannable() == dict.fromkeys(both, 50), "where the group is")
    return other


@pytest.mark.usefixtures("set_back")
def test_another_query_follows_a_set_back_once(
    kafka: LocalKafka,
    topic_name: str,
    group_id: str,
    protocol: str,
    both: list[TopicPartition],
    query_of: Queries,
) -> None:
    """It died before its first commit, and delivered the same once more after each restart."""
    given = options(topic_name, protocol)
    other = at_the_groups_offsets("o-3other", both, query_of, given)
    batch = other.hand_out({p: OffsetRange(*p, 50, 130) for p in both})
    assert batch is not None
    other.stop()  # its sink has the batch, and the group does not know
    assert kafka.committed(group_id) == dict.fromkeys(both, 50)
    again = query_of(
        batch.offset.positions(),
        "o-4again",
        identity(ANOTHER, 2),
        followed=batch.offset.followed,
        **given,
    )
    wait_until(lambda: again.plannable() == dict.fromkeys(both, 130), "its own position counts")
    wait_until(lambda: kafka.committed(group_id) == dict.fromkeys(both, 130), "it is committed")


@pytest.mark.usefixtures("set_back")
def test_a_backup_of_another_query_is_older_than_the_set_back(
    kafka: LocalKafka,
    topic_name: str,
    group_id: str,
    protocol: str,
    both: list[TopicPartition],
    query_of: Queries,
) -> None:
    """What it had read again below its backup's position was in no sink."""
    given = options(topic_name, protocol)
    other = at_the_groups_offsets("o-3other", both, query_of, given)
    for partition in both:
        read(other, partition, 50, 150)
    other.stop()
    at_the_groups_offsets("o-4back", both, query_of, given)
    assert kafka.committed(group_id) == dict.fromkeys(both, 50)


def consume(member: DeferredRevokeConsumer, number: int, both: list[TopicPartition]) -> None:
    """So many records of each partition, which an application processes and commits."""
    seen: dict[TopicPartition, int] = {}

    def has_all() -> bool:
        for partition, found in member.poll(100, max_records=number).items():
            seen[partition] = seen.get(partition, 0) + len(found)
            member.commit_processed({partition: found[-1].offset + 1})
            if seen[partition] >= number:
                member.pause(partition)
        return all(seen.get(p, 0) >= number for p in both)

    wait_until(has_all, "it has the records")
    member.close()


@pytest.mark.usefixtures("set_back")
def test_a_consumer_in_between_carries_along_that_the_group_was_set_back(
    kafka: LocalKafka,
    topic_name: str,
    group_id: str,
    protocol: str,
    both: list[TopicPartition],
    query_of: Queries,
    consumers: Callable[..., DeferredRevokeConsumer],
) -> None:
    """The other query went on at its own position, and what lay below was in no sink."""
    consume(consumers(topic_name, group_protocol=protocol), 5, both)
    reached = kafka.committed(group_id)
    assert all(50 < reached[p] < 100 for p in both)
    given = options(topic_name, protocol)
    other = query_of(dict.fromkeys(both, 100), "o-3other", identity(ANOTHER), **given)
    wait_until(lambda: other.plannable() == reached, "where the consumer has stopped")


def test_a_consumer_behind_it_does_not_hide_what_the_query_itself_had_read(
    kafka: LocalKafka,
    topic_name: str,
    group_id: str,
    protocol: str,
    both: list[TopicPartition],
    original: QueryMembership,
    query_of: Queries,
    consumers: Callable[..., DeferredRevokeConsumer],
) -> None:
    has_read(kafka, group_id, original, both)
    original.stop()
    consume(consumers(topic_name, group_protocol=protocol), 5, both)
    assert all(kafka.committed(group_id)[p] > 70 for p in both)
    given = options(topic_name, protocol)
    restored = query_of(dict.fromkeys(both, 40), "r-2restored", identity(), **given)
    wait_until(lambda: restored.plannable() == dict.fromkeys(both, 40), "it follows its checkpoint")
