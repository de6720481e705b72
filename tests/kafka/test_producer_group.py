"""ProducerGroup on one broker: the cases of KIP-509, in both protocols."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.errors import IllegalStateError
from producer_groups import (
    PATIENCE_S,
    MakeProducer,
    owns,
    poll_until,
    producers_of,
    read_committed,
    share,
)

from pyspark_kafka_rebalance import (
    MembershipError,
    OptionError,
    PartitionsLostError,
    ProducerGroup,
    ProducerRebalanceListener,
    RecordTooLargeError,
    TransactionAbortedError,
)
from pyspark_kafka_rebalance.produce import producer
from pyspark_kafka_rebalance.testing import LocalKafka


@pytest.fixture
def session_timeout_ms() -> int:
    """Nobody may be thought dead on a busy machine, unless a test is about that."""
    return 25_000


@pytest.fixture
def producers(
    kafka: LocalKafka, group_id: str, protocol: str, session_timeout_ms: int
) -> Iterator[MakeProducer]:
    with producers_of(kafka, group_id, protocol, session_timeout_ms) as make:
        yield make


classic_only = pytest.mark.parametrize("protocol", ["classic"], indirect=True)


def test_case_1_a_first_producer_is_started_for_the_first_time(
    kafka: LocalKafka, topic: str, producers: MakeProducer
) -> None:
    """KIP-509, case 1: (0, null), (1, null), (2, null); committed with the highest timestamp."""
    group = producers()
    assert group.subscribe() == {0: None, 1: None, 2: None}
    for table in range(3):
        future = group.send(topic, b"row of %d" % table, source_partition=table, future=True)
    assert group.send(topic, b"row of 2", source_partition=2) is None, "unless asked"
    group.commit_transaction("12:34:00")
    assert future is not None
    assert future.result(timeout=0).topic == topic
    assert group.restart_points == dict.fromkeys(range(3), "12:34:00")
    rows = [b"row of 0", b"row of 1", b"row of 2", b"row of 2"]
    assert sorted(read_committed(kafka, topic)) == rows


def test_case_2_the_producer_died_and_is_started_again(
    kafka: LocalKafka, topic: str, producers: MakeProducer
) -> None:
    """KIP-509, case 2: the restart points are those that were committed last."""
    first = producers()
    first.subscribe()
    first.send(topic, b"committed", source_partition=1)
    first.commit_transaction({0: "a", 1: "b"})
    first.send(topic, b"not committed", source_partition=1)
    first.close()
    second = producers()
    assert second.subscribe() == {0: "a", 1: "b", 2: None}
    assert read_committed(kafka, topic) == [b"committed"]


def test_case_3_a_second_and_a_third_producer_are_started(
    topic: str, producers: MakeProducer
) -> None:
    """KIP-509, case 3: shared two to one with the restart points, then one each; then standby."""
    told: list[tuple[str, object]] = []

    class Listener(ProducerRebalanceListener):
        def on_partitions_assigned(self, restart_points: dict[int, str | None]) -> None:
            told.append(("assigned", restart_points))

        def on_partitions_revoked(self, source_partitions: frozenset[int]) -> None:
            told.append(("revoked", source_partitions))

    first, second, third, fourth = (producers() for _ in range(4))
    first.subscribe(Listener())
    assert told == [("assigned", {0: None, 1: None, 2: None})]
    first.commit_transaction("12:34:00")
    second.subscribe(timeout_ms=0)
    poll_until(share(first, second), first, second)
    (moved,) = second.restart_points
    assert second.restart_points == {moved: "12:34:00"}
    assert told[1:] == [("revoked", frozenset({moved}))], "those that stay are not told of"
    third.subscribe(timeout_ms=0)
    poll_until(share(first, second, third), first, second, third)
    fourth.subscribe(timeout_ms=0)
    stays = {group: group.restart_points for group in (first, second, third)}
    poll_until(lambda: fourth.progress().generation > 0, first, second, third, fourth)
    assert fourth.restart_points == {}, "on standby"
    assert {group: group.restart_points for group in stays} == stays
    first.close()
    poll_until(share(second, third, fourth), second, third, fourth)


@pytest.mark.parametrize("session_timeout_ms", [4_000])
def test_case_4_a_producer_that_sends_nothing_and_is_not_alive_in_time_is_out(
    topic: str,
    producers: MakeProducer,
    session_timeout_ms: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """KIP-509, case 4; its threads go on heartbeating meanwhile, and its transaction is aborted."""
    first, second = producers(), producers()
    first.subscribe()
    first.commit_transaction("here")
    second.subscribe(timeout_ms=0)
    poll_until(share(first, second), first, second)
    mine = set(first.restart_points)
    first.send(topic, b"never seen", source_partition=min(mine))
    poll_until(owns(second, 0, 1, 2), second)
    assert second.restart_points == dict.fromkeys(range(3), "here")
    with pytest.raises(TransactionAbortedError) as aborted:
        first.commit_transaction("too late")
    assert aborted.value.restart_points == {}
    assert first.poll().lost == mine
    assert "alive() for session_timeout_ms=4000" in caplog.text
    assert "max_poll_interval_ms" not in caplog.text, "an option that a producer group refuses"
    poll_until(share(first, second), first, second)


@pytest.mark.parametrize("session_timeout_ms", [4_000])
def test_a_quiet_source_is_no_reason_to_leave_if_the_producer_says_that_it_is_alive(
    producers: MakeProducer, session_timeout_ms: int
) -> None:
    group = producers()
    group.subscribe()
    until = time.monotonic() + 2.5 * session_timeout_ms / 1000
    while time.monotonic() < until:
        group.alive()
        time.sleep(0.2)
    told = group.poll()
    assert not told, told
    assert set(group.restart_points) == {0, 1, 2}


def test_a_revoke_waits_for_the_open_transaction_and_the_others_go_on(
    kafka: LocalKafka, topic: str, producers: MakeProducer
) -> None:
    first, second = producers(), producers()
    first.subscribe()
    for table in range(3):
        first.send(topic, b"%d" % table, source_partition=table)
    second.subscribe(timeout_ms=0)
    poll_until(lambda: bool(first.to_be_revoked), first, second)
    until = time.monotonic() + 1
    while time.monotonic() < until:
        first.poll(timeout_ms=20)
        second.poll(timeout_ms=20)
    assert set(first.restart_points) == {0, 1, 2}, "held"
    assert second.restart_points == {}
    first.send(topic, b"more", source_partition=min(first.to_be_revoked))
    first.commit_transaction("x")
    assert len(first.restart_points) == 2, "given up at the end of the transaction"
    poll_until(share(first, second), first, second)
    assert set(second.restart_points.values()) == {"x"}
    assert len(read_committed(kafka, topic)) == 4


def test_a_transaction_without_the_revoked_source_partition_does_not_hold_it(
    topic: str, producers: MakeProducer
) -> None:
    first, second = producers(), producers()
    first.subscribe()
    second.subscribe(timeout_ms=0)
    poll_until(share(first, second), first, second)
    mine = min(first.restart_points)
    first.send(topic, b"open", source_partition=mine)
    third = producers()
    third.subscribe(timeout_ms=0)
    poll_until(share(first, second, third), first, second, third)
    assert mine in first.restart_points
    first.commit_transaction("x")


def test_a_revoke_that_waits_for_too_long_is_a_loss_and_aborts_the_transaction(
    kafka: LocalKafka, topic: str, producers: MakeProducer
) -> None:
    first = producers(revoke_timeout_ms=1_500)
    second = producers()
    first.subscribe()
    for table in range(3):
        first.send(topic, b"%d" % table, source_partition=table)
    second.subscribe(timeout_ms=0)
    with pytest.raises(TransactionAbortedError) as aborted:
        poll_until(lambda: False, first, second)
    assert len(aborted.value.restart_points) == 2
    poll_until(share(first, second), first, second)
    assert read_committed(kafka, topic) == []


@classic_only
def test_what_is_not_owned_cannot_be_sent_of_and_the_transaction_goes_on(
    kafka: LocalKafka, topic: str, producers: MakeProducer
) -> None:
    first, second = producers(), producers()
    first.subscribe()
    second.subscribe(timeout_ms=0)
    poll_until(share(first, second), first, second)
    mine, (theirs,) = min(first.restart_points), second.restart_points
    first.send(topic, b"mine", source_partition=mine)
    with pytest.raises(PartitionsLostError, match=f"source partition {theirs}"):
        first.send(topic, b"theirs", source_partition=theirs)
    first.commit_transaction({mine: "x"})
    assert read_committed(kafka, topic) == [b"mine"]


@classic_only
def test_what_went_and_came_back_is_not_sent_of_before_both_are_told(
    topic: str, producers: MakeProducer
) -> None:
    """A loop over the restart points of before sent its rows a second time."""
    first, second = producers(), producers()
    first.subscribe()
    second.subscribe(timeout_ms=0)
    deadline = time.monotonic() + PATIENCE_S
    while not second.restart_points:
        first.alive()
        second.poll(timeout_ms=20)
        assert time.monotonic() < deadline
    (moved,) = second.restart_points
    second.send(topic, b"row", source_partition=moved)
    second.commit_transaction("later")
    second.close()
    while not first._membership.ownership.ready():
        first.alive()
        time.sleep(0.02)
        assert time.monotonic() < deadline
    first.alive()
    with pytest.raises(PartitionsLostError):
        first.send(topic, b"row", source_partition=moved)
    with pytest.raises(PartitionsLostError):
        first.commit_transaction(dict.fromkeys(range(3), "before"))
    told = first.poll()
    assert told.revoked == {moved}
    assert told.assigned == {moved: "later"}


@classic_only
def test_a_record_that_is_refused_leaves_nothing_open(
    kafka: LocalKafka, topic: str, producers: MakeProducer
) -> None:
    """A revoke would wait for it until the transaction times out."""
    waits: list[int] = []

    def serialize(value: Any) -> Any:
        waits.append(group._membership.being_called.under_way)
        return value

    group = producers(value_serializer=serialize)
    group.subscribe()
    refused: list[dict[str, Any]] = [
        {"value": "no bytes"},
        {"value": b"row", "partition": 99},
        {"value": b"x" * 2_000_000},
        {"value": b"row", "restart_point": "x" * (1024 * 1024 + 1)},
    ]
    for no_integer in (0.0, 0.5, True, "0", np.float64(0), np.bool_(True)):
        with pytest.raises(TypeError, match="source_partition must be an integer"):
            group.send(topic, b"row", source_partition=no_integer)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="source_partition must be an integer"):
            group.send_batch(topic, pa.table({"value": [b"x"]}), source_partition=no_integer)  # type: ignore[arg-type]
    for record in refused:
        with pytest.raises((TypeError, ValueError, RecordTooLargeError)):
            group.send(topic, **record, source_partition=0)
        assert group._membership.ownership.touched is None
    group.send(topic, b"row", source_partition=1)
    for record in refused:
        with pytest.raises((TypeError, ValueError, RecordTooLargeError)):
            group.send(topic, **record, source_partition=0)
    group.commit_transaction({1: "x"})
    assert read_committed(kafka, topic) == [b"row"]
    assert set(waits) == {1}, "who waits in send is alive"


@classic_only
def test_a_commit_without_a_restart_point_is_refused_and_the_transaction_stays_open(
    kafka: LocalKafka, topic: str, producers: MakeProducer
) -> None:
    group = producers()
    group.subscribe()
    group.send(topic, b"row", source_partition=1)
    with pytest.raises(OptionError, match="without: 1"):
        group.commit_transaction({0: "x"})
    with pytest.raises(OptionError, match="without: 1"):
        group.commit_transaction()
    with pytest.raises(OptionError, match="1048576 bytes"):
        group.commit_transaction("x" * 1024 * 1024 + "x")
    group.commit_transaction("x")
    assert read_committed(kafka, topic) == [b"row"]


@classic_only
def test_transactions_end_where_the_source_says_so(
    kafka: LocalKafka, topic: str, producers: MakeProducer
) -> None:
    """testConnectorBoundary of ExactlyOnceSourceIntegrationTest: even ones are aborted."""
    group = producers()
    group.subscribe()
    committed: list[bytes] = []
    points: list[bytes] = []
    end = 0
    for size in (1, 2, 3, 5, 8, 13, 21):
        rows = [b"%d" % n for n in range(end, end + size)]
        end += size
        for row in rows:
            group.send(topic, row, b"key", source_partition=0)
        if size % 2 == 0:
            group.abort_transaction()
            continue
        group.commit_transaction({0: str(end)})
        committed += rows
        points.append(str(end).encode())
    assert read_committed(kafka, topic) == committed
    assert read_committed(kafka, group.restart_topic) == points


@pytest.mark.parametrize("amid", [True, False], ids=["amid", "between"])
def test_another_producer_of_its_name_is_the_end_of_one_transaction_only(
    kafka: LocalKafka, topic: str, producers: MakeProducer, amid: bool
) -> None:
    """testFencedLeaderRecovery of ExactlyOnceSourceIntegrationTest: fails once, and goes on."""
    group = producers()
    group.subscribe()
    group.commit_transaction("0")
    if amid:
        row = group.send(topic, b"never seen", source_partition=0, future=True)
        assert row is not None
        row.result(timeout=PATIENCE_S)
    other = KafkaProducer(
        bootstrap_servers=kafka.bootstrap_servers, transactional_id=group.transactional_id
    )
    other.init_transactions()
    other.close()

    def send_and_commit() -> None:  # whichever of the two calls learns of it
        group.send(topic, b"never seen", source_partition=1)
        group.commit_transaction("1")

    with pytest.raises(TransactionAbortedError) as aborted:
        send_and_commit()
    assert aborted.value.restart_points == dict.fromkeys(range(3), "0")
    group.send(topic, b"seen", source_partition=1)
    group.commit_transaction("1")
    assert read_committed(kafka, topic) == [b"seen"]
    assert not group.poll()
    assert group.restart_points == {0: "0", 1: "1", 2: "0"}


@classic_only
def test_aborted_by_the_application(kafka: LocalKafka, topic: str, producers: MakeProducer) -> None:
    group = producers()
    group.subscribe()
    group.commit_transaction({0: "a"})
    for _ in range(3):
        group.send(topic, b"never seen", source_partition=0)
        assert group.abort_transaction() == {0: "a", 1: None, 2: None}
        group.send(topic, b"seen", source_partition=0)
        group.commit_transaction("b")
        group.commit_transaction({0: "a"})
    assert read_committed(kafka, topic) == [b"seen"] * 3


@classic_only
def test_a_transaction_with_a_handle(
    kafka: LocalKafka, topic: str, producers: MakeProducer
) -> None:
    group = producers()
    group.subscribe()
    with group.transaction() as first:
        first.send(topic, b"a", source_partition=0, restart_point="1")
        first.send_batch(
            topic, pa.table({"value": [b"b", b"c"]}), source_partition=1, restart_point="2"
        )
        for call in (lambda: group.send(topic, b"x", source_partition=0), group.transaction):
            with pytest.raises(IllegalStateError, match="use that"):
                call()
        with pytest.raises(IllegalStateError, match="use that"):
            group.commit_transaction("x")
        with pytest.raises(IllegalStateError, match="use that"):
            group.abort_transaction()
        assert not group.poll()
        assert not first.has_ended
    assert first.has_ended
    assert group.restart_points == {0: "1", 1: "2", 2: None}
    with pytest.raises(KeyError), group.transaction() as second:  # noqa: PT012
        second.send(topic, b"never", source_partition=0, restart_point="3")
        raise KeyError
    with group.transaction() as third:
        third.send(topic, b"never", source_partition=0)
        assert third.abort() == {0: "1", 1: "2", 2: None}
    with pytest.raises(OptionError, match="without: 0"), group.transaction() as fourth:
        fourth.send(topic, b"never", source_partition=0)
    for ended in (first, second, third, fourth):
        assert ended.has_ended
        with pytest.raises(TransactionAbortedError):
            ended.send(topic, b"never", source_partition=0)
        with pytest.raises(TransactionAbortedError):
            ended.commit("x")
        with pytest.raises(TransactionAbortedError):
            ended.abort()
    with group.transaction() as nothing:
        pass
    assert nothing.has_ended
    group.send(topic, b"d", source_partition=2)
    with pytest.raises(IllegalStateError, match="a transaction is open"):
        group.transaction()
    group.commit_transaction("x")
    assert sorted(read_committed(kafka, topic)) == [b"a", b"b", b"c", b"d"]


@classic_only
def test_threads_that_share_a_handle_are_all_told(
    kafka: LocalKafka, topic: str, producers: MakeProducer
) -> None:
    group = producers()
    group.subscribe()
    told: list[str] = []

    def send(p: int) -> None:
        while True:
            try:
                transaction.send(topic, b"never", source_partition=p)
                time.sleep(0.001)
            except TransactionAbortedError as error:
                told.append(error.reason)
                return

    transaction = group.transaction()
    threads = [threading.Thread(target=send, args=[p]) for p in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    group._membership.ownership.doom("said the test")
    for thread in threads:
        thread.join(PATIENCE_S)
    assert told == ["said the test"] * 3
    group.send(topic, b"row", source_partition=0)
    group.commit_transaction({0: "1"})
    assert read_committed(kafka, topic) == [b"row"]


@classic_only
def test_rows_that_are_refused_abort_the_transaction(
    kafka: LocalKafka, topic: str, producers: MakeProducer
) -> None:
    """A part of them may be in it."""
    group = producers()
    group.subscribe()
    group.send(topic, b"never", source_partition=0)
    large = pa.table({"value": [b"row", b"x" * 2_000_000]})
    with pytest.raises(RecordTooLargeError):
        group.send_batch(topic, large, source_partition=1, restart_point="2")
    with pytest.raises(TransactionAbortedError):
        group.send(topic, b"never", source_partition=0)
    group.send_batch(topic, large.slice(0, 1), source_partition=1, restart_point="1")
    group.commit_transaction()
    assert read_committed(kafka, topic) == [b"row"]
    assert group.restart_points == {0: None, 1: "1", 2: None}


@classic_only
def test_batches_end_by_themselves(kafka: LocalKafka, topic: str, producers: MakeProducer) -> None:
    group = producers(commit_records=100)
    group.subscribe()
    for n in range(4):
        rows = pa.table({"value": [b"%d" % n] * 50})
        group.send_batch(topic, rows, source_partition=0, restart_point=str(n))
        assert group.restart_points[0] == (None, "1", "1", "3")[n]
    assert len(read_committed(kafka, topic)) == 200
    assert group.progress().source_partitions[0].records == 200


@classic_only
def test_restart_points_of_a_mebibyte_survive(producers: MakeProducer) -> None:
    point = "é" * (512 * 1024)
    first = producers()
    first.subscribe()
    first.commit_transaction({0: point, 1: "", 2: "x"})
    first.close()
    assert producers().subscribe() == {0: point, 1: "", 2: "x"}


@classic_only
@pytest.mark.parametrize("bound", [{}, {"max_request_size": 10_000}])
def test_the_bound_of_records_is_not_that_of_restart_points(
    kafka: LocalKafka, topic: str, producers: MakeProducer, bound: dict[str, int]
) -> None:
    """Above the default and a topic's own bound, a record aborted its transaction each time."""
    group = producers(**bound)
    group.subscribe()
    group.send(topic, b"row", source_partition=0)
    with pytest.raises(RecordTooLargeError):
        group.send(topic, b"x" * 1_060_000, source_partition=0)
    group.commit_transaction("x" * 1_000_000)
    assert group.restart_points[0] == "x" * 1_000_000
    assert read_committed(kafka, topic) == [b"row"]


def test_the_one_user_learns_which_partition_refused_what(
    kafka: LocalKafka, topic_name: str, producers: MakeProducer
) -> None:
    kafka.create_topic(topic_name, config={"cleanup.policy": "compact"})
    group = producers()
    group.subscribe()
    group.send(topic_name, b"row", source_partition=0)
    with pytest.raises(
        TransactionAbortedError,
        match=rf"{topic_name}-0 refused a batch of 1 record: INVALID_RECORD",
    ):
        group.commit_transaction("1")
    group.send(topic_name, b"row", b"key", source_partition=0)
    group.commit_transaction("1")
    assert read_committed(kafka, topic_name) == [b"row"]


def test_restart_points_outlive_the_offsets_of_the_group(
    kafka: LocalKafka, group_id: str, producers: MakeProducer
) -> None:
    """They are in the topic: the group's offsets expire when it is down for a week."""
    first = producers()
    first.subscribe()
    for step in range(5):
        first.commit_transaction({0: f"{step}", 1: "b"})
    first.close()
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    try:
        admin.delete_groups([group_id])
    finally:
        admin.close()
    assert producers().subscribe() == {0: "4", 1: "b", 2: None}


@classic_only
@pytest.mark.parametrize("boundary", [{"commit_records": 10}, {"commit_interval_ms": 100}])
def test_transactions_end_by_themselves(
    kafka: LocalKafka, topic: str, producers: MakeProducer, boundary: dict[str, int]
) -> None:
    """testIntervalBoundary and testPollBoundary of ExactlyOnceSourceIntegrationTest."""
    group = producers(**boundary)
    group.subscribe()
    for n in range(40):
        group.send(topic, b"%d" % n, source_partition=0, restart_point=f"{n}")
        time.sleep(0.01)
    group.poll(timeout_ms=300)
    assert group.restart_points[0] == "39"
    assert read_committed(kafka, topic) == [b"%d" % n for n in range(40)]
    (progress,) = [p for p in group.progress().source_partitions if p.source_partition == 0]
    assert progress.records == 40
    assert progress.records_per_s > 0


@classic_only
def test_a_restart_point_without_rows_is_committed_by_itself(
    topic: str, producers: MakeProducer
) -> None:
    """As of a query's result that is empty: a revoke waited for the transaction's timeout."""
    none = pa.table({"value": pa.array([], pa.binary())})
    group = producers(commit_interval_ms=100)
    group.subscribe()
    group.send_batch(topic, none, source_partition=0)
    assert group.restart_points[0] is None
    group.send_batch(topic, none, source_partition=0, restart_point="1")
    deadline = time.monotonic() + PATIENCE_S
    while group.restart_points[0] != "1":
        assert time.monotonic() < deadline, "it stays open"
        group.poll(timeout_ms=50)


@classic_only
def test_rows_that_arrow_cannot_decode_are_no_interruption(
    topic: str, producers: MakeProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its error was taken for a signal's: the producer was made anew, and nobody knew why."""

    def no_kernel(*_: Any) -> None:
        raise pa.ArrowNotImplementedError("no kernel")

    group = producers()
    group.subscribe()
    group.send(topic, b"row", source_partition=0)
    with monkeypatch.context() as patch:
        patch.setattr(producer, "slices_of", no_kernel)
        with pytest.raises(pa.ArrowNotImplementedError):
            group.send_batch(topic, pa.table({"value": [b"a"]}), source_partition=0)
    with pytest.raises(TransactionAbortedError, match="no kernel"):
        group.send(topic, b"row", source_partition=0)


@classic_only
def test_what_is_open_at_the_close_is_committed_if_that_goes_by_itself(
    kafka: LocalKafka, topic: str, producers: MakeProducer
) -> None:
    group = producers(commit_interval_ms=30_000)
    group.subscribe()
    group.send(topic, b"row", source_partition=0, restart_point="a")
    group.close()
    assert read_committed(kafka, topic) == [b"row"]
    assert producers().subscribe()[0] == "a"


@classic_only
def test_closing_waits_for_no_broker_that_does_not_answer(
    kafka: LocalKafka, topic: str, producers: MakeProducer
) -> None:
    """With automatic commits it took the timeout of the transaction, and longer."""
    group = producers(commit_interval_ms=50_000)
    group.subscribe()
    group.send(topic, b"row", source_partition=0, restart_point="1")
    kafka.suspend()
    try:
        closing = threading.Thread(target=group.close, args=(3_000,))
        closing.start()
        closing.join(30)
        assert not closing.is_alive()
    finally:
        kafka.resume()


def test_those_that_stay_commit_through_joins_and_leaves(
    kafka: LocalKafka, topic: str, producers: MakeProducer
) -> None:
    """A commit that meets another generation is sent again with that: nothing is aborted.

    After RebalanceSourceConnectorsIntegrationTest of Kafka Connect (testAddingWorker,
    testRemovingWorker, testMultipleWorkersRejoining), where all tasks stop.
    """
    first = producers()
    first.subscribe()
    kept: set[int] = set(first.restart_points)
    sent = dict.fromkeys(range(3), 0)
    others: list[ProducerGroup] = []
    until = time.monotonic() + 8
    step = 0
    while time.monotonic() < until:
        first.poll()
        points = first.restart_points
        for p in points:
            first.send(topic, b"%d:%d" % (p, sent[p]), source_partition=p)
            sent[p] += 1
        first.commit_transaction({p: str(sent[p]) for p in points})
        kept &= set(first.restart_points)
        for other in others:
            other.poll()
        if len(others) == 2:
            if all(other.progress().generation > 0 for other in others):
                others.pop().close()
        elif step % 20 == 0:
            others.append(producers())
            others[-1].subscribe(timeout_ms=0)
        step += 1
    assert kept, "one stays, whoever joins"
    rows = read_committed(kafka, topic)
    assert sorted(rows) == sorted(b"%d:%d" % (p, n) for p in sent for n in range(sent[p]))


def test_two_groups_share_nothing_but_the_brokers(
    kafka: LocalKafka, topic: str, group_id: str, protocol: str, producers: MakeProducer
) -> None:
    """After testStartTwoConnectors, testReconfigConnector and testDeleteConnector of
    RebalanceSourceConnectorsIntegrationTest: what one does is nothing to the other.
    """
    other_id = f"{group_id}-other"
    settings = {"bootstrap_servers": kafka.bootstrap_servers, "group_protocol": protocol}
    one = producers()
    with ProducerGroup(other_id, 3, **settings) as other:
        one.subscribe()
        other.subscribe()
        one.send(topic, b"one", source_partition=0)
        other.send(topic, b"other", source_partition=0)
        one.commit_transaction({0: "one"})
        one.grow(4)
        poll_until(owns(one, 0, 1, 2, 3), one, other)
        other.commit_transaction({0: "other"})
        assert not other.poll()
        assert other.restart_points == {0: "other", 1: None, 2: None}
    kafka.delete_topic(other.restart_topic)
    one.send(topic, b"one", source_partition=3)
    one.commit_transaction({3: "one"})
    assert not one.poll()
    assert one.restart_points == {0: "one", 1: None, 2: None, 3: "one"}
    assert sorted(read_committed(kafka, topic)) == [b"one", b"one", b"other"]


@classic_only
def test_restart_points_in_another_topic(
    kafka: LocalKafka, topic: str, topic_name: str, producers: MakeProducer
) -> None:
    """testSeparateOffsetsTopic of Kafka Connect's ExactlyOnceSourceIntegrationTest."""
    other = f"{topic_name}-restart-points"
    first = producers(restart_topic=other)
    first.subscribe()
    first.send(topic, b"row", source_partition=2)
    first.commit_transaction({2: "a"})
    first.close()
    with ProducerGroup(
        f"{topic_name}-group", 3, bootstrap_servers=kafka.bootstrap_servers, restart_topic=other
    ) as stranger:
        assert stranger.subscribe() == dict.fromkeys(range(3)), "the topic is shared, they are not"
        stranger.commit_transaction({2: "b"})
    assert producers(restart_topic=other).subscribe() == {0: None, 1: None, 2: "a"}
    values = [value for value in read_committed(kafka, other) if value is not None]
    assert values == [b"a", b"b"]


@classic_only
def test_a_source_that_writes_to_the_topic_of_restart_points(
    kafka: LocalKafka, producers: MakeProducer
) -> None:
    """testPotentialDeadlockWhenProducingToOffsetsTopic of ExactlyOnceSourceIntegrationTest."""
    first = producers()
    first.subscribe()
    first.send(first.restart_topic, b"mine", b"other key", source_partition=0, partition=0)
    first.commit_transaction({0: "a"})
    first.send(first.restart_topic, b"mine", b"other key", source_partition=0, partition=0)
    first.commit_transaction({0: "b"})
    first.close()
    assert producers().subscribe() == {0: "b", 1: None, 2: None}


def test_the_source_grows_while_members_run(topic: str, producers: MakeProducer) -> None:
    """testConnectorReconfiguration of ExactlyOnceSourceIntegrationTest: more tasks, same source."""
    first, second = producers(), producers()
    first.subscribe()
    first.commit_transaction("x")
    second.subscribe(timeout_ms=0)
    poll_until(share(first, second), first, second)
    second.grow(6)
    first.grow(6)
    poll_until(share(first, second, count=6), first, second)
    points = first.restart_points | second.restart_points
    assert points == {0: "x", 1: "x", 2: "x", 3: None, 4: None, 5: None}


@classic_only
@pytest.mark.parametrize("session_timeout_ms", [4_000])
def test_members_that_do_not_agree_on_the_size_of_the_source_are_told(
    producers: MakeProducer, session_timeout_ms: int
) -> None:
    small = producers(2)
    small.subscribe()
    # More than twice as many: otherwise the group may give all that are new to the other member.
    large = producers(6)
    large.subscribe(timeout_ms=0)
    with pytest.raises(MembershipError, match=r"source_partition_count=2.*call grow"):
        poll_until(lambda: False, small, large)
    small.grow(6)  # never too late
    poll_until(share(small, large, count=6), small, large)
    small.close()
    poll_until(owns(large, *range(6)), large)
    with pytest.raises(OptionError, match="source_partition_count"):
        producers(2).subscribe()


@classic_only
def test_a_topic_that_would_forget_restart_points_is_refused(
    kafka: LocalKafka, group_id: str, producers: MakeProducer
) -> None:
    kafka.create_topic(f"__producer_group.{group_id}", 3)
    with pytest.raises(OptionError, match=r"cleanup.policy=compact, not delete.*kafka-configs"):
        producers().subscribe()
