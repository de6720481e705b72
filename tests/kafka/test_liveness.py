"""Who keeps its partitions and who loses them: rare polls, moving coordinators, broken networks.

In test_deferred.py: a process that is stopped (SIGSTOP), one that no longer polls, a suspended
broker.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from flaky_network import FlakyNetwork
from group_members import (
    PATIENCE_S,
    committing,
    counted,
    elected_preferred,
    held,
    joining,
    losses,
    lost,
    owns,
    parts_of,
    poll_until,
    records,
    revoked,
    share,
    wait_until,
)
from kafka import KafkaConsumer
from kafka import errors as kafka_errors
from kafka.protocol.consumer import JoinGroupRequest
from kafka.structs import OffsetAndMetadata, TopicPartition

from pyspark_kafka_rebalance import DeferredRevokeConsumer
from pyspark_kafka_rebalance.consumer.messages import ConsumerGroupHeartbeatResponse
from pyspark_kafka_rebalance.testing import LocalKafka

pytestmark = pytest.mark.each_protocol

AWAY = kafka_errors.CoordinatorNotAvailableError

classic_only = pytest.mark.parametrize("protocol", ["classic"], indirect=True)

#: Longer than a broker's end is noticed and its partitions have another leader.
outlive_brokers = pytest.mark.parametrize("session_timeout_ms", [60_000])


def java_hash(text: str) -> int:
    """``String.hashCode``, without its sign."""
    found = 0
    for character in text:
        found = (31 * found + ord(character)) & 0xFFFFFFFF
    return abs(found - 2**32 if found >= 2**31 else found)


def coordinator_of(member: DeferredRevokeConsumer) -> int | None:
    """The id of the broker, if it is known."""
    lane = member._io.coordinator()
    return None if lane is None else int(lane.removeprefix("lane-"))


@pytest.mark.parametrize("session_timeout_ms", [2_500])
def test_polls_rarer_than_the_session_timeout_through_rebalances(kafka, topic_name, consumers):
    """Joins run on the I/O loop: a generation is joined, and kept alive, between two polls."""
    kafka.create_topic(topic_name, partitions=6)
    fast = consumers(topic_name)
    poll_until(owns(fast, 6), fast)
    slow = consumers(topic_name)
    polled = {}

    def poll_slowly_until(done: Callable[[], bool], *others: DeferredRevokeConsumer) -> None:
        deadline = time.monotonic() + 2 * PATIENCE_S
        while not done():
            assert time.monotonic() < deadline, "the group did not get there"
            next_poll = time.monotonic() + 3
            poll_until(lambda at=next_poll: time.monotonic() >= at, *others, results=polled)
            before = len(polled.setdefault(slow, []))
            poll_until(lambda n=before: len(polled[slow]) > n, slow, results=polled)

    poll_slowly_until(share(fast, slow, partitions=6), fast)
    third = consumers(topic_name)
    poll_slowly_until(share(fast, slow, third, partitions=6), fast, third)
    kept = slow.assignment()
    third.close()
    poll_slowly_until(share(fast, slow, partitions=6), fast)
    assert kept <= slow.assignment()
    assert lost(polled[slow]) == frozenset()


@pytest.mark.parametrize("iterate", [False, True], ids=["a poll", "iteration"])
def test_waiting_long_in_one_poll_is_being_alive(kafka, topic_name, consumers, iterate):
    """It counted as not polling, and after max_poll_interval_ms everything was lost."""
    kafka.create_topic(topic_name, partitions=2)
    member = consumers(topic_name, max_poll_interval_ms=1_000, consumer_timeout_ms=3_000)
    poll_until(owns(member, 2), member)
    generation = member.generation
    if iterate:
        assert list(member) == []
    else:
        result = member.poll_with_rebalance(timeout_ms=3_000)
        assert (result.records, result.lost) == ({}, frozenset())
    assert len(member.assignment()) == 2
    assert (member.is_stable, member.generation) == (True, generation)


@classic_only
def test_a_join_that_is_held_longer_than_the_session_timeout(kafka, topic_name, consumers, network):
    """Another member is silent: heartbeats, and the records of what stays, go on meanwhile."""
    kafka.create_topic(topic_name, partitions=4)
    session_s = 2.5
    first = consumers(topic_name, session_timeout_ms=int(session_s * 1000))
    poll_until(owns(first, 4), first)
    silent = consumers(topic_name, proxy_url=network.url, session_timeout_ms=20_000)
    poll_until(share(first, silent, partitions=4), first, silent)
    network.stall()
    third = consumers(topic_name)
    poll_until(lambda: joining(first, third), first, third)
    polled = {}
    held_until = time.monotonic() + 2 * session_s
    poll_until(lambda: time.monotonic() > held_until, first, third, results=polled)
    kafka.produce(topic_name, [b"x"] * 8)
    poll_until(lambda: len(records(polled[first])) == 4, first, third, results=polled)
    assert joining(first), "the join was not held, so this proves nothing"
    assert lost(polled[first]) == frozenset()
    network.mend()
    poll_until(share(first, silent, third, partitions=4), first, silent, third, results=polled)
    assert not any(map(lost, polled.values()))


@classic_only
@pytest.mark.parametrize("session_timeout_ms", [2_000])
def test_a_newcomer_whose_first_join_is_held_longer_than_the_session_timeout(
    kafka, topic_name, consumers
):
    """Its lease began before the join: it threw itself out at once, and the group joined again."""
    kafka.create_topic(topic_name, partitions=4)
    first = consumers(topic_name)
    poll_until(owns(first, 4), first)
    with held(first, JoinGroupRequest, answer=False) as joining:
        newcomer = consumers(topic_name)
        poll_until(joining.is_set, first, newcomer)
        held_until = time.monotonic() + 3
        poll_until(lambda: time.monotonic() > held_until, first, newcomer)
        assert newcomer.generation == -1, "the join was not held, so this proves nothing"
    poll_until(share(first, newcomer, partitions=4), first, newcomer)
    assert losses(newcomer) == 0


@classic_only
@pytest.mark.parametrize("newcomer", [True, False], ids=["newcomer", "member"])
def test_the_coordinator_vanishes_without_a_word_while_it_holds_a_join(
    kafka, topic_name, consumers, network, newcomer
):
    """The join was waited for until the rebalance timeout had passed, 305 s."""
    kafka.create_topic(topic_name, partitions=6)
    first = consumers(topic_name)
    poll_until(owns(first, 6), first)
    severed = consumers(topic_name, proxy_url=network.url, request_timeout_ms=2_000)
    members = (first, severed)
    if not newcomer:
        poll_until(share(*members, partitions=6), *members)
    polled = {}
    with held(first, JoinGroupRequest, answer=False):
        if not newcomer:
            members = (*members, consumers(topic_name))
        poll_until(
            lambda: joining(severed) and severed.member_id,
            *members,
            results=polled,
        )
        with counted(severed, JoinGroupRequest) as again:
            network.forget()
            poll_until(lambda: bool(again), *members, results=polled)
    poll_until(share(*members, partitions=6), *members, results=polled)
    assert not any(map(lost, polled.values()))


@outlive_brokers
def test_a_coordinator_that_waits_for_what_it_has_written_is_made_to_write_again(
    kafka, topic_name, group_id, consumers, protocol, monkeypatch
):
    """One that had just taken over answered so until the sessions of a quiet group were over."""
    kafka.create_topic(topic_name, partitions=4)
    first, second = consumers(topic_name), consumers(topic_name)
    poll_until(share(first, second, partitions=4), first, second)
    lane, unavailable = parts_of(first).lane, [AWAY, AWAY]
    answer = ConsumerGroupHeartbeatResponse(error_code=AWAY.errno, error_message=None)
    send = lane.heartbeat if protocol == "classic" else lane.consumer_group_heartbeat

    async def heartbeat(*arguments):
        if not unavailable:
            return await send(*arguments)
        away = unavailable.pop()
        return away if protocol == "classic" else answer

    offsets = KafkaConsumer(bootstrap_servers=kafka.bootstrap_servers)
    # The group's own, as other groups have something written at any time.
    logs = [TopicPartition("__consumer_offsets", java_hash(group_id) % 3)]
    written, polled = offsets.end_offsets(logs), {}
    monkeypatch.setattr(lane, send.__name__, heartbeat)
    poll_until(
        lambda: not unavailable and offsets.end_offsets(logs) != written,
        first,
        second,
        results=polled,
    )
    poll_until(share(first, second, partitions=4), first, second, results=polled)
    offsets.close()
    assert not any(map(lost, polled.values()))
    assert not any(map(revoked, polled.values()))


@pytest.mark.parametrize("session_timeout_ms", [3_000])
@pytest.mark.parametrize("break_it", [FlakyNetwork.stall, FlakyNetwork.cut])
def test_without_a_network_a_member_loses_before_another_gets(
    kafka, topic_name, consumers, network, break_it
):
    """The group gives its partitions away after the session timeout, and nobody can tell it."""
    kafka.create_topic(topic_name, partitions=4)
    severed = consumers(topic_name, proxy_url=network.url)
    poll_until(owns(severed, 4), severed)
    other = consumers(topic_name)
    poll_until(share(severed, other, partitions=4), severed, other)
    mine = severed.assignment()
    break_it(network)
    # In this order: what `other` got before, `severed` must know to be lost now.
    polled = poll_until(owns(other, 4), other, severed)
    assert lost(polled[severed]) == mine
    assert severed.assignment() == frozenset()
    assert not severed.may_hand_out()
    network.mend()
    polled = poll_until(share(severed, other, partitions=4), other, severed)
    assert not any(map(lost, polled.values()))


@outlive_brokers
def test_a_network_that_comes_back_within_the_session_timeout(
    kafka, topic_name, group_id, consumers, network
):
    """Nothing is lost, and what was to be committed is."""
    kafka.create_topic(topic_name, partitions=2)
    member = consumers(topic_name, proxy_url=network.url)
    poll_until(owns(member, 2), member)
    generation = member.generation
    network.cut()
    offsets = dict.fromkeys(member.assignment(), 5)
    member.commit_processed(offsets)
    # Until a request failed and another coordinator is looked for.
    polled = poll_until(member._coordinator.coordinator_unknown, member)
    network.mend()
    poll_until(lambda: not committing(member), member, results=polled)
    assert member.generation == generation
    assert lost(polled[member]) == frozenset()
    assert kafka.committed(group_id) == offsets


@classic_only
def test_without_a_network_nobody_is_failed_who_asks_for_committed_offsets(
    kafka, topic_name, consumers, network
):
    """What may be tried again is: asking times out, a poll that needs a position is empty."""
    kafka.create_topic(topic_name, partitions=1)
    partition = TopicPartition(topic_name, 0)
    consumers().commit({partition: OffsetAndMetadata(7, "", -1)})
    reader = consumers(proxy_url=network.url)
    assert reader.committed_offsets([partition], PATIENCE_S * 1_000) == {partition: 7}
    network.cut()
    with pytest.raises(kafka_errors.KafkaTimeoutError):
        reader.committed_offsets([partition], timeout_ms=2_000)
    reader.assign([partition])
    assert reader.poll(timeout_ms=2_000) == {}
    network.mend()
    assert reader.committed_offsets([partition], PATIENCE_S * 1_000) == {partition: 7}
    assert reader.position(partition) == 7


@outlive_brokers
def test_a_broker_restart_takes_nothing_from_anyone(kafka, topic_name, group_id, consumers):
    kafka.create_topic(topic_name, partitions=4)
    first = consumers(topic_name)
    second = consumers(topic_name)
    poll_until(share(first, second, partitions=4), first, second)
    before = {member: member.assignment() for member in (first, second)}
    kafka.restart()
    first.commit_processed(dict.fromkeys(first.assignment(), 5))
    second.commit_processed(dict.fromkeys(second.assignment(), 5))
    polled = poll_until(lambda: not committing(*before), first, second)
    assert not any(map(lost, polled.values()))
    assert {member: member.assignment() for member in before} == before
    assert set(kafka.committed(group_id).values()) == {5}


@outlive_brokers
@pytest.mark.parametrize("end", [LocalKafka.stop, LocalKafka.kill])
def test_the_coordinator_moves_in_a_deferral_and_back_again(
    quorum, topic_name, quorum_members, end
):
    """To another broker when its own ends; back, with its connection open, by an election."""
    quorum.create_topic(topic_name, partitions=6)
    first = quorum_members(topic_name)
    poll_until(owns(first, 6), first)
    second = quorum_members(topic_name)
    polled = {}
    poll_until(
        lambda: len(first._ownership.revoking) == 3, first, second, hold=True, results=polled
    )
    moving = first._ownership.revoking

    def commit_everything(offset: int) -> None:
        first.commit_processed(dict.fromkeys(first.assignment(), offset))
        poll_until(
            lambda: not committing(first),
            first,
            second,
            hold=True,
            results=polled,
        )
        assert {first.acknowledged(p) for p in first.assignment()} == {offset}

    original = coordinator_of(first)
    end(quorum, original)
    commit_everything(1)
    poll_until(  # it may just have lost the connection to the new one
        lambda: coordinator_of(first) not in (original, None),
        first,
        second,
        hold=True,
        results=polled,
    )
    quorum.restart(original)
    poll_until(lambda: elected_preferred(quorum), first, second, hold=True, results=polled)
    poll_until(
        lambda: {coordinator_of(first), coordinator_of(second)} == {original},
        first,
        second,
        hold=True,
        results=polled,
    )
    commit_everything(2)
    assert moving == first._ownership.revoking, "the deferral did not survive"
    poll_until(share(first, second, partitions=6), first, second, results=polled)
    assert second.assignment() == moving
    assert not any(map(lost, polled.values()))


@classic_only
@outlive_brokers
def test_the_coordinator_is_killed_in_a_join(quorum, topic_name, quorum_members, network):
    """The JoinGroup that it held is answered by nobody."""
    quorum.create_topic(topic_name, partitions=6)
    first = quorum_members(topic_name)
    poll_until(owns(first, 6), first)
    silent = quorum_members(topic_name, proxy_url=network.url)
    poll_until(share(first, silent, partitions=6), first, silent)
    network.stall()
    third = quorum_members(topic_name)
    polled = {}
    poll_until(lambda: joining(first), first, third, results=polled)
    quorum.kill(coordinator_of(first))
    network.mend()
    poll_until(share(first, silent, third, partitions=6), first, silent, third, results=polled)
    assert not any(map(lost, polled.values()))


@pytest.mark.long
@outlive_brokers
def test_a_commit_that_is_being_replicated_counts_for_the_next_owner(
    quorum, topic_name, quorum_members
):
    """kafka-python asked for what the coordinator knew to be replicated. After the coordinator has
    moved, the new one takes its time to know that, and told of offsets older than what had been
    acknowledged and told before: the next owner would have read the rest twice.
    """
    quorum.create_topic(topic_name, partitions=1)
    partition = TopicPartition(topic_name, 0)
    member = quorum_members(topic_name)
    poll_until(owns(member, 1), member)
    member.commit_processed({partition: 1})
    poll_until(lambda: member.acknowledged(partition) == 1, member)
    next_owner = quorum_members()
    assert next_owner.committed_offsets([partition], timeout_ms=10_000) == {partition: 1}

    coordinator = coordinator_of(member)
    follower = min(set(quorum.broker_ids) - {coordinator})
    logs = quorum.folder / f"broker-{coordinator}" / "data"

    def written() -> int:
        return sum(log.stat().st_size for log in logs.glob("__consumer_offsets-*/*.log"))

    before = written()
    quorum.suspend(follower)
    try:
        member.commit_processed({partition: 2})
        wait_until(lambda: written() > before, "the coordinator to write the commit")
        # Answered once the follower counts as dead.
        found = next_owner.committed_offsets([partition], timeout_ms=PATIENCE_S * 1_000)
    finally:
        quorum.resume(follower)
    assert found == {partition: 2}
