"""``python -m pyspark_kafka_rebalance.transactions`` on a real broker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from group_members import wait_until
from hanging_transaction import UNVERIFIED, assert_it_is_ended
from kafka import KafkaConsumer, KafkaProducer
from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.testing import LocalKafka
from pyspark_kafka_rebalance.transactions import command

Run = Callable[..., Any]

#: Opens a transaction with a record in each partition, and leaves it open.
_PRODUCER = """
import sys, time
from kafka import KafkaProducer
servers, transactional_id, topic, *partitions = sys.argv[1:]
producer = KafkaProducer(bootstrap_servers=servers, transactional_id=transactional_id,
                         transaction_timeout_ms=600_000)
producer.init_transactions()
producer.begin_transaction()
for partition in partitions:
    producer.send(topic, b"of the dead", partition=int(partition))
producer.flush()
print("open", flush=True)
time.sleep(600)
"""


@pytest.fixture
def run(kafka: LocalKafka, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command with ``--json``; returns what it printed. A failure is the error's line."""

    def call(*words: str) -> Any:
        code = command.main([*words, "--bootstrap-servers", kafka.bootstrap_servers, "--json"])
        shown = capsys.readouterr()
        assert code == (command.FAILED if shown.err else command.DONE)
        return shown.err.strip() if shown.err else json.loads(shown.out)

    return call


@pytest.fixture
def transactional_id(topic_name: str) -> str:
    return f"{topic_name}-id"


@contextmanager
def dead_producer(
    kafka: LocalKafka, transactional_id: str, topic: str, *partitions: int
) -> Iterator[None]:
    """One that was killed with ``kill -9`` in the midst of a transaction."""
    arguments = [kafka.bootstrap_servers, transactional_id, topic, *map(str, partitions)]
    with subprocess.Popen(
        [sys.executable, "-c", _PRODUCER, *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n"
        finally:
            process.kill()
    yield


def produce(kafka: LocalKafka, topic: str, *values: bytes, partition: int = 0) -> None:
    with KafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        for value in values:
            producer.send(topic, value, partition=partition)


@contextmanager
def reader_of(kafka: LocalKafka, *partitions: TopicPartition) -> Iterator[Callable[[], list[Any]]]:
    """Reads what is committed; a call returns all values so far."""
    consumer = KafkaConsumer(
        bootstrap_servers=kafka.bootstrap_servers,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        group_id=None,
    )
    consumer.assign(list(partitions))
    found: list[bytes] = []

    def read() -> list[bytes]:
        for records in consumer.poll(timeout_ms=200).values():
            found.extend(record.value for record in records)
        return found

    try:
        yield read
    finally:
        consumer.close()


def test_readers_stand_still_behind_a_dead_producer_until_its_transaction_is_aborted(
    kafka: LocalKafka, topic_name: str, transactional_id: str, run: Run
) -> None:
    kafka.create_topic(topic_name, partitions=3)
    p0, _, p2 = (TopicPartition(topic_name, n) for n in range(3))
    produce(kafka, topic_name, b"a", b"b")
    with reader_of(kafka, p0, p2) as read, dead_producer(kafka, transactional_id, topic_name, 0, 2):
        produce(kafka, topic_name, b"c", b"d", b"e")
        wait_until(lambda: read() == [b"a", b"b"], "what is before the transaction")
        assert read() == [b"a", b"b"]

        listed = {t["transactional_id"]: t for t in run("list")["transactions"]}
        of_it = listed[transactional_id]
        assert (of_it["state"], of_it["partitions"]) == ("Ongoing", 2)
        assert (of_it["holds_back"], of_it["timeout_seconds"]) == (4 + 1, 600)
        assert 0 <= of_it["open_seconds"] < 300
        assert not of_it["overdue"]

        described = run("describe", "--transactional-id", transactional_id)
        assert described["transaction"] == of_it | {
            "open_seconds": described["transaction"]["open_seconds"]
        }
        by_number = {p["partition"]: p for p in described["partitions"]}
        assert by_number.keys() == {0, 2}
        assert [by_number[0][name] for name in ("last_stable_offset", "end")] == [2, 6]
        assert [by_number[0][name] for name in ("start", "holds_back", "first")] == [2, 4, True]

        partitions = run("describe", "--topic", topic_name)["partitions"]
        assert [p["held_back"] for p in partitions] == [4, 0, 1]
        (held,) = partitions[0]["open"]
        assert held["transaction"]["transactional_id"] == transactional_id
        assert not held["hanging"]
        assert partitions[1]["open"] == []

        said = run("abort", "--transactional-id", transactional_id, "--yes")
        assert said["aborted"]["transactional_id"] == transactional_id
        assert (said["aborted"]["producer_id"], said["aborted"]["epoch"]) > (
            of_it["producer_id"],
            of_it["epoch"],
        )
        wait_until(lambda: read() == [b"a", b"b", b"c", b"d", b"e"], "what is behind it")

        assert transactional_id not in {t["transactional_id"] for t in run("list")["transactions"]}
        ended = {t["transactional_id"]: t for t in run("list", "--all")["transactions"]}
        assert ended[transactional_id]["state"] == "Empty", "it has a new epoch"
        again = run("abort", "--transactional-id", transactional_id, "--yes")
        assert again["aborted"] is None
        assert "no open transaction (Empty)" in again["said"]


def test_the_producer_of_an_aborted_transaction_is_fenced(
    kafka: LocalKafka, topic: str, transactional_id: str, run: Run
) -> None:
    producer = KafkaProducer(
        bootstrap_servers=kafka.bootstrap_servers, transactional_id=transactional_id
    )
    try:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"x", partition=0)
        producer.flush()
        assert run("abort", "--transactional-id", transactional_id, "--yes")["aborted"]
        with pytest.raises(kafka_errors.KafkaError) as raised:
            producer.commit_transaction()
        assert "Fenced" in repr(raised.value) or "Epoch" in repr(raised.value)
    finally:
        producer.close(timeout=5)


def test_a_second_transaction_is_behind_the_first(
    kafka: LocalKafka, topic: str, transactional_id: str, run: Run
) -> None:
    second = f"{transactional_id}-2"
    with (
        dead_producer(kafka, transactional_id, topic, 0),
        dead_producer(kafka, second, topic, 0),
    ):
        (partition,) = run("describe", "--topic", topic, "--partition", "0")["partitions"]
        assert [
            (of["transaction"]["transactional_id"], of["start"], of["first"], of["holds_back"])
            for of in partition["open"]
        ] == [(transactional_id, 0, True, 2), (second, 1, False, 1)]
        ages = [t["open_seconds"] for t in run("list")["transactions"]]
        assert ages == sorted(ages, reverse=True)
        run("abort", "--transactional-id", transactional_id, "--yes")
        (partition,) = run("describe", "--topic", topic)["partitions"]
        assert (partition["last_stable_offset"], partition["held_back"]) == (1, 2)
        run("abort", "--transactional-id", second, "--yes")
        (partition,) = run("describe", "--topic", topic)["partitions"]
        assert (partition["held_back"], partition["open"]) == (0, [])


def test_filters(kafka: LocalKafka, topic: str, transactional_id: str, run: Run) -> None:
    def listed(*filters: str) -> set[str]:
        return {t["transactional_id"] for t in run("list", *filters)["transactions"]}

    with dead_producer(kafka, transactional_id, topic, 0):
        told = {t["transactional_id"]: t for t in run("list")["transactions"]}
        producer_id = str(told[transactional_id]["producer_id"])
        assert listed("--producer-id", producer_id) == {transactional_id}
        assert transactional_id in listed("--state", "Ongoing", "--open-for", "0")
        assert listed("--state", "PrepareCommit", "--producer-id", producer_id) == set()
        assert listed("--open-for", "1000", "--producer-id", producer_id) == set()
        run("abort", "--transactional-id", transactional_id, "--yes")
        assert listed("--producer-id", producer_id) == set()
        assert listed("--all", "--producer-id", producer_id) == {transactional_id}


def test_what_is_not_there_is_one_line(
    kafka: LocalKafka, topic: str, transactional_id: str, run: Run
) -> None:
    no_id = run("describe", "--transactional-id", transactional_id)
    assert no_id == f"error: there is no transactional id '{transactional_id}'"
    assert run("abort", "--transactional-id", transactional_id, "--yes") == no_id
    assert run("describe", "--topic", f"no-{topic}") == f"error: topic 'no-{topic}': no such topic"
    no_partition = run("describe", "--topic", topic, "--partition", "7")
    assert no_partition == f"error: there is no partition {topic}-7"
    of_log = ("--topic", topic, "--partition", "0", "--start-offset", "5", "--yes")
    assert run("abort", *of_log) == (
        f"error: no open transaction begins at offset 5 of {topic}-0: none is open"
    )


def test_a_hanging_transaction_is_named_and_ended(
    topic_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with LocalKafka(broker_config=UNVERIFIED) as kafka:
        assert_it_is_ended(kafka, topic_name, capsys)


def test_a_marker_is_refused_where_a_coordinator_has_the_transaction(
    kafka: LocalKafka, topic: str, transactional_id: str, run: Run
) -> None:
    with dead_producer(kafka, transactional_id, topic, 0):
        of_log = ("--topic", topic, "--partition", "0", "--start-offset", "0", "--yes")
        refused = run("abort", *of_log)
        assert f"belongs to transactional id '{transactional_id}' (Ongoing)" in refused
        (partition,) = run("describe", "--topic", topic)["partitions"]
        assert partition["held_back"] == 1
        without_terminal = run("abort", "--transactional-id", transactional_id)
        run("abort", "--transactional-id", transactional_id, "--yes")
        assert "repeat it with --yes" in without_terminal


def test_it_runs_as_a_command(
    kafka: LocalKafka, topic: str, transactional_id: str, tmp_path: Path
) -> None:
    settings = tmp_path / "client.properties"
    settings.write_text("client.id=me\nacks=all\n")
    with dead_producer(kafka, transactional_id, topic, 0):
        done = [
            subprocess.run(
                [
                    *(sys.executable, "-m", "pyspark_kafka_rebalance.transactions", *words),
                    *("--bootstrap-servers", kafka.bootstrap_servers),
                    *("--command-config", str(settings)),
                ],
                capture_output=True,
                text=True,
                timeout=60,
                stdin=subprocess.DEVNULL,
            )
            for words in (
                ["list"],
                ["describe", "--topic", topic],
                ["abort", "--transactional-id", transactional_id, "--yes"],
            )
        ]
    assert [each.returncode for each in done] == [command.DONE] * 3, done
    assert {each.stderr for each in done} == {
        f"{settings}: these settings have no effect here: acks\n"
    }
    (row,) = (line for line in done[0].stdout.splitlines() if transactional_id in line)
    assert row.split()[1] == "Ongoing"
    assert done[1].stdout.startswith("1 partition, 1 held back by 1 record\n")
    assert done[2].stdout.startswith(f"aborted the transaction of '{transactional_id}', open for ")


def test_transactions_of_several_coordinators(
    kafka3: LocalKafka, topic_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each broker is asked for its own, and each leader for its partitions."""
    kafka3.create_topic(topic_name, partitions=3, replication_factor=3)
    names = [f"{topic_name}-{n}" for n in range(6)]

    def run(*words: str) -> Any:
        where = ("--bootstrap-servers", kafka3.bootstrap_servers, "--json", "--timeout", "30")
        assert command.main([*words, *where]) == command.DONE
        return json.loads(capsys.readouterr().out)

    with ExitStack() as stack:
        for name in names:
            producer = KafkaProducer(
                bootstrap_servers=kafka3.bootstrap_servers, transactional_id=name
            )
            stack.callback(producer.close, timeout=1)
            producer.init_transactions()
            producer.begin_transaction()
            for partition in range(3):
                producer.send(topic_name, b"x", partition=partition)
            producer.flush()
        listed = {t["transactional_id"]: t for t in run("list")["transactions"]}
        assert listed.keys() >= set(names)
        assert len({listed[name]["coordinator"] for name in names}) > 1
        assert sum(listed[name]["holds_back"] for name in names) == 3 * (6 + 5 + 4 + 3 + 2 + 1)
        for partition in run("describe", "--topic", topic_name)["partitions"]:
            owners = [of["transaction"]["transactional_id"] for of in partition["open"]]
            assert owners == names
        for name in names:
            assert run("abort", "--transactional-id", name, "--yes")["aborted"]
        partitions = run("describe", "--topic", topic_name)["partitions"]
        assert [p["held_back"] for p in partitions] == [0, 0, 0]
