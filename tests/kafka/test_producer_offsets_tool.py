"""``python -m pyspark_kafka_rebalance.producer offsets`` (Connect's OffsetsApiIntegrationTest)."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance import ProducerGroup
from pyspark_kafka_rebalance.producer import offsets_tool
from pyspark_kafka_rebalance.producer.stored_points import GroupIsActiveError, StoredPoints
from pyspark_kafka_rebalance.testing import LocalKafka

Run = Callable[..., int]
PATIENCE_S = 60.0


@pytest.fixture
def run(kafka: LocalKafka, group_id: str) -> Run:
    """Run the command on the group; its exit code."""

    def run_command(command: str, *arguments: str) -> int:
        where = ("--bootstrap-servers", kafka.bootstrap_servers, "--group", group_id)
        return offsets_tool.main(["offsets", command, *where, *arguments])

    return run_command


def member(kafka: LocalKafka, group_id: str, protocol: str, **options: str) -> ProducerGroup:
    return ProducerGroup(
        group_id,
        3,
        bootstrap_servers=kafka.bootstrap_servers,
        group_protocol=protocol,
        **options,
    )


def commit(
    kafka: LocalKafka, group_id: str, topic: str, points: dict[int, str], **options: str
) -> None:
    """Have a member commit these, and leave."""
    with member(kafka, group_id, "classic", **options) as group:
        group.subscribe()
        for number, point in points.items():
            group.send(topic, point.encode(), source_partition=number, restart_point=point)
        group.commit_transaction()


def listed(run: Run, capsys: pytest.CaptureFixture[str]) -> dict[str, str | None]:
    capsys.readouterr()
    assert run("list", "--json") == offsets_tool.DONE
    rows = json.loads(capsys.readouterr().out)["source_partitions"]
    return {number: row["restart_point"] for number, row in rows.items()}


def test_list_set_and_reset(
    kafka: LocalKafka,
    topic: str,
    group_id: str,
    run: Run,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """testGetSourceConnectorOffsets, testAlterSourceConnectorOffsets,
    testResetSourceConnectorOffsets, and those of connectors that do not exist.
    """
    for command in (["list"], ["set", "0=a"], ["reset", "--all"]):
        assert run(*command) == offsets_tool.UNKNOWN_GROUP
        assert group_id in capsys.readouterr().err
    commit(kafka, group_id, topic, {0: "a", 2: "c"})
    assert listed(run, capsys) == {"0": "a", "1": None, "2": "c"}

    assert run("set", "0=a/2", "1=b=1") == offsets_tool.DONE
    assert capsys.readouterr().out.splitlines() == [
        "source partition 0: 'a' -> 'a/2'",
        "source partition 1: none -> 'b=1'",
    ]
    assert run("reset", "2") == offsets_tool.DONE
    assert listed(run, capsys) == {"0": "a/2", "1": "b=1", "2": None}
    with member(kafka, group_id, "classic") as group:
        assert group.subscribe() == {0: "a/2", 1: "b=1", 2: None}

    assert run("reset", "--all") == offsets_tool.DONE
    assert run("list") == offsets_tool.DONE
    table = capsys.readouterr().out
    assert "a/2" not in table.rpartition("source partition  ")[2]
    with member(kafka, group_id, "classic") as group:
        assert group.subscribe() == {0: None, 1: None, 2: None}


def test_restart_points_in_another_topic(
    kafka: LocalKafka, topic: str, topic_name: str, group_id: str, run: Run
) -> None:
    """testGetSourceConnectorOffsetsCustomOffsetsTopic, and those that alter and reset them."""
    other = f"{topic_name}-restart-points"
    commit(kafka, group_id, topic, {0: "a", 1: "b"}, restart_topic=other)
    assert run("set", "0=c", "--restart-topic", other) == offsets_tool.DONE
    assert run("reset", "1", "--restart-topic", other) == offsets_tool.DONE
    assert run("list") == offsets_tool.UNKNOWN_GROUP
    with member(kafka, group_id, "classic", restart_topic=other) as group:
        assert group.subscribe() == {0: "c", 1: None, 2: None}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_it_is_refused_while_the_group_is_active(
    kafka: LocalKafka,
    topic: str,
    group_id: str,
    protocol: str,
    run: Run,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """testAlterOffsetsNonStoppedConnector."""
    with member(kafka, group_id, protocol) as group:
        group.subscribe()
        group.send(topic, b"x", source_partition=1, restart_point="x")
        group.commit_transaction()
        assert run("set", "1=y") == offsets_tool.ACTIVE
        assert run("reset", "--all") == offsets_tool.ACTIVE
        assert "stop all instances" in capsys.readouterr().err
        assert listed(run, capsys) == {"0": None, "1": "x", "2": None}
        group.send(topic, b"z", source_partition=1, restart_point="z")
        group.commit_transaction()  # the member is none the worse for it
    assert run("set", "1=y") == offsets_tool.DONE
    assert listed(run, capsys)["1"] == "y"


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_brokers_refuse_it_of_a_member_that_joined_after_the_look(
    kafka: LocalKafka,
    topic: str,
    group_id: str,
    protocol: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commit(kafka, group_id, topic, {1: "x"})
    stored = StoredPoints({"bootstrap_servers": kafka.bootstrap_servers}, group_id)
    before = stored.describe()
    assert before.members == ()
    monkeypatch.setattr(stored, "describe", lambda: before)
    with member(kafka, group_id, protocol) as group:
        assert group.subscribe()[1] == "x"
        with pytest.raises(GroupIsActiveError, match="just now"):
            stored.write({1: "y"})
        group.send(topic, b"z", source_partition=1, restart_point="z")
        group.commit_transaction()
    found = stored.read()[1]
    assert found is not None
    assert found.value == "z"


def test_wrong_arguments(
    kafka: LocalKafka, topic: str, group_id: str, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """testAlterSourceConnectorOffsetsInvalidRequestBody."""
    commit(kafka, group_id, topic, {0: "a"})
    assert run("set", "7=x") == offsets_tool.WRONG_ARGUMENTS
    assert "0 to 2" in capsys.readouterr().err
    assert run("set", "0=" + "x" * (1024 * 1024 + 1)) == offsets_tool.WRONG_ARGUMENTS
    for arguments in (["set", "x"], ["reset"], ["reset", "--all", "1"]):
        with pytest.raises(SystemExit) as ended:
            run(*arguments)
        assert ended.value.code == offsets_tool.WRONG_ARGUMENTS
    assert run("list", "--kafka", "sasl.no.such=1") == offsets_tool.WRONG_ARGUMENTS
    assert listed(run, capsys) == {"0": "a", "1": None, "2": None}


def test_the_group_s_offsets_stay_such_that_a_member_finds_the_newest_point(
    kafka: LocalKafka, topic: str, group_id: str, run: Run
) -> None:
    commit(kafka, group_id, topic, {0: "a"})
    for n in range(5):
        assert run("set", f"0={n}") == offsets_tool.DONE
    commit_topic = TopicPartition(f"__producer_group.{group_id}", 0)
    with member(kafka, group_id, "classic") as group:
        assert group.subscribe()[0] == "4"
    assert commit_topic.topic == group.restart_topic
