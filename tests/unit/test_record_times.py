"""What the order of timestamps is found by: questions to brokers, and what is still to be heard."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from kafka import errors as kafka_errors
from kafka.structs import TopicPartition
from record_batches import Record, build, control

from pyspark_kafka_rebalance.consumer.offsets.found_records import RecordTime
from pyspark_kafka_rebalance.errors import (
    AuthorizationError,
    CorruptRecordError,
    KafkaRebalanceError,
)
from pyspark_kafka_rebalance.fetch import fetcher as fetcher_module
from pyspark_kafka_rebalance.fetch.columns import record_schema
from pyspark_kafka_rebalance.fetch.offset_range import OffsetRange
from pyspark_kafka_rebalance.source.group.clients.query_part import QueryCore
from pyspark_kafka_rebalance.source.group.logs import log_ends as log_ends_module
from pyspark_kafka_rebalance.source.group.logs import record_times as awaited_partitions
from pyspark_kafka_rebalance.source.group.logs.log_ends import LogEnds
from pyspark_kafka_rebalance.source.group.logs.record_times import AwaitedPartitions, RecordTimes
from pyspark_kafka_rebalance.source.group.owned import owned_partitions as last_change
from pyspark_kafka_rebalance.source.group.owned.owned_partitions import LastChange, OwnedPartition
from pyspark_kafka_rebalance.source.group.query_state import QueryState
from pyspark_kafka_rebalance.source.options.source_options import SourceOptions
from pyspark_kafka_rebalance.source.plan.timelines import Rows

P, Q, R = (TopicPartition("t", n) for n in range(3))


def options(**more: str) -> SourceOptions:
    given = {"subscribe": "t", "kafka.bootstrap.servers": "127.0.0.1:1", "kafka.group.id": "g"}
    return SourceOptions.parse({**given, **more}, default_readers=2)


class Members:
    """Members of a query, and the client that is asked."""

    def __init__(self, count: int = 2) -> None:
        self.count = count
        self.settled = self.certain = True
        self.calls: list[str] = []
        self.old_brokers = False
        self.renewed_ms = 1.0
        self.known: dict[TopicPartition, tuple[UUID | None, int | None]] = {}

    def metadata_renewed_ms(self) -> float:
        return self.renewed_ms

    def leaderships(self) -> dict[TopicPartition, tuple[UUID | None, int | None]]:
        self.calls.append("leaderships")
        return dict(self.known)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Any]:
        return iter([SimpleNamespace(may_hand_out=lambda: self.certain)] * self.count)

    def have_settled(self) -> bool:
        return self.settled

    def partitions(self) -> set[TopicPartition]:
        return {P, Q, R}

    @contextmanager
    def asking(self) -> Iterator[Members]:
        yield self

    def end_offsets_now(self, partitions: Any, timeout_ms: float) -> dict[TopicPartition, int]:
        self.calls.append("ends")
        return dict.fromkeys(partitions, 10)

    def latest_records_now(self, partitions: Any, timeout_ms: float) -> Any:
        self.calls.append("latest")
        if self.old_brokers:
            raise kafka_errors.IncompatibleBrokerVersion
        return dict.fromkeys(partitions, RecordTime(9, 1_000))

    def first_records_now(self, timestamps: Any, timeout_ms: float) -> Any:
        self.calls.append(f"first {dict(timestamps)}")
        return {p: RecordTime(at, at + 1) if at else None for p, at in timestamps.items()}

    def first_records_soon(self, timestamps: Any, timeout_ms: float) -> Any:
        told = self.first_records_now(timestamps, timeout_ms)
        return lambda: told


def log_ends(members: Any, **more: str) -> LogEnds:
    return LogEnds(core(options(**more), members))


def record_times(members: Any = None, ends: Any = None) -> RecordTimes:
    return RecordTimes(core(options(maxTaskIdleMs="0"), members or Members()), ends)


def core(given: SourceOptions, members: Any) -> QueryCore:
    return QueryCore(given, QueryState(given), members, SimpleNamespace())  # type: ignore[arg-type]


# -- questions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"maxTaskIdleMs": "-1"}, {"maxTaskIdleMs": "0"}])
def test_nobody_asks_for_the_latest_records_without_need(more: dict[str, str]) -> None:
    members = Members()
    log_ends(members, **more).end_offsets([P])
    assert members.calls == ["ends"]


def test_the_latest_records_are_asked_for_before_the_ends() -> None:
    members = Members()
    ends = log_ends(members, maxTaskIdleMs="1000")
    ends.end_offsets([P])
    assert members.calls == ["latest", "ends"]
    assert record_times(ends=ends).newest() == {P: RecordTime(9, 1_000)}


def test_old_brokers_are_asked_once() -> None:
    members = Members()
    members.old_brokers = True
    ends = log_ends(members, maxTaskIdleMs="1000")
    ends.end_offsets([P])
    ends.end_offsets([P, Q])
    assert members.calls == ["latest", "ends", "ends"]
    assert record_times(ends=ends).newest() == {}


def test_the_latest_records_of_some_are_told_whatever_is_asked_with_the_ends() -> None:
    members = Members()
    assert record_times(members).newest_of([P]) == {P: RecordTime(9, 1_000)}
    members.old_brokers = True
    assert record_times(members).newest_of([P]) == {}
    assert members.calls == ["latest", "latest"]


def test_first_records_are_told() -> None:
    assert record_times().first_at({P: 5, Q: 0}) == {P: RecordTime(5, 6), Q: None}


def test_what_was_prepared_is_not_asked_again_but_where_there_was_no_record() -> None:
    members = Members()
    times = record_times(members)
    times.prepare({P: 5, Q: 0, R: 7}, newest=False)
    members.calls.clear()
    told = times.first_at({P: 5, Q: 0, R: 8})
    assert told == {P: RecordTime(5, 6), Q: None, R: RecordTime(8, 9)}
    assert members.calls == [f"first { ({Q: 0, R: 8}) }"]
    members.calls.clear()
    times.first_at({P: 5})
    assert members.calls == [f"first { ({P: 5}) }"], "it was for one batch"


def test_what_is_prepared_for_nobody_is_dropped() -> None:
    members = Members()
    times = record_times(members)
    times.prepare({P: 5}, newest=False)
    times.prepare({}, newest=False)
    members.calls.clear()
    times.first_at({P: 5})
    assert members.calls == [f"first { ({P: 5}) }"]


def test_logs_may_be_others_where_the_leader_or_the_topic_is_another() -> None:
    one, other = UUID(int=1), UUID(int=2)
    members = Members()
    members.known = {P: (one, 5), Q: (one, 5), R: (one, 5)}
    times = record_times(members, log_ends(members))
    assert not times.anew(), "nothing was told before"
    times.prepare({P: 5, Q: 7}, newest=False)
    members.known = {P: (one, 6), Q: (one, 5)}
    assert not times.anew(), "metadata were not renewed"
    assert members.calls.count("leaderships") == 1
    members.renewed_ms = 2.0
    assert times.anew() == [P]
    members.calls.clear()
    assert times.first_at({P: 5, Q: 7}) == {P: RecordTime(5, 6), Q: RecordTime(7, 8)}
    assert members.calls == [f"first { ({P: 5}) }"], "what was prepared of it is dropped"
    members.known, members.renewed_ms = {P: (one, 6), Q: (one, 5), R: (other, 5)}, 3.0
    assert times.anew() == [R], "it had no leader meanwhile"
    members.renewed_ms = 4.0
    assert not times.anew()


def test_the_latest_records_are_told_anew_when_they_are_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_ends_module, "END_OFFSETS_MAX_AGE_S", -1.0)
    members = Members()
    ends = log_ends(members, maxTaskIdleMs="1000")
    ends.end_offsets([P])
    members.calls.clear()
    ends.end_offsets([P])
    assert members.calls == ["ends"]
    record_times(members, ends).prepare({}, newest=True)
    ends.end_offsets([P])
    assert members.calls == ["ends", "latest", "ends"]
    members.calls.clear()
    ends.end_offsets([P, Q])
    assert members.calls == ["latest", "ends"], "nobody has told of one of them"
    monkeypatch.setattr(log_ends_module, "_LATEST_MAX_AGE_S", -1.0)
    members.calls.clear()
    ends.end_offsets([P])
    assert members.calls == ["latest", "ends"], "too old"


# -- records that are read ------------------------------------------------------------------------


class Fetcher:
    """Reads three records of each range; of some it raises."""

    failing: dict[int, Exception]
    fetched: dict[int, bytes]
    opened: int
    timeless: set[int]

    def __init__(self, client_config: Any, **settings: Any) -> None:
        assert settings["retry_timeout_ms"] <= 5_000
        assert settings["fail_on_data_loss"] is False, "what is gone is the batch's to tell"
        type(self).opened += 1

    def read(
        self, ranges: Sequence[OffsetRange], on_fetched: Any = None
    ) -> Iterator[tuple[OffsetRange, pa.RecordBatch]]:
        for one in ranges:
            if on_fetched is not None:
                on_fetched(one, self.fetched.get(one.partition, b""))
            if one.partition in self.failing:
                raise self.failing[one.partition]
            for offset in range(one.start, min(one.end, one.start + 3)):
                at = datetime.datetime.fromtimestamp(offset, datetime.timezone.utc)
                row = {"offset": offset, "timestamp": at, "value": b"x" * 2_000_000}
                if offset in self.timeless:
                    row["timestamp"] = None
                yield one, pa.RecordBatch.from_pylist([row], record_schema(False))

    def close(self) -> None:
        type(self).opened -= 1


@pytest.fixture
def fetcher(monkeypatch: pytest.MonkeyPatch) -> type[Fetcher]:
    Fetcher.failing, Fetcher.fetched, Fetcher.opened, Fetcher.timeless = {}, {}, 0, set()
    monkeypatch.setattr(fetcher_module, "RangeFetcher", Fetcher)
    return Fetcher


def a_range(partition: TopicPartition, start: int, end: int) -> OffsetRange:
    return OffsetRange(partition.topic, partition.partition, start, end)


def test_rows_of_short_ranges_and_the_first_part_of_a_long_one(fetcher: type[Fetcher]) -> None:
    rows = record_times().rows({P: a_range(P, 5, 7), Q: a_range(Q, 0, 1_000)})
    assert rows[P] == Rows([5, 6], [5_000, 6_000], 7)
    assert rows[Q] == Rows([0, 1, 2], [0, 1_000, 2_000], 3)
    assert fetcher.opened == 0


def test_a_timestamp_that_the_column_cannot_hold_is_none(fetcher: type[Fetcher]) -> None:
    fetcher.timeless = {6}
    rows = record_times().rows({P: a_range(P, 5, 8), Q: a_range(Q, 0, 1_000)})
    assert rows[P] == Rows([5, 6, 7], [5_000, -1, 7_000], 8)


def test_short_ranges_tell_whether_they_are_of_transactions(fetcher: type[Fetcher]) -> None:
    fetcher.fetched = {0: control(5, 1, commit=True), 1: build([Record(5, 0, None, None)])}
    rows = record_times().rows({P: a_range(P, 5, 6), Q: a_range(Q, 5, 6)})
    assert rows[P].has_transactions
    assert not rows[Q].has_transactions


def test_what_is_damaged_has_no_rows(fetcher: type[Fetcher]) -> None:
    fetcher.failing = {0: CorruptRecordError("t", 0, 5, "damaged")}
    rows = record_times().rows({P: a_range(P, 5, 7), Q: a_range(Q, 1, 2)})
    assert rows == {P: Rows((), (), 7), Q: Rows([1], [1_000], 2)}
    assert fetcher.opened == 0


def test_what_is_not_told_is_left_out_and_what_is_not_allowed_is_said(
    fetcher: type[Fetcher],
) -> None:
    fetcher.failing = {0: KafkaRebalanceError("no progress")}
    rows = record_times().rows({P: a_range(P, 5, 7), Q: a_range(Q, 1, 2)})
    assert rows.keys() == {Q}
    fetcher.failing = {0: AuthorizationError("READ")}
    with pytest.raises(AuthorizationError):
        record_times().rows({P: a_range(P, 5, 7)})


# -- what is awaited ------------------------------------------------------------------------------


class Owned:
    """What the members own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, members: Members) -> None:
        monkeypatch.setattr(awaited_partitions, "_SETTLED_FOR_S", 0.0)
        monkeypatch.setattr(last_change, "_ASSIGNED_WITHIN_S", 0.0)
        self.time = 0.0
        self.state = QueryState(options())
        with self.state as state:
            state.last_change = LastChange(lambda: self.time)
        self.hear()
        self.members = members
        self._awaited = AwaitedPartitions(
            self.state,
            members,  # type: ignore[arg-type]
            lambda: self.time,
        )

    def own(self, *partitions: TopicPartition) -> None:
        with self.state as state:
            owned = state.assignment.partitions
            list(owned.pop(0, list(owned.all())))
            for partition in partitions:
                owned.add(partition, OwnedPartition(0, 1))
                owned.start_at(partition, 10)

    def hear(self) -> None:
        """Every member has the answers to two more heartbeats."""
        with self.state as state:
            state.last_change.heard(self.time)
            state.last_change.heard(self.time)

    def start(self, partition: TopicPartition) -> None:
        with self.state as state:
            state.assignment.partitions.add(partition, OwnedPartition(0, 1))

    def now(self, planned: Collection[TopicPartition] | None = None) -> frozenset[TopicPartition]:
        """With a batch that is planned from what can be read now, if nothing else is said."""
        with self.state as state:
            readable = state.assignment.partitions.plannable().keys()
        return self._awaited.now(readable if planned is None else planned)


def test_until_the_members_have_settled_all_may_come(monkeypatch: pytest.MonkeyPatch) -> None:
    owned = Owned(monkeypatch, Members())
    owned.members.settled = False
    assert owned.now() == {P, Q, R}
    owned.own(P)
    assert owned.now() == {Q, R}
    owned.members.settled = True
    assert not owned.now(), "the others are another query's"


def test_a_start_that_is_not_known_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    owned = Owned(monkeypatch, Members())
    owned.own(P)
    owned.start(Q)
    assert owned.now() == {Q}


def test_what_has_come_while_the_ends_were_asked_for_is_awaited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The batch is planned from older positions, and would overtake it."""
    owned = Owned(monkeypatch, Members())
    owned.own(P, Q, R)
    assert owned.now([P, R]) == {Q}
    assert not owned.now()


def test_what_a_member_may_not_hand_out_now_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    owned = Owned(monkeypatch, Members())
    owned.own(P, Q)
    owned.members.certain = False
    assert owned.now() == {P, Q}


def test_what_leaves_one_member_may_come_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    owned = Owned(monkeypatch, Members())
    owned.own(P, Q)
    assert not owned.now()
    owned.own(P)
    owned.members.settled = False
    assert owned.now() == {Q}
    owned.time = 9.0
    assert owned.now() == {Q}
    owned.time = 10.0
    assert not owned.now(), "somebody keeps the group from settling"


def test_each_partition_is_awaited_for_as_long_as_it_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not since some other was, while the members joined: the first batches can take long."""
    owned = Owned(monkeypatch, Members())
    owned.members.settled = False
    assert owned.now() == {P, Q, R}
    owned.own(P, Q, R)
    assert not owned.now()
    owned.time = 60.0
    owned.own(P, R)
    assert owned.now() == {Q}
    owned.time = 65.0
    owned.own(P)
    assert owned.now() == {Q, R}
    owned.time = 70.0
    assert owned.now() == {R}, "Q has gone to another query"
    owned.own(P, R)
    owned.time = 71.0
    owned.own(P)
    assert owned.now() == {R}


def test_what_has_come_and_gone_before_the_members_were_quiet_is_awaited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    owned = Owned(monkeypatch, Members())
    owned.own(P)
    assert not owned.now()
    owned.members.settled = False
    owned.own(P, Q)
    assert not owned.now(), "and a batch reads Q"
    owned.own(P)
    assert owned.now() == {Q}


def test_what_was_released_is_awaited_until_each_member_has_been_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is being revoked any more, and the next owner has not heard of it."""
    owned = Owned(monkeypatch, Members())
    owned.own(P, Q, R)
    assert not owned.now()
    owned.own(P, R)
    with owned.state as state:
        state.last_change.note()
    assert owned.now() == {Q}
    owned.hear()
    assert not owned.now(), "it has gone to another query"


def test_what_leaves_the_only_member_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    owned = Owned(monkeypatch, Members(count=1))
    owned.own(P, Q)
    owned.now()
    owned.own(P)
    owned.members.settled = False
    assert not owned.now()


def test_what_the_only_member_is_asked_to_revoke_has_not_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The group may take the request back, and the records between would come late."""
    owned = Owned(monkeypatch, Members(count=1))
    owned.own(P, Q)
    assert not owned.now()
    with owned.state as state:
        state.assignment.request_revoke({Q})
    owned.members.settled = False
    assert owned.now() == {Q}
    owned.own(P)
    assert not owned.now()


def test_what_was_gained_and_passed_on_between_two_batches_is_awaited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No plan has seen it, and the query had it."""
    owned = Owned(monkeypatch, Members())
    owned.own(P)
    assert not owned.now()
    with owned.state as state:
        state.gained.add(Q)
        state.last_change.note()
    assert owned.now() == {Q}
    owned.time = 9.0
    with owned.state as state:
        state.gained.add(Q)  # and passed on once more
    assert owned.now() == {Q}
    owned.time = 18.0
    assert owned.now() == {Q}, "ten seconds since it was last owned"
    owned.time = 19.0
    assert not owned.now()


def test_a_revoke_that_waits_for_a_batch_uses_up_none_of_the_ten_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of event rows, say, which a sink takes long to flush."""
    owned = Owned(monkeypatch, Members())
    owned.own(P, Q)
    assert not owned.now()
    with owned.state as state:
        state.assignment.request_revoke({Q})
        state.last_change.note()
    owned.members.settled = False
    assert owned.now() == {Q}
    owned.time = 60.0
    assert owned.now() == {Q}
    owned.own(P)
    assert owned.now() == {Q}
    owned.time = 70.0
    assert not owned.now()


def test_a_restarted_query_awaits_what_its_dead_members_may_still_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It comes when their sessions end, and all are told until then that it is not theirs."""
    owned = Owned(monkeypatch, Members())
    with owned.state as state:
        state.assignment.restore({P: 5, Q: 5})
    owned.own(P)
    owned.hear()
    assert owned.now() == {Q, R}
    owned.time = 10.0
    assert not owned.now()


def test_a_new_query_takes_what_others_own_for_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    owned = Owned(monkeypatch, Members())
    with owned.state as state:
        state.last_change.note()
    owned.own(P)
    assert owned.now() == {Q, R}, "not all members have been told yet"
    owned.hear()
    assert not owned.now()
