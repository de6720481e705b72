"""Members of the consumer protocol against a coordinator that gives their partitions to others.

The members are the code under test, whole but for the network: heartbeats are on their way for as
long as hypothesis likes, while applications poll and release, and they or their answers get lost.
The coordinator: ``consumer_protocol_coordinator``.
"""

from __future__ import annotations

import math
from collections.abc import Coroutine, Generator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from consumer_protocol_coordinator import REBALANCE_TIMEOUT_S, Clock, Coordinator, Partitions
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from kafka import errors as kafka_errors
from kafka.protocol.admin import DescribeConfigsRequest
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.consumer.member_record import AssignmentReceived, Lost
from pyspark_kafka_rebalance.consumer.membership.group_membership import GroupMembership
from pyspark_kafka_rebalance.consumer.membership.member_parts import MemberParts
from pyspark_kafka_rebalance.consumer.membership.next_generation import (
    RULES,
    NextGenerationProtocol,
)

TOPIC = UUID(int=1)
NUMBERS = range(4)
MEMBERS = range(2)
#: A heartbeat is answered or given up within this; the member gives up 10 s before the broker.
PATIENCE_S = 4.0


class Pause:
    """Awaited, it stops the coroutine until it is sent an answer."""

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield self)


@dataclass
class Flight:
    """A heartbeat on its way."""

    coroutine: Coroutine[Any, Any, None]
    sent_at: float
    answer: tuple[int, Partitions | None] | type[Exception] | None = None


class Application:
    """A member, and a consumer that applies and releases as ``DeferredRevokeConsumer`` does."""

    def __init__(self, name: int, clock: Clock) -> None:
        self.name = name
        self.clock = clock
        alarm = SimpleNamespace(notify=lambda: None)
        io = SimpleNamespace(
            loop=SimpleNamespace(
                alarm=lambda: alarm, send=self._send, api_version=lambda request: 1
            ),
            metadata=SimpleNamespace(topic_name=lambda topic_id: "t"),
            subscription=SimpleNamespace(subscribed=True, topics=frozenset(["t"]), pattern=None),
            coordinator_unknown=lambda: False,
            coordinator_dead=lambda reason: None,
            coordinator=lambda: "broker",
        )
        config = {
            "group_id": "g",
            "group_instance_id": None,
            "heartbeat_interval_ms": 1_000,
            "retry_backoff_ms": 100,
            "request_timeout_ms": 30_000,
            "session_timeout_ms": 45_000,
            "max_poll_interval_ms": int(REBALANCE_TIMEOUT_S * 1_000),
            "client_rack": "",
            "exclude_internal_topics": True,
        }
        self.owned: set[int] = set()
        self.revoking: set[int] = set()
        self.flight: Flight | None = None
        self.said: tuple[int, Partitions | None, bool] | None = None
        self.may_lose = True
        self.last_sent = clock.now
        parts = MemberParts(io, config, RULES, clock.monotonic)  # type: ignore[arg-type]
        self.protocol = NextGenerationProtocol(parts)
        self.membership = GroupMembership(parts, self.protocol, frozenset)
        self.record = parts.record

    async def _send(self, request: Any, node: str, timeout_ms: float) -> Any:
        if isinstance(request, DescribeConfigsRequest):
            return SimpleNamespace(results=())
        owned = None
        if request.topic_partitions is not None:
            owned = frozenset(n for topic in request.topic_partitions for n in topic.partitions)
        self.said = (request.member_epoch, owned, request.rebalance_timeout_ms != -1)
        return await Pause()

    # -- the network ------------------------------------------------------------------------------

    def send(self) -> None:
        coroutine = self.protocol.beat()
        coroutine.send(None)  # up to the pause
        self.last_sent = self.clock.now
        self.flight = Flight(coroutine, self.clock.now)

    def revoke_by(self) -> float:
        return self.protocol._reconciliation.revoke_by

    def arrive(self, coordinator: Coordinator) -> None:
        assert self.flight is not None
        assert self.said is not None
        self.flight.answer = coordinator.heartbeat(self.name, *self.said)

    def hear(self, topic_id: UUID = TOPIC) -> None:
        assert self.flight is not None
        coroutine, answer = self.flight.coroutine, self.flight.answer
        self.flight, self.may_lose = None, True
        if isinstance(answer, type):
            response = SimpleNamespace(error_code=answer.errno, error_message="")
        else:
            assert answer is not None
            epoch, assigned = answer
            topic = SimpleNamespace(topic_id=topic_id, partitions=sorted(assigned or ()))
            response = SimpleNamespace(
                error_code=0,
                member_epoch=epoch,
                member_id=None,
                heartbeat_interval_ms=1_000,
                assignment=(
                    None
                    if assigned is None
                    else SimpleNamespace(topic_partitions=[topic] if assigned else [])
                ),
            )
        self._finish(lambda: coroutine.send(response))

    def hear_nothing(self) -> None:
        assert self.flight is not None
        coroutine, self.flight, self.may_lose = self.flight.coroutine, None, False
        self._finish(lambda: coroutine.throw(kafka_errors.KafkaTimeoutError("no answer")))

    def _finish(self, step: Any) -> None:
        try:
            step()
        except StopIteration:
            return
        raise AssertionError("the heartbeat goes on")

    # -- the consumer -----------------------------------------------------------------------------

    def poll(self) -> None:
        event = self.membership.take_event()
        if isinstance(event, Lost):
            lost = (
                set(self.owned)
                if event.partitions is None
                else {p.partition for p in event.partitions}
            )
            self.owned -= lost
            self.revoking -= lost
        elif isinstance(event, AssignmentReceived):
            assigned = {p.partition for p in event.partitions}
            self.revoking = self.owned - assigned
            self.owned |= assigned
            self.protocol.applied(event)

    def release(self, numbers: set[int]) -> None:
        self.owned -= numbers
        self.revoking -= numbers
        self.protocol.released([TopicPartition("t", n) for n in numbers])

    def knows_to_own(self) -> set[int]:
        """What is applied, without what the next poll will say is lost."""
        owned = [TopicPartition("t", n) for n in self.owned]
        return self.owned - {p.partition for p in self.record.lost_of(owned)}


members = st.sampled_from(MEMBERS)
targets = st.lists(members, min_size=len(NUMBERS), max_size=len(NUMBERS))


class Group(RuleBasedStateMachine):
    @initialize(owners=targets)
    def begin(self, owners: list[int]) -> None:
        self.clock = Clock()
        self.coordinator = Coordinator(self.clock)
        self.applications = [Application(n, self.clock) for n in MEMBERS]
        self.the_coordinator_changes_its_mind(owners)

    @rule(owners=targets)
    def the_coordinator_changes_its_mind(self, owners: list[int]) -> None:
        self.coordinator.retarget(
            {m: frozenset(n for n in NUMBERS if owners[n] == m) for m in MEMBERS}
        )

    @rule(member=members)
    def a_heartbeat_goes_through(self, member: int) -> None:
        application = self.applications[member]
        if application.flight is None:
            application.send()
        self._go_through(application)

    @rule(member=members)
    def a_heartbeat_is_lost_and_the_next_under_way(self, member: int) -> None:
        application = self.applications[member]
        if application.flight is None and application.may_lose:
            application.send()
            application.hear_nothing()
            application.send()

    @rule(owners=targets, late=st.none() | members)
    def the_group_settles(self, owners: list[int], late: int | None) -> None:
        """All members get there but one, whose heartbeat arrives and is not answered yet."""
        self.the_coordinator_changes_its_mind(owners)
        if late is not None:
            self.it_arrives(late)
        for _ in range(2 * len(MEMBERS)):
            for application in self.applications:
                if application.name != late:
                    self.a_heartbeat_goes_through(application.name)
                    application.poll()
                    application.release(set(application.revoking))

    @rule(member=members)
    def a_heartbeat_is_sent(self, member: int) -> None:
        if self.applications[member].flight is None:
            self.applications[member].send()

    @rule(member=members)
    def it_arrives(self, member: int) -> None:
        flight = self.applications[member].flight
        if flight is not None and flight.answer is None:
            self.applications[member].arrive(self.coordinator)

    @rule(member=members)
    def its_answer_arrives(self, member: int) -> None:
        flight = self.applications[member].flight
        if flight is not None and flight.answer is not None:
            self.applications[member].hear()

    @rule(member=members)
    def it_or_its_answer_is_lost(self, member: int) -> None:
        """Not twice in a row: the margin of the deadline is for a second attempt."""
        application = self.applications[member]
        if application.flight is not None and application.may_lose:
            application.hear_nothing()

    @rule(member=members)
    def an_application_polls(self, member: int) -> None:
        self.applications[member].poll()

    @rule(member=members, data=st.data())
    def an_application_releases(self, member: int, data: st.DataObject) -> None:
        application = self.applications[member]
        if application.revoking:
            application.release(data.draw(st.sets(st.sampled_from(sorted(application.revoking)))))

    @rule(seconds=st.floats(0.1, PATIENCE_S))
    def time_passes(self, seconds: float) -> None:
        for application in self.applications:
            flight = application.flight
            if flight is not None and self.clock.now + seconds - flight.sent_at > PATIENCE_S:
                self._go_through(application)
        self.clock.now += seconds
        for application in self.applications:
            due = application.last_sent + PATIENCE_S, application.revoke_by()
            if self.clock.now >= min(due) and application.flight is None:
                application.send()
        self.coordinator.fence_overdue()

    @rule()
    def most_of_the_rebalance_timeout_passes(self) -> None:
        """With heartbeats all the time: also one that was sent after the last release."""
        for application in self.applications * 2:
            self.a_heartbeat_goes_through(application.name)
        by = min(application.revoke_by() for application in self.applications)
        if not math.isinf(by):
            self.clock.now = max(self.clock.now, by - 1.0)
            for application in self.applications:
                self.a_heartbeat_goes_through(application.name)

    def _go_through(self, application: Application) -> None:
        assert application.flight is not None
        if application.flight.answer is None:
            application.arrive(self.coordinator)
        application.hear()

    @invariant()
    def nothing_is_owned_twice(self) -> None:
        if not hasattr(self, "applications"):
            return
        owned = [n for application in self.applications for n in application.knows_to_own()]
        assert len(owned) == len(set(owned)), f"owned twice: {sorted(owned)}"

    @invariant()
    def nobody_is_fenced(self) -> None:
        """Whatever gets lost: the deadline of a revoke is earlier than the coordinator's."""
        if hasattr(self, "applications"):
            for application in self.applications:
                assert application.record.attempt().losses == 0, self.coordinator.seats

    def teardown(self) -> None:
        """Left alone, every member gets what the coordinator wants it to own, and no more."""
        if not hasattr(self, "applications"):
            return
        try:
            for _ in range(12):
                for application in self.applications:
                    if application.flight is None:
                        application.send()
                    self._go_through(application)
                    application.poll()
                    application.release(set(application.revoking))
                    application.poll()
            for application in self.applications:
                assert application.owned == self.coordinator.target[application.name]
                assert application.membership.is_stable()
        finally:
            for application in self.applications:
                if application.flight is not None:
                    application.flight.coroutine.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def through(application: Application, coordinator: Coordinator) -> None:
    application.send()
    application.arrive(coordinator)
    application.hear()


def test_what_was_offered_is_not_given_away_by_a_heartbeat_that_says_everything(
    clock: Clock,
) -> None:
    """It listed what was applied. What a poll took while it was under way the coordinator gave
    to another member, at once: to it that was revoked."""
    coordinator = Coordinator(clock)
    first, second = (Application(n, clock) for n in MEMBERS)
    coordinator.retarget({0: frozenset([0, 1]), 1: frozenset()})
    through(first, coordinator)  # is offered both
    first.send()
    first.hear_nothing()  # so that the next says everything
    coordinator.retarget({0: frozenset([0]), 1: frozenset([1])})
    first.send()
    first.poll()
    first.arrive(coordinator)
    through(second, coordinator)
    second.poll()
    assert (first.owned, second.owned) == ({0, 1}, set())
    first.hear()
    first.poll()
    assert first.revoking == {1}
    first.release({1})
    through(first, coordinator)
    through(second, coordinator)
    second.poll()
    assert (first.owned, second.owned) == ({0}, {1})


def test_a_topic_created_again_is_assigned_after_the_old_one_was_given_up_at_the_deadline(
    clock: Clock,
) -> None:
    """What was lost was not followed by the assignment that had waited for it."""
    coordinator = Coordinator(clock)
    coordinator.retarget({0: frozenset([0])})
    application = Application(0, clock)
    through(application, coordinator)
    application.poll()
    through(application, coordinator)
    application.send()
    assert application.flight is not None
    application.flight.answer = (1, frozenset([0]))
    application.hear(topic_id=UUID(int=2))
    application.poll()
    assert application.revoking == {0}
    clock.now += REBALANCE_TIMEOUT_S
    application.send()
    application.flight.answer = (1, None)
    application.hear(topic_id=UUID(int=2))
    application.poll()
    assert application.owned == set(), "not lost"
    application.poll()
    assert application.owned == {0}, "not assigned anew"


TestGroup = Group.TestCase
TestGroup.settings = settings(deadline=None)
