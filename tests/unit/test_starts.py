"""Where partitions start, by rules alone."""

from __future__ import annotations

from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.consumer.offsets.commit_metadata import Remaining
from pyspark_kafka_rebalance.consumer.offsets.offset_set import Gap
from pyspark_kafka_rebalance.source.group.owned.starts import Starts
from pyspark_kafka_rebalance.source.options.source_options import SourceOptions
from pyspark_kafka_rebalance.source.options.starting_offsets import AtTimestamp, Start

P, Q, R = PARTITIONS = [TopicPartition("t", n) for n in range(3)]
U = TopicPartition("u", 0)
OLD, NEW = uuid4(), uuid4()


def starts(**options: str) -> Starts:
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.group.id": "g", "subscribe": "t,u"}
    return Starts(SourceOptions.parse({**given, **options}, default_readers=1))


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"startingOffsets": "latest"}, "latest"),
        ({"startingOffsets": "earliest"}, "earliest"),
        ({"startingTimestamp": "5000"}, AtTimestamp(5_000, False)),
        ({"startingOffsets": '{"t":{"0":7}}'}, 7),
    ],
)
def test_what_was_there_from_the_beginning_starts_as_the_options_say(
    options: dict[str, str], rule: Start
) -> None:
    known = starts(**options)
    known.found([P])
    assert known.rule_of(P) == rule


@given(
    there=st.sets(st.sampled_from(PARTITIONS)),
    logged=st.none() | st.frozensets(st.sampled_from(PARTITIONS)),
    positions=st.sets(st.sampled_from(PARTITIONS)),
    restored=st.booleans(),
    resumed=st.booleans(),
    new=st.sets(st.sampled_from(PARTITIONS)),
    anew=st.sets(st.sampled_from(PARTITIONS)),
    named=st.sets(st.sampled_from(PARTITIONS)),
    before=st.sets(st.sampled_from(PARTITIONS)),
    read=st.booleans(),
)
def test_what_was_created_since_starts_with_its_first_record(
    there: set[TopicPartition],
    logged: frozenset[TopicPartition] | None,
    positions: set[TopicPartition],
    restored: bool,
    resumed: bool,
    new: set[TopicPartition],
    anew: set[TopicPartition],
    named: set[TopicPartition],
    before: set[TopicPartition],
    read: bool,
) -> None:
    numbers = ",".join(f'"{p.partition}":7' for p in sorted(named))
    options = {"startingOffsets": f'{{"t":{{{numbers}}}}}'} if named else {}
    known = starts(**{"kafka.auto.offset.reset": "latest", **options})
    known.found(there)
    if restored:
        known.restore(positions, logged, ())
    if resumed:
        known.resume(())
    known.found_new_to_group(new)
    known.created_anew(anew)
    known.assigned(before)
    if read:
        known.read()
        known.assigned(PARTITIONS)
    if resumed or (restored and logged is None and positions):
        from_the_beginning: frozenset[TopicPartition] = frozenset()  # it has read
    elif restored and logged is not None:
        from_the_beginning = logged
    else:
        from_the_beginning = frozenset(there)
    from_the_beginning -= anew
    assert known.initial == from_the_beginning
    assert known.log_initial() == (frozenset() if read or resumed else from_the_beginning)
    expected = {
        p: "earliest"
        if p not in from_the_beginning or (read and p not in before)
        else 7
        if p in named
        else "earliest"
        if p in new
        else "latest"
        for p in PARTITIONS
    }
    assert {p: known.rule_of(p) for p in PARTITIONS} == expected


def test_what_was_assigned_before_anything_was_read_keeps_its_start() -> None:
    """A member may get it much later than another gets the first partition that is read."""
    known = starts(startingOffsets="latest")
    known.found([P, Q, R])
    known.assigned([P, Q])
    known.read()
    known.assigned([Q, R])  # to another of our members; to the first of them
    assert {p: known.rule_of(p) for p in (P, Q, R)} == {P: "latest", Q: "latest", R: "earliest"}


def test_latest_is_where_the_log_ended_when_the_query_started() -> None:
    known = starts(startingOffsets="latest")
    known.found([P, Q])
    known.note_first_ends({P: 100})
    assert known.end_at_start(P, 130) == 100, "30 records since belong to the query"
    assert known.end_at_start(P, 90) == 90, "the log was truncated"
    assert known.end_at_start(Q, 130) == 130, "its leader was away"
    assert known.log_first_ends() == {P: 100}
    known.created_anew([P])
    assert known.log_first_ends() == {}
    assert known.end_at_start(P, 130) == 130


@pytest.mark.parametrize("noted_first", [True, False])
def test_the_checkpoint_knows_where_the_logs_ended_when_the_query_first_started(
    noted_first: bool,
) -> None:
    known = starts(startingOffsets="latest")
    if noted_first:
        known.note_first_ends({P: 500, Q: 500})
    known.restore([], frozenset([P]), (), {P: 100})
    if not noted_first:
        known.note_first_ends({P: 500, Q: 500})
    assert known.end_at_start(P, 700) == 100
    assert known.log_first_ends() == {P: 100}
    known.read()
    assert known.log_first_ends() == {}


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({"startingOffsets": "latest"}, [P, U]),
        ({"startingOffsets": "earliest"}, []),
        ({"startingOffsets": "group"}, [P, U]),
        ({"startingOffsets": "group", "kafka.auto.offset.reset": "earliest"}, []),
        (
            {"startingOffsets": '{"t":{"0":-1}}', "kafka.auto.offset.reset": "earliest"},
            [P],
        ),
        ({"startingOffsets": '{"t":{"0":7}}'}, [U]),
        ({"startingTimestamp": "5"}, []),
        ({"startingTimestamp": "5", "startingOffsetsByTimestampStrategy": "latest"}, [P, U]),
    ],
)
def test_only_where_it_may_matter_is_the_end_asked_for(
    options: dict[str, str], asked: list[TopicPartition]
) -> None:
    known = starts(**options)
    known.found([P, U])
    assert sorted(known.may_start_at_end()) == asked


def test_what_was_missing_once_is_due_in_the_checkpoint_until_something_is_read() -> None:
    known = starts(startingOffsets="latest")
    known.restore([], frozenset([P, Q]), ())
    known.created_anew([R])
    assert not known.is_unlogged, "the checkpoint does not name it"
    known.created_anew([P])
    assert known.is_unlogged
    assert known.log_initial() == {Q}
    assert not known.is_unlogged
    known.created_anew([Q])
    known.read()
    assert not known.is_unlogged, "it names none from now on"


def test_a_topic_is_replaced_once_where_another_of_its_name_was_seen() -> None:
    old, new = uuid4(), uuid4()
    known = starts(startingOffsets="latest")
    known.found([P, Q], {"t": old})
    assert known.replaced([P, U], {"t": old, "u": new}) == set()
    assert known.replaced([P], {}) == set(), "it is not there now, or the broker has no ids"
    assert known.replaced([Q], {"t": new}) == {"t"}
    assert known.replaced([P], {"t": new}) == set()
    known.saw({"t": old, "u": old})
    assert known.replaced([P, U], {"t": new, "u": new}) == {"u"}


def test_a_topic_that_was_there_at_first_and_not_when_the_query_was_restarted_is_replaced() -> None:
    known = starts(startingOffsets="latest")
    known.found([U], {"u": uuid4()})
    known.restore([], frozenset([P, U]), ())
    assert known.replaced([P], {"t": uuid4()}) == {"t"}


def test_only_where_it_matters_is_it_asked_what_is_new_to_the_group() -> None:
    known = starts(startingOffsets="earliest")
    known.found([P, U])
    assert known.maybe_new_to_group() == []
    known = starts(startingOffsets="latest")
    known.found([P, U])
    assert sorted(known.maybe_new_to_group()) == [P, U]
    known = starts(**{"startingOffsets": '{"u":{"0":7}}', "kafka.auto.offset.reset": "latest"})
    known.found([P, Q, U])
    assert sorted(known.maybe_new_to_group()) == [P, Q]


def test_the_group_goes_back_to_where_sparks_own_source_ended() -> None:
    known = starts()
    known.restore([P, Q, R], None, [P, Q])
    positions = {P: 150, Q: 10, R: 30}
    owed = {P: Remaining(900), Q: Remaining(5), R: Remaining(900)}
    assert known.set_back(owed, positions) == {P: 150}
    assert known.set_back({P: Remaining(150)}, positions) == {}
    assert known.set_back({P: Remaining(150, (Gap(20, 30),))}, positions) == {}
    beyond = {P: Remaining(900, (Gap(20, 30),)), Q: Remaining(900, (Gap(10, 899),))}
    assert known.set_back(beyond, positions) == {P: 150, Q: 10}, "whatever its offset is"
    known.started(P)
    assert known.imported == {Q}
    assert known.set_back({P: Remaining(900)}, positions) == {}, (
        "from now on a partition like any other"
    )


def test_what_a_resumed_batch_has_imported_stands_against_the_older_offset() -> None:
    known = starts()
    known.resume([P])
    known.started(P)
    known.restore([P], None, [P, Q])
    assert known.imported == frozenset()
    assert known.has_read


def test_each_partition_is_known_by_the_topic_in_which_it_was_started() -> None:
    """The group may have taken one of them back already, and not the other."""
    known = starts()
    known.found([P, Q], {"t": OLD})
    known.started(P, OLD)
    known.started(Q, OLD)
    assert known.replaced([P], {"t": NEW}) == {"t"}
    assert known.started_in_another([P, Q, R], {"t": NEW}) == {P, Q}
    known.created_anew([P])
    known.started(P, NEW)
    assert known.started_in_another([P, Q, R], {"t": NEW}) == {Q}
    assert known.of_another_topic([P, Q, R], {"t": NEW}) == {Q}
    assert known.started_in_another([P, Q], {}) == set(), "it is gone, or hidden"
    assert known.started_in([P, Q, R]) == {P: NEW, Q: OLD}


def test_the_topic_of_what_is_assigned_by_name_is_found_out_later() -> None:
    known = starts()
    known.found([P, Q], {"t": OLD})
    for partition in (P, Q, U):
        known.started(partition)
    assert known.unidentified == {P, Q, U}
    known.identify([P, U], {"t": NEW})
    assert known.unidentified == frozenset(), "what has left, or has no id, has none"
    assert known.started_in([P, Q, U]) == {P: NEW}
    assert known.started_in_another([P, Q, U], {"t": OLD, "u": OLD}) == {P}
