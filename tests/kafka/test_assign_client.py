"""The client of ``assign`` on a real broker: offsets without a membership."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from flaky_network import FlakyNetwork
from group_members import MakeMember, poll_until, wait_until
from kafka import KafkaAdminClient
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.consumer.consumer import DeferredRevokeConsumer
from pyspark_kafka_rebalance.consumer.group_description import describe_group
from pyspark_kafka_rebalance.consumer.offsets.commit_metadata import Remaining
from pyspark_kafka_rebalance.consumer.offsets.offset_set import Gap
from pyspark_kafka_rebalance.errors import KafkaRebalanceError, MembershipError
from pyspark_kafka_rebalance.source.group.clients import assign_client
from pyspark_kafka_rebalance.source.group.clients.assign_client import AssignClient
from pyspark_kafka_rebalance.testing import LocalKafka

MakeClient = Callable[..., AssignClient]


@pytest.fixture
def client_of(kafka: LocalKafka, group_id: str) -> Iterator[MakeClient]:
    """Make clients of partitions; closed at the end."""
    with ExitStack() as stack:

        def make(*partitions: TopicPartition, **config: Any) -> AssignClient:
            consumer = DeferredRevokeConsumer(
                bootstrap_servers=kafka.bootstrap_servers,
                group_id=group_id,
                reconnect_backoff_max_ms=200,
                **config,
            )
            client = AssignClient(consumer, partitions)
            stack.callback(client.close, timeout_ms=2_000)
            return client

        yield make


def polls_until(client: AssignClient, done: Callable[[], bool]) -> None:
    """Poll as the pump does."""

    def polled() -> bool:
        client.poll_membership()
        return done()

    wait_until(polled, "the client gets there")


def acknowledged(client: AssignClient, offset: int, *partitions: TopicPartition) -> bool:
    return all(client.acknowledged(p) == offset for p in partitions)


def test_all_is_assigned_at_once_and_committed_without_a_member(
    kafka: LocalKafka, topic_name: str, group_id: str, client_of: MakeClient
) -> None:
    kafka.create_topic(topic_name, partitions=3)
    first, other, third = (TopicPartition(topic_name, n) for n in range(3))
    client = client_of(first, third)
    found = client.poll_membership()
    assert (found.assigned, found.lost, found.revoked) == ({first, third}, set(), set())
    assert client.poll_membership().assigned == set()
    assert (client.is_stable, client.may_hand_out(), client.generation) == (True, True, -1)
    client.commit_processed({first: 7, third: 9})
    assert client.drain(60_000)
    assert kafka.committed(group_id) == {first: 7, third: 9}
    assert client.committed_offsets([first, other], 60_000) == {first: 7}
    client.forget_commits([first])
    client.commit_processed({first: 3})
    polls_until(client, lambda: acknowledged(client, 3, first))
    assert kafka.committed(group_id) == {first: 3, third: 9}
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    assert describe_group(admin, group_id).members == ()
    admin.close()


def test_the_group_does_not_forget_partitions_that_are_quiet(
    kafka: LocalKafka,
    topic_name: str,
    group_id: str,
    client_of: MakeClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The offset of one was there before this client, the other's is its own."""
    kafka.create_topic(topic_name, partitions=3)
    before, own, never = (TopicPartition(topic_name, n) for n in range(3))
    client = client_of(before)
    client.commit_processed({before: 7})
    assert client.drain(60_000)
    client = client_of(before, own, never)
    assert client.committed_offsets([before, own], 60_000) == {before: 7}
    client.commit_processed({own: 9})
    assert client.drain(60_000)
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    admin.delete_groups([group_id])  # as the broker does after a week without a commit
    admin.close()
    assert kafka.committed(group_id) == {}
    monkeypatch.setattr(assign_client, "_COMMIT_ANEW_S", 0.0)
    client._commit_anew_at = 0.0
    polls_until(client, lambda: kafka.committed(group_id) == {before: 7, own: 9})
    client.commit_processed({own: 12})
    polls_until(client, lambda: kafka.committed(group_id) == {before: 7, own: 12})


@pytest.mark.parametrize("in_order", [False, True])
def test_what_an_earlier_run_had_read_beyond_is_committed_anew_with_its_offset(
    kafka: LocalKafka,
    topic_name: str,
    group_id: str,
    client_of: MakeClient,
    monkeypatch: pytest.MonkeyPatch,
    in_order: bool,
) -> None:
    """The commit after a quiet hour said that nothing beyond the offset was read."""
    kafka.create_topic(topic_name)
    partition = TopicPartition(topic_name, 0)
    left = Remaining(500, (Gap(70, 120),))
    before = client_of(partition)
    before.commit_remaining({partition: left})
    assert before.drain(60_000)
    client = client_of(partition)
    told = client.group_commits([partition], 60_000, in_order)[partition].remaining
    assert told == (Remaining(70) if in_order else left)
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    admin.delete_groups([group_id])  # to see the commit
    admin.close()
    monkeypatch.setattr(assign_client, "_COMMIT_ANEW_S", 0.0)
    client._commit_anew_at = 0.0
    for hour in range(2):
        polls_until(client, lambda: kafka.committed(group_id) == {partition: 70})
        assert client.drain(60_000)
        found = client._client.group_commits([partition], 60_000)[partition].remaining
        assert found == left, f"after {hour + 1} hours"


def test_a_group_with_members_takes_no_commits(
    kafka: LocalKafka, topic_name: str, group_id: str, consumers: MakeMember, client_of: MakeClient
) -> None:
    """A member of either protocol, which came when the client had committed already."""
    kafka.create_topic(topic_name, partitions=2)
    partitions = [TopicPartition(topic_name, n) for n in range(2)]
    client = client_of(*partitions)
    client.commit_processed(dict.fromkeys(partitions, 1))
    assert client.drain(60_000)
    member = consumers(topic_name)
    poll_until(lambda: len(member.assignment()) == 2, member)
    client.commit_processed(dict.fromkeys(partitions, 2))
    with pytest.raises(MembershipError) as caught:
        client.drain(60_000)
    message = str(caught.value)
    assert f"group {group_id!r} has active members (UnknownMemberIdError)" in message
    assert f"{topic_name}-0, {topic_name}-1" in message
    assert not client.may_hand_out()
    with pytest.raises(MembershipError):
        client.poll_membership()
    assert kafka.committed(group_id) == dict.fromkeys(partitions, 1)


def test_what_does_not_exist_is_named(
    kafka: LocalKafka, topic_name: str, client_of: MakeClient
) -> None:
    kafka.create_topic(topic_name, partitions=2)
    absent = f"{topic_name}.absent"
    with pytest.raises(KafkaRebalanceError) as caught:
        client_of(*(TopicPartition(topic_name, n) for n in range(4)), TopicPartition(absent, 0))
    named = f"assign names partitions that do not exist: {topic_name}-2, {topic_name}-3, {absent}-0"
    assert str(caught.value) == named


def test_a_topic_is_deleted(kafka: LocalKafka, topic_name: str, client_of: MakeClient) -> None:
    kept, gone = TopicPartition(topic_name, 0), TopicPartition(f"{topic_name}.gone", 0)
    for p in (kept, gone):
        kafka.create_topic(p.topic, partitions=1)
    client = client_of(kept, gone, metadata_max_age_ms=200)
    assert client.poll_membership().assigned == {kept, gone}
    kafka.delete_topic(gone.topic)
    results = []
    wait_until(lambda: bool(results.append(client.poll_membership()) or results[-1].lost), "lost")
    assert results[-1].lost == {gone}
    kafka.create_topic(gone.topic, partitions=1)
    wait_until(lambda: bool(results.append(client.poll_membership()) or results[-1].assigned), "")
    assert results[-1].assigned == {gone}
    client.commit_processed({kept: 5, gone: 6})
    assert client.drain(60_000)


@pytest.mark.parametrize("with_gaps", [False, True])
def test_a_commit_of_a_deleted_partition_has_it_looked_for(
    kafka: LocalKafka,
    topic_name: str,
    client_of: MakeClient,
    monkeypatch: pytest.MonkeyPatch,
    with_gaps: bool,
) -> None:
    """With metadata as old as they become by default.

    It was committed again as soon as the coordinator had refused it, 180 times a second.
    """
    kafka.create_topic(topic_name, partitions=1)
    partition = TopicPartition(topic_name, 0)
    client = client_of(partition)
    client.poll_membership()
    client._client.existing_topics(60_000)  # no request for them is on its way any more
    kafka.delete_topic(topic_name)
    sent: list[Any] = []
    commit = client._commits._loop._lane.commit

    async def count_and_commit(*arguments: Any) -> Any:
        sent.append(arguments)
        return await commit(*arguments)

    monkeypatch.setattr(client._commits._loop._lane, "commit", count_and_commit)

    def is_lost() -> bool:  # as the pump goes on, which has something to commit
        if with_gaps:
            client.commit_remaining({partition: Remaining(5)})
        else:
            client.commit_processed({partition: 5})
        return bool(client.poll_membership().lost)

    wait_until(is_lost, "it is found deleted")
    assert 1 <= len(sent) <= 5, "one for each look for it, or so"


def test_one_answer_that_does_not_know_a_partition_is_no_deletion(
    kafka: LocalKafka,
    topic_name: str,
    client_of: MakeClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker that has just started may not know it yet."""
    kafka.create_topic(topic_name, partitions=1)
    partition = TopicPartition(topic_name, 0)
    client = client_of(partition)
    answers = [frozenset({partition}), frozenset[TopicPartition]()]
    assert client.poll_membership().assigned == {partition}
    monkeypatch.setattr(client, "_ask_for_missing", lambda timeout_ms: answers.pop(0))
    client._commits._loop._unknown = frozenset({partition})
    while answers:
        assert client.poll_membership().lost == set()


def test_commits_go_on_when_the_coordinator_is_there_again(
    kafka: LocalKafka, topic_name: str, group_id: str, client_of: MakeClient, network: FlakyNetwork
) -> None:
    kafka.create_topic(topic_name, partitions=1)
    partition = TopicPartition(topic_name, 0)
    client = client_of(partition, proxy_url=network.url)
    client.commit_processed({partition: 1})
    assert client.drain(60_000)
    network.cut()
    client.commit_processed({partition: 2})
    assert not client.drain(500)
    network.mend()
    polls_until(client, partial(acknowledged, client, 2, partition))
    assert kafka.committed(group_id) == {partition: 2}
