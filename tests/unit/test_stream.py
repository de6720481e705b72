"""Spark's calls on the stream reader, with a membership that only notes what it is asked."""

from __future__ import annotations

import contextlib
import copy
import json
import pickle
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.structs import TopicPartition
from model_spark import ClosedDoor

from pyspark_kafka_rebalance.consumer.offsets.commit_metadata import Remaining
from pyspark_kafka_rebalance.consumer.offsets.offset_set import Gap
from pyspark_kafka_rebalance.errors import (
    DataLossError,
    KafkaRebalanceError,
    MembershipError,
    names_of,
)
from pyspark_kafka_rebalance.fetch.offset_range import OffsetRange
from pyspark_kafka_rebalance.source import end_of_run as end_of_run_module
from pyspark_kafka_rebalance.source import query_run as query_run_module
from pyspark_kafka_rebalance.source import stream as stream_module
from pyspark_kafka_rebalance.source.driver_sources import DriverSources
from pyspark_kafka_rebalance.source.group.batch_state import BatchState, LeftBehind
from pyspark_kafka_rebalance.source.offsets.offset_json import OURS, offset_to_json, parse_offset
from pyspark_kafka_rebalance.source.offsets.query_identity import QueryIdentity
from pyspark_kafka_rebalance.source.offsets.stream_offset import (
    MemberState,
    RebalanceEvent,
    StreamOffset,
)
from pyspark_kafka_rebalance.source.options.source_options import SourceOptions
from pyspark_kafka_rebalance.source.plan.tasks import TaskRange
from pyspark_kafka_rebalance.source.spark import load_claim as load_claim_module
from pyspark_kafka_rebalance.source.spark import sigterm as sigterm_module
from pyspark_kafka_rebalance.source.spark.read_limits import ReadAllAvailable, ReadMaxRows
from pyspark_kafka_rebalance.source.stop.stop_request import answer_of, ask_to_stop
from pyspark_kafka_rebalance.source.stream import KafkaDeferredStreamReader

P, Q, R = (TopicPartition("t", n) for n in range(3))
UNLIMITED = ReadMaxRows(2**63 - 1)


class FakeMembership:
    """One member that owns what stands in ``positions``."""

    def __init__(self, options: SourceOptions, client_id: str) -> None:
        self.client_id = client_id
        self.group_id = options.group_id
        # Its rooms.
        self.joining = self.proofs = self.commits = self.log_ends = self
        self.coverage = self.foreign_ranges = self.deletions = self.record_times = self
        self.catch_up = SimpleNamespace(
            plan=self.plan_catch_up, unread=lambda run: run and self.below.keys()
        )
        self.sink_batches = SimpleNamespace(leave_out=self.leave_out_of_rerun)
        self.follows_group = False
        self.calls: list[str] = []
        self.positions: dict[TopicPartition, int] = {}
        self.ends: dict[TopicPartition, int] = {}
        self.logs: dict[TopicPartition, int] | None = None  # high watermarks, if not the ends
        self.sizes: dict[TopicPartition, float] = {}
        self.joined = False
        self.failure: Exception | None = None
        self.restored: dict[TopicPartition, int] = {}
        self.followed: dict[TopicPartition, str] = {}
        self.initial = frozenset({P, Q})
        self.told_ends: Mapping[TopicPartition, int] = {}
        self.imported: frozenset[TopicPartition] = frozenset()
        self.last: dict[str, Any] | None = None
        self.proven: list[dict[str, Any]] = []
        self.moved: list[dict[TopicPartition, int]] = []
        self.leave_out: set[TopicPartition] = set()  # in the last step of planning
        self.events: list[RebalanceEvent] = []
        self.revoking: set[TopicPartition] = set()
        self.lost: set[TopicPartition] = set()
        self.pending: dict[TopicPartition, OffsetRange] = {}
        self.wants = False  # an empty batch
        self.unlogged = False  # a position is in no offset,
        self.quiet = True  # and nothing else happens
        self.starting: list[TopicPartition] = []  # assigned, and their start not known at once
        self.changes: list[Callable[[], None]] = []  # one for each wait
        self.gone: set[TopicPartition] = set()
        self.progress_is_asynchronous = False
        self.below: dict[TopicPartition, tuple[OffsetRange, ...]] = {}  # what a batch catches up
        self.untold: dict[TopicPartition, int | None] = {}
        self.delivered: dict[TopicPartition, int] = {}  # by others, below these offsets
        self.resumed: list[tuple[dict[TopicPartition, int], dict[TopicPartition, OffsetRange]]] = []
        self.looks = 0
        self.nobodys: set[TopicPartition] = set()  # neither this member's nor a live other's
        self.read_by_group: set[TopicPartition] = set()
        self.gone_elsewhere: set[TopicPartition] = set()
        self.within_s = 60.0
        self.patience_s: float | None = None
        self.others = True  # in the group
        self.unproven = False
        self.left_within_s = 0.0
        self.missing: list[TopicPartition] = []  # what the group has not

    def follow_group(self) -> None:
        self.follows_group = True

    def leave_out_of_rerun(
        self, end: dict[str, Any], timeout_s: float
    ) -> frozenset[TopicPartition]:
        assert self.resumed, "it is known what the batch reads"
        return frozenset()

    def progress_is_synchronous(self) -> None:
        self.calls.append("synchronous")

    def committed(self, offset: dict[str, Any]) -> None:
        self.prove(offset)

    def done(self, offset: dict[str, Any]) -> None:
        self.prove(offset)

    def want_commit(self) -> bool:
        return self.wants

    def wants_log(self, at_once: bool) -> bool:
        return self.unlogged and (at_once or self.quiet)

    def start(self) -> None:
        self.calls.append("start")

    def join(self) -> None:
        self.joined = True
        self.calls.append("join")

    def has_others(self) -> bool:
        assert not self.joined, "asks when its own members are in the group"
        return self.others

    def wait_until_positioned(
        self, until: Callable[[], bool], timeout_s: float, unchanged_s: float = 0.0
    ) -> None:
        assert self.joined, "waits for a group that it does not join"
        assert not until()
        self.calls.append("positioned")

    def wait(
        self,
        ends: Mapping[TopicPartition, int] | None,
        until: Callable[[], bool],
        patience_s: Callable[[], float | None],
    ) -> None:
        assert self.joined, "waits for a group that it does not join"
        assert not until()
        self.patience_s = patience_s()
        self.calls.append("settle")

    def uncovered(self, ends: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        return sorted(self.nobodys)

    def error(self, uncovered: Collection[TopicPartition]) -> KafkaRebalanceError:
        return KafkaRebalanceError(f"nobody's: {names_of(uncovered)}")

    def wait_until_acknowledged(self) -> None:
        self.calls.append("acknowledged")
        self.raise_failure()

    def raise_failure(self) -> None:
        if self.failure is not None:
            raise self.failure

    def follow(self, followed: Mapping[TopicPartition, str]) -> None:
        assert "restore" not in self.calls, "a position counts by what was followed before"
        self.followed = dict(followed)

    def restore(
        self,
        positions: Mapping[TopicPartition, int],
        initial: frozenset[TopicPartition] | None,
        imported: Collection[TopicPartition],
        gaps: Mapping[TopicPartition, Sequence[Gap]] | None = None,
        first_ends: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        self.calls.append("restore")
        self.told_ends = dict(first_ends or {})
        self.restored = dict(positions)
        self.gaps = dict(gaps or {})
        self.imported = frozenset(imported)
        if initial is not None:
            self.initial = initial

    def resume(
        self,
        proven: Mapping[TopicPartition, int],
        ranges: Mapping[TopicPartition, OffsetRange],
        end: dict[str, Any],
        imported: Collection[TopicPartition],
        catch_up: Mapping[TopicPartition, Sequence[OffsetRange]] | None = None,
        gaps: Mapping[TopicPartition, Sequence[Gap]] | None = None,
    ) -> None:
        self.caught_up, self.gaps = dict(catch_up or {}), dict(gaps or {})
        assert not self.joined, "its members could have got what the batch reads"
        self.resumed.append((dict(proven), dict(ranges)))
        self.last = end

    def lost_below(self, ranges: Mapping[TopicPartition, OffsetRange]) -> dict[TopicPartition, int]:
        assert self.joined
        self.looks += 1
        return {p: offset for p, offset in self.delivered.items() if p in ranges}

    def owed(
        self, reads: Mapping[TopicPartition, Sequence[OffsetRange]]
    ) -> dict[TopicPartition, Remaining]:
        assert self.joined
        self.looks += 1
        return {p: Remaining(at) for p, at in self.delivered.items() if p in reads}

    def plan_catch_up(
        self, limit: Any, run: Any, loss: Any, ends: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, Sequence[OffsetRange]]:
        return {p: pieces for p, pieces in self.below.items() if self.joined and p in ends}

    def initial_partitions(self) -> frozenset[TopicPartition]:
        return self.initial

    def first_ends(self, known: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return {p: 1_000 for p in self.initial if p not in known}

    def planned(self, offset: dict[str, Any]) -> None:
        self.last = offset

    def prove(self, offset: dict[str, Any]) -> None:
        self.calls.append("prove")
        self.proven.append(offset)

    def begin_trigger(self, start: dict[str, Any]) -> None:
        self.prove(start)

    def plannable(self) -> dict[TopicPartition, int]:
        self.calls.append("plan")
        return dict(self.positions) if self.joined else {}

    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return {p: self.ends[p] for p in partitions if p in self.ends}

    def high_watermarks(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        assert all(self.ends[p] < at for p, at in positions.items()), "asks without need"
        logs = self.ends if self.logs is None else self.logs
        return {p: logs[p] for p in positions if p in logs}

    def known_end_offsets(self) -> dict[TopicPartition, int]:
        return self.ends

    def bytes_per_offset(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
        return {p: size for p, size in self.sizes.items() if p in ends}

    def unpositioned(self) -> list[TopicPartition]:
        return [p for p in self.starting if p not in self.positions]

    def wait_for_change(self, seconds: float = 0.0) -> None:
        assert self.changes, "waits for what nobody will bring"
        self.changes.pop(0)()

    def ask(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        return [p for p in partitions if p in self.gone]

    def take(self) -> dict[TopicPartition, int | None]:
        told, self.untold = self.untold, {}
        return told

    def take_gone_elsewhere(self) -> set[TopicPartition]:
        told, self.gone_elsewhere = self.gone_elsewhere, set()
        return told

    def left_behind(self) -> LeftBehind:
        assert self.calls[-1] == "stop"
        untold = [RebalanceEvent("lost", P, 41)]
        return LeftBehind(untold, known={P: 40, R: 7}, heard={P: 30}, gaps={P: (Gap(10, 30),)})

    def go_on(self, before: LeftBehind) -> None:
        assert self.calls[-1] == "restore"
        assert before.heard == {P: 30}
        self.events += before.untold

    def end_offsets_of_topics(self) -> dict[TopicPartition, int]:
        return dict(self.ends)

    def move_to(self, positions: dict[TopicPartition, int]) -> None:
        self.moved.append(positions)
        self.positions |= positions

    def hand_out(
        self,
        planned: Mapping[TopicPartition, OffsetRange],
        catch_up: Mapping[TopicPartition, Sequence[OffsetRange]],
    ) -> BatchState | None:
        ranges = {p: r for p, r in planned.items() if p not in self.leave_out}
        caught_up = {p: pieces for p, pieces in catch_up.items() if p not in self.leave_out}
        if not ranges and not caught_up and not self.events:
            return None
        self.below = {}
        self.positions |= {p: r.end for p, r in ranges.items()}
        events, self.events = self.events, []
        state = self.state_of({*ranges, *caught_up})
        offset = replace(
            self.offset_without_ranges(),
            ranges=ranges,
            catch_up={p: tuple(pieces) for p, pieces in caught_up.items()},
            members=state.offset.members,
            revoking=state.offset.revoking,
            lost=frozenset(self.lost),
            events=tuple(events),
        )
        return replace(state, offset=offset)

    def state_of(self, partitions: Collection[TopicPartition]) -> BatchState:
        owned = tuple(sorted(p for p in partitions if p in self.positions))
        offset = StreamOffset(members=(MemberState(41, owned),), revoking=frozenset(self.revoking))
        return BatchState(offset, topic_ids={})

    def offset_without_ranges(self) -> StreamOffset:
        return StreamOffset(
            others=dict(self.restored), imported=self.imported, pending=dict(self.pending)
        )

    def are_missing(self) -> bool:
        return self.unproven

    def leave(self, timeout_s: float) -> None:
        self.calls.append("leave")
        self.left_within_s = timeout_s

    def stop(self, timeout_s: float) -> None:
        self.calls.append("stop")
        self.left_within_s = timeout_s

    def uncommitted(self) -> list[TopicPartition]:
        return self.missing


@pytest.fixture(autouse=True)
def requests_of_this_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def memberships(monkeypatch: pytest.MonkeyPatch) -> list[FakeMembership]:
    """Every membership that was made."""
    made: list[FakeMembership] = []

    def make(options: SourceOptions, client_id: str, identity: QueryIdentity) -> FakeMembership:
        made.append(FakeMembership(options, client_id))
        return made[-1]

    monkeypatch.setattr(query_run_module, "QueryMembership", make)
    monkeypatch.setattr(query_run_module, "stop_on_sigterm", lambda end: None)
    monkeypatch.setattr(query_run_module, "Door", ClosedDoor)
    return made


def parse(**options: str) -> SourceOptions:
    group = {} if "groupIdPrefix" in options else {"kafka.group.id": "g"}
    return SourceOptions.parse(
        {"subscribe": "t", "kafka.bootstrap.servers": "127.0.0.1:1", **group, **options},
        default_readers=2,
    )


@pytest.fixture
def make(memberships: list[FakeMembership]) -> Callable[..., KafkaDeferredStreamReader]:
    return lambda **options: KafkaDeferredStreamReader(parse(**options))


class Running:
    """A reader behind its warm-up, and its membership, which owns P and Q."""

    def __init__(
        self, reader: KafkaDeferredStreamReader, memberships: list[FakeMembership]
    ) -> None:
        self.reader = reader
        self.start = reader.latestOffset(reader.initialOffset(), UNLIMITED)
        (self.membership,) = memberships
        self.membership.positions = {P: 100, Q: 200}
        self.membership.ends = {P: 150, Q: 250}

    def trigger(self, limit: Any = UNLIMITED) -> dict[str, Any]:
        return self.reader.latestOffset(self.start, limit)


@pytest.fixture
def running(
    make: Callable[..., KafkaDeferredStreamReader], memberships: list[FakeMembership]
) -> Running:
    return Running(make(), memberships)


def ends_of(offset: dict[str, Any]) -> dict[TopicPartition, int]:
    return {p: r.end for p, r in parse_offset(offset).ranges.items()}


def ranges_of(tasks: Collection[Any]) -> dict[TopicPartition, TaskRange]:
    ranges = [task_range for task in tasks for task_range in task.value.ranges]
    by_partition = {TopicPartition(r.range.topic, r.range.partition): r for r in ranges}
    assert len(by_partition) == len(ranges), "a partition is read twice"
    return by_partition


def a_logged_batch() -> dict[str, Any]:
    """As it comes back from the checkpoint."""
    offset = offset_to_json(
        StreamOffset(
            ranges={P: OffsetRange("t", 0, 100, 150)},
            others={R: 7},
            revoking=frozenset({P}),
            run="kafka_deferred-dead",
        )
    )
    return json.loads(json.dumps(offset))  # type: ignore[no-any-return]


# -- the group ------------------------------------------------------------------------------------


def test_each_query_has_a_group_of_its_own_which_a_restart_finds_again(
    make: Callable[..., KafkaDeferredStreamReader], memberships: list[FakeMembership]
) -> None:
    """With ``groupIdPrefix``, by which Spark's own source names its groups."""
    first, other = make(groupIdPrefix="orders"), make(groupIdPrefix="orders")
    offset = first.latestOffset(first.initialOffset(), UNLIMITED)
    other.latestOffset(other.initialOffset(), UNLIMITED)
    group, others = (membership.group_id for membership in memberships)
    assert group.startswith("orders-")
    assert group != others
    assert parse_offset(offset).group == group, "for those who read the progress"
    logged = json.loads(json.dumps(offset))
    make(groupIdPrefix="orders").latestOffset(logged, UNLIMITED)
    assert memberships[2].group_id == group
    make(groupIdPrefix="eu").latestOffset(logged, UNLIMITED)
    assert memberships[3].group_id == group.replace("orders", "eu")
    named = make().latestOffset(logged, UNLIMITED)
    assert (memberships[4].group_id, parse_offset(named).group) == ("g", None)


def test_a_replayed_batch_names_the_group(
    make: Callable[..., KafkaDeferredStreamReader], memberships: list[FakeMembership]
) -> None:
    """The first batch starts at the initial offset, which names none."""
    end = offset_to_json(replace(parse_offset(a_logged_batch()), query="1f0c"))
    reader = make(groupIdPrefix="orders")
    reader.partitions(reader.initialOffset(), end)
    reader.latestOffset(end, UNLIMITED)
    assert [membership.group_id for membership in memberships] == ["orders-1f0c"]


@pytest.mark.parametrize("replays", [False, True])
def test_a_restart_knows_which_set_backs_of_the_group_the_query_has_followed(
    make: Callable[..., KafkaDeferredStreamReader],
    memberships: list[FakeMembership],
    replays: bool,
) -> None:
    end = offset_to_json(replace(parse_offset(a_logged_batch()), followed={P: "5d0f33c1"}))
    reader = make()
    if replays:
        reader.partitions(reader.initialOffset(), end)
        assert memberships[0].followed == {P: "5d0f33c1"}
    reader.latestOffset(end, UNLIMITED)
    assert memberships[0].followed == {P: "5d0f33c1"}


@pytest.mark.parametrize("replays", [False, True])
def test_available_now_fixes_its_end_once_the_group_is_known(
    make: Callable[..., KafkaDeferredStreamReader],
    memberships: list[FakeMembership],
    monkeypatch: pytest.MonkeyPatch,
    replays: bool,
) -> None:
    """Spark asks for that before it says where the query stands."""
    monkeypatch.setattr(FakeMembership, "end_offsets_of_topics", lambda self: {P: 150})
    end = offset_to_json(replace(parse_offset(a_logged_batch()), query="1f0c"))
    reader = make(groupIdPrefix="orders")
    reader.prepareForTriggerAvailableNow()
    assert memberships == []
    if replays:
        reader.partitions(reader.initialOffset(), end)
    assert reader._available_now is None or reader._available_now.ends == {P: 150}
    reader.latestOffset(end, UNLIMITED)
    assert reader._available_now is not None
    assert reader._available_now.ends == {P: 150}
    assert [membership.group_id for membership in memberships] == ["orders-1f0c"]


@pytest.mark.parametrize("changes", [{}, {"subscribe": "", "assign": '{"t":[0]}'}])
def test_a_second_query_of_one_load_is_refused(
    memberships: list[FakeMembership],
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, str],
) -> None:
    monkeypatch.setattr(load_claim_module, "WAIT_S", 0.0)
    given = {name: text for name, text in {"subscribe": "t", **changes}.items() if text}
    options = SourceOptions.parse(
        {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.group.id": "g", **given},
        default_readers=2,
    )
    first, second, third = (
        KafkaDeferredStreamReader(replace(options, load="a load")) for _ in range(3)
    )
    first._started()
    with pytest.raises(MembershipError, match=r"from the same load\(\) .*set groupIdPrefix"):
        second._started()
    second.stop()
    KafkaDeferredStreamReader(replace(options, load="another"))._started()
    first.stop()
    third._started()


def test_queries_of_one_load_may_share_a_group_on_purpose_or_have_their_own(
    memberships: list[FakeMembership],
) -> None:
    for options in (parse(shareGroup="true"), parse(groupIdPrefix="orders")):
        for _ in range(2):
            KafkaDeferredStreamReader(replace(options, load="a load"))._started()
    assert [m.group_id for m in memberships[:2]] == ["g", "g"]
    assert memberships[2].group_id != memberships[3].group_id


# -- the first trigger ----------------------------------------------------------------------------


def test_a_warm_up_comes_first_and_the_join_only_after_it(
    make: Callable[..., KafkaDeferredStreamReader], memberships: list[FakeMembership]
) -> None:
    reader = make(readers="3")
    start = reader.initialOffset()
    assert memberships == [], "asking for the initial offset touches the network"
    first = reader.latestOffset(start, UNLIMITED)
    (membership,) = memberships
    assert first != start
    assert ends_of(first) == {}
    assert not membership.joined
    assert membership.last == first
    tasks = reader.partitions(start, first)
    assert [(task.value.warm_up, task.value.ranges) for task in tasks] == [(True, ())] * 3
    membership.positions, membership.ends = {P: 100}, {P: 150}
    second = reader.latestOffset(first, UNLIMITED)
    assert membership.joined
    assert membership.calls.index("join") < membership.calls.index("plan")
    assert "settle" not in membership.calls, "a stream waits for nobody"
    assert ends_of(second) == {P: 150}
    assert len(memberships) == 1
    assert membership.calls.count("start") == 1


def test_where_nobody_else_is_in_the_group_the_first_batch_has_what_there_is(
    make: Callable[..., KafkaDeferredStreamReader], memberships: list[FakeMembership]
) -> None:
    """Nobody could read meanwhile what the members own while Spark warms up."""
    reader = make()
    reader._started()
    (membership,) = memberships
    membership.others = False
    membership.positions, membership.ends = {P: 100}, {P: 150}
    assert ends_of(reader.latestOffset(reader.initialOffset(), UNLIMITED)) == {P: 150}
    assert membership.calls.index("positioned") < membership.calls.index("plan")


def test_the_run_is_named_without_other_members_even_when_there_is_nothing_to_read(
    make: Callable[..., KafkaDeferredStreamReader], memberships: list[FakeMembership]
) -> None:
    before = offset_to_json(StreamOffset(run="before"))
    reader = make()
    reader._started()
    (membership,) = memberships
    membership.others = False
    offset = reader.latestOffset(before, UNLIMITED)
    assert parse_offset(offset).run == membership.client_id
    assert reader.latestOffset(offset, UNLIMITED) is offset


def test_the_warm_up_after_a_restart_is_another_batch_and_forgets_nothing(
    make: Callable[..., KafkaDeferredStreamReader], memberships: list[FakeMembership]
) -> None:
    start = offset_to_json(StreamOffset(others={R: 7}, warm_up=1))
    first = make().latestOffset(start, UNLIMITED)
    assert first != start, "Spark would run no batch"
    assert parse_offset(first).others == {R: 7}
    assert memberships[0].restored == {R: 7}


def test_a_restart_restores_what_the_last_batch_read(
    make: Callable[..., KafkaDeferredStreamReader], memberships: list[FakeMembership]
) -> None:
    make().latestOffset(a_logged_batch(), UNLIMITED)
    assert memberships[0].restored == {P: 150, R: 7}


def test_the_partitions_that_a_query_finds_first_are_kept_until_it_reads(
    make: Callable[..., KafkaDeferredStreamReader], memberships: list[FakeMembership]
) -> None:
    found = make().latestOffset(make().initialOffset(), UNLIMITED)
    assert parse_offset(found).initial == {P, Q}
    memberships.clear()
    restarted = make()
    found_before = offset_to_json(StreamOffset(initial=frozenset({R}), warm_up=1))
    again = restarted.latestOffset(found_before, UNLIMITED)
    assert parse_offset(again).initial == {R}
    (membership,) = memberships
    membership.events = [RebalanceEvent("assigned", P, 41)]
    events = restarted.latestOffset(again, UNLIMITED)
    assert parse_offset(events).initial == {R}
    membership.positions, membership.ends = {P: 100}, {P: 150}
    read = parse_offset(restarted.latestOffset(events, UNLIMITED))
    assert (read.ranges.keys(), read.initial) == ({P}, None)


def test_where_the_logs_ended_when_the_query_started_is_kept_until_it_reads(
    make: Callable[..., KafkaDeferredStreamReader], memberships: list[FakeMembership]
) -> None:
    reader = make()
    found = reader.latestOffset(reader.initialOffset(), UNLIMITED)
    assert parse_offset(found).first_ends == {P: 1_000, Q: 1_000}
    memberships.clear()
    restarted = make()
    again = restarted.latestOffset(json.loads(json.dumps(found)), UNLIMITED)
    (membership,) = memberships
    assert membership.told_ends == {P: 1_000, Q: 1_000}
    membership.positions, membership.ends = {P: 1_000}, {P: 1_050}
    read = parse_offset(restarted.latestOffset(again, UNLIMITED))
    assert (read.ranges.keys(), read.first_ends) == ({P}, {})


def test_a_run_that_ends_without_a_record_has_a_batch_once(
    make: Callable[..., KafkaDeferredStreamReader], memberships: list[FakeMembership]
) -> None:
    reader = make()
    first = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert parse_offset(first).initial == {P, Q}
    assert reader.latestOffset(first, ReadAllAvailable()) is first
    assert make().latestOffset(first, ReadAllAvailable()) is first


def test_where_partitions_start_is_logged_by_a_batch_without_records(running: Running) -> None:
    membership = running.membership
    membership.ends = dict(membership.positions)
    membership.unlogged, membership.quiet = True, False
    assert running.trigger() == running.start, "there are records to come, perhaps"
    membership.quiet, membership.restored = True, {P: 100, Q: 200}
    end = running.trigger()
    assert parse_offset(end).positions() == {P: 100, Q: 200}
    assert running.reader.partitions(running.start, end) == []


def test_a_run_that_ends_logs_where_partitions_start_at_once(
    make: Callable[..., KafkaDeferredStreamReader], memberships: list[FakeMembership]
) -> None:
    reader = make()
    first = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    (membership,) = memberships
    membership.unlogged, membership.quiet, membership.restored = True, False, {P: 100}
    end = reader.latestOffset(first, ReadAllAvailable())
    assert parse_offset(end).positions() == {P: 100}


BUILT_IN = {"t": {"0": 150, "2": 7}}


def test_a_checkpoint_of_sparks_own_source_is_gone_on_from(
    make: Callable[..., KafkaDeferredStreamReader], memberships: list[FakeMembership]
) -> None:
    first = make().latestOffset(BUILT_IN, UNLIMITED)
    (membership,) = memberships
    assert membership.restored == {P: 150, R: 7}
    logged = parse_offset(first)
    assert (logged.positions(), logged.imported) == ({P: 150, R: 7}, {P, R})


def test_a_batch_of_sparks_own_source_that_was_not_completed_is_read_again(
    make: Callable[..., KafkaDeferredStreamReader], memberships: list[FakeMembership]
) -> None:
    reader = make()
    tasks = reader.partitions({"t": {"0": 100, "2": 7}}, BUILT_IN)
    assert {p: (r.range.start, r.range.end) for p, r in ranges_of(tasks).items()} == {P: (100, 150)}
    assert memberships[0].resumed == [({P: 100, R: 7}, {P: OffsetRange("t", 0, 100, 150)})]
    following = parse_offset(reader.latestOffset(BUILT_IN, UNLIMITED))
    assert memberships[0].restored == {P: 150, R: 7}
    assert following.imported == {P, R}


def test_the_first_batch_of_sparks_own_source_starts_where_the_checkpoint_says(
    make: Callable[..., KafkaDeferredStreamReader],
    memberships: list[FakeMembership],
    tmp_path: Path,
) -> None:
    with pytest.raises(KafkaRebalanceError, match="checkpointLocation"):
        make().partitions(make().initialOffset(), BUILT_IN)
    (tmp_path / "sources" / "0").mkdir(parents=True)
    (tmp_path / "sources" / "0" / "0").write_text('\0v1\n{"t":{"0":90,"2":7}}')
    reader = make(checkpointLocation=str(tmp_path))
    tasks = reader.partitions(reader.initialOffset(), BUILT_IN)
    assert {p: (r.range.start, r.range.end) for p, r in ranges_of(tasks).items()} == {P: (90, 150)}
    assert memberships[-1].resumed == [({P: 90, R: 7}, {P: OffsetRange("t", 0, 90, 150)})]


def test_no_warm_up_after_a_replay(
    make: Callable[..., KafkaDeferredStreamReader], memberships: list[FakeMembership]
) -> None:
    reader = make()
    logged = a_logged_batch()
    reader.partitions(reader.initialOffset(), logged)
    end = reader.latestOffset(logged, UNLIMITED)
    assert parse_offset(end).warm_up is None
    (membership,) = memberships
    assert membership.restored == {P: 150, R: 7}
    assert membership.joined


def test_available_now_fixes_its_ends_and_never_passes_them(
    make: Callable[..., KafkaDeferredStreamReader], memberships: list[FakeMembership]
) -> None:
    reader = make()
    reader._started()
    (membership,) = memberships
    membership.ends = {P: 150, Q: 250}
    reader.prepareForTriggerAvailableNow()
    # Much is written meanwhile, and a partition added.
    membership.positions = {P: 100, Q: 250, R: 0}
    membership.ends = {P: 900, Q: 900, R: 900}
    first = reader.latestOffset(reader.initialOffset(), ReadMaxRows(30))
    assert membership.calls.index("join") < membership.calls.index("settle")
    assert membership.calls.index("settle") < membership.calls.index("plan")
    assert ends_of(first) == {P: 130}
    second = reader.latestOffset(first, ReadMaxRows(30))
    assert ends_of(second) == {P: 150}
    assert "acknowledged" not in membership.calls, "a batch waits for no commit"
    assert reader.latestOffset(second, ReadMaxRows(30)) is second
    assert membership.calls[-1] == "acknowledged", "the run ends before the group has its offsets"
    assert membership.calls.count("settle") == 1


def test_available_now_is_no_data_loss_where_the_group_is_ahead(
    make: Callable[..., KafkaDeferredStreamReader], memberships: list[FakeMembership]
) -> None:
    reader = make()
    reader._started()
    (membership,) = memberships
    membership.ends = {P: 150}
    reader.prepareForTriggerAvailableNow()
    membership.positions, membership.ends = {P: 160}, {P: 170}  # another query went on
    start = reader.latestOffset(reader.initialOffset(), UNLIMITED)
    assert ends_of(start) == {}
    assert reader.latestOffset(start, UNLIMITED) is start


def test_available_now_is_the_query_of_its_checkpoint(
    make: Callable[..., KafkaDeferredStreamReader],
) -> None:
    """Fixing the end came first and made up an id: each run was another query."""
    reader = make()
    reader.prepareForTriggerAvailableNow()
    start = offset_to_json(StreamOffset(query="90a1c3e5f7b2d4e6", batch=1))
    reader.latestOffset(start, UNLIMITED)
    assert reader._identity.id == "90a1c3e5f7b2d4e6"


class AvailableNow(Running):
    """A run with AvailableNow that is to read P up to 150 and Q up to 250."""

    def __init__(
        self, reader: KafkaDeferredStreamReader, memberships: list[FakeMembership]
    ) -> None:
        self.reader = reader
        self.reader._started()
        (self.membership,) = memberships
        self.membership.positions = {P: 100, Q: 200}
        self.membership.ends = {P: 150, Q: 250}
        reader.prepareForTriggerAvailableNow()
        self.start = reader.initialOffset()

    def next(self) -> dict[TopicPartition, int]:
        """The ends of the next batch; empty: the run is at its end."""
        before, self.start = self.start, self.trigger()
        return {} if self.start == before else ends_of(self.start)


@pytest.fixture
def available_now(
    make: Callable[..., KafkaDeferredStreamReader], memberships: list[FakeMembership]
) -> Callable[..., AvailableNow]:
    return lambda **options: AvailableNow(make(**options), memberships)


def test_available_now_does_not_end_before_a_broker_that_is_away_answers(
    available_now: Callable[..., AvailableNow],
) -> None:
    run = available_now()
    del run.membership.ends[Q]
    assert run.next() == {P: 150}
    run.membership.changes = [
        lambda: None,
        lambda: run.membership.ends.update({Q: 260}),
    ]
    assert run.next() == {Q: 250}
    assert run.next() == {}


def test_available_now_does_not_end_while_the_lease_is_uncertain_or_a_start_is_not_known(
    available_now: Callable[..., AvailableNow],
) -> None:
    run = available_now()
    run.membership.leave_out = {P, Q}
    run.membership.changes = [run.membership.leave_out.clear]
    assert run.next() == {P: 150, Q: 250}
    run.membership.positions.clear()
    run.membership.starting = [P]
    run.membership.changes = [lambda: run.membership.positions.update({P: 120})]
    assert run.next() == {P: 150}


def test_available_now_ends_before_an_open_transaction_that_the_group_is_past(
    available_now: Callable[..., AvailableNow],
) -> None:
    run = available_now(**{"kafka.isolation.level": "read_committed"})
    membership = run.membership
    membership.positions[P], membership.logs = 160, {P: 170}
    assert run.next() == {Q: 250}
    assert run.next() == {}
    assert membership.moved == []


def test_available_now_does_not_end_while_it_is_not_known_whether_records_are_gone(
    available_now: Callable[..., AvailableNow],
) -> None:
    run = available_now(**{"kafka.isolation.level": "read_committed"})
    membership = run.membership
    membership.positions[P], membership.logs = 160, {}
    assert run.next() == {Q: 250}
    membership.changes = [lambda: membership.logs.update({P: 155})]
    with pytest.raises(DataLossError, match=r"t-0: position 160, end offset 150"):
        run.next()


def test_available_now_names_what_it_waited_for_in_vain(
    available_now: Callable[..., AvailableNow], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(end_of_run_module, "POSTPONED_AT_MOST_S", 0.0)
    run = available_now()
    run.membership.ends.clear()
    with pytest.raises(KafkaRebalanceError, match=r"not read to the end.*: t-0, t-1"):
        run.next()


@pytest.mark.parametrize("fail", ["true", "false"])
def test_available_now_does_not_pass_over_a_log_that_became_shorter(
    available_now: Callable[..., AvailableNow], fail: str
) -> None:
    """Created again, with no fewer records than were read: no position is beyond its end."""
    run = available_now(failOnDataLoss=fail)
    run.membership.ends[P] = 100
    if fail == "true":
        with pytest.raises(DataLossError, match="t-0: read to 100, end offset 100"):
            run.next()
    else:
        assert run.next() == {Q: 250}
        assert run.next() == {}


@pytest.mark.parametrize("fail", ["true", "false"])
def test_available_now_does_not_pass_over_a_partition_that_was_deleted(
    available_now: Callable[..., AvailableNow], fail: str
) -> None:
    run = available_now(failOnDataLoss=fail, maxOffsetsPerTrigger="20")
    assert run.reader.latestOffset(run.start, ReadMaxRows(20))
    del run.membership.positions[Q]
    run.membership.gone = {Q}
    assert run.next() == {P: 150}
    if fail == "true":
        with pytest.raises(DataLossError, match="t-1: read to 210, deleted"):
            run.next()
    else:
        assert run.next() == {}


def test_available_now_does_not_miss_what_it_has_read_to_its_end(
    available_now: Callable[..., AvailableNow],
) -> None:
    """Created anew, at once or after it was found deleted, it is another topic."""
    run = available_now()
    run.membership.positions = {P: 100}
    assert run.next() == {P: 150}
    run.membership.positions[Q] = 200
    run.membership.ends[P] = 1
    assert run.next() == {Q: 250}
    run.membership.untold = {P: 150}
    run.membership.positions[P], run.membership.ends[P] = 0, 400
    assert run.next() == {}


@pytest.mark.parametrize("how", ["read by the run", "read by the group", "read by nobody"])
def test_available_now_misses_what_was_deleted_elsewhere_only_if_it_was_not_read_to_its_end(
    available_now: Callable[..., AvailableNow], how: str
) -> None:
    run = available_now()
    if how != "read by the run":
        del run.membership.positions[Q]
    assert run.next() == ({P: 150, Q: 250} if how == "read by the run" else {P: 150})
    if how == "read by the group":
        run.membership.read_by_group = {Q}
    # It is there again, assigned, and longer than before.
    run.membership.gone_elsewhere = {Q}
    run.membership.positions[Q], run.membership.ends[Q] = 0, 400
    if how == "read by nobody":
        with pytest.raises(DataLossError, match="t-1: read to 0, deleted"):
            run.next()
    else:
        assert run.next() == {}


def test_available_now_misses_nothing_of_a_deleted_partition_that_the_group_had_read(
    available_now: Callable[..., AvailableNow],
) -> None:
    run = available_now()
    del run.membership.positions[Q]
    run.membership.read_by_group = {Q}
    run.membership.nobodys = run.membership.gone = {Q}
    assert run.next() == {P: 150}
    run.membership.changes = [run.membership.nobodys.clear]
    assert run.next() == {}


def test_available_now_leaves_to_another_member_what_has_moved(
    available_now: Callable[..., AvailableNow],
) -> None:
    run = available_now(maxOffsetsPerTrigger="20")
    assert run.reader.latestOffset(run.start, ReadMaxRows(20))
    del run.membership.positions[Q]
    assert run.next() == {P: 150}
    assert run.next() == {}


def test_available_now_does_not_end_before_a_dead_members_partitions_are_its_own(
    available_now: Callable[..., AvailableNow],
) -> None:
    run = available_now()
    membership = run.membership
    del membership.positions[Q]
    membership.nobodys = {Q}

    def its_session_ends() -> None:
        membership.nobodys.clear()
        membership.positions[Q] = 200

    assert run.next() == {P: 150}
    membership.changes = [lambda: None, its_session_ends]
    assert run.next() == {Q: 250}
    assert run.next() == {}


def test_available_now_names_what_nobody_has_read(
    available_now: Callable[..., AvailableNow],
) -> None:
    run = available_now()
    del run.membership.positions[Q]
    run.membership.nobodys = {Q}
    run.membership.within_s = 0.0
    assert run.next() == {P: 150}
    with pytest.raises(KafkaRebalanceError, match="nobody's: t-1"):
        run.next()


@pytest.fixture
def sibling() -> Iterator[DriverSources]:
    """Another source of this driver in the group, which may be of the same query."""
    other = DriverSources(parse(), "sibling")
    other.enter()
    yield other
    other.leave()


@pytest.mark.usefixtures("sibling")
def test_available_now_does_not_keep_from_spark_the_batch_that_another_load_waits_for(
    available_now: Callable[..., AvailableNow], clock: list[float]
) -> None:
    run = available_now()
    membership = run.membership
    del membership.positions[Q]
    membership.nobodys = {Q}
    assert run.next() == {P: 150}
    assert membership.patience_s is not None
    for _ in range(2):  # a batch without records brings another trigger, however often
        membership.changes = [lambda: clock.__setitem__(0, clock[0] + 1)]
        before = run.start
        assert run.next() == {}
        assert run.start != before
    membership.nobodys.clear()
    membership.positions[Q] = 200
    assert run.next() == {Q: 250}
    assert run.next() == {}
    assert run.start == run.trigger(), "the run ends"


@pytest.mark.usefixtures("sibling")
def test_what_nobody_has_read_is_named_beside_another_load_as_well(
    available_now: Callable[..., AvailableNow], clock: list[float]
) -> None:
    run = available_now()
    membership = run.membership
    del membership.positions[Q]
    membership.nobodys, membership.within_s = {Q}, 3.0
    assert run.next() == {P: 150}
    membership.changes = [lambda: clock.__setitem__(0, clock[0] + 1)] * 3
    assert run.next() == run.next() == {}
    with pytest.raises(KafkaRebalanceError, match="nobody's: t-1"):
        run.next()


def test_once_waits_for_a_start_that_is_not_known(
    make: Callable[..., KafkaDeferredStreamReader], memberships: list[FakeMembership]
) -> None:
    """It has no second batch that could read the partition."""
    reader = make()
    reader._started()
    (membership,) = memberships
    membership.positions, membership.ends = {P: 100}, {P: 150, Q: 250}
    membership.starting = [Q]
    membership.changes = [lambda: membership.positions.update({Q: 200})]
    offset = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert ends_of(offset) == {P: 150, Q: 250}


@pytest.mark.parametrize("limit", ["maxOffsetsPerTrigger", "maxBytesPerTrigger"])
def test_once_joins_first_and_reads_all_there_is(
    make: Callable[..., KafkaDeferredStreamReader], memberships: list[FakeMembership], limit: str
) -> None:
    reader = make(**{limit: "10"})
    reader._started()
    (membership,) = memberships
    membership.positions, membership.ends = {P: 100}, {P: 150}
    offset = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert ends_of(offset) == {P: 150}
    assert membership.calls.index("settle") < membership.calls.index("plan")


def test_bytes_bound_every_trigger(
    make: Callable[..., KafkaDeferredStreamReader], memberships: list[FakeMembership]
) -> None:
    reader = make(maxBytesPerTrigger="1000")
    reader._started()
    (membership,) = memberships
    membership.sizes = {P: 10.0, Q: 40.0}  # of R it cannot be found out now
    membership.positions = {P: 0, Q: 0, R: 0}
    membership.ends = {P: 100, Q: 25, R: 100}
    start = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())  # warm-up
    offset = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert ends_of(offset) == {P: 50, Q: 12}
    membership.sizes = dict.fromkeys((P, Q, R), 1.0)
    offset = reader.latestOffset(offset, reader.getDefaultReadLimit())
    assert ends_of(offset) == {P: 100, Q: 25, R: 100}


def test_a_run_with_an_end_waits_for_the_sizes_that_bytes_are_bounded_by(
    available_now: Callable[..., AvailableNow],
) -> None:
    """It ended without an error and with everything unread: what had no size was left out."""
    run = available_now(maxBytesPerTrigger="1000")
    membership = run.membership
    membership.sizes = {P: 1.0}  # of Q it cannot be found out now
    assert run.next() == {P: 150}
    membership.changes = [lambda: None, lambda: membership.sizes.update({Q: 1.0})]
    assert run.next() == {Q: 250}
    membership.sizes.clear()
    assert run.next() == {}, "waits for the size of what it has read"


def test_a_run_with_an_end_names_what_had_no_size_for_too_long(
    available_now: Callable[..., AvailableNow], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(end_of_run_module, "POSTPONED_AT_MOST_S", 0.0)
    run = available_now(maxBytesPerTrigger="1000")
    run.membership.sizes = {P: 1.0}
    assert run.next() == {P: 150}
    with pytest.raises(KafkaRebalanceError, match=r"not read to the end.*: t-1$"):
        run.next()


def test_a_stream_without_a_limit_is_not_taken_for_once(
    make: Callable[..., KafkaDeferredStreamReader], memberships: list[FakeMembership]
) -> None:
    reader = make()
    limit = reader.getDefaultReadLimit()
    assert not isinstance(limit, ReadAllAvailable)
    assert parse_offset(reader.latestOffset(reader.initialOffset(), limit)).warm_up == 1
    limited = make(maxOffsetsPerTrigger="10").getDefaultReadLimit()
    assert limited == ReadMaxRows(10)


# -- minOffsetsPerTrigger -------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds, to be set."""
    now = [1_000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def patient(
    make: Callable[..., KafkaDeferredStreamReader], memberships: list[FakeMembership]
) -> Running:
    """Its first batch, which waits for nothing, is behind it."""
    running = Running(make(minOffsetsPerTrigger="100", maxTriggerDelay="30s"), memberships)
    running.membership.ends = {P: 101, Q: 200}
    running.start = running.trigger()
    assert ends_of(running.start) == {P: 101}
    return running


def test_a_trigger_waits_until_there_is_enough(clock: list[float], patient: Running) -> None:
    patient.membership.ends = {P: 150, Q: 250}
    assert patient.trigger() == patient.start, "49 and 50 are not enough"
    patient.membership.ends = {P: 151, Q: 250}
    assert ends_of(patient.trigger()) == {P: 151, Q: 250}


def test_a_trigger_waits_no_longer_than_it_may(clock: list[float], patient: Running) -> None:
    patient.membership.ends = {P: 150, Q: 200}
    clock[0] += 29.9
    assert patient.trigger() == patient.start
    clock[0] += 0.1
    patient.start = patient.trigger()
    assert ends_of(patient.start) == {P: 150}
    patient.membership.ends = {P: 160, Q: 200}
    clock[0] += 29.9
    assert patient.trigger() == patient.start, "the time begins with each batch anew"


def test_events_do_not_wait_for_records(clock: list[float], patient: Running) -> None:
    patient.membership.ends = {P: 150, Q: 200}
    patient.membership.events = [RebalanceEvent("revoke_requested", P, 41)]
    offset = parse_offset(patient.trigger())
    assert [event.event for event in offset.events] == ["revoke_requested"]
    assert not offset.ranges


def test_once_waits_for_nothing(clock: list[float], patient: Running) -> None:
    patient.membership.ends = {P: 150, Q: 200}
    assert ends_of(patient.trigger(ReadAllAvailable())) == {P: 150}


def test_available_now_waits_for_nothing(
    make: Callable[..., KafkaDeferredStreamReader], memberships: list[FakeMembership]
) -> None:
    reader = make(minOffsetsPerTrigger="100")
    reader._started()
    (membership,) = memberships
    membership.positions, membership.ends = {P: 100}, {P: 250}
    reader.prepareForTriggerAvailableNow()
    first = reader.latestOffset(reader.initialOffset(), ReadMaxRows(120))
    assert ends_of(first) == {P: 220}
    assert ends_of(reader.latestOffset(first, ReadMaxRows(120))) == {P: 250}, "30 are left"


# -- a trigger ------------------------------------------------------------------------------------


def test_an_idle_trigger_returns_its_start_unchanged(running: Running) -> None:
    running.membership.ends = {P: 100, Q: 200}
    before = copy.deepcopy(running.start)
    assert running.trigger() is running.start
    assert running.start == before
    assert running.reader.partitions(running.start, running.start) == []


def test_what_the_last_step_leaves_out_is_not_in_the_offset(running: Running) -> None:
    running.membership.leave_out = {P}
    assert ends_of(running.trigger()) == {Q: 250}
    running.membership.leave_out = {P, Q}
    assert running.trigger() is running.start


def test_the_start_is_proven_before_anything_is_planned(running: Running) -> None:
    running.membership.calls.clear()
    running.trigger()
    assert running.membership.proven == [running.start]
    assert running.membership.calls == ["prove", "join", "plan"]


def test_commit_proves_as_well(running: Running) -> None:
    end = running.trigger()
    running.reader.commit(end)
    assert running.membership.proven[-1] == end


def test_the_limit_is_shared(running: Running) -> None:
    offset = running.trigger(ReadMaxRows(40))
    assert ends_of(offset) == {P: 120, Q: 220}


def test_the_offset_says_what_the_group_said(running: Running) -> None:
    membership = running.membership
    membership.revoking, membership.lost, membership.restored = {P}, {R}, {R: 7}
    membership.events = [RebalanceEvent("lost", R, 41)]
    offset = parse_offset(running.trigger())
    assert offset.positions() == {P: 150, Q: 250, R: 7}
    (member,) = offset.members
    assert (member.generation, member.partitions) == (41, (P, Q))
    assert (offset.revoking, offset.lost) == ({P}, {R})
    assert offset.events == (RebalanceEvent("lost", R, 41),)
    assert offset.run == membership.client_id
    assert running.membership.last == offset_to_json(offset)


def test_events_alone_make_a_batch(running: Running) -> None:
    running.membership.ends = {}
    running.membership.events = [RebalanceEvent("assigned", P, 41)]
    end = running.trigger()
    assert end != running.start
    (task,) = running.reader.partitions(running.start, end)
    assert [e.event for e in task.value.events] == ["assigned"]
    assert task.value.ranges == ()


def test_an_error_of_the_pump_is_raised_by_the_next_trigger(running: Running) -> None:
    running.membership.failure = RuntimeError("in the pump")
    with pytest.raises(RuntimeError, match="in the pump"):
        running.trigger()


def test_the_client_id_tells_the_run(
    make: Callable[..., KafkaDeferredStreamReader], memberships: list[FakeMembership]
) -> None:
    for options in ({}, {}, {"kafka.client.id": "mine"}):
        reader = make(**options)
        reader.latestOffset(reader.initialOffset(), UNLIMITED)
    ids = [membership.client_id for membership in memberships]
    assert ids[0].startswith("kafka_deferred-")
    assert ids[2].startswith("mine-")
    assert len(set(ids)) == 3


# -- data loss ------------------------------------------------------------------------------------


def test_data_loss_names_topic_partition_and_offsets(running: Running) -> None:
    running.membership.ends = {P: 40, Q: 250}
    with pytest.raises(DataLossError, match=r"t-0: position 100, end offset 40") as raised:
        running.trigger()
    assert "failOnDataLoss" in str(raised.value)
    assert "t-1" not in str(raised.value)


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_position_after_the_beginning_of_an_open_transaction_waits_for_its_end(
    make: Callable[..., KafkaDeferredStreamReader], memberships: list[FakeMembership], fail: str
) -> None:
    """It was called data loss, and the group was moved back: records came twice."""
    options = {"kafka.isolation.level": "read_committed", "failOnDataLoss": fail}
    running = Running(make(**options), memberships)
    membership = running.membership
    membership.ends, membership.logs = {P: 90, Q: 250}, {P: 120}
    running.start = running.trigger()
    assert ends_of(running.start) == {Q: 250}
    assert running.trigger() is running.start
    assert (membership.moved, membership.positions[P]) == ([], 100)
    membership.ends = {P: 121, Q: 250}
    offset = parse_offset(running.trigger())
    assert (offset.ranges[P].start, offset.ranges[P].end) == (100, 121)


def test_a_position_beyond_the_high_watermark_is_data_loss_under_read_committed(
    make: Callable[..., KafkaDeferredStreamReader], memberships: list[FakeMembership]
) -> None:
    running = Running(make(**{"kafka.isolation.level": "read_committed"}), memberships)
    running.membership.ends, running.membership.logs = {P: 90, Q: 190}, {P: 99, Q: 200}
    with pytest.raises(DataLossError, match=r"\(t-0: position 100, end offset 90\)"):
        running.trigger()


def test_a_deleted_partition_is_data_loss(running: Running) -> None:
    running.membership.untold = {P: 10, Q: None}
    with pytest.raises(DataLossError, match=r"t-0: read to 10, deleted, t-1: not read, deleted"):
        running.trigger()


def test_without_failing_a_deleted_partition_is_told_once(
    make: Callable[..., KafkaDeferredStreamReader],
    memberships: list[FakeMembership],
    caplog: pytest.LogCaptureFixture,
) -> None:
    running = Running(make(failOnDataLoss="false"), memberships)
    running.membership.untold = {P: 10}
    running.trigger()
    running.trigger()
    assert [r.message for r in caplog.records if "gone" in r.message] == [
        "records may be gone from Kafka, going on without them: t-0: read to 10, deleted"
    ]


def test_after_tolerated_data_loss_the_stream_goes_on_at_the_end(
    make: Callable[..., KafkaDeferredStreamReader], memberships: list[FakeMembership]
) -> None:
    running = Running(make(failOnDataLoss="false"), memberships)
    running.membership.ends = {P: 40, Q: 250}
    assert running.trigger() is running.start
    assert running.membership.moved == [{P: 40}]
    running.membership.ends = {P: 45, Q: 250}
    offset = parse_offset(running.trigger())
    assert (offset.ranges[P].start, offset.ranges[P].end) == (40, 45)


# -- partitions -----------------------------------------------------------------------------------


def test_partitions_depend_on_the_end_alone(
    running: Running,
    make: Callable[..., KafkaDeferredStreamReader],
) -> None:
    end = running.trigger()
    starts = [running.start, running.reader.initialOffset(), a_logged_batch()]
    tasks = [[t.value for t in running.reader.partitions(start, end)] for start in starts]
    assert tasks[0] == tasks[1] == tasks[2]
    expected = {P: OffsetRange("t", 0, 100, 150), Q: OffsetRange("t", 1, 200, 250)}
    assert {p: r.range for p, r in ranges_of(running.reader.partitions({}, end)).items()} == (
        expected
    )
    running.membership.positions = {P: 900, Q: 900}  # and not on how far the members have come
    replaying = make()
    for start in starts:
        replayed = replaying.partitions(start, json.loads(json.dumps(end)))
        assert [t.value for t in replayed] == tasks[0]


def test_rows_say_what_became_of_their_partition_since_planning(running: Running) -> None:
    end = running.trigger()
    running.membership.delivered = {P: 150}
    running.membership.revoking = {Q, R}
    flags = ranges_of(running.reader.partitions(running.start, end))
    assert (flags[P].lost_below, flags[P].revoking) == (150, False)
    assert (flags[Q].lost_below, flags[Q].revoking) == (0, True)


def test_a_second_action_on_a_batch_has_the_marks_of_the_first(running: Running) -> None:
    """One that drops marked rows and one that keeps them lost rows, or had them twice."""
    end = running.trigger()
    first = ranges_of(running.reader.partitions(running.start, end))
    running.membership.delivered, running.membership.revoking = {P: 150}, {Q}
    assert ranges_of(running.reader.partitions(running.start, end)) == first
    running.start = end
    running.membership.ends = {P: 160, Q: 250}
    later = ranges_of(running.reader.partitions(end, running.trigger()))
    assert later[P].lost_below == 150, "and the next batch its own"


def test_a_second_action_on_a_replay_has_the_marks_of_the_first(
    make: Callable[..., KafkaDeferredStreamReader], memberships: list[FakeMembership]
) -> None:
    reader, start = make(), make().initialOffset()
    first = ranges_of(reader.partitions(start, a_logged_batch()))
    memberships[0].delivered = {P: 150}
    assert ranges_of(reader.partitions(start, a_logged_batch())) == first
    assert memberships[0].looks == len(memberships[0].resumed) == 1


def test_the_members_join_before_a_replay_is_read(
    make: Callable[..., KafkaDeferredStreamReader], memberships: list[FakeMembership]
) -> None:
    """Else another query takes its partitions over while it is read, and nobody says so."""
    reader = make()
    before = StreamOffset(ranges={P: OffsetRange("t", 0, 90, 100), Q: OffsetRange("t", 1, 0, 9)})
    tasks = ranges_of(reader.partitions(offset_to_json(before), a_logged_batch()))
    (membership,) = memberships
    assert membership.calls == ["start", "join"]
    assert membership.resumed == [({P: 100, Q: 9, R: 7}, {P: OffsetRange("t", 0, 100, 150)})]
    assert not tasks[P].revoking, "nobody waits for the dead run's revoke"


def test_nobody_takes_over_what_a_replay_reads_that_is_assigned_by_hand(
    memberships: list[FakeMembership],
) -> None:
    assigned = SourceOptions.parse(
        {
            "assign": '{"t":[0]}',
            "kafka.bootstrap.servers": "127.0.0.1:1",
            "kafka.group.id": "g",
        },
        default_readers=2,
    )
    reader = KafkaDeferredStreamReader(assigned)
    flags = ranges_of(reader.partitions(reader.initialOffset(), a_logged_batch()))
    assert (flags[P].lost_below, flags[P].revoking) == (0, False)
    assert memberships == []


def test_a_replay_from_before_what_is_pending_reads_that_as_well(
    running: Running,
    make: Callable[..., KafkaDeferredStreamReader],
    memberships: list[FakeMembership],
) -> None:
    running.membership.pending = {P: OffsetRange("t", 0, 40, 100), R: OffsetRange("t", 2, 0, 7)}
    end = running.trigger()
    ours = ranges_of(running.reader.partitions(running.start, end))
    assert {p: (r.range.start, r.range.end) for p, r in ours.items()} == {
        P: (100, 150),
        Q: (200, 250),
    }
    logged = offset_to_json(StreamOffset(ranges={P: OffsetRange("t", 0, 0, 60)}))
    theirs = ranges_of(make().partitions(logged, json.loads(json.dumps(end))))
    read = {p: (r.range.start, r.range.end) for p, r in theirs.items()}
    assert read == {P: (60, 150), Q: (200, 250), R: (0, 7)}
    ((proven, resumed),) = memberships[1].resumed
    assert (proven, set(resumed.values())) == ({P: 60}, {r.range for r in theirs.values()})


def test_an_empty_batch_makes_spark_commit_what_is_not_proven(
    running: Running, make: Callable[..., KafkaDeferredStreamReader]
) -> None:
    running.membership.ends = running.membership.positions
    assert running.trigger() is running.start
    running.membership.wants = True
    running.membership.pending = {P: OffsetRange("t", 0, 50, 100)}
    end = running.trigger()
    assert end != running.start
    assert ends_of(end) == {}
    assert parse_offset(end).pending == running.membership.pending
    assert ranges_of(running.reader.partitions(running.start, end)) == {}
    restarted = make()
    assert restarted.partitions(end, end) == []


def test_a_replay_without_ranges_asks_nobody(
    make: Callable[..., KafkaDeferredStreamReader], memberships: list[FakeMembership]
) -> None:
    reader = make(readers="2")
    end = offset_to_json(StreamOffset(warm_up=1))
    assert len(reader.partitions(reader.initialOffset(), end)) == 2
    assert memberships == []


# -- the rest -------------------------------------------------------------------------------------


def test_pickling_drops_the_membership(running: Running) -> None:
    end = running.trigger()
    running.membership.failure = RuntimeError("unpicklable in effect")
    copied = pickle.loads(pickle.dumps(running.reader))
    assert copied._run is None
    assert copied._options == running.reader._options
    assert copied.reportLatestOffset() is None
    copied.commit(end)
    copied.stop()
    assert "stop" not in running.membership.calls
    assert len(pickle.dumps(running.reader)) == len(pickle.dumps(copied))


def test_a_batch_that_reads_the_same_offsets_of_a_new_log_differs_from_the_one_before(
    running: Running,
) -> None:
    """Spark runs none where the offset is the same: what was handed out was read by nobody."""
    first = running.start = running.trigger()
    assert ends_of(first) == {P: 150, Q: 250}
    running.membership.positions = {P: 100, Q: 200}  # there they are again
    between = running.start = running.trigger()
    assert between != first
    assert ends_of(between) == {}
    assert running.membership.proven[-1] == first
    again = running.trigger()
    assert ends_of(again) == {P: 150, Q: 250}
    assert again != between


def test_stop_stops_the_membership(running: Running) -> None:
    running.reader.stop()
    assert running.membership.calls[-1] == "stop"


def test_the_end_offsets_known_last_are_reported(running: Running) -> None:
    assert running.reader.reportLatestOffset() == {"t": {"0": 150, "1": 250}}
    running.membership.ends = {}
    assert running.reader.reportLatestOffset() == {}, "nothing is owned"


def test_a_task_is_read_without_a_membership(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []

    def read_task(task: Any, options: SourceOptions) -> Any:
        read.append((task, options))
        return iter(())

    monkeypatch.setattr(stream_module, "read_task", read_task)
    (partition,) = running.reader.partitions(running.start, running.trigger())
    executor = pickle.loads(pickle.dumps(running.reader))
    assert list(executor.read(pickle.loads(pickle.dumps(partition)))) == []
    assert read == [(partition.value, running.reader._options)]
    assert executor._run is None


def test_sigterm_ends_the_planner_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)

    def end() -> None:
        raise AssertionError("called at the exit, though it has ended")

    before = signal.getsignal(signal.SIGTERM)
    try:
        sigterm_module.stop_on_sigterm(end)
        sigterm_module.has_ended(end)
        handler = signal.getsignal(signal.SIGTERM)
        assert callable(handler)
        with pytest.raises(SystemExit):
            handler(signal.SIGTERM, None)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN, "the second would cut stop short"
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_signal_during_stop_does_not_end_it(running: Running) -> None:
    """The socket's end makes Spark call stop() as well, and its signals come meanwhile."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        signal.signal(signal.SIGTERM, sigterm_module._on_sigterm)
        running.reader.stop()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def running_until_stop(reader: KafkaDeferredStreamReader) -> Iterator[None]:
    try:
        yield
    finally:
        reader.stop()


@pytest.mark.parametrize(
    ("ended_by", "hidden"),
    [(EOFError(), True), (SystemExit(0), True), (KafkaRebalanceError("gone"), False)],
)
def test_an_end_by_spark_prints_no_tracebacks_of_the_closed_socket(
    running: Running,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ended_by: BaseException,
    hidden: bool,
) -> None:
    """As in PySpark's loop, which then reports its end to a JVM that no longer listens."""
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    with contextlib.suppress(type(ended_by)), running_until_stop(running.reader):
        raise ended_by
    sys.excepthook(BrokenPipeError, BrokenPipeError(32, "Broken pipe"), None)
    assert ("Broken pipe" not in capsys.readouterr().err) == hidden
    sys.excepthook(ZeroDivisionError, ZeroDivisionError("a defect"), None)
    assert "a defect" in capsys.readouterr().err


# -- asked to stop --------------------------------------------------------------------------------


def run_of(offset: dict[str, Any]) -> str:
    run = parse_offset(offset).run
    assert run is not None
    return run


def test_asked_to_stop_it_plans_nothing_more_and_leaves(running: Running) -> None:
    end = running.trigger()
    assert ask_to_stop(run_of(end), None, 60)
    running.start = end
    assert running.trigger() == end
    assert running.membership.proven[-1] == end, "the trigger after the batch proves it"
    assert running.membership.calls[-1] == "leave"
    running.membership.ends = {P: 1_000}
    assert running.trigger() == end


def test_asked_to_stop_it_stays_while_the_last_batch_is_not_proven(running: Running) -> None:
    """As the first of all is not by the trigger after it; who asked can prove it."""
    end = running.trigger()
    assert ask_to_stop(run_of(end), None, 60)
    running.start = end
    running.membership.unproven = True
    assert running.trigger() == end, "it plans nothing"
    assert "leave" not in running.membership.calls


def test_who_asked_to_stop_waits_for_the_commits(running: Running) -> None:
    end = running.trigger()
    assert ask_to_stop(run_of(end), None, 90, commit_within_s=60)
    running.start = end
    running.trigger()
    assert running.membership.calls[-1] == "leave"
    assert 3 < running.membership.left_within_s <= 60
    running.reader.stop()
    assert running.membership.calls[-1] == "stop"
    assert 3 < running.membership.left_within_s <= 60


@pytest.mark.parametrize("asked", [True, False])
def test_a_stop_that_nobody_waits_for_takes_three_seconds(running: Running, asked: bool) -> None:
    end = running.trigger()
    if asked:
        assert ask_to_stop(run_of(end), None, 90, commit_within_s=0)
    running.reader.stop()
    assert running.membership.left_within_s == 3.0


def test_who_asked_to_stop_learns_that_not_all_is_committed(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    end = running.trigger()
    assert ask_to_stop(run_of(end), end, 60)
    running.membership.missing = [P, Q]
    running.reader.stop()
    assert answer_of(run_of(end)) == "uncommitted"
    assert "stop_gracefully() returns False: t-0, t-1" in caplog.text


def test_stop_knows_what_the_one_who_asked_knows(running: Running) -> None:
    """A query that is idle until its next trigger has proven nothing of its last batch itself."""
    end = running.trigger()
    assert ask_to_stop(run_of(end), None, 60)
    assert ask_to_stop(run_of(end), end, 60)
    assert end not in running.membership.proven
    running.reader.stop()
    assert running.membership.proven[-1] == end
    assert running.membership.calls[-2:] == ["prove", "stop"]
    assert answer_of(run_of(end)) == "committed"
    assert not ask_to_stop(run_of(end), None, 60), "it has left"


def test_who_asked_to_stop_is_gone(
    running: Running, memberships: list[FakeMembership], monkeypatch: pytest.MonkeyPatch
) -> None:
    end = running.trigger()
    assert ask_to_stop(run_of(end), None, 0)
    warm_up = running.reader.latestOffset(end, UNLIMITED)
    left, joined = memberships
    assert left.calls[-1] == "stop"
    assert answer_of(run_of(end)) == "absent"
    assert run_of(warm_up) == joined.client_id != left.client_id
    assert joined.restored == {P: 40}, "Spark's log has where they ended before"
    assert joined.events == left.left_behind().untold
    joined.positions = {}
    rows = running.reader.latestOffset(warm_up, UNLIMITED)
    assert list(parse_offset(rows).events) == left.left_behind().untold


def test_who_asked_to_stop_is_gone_and_nothing_proves_where_spark_stands(running: Running) -> None:
    end = running.trigger()
    assert ask_to_stop(run_of(end), None, 0)
    running.membership.progress_is_asynchronous = True
    with pytest.raises(KafkaRebalanceError, match="start the query again"):
        running.trigger()


def test_the_run_is_named_from_the_first_batch(running: Running) -> None:
    assert run_of(running.start) == running.membership.client_id


def test_the_run_is_named_after_a_replay_even_when_there_is_nothing_to_read(
    make: Callable[..., KafkaDeferredStreamReader], memberships: list[FakeMembership]
) -> None:
    reader = make()
    replayed = a_logged_batch()
    reader.partitions(reader.initialOffset(), replayed)
    named = reader.latestOffset(replayed, UNLIMITED)
    assert run_of(named) == memberships[0].client_id != run_of(replayed)
    assert ends_of(named) == {}
    assert reader.latestOffset(named, UNLIMITED) == named


@pytest.mark.parametrize("start", [offset_to_json(StreamOffset()), a_logged_batch()])
def test_the_run_is_named_without_a_warm_up_even_when_there_is_nothing_to_read(
    memberships: list[FakeMembership], start: dict[str, Any]
) -> None:
    """As on Spark 4.0 and 4.1."""
    reader = KafkaDeferredStreamReader(parse(), trigger_is_told=False)
    named = reader.latestOffset(start, UNLIMITED)
    assert run_of(named) == memberships[0].client_id
    assert parse_offset(named).warm_up is None
    assert reader.latestOffset(named, UNLIMITED) == named


# -- parallelRebalance=live -----------------------------------------------------------------------


def below(start: int, end: int) -> dict[TopicPartition, tuple[OffsetRange, ...]]:
    return {P: (OffsetRange("t", 0, start, end),)}


LIVE = {"parallelRebalance": "live"}
A_GAP = StreamOffset(
    ranges={P: OffsetRange("t", 0, 100, 150)},
    others={R: 7},
    catch_up=below(10, 20),
    gaps={P: (Gap(20, 30),)},
    run="kafka_deferred-dead",
)


@pytest.mark.parametrize("mode", ["live", "ordered"])
def test_who_reads_on_after_an_abandoned_stop_catches_up_what_it_left(
    make: Callable[..., KafkaDeferredStreamReader], memberships: list[FakeMembership], mode: str
) -> None:
    """It may have set aside what no offset of Spark's has."""
    running = Running(make(parallelRebalance=mode), memberships)
    end = running.trigger()
    assert ask_to_stop(run_of(end), None, 0)
    running.reader.latestOffset(end, UNLIMITED)
    assert memberships[-1].gaps == ({P: (Gap(10, 30),)} if mode == "live" else {})


def test_a_batch_catches_up_though_nothing_is_live(
    make: Callable[..., KafkaDeferredStreamReader], memberships: list[FakeMembership]
) -> None:
    running = Running(make(**LIVE), memberships)
    running.membership.ends = dict(running.membership.positions)
    assert running.trigger() == running.start, "nothing to read"
    running.membership.below = below(10, 20)
    offset = running.trigger()
    assert offset[OURS]["catch_up"] == {"t": {"0": [[10, 20]]}}
    assert offset[OURS]["read"] == {}
    assert "initial" not in offset[OURS]["state"]
    tasks = running.reader.partitions(running.start, offset)
    assert [[(r.range.start, r.catch_up) for r in t.value.ranges] for t in tasks] == [[(10, True)]]


def test_available_now_does_not_end_before_a_broker_that_is_away_has_its_gaps_read(
    available_now: Callable[..., AvailableNow],
) -> None:
    run = available_now(**LIVE)
    membership = run.membership
    assert run.next() == {P: 150, Q: 250}
    del membership.ends[P]
    membership.below = below(10, 20)
    membership.changes = [lambda: membership.ends.update({P: 150})]
    run.start = run.trigger()
    assert run.start[OURS]["catch_up"] == {"t": {"0": [[10, 20]]}}
    assert run.trigger() == run.start


def test_live_ranges_come_first_in_a_batch(
    make: Callable[..., KafkaDeferredStreamReader], memberships: list[FakeMembership]
) -> None:
    running = Running(make(**LIVE), memberships)
    running.membership.below = below(10, 20)
    running.membership.delivered = {P: 15}
    offset = running.trigger()
    tasks = running.reader.partitions(running.start, offset)
    found = [(r.range.start, r.catch_up, r.lost_below) for t in tasks for r in t.value.ranges]
    assert found == [(100, False, 0), (200, False, 0), (10, True, 15), (15, True, 0)]


def test_a_replay_has_its_gaps_and_a_restart_goes_on_in_them(
    make: Callable[..., KafkaDeferredStreamReader], memberships: list[FakeMembership]
) -> None:
    start = offset_to_json(StreamOffset(others={P: 10, R: 7}))
    end = offset_to_json(A_GAP)
    reader = make(**LIVE)
    tasks = reader.partitions(start, end)
    (membership,) = memberships
    assert membership.resumed == [({P: 10, R: 7}, A_GAP.ranges)]
    assert (membership.caught_up, membership.gaps) == (A_GAP.catch_up, A_GAP.gaps)
    assert sorted(r.range.start for t in tasks for r in t.value.ranges) == [10, 100]
    reader.latestOffset(end, UNLIMITED)
    assert (membership.restored, membership.gaps) == ({P: 150, R: 7}, A_GAP.gaps)


def test_in_order_reading_goes_on_at_the_lowest_offset_that_is_left(
    make: Callable[..., KafkaDeferredStreamReader], memberships: list[FakeMembership]
) -> None:
    """A query that was live before."""
    start = offset_to_json(StreamOffset(others={P: 10, R: 7}))
    end = offset_to_json(A_GAP)
    reader = make()
    tasks = reader.partitions(start, end)
    (membership,) = memberships
    assert membership.resumed == [({P: 10, R: 7}, {})], "of P, what is live is read again"
    assert sorted(r.range.start for t in tasks for r in t.value.ranges) == [10, 100]
    reader.latestOffset(end, UNLIMITED)
    assert (membership.restored, membership.gaps) == ({P: 20, R: 7}, {})


@pytest.mark.parametrize("options", [{}, LIVE])
def test_a_batch_of_sparks_own_source_is_nobody_elses(
    make: Callable[..., KafkaDeferredStreamReader],
    memberships: list[FakeMembership],
    options: dict[str, str],
) -> None:
    """Whatever the group has committed of it."""
    reader = make(**options)
    tasks = reader.partitions({"t": {"0": 100}}, {"t": {"0": 150}})
    (membership,) = memberships
    assert membership.looks == 0
    assert ranges_of(tasks)[P].lost_below == 0


def test_a_batch_that_the_sink_decides_is_run_again_without_what_others_have_read(
    make: Callable[..., KafkaDeferredStreamReader],
    memberships: list[FakeMembership],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(FakeMembership, "leave_out_of_rerun", lambda *_: frozenset({P}))
    offset = StreamOffset(
        ranges={P: OffsetRange("t", 0, 5, 9), Q: OffsetRange("t", 1, 3, 4)},
        run="another",
        query="0" * 16,
        batch=4,
        by_sink=True,
    )
    reader = make()
    tasks = reader.partitions(reader.initialOffset(), offset_to_json(offset))
    assert [r.range for t in tasks for r in t.value.ranges] == [OffsetRange("t", 1, 3, 4)]
    assert memberships[0].follows_group
