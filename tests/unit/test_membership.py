"""QueryMembership with members that need no broker.

The pump runs as it does in a query. A test changes what the fake members will tell, waits for
whole rounds of the pump (never for a time), and looks at what was released and committed.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID, uuid4

import pytest
from fake_members import PARTITIONS, PATIENCE_S, FakeMember, Group
from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.consumer.consumer import PollResult
from pyspark_kafka_rebalance.consumer.group_description import GroupDescription, GroupMember
from pyspark_kafka_rebalance.consumer.offsets.commit_metadata import Remaining
from pyspark_kafka_rebalance.consumer.offsets.offset_set import Gap
from pyspark_kafka_rebalance.consumer.offsets.origin import Origin
from pyspark_kafka_rebalance.errors import DataLossError, KafkaRebalanceError
from pyspark_kafka_rebalance.fetch.offset_range import OffsetRange
from pyspark_kafka_rebalance.source.checkpoint.commit_log import CommitLog
from pyspark_kafka_rebalance.source.group import membership as membership_module
from pyspark_kafka_rebalance.source.group.clients import query_members as clients_module
from pyspark_kafka_rebalance.source.group.logs import deletion_watch as deletion_watch_module
from pyspark_kafka_rebalance.source.group.logs import log_ends as log_ends_module
from pyspark_kafka_rebalance.source.group.membership import QueryMembership
from pyspark_kafka_rebalance.source.group.others import foreign_ranges as foreign_ranges_module
from pyspark_kafka_rebalance.source.group.others import foreign_ranges as marking_module
from pyspark_kafka_rebalance.source.group.others import joining as joining_module
from pyspark_kafka_rebalance.source.group.others import live_owners as live_owner_watch_module
from pyspark_kafka_rebalance.source.group.owned import (
    deleted_partitions as deleted_partitions_module,
)
from pyspark_kafka_rebalance.source.group.owned.deleted_partitions import DeletedPartitions
from pyspark_kafka_rebalance.source.offsets.offset_json import OURS, offset_to_json
from pyspark_kafka_rebalance.source.offsets.stream_offset import MemberState
from pyspark_kafka_rebalance.source.options.source_options import SourceOptions
from pyspark_kafka_rebalance.source.plan.available_now import AvailableNowRun
from pyspark_kafka_rebalance.source.plan.batch_planner import NO_LIMIT
from pyspark_kafka_rebalance.source.plan.data_loss import DataLoss
from pyspark_kafka_rebalance.source.spark.read_limits import ReadMaxRows

P, Q, R, _ = PARTITIONS
UNLIMITED = ReadMaxRows(NO_LIMIT)


class Query:
    """A membership with its fake members, as a planner would use it."""

    def __init__(self, group: Group, membership: QueryMembership) -> None:
        self.group = group
        self.membership = membership

    def start(self) -> None:
        self.membership.start()
        self.membership.join()
        self.rounds(1)

    def rounds(self, count: int = 2) -> None:
        """Wait until the pump has gone through so many whole rounds, or has ended."""
        pump = self.membership._pump
        with self.group.changed:

            def polls() -> int:
                built = len(self.group.members) == self.membership._options.readers
                return min(m.polls for m in self.group.members) if built else -1

            goal = max(0, polls()) + count + 1  # one may be under way; the last must have ended
            # Nobody tells when the pump has ended: looked at now and then.
            patience = iter(range(PATIENCE_S * 20))
            while polls() < goal and pump.is_alive():
                assert next(patience, None) is not None, "the pump does not go round"
                self.group.changed.wait(0.05)

    def read(self, partition: TopicPartition, start: int, end: int) -> dict[str, Any]:
        """Plan a batch; what its offset might be."""
        planned = {partition: a_range(partition, start, end)}
        handed_out = self.membership.hand_out(planned)
        assert handed_out is not None
        assert handed_out.offset.ranges == planned
        offset = {"ends": {str(partition.partition): end}}
        self.membership.proofs.planned(offset)
        return offset


def a_range(partition: TopicPartition, start: int, end: int) -> OffsetRange:
    return OffsetRange(partition.topic, partition.partition, start, end)


class Checkpoint:
    """The query's commit log, and how often it was looked at."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.probes = 0
        real = CommitLog.is_committed

        def counted(log: CommitLog, offset: dict[str, Any]) -> bool:
            self.probes += 1
            return real(log, offset)

        monkeypatch.setattr(CommitLog, "is_committed", counted)

    def write(self, offset: dict[str, Any], *, committed: bool) -> None:
        for log, text in (("offsets", f"v1\n{{}}\n{json.dumps(offset)}"), ("commits", "v1\n{}")):
            (self.root / log).mkdir(parents=True, exist_ok=True)
            if log == "offsets" or committed:
                (self.root / log / "0").write_text(text, "utf-8")


@pytest.fixture
def group() -> Group:
    return Group()


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkpoint:
    return Checkpoint(tmp_path / "checkpoint", monkeypatch)


@pytest.fixture
def make(group: Group, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Query]]:
    made: list[Query] = []

    class Fake:
        DEFAULT_CONFIG: ClassVar = {"request_timeout_ms": 30_000}

        def __new__(cls, **config: Any) -> Any:
            return group.build(**config)

    monkeypatch.setattr(clients_module, "DeferredRevokeConsumer", Fake)

    def make(**options: str) -> Query:
        parsed = SourceOptions.parse(
            {
                "subscribe": "t",
                "kafka.bootstrap.servers": "127.0.0.1:1",
                "kafka.group.id": "g",
                **options,
            },
            default_readers=1,
        )
        made.append(Query(group, QueryMembership(parsed, "run")))
        return made[-1]

    yield make
    for query in made:
        for member in group.members:
            member.may_poll.set()
        query.membership.stop()
        pump = query.membership._pump
        assert not pump.is_alive()


@pytest.fixture
def query(make: Callable[..., Query], group: Group) -> Query:
    """One member, which has P; the group has committed 100 of it."""
    group.committed[P] = 100
    query = make()
    query.start()
    group.members[0].assign(P)
    query.rounds()
    assert query.membership.plannable() == {P: 100}
    return query


# -- members and their start ----------------------------------------------------------------------


def test_the_members_are_built_at_once_and_join_when_they_may(
    make: Callable[..., Query], group: Group
) -> None:
    query = make(readers="3", **{"kafka.group.instance.id": "static"})
    query.membership.start()
    query.membership.start()
    assert (
        sorted(query.membership.log_ends.end_offsets_of_topics()) == PARTITIONS
    )  # once they are built
    assert query.membership._members._built.wait(PATIENCE_S)
    assert [m.polls for m in group.members] == [0, 0, 0], "joined before it was allowed"
    # They are built side by side.
    named = sorted((m.config["client_id"], m.config["group_instance_id"]) for m in group.members)
    assert named == [(f"run-{n}", f"static-{n}") for n in range(3)]
    assert [m.subscribed for m in group.members] == [(["t"], None)] * 3
    query.membership.join()
    query.rounds(1)


def test_a_run_ends_when_the_group_has_what_is_proven(
    query: Query, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    query.membership.proofs.committed(query.read(P, 100, 150))
    query.membership.commits.wait_until_acknowledged()
    assert group.committed == {P: 150}
    group.accepts_commits = False
    query.membership.proofs.committed(query.read(P, 150, 200))
    group.members[0].poll_error = KafkaRebalanceError("refused")
    with pytest.raises(KafkaRebalanceError, match="refused"):
        query.membership.commits.wait_until_acknowledged()


def test_a_missing_topic_is_named(make: Callable[..., Query], group: Group) -> None:
    query = make(subscribe="t,absent,gone")
    query.membership.start()
    with pytest.raises(KafkaRebalanceError, match="absent, gone"):
        query.membership.log_ends.end_offsets_of_topics()
    with pytest.raises(KafkaRebalanceError, match="absent, gone"):
        query.membership.raise_failure()


def test_why_the_pump_ended_comes_before_what_that_did_to_a_look_up(
    query: Query, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    (member,) = group.members

    def closed(partitions: Collection[TopicPartition], timeout_ms: float) -> Any:
        member.poll_error = KafkaRebalanceError("the reason")
        query.rounds(1)
        raise RuntimeError("the connections are closed")

    monkeypatch.setattr(member, "end_offsets_now", closed)
    with pytest.raises(KafkaRebalanceError, match="the reason"):
        query.membership.log_ends.end_offsets([P])


def test_an_unreachable_broker_is_named(make: Callable[..., Query], group: Group) -> None:
    group.build_error = kafka_errors.KafkaTimeoutError("no bootstrap")
    query = make()
    query.membership.start()
    with pytest.raises(KafkaRebalanceError, match=r"127\.0\.0\.1:1"):
        query.membership.log_ends.end_offsets([P])


@pytest.mark.parametrize(
    ("starting", "start"), [("earliest", 0), ("latest", 1_000), ('{"t":{"0":7}}', 7)]
)
def test_a_start_that_the_group_does_not_know_is_committed_at_once(
    make: Callable[..., Query], group: Group, starting: str, start: int
) -> None:
    query = make(startingOffsets=starting)
    query.start()
    group.members[0].assign(P)
    query.rounds(3)
    assert query.membership.plannable() == {P: start}
    assert group.committed == {P: start}
    assert not query.membership.commits.are_open()


@pytest.mark.parametrize("starting", ["latest", "group"])
def test_a_partition_created_while_the_query_runs_is_read_from_its_first_record(
    make: Callable[..., Query], group: Group, starting: str
) -> None:
    query = make(startingOffsets=starting)
    query.start()
    created = TopicPartition("t", 9)
    group.ends[created] = 50
    group.members[0].assign(P, created)
    query.rounds(3)
    assert query.membership.plannable() == {P: 1_000, created: 0}


def test_a_partition_created_between_two_runs_is_read_from_its_first_record(
    make: Callable[..., Query], group: Group
) -> None:
    query = make(startingOffsets="latest")
    query.membership.restore({P: 100})
    query.start()
    group.members[0].assign(P, Q)
    query.rounds(3)
    assert query.membership.plannable() == {P: 100, Q: 0}


@pytest.mark.parametrize(
    ("options", "starts"),
    [
        ({"startingOffsets": "latest"}, {P: 100, Q: 0}),
        ({"startingOffsets": "group"}, {P: 100, Q: 0}),
        ({"startingTimestamp": "5000"}, {P: 100, Q: 0}),
        ({"startingOffsets": '{"t":{"0":-1,"1":-1}}'}, {P: 100, Q: 1_000}),
    ],
)
def test_a_partition_that_is_new_to_the_group_is_read_from_its_first_record(
    make: Callable[..., Query],
    group: Group,
    options: dict[str, str],
    starts: dict[TopicPartition, int],
) -> None:
    """Nobody has read it, although it was there before this query began."""
    group.committed[P] = 100
    query = make(**options)
    query.start()
    group.members[0].assign(P, Q)
    query.rounds(3)
    assert query.membership.plannable() == starts


def test_a_partition_is_not_new_because_another_member_of_a_new_group_was_faster(
    make: Callable[..., Query], group: Group
) -> None:
    query = make(startingOffsets="latest")
    query.start()
    group.committed[P] = 1_000  # by a member that joined in the same generation
    group.members[0].assign(Q)
    query.rounds(3)
    assert query.membership.plannable() == {Q: 1_000}


@pytest.mark.parametrize("has_read", [True, False])
def test_a_partition_that_a_foreign_member_owned_and_never_committed(
    make: Callable[..., Query], group: Group, has_read: bool
) -> None:
    """By ``latest``, what it got while the foreign member had it would be passed over."""
    query = make(startingOffsets="latest")
    query.start()
    group.members[0].assign(P)
    query.rounds(3)
    group.ends[P] = 1_010
    if has_read:
        query.read(P, 1_000, 1_010)
    group.members[0].assign(Q)
    query.rounds(3)
    assert query.membership.plannable()[Q] == (0 if has_read else 1_000)


def test_a_start_that_is_found_after_others_were_read_is_that_of_the_beginning(
    make: Callable[..., Query], group: Group
) -> None:
    """Its leader was away, and another of the query's members has it by then."""
    end = group.ends.pop(Q)
    query = make(startingOffsets="latest", readers="2")
    query.start()
    group.members[0].assign(P, Q)
    query.rounds(3)
    group.ends[P] = 1_010
    query.read(P, 1_000, 1_010)
    group.members[0].revoke(Q)
    query.rounds(3)
    group.members[1].assign(Q)
    query.rounds()
    assert Q not in query.membership.plannable()
    group.ends[Q] = end
    query.rounds(3)
    assert query.membership.plannable()[Q] == end


def test_members_do_not_join_before_the_groups_offsets_are_known(
    make: Callable[..., Query], group: Group
) -> None:
    group.committed[P] = 100
    group.lookup_error = kafka_errors.KafkaTimeoutError()
    query = make(startingOffsets="latest")
    query.membership.start()
    query.membership.join()
    with group.changed:
        assert group.changed.wait_for(lambda: group.lookups > 1, PATIENCE_S)
        assert group.members[0].polls == 0
        group.lookup_error = None
    group.members[0].assign(Q)
    query.rounds(3)
    assert query.membership.plannable() == {Q: 0}


@pytest.mark.parametrize(
    ("initial", "starts"),
    [
        (None, {P: 1_000, Q: 1_000}),  # a new query, or one that an older release began
        ({P, Q}, {P: 1_000, Q: 1_000}),
        ({P}, {P: 1_000, Q: 0}),
        (set(), {P: 0, Q: 0}),  # it has read
    ],
)
def test_a_query_that_has_read_nothing_is_told_where_its_first_partitions_start(
    make: Callable[..., Query],
    group: Group,
    initial: set[TopicPartition] | None,
    starts: dict[TopicPartition, int],
) -> None:
    query = make(startingOffsets="latest")
    query.membership.restore({}, None if initial is None else frozenset(initial))
    query.start()
    group.members[0].assign(P, Q)
    query.rounds(3)
    assert query.membership.plannable() == starts


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": "latest"},
        {"startingOffsets": "group"},
        {"startingOffsets": '{"t":{"0":-1,"1":-1}}'},
        {"startingTimestamp": "9000", "startingOffsetsByTimestampStrategy": "latest"},
    ],
)
def test_records_between_the_start_of_a_query_and_an_assignment_are_its_own(
    make: Callable[..., Query], group: Group, options: dict[str, str]
) -> None:
    """Of 60 records produced from the start of a query on, 25 to 35 were passed over."""
    query = make(**options)
    group.silent.add(Q)  # it has a leader which does not answer in time
    query.membership.start()
    assert query.membership.initial_partitions() >= {P, Q}
    assert query.membership.first_ends([R]).keys() == set(PARTITIONS) - {Q, R}
    group.ends |= {P: 1_030, Q: 1_030}
    query.start()
    group.members[0].assign(P, Q)
    query.rounds(3)
    assert query.membership.plannable() == {P: 1_000, Q: 1_030}


def test_the_first_partitions_are_those_found_first_until_something_is_read(query: Query) -> None:
    found = query.membership.initial_partitions()
    assert found >= {P, Q}
    query.group.ends[TopicPartition("t", 9)] = 50
    query.rounds()
    assert query.membership.initial_partitions() == found
    query.read(P, 100, 150)
    assert query.membership.initial_partitions() == set()


def test_a_start_at_a_time(make: Callable[..., Query], group: Group) -> None:
    late = '{"t":{"0":300,"1":5000}}'
    query = make(startingOffsetsByTimestamp=late, startingOffsetsByTimestampStrategy="latest")
    query.start()
    group.members[0].assign(P, Q, R)
    query.rounds(3)
    assert query.membership.plannable() == {p: group.ends[p] for p in (P, Q, R)} | {P: 300}


def test_a_start_at_a_time_after_the_last_record_ends_the_membership(
    make: Callable[..., Query], group: Group
) -> None:
    query = make(startingTimestamp="5000")
    query.start()
    group.members[0].assign(P)
    query.rounds()
    with pytest.raises(KafkaRebalanceError, match="t-0 has no record with timestamp 5000"):
        query.membership.raise_failure()


def test_a_failed_look_up_of_the_start_is_repeated(
    make: Callable[..., Query], group: Group
) -> None:
    group.committed[P] = 100
    query = make()
    query.start()
    group.lookup_error = kafka_errors.KafkaTimeoutError()
    group.members[0].assign(P)
    query.rounds()
    assert query.membership.plannable() == {}
    group.lookup_error = None
    query.rounds()
    assert query.membership.plannable() == {P: 100}


def test_a_refused_look_up_of_the_start_ends_the_membership(
    make: Callable[..., Query], group: Group
) -> None:
    group.lookup_error = kafka_errors.GroupAuthorizationFailedError()
    query = make()
    query.start()
    group.members[0].assign(P)
    query.rounds()
    with pytest.raises(kafka_errors.GroupAuthorizationFailedError):
        query.membership.raise_failure()


@pytest.mark.parametrize("members", [(), (GroupMember("other"),)])
def test_whether_others_are_in_the_group(
    make: Callable[..., Query], monkeypatch: pytest.MonkeyPatch, members: tuple[GroupMember, ...]
) -> None:
    query = make()
    query.membership.start()
    described = GroupDescription("Stable", members)
    monkeypatch.setattr(joining_module, "ask_cluster", lambda *asked: described)
    assert query.membership.joining.has_others() == bool(members)


def test_a_group_that_nobody_describes_may_have_members(
    make: Callable[..., Query], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*asked: object) -> None:
        raise KafkaRebalanceError("not allowed")

    query = make()
    query.membership.start()
    monkeypatch.setattr(joining_module, "ask_cluster", refuse)
    assert query.membership.joining.has_others()


def test_brokers_that_do_not_answer_the_members_are_not_asked_again_for_the_group(
    make: Callable[..., Query], group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start with brokers whose addresses nobody reaches took four times as long to fail."""
    group.build_error = kafka_errors.KafkaTimeoutError("none answered")
    query = make()
    query.membership.start()
    with pytest.raises(KafkaRebalanceError, match="none answered"):
        query.membership.log_ends.end_offsets([P])
    asked: list[Any] = []
    monkeypatch.setattr(joining_module, "ask_cluster", lambda options, what, ask: ask(None))
    monkeypatch.setattr(joining_module, "describe_group", lambda *one: asked.append(one))
    with pytest.raises(KafkaRebalanceError, match="none answered"):
        query.membership.joining.has_others()
    assert not asked


def test_a_first_batch_waits_for_the_starts_of_its_partitions_and_no_longer_than_it_may(
    make: Callable[..., Query], group: Group
) -> None:
    query = make()
    query.start()
    group.lookup_error = kafka_errors.KafkaTimeoutError()
    group.members[0].assign(P)
    query.rounds()
    query.membership.joining.wait_until_positioned(lambda: False, timeout_s=0.0)
    asked_to_stop = iter([False, True])
    query.membership.joining.wait_until_positioned(
        lambda: next(asked_to_stop), timeout_s=PATIENCE_S
    )
    assert query.membership.unpositioned() == [P]
    group.lookup_error = None
    query.membership.joining.wait_until_positioned(lambda: False, timeout_s=PATIENCE_S)
    assert query.membership.plannable() == {P: 1_000}


# -- a run with an end ----------------------------------------------------------------------------


def test_members_of_a_run_with_an_end_exchange_their_partitions_before_its_first_batch(
    make: Callable[..., Query], group: Group, described: list[GroupMember]
) -> None:
    """The one batch of Once read what the first member was left with."""
    group.committed |= {P: 150, Q: 150}
    query = make(includeRebalanceEvents="true", readers="2")
    query.membership.restore({P: 150, Q: 150})
    query.start()
    first, second = group.members
    first.assign(P, Q)
    query.rounds()
    first.revoke(Q)
    query.rounds()
    assert first.released == set(), "unless the run has an end"
    patience = iter(range(100))

    def until() -> bool:
        if Q in first.released and not second.owned:
            second.assign(Q)
        return next(patience, None) is None

    query.membership.coverage.wait({P: 200, Q: 200}, until)
    assert next(patience, None) is not None, "it is not settled"
    assert query.membership.plannable() == {P: 150, Q: 150}


@pytest.mark.parametrize("start_is_known", [True, False])
def test_a_revoke_that_comes_during_a_look_does_not_wait_for_a_batch_before_there_is_one(
    make: Callable[..., Query],
    group: Group,
    monkeypatch: pytest.MonkeyPatch,
    start_is_known: bool,
) -> None:
    """It broke the wait off, so that Once ended without what a dead member still owned."""
    group.committed |= {P: 150, Q: 150}
    if not start_is_known:
        group.committed[Q] = 140  # Spark alone has committed a batch of Q
    group.accepts_commits = start_is_known
    query = make(includeRebalanceEvents="true")
    query.membership.restore({P: 150, Q: 150})
    query.start()
    (member,) = group.members
    member.assign(P)
    query.rounds()
    coverage = query.membership.coverage
    looks = iter(range(5))

    def uncovered(ends: object) -> list[TopicPartition]:
        """As long as the brokers take to answer, a poll tells of a revoke."""
        look = next(looks, None)
        if look is None:
            return []
        if look == 1:
            if not start_is_known:
                group.lookup_error = kafka_errors.KafkaTimeoutError("not now")
            member.assign(Q)
            query.rounds()
            member.revoke(Q)
            query.rounds()
        if look == 4:
            group.lookup_error, group.accepts_commits = None, True
        return [R]

    monkeypatch.setattr(coverage, "uncovered", uncovered)
    patience = iter(range(100))
    coverage.wait({P: 200, Q: 200, R: 200}, lambda: next(patience, None) is None)
    assert next(looks, None) is None, "it was not waited for"
    assert Q in member.released


@pytest.mark.parametrize("has_end", [True, False])
def test_a_revoke_that_waits_for_its_row_is_not_waited_for_before_the_batch_with_it(
    make: Callable[..., Query], group: Group, described: list[GroupMember], has_end: bool
) -> None:
    group.committed[P] = 150
    query = make(includeRebalanceEvents="true")
    query.membership.restore({P: 150})
    query.start()
    group.members[0].assign(P)
    query.rounds()
    if has_end:  # else its members may exchange what nothing was read of
        query.read(P, 150, 160)
    group.members[0].revoke(P)
    query.rounds()
    assert group.members[0].released == set()
    patience = iter(range(100))
    impatient = lambda: next(patience, None) is None  # noqa: E731
    if has_end:
        query.membership.coverage.wait({P: 200}, impatient)
    else:
        query.membership.joining.wait_until_positioned(
            impatient, PATIENCE_S, unchanged_s=PATIENCE_S
        )
    assert next(patience, None) is not None, "it was waited for"


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> list[GroupMember]:
    """What the coordinator says of the other members, and of the group's epoch: 5."""
    others: list[GroupMember] = []

    def ask(options: SourceOptions, what: str, ask: object, *, is_start: bool) -> GroupDescription:
        assert not is_start, "a running query has more patience"
        return GroupDescription("Stable", tuple(others), epoch=5)

    monkeypatch.setattr(live_owner_watch_module, "ask_cluster", ask)
    monkeypatch.setattr(live_owner_watch_module, "_LOOK_EVERY_S", 0.0)
    return others


def an_owner(partition: TopicPartition, epoch: int) -> GroupMember:
    owned = frozenset({partition})
    return GroupMember("other", owned, member_id="other", target=owned, epoch=epoch)


def test_covered_when_every_member_has_joined_and_every_partition_is_ours(
    make: Callable[..., Query], group: Group
) -> None:
    query = make(readers="2")
    query.start()
    group.members[0].assign(*PARTITIONS)
    group.members[1].is_stable = False
    waited = threading.Thread(target=query.membership.coverage.wait)
    waited.start()
    query.rounds(3)
    assert waited.is_alive(), "a member has not joined"
    group.members[1].is_stable = True
    waited.join(PATIENCE_S)
    assert not waited.is_alive()


def test_a_member_that_has_not_shown_itself_since_we_joined_covers_nothing(
    query: Query, described: list[GroupMember]
) -> None:
    described += [an_owner(Q, epoch=5), an_owner(R, epoch=4)]
    query.group.committed |= {R: 999, PARTITIONS[3]: 1_000}
    assert query.membership.coverage.uncovered() == [R]
    assert query.membership.coverage.uncovered({P: 1_000, Q: 1_000}) == []
    assert query.membership.coverage.uncovered({R: 999}) == [], "it had come as far as that"
    query.group.members[0].session_timeout_ms = 0
    assert query.membership.coverage.uncovered() == [], "the broker would have put it out by now"


def test_before_we_have_joined_nothing_of_others_is_covered(
    query: Query, described: list[GroupMember]
) -> None:
    described += [an_owner(Q, epoch=5)]
    query.group.members[0].is_stable = False
    assert query.membership.coverage.uncovered({P: 1_000, Q: 1_000}) == [Q]


def test_a_partition_on_its_way_from_a_member_to_another_is_not_covered(
    query: Query, described: list[GroupMember]
) -> None:
    leaves = GroupMember("other", frozenset({Q}), member_id="other", epoch=5)
    comes = GroupMember("third", member_id="third", target=frozenset({Q}), epoch=5)
    described += [leaves, comes]
    assert query.membership.coverage.uncovered({Q: 1_000}) == [Q]


def test_what_stays_uncovered_is_named(
    make: Callable[..., Query], group: Group, described: list[GroupMember]
) -> None:
    query = make(**{"kafka.max.poll.interval.ms": "10001", "kafka.session.timeout.ms": "10000"})
    query.start()
    group.members[0].session_timeout_ms = -10_001
    group.members[0].assign(P, Q, R)
    query.rounds()
    with pytest.raises(KafkaRebalanceError, match=r"not read to the end.*neither.*: t-3"):
        query.membership.coverage.wait()


def test_nothing_is_waited_for_longer_than_another_load_of_the_query_allows(
    make: Callable[..., Query], group: Group, described: list[GroupMember]
) -> None:
    query = make()
    query.start()
    group.members[0].assign(P, Q, R)
    group.members[0].is_stable = False
    waited = threading.Thread(
        target=query.membership.coverage.wait, kwargs={"patience_s": lambda: 0.0}
    )
    waited.start()
    query.rounds(3)
    assert waited.is_alive(), "it has not joined"
    group.members[0].is_stable = True
    waited.join(PATIENCE_S)
    assert not waited.is_alive()
    assert query.membership.coverage.uncovered() == [PARTITIONS[3]]


# -- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [RuntimeError("in the pump"), SystemExit(3)])
def test_an_error_of_the_pump_is_raised_by_the_next_call(
    query: Query, error: BaseException
) -> None:
    query.membership.raise_failure()  # nothing yet
    query.group.members[0].poll_error = error
    query.rounds()
    for _ in range(2):
        with pytest.raises(type(error)) as raised:
            query.membership.raise_failure()
        assert raised.value is error
    with pytest.raises(type(error)):
        query.membership.log_ends.end_offsets([P, Q, R])
    with pytest.raises(type(error)):
        query.membership.coverage.wait()
    assert query.group.members[0].closed == 1, "a failed membership does not stay in the group"


# -- planning -------------------------------------------------------------------------------------


def test_what_is_handed_out_and_its_state(make: Callable[..., Query], group: Group) -> None:
    group.committed = {P: 100, Q: 200}
    query = make(readers="2")
    query.start()
    group.members[0].assign(P, generation=41)
    group.members[1].assign(Q, generation=42)
    query.rounds()
    group.members[1].revoke(Q)
    query.rounds(1)
    handed_out = query.membership.hand_out({P: a_range(P, 100, 150)})
    assert handed_out is not None
    offset = handed_out.offset
    assert offset.ranges == {P: a_range(P, 100, 150)}
    assert offset.events == ()
    assert offset.members == (MemberState(41, (P,)), MemberState(42))
    assert offset.lost == frozenset()


def test_a_lease_that_does_not_hold_leaves_its_partitions_out(
    make: Callable[..., Query], group: Group
) -> None:
    group.committed = {P: 100, Q: 200}
    query = make(readers="2")
    query.start()
    group.members[0].assign(P)
    group.members[1].assign(Q)
    query.rounds()
    planned = {P: a_range(P, 100, 150), Q: a_range(Q, 200, 250)}
    group.members[0].lease_holds = False
    handed_out = query.membership.hand_out(planned)
    assert handed_out is not None
    assert handed_out.offset.ranges == {Q: planned[Q]}
    assert query.membership.hand_out({P: planned[P]}) is None
    group.members[0].lease_holds = True
    handed_out = query.membership.hand_out({P: planned[P]})
    assert handed_out is not None
    assert handed_out.offset.ranges == {P: planned[P]}


def test_with_an_order_a_lease_that_does_not_hold_leaves_the_batch_out(
    make: Callable[..., Query], group: Group
) -> None:
    group.committed = {P: 100, Q: 200}
    query = make(readers="2", maxTaskIdleMs="0")
    query.start()
    group.members[0].assign(P)
    group.members[1].assign(Q)
    query.rounds()
    planned = {P: a_range(P, 100, 150), Q: a_range(Q, 200, 250)}
    group.members[0].lease_holds = False
    assert query.membership.hand_out(planned) is None
    assert query.membership.plannable() == {P: 100, Q: 200}
    group.members[0].lease_holds = True
    handed_out = query.membership.hand_out(planned)
    assert handed_out is not None
    assert handed_out.offset.ranges == planned


@pytest.mark.parametrize(("options", "noted"), [({"maxTaskIdleMs": "0"}, {P}), ({}, set())])
def test_with_an_order_what_is_passed_on_between_two_batches_is_noted(
    make: Callable[..., Query], group: Group, options: dict[str, str], noted: set[TopicPartition]
) -> None:
    group.committed = {P: 100}
    query = make(readers="2", **options)
    query.start()
    group.members[0].assign(P)
    query.rounds()
    group.members[0].revoke(P)
    query.rounds()
    with query.membership._state as state:
        assert P not in state.assignment.partitions.all()
        assert state.gained == noted


def test_a_revoke_requested_during_planning_leaves_the_partition_out(query: Query) -> None:
    planned = {P: a_range(P, 100, 150)}
    assert query.membership.plannable() == {P: 100}
    query.membership.log_ends.end_offsets([P])
    query.group.members[0].revoke(P)
    query.rounds()
    assert query.membership.hand_out(planned) is None
    query.rounds()
    assert query.group.members[0].released == {P}


def test_a_loss_during_planning_leaves_the_partition_out(query: Query) -> None:
    planned = {P: a_range(P, 100, 150)}
    query.group.members[0].lose(P)
    query.rounds()
    assert query.membership.hand_out(planned) is None


def test_a_revoke_requested_while_ranges_are_recorded_waits_for_them(query: Query) -> None:
    """The release must not slip between the last look at the revokes and the record."""
    member = query.group.members[0]

    def request() -> None:
        with query.group.changed:
            member.while_planning = lambda: None
            seen = member.polls
            member._to_revoke.add(P)
            member.may_poll.set()
            # The pump learns of it now, and may come as far as releasing it, were it let.
            assert query.group.changed.wait_for(lambda: member.polls > seen, PATIENCE_S)
            query.group.changed.wait_for(lambda: member.polls > seen + 2, 0.3)

    member.while_planning = request
    member.may_poll.clear()
    assert member.hangs.wait(PATIENCE_S)  # else it may wait for the planner before its next poll
    query.read(P, 100, 150)
    query.rounds(3)
    assert member.ownership.revoking == {P}
    assert member.released == set()


def test_lost_is_told_with_the_next_batch_once(make: Callable[..., Query], group: Group) -> None:
    group.committed = {P: 100, Q: 200}
    query = make()
    query.start()
    group.members[0].assign(P, Q)
    query.rounds()
    query.read(P, 100, 150)
    group.members[0].lose(P)
    query.rounds()
    state = query.membership.state_of([P, Q])
    assert [member.partitions for member in state.offset.members] == [(Q,)]
    for expected in ({P}, set()):
        position = query.membership.plannable()[Q]
        handed_out = query.membership.hand_out({Q: a_range(Q, position, position + 1)})
        assert handed_out is not None
        assert handed_out.offset.lost == expected


def test_events_alone_are_worth_a_batch(make: Callable[..., Query], group: Group) -> None:
    group.committed[P] = 100
    query = make(includeRebalanceEvents="true")
    query.start()
    assert query.membership.hand_out({}) is None
    group.members[0].assign(P, generation=41)
    query.rounds()
    handed_out = query.membership.hand_out({})
    assert handed_out is not None
    assert [(e.event, e.partition, e.generation) for e in handed_out.offset.events] == [
        ("assigned", P, 41)
    ]
    assert query.membership.hand_out({}) is None


def test_end_offsets_leave_out_what_has_no_leader(query: Query) -> None:
    del query.group.ends[Q]
    assert query.membership.log_ends.end_offsets([P, Q]) == {P: 1_000}
    assert query.membership.known_end_offsets() == {P: 1_000}


def test_the_end_offset_of_what_is_being_revoked_stays_known(
    make: Callable[..., Query], group: Group
) -> None:
    group.committed = {P: 100, Q: 200}
    query = make()
    query.start()
    group.members[0].assign(P, Q)
    query.rounds()
    query.membership.log_ends.end_offsets([P, Q])
    assert query.membership.known_end_offsets().keys() == {P, Q}
    query.read(P, 100, 150)
    group.members[0].revoke(P)
    query.rounds()
    query.membership.log_ends.end_offsets(query.membership.plannable())
    assert query.membership.known_end_offsets().keys() == {P, Q}
    group.members[0].lose(P)
    query.rounds()
    assert query.membership.known_end_offsets().keys() == {Q}


def test_the_high_watermark_is_not_asked_for_where_it_is_the_end_offset(query: Query) -> None:
    ends = query.membership.log_ends
    before = query.group.lookups
    ends.end_offsets([P])
    assert ends.high_watermarks({P: 1_001}) == {P: 1_000}
    assert query.group.lookups == before


def test_the_high_watermark_is_asked_for_now_and_then_while_a_transaction_is_open(
    make: Callable[..., Query], group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = make(**{"kafka.isolation.level": "read_committed"})
    query.start()
    ends = query.membership.log_ends
    group.high_watermarks = {P: 1_010}
    before = group.lookups
    for _ in range(3):
        assert ends.high_watermarks({P: 1_005}) == {P: 1_010}
    assert group.lookups == before + 1
    group.high_watermarks = {P: 1_020}
    assert ends.high_watermarks({P: 1_015}) == {P: 1_020}, "an old one says nothing of a loss"
    group.high_watermarks = {P: 1_000}
    assert ends.high_watermarks({P: 1_015}) == {P: 1_020}
    monkeypatch.setattr(log_ends_module, "_HIGH_WATERMARKS_MAX_AGE_S", -1.0)
    assert ends.high_watermarks({P: 1_015}) == {P: 1_000}


class LogSizes:
    """What leaders tell of their logs, and what they were asked."""

    def __init__(self) -> None:
        self.sizes = {P: 10_000, Q: 500}
        self.asked: list[dict[TopicPartition, int]] = []
        self.errors: list[Exception] = []

    def __call__(
        self, config: object, leaders: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        self.asked.append(dict(leaders))
        if self.errors:
            raise self.errors.pop()
        return {p: self.sizes[p] for p in leaders if p in self.sizes}


@pytest.fixture
def log_sizes(monkeypatch: pytest.MonkeyPatch) -> LogSizes:
    sizes = LogSizes()
    monkeypatch.setattr(log_ends_module, "log_sizes", sizes)
    monkeypatch.setattr(log_ends_module, "_SIZES_AGAIN_S", 0.0)
    return sizes


def test_what_an_offset_takes_is_asked_for_now_and_then(
    query: Query, log_sizes: LogSizes, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, errors = log_sizes.asked, log_sizes.errors
    ends = query.membership.log_ends
    assert ends.bytes_per_offset({P: 1_000}) == {P: 10.0}
    assert ends.bytes_per_offset({P: 1_010}) == {P: 10.0}
    assert asked == [{P: 1}]
    errors.append(kafka_errors.KafkaConnectionError("gone"))
    assert ends.bytes_per_offset({P: 1_000, Q: 1_000}) == {P: 10.0}, "Q waits for an answer"
    assert ends.bytes_per_offset({P: 1_000, Q: 1_000}) == {P: 10.0, Q: 0.5}
    assert ends.bytes_per_offset({Q: 1_000}) == {Q: 0.5}
    assert asked[1:] == [{Q: 2}, {Q: 2}]
    monkeypatch.setattr(log_ends_module, "_BYTES_PER_OFFSET_MAX_AGE_S", -1.0)
    errors.append(kafka_errors.KafkaConnectionError("gone"))
    query.group.ends[P] = 1_250
    assert ends.bytes_per_offset({P: 1_250}) == {P: 10.0}, "better old than none"
    assert ends.bytes_per_offset({P: 1_250}) == {P: 8.0}
    errors.append(kafka_errors.ClusterAuthorizationFailedError())
    with pytest.raises(kafka_errors.ClusterAuthorizationFailedError):
        ends.bytes_per_offset({P: 2_000})


def test_what_an_offset_takes_is_asked_for_when_the_log_is_much_longer(
    query: Query, log_sizes: LogSizes
) -> None:
    """Any number of records fitted into ``maxBytesPerTrigger`` after a look at an empty log."""
    asked, sizes, logs = log_sizes.asked, log_sizes.sizes, query.group.ends
    ends = query.membership.log_ends

    def look(end: int, size: int) -> float | None:
        logs[P], sizes[P] = end, size
        return ends.bytes_per_offset({P: end, Q: 1_000}).get(P)

    assert look(0, 0) == 0.0
    assert look(1, 70) == 70.0
    assert look(80, 20_000_000) == 250_000.0
    assert asked == [{P: 1, Q: 2}, {P: 1}, {P: 1}]
    assert look(100, 20_001_000) == 250_000.0, "a quarter"
    assert look(101, 20_200_000) == 200_000.0
    assert look(40, 80) == 2.0, "another log"
    log_sizes.errors.append(kafka_errors.KafkaConnectionError("gone"))
    assert look(400, 800) is None, "unknown is better than wrong"
    assert ends.bytes_per_offset({P: 400, Q: 1_000}) == {P: 2.0, Q: 0.5}


def test_what_an_offset_takes_is_that_of_open_transactions_as_well(
    query: Query, log_sizes: LogSizes
) -> None:
    """Their bytes, shared by the offsets before them, left one record for each batch."""
    ends = query.membership.log_ends
    query.group.high_watermarks[P] = 2_000
    assert ends.bytes_per_offset({P: 0}) == {P: 5.0}
    assert ends.bytes_per_offset({P: 2_001}) == {P: 5.0}
    assert len(log_sizes.asked) == 1


def test_a_leader_that_does_not_tell_leaves_out_only_its_own_partitions(
    query: Query, log_sizes: LogSizes
) -> None:
    ends = query.membership.log_ends
    del log_sizes.sizes[Q]
    assert ends.bytes_per_offset({P: 1_000, Q: 1_000}) == {P: 10.0}
    log_sizes.sizes[Q] = 500
    query.group.silent = {Q}
    assert ends.bytes_per_offset({P: 1_000, Q: 1_000}) == {P: 10.0}
    query.group.silent = set()
    assert ends.bytes_per_offset({P: 1_000, Q: 1_000}) == {P: 10.0, Q: 0.5}


def test_a_leader_that_does_not_tell_is_not_asked_by_every_idle_trigger(
    query: Query, log_sizes: LogSizes, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_000.0]
    monkeypatch.setattr(log_ends_module, "_SIZES_AGAIN_S", 5.0)
    monkeypatch.setattr(log_ends_module.time, "monotonic", lambda: now[0])
    ends = query.membership.log_ends
    del log_sizes.sizes[Q]
    for _ in range(3):
        assert ends.bytes_per_offset({P: 1_000, Q: 1_000}) == {P: 10.0}
    assert len(log_sizes.asked) == 1
    now[0] += 5.0
    log_sizes.sizes[Q] = 500
    assert ends.bytes_per_offset({P: 1_000, Q: 1_000}) == {P: 10.0, Q: 0.5}


# -- proof, commits and release -------------------------------------------------------------------


def test_nothing_is_committed_before_its_proof(query: Query) -> None:
    offset = query.read(P, 100, 150)
    query.rounds(3)
    assert query.group.committed == {P: 100}
    query.membership.proofs.committed({"another": "offset"})
    query.rounds()
    assert query.group.committed == {P: 100}
    query.membership.proofs.committed(offset)
    query.rounds()
    assert query.group.committed == {P: 150}
    query.rounds()
    assert not query.membership.commits.are_open()


def test_a_trigger_from_elsewhere_than_the_last_batch_is_refused(query: Query) -> None:
    offset = query.read(P, 100, 150)
    with pytest.raises(KafkaRebalanceError, match="restart the query"):
        query.membership.proofs.begin_trigger({"another": "offset"})
    query.membership.proofs.begin_trigger(offset)


def test_a_trigger_proves_the_batch_before_it_if_spark_has_logged_it(query: Query) -> None:
    query.membership.proofs.begin_trigger({"the": "start"})
    offset = query.read(P, 100, 150)
    query.membership.proofs.committed({"the": "start"})  # once the batch is in the log
    query.membership.proofs.begin_trigger(offset)
    query.membership.proofs.begin_trigger(offset)  # idle triggers come again and again
    query.rounds()
    assert query.group.committed == {P: 150}
    assert not query.membership.proofs.want_commit()


def test_a_trigger_proves_every_batch_of_a_run_that_tracks_its_progress_itself(
    query: Query,
) -> None:
    query.membership.proofs.progress_is_synchronous()  # Once: nothing ever calls commit
    query.membership.proofs.begin_trigger({"the": "start"})
    offset = query.read(P, 100, 150)
    query.membership.proofs.begin_trigger(offset)
    query.rounds()
    assert query.group.committed == {P: 150}


def test_what_was_acknowledged_since_the_last_look_is_not_committed_once_more(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[dict[TopicPartition, int]] = []
    real = FakeMember.commit_processed

    def noted(member: FakeMember, offsets: Mapping[TopicPartition, int]) -> None:
        said.append(dict(offsets))
        real(member, offsets)

    monkeypatch.setattr(FakeMember, "commit_processed", noted)
    query.membership.proofs.committed(query.read(P, 100, 150))
    query.rounds(3)
    assert not query.membership.commits.are_open()
    assert said == [{P: 150}]


def test_async_progress_tracking_commits_what_spark_commits_and_nothing_ahead(
    query: Query,
) -> None:
    """Triggers run ahead of Spark's log: a kill would have it go on from before them."""
    membership = query.membership
    member = query.group.members[0]
    membership.proofs.begin_trigger({"the": "start"})
    first = query.read(P, 100, 150)
    membership.proofs.begin_trigger(first)
    second = query.read(P, 150, 170)
    membership.proofs.begin_trigger(second)
    member.revoke(P)
    query.rounds(3)
    assert query.group.committed == {P: 100}
    assert member.released == set()
    assert membership.proofs.want_commit(), "nothing else makes Spark go on"
    assert not membership.proofs.want_commit(), "once in a while"
    assert membership.offset_without_ranges().pending == {P: a_range(P, 100, 170)}
    membership.proofs.committed(first)
    query.rounds(3)
    assert query.group.committed == {P: 150}
    assert member.released == set()
    assert membership.offset_without_ranges().pending == {P: a_range(P, 150, 170)}
    membership.proofs.committed(second)
    query.rounds(4)
    assert query.group.committed == {P: 170}
    assert member.released == {P}
    assert membership.offset_without_ranges().pending == {}


def test_once_seen_async_progress_tracking_is_not_forgotten(query: Query) -> None:
    """Another source of the query may have had batches of its own: the same commit comes twice."""
    membership = query.membership
    membership.proofs.begin_trigger({"the": "start"})
    first = query.read(P, 100, 150)
    membership.proofs.begin_trigger(first)
    second = query.read(P, 150, 170)
    membership.proofs.committed(first)
    membership.proofs.begin_trigger(second)
    query.rounds(3)
    assert query.group.committed == {P: 150}


def test_a_revoke_waits_until_the_commit_of_its_batch_is_acknowledged(query: Query) -> None:
    member = query.group.members[0]
    query.group.accepts_commits = False
    offset = query.read(P, 100, 150)
    member.revoke(P)
    query.rounds(3)
    assert member.delayed == {P}, "its batch is under way"
    assert member.released == set()
    query.membership.proofs.committed(offset)
    query.rounds(3)
    assert member.delayed == {P}, "its commit is not acknowledged"
    assert member.released == set()
    query.group.accepts_commits = True
    query.rounds(4)
    assert member.released == {P}
    assert query.group.committed == {P: 150}
    assert query.membership.plannable() == {}


def test_what_is_not_revoked_goes_on_during_a_revoke(
    make: Callable[..., Query], group: Group
) -> None:
    group.committed = {P: 100, Q: 200}
    query = make()
    query.start()
    group.members[0].assign(P, Q)
    query.rounds()
    query.read(P, 100, 150)
    group.members[0].revoke(P)
    query.rounds()
    assert query.membership.plannable() == {Q: 200}


def test_a_revoke_that_is_taken_back(query: Query) -> None:
    member = query.group.members[0]
    query.read(P, 100, 150)
    member.revoke(P)
    query.rounds()
    assert query.membership.plannable() == {}
    member.take_revoke_back(P)
    query.rounds()
    assert query.membership.plannable() == {P: 150}


def test_released_and_given_back_in_one_poll(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    member = query.group.members[0]
    poll = member.poll_membership

    def poll_membership() -> PollResult:
        result = poll()
        if result.revoked:
            member.ownership.assigned(member.owned | result.revoked, generation=1, now=0)
        return replace(result, assigned=result.assigned | result.revoked)

    monkeypatch.setattr(member, "poll_membership", poll_membership)
    member.revoke(P)
    query.rounds(4)
    assert member.released == {P}
    assert query.membership.plannable() == {P: 100}


def test_a_loss_and_quick_rejoin(query: Query) -> None:
    member = query.group.members[0]
    offset = query.read(P, 100, 150)
    member.lose(P)
    member.assign(P, generation=2)
    query.rounds(3)
    assert query.membership.plannable() == {P: 150}
    assert query.group.committed == {P: 100}
    query.membership.proofs.committed(offset)
    query.rounds(3)
    assert query.group.committed == {P: 150}
    members = query.membership.state_of([P]).offset.members
    assert [member.generation for member in members] == [2]


def test_what_is_lost_is_not_committed_but_not_forgotten(
    make: Callable[..., Query], group: Group
) -> None:
    group.committed = {P: 100, Q: 200}
    query = make()
    query.start()
    group.members[0].assign(P, Q)
    query.rounds()
    offset = query.read(P, 100, 150)
    group.members[0].lose(P)
    query.rounds()
    query.membership.proofs.committed(offset)
    query.rounds(3)
    assert group.committed[P] == 100
    handed_out = query.membership.hand_out({Q: a_range(Q, 200, 201)})
    assert handed_out is not None
    assert handed_out.offset.others == {P: 150}


def test_where_partitions_start_is_logged_before_there_is_a_record(
    make: Callable[..., Query], group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = make(startingOffsets="latest")
    query.start()
    assert not query.membership.wants_log(at_once=True)
    group.members[0].assign(P, Q)
    query.rounds(3)
    monkeypatch.setattr(membership_module, "_LOG_POSITIONS_AFTER_S", 1_000.0)
    assert not query.membership.wants_log(at_once=False), "records may be about to come"
    assert query.membership.wants_log(at_once=True)
    monkeypatch.setattr(membership_module, "_LOG_POSITIONS_AFTER_S", 0.0)
    assert query.membership.wants_log(at_once=False)
    assert query.membership.offset_without_ranges().others == {P: 1_000, Q: 1_000}
    assert not query.membership.wants_log(at_once=True)


@pytest.mark.parametrize("starting", ["latest", '{"t":{"0":7}}', "earliest"])
def test_a_checkpoint_needs_no_group(
    make: Callable[..., Query], group: Group, starting: str
) -> None:
    query = make(startingOffsets=starting)
    query.membership.restore({P: 150, Q: 10})
    query.start()
    group.members[0].assign(P)
    query.rounds(3)
    assert query.membership.plannable() == {P: 150}
    assert group.committed == {P: 150}
    assert query.membership.offset_without_ranges().others == {P: 150, Q: 10}


def test_where_the_group_has_gone_back_since_the_query_joined_its_checkpoint_does_not_count(
    make: Callable[..., Query], group: Group
) -> None:
    """Another has found the log shorter. A query that owned nothing until then skipped records."""
    group.committed = {P: 150, Q: 10}
    group.lookup_error = kafka_errors.KafkaTimeoutError()
    query = make(startingOffsets="earliest")
    query.membership.restore({P: 150, Q: 12})
    query.start()
    query.rounds(3)
    group.lookup_error = None
    query.rounds(3)
    group.committed[P] = 40
    group.members[0].assign(P, Q)
    query.rounds(3)
    assert query.membership.plannable() == {P: 40, Q: 12}
    assert group.committed == {P: 40, Q: 12}


def test_the_group_is_asked_once_for_what_the_checkpoint_knows_and_is_there(
    make: Callable[..., Query], group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is gone, or hidden, it may refuse to tell."""
    asked: list[Collection[TopicPartition]] = []
    real = FakeMember.committed_offsets

    def noted(
        member: FakeMember, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, int]:
        asked.append(partitions)
        return real(member, partitions, timeout_ms)

    monkeypatch.setattr(FakeMember, "committed_offsets", noted)
    query = make(startingOffsets="earliest")
    query.membership.restore({P: 150, TopicPartition("gone", 0): 3})
    query.start()
    query.rounds(3)
    assert asked == [[P]]


def test_a_replay_of_sparks_own_source_is_not_read_again_where_the_group_is_set_back(
    make: Callable[..., Query], group: Group
) -> None:
    group.committed = {P: 900}
    query = make()
    end = {"ends": {"0": 150}}
    query.membership.resume({P: 100}, {P: a_range(P, 100, 150)}, end, [P])
    query.start()
    query.rounds(3)
    group.members[0].assign(P)
    query.rounds(3)
    assert group.committed == {P: 100}
    assert query.membership.plannable() == {P: 150}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"startingOffsets": "earliest"}, "startingOffsets"),
        ({"startingOffsets": "latest"}, "startingOffsets"),
        ({"startingOffsets": '{"t":{"0":5,"1":100}}'}, "startingOffsets"),
        ({"startingTimestamp": "5", "startingOffsets": "earliest"}, "startingTimestamp"),
        ({"startingOffsetsByTimestamp": '{"t":{"0":5}}'}, "startingOffsetsByTimestamp"),
    ],
)
def test_who_names_a_start_without_a_checkpoint_is_told_that_the_groups_offset_counts(
    make: Callable[..., Query],
    group: Group,
    options: dict[str, str],
    named: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A deleted checkpoint no longer meant reading again, without a line in the log."""
    group.committed = {P: 150, Q: 100}
    query = make(**options)
    query.membership.restore({})
    query.start()
    group.members[0].assign(P, Q, R)
    query.rounds(3)
    assert query.membership.plannable().items() >= {P: 150, Q: 100}.items()
    told = [r for r in caplog.records if "the query has no checkpoint" in r.getMessage()]
    assert [r.levelname for r in told] == ["WARNING"]
    text = told[0].getMessage()
    assert f"count instead of {named}: t-0 at 150" in text
    assert ("t-1 at 100" in text) == ("{" not in next(iter(options.values()))), "named as it is"
    assert text.endswith(
        "kafka-consumer-groups.sh --bootstrap-server 127.0.0.1:1 --group g --delete-offsets "
        "--topic t"
    )


@pytest.mark.parametrize("why", ["the group", "a checkpoint", "an empty group", "others"])
def test_where_a_named_start_is_not_expected_to_count_nothing_is_told(
    make: Callable[..., Query], group: Group, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    group.committed = {} if why == "an empty group" else {P: 150}
    query = make(startingOffsets="group" if why == "the group" else "earliest")
    query.membership.restore({Q: 7} if why == "a checkpoint" else {})
    query.membership.joining.found_others = why == "others"
    with caplog.at_level(logging.INFO):
        query.start()
        group.members[0].assign(P)
        query.rounds(3)
    assert query.membership.plannable() == {P: group.committed.get(P, 0)}
    told = [r for r in caplog.records if "the query has no checkpoint" in r.getMessage()]
    assert [r.levelname for r in told] == (["INFO"] if why == "others" else [])


def test_a_checkpoint_does_not_ask_for_a_record_at_the_starting_timestamp(
    make: Callable[..., Query], group: Group
) -> None:
    """There may be none, which is an error of a query that starts."""
    query = make(startingTimestamp="5000")
    query.membership.restore({P: 150})
    query.start()
    group.members[0].assign(P)
    query.rounds(3)
    assert query.membership.plannable() == {P: 150}


def test_where_sparks_own_source_ended_counts_and_the_group_is_set_back(
    make: Callable[..., Query], group: Group
) -> None:
    """Else what lies between is delivered by nobody: that source knows of no group."""
    group.committed = {P: 900, Q: 5}
    group.accepts_commits = False
    query = make()
    query.membership.restore({P: 150, Q: 10, R: 30}, None, [P, Q, R])
    assert query.membership.offset_without_ranges().imported == {P, Q, R}
    query.start()
    group.members[0].assign(P, Q)
    query.rounds(3)
    assert query.membership.plannable() == {Q: 10}, "the group is still ahead"
    assert query.membership.offset_without_ranges().imported == {P, R}, "for a restart now"
    group.accepts_commits = True
    query.rounds(3)
    assert query.membership.plannable() == {P: 150, Q: 10}
    assert group.committed == {P: 150, Q: 10}
    assert query.membership.offset_without_ranges().imported == {R}
    # From now on it is a partition like any other.
    group.members[0].lose(P)
    query.rounds(2)
    group.committed[P] = 400
    group.members[0].assign(P, generation=2)
    query.rounds(3)
    assert query.membership.plannable() == {P: 400, Q: 10}


def test_positions_of_deleted_topics_do_not_pile_up(
    make: Callable[..., Query], group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion_watch_module, "_FORGET_EVERY_S", 0.0)
    gone, hidden, other = (TopicPartition(t, 0) for t in ("gone", "hidden", "other"))
    group.topics = {"t", "other"}
    group.hidden = {"hidden"}
    query = make()
    query.membership.restore({P: 150, gone: 3, hidden: 4, other: 5})
    query.start()
    query.rounds(3)
    known = query.membership.offset_without_ranges().others
    assert known == {P: 150, hidden: 4, other: 5}


@pytest.mark.parametrize("known", [False, True])
def test_what_is_assigned_when_it_was_deleted_is_not_this_querys_to_miss(
    make: Callable[..., Query], group: Group, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """The leader's metadata were those of before; the one that had it until then misses it."""
    monkeypatch.setattr(deleted_partitions_module, "_LOOK_EVERY_S", 0.0)
    query = make(startingOffsets="earliest")
    query.start()
    if known:
        group.members[0].assign(P)
        query.rounds(3)
        group.members[0].revoke(P)
        query.rounds(8)  # it is not looked for any more
        assert P in group.members[0].released
    with group.changed:
        group.committed.clear()
        group.topics = set()
        asked = group.lookups
    group.members[0].may_poll.clear()
    assert group.members[0].hangs.wait(PATIENCE_S)
    group.members[0].assign(P)
    group.members[0].may_poll.set()
    query.rounds(8)
    assert query.membership.plannable() == {}
    assert query.membership.unpositioned() == []
    assert query.membership.deletions.take() == {}
    assert query.membership.deletions.take_gone_elsewhere() == {P}
    assert group.lookups <= asked + 2, "as long as it is not there"
    group.members[0].lose(P)
    query.rounds(8)
    assert query.membership.deletions.take() == {}
    with group.changed:
        group.topics = {"t"}
    group.members[0].assign(P)
    query.rounds(8)
    assert query.membership.plannable() == {P: 0}


def test_what_is_deleted_while_it_moves_within_the_query_is_this_querys_to_miss(
    make: Callable[..., Query], group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From one of its members to another, which finds no start in a topic that is gone."""
    monkeypatch.setattr(deleted_partitions_module, "_LOOK_EVERY_S", 0.0)
    query = make(startingOffsets="earliest")
    query.start()
    group.members[0].assign(P)
    query.rounds(3)
    assert query.membership.plannable() == {P: 0}
    group.members[0].revoke(P)
    query.rounds(1)
    assert P in group.members[0].released
    group.members[0].may_poll.clear()
    assert group.members[0].hangs.wait(PATIENCE_S)
    with group.changed:
        group.committed.clear()
        group.topics = set()
    group.members[0].assign(P)
    group.members[0].may_poll.set()
    query.rounds(8)
    assert query.membership.plannable() == {}
    assert query.membership.deletions.take() == {P: 0}
    assert query.membership.deletions.take_gone_elsewhere() == set()


@pytest.mark.parametrize("group_has", [None, 20])
@pytest.mark.parametrize("resumes", [False, True])
def test_what_was_deleted_before_the_run_begins_and_is_created_anew_in_it_is_not_gone_on_in(
    make: Callable[..., Query], group: Group, resumes: bool, group_has: int | None
) -> None:
    """At the old topic's position, the first records of the new one were passed over."""
    gone, hidden = TopicPartition("gone", 0), TopicPartition("hidden", 0)
    group.hidden = {"hidden"}
    query = make(startingOffsets="latest")
    if resumes:
        query.membership.resume(
            {P: 100, hidden: 7}, {gone: a_range(gone, 3, 50)}, {"ends": {"0": 50}}
        )
    query.membership.restore({P: 100, gone: 50, hidden: 7})
    query.membership.start()
    query.membership.initial_partitions()
    patience = iter(range(PATIENCE_S * 50))
    while (known := query.membership.offset_without_ranges().others).keys() != {P, hidden}:
        assert next(patience, None) is not None, f"before the members join: {known}"
        threading.Event().wait(0.02)
    assert group.members[0].polls == 0
    assert not query.membership.offset_without_ranges().pending
    group.hidden = set()
    group.topics = {"t", "gone", "hidden"}
    group.ends |= {gone: 60, hidden: 60}
    if group_has is not None:
        group.committed[gone] = group_has
    query.start()
    group.members[0].assign(P, gone, hidden)
    query.rounds(3)
    assert query.membership.plannable() == {P: 100, gone: group_has or 0, hidden: 7}


def test_a_partition_that_the_checkpoint_knows_and_the_metadata_did_not_at_first_is_gone_on_in(
    make: Callable[..., Query], group: Group
) -> None:
    """They may be those of a broker that has just started."""
    late = TopicPartition("late", 0)
    group.topics = {"t", "late"}
    group.ends[late] = 60
    query = make(startingOffsets="latest")
    query.membership.restore({late: 50})
    query.start()
    group.members[0].assign(late)
    query.rounds(3)
    assert query.membership.plannable() == {late: 50}


@pytest.mark.parametrize("before", ["never had it", "handed it over", "a run that read nothing"])
def test_a_topic_created_anew_while_another_had_it_is_read_from_its_first_record(
    make: Callable[..., Query], group: Group, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    """Kafka has dropped the group's offset with it: ``latest`` passed over its first records."""
    monkeypatch.setattr(deleted_partitions_module, "_LOOK_EVERY_S", 0.0)
    group.topic_ids = {"t": uuid4()}
    query = make(startingOffsets="latest")
    if before == "a run that read nothing":
        query.membership.restore({}, frozenset({P, Q, R}))
    query.start()
    if before == "handed it over":
        group.members[0].assign(P)
        query.rounds()
        query.membership.proofs.committed(query.read(P, 1_000, 1_010))
        query.rounds()
        group.members[0].revoke(P)
        query.rounds(8)  # it is not looked for any more
    query.membership.initial_partitions()
    query.membership.offset_without_ranges()
    with group.changed:
        group.topic_ids = {"t": uuid4()}
        group.committed.clear()
    group.members[0].assign(P)
    query.rounds(3)
    assert query.membership.plannable() == {P: 0}
    assert query.membership.deletions.take() == {}, "it is the other's to miss"
    assert query.membership.wants_log(at_once=True), "or a restart would begin it as before"
    assert query.membership.initial_partitions().isdisjoint({P, Q, R})
    group.members[0].assign(Q)
    query.rounds(3)
    assert query.membership.plannable() == {P: 0, Q: 0}
    group.members[0].revoke(P)
    query.rounds(3)
    group.committed.clear()
    group.members[0].assign(P)
    query.rounds(3)
    assert query.membership.plannable() == {P: 0, Q: 0}


@pytest.mark.parametrize("by_id", [True, False])
def test_its_own_commit_by_name_does_not_make_the_first_records_of_a_new_topic_skipped(
    make: Callable[..., Query], group: Group, by_id: bool
) -> None:
    """The broker took it for one of the new topic: 4.0 and older, or in the classic protocol."""
    group.assigns_by_id, group.topic_ids = by_id, {"t": uuid4()}
    query = make(startingOffsets="earliest")
    query.start()
    member = group.members[0]
    member.assign(P)
    query.rounds()
    query.membership.proofs.committed(query.read(P, 0, 5))
    query.rounds()
    with group.changed:
        group.topic_ids = {"t": uuid4()}
    member.revoke(P)
    query.rounds()
    member.assign(P)
    query.rounds(3)
    assert query.membership.deletions.take() == {P: 5}
    assert query.membership.plannable() == {P: 0}
    assert group.committed == {P: 0}


@pytest.mark.parametrize("of", ["all of them", "one of two"])
def test_what_this_query_had_when_the_topic_was_created_anew_is_its_own_to_miss(
    make: Callable[..., Query], group: Group, of: str
) -> None:
    """Where everything was committed, the query went on as if nothing were gone."""
    group.assigns_by_id, group.topic_ids = True, {"t": uuid4()}
    query = make(startingOffsets="earliest")
    query.start()
    member = group.members[0]
    member.assign(P, Q)
    query.rounds()
    for partition, end in ((P, 5), (Q, 7)):
        query.membership.proofs.committed(query.read(partition, 0, end))
    query.rounds()
    assert group.committed == {P: 5, Q: 7}
    back = (P, Q) if of == "all of them" else (P,)
    with group.changed:
        group.topic_ids = {"t": uuid4()}
        group.committed.clear()
    member.revoke(*back)
    query.rounds(3)
    assert member.released == set(back)
    member.assign(*back)
    query.rounds(3)
    ends = {P: 5, Q: 7}
    assert query.membership.deletions.take() == {p: ends[p] for p in back}
    assert query.membership.plannable() == {P: 0, Q: 0 if Q in back else 7}
    if of == "one of two":  # the other later
        member.revoke(Q)
        query.rounds(3)
        member.assign(Q)
        query.rounds(3)
        assert query.membership.deletions.take() == {Q: 7}
        assert query.membership.plannable() == {P: 0, Q: 0}


@pytest.mark.parametrize("refused", [False, True])
def test_the_new_topic_is_read_where_another_member_of_the_query_has_the_old_one_still(
    make: Callable[..., Query], group: Group, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    """For the group these are different partitions: none waits for the other."""
    monkeypatch.setattr(deleted_partitions_module, "_LOOK_EVERY_S", 0.0)
    group.assigns_by_id, group.topic_ids = True, {"t": uuid4()}
    query = make(startingOffsets="earliest", readers="2")
    query.start()
    one, other = group.members
    one.assign(P)
    query.rounds()
    query.read(P, 0, 40)
    with group.changed:
        group.topic_ids = {"t": uuid4()}
        group.committed.clear()
    other.assign(P)
    query.rounds(1)
    if refused:
        one.unknown = {P}  # it has a commit of the old one
    query.rounds(8)
    assert query.membership.plannable() == {P: 0}
    assert query.membership.deletions.take() == {P: 40}
    query.membership.proofs.committed(query.read(P, 0, 5))
    query.rounds(3)
    assert group.committed == {P: 5}
    one.revoke(P)
    query.rounds(8)
    assert query.membership.plannable() == {P: 5}
    assert query.membership.deletions.take() == {}


def test_the_new_topic_is_read_also_if_it_is_looked_for_when_it_is_assigned(
    make: Callable[..., Query], group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its start was found it was taken for the one before, and nobody ever read it."""
    looks: list[Callable[[], bool]] = []

    def is_due(_: DeletedPartitions) -> bool:
        if looks and looks[0]():
            looks.pop(0)
            return True
        return False

    monkeypatch.setattr(DeletedPartitions, "is_due", is_due)
    group.assigns_by_id, group.topic_ids = True, {"t": uuid4()}
    query = make(startingOffsets="earliest")
    query.start()
    member = group.members[0]
    member.assign(P)
    query.rounds()
    query.membership.proofs.committed(query.read(P, 0, 5))
    query.rounds()
    with group.changed:
        group.topic_ids = {"t": uuid4()}
        group.committed.clear()
    looks.append(lambda: True)
    query.rounds(3)
    member.revoke(P)
    query.rounds(3)
    assert not member.owned
    looks.append(lambda: P in member.owned)
    member.assign(P)
    query.rounds(3)
    assert not looks
    assert query.membership.deletions.take() == {P: 5}
    assert query.membership.plannable() == {P: 0}


def test_what_another_has_of_the_topic_that_was_created_anew_this_query_misses_as_well(
    make: Callable[..., Query], group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had the partition until the group took it back, and somebody else gets the new one."""
    monkeypatch.setattr(deleted_partitions_module, "_LOOK_EVERY_S", 0.0)
    group.assigns_by_id, group.topic_ids = True, {"t": uuid4()}
    query = make(startingOffsets="earliest")
    query.start()
    member = group.members[0]
    member.assign(P, Q)
    query.rounds()
    query.membership.proofs.committed(query.read(P, 0, 5))
    query.rounds()
    with group.changed:
        group.topic_ids = {"t": uuid4()}
        group.committed.clear()
    member.revoke(P)
    query.rounds(8)
    told = query.membership.deletions.take()
    assert told == {P: 5, Q: 0}, "what is still to be taken back counts as well"
    assert query.membership.plannable() == {}
    assert query.membership.deletions.take() == {}


def test_where_it_is_assigned_by_name_a_topic_created_anew_is_found_by_its_id(
    make: Callable[..., Query], group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group has kept the partition with its owner, whose commits are of the topic of before."""
    monkeypatch.setattr(deleted_partitions_module, "_LOOK_EVERY_S", 0.0)
    group.topic_ids = {"t": uuid4()}
    query = make(startingOffsets="latest")
    query.start()
    group.members[0].assign(P)
    query.rounds()
    query.membership.proofs.committed(query.read(P, 1_000, 1_010))
    query.rounds()
    assert group.committed == {P: 1_010}
    open_batch = query.read(P, 1_010, 1_020)
    with group.changed:
        group.topic_ids = {"t": uuid4()}
    query.rounds(8)
    assert query.membership.deletions.take() == {P: 1_020}
    assert query.membership.plannable() == {P: 0}, "wherever the group is"
    assert group.committed == {P: 0}
    query.membership.proofs.committed(open_batch)
    query.rounds(3)
    assert group.committed == {P: 0}, "that was of the other topic"
    query.membership.proofs.committed(query.read(P, 0, 5))
    query.rounds(3)
    assert group.committed == {P: 5}
    assert query.membership.deletions.take() == {}


def test_one_answer_that_has_another_topic_is_no_deletion(
    make: Callable[..., Query], group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be that of a broker that has not heard yet of the topic that the group assigns."""
    monkeypatch.setattr(deleted_partitions_module, "_LOOK_EVERY_S", 0.0)
    group.assigns_by_id, group.topic_ids = True, {"t": uuid4()}
    query = make(startingOffsets="earliest")
    query.start()
    member, real = group.members[0], group.topic_ids
    member.assign(P)
    query.rounds()
    before = [{"t": uuid4()}]

    def topic_ids(topics: Collection[str]) -> dict[str, UUID]:
        return before.pop() if before and "t" in topics else real

    monkeypatch.setattr(member, "existing_topics", lambda _: before.append({"t": uuid4()}) or {"t"})
    monkeypatch.setattr(member, "topic_ids", topic_ids)
    query.rounds(8)
    assert query.membership.plannable() == {P: 0}
    assert query.membership.deletions.take() == {}


@pytest.mark.parametrize("group_has", [None, 20])
def test_what_was_handed_over_before_its_topic_was_created_anew_is_not_gone_on_in(
    make: Callable[..., Query],
    group: Group,
    monkeypatch: pytest.MonkeyPatch,
    group_has: int | None,
) -> None:
    """It is the other's to miss, and what is known of it is of the topic of before."""
    monkeypatch.setattr(deleted_partitions_module, "_LOOK_EVERY_S", 0.0)
    group.assigns_by_id, group.topic_ids = True, {"t": uuid4()}
    query = make(startingOffsets="earliest")
    query.start()
    member = group.members[0]
    member.assign(P)
    query.rounds()
    query.membership.proofs.committed(query.read(P, 0, 500))
    query.rounds()
    member.revoke(P)
    query.rounds(8)  # it is not looked for any more
    with group.changed:
        group.topic_ids = {"t": uuid4()}
        group.committed.clear()
        if group_has is not None:
            group.committed[P] = group_has
    member.assign(P)
    query.rounds(8)
    assert query.membership.plannable() == {P: group_has or 0}
    assert query.membership.deletions.take() == {}


def test_a_batch_names_the_topic_that_it_is_to_be_read_from(
    make: Callable[..., Query], group: Group
) -> None:
    group.assigns_by_id, group.topic_ids = True, {"t": uuid4()}
    query = make(startingOffsets="earliest")
    query.start()
    group.members[0].assign(P, Q)
    query.rounds()
    handed_out = query.membership.hand_out({P: a_range(P, 0, 5)})
    assert handed_out is not None
    assert handed_out.topic_ids == {P: group.topic_ids["t"]}


def test_a_batch_that_takes_too_long_gives_its_partitions_to_others(
    make: Callable[..., Query], group: Group
) -> None:
    """A hung sink kept them for ever."""
    group.committed = {P: 100}
    query = make(maxBatchDurationMs="50")
    query.start()
    member = group.members[0]
    member.assign(P)
    query.rounds()
    end = query.read(P, 100, 150)
    with group.changed:
        assert group.changed.wait_for(lambda: member.left, PATIENCE_S)
    (reason,) = member.left
    assert "maxBatchDurationMs=50" in reason
    assert query.membership.plannable() == {}
    assert query.membership.offset_without_ranges().pending == {}
    with group.changed:  # it stays out until the batch is done
        polls = member.polls
        group.committed[P] = 130  # the next owner's
        assert not group.changed.wait_for(lambda: member.polls > polls, 0.3)
    query.membership.proofs.committed(end)
    query.rounds(3)
    assert group.committed == {P: 130}, "it is not the query's to commit"
    member.assign(P, generation=2)
    query.rounds(3)
    assert query.membership.plannable() == {P: 150}, "and is delivered by the batch"
    assert len(member.left) == 1


def test_a_batch_that_spark_has_committed_does_not_take_too_long(
    make: Callable[..., Query], group: Group, checkpoint: Checkpoint
) -> None:
    """Spark waits for its next trigger then, which is no hung sink."""
    group.committed = {P: 100}
    query = make(maxBatchDurationMs="50", checkpointLocation=str(checkpoint.root))
    query.start()
    member = group.members[0]
    member.assign(P)
    query.rounds()
    end = query.read(P, 100, 150)
    checkpoint.write(end, committed=True)
    with group.changed:
        assert group.changed.wait_for(lambda: group.committed[P] == 150, PATIENCE_S)
    query.rounds()
    assert member.left == []


@pytest.mark.parametrize("has_commit_log", [False, True])
def test_what_would_help_is_said_once_when_a_revoke_waits_too_long(
    make: Callable[..., Query],
    group: Group,
    checkpoint: Checkpoint,
    caplog: pytest.LogCaptureFixture,
    has_commit_log: bool,
) -> None:
    group.committed = {P: 100, Q: 100}
    options = {"checkpointLocation": str(checkpoint.root)} if has_commit_log else {}
    query = make(**options)
    query.start()
    member = group.members[0]
    member.assign(P, Q)
    query.rounds()
    handed = {p: a_range(p, 100, 150) for p in (P, Q)}
    assert query.membership.hand_out(handed) is not None
    query.membership.proofs.planned({"ends": {"0": 150, "1": 150}})
    for partition in (P, Q):
        member.revoke(partition)
        query.rounds()
        member.lose(partition)  # as at the end of revokeTimeoutMs
        query.rounds()
    said = [r.getMessage() for r in caplog.records if "revokeTimeoutMs" in r.getMessage()]
    assert len(said) == 1
    assert "t-0" in said[0]
    assert ("the option checkpointLocation" in said[0]) != has_commit_log


def test_a_replay_waits_for_what_another_has_and_keeps_what_it_gets(
    make: Callable[..., Query], group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign_ranges_module, "_CHECK_EVERY_S", 0.0)
    group.committed = {P: 100, Q: 200}
    query = make()
    membership = query.membership
    ranges = {P: a_range(P, 100, 150), Q: a_range(Q, 200, 250)}
    end = {"ends": {"0": 150, "1": 250}}
    membership.resume({P: 100, Q: 200}, ranges, end)
    query.start()
    found: list[dict[TopicPartition, int]] = []
    planner = threading.Thread(
        target=lambda: found.append(membership.foreign_ranges.lost_below(ranges))
    )
    planner.start()
    group.members[0].assign(P)
    query.rounds(3)
    assert planner.is_alive(), "another has one of them and has committed nothing of it"
    group.members[0].revoke(P)
    with group.changed:
        group.committed[Q] = 260
    planner.join(PATIENCE_S)
    assert found == [{Q: 250}]
    query.rounds(3)
    assert group.members[0].owned == {P}, "not handed over before Spark has committed the batch"
    membership.proofs.begin_trigger(end)
    query.rounds(4)
    assert group.members[0].released == {P}
    assert group.committed == {P: 150, Q: 260}


#: Of a topic that the query does not read any more.
OTHERS = TopicPartition("left-out", 0)


@pytest.mark.parametrize(("committed", "marked"), [({}, {}), ({OTHERS: 220}, {OTHERS: 220})])
def test_what_a_restart_leaves_out_is_asked_for_and_not_waited_for(
    make: Callable[..., Query],
    group: Group,
    committed: dict[TopicPartition, int],
    marked: dict[TopicPartition, int],
) -> None:
    """Of another topic than it subscribes to now: no member of this query gets it again."""
    group.committed = {P: 100, **committed}
    query = make()
    ranges = {OTHERS: a_range(OTHERS, 200, 250)}
    query.membership.resume({P: 100, OTHERS: 200}, ranges, {"ends": {"1": 250}})
    query.start()
    found: list[dict[TopicPartition, int]] = []
    planner = threading.Thread(
        target=lambda: found.append(query.membership.foreign_ranges.lost_below(ranges))
    )
    planner.start()
    query.rounds(3)
    planner.join(PATIENCE_S)
    assert found == [marked]


def test_a_replay_waits_for_the_session_that_the_broker_sets(
    make: Callable[..., Query], group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the consumer protocol it is not the option's."""
    monkeypatch.setattr(marking_module, "STILL_S", 0.0)
    group.committed = {P: 100, Q: 200}
    query = make(**{"kafka.session.timeout.ms": "300000"})
    membership = query.membership
    ranges = {Q: a_range(Q, 200, 250)}
    membership.resume({P: 100, Q: 200}, ranges, {"ends": {"1": 250}})
    query.start()
    found: list[dict[TopicPartition, int]] = []
    planner = threading.Thread(
        target=lambda: found.append(membership.foreign_ranges.lost_below(ranges))
    )
    planner.start()
    member = group.members[0]
    member.session_timeout_ms = 200_000
    member.assign(P)
    query.rounds(20)
    assert planner.is_alive(), "a dead member may own it"
    member.session_timeout_ms = 0
    planner.join(PATIENCE_S)
    assert found == [{}]


def test_a_checkpoint_is_ahead_of_the_group(make: Callable[..., Query], group: Group) -> None:
    group.committed = {P: 100, Q: 200}
    query = make()
    query.membership.restore({P: 150, Q: 10})
    assert query.membership.offset_without_ranges().others == {P: 150, Q: 10}
    query.start()
    group.members[0].assign(P, Q)
    query.rounds(3)
    assert query.membership.plannable() == {P: 150, Q: 200}
    assert group.committed == {P: 150, Q: 200}


def test_after_data_loss_the_group_moves_back(query: Query) -> None:
    query.membership.commits.move_to({P: 40})
    query.rounds()
    assert query.membership.plannable() == {P: 40}
    assert query.group.committed == {P: 40}


def test_after_data_loss_the_group_moves_back_behind_our_own_commit(query: Query) -> None:
    query.membership.proofs.committed(query.read(P, 100, 150))
    query.rounds(3)
    query.membership.commits.move_to({P: 40})
    query.rounds(3)
    assert query.group.committed == {P: 40}


def test_available_now_does_not_go_on_without_its_end(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def no_answer(partitions: object, timeout_ms: float) -> dict[TopicPartition, int]:
        asked.append(partitions)
        return {}

    monkeypatch.setattr(log_ends_module, "_ALL_ENDS_WITHIN_S", 0.2)
    monkeypatch.setattr(query.group.members[0], "end_offsets_now", no_answer)
    with pytest.raises(KafkaRebalanceError, match="t-0"):
        query.membership.log_ends.end_offsets_of_topics()
    assert len(asked) > 1, "tried again"


# -- the query's commit log -----------------------------------------------------------------------


def test_the_commit_log_is_looked_at_only_while_a_revoke_waits(
    make: Callable[..., Query], group: Group, checkpoint: Checkpoint
) -> None:
    group.committed = {P: 100, Q: 200}
    query = make(checkpointLocation=str(checkpoint.root))
    query.start()
    group.members[0].assign(P, Q)
    query.rounds()
    offset = query.read(P, 100, 150)
    checkpoint.write(offset, committed=False)
    query.rounds()
    group.members[0].revoke(Q)
    query.rounds(4)
    assert group.members[0].released == {Q}
    assert checkpoint.probes == 0, "no revoke waits for the batch"
    group.members[0].revoke(P)
    query.rounds(3)
    assert checkpoint.probes > 0
    assert group.members[0].released == {Q}, "the batch is not committed"
    checkpoint.write(offset, committed=True)
    query.rounds(4)
    assert group.members[0].released == {P, Q}
    assert group.committed == {P: 150, Q: 200}
    probes = checkpoint.probes
    query.rounds()
    assert checkpoint.probes == probes


def test_without_a_commit_log_the_next_trigger_proves(query: Query) -> None:
    offset = query.read(P, 100, 150)
    query.group.members[0].revoke(P)
    query.rounds()
    query.membership.proofs.committed(offset)
    query.rounds(4)
    assert query.group.members[0].released == {P}


def test_an_unreadable_commit_log_is_logged_once_and_the_next_trigger_proves(
    make: Callable[..., Query], group: Group, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "offsets").write_text("not a folder", "utf-8")
    group.committed[P] = 100
    query = make(checkpointLocation=str(tmp_path))
    query.start()
    group.members[0].assign(P)
    query.rounds()
    offset = query.read(P, 100, 150)
    group.members[0].revoke(P)
    query.rounds(4)
    assert group.members[0].released == set()
    assert caplog.text.count("cannot be read") == 1
    query.membership.proofs.committed(offset)
    query.rounds(4)
    assert group.members[0].released == {P}
    query.membership.raise_failure()


# -- stop -----------------------------------------------------------------------------------------


def test_stop_commits_what_is_proven_and_leaves_once(query: Query) -> None:
    member = query.group.members[0]
    query.membership.proofs.committed(query.read(P, 100, 150))
    query.read(P, 150, 170)
    query.membership.stop()
    assert query.group.committed == {P: 150}, "the last batch is not proven"
    assert (member.drained, member.closed) == (1, 1)
    query.membership.stop()
    assert (member.drained, member.closed) == (1, 1)
    query.membership.raise_failure()


@pytest.mark.parametrize(("committed", "expected"), [(True, 150), (False, 100)])
def test_stop_commits_the_last_batch_when_the_commit_log_has_it(
    make: Callable[..., Query],
    group: Group,
    checkpoint: Checkpoint,
    committed: bool,
    expected: int,
) -> None:
    group.committed[P] = 100
    query = make(checkpointLocation=str(checkpoint.root))
    query.start()
    group.members[0].assign(P)
    query.rounds()
    checkpoint.write(query.read(P, 100, 150), committed=committed)
    query.membership.stop()
    assert group.committed == {P: expected}
    assert checkpoint.probes == 1


def test_stop_closes_what_has_not_joined(make: Callable[..., Query], group: Group) -> None:
    query = make(readers="2")
    query.membership.start()
    query.membership.log_ends.end_offsets_of_topics()
    query.membership.stop()
    assert [m.closed for m in group.members] == [1] * len(group.members)


def test_stop_before_the_start(make: Callable[..., Query]) -> None:
    make().membership.stop()


def test_stop_with_a_commit_that_is_never_acknowledged(query: Query) -> None:
    query.group.accepts_commits = False
    query.membership.proofs.committed(query.read(P, 100, 150))
    query.membership.stop()
    assert query.group.members[0].closed == 1, "left all the same"


def test_stop_knows_that_the_group_has_all(query: Query) -> None:
    query.membership.proofs.committed(query.read(P, 100, 150))
    query.membership.stop()
    assert query.membership.commits.uncommitted() == []


def test_stop_knows_that_a_commit_was_never_acknowledged(query: Query) -> None:
    query.group.accepts_commits = False
    query.membership.proofs.committed(query.read(P, 100, 150))
    query.membership.stop()
    assert query.membership.commits.uncommitted() == [P]


@pytest.mark.parametrize(("next_owner_has", "missing"), [(149, [P]), (150, [])])
def test_stop_asks_the_group_how_far_it_has_come_where_the_last_batch_is_lost(
    query: Query, next_owner_has: int, missing: list[TopicPartition]
) -> None:
    offset = query.read(P, 100, 150)
    query.group.members[0].lose(P)
    query.rounds()
    query.membership.proofs.committed(offset)
    query.group.committed[P] = next_owner_has
    query.membership.stop()
    assert query.group.committed == {P: next_owner_has}
    assert query.membership.commits.uncommitted() == missing


def test_stop_does_not_take_a_group_that_does_not_answer_for_one_that_has_all(
    query: Query,
) -> None:
    offset = query.read(P, 100, 150)
    query.group.members[0].lose(P)
    query.rounds()
    query.membership.proofs.committed(offset)
    query.group.lookup_error = kafka_errors.KafkaTimeoutError()
    query.membership.stop()
    assert query.membership.commits.uncommitted() == [P]
    assert query.group.members[0].closed == 1
    query.membership.raise_failure()


def test_stop_grants_the_commits_what_time_it_is_given(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but what leaving the group may need."""
    (member,) = query.group.members
    given_ms: list[float] = []

    def noting(call: Callable[[float], Any]) -> Callable[[float], Any]:
        def noted(timeout_ms: float) -> Any:
            given_ms.append(timeout_ms)
            return call(timeout_ms)

        return noted

    for name in ("drain", "close"):
        monkeypatch.setattr(member, name, noting(getattr(member, name)))
    query.membership.stop(timeout_s=1_000.0)
    drain_ms, close_ms = given_ms
    assert 900_000 < drain_ms < 1_000_000
    assert close_ms == 3_000


def test_stop_does_not_wait_for_a_pump_that_hangs(query: Query) -> None:
    member = query.group.members[0]
    member.may_poll.clear()
    assert member.hangs.wait(PATIENCE_S)
    try:
        query.membership.stop(timeout_s=0.05)
        assert member.closed == 0, "it came back although the pump did not"
    finally:
        member.may_poll.set()


def test_one_member_that_does_not_close_does_not_keep_the_others(
    make: Callable[..., Query], group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = make(readers="2")
    query.start()

    def broken(timeout_ms: float) -> None:
        raise RuntimeError("connection gone")

    monkeypatch.setattr(group.members[0], "close", broken)
    query.membership.stop()
    assert group.members[1].closed == 1


# -- parallelRebalance=live -----------------------------------------------------------------------


def test_a_partition_that_is_far_behind_goes_on_at_the_end_and_its_gap_is_handed_over(
    make: Callable[..., Query], group: Group
) -> None:
    group.committed |= {P: 100, Q: 995}
    query = make(parallelRebalance="live", catchUpThreshold="10", readers="2")
    query.start()
    first, second = group.members
    first.assign(P, Q)
    query.rounds()
    membership = query.membership
    assert membership.plannable() == {P: 1_000, Q: 995}
    read = membership.catch_up.plan(UNLIMITED, None, DataLoss(True), group.ends)
    assert read == {P: (a_range(P, 100, 1_000),)}
    handed_out = membership.hand_out({}, {P: (a_range(P, 100, 300),)})
    assert handed_out is not None
    offset = offset_to_json(handed_out.offset)
    assert offset[OURS]["catch_up"] == {"t": {"0": [[100, 300]]}}
    assert offset[OURS]["gaps"] == {"t": {"0": [[300, 1000]]}}
    membership.proofs.planned(offset)
    first.revoke(P)
    query.rounds()
    assert first.delayed == {P}
    assert membership.catch_up.plan(UNLIMITED, None, DataLoss(True), group.ends) == {}
    membership.proofs.committed(offset)
    query.rounds(3)
    assert P in first.released, "the rest of the gap does not hold it back"
    assert group.committed[P] == 300
    second.assign(P, generation=2)
    query.rounds(3)
    assert membership.plannable()[P] == 1_000
    read = membership.catch_up.plan(UNLIMITED, None, DataLoss(True), group.ends)
    assert read == {P: (a_range(P, 300, 1_000),)}


def test_a_partition_that_comes_back_with_a_backlog_of_another_owner_is_behind(
    make: Callable[..., Query], group: Group
) -> None:
    """Who had it in between died before its first commit."""
    group.committed[P] = 995
    query = make(parallelRebalance="live", catchUpThreshold="10")
    query.start()
    (member,) = group.members
    for generation, end, start in ((2, 1_000, 995), (3, 3_000, 995), (5, 6_000, 6_000)):
        member.assign(P, generation=generation)
        group.ends[P] = end
        query.rounds(3)
        assert query.membership.plannable() == {P: start}
        query.membership.log_ends.asked_at = 0.0
        assert query.membership.log_ends.end_offsets([P]) == {P: end}
        member.revoke(P)
        query.rounds(3)
        assert query.membership.plannable() == {}


def test_a_gap_that_another_owner_left_is_read_where_it_is(
    make: Callable[..., Query], group: Group
) -> None:
    left = Remaining(900, (Gap(100, 120), Gap(300, 310)))
    group.committed[P], group.metadata[P] = left.committed(), left.encode(bound_to=str(P))
    query = make(parallelRebalance="live", catchUpThreshold="200")
    query.start()
    group.members[0].assign(P)
    query.rounds()
    assert query.membership.plannable() == {P: 900}, "a hundred are no backlog"
    read = query.membership.catch_up.plan(UNLIMITED, None, DataLoss(True), group.ends)
    assert read == {P: (a_range(P, 100, 120), a_range(P, 300, 310))}
    assert group.committed[P] == 100


@pytest.mark.parametrize("offset", [50, 100, 120])
def test_what_the_group_has_processed_beyond_where_sparks_own_source_ended_is_not_left_out(
    make: Callable[..., Query], group: Group, offset: int
) -> None:
    """That source knows of no group, so what its query has not read is this one's to read."""
    left = Remaining(800, (Gap(offset, 200),))
    group.committed[P], group.metadata[P] = left.committed(), left.encode(bound_to=str(P))
    query = make(parallelRebalance="live", catchUpThreshold="10")
    query.membership.restore({P: 100}, None, [P])
    query.start()
    group.members[0].assign(P)
    query.rounds(4)
    assert query.membership.plannable() == {P: 1_000}
    read = query.membership.catch_up.plan(UNLIMITED, None, DataLoss(True), group.ends)
    assert read == {P: (a_range(P, 100, 1_000),)}
    assert (group.committed[P], group.metadata[P]) == (100, ""), "nor by the next owner"


def test_who_reads_in_order_begins_at_the_lowest_offset_that_is_left(
    make: Callable[..., Query], group: Group
) -> None:
    left = Remaining(900, (Gap(100, 120),))
    group.committed[P], group.metadata[P] = left.committed(), left.encode(bound_to=str(P))
    query = make()
    query.start()
    group.members[0].assign(P)
    query.rounds()
    assert query.membership.plannable() == {P: 100}


@pytest.mark.parametrize("fails", [True, False])
def test_what_is_gone_of_a_gap_is_an_error_or_left_out(
    make: Callable[..., Query],
    group: Group,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fails: bool,
) -> None:
    group.committed[P] = 100
    query = make(parallelRebalance="live")
    query.start()
    group.members[0].assign(P)
    group.ends[P] = 50_000
    query.rounds()
    begins = {P: 40_000}
    monkeypatch.setattr(
        FakeMember, "beginning_offsets_now", lambda member, partitions, timeout_ms: begins
    )

    def plan() -> Any:
        return query.membership.catch_up.plan(UNLIMITED, None, DataLoss(fails), group.ends)

    named = "t-0: offsets 100 to 39999, the log begins at 40000"
    if fails:
        with pytest.raises(DataLossError, match=named):
            plan()
        return
    assert plan() == {P: (a_range(P, 40_000, 50_000),)}
    assert named in caplog.text
    query.rounds()
    assert group.committed[P] == 40_000
    membership = query.membership
    membership.offset_without_ranges()
    assert not membership.wants_log(at_once=True)
    handed_out = membership.hand_out({}, {P: (a_range(P, 41_000, 49_000),)})
    assert handed_out is not None
    membership.offset_without_ranges()
    begins[P] = 50_000
    log_ends = membership.log_ends
    log_ends._log_starts_at = 0.0
    assert plan() == {}
    named = "t-0: offsets 40000 to 40999, 49000 to 49999, the log begins at 50000"
    assert named in caplog.text, "not what a batch has read"
    assert membership.wants_log(at_once=True), "or it would show the gap until the next record"
    assert membership.offset_without_ranges().gaps == {}
    assert not membership.wants_log(at_once=True)


@pytest.mark.parametrize("created_anew", [True, False])
@pytest.mark.parametrize("group_has", [True, False])
def test_of_a_log_that_was_created_anew_nothing_is_caught_up(
    make: Callable[..., Query],
    group: Group,
    caplog: pytest.LogCaptureFixture,
    created_anew: bool,
    group_has: bool,
) -> None:
    """What was truncated has older records as before. With its topic a group loses its offset."""
    group.topic_ids = {"t": uuid4()}
    if group_has:
        group.committed[P] = 100
    query = make(parallelRebalance="live", catchUpThreshold="10")
    query.membership.restore({P: 1_000}, None, (), {P: [Gap(100, 1_000)]})
    query.start()
    group.members[0].assign(P)
    query.rounds(3)
    if created_anew:
        group.topic_ids = {"t": uuid4()}
    query.membership.commits.move_to({P: 600})
    query.rounds(3)
    assert query.membership.plannable() == {P: 600}
    truncated = group_has and not created_anew
    read = query.membership.catch_up.plan(UNLIMITED, None, DataLoss(True), {P: 600})
    assert read == ({P: (a_range(P, 100, 600),)} if truncated else {})
    assert group.committed[P] == (100 if truncated else 600)
    assert ("recreated: t-0" in caplog.text) == (not truncated)


def test_a_log_that_shrinks_later_has_its_gaps_though_the_group_had_forgotten_it(
    make: Callable[..., Query], group: Group
) -> None:
    """Its offsets had expired; but it was read where the checkpoint said."""
    query = make(parallelRebalance="live", catchUpThreshold="10")
    query.membership.restore({P: 990}, None, (), {P: [Gap(100, 990)]})
    query.start()
    group.members[0].assign(P)
    query.rounds(3)
    query.membership.proofs.committed(query.read(P, 990, 1_000))
    query.rounds(3)
    query.membership.commits.move_to({P: 600})
    query.rounds(3)
    read = query.membership.catch_up.plan(UNLIMITED, None, DataLoss(True), {P: 600})
    assert read == {P: (a_range(P, 100, 600),)}


def test_without_the_end_of_its_log_a_partition_does_not_start(
    make: Callable[..., Query], group: Group
) -> None:
    """Its leader is away: nothing of it could be read, and the end would be another one later."""
    group.committed[P] = 100
    end = group.ends.pop(P)
    query = make(parallelRebalance="live", catchUpThreshold="10")
    query.start()
    group.members[0].assign(P)
    query.rounds()
    assert query.membership.plannable() == {}
    group.ends[P] = end
    query.rounds()
    assert query.membership.plannable() == {P: end}


@pytest.mark.parametrize(("age", "live"), [("1h", 100), ("0ms", 1_000)])
def test_the_age_of_the_next_record_says_whether_a_partition_is_behind(
    make: Callable[..., Query],
    group: Group,
    monkeypatch: pytest.MonkeyPatch,
    age: str,
    live: int,
) -> None:
    """In the log of the fake members there is a record a ms, from time 0 on."""
    monkeypatch.setattr("time.time", lambda: 1.0)
    group.committed[P] = 100
    query = make(parallelRebalance="live", catchUpThreshold=age)
    query.start()
    group.members[0].assign(P)
    query.rounds()
    assert query.membership.plannable() == {P: live}


def by_age(make: Callable[..., Query], monkeypatch: pytest.MonkeyPatch) -> Query:
    """A query for which what is older than half a second is a backlog; it is 1970, 00:00:01."""
    monkeypatch.setattr("time.time", lambda: 1.0)
    query = make(parallelRebalance="live", catchUpThreshold="500ms")
    query.start()
    return query


@pytest.mark.parametrize(
    ("timestamp", "live"), [(10, 1_000), (-1, 1_000), (900, 700), (5_000, 700), (None, 700)]
)
def test_records_below_the_position_say_nothing_of_the_age_of_the_next(
    make: Callable[..., Query],
    group: Group,
    monkeypatch: pytest.MonkeyPatch,
    timestamp: int | None,
    live: int,
) -> None:
    """ListOffsets finds a young record below it. Without a timestamp it is old."""
    group.committed[P] = 700
    group.timestamps[P, 700] = timestamp
    query = by_age(make, monkeypatch)
    group.members[0].assign(P)
    query.rounds()
    assert query.membership.plannable() == {P: live}


def test_of_a_partition_with_gaps_the_age_counts_where_the_last_owner_went_on(
    make: Callable[..., Query], group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    for partition, timestamp in ((P, 10), (Q, 900)):
        left = Remaining(800, (Gap(100, 200),))
        group.committed[partition] = left.committed()
        group.metadata[partition] = left.encode(bound_to=str(partition))
        group.timestamps[partition, 800] = timestamp
    query = by_age(make, monkeypatch)
    group.members[0].assign(P, Q)
    query.rounds()
    assert query.membership.plannable() == {P: 1_000, Q: 800}
    found = query.membership.catch_up.plan(UNLIMITED, None, DataLoss(True), group.ends)
    assert found == {P: (a_range(P, 100, 200), a_range(P, 800, 1_000)), Q: (a_range(Q, 100, 200),)}


def test_a_partition_whose_next_record_nobody_tells_waits_for_it(
    make: Callable[..., Query], group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    group.committed |= {P: 700, Q: 700}
    group.timestamps |= {(P, 700): 10, (Q, 700): 10}
    group.silent.add(P)
    query = by_age(make, monkeypatch)
    group.members[0].assign(P, Q)
    query.rounds()
    assert query.membership.plannable() == {Q: 1_000}
    group.silent.clear()
    query.rounds()
    assert query.membership.plannable() == {P: 1_000, Q: 1_000}


def test_a_gap_is_read_up_to_where_a_transaction_is_open(
    make: Callable[..., Query], group: Group
) -> None:
    """Who reads uncommitted records has set it aside; a batch that read on would wait."""
    group.committed |= {P: 100, Q: 100, R: 1_000}
    query = make(parallelRebalance="live", catchUpThreshold="10")
    query.start()
    group.members[0].assign(P, Q, R)
    query.rounds()
    catch_up = query.membership.catch_up

    def plan(ends: Mapping[TopicPartition, int], run: AvailableNowRun | None = None) -> Any:
        return catch_up.plan(UNLIMITED, run, DataLoss(True), ends)

    assert plan({P: 300, Q: 1_000}) == {P: (a_range(P, 100, 300),), Q: (a_range(Q, 100, 1_000),)}
    assert plan({P: 100, R: 1_000}) == {}, "of Q no broker tells where it ends"
    run = AvailableNowRun({P: 100, Q: 400, R: 1_000})
    assert plan({P: 300, Q: 1_000}, run) == {Q: (a_range(Q, 100, 400),)}
    assert plan({P: 300}, run) == {}
    assert catch_up.unread(run) == {Q}, "for which it waits"
    assert not catch_up.unread(None)


def test_what_batches_before_have_caught_up_is_pending_until_it_is_proven(
    make: Callable[..., Query], group: Group
) -> None:
    """Async progress tracking."""
    group.committed[P] = 100
    query = make(parallelRebalance="live", catchUpThreshold="10")
    query.start()
    group.members[0].assign(P)
    query.rounds()

    def catch_up(start: int, end: int) -> dict[str, Any]:
        handed_out = query.membership.hand_out({}, {P: (a_range(P, start, end),)})
        assert handed_out is not None
        offset = offset_to_json(handed_out.offset)
        query.membership.proofs.planned(offset)
        return offset

    first, second = catch_up(100, 200), catch_up(200, 300)
    assert "pending_catch_up" not in first[OURS]
    assert second[OURS]["pending_catch_up"] == {"t": {"0": [[100, 200]]}}
    assert second[OURS]["gaps"] == {"t": {"0": [[300, 1000]]}}
    query.membership.proofs.committed(first)
    query.rounds()
    assert group.committed[P] == 200
    assert catch_up(300, 400)[OURS]["pending_catch_up"] == {"t": {"0": [[200, 300]]}}


# -- batches that the sink decides ----------------------------------------------------------------


def batch_of(query: Query, end: dict[str, Any]) -> Any:
    with query.membership._state as state:
        return state.assignment.batches.ending_at(end)


def by_sink(query: Query, end: dict[str, Any]) -> None:
    with query.membership._state as state:
        state.own_commits.by_sink = True
        state.assignment.batches.ending_at(end).by_sink = True


def test_spark_goes_on_and_the_sinks_news_was_lost(query: Query, group: Group) -> None:
    end = query.read(P, 100, 150)
    by_sink(query, end)
    query.membership.proofs.committed(end)
    query.rounds(3)
    assert query.membership.plannable() == {P: 100}, "the group has nothing of it"


def test_a_dropped_batch_is_said_also_where_the_start_is_looked_up(
    query: Query, group: Group
) -> None:
    end = query.read(P, 100, 150)
    by_sink(query, end)
    (member,) = group.members
    member.lose(P)
    query.rounds()
    member.assign(P, generation=2)
    query.rounds(3)
    query.membership.sink_batches._snapshot = lambda *_: None  # needs a real consumer
    query.membership.sink_batches.tell(end, "dropped", 5.0)
    query.rounds(4)
    assert query.membership.plannable() == {P: 100}
    told = Origin.decode(100, group.metadata.get(P), str(P))
    assert told is not None
    assert told.by_sink


def test_what_a_replay_leaves_out_goes_on_where_the_group_is(
    make: Callable[..., Query], group: Group
) -> None:
    group.committed[P] = 120  # another member's, amid the batch
    query = make()
    end = {"end": 150}
    query.membership.start()
    query.membership.follow_group()
    query.membership.resume({P: 100}, {P: a_range(P, 100, 150)}, end)
    query.membership.join()
    query.rounds(1)
    group.members[0].assign(P)
    query.rounds(3)
    sink = query.membership.sink_batches
    assert sink.leave_out(end, 5.0) == {P}
    batch_of(query, end).is_held = True
    sink._snapshot = lambda *_: None  # needs a real consumer
    sink.tell(end, "committed", 5.0)
    query.rounds(4)
    assert query.membership.plannable() == {P: 120}, "[120, 150) is skipped"
