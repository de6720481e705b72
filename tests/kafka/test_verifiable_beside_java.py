"""The verifiable consumer beside Java's: the same options, the same lines."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from typing import Any

import pytest
from group_members import PROTOCOLS
from kafka.structs import TopicPartition
from verifiable_group import OURS, PATIENCE_S, java_command

from pyspark_kafka_rebalance.testing import LocalKafka
from tests.verifiable_consumer.options import COOPERATIVE

pytestmark = pytest.mark.each_protocol


def run(command: tuple[str, ...], *options: str) -> str:
    """Run it to its end; what it printed."""
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    return done.stdout


def lines_of(printed: str) -> list[list[Any]]:
    """The events with their fields in order, without their times and the end of the process."""
    events = [list(json.loads(line).items()) for line in printed.splitlines()]
    assert all(event[0][0] == "timestamp" for event in events)
    # Of Java's exit hook; and what is told while the assigned topic is not known by name yet.
    by_chance = (["shutdown_requested"], ["partitions_assigned", []])
    return [event[1:] for event in events if [value for _, value in event[1:]] not in by_chance]


def test_without_options_the_same_help_as_java_s() -> None:
    option = re.compile(r"^ +(?:-h, )?(--[a-z.-]+)", re.MULTILINE)
    ours, java = (set(option.findall(run(command))) for command in commands().values())
    assert len(ours) > 10
    assert ours == java


def commands() -> dict[str, tuple[str, ...]]:
    return {"ours": OURS, "java": java_command()}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_same_lines_as_java_s(
    kafka: LocalKafka, topic_name: str, group_id: str, protocol: str
) -> None:
    kafka.create_topic(topic_name)
    keys = [None, b"k"] * 10
    kafka.produce(topic_name, [f"Grüße {n}".encode() for n in range(20)], keys=keys)
    options = ["--bootstrap-server", kafka.bootstrap_servers, "--topic", topic_name, "--verbose"]
    options += ["--max-messages", "20", "--group-protocol", protocol]
    options += ["--assignment-strategy", COOPERATIVE]
    ours, java = (
        lines_of(run(command, *options, "--group-id", f"{group_id}-{name}"))
        for name, command in commands().items()
    )
    assert len(ours) > 20
    assert ours == java


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_signal_lets_it_commit_and_leave(
    kafka: LocalKafka, topic_name: str, group_id: str, protocol: str, number: signal.Signals
) -> None:
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, [b"x"] * 20)
    options = ["--bootstrap-server", kafka.bootstrap_servers, "--topic", topic_name]
    options += ["--group-id", group_id, "--group-protocol", protocol]
    with subprocess.Popen([*OURS, *options], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            names = []
            for line in process.stdout:
                names.append(json.loads(line)["name"])
                if names[-1] == "records_consumed":
                    process.send_signal(number)
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
    assert names[-1] == "shutdown_complete"
    assert names[-3:-1] == ["shutdown_requested", "partitions_revoked"]
    assert kafka.committed(group_id) == {TopicPartition(topic_name, 0): 20}


def test_auto_commit_is_silent_and_drained_at_the_end(
    kafka: LocalKafka, topic_name: str, group_id: str
) -> None:
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, [b"x"] * 20)
    options = ["--bootstrap-server", kafka.bootstrap_servers, "--topic", topic_name]
    options += ["--group-id", group_id, "--enable-autocommit", "--max-messages", "20"]
    assert "offsets_committed" not in run(OURS, *options)
    assert kafka.committed(group_id) == {TopicPartition(topic_name, 0): 20}
