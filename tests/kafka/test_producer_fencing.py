"""ProducerGroup on three brokers: what a zombie sends and commits never becomes visible."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flaky_network import FlakyNetwork
from kafka import KafkaAdminClient
from kafka import errors as kafka_errors
from kafka.protocol.producer import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
)
from kafka.structs import TopicPartition
from producer_groups import (
    PATIENCE_S,
    MakeProducer,
    Zombie,
    owns,
    poll_until,
    producers_of,
    read_committed,
    share,
)

from pyspark_kafka_rebalance import ProducerGroup, TransactionAbortedError
from pyspark_kafka_rebalance.errors import TransactionInDoubtError
from pyspark_kafka_rebalance.producer.members.other_transactions import OtherTransactions
from pyspark_kafka_rebalance.producer.stored_points import StoredPoints
from pyspark_kafka_rebalance.producer.writer import Writer
from pyspark_kafka_rebalance.testing import LocalKafka
from pyspark_kafka_rebalance.testing.child_process import ChildProcess

pytestmark = pytest.mark.each_protocol

#: Where somebody is to be thought dead; nobody else may be, on a busy machine.
short_sessions = pytest.mark.parametrize("session_timeout_ms", [6_000])

ROOT = Path(__file__).parents[2]
COUNT = 3

#: The timeout of a transaction that readers must not wait for: longer than any test does.
WITHOUT_END_MS = 600_000

#: The restart points and the group's offsets. They go out at once, to several brokers, and where
#: one arrives the next owner waits for the transaction's end: its timeout, if nobody fences it.
OF_A_COMMIT = (ProduceRequest, TxnOffsetCommitRequest)


@pytest.fixture
def session_timeout_ms() -> int:
    return 25_000


@pytest.fixture
def producers(
    quorum: LocalKafka, group_id: str, protocol: str, session_timeout_ms: int
) -> Iterator[MakeProducer]:
    with producers_of(quorum, group_id, protocol, session_timeout_ms) as make:
        yield make


@pytest.fixture
def rows(quorum: LocalKafka, topic_name: str) -> str:
    """A topic with one partition for each of the source's."""
    quorum.create_topic(topic_name, COUNT, replication_factor=3)
    return topic_name


@pytest.fixture
def instances(
    quorum: LocalKafka,
    rows: str,
    group_id: str,
    protocol: str,
    session_timeout_ms: int,
    tmp_path: Path,
    producers: MakeProducer,  # configures the group
) -> Iterator[Callable[..., ChildProcess]]:
    """Start instances in processes of their own."""
    with ExitStack() as stack:

        def start(name: str, rows_per_commit: int = 5, **config: Any) -> ChildProcess:
            group = {
                "group_id": group_id,
                "source_partition_count": COUNT,
                "bootstrap_servers": quorum.bootstrap_servers,
                "group_protocol": protocol,
                "session_timeout_ms": session_timeout_ms,
                "heartbeat_interval_ms": 500,
                **config,
            }
            settings = {
                "group": group,
                "topic": rows,
                "rows_per_commit": rows_per_commit,
                "pause_s": 0.005,
            }
            path = filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
            child = ChildProcess(
                name,
                "tests.chaos.producer_instance",
                settings,
                work=tmp_path,
                environment={"PYTHONPATH": os.pathsep.join(path)},
            )
            stack.enter_context(child)
            child.wait_for("ready")
            return child

        yield start


def assert_each_row_once_and_in_order(cluster: LocalKafka, topic: str) -> dict[int, int]:
    """How many rows of each source partition there are."""
    found: dict[int, list[int]] = {}
    for value in read_committed(cluster, topic, wait_s=PATIENCE_S):
        p, n = value.decode().split(":")
        found.setdefault(int(p), []).append(int(n))
    for p, numbers in found.items():
        assert numbers == list(range(len(numbers))), f"source partition {p}"
    return {p: len(numbers) for p, numbers in found.items()}


def send_and_wait(group: ProducerGroup, topic: str, value: bytes, p: int) -> None:
    row = group.send(topic, value, partition=p, source_partition=p, future=True)
    assert row is not None
    row.result(timeout=PATIENCE_S)


def settled(child: ChildProcess, *owned: int) -> None:
    """Wait until it commits for so many source partitions at once."""
    deadline = time.monotonic() + PATIENCE_S
    while len(child.wait_for("committed")["points"]) not in owned:
        assert time.monotonic() < deadline


@short_sessions
def test_stopped_beyond_the_session_and_continued(
    quorum: LocalKafka, rows: str, instances: Callable[..., ChildProcess]
) -> None:
    first = instances("first", rows_per_commit=100)
    second = instances("second")
    settled(second, 1)
    first.wait_for("committed")
    first.order("hold")
    first.wait_for("amid")
    os.killpg(first.pid, signal.SIGSTOP)
    settled(second, COUNT)
    first.order("go on")
    os.killpg(first.pid, signal.SIGCONT)
    first.wait_for("aborted")
    settled(second, 1, 2)
    first.wait_for("committed")
    first.stop()
    second.stop()
    assert min(assert_each_row_once_and_in_order(quorum, rows).values()) > 20


@short_sessions
def test_killed_in_the_midst_of_a_transaction(
    quorum: LocalKafka, rows: str, instances: Callable[..., ChildProcess]
) -> None:
    """Readers need not wait for the transaction's timeout: the new owner ends it.

    The hard bounce of ducktape's test_exactly_once_source (Kafka Connect), and the clean one.
    """
    first = instances("first", rows_per_commit=100, transaction_timeout_ms=WITHOUT_END_MS)
    second = instances("second")
    settled(second, 1)
    first.wait_for("committed")
    first.order("hold")
    first.wait_for("amid")
    first.kill()
    settled(second, COUNT)
    third = instances("third")
    settled(third, 1, 2)
    second.stop()
    settled(third, COUNT)
    third.stop()
    assert_each_row_once_and_in_order(quorum, rows)


def overdue(group: ProducerGroup) -> None:
    """Its revokes have waited for as long as they may."""
    member = group._membership._member
    assert member is not None
    with member._hand_outs.lock:
        ownership = member._ownership
        deadlines = dict.fromkeys(ownership._standing.deadlines, time.monotonic())
        ownership._standing = replace(ownership._standing, deadlines=deadlines)


def commit_on_a_thread(group: ProducerGroup) -> tuple[threading.Thread, list[Any]]:
    """Begin to commit; the list has what came of it: None, or the error that it was aborted."""
    outcome: list[Any] = []

    def commit() -> None:
        try:
            outcome.append(group.commit_transaction("1"))
        except TransactionAbortedError as error:
            outcome.append(error)

    committing = threading.Thread(target=commit)
    committing.start()
    return committing, outcome


def no_fencing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a new owner may not look at transactions."""
    monkeypatch.setattr(OtherTransactions, "open_transaction", lambda *_: None)


@short_sessions
def test_a_dead_owner_had_not_announced_its_source_partitions(
    quorum: LocalKafka, rows: str, producers: MakeProducer, network: FlakyNetwork
) -> None:
    """With transactions v2 it does so once a record is written. Readers waited for the timeout."""
    first, second = producers(transaction_timeout_ms=WITHOUT_END_MS), producers()
    first._options.member["proxy_url"] = first._options.producer["proxy_url"] = network.url
    first.subscribe()
    announcing = network.stop_at(AddPartitionsToTxnRequest)
    first.send(rows, b"0:0", partition=0, source_partition=0)
    assert announcing.wait(PATIENCE_S)
    network.cut()
    second.subscribe(timeout_ms=0)
    poll_until(owns(second, 0, 1, 2), second)
    assert assert_each_row_once_and_in_order(quorum, rows) == {}


@short_sessions
@pytest.mark.parametrize("fencing", [True, False])
def test_cut_from_the_coordinator_with_an_open_transaction(
    quorum: LocalKafka,
    rows: str,
    producers: MakeProducer,
    network: FlakyNetwork,
    monkeypatch: pytest.MonkeyPatch,
    fencing: bool,
) -> None:
    """Its heartbeats do not get through, and its transactions would; and it keeps its generation.

    Without fencing by the new owner it is the group alone that refuses it. After
    testFencedLeaderRecovery and testTasksFailOnInabilityToFence of Kafka Connect's
    ExactlyOnceSourceIntegrationTest, where no fencing means no task.
    """
    if not fencing:
        no_fencing(monkeypatch)
    first, second = producers(), producers()
    zombie = Zombie(first)
    first._options.member["proxy_url"] = network.url
    first.subscribe()
    first.send(rows, b"0:0", partition=0, source_partition=0)
    first.commit_transaction({0: "1"})
    first.send(rows, b"0:1", partition=0, source_partition=0)
    zombie.believe()
    network.stall()
    second.subscribe(timeout_ms=0)
    poll_until(owns(second, 0, 1, 2), second)
    assert second.restart_points == {0: "1", 1: None, 2: None}
    second.send(rows, b"0:1", partition=0, source_partition=0)
    second.commit_transaction({0: "2"})
    if not fencing:
        first.send(rows, b"0:2", partition=0, source_partition=0)
    with pytest.raises(TransactionAbortedError):
        first.commit_transaction({0: "3"})
    first.send(rows, b"0:1", partition=0, source_partition=0)
    with pytest.raises(TransactionAbortedError):
        first.commit_transaction({0: "2"})
    network.mend()
    assert assert_each_row_once_and_in_order(quorum, rows) == {0: 2}


@pytest.mark.parametrize("decision", ["committed", "fenced"])
def test_stopped_between_the_groups_word_and_the_end_of_its_transaction(
    quorum: LocalKafka,
    rows: str,
    producers: MakeProducer,
    network: FlakyNetwork,
    monkeypatch: pytest.MonkeyPatch,
    decision: str,
) -> None:
    """Its offsets are accepted, EndTxn is not sent: whoever takes over waits, or ends it."""
    if decision == "committed":
        no_fencing(monkeypatch)
    first, second = producers(), producers()
    zombie = Zombie(first)
    first._options.producer["proxy_url"] = network.url
    first.subscribe()
    first.send(rows, b"0:0", partition=0, source_partition=0)
    zombie.believe()
    stopped = network.stop_at(EndTxnRequest)
    outcome: list[Any] = []

    def commit() -> None:
        try:
            outcome.append(first.commit_transaction({0: "1"}))
        except TransactionAbortedError as error:
            outcome.append(error)

    committing = threading.Thread(target=commit)
    committing.start()
    assert stopped.wait(PATIENCE_S)
    zombie.leave_for_good()
    second.subscribe(timeout_ms=0)
    if decision == "committed":
        until = time.monotonic() + 2
        while time.monotonic() < until:
            assert 0 not in second.poll(timeout_ms=50).assigned, "not decided yet"
        network.mend()
        committing.join(PATIENCE_S)
        assert outcome == [None]
        poll_until(owns(second, 0, 1, 2), second)
        assert second.restart_points == {0: "1", 1: None, 2: None}
        second.send(rows, b"0:1", partition=0, source_partition=0)
        second.commit_transaction({0: "2"})
        expected = 2
    else:
        poll_until(owns(second, 0, 1, 2), second)
        assert second.restart_points == dict.fromkeys(range(3))
        second.send(rows, b"0:0", partition=0, source_partition=0)
        second.commit_transaction({0: "1"})
        network.mend()
        committing.join(PATIENCE_S)
        assert isinstance(outcome[0], TransactionAbortedError)
        expected = 1
    assert assert_each_row_once_and_in_order(quorum, rows) == {0: expected}


def test_restart_points_are_set_behind_a_member_that_stopped_before_the_end_of_its_transaction(
    quorum: LocalKafka, rows: str, group_id: str, producers: MakeProducer, network: FlakyNetwork
) -> None:
    """Its rows became visible after that, below the restart point that was set: they came twice.

    testAlterSourceConnectorOffsetsExactlyOnceSupportEnabled of Kafka Connect's
    OffsetsApiIntegrationTest, where a round of fencing comes first, too.
    """
    first = producers()
    zombie = Zombie(first)
    first._options.producer["proxy_url"] = network.url
    first.subscribe()
    first.commit_transaction("0")
    first.send(rows, b"0:0", partition=0, source_partition=0)
    zombie.believe()
    stopped = network.stop_at(EndTxnRequest)
    committing, outcome = commit_on_a_thread(first)
    assert stopped.wait(PATIENCE_S)
    zombie.leave_for_good()
    stored = StoredPoints({"bootstrap_servers": quorum.bootstrap_servers}, group_id)
    deadline = time.monotonic() + PATIENCE_S
    while stored.describe().members:
        assert time.monotonic() < deadline
    stored.write({0: "0"})
    network.mend()
    committing.join(PATIENCE_S)
    assert isinstance(outcome[0], TransactionAbortedError)
    second = producers()
    second.subscribe()
    poll_until(owns(second, 0, 1, 2), second)
    assert second.restart_points[0] == "0"
    second.send(rows, b"0:0", partition=0, source_partition=0)
    second.commit_transaction("1")
    assert assert_each_row_once_and_in_order(quorum, rows) == {0: 1}


def test_a_commit_under_way_of_what_is_lost_meanwhile(
    quorum: LocalKafka,
    rows: str,
    producers: MakeProducer,
    network: FlakyNetwork,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was sent again in the name of the member's next generation, and accepted."""
    no_fencing(monkeypatch)
    first, second = producers(), producers()
    first._options.producer["proxy_url"] = network.url
    first.subscribe()
    first.commit_transaction("0")
    for p in range(COUNT):
        send_and_wait(first, rows, b"%d:0" % p, p)
    second.subscribe(timeout_ms=0)
    poll_until(lambda: bool(first.to_be_revoked), first, second)
    stopped = network.stop_at(*OF_A_COMMIT)
    committing, outcome = commit_on_a_thread(first)
    assert stopped.wait(PATIENCE_S)
    overdue(first)
    poll_until(lambda: bool(second.restart_points), second)
    (moved,) = second.restart_points
    assert second.restart_points == {moved: "0"}
    second.send(rows, b"%d:0" % moved, partition=moved, source_partition=moved)
    second.commit_transaction("1")
    network.mend()
    committing.join(PATIENCE_S)
    assert isinstance(outcome[0], TransactionAbortedError)
    poll_until(share(first, second), first, second)
    for p, point in first.restart_points.items():
        if point == "0":
            first.send(rows, b"%d:0" % p, partition=p, source_partition=p)
    first.commit_transaction("1")
    assert assert_each_row_once_and_in_order(quorum, rows) == dict.fromkeys(range(COUNT), 1)


@pytest.mark.long
@pytest.mark.parametrize("protocol", ["consumer"])  # there a member may never be gone to the group
def test_a_commit_under_way_of_what_is_lost_and_assigned_to_the_same_member_again(
    quorum: LocalKafka, rows: str, producers: MakeProducer, network: FlakyNetwork
) -> None:
    """Its restart point was read before the group accepted the commit: rows came twice."""
    group = producers(session_timeout_ms=6_000)  # the group's is longer
    with FlakyNetwork() as heartbeats:
        group._options.producer["proxy_url"] = network.url
        group._options.member["proxy_url"] = heartbeats.url
        group.subscribe()
        send_and_wait(group, rows, b"0:0", 0)
        stopped = network.stop_at(*OF_A_COMMIT)
        committing, outcome = commit_on_a_thread(group)
        assert stopped.wait(PATIENCE_S)
        heartbeats.stall()
        ownership = group._membership.ownership
        with group._membership.changed:
            assert group._membership.changed.wait_for(lambda: not ownership.restart_points, 60)
            heartbeats.mend()
            # Of the three that are assigned again these two are read, in one round with the third.
            assert group._membership.changed.wait_for(lambda: ownership.ready() >= {1, 2}, 60)
        network.mend()
        committing.join(PATIENCE_S)
        assert len(outcome) == 1
        poll_until(owns(group, 0, 1, 2), group)
        n = int(group.restart_points[0] or 0)
        group.send(rows, b"0:%d" % n, partition=0, source_partition=0)
        group.commit_transaction(str(n + 1))
        assert assert_each_row_once_and_in_order(quorum, rows) == {0: n + 1}
        group.close(timeout_ms=3_000)


@pytest.mark.parametrize("committed", [True, False])
def test_a_commit_whose_outcome_is_not_known(
    quorum: LocalKafka,
    rows: str,
    producers: MakeProducer,
    monkeypatch: pytest.MonkeyPatch,
    committed: bool,
) -> None:
    """The restart points tell, which are read anew."""
    group = producers()
    group.subscribe()
    commit = Writer.commit
    answers = [1]

    def lost(self: Writer, *arguments: Any) -> None:
        if answers:
            answers.clear()
            if committed:
                commit(self, *arguments)
            raise TransactionInDoubtError("the answer was lost")
        commit(self, *arguments)

    monkeypatch.setattr(Writer, "commit", lost)
    group.send(rows, b"0:0", partition=0, source_partition=0)
    with pytest.raises(TransactionAbortedError, match="may have been committed") as aborted:
        group.commit_transaction({0: "1"})
    assert aborted.value.restart_points == {}
    poll_until(owns(group, 0, 1, 2), group)
    assert group.restart_points[0] == ("1" if committed else None)
    n = int(group.restart_points[0] or 0)
    group.send(rows, b"0:%d" % n, partition=0, source_partition=0)
    group.commit_transaction({0: str(n + 1)})
    assert assert_each_row_once_and_in_order(quorum, rows) == {0: n + 1}


def test_the_answer_to_the_commit_is_lost_and_asked_for_again(
    quorum: LocalKafka, rows: str, producers: MakeProducer, network: FlakyNetwork
) -> None:
    group = producers()
    group._options.producer["proxy_url"] = network.url
    group.subscribe()
    group.send(rows, b"0:0", partition=0, source_partition=0)
    stopped = network.stop_at(EndTxnRequest, answer=True)
    committing = threading.Thread(target=group.commit_transaction, args=[{0: "1"}])
    committing.start()
    assert stopped.wait(PATIENCE_S)
    network.cut()
    network.mend()
    committing.join(PATIENCE_S)
    assert group.restart_points[0] == "1"
    assert assert_each_row_once_and_in_order(quorum, rows) == {0: 1}


def test_a_transaction_that_lasts_longer_than_its_timeout(
    quorum: LocalKafka, rows: str, producers: MakeProducer
) -> None:
    """The broker ends it, and looks for such five times a second; by default every ten seconds."""
    group = producers(transaction_timeout_ms=1_000)
    group.subscribe()
    group.send(rows, b"never seen", partition=0, source_partition=0)
    admin = KafkaAdminClient(bootstrap_servers=quorum.bootstrap_servers)

    def is_ended() -> bool:
        with suppress(kafka_errors.RetriableError):
            found = admin.describe_transactions([group.transactional_id])
            state = found[group.transactional_id].state
            return bool(getattr(state, "value", state) == "CompleteAbort")
        return False

    try:
        poll_until(is_ended, group)
    finally:
        admin.close()
    with pytest.raises(TransactionAbortedError):
        group.commit_transaction({0: "1"})
    group.send(rows, b"0:0", partition=0, source_partition=0)
    group.commit_transaction({0: "1"})
    assert assert_each_row_once_and_in_order(quorum, rows) == {0: 1}


def test_a_coordinator_that_restarts_takes_nothing_from_anyone(
    quorum: LocalKafka, rows: str, producers: MakeProducer
) -> None:
    # One thread works for both, and waits with the one for the broker that the other is silent of.
    first, second = (producers() for _ in range(2))
    first.subscribe()
    second.subscribe(timeout_ms=0)
    poll_until(share(first, second), first, second)
    before = first.restart_points.keys(), second.restart_points.keys()
    sent = dict.fromkeys(range(COUNT), 0)

    def send_and_commit() -> None:
        for group in (first, second):
            group.poll()
            points = {}
            for p in group.restart_points:
                group.send(rows, b"%d:%d" % (p, sent[p]), partition=p, source_partition=p)
                points[p] = str(sent[p] + 1)
            group.commit_transaction(points)
            for p in points:
                sent[p] += 1

    send_and_commit()
    for broker_id in quorum.broker_ids:  # one of them is the group's coordinator
        quorum.stop(broker_id)
        send_and_commit()
        quorum.restart(broker_id)
        send_and_commit()
    assert (first.restart_points.keys(), second.restart_points.keys()) == before
    assert assert_each_row_once_and_in_order(quorum, rows) == dict.fromkeys(range(COUNT), 7)


def test_a_new_owner_that_is_not_certain_fences_nobody(
    quorum: LocalKafka, rows: str, producers: MakeProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction of a living owner is never ended by a hand-over of another source partition."""
    first, second = producers(), producers()
    first.subscribe()
    first.commit_transaction("0")
    second.subscribe(timeout_ms=0)
    fenced: list[str] = []
    fence = OtherTransactions.fence

    def fence_and_note(self: OtherTransactions, transactional_id: str, timeout_s: float) -> bool:
        fenced.append(transactional_id)
        return fence(self, transactional_id, timeout_s)

    monkeypatch.setattr(OtherTransactions, "fence", fence_and_note)
    until = time.monotonic() + 4
    n = 0
    while time.monotonic() < until:
        first.poll()
        mine = min(first.restart_points)
        first.send(rows, b"%d:%d" % (mine, n), partition=mine, source_partition=mine)
        second.poll(timeout_ms=20)
        n += 1
        first.commit_transaction({mine: str(n)})
        if len(first.restart_points) < COUNT and mine not in first.restart_points:
            break
    poll_until(share(first, second), first, second)
    assert fenced == []


def test_what_is_open_on_the_topic_of_restart_points_is_part_of_the_transaction(
    quorum: LocalKafka, rows: str, producers: MakeProducer
) -> None:
    """So that a new owner can tell that it is about what it takes over, from the first record."""
    group = producers()
    group.subscribe()
    send_and_wait(group, rows, b"0:0", 0)
    others = OtherTransactions({"bootstrap_servers": quorum.bootstrap_servers})
    expected = {TopicPartition(rows, 0), TopicPartition(group.restart_topic, 0)}
    deadline = time.monotonic() + 5
    try:
        # The group joins with its offsets (transactions v2).
        while (touched := others.touched_by(group.transactional_id)) != expected:
            assert time.monotonic() < deadline, touched
        group.commit_transaction("1")
        assert others.touched_by(group.transactional_id) == set()
        assert others.touched_by("no such") == set()
    finally:
        others.close()
