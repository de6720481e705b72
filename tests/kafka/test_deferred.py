"""DeferredRevokeConsumer on a real broker: KIP-983, the lane, and kafka-python's traps."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from group_members import (
    PATIENCE_S,
    committing,
    joining,
    lose,
    membership_of,
    owns,
    parts_of,
    poll_until,
    request_revoke,
    wait_until,
)
from group_members import records as records_of
from kafka import ConsumerRebalanceListener, KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.cluster import ClusterMetadata
from kafka.serializer import Deserializer
from kafka.structs import OffsetAndMetadata, TopicPartition

from pyspark_kafka_rebalance import (
    DeferredRevokeConsumer,
    MembershipError,
    OptionError,
    PartitionsLostError,
    RecordDeserializationError,
)
from pyspark_kafka_rebalance.consumer.kafka_python.questions import offers_consumer_protocol
from pyspark_kafka_rebalance.doctor.broker_probe import BrokerProbe, connected
from pyspark_kafka_rebalance.testing import LocalKafka

pytestmark = pytest.mark.each_protocol

only_classic = pytest.mark.parametrize("protocol", ["classic"], indirect=True)


def test_a_revoke_is_requested_in_one_poll_and_completed_later(kafka, topic_name, consumers):
    kafka.create_topic(topic_name, partitions=4)
    first = consumers(topic_name)
    poll_until(owns(first, 4), first)
    second = consumers(topic_name)
    poll_until(lambda: len(first._ownership.revoking) == 2, first, second, hold=True)
    held = first._ownership.revoking
    # As long as it is delayed, nothing of it goes to the new owner, over several polls.
    for _ in range(20):
        assert first.poll_with_rebalance(timeout_ms=20).to_be_revoked == held
        assert first.delay_revoke(held)
        assert first.get_to_be_revoked_partitions() == frozenset()
        assert second.poll_with_rebalance(timeout_ms=20).assigned == frozenset()
    assert held <= first.assignment()
    poll_until(owns(second, 2), first, second)
    assert second.assignment() == held
    assert first.assignment().isdisjoint(held)


@pytest.mark.parametrize("given", ["to the constructor", "by subscribe", "as a pattern"])
def test_a_first_subscription_waits_for_no_backoff(
    kafka, topic_name, consumers, monkeypatch, given
):
    """kafka-python's bootstrap has no topics, and what follows it was taken for a retry."""
    kafka.create_topic(topic_name, partitions=2)
    # The client's own setting does not reach it: it is 100 ms there.
    monkeypatch.setitem(ClusterMetadata.DEFAULT_CONFIG, "retry_backoff_ms", PATIENCE_S * 10_000)
    topics = [topic_name] if given == "to the constructor" else []
    member = consumers(*topics)
    if given == "by subscribe":
        member.subscribe([topic_name])
    elif given == "as a pattern":
        member.subscribe(pattern=f"^{topic_name}$")
    poll_until(owns(member, 2), member)
    assert topic_name in member.existing_topics(PATIENCE_S * 1000)


def test_the_doctor_knows_a_group_of_either_protocol(kafka, topic_name, group_id, consumers):
    """One of the consumer protocol was new to it."""
    kafka.create_topic(topic_name)
    member = consumers(topic_name)
    poll_until(owns(member, 1), member)
    servers = kafka.bootstrap_servers
    with connected(servers, {"bootstrap_servers": servers.split(",")}) as probe:
        assert isinstance(probe, BrokerProbe)
        facts = probe.group(group_id)
    assert (facts.state, facts.members, facts.error) == ("Stable", 1, "")


@only_classic
def test_all_topics_are_asked_for_when_a_refresh_of_the_subscribed_ones_has_just_begun(
    kafka, topic_name, consumers, network, monkeypatch
):
    """Its answer was taken for that of all topics: the others did not exist."""
    other = f"{topic_name}-other"
    kafka.create_topic(topic_name)
    kafka.create_topic(other)
    member = consumers(topic_name, proxy_url=network.url)
    poll_until(owns(member, 1), member)
    cluster, loop_began = member._cluster, ClusterMetadata.metadata_refresh_in_progress
    poll_until(lambda: not cluster.need_update and not loop_began.fget(cluster), member)
    answers = []

    def just_before_it_begins(cluster):
        if loop_began.fget(cluster):
            return True
        if threading.current_thread() is threading.main_thread() and not answers:
            network.stall()
            answers.append(cluster.request_update())
            while not loop_began.fget(cluster):
                time.sleep(0.001)
            threading.Timer(0.2, network.mend).start()
        return False

    monkeypatch.setattr(
        ClusterMetadata, "metadata_refresh_in_progress", property(just_before_it_begins)
    )
    assert {topic_name, other} <= member.existing_topics(PATIENCE_S * 1000)


@only_classic
def test_a_broker_that_refuses_connections_is_not_the_only_one_asked(
    quorum, topic_name, group_id, quorum_members
):
    """Its refusal was the answer of all brokers, and a query did not start."""
    quorum.create_topic(topic_name)
    quorum.committed(group_id)  # the fixture waits for coordinators, and nobody joins here
    member = quorum_members()
    quorum.kill(3)
    manager = member._manager
    choose = manager.least_loaded_node
    chosen = []

    def choose_3_first():
        chosen.append(choose() if chosen else 3)
        return chosen[-1]

    manager.least_loaded_node = choose_3_first
    for ask, answer in (
        (lambda: topic_name in member.existing_topics(PATIENCE_S * 1000), True),
        (lambda: member.hidden_topics([topic_name], PATIENCE_S * 1000), frozenset()),
        (lambda: offers_consumer_protocol(member), True),
    ):
        chosen.clear()
        assert ask() == answer
        assert len(chosen) > 1


def test_every_record_once_while_members_join_and_leave(kafka, topic_name, consumers):
    partitions = 6
    kafka.create_topic(topic_name, partitions=partitions)
    stop = threading.Event()
    produced = [0]

    def produce() -> None:
        while not stop.wait(0.02):  # without a pause it takes a core
            kafka.produce(topic_name, [b"x"] * 60)
            produced[0] += 60

    producer = threading.Thread(target=produce)
    producer.start()
    ledger: Counter[tuple[TopicPartition, int]] = Counter()
    processing: dict[int, dict[TopicPartition, list[tuple[float, int]]]] = {}

    def step(member: DeferredRevokeConsumer) -> None:
        mine = processing.setdefault(id(member), {})
        result = member.poll_with_rebalance(timeout_ms=10)
        assert not result.lost
        for partition, records in result.records.items():
            ledger.update((partition, record.offset) for record in records)
            mine.setdefault(partition, []).append((time.monotonic() + 0.3, records[-1].offset + 1))
        done = {}
        for partition, pending in list(mine.items()):
            while pending and pending[0][0] <= time.monotonic():
                done[partition] = pending.pop(0)[1]
            if not pending:
                del mine[partition]
        member.commit_processed(done)
        member.delay_revoke(p for p in result.to_be_revoked if p in mine)

    def run(seconds: float, *members: DeferredRevokeConsumer) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for member in members:
                step(member)

    def drain_and_close(leaver: DeferredRevokeConsumer, *others: DeferredRevokeConsumer) -> None:
        while processing[id(leaver)]:
            leaver.pause(*leaver.assignment())
            run(0.05, leaver, *others)
        leaver.close()

    try:
        first = consumers(topic_name)
        run(2, first)
        second = consumers(topic_name)
        run(3, first, second)
        third = consumers(topic_name)
        run(3, first, second, third)
        drain_and_close(second, first, third)
        run(2, first, third)
        fourth = consumers(topic_name)
        run(3, first, third, fourth)
    finally:
        stop.set()
        producer.join()
    deadline = time.monotonic() + PATIENCE_S
    while len(ledger) < produced[0]:
        assert time.monotonic() < deadline, f"lost {produced[0] - len(ledger)}"
        run(0.2, first, third, fourth)
    assert {partition for partition, _ in ledger} == {
        TopicPartition(topic_name, p) for p in range(partitions)
    }
    assert sum(ledger.values()) == produced[0], "duplicated"


def test_defer_revoke_false_completes_in_the_poll_that_learned_of_it(kafka, topic_name, consumers):
    kafka.create_topic(topic_name, partitions=4)
    first = consumers(topic_name, defer_revoke=False)
    poll_until(owns(first, 4), first)
    second = consumers(topic_name)
    results = poll_until(owns(second, 2), first, second)
    assert first.get_to_be_revoked_partitions() == frozenset()
    assert all(not result.to_be_revoked for result in results[first])


def test_partitions_not_drained_by_the_deadline_are_lost_and_only_those(
    kafka, topic_name, group_id, consumers
):
    kafka.create_topic(topic_name, partitions=4)
    kafka.produce(topic_name, [b"x"] * 40)
    first = consumers(topic_name, revoke_timeout_ms=1_000)
    poll_until(owns(first, 4), first)
    second = consumers(topic_name)
    lost: set[TopicPartition] = set()
    deadline = time.monotonic() + PATIENCE_S
    while len(lost) < 2:
        assert time.monotonic() < deadline
        result = first.poll_with_rebalance(timeout_ms=20)
        lost |= result.lost
        asked = result.to_be_revoked
        assert first.delay_revoke(asked) or asked & result.lost
        second.poll_with_rebalance(timeout_ms=20)
    kept = first.assignment()
    assert len(kept) == 2
    assert kept.isdisjoint(lost)
    assert not first.delay_revoke(lost)
    with pytest.raises(PartitionsLostError, match=topic_name):
        first.commit_processed(dict.fromkeys(lost, 1))
    first.commit_processed(dict.fromkeys(kept, 1))
    assert first.drain(5_000)
    poll_until(owns(second, 2), first, second)
    assert second.assignment() == lost
    assert kafka.committed(group_id).keys() == kept


def test_a_revoke_waits_for_the_answer_to_its_commit(kafka, topic_name, group_id, consumers):
    kafka.create_topic(topic_name, partitions=2)
    kafka.produce(topic_name, [b"x"] * 20)
    first = consumers(topic_name)
    poll_until(owns(first, 2), first)
    kafka.suspend()  # no commit is answered
    try:
        first.commit_processed(dict.fromkeys(first.assignment(), 5))
        moving = TopicPartition(topic_name, 0)
        request_revoke(first, moving)
        first.poll_with_rebalance(timeout_ms=20)
        # To the application the revoke is complete; to the group the partition is still owned.
        assert moving not in first.assignment()
        assert moving in first._io.subscription.owned()
    finally:
        kafka.resume()
    # Alone in its group it gets the partition back, once it has been released.
    poll_until(lambda: moving in first.assignment(), first)
    assert kafka.committed(group_id)[moving] == 5


def interrupted(
    call: Callable[..., Any], by: DeferredRevokeConsumer
) -> tuple[Callable[..., Any], threading.Thread]:
    """The call, during which ``by`` begins a poll on another thread, and that thread."""
    poll = threading.Thread(target=by.poll_with_rebalance)

    def interrupted_call(*arguments: Any) -> Any:
        poll.start()
        poll.join(1.0)  # as far as it gets while the call is half done
        return call(*arguments)

    return interrupted_call, poll


@only_classic  # alone in its group, a member of the consumer protocol gets it back at once
def test_a_commit_racing_the_completion_of_a_revoke_counts_or_is_refused(
    kafka, topic_name, group_id, consumers, monkeypatch
):
    """Another thread's commit must not be sent after the partition went to its new owner."""
    kafka.create_topic(topic_name, partitions=2)
    kafka.produce(topic_name, [b"x"] * 20)
    member = consumers(topic_name)
    poll_until(owns(member, 2), member)
    moving = TopicPartition(topic_name, 0)
    request_revoke(member, moving)
    membership = membership_of(member)
    commit, poll = interrupted(membership.commit, by=member)
    monkeypatch.setattr(membership, "commit", commit)
    member.commit_processed({moving: 5})
    in_time = moving in member._io.subscription.owned()
    poll.join()
    assert in_time, "accepted by us, and the partition was already given up"
    monkeypatch.undo()
    poll_until(lambda: moving in member.assignment(), member)
    assert kafka.committed(group_id)[moving] == 5


def test_a_commit_racing_a_loss_is_not_sent_by_the_next_generation(
    kafka, topic_name, group_id, consumers, monkeypatch
):
    kafka.create_topic(topic_name, partitions=2)
    kafka.produce(topic_name, [b"x"] * 20)
    member = consumers(topic_name)
    poll_until(owns(member, 2), member)
    partition = TopicPartition(topic_name, 0)
    membership = membership_of(member)
    refused = []

    def commit_on_another_thread() -> None:
        try:
            member.commit_processed({partition: 5})
        except PartitionsLostError as error:
            refused.append(error)

    committing = threading.Thread(target=commit_on_another_thread)
    take_event = membership.take_event

    def commit_after_the_loss_was_taken() -> Any:
        event = take_event()
        if not committing.ident:
            committing.start()
            committing.join(1.0)
        return event

    lose(member)
    monkeypatch.setattr(membership, "take_event", commit_after_the_loss_was_taken)
    poll_until(lambda: bool(committing.ident), member)
    committing.join()
    poll_until(owns(member, 2), member)
    assert refused
    assert member.drain(5_000)
    assert partition not in kafka.committed(group_id)


@only_classic
def test_commits_and_leaving_do_not_wait_for_a_dead_member(kafka, topic_name, group_id, consumers):
    """The lane: JoinGroup is held until the dead member's session times out."""
    kafka.create_topic(topic_name, partitions=4)
    kafka.produce(topic_name, [b"x"] * 40)
    first = consumers(topic_name)
    poll_until(owns(first, 4), first)
    with dead_member(kafka, topic_name, group_id, session_timeout_ms=20_000) as dead:
        poll_until(owns(first, 2), first)
        dead.kill()
        dead.wait()
    third = consumers(topic_name)  # its JoinGroup is held now
    poll_until(lambda: joining(first, third), first, third)
    offsets = dict.fromkeys(first.assignment(), 7)
    first.commit_processed(offsets)
    poll_until(lambda: not committing(first), first, third)
    assert joining(first), "the join was not held, so this proves nothing"
    first.close(timeout_ms=2_000)
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    try:
        found = {p: o.offset for p, o in admin.list_group_offsets(group_id)[group_id].items()}
        members = admin.describe_groups([group_id])[group_id]["members"]
    finally:
        admin.close()
    assert found == offsets
    assert len(members) == 2  # the dead one and the third


#: What a member in a process of its own does, given topic, servers, group and config.
_POLLS = """
consumer = DeferredRevokeConsumer(topic, bootstrap_servers=servers, group_id=group, **eval(config))
while True:
    result = consumer.poll_with_rebalance(timeout_ms=20)
    if result.assigned or result.lost:
        print(len(result.assigned), len(result.lost), flush=True)
"""


class dead_member:  # noqa: N801 - reads as a context manager
    """A member in a process of its own, to be killed."""

    def __init__(
        self, kafka: LocalKafka, topic: str, group_id: str, *, does: str = _POLLS, **config: Any
    ) -> None:
        self._does = does
        self._arguments = [kafka.bootstrap_servers, topic, group_id, repr(config)]

    def __enter__(self) -> subprocess.Popen[str]:
        script = (
            "import sys\n"
            "from pyspark_kafka_rebalance import DeferredRevokeConsumer\n"
            "servers, topic, group, config = sys.argv[1:]\n" + self._does
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", script, *self._arguments], stdout=subprocess.PIPE, text=True
        )
        return self._process

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.mark.parametrize("session_timeout_ms", [3_000])
def test_after_a_stall_longer_than_the_session_everything_is_lost_at_once(
    kafka, topic_name, group_id, protocol, consumers
):
    """The lease: a stopped process must not go on with what it had when it resumes."""
    kafka.create_topic(topic_name, partitions=2)
    with dead_member(
        kafka,
        topic_name,
        group_id,
        group_protocol=protocol,
        session_timeout_ms=3_000,
        heartbeat_interval_ms=500,
    ) as stalled:
        assert stalled.stdout is not None
        assert stalled.stdout.readline().split() == ["2", "0"]
        stalled.send_signal(signal.SIGSTOP)
        second = consumers(topic_name)
        poll_until(owns(second, 2), second)
        stalled.send_signal(signal.SIGCONT)
        assert stalled.stdout.readline().split() == ["0", "2"]


#: Suspends itself with ten records in its hands, and goes on with ``call``.
_REPORTS_LATE = """
import os, signal
from kafka.structs import OffsetAndMetadata
from pyspark_kafka_rebalance import PartitionsLostError
consumer = DeferredRevokeConsumer(topic, bootstrap_servers=servers, group_id=group, **eval(config))
records = []
while len(records) < 10:
    records += [r for found in consumer.poll(timeout_ms=100).values() for r in found]
(partition,) = consumer.assignment()
print("suspended", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
for record in records:
    try:
        if call == "processed":
            consumer.processed(partition, record.offset)
        elif call == "commit_processed":
            consumer.commit_processed({partition: record.offset + 1})
        else:
            consumer.commit({partition: OffsetAndMetadata(record.offset + 1, "", -1)})
        print("accepted", flush=True)
    except PartitionsLostError:
        print("refused", flush=True)
while not consumer.poll_with_rebalance(timeout_ms=100).lost:
    pass
print("lost", flush=True)
"""


@pytest.mark.parametrize("session_timeout_ms", [3_000])
@pytest.mark.parametrize("call", ["processed", "commit_processed", "commit"])
def test_what_a_worker_reports_first_after_a_stall_longer_than_the_session_is_refused(
    kafka, topic_name, group_id, protocol, consumers, call
):
    """The next owner had all records, and a worker was told that its own were done."""
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, [b"x"] * 10)
    with dead_member(
        kafka,
        topic_name,
        group_id,
        does=f"call = {call!r}\n{_REPORTS_LATE}",
        auto_offset_reset="earliest",
        group_protocol=protocol,
        session_timeout_ms=3_000,
        heartbeat_interval_ms=500,
    ) as stalled:
        assert stalled.stdout is not None
        assert stalled.stdout.readline().split() == ["suspended"]
        second = consumers(topic_name)
        seen: list[int] = []

        def has_all() -> bool:
            for found in second.poll(timeout_ms=50).values():
                seen.extend(record.offset for record in found)
            return seen == list(range(10))

        wait_until(has_all, "the next owner has the records")
        stalled.send_signal(signal.SIGCONT)
        told = [stalled.stdout.readline().strip() for _ in range(11)]
    assert told == ["refused"] * 10 + ["lost"]
    assert kafka.committed(group_id) == {}


@pytest.mark.parametrize("session_timeout_ms", [3_000])
def test_an_expired_lease_loses_before_the_broker_answers(kafka, topic_name, consumers):
    kafka.create_topic(topic_name, partitions=2)
    kafka.produce(topic_name, [b"x"] * 20)
    member = consumers(topic_name)
    poll_until(owns(member, 2), member)
    kafka.suspend()
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not (lost := member.poll_with_rebalance(timeout_ms=50).lost):
            assert time.monotonic() < deadline
        assert len(lost) == 2
        assert not member.may_hand_out()
        with pytest.raises(PartitionsLostError):
            member.commit_processed(dict.fromkeys(lost, 3))
    finally:
        kafka.resume()
    poll_until(owns(member, 2), member)


def test_a_commit_outside_a_generation_is_refused_here_not_accepted_there(
    kafka, topic_name, group_id, consumers
):
    kafka.create_topic(topic_name, partitions=1)
    member = consumers(topic_name)
    poll_until(owns(member, 1), member)
    lose(member)
    partition = TopicPartition(topic_name, 0)
    with pytest.raises(PartitionsLostError):
        member.commit_processed({partition: 3})
    with pytest.raises(PartitionsLostError):
        member.commit({partition: OffsetAndMetadata(3, "", -1)})
    assert (
        partition in poll_until(lambda: bool(member.get_lost_partitions()), member)[member][-1].lost
    )
    assert kafka.committed(group_id) == {}


def test_a_commit_that_waits_when_the_membership_is_lost_is_never_sent(
    kafka, topic_name, group_id, consumers
):
    kafka.create_topic(topic_name, partitions=1)
    kafka.produce(topic_name, [b"x"] * 20)
    member = consumers(topic_name)
    poll_until(owns(member, 1), member)
    kafka.suspend()
    try:
        member.commit_processed({TopicPartition(topic_name, 0): 1})  # in flight
        time.sleep(0.1)
        member.commit_processed({TopicPartition(topic_name, 0): 9})  # waits behind it
        lose(member)
    finally:
        kafka.resume()
    poll_until(lambda: bool(member.get_lost_partitions()), member)
    poll_until(owns(member, 1), member)
    assert kafka.committed(group_id).get(TopicPartition(topic_name, 0), 0) <= 1


def test_what_a_poll_that_raised_had_learned_is_told_by_the_next(kafka, topic_name, consumers):
    """What it had completed or been assigned appeared in no result."""

    class Strict(Deserializer):
        def deserialize(self, topic, headers, data):
            if data == b"bad":
                raise ValueError("bad")
            return data

    kafka.create_topic(topic_name, partitions=2)
    moving, kept = TopicPartition(topic_name, 0), TopicPartition(topic_name, 1)
    kafka.produce(topic_name, [b"bad"], partition=1)
    member = consumers(topic_name, value_deserializer=Strict())
    with pytest.raises(RecordDeserializationError):
        member.poll_with_rebalance(timeout_ms=PATIENCE_S * 1000)
    assert member.poll_with_rebalance().assigned == {moving, kept}
    member.seek(kept, 1)
    kafka.produce(topic_name, [b"bad"], partition=1)
    request_revoke(member, moving)
    with pytest.raises(RecordDeserializationError):
        member.poll_with_rebalance(timeout_ms=PATIENCE_S * 1000)
    result = member.poll_with_rebalance(timeout_ms=PATIENCE_S * 1000)
    assert result.revoked == {moving}
    assert result.records == {}
    member.seek(kept, 2)
    kafka.produce(topic_name, [b"good"], partition=1)
    found = poll_until(lambda: member._io.subscription.position(kept) == 3, member)[member]
    assert not any(result.revoked for result in found)


def test_a_client_that_is_closed_while_a_commit_is_under_way_logs_no_failure(
    kafka, topic_name, consumers, caplog
):
    """The commit's answer was that the connection is closed; the wait after it said so again."""
    kafka.create_topic(topic_name)
    member = consumers(topic_name)
    poll_until(owns(member, 1), member)
    kafka.suspend()
    try:
        member.commit_processed({TopicPartition(topic_name, 0): 1})
        member.poll(timeout_ms=100)
        member.close(timeout_ms=200)
    finally:
        kafka.resume()
    assert "loop failed" not in caplog.text
    assert "NetworkSelector" not in caplog.text


@only_classic
def test_members_hurry_after_a_generation_change(kafka, topic_name, consumers):
    """The others learn of the next rebalance at their next heartbeat: it must come soon."""
    kafka.create_topic(topic_name, partitions=2)
    member = consumers(topic_name, heartbeat_interval_ms=60_000, session_timeout_ms=180_000)
    beats = []
    lane = parts_of(member).lane
    heartbeat = lane.heartbeat

    async def counted(who):
        beats.append(who.generation)
        return await heartbeat(who)

    lane.heartbeat = counted
    poll_until(lambda: len(beats) >= 5, member)  # its patience is half of one interval


@only_classic
def test_the_first_assignment_is_the_whole_topic(kafka, topic_name, consumers):
    """A leader that joins before it knows the topic's metadata would assign nothing."""
    kafka.create_topic(topic_name, partitions=3)
    member = consumers(topic_name)
    known = threading.Event()  # the topic's metadata are there only once they are asked for
    cluster, metadata = member._cluster, member._io.metadata
    refresh = metadata.refresh_now
    partitions_for_topic = cluster.partitions_for_topic

    def asked_for():
        future = refresh()
        future.add_callback(lambda _: known.set())
        return future

    metadata.refresh_now = asked_for
    cluster.partitions_for_topic = lambda topic: (
        partitions_for_topic(topic) if known.is_set() else None
    )
    results = poll_until(lambda: member.generation >= 1, member)[member]
    assert len(results[-1].assigned) == 3


def test_the_coordinator_is_replaced_on_the_io_loop(kafka, topic_name, consumers, monkeypatch):
    """Elsewhere it changed the metadata's listeners while the loop went through them, and the
    refreshing of metadata ended for good: now and then a member never joined."""
    from kafka.cluster import ClusterMetadata

    threads = []
    for name in ("add_listener", "remove_listener"):
        method = getattr(ClusterMetadata, name)

        def noted(self, listener, method=method):
            threads.append(threading.current_thread().name)
            return method(self, listener)

        monkeypatch.setattr(ClusterMetadata, name, noted)
    consumers(topic_name)
    _in_library, *ours = threads  # the library's constructor adds the first
    assert len(ours) == 2
    assert all(name.startswith("kafka-io") for name in ours)


def test_membership_without_fetching(kafka, topic_name, consumers):
    kafka.create_topic(topic_name, partitions=2)
    kafka.produce(topic_name, [b"x"] * 20)
    member = consumers(topic_name)
    deadline = time.monotonic() + PATIENCE_S
    while not owns(member, 2)():
        assert time.monotonic() < deadline
        assert member.poll_membership().records == {}
    assert member._subscription.fetchable_partitions() == []
    assert not member._fetcher.in_flight_fetches()


def test_short_polls_balance(kafka, topic_name, consumers):
    """Trap: a join that finished between two polls was thrown away and repeated."""
    kafka.create_topic(topic_name, partitions=4)
    first, second = consumers(topic_name), consumers(topic_name)
    deadline = time.monotonic() + PATIENCE_S
    while not (len(first.assignment()) == len(second.assignment()) == 2):
        assert time.monotonic() < deadline
        first.poll(timeout_ms=0)
        second.poll(timeout_ms=0)
        time.sleep(0.2)


def test_a_wakeup_ends_one_poll(kafka, topic_name, consumers):
    kafka.create_topic(topic_name)
    member = consumers(topic_name)
    poll_until(owns(member, 1), member)
    poll = threading.Thread(target=member.poll_with_rebalance, args=(600_000,))
    poll.start()
    member.wakeup()
    poll.join(PATIENCE_S)
    assert not poll.is_alive()
    member.wakeup()  # none is under way: the next
    assert member.poll(timeout_ms=600_000) == {}
    kafka.produce(topic_name, [b"x"])
    assert member.poll(timeout_ms=600_000), "a wakeup ends one poll only"


@only_classic
@pytest.mark.parametrize("how", ["assigned by hand", "not subscribed"])
def test_a_wakeup_ends_one_poll_outside_of_the_group(kafka, topic_name, consumers, how):
    """The library's poll went on to its end, and so did the next one."""
    kafka.create_topic(topic_name)
    member = consumers()
    if how == "assigned by hand":
        member.assign([TopicPartition(topic_name, 0)])
    poll = threading.Thread(target=member.poll_with_rebalance, args=(600_000,))
    poll.start()
    member.wakeup()
    poll.join(PATIENCE_S)
    assert not poll.is_alive()
    member.wakeup()  # none is under way: the next
    assert member.poll(timeout_ms=600_000) == {}
    if how == "assigned by hand":
        kafka.produce(topic_name, [b"x"])
        assert member.poll(timeout_ms=600_000), "a wakeup ends one poll only"


@pytest.mark.parametrize("session_timeout_ms", [2_000])
def test_heartbeats_go_on_between_rare_polls(kafka, topic_name, group_id, consumers):
    kafka.create_topic(topic_name, partitions=2)
    member = consumers(topic_name)
    poll_until(owns(member, 2), member)
    time.sleep(5)
    assert member.poll_with_rebalance(timeout_ms=20).lost == frozenset()
    assert len(member.assignment()) == 2


def test_no_poll_for_max_poll_interval_leaves_the_group(kafka, topic_name, group_id, consumers):
    kafka.create_topic(topic_name, partitions=2)
    idle = consumers(topic_name, max_poll_interval_ms=1_500)
    poll_until(owns(idle, 2), idle)
    second = consumers(topic_name)
    poll_until(owns(second, 2), second)
    assert len(idle.poll_with_rebalance(timeout_ms=20).lost) == 2
    poll_until(owns(idle, 1), idle, second)


@only_classic
def test_a_fenced_static_member_stops(kafka, topic_name, consumers):
    """Trap: a fenced static member went on consuming."""
    kafka.create_topic(topic_name, partitions=2)
    first = consumers(topic_name, group_instance_id="i")
    poll_until(owns(first, 2), first)
    second = consumers(topic_name, group_instance_id="i")
    poll_until(owns(second, 2), second)

    def refused() -> bool:
        try:
            result = first.poll_with_rebalance(timeout_ms=20)
        except MembershipError as error:
            return "FencedInstanceId" in str(error)
        assert not result.records
        return False

    deadline = time.monotonic() + PATIENCE_S
    while not refused():
        assert time.monotonic() < deadline
    assert first.assignment() == frozenset()


def test_a_static_member_comes_back_without_a_rebalance(
    kafka, topic_name, group_id, protocol, consumers
):
    kafka.create_topic(topic_name, partitions=4)
    first = consumers(topic_name, group_instance_id="a")
    second = consumers(topic_name, group_instance_id="b")
    poll_until(lambda: owns(first, 2)() and owns(second, 2)(), first, second)
    generation, mine, others = second.generation, second.assignment(), first.assignment()
    second.close()
    again = consumers(topic_name, group_instance_id="b")
    poll_until(owns(again, 2), first, again)
    assert again.assignment() == mine
    if protocol == "classic":  # a member epoch counts that too
        assert first.generation == again.generation == generation
    assert first.assignment() == others


def test_a_listener_may_commit(kafka, topic_name, group_id, consumers):
    """Trap: a synchronous rebalance listener ran on the I/O loop and could not commit."""
    kafka.create_topic(topic_name, partitions=2)
    kafka.produce(topic_name, [b"x"] * 20)
    calls = []

    class Committing(ConsumerRebalanceListener):
        def on_partitions_assigned(self, assigned):
            if assigned:  # the consumer protocol may begin with nothing
                calls.append(("assigned", len(assigned)))

        def on_partitions_revoked(self, revoked):
            first.commit({partition: OffsetAndMetadata(4, "", -1) for partition in revoked})
            calls.append(("revoked", len(revoked)))

    first = consumers(defer_revoke=False)
    first.subscribe([topic_name], listener=Committing())
    poll_until(owns(first, 2), first)
    second = consumers(topic_name)
    poll_until(owns(second, 1), first, second)
    assert calls == [("assigned", 2), ("revoked", 1)]
    assert list(kafka.committed(group_id).values()) == [4]


@pytest.mark.parametrize("method", ["on_partitions_revoked", "on_partitions_lost"])
def test_a_listener_that_fails_holds_no_partition_back(kafka, topic_name, consumers, method):
    """The partition was neither read nor released until revoke_timeout_ms, 300 s by default."""
    kafka.create_topic(topic_name, partitions=2)
    failures = []

    class Failing(ConsumerRebalanceListener):
        def on_partitions_assigned(self, assigned):
            pass

        def on_partitions_revoked(self, revoked):
            if method == "on_partitions_revoked":
                raise ValueError(f"not today: {sorted(revoked)}")

        def on_partitions_lost(self, lost):
            raise ValueError(f"not today: {sorted(lost)}")

    is_lost = method == "on_partitions_lost"
    first = consumers(**({"revoke_timeout_ms": 500} if is_lost else {}))
    first.subscribe([topic_name], listener=Failing())
    poll_until(owns(first, 2), first)
    second = consumers(topic_name)

    def polled() -> bool:
        try:
            first.poll_with_rebalance(timeout_ms=20)
        except ValueError as error:
            failures.append(str(error))
        if is_lost:
            first.delay_revoke(first.get_to_be_revoked_partitions())
        return owns(second, 1)() and owns(first, 1)()

    poll_until(polled, second)
    assert failures == [f"not today: {sorted(second.assignment())}"]


def test_a_listener_that_fails_at_an_assignment_has_it_all_the_same(kafka, topic_name, consumers):
    kafka.create_topic(topic_name, partitions=2)
    kafka.produce(topic_name, [b"x"] * 10)

    class Failing(ConsumerRebalanceListener):
        def on_partitions_assigned(self, assigned):
            if assigned:  # the consumer protocol may begin with nothing
                raise ValueError("not today")

        def on_partitions_revoked(self, revoked):
            pass

    member = consumers()
    member.subscribe([topic_name], listener=Failing())
    with pytest.raises(ValueError, match="not today"):
        poll_until(lambda: False, member)
    polled = {}
    poll_until(lambda: len(records_of(polled[member])) == 10, member, results=polled)
    assert len(member.assignment()) == 2


def test_a_pattern_finds_a_new_topic_and_new_partitions(kafka, topic_name, consumers):
    kafka.create_topic(f"{topic_name}.a", partitions=1)
    member = consumers(metadata_max_age_ms=300)
    member.subscribe(pattern=f"^{topic_name}")
    poll_until(owns(member, 1), member)
    kafka.create_topic(f"{topic_name}.b", partitions=2)
    poll_until(owns(member, 3), member)


def test_a_topic_deleted_in_a_deferral_is_let_go(kafka, topic_name, consumers):
    kafka.create_topic(f"{topic_name}.a", partitions=2)
    kafka.create_topic(f"{topic_name}.b", partitions=2)
    first = consumers(metadata_max_age_ms=300)
    first.subscribe(pattern=f"^{topic_name}")
    poll_until(owns(first, 4), first)
    second = consumers(metadata_max_age_ms=300)
    second.subscribe(pattern=f"^{topic_name}")
    poll_until(lambda: bool(first._ownership.revoking), first, second, hold=True)
    kafka.delete_topic(f"{topic_name}.b")
    poll_until(
        lambda: (
            {p.topic for p in first.assignment() | second.assignment()} == {f"{topic_name}.a"}
            and len(first.assignment()) == len(second.assignment()) == 1
        ),
        first,
        second,
    )


@only_classic
def test_shares_its_group_with_plain_cooperative_consumers(kafka, topic_name, group_id, consumers):
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor

    kafka.create_topic(topic_name, partitions=4)
    ours = consumers(topic_name)
    poll_until(owns(ours, 4), ours)
    plain = KafkaConsumer(
        topic_name,
        bootstrap_servers=kafka.bootstrap_servers,
        group_id=group_id,
        partition_assignment_strategy=[CooperativeStickyAssignor],
        enable_auto_commit=False,
        session_timeout_ms=6_000,
        heartbeat_interval_ms=500,
    )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while len(plain.assignment()) < 2:
            assert time.monotonic() < deadline
            plain.poll(timeout_ms=500)
            ours.poll(timeout_ms=20)
        assert ours.assignment().isdisjoint(plain.assignment())
    finally:
        plain.close()
    poll_until(owns(ours, 4), ours)


@pytest.mark.parametrize(
    ("config", "option"),
    [
        ({"group_id": None}, "group_id"),
        ({"group_protocol": "share"}, "group_protocol"),
        ({"group_remote_assignor": "uniform"}, "group_remote_assignor"),
        ({"enable_auto_commit": True}, "enable_auto_commit"),
        ({"partition_assignment_strategy": ()}, "partition_assignment_strategy"),
        ({"revoke_timeout_ms": 0}, "revoke_timeout_ms"),
        ({"revoke_timeout_ms": 300_001}, "revoke_timeout_ms"),
        ({"heartbeat_interval_ms": 6_000}, "heartbeat_interval_ms"),
    ],
)
def test_bad_options_are_named_before_any_network(config, option):
    settings = {"group_id": "g", "bootstrap_servers": "127.0.0.1:1", "session_timeout_ms": 6_000}
    with pytest.raises(OptionError, match=option) as caught:
        DeferredRevokeConsumer("t", **{**settings, **config})
    assert caught.value.option == option


@pytest.mark.parametrize("protocol", ["classic"], indirect=True)
def test_a_partition_paused_in_the_midst_of_what_was_fetched_goes_on_when_resumed(
    kafka: LocalKafka, topic_name: str, consumers: Callable[..., DeferredRevokeConsumer]
) -> None:
    """kafka-python puts aside what is left of the fetch, and may not find it again."""
    kafka.create_topic(topic_name, 2)
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    partitions = [TopicPartition(topic_name, n) for n in range(2)]
    for partition in partitions:
        for _ in range(100):
            producer.send(topic_name, b"x", partition=partition.partition)
    producer.close()
    consumer = consumers(topic_name)
    found = dict.fromkeys(partitions, 0)

    def polled(**how: Any) -> None:
        for partition, records in consumer.poll(timeout_ms=100, **how).items():
            found[partition] += len(records)

    deadline = time.monotonic() + PATIENCE_S
    while not any(found.values()):
        assert time.monotonic() < deadline
        polled(max_records=10)
    (first,) = (partition for partition in partitions if found[partition])
    consumer.pause(first)
    while sorted(found.values()) != [10, 100]:
        assert time.monotonic() < deadline
        polled()
    polled()
    consumer.resume(first)
    while sorted(found.values()) != [100, 100]:
        assert time.monotonic() < deadline, found
        polled()
