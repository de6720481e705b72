"""What a scenario reads out of the broker's description of the group."""

from __future__ import annotations

from dataclasses import replace

from kafka.structs import TopicPartition

from measuring.group_watch import View, next_view
from pyspark_kafka_rebalance.consumer.group_description import GroupDescription, GroupMember

P = [TopicPartition("t", n) for n in range(4)]
ENDS = dict.fromkeys(P, 10)


def described(state="Stable", **owned):
    """A reader's members are called ``<reader>-<run>-<n>``."""
    return GroupDescription(
        state,
        tuple(
            GroupMember(
                f"{reader}-1f0c-0",
                frozenset(TopicPartition("t", n) for n in partitions)
                if state == "Stable"
                else frozenset(),
            )
            for reader, partitions in owned.items()
        ),
    )


def seen(*descriptions):
    view = View()
    for at, group in enumerate(descriptions):
        view = next_view(view, float(at), group, dict.fromkeys(P, 4), ENDS)
    return view


def test_owners_and_lag():
    view = seen(described(A=[0, 1], B=[2, 3]))
    assert view.owned == {"A": frozenset(P[:2]), "B": frozenset(P[2:])}
    assert view.lag(view.owned["A"]) == 12
    assert view.is_shared_by(["A", "B"])
    assert not view.is_shared_by(["A", "B", "C"])


def test_what_nobody_owns_is_being_revoked_by_its_last_owner():
    before = described(A=[0, 1, 2, 3])
    taken = described(A=[0, 1], B=[])
    view = seen(before, taken, taken)
    assert view.revoking == {"A": frozenset(P[2:]), "B": frozenset()}
    assert not view.is_shared_by(["A", "B"])
    view = seen(before, taken, described(A=[0, 1], B=[2, 3]))
    assert view.revoking == {"A": frozenset(), "B": frozenset()}


def test_a_join_under_way_leaves_the_owners_as_they_were():
    view = seen(described(A=[0, 1, 2, 3]), described("PreparingRebalance", A=[], B=[]))
    assert view.owned == {"A": frozenset(P)}
    assert view.members == {"A", "B"}
    assert not view.is_shared_by(["A"])


def test_several_members_of_one_reader_add_up():
    group = described(A=[0, 1])
    both = replace(group, members=group.members + described(A=[2, 3]).members)
    assert seen(both).owned == {"A": frozenset(P)}


def test_an_uneven_share_is_not_the_end_yet():
    assert not seen(described(A=[0, 1, 2], B=[3])).is_shared_by(["A", "B"])
