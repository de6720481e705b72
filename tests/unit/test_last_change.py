"""What a query's members have been told since the last change, beside a modelled coordinator."""

from __future__ import annotations

import math
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st
from settable_clock import Clock

from pyspark_kafka_rebalance.source.group.owned.owned_partitions import LastChange

RELEASED_AT = 100.0
#: All know by then: each of the two answers that a member needs may be the second that is slow.
ALL_KNOW_AT = RELEASED_AT + 25


class Heartbeat(NamedTuple):
    sent_at: float
    handled_at: float
    answered_at: float


@st.composite
def heartbeats(draw: st.DrawFn) -> list[Heartbeat]:
    """One after the other, from a while before the release; each may be slow either way."""
    made, at = [], RELEASED_AT - draw(st.floats(0, 3))
    for _ in range(40):
        sent_at = at + draw(st.floats(0.1, 0.4))
        handled_at = sent_at + draw(st.sampled_from((0.001, 0.1, 3.0)))
        at = handled_at + draw(st.sampled_from((0.001, 0.1, 2.0)))
        made.append(Heartbeat(sent_at, handled_at, at))
    while at < ALL_KNOW_AT:  # forty quick ones end after four seconds
        made.append(Heartbeat(at + 0.4, at + 0.401, at := at + 0.402))
    return made


@given(st.lists(heartbeats(), min_size=2, max_size=3), st.floats(0, 1))
def test_all_are_told_only_when_the_next_owner_is(
    members: list[list[Heartbeat]], assigns_within_s: float
) -> None:
    """The first member has released a partition, and the last one is to get it.

    The coordinator learns of the release with the first heartbeat that is sent afterwards, and
    tells the next owner in the answer to one that it handles once it has assigned the partition.
    """
    released = next(beat for beat in members[0] if beat.sent_at >= RELEASED_AT)
    assigned_at = released.handled_at + assigns_within_s
    told_at = next(b.answered_at for b in members[-1] if b.handled_at >= assigned_at)

    clock = Clock()
    clock.now = RELEASED_AT
    change = LastChange(clock)
    for now in sorted(beat.answered_at for beats in members for beat in beats):
        if now < RELEASED_AT:
            continue
        clock.now = now
        answered = [[b.sent_at for b in beats if b.answered_at <= now] for beats in members]
        change.heard(min(max(sent, default=-math.inf) for sent in answered))
        if change.all_told:
            assert now >= told_at
            return
    raise AssertionError("nobody was ever told")


def test_another_change_begins_anew(clock: Clock) -> None:
    change = LastChange(clock)
    clock.now += 5
    change.heard(clock.now)
    change.heard(clock.now + 1)
    assert change.all_told
    change.note()
    assert not change.all_told
    assert (change.at, change.unchanged_s()) == (105.0, 0.0)
    change.heard(104.0)  # of before the change
    change.heard(105.0)
    change.heard(105.5)
    assert not change.all_told, "the coordinator may not have assigned what is free"
    change.heard(106.0)
    assert change.all_told
