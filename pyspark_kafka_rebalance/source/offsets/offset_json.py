"""The JSON of a StreamOffset, as Spark logs it. Pure.

Every number of an offset is the *next* one. The top level looks like an offset of Spark's own Kafka
source, for code that reads positions from a query's progress, and says where every known partition
stands after the batch. What else there is has a name of its own, which no topic can have::

    {"orders": {"0": 250, "3": 17},
     "#kafka_deferred": {
         "version": 4,
         "read": {"orders": {"0": [150]}},
         "pending": {"orders": {"0": [50, 100]}},
         "state": {"members": [{"generation": 41, "partitions": {"orders": [0]}}],
                   "revoking": {"orders": [0]}, "lost": {"orders": [4]},
                   "events": [["revoke_requested", "orders", 0, 41]],
                   "run": "kafka_deferred-1f0c", "warm_up": 3,
                   "query": "90a1c3e5f7b2d4e6", "batch": 17}}}

``state`` may also have ``followed``, the set-backs of the group to a restored checkpoint that the
query has followed: partitions by the token of the last one, ``{"5d0f33c1": {"orders": [0]}}``; and
``"by_sink": true`` if transactions of the query's sink decide its batches.

``read`` is how many offsets the batch reads, up to the position, here [100, 250): a list for each
run of consecutive partitions, by the number of the first one.

Spark compares offsets as text and runs a batch if the text differs. So the keys have one fixed
order, the one above, with topics sorted by name and partitions by number. ``pending`` and the parts
of ``state`` are left out if they are empty.

If a partition reads its newest records while older ones are still to be caught up (KIP-333), the
fields above are its live part. Such an offset has up to three more fields, between ``pending`` and
``state``, with any number of ranges per partition, sorted and disjoint::

    {"orders": {"0": 4100},
     "#kafka_deferred": {
         "version": 4,
         "read": {"orders": {"0": [100]}},
         "catch_up": {"orders": {"0": [[70, 120], [300, 305]]}},
         "gaps": {"orders": {"0": [[305, 310]]}},
         "state": {}}}

``catch_up`` has the older records that the batch reads, ``gaps`` those that remain after it.
``pending_catch_up``, in the same form and between the two, is what earlier batches have read of
them and is not proven.

Versions 1 to 3 had their fields at the top level, and are still read::

    {"version": 2,
     "ranges": {"orders": {"0": [100, 250]}},
     "pending": {"orders": {"0": [50, 100]}},
     "positions": {"orders": {"3": 17}},
     "state": {}}

Version 3 added the fields of gaps. Version 1 had only the positions that the group had not
confirmed, as ``unacknowledged``.

Spark's own Kafka source logs only positions, ``{"orders": {"3": 17}}``. Such an offset is read too,
as those positions, so that a query can continue from a checkpoint of that source.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby, pairwise
from operator import attrgetter
from typing import Any

from kafka.structs import TopicPartition

from ...consumer.offsets.offset_set import Gap
from ...errors import OffsetFormatError
from ...fetch.offset_range import OffsetRange
from ...settings.values import INT_MAX, LONG_MAX
from .stream_offset import MemberState, RebalanceEvent, StreamOffset

#: What is not a position, at the top level of an offset. Kafka's topics cannot have a "#".
OURS = "#kafka_deferred"

#: The version that is written.
VERSION = 4

#: The field with the positions (in version 1 only some of them), of versions without ``OURS``.
_POSITIONS = {1: "unacknowledged", 2: "positions", 3: "positions"}

#: The fields of gaps, which versions 1 and 2 lack.
_OF_GAPS = ("catch_up", "pending_catch_up", "gaps")

_FIRST_WITH_GAPS = 3

_NUMBER = re.compile("0|[1-9][0-9]{0,9}")

_STATE = (
    *("members", "revoking", "lost", "events", "run", "warm_up", "initial", "imported"),
    *("query", "batch", "group", "first_ends", "followed", "by_sink"),
)


def offset_to_json(offset: StreamOffset) -> dict[str, Any]:
    """Return the offset as nested JSON values, with the keys in their fixed order."""
    if offset.built_in:
        return by_topic(offset.others)
    state: dict[str, Any] = {}
    if offset.members:
        state["members"] = [
            {"generation": m.generation, "partitions": _numbers(m.partitions)}
            for m in offset.members
        ]
    if offset.revoking:
        state["revoking"] = _numbers(offset.revoking)
    if offset.lost:
        state["lost"] = _numbers(offset.lost)
    if offset.events:
        state["events"] = [[e.event, *e.partition, e.generation] for e in offset.events]
    if offset.run is not None:
        state["run"] = offset.run
    if offset.warm_up is not None:
        state["warm_up"] = offset.warm_up
    if offset.initial is not None:
        state["initial"] = _numbers(offset.initial)
    if offset.imported:
        state["imported"] = _numbers(offset.imported)
    if offset.query is not None:
        state["query"] = offset.query
    if offset.batch is not None:
        state["batch"] = offset.batch
    if offset.group is not None:
        state["group"] = offset.group
    if offset.first_ends:
        state["first_ends"] = by_topic(offset.first_ends)
    if offset.followed:
        state["followed"] = _followed_to_json(offset.followed)
    if offset.by_sink:
        state["by_sink"] = True
    positions, read = _live_to_json(offset)
    ours = {
        "version": VERSION,
        "read": read,
        **({"pending": _bounds(offset.pending)} if offset.pending else {}),
        **({"catch_up": _pieces(offset.catch_up)} if offset.catch_up else {}),
        **(
            {"pending_catch_up": _pieces(offset.pending_catch_up)}
            if offset.pending_catch_up
            else {}
        ),
        **({"gaps": _pieces(offset.gaps)} if offset.gaps else {}),
        "state": state,
    }
    return {**positions, OURS: ours}


def _live_to_json(offset: StreamOffset) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the positions, and how many offsets are read, in one pass."""
    positions, ranges = offset.positions(), offset.ranges
    top: dict[str, dict[str, int]] = {}
    read: dict[str, dict[str, list[int]]] = {}
    for topic, partitions in _of_topics(positions):
        by_number = top[topic] = {}
        run: list[int] = []
        follows = -1
        for partition in partitions:
            name = str(partition.partition)
            by_number[name] = positions[partition]
            if (handed := ranges.get(partition)) is None:
                continue
            if partition.partition != follows:
                run = read.setdefault(topic, {})[name] = []
            run.append(handed.end - handed.start)
            follows = partition.partition + 1
    return top, read


def _followed_to_json(followed: Mapping[TopicPartition, str]) -> dict[str, dict[str, list[int]]]:
    """By token: one set-back mostly concerns many partitions."""
    by_token: dict[str, list[TopicPartition]] = {}
    for partition, token in followed.items():
        by_token.setdefault(token, []).append(partition)
    return {token: _numbers(by_token[token]) for token in sorted(by_token)}


def _bounds(ranges: Mapping[TopicPartition, OffsetRange]) -> dict[str, dict[str, list[int]]]:
    return {
        topic: {str(p.partition): [(handed := ranges[p]).start, handed.end] for p in partitions}
        for topic, partitions in _of_topics(ranges)
    }


def _pieces(
    pieces: Mapping[TopicPartition, Iterable[Gap | OffsetRange]],
) -> dict[str, dict[str, list[list[int]]]]:
    return by_topic({p: [[one.start, one.end] for one in found] for p, found in pieces.items()})


def by_topic(values: Mapping[TopicPartition, Any]) -> dict[str, dict[str, Any]]:
    """Nest the values by topic and partition, each sorted, as Spark's own source does."""
    return {
        topic: {str(p.partition): values[p] for p in partitions}
        for topic, partitions in _of_topics(values)
    }


def _numbers(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    return {topic: [p.partition for p in found] for topic, found in _of_topics(partitions)}


def _of_topics(
    partitions: Iterable[TopicPartition],
) -> Iterator[tuple[str, Iterable[TopicPartition]]]:
    """Yield the topics sorted by name, with the partitions of each sorted by number."""
    return groupby(sorted(partitions), key=attrgetter("topic"))


def parse_offset(value: Any) -> StreamOffset:
    """Parse a result of :func:`offset_to_json`, after any number of round trips through JSON.

    Raises OffsetFormatError; names the field that is malformed, or the version.
    """
    if (of_built_in := parse_built_in(value)) is not None:
        return StreamOffset(others=of_built_in, imported=frozenset(of_built_in), built_in=True)
    version, fields = _fields(value)
    state = fields.get("state")
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
    query = state.get("query")
    _require(query is None or (isinstance(query, str) and bool(query)), "state.query", query)
    batch = state.get("batch")
    _require(batch is None or _is_number(batch), "state.batch", batch)
    group = state.get("group")
    _require(group is None or isinstance(group, str), "state.group", group)
    by_sink = state.get("by_sink", False)
    _require(isinstance(by_sink, bool), "state.by_sink", by_sink)
    initial = state.get("initial")
    live = _live_part(value, fields) if version == VERSION else _older_live_part(fields, version)
    ranges, pending, others = live
    offset = StreamOffset(
        ranges=ranges,
        pending=pending,
        others=others,
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
            for p, pieces in _gaps(fields, "catch_up")
        },
        pending_catch_up={p: tuple(found) for p, found in _gaps(fields, "pending_catch_up")},
        gaps={p: tuple(pieces) for p, pieces in _gaps(fields, "gaps")},
        query=query,
        batch=batch,
        group=group,
        first_ends=dict(_positions({"first_ends": {}, **state}, "first_ends")),
        followed=_followed(state.get("followed", {})),
        by_sink=by_sink,
    )
    _check(offset)
    return offset


def _fields(value: Any) -> tuple[int, Any]:
    """Return an offset's version, and where its fields are."""
    _require(isinstance(value, dict), "version", value)
    fields = value.get(OURS, value)
    _require(isinstance(fields, dict) and "version" in fields, "version", value)
    version = fields["version"]
    _require(_is_number(version) and version >= 1, "version", version)
    if version > VERSION:
        raise OffsetFormatError(
            f"the checkpoint's offset has version {version}, written by a newer release of "
            f"pyspark-kafka-rebalance; this release reads versions up to {VERSION}"
        )
    _require((version == VERSION) == (OURS in value), "version", version)
    return version, fields


_LivePart = tuple[
    dict[TopicPartition, OffsetRange], dict[TopicPartition, OffsetRange], dict[TopicPartition, int]
]


def _live_part(value: Mapping[str, Any], ours: Mapping[str, Any]) -> _LivePart:
    """Return the ranges, what is pending, and the other positions."""
    _known(ours, ("version", "read", "pending", *_OF_GAPS, "state"), OURS)
    topics = {topic: by_number for topic, by_number in value.items() if topic != OURS}
    others = dict(_positions({"positions": topics}, "positions"))
    ranges, pending = {}, _ranges(ours, "pending") if "pending" in ours else {}
    for first, run in _by_partition(ours, "read"):
        topic, where = first.topic, f"read.{first.topic}"
        _require(isinstance(run, list), where, run)
        for number, length in enumerate(run, first.partition):
            partition = TopicPartition(topic, number)
            end = others.pop(partition, -1)
            _require(_is_number(length, end), where, length)
            ranges[partition] = OffsetRange(topic, number, end - length, end)
    for partition, before in pending.items():
        if partition not in ranges:
            end = others.pop(partition, -1)
            _require(before.end == end, f"pending.{partition.topic}", before.end)
    return ranges, pending, others


def _older_live_part(fields: Mapping[str, Any], version: int) -> _LivePart:
    """As :func:`_live_part`, of versions 1 to 3."""
    name = _POSITIONS[version]
    of_gaps = _OF_GAPS if version >= _FIRST_WITH_GAPS else ()
    _known(fields, ("version", "ranges", "pending", name, "state", *of_gaps), "offset")
    ranges = _ranges(fields, "ranges")
    pending = _ranges(fields, "pending") if "pending" in fields else {}
    others = dict(_positions(fields, name))
    both = (ranges.keys() | pending.keys()) & others.keys()
    _require(not both, name, sorted(both))
    return ranges, pending, others


def is_own(value: Any) -> bool:
    """Whether this source made the offset, which may be of any source."""
    if not isinstance(value, dict):
        return False
    return OURS in value or (type(value.get("version")) is int and "ranges" in value)


def parse_built_in(value: Any) -> dict[TopicPartition, int] | None:
    """Return the positions in an offset of Spark's own Kafka source; None for any other offset."""
    if not isinstance(value, dict) or not all(isinstance(v, dict) and v for v in value.values()):
        return None
    try:
        return dict(_positions({"positions": value}, "positions")) or None
    except OffsetFormatError:
        return None


def _check(offset: StreamOffset) -> None:
    _require(offset.warm_up is None or not offset.ranges, "state.warm_up", offset.warm_up)
    _require(offset.initial is None or not offset.ranges, "state.initial", offset.initial)
    if offset.has_gaps:
        _check_gaps(offset)


def _check_gaps(offset: StreamOffset) -> None:
    """Require the pieces below the live positions to be disjoint, not empty, and really below."""
    live = {**offset.positions(), **{p: handed.start for p, handed in offset.ranges.items()}}
    for partition in {*offset.catch_up, *offset.pending_catch_up, *offset.gaps}:
        read = [Gap(one.start, one.end) for one in offset.catch_up.get(partition, ())]
        before = offset.pending_catch_up.get(partition, ())
        pieces = sorted([*read, *before, *offset.gaps.get(partition, ())])
        apart = all(one.end <= after.start for one, after in pairwise(pieces))
        full = all(piece.start < piece.end for piece in pieces)
        below = pieces[-1].end <= live.get(partition, -1)
        _require(apart and full and below, f"gaps.{partition.topic}", pieces)


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
        where = f"{name}.{topic}"
        _require(isinstance(by_number, dict), where, by_number)
        for number, item in by_number.items():
            # At most as many digits as INT_MAX has: int() limits the length of its input.
            valid = _NUMBER.fullmatch(number) is not None and int(number) <= INT_MAX
            _require(valid, where, number)
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
        if not _is_number(position):
            _require(False, f"{name}.{partition.topic}", position)
        yield partition, position


def _partitions(by_topic: Any, name: str) -> frozenset[TopicPartition]:
    _require(isinstance(by_topic, dict), name, by_topic)
    for topic, numbers in by_topic.items():
        valid = isinstance(numbers, list) and all(_is_number(n, INT_MAX) for n in numbers)
        _require(valid, f"{name}.{topic}", numbers)
    return frozenset(TopicPartition(t, n) for t, numbers in by_topic.items() for n in numbers)


def _followed(by_token: Any) -> dict[TopicPartition, str]:
    name = "state.followed"
    _require(isinstance(by_token, dict), name, by_token)
    return {p: token for token, found in by_token.items() for p in _partitions(found, name)}


def _member(value: Any) -> MemberState:
    name = "state.members"
    _require(isinstance(value, dict) and value.keys() == {"generation", "partitions"}, name, value)
    # In Kafka's protocol, -1 is the generation of a member that is not in the group.
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
