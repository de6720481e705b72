"""A reader against brokers that answer what real ones answer rarely."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from kafka import errors as kafka_errors
from kafka.future import Future
from kafka.protocol.consumer import OffsetSpec
from record_batches import Record, build

from pyspark_kafka_rebalance.errors import (
    AuthorizationError,
    CorruptRecordError,
    DataLossError,
    KafkaRebalanceError,
    UnsupportedBrokerError,
)
from pyspark_kafka_rebalance.fetch import connections, fetch_pipeline, range_reader
from pyspark_kafka_rebalance.fetch.connections import PendingResponse
from pyspark_kafka_rebalance.fetch.fetch_pipeline import FetchPipeline
from pyspark_kafka_rebalance.fetch.leaders import Leader
from pyspark_kafka_rebalance.fetch.offset_range import OffsetRange
from pyspark_kafka_rebalance.fetch.range_reader import Fetched, FetchSettings, RangeReader

RANGE = OffsetRange("orders", 3, 10, 20)


class Clock:
    """Time that only passes while somebody sleeps."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (range_reader, fetch_pipeline, connections):
        monkeypatch.setattr(module, "time", clock)
    return clock


class Cluster:
    """Connections and leaders: answers with what a test laid out, the last of it for ever."""

    def __init__(self, *answers: Any, ends: dict[OffsetSpec, Any] | None = None) -> None:
        self.answers = list(answers)
        self.ends = ends or {}
        self.requests: list[Any] = []
        self.forgotten = 0
        self.topic_ids: list[UUID] = []  # by one answer after the other
        self.asked_by: list[UUID | None] = []

    def send(self, request: Any, node_id: int) -> Any:
        self.requests.append(request.topics[0].partitions[0].fetch_offset)
        self.asked_by.append(request.topics[0].topic_id)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

        future = Future()
        if isinstance(answer, Exception):
            future.failure(answer)
        else:
            future.success(answer)
        return PendingResponse(future, 30.0)

    def locate(self, topic: str, partition: int) -> Leader:
        return Leader(1, 0)

    def topic_id(self, topic: str) -> UUID | None:
        if len(self.topic_ids) > 1:
            return self.topic_ids.pop(0)
        return self.topic_ids[0] if self.topic_ids else None

    def forget(self, topic: str, partition: int) -> None:
        self.forgotten += 1

    def list_offset(self, topic: str, partition: int, spec: OffsetSpec) -> int:
        offset = self.ends[spec]
        if isinstance(offset, list):
            offset = offset.pop(0) if len(offset) > 1 else offset[0]
        if isinstance(offset, Exception):
            raise offset
        return int(offset)


def answer(
    records: bytes = b"", high_watermark: int = 100, error: int = 0, stable: int | None = None
) -> Any:
    partition = SimpleNamespace(
        partition_index=RANGE.partition,
        error_code=error,
        high_watermark=high_watermark,
        last_stable_offset=high_watermark if stable is None else stable,
        aborted_transactions=None,
        preferred_read_replica=-1,
        records=records,
    )
    return SimpleNamespace(
        error_code=0, responses=[SimpleNamespace(topic="orders", partitions=[partition])]
    )


def data(first: int, last: int) -> Any:
    return answer(build([Record(n, 0, None, b"v") for n in range(first, last)]))


def by_id(response: Any, topic_id: UUID) -> Any:
    """As brokers answer a fetch by the topic's id: without its name."""
    [topic] = response.responses
    topic.topic, topic.topic_id = "", topic_id
    return response


THROTTLED = SimpleNamespace(error_code=0, throttle_time_ms=300, responses=[])
NO_TIERS = {OffsetSpec.EARLIEST_LOCAL: 0, OffsetSpec.EARLIEST: 0}


def fetches_of(
    cluster: Cluster,
    bytes_per_offset: dict[str, float] | None = None,
    topic_id: UUID | None = None,
    **options: Any,
) -> Iterator[tuple[RangeReader, Fetched | None]]:
    config: dict[str, Any] = {
        "read_committed": False,
        "fail_on_data_loss": True,
        "fetch_bytes": 2**20,
        "fetch_min_bytes": 1,
        "fetch_max_wait_ms": 500,
        "retry_timeout_s": 60.0,
    }
    settings = FetchSettings(**{**config, **options})
    sizes = {} if bytes_per_offset is None else bytes_per_offset
    reader = RangeReader(RANGE, cluster, settings, sizes, topic_id)  # type: ignore[arg-type]
    return FetchPipeline([reader], cluster, settings).fetches()  # type: ignore[arg-type]


def read(cluster: Cluster, **options: Any) -> list[int]:
    """The positions after every fetch."""
    positions = []
    for reader, fetched in fetches_of(cluster, **options):
        assert (fetched is not None) or reader.finished
        positions.append(reader.position)
    return positions


def test_fetches_go_on_where_the_last_batch_ended() -> None:
    cluster = Cluster(data(8, 14), data(14, 17), data(17, 25))
    assert read(cluster) == [14, 17, 25]
    assert cluster.requests == [10, 14, 17]


@pytest.mark.parametrize(
    "trouble",
    [
        THROTTLED,
        answer(error=6),  # not the leader
        answer(error=74),  # fenced epoch
        answer(error=75),  # unknown epoch
        answer(error=56),  # storage
        answer(error=-1),
        kafka_errors.KafkaConnectionError("gone"),
        kafka_errors.NodeNotReadyError("backing off"),
        kafka_errors.UnknownBrokerIdError("left"),
        kafka_errors.RequestTimedOutError(),
        kafka_errors.Cancelled(),
        ConnectionResetError(),
    ],
    ids=repr,
)
def test_what_passes_is_waited_for(trouble: Any) -> None:
    cluster = Cluster(trouble, trouble, trouble, data(10, 20))
    assert read(cluster) == [20]
    assert cluster.requests == [10] * 4
    assert cluster.forgotten == 3


def test_what_does_not_pass_is_given_up_and_named(clock: Clock) -> None:
    with pytest.raises(KafkaRebalanceError) as caught:
        read(Cluster(data(10, 15), kafka_errors.KafkaConnectionError("broken wire")))
    text = str(caught.value)
    assert str(RANGE) in text
    assert "offset 15" in text
    assert "broken wire" in text
    assert 60 <= clock.now < 63


def test_the_time_that_the_caller_takes_is_no_failure(clock: Clock) -> None:
    cluster = Cluster(data(10, 15), kafka_errors.KafkaConnectionError(), data(15, 20))
    for _ in fetches_of(cluster):
        clock.now += 3_600
    assert cluster.requests == [10, 15, 15]


@pytest.mark.parametrize(
    ("trouble", "kind"),
    [
        (answer(error=29), AuthorizationError),
        (kafka_errors.SaslAuthenticationFailedError("no"), KafkaRebalanceError),
        (kafka_errors.IncompatibleBrokerVersion("old"), UnsupportedBrokerError),
        (kafka_errors.InvalidReceiveError("huge"), KafkaRebalanceError),
        (answer(error=2), CorruptRecordError),
    ],
)
def test_what_never_passes_is_raised_at_once(
    trouble: Any, kind: type[Exception], clock: Clock
) -> None:
    with pytest.raises(kind, match="orders-3") as caught:
        read(Cluster(trouble))
    assert type(caught.value) is kind
    assert clock.now == 0


# Empty answers


def test_a_gap_at_the_end_of_the_log() -> None:
    assert read(Cluster(data(10, 15), answer(), ends=NO_TIERS)) == [15, 20]


def test_an_old_broker_has_no_tiered_storage() -> None:
    ends: dict[OffsetSpec, Any] = {
        OffsetSpec.EARLIEST_LOCAL: kafka_errors.IncompatibleBrokerVersion("v8")
    }
    assert read(Cluster(answer(), ends=ends)) == [20]


def test_slow_tiered_storage_is_no_gap() -> None:
    tiered = {OffsetSpec.EARLIEST_LOCAL: 1_000, OffsetSpec.EARLIEST: 0}
    assert read(Cluster(answer(), answer(), data(10, 20), ends=tiered)) == [20]
    with pytest.raises(KafkaRebalanceError, match="tiered storage"):
        read(Cluster(answer(), ends=tiered))


def test_records_deleted_while_an_answer_was_empty() -> None:
    ends = {OffsetSpec.EARLIEST_LOCAL: 15, OffsetSpec.EARLIEST: 15, OffsetSpec.LATEST: 100}
    with pytest.raises(DataLossError, match="begins at offset 15"):
        read(Cluster(answer(), ends=ends))
    lenient = Cluster(answer(), data(15, 20), ends=ends)
    assert read(lenient, fail_on_data_loss=False) == [20]
    assert lenient.requests == [10, 15]


def test_a_high_watermark_that_lags_after_an_election_is_no_loss() -> None:
    lagging = answer(high_watermark=12)
    unavailable = kafka_errors.OffsetNotAvailableError()
    ends = {OffsetSpec.LATEST: [unavailable, 12, 100]}
    assert read(Cluster(lagging, lagging, lagging, data(10, 20), ends=ends)) == [20]


def test_a_log_that_ends_early_is_a_loss_when_seen_twice() -> None:
    cluster = Cluster(answer(high_watermark=12), ends={OffsetSpec.LATEST: 12})
    with pytest.raises(DataLossError, match="ends at offset 12"):
        read(cluster)
    assert len(cluster.requests) == 2
    assert cluster.forgotten == 1
    log = Cluster(data(10, 12), answer(high_watermark=12), ends={OffsetSpec.LATEST: 12})
    assert read(log, fail_on_data_loss=False)[-1] == 12


def test_read_committed_waits_for_the_last_stable_offset() -> None:
    held = answer(stable=15)
    assert read(Cluster(held, held, data(10, 20)), read_committed=True) == [20]
    with pytest.raises(KafkaRebalanceError, match=r"open transaction .* at 15"):
        read(Cluster(held), read_committed=True)
    assert read(Cluster(held, ends=NO_TIERS), read_committed=False) == [20]


def test_out_of_range_on_a_follower_that_became_leader_passes() -> None:
    out = answer(error=1)
    ends = {OffsetSpec.EARLIEST: 0, OffsetSpec.LATEST: [5, 100]}
    assert read(Cluster(out, out, data(10, 20), ends=ends)) == [20]


@pytest.mark.parametrize("error", [3, kafka_errors.UnknownTopicOrPartitionError()])
def test_a_topic_that_a_starting_broker_does_not_know_yet(error: Any, clock: Clock) -> None:
    unknown = answer(error=3) if error == 3 else error
    assert read(Cluster(unknown, unknown, data(10, 20))) == [20]
    with pytest.raises(DataLossError, match="does not exist"):
        read(Cluster(unknown))
    assert clock.now > 5


@pytest.mark.parametrize("fail", [True, False])
def test_a_topic_that_was_created_anew_has_nothing_of_the_range(clock: Clock, fail: bool) -> None:
    replaced = Cluster(data(10, 20))
    replaced.topic_ids = [uuid4()]
    if fail:
        with pytest.raises(DataLossError, match="created again"):
            read(replaced, topic_id=uuid4())
    else:
        assert read(replaced, topic_id=uuid4(), fail_on_data_loss=False) == [20]
    assert replaced.requests == []
    assert 1 < clock.now < 3


def test_metadata_of_the_topic_before_are_no_loss(clock: Clock) -> None:
    """They are those of a broker that is behind; or of one that does not tell topics apart."""
    meant = uuid4()
    behind = Cluster(data(10, 20))
    behind.topic_ids = [uuid4(), uuid4(), meant]
    assert read(behind, topic_id=meant) == [20]
    assert clock.now < 1
    old = Cluster(data(10, 20))
    assert read(old, topic_id=meant) == [20]


def test_a_broker_that_does_not_know_the_topic_yet_is_asked_again() -> None:
    meant = uuid4()
    refused = answer(error=kafka_errors.UnknownTopicIdError.errno)
    cluster = Cluster(refused, answer(error=103), by_id(data(10, 20), meant))
    cluster.topic_ids = [meant]
    assert read(cluster, topic_id=meant) == [20]
    assert cluster.forgotten == 2
    assert cluster.asked_by == [meant] * 3


# Fetch sizes


class SlowCluster(Cluster):
    """Each look-up of the leader takes longer than a reader that is in a hurry would wait."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def locate(self, topic: str, partition: int) -> Leader:
        self._clock.sleep(0.3)
        raise kafka_errors.UnknownTopicOrPartitionError(f"{topic}-{partition}")


def test_a_slow_answer_does_not_hide_that_a_partition_does_not_exist(clock: Clock) -> None:
    with pytest.raises(DataLossError, match="does not exist"):
        read(SlowCluster(clock), retry_timeout_s=0.2)
    assert read(SlowCluster(clock), retry_timeout_s=0.2, fail_on_data_loss=False) == [20]


def sizes(cluster: Cluster, bytes_per_offset: dict[str, float], fetch_bytes: int) -> list[int]:
    found: list[int] = []
    send: Callable[..., Any] = cluster.send

    def noted(request: Any, node_id: int) -> Any:
        found.append(request.topics[0].partitions[0].partition_max_bytes)
        return send(request, node_id)

    cluster.send = noted  # type: ignore[method-assign]
    for _ in fetches_of(cluster, bytes_per_offset, fetch_bytes=fetch_bytes):
        pass
    return found


def test_a_short_range_does_not_fetch_much_more_than_itself() -> None:
    known = {"orders": 100_000.0}
    first, second = sizes(Cluster(data(10, 15), data(15, 20)), known, 2**30)
    assert first == 1_250_000
    assert second == 64 * 1024
    assert known["orders"] < 100
    assert sizes(Cluster(data(10, 20)), {"orders": 100_000.0}, 1_000) == [1_000]
