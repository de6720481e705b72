"""StreamOffset: the source's offset in Spark's log, from which a batch can be read again.

An offset says more than how far the stream has come. It names the ranges that the batch ending in
it reads, so that planning needs neither the offset before nor the group; what the group said of
them, so that a replay gives the same rows; and where all other partitions stand, so that a restart
needs no group. Every number that ends something is the *next* offset::

    {"version": 2,
     "ranges": {"orders": {"0": [100, 250]}},
     "pending": {"orders": {"0": [50, 100]}},
     "positions": {"orders": {"3": 17}},
     "state": {"members": [{"generation": 41, "partitions": {"orders": [0]}}],
               "revoking": {"orders": [0]}, "lost": {"orders": [4]},
               "events": [["revoke_requested", "orders", 0, 41]],
               "run": "kafka_deferred-1f0c", "warm_up": 3}}

Spark compares offsets as text and runs a batch when it differs: there is one order of the keys, the
one above, with topics by name, partitions by number, and without ``pending`` and the parts of
``state`` that are empty.

Of a partition that reads its newest records while older ones are left to be caught up (KIP-333),
the above is the live part. Such an offset has version 3, and two fields more, with any number of
ranges for a partition, in order and apart::

    {"version": 3,
     "ranges": {"orders": {"0": [4000, 4100]}},
     "catch_up": {"orders": {"0": [[70, 120], [300, 305]]}},
     "positions": {},
     "gaps": {"orders": {"0": [[305, 310]]}},
     "state": {}}

``catch_up`` is what the batch reads of them, ``gaps`` what is left after it. What batches have
caught up that are not proven is what the gaps of an offset before had and these have not.
Nothing writes it yet.

Spark's own Kafka source logs positions alone, ``{"orders": {"3": 17}}``. Such an offset is read as
well, and stands for what it says: a checkpoint of that source is gone on from.

Version 1 had, as ``unacknowledged``, only those positions that the group had not confirmed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from kafka.structs import TopicPartition

from ..consumer.gaps import Gap
from ..errors import OffsetFormatError
from ..fetch.offset_range import OffsetRange
from ..settings.values import INT_MAX, LONG_MAX

#: What is written; with gaps, or what is read of them, the higher one: releases that know of none
#: refuse it, by its number, and would otherwise leave those records out.
VERSION, VERSION_WITH_GAPS = 2, 3

#: What the positions were called, and some of them, in the versions that are read.
_POSITIONS = {1: "unacknowledged", 2: "positions", 3: "positions"}


_STATE = ("members", "revoking", "lost", "events", "run", "warm_up", "initial", "imported")


@dataclass(frozen=True, slots=True)
class MemberState:
    """Which of the batch's ranges one group member owns, in order, and its generation."""

    generation: int
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class RebalanceEvent:
    """One row of ``includeRebalanceEvents``."""

    event: str  # assigned, revoke_requested, revoked, lost
    partition: TopicPartition
    generation: int


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """Where the stream stands after one batch, and what that batch reads.

    Attributes
    ----------
    ranges : Mapping[TopicPartition, OffsetRange]
        What the batch reads.
    pending : Mapping[TopicPartition, OffsetRange]
        What batches before this one read that are not proven: Spark may have forgotten them after
        a kill (async progress tracking) and then runs this batch from an offset before them.
    others : Mapping[TopicPartition, int]
        Next offsets of the partitions that neither ``ranges`` nor ``pending`` has: of all that the
        query has owned, up to where Spark has committed them.
    members : tuple of MemberState
        The query's members, in reader order.
    revoking, lost : frozenset of TopicPartition
        Whose revoke was requested, which were no longer the query's, when the batch was planned;
        with a range here or without.
    events : tuple of RebalanceEvent
        The rows of ``includeRebalanceEvents``, in the order in which they happened.
    run : str or None
        Prefix of the client ids of the members of the run that planned the batch.
    warm_up : int or None
        Not None: a batch without ranges that only opens connections. The number makes it differ.
    initial : frozenset of TopicPartition or None
        Of a batch without ranges: the partitions that start as ``startingOffsets`` says, being
        those that the query found when it first began, as long as it has read nothing. All others
        are new since. None with ranges: then all that Spark and the group do not know is new.
    imported : frozenset of TopicPartition
        Whose positions are still those of Spark's own source, which knows of no group: what this
        group has committed for them does not count.
    catch_up : Mapping[TopicPartition, tuple of OffsetRange]
        What the batch reads below the live positions (KIP-333), in order.
    gaps : Mapping[TopicPartition, tuple of Gap]
        What is left there after it.
    built_in : bool
        Whether the offset itself is one of Spark's own source.
    """

    ranges: Mapping[TopicPartition, OffsetRange] = field(default_factory=dict, hash=False)
    pending: Mapping[TopicPartition, OffsetRange] = field(default_factory=dict, hash=False)
    others: Mapping[TopicPartition, int] = field(default_factory=dict, hash=False)
    members: tuple[MemberState, ...] = ()
    revoking: frozenset[TopicPartition] = frozenset()
    lost: frozenset[TopicPartition] = frozenset()
    events: tuple[RebalanceEvent, ...] = ()
    run: str | None = None
    warm_up: int | None = None
    initial: frozenset[TopicPartition] | None = None
    imported: frozenset[TopicPartition] = frozenset()
    catch_up: Mapping[TopicPartition, tuple[OffsetRange, ...]] = field(
        default_factory=dict, hash=False
    )
    gaps: Mapping[TopicPartition, tuple[Gap, ...]] = field(default_factory=dict, hash=False)
    built_in: bool = False

    def positions(self) -> dict[TopicPartition, int]:
        """Return the next offset of every partition that this offset knows of; the live one."""
        return {
            **self.others,
            **{p: r.end for p, r in self.pending.items()},
            **{p: r.end for p, r in self.ranges.items()},
        }

    def ranges_after(self, start: StreamOffset) -> Mapping[TopicPartition, OffsetRange]:
        """What the batch from ``start`` to this offset reads.

        The ranges alone, unless ``start`` lies before batches that are pending here. What is
        pending and does not go on into the range was given up (``failOnDataLoss=false``).
        """
        if self.built_in:
            return self._after_built_in(start)
        if not self.pending:
            return self.ranges
        known, ranges = start.positions(), dict(self.ranges)
        for partition, pending in self.pending.items():
            begin = max(pending.start, known.get(partition, pending.start))
            own = ranges.get(partition)
            if begin < pending.end and (own is None or own.start == pending.end):
                ranges[partition] = replace(pending, start=begin, end=(own or pending).end)
        return ranges

    def _after_built_in(self, start: StreamOffset) -> dict[TopicPartition, OffsetRange]:
        """As Spark's own source does: what ``start`` does not have is new, and read as a whole."""
        known = start.positions()
        return {
            p: OffsetRange(p.topic, p.partition, begin, end)
            for p, end in self.others.items()
            if (begin := known.get(p, 0)) < end
        }

    def to_json_dict(self) -> dict[str, Any]:
        """Return the offset as nested JSON values, built in the one order of keys."""
        if self.built_in:
            return _by_topic(self.others)
        state: dict[str, Any] = {}
        if self.members:
            state["members"] = [
                {"generation": m.generation, "partitions": _numbers(m.partitions)}
                for m in self.members
            ]
        if self.revoking:
            state["revoking"] = _numbers(self.revoking)
        if self.lost:
            state["lost"] = _numbers(self.lost)
        if self.events:
            state["events"] = [[e.event, *e.partition, e.generation] for e in self.events]
        if self.run is not None:
            state["run"] = self.run
        if self.warm_up is not None:
            state["warm_up"] = self.warm_up
        if self.initial is not None:
            state["initial"] = _numbers(self.initial)
        if self.imported:
            state["imported"] = _numbers(self.imported)
        return {
            "version": VERSION_WITH_GAPS if self.catch_up or self.gaps else VERSION,
            "ranges": _bounds(self.ranges),
            **({"catch_up": _pieces(self.catch_up)} if self.catch_up else {}),
            **({"pending": _bounds(self.pending)} if self.pending else {}),
            "positions": _by_topic(self.others),
            **({"gaps": _pieces(self.gaps)} if self.gaps else {}),
            "state": state,
        }

    @classmethod
    def parse(cls, value: Any) -> StreamOffset:
        """Parse what :meth:`to_json_dict` returned, after any number of trips through JSON.

        Raises
        ------
        OffsetFormatError
            Naming the field that is not as it should be, or the version.
        """
        if (of_built_in := parse_built_in(value)) is not None:
            return cls(others=of_built_in, imported=frozenset(of_built_in), built_in=True)
        _require(isinstance(value, dict) and "version" in value, "version", value)
        version = value["version"]
        _require(_is_number(version) and version >= 1, "version", version)
        if version not in _POSITIONS:
            raise OffsetFormatError(
                f"the checkpoint's offset has version {version}; this release of pyspark-kafka-"
                f"rebalance reads versions up to {VERSION_WITH_GAPS}, a newer one wrote it"
            )
        positions = _POSITIONS[version]
        of_gaps = ("catch_up", "gaps") if version >= VERSION_WITH_GAPS else ()
        _known(value, ("version", "ranges", "pending", positions, "state", *of_gaps), "offset")
        state = value.get("state")
        _require(isinstance(state, dict), "state", state)
        _known(state, _STATE, "state")
        members = state.get("members", [])
        _require(isinstance(members, list), "state.members", members)
        events = state.get("events", [])
        _require(isinstance(events, list), "state.events", events)
        run = state.get("run")
        _require(run is None or isinstance(run, str), "state.run", run)
        warm_up = state.get("warm_up")
        _require(warm_up is None or _is_number(warm_up), "state.warm_up", warm_up)
        initial = state.get("initial")
        offset = cls(
            ranges=_ranges(value, "ranges"),
            pending=_ranges(value, "pending") if "pending" in value else {},
            others=dict(_positions(value, positions)),
            members=tuple(_member(member) for member in members),
            revoking=_partitions(state.get("revoking", {}), "state.revoking"),
            lost=_partitions(state.get("lost", {}), "state.lost"),
            events=tuple(_event(event) for event in events),
            run=run,
            warm_up=warm_up,
            initial=None if initial is None else _partitions(initial, "state.initial"),
            imported=_partitions(state.get("imported", {}), "state.imported"),
            catch_up={
                p: tuple(OffsetRange(p.topic, p.partition, *bounds) for bounds in pieces)
                for p, pieces in _gaps(value, "catch_up")
            },
            gaps={p: tuple(pieces) for p, pieces in _gaps(value, "gaps")},
        )
        both = (offset.ranges.keys() | offset.pending.keys()) & offset.others.keys()
        _require(not both, positions, sorted(both))
        offset._check()
        return offset

    def _check(self) -> None:
        _require(self.warm_up is None or not self.ranges, "state.warm_up", self.warm_up)
        _require(self.initial is None or not self.ranges, "state.initial", self.initial)
        if self.catch_up or self.gaps:
            self._check_gaps()

    def _check_gaps(self) -> None:
        """What is to be caught up is apart, and below the live positions."""
        live = {**self.positions(), **{p: handed.start for p, handed in self.ranges.items()}}
        for partition in self.catch_up.keys() | self.gaps.keys():
            read = [Gap(one.start, one.end) for one in self.catch_up.get(partition, ())]
            pieces = sorted([*read, *self.gaps.get(partition, ())])
            apart = all(before.end <= after.start for before, after in pairwise(pieces))
            full = all(piece.start < piece.end for piece in pieces)
            below = pieces[-1].end <= live.get(partition, -1)
            _require(apart and full and below, f"gaps.{partition.topic}", pieces)


#: What a query without a checkpoint starts from. Constant: Spark does not log it, and asks a new
#: process for it when it replays the first batch.
INITIAL_OFFSET = StreamOffset()


def is_own(value: Any) -> bool:
    """Whether an offset, of whatever source, is one that this source has made."""
    return isinstance(value, dict) and type(value.get("version")) is int and "ranges" in value


def parse_built_in(value: Any) -> dict[TopicPartition, int] | None:
    """The positions in an offset of Spark's own Kafka source; None if it is not of this form."""
    if not isinstance(value, dict) or not all(isinstance(v, dict) and v for v in value.values()):
        return None
    try:
        return dict(_positions({"positions": value}, "positions")) or None
    except OffsetFormatError:
        return None


def _bounds(ranges: Mapping[TopicPartition, OffsetRange]) -> dict[str, dict[str, list[int]]]:
    by_topic: dict[str, dict[str, list[int]]] = {}
    for partition in sorted(ranges):
        handed = ranges[partition]
        by_topic.setdefault(partition.topic, {})[str(partition.partition)] = [
            handed.start,
            handed.end,
        ]
    return by_topic


def _pieces(
    pieces: Mapping[TopicPartition, Iterable[Gap | OffsetRange]],
) -> dict[str, dict[str, list[list[int]]]]:
    return _by_topic({p: [[one.start, one.end] for one in found] for p, found in pieces.items()})


def _by_topic(values: Mapping[TopicPartition, Any]) -> dict[str, dict[str, Any]]:
    by_topic: dict[str, dict[str, Any]] = {}
    for partition in sorted(values):
        by_topic.setdefault(partition.topic, {})[str(partition.partition)] = values[partition]
    return by_topic


def _numbers(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    return by_topic


def _require(condition: bool, name: str, value: Any) -> None:
    if not condition:
        raise OffsetFormatError(f"the checkpoint's offset is malformed in {name!r}: {value!r:.200}")


def _known(value: Mapping[str, Any], names: tuple[str, ...], where: str) -> None:
    unknown = sorted(value.keys() - set(names))
    _require(not unknown, where, unknown)


def _is_number(value: Any, highest: int = LONG_MAX) -> bool:
    return type(value) is int and 0 <= value <= highest


def _are_bounds(value: Any) -> bool:
    pair = isinstance(value, list) and len(value) == 2 and all(map(_is_number, value))
    return pair and value[0] <= value[1]


def _by_partition(value: Mapping[str, Any], name: str) -> Iterable[tuple[TopicPartition, Any]]:
    by_topic: Any = value.get(name)
    _require(isinstance(by_topic, dict), name, by_topic)
    for topic, by_number in by_topic.items():
        _require(isinstance(by_number, dict), f"{name}.{topic}", by_number)
        for number, item in by_number.items():
            # No more digits than INT_MAX has: int() minds the length of its input.
            valid = re.fullmatch("0|[1-9][0-9]{0,9}", number) is not None and int(number) <= INT_MAX
            _require(valid, f"{name}.{topic}", number)
            yield TopicPartition(topic, int(number)), item


def _ranges(value: Mapping[str, Any], name: str) -> dict[TopicPartition, OffsetRange]:
    ranges = {}
    for partition, bounds in _by_partition(value, name):
        _require(_are_bounds(bounds), f"{name}.{partition.topic}", bounds)
        ranges[partition] = OffsetRange(partition.topic, partition.partition, *bounds)
    return ranges


def _gaps(value: Mapping[str, Any], name: str) -> Iterable[tuple[TopicPartition, list[Gap]]]:
    for partition, pieces in _by_partition({name: {}, **value}, name):
        where = f"{name}.{partition.topic}"
        _require(isinstance(pieces, list) and bool(pieces), where, pieces)
        _require(all(map(_are_bounds, pieces)) and pieces == sorted(pieces), where, pieces)
        yield partition, [Gap(*bounds) for bounds in pieces]


def _positions(value: Mapping[str, Any], name: str) -> Iterable[tuple[TopicPartition, int]]:
    for partition, position in _by_partition(value, name):
        _require(_is_number(position), f"{name}.{partition.topic}", position)
        yield partition, position


def _partitions(by_topic: Any, name: str) -> frozenset[TopicPartition]:
    _require(isinstance(by_topic, dict), name, by_topic)
    for topic, numbers in by_topic.items():
        valid = isinstance(numbers, list) and all(_is_number(n, INT_MAX) for n in numbers)
        _require(valid, f"{name}.{topic}", numbers)
    return frozenset(TopicPartition(t, n) for t, numbers in by_topic.items() for n in numbers)


def _member(value: Any) -> MemberState:
    name = "state.members"
    _require(isinstance(value, dict) and value.keys() == {"generation", "partitions"}, name, value)
    # -1 is the generation of a member that is not in the group, in Kafka's protocol.
    generation = value["generation"]
    _require(type(generation) is int and -1 <= generation <= INT_MAX, name, value)
    return MemberState(generation, tuple(sorted(_partitions(value["partitions"], name))))


def _event(value: Any) -> RebalanceEvent:
    valid = isinstance(value, list) and len(value) == 4
    _require(valid, "state.events", value)
    event, topic, partition, generation = value
    valid = isinstance(event, str) and isinstance(topic, str) and _is_number(partition, INT_MAX)
    valid = valid and type(generation) is int and -1 <= generation <= INT_MAX
    _require(valid, "state.events", value)
    return RebalanceEvent(event, TopicPartition(topic, partition), generation)
