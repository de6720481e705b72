"""LocalKafka keeps its promises: data stays over a restart, and no process stays behind."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from gaps_and_live import commit_foreign
from group_members import move_coordinators, wait_until
from kafka import KafkaConsumer
from kafka.errors import MessageSizeTooLargeError, TopicAlreadyExistsError
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.testing import (
    KafkaCluster,
    LocalKafka,
    LocalKafkaError,
    kafka_from_environment,
)
from pyspark_kafka_rebalance.testing.brokers.broker import Broker
from pyspark_kafka_rebalance.testing.brokers.broker_archive import sharing_options
from pyspark_kafka_rebalance.testing.kafka_jars import broker_jars
from pyspark_kafka_rebalance.testing.processes.ports import ReservedPort

PATIENCE_S = 30.0

#: What a shell without job control does to a command with "&": Ctrl-C is not for it.
IN_THE_BACKGROUND = ("sh", "-c", 'trap "" INT; exec "$@"', "sh")


def read_all(servers: str, topic: str) -> list[Any]:
    """Everything in the topic, in order within each partition."""
    consumer = KafkaConsumer(bootstrap_servers=servers)
    with contextlib.closing(consumer):
        partitions = [TopicPartition(topic, n) for n in consumer.partitions_for_topic(topic)]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        consumer.seek_to_beginning(*partitions)
        records: list[Any] = []
        deadline = time.monotonic() + PATIENCE_S
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            assert time.monotonic() < deadline, "the records did not come"
            for some in consumer.poll(timeout_ms=200).values():
                records += some
        return records


def state(pid: int) -> str:
    """As Linux says it: T is stopped, Z is a zombie."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def exists(pid: int) -> bool:
    """Whether the process exists; one that ended and was not collected does not."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return state(pid) != "Z"
    return False


def test_a_broker_starts_from_an_archive_of_its_classes(kafka: LocalKafka) -> None:
    if not sharing_options((), broker_jars(), LocalKafka):
        pytest.skip("this Java makes no archive")
    pid = kafka.pid()
    assert re.search(r"class-archives/kafka-.*\.jsa", Path(f"/proc/{pid}/maps").read_text())


def test_records_come_back_as_they_were_produced(kafka: LocalKafka, topic_name: str) -> None:
    kafka.create_topic(topic_name, partitions=3, config={"retention.ms": -1})
    ends = kafka.produce(topic_name, [b"a", b"b", b"c", b""])
    assert ends == {0: 2, 1: 1, 2: 1}  # one after the other
    ends = kafka.produce(
        topic_name,
        [b"d", None],
        partition=2,
        keys=[b"k", b"l"],
        headers=[[("h", b"1"), ("h", b"")], []],
        timestamps_ms=[1_000, 2_000],
        compression="gzip",
    )
    assert ends == {2: 3}
    records = read_all(kafka.bootstrap_servers, topic_name)
    assert Counter((r.partition, r.value) for r in records) == Counter(
        [(0, b"a"), (1, b"b"), (2, b"c"), (0, b""), (2, b"d"), (2, None)]
    )
    keyed = next(r for r in records if r.value == b"d")
    assert (keyed.key, keyed.timestamp) == (b"k", 1_000)
    assert list(keyed.headers) == [("h", b"1"), ("h", b"")]


def test_columns_of_different_length_are_refused(kafka: LocalKafka, topic_name: str) -> None:
    kafka.create_topic(topic_name)
    with pytest.raises(ValueError, match="zip"):
        kafka.produce(topic_name, [b"a", b"b"], keys=[b"k"])


def test_a_topic_exists_when_create_returns_and_is_gone_when_delete_returns(
    kafka: LocalKafka, topic_name: str
) -> None:
    for _ in range(3):
        kafka.create_topic(topic_name, partitions=2)
        with pytest.raises(TopicAlreadyExistsError):
            kafka.create_topic(topic_name)
        kafka.delete_topic(topic_name)


def test_nothing_stays_behind_after_close() -> None:
    with LocalKafka() as kafka:
        pid, folder, servers = kafka.pid(), kafka.folder, kafka.bootstrap_servers
        assert pid is not None
        assert exists(pid)
        assert folder.is_dir()
    assert not exists(pid)
    assert not folder.exists()
    host, port = servers.split(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))
    kafka.close()  # again
    with pytest.raises(LocalKafkaError, match="not started"):
        _ = kafka.bootstrap_servers


def test_data_survives_kill_and_stop_and_two_clusters_do_not_collide(tmp_path: Path) -> None:
    with (
        LocalKafka(keep_data=True, folder=tmp_path / "a") as one,
        LocalKafka(broker_config={"message.max.bytes": 1_000}) as other,
    ):
        assert one.bootstrap_servers != other.bootstrap_servers
        other.create_topic("t")
        with pytest.raises(MessageSizeTooLargeError):  # the setting came through
            other.produce("t", [b"x" * 2_000])
        servers = one.bootstrap_servers
        one.create_topic("t", partitions=2)
        one.produce("t", [b"1", b"2"])
        one.kill(1)
        assert one.running == ()
        assert other.running == (1,)
        one.restart(1)
        assert one.bootstrap_servers == servers
        one.produce("t", [b"3", b"4"])
        one.stop(1)
        assert one.running == ()
        one.restart()
        values = sorted(record.value for record in read_all(servers, "t"))
        assert values == [b"1", b"2", b"3", b"4"]
        one.stop()
    assert (tmp_path / "a" / "broker-1" / "data" / "meta.properties").exists()


def test_a_suspended_broker_is_silent_and_comes_back() -> None:
    with LocalKafka() as kafka:
        host, port = kafka.bootstrap_servers.split(":")
        pid = kafka.pid()
        assert pid is not None
        for _ in range(10):
            kafka.suspend(1)
            assert state(pid) == "T", "not a moment later: a request would be answered in it"
            kafka.resume(1)
        kafka.suspend(1)
        with socket.create_connection((host, int(port)), timeout=0.5) as connection:
            connection.sendall(bytes.fromhex("0000000a 0012 0000 00000001 ffff"))  # ApiVersions
            with pytest.raises(TimeoutError):
                connection.recv(1)
            kafka.resume(1)
            connection.settimeout(PATIENCE_S)
            assert connection.recv(1)
        kafka.suspend(1)
        kafka.stop(1)  # suspended, it would not hear a SIGTERM
        assert kafka.running == ()


PARENT = """
import os, signal, time
from pyspark_kafka_rebalance.testing import LocalKafka

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it

with LocalKafka() as kafka:
    fork = os.fork() if {forks} else 0
    if fork or not {forks}:
        print(kafka.pid(), kafka.folder, fork, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize(
    ("how", "forks"),
    [
        (signal.SIGINT, False),
        (signal.SIGTERM, False),
        (signal.SIGKILL, False),
        (signal.SIGKILL, True),  # the fork holds the watchdog's pipe open
    ],
)
def test_no_broker_outlives_its_parent(how: signal.Signals, forks: bool) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT.format(forks=forks)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with parent:
        assert parent.stdout is not None
        pid, folder, fork = parent.stdout.readline().split()
        assert exists(int(pid))
        parent.send_signal(how)
        try:
            parent.wait(PATIENCE_S)
        finally:
            parent.kill()
        wait_until(lambda: not exists(int(pid)), "the broker to end")
        wait_until(lambda: not Path(folder).exists(), "its folder to be removed")
        if forks:
            assert exists(int(fork))
            os.kill(int(fork), signal.SIGKILL)


def test_a_broker_that_does_not_come_up_is_quoted() -> None:
    with (
        pytest.raises(LocalKafkaError, match=r"(?s)broker 1 ended.*num\.io\.threads"),
        LocalKafka(broker_config={"num.io.threads": "many"}),
    ):
        pass


def test_three_brokers_replicate_and_one_may_die(kafka3: LocalKafka, topic_name: str) -> None:
    kafka3.create_topic(topic_name, partitions=6)
    kafka3.produce(topic_name, [b"before"] * 60)
    kafka3.kill(2)
    assert kafka3.running == (1, 3)
    kafka3.produce(topic_name, [b"during"] * 60)
    found = Counter(r.value for r in read_all(kafka3.bootstrap_servers, topic_name))
    assert found == {b"before": 60, b"during": 60}
    kafka3.restart(2)
    assert kafka3.running == (1, 2, 3)
    kafka3.create_topic(f"{topic_name}-after", partitions=3)  # known on all three


def test_committed_offsets_after_another_broker_took_the_groups(
    quorum: LocalKafka, topic_name: str, group_id: str
) -> None:
    quorum.create_topic(topic_name)
    where = TopicPartition(topic_name, 0)
    commit_foreign(quorum, group_id, {where: 7})
    assert quorum.committed(group_id) == {where: 7}
    move_coordinators(quorum)
    commit_foreign(quorum, group_id, {where: 8})
    # The one before may still answer for a moment.
    wait_until(lambda: quorum.committed(group_id) == {where: 8}, "the later commit")


def test_topics_can_be_made_after_the_broker_that_made_the_last_was_away(
    kafka3: LocalKafka, topic_name: str
) -> None:
    """The admin client knew its id, and not its address any more."""
    kafka3.create_topic(topic_name)
    asked = kafka3._admin_client()._controller_id
    kafka3.stop(asked)
    kafka3.produce(topic_name, [b"x"])
    kafka3.restart(asked)
    kafka3.create_topic(f"{topic_name}-after")


def test_two_brokers_are_refused() -> None:
    with pytest.raises(ValueError, match="1 or 3"):
        LocalKafka(2)


def test_the_users_own_cluster_is_taken_from_the_environment(
    kafka: LocalKafka, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", kafka.bootstrap_servers)
    with kafka_from_environment() as cluster:
        assert type(cluster) is KafkaCluster
        cluster.create_topic(topic_name, partitions=2)
        assert cluster.produce(topic_name, [b"x"] * 4) == {0: 2, 1: 2}
        cluster.delete_topic(topic_name)


def test_a_broker_runs_once(kafka: LocalKafka) -> None:
    broker: Broker = kafka._brokers[1]
    with pytest.raises(LocalKafkaError, match="is running"):
        broker.start()


def test_it_runs_as_a_command_and_says_how_to_reach_it() -> None:
    """Of Kafka's own tools one is run as it is printed.

    The signal of Ctrl-C is ignored at its start, as in the background of a script.
    """
    chosen = ReservedPort()
    chosen.release()
    port = chosen.number
    command = [sys.executable, "-X", "faulthandler", "-m"]
    command.append("pyspark_kafka_rebalance.testing.local_kafka")
    topics = ["--topic", "orders:3", "--topic", "views"]
    with subprocess.Popen(
        [*IN_THE_BACKGROUND, *command, "--port", str(port), *topics],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        try:
            assert running.stdout is not None
            assert running.stderr is not None
            assert running.stdout.readline() == f"127.0.0.1:{port}\n"
            said = list(iter(running.stderr.readline, "Ctrl-C to stop\n"))
            first = f"Kafka 4.3.0 at 127.0.0.1:{port}; topics: orders (3), views (1)\n"
            assert first in said, "after it has fetched its tools, on a new machine"
            at = said.index("Kafka's own tools, with its jars:\n")
            listing = "".join(said[at + 1 : at + 3])
            listed = subprocess.run(["sh", "-c", listing], capture_output=True, text=True)
            assert {"orders", "views"} <= {*listed.stdout.split()}, listed.stderr
            taken = subprocess.run(
                [*command, "--port", str(port)], capture_output=True, text=True, check=False
            )
            assert (taken.returncode, taken.stderr) == (1, f"port {port} is taken\n")
            running.send_signal(signal.SIGINT)
            try:
                assert running.wait(PATIENCE_S) == 0
            except subprocess.TimeoutExpired:
                running.send_signal(signal.SIGABRT)  # which says where each thread is
                pytest.fail(f"it goes on after Ctrl-C:\n{running.stderr.read()}")
        finally:
            running.kill()
