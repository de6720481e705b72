"""The transactional message copier without a broker: its lines, their order, its command line."""

from __future__ import annotations

import datetime
import io
import json
import threading
from collections.abc import Callable, Collection, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import errors as kafka_errors
from kafka.structs import ConsumerGroupMetadata, TopicPartition

from tests.transactional_message_copier.copier import MessageCopier
from tests.transactional_message_copier.events import UNBOUNDED, Progress, status_line
from tests.transactional_message_copier.options import Options, parse
from tests.transactional_message_copier.producers import FencedError

P0, P1 = TopicPartition("in", 0), TopicPartition("in", 1)
REQUIRED = [
    *("--input-topic", "in", "--input-partition", "0", "--output-topic", "out"),
    *("--broker-list", "h:1", "--transactional-id", "x"),
]
MEMBER = ConsumerGroupMetadata("g", 7, "member", None)


class Log:
    """Where a copier's output goes: records and offsets of committed transactions alone."""

    def __init__(self) -> None:
        self.records: list[tuple[int, bytes]] = []
        self.offsets: dict[TopicPartition, int] = {}


class FakeProducer:
    """Writes into a log; ``fails`` are errors for calls by name, each once."""

    def __init__(self, log: Log, **fails: Exception) -> None:
        self.log = log
        self.fails = fails
        self.groups: list[ConsumerGroupMetadata] = []
        self.calls: list[str] = []
        self._records: list[tuple[int, bytes]] = []
        self._offsets: dict[TopicPartition, int] = {}

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name in self.fails:
            raise self.fails.pop(name)

    def begin(self) -> None:
        self._call("begin")
        self._records, self._offsets = [], {}

    def send(self, topic: str, partition: int, key: bytes | None, value: bytes | None) -> None:
        self._call("send")
        assert topic == "out"
        assert value is not None
        self._records.append((partition, value))

    def send_offsets(
        self, offsets: Mapping[TopicPartition, int], group: ConsumerGroupMetadata
    ) -> None:
        self._call("send_offsets")
        self.groups.append(group)
        self._offsets = dict(offsets)

    def commit(self) -> None:
        self._call("commit")
        self.log.records += self._records
        self.log.offsets |= self._offsets

    def abort(self) -> None:
        self._call("abort")

    def close(self) -> None:
        self._call("close")


class FakeConsumer:
    """Partitions with so many records each; in a group, the assignment changes with the polls."""

    def __init__(self, log: Log, ends: Mapping[TopicPartition, int]) -> None:
        self._log = log
        self._ends = dict(ends)
        self._positions: dict[TopicPartition, int] = {}
        self.listener: Any = None
        self.assignments: list[set[TopicPartition]] = []
        self.closed = False
        self.moves = False  # the next query meets a leader that moves

    def _query(self) -> None:
        if self.moves:
            self.moves = False
            raise kafka_errors.LeaderNotAvailableError()

    def subscribe(self, topics: Collection[str], pattern: None, listener: Any) -> None:
        assert topics == ["in"]
        self.listener = listener

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        self._positions = {p: self._log.offsets.get(p, 0) for p in partitions}

    def assignment(self) -> set[TopicPartition]:
        return set(self._positions)

    def poll(self, timeout_ms: float, max_records: int) -> dict[TopicPartition, Any]:
        if self.assignments:
            before, after = self.assignment(), self.assignments.pop(0)
            kept = {p: self._positions[p] for p in before & after}
            self._positions = {p: kept.get(p, self._log.offsets.get(p, 0)) for p in after}
            self.listener.on_partitions_revoked(before - after)
            self.listener.on_partitions_assigned(after - before)
        found: dict[TopicPartition, Any] = {}
        for p, at in self._positions.items():
            wanted = range(at, min(self._ends[p], at + max_records))
            max_records -= len(wanted)
            if wanted:
                self._positions[p] = wanted.stop
                found[p] = [SimpleNamespace(key=None, value=b"%d" % n) for n in wanted]
        return found

    def position(self, partition: TopicPartition) -> int | None:
        return self._positions[partition]

    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        self._query()
        return {p: self._ends[p] for p in partitions}

    def committed(self, partition: TopicPartition) -> int | None:
        self._query()
        return self._log.offsets.get(partition)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._positions[partition] = offset

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        self._positions |= dict.fromkeys(partitions, 0)

    def group_metadata(self) -> ConsumerGroupMetadata:
        return MEMBER

    def close(self) -> None:
        self.closed = True


class Chance:
    """Aborts as told, then never."""

    def __init__(self, *aborts: bool) -> None:
        self._aborts = list(aborts)

    def randrange(self, stop: int) -> int:
        return 0 if self._aborts and self._aborts.pop(0) else stop - 1


class Bench:
    """A copier of ten records in partition 0 and five in partition 1."""

    def __init__(self, *words: str, chance: Chance | None = None, **fails: Exception) -> None:
        self.log = Log()
        self.producer = FakeProducer(self.log, **fails)
        self.consumer = FakeConsumer(self.log, {P0: 10, P1: 5})
        self.stop = threading.Event()
        self._out = io.StringIO()
        options = parse([*REQUIRED, "--transaction-size", "4", "--consumer-group", "g", *words])
        self.copier = MessageCopier(
            options,
            self.consumer,
            self.producer,
            stop=self.stop,
            out=self._out,
            chance=chance or Chance(),  # type: ignore[arg-type]  # the one call of it
        )

    def lines(self) -> list[tuple[str, int, int, int]]:
        told = map(json.loads, self._out.getvalue().splitlines())
        names = ("stage", "totalProcessed", "consumed", "remaining")
        return [tuple(line[name] for name in names) for line in told]  # type: ignore[misc]

    def copied(self, partition: int = 0) -> list[int]:
        return [int(value) for number, value in self.log.records if number == partition]


def test_a_partition_is_copied_in_transactions() -> None:
    bench = Bench()
    bench.copier.run()
    assert bench.copied() == [*range(10)]
    assert bench.log.offsets == {P0: 10}
    assert bench.lines() == [
        ("ProcessLoop", 0, 0, 10),
        ("ProcessLoop", 4, 4, 6),
        ("ProcessLoop", 8, 8, 2),
        ("ShutdownComplete", 10, 10, 0),
    ]
    assert bench.producer.calls.count("commit") == 3
    assert bench.producer.groups == [ConsumerGroupMetadata("g")] * 3
    assert bench.consumer.closed


def test_it_begins_where_the_group_is_and_ends_with_the_number_of_messages() -> None:
    bench = Bench("--max-messages", "5")
    bench.log.offsets[P0] = 2
    bench.copier.run()
    assert bench.lines()[0] == ("ProcessLoop", 0, 0, 5)
    assert bench.copied() == [*range(2, 10)], "whole transactions, as in Java's"


@pytest.mark.parametrize("fails", ["send", "send_offsets", "commit"])
def test_after_an_error_it_goes_back_to_the_committed_offsets(fails: str) -> None:
    bench = Bench(**{fails: kafka_errors.KafkaTimeoutError()})
    bench.copier.run()
    assert bench.copied() == [*range(10)]
    assert bench.producer.calls.count("abort") == 1
    assert bench.lines()[1] == ("ProcessLoop", 0, 0, 10)


def test_a_leader_that_moves_does_not_end_it() -> None:
    bench = Bench(send=kafka_errors.KafkaTimeoutError())
    bench.consumer.moves = True
    abort = bench.producer.abort

    def abort_while_it_moves() -> None:
        abort()
        bench.consumer.moves = True

    bench.producer.abort = abort_while_it_moves  # type: ignore[method-assign]
    bench.copier.run()
    assert bench.copied() == [*range(10)]
    assert not bench.consumer.moves


def test_random_aborts() -> None:
    chance = Chance(True, False, True)
    bench = Bench("--enable-random-aborts", chance=chance)
    bench.copier.run()
    assert bench.copied() == [*range(10)]
    assert bench.producer.calls.count("abort") == 2
    without = Bench(chance=Chance(True, True, True))
    without.copier.run()
    assert "abort" not in without.producer.calls


@pytest.mark.parametrize("fails", ["begin", "send", "commit", "abort"])
def test_a_fenced_producer_ends_it(fails: str) -> None:
    chance = Chance(fails == "abort")
    bench = Bench("--enable-random-aborts", chance=chance, **{fails: FencedError("another")})
    with pytest.raises(FencedError):
        bench.copier.run()
    assert bench.copied() == []
    assert bench.producer.calls[-1] == "close"
    assert bench.lines()[-1] == ("ShutdownComplete", 0, 0, 10)


def test_a_signal_ends_it_after_the_transaction() -> None:
    bench = Bench()
    commit: Callable[[], None] = bench.producer.commit

    def commit_and_stop() -> None:
        commit()
        bench.stop.set()

    bench.producer.commit = commit_and_stop  # type: ignore[method-assign]
    bench.copier.run()
    assert bench.copied() == [*range(4)]
    assert bench.lines()[-1] == ("ShutdownComplete", 4, 4, 6)


def test_a_group_s_member_counts_its_whole_assignment() -> None:
    bench = Bench("--group-mode", "--use-group-metadata")
    bench.consumer.assignments = [set(), {P0}, {P0, P1}]
    bench.copier.run()
    assert (bench.copied(), bench.copied(1)) == ([*range(10)], [*range(5)])
    assert set(bench.producer.groups) == {MEMBER}
    assert bench.lines()[:6] == [
        ("ProcessLoop", 0, 0, UNBOUNDED),
        ("ProcessLoop", 0, 0, UNBOUNDED),
        ("RebalanceComplete", 0, 0, 10),
        ("ProcessLoop", 4, 4, 6),
        ("RebalanceComplete", 4, 0, 11),
        ("ProcessLoop", 8, 4, 7),
    ]
    assert bench.lines()[-1] == ("ShutdownComplete", 15, 11, 0)


def test_lines_are_java_s() -> None:
    at = datetime.datetime(2026, 11, 26, 18, 5, 9, 7_123)
    line = status_line("ProcessLoop", Progress(3, 2, 1), "x", at)
    assert line == (
        '{"transactionalId":"x","stage":"ProcessLoop","time":"2026/11/26 18:05:09:007",'
        '"totalProcessed":2,"consumed":1,"remaining":3}'
    )


def test_the_command_line_is_java_s() -> None:
    assert parse(REQUIRED) == Options("in", 0, "out", "h:1", "x")
    given = parse(
        [
            *REQUIRED,
            *("--max-messages", "9", "--consumer-group", "g", "--transaction-size", "750"),
            *("--transaction-timeout", "40000", "--enable-random-aborts", "--group-mode"),
            *("--use-group-metadata", "--group-protocol", "CONSUMER"),
        ]
    )
    assert given == Options(
        *("in", 0, "out", "h:1", "x", 9, "g", 750, 40_000, True, True, True, "consumer")
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (REQUIRED[2:], "--input-topic"),
        ([*REQUIRED, "--transaction-size", "0"], "from 1 on"),
        ([*REQUIRED, "--input-partition", "x"], "x"),
        ([*REQUIRED, "--group-protocol", "share"], "share"),
        ([*REQUIRED, "--max-message", "7"], "--max-message"),
    ],
)
def test_a_wrong_option_ends_with_1(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(words)
    assert ended.value.code == 1
    assert said in capsys.readouterr().err
