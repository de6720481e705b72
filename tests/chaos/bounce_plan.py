"""The plan of bounces: which instance or broker goes down next, how, and when. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

#: Instances of the group at any time, suspended ones included.
MIN_INSTANCES = 2
MAX_INSTANCES = 5

#: What happens to an instance, or to a broker: a clean stop, ``kill -9``, or a suspension.
Kind = Literal["stop", "kill", "suspend", "restart broker", "kill broker"]

#: Of a hundred bounces about so many are of each kind.
WEIGHTS: dict[Kind, int] = {
    "stop": 25,
    "kill": 30,
    "suspend": 20,
    "restart broker": 15,
    "kill broker": 10,
}


@dataclass(frozen=True)
class Bounce:
    """One of them.

    Attributes
    ----------
    kind : str
        What happens.
    which : float
        From 0 to 1: which of the instances that run then.
    broker : int
        Which broker, where it is about one.
    suspended : float
        For so many session timeouts, where it is a suspension: about half end in time.
    instances : int
        So many are to run afterwards; those that are missing are started.
    after_settling : bool
        Wait first until every source partition goes on. Otherwise the bounce comes in the midst of
        what the one before has set off.
    pause_s : float
        Wait so long before.
    """

    kind: Kind
    which: float
    broker: int
    suspended: float
    instances: int
    after_settling: bool
    pause_s: float


def make_bounces(seed: int, count: int, brokers: Sequence[int] = (1, 2, 3)) -> tuple[Bounce, ...]:
    """Of every kind at least one, in random order; the same for the same seed."""
    random = Random(seed)
    kinds: list[Kind] = list(WEIGHTS)
    kinds += random.choices(kinds, list(WEIGHTS.values()), k=max(0, count - len(kinds)))
    random.shuffle(kinds)
    return tuple(
        Bounce(
            kind,
            which=random.random(),
            broker=random.choice(brokers),
            suspended=round(random.uniform(0.3, 1.7), 2),
            instances=random.randint(MIN_INSTANCES, MAX_INSTANCES),
            after_settling=random.random() < 0.3,
            pause_s=round(random.uniform(0, 2), 3),
        )
        for kind in kinds[:count]
    )
