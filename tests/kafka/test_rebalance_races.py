"""What happens at the same time as a rebalance: each test is named after what races what."""

from __future__ import annotations

import math
import threading
from collections import Counter

import pytest
from group_members import (
    PATIENCE_S,
    counted,
    held,
    is_closing,
    lose,
    loss_waits,
    lost,
    owns,
    poll_until,
    records,
    revoked,
    share,
    wait_until,
)
from kafka import KafkaAdminClient
from kafka.protocol.consumer import (
    JoinGroupRequest,
    OffsetCommitRequest,
    SyncGroupRequest,
)
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance import DeferredRevokeConsumer
from pyspark_kafka_rebalance.consumer.group_description import describe_group
from pyspark_kafka_rebalance.consumer.messages import ConsumerGroupHeartbeatRequest
from pyspark_kafka_rebalance.consumer.protocol import join

pytestmark = pytest.mark.each_protocol

classic_only = pytest.mark.parametrize("protocol", ["classic"], indirect=True)


@classic_only
@pytest.mark.parametrize("held_back", [JoinGroupRequest, SyncGroupRequest])
def test_lost_while_a_rebalance_is_under_way(kafka, topic_name, consumers, held_back):
    """max_poll_interval_ms expires in mid-join: the join's answer must not be applied any more."""
    kafka.create_topic(topic_name, partitions=2)
    first = consumers(topic_name, max_poll_interval_ms=2_000)
    poll_until(owns(first, 2), first)
    with held(first, held_back, answer=True) as joining:
        second = consumers(topic_name)
        poll_until(joining.is_set, second)
        poll_until(lambda: loss_waits(first), second)
        poll_until(owns(second, 2), second)
    result = first.poll_with_rebalance(timeout_ms=20)
    assert len(result.lost) == 2
    assert first.assignment() == result.assigned == result.revoked == frozenset()
    poll_until(share(first, second, partitions=2), first, second)


def members_in(kafka, group_id):
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    try:
        return len(describe_group(admin, group_id).members)
    finally:
        admin.close()


@pytest.mark.parametrize("session_timeout_ms", [45_000])
def test_closed_during_the_first_join(kafka, topic_name, group_id, protocol, consumers):
    """The coordinator kept a member that nobody was, with its share, until its session ended."""
    kafka.create_topic(topic_name, partitions=4)
    first = consumers(topic_name)
    poll_until(owns(first, 4), first)
    newcomer = consumers(topic_name)
    # The newcomer's join is held by the coordinator, or its answer by the network.
    slow, request, answer = {
        "classic": (first, JoinGroupRequest, False),
        "consumer": (newcomer, ConsumerGroupHeartbeatRequest, True),
    }[protocol]
    with held(slow, request, answer=answer) as holding:
        poll_until(lambda: holding.is_set() and members_in(kafka, group_id) == 2, first, newcomer)
        newcomer.close(timeout_ms=2_000)
        assert members_in(kafka, group_id) == 1
    poll_until(owns(first, 4), first)


@classic_only
def test_closed_before_its_member_id_has_come(kafka, topic_name, consumers):
    """The coordinator waits for one to whom it gave an id: nobody else's join was answered."""
    kafka.create_topic(topic_name, partitions=4)
    first = consumers(topic_name)
    poll_until(owns(first, 4), first)
    newcomer = consumers(topic_name, session_timeout_ms=180_000)
    with held(newcomer, JoinGroupRequest, answer=True) as naming:
        poll_until(naming.is_set, first, newcomer)
        closing = threading.Thread(target=newcomer.close)
        closing.start()
        wait_until(lambda: is_closing(newcomer), "the close to begin")
    closing.join()
    second = consumers(topic_name)
    poll_until(share(first, second, partitions=4), first, second)


def test_lost_in_a_deferral(kafka, topic_name, consumers):
    """What is lost cannot be completed: loss is looked for first."""
    kafka.create_topic(topic_name, partitions=4)
    first = consumers(topic_name, max_poll_interval_ms=2_000)
    poll_until(owns(first, 4), first)
    second = consumers(topic_name)
    poll_until(lambda: len(first._ownership.revoking) == 2, first, second, hold=True)
    assert first.poll_with_rebalance(timeout_ms=20).to_be_revoked  # complete in the next poll
    poll_until(owns(second, 4), second)
    result = first.poll_with_rebalance(timeout_ms=20)
    assert len(result.lost) == 4
    assert result.revoked == result.to_be_revoked == frozenset()
    results = poll_until(share(first, second, partitions=4), first, second)
    assert not any(map(lost, results.values())), "lost again, later"


def test_assigned_and_lost_in_one_poll(kafka, topic_name, consumers):
    """The result named the partition as newly assigned although it was gone again."""
    kafka.create_topic(topic_name, partitions=2)
    member = consumers(topic_name)

    def lose_what_is_assigned() -> None:
        wait_until(lambda: len(member.assignment()) == 2, "an assignment")
        lose(member, keep_member_id=True)

    loser = threading.Thread(target=lose_what_is_assigned)
    loser.start()
    result = member.poll_with_rebalance(timeout_ms=PATIENCE_S * 1000)  # a loss ends it
    loser.join()
    assert len(result.lost) == 2
    assert result.assigned == member.assignment() == frozenset()
    poll_until(owns(member, 2), member)


def test_assigned_and_revoked_at_once(kafka, topic_name, consumers):
    """One poll brings partitions and the request to give one of them up."""
    kafka.create_topic(topic_name, partitions=6)
    first = consumers(topic_name)
    poll_until(owns(first, 6), first)
    second = consumers(topic_name)
    results = []

    def poll_once() -> None:
        results.append(second.poll_with_rebalance(timeout_ms=PATIENCE_S * 1000))

    poller = threading.Thread(target=poll_once)
    poller.start()
    poll_until(lambda: len(second.assignment()) == 3, first)
    third = consumers(topic_name)
    poll_until(lambda: not poller.is_alive(), first, third)
    poller.join()
    (result,) = results
    assert len(result.assigned) == 3
    assert len(result.to_be_revoked) == 1
    assert result.to_be_revoked < result.assigned <= second.assignment()
    poll_until(share(first, second, third, partitions=6), first, second, third)
    assert result.to_be_revoked <= third.assignment()


def test_buffered_records_of_a_revoked_partition(kafka, topic_name, consumers):
    """They are neither handed out while the revoke waits, nor kept until the partition is back."""
    kafka.create_topic(topic_name, partitions=4)
    kafka.produce(topic_name, [b"x"] * 80)
    first = consumers(topic_name, max_poll_records=1)
    polled = {}
    poll_until(lambda: len(records(polled[first])) >= 8, first, results=polled)
    second = consumers(topic_name)

    def revoke_is_requested() -> bool:
        first.delay_revoke(first.poll_membership().to_be_revoked)  # reads nothing
        return len(first._ownership.revoking) == 2

    poll_until(revoke_is_requested, second, results=polled)
    moving = first._ownership.revoking
    assert all(first.position(p) < 20 for p in moving), "nothing is left in the buffers"
    before = len(records(polled[first]))
    poll_until(
        lambda: len(records(polled[first])) >= before + 4, first, second, hold=True, results=polled
    )
    first.commit_processed({p: first.position(p) for p in first.assignment()})
    poll_until(
        lambda: len(records(polled[first] + polled[second])) >= 80, first, second, results=polled
    )
    second.commit_processed(dict.fromkeys(moving, 20))
    second.close()
    poll_until(owns(first, 4), first, results=polled)
    kafka.produce(topic_name, [b"y"] * 4)
    poll_until(
        lambda: {(p, 20) for p in moving} <= set(records(polled[first])), first, results=polled
    )
    ledger = Counter(records(polled[first] + polled[second]))
    assert set(ledger.values()) == {1}, "handed out twice"


def test_a_fetch_that_is_answered_during_the_revoke(kafka, topic_name, consumers):
    """Its records belong to the next owner."""
    kafka.create_topic(topic_name, partitions=4)
    first = consumers(
        topic_name, fetch_min_bytes=10_000, fetch_max_wait_ms=15_000, request_timeout_ms=30_000
    )
    polled = {}
    poll_until(owns(first, 4), first, results=polled)
    poll_until(lambda: first._fetcher.in_flight_fetches(), first, results=polled)
    second = consumers(topic_name)
    poll_until(
        lambda: len(first._ownership.revoking) == 2, first, second, hold=True, results=polled
    )
    moving = first._ownership.revoking
    assert first._fetcher.in_flight_fetches(), "no fetch is waiting, so this proves nothing"
    kafka.produce(topic_name, [bytes(5_000)] * 16)
    poll_until(lambda: len(records(polled[first])) == 8, first, second, hold=True, results=polled)
    poll_until(lambda: len(records(polled[second])) == 8, first, second, results=polled)
    assert {p for p, _ in records(polled[second])} == moving
    assert set(Counter(records(polled[first] + polled[second])).values()) == {1}


@classic_only
def test_a_commit_racing_a_revoke(kafka, topic_name, group_id, consumers):
    """It reaches the broker with the generation before: sent again, and the release waits."""
    kafka.create_topic(topic_name, partitions=4)
    kafka.produce(topic_name, [b"x"] * 40)
    first = consumers(topic_name)
    poll_until(owns(first, 4), first)
    second = consumers(topic_name)
    poll_until(lambda: len(first._ownership.revoking) == 2, first, second, hold=True)
    moving, before = first._ownership.revoking, first.generation
    with held(first, OffsetCommitRequest, answer=False) as committing:
        first.commit_processed(dict.fromkeys(first.assignment(), 5))
        assert committing.wait(PATIENCE_S)
        third = consumers(topic_name)
        members = (first, second, third)
        results = poll_until(lambda: first.generation > before, *members)
        assert first.assignment().isdisjoint(moving), "to the application they are released"
        assert second.assignment() == third.assignment() == frozenset(), "to the group they are not"
    poll_until(share(*members, partitions=4), *members, results=results)
    assert not any(map(lost, results.values()))
    newcomers = records(results[second] + results[third])
    assert kafka.committed(group_id).keys() >= moving
    assert {p for p, offset in newcomers if offset < 5} == set(), "read again"


@classic_only
def test_a_revoke_that_is_taken_back_in_a_deferral(kafka, topic_name, consumers):
    kafka.create_topic(topic_name, partitions=4)
    kafka.produce(topic_name, [b"x"] * 40)
    first = consumers(topic_name)
    poll_until(owns(first, 4), first)
    second = consumers(topic_name)
    polled = {}
    poll_until(
        lambda: len(first._ownership.revoking) == 2, first, second, hold=True, results=polled
    )
    moving = first._ownership.revoking
    second.close()
    poll_until(lambda: not first._ownership.revoking, first, hold=True, results=polled)
    kafka.produce(topic_name, [b"y"] * 4)
    poll_until(
        lambda: {(p, 10) for p in moving} <= set(records(polled[first])), first, results=polled
    )
    still_runs = [p for p in moving if first._ownership.is_overdue(p, now=math.inf)]
    assert not still_runs, "its deadline still runs"
    assert revoked(polled[first]) == lost(polled[first]) == frozenset()
    assert first.get_to_be_revoked_partitions() == frozenset()
    assert owns(first, 4)()


def test_partitions_are_added_in_a_deferral(kafka, topic_name, consumers):
    kafka.create_topic(topic_name, partitions=6)
    first = consumers(topic_name, metadata_max_age_ms=300)
    poll_until(owns(first, 6), first)
    second = consumers(topic_name, metadata_max_age_ms=300)
    poll_until(lambda: len(first._ownership.revoking) == 3, first, second, hold=True)
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    try:
        # On broker 1; 3.0.5 sends an empty list of assignments if it is given none.
        admin.create_partitions({topic_name: {"count": 8, "assignments": [[1], [1]]}})
    finally:
        admin.close()
    # In the consumer protocol only who has nothing to give up gets something new.
    poll_until(lambda: bool(second.assignment()), first, second, hold=True)
    assert second.assignment() <= {TopicPartition(topic_name, n) for n in (6, 7)}
    assert first._ownership.revoking, "not deferred any more, so this proves nothing"
    poll_until(share(first, second, partitions=8), first, second)


def test_a_topic_deleted_with_commits_outstanding(kafka, topic_name, consumers):
    """A commit that cannot succeed any more must not keep its partition from being let go."""
    names = [f"{topic_name}.a", f"{topic_name}.b"]
    for name in names:
        kafka.create_topic(name, partitions=2)
    first = consumers(metadata_max_age_ms=300)
    first.subscribe(pattern=f"^{topic_name}")
    poll_until(owns(first, 4), first)
    with held(first, OffsetCommitRequest, answer=False) as committing:
        first.commit_processed(dict.fromkeys(first.assignment(), 0))
        assert committing.wait(PATIENCE_S)
        kafka.delete_topic(names[1])
        results = poll_until(lambda: len(first.assignment()) == 2, first)
    poll_until(lambda: first._io.subscription.owned() == first.assignment(), first, results=results)
    assert {p.topic for p in first.assignment()} == {names[0]}
    assert not lost(results[first])
    partition = TopicPartition(names[0], 0)
    first.commit_processed({partition: 1})
    assert first.drain(PATIENCE_S * 1000)
    assert first.acknowledged(partition) == 1


@classic_only
@pytest.mark.parametrize("session_timeout_ms", [45_000])
@pytest.mark.parametrize("join_version", [join._JOIN_VERSION, 7])
@pytest.mark.parametrize("grown", ["before", "after"])
def test_a_topic_grows_when_all_static_members_are_restarted(
    kafka, topic_name, consumers, monkeypatch, join_version, grown
):
    """Its new partitions were nobody's: the leader that came back did not know that it leads."""
    monkeypatch.setattr(join, "_JOIN_VERSION", join_version)
    kafka.create_topic(topic_name, partitions=3)

    def started() -> list[DeferredRevokeConsumer]:
        return [
            consumers(topic_name, metadata_max_age_ms=300, group_instance_id=f"static-{n}")
            for n in range(3)
        ]

    def grow() -> None:
        admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
        try:
            admin.create_partitions({topic_name: {"count": 6, "assignments": [[1]] * 3}})
        finally:
            admin.close()

    members = started()
    poll_until(share(*members, partitions=3), *members)
    for member in members:
        member.close()
    if grown == "before":
        grow()
    members = started()
    if grown == "after":
        poll_until(share(*members, partitions=3), *members)
        grow()
    polled = poll_until(share(*members, partitions=6), *members)
    assert not any(map(lost, polled.values()))


@classic_only
@pytest.mark.parametrize("session_timeout_ms", [45_000])
def test_a_static_member_returns_with_one_more_topic(kafka, topic_name, consumers):
    """It never got it: a static member that comes back does not make the group rebalance."""
    topics = [f"{topic_name}.{name}" for name in "ab"]
    for topic in topics:
        kafka.create_topic(topic, partitions=2)
    other = consumers(topics[0], group_instance_id="other")
    poll_until(owns(other, 2), other)
    returning = consumers(topics[0], group_instance_id="returning")
    poll_until(share(other, returning, partitions=2), other, returning)
    kept = returning.assignment()
    returning.close()
    returning = consumers(*topics, group_instance_id="returning")
    poll_until(owns(returning, 3), other, returning)
    assert kept <= returning.assignment()


@classic_only
@pytest.mark.parametrize("session_timeout_ms", [45_000])
def test_a_static_member_that_returns_as_it_was_makes_nobody_join(kafka, topic_name, consumers):
    kafka.create_topic(topic_name, partitions=4)
    leader = consumers(topic_name, group_instance_id="leader")
    poll_until(owns(leader, 4), leader)
    other = consumers(topic_name, group_instance_id="other")
    poll_until(share(leader, other, partitions=4), leader, other)
    generation = other.generation
    with counted(other, JoinGroupRequest) as joins:
        leader.close()
        leader = consumers(topic_name, group_instance_id="leader")
        poll_until(share(leader, other, partitions=4), leader, other)
        assert leader.generation == other.generation == generation
        assert joins == []
