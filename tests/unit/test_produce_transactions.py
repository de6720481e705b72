"""Transactions against a model of Kafka, under histories that hypothesis draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import pytest
from histories import ALWAYS_THE_SAME, histories
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from model_transactions import LAST_EPOCH, Brokers
from transaction_histories import GROUP_ID, PARTITIONS, TRANSACTIONAL_ID, Producer, World

from pyspark_kafka_rebalance.produce.transaction import TransactionMachine
from pyspark_kafka_rebalance.produce.transaction_step import Standing

indexes = st.integers(0, 11)

#: What an application does with its transaction; the first begins one.
CALLS: dict[str, Callable[[Producer], None]] = {
    "send": lambda producer: producer.send(PARTITIONS[0]),
    "send two": lambda producer: producer.send(PARTITIONS[1], 2),
    "offsets": lambda producer: producer.send_offsets(),
    "commit": lambda producer: producer.commit(),
    "abort": lambda producer: producer.abort(),
}
calls = st.lists(st.sampled_from(list(CALLS)), min_size=1, max_size=4) | st.just(
    ["send", "send two", "offsets", "commit"]
)


def a_connection_breaks(world: World, which: int) -> None:
    found = world.connections()
    if found:
        producer, broker, _ = found[which % len(found)]
        world.breaks(producer, broker)


def a_request_arrives(world: World, which: int) -> None:
    found = [c for c in world.connections() if c[2].requests]
    if found:
        producer, _, connection = found[which % len(found)]
        world.arrives(producer, connection)


def an_answer_arrives(world: World, which: int) -> None:
    found = [c for c in world.connections() if c[2].answers]
    if found:
        producer, _, connection = found[which % len(found)]
        world.is_answered(producer, connection)


def a_marker_is_written(world: World, which: int) -> None:
    due = world.brokers.markers_due()
    if due:
        world.brokers.mark(*due[which % len(due)])


def what_was_on_its_way_is_lost(world: World, which: int) -> None:
    if world.late:
        world.late.pop(which % len(world.late))


def the_coordinator_moves_after_it_wrote(world: World, which: int) -> None:
    found = [
        (producer, connection)
        for producer, broker, connection in world.connections()
        if connection.requests and broker == world.brokers.coordinator
    ]
    if found:
        world.moves_after_writing(*found[which % len(found)])


FAULTS: dict[str, Callable[[World, int], None]] = {
    each.__name__: each
    for each in (
        a_connection_breaks,
        a_request_arrives,
        an_answer_arrives,
        a_marker_is_written,
        what_was_on_its_way_is_lost,
        the_coordinator_moves_after_it_wrote,
    )
}
faults = st.just("a_connection_breaks") | st.sampled_from(list(FAULTS))


def the_generation_moves(brokers: Brokers) -> None:
    brokers.group(GROUP_ID).generation += 1


EVENTS: dict[str, Callable[[Brokers], None]] = {
    "the coordinator dies": lambda brokers: brokers.coordinator_dies(),
    "the coordinator is loaded": lambda brokers: brokers.coordinator_is_loaded(),
    "a transaction times out": lambda brokers: brokers.transaction_times_out(TRANSACTIONAL_ID),
    "the id expires": lambda brokers: brokers.transactional_id_expires(TRANSACTIONAL_ID),
    "the generation moves": the_generation_moves,
}
events = st.sampled_from(list(EVENTS))


class Histories(RuleBasedStateMachine):
    """A producer, and maybe zombies of it, on a network that delays and repeats."""

    version: ClassVar[int]
    verification: ClassVar[bool] = True
    zombies: ClassVar[bool] = True
    machine: ClassVar[type[TransactionMachine]] = TransactionMachine

    @initialize(
        epoch=st.sampled_from([-1, LAST_EPOCH - 3]),
        open_first=st.booleans(),
        fences_twice=st.booleans(),
    )
    def begin(self, epoch: int, open_first: bool, fences_twice: bool) -> None:
        self.open_first = open_first
        brokers = Brokers(self.version, self.verification, epoch, fences_twice)
        self.world = World(brokers, self.machine)
        self.world.go_on(20)

    @rule(calls=calls, who=indexes)
    def an_application_calls(self, calls: list[str], who: int) -> None:
        for call in calls:
            CALLS[call](self._anyone(who))

    @rule(steps=st.integers(1, 12))
    def all_goes_well_for_a_while(self, steps: int) -> None:
        self.world.go_on(steps)

    @rule()
    def all_goes_well(self) -> None:
        self.world.go_on(60)

    @rule(fault=faults, which=indexes)
    def the_network_does(self, fault: str, which: int) -> None:
        FAULTS[fault](self.world, which)

    @rule(which=indexes)
    def what_was_on_its_way_arrives_late(self, which: int) -> None:
        if self.world.late:
            self.world.arrives_late(which % len(self.world.late))

    @rule(event=events)
    def a_broker_does(self, event: str) -> None:
        EVENTS[event](self.world.brokers)

    @rule()
    def a_fenced_producer_takes_its_id_back(self) -> None:
        self.world.producer.initialize_again()

    @precondition(lambda self: self.zombies and len(self.world.producers) < 3)
    @rule(dies=st.booleans())
    def another_incarnation_starts(self, dies: bool) -> None:
        if dies:
            self.world.kill(self.world.producer)
        self.world.start()

    @invariant()
    def readers_see_whole_transactions(self) -> None:
        if hasattr(self, "world"):
            self.world.check_now()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.late_requests_do_harm(self.open_first)
            self.world.settle()
            self.world.check_at_the_end()
            assert self.world.producer.machine.standing is Standing.READY

    def _anyone(self, who: int) -> Producer:
        """Mostly the newest."""
        living = [p for p in self.world.producers if p.alive]
        return living[-1 - who % len(living)] if who > 7 else self.world.producer


def run(of: type[Histories], examples: int = histories(150), steps: int = 40) -> None:
    case = of.TestCase
    case.settings = settings(
        max_examples=examples,
        derandomize=ALWAYS_THE_SAME,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    case("runTest").runTest()


class V2(Histories):
    version = 2


class V1(Histories):
    version = 1


class V1Unverified(Histories):
    """Brokers older than 3.6; there a crash between abort and sweep is for an operator to mend."""

    version = 1
    verification = False
    zombies = False


@pytest.mark.parametrize("of", [V2, V1, V1Unverified])
def test_readers_see_whole_transactions_once_and_what_was_reported(of: type[Histories]) -> None:
    run(of)
