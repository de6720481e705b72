"""What a look asks of the brokers, what it asks again, and how much it reads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from kafka import errors as kafka_errors
from kafka.structs import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition

from pyspark_kafka_rebalance.consumer.group_description import GroupDescription
from pyspark_kafka_rebalance.errors import (
    AuthenticationError,
    AuthorizationError,
    CorruptRecordError,
    KafkaRebalanceError,
)
from pyspark_kafka_rebalance.fetch import fetcher as fetcher_module
from pyspark_kafka_rebalance.fetch.offset_range import OffsetRange
from pyspark_kafka_rebalance.status import first_records as first_records_module
from pyspark_kafka_rebalance.status import look as look_module
from pyspark_kafka_rebalance.status.first_records import MOST_PARTITIONS, FirstRecords
from pyspark_kafka_rebalance.status.look import GroupLook, UnknownGroupError
from pyspark_kafka_rebalance.transport.secured_clients import LoginRefusedError

P0, P1 = (TopicPartition("t", n) for n in range(2))
EMPTY = GroupDescription("Empty", (), protocol="classic")


class Admin:
    """A KafkaAdminClient: topic t has two partitions, one of them without a leader."""

    def __init__(self) -> None:
        self.asked: list[set[TopicPartition]] = []
        self.topic_error = 0

    def list_group_offsets(self, group_id: str) -> Any:
        return {group_id: {p: OffsetAndMetadata(3, "", -1) for p in (P0, P1)}}

    def describe_topics(self, topics: list[str]) -> list[dict[str, Any]]:
        assert topics == ["t"]
        parts = [{"partition_index": n, "leader_id": -n} for n in range(2)]
        return [
            {
                "name": "t",
                "topic_id": str(UUID(int=7)),
                "error_code": self.topic_error,
                "partitions": [] if self.topic_error else parts,
            }
        ]

    def list_partition_offsets(self, specs: Any, *isolation: Any) -> Any:
        self.asked.append(set(specs))
        return {p: OffsetAndTimestamp(3 if isolation else 0, -1, -1) for p in specs}

    def close(self) -> None:
        pass


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Admin:
    made = Admin()
    monkeypatch.setattr(look_module, "admin_client", lambda config: made)
    return made


@pytest.fixture
def look(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> Callable[..., GroupLook]:
    """A look at a coordinator that answers so, each time the next."""

    def of(*answers: Any, timeout_s: float = 30.0) -> GroupLook:
        left = iter(answers)

        def describe(client: Any, group_id: str) -> GroupDescription:
            answer = next(left)
            if isinstance(answer, Exception):
                raise answer
            return answer  # type: ignore[no-any-return]

        monkeypatch.setattr(look_module, "describe_group", describe)
        return GroupLook({"bootstrap_servers": ["h:1"]}, "g", timeout_s=timeout_s)

    return of


def test_a_partition_without_a_leader_is_not_asked_for(look: Any, admin: Admin) -> None:
    rows = {row.partition: row.backlog for row in look(EMPTY).report().rows}
    assert admin.asked == [{P0}, {P0}]
    assert (rows[P0].lag, rows[P1].lag, rows[P1].note) == (0, None, "no leader")


@pytest.mark.parametrize(
    ("error", "note"),
    [
        (kafka_errors.UnknownTopicOrPartitionError, "no such topic"),
        (kafka_errors.TopicAuthorizationFailedError, "not authorized"),
        (kafka_errors.InvalidTopicError, "InvalidTopicError"),
    ],
)
def test_a_topic_that_is_not_told_is_noted(look: Any, admin: Admin, error: Any, note: str) -> None:
    admin.topic_error = error.errno
    assert {row.backlog.note for row in look(EMPTY).report().rows} == {note}


def test_a_coordinator_that_moves_is_asked_again(look: Any) -> None:
    moving = [kafka_errors.NotCoordinatorError(), kafka_errors.KafkaConnectionError("away")]
    assert look(*moving, EMPTY).report().group == EMPTY


def test_it_is_asked_again_until_the_time_is_over(look: Any) -> None:
    moving = iter(kafka_errors.NotCoordinatorError, None)
    began = time.monotonic()
    with pytest.raises(KafkaRebalanceError, match=r"no answer from h:1 within 0\.3 s: .*NotCoord"):
        look(*(next(moving) for _ in range(100)), timeout_s=0.3).report()
    assert time.monotonic() - began >= 0.3


@pytest.mark.parametrize(
    ("answer", "raised", "said"),
    [
        (GroupDescription("Dead"), UnknownGroupError, "no consumer group 'g'"),
        (ValueError("Buffer underrun"), UnknownGroupError, "'g' is not a consumer group"),
        (LoginRefusedError("login by PLAIN"), AuthenticationError, "login by PLAIN"),
        (
            kafka_errors.GroupAuthorizationFailedError("g"),
            AuthorizationError,
            "DESCRIBE on group 'g'",
        ),
        (kafka_errors.InvalidRequestError("?"), KafkaRebalanceError, "h:1 refuses: .*InvalidReq"),
    ],
)
def test_what_does_not_pass_is_not_asked_again(
    look: Any, answer: Any, raised: type[Exception], said: str
) -> None:
    with pytest.raises(raised, match=said):
        look(answer).report()


# The records that are read


class Log:
    """In the place of RangeFetcher: partitions with records at some offsets, each so many s old."""

    def __init__(self, records: dict[TopicPartition, dict[int, int | None]]) -> None:
        self.records = records
        self.damaged: set[str] = set()
        self.read_of: list[list[OffsetRange]] = []

    def __call__(self, config: Any, **options: Any) -> Log:
        assert options["fail_on_data_loss"] is False
        return self

    def read(self, ranges: Sequence[OffsetRange]) -> Iterator[tuple[OffsetRange, pa.RecordBatch]]:
        self.read_of.append(list(ranges))
        for one in ranges:
            if one.topic in self.damaged:
                raise CorruptRecordError(one.topic, one.partition, one.start, "damaged")
            for offset, at in self.records[TopicPartition(one.topic, one.partition)].items():
                if one.start <= offset < one.end:
                    times = pa.array([None if at is None else at * 1000], pa.timestamp("us", "UTC"))
                    yield one, pa.record_batch({"timestamp": times})

    def close(self) -> None:
        pass


@pytest.fixture
def timestamps(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[TopicPartition, int | None]]:
    def of(log: Log, wanted: Any, timeout_s: float = 30.0) -> dict[TopicPartition, int | None]:
        monkeypatch.setattr(fetcher_module, "RangeFetcher", log)
        return FirstRecords({}, "read_uncommitted", timeout_s).timestamps(wanted)

    return of


def test_the_first_record_is_looked_for_further_where_offsets_have_none(timestamps: Any) -> None:
    at_once, marker, far, nothing, short, unstamped, beyond = (
        TopicPartition("t", n) for n in range(7)
    )
    log = Log(
        {
            at_once: {5: 1_000, 6: 2_000},
            marker: {7: 3_000, 8: 4_000},
            far: {500: 5_000},
            nothing: {},
            short: {},
            unstamped: {5: None},
            beyond: {2_100_000: 6_000},
        }
    )
    wanted = dict.fromkeys(log.records, (5, 1000)) | {short: (5, 6), beyond: (5, 5_000_000)}
    assert timestamps(log, wanted) == {
        at_once: 1_000,
        marker: 3_000,
        far: 5_000,
        nothing: None,
        short: None,
        unstamped: -1,
        beyond: 6_000,
    }
    widths = [{len(one) for one in ranges} for ranges in log.read_of]
    assert widths == [{1}, {16}, {978, 10_000}, *[{1_000_000}] * 3]


def test_what_cannot_be_read_hides_no_other_topic(timestamps: Any) -> None:
    other = TopicPartition("other", 0)
    log = Log({P0: {1: 1_000}, other: {1: 2_000}})
    log.damaged = {"t"}
    assert timestamps(log, {P0: (1, 9), other: (1, 9)}) == {other: 2_000}


def test_a_damaged_batch_hides_no_other_partition_of_its_topic(timestamps: Any) -> None:
    every = [TopicPartition("t", n) for n in range(5)]

    class Damaged(Log):
        def read(self, ranges: Any) -> Any:
            for at, one in enumerate(ranges):
                if one.partition in (1, 3):
                    raise CorruptRecordError(one.topic, one.partition, one.start, "damaged")
                yield from super().read(ranges[at : at + 1])

    log = Damaged({p: {0: 1_000 + p.partition} for p in every})
    found = timestamps(log, dict.fromkeys(every, (0, 9)))
    assert found == {p: 1_000 + p.partition for p in every if p.partition in (0, 2, 4)}


def test_topics_that_are_slow_to_fail_are_not_read_one_after_the_other(
    timestamps: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(first_records_module, "time", clock)

    class Hangs(Log):
        def read(self, ranges: Any) -> Any:
            if len(ranges) > 1:
                raise AuthorizationError("one topic may not be read")
            now[0] += 10.5
            raise KafkaRebalanceError("no progress")
            yield

    assert timestamps(Hangs({}), {TopicPartition(t, 0): (0, 9) for t in "abcde"}, 10.0) == {}
    assert now == [10.5]


def test_those_with_the_longest_lag_are_read_and_no_more_than_so_many(timestamps: Any) -> None:
    every = [TopicPartition("t", n) for n in range(MOST_PARTITIONS + 5)]
    log = Log({p: {0: 1_000} for p in every})
    found = timestamps(log, {p: (0, 1 + p.partition) for p in every})
    assert found.keys() == set(every[5:])
    assert timestamps(Log({}), {}) == {}


def test_reading_ends_with_the_time(timestamps: Any) -> None:
    every = [TopicPartition("t", n) for n in range(5)]
    log = Log({p: {0: 1_000} for p in every})
    found = timestamps(log, dict.fromkeys(every, (0, 9)), timeout_s=0.0)
    assert len(found) == 1
    assert len(log.read_of) == 1
