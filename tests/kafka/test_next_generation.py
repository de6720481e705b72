"""The consumer group protocol (KIP-848) on a real broker: what only it has."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

import pytest
from group_members import (
    Results,
    committing,
    held,
    losses,
    lost,
    membership_of,
    next_generation,
    owns,
    parts_of,
    poll_until,
    wait_until,
)
from kafka import KafkaAdminClient
from kafka.errors import UnknownTopicIdError
from kafka.structs import OffsetAndMetadata, TopicPartition

from pyspark_kafka_rebalance import (
    DeferredRevokeConsumer,
    MembershipError,
    PartitionsLostError,
    UnsupportedBrokerError,
)
from pyspark_kafka_rebalance.consumer.group_description import GroupDescription, describe_group
from pyspark_kafka_rebalance.consumer.member_record import AssignmentReceived
from pyspark_kafka_rebalance.consumer.messages import ConsumerGroupHeartbeatRequest
from pyspark_kafka_rebalance.doctor.broker_probe import BrokerProbe, connected
from pyspark_kafka_rebalance.doctor.judgement import judge_brokers
from pyspark_kafka_rebalance.testing import LocalKafka

pytestmark = pytest.mark.each_protocol


@pytest.fixture
def protocol() -> str:
    return "consumer"


def partitions(topic: str, *numbers: int) -> set[TopicPartition]:
    return {TopicPartition(topic, number) for number in numbers}


def sent_heartbeats(member: DeferredRevokeConsumer) -> list[tuple[int, dict[str, Any]]]:
    """Record what the member's heartbeats say from now on: (epoch, fields)."""
    lane = parts_of(member).lane
    sent: list[tuple[int, dict[str, Any]]] = []
    heartbeat = lane.consumer_group_heartbeat

    async def recorded(who, epoch, fields=None):
        sent.append((epoch, dict(fields or {})))
        return await heartbeat(who, epoch, fields)

    lane.consumer_group_heartbeat = recorded  # type: ignore[method-assign]
    return sent


# The deadline of a revoke


def test_only_what_is_not_drained_is_lost_before_the_broker_fences_the_member(
    kafka, topic_name, group_id, consumers
):
    kafka.create_topic(topic_name, partitions=4)
    slow = consumers(topic_name, max_poll_interval_ms=4_000)
    poll_until(owns(slow, 4), slow)
    second = consumers(topic_name)
    poll_until(lambda: bool(slow._ownership.revoking), slow, second, hold=True)
    revoking = slow._ownership.revoking
    kept = slow.assignment() - revoking
    member_id = slow.member_id
    results: Results = {}
    poll_until(
        # The new owner may have them before the old one is polled again.
        lambda: owns(second, 2)() and bool(lost(results[slow])),
        slow,
        second,
        hold=True,
        results=results,
    )
    assert lost(results[slow]) == revoking
    assert slow.assignment() == kept
    assert slow.member_id == member_id
    assert losses(slow) == 0, "the whole member was fenced"


def test_the_deadline_holds_also_while_nobody_polls(kafka, topic_name, consumers):
    """The broker counts from its answer: a member that is not polled must give up in time."""
    kafka.create_topic(topic_name, partitions=2)
    slow = consumers(topic_name, max_poll_interval_ms=4_000)
    poll_until(owns(slow, 2), slow)
    second = consumers(topic_name)
    poll_until(lambda: bool(slow._ownership.revoking), slow, second, hold=True)
    revoking = slow._ownership.revoking
    poll_until(owns(second, 1), second)  # slow is not polled
    with pytest.raises(Exception, match=f"{topic_name}-"):
        slow.commit_processed(dict.fromkeys(revoking, 1))
    result = slow.poll_with_rebalance(timeout_ms=20)
    assert result.lost == revoking
    assert result.revoked == frozenset()
    assert len(slow.assignment()) == 1


def test_revoked_partitions_are_released_together(kafka, topic_name, consumers):
    """All or nothing: a heartbeat that still lists one revoked partition frees none of them."""
    kafka.create_topic(topic_name, partitions=4)
    first = consumers(topic_name)
    poll_until(owns(first, 4), first)
    second = consumers(topic_name)
    poll_until(lambda: len(first._ownership.revoking) == 2, first, second, hold=True)
    sent = sent_heartbeats(first)
    quick, slow = sorted(first._ownership.revoking)
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:
        first.poll_with_rebalance(timeout_ms=20)
        first.delay_revoke([slow])
        second.poll_with_rebalance(timeout_ms=20)
    assert quick not in first.assignment()
    assert not [fields for _, fields in sent if "topic_partitions" in fields]
    poll_until(owns(second, 2), first, second)
    assert second.assignment() == {quick, slow}


# Fencing and epochs


def test_a_fenced_member_loses_everything_and_comes_back_under_its_id(
    kafka, topic_name, group_id, consumers
):
    kafka.create_topic(topic_name, partitions=2)
    member = consumers(topic_name)
    poll_until(owns(member, 2), member)
    member_id = member.member_id
    # A heartbeat with an epoch of the future is what a broker fences.
    record = parts_of(member).record
    record.become(record.member._replace(generation=99))
    # It joins again without a poll, and yet may not hand out before one has told of the loss.
    membership = membership_of(member)
    wait_until(
        lambda: membership.loss_waits() and membership.lease.holds(), "it is fenced, and back"
    )
    assert not member.may_hand_out()
    results = poll_until(lambda: bool(member.get_lost_partitions()), member)
    assert results[member][-1].lost == partitions(topic_name, 0, 1)
    poll_until(owns(member, 2), member)
    assert member.member_id == member_id


def test_a_commit_with_an_epoch_of_the_past_is_sent_again(kafka, topic_name, consumers):
    kafka.create_topic(topic_name, partitions=1)
    member = consumers(topic_name)
    poll_until(owns(member, 1), member)
    present = parts_of(member).record.member
    commits = []
    lane = parts_of(member).lane
    commit = lane.commit

    async def stale_at_first(who, offsets):
        errors = await commit(who if commits else who._replace(generation=0), offsets)
        commits.extend(error.__name__ for error in errors.values())
        return errors

    lane.commit = stale_at_first
    (partition,) = member.assignment()
    member.commit_processed({partition: 3})
    poll_until(lambda: not committing(member), member)
    assert commits[0] == "StaleMemberEpochError"
    assert commits[-1] == "NoError"
    assert member.acknowledged(partition) == 3
    assert parts_of(member).record.member == present


def test_the_lease_is_the_session_timeout_of_the_broker(kafka, topic_name, consumers):
    kafka.create_topic(topic_name)
    member = consumers(topic_name, session_timeout_ms=45_000)
    poll_until(owns(member, 1), member)
    assert member.session_timeout_ms == 6_000


def test_an_accepted_commit_is_no_sign_of_life(kafka, topic_name, consumers):
    """Unlike in the classic protocol: the lease would outlive the broker's session."""
    kafka.create_topic(topic_name)
    member = consumers(topic_name)
    poll_until(owns(member, 1), member)
    (partition,) = member.assignment()
    with held(member, ConsumerGroupHeartbeatRequest, answer=False) as holding:
        poll_until(holding.is_set, member)
        before = parts_of(member).lease._renewed_at
        member.commit_processed({partition: 0})
        assert member.drain(5_000)
        assert member.acknowledged(partition) == 0
        assert parts_of(member).lease._renewed_at == before


def test_after_a_lost_answer_the_heartbeat_says_everything(kafka, topic_name, consumers):
    kafka.create_topic(topic_name, partitions=2)
    member = consumers(topic_name)
    poll_until(owns(member, 2), member)
    sent = sent_heartbeats(member)
    next_generation(member)._reconciliation.not_answered()
    poll_until(lambda: bool(sent), member)
    _, fields = sent[0]
    (owned,) = fields["topic_partitions"]
    assert sorted(owned.partitions) == [0, 1]
    assert fields["subscribed_topic_names"] == [topic_name]
    assert fields["rebalance_timeout_ms"] == 300_000
    poll_until(owns(member, 2), member)


# Static membership


def test_a_static_member_that_was_killed_comes_back(kafka, topic_name, group_id, consumers):
    """Its instance id is taken until its session times out: the restarted one waits."""
    kafka.create_topic(topic_name, partitions=2)
    script = (
        "import sys\n"
        "from pyspark_kafka_rebalance import DeferredRevokeConsumer\n"
        "servers, topic, group = sys.argv[1:]\n"
        "member = DeferredRevokeConsumer(topic, bootstrap_servers=servers, group_id=group,\n"
        "                                group_protocol='consumer', group_instance_id='i')\n"
        "while len(member.assignment()) < 2:\n"
        "    member.poll(timeout_ms=20)\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    member.poll(timeout_ms=20)\n"
    )
    arguments = [kafka.bootstrap_servers, topic_name, group_id]
    with subprocess.Popen(
        [sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE, text=True
    ) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == "ready\n"
        killed.send_signal(signal.SIGKILL)
    again = consumers(topic_name, group_instance_id="i")
    poll_until(owns(again, 2), again)


def test_a_second_process_with_the_same_instance_id_is_refused(
    kafka, topic_name, group_id, consumers
):
    kafka.configure_group(group_id, {"consumer.session.timeout.ms": 2_000})
    kafka.create_topic(topic_name, partitions=2)
    first = consumers(topic_name, group_instance_id="i")
    poll_until(owns(first, 2), first)
    second = consumers(topic_name, group_instance_id="i")
    with pytest.raises(MembershipError, match="UnreleasedInstanceId"):
        poll_until(lambda: False, first, second)
    assert owns(first, 2)()


# The subscription


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_the_server_side_assignor_is_the_one_asked_for(kafka, topic_name, consumers, assignor):
    """Of topics with one partition each, range gives all to the first member."""
    topics = [f"{topic_name}.a", f"{topic_name}.b", f"{topic_name}.c"]
    for topic in topics:
        kafka.create_topic(topic, partitions=1)
    first = consumers(*topics, group_remote_assignor=assignor)
    second = consumers(*topics, group_remote_assignor=assignor)
    counts = {"uniform": [1, 2], "range": [0, 3]}[assignor]
    poll_until(
        lambda: (
            sorted([len(first.assignment()), len(second.assignment())]) == counts
            and first.is_stable
            and second.is_stable
        ),
        first,
        second,
    )


def test_an_unknown_assignor_is_refused_with_the_brokers_words(kafka, topic_name, consumers):
    kafka.create_topic(topic_name)
    member = consumers(topic_name, group_remote_assignor="fair")
    with pytest.raises(MembershipError, match=r"fair.*uniform"):
        poll_until(lambda: False, member)


def test_a_pattern_is_matched_by_the_broker(kafka, topic_name, consumers):
    kafka.create_topic(f"{topic_name}.a")
    kafka.create_topic(f"not.{topic_name}")
    member = consumers()
    sent = sent_heartbeats(member)
    member.subscribe(pattern=f"{topic_name}|nothing")
    poll_until(owns(member, 1), member)
    assert member.assignment() == partitions(f"{topic_name}.a", 0)
    _, fields = sent[0]
    assert fields["subscribed_topic_regex"] == f"(?:{topic_name}|nothing).*"
    assert fields["subscribed_topic_names"] == []


def test_a_pattern_that_the_broker_cannot_read_is_matched_here(kafka, topic_name, consumers):
    """RE2, the broker's syntax, has no look-ahead."""
    kafka.create_topic(f"{topic_name}.a")
    kafka.create_topic(f"{topic_name}.b")
    member = consumers(metadata_max_age_ms=300)
    member.subscribe(pattern=rf"{topic_name}(?!\.b)")
    poll_until(owns(member, 1), member)
    assert member.assignment() == partitions(f"{topic_name}.a", 0)


def test_a_pattern_leaves_internal_topics_out(kafka, topic_name, group_id, consumers):
    """The broker matches them like any others; ``exclude_internal_topics`` was ignored."""
    kafka.create_topic(f"{topic_name}.a")
    kafka.produce(f"{topic_name}.a", [b"x"])
    pattern = f"{topic_name}|__consumer_offsets"
    member = consumers(metadata_max_age_ms=300)
    member.subscribe(pattern=pattern)
    poll_until(owns(member, 1), member)
    kafka.create_topic(f"{topic_name}.b")
    poll_until(owns(member, 2), member)
    assert member.assignment() == partitions(f"{topic_name}.a", 0) | partitions(
        f"{topic_name}.b", 0
    )
    member.close()
    wanting = consumers(exclude_internal_topics=False)
    wanting.subscribe(pattern=pattern)
    poll_until(lambda: len({p.topic for p in wanting.assignment()}) == 3, wanting)
    assert "__consumer_offsets" in {p.topic for p in wanting.assignment()}


def test_a_topic_created_again_is_revoked_and_assigned_anew(kafka, topic_name, consumers):
    """Same name, another topic id: its first record is read, although more had been before."""
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, [b"old"] * 3)
    member = consumers(topic_name, metadata_max_age_ms=300)
    seen: list[tuple[int, bytes]] = []
    events: list[str] = []

    def note() -> bool:
        result = member.poll_with_rebalance(timeout_ms=20)
        seen.extend((r.offset, r.value) for rs in result.records.values() for r in rs)
        events.extend("revoked" for _ in result.revoked)
        events.extend("assigned" for _ in result.assigned)
        return bool(seen) and seen[-1] == (0, b"new")

    poll_until(lambda: (note(), len(seen) == 3)[1])
    kafka.delete_topic(topic_name)
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, [b"new"])
    poll_until(note)
    assert events == ["assigned", "revoked", "assigned"]


@pytest.mark.parametrize("session_timeout_ms", [60_000])  # no heartbeat gets through for long
def test_what_is_committed_of_a_topic_counts_for_none_that_is_created_again(
    kafka, topic_name, group_id, consumers
):
    """Before a heartbeat tells the member; nor does what polls have brought of the new one."""
    partition = TopicPartition(topic_name, 0)
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, [b"old"] * 300)
    member = consumers(topic_name, metadata_max_age_ms=300)
    read: list[int] = []

    def process() -> None:
        result = member.poll_with_rebalance(timeout_ms=20)
        for found in result.records.values():
            read.extend(record.offset for record in found)
            with suppress(PartitionsLostError):
                member.commit_processed({partition: found[-1].offset + 1})

    poll_until(lambda: (process(), len(read) == 300)[1])
    assert member.drain(10_000)
    lane = parts_of(member).lane
    heartbeat, held = lane.consumer_group_heartbeat, True

    async def in_a_while(*arguments: Any) -> Any:
        while held:
            await member._io.loop.sleep(0.02)
        return await heartbeat(*arguments)

    lane.consumer_group_heartbeat = in_a_while  # type: ignore[method-assign]
    kafka.delete_topic(topic_name)
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, [b"new"] * 400)  # more than there were: no position is out of range
    with pytest.raises(UnknownTopicIdError):
        member.commit({partition: OffsetAndMetadata(300, "", -1)})
    read.clear()
    poll_until(lambda: (process(), len(read) == 100)[1])
    assert member.drain(10_000)
    assert kafka.committed(group_id) == {}
    held = False
    poll_until(lambda: (process(), set(read) == set(range(400)))[1])


# Choosing the protocol


def test_auto_takes_the_consumer_protocol_where_it_is(kafka, topic_name, consumers):
    kafka.create_topic(topic_name)
    member = consumers(topic_name, group_protocol="auto")
    assert next_generation(member)
    poll_until(owns(member, 1), member)


def test_without_the_protocol_auto_is_classic_and_consumer_an_error() -> None:
    with LocalKafka(features={"group.version": 0}) as old:
        old.create_topic("orders")
        servers = {"bootstrap_servers": old.bootstrap_servers}
        settings = {**servers, "group_id": "g"}
        with pytest.raises(UnsupportedBrokerError, match="group_protocol='classic'"):
            DeferredRevokeConsumer("orders", group_protocol="consumer", **settings)
        member = DeferredRevokeConsumer("orders", group_protocol="auto", **settings)
        try:
            poll_until(owns(member, 1), member)
        finally:
            member.close()
        with connected(old.bootstrap_servers, servers) as doctor:
            assert isinstance(doctor, BrokerProbe)
            _, off, _ = judge_brokers(doctor.brokers())
        assert off.found == "KIP-848's is switched off: group.version is 0"


def test_a_whole_name_pattern_of_the_source_is_readable_for_the_broker(
    kafka, topic_name, consumers, caplog
):
    kafka.create_topic(f"{topic_name}.a")
    kafka.create_topic(f"{topic_name}.ab")
    member = consumers()
    member.subscribe(pattern=rf"(?:{topic_name}\.a)\Z")
    poll_until(owns(member, 1), member)
    assert member.assignment() == partitions(f"{topic_name}.a", 0)
    assert "rejects the pattern" not in caplog.text


# The description of a group


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_is_described_in_either_protocol(
    kafka, topic_name, group_id, consumers, protocol
) -> None:
    kafka.create_topic(topic_name, partitions=2)
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    try:
        first = consumers(topic_name, client_id="a", group_protocol=protocol)
        poll_until(owns(first, 2), first)
        second = consumers(topic_name, client_id="b", group_protocol=protocol)
        poll_until(lambda: owns(first, 1)() and owns(second, 1)(), first, second)
        assert describe_group(admin, f"no-{group_id}") == GroupDescription("Dead")
        described = describe_group(admin, group_id)
        assert described.state == "Stable"
        assert {m.client_id: m.assigned for m in described.members} == {
            "a": first.assignment(),
            "b": second.assignment(),
        }
        first.close()
        second.close()
        assert describe_group(admin, group_id) == GroupDescription("Empty")
    finally:
        admin.close()


def test_what_is_being_applied_counts_as_owned(kafka, topic_name, consumers):
    """A smaller target that comes meanwhile must not be acknowledged as if it were not."""
    kafka.create_topic(topic_name, partitions=2)
    member = consumers(topic_name)
    poll_until(owns(member, 2), member)
    membership, protocol = membership_of(member), next_generation(member)
    protocol.released(partitions(topic_name, 1))  # unasked, so it is offered again
    assert protocol._reconciliation.owned.keys() == partitions(topic_name, 0)
    event = membership.take_event()
    assert isinstance(event, AssignmentReceived)
    assert event.partitions == partitions(topic_name, 0, 1)
    assert protocol._reconciliation.owned.keys() == event.partitions
    membership.record.offer(event)  # the next poll applies it
    poll_until(owns(member, 2), member)
