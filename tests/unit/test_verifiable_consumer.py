"""The verifiable consumer without a broker: its lines, their order, its command line."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.consumer.consumer import PollResult
from pyspark_kafka_rebalance.errors import MembershipError, PartitionsLostError
from tests.verifiable_consumer.consumer import VerifiableConsumer
from tests.verifiable_consumer.events import (
    event_line,
    offsets_committed,
    record_data,
    records_consumed,
)
from tests.verifiable_consumer.options import COOPERATIVE, parse

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
REQUIRED = ["--bootstrap-server", "h:1", "--topic", "t", "--group-id", "g"]


def record(offset: int, partition: int = 0) -> SimpleNamespace:
    return SimpleNamespace(topic="t", partition=partition, offset=offset, key=None, value=b"v")


class FakeConsumer:
    """Answers each poll with what a script does; nothing is ever committed but by ``answers``."""

    config = {"max_poll_records": 500}  # noqa: RUF012 - never changed

    def __init__(self, *script: Callable[[FakeConsumer], PollResult]) -> None:
        self._script = list(script)
        self.listener: Any = None
        self.owned = frozenset({P0, P1})
        self.committed: dict[TopicPartition, int] = {}
        self.answers = True
        self.lost = False
        self.drained = True
        self.wanted: list[int | None] = []

    def subscribe(self, topics: list[str], listener: Any) -> None:
        self.listener = listener

    def poll_with_rebalance(self, timeout_ms: float, max_records: int) -> PollResult:
        self.wanted.append(max_records)
        return self._script.pop(0)(self)

    def assignment(self) -> frozenset[TopicPartition]:
        return self.owned

    def commit_processed(self, offsets: dict[TopicPartition, int]) -> None:
        if self.lost:
            raise PartitionsLostError("lost")
        if self.answers:
            self.committed |= offsets

    def drain(self, timeout_ms: float) -> bool:
        return self.drained

    def acknowledged(self, partition: TopicPartition) -> int | None:
        return self.committed.get(partition)

    def close(self) -> None:
        if self.owned:
            self.listener.on_partitions_revoked(self.owned)


def run(fake: FakeConsumer, **settings: Any) -> tuple[bool, list[dict[str, Any]]]:
    """Run it with the script; whether it succeeded, and its events without timestamps."""
    out = io.StringIO()
    stop = settings.pop("stop", threading.Event())
    chosen = {"max_messages": -1, "auto_commit": False, "verbose": False, **settings}
    consumer = VerifiableConsumer(fake, "t", stop=stop, out=out, **chosen)  # type: ignore[arg-type]
    succeeded = consumer.run()
    events = [json.loads(line) for line in out.getvalue().splitlines()]
    for event in events:
        assert event.pop("timestamp") > 1_600_000_000_000
    return succeeded, events


def names(events: list[dict[str, Any]]) -> list[str]:
    return [event["name"] for event in events]


def records(*offsets: int) -> Callable[[FakeConsumer], PollResult]:
    return lambda _: PollResult({P0: [record(offset) for offset in offsets]})


def fail(_: FakeConsumer) -> PollResult:
    raise MembershipError("fenced")


def test_a_line_begins_with_timestamp_and_name() -> None:
    line = event_line(7, "offsets_committed", offsets_committed({P0: 3}, None))
    assert line == (
        '{"timestamp":7,"name":"offsets_committed",'
        '"offsets":[{"topic":"t","partition":0,"offset":3}],"success":true}'
    )


def test_a_failed_commit_says_why() -> None:
    failed = offsets_committed({P0: 3}, "no")
    assert (failed["error"], failed["success"]) == ("no", False)


def test_records_that_are_not_text_or_not_there() -> None:
    odd = SimpleNamespace(topic="t", partition=0, offset=1, key=None, value=b"\xff")
    assert record_data(odd)["key"] is None
    assert record_data(odd)["value"] == "\ufffd"


def test_a_summary_of_each_partition_that_has_records() -> None:
    told = records_consumed({P0: [record(4), record(6)], P1: []})
    assert told == {
        "count": 2,
        "partitions": [{"topic": "t", "partition": 0, "count": 2, "minOffset": 4, "maxOffset": 6}],
    }


def test_what_is_read_is_committed_before_the_next_poll() -> None:
    succeeded, events = run(FakeConsumer(records(0, 1), records(2)), max_messages=3)
    assert succeeded
    assert names(events) == [
        "startup_complete",
        "records_consumed",
        "offsets_committed",
        "records_consumed",
        "offsets_committed",
        "partitions_revoked",
        "shutdown_complete",
    ]
    assert events[2]["offsets"] == [{"topic": "t", "partition": 0, "offset": 2}]


def test_no_record_is_fetched_beyond_max_messages() -> None:
    fake = FakeConsumer(records(0, 1), records(2))
    run(fake, max_messages=3)
    assert fake.wanted == [3, 1]


def test_verbose_tells_each_record_first() -> None:
    _, events = run(FakeConsumer(records(0, 1)), max_messages=2, verbose=True)
    assert names(events)[1:4] == ["record_data", "record_data", "records_consumed"]


def test_a_poll_without_records_tells_nothing() -> None:
    _, events = run(FakeConsumer(lambda _: PollResult(), records(0)), max_messages=1)
    assert names(events)[:2] == ["startup_complete", "records_consumed"]


def test_auto_commit_commits_and_is_silent() -> None:
    fake = FakeConsumer(records(0))
    _, events = run(fake, max_messages=1, auto_commit=True)
    assert fake.committed == {P0: 1}
    assert "offsets_committed" not in names(events)


@pytest.mark.parametrize(
    ("trouble", "error"),
    [
        ({"lost": True}, "lost"),
        ({"answers": False}, "not committed"),
        ({"drained": False}, "no answer"),
    ],
)
def test_a_commit_that_fails_is_told_and_goes_on(trouble: dict[str, bool], error: str) -> None:
    fake = FakeConsumer(records(0), records(1))
    vars(fake).update(trouble)
    succeeded, events = run(fake, max_messages=2)
    commits = [event for event in events if event["name"] == "offsets_committed"]
    assert succeeded
    assert [(error in event["error"], event["success"]) for event in commits] == [(True, False)] * 2


def test_after_a_revoke_the_member_counts_as_joined_again() -> None:
    """Kafka's handler takes no records of a member that is rebalancing."""

    def revoke(fake: FakeConsumer) -> PollResult:
        fake.listener.on_partitions_revoked({P1})
        fake.owned = frozenset({P0})
        return PollResult({P0: [record(0)]}, revoked=frozenset({P1}))

    _, events = run(FakeConsumer(revoke), max_messages=1)
    assert names(events)[1:4] == ["partitions_revoked", "partitions_assigned", "records_consumed"]
    assert events[1]["partitions"] == [{"topic": "t", "partition": 1}]
    assert events[2]["partitions"] == []


def test_lost_partitions_are_told_in_java_s_way_too() -> None:
    def lose_all(fake: FakeConsumer) -> PollResult:
        fake.listener.on_partitions_lost({P0, P1})
        fake.owned = frozenset()
        return PollResult(lost=frozenset({P0, P1}))

    _, events = run(FakeConsumer(lose_all, records(0)), max_messages=1)
    assert names(events)[1:4] == ["partitions_lost", "partitions_revoked", "records_consumed"]
    assert events[1]["partitions"] == events[2]["partitions"]


def test_what_was_not_lost_with_the_rest_goes_on() -> None:
    def lose_one(fake: FakeConsumer) -> PollResult:
        fake.listener.on_partitions_lost({P1})
        fake.owned = frozenset({P0})
        return PollResult(lost=frozenset({P1}))

    _, events = run(FakeConsumer(lose_one, records(0)), max_messages=1)
    assert names(events)[2:4] == ["partitions_revoked", "partitions_assigned"]


def test_an_error_ends_it_with_the_last_line_in_place() -> None:
    succeeded, events = run(FakeConsumer(fail))
    assert not succeeded
    assert names(events)[-1] == "shutdown_complete"
    assert "shutdown_requested" not in names(events)


def test_a_signal_lets_the_turn_finish() -> None:
    stop = threading.Event()

    def signalled(fake: FakeConsumer) -> PollResult:
        stop.set()
        return PollResult({P0: [record(0)]})

    succeeded, events = run(FakeConsumer(signalled), stop=stop)
    assert succeeded
    assert names(events)[2:] == [
        "offsets_committed",
        "shutdown_requested",
        "partitions_revoked",
        "shutdown_complete",
    ]


def test_java_s_defaults_but_for_the_assignor() -> None:
    parsed = parse(REQUIRED)
    assert (parsed.max_messages, parsed.verbose, parsed.enable_autocommit) == (-1, False, False)
    assert parsed.config["auto_offset_reset"] == "earliest"
    assert parsed.config["group_protocol"] == "classic"
    assert parsed.config["session_timeout_ms"] == 45_000
    assert parsed.config["bootstrap_servers"] == ["h:1"]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--assignment-strategy", "org.apache.kafka.clients.consumer.RangeAssignor"], "strategy"),
        (["--group-protocol", "CONSUMER", "--session-timeout", "6000"], "--session-timeout"),
        (["--command-config", "a", "--consumer.config", "b"], "not allowed with"),
        (["--command-config", "/does/not/exist"], "/does/not/exist"),
        (["--reset-policy", "latst"], "latst"),
        (["--session-timeout", "soon"], "soon"),
        (["--max-mess", "1"], "--max-mess"),
    ],
)
def test_a_wrong_option_exits_with_java_s_code(
    options: list[str], names: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exited:
        parse([*REQUIRED, *options])
    assert exited.value.code == 1
    assert names in capsys.readouterr().err


def test_the_assignor_does_not_matter_to_the_consumer_protocol() -> None:
    options = ["--assignment-strategy", "x", "--group-remote-assignor", "uniform"]
    parsed = parse([*REQUIRED, "--group-protocol", "CONSUMER", *options])
    assert parsed.config["group_protocol"] == "consumer"
    assert parsed.config["group_remote_assignor"] == "uniform"


@pytest.mark.parametrize("option", ["--command-config", "--consumer.config"])
def test_the_command_line_goes_before_the_settings_file(option: str, tmp_path: Any) -> None:
    settings = tmp_path / "consumer.properties"
    settings.write_text(
        "# of a system test\nheartbeat.interval.ms = 500\nmax.poll.records=7\n"
        "session.timeout.ms=9000\ngroup.id=other\nenable.auto.commit=true\n"
        "partition.assignment.strategy=x\n"
    )
    parsed = parse([*REQUIRED, option, str(settings), "--session-timeout", "6000"])
    assert parsed.config["heartbeat_interval_ms"] == 500
    assert parsed.config["max_poll_records"] == 7
    assert parsed.config["session_timeout_ms"] == 6_000
    assert parsed.config["group_id"] == "g"
    assert parsed.assignment_strategy == COOPERATIVE
