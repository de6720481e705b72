"""OpenTelemetry metrics: what each event adds to which instrument, and how the instruments read."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.consumer.fetcher import ConsumerRecord
from kafka.structs import TopicPartition
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import generate_latest

from pyspark_kafka_rebalance.consumer.fetch_metadata import FetchMetadata
from pyspark_kafka_rebalance.metrics import catalogue, metrics_listener, observe
from pyspark_kafka_rebalance.metrics import instruments as instruments_module
from pyspark_kafka_rebalance.metrics import listener as listener_module
from pyspark_kafka_rebalance.metrics.catalogue import (
    ALL,
    ASSIGNED,
    BATCHES,
    CONSUMED,
    ERROR,
    HAND_OVERS,
    LAG,
    LAG_TIME,
    LOST,
    OPERATIONS,
    OUTCOME,
    PARTITION,
    PROGRESS_AGE,
    QUERY,
    REASON,
    REBALANCES,
    REVOKE_AGE,
    REVOKES,
    ROWS,
    SENT,
    TRANSACTIONS,
    Attributes,
    Instrument,
    Measured,
)
from pyspark_kafka_rebalance.metrics.harmless import harmless
from pyspark_kafka_rebalance.metrics.instruments import instruments_of
from pyspark_kafka_rebalance.metrics.member import MemberObservation
from pyspark_kafka_rebalance.metrics.member_events import MemberEvents, commit_answered
from pyspark_kafka_rebalance.metrics.producer import transaction_ended
from pyspark_kafka_rebalance.metrics.query_events import QueryEvents
from pyspark_kafka_rebalance.metrics.waiting import Waiting
from pyspark_kafka_rebalance.producer.observer import Outcome

ROOT = Path(__file__).parents[2]
P, Q = TopicPartition("orders", 0), TopicPartition("orders", 1)
OF: Attributes = {"messaging.consumer.group.name": "g"}


def values(measured: Iterable[Measured]) -> list[tuple[Instrument, float]]:
    return [(each.instrument, each.value) for each in measured]


# -- events of a member ---------------------------------------------------------------------------


def test_a_revoke_takes_from_its_request_to_its_release() -> None:
    events = MemberEvents(OF)
    began = [(REBALANCES, 1), (LOST, 0), (LOST, 0)]
    assert values(events.assigned([P], [], now=1)) == began, "nothing lost, for either reason"
    assert values(events.assigned([Q], [], now=2)) == [(REBALANCES, 1)]
    events.assigned([], [Q], now=10)
    events.assigned([], [Q], now=12)  # the group decides again; the request stands
    assert events.revoking_since(Q) == 10
    assert values(events.released([Q], now=15)) == [(REVOKES, 5)]
    assert events.revoking_since(Q) is None


def test_a_revoke_that_is_taken_back_took_no_time() -> None:
    events = MemberEvents(OF)
    events.assigned([], [Q], now=10)
    events.assigned([], [], now=11)
    assert events.released([Q], now=12) == []


def test_what_is_lost_is_counted_by_topic_and_reason() -> None:
    events = MemberEvents(OF)
    events.assigned([], [Q], now=10)
    (undrained,) = events.lost([Q], undrained=True)
    assert (undrained.value, undrained.attributes[REASON]) == (1, "undrained")
    assert values(events.released([Q], now=40)) == [(REVOKES, 30)], "then the group has it"
    events.assigned([], [P], now=50)
    (with_membership,) = events.lost([P, Q], undrained=False)
    assert (with_membership.value, with_membership.attributes[REASON]) == (2, "membership")
    assert events.released([P], now=60) == []


def test_a_hand_over_takes_from_the_assignment_to_the_first_record() -> None:
    events = MemberEvents(OF)
    events.assigned([P, Q], [], now=1)
    assert events.brought({}, {P: FetchMetadata(5, 3, 8, 0)}, now=2) == [], "3 are to come"
    assert values(events.brought({P: None}, {}, now=3)) == [(HAND_OVERS, 2)]
    assert events.brought({P: None}, {}, now=4) == []
    events.brought({}, {Q: FetchMetadata(8, 0, 8, 0)}, now=5)
    assert events.brought({Q: None}, {}, now=900) == [], "there was nothing to hand over"


def test_a_commit_fails_with_any_partition_of_it() -> None:
    assert ERROR not in commit_answered(OF, {}, 0.1).attributes
    failed = commit_answered(OF, {P: TimeoutError}, 0.1)
    assert (failed.instrument, failed.attributes[ERROR]) == (OPERATIONS, "TimeoutError")


def test_a_transaction_counts_its_records_and_its_outcome_when_it_ends() -> None:
    committed = list(transaction_ended(OF, Outcome.COMMITTED, 3, 2.0, 0.5))
    assert values(committed) == [(SENT, 3), (TRANSACTIONS, 2.0), (OPERATIONS, 0.5)]
    assert [ERROR in each.attributes for each in committed] == [False] * 3
    aborted = list(transaction_ended(OF, Outcome.ABORTED, 3, 2.0, None))
    assert values(aborted) == [(SENT, 3), (TRANSACTIONS, 2.0)]
    assert aborted[0].attributes[ERROR] == aborted[1].attributes[OUTCOME] == "aborted"


# -- the lag in seconds ---------------------------------------------------------------------------


def test_nothing_waits_at_the_end_of_the_log() -> None:
    waiting = Waiting()
    waiting.ended_at(10, 100.0)
    assert waiting.since(10, 5.0) is None


def test_what_arrives_in_an_idle_partition_has_not_waited_since_the_record_before() -> None:
    waiting = Waiting()
    waiting.ended_at(10, 100.0)
    waiting.ended_at(10, 160.0)
    waiting.ended_at(11, 170.0)
    assert waiting.since(10, record_before_at=5.0) == 160.0


def test_the_record_before_says_more_while_the_end_runs_ahead() -> None:
    waiting = Waiting()
    waiting.ended_at(10, 100.0)
    waiting.ended_at(50, 200.0)
    assert waiting.since(30, record_before_at=150.0) == 150.0
    assert Waiting().since(30, 150.0) is None, "no end is known"


def test_a_record_before_from_the_future_hides_no_wait_for_longer_than_to_the_next_look() -> None:
    waiting = Waiting()
    waiting.ended_at(10, 100.0)
    assert waiting.since(5, record_before_at=3_700.0) == 100.0, "the next one was there by then"
    waiting.ended_at(10, 130.0)
    waiting.ended_at(20, 160.0)
    waiting.ended_at(20, 190.0)
    waiting.ended_at(30, 220.0)
    assert waiting.since(5, record_before_at=3_700.0) == 100.0
    assert waiting.since(15, record_before_at=3_700.0) == 160.0
    assert waiting.since(15, record_before_at=150.0) == 150.0
    assert waiting.since(20, record_before_at=3_700.0) == 220.0


def test_with_no_hint_it_waits_since_it_was_seen() -> None:
    waiting = Waiting()
    waiting.ended_at(10, 100.0)
    waiting.ended_at(20, 130.0)
    assert waiting.since(0, None) == 100.0


def test_a_backlog_that_nobody_adds_to_waits_since_the_first_look() -> None:
    waiting = Waiting()
    for at in range(1000, 1600, 10):
        waiting.ended_at(1000, float(at))
    assert waiting.since(10, None) == 1000.0
    waiting.ended_at(1001, 1600.0)
    assert waiting.since(10, None) == 1000.0
    assert waiting.since(1000, None) == 1590.0, "that one was not there at the last look"


def test_a_log_that_became_shorter_is_begun_anew() -> None:
    waiting = Waiting()
    for end, at in ((10, 100.0), (20, 110.0), (30, 120.0), (5, 200.0), (6, 210.0)):
        waiting.ended_at(end, at)
    assert waiting.since(5, None) == 200.0
    assert waiting.since(6, None) is None


@given(
    gaps=st.lists(st.integers(0, 9), min_size=1, max_size=200),
    looks=st.lists(st.integers(0, 1000), min_size=2, max_size=200),
    data=st.data(),
)
def test_no_record_waits_for_longer_than_is_said(
    gaps: list[int], looks: list[int], data: st.DataObject
) -> None:
    arrived = [sum(gaps[: n + 1]) for n in range(len(gaps))]
    waiting, position = Waiting(), 0
    waiting.ended_at(0, -1)
    for at in sorted(looks):
        end = sum(time <= at for time in arrived)
        waiting.ended_at(end, at)
        position = data.draw(st.integers(position, end))
        since = waiting.since(position, arrived[position - 1] if position else None)
        assert (since is None) == (position == end)
        assert since is None or since <= arrived[position]


class Member:
    """Of a consumer what the lag in seconds asks for."""

    _catching_up = None

    def __init__(self, standing: FetchMetadata) -> None:
        self.config = {"group_id": "g", "client_id": "c"}
        self.standing = standing

    def assignment(self) -> set[TopicPartition]:
        return {P}

    def _standing_of(self, _: TopicPartition) -> FetchMetadata:
        return self.standing


def test_only_a_record_before_the_position_says_how_long_the_next_one_waits(
    provider: MeterProvider,
) -> None:
    now_ms = time.time_ns() // 1_000_000
    member = Member(FetchMetadata(8, 92, 100, now_ms - 50_000))
    observed: Any = MemberObservation(instruments_of(provider), lambda: member, lambda: None)

    def waits_s() -> float:
        (lag,) = observed.read(LAG_TIME)
        return round(lag.value, -1)

    record = ConsumerRecord(*[None] * len(ConsumerRecord._fields))
    record = record._replace(offset=7, timestamp=now_ms - 80_000)
    observed.polled({P: [record]}, {}, {})
    assert waits_s() == 80
    member.standing = FetchMetadata(2, 98, 100, now_ms - 50_000)
    assert waits_s() == 50, "the application has sought back, and polls do not follow yet"
    member.standing = FetchMetadata(8, 92, 100, now_ms - 50_000)
    observed.assigned([P], [])
    assert waits_s() == 50, "another member has read on meanwhile"


def test_the_first_record_of_a_partition_may_be_one_of_a_gap(
    provider: MeterProvider, reader: InMemoryMetricReader
) -> None:
    caught_up = FetchMetadata(100, 0, 100, 0)
    member: Any = Member(caught_up)
    member._catching_up = True
    member._hand_outs = SimpleNamespace(gaps=SimpleNamespace(lag={P: 50}.get))
    observed: Any = MemberObservation(instruments_of(provider), lambda: member, lambda: None)
    observed.assigned([P], [])
    observed.polled({}, {}, {P: caught_up})
    record = ConsumerRecord(*[None] * len(ConsumerRecord._fields))._replace(offset=7)
    observed.polled({}, {P: [record]}, {})
    assert [point.count for point in collected(reader, HAND_OVERS)] == [1]


@pytest.mark.parametrize("arrow", [False, True])
@pytest.mark.parametrize(
    ("later_s", "gap", "expected"),
    [
        (-5, 0, [1]),
        (5, 0, []),  # a broker holds an empty answer back until there is a record
        (5, 50, [1]),  # but a gap's records, which come later, were there
        (None, 0, [1]),
    ],
)
def test_a_hand_over_is_of_a_record_that_was_there_before(
    provider: MeterProvider,
    reader: InMemoryMetricReader,
    later_s: int | None,
    gap: int,
    expected: list[int],
    arrow: bool,
) -> None:
    member: Any = Member(FetchMetadata(8, 0, 8, 0))
    member._catching_up = True
    member._hand_outs = SimpleNamespace(gaps=SimpleNamespace(lag={P: gap}.get))
    observed: Any = MemberObservation(instruments_of(provider), lambda: member, lambda: None)
    observed.assigned([P], [])
    at_ms = None if later_s is None else time.time_ns() // 1_000_000 + later_s * 1000
    first = ConsumerRecord(*[None] * len(ConsumerRecord._fields))._replace(offset=7)
    found: list[Any] = [first._replace(timestamp=-1 if at_ms is None else at_ms), first]
    if arrow:
        times = pa.array([at_ms, None], pa.int64()).cast(pa.timestamp("ms"))
        found = [pa.record_batch({"timestamp": times.cast(pa.timestamp("us"))})]
    observed.polled({P: found}, {}, {P: member.standing})
    assert [point.count for point in collected(reader, HAND_OVERS)] == expected
    observed.polled({P: found}, {}, {P: member.standing})
    assert [point.count for point in collected(reader, HAND_OVERS)] == expected


# -- instruments ----------------------------------------------------------------------------------


class Shows:
    """A source of fixed values."""

    def __init__(self, *measured: Measured) -> None:
        self.measured = measured

    def read(self, instrument: Instrument) -> list[Measured]:
        return [each for each in self.measured if each.instrument is instrument]


class Breaks:
    def read(self, instrument: Instrument) -> list[Measured]:
        raise RuntimeError("no answer")


@pytest.fixture
def reader() -> InMemoryMetricReader:
    return InMemoryMetricReader()


@pytest.fixture
def provider(reader: InMemoryMetricReader) -> Iterable[MeterProvider]:
    made = MeterProvider([reader])
    yield made
    made.shutdown()


def collected(reader: InMemoryMetricReader, instrument: Instrument) -> list[Any]:
    """The data points of an instrument."""
    data = reader.get_metrics_data()
    return [
        point
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == instrument.name
        for point in metric.data.data_points
    ]


def test_all_clients_of_a_provider_share_its_instruments(
    provider: MeterProvider, reader: InMemoryMetricReader
) -> None:
    instruments = instruments_of(provider)
    assert instruments_of(provider) is instruments
    one = Shows(Measured(CONSUMED, 3, OF), Measured(LAG, 7, OF), Measured(ASSIGNED, 2, OF))
    other = Shows(Measured(CONSUMED, 4, OF), Measured(LAG, 5, OF), Measured(ASSIGNED, 1, OF))
    for source in (one, Breaks(), other):
        instruments.include(source)
    assert [point.value for point in collected(reader, CONSUMED)] == [7]
    assert [point.value for point in collected(reader, LAG)] == [7], "the larger one"
    assert [point.value for point in collected(reader, ASSIGNED)] == [3]
    instruments.exclude(one)
    instruments.exclude(one)
    assert [point.value for point in collected(reader, CONSUMED)] == [7], "counters never go back"
    assert [point.value for point in collected(reader, ASSIGNED)] == [1]


def test_a_provider_that_becomes_the_global_one_keeps_its_instruments(
    provider: MeterProvider, reader: InMemoryMetricReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK would leave out what second instruments of the same names observe."""
    monkeypatch.setattr(instruments_module, "_of_default", [])
    instruments_of(provider).include(Shows(Measured(CONSUMED, 3, OF)))
    monkeypatch.setattr("opentelemetry.metrics.get_meter_provider", lambda: provider)
    instruments_of(None).include(Shows(Measured(CONSUMED, 4, OF)))
    instruments_of(provider).include(Shows(Measured(CONSUMED, 5, OF)))
    assert [point.value for point in collected(reader, CONSUMED)] == [12]


BECOMES_GLOBAL = """
import sys
from opentelemetry.metrics import set_meter_provider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from pyspark_kafka_rebalance.metrics.catalogue import CONSUMED, LOST, Measured
from pyspark_kafka_rebalance.metrics.instruments import instruments_of

class Three:
    def read(self, instrument):
        return [Measured(CONSUMED, 3, {})] if instrument is CONSUMED else []

reader = InMemoryMetricReader()
named = MeterProvider([reader])
source, given = Three(), {"default": None, "named": named}
used = [instruments_of(given[each]) for each in sys.argv[1:]]
for each in used:
    each.include(source if each is used[0] else Three())
set_meter_provider(named)
instruments_of(None).include(Three())
used[0].exclude(source)
for each in used:
    each.push(Measured(LOST, 1, {}))
for metric in reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics:
    if metric.name in (CONSUMED.name, LOST.name):
        print(metric.name, *(point.value for point in metric.data.data_points))
"""


@pytest.mark.parametrize("order", [("default", "named"), ("named", "default")])
def test_a_provider_that_becomes_the_global_one_gets_what_came_for_the_global_one(
    order: tuple[str, str],
) -> None:
    """What the first source counted stays, although that has ended."""
    done = subprocess.run(
        [sys.executable, "-c", BECOMES_GLOBAL, *order], capture_output=True, text=True, timeout=120
    )
    assert sorted(done.stdout.splitlines()) == [
        "kafka_rebalance.lost_partitions 2",
        "messaging.client.consumed.messages 9",
    ], done.stderr


def test_what_is_pushed_arrives_with_its_buckets(
    provider: MeterProvider, reader: InMemoryMetricReader
) -> None:
    instruments = instruments_of(provider)
    instruments.push(Measured(LOST, 2, OF), Measured(LOST, 1, OF), Measured(REVOKES, 4.0, OF))
    assert [point.value for point in collected(reader, LOST)] == [3]
    (revokes,) = collected(reader, REVOKES)
    assert (revokes.sum, revokes.count, revokes.explicit_bounds) == (4.0, 1, REVOKES.boundaries)


def test_a_fault_of_the_metrics_ends_these_alone() -> None:
    class Faulty:
        ended = 0

        @harmless
        def polled(self) -> None:
            raise RuntimeError("a fault")

        def end(self) -> None:
            self.ended += 1

    faulty = Faulty()
    faulty.polled()
    assert faulty.ended == 1


# -- Spark ----------------------------------------------------------------------------------------

RECORDED = json.loads((Path(__file__).parent / "recorded_progress.json").read_text())


def test_the_listener_tells_what_a_recorded_query_has_reported(
    provider: MeterProvider, reader: InMemoryMetricReader
) -> None:
    """Two queries shared a group; this one gave up two of four partitions to the other."""
    listener = metrics_listener(provider)
    for progress in RECORDED:
        listener.onQueryProgress(
            SimpleNamespace(progress=SimpleNamespace(json=json.dumps(progress)))
        )
    last = RECORDED[-1]
    ends = last["sources"][0]["latestOffset"]["orders"]
    lags = {point.attributes[PARTITION]: point.value for point in collected(reader, LAG)}
    assert lags.keys() == ends.keys()
    assert len(lags) == 2
    read = sum(progress["numInputRows"] for progress in RECORDED)
    assert [point.value for point in collected(reader, ROWS)] == [read]
    (batches,) = collected(reader, BATCHES)
    assert batches.count == sum(progress["numInputRows"] > 0 for progress in RECORDED)
    assert [(p.value, p.attributes[QUERY]) for p in collected(reader, ASSIGNED)] == [(2, "first")]
    rebalances = [(p.value, p.attributes[QUERY]) for p in collected(reader, REBALANCES)]
    assert rebalances == [(2, "first")], "generations 1, 2 and 3"
    listener.onQueryTerminated(SimpleNamespace(runId=last["runId"]))
    assert collected(reader, ASSIGNED) == []
    assert [point.value for point in collected(reader, ROWS)] == [read]


def test_a_revoke_of_a_query_is_as_old_as_the_progress_that_first_told_of_it() -> None:
    def at(seconds: int) -> str:
        return f"2026-11-24T12:00:{seconds:02}.000Z"

    noon = datetime.fromisoformat(at(0).replace("Z", "+00:00")).timestamp()
    events, told = QueryEvents(), []
    for number, progress in enumerate(RECORDED):
        events.add({**progress, "timestamp": at(2 * number)}, now=0.0)
        (source,) = progress["sources"]
        idle = {**progress, "sources": [{**source, "startOffset": source["endOffset"]}]}
        events.add({**idle, "timestamp": at(2 * number + 1)}, now=0.0)
        now = noon + 2 * number + 60
        told.append({each.value for each in events.read(REVOKE_AGE, now)})
    assert {60.0} in told, "recorded while partitions moved"
    assert told[-1] == set(), "and they have moved"


@pytest.mark.parametrize("kept", ["idle", "later batch", None])
def test_a_query_with_nothing_to_read_goes_on_reporting(
    provider: MeterProvider,
    reader: InMemoryMetricReader,
    monkeypatch: pytest.MonkeyPatch,
    kept: str | None,
) -> None:
    """Spark sends no progress of an idle query, only word that it is idle, and keeps the former."""
    now = [0.0]
    monkeypatch.setattr(listener_module, "time", SimpleNamespace(time=lambda: now[0]))
    listener = metrics_listener(provider)
    at = next(i for i, each in enumerate(RECORDED) if "revoking" in json.dumps(each))
    batch, later = RECORDED[at], RECORDED[at + 1]
    source = batch["sources"][0]
    released = {"startOffset": source["endOffset"], "latestOffset": {"orders": {"2": 60, "3": 60}}}
    idle = {**batch, "numInputRows": 0, "sources": [{**source, **released, "numInputRows": 0}]}

    def as_sparks(progress: Any) -> Any:
        return SimpleNamespace(json=json.dumps(progress))

    listener.onQueryProgress(SimpleNamespace(progress=as_sparks(batch)))
    assert len(collected(reader, REVOKE_AGE)) == 2
    last = {"idle": idle, "later batch": later, None: None}[kept]
    if last is not None:
        query = SimpleNamespace(runId=batch["runId"], lastProgress=as_sparks(last))
        other = SimpleNamespace(runId="another", lastProgress=None)
        listener.spark = SimpleNamespace(streams=SimpleNamespace(active=[other, query]))
    now[0] = 1_000.0
    listener.onQueryIdle(SimpleNamespace(runId=batch["runId"]))
    now[0] = 1_001.0
    assert [point.value for point in collected(reader, PROGRESS_AGE)] == [1.0]
    read = [point.value for point in collected(reader, ROWS)]
    assert read == [batch["numInputRows"]], "a later batch counts when its own event comes"
    if kept == "idle":
        assert [point.value for point in collected(reader, ASSIGNED)] == [2]
        assert collected(reader, REVOKE_AGE) == [], "or an alert would go off, for nothing"
        assert {point.value for point in collected(reader, LAG)} == {0}


def test_a_query_that_reports_nothing_lags_more_and_more() -> None:
    events = QueryEvents()
    behind = next(
        progress
        for progress in RECORDED
        if (events.add(progress, now=5.0), any(m.value for m in events.read(LAG, 5.0)))[1]
    )
    first, later = (
        max(each.value for each in events.read(LAG_TIME, now)) for now in (2e9, 2e9 + 60)
    )
    assert later == pytest.approx(first + 60)
    assert values(events.read(PROGRESS_AGE, now=65.0)) == [(PROGRESS_AGE, 60.0)]
    assert behind["sources"]


def test_foreign_queries_are_passed_over(
    provider: MeterProvider, reader: InMemoryMetricReader
) -> None:
    listener = metrics_listener(provider)
    foreign = {"runId": "r", "sources": [{"description": "RateStream", "endOffset": "5"}]}
    listener.onQueryProgress(SimpleNamespace(progress=SimpleNamespace(json=json.dumps(foreign))))
    assert collected(reader, PROGRESS_AGE) == []


# -- what the documentation promises --------------------------------------------------------------


def test_every_instrument_is_documented_and_no_other() -> None:
    text = (ROOT / "docs" / "observability.md").read_text()
    rows = re.findall(r"^\| `([a-z_.]+)` \| ([a-z -]+) \| `([^`]+)` \|", text, re.MULTILINE)
    assert rows == [(each.name, each.kind.value, each.unit) for each in ALL]


def test_no_name_is_the_beginning_of_another() -> None:
    names = [each.name for each in ALL]
    assert len(set(names)) == len(names)
    assert [a for a in names for b in names if b.startswith(f"{a}.")] == []


LABELS = {
    value.replace(".", "_")
    for name, value in vars(catalogue).items()
    if name.isupper() and isinstance(value, str)
}


def is_observed(instrument: catalogue.Instrument) -> bool:
    """Whether it is read at each collection."""
    return instrument.kind.value.startswith("observable")


def test_the_dashboard_and_the_alerts_use_names_that_prometheus_gets() -> None:
    provider = MeterProvider([PrometheusMetricReader()])
    instruments = instruments_of(provider)
    observed = [Measured(each, 1, OF) for each in ALL if is_observed(each)]
    instruments.include(Shows(*observed))
    instruments.push(*(Measured(each, 1, OF) for each in ALL if not is_observed(each)))
    scraped = set(re.findall(r"^(\w+)\{", generate_latest().decode(), re.MULTILINE))
    provider.shutdown()
    for name in ("grafana-dashboard.json", "alerts.yml"):
        used = set(
            re.findall(
                r"\b(?:kafka_rebalance|messaging_client)_\w+(?=[{\[)\s])",
                (ROOT / "docs" / name).read_text(),
            )
        )
        assert used & scraped
        assert used - scraped - LABELS == set()


WITHOUT_OPENTELEMETRY = """
import sys
sys.modules["opentelemetry"] = None
from pyspark_kafka_rebalance.metrics import metrics_listener, observe
for call in (metrics_listener, lambda: observe(object())):
    try:
        call()
    except ImportError as error:
        assert "pyspark-kafka-rebalance[otel]" in str(error), error
    else:
        raise AssertionError("measured without OpenTelemetry")
print("refused")
"""


def test_without_the_extra_it_says_which_one_is_missing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_OPENTELEMETRY], capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "refused\n", done.stderr


def test_what_it_cannot_observe_is_refused(provider: MeterProvider) -> None:
    with pytest.raises(TypeError, match="expected a consumer or producer group"):
        observe("consumer", provider)  # type: ignore[arg-type]
