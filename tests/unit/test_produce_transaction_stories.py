"""What goes wrong without the two defences of transactions v1: found by itself, and told.

Hypothesis draws a schedule of what an application and the network do. What is late in the end
arrives where it does most harm: in the next transaction, or just before it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import find, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample
from model_transactions import Brokers
from transaction_histories import PARTITIONS, TRANSACTIONAL_ID, Producer, World

from pyspark_kafka_rebalance.produce.requests import EndTxn, InitProducerId, Produce
from pyspark_kafka_rebalance.produce.transaction import TransactionMachine
from pyspark_kafka_rebalance.produce.transaction_errors import Outcome

P = PARTITIONS[0]


class WithoutNewEpoch(TransactionMachine):
    """Goes on with the epoch of a transaction whose requests may still arrive."""

    _renews = False


class WithoutSweep(TransactionMachine):
    """Takes a new epoch, but tells no leader."""

    _sweeps = False


def breaks(world: World, broker: object) -> None:
    if world.producer.connections.get(broker) is not None:
        world.breaks(world.producer, broker)


STEPS: dict[str, Callable[[World], None]] = {
    "a record is sent": lambda world: world.producer.send(P),
    "offsets are sent": lambda world: world.producer.send_offsets(),
    "it commits": lambda world: world.producer.commit(),
    "it aborts": lambda world: world.producer.abort(),
    "a round trip": lambda world: world.go_on(2),
    "the coordinator's connection breaks": lambda world: breaks(world, world.brokers.coordinator),
    "the leader's connection breaks": lambda world: breaks(world, P),
    "the group's connection breaks": lambda world: breaks(world, 100),
}
schedules = st.lists(st.sampled_from(list(STEPS)), max_size=9)


def world_of(
    machine: type[TransactionMachine], version: int = 1, verification: bool = True
) -> World:
    world = World(Brokers(version, verification), machine)
    world.go_on(20)
    return world


def harm(world: World, schedule: list[str], open_first: bool) -> str | None:
    """What a reader or a group sees that must not be."""
    try:
        for step in schedule:
            STEPS[step](world)
            world.check_now()
        world.late_requests_do_harm(open_first)
        world.settle()
        world.check_at_the_end()
    except AssertionError as error:
        return str(error)
    return None


def shortest(
    machine: type[TransactionMachine],
    *,
    open_first: bool,
    verification: bool = True,
    version: int = 1,
    examples: int = 2_000,
) -> list[str]:
    """The shortest schedule that hypothesis finds to do harm."""
    return find(
        schedules,
        lambda schedule: (
            harm(world_of(machine, version, verification), schedule, open_first) is not None
        ),
        settings=settings(max_examples=examples, deadline=None, derandomize=True, database=None),
    )


def test_without_a_new_epoch_a_delayed_end_commits_half_of_the_next_transaction() -> None:
    """The story of Jepsen, KIP-890 and kafka-python, in six steps and the four that do harm."""
    schedule = shortest(WithoutNewEpoch, open_first=True)
    assert len(schedule) <= 6, schedule
    world = world_of(WithoutNewEpoch)
    assert "seen before its commit" in str(harm(world, schedule, open_first=True))
    assert harm(world_of(TransactionMachine), schedule, open_first=True) is None


def in_transit(producer: Producer, kind: type) -> bool:
    return any(
        isinstance(request, kind)
        for connection in producer.connections.values()
        for request in connection.requests
    )


def up_to(world: World, kind: type) -> None:
    """Until a request of this kind is on its way."""
    while not in_transit(world.producer, kind):
        world.go_on(1)


def a_delayed_end(machine: type[TransactionMachine], version: int) -> World:
    """An EndTxn(commit) is held, its connection breaks, and the next transaction has a record."""
    world = world_of(machine, version)
    world.producer.send(P)
    world.producer.commit()
    up_to(world, EndTxn)
    breaks(world, world.brokers.coordinator)
    world.go_on(50)
    assert world.producer.promises[1].outcome is Outcome.COMMITTED
    world.producer.send(P)
    world.go_on(50)
    (late,) = world.late
    assert isinstance(late[1], EndTxn)
    world.arrives_late(0)
    world.go_on(50)
    return world


def test_the_story_of_the_delayed_end_as_it_was_found() -> None:
    world = a_delayed_end(WithoutNewEpoch, 1)
    assert world.brokers.leader(P).visible() == [("p0", 1, 0), ("p0", 2, 0)]
    with pytest.raises(AssertionError, match="p0/2 is seen before its commit"):
        world.check_now()


@pytest.mark.parametrize("version", [1, 2])
def test_a_delayed_end_does_nothing(version: int) -> None:
    world = a_delayed_end(TransactionMachine, version)
    assert world.brokers.leader(P).visible() == [("p0", 1, 0)]
    world.producer.commit()
    world.go_on(50)
    assert world.producer.promises[2].outcome is Outcome.COMMITTED
    world.settle()
    world.check_at_the_end()


def test_transactions_v2_need_neither_defence() -> None:
    class WithNeither(WithoutNewEpoch, WithoutSweep):
        pass

    for open_first in (True, False):
        with pytest.raises(NoSuchExample):
            shortest(WithNeither, open_first=open_first, version=2, examples=300)


def a_late_record(machine: type[TransactionMachine]) -> World:
    """A batch is on its way when its transaction is aborted, and arrives after the marker."""
    world = world_of(machine, verification=False)
    world.producer.send(P)
    up_to(world, Produce)
    world.producer.abort()
    breaks(world, P)
    world.go_on(50)
    assert world.producer.promises[1].outcome is Outcome.ABORTED
    world.arrives_late(0)
    return world


def test_without_a_sweep_a_late_record_holds_readers_back_until_the_next_commit_publishes_it() -> (
    None
):
    """KAFKA-14053, on brokers before 3.6."""
    world = a_late_record(WithoutSweep)
    leader = world.brokers.leader(P)
    assert leader.last_stable_offset < len(leader.log)  # nobody will ever end it
    world.producer.send(P)
    world.producer.commit()
    world.go_on(50)
    with pytest.raises(AssertionError, match="p0/1 is seen before its commit"):
        world.check_now()


def test_a_sweep_brings_the_new_epoch_to_the_leader_of_a_late_record() -> None:
    world = a_late_record(TransactionMachine)
    leader = world.brokers.leader(P)
    assert leader.last_stable_offset == len(leader.log)
    world.producer.send(P)
    world.producer.commit()
    world.go_on(50)
    assert leader.visible() == [("p0", 2, 0)]


def test_that_story_is_found_too() -> None:
    schedule = shortest(WithoutSweep, verification=False, open_first=False)
    assert len(schedule) <= 5, schedule


def test_leaders_that_verify_need_no_sweep() -> None:
    with pytest.raises(NoSuchExample):
        shortest(WithoutSweep, open_first=False, examples=300)


def another_takes_the_id(world: World) -> None:
    """Another incarnation, of which these producers know nothing."""
    request = InitProducerId(0, 5, 0, world.brokers.coordinator, None, TRANSACTIONAL_ID, 1, -1, -1)
    while world.brokers.handle("another", request).error:
        for due in world.brokers.markers_due():
            world.brokers.mark(*due)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("arrived", [True, False])
@pytest.mark.parametrize("what", ["records", "offsets", "both"])
@pytest.mark.parametrize("fenced_by", ["another producer", "its timeout"])
def test_a_producer_that_is_fenced_as_it_commits_learns_what_became_of_it(
    version: int, arrived: bool, what: str, fenced_by: str
) -> None:
    """The answer to its EndTxn is lost, and the next copy is refused: never guessed, asked."""
    world = world_of(TransactionMachine, version)
    if what != "offsets":
        world.producer.send(P)
    if what != "records":
        world.producer.send_offsets()
    world.producer.commit()
    up_to(world, EndTxn)
    if arrived:
        world.arrives(world.producer, world.producer.connections[world.brokers.coordinator])
    breaks(world, world.brokers.coordinator)
    if fenced_by == "another producer":
        another_takes_the_id(world)
    else:
        world.brokers.transaction_times_out(TRANSACTIONAL_ID)
    world.go_on(100)
    expected = Outcome.COMMITTED if arrived else Outcome.ABORTED
    assert world.producer.promises[1].outcome is expected
    world.settle()
    world.check_at_the_end()
