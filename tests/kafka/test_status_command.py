"""``python -m pyspark_kafka_rebalance.status`` on a real broker."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from gaps_and_live import commit_foreign, foreign
from group_members import MakeMember, poll_until, wait_until
from kafka import KafkaAdminClient, KafkaProducer
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.status import command
from pyspark_kafka_rebalance.status.look import GroupLook, UnknownGroupError
from pyspark_kafka_rebalance.status.report import GroupReport, Row
from pyspark_kafka_rebalance.testing import LocalKafka

Look = Callable[[], GroupReport]
NOBODY = "127.0.0.1:1"


@pytest.fixture
def look(kafka: LocalKafka, group_id: str) -> Iterator[Look]:
    """Looks at the group with one client, as ``--watch`` does."""
    with GroupLook({"bootstrap_servers": [kafka.bootstrap_servers]}, group_id) as opened:
        yield opened.report


def partitions_of(topic: str, number: int) -> list[TopicPartition]:
    return [TopicPartition(topic, n) for n in range(number)]


def rows_of(report: GroupReport) -> dict[TopicPartition | None, Row]:
    found = {row.partition: row for row in report.rows}
    assert len(found) == len(report.rows)
    return found


def produce_at(kafka: LocalKafka, partition: TopicPartition, *ages_s: float) -> None:
    with KafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        for age_s in ages_s:
            at = int((time.time() - age_s) * 1000)
            producer.send(partition.topic, b"x", partition=partition.partition, timestamp_ms=at)


def test_a_group_of_ours_with_gaps_and_a_revoke_that_waits(
    kafka: LocalKafka, topic_name: str, consumers: MakeMember, look: Look, protocol: str
) -> None:
    kafka.create_topic(topic_name, partitions=2)
    p0, p1 = partitions_of(topic_name, 2)
    produce_at(kafka, p0, *[600] * 5, *[300] * 10)
    produce_at(kafka, p1, 60)
    one = consumers(topic_name, client_id="one")
    poll_until(lambda: len(one.unprocessed()) == 2, one)
    one.processed(p0, *range(5), 7, 8, 11)
    wait_until(lambda: one.acknowledged(p0) == 5, "it is committed")

    found = look()
    assert (found.group.protocol, found.group.state) == (protocol, "Stable")
    assert [m.client_id for m in found.group.members] == ["one"]
    rows = rows_of(found)
    left = rows[p0].backlog
    assert (left.position, left.end, left.lag) == (5, 15, 7)
    assert (left.gaps, left.gap_offsets) == (2, 4)
    assert rows[p0].lag_s == pytest.approx(300, abs=60)
    assert rows[p1].member == rows[p0].member
    assert (rows[p1].backlog.position, rows[p1].backlog.end, rows[p1].lag_s) == (None, 1, None)
    assert (found.lag, found.unknown) == (7, 1)
    assert not rows[p0].revoking
    assert not rows[p1].revoking

    two = consumers(topic_name, client_id="two")
    waiting: list[Row] = []

    def seen() -> bool:
        waiting[:] = [row for row in look().rows if row.revoking]
        return bool(waiting)

    poll_until(seen, one, two, hold=True)
    (row,) = waiting
    assert row.member is not None
    assert row.member.client_id == "one"
    assert row.partition in (p0, p1)
    assert row.revoking_since is not None, "the first look saw that it was not so"
    assert time.time() - row.revoking_since < 60


def test_a_member_of_another_client_and_one_without_partitions(
    kafka: LocalKafka, topic: str, group_id: str, look: Look
) -> None:
    (p0,) = partitions_of(topic, 1)
    produce_at(kafka, p0, 300, 200, 100)
    commit_foreign(kafka, group_id, {p0: 1})
    with foreign(kafka, group_id) as plain, foreign(kafka, group_id) as idle:
        members = (plain, idle)
        for member in members:
            member.subscribe([topic])

        def shared() -> bool:
            for member in members:
                member.poll(timeout_ms=50)
            return len(look().group.members) == 2 and look().group.state == "Stable"

        wait_until(shared, "both are members")
        rows = rows_of(look())
    left = rows[p0].backlog
    assert (left.position, left.end, left.lag, left.gaps, left.note) == (1, 3, 2, 0, "")
    assert rows[p0].lag_s == pytest.approx(200, abs=60)
    assert rows[None].member != rows[p0].member


def test_an_empty_group_whose_topic_is_gone_and_one_that_has_read_all(
    kafka: LocalKafka, topic: str, topic_name: str, group_id: str, look: Look
) -> None:
    (p0,) = partitions_of(topic, 1)
    produce_at(kafka, p0, 5)
    gone = TopicPartition(f"{topic_name}-gone", 0)
    kafka.create_topic(gone.topic)
    commit_foreign(kafka, group_id, {p0: 1, gone: 0})
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    try:
        assert rows_of(look())[gone].backlog.lag == 0
        admin.delete_topics([gone.topic])
        # The broker deletes the group's offsets with the topic, a moment later or sooner.
        wait_until(lambda: gone.topic not in admin.list_topics(), "it is deleted")
    finally:
        admin.close()
    found = look()
    assert found.group.state == "Empty"
    rows = rows_of(found)
    assert (rows[p0].member, rows[p0].backlog.lag, rows[p0].lag_s) == (None, 0, 0.0)
    assert gone not in rows or rows[gone].backlog.note == "no such topic"
    assert found.lag == 0


def test_records_after_markers_of_transactions(
    kafka: LocalKafka, topic: str, group_id: str, look: Look
) -> None:
    """The committed offset is a marker's: the first record to do comes behind it."""
    (p0,) = partitions_of(topic, 1)
    producer = KafkaProducer(
        bootstrap_servers=kafka.bootstrap_servers, transactional_id=f"{topic}-tx"
    )
    try:
        producer.init_transactions()
        for age_s in (900, 400):
            producer.begin_transaction()
            at = int((time.time() - age_s) * 1000)
            producer.send(topic, b"x", partition=0, timestamp_ms=at)
            producer.commit_transaction()
    finally:
        producer.close()
    commit_foreign(kafka, group_id, {p0: 1})
    row = rows_of(look())[p0]
    assert (row.backlog.lag, row.backlog.end) == (3, 4)
    assert row.lag_s == pytest.approx(400, abs=60)
    commit_foreign(kafka, group_id, {p0: 3})
    row = rows_of(look())[p0]
    assert (row.backlog.lag, row.lag_s) == (1, 0.0)


def test_a_group_that_nobody_knows(look: Look, group_id: str) -> None:
    with pytest.raises(UnknownGroupError, match=group_id):
        look()


def test_it_runs_as_a_command(
    kafka: LocalKafka, topic: str, group_id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (p0,) = partitions_of(topic, 1)
    produce_at(kafka, p0, 10, 10)
    commit_foreign(kafka, group_id, {p0: 1})
    to = ["--bootstrap-servers", kafka.bootstrap_servers, "--group"]
    assert command.main([*to, group_id]) == command.DONE
    first, _, row = capsys.readouterr().out.splitlines()
    assert first.startswith(f"group {group_id}: Empty, classic protocol, 0 members, 1 partition, ")
    assert row.split()[:7] == ["-", "-", "-", f"{topic}-0", "1", "2", "1"]
    assert command.main([*to, group_id, "--json"]) == command.DONE
    assert json.loads(capsys.readouterr().out)["lag"] == 1
    assert command.main([*to, f"no-{group_id}"]) == command.FAILED
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == f"error: there is no consumer group 'no-{group_id}'\n"


def test_watching_ends_at_ctrl_c_in_the_background_of_a_script_too(
    kafka: LocalKafka, topic: str, group_id: str
) -> None:
    """A shell without job control has a command with "&" ignore the signal of Ctrl-C."""
    (p0,) = partitions_of(topic, 1)
    commit_foreign(kafka, group_id, {p0: 0})
    watch = [sys.executable, "-m", "pyspark_kafka_rebalance.status", "--watch", "0.1", "--json"]
    watch += ["--bootstrap-servers", kafka.bootstrap_servers, "--group", group_id]
    background = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"]
    with subprocess.Popen([*background, *watch], stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            assert json.loads(running.stdout.readline())["group"] == group_id
            running.send_signal(signal.SIGINT)
            assert running.wait(30) == command.DONE
        finally:
            running.kill()


def test_a_broker_that_is_not_there_is_one_line_in_time() -> None:
    began = time.monotonic()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pyspark_kafka_rebalance.status"),
            *("--bootstrap-servers", NOBODY, "--group", "g", "--timeout", "1"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (command.FAILED, "")
    assert line.startswith(f"error: no answer from {NOBODY} within 1 s: ")
    assert time.monotonic() - began < 30
