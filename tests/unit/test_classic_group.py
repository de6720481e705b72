"""Members of the classic protocol against a coordinator that loses its memory and its connections.

The members are the code under test, whole but for the network: joins, heartbeats, commits and
goodbyes are on their way for as long as hypothesis likes, while applications poll, commit and
release, and requests or their answers get lost. The coordinator: ``classic_coordinator``.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from classic_coordinator import ClassicCoordinator
from consumer_protocol_coordinator import Clock
from histories import ALWAYS_THE_SAME, histories
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from kafka import errors as kafka_errors
from kafka.structs import TopicPartition
from stepped_loop import Alarm, Flight, SteppedLoop, Wait

from pyspark_kafka_rebalance.consumer.member_record import AssignmentReceived, Lost
from pyspark_kafka_rebalance.consumer.membership.classic import RULES, ClassicProtocol
from pyspark_kafka_rebalance.consumer.membership.group_membership import GroupMembership
from pyspark_kafka_rebalance.consumer.membership.member_parts import MemberParts

PARTITIONS = [TopicPartition("t", n) for n in range(4)]
MEMBERS = range(3)
SESSION_S = 10.0
#: What is sent is answered or given up within this, unless the coordinator holds it.
PATIENCE_S = 1.5
#: An application polls this often.
POLL_S = 20.0

JOIN_NODE, LANE = "join", "lane"


class Application:
    """A member, and a consumer that applies, commits and releases as ``DeferredRevokeConsumer``."""

    def __init__(self, name: int, clock: Clock, coordinator: ClassicCoordinator) -> None:
        self.name = name
        self.clock = clock
        self.coordinator = coordinator
        self.loop = SteppedLoop(clock)
        self.owned: set[TopicPartition] = set()
        self.revoking: set[TopicPartition] = set()
        self.giving_up: set[TopicPartition] = set()  # once their commits are acknowledged
        self.known = False  # the coordinator, to the client
        self.stranded = False  # with the address of one that does not answer
        self.may_lose_requests = True
        self.may_be_lost = False
        self.owes_a_join = False  # it has released something, and has not said so
        self.polled_at = clock.now
        cluster = SimpleNamespace(
            topics=lambda: {"t"}, partitions_for_topic=lambda t: {p.partition for p in PARTITIONS}
        )
        self.subscription = SimpleNamespace(
            subscribed=True,
            topics=frozenset(["t"]),
            pattern=None,
            watch_topics=lambda topics: None,
            owned=lambda: frozenset(self.owned),
        )
        self.io = SimpleNamespace(
            loop=SimpleNamespace(
                alarm=lambda: Alarm(clock),
                spawn=self.loop.spawn,
                run=self.loop.spawn,  # nobody waits for the goodbye
                sleep=self.loop.sleep,
                wait_for=self.loop.wait_for,
                send=self._send,
                closed=False,
                api_version=lambda request: 9,
            ),
            metadata=SimpleNamespace(
                partition_counts=lambda topics: dict.fromkeys(topics, len(PARTITIONS)),
                unauthorized_topics=frozenset(),
                cluster=cluster,
            ),
            subscription=self.subscription,
            coordinator=lambda: LANE,
            join_node=JOIN_NODE,
            coordinator_unknown=lambda: not self.known,
            lookup_coordinator=self._look_up,
            coordinator_dead=self._coordinator_dead,
        )
        config = {
            "group_id": "g",
            "group_instance_id": None,
            "heartbeat_interval_ms": 1_000,
            "retry_backoff_ms": 100,
            "request_timeout_ms": 30_000,
            "session_timeout_ms": int(SESSION_S * 1000),
            "max_poll_interval_ms": 300_000,
        }
        parts = MemberParts(self.io, config, RULES, clock.monotonic)  # type: ignore[arg-type]
        self.protocol = ClassicProtocol(parts, lambda: self.revoking)
        self.membership = GroupMembership(
            parts, self.protocol, lambda: frozenset(self.owned - self.giving_up)
        )
        self.record, self.lease = parts.record, parts.lease
        self.membership.start()
        self.loop.run()

    async def _send(self, request: Any, node: str, timeout_ms: float) -> Any:
        if type(request).__name__ == "OffsetCommitRequest":
            sent = {
                TopicPartition(t.name, p.partition_index)
                for t in request.topics
                for p in t.partitions
            }
            assert sent <= self.owned - self.record.lost_of(self.owned), "of what is not owned"
        if type(request).__name__ == "JoinGroupRequest":
            self.owes_a_join = False
        return await self.loop.send(request, node, timeout_ms)

    def _look_up(self) -> Wait:
        self.known, self.stranded = True, False
        found = Wait()
        found.success(None)
        return found

    def _coordinator_dead(self, reason: str) -> None:
        """As the seam does: the connection that carries joins is closed."""
        self.known = False
        for flight in [f for f in self.loop.flights if f.node == JOIN_NODE]:
            self.loop.break_off(flight, kafka_errors.KafkaConnectionError(reason))

    # -- the network ------------------------------------------------------------------------------

    def first(self, node: str, *, arrived: bool) -> Flight | None:
        """One connection keeps the order."""
        flights = [f for f in self.loop.flights if f.node == node]
        if arrived:
            return flights[0] if flights and flights[0].answer is not None else None
        return next((f for f in flights if not f.arrived), None)

    def arrive(self, node: str) -> bool:
        flight = self.first(node, arrived=False)
        if flight is None:
            return False
        flight.arrived = True
        if self.stranded:
            if node == LANE:
                self.loop.break_off(flight, kafka_errors.RequestTimedOutError("said the test"))
                self.loop.run()
            return True

        def reply(answer: Any) -> None:
            flight.answer = answer

        self.coordinator.receive(flight.request, reply)
        return True

    def hear(self, node: str) -> bool:
        flight = self.first(node, arrived=True)
        if flight is None:
            return False
        if type(flight.request).__name__ == "HeartbeatRequest":
            self.may_lose_requests = True
        self.loop.hear(flight)
        return True

    def lose_connections(self) -> None:
        self.may_lose_requests = False
        for flight in list(self.loop.flights):
            self.loop.break_off(flight, kafka_errors.KafkaConnectionError("said the test"))
        self.loop.run()

    def hear_nothing(self) -> None:
        """Until the coordinator is looked up. A join has no end of its own."""
        self.may_lose_requests, self.stranded = False, True
        for flight in self.loop.flights:
            flight.arrived, flight.answer = flight.node == JOIN_NODE, None

    # -- the consumer -----------------------------------------------------------------------------

    def poll(self) -> None:
        self.polled_at = self.clock.now
        if not self.subscription.subscribed:
            return
        self.membership.raise_if_failed()
        self.membership.polled()
        self.membership.lose_if_expired()
        self._release_drained()
        event = self.membership.take_event()
        if isinstance(event, Lost):
            assert self.may_be_lost or not self.owned, f"lost without need: {event.reason}"
            self.may_be_lost = False
            self.forget()
        elif isinstance(event, AssignmentReceived):
            self.revoking = (self.owned - event.partitions) - self.giving_up
            self.owned |= event.partitions
            # Given back before it was released: it is still the member's.
            self.giving_up -= event.partitions
            self.protocol.applied(event)
        self.loop.run()

    def forget(self) -> None:
        self.owned, self.revoking, self.giving_up = set(), set(), set()
        self.owes_a_join = False

    def commit(self, partition: TopicPartition, offset: int) -> None:
        if partition in self.knows_to_own():
            self.membership.commit({partition: offset})
            self.loop.run()

    def give_up(self, partitions: set[TopicPartition]) -> None:
        """Complete the revoke; to the group they are owned until their commits are answered."""
        self.revoking -= partitions
        self.giving_up |= partitions
        self._release_drained()
        self.loop.run()

    def _release_drained(self) -> None:
        drained = {p for p in self.giving_up if not self.membership.commits.outstanding(p)}
        if drained:
            self.owned -= drained
            self.giving_up -= drained
            self.owes_a_join = True
            self.protocol.released(drained)

    def leave(self) -> None:
        self.subscription.subscribed = False
        self.membership.leave()
        self.forget()
        self.loop.run()

    def come_back(self) -> None:
        self.subscription.subscribed = True
        self.protocol.on_metadata_update()
        self.poll()

    def knows_to_own(self) -> set[TopicPartition]:
        """What it may hand out: applied, not lost as far as it knows, and the lease holds."""
        if not self.lease.holds():
            return set()
        owned = self.owned - self.giving_up
        return owned - self.record.lost_of(owned)


members = st.sampled_from(MEMBERS)
nodes = st.sampled_from([JOIN_NODE, LANE])


class Group(RuleBasedStateMachine):
    @initialize(begun=st.booleans())
    def begin(self, begun: bool) -> None:
        self.clock = Clock()
        self.coordinator = ClassicCoordinator(self.clock, SESSION_S)
        self.coordinator.on_commit = self.check_commit
        self.applications = [Application(n, self.clock, self.coordinator) for n in MEMBERS]
        if begun:
            self.the_group_settles()

    # -- the network ------------------------------------------------------------------------------

    @rule(member=members, node=nodes)
    def a_request_arrives(self, member: int, node: str) -> None:
        self.applications[member].arrive(node)

    @rule(member=members, node=nodes)
    def an_answer_arrives(self, member: int, node: str) -> None:
        self.applications[member].hear(node)

    @rule(member=members)
    def what_a_member_sends_goes_through(self, member: int) -> None:
        self.go_through([self.applications[member]])

    @rule(member=members)
    def its_connections_break(self, member: int) -> None:
        """Not twice before a heartbeat has got through: the session would end."""
        if self.applications[member].may_lose_requests:
            self.applications[member].lose_connections()

    @rule(without_a_word=st.booleans())
    def the_coordinator_fails_over(self, without_a_word: bool) -> None:
        if all(application.may_lose_requests for application in self.applications):
            self.coordinator.fail_over()
            for application in self.applications:
                if without_a_word:
                    application.hear_nothing()
                else:
                    application.lose_connections()

    # -- the applications -------------------------------------------------------------------------

    @rule(member=members)
    def an_application_polls(self, member: int) -> None:
        self.applications[member].poll()

    @rule(member=members, data=st.data())
    def a_revoke_is_completed(self, member: int, data: st.DataObject) -> None:
        application = self.applications[member]
        if application.revoking:
            chosen = st.sets(st.sampled_from(sorted(application.revoking)), min_size=1)
            application.give_up(data.draw(chosen))

    @rule(member=members, partition=st.sampled_from(PARTITIONS), offset=st.integers(1, 9))
    def an_application_commits(self, member: int, partition: TopicPartition, offset: int) -> None:
        self.applications[member].commit(partition, offset)

    @rule(member=members, keeps_its_id=st.booleans())
    def a_membership_is_lost(self, member: int, keeps_its_id: bool) -> None:
        """As when its lease has ended; the coordinator may still know it."""
        application = self.applications[member]
        if application.record.member.joined:
            application.may_be_lost = True
            application.record.lose("said the test", keeps_its_id)
            application.loop.run()

    @rule(member=members)
    def a_member_leaves_or_comes_back(self, member: int) -> None:
        application = self.applications[member]
        if application.subscription.subscribed:
            application.leave()
        else:
            application.come_back()

    # -- in the midst of a join -------------------------------------------------------------------

    @rule(
        member=members,
        other=members,
        synced=st.booleans(),
        what=st.sampled_from(["lost", "left", "released", "failed over", "nothing"]),
    )
    def it_happens_in_mid_join(self, member: int, other: int, synced: bool, what: str) -> None:
        """While the answer to its JoinGroup, or to its SyncGroup, is on its way."""
        application = self.applications[member]
        if member == other or not application.subscription.subscribed:
            return
        self.a_member_leaves_or_comes_back(other)
        for _ in range(20):
            self.wait(0.1)
            for one in self.applications:
                while one.arrive(LANE) | one.hear(LANE) | one.arrive(JOIN_NODE):
                    pass
                if one is not application:
                    one.poll()
                    one.hear(JOIN_NODE)
            flight = application.first(JOIN_NODE, arrived=True)
            if flight is not None and application.record.member.joined:
                if synced == (type(flight.request).__name__ == "SyncGroupRequest"):
                    break
                application.hear(JOIN_NODE)
        else:
            return
        for partition in application.knows_to_own():
            application.commit(partition, 9)
        if what == "lost":
            known_as = application.record.member.member_id
            self.a_membership_is_lost(member, keeps_its_id=False)
            application.hear(JOIN_NODE)
            self.nothing_is_applied(application)
            if not synced:  # else it goes by no id, and the coordinator waits for the end of this
                assert application.record.member.member_id == known_as
        elif what == "left":
            application.leave()
            application.arrive(LANE)
            application.come_back()
            application.hear(JOIN_NODE)
            self.nothing_is_applied(application)
        elif what == "released":
            application.give_up(set(application.revoking))
        elif what == "failed over":
            self.the_coordinator_fails_over(without_a_word=synced)

    def nothing_is_applied(self, application: Application) -> None:
        """The answer was to a membership that has ended."""
        for _ in range(2):
            application.poll()
        assert application.owned == set()

    @rule(member=members)
    def a_newcomer_leaves_before_it_has_its_id(self, member: int) -> None:
        application = self.applications[member]
        if application.subscription.subscribed:
            application.leave()
        self.the_group_settles()
        application.come_back()
        if any(self.held(flight) for flight in application.loop.flights):
            return  # it has lost its membership in mid-join, and its answer is still to come
        assert application.arrive(JOIN_NODE)
        application.leave()
        self.go_through([application])
        group = self.coordinator.group
        assert not group.named, "the group waits for one that has left"

    # -- time -------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.2, 1.0, 3.0]))
    def time_passes(self, seconds: float) -> None:
        self.wait(seconds)

    def wait(self, seconds: float) -> None:
        until = self.clock.now + seconds
        while self.clock.now < until:
            self.clock.now += 0.1
            self.coordinator.expire()
            for application in self.applications:
                application.loop.run()
                if any(
                    self.clock.now - flight.sent_at > PATIENCE_S and not self.held(flight)
                    for flight in application.loop.flights
                ):
                    self.go_through([application])
                if self.clock.now - application.polled_at > POLL_S:
                    application.poll()

    @rule()
    def the_group_settles(self) -> None:
        for _ in range(6):
            self.go_through(self.applications)
            for application in self.applications:
                application.poll()
                application.give_up(set(application.revoking))
            self.time_passes(1.0)

    def held(self, flight: Flight) -> bool:
        return flight.node == JOIN_NODE and flight.arrived and flight.answer is None

    def go_through(self, applications: list[Application]) -> None:
        went_on = True
        while went_on:
            went_on = False
            for application in applications:
                for node in (LANE, JOIN_NODE):
                    went_on |= application.arrive(node) | application.hear(node)

    # -- what holds -------------------------------------------------------------------------------

    def check_commit(self, member_id: str, partition: TopicPartition) -> None:
        for application in self.applications:
            if partition in application.knows_to_own():
                owner = application.record.member.member_id
                assert owner in ("", member_id), "committed by who does not own it any more"

    @invariant()
    def nothing_is_owned_twice(self) -> None:
        if hasattr(self, "applications"):
            owned = [p for application in self.applications for p in application.knows_to_own()]
            assert len(owned) == len(set(owned)), f"owned twice: {sorted(owned)}"

    @invariant()
    def a_member_is_not_stable_before_it_has_told_what_it_has_released(self) -> None:
        for application in getattr(self, "applications", ()):
            assert not (application.owes_a_join and application.membership.is_stable())

    @invariant()
    def no_loop_has_failed(self) -> None:
        for application in getattr(self, "applications", ()):
            assert application.record.failure is None

    def teardown(self) -> None:
        """Left alone, the group has a stable generation, and every partition one owner."""
        if not hasattr(self, "applications"):
            return
        try:
            for application in self.applications:
                if not application.subscription.subscribed:
                    application.come_back()
            for _ in range(8):
                self.the_group_settles()
                if self.settled():
                    break
            assert self.settled(), self.coordinator.group
            owned = [p for application in self.applications for p in application.knows_to_own()]
            assert sorted(owned) == PARTITIONS
            shares = [len(application.owned) for application in self.applications]
            assert max(shares) - min(shares) <= 1
            for application in self.applications:
                assert not application.membership.commits.any_outstanding()
        finally:
            for application in self.applications:
                application.loop.end()

    def settled(self) -> bool:
        seats = self.coordinator.group.seats
        return (
            self.coordinator.group.state == "Stable"
            and seats.keys() == {a.record.member.member_id for a in self.applications}
            and all(a.membership.is_stable() and not a.revoking for a in self.applications)
            and sum(len(a.owned) for a in self.applications) == len(PARTITIONS)
        )


@pytest.fixture
def group() -> Iterator[Group]:
    """All members are in a stable generation."""
    group = Group()
    group.begin(begun=True)
    yield group
    group.teardown()


def lane_through(application: Application) -> None:
    while application.arrive(LANE) | application.hear(LANE):
        pass


def test_a_generation_that_the_coordinator_has_forgotten_is_not_spoken_for(group: Group) -> None:
    """Until the next join nothing could have been committed, and a join may be held for long."""
    coordinator = group.coordinator
    leader_id, generation = coordinator.group.leader, coordinator.group.generation
    (leader,) = [a for a in group.applications if a.record.member.member_id == leader_id]
    follower, other = [a for a in group.applications if a is not leader]
    other.leave()
    lane_through(other)
    while follower.record.member.generation == generation:
        group.wait(0.1)
        for application in (leader, follower):
            lane_through(application)
            application.arrive(JOIN_NODE)
        follower.hear(JOIN_NODE)
    group.the_coordinator_fails_over(without_a_word=False)  # it has not heard from the leader
    follower.loop.run()
    group.clock.now += 1.0
    follower.loop.run()
    lane_through(follower)
    assert follower.record.member.generation == generation
    partition = min(follower.owned)
    follower.commit(partition, 7)
    lane_through(follower)
    assert coordinator.committed[partition] == 7
    assert follower.protocol._joining, "it has joined already, so this proves nothing"


def test_the_answer_to_the_heartbeat_of_a_former_membership_ends_nothing(group: Group) -> None:
    application, *others = group.applications
    while (heartbeat := application.first(LANE, arrived=False)) is None:
        group.clock.now += 0.1
        application.loop.run()
    group.coordinator.remove(application.record.member.member_id)
    application.arrive(LANE)
    assert heartbeat.answer.error_code == kafka_errors.UnknownMemberIdError.errno
    group.a_membership_is_lost(application.name, keeps_its_id=False)
    for _ in range(9):
        group.clock.now += 0.1
        for one in group.applications:
            one.loop.run()
            one.poll()
            one.give_up(set(one.revoking))
            one.arrive(JOIN_NODE)
            one.hear(JOIN_NODE)
        group.go_through(others)
    losses = application.record.attempt().losses
    assert application.owned
    assert application.first(LANE, arrived=True) is heartbeat
    application.hear(LANE)
    assert application.record.attempt().losses == losses
    assert application.record.member.joined


TestGroup = Group.TestCase
TestGroup.settings = settings(
    max_examples=histories(200),
    stateful_step_count=50,
    derandomize=ALWAYS_THE_SAME,
    deadline=None,
)
