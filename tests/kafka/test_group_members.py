"""Kafka's system tests of groups whose members come, go and fail, with our members.

After ``consumer_test.py`` of Apache Kafka's ``kafkatest``, on both group protocols.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from group_members import PROTOCOLS
from verifiable_group import VerifiableGroup

from pyspark_kafka_rebalance.testing import LocalKafka

pytestmark = pytest.mark.each_protocol

#: More than any bounce takes.
LONG_SESSION_MS = 45_000

NAMES = ("a", "b", "c")

MakeGroup = Callable[..., VerifiableGroup]


@pytest.fixture(params=PROTOCOLS)
def group_of(
    request: pytest.FixtureRequest,
    kafka: LocalKafka,
    topic_name: str,
    group_id: str,
    tmp_path: Path,
) -> Iterator[MakeGroup]:
    """Make the group of a test."""
    with ExitStack() as stack:

        def make(**settings: Any) -> VerifiableGroup:
            chosen = {"partitions": 6, "work": tmp_path, "group_protocol": request.param}
            group = VerifiableGroup(kafka, topic_name, group_id, **{**chosen, **settings})
            return stack.enter_context(group)

        yield make


def start_all(group: VerifiableGroup, names: tuple[str, ...] = NAMES, **settings: Any) -> None:
    for name in names:
        group.start(name, **settings)
    group.wait_until_balanced()


def test_every_partition_has_one_owner_after_each_join_and_leave(group_of: MakeGroup) -> None:
    group = group_of()
    for name in (*NAMES, "d"):
        group.start(name)
        group.wait_until_balanced()
        group.wait_until_caught_up()
    for name in NAMES:
        group.stop(name)
        group.wait_until_balanced()
        group.wait_until_caught_up()
    group.finish_exactly_once()


def test_more_members_than_partitions(group_of: MakeGroup) -> None:
    group = group_of(partitions=1)
    start_all(group)
    owner = group.owner(group.partitions[0])
    assert owner is not None
    group.stop(owner)
    group.wait_until_balanced()
    group.wait_until_caught_up()
    group.finish_exactly_once()


@pytest.mark.parametrize("bounce", ["all", "rolling"])
def test_members_that_are_restarted(group_of: MakeGroup, bounce: str) -> None:
    group = group_of()
    start_all(group)
    together = [NAMES] if bounce == "all" else [(name,) for name in NAMES]
    for names in together:
        group.stop(*names)
        start_all(group, names)
        group.wait_until_caught_up()
    group.finish_exactly_once()


@pytest.mark.parametrize("bounce", ["all", "rolling"])
def test_static_members_that_are_restarted_move_nothing(group_of: MakeGroup, bounce: str) -> None:
    group = group_of(session_timeout_ms=LONG_SESSION_MS)
    for name in NAMES:
        group.start(name, group_instance_id=name)
    group.wait_until_balanced()
    before, told = group.assignments(), group["a"].revocations
    _, *others = NAMES
    for names in [others] if bounce == "all" else [[name] for name in others]:
        group.stop(*names)
        for name in names:
            group.start(name, group_instance_id=name)
        group.wait_until_balanced()
        group.wait_until_caught_up()
    assert group.assignments() == before
    assert group["a"].revocations == told, "a rebalance within the session timeout"
    group.finish_exactly_once()


def test_a_member_that_leaves(group_of: MakeGroup) -> None:
    group = group_of()
    start_all(group)
    group.wait_until_caught_up()
    group.stop("b")
    group.wait_until_balanced()
    group.wait_until_caught_up()
    group.finish_exactly_once()


def test_a_member_that_is_killed(group_of: MakeGroup) -> None:
    group = group_of()
    start_all(group)
    group.wait_until_caught_up()
    of_the_killed = group.assignments()["b"]
    group.kill("b")
    group.wait_until_balanced()
    group.wait_until_caught_up()
    verdict = group.finish()
    assert not verdict.overlaps
    assert {again.partition for again in verdict.redelivered} <= of_the_killed
    assert all(again.left_by.startswith("b ") for again in verdict.redelivered)


def test_a_second_process_with_the_instance_id_of_a_member(group_of: MakeGroup) -> None:
    """The classic protocol fences the first, the consumer protocol keeps the second out."""
    group = group_of(session_timeout_ms=LONG_SESSION_MS)
    group.start("first", group_instance_id="i")
    group.wait_until_balanced()
    group.wait_until_caught_up()
    before = group.told()["first"]
    group.start("second", group_instance_id="i")
    if group.group_protocol == "classic":
        group.wait_until(lambda: "first" in group.dead(), "the first to be fenced")
        group.wait_until_balanced()
        group.wait_until_caught_up()
        group.finish()
        return
    group.wait_until(lambda: "instance id is owned by" in group.log_of("second"), "the refusal")
    group.wait_until_caught_up()
    assert group.joined() == {"first"}
    assert group.told()["first"] == before
    group.stop("first")  # which keeps its place for itself, or for another of its name
    group.wait_until(lambda: group.joined() == {"second"}, "the second to take over")
    group.finish_exactly_once()
