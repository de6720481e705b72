"""Random plans: who reads what, and which faults come when; made from a seed, and shrunk. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Literal

#: ``query``: Spark; ``member``: DeferredRevokeConsumer; ``librdkafka``: confluent-kafka;
#: ``producer``: an instance of a producer group, whose topic the readers read as well.
ReaderKind = Literal["query", "member", "librdkafka", "producer"]
#: Of a query: whether and how its runs end; ``seldom``: seconds lie between its batches.
Trigger = Literal["always", "seldom", "availableNow", "once"]
#: Of the package: the one that is tested, or the one before it (``releases``).
Release = Literal["this", "before"]

#: What a plan's topics begin with, and their partitions at first.
TOPICS = {"a": 4, "b": 2}
#: The one of them that may be compacted.
COMPACTED = "b"
#: A topic that is deleted and created anew, in plans with such a fault; plain members leave it.
ANEW = {"n": 2}
BROKERS = (1, 2, 3)
#: The topic of the producer group, if there is one; as many source partitions.
PRODUCED = {"p": 3}
#: Its group.
PRODUCERS = "producers"

SESSION_S = 8.0
#: Between two batches of a query with the trigger ``seldom``.
SELDOM_S = 4

#: What deletes records of a topic.
DELETING = ("trim", "expire", "outgrow")
#: The option of a query that goes on without what is deleted.
GOES_ON = ("failOnDataLoss", "false")


@dataclass(frozen=True)
class Reader:
    """One of the readers, or an instance of producers; those of the same ``group`` share it all.

    Attributes
    ----------
    options : tuple of (str, str)
        Of the source, in addition to those that all have. ``pattern`` and ``assign`` stand for
        options that need the topics' names. Of a plain member, ``disorder``: it also says of each
        poll's records, after the last of them, that only the first is done.
    knows_checkpoint : bool
        Whether the source has the option ``checkpointLocation``.
    trigger : str
        Of a query. A run with ``availableNow`` or ``once`` ends by itself, and the next begins.
    joins : bool
        It is not there before a fault ``join`` starts it.
    release : str
        With which it begins, until a fault ``upgrade``.
    """

    name: str
    kind: ReaderKind = "query"
    group: str = "g"
    options: tuple[tuple[str, str], ...] = ()
    knows_checkpoint: bool = True
    trigger: Trigger = "always"
    joins: bool = False
    release: Release = "this"

    @property
    def has_an_end(self) -> bool:
        """Whether its runs end by themselves."""
        return self.trigger in ("availableNow", "once")

    @property
    def is_strict(self) -> bool:
        """Whether it has to fail when records are gone that it was still to read."""
        return self.kind == "query" and GOES_ON not in self.options


@dataclass(frozen=True)
class Fault:
    """What happens ``at`` so many seconds after every reader has begun.

    Attributes
    ----------
    what : str
        To a reader: kill, kill planner, stop (gracefully), interrupt, pause, pause planner, and of
        its sink: fail before (it has the batch), fail after, slow, hang. Whoever is down afterwards
        is started again after ``s``; whoever is paused goes on after ``s``; a slow sink takes ``s``
        for its next batch; one that hangs does not return from it for ``s``, or until the query
        ends, and whatever comes next comes in the midst of that. To one that ``joins``: join, leave
        (gracefully, for good), vanish (killed, for good). To one of the ``release`` before: upgrade
        (a graceful stop, and a start with this one). To the network of a member: cut, stall
        (nothing gets through) for ``s``, forget (what is connected stays so for ever). To a broker:
        restart, kill, pause. To a topic: grow, trim (delete all records that it has), expire,
        outgrow (leave that to retention, by time or by size, for ``s`` at least). To the topic of
        ``ANEW``, in no random plan: anew (deleted and created, after nothing was sent to it for
        ``s``). To a group, while all of its readers are stopped: to beginning, to end (its
        offsets), delete.
    target : str
        The name of a reader, a topic or a group, or the id of a broker.
    """

    at: float
    what: str
    target: str
    s: float = 0.0


@dataclass(frozen=True)
class Plan:
    """What is to happen; the same for the same seed.

    Attributes
    ----------
    compacts : bool
        Of each key of ``COMPACTED`` only the last record stays, as soon as the broker's cleaner
        comes round.
    once_all_read : bool
        The faults begin only when every reader has delivered something.
    """

    seed: int
    protocol: Literal["classic", "consumer"]
    readers: tuple[Reader, ...]
    faults: tuple[Fault, ...]
    read_committed: bool = True
    rate: int = 100
    transactions: bool = True
    lasts_s: float = 20.0
    compacts: bool = False
    once_all_read: bool = False

    @property
    def topics(self) -> dict[str, int]:
        """Those of records that no producer group writes."""
        return TOPICS | (ANEW if any(fault.what == "anew" for fault in self.faults) else {})

    @property
    def sparks(self) -> int:
        """How many queries there may be at once, and one more if some are killed."""
        queries = {one.name for one in self.readers if one.kind == "query"}
        kills = any(one.what == "kill" and one.target in queries for one in self.faults)
        return len(queries) + kills

    @property
    def brokers_are_up(self) -> bool:
        """Whether no fault is a broker's."""
        return not any(fault.target.isdigit() for fault in self.faults)

    def is_left_alone(self, reader: Reader) -> bool:
        """Whether nothing keeps a batch of it, or its commit, from coming to an end in time."""
        gentle = {"stop", "interrupt", "leave", "join"}
        limited = {"maxBatchDurationMs", "revokeTimeoutMs"} & dict(reader.options).keys()
        return not limited and {fault.what for fault in self.faults} <= gentle

    @property
    def deletes(self) -> bool:
        """Whether records are deleted that somebody may still have to read."""
        return any(fault.what in DELETING or fault.what == "anew" for fault in self.faults)

    @property
    def groups(self) -> list[str]:
        """Those of consumers."""
        return sorted({one.group for one in self.readers if one.kind != "producer"})


#: How often each kind of fault comes, relative to the others.
OF_QUERIES = {
    "kill": 3,
    "kill planner": 2,
    "stop": 2,
    "interrupt": 2,
    "pause": 2,
    "pause planner": 2,
    "fail before": 2,
    "fail after": 3,
    "slow": 3,
    "hang": 2,
}
OF_MEMBERS = {"kill": 3, "stop": 2, "pause": 2, "slow": 2}
OF_PRODUCERS = {"kill": 3, "stop": 2, "pause": 2}
#: Of those with a network of their own, which librdkafka and Spark do not have.
OF_NETWORKS = {"cut": 1, "stall": 1, "forget": 1}
OF_BROKERS = {"restart": 3, "kill": 2, "pause": 1}
OF_TOPICS = {"grow": 3, "trim": 3, "expire": 2, "outgrow": 2}
OF_GROUPS = {"to beginning": 2, "to end": 1, "delete": 2}

#: One that comes late and goes early.
LATE = "q3"
#: How long a batch may take in some queries, of ``maxBatchDurationMs`` and ``revokeTimeoutMs``.
LIMIT_MS = "6000"


def make_plan(seed: int) -> Plan:
    """Choose readers and five to nine faults, and when a late reader comes and goes."""
    chance = Random(seed)
    protocol = chance.choice(("classic", "consumer"))
    live = chance.random() < 0.3
    trims = chance.random() < 0.3
    readers = [_query(f"q{n}", chance, live, trims) for n in (1, 2)]
    readers += [Reader(f"m{n}", "member") for n in range(chance.choice((0, 1, 1, 2)))]
    if chance.random() < 0.3:
        readers.append(Reader("c0", "librdkafka"))
    if chance.random() < 0.3:
        readers += [Reader(f"i{n}", "producer", PRODUCERS) for n in range(2)]
    if chance.random() < 0.2:
        lossy = tuple(one for one in readers[1].options if one == GOES_ON)
        readers[1] = replace(readers[1], group="alone", options=(("assign", "all"), *lossy))
    if chance.random() < 0.3:
        trigger: Trigger = chance.choice(("availableNow", "availableNow", "once"))
        group = chance.choice((readers[1].group, "alone"))
        readers[1] = replace(readers[1], group=group, trigger=trigger)
    if chance.random() < 0.3:
        readers.append(replace(_query(LATE, chance, live, trims), joins=True))
    plan = Plan(
        seed,
        protocol,  # type: ignore[arg-type]
        tuple(readers),
        (),
        read_committed=chance.random() < 0.7,
        rate=chance.choice((30, 100, 200)),
        transactions=chance.random() < 0.8,
        lasts_s=chance.choice((12.0, 18.0)),
        compacts=chance.random() < 0.2,
    )
    faults = [_fault(chance, plan, trims) for _ in range(chance.randint(5, 9))]
    if readers[-1].joins:
        faults += _comes_and_goes(chance, plan)
    if trims and chance.random() < 0.3:
        plan = replace(plan, readers=tuple(map(_strict, readers)))
    return replace(plan, faults=tuple(sorted(faults, key=lambda fault: fault.at)))


def _comes_and_goes(chance: Random, plan: Plan) -> list[Fault]:
    when = sorted(round(chance.uniform(0.0, plan.lasts_s), 2) for _ in range(2))
    how = chance.choice(("leave", "leave", "vanish"))
    return [Fault(when[0], "join", LATE), Fault(when[1], how, LATE)]


def _query(name: str, chance: Random, live: bool, trims: bool) -> Reader:
    options = {"readers": chance.choice("12")}
    if chance.random() < 0.3:
        options["pattern"] = "all"
    if live:
        options |= {"parallelRebalance": "live", "catchUpThreshold": chance.choice(("20", "200"))}
    if chance.random() < 0.3:
        options["maxOffsetsPerTrigger"] = chance.choice(("100", "500"))
    if chance.random() < 0.3:
        options["kafka.group.instance.id"] = name
    if chance.random() < 0.25:
        options["maxBatchDurationMs"] = LIMIT_MS
    if chance.random() < 0.25:
        options["revokeTimeoutMs"] = LIMIT_MS
    if trims:
        options.update([GOES_ON])
    return Reader(name, "query", "g", tuple(options.items()), chance.random() < 0.6)


def _strict(reader: Reader) -> Reader:
    """The reader, failing when records are gone."""
    kept = tuple(one for one in reader.options if one != GOES_ON)
    return replace(reader, options=kept)


def _fault(chance: Random, plan: Plan, trims: bool) -> Fault:
    at = round(chance.uniform(0.0, plan.lasts_s), 2)
    kinds = ("query", "member", "broker", "topic", "group")
    kind = chance.choices(kinds, (60, 15, 20, 15 if trims else 5, 4))[0]
    if kind == "topic":
        what = _one_of(chance, OF_TOPICS) if trims else "grow"
        if plan.compacts and what in DELETING:  # Kafka leaves what is compacted, and refuses a trim
            return Fault(at, what, next(iter(TOPICS.keys() - {COMPACTED})))
        return Fault(at, what, chance.choice(sorted(TOPICS)))
    if kind == "group":
        return Fault(at, _one_of(chance, OF_GROUPS), chance.choice(plan.groups))
    if kind == "broker":
        what = _one_of(chance, OF_BROKERS)
        return Fault(at, what, str(chance.choice(BROKERS)), _seconds(chance, what))
    queries = [r.name for r in plan.readers if r.kind == "query"]
    members = [r for r in plan.readers if r.kind != "query"]
    if kind == "member" and members:
        member = chance.choice(members)
        weights = OF_PRODUCERS if member.kind == "producer" else OF_MEMBERS
        if member.kind != "librdkafka":
            weights = weights | OF_NETWORKS
        what, target = _one_of(chance, weights), member.name
    else:
        what, target = _one_of(chance, OF_QUERIES), chance.choice(queries)
    return Fault(at, what, target, _seconds(chance, what))


def _one_of(chance: Random, weights: dict[str, int]) -> str:
    return chance.choices(list(weights), list(weights.values()))[0]


def _seconds(chance: Random, what: str) -> float:
    """Shorter or longer than a session: who comes back in time keeps what is its own."""
    if what.startswith("pause") or what in OF_NETWORKS:
        return round(chance.choice((0.3, 0.6, 1.4)) * SESSION_S, 1)
    if what == "slow":
        return chance.choice((0.5, 2.0, 5.0))
    if what == "hang":
        return chance.choice((4.0, 10.0, 2 * SESSION_S))
    return chance.choice((0.0, 1.0, 4.0, 1.5 * SESSION_S))


def shrink(
    plan: Plan, still_fails: Callable[[Plan], bool], may_go_on: Callable[[], bool] = lambda: True
) -> Plan:
    """Leave out what the failure does not need: halves of the faults, then single ones, readers.

    Parameters
    ----------
    plan : Plan
        One that fails.
    still_fails : callable
        Carries a smaller plan out.
    may_go_on : callable
        Whether there is time for another attempt.

    Returns
    -------
    Plan
        The smallest that has failed.
    """
    size = max(1, len(plan.faults) // 2)
    tried = {plan}
    while may_go_on():
        for smaller in _without(plan, size):
            if smaller in tried:
                continue
            tried.add(smaller)
            if not may_go_on():
                return plan
            if still_fails(smaller):
                plan = smaller
                break
        else:
            if size == 1:
                break
            size //= 2
    for reader in plan.readers:
        rest = tuple(r for r in plan.readers if r is not reader)
        needed = {fault.target for fault in plan.faults}
        if rest and reader.name not in needed and may_go_on():
            smaller = replace(plan, readers=rest)
            plan = smaller if still_fails(smaller) else plan
    return plan


def _without(plan: Plan, size: int) -> list[Plan]:
    """The plan without ``size`` neighbouring faults, in every place."""
    faults: Sequence[Fault] = plan.faults
    return [
        replace(plan, faults=(*faults[:start], *faults[start + size :]))
        for start in range(0, len(faults), size)
    ]


def as_python(plan: Plan) -> str:
    """The plan as it can stand in a regression test."""
    indent = "        "
    lines = ["plan = Plan("]
    for name in Plan.__dataclass_fields__:
        value = getattr(plan, name)
        if isinstance(value, tuple):
            lines.append(f"    {name}=(")
            lines += [f"{indent}{one!r}," for one in value]
            lines.append("    ),")
        else:
            lines.append(f"    {name}={value!r},")
    return "\n".join([*lines, ")"])
