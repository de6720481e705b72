"""Whose partitions a logged batch's are by the time it is replayed."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.structs import OffsetAndMetadata, TopicPartition

from pyspark_kafka_rebalance.consumer.group_description import GroupDescription, GroupMember
from pyspark_kafka_rebalance.fetch.offset_range import OffsetRange
from pyspark_kafka_rebalance.source import cluster_query, replay
from pyspark_kafka_rebalance.source.options import SourceOptions

P = TopicPartition("t", 0)


def lost(
    monkeypatch: pytest.MonkeyPatch, member: GroupMember | None, committed: int = 10, **more: str
) -> bool:
    class Admin:
        def __init__(self, **config: Any) -> None: ...

        def list_group_offsets(self, groups: dict[str, list[TopicPartition]]) -> Any:
            return {group: {P: OffsetAndMetadata(committed, "", -1)} for group in groups}

        def close(self) -> None: ...

    group = GroupDescription("Stable", (member,) if member is not None else ())
    monkeypatch.setattr(cluster_query, "admin_client", lambda config: Admin())
    monkeypatch.setattr(replay, "describe_group", lambda admin, group_id: group)
    options = {"subscribe": "t", "kafka.bootstrap.servers": "b:1", "kafka.group.id": "g", **more}
    given = {name: value for name, value in options.items() if value}
    parsed = SourceOptions.parse(given, default_readers=1)
    return replay.moved_on(parsed, [OffsetRange("t", 0, 10, 20)], "query-dead") == {P}


def test_the_run_that_died_is_listed_until_its_session_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not lost(monkeypatch, None)
    assert not lost(monkeypatch, GroupMember("query-dead-0", frozenset({P})))


def test_another_member_has_the_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lost(monkeypatch, GroupMember("query-other-0", frozenset({P})))
    assert not lost(monkeypatch, GroupMember("query-other-0", frozenset({TopicPartition("t", 1)})))


def test_another_member_has_committed_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lost(monkeypatch, None, committed=11)


@pytest.mark.parametrize(
    ("instance", "other"),
    [("mine-0", False), ("mine-7", False), ("mine-too-0", True), (None, True)],
)
def test_a_static_member_is_listed_with_the_client_id_of_its_first_run(
    monkeypatch: pytest.MonkeyPatch, instance: str | None, other: bool
) -> None:
    """A second restart within the session took its own run for another query."""
    member = GroupMember("query-first-0", frozenset({P}), instance)
    given = {"kafka.group.instance.id": "mine"}
    assert lost(monkeypatch, member, **given) == other


def test_nobody_takes_over_what_is_assigned_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever another query with the same group has committed."""
    assert lost(monkeypatch, None, committed=15)
    assert not lost(monkeypatch, None, committed=15, subscribe="", assign='{"t":[0]}')
