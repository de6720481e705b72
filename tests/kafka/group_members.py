"""What the tests of group membership have in common: polling members, and holding requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from kafka import KafkaAdminClient
from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance import DeferredRevokeConsumer
from pyspark_kafka_rebalance.consumer.consumer import PollResult
from pyspark_kafka_rebalance.consumer.membership.classic import ClassicProtocol
from pyspark_kafka_rebalance.consumer.membership.group_membership import GroupMembership
from pyspark_kafka_rebalance.consumer.membership.member_parts import MemberParts
from pyspark_kafka_rebalance.consumer.membership.next_generation import NextGenerationProtocol
from pyspark_kafka_rebalance.testing import LocalKafka

PATIENCE_S = 60.0

#: Every test of what both protocols promise runs with each of these.
PROTOCOLS = ("classic", "consumer")

MakeMember = Callable[..., DeferredRevokeConsumer]
Results = dict[DeferredRevokeConsumer, list[PollResult]]


@contextmanager
def members_of(
    cluster: LocalKafka, group_id: str, protocol: str, session_timeout_ms: int
) -> Iterator[MakeMember]:
    """Make members of one group; closed at the end."""
    timeouts = {"session_timeout_ms": session_timeout_ms, "heartbeat_interval_ms": 500}
    if protocol == "consumer":  # there they are the group's
        cluster.configure_group(
            group_id,
            {f"consumer.{name.replace('_', '.')}": value for name, value in timeouts.items()},
        )
    with ExitStack() as stack:

        def make(*topics: str, **config: Any) -> DeferredRevokeConsumer:
            settings = {
                "bootstrap_servers": cluster.bootstrap_servers,
                "group_id": group_id,
                "group_protocol": protocol,
                "auto_offset_reset": "earliest",
                # Brokers come back sooner here than the 30 s for which it would wait at the end.
                "reconnect_backoff_max_ms": 200,
                **timeouts,
                **config,
            }
            member = DeferredRevokeConsumer(*topics, **settings)
            stack.callback(member.close, timeout_ms=2_000)
            return member

        yield make


def wait_until(done: Callable[[], bool], what: str) -> None:
    """Wait without polling any member."""
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.02)


def poll_until(
    done: Callable[[], bool],
    *members: DeferredRevokeConsumer,
    hold: bool = False,
    results: Results | None = None,
) -> Results:
    """Poll the members in turn until ``done``; ``hold`` delays every revoke.

    Checks what holds of every poll. Adds to ``results``, so that ``done`` can look into them.
    """
    results = {} if results is None else results
    for member in members:
        results.setdefault(member, [])
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < deadline, "the group did not get there"
        for member in members:
            result = member.poll_with_rebalance(timeout_ms=20)
            results[member].append(result)
            revoking = member._ownership.revoking
            assert not result.lost & member.assignment(), "both lost and assigned"
            assert not result.lost & result.assigned, "both lost and newly assigned"
            assert not revoking & result.records.keys(), "a record of a revoking one"
            if hold and not member.delay_revoke(result.to_be_revoked):
                # Only what the I/O loop gave up meanwhile, and the next poll tells to be lost.
                assert lost_untold(member, result.to_be_revoked)
        assert_nothing_is_owned_twice(*members)
    return results


# What the tests of membership see and do of a member's inside: here, and nowhere else.


def membership_of(member: DeferredRevokeConsumer) -> GroupMembership:
    """Its membership, which no test but those of membership looks into."""
    return member._membership


def parts_of(member: DeferredRevokeConsumer) -> MemberParts:
    """What it consists of: its lane, record, lease, schedule."""
    return membership_of(member).parts


def lose(member: DeferredRevokeConsumer, *, keep_member_id: bool = False) -> None:
    """As if the coordinator had given the member up; it joins again as soon as it can."""
    parts_of(member).record.lose("said the test", keep_member_id)


def losses(member: DeferredRevokeConsumer) -> int:
    """How many memberships of it have ended."""
    return parts_of(member).record.attempt().losses


def loss_waits(member: DeferredRevokeConsumer) -> bool:
    """Whether its next poll will tell of a loss."""
    return parts_of(member).record.loss_waits()


def lost_untold(
    member: DeferredRevokeConsumer, partitions: Iterable[TopicPartition]
) -> frozenset[TopicPartition]:
    """Those of these of which its next poll will say that they are lost."""
    return parts_of(member).record.lost_of(frozenset(partitions))


def is_closing(member: DeferredRevokeConsumer) -> bool:
    """Whether its close has begun."""
    return parts_of(member).record.closed


def classic(member: DeferredRevokeConsumer) -> ClassicProtocol:
    """What it does in the classic protocol."""
    protocol = membership_of(member).protocol
    assert isinstance(protocol, ClassicProtocol)
    return protocol


def next_generation(member: DeferredRevokeConsumer) -> NextGenerationProtocol:
    """What it does in the consumer protocol."""
    protocol = membership_of(member).protocol
    assert isinstance(protocol, NextGenerationProtocol)
    return protocol


def joining(*members: DeferredRevokeConsumer) -> bool:
    """Whether all of them are in a join of the classic protocol."""
    return all(classic(member)._joining for member in members)


def committing(*members: DeferredRevokeConsumer) -> bool:
    """Whether a commit of any of them waits for its answer."""
    return any(parts_of(member).commits.any_outstanding() for member in members)


def request_revoke(
    member: DeferredRevokeConsumer, *partitions: TopicPartition, at: float | None = None
) -> None:
    """As if the group had wanted them back; now, or at another time (seconds, monotonic)."""
    ownership = member._ownership
    kept = ownership.assignment.difference(partitions)
    ownership.assigned(kept, ownership.generation, time.monotonic() if at is None else at)


def assert_nothing_is_owned_twice(*members: DeferredRevokeConsumer) -> None:
    """Of those that know of no loss that their next poll would report."""
    owned = [
        partition
        for member in members
        if not loss_waits(member)
        for partition in member.assignment()
    ]
    assert len(owned) == len(set(owned)), f"owned twice: {sorted(owned)}"


def owns(member: DeferredRevokeConsumer, count: int) -> Callable[[], bool]:
    return lambda: len(member.assignment()) == count and member.is_stable


def share(*members: DeferredRevokeConsumer, partitions: int) -> Callable[[], bool]:
    """Whether the members own so many partitions together, evenly, and nothing is under way."""

    def shared() -> bool:
        owned = sorted(len(member.assignment()) for member in members)
        return (
            sum(owned) == partitions
            and owned[-1] - owned[0] <= 1
            and all(member.is_stable for member in members)
        )

    return shared


def lost(results: Iterable[PollResult]) -> frozenset[TopicPartition]:
    return frozenset().union(*(result.lost for result in results))


def revoked(results: Iterable[PollResult]) -> frozenset[TopicPartition]:
    return frozenset().union(*(result.revoked for result in results))


def records(results: Iterable[PollResult]) -> list[tuple[TopicPartition, int]]:
    """Partition and offset of every record, in the order in which they came."""
    return [
        (partition, record.offset)
        for result in results
        for partition, found in result.records.items()
        for record in found
    ]


def elected_preferred(cluster: LocalKafka) -> bool:
    """Elect the preferred coordinators; False as long as some are not back, or not in sync."""
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    try:
        admin.elect_leaders(0, {"__consumer_offsets": [0, 1, 2]})
    except (
        kafka_errors.RetriableError,
        kafka_errors.UnknownBrokerIdError,  # of the controller, which has not registered again
    ):
        return False
    finally:
        admin.close()
    return True


def move_coordinators(cluster: LocalKafka) -> None:
    """Have other brokers coordinate all groups; those that did so go on running."""
    topic = "__consumer_offsets"
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)

    def leaders() -> dict[int, int]:
        (found,) = admin.describe_topics([topic])
        return {p["partition_index"]: p["leader_id"] for p in found["partitions"]}

    try:
        (before,) = admin.describe_topics([topic])
        preferring = {}
        for partition in before["partitions"]:
            first, *others = partition["replica_nodes"]
            preferring[TopicPartition(topic, partition["partition_index"])] = [*others, first]
        assert set(admin.alter_partition_reassignments(preferring).values()) == {None}
        wanted = {p.partition: replicas[0] for p, replicas in preferring.items()}
        wait_until(
            lambda: elected_preferred(cluster) and leaders() == wanted, "the other coordinators"
        )
    finally:
        admin.close()


@contextmanager
def held(
    member: DeferredRevokeConsumer, request_type: type, *, answer: bool
) -> Iterator[threading.Event]:
    """Hold the member's requests of a kind, or the answers to them, until the block ends.

    Yields the event that one is being held.
    """
    loop = member._io.loop
    send = loop.send
    holding, go_on = threading.Event(), threading.Event()

    async def hold() -> None:
        holding.set()
        while not go_on.is_set():
            await loop.sleep(0.01)

    async def holding_send(request: Any, node_id: str | None, timeout_ms: float) -> Any:
        if not isinstance(request, request_type):
            return await send(request, node_id, timeout_ms)
        if not answer:
            await hold()
        response = await send(request, node_id, timeout_ms)
        if answer:
            await hold()
        return response

    loop.send = holding_send
    try:
        yield holding
    finally:
        loop.send = send
        go_on.set()


@contextmanager
def counted(member: DeferredRevokeConsumer, request_type: type) -> Iterator[list[Any]]:
    """The requests of a kind that the member sends in the block."""
    loop = member._io.loop
    send = loop.send
    requests: list[Any] = []

    async def counting_send(request: Any, node_id: str | None, timeout_ms: float) -> Any:
        if isinstance(request, request_type):
            requests.append(request)
        return await send(request, node_id, timeout_ms)

    loop.send = counting_send
    try:
        yield requests
    finally:
        loop.send = send


@contextmanager
def waits_for_loop(member: DeferredRevokeConsumer) -> Iterator[threading.Event]:
    """The event that one of the application's threads waits for the member's I/O loop."""
    loop = member._io.loop
    run = loop.run
    waits = threading.Event()

    def waited_for(coroutine: Callable[..., Any], *arguments: Any) -> Any:
        waits.set()
        return run(coroutine, *arguments)

    loop.run = waited_for
    try:
        yield waits
    finally:
        loop.run = run
