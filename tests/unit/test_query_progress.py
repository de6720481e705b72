"""progress(query): offsets as Spark reports them, to a table."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import pytest
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance import progress
from pyspark_kafka_rebalance.consumer.offsets.offset_set import Gap
from pyspark_kafka_rebalance.errors import OffsetFormatError
from pyspark_kafka_rebalance.fetch.offset_range import OffsetRange
from pyspark_kafka_rebalance.source.offsets.offset_json import OURS, offset_to_json
from pyspark_kafka_rebalance.source.offsets.stream_offset import MemberState, StreamOffset

P, Q, R = (TopicPartition("orders", n) for n in range(3))
RUN = "kafka_deferred-1f0c"
NEVER = StreamOffset()


def batch(
    *ranges: tuple[TopicPartition, int, int],
    owned_by: tuple[tuple[TopicPartition, ...], ...] = (),
    **state: Any,
) -> StreamOffset:
    return StreamOffset(
        ranges={p: OffsetRange(p.topic, p.partition, start, end) for p, start, end in ranges},
        members=tuple(MemberState(41, partitions) for partitions in owned_by),
        run=RUN,
        **{name: frozenset(value) for name, value in state.items()},
    )


def reported(
    start: StreamOffset | None,
    end: StreamOffset | None,
    latest: dict[TopicPartition, int] | None,
    number: int = 7,
) -> dict[str, Any]:
    """A progress as Spark's JSON has it."""
    ends: dict[str, dict[str, int]] = {}
    for partition, offset in (latest or {}).items():
        ends.setdefault(partition.topic, {})[str(partition.partition)] = offset
    return {
        "id": "4b1d",
        "name": "orders-etl",
        "batchId": number,
        "timestamp": "2026-11-21T12:00:03.250Z",
        "sources": [
            {
                "description": "a source",
                "startOffset": None if start is None else offset_to_json(start),
                "endOffset": None if end is None else offset_to_json(end),
                "latestOffset": None if latest is None else ends,
            }
        ],
    }


def rows(*progresses: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [
        (p.partition, p.position, p.end_offset, p.lag, p.state) for p in progress(list(progresses))
    ]


def test_a_group_that_is_named_after_the_query_is_shown() -> None:
    named = replace(FIRST, group="orders-1f0c")
    shown = progress([reported(NEVER, named, None), reported(named, named, None)])
    assert shown.groups == ("orders-1f0c",)
    assert "orders-etl, group orders-1f0c, batch 7" in repr(shown)
    assert progress(reported(NEVER, FIRST, None)).groups == ()


FIRST = batch((P, 100, 150), (Q, 0, 20), owned_by=((P,), (Q,)))


@dataclass
class Query:
    """As PySpark's."""

    recentProgress: list[dict[str, Any]]
    isActive: bool
    name: str = "orders-etl"


def test_a_query_that_has_ended_owns_nothing_and_shows_where_it_stood() -> None:
    moved = batch((P, 150, 160), owned_by=((P,), ()), lost=[Q])
    story = [reported(NEVER, FIRST, {P: 155, Q: 25}), reported(FIRST, moved, {P: 170}, 8)]
    running, ended = (progress(Query(story, isActive=active)) for active in (True, False))
    assert [p.state for p in running] == ["assigned", "lost"]
    assert [p.state for p in ended] == ["stopped", "lost"]
    assert (running.lag, ended.lag) == (10, 10)
    assert [p.position for p in running] == [p.position for p in ended]
    assert str(ended).splitlines()[0] == str(running).splitlines()[0]


def test_position_is_the_next_offset_and_lag_what_is_left() -> None:
    table = progress(reported(NEVER, FIRST, {P: 160, Q: 20}))
    assert [(p.topic, p.partition, p.member) for p in table] == [
        ("orders", 0, f"{RUN}-0"),
        ("orders", 1, f"{RUN}-1"),
    ]
    assert [(p.position, p.end_offset, p.lag, p.state) for p in table] == [
        (150, 160, 10, "assigned"),
        (20, 20, 0, "assigned"),
    ]
    assert table.lag == 10
    assert (table.query, table.batch, table.timestamp) == (
        "orders-etl",
        7,
        "2026-11-21T12:00:03.250Z",
    )


def test_what_a_batch_does_not_read_is_known_from_those_before() -> None:
    second = batch((P, 150, 170), owned_by=((P,), ()))
    ends = {P: 170, Q: 20, R: 33}
    before = reported(NEVER, FIRST, {P: 150, Q: 20})
    assert rows(before, reported(FIRST, second, ends)) == [
        (0, 170, 170, 0, "assigned"),
        (1, 20, 20, 0, "assigned"),
        (2, 33, 33, 0, "assigned"),  # no range, so no backlog
    ]


def test_a_position_that_nothing_tells_is_not_made_up() -> None:
    table = progress([reported(FIRST, FIRST, {P: 150, R: 33})])
    assert [(p.partition, p.position, p.lag) for p in table.partitions[::2]] == [
        (0, 150, 0),
        (2, None, None),
    ]
    assert table.lag is None
    assert "lag not known" in str(table)


def test_an_idle_trigger_has_newer_ends_than_its_offset() -> None:
    assert rows(
        reported(NEVER, FIRST, {P: 150, Q: 20}), reported(FIRST, FIRST, {P: 155, Q: 20})
    ) == [(0, 150, 155, 5, "assigned"), (1, 20, 20, 0, "assigned")]


def test_a_revoke_from_its_request_to_the_hand_over() -> None:
    requested = batch((P, 150, 160), owned_by=((P,), ()), revoking={Q})
    after = batch((P, 160, 170), owned_by=((P,), ()))
    story = [
        reported(NEVER, FIRST, {P: 150, Q: 25}),
        reported(FIRST, requested, {P: 160, Q: 25}),
        reported(requested, after, {P: 170}),
    ]
    assert rows(*story[:2])[1] == (1, 20, 25, 5, "revoking")
    assert rows(*story)[1] == (1, 20, None, None, "revoked")
    assert progress(story).lag == 0, "what is handed over does not count"
    idle = reported(requested, requested, {P: 160})
    assert rows(*story[:2], idle)[1] == (1, 20, None, None, "revoked")
    taken_back = batch((P, 160, 170), owned_by=((P,), ()))
    assert rows(*story[:2], reported(requested, taken_back, {P: 170, Q: 25}))[1][-1] == "assigned"


def test_nothing_is_owned_any_more() -> None:
    requested = batch((P, 150, 160), owned_by=((P,), ()), revoking={P, Q})
    story = [reported(NEVER, FIRST, {P: 150, Q: 20}), reported(FIRST, requested, {P: 160, Q: 20})]
    gone = rows(*story, reported(requested, requested, {}))
    assert [row[-1] for row in gone] == ["revoked", "revoked"]


def test_lost_is_remembered_until_the_partition_is_back() -> None:
    without = batch((P, 150, 160), owned_by=((P,), ()), lost={Q})
    later = batch((P, 160, 170), owned_by=((P,), ()))
    story = [
        reported(NEVER, FIRST, {P: 150, Q: 20}),
        reported(FIRST, without, {P: 160}),
        reported(without, later, {P: 170}),
    ]
    assert rows(*story)[1] == (1, 20, None, None, "lost")
    back = batch((P, 170, 180), owned_by=((P,), ()))
    again = rows(*story, reported(later, back, {P: 180, Q: 90}))
    assert again[1] == (1, 90, 90, 0, "assigned"), "its owner in between has gone on"
    waiting = rows(*story, reported(later, later, {P: 170, Q: 90}))
    assert waiting[1] == (1, None, 90, None, "assigned")


@pytest.mark.parametrize("latest", ["the end of the batch", "none"])
def test_without_end_offsets_as_on_spark_4_1(latest: str) -> None:
    requested = batch((P, 150, 160), owned_by=((P,), ()), revoking={Q})
    after = batch((P, 160, 170), owned_by=((P,), ()))
    story = [
        reported(NEVER, FIRST, None),
        reported(FIRST, requested, None),
        reported(requested, after, None),
    ]
    if latest != "none":
        for one in story:
            source = one["sources"][0]
            source["latestOffset"] = source["endOffset"]
    assert rows(*story[:2]) == [(0, 160, None, None, "assigned"), (1, 20, None, None, "revoking")]
    assert rows(*story) == [(0, 170, None, None, "assigned"), (1, 20, None, None, "revoked")]


def test_without_end_offsets_a_batch_tells_of_deleted_partitions() -> None:
    second = replace(batch((P, 150, 160), owned_by=((P,), (Q,))), others={Q: 20})
    without = batch((P, 160, 170), owned_by=((P,), ()))
    story = [reported(NEVER, FIRST, None), reported(FIRST, second, None)]
    assert [row[-1] for row in rows(*story)] == ["assigned", "assigned"]
    story.append(reported(second, without, None))
    assert [row[-1] for row in rows(*story)] == ["assigned", "revoked"]
    version_1 = reported(second, without, None)
    state = version_1["sources"][0]["endOffset"][OURS]["state"]
    first = {"version": 1, "ranges": {}, "unacknowledged": {}, "state": state}
    version_1["sources"][0]["endOffset"] = first
    assert [row[-1] for row in rows(*story[:2], version_1)] == ["assigned", "assigned"]


def test_the_warm_up_of_a_restart_keeps_the_positions_of_the_checkpoint() -> None:
    warm_up = StreamOffset(others={P: 150}, warm_up=1)
    story = [reported(FIRST, warm_up, {}), reported(warm_up, warm_up, {P: 155, Q: 20})]
    assert rows(*story) == [(0, 150, 155, 5, "assigned"), (1, 20, 20, 0, "assigned")]


@pytest.mark.parametrize("form", ["dict", "text", "nested text", "null as text"])
def test_a_progress_in_any_of_sparks_forms(form: str) -> None:
    given: Any = reported(None, FIRST, {P: 160, Q: 20})
    (source,) = given["sources"]
    if form == "nested text":  # the source's attributes in classic PySpark
        source |= {k: json.dumps(v) for k, v in source.items() if k.endswith("Offset")}
    elif form == "null as text":
        source["startOffset"] = "None"
    elif form == "text":
        given = json.dumps(given)
    assert progress(given).lag == 10


def test_two_sources_are_told_apart() -> None:
    given = reported(NEVER, FIRST, {P: 160, Q: 20})
    other = StreamOffset(
        ranges={TopicPartition("refunds", 0): OffsetRange("refunds", 0, 0, 5)}, run=RUN
    )
    given["sources"] += [
        {"description": "kafka", "endOffset": {"refunds": {"0": 7}}},
        reported(NEVER, other, {TopicPartition("refunds", 0): 9})["sources"][0],
    ]
    assert [(p.topic, p.partition, p.lag) for p in progress(given)] == [
        ("orders", 0, 10),
        ("orders", 1, 0),
        ("refunds", 0, 4),
    ]


def test_before_the_first_batch_there_is_a_sentence() -> None:
    class Query:
        name = None
        id = "4b1d"
        recentProgress = ()

    for nothing in (progress(None), progress([])):
        assert not nothing
        assert str(nothing) == "the query: no batch yet"
    assert str(progress(Query())) == "4b1d: no batch yet"
    assert progress(Query())._repr_html_() == "<p>4b1d: no batch yet</p>"
    warm_up = StreamOffset(warm_up=1)
    started = progress(reported(NEVER, warm_up, {}, number=0))
    assert str(started) == "orders-etl, batch 0, 2026-11-21T12:00:03.250Z: no partition yet"
    assert not progress(reported(None, None, None))


def test_another_source_and_another_thing_are_refused() -> None:
    foreign = reported(None, None, None)
    foreign["sources"][0] |= {"description": "KafkaV2[Subscribe[orders]]", "endOffset": {"o": {}}}
    with pytest.raises(ValueError, match=r"kafka_deferred: KafkaV2\[Subscribe\[orders\]\]"):
        progress(foreign)
    with pytest.raises(TypeError, match="expected a streaming query or its progress, not 3"):
        progress(3)
    newer = reported(None, FIRST, None)
    newer["sources"][0]["endOffset"][OURS]["version"] = 5
    with pytest.raises(OffsetFormatError, match="version 5"):
        progress(newer)


def test_how_it_looks() -> None:
    requested = batch((P, 150, 10_160), owned_by=((P,), ()), revoking={Q})
    table = progress(
        [
            reported(NEVER, FIRST, {P: 150, Q: 20}),
            reported(FIRST, requested, {P: 11_161, Q: 20}, number=8),
        ]
    )
    assert str(table).splitlines() == [
        "orders-etl, batch 8, 2026-11-21T12:00:03.250Z: 2 partitions, lag 1,001",
        "topic   partition  member                 position  end offset    lag  state",
        "orders          0  kafka_deferred-1f0c-0    10,160      11,161  1,001  assigned",
        "orders          1  kafka_deferred-1f0c-1        20          20      0  revoking",
    ]
    assert repr(table) == str(table), "what a notebook without HTML shows"
    shown = table._repr_html_()
    assert shown.count("<tr") == 3
    assert "11,161</td>" in shown
    assert '<tr style="color: #b36b00"><td style="text-align: left">orders</td>' in shown


def test_names_are_escaped_for_html() -> None:
    given = reported(NEVER, FIRST, {P: 160, Q: 20}) | {"name": "<b>&"}
    assert "&lt;b&gt;&amp;, batch 7" in progress(given)._repr_html_()


def test_as_a_data_frame_numbers_stay_integers() -> None:
    table = progress([reported(FIRST, FIRST, {P: 150, R: 33})])
    frame = table.to_pandas()
    assert list(frame.columns) == [
        *("topic", "partition", "member", "position", "end_offset", "lag", "state"),
        "catch_up_lag",
    ]
    assert frame["position"].dtype == "Int64"
    assert frame["position"].isna().tolist() == [False, False, True]
    assert list(progress(None).to_pandas().columns) == list(frame.columns)


def caught_up(number: int, at_s: int, took_ms: int, read: int, left: int) -> dict[str, Any]:
    """A batch that has read so many offsets of a gap of P; Q has none."""
    end = replace(
        batch((P, 900, 910), (Q, 5, 10), owned_by=((P, Q),)),
        catch_up={P: (OffsetRange("orders", 0, 0, read),)} if read else {},
        gaps={P: (Gap(500, 500 + left - 100), Gap(700, 800))} if left else {},
    )
    return {
        **reported(batch((P, 890, 900)), end, {P: 910, Q: 10}, number),
        "timestamp": f"2026-11-21T12:00:{at_s:02d}.000Z",
        "durationMs": {"triggerExecution": took_ms},
    }


def test_what_is_left_of_gaps_and_how_long_it_takes() -> None:
    found = progress([caught_up(1, 0, 500, 100, 250), caught_up(2, 3, 1_000, 100, 150)])
    assert {(row.partition, row.lag, row.catch_up_lag) for row in found} == {(0, 0, 150), (1, 0, 0)}
    assert found.catch_up_lag == 150
    assert found.catch_up_ends_in_s == pytest.approx(150 / (200 / 4))
    text = str(found)
    assert text.splitlines()[0].endswith("2 partitions, lag 0, 150 to catch up, done in about 3 s")
    assert text.splitlines()[1].endswith("state     catch-up lag")
    assert "<th style=" in found._repr_html_()
    assert "catch-up lag</th>" in found._repr_html_()
    assert found.to_pandas()["catch_up_lag"].sum() == 150


def test_when_gaps_are_done_nothing_is_said_of_them() -> None:
    found = progress([caught_up(1, 0, 500, 100, 150), caught_up(2, 3, 1_000, 150, 0)])
    assert (found.catch_up_lag, found.catch_up_ends_in_s) == (0, 0.0)
    assert "catch" not in str(found) + found._repr_html_()


def test_gaps_that_no_batch_has_read_of_end_nobody_knows_when() -> None:
    found = progress([caught_up(1, 0, 500, 0, 150)])
    assert (found.catch_up_lag, found.catch_up_ends_in_s) == (150, None)
    assert str(found).splitlines()[0].endswith("lag 0, 150 to catch up")
