"""The plan of a churn: who joins and leaves, when, and in which order brokers restart. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

#: Members of a group at any time: from the two that are needed to hand anything over, up.
MIN_MEMBERS = 2
MAX_MEMBERS = 8

#: 17 and 5 partitions: no number of members divides both, nor their sum.
TOPICS = {"orders": 11, "payments": 5, "returns": 1}


@dataclass(frozen=True)
class Step:
    """One member joins or leaves.

    Attributes
    ----------
    joins : bool
        Otherwise it leaves.
    member : str
        Each name joins once and leaves once.
    in_child_process : bool
        A member runs in a process of its own; the others are threads of one process.
    after_settling : bool
        Wait first until the group has shared the partitions evenly. Otherwise the step comes in
        the middle of whatever the one before has set off.
    pause_s : float
        Wait so long before.
    """

    joins: bool
    member: str
    in_child_process: bool
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


def make_plan(seed: int, joins: int, children: int) -> Plan:
    """Let members join and leave, between ``MIN_MEMBERS`` and ``MAX_MEMBERS`` at a time.

    The group grows and shrinks towards one random size after the other, so that several join in a
    row and several leave in a row.

    Parameters
    ----------
    seed : int
        The same plan for the same seed.
    joins : int
        So many members join, and leave, in all.
    children : int
        So many of them run in a process of their own.
    """
    random = Random(seed)
    names = [f"m{n:02d}" for n in range(joins)]
    in_child_process = set(random.sample(names, children))
    steps: list[Step] = []
    present: list[str] = []
    target = MIN_MEMBERS

    def step(joins: bool, member: str) -> Step:
        return Step(
            joins,
            member,
            member in in_child_process,
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
    return Plan(seed, tuple(steps), tuple(random.sample((1, 2, 3), 3)))
