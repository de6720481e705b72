"""The JSON of StreamOffset: one text for one meaning, and back again."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.consumer.offsets.offset_set import Gap
from pyspark_kafka_rebalance.errors import OffsetFormatError
from pyspark_kafka_rebalance.fetch.offset_range import OffsetRange
from pyspark_kafka_rebalance.source.offsets.offset_json import (
    OURS,
    is_own,
    offset_to_json,
    parse_offset,
)
from pyspark_kafka_rebalance.source.offsets.stream_offset import (
    INITIAL_OFFSET,
    MemberState,
    RebalanceEvent,
    StreamOffset,
)

PARTITIONS = st.builds(
    TopicPartition,
    st.text("ab.-9", min_size=1, max_size=3),
    st.integers(0, 12) | st.just(2**31 - 1),
)
NUMBERS = st.integers(0, 2**63 - 1)
P, Q = TopicPartition("t", 0), TopicPartition("t", 1)


def a_range(partition: TopicPartition, start: int, end: int) -> OffsetRange:
    return OffsetRange(partition.topic, partition.partition, start, end)


@st.composite
def offsets(draw: st.DrawFn) -> StreamOffset:
    partitions = draw(st.lists(PARTITIONS, unique=True, max_size=12))
    cut = draw(st.integers(0, len(partitions)))
    warm_up = draw(st.none() | st.integers(0, 5))
    with_range = [] if warm_up is not None else partitions[:cut]
    ranges, pending = {}, {}
    for p in partitions[:cut]:
        first, start, end = sorted((draw(NUMBERS), draw(NUMBERS), draw(NUMBERS)))
        if p in with_range:
            ranges[p] = OffsetRange(p.topic, p.partition, start, end)
        if draw(st.booleans()):
            pending[p] = OffsetRange(p.topic, p.partition, first, start)
    shares = draw(st.integers(0, 3))
    return StreamOffset(
        ranges=ranges,
        pending=pending,
        others={p: draw(NUMBERS) for p in partitions[cut:]},
        members=tuple(
            MemberState(draw(st.integers(-1, 99)), tuple(sorted(with_range[i::shares])))
            for i in range(shares)
        ),
        revoking=frozenset(p for p in partitions if draw(st.booleans())),
        lost=frozenset(p for p in partitions if draw(st.booleans())),
        events=tuple(RebalanceEvent("lost", p, 7) for p in partitions if draw(st.booleans())),
        run=draw(st.none() | st.text(max_size=4)),
        warm_up=warm_up,
        initial=None if ranges else draw(st.none() | st.frozensets(PARTITIONS, max_size=3)),
        imported=frozenset(p for p in partitions if draw(st.booleans())),
        query=draw(st.none() | st.text(min_size=1, max_size=4)),
        batch=draw(st.none() | NUMBERS),
        group=draw(st.none() | st.text(min_size=1, max_size=4)),
        first_ends=draw(st.dictionaries(PARTITIONS, NUMBERS, max_size=3)),
        followed=draw(st.dictionaries(PARTITIONS, st.sampled_from(["5d0f33c1", "0"]), max_size=3)),
        **draw(gaps_below({p: r.start for p, r in ranges.items()})),
    )


@st.composite
def gaps_below(draw: st.DrawFn, live: dict[TopicPartition, int]) -> dict[str, Any]:
    pending, catch_up, gaps = {}, {}, {}
    for p, end in live.items():
        bounds = sorted(draw(st.lists(st.integers(0, end), unique=True, max_size=6)))
        pieces = list(zip(bounds[::2], bounds[1::2], strict=False))
        before = draw(st.integers(0, len(pieces)))
        if before:
            pending[p] = tuple(Gap(*piece) for piece in pieces[:before])
        pieces = pieces[before:]
        read = draw(st.integers(0, len(pieces)))
        if read:
            catch_up[p] = tuple(
                OffsetRange(p.topic, p.partition, *piece) for piece in pieces[:read]
            )
        if pieces[read:]:
            gaps[p] = tuple(Gap(*piece) for piece in pieces[read:])
    return {"pending_catch_up": pending, "catch_up": catch_up, "gaps": gaps}


@given(offsets())
def test_round_trip(offset: StreamOffset) -> None:
    text = json.dumps(offset_to_json(offset))
    parsed = parse_offset(json.loads(text))
    assert parsed == offset
    assert json.dumps(offset_to_json(parsed)) == text


@given(offsets(), st.randoms(use_true_random=False))
def test_the_text_does_not_depend_on_the_order_of_construction(
    offset: StreamOffset, chance: random.Random
) -> None:
    def shuffled(mapping: Any) -> dict[Any, Any]:
        items = list(mapping.items())
        chance.shuffle(items)
        return dict(items)

    def reordered(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: reordered(v) for k, v in shuffled(value).items()}
        return value

    text = json.dumps(offset_to_json(offset))
    again = StreamOffset(
        ranges=shuffled(offset.ranges),
        pending=shuffled(offset.pending),
        others=shuffled(offset.others),
        members=tuple(
            MemberState(m.generation, tuple(chance.sample(m.partitions, len(m.partitions))))
            for m in offset.members
        ),
        revoking=frozenset(chance.sample(sorted(offset.revoking), len(offset.revoking))),
        lost=offset.lost,
        events=offset.events,
        run=offset.run,
        warm_up=offset.warm_up,
        initial=offset.initial,
        imported=offset.imported,
        catch_up=shuffled(offset.catch_up),
        pending_catch_up=shuffled(offset.pending_catch_up),
        gaps=shuffled(offset.gaps),
        query=offset.query,
        batch=offset.batch,
        group=offset.group,
        first_ends=shuffled(offset.first_ends),
        followed=shuffled(offset.followed),
    )
    assert json.dumps(offset_to_json(again)) == text
    assert json.dumps(offset_to_json(parse_offset(reordered(json.loads(text))))) == text


def test_topics_are_ordered_by_name_and_partitions_by_number() -> None:
    p2, p9, p10 = (TopicPartition("b", n) for n in (2, 9, 10))
    other = TopicPartition("a", 3)
    offset = StreamOffset(
        ranges={p: OffsetRange(p.topic, p.partition, 100, 250) for p in (p10, p2, p9, other)},
        others={TopicPartition("c", 0): 17},
        members=(MemberState(41, (p10, p2)), MemberState(41)),
        revoking=frozenset({p10}),
        lost=frozenset({other}),
        events=(RebalanceEvent("revoke_requested", TopicPartition("b", 10), 41),),
        run="r",
        query="q",
        batch=3,
    )
    assert json.dumps(offset_to_json(offset), separators=(",", ":")) == (
        '{"a":{"3":250},"b":{"2":250,"9":250,"10":250},"c":{"0":17},'
        '"#kafka_deferred":{"version":4,'
        '"read":{"a":{"3":[150]},"b":{"2":[150],"9":[150,150]}},'
        '"state":{"members":[{"generation":41,"partitions":{"b":[2,10]}},'
        '{"generation":41,"partitions":{}}],'
        '"revoking":{"b":[10]},"lost":{"a":[3]},'
        '"events":[["revoke_requested","b",10,41]],"run":"r","query":"q","batch":3}}}'
    )
    assert offset.positions() == {
        p2: 250,
        p9: 250,
        p10: 250,
        other: 250,
        TopicPartition("c", 0): 17,
    }


def test_the_initial_offset_is_a_constant() -> None:
    assert json.dumps(offset_to_json(INITIAL_OFFSET)) == (
        '{"#kafka_deferred": {"version": 4, "read": {}, "state": {}}}'
    )


@pytest.mark.parametrize("value", [{"version": 5, "chapters": []}, {OURS: {"version": 5}}])
def test_a_newer_version_is_refused_by_number(value: Any) -> None:
    with pytest.raises(OffsetFormatError, match=r"version 5.*reads versions up to 4"):
        parse_offset(value)


def test_what_is_to_be_caught_up_is_below_the_positions() -> None:
    text = (
        '{"t":{"0":4100,"1":17},"#kafka_deferred":{"version":4,"read":{"t":{"0":[100]}},'
        '"catch_up":{"t":{"0":[[70,120],[300,305]]}},'
        '"gaps":{"t":{"0":[[305,310]],"1":[[2,17]]}},"state":{}}}'
    )
    assert json.dumps(offset_to_json(CATCHING_UP), separators=(",", ":")) == text
    assert parse_offset(json.loads(text)) == CATCHING_UP
    assert CATCHING_UP.positions() == {P: 4100, Q: 17}


CATCHING_UP = StreamOffset(
    ranges={P: a_range(P, 4000, 4100)},
    others={Q: 17},
    catch_up={P: (a_range(P, 70, 120), a_range(P, 300, 305))},
    gaps={P: (Gap(305, 310),), Q: (Gap(2, 17),)},
)

#: What the releases before wrote. It must be read for ever.
VERSION_2 = (
    '{"version":2,"ranges":{"a":{"3":[100,250]},"b":{"2":[100,250],"10":[100,250]}},'
    '"pending":{"b":{"2":[90,100]}},"positions":{"c":{"0":17}},'
    '"state":{"members":[{"generation":41,"partitions":{"b":[2,10]}},'
    '{"generation":41,"partitions":{}}],"revoking":{"b":[10]},"lost":{"a":[3]},'
    '"events":[["revoke_requested","b",10,41]],"run":"r","imported":{"c":[0]}}}'
)
VERSION_3 = (
    '{"version":3,"ranges":{"t":{"0":[4000,4100]}},"catch_up":{"t":{"0":[[70,120],[300,305]]}},'
    '"positions":{"t":{"1":17}},"gaps":{"t":{"0":[[305,310]],"1":[[2,17]]}},"state":{}}'
)


def test_version_2_is_still_read() -> None:
    p2, p10, a3 = (TopicPartition(*p) for p in (("b", 2), ("b", 10), ("a", 3)))
    assert is_own(json.loads(VERSION_2))
    assert parse_offset(json.loads(VERSION_2)) == StreamOffset(
        ranges={p: OffsetRange(p.topic, p.partition, 100, 250) for p in (p10, p2, a3)},
        pending={p2: OffsetRange("b", 2, 90, 100)},
        others={TopicPartition("c", 0): 17},
        members=(MemberState(41, (p2, p10)), MemberState(41)),
        revoking=frozenset({p10}),
        lost=frozenset({a3}),
        events=(RebalanceEvent("revoke_requested", p10, 41),),
        run="r",
        imported=frozenset({TopicPartition("c", 0)}),
    )


def test_version_3_is_still_read() -> None:
    assert parse_offset(json.loads(VERSION_3)) == CATCHING_UP
    with pytest.raises(OffsetFormatError, match="gaps"):  # an older release would leave them out
        parse_offset({**json.loads(VERSION_3), "version": 2})


@given(offsets())
def test_the_top_level_is_what_sparks_own_source_would_log(offset: StreamOffset) -> None:
    told = offset_to_json(offset)
    assert is_own(told)
    assert list(told)[-1] == OURS
    positions = {t: ps for t, ps in told.items() if t != OURS}
    assert parse_offset(positions).positions() == offset.positions() if positions else True


@pytest.mark.parametrize("first_offset", [0, 10**9])
@pytest.mark.parametrize("share", [1, 10])
def test_ten_thousand_partitions_take_no_more_than_in_version_3(
    first_offset: int, share: int
) -> None:
    partitions = [TopicPartition("orders", n) for n in range(10_000)]
    reads = partitions[::share]
    starts = {p: first_offset + 123 * p.partition for p in partitions}
    offset = StreamOffset(
        ranges={p: a_range(p, starts[p], starts[p] + 250) for p in reads},
        others={p: at for p, at in starts.items() if p not in set(reads)},
        members=(MemberState(1, tuple(reads)),),
        run="kafka_deferred-1f0c9a77",
    )
    before = {
        "version": 2,
        "ranges": {"orders": {str(p.partition): [starts[p], starts[p] + 250] for p in reads}},
        "positions": {"orders": {str(p.partition): at for p, at in offset.others.items()}},
        "state": offset_to_json(offset)[OURS]["state"],
    }
    assert parse_offset(before) == offset
    now, then = len(json.dumps(offset_to_json(offset))), len(json.dumps(before))
    assert now <= then * 1.03


@pytest.mark.parametrize(
    ("catch_up", "gaps"),
    [
        ([[0, 5]], [[4, 6]]),
        ([[0, 5]], [[5, 5]]),
        ([[0, 5], [3, 6]], []),
        ([], [[5, 6], [0, 1]]),
        ([], [[90, 101]]),
    ],
)
def test_gaps_are_apart_and_below_the_live_position(catch_up: Any, gaps: Any) -> None:
    below = {name: {"t": {"0": v}} for name, v in (("catch_up", catch_up), ("gaps", gaps)) if v}
    older = {**INITIAL_OF_VERSION_2, "version": 3, "ranges": {"t": {"0": [100, 200]}}, **below}
    ours = {"version": 4, "read": {"t": {"0": [100]}}, **below, "state": {}}
    for value in (older, {"t": {"0": 200}, OURS: ours}):
        with pytest.raises(OffsetFormatError, match=r"(gaps|catch_up)\.t"):
            parse_offset(value)


def test_what_version_1_says_of_positions_is_still_read() -> None:
    first = {"version": 1, "ranges": {"t": {"0": [0, 4]}}, "unacknowledged": {"t": {"1": 3}}}
    offset = parse_offset({**first, "state": {}})
    assert offset.positions() == {TopicPartition("t", 0): 4, TopicPartition("t", 1): 3}
    with pytest.raises(OffsetFormatError, match="positions"):
        parse_offset({**first, "positions": {}, "state": {}})


INITIAL_OF_VERSION_2: dict[str, Any] = {"version": 2, "ranges": {}, "positions": {}, "state": {}}


def malformed(name: str, value: Any) -> tuple[str, dict[str, Any]]:
    top, _, below = name.partition(".")
    good = INITIAL_OF_VERSION_2
    return top, {**good, top: {below: value} if below else value}


OF_VERSION_4: dict[str, Any] = {"version": 4, "read": {"t": {"0": [7]}}, "state": {}}
BAD_OURS: list[tuple[str, dict[str, Any]]] = [
    ("version", {"version": 3}),
    ("version", {"version": "4"}),
    ("colour", {"colour": "red"}),
    ("positions", {"positions": {}}),
    ("read", {"read": []}),
    ("read.t", {"read": {"t": {"0": 7}}}),
    ("read.t", {"read": {"t": {"0": [8]}}}),
    ("read.t", {"read": {"t": {"0": [-1]}}}),
    ("read.t", {"read": {"t": {"0": [True]}}}),
    ("read.t", {"read": {"t": {"0": [7, 0]}}}),
    ("read.t", {"read": {"t": {"1": [0]}}}),
    ("read.t", {"read": {"t": {"x": [0]}}}),
    ("pending.t", {"read": {}, "pending": {"t": {"0": [1, 6]}}}),
    ("pending.t", {"pending": {"t": {"1": [1, 6]}}}),
    ("state", {"state": None}),
    ("state.run", {"state": {"run": 1}}),
]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", 5),
        ("version", {}),
        ("version", None),
        malformed("ranges", []),
        malformed("ranges", None),
        malformed("ranges.t", [0]),
        malformed("ranges.t", {"0": [1]}),
        malformed("ranges.t", {"0": [2, 1]}),
        malformed("ranges.t", {"0": [-1, 1]}),
        malformed("ranges.t", {"0": [0, True]}),
        malformed("ranges.t", {"0": ["0", 1]}),
        malformed("ranges.t", {"x": [0, 1]}),
        malformed("ranges.t", {"01": [0, 1]}),
        malformed("ranges.t", {"": [0, 1]}),
        malformed("pending", []),
        malformed("pending.t", {"0": [2, 1]}),
        ("gaps", {**malformed("gaps.t", {"0": []})[1], "version": 3}),
        ("gaps", {**malformed("gaps.t", {"0": [[1]]})[1], "version": 3}),
        ("catch_up", {**malformed("catch_up.t", {"0": [1, 2]})[1], "version": 3}),
        malformed("positions", 1),
        malformed("positions.t", {"0": None}),
        malformed("positions.t", {"0": 2**63}),
        malformed("state", []),
        *((field, {"t": {"0": 7}, OURS: {**OF_VERSION_4, **change}}) for field, change in BAD_OURS),
        ("positions.t", {"t": {"0": -7}, OURS: OF_VERSION_4}),
        ("positions.t", {"t": {"x": 7}, OURS: OF_VERSION_4}),
        ("positions.t", {"t": 7, OURS: OF_VERSION_4}),
        ("version", {"t": {"0": 7}, OURS: {}}),
        ("version", {"t": {"0": 7}, OURS: []}),
        ("version", {**OF_VERSION_4, "positions": {}}),
        malformed("state.members", {}),
        malformed("state.members", [{}]),
        malformed("state.members", [{"generation": "1", "partitions": {}}]),
        malformed("state.revoking", [1]),
        malformed("state.revoking", {"t": [-1]}),
        malformed("state.lost", {"t": 1}),
        malformed("state.events", [["lost", "t", 0]]),
        malformed("state.events", [["lost", "t", "0", 1]]),
        malformed("state.run", 1),
        malformed("state.warm_up", -1),
        malformed("state.initial", [1]),
        malformed("state.initial", {"t": [-1]}),
        malformed("state.colour", "red"),
    ],
)
def test_what_is_malformed_is_named(field: str, value: Any) -> None:
    with pytest.raises(OffsetFormatError, match=field):
        parse_offset(value)


def test_a_partition_has_a_range_or_a_position() -> None:
    value = {**INITIAL_OF_VERSION_2, "ranges": {"t": {"0": [0, 1]}}, "positions": {"t": {"0": 1}}}
    with pytest.raises(OffsetFormatError, match="positions"):
        parse_offset(value)


@pytest.mark.parametrize("state", [{"warm_up": 1}, {"initial": {}}])
def test_what_only_a_batch_has_that_reads_nothing(state: dict[str, Any]) -> None:
    older = {**INITIAL_OF_VERSION_2, "ranges": {"t": {"0": [0, 1]}}, "state": state}
    for value in (older, {"t": {"0": 7}, OURS: {**OF_VERSION_4, "state": state}}):
        with pytest.raises(OffsetFormatError, match=next(iter(state))):
            parse_offset(value)


def test_an_offset_of_sparks_own_source_is_where_each_partition_stands() -> None:
    logged = {"t": {"0": 4, "1": 7}, "version": {"2": 1}}
    offset = parse_offset(logged)
    here = {P: 4, Q: 7, TopicPartition("version", 2): 1}
    assert offset.built_in
    assert offset.positions() == here
    assert offset.imported == here.keys()
    assert offset_to_json(offset) == logged
    assert parse_offset(offset_to_json(offset)) == offset


def test_positions_of_sparks_own_source_are_known_as_such_until_they_are_started_from() -> None:
    offset = StreamOffset(others={P: 4, Q: 7}, imported=frozenset({Q}))
    told = offset_to_json(offset)
    assert told[OURS]["state"] == {"imported": {"t": [1]}}
    assert parse_offset(told) == offset


@pytest.mark.parametrize(
    "value",
    [{"t": {}}, {"t": {"0": -1}}, {"t": {"x": 1}}, {"t": {"0": 1.0}}, {"t": {"0": 1}, "u": 2}],
)
def test_what_is_only_like_an_offset_of_sparks_own_source(value: Any) -> None:
    with pytest.raises(OffsetFormatError, match="version"):
        parse_offset(value)


def test_a_batch_that_reads_again_does_not_begin_where_its_start_stands() -> None:
    """The group was set back in between, and the start does not know of it."""
    start = StreamOffset(others={P: 200, Q: 50})
    end = StreamOffset(
        ranges={P: a_range(P, 90, 120), Q: a_range(Q, 70, 80)},
        pending={P: a_range(P, 70, 90), Q: a_range(Q, 40, 70)},
        followed={P: "5d0f33c1"},
    )
    assert offset_to_json(end)[OURS]["state"] == {"followed": {"5d0f33c1": {"t": [0]}}}
    assert start.positions_before(end) == {Q: 50}
    assert end.ranges_after(start) == {P: a_range(P, 70, 120), Q: a_range(Q, 50, 80)}
