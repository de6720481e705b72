"""One group of this consumer and librdkafka (confluent-kafka), in both protocols."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from group_members import (
    PATIENCE_S,
    MakeMember,
    classic,
    owns,
    poll_until,
    revoked,
    share,
    wait_until,
)

from pyspark_kafka_rebalance import DeferredRevokeConsumer
from pyspark_kafka_rebalance.testing import LocalKafka
from tests.chaos.book import MemberSettings
from tests.chaos.churn import Churn
from tests.chaos.plan import MemberKind, Plan, Step
from tests.chaos.running import RunningMember, start_member

OURS: MemberKind = "thread"
LIBRDKAFKA: MemberKind = "librdkafka"

classic_only = pytest.mark.parametrize("protocol", ["classic"], indirect=True)


def in_turn(first: MemberKind, second: MemberKind) -> Plan:
    """Members of the two kinds join in turn and leave in the same order, each into a quiet group.

    Whoever leads a classic group is the member that has been in it longest, so that each that
    leaves hands the lead over to the other kind.
    """
    kinds = [first, second] * 3
    steps = [
        Step(joins, f"{kind}-{n}", kind, after_settling=n > 0 or not joins, pause_s=0)
        for joins in (True, False)
        for n, kind in enumerate(kinds)
    ]
    return Plan(seed=1, steps=tuple(steps), restarts=())


@pytest.mark.parametrize(
    "kinds",
    [(OURS, LIBRDKAFKA), pytest.param((LIBRDKAFKA, OURS), marks=pytest.mark.long)],
    ids=["ours-first", "librdkafka-first"],
)
def test_members_of_both_kinds_that_join_and_leave_in_turn_break_nothing(
    kafka: LocalKafka,
    group_id: str,
    protocol: str,
    kinds: tuple[MemberKind, MemberKind],
    tmp_path: Path,
):
    churn = Churn(kafka, in_turn(*kinds), tmp_path, name=group_id, protocol=protocol)
    outcome = churn.run()
    assert outcome.violations == ()
    assert outcome.leaves == 6


@pytest.fixture
def librdkafka(
    kafka: LocalKafka, topic_name: str, group_id: str, protocol: str, tmp_path: Path
) -> Iterator[Callable[[str], RunningMember]]:
    """Let a member that uses librdkafka join the group of ``consumers``, by name."""
    with ExitStack() as stack:

        def join(name: str) -> RunningMember:
            settings = MemberSettings(
                name=name,
                seed=1,
                topics=(topic_name,),
                ledger=str(tmp_path),
                bootstrap_servers=kafka.bootstrap_servers,
                group_id=group_id,
                group_protocol=protocol,
                session_timeout_ms=6_000,
                heartbeat_interval_ms=500,
            )
            member = start_member(LIBRDKAFKA, settings, tmp_path)
            stack.callback(member.end)
            return member

        yield join


def leads(member: DeferredRevokeConsumer) -> bool:
    return classic(member)._led_counts is not None


def test_librdkafka_waits_for_what_ours_defers(
    kafka: LocalKafka,
    topic_name: str,
    consumers: MakeMember,
    librdkafka: Callable[[str], RunningMember],
):
    kafka.create_topic(topic_name, partitions=4)
    ours = consumers(topic_name)
    poll_until(owns(ours, 4), ours)
    theirs = librdkafka("theirs")
    poll_until(lambda: len(ours._ownership.revoking) == 2, ours, hold=True)
    held = ours._ownership.revoking
    for _ in range(50):
        assert ours.poll_with_rebalance(timeout_ms=20).to_be_revoked == held
        assert ours.delay_revoke(held)
        assert theirs.owned == 0
    poll_until(lambda: theirs.owned == 2 and owns(ours, 2)(), ours)
    theirs.leave()
    poll_until(owns(ours, 4), ours)
    report = theirs.report(PATIENCE_S)
    assert report.violations == ()
    assert {holding.partition for holding in report.holdings} == held


@classic_only
def test_ours_leads_and_takes_from_librdkafka_only_what_moves(
    kafka: LocalKafka,
    topic_name: str,
    consumers: MakeMember,
    librdkafka: Callable[[str], RunningMember],
):
    """A leader that did not understand what the others own would move more, or own it twice."""
    kafka.create_topic(topic_name, partitions=12)
    ours = consumers(topic_name)
    poll_until(owns(ours, 12), ours)
    first = librdkafka("first")
    poll_until(lambda: first.owned == 6 and owns(ours, 6)(), ours)
    second = librdkafka("second")
    poll_until(lambda: first.owned == second.owned == 4 and owns(ours, 4)(), ours)
    assert leads(ours)
    for leaver in (second, first):
        leaver.leave()
        poll_until(lambda leaver=leaver: leaver.has_left, ours)
    poll_until(owns(ours, 12), ours)
    joined_second = min(holding.since for holding in second.report(PATIENCE_S).holdings)
    moved = [h for h in first.report(PATIENCE_S).holdings if h.until < joined_second]
    assert len(moved) == 2


@classic_only
def test_librdkafka_leads_and_takes_from_ours_only_what_moves(
    kafka: LocalKafka,
    topic_name: str,
    consumers: MakeMember,
    librdkafka: Callable[[str], RunningMember],
):
    kafka.create_topic(topic_name, partitions=12)
    leader = librdkafka("leader")
    wait_until(lambda: leader.owned == 12, "it is the first")
    first = consumers(topic_name)
    poll_until(lambda: leader.owned == 6 and owns(first, 6)(), first)
    second = consumers(topic_name)
    settled = share(first, second, partitions=8)
    results = poll_until(lambda: leader.owned == 4 and settled(), first, second)
    assert not leads(first)
    assert not leads(second)
    assert len(revoked(results[first])) == 2
    leader.leave()
    poll_until(share(first, second, partitions=12), first, second)
    assert leads(first) or leads(second)
    assert leader.report(PATIENCE_S).violations == ()
