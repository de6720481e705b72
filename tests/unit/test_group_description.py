"""What is made of the coordinator's answer about a group, in either protocol."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.consumer import group_description
from pyspark_kafka_rebalance.consumer.group_description import GroupDescription, describe_group

P0, P1, P2 = (TopicPartition("t", n) for n in range(3))


class Admin:
    """A KafkaAdminClient that answers DescribeGroups so."""

    def __init__(self, **answer: Any) -> None:
        self._answer = {
            "group_state": "Stable",
            "error": None,
            "protocol_data": "cooperative-sticky",
            "members": [],
            **answer,
        }

    def describe_groups(self, group_ids: list[str]) -> dict[str, Any]:
        return {group_ids[0]: self._answer}


def topics(*partitions: TopicPartition) -> list[dict[str, Any]]:
    return [{"topic": p.topic, "partitions": [p.partition]} for p in partitions]


def classic(
    name: str, assigned: list[TopicPartition], claimed: list[TopicPartition]
) -> dict[str, Any]:
    return {
        "client_id": name,
        "client_host": "/10.0.0.1",
        "member_id": f"{name}-1",
        "group_instance_id": "",
        "member_assignment": {"assigned_partitions": topics(*assigned), "user_data": ""},
        "member_metadata": {"topics": ["t"], "owned_partitions": topics(*claimed)},
    }


def test_a_classic_member_that_claims_what_nobody_is_assigned_is_to_give_it_up() -> None:
    admin: Any = Admin(
        members=[classic("a", [P0], [P0, P1, P2]), classic("b", [], []), classic("c", [P2], [])]
    )
    group = describe_group(admin, "g")
    assert group == GroupDescription("Stable", group.members)
    assert (group.protocol, group.assignor) == ("classic", "cooperative-sticky")
    assert [(m.client_id, m.assigned, m.revoking, m.host) for m in group.members] == [
        ("a", {P0}, {P1}, "/10.0.0.1"),
        ("b", set(), set(), "/10.0.0.1"),
        ("c", {P2}, set(), "/10.0.0.1"),
    ]


@pytest.mark.parametrize("told", [b"", b"\x00\x01others", "", None, {}])
def test_what_is_told_in_another_format_is_no_partition(told: Any) -> None:
    member = classic("a", [], []) | {"member_assignment": told, "member_metadata": told}
    (described,) = describe_group(Admin(members=[member]), "g").members  # type: ignore[arg-type]
    assert described.assigned == described.target == described.revoking == set()


@pytest.mark.parametrize(
    "error",
    [kafka_errors.NotCoordinatorError, kafka_errors.GroupAuthorizationFailedError],
)
def test_a_coordinator_that_refuses_tells_no_group_without_members(error: Any) -> None:
    admin: Any = Admin(group_state="", error=str(error("why")))
    with pytest.raises(error, match="why"):
        describe_group(admin, "g")


def test_a_member_of_the_consumer_protocol_gives_up_what_is_not_its_target(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def of(*partitions: TopicPartition) -> Any:
        found = [SimpleNamespace(topic_name=p.topic, partitions=[p.partition]) for p in partitions]
        return SimpleNamespace(topic_partitions=found)

    answer = SimpleNamespace(
        error_code=0,
        error_message=None,
        group_state="Reconciling",
        group_epoch=7,
        assignor_name="uniform",
        members=[
            SimpleNamespace(
                client_id="a",
                client_host="/10.0.0.1",
                member_id="m",
                instance_id=None,
                member_epoch=6,
                assignment=of(P0, P1),
                target_assignment=of(P0),
            )
        ],
    )
    monkeypatch.setattr(group_description, "describe_consumer_group", lambda admin, group: answer)
    dead: Any = Admin(group_state="Dead", error=str(kafka_errors.GroupIdNotFoundError("g")))
    group = describe_group(dead, "g")
    assert (group.protocol, group.assignor, group.epoch) == ("consumer", "uniform", 7)
    assert [(m.assigned, m.target, m.revoking, m.epoch) for m in group.members] == [
        ({P0, P1}, {P0}, {P1}, 6)
    ]
    answer.error_code = kafka_errors.GroupIdNotFoundError.errno
    assert describe_group(dead, "g") == GroupDescription("Dead")
