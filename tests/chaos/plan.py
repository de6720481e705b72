"""The plan of a churn: who joins and leaves, when, and in which order brokers restart. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

#: Members of a group at any time: from the two that are needed to hand anything over, up.
MIN_MEMBERS = 2
MAX_MEMBERS = 8

#: 17 and 5 partitions: no number of members divides both, nor their sum.
TOPICS = {"orders": 11, "payments": 5, "returns": 1}


#: A DeferredRevokeConsumer on a thread, or in a process of its own; or librdkafka on a thread.
MemberKind = Literal["thread", "process", "librdkafka"]


@dataclass(frozen=True)
class Step:
    """One member joins or leaves.

    Attributes
    ----------
    joins : bool
        Otherwise it leaves.
    member : str
        Each name joins once and leaves once.
    kind : str
        What the member is and where it runs.
    after_settling : bool
        Wait first until the group has shared the partitions evenly. Otherwise the step comes in
        the middle of whatever the one before has set off.
    pause_s : float
        Wait so long before.
    """

    joins: bool
    member: str
    kind: MemberKind
    after_settling: bool
    pause_s: float


@dataclass(frozen=True)
class Plan:
    """What happens in a churn; the same for the same seed.

    Attributes
    ----------
    seed : int
        Also of the members' own choices.
    steps : tuple of Step
        As many leaves as joins: at the end the group is empty.
    restarts : tuple of int
        Ids of the brokers in the order in which they restart, over and over, while the steps go on.
    """

    seed: int
    steps: tuple[Step, ...]
    restarts: tuple[int, ...]


def make_plan(
    seed: int, joins: int, others: Mapping[MemberKind, int], brokers: Sequence[int] = (1, 2, 3)
) -> Plan:
    """Let members join and leave, between ``MIN_MEMBERS`` and ``MAX_MEMBERS`` at a time.

    The group grows and shrinks towards one random size after the other, so that several join in a
    row and several leave in a row.

    Parameters
    ----------
    seed : int
        The same plan for the same seed.
    joins : int
        So many members join, and leave, in all.
    others : mapping
        So many of them are of these kinds, and the rest threads.
    brokers : sequence of int
        The ids of those that restart.
    """
    random = Random(seed)
    names = [f"m{n:02d}" for n in range(joins)]
    kinds: list[MemberKind] = [kind for kind, count in others.items() for _ in range(count)]
    chosen = dict(zip(random.sample(names, len(kinds)), kinds, strict=True))
    steps: list[Step] = []
    present: list[str] = []
    target = MIN_MEMBERS

    def step(joins: bool, member: str) -> Step:
        return Step(
            joins,
            member,
            chosen.get(member, "thread"),
            after_settling=bool(steps) and random.random() < 0.3,
            pause_s=round(random.uniform(0, 0.5), 3),
        )

    waiting = list(names)
    while waiting:
        while target == len(present):
            target = random.randint(MIN_MEMBERS, MAX_MEMBERS)
        if len(present) < target:
            present.append(waiting.pop(0))
            steps.append(step(True, present[-1]))
        else:
            steps.append(step(False, present.pop(random.randrange(len(present)))))
    while present:
        steps.append(step(False, present.pop(random.randrange(len(present)))))
    return Plan(seed, tuple(steps), tuple(random.sample(brokers, len(brokers))))
