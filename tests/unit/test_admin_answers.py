"""AdminClient reads answers with numbers and words that kafka-python does not know."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from kafka.admin import ACLOperation, ConfigResource, ConfigResourceType, ConfigSourceType
from kafka.protocol.admin import (
    CreateTopicsResponse,
    DescribeConfigsResponse,
    DescribeGroupsResponse,
    DescribeTransactionsResponse,
    ListTransactionsResponse,
)
from kafka.protocol.metadata import MetadataResponse

from pyspark_kafka_rebalance.transport.admin_answers import AdminClient

#: What no kafka-python knows: KIP-939's TWO_PHASE_COMMIT (15) was such a number.
NEW = 30
NO_TYPE = 99

CreatedTopic = CreateTopicsResponse.CreatableTopicResult
DescribedTopic = MetadataResponse.MetadataResponseTopic
Setting = DescribeConfigsResponse.DescribeConfigsResult.DescribeConfigsResourceResult


class Manager:
    """Answers each request with what the test gave, as decoded from the wire."""

    broker_version = (4, 3)

    def __init__(self, answer: Any, version: int) -> None:
        self.answer = type(answer).decode(answer.encode(version=version), version=version)

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return asyncio.run(function(*arguments))

    async def send(self, request: Any, node_id: Any = None) -> Any:
        return self.answer


def admin_that_hears(answer: Any, version: int, monkeypatch: pytest.MonkeyPatch) -> AdminClient:
    async def coordinators(self: AdminClient, names: Any, **_: Any) -> dict[str, int]:
        return dict.fromkeys(names, 1)

    monkeypatch.setattr(AdminClient, "_find_coordinator_ids", coordinators)
    client: AdminClient = object.__new__(AdminClient)
    client.config = {**AdminClient.DEFAULT_CONFIG}
    client._manager = Manager(answer, version)
    return client


def test_operations_that_a_user_may_do_on_a_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = DescribedTopic(name="t", authorized_operations={int(ACLOperation.READ), NEW})
    answer = MetadataResponse(topics=[topic], authorized_operations={NEW})
    admin = admin_that_hears(answer, 9, monkeypatch)
    [found] = admin.describe_topics(["t"])
    assert found["authorized_operations"] == ["READ"]


def test_operations_that_a_user_may_do_on_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    group = DescribeGroupsResponse.DescribedGroup(
        group_id="g", group_state="Stable", authorized_operations={3, NEW}
    )
    admin = admin_that_hears(DescribeGroupsResponse(groups=[group]), 5, monkeypatch)
    assert admin.describe_groups(["g"])["g"]["authorized_operations"] == ["READ"]


def settings_of_a_topic(version: int, monkeypatch: pytest.MonkeyPatch, **told: Any) -> Any:
    config = Setting(
        name="cleanup.policy", value="compact", read_only=False, is_sensitive=False, **told
    )
    result = DescribeConfigsResponse.DescribeConfigsResult(
        resource_type=2, resource_name="t", configs=[config]
    )
    admin = admin_that_hears(DescribeConfigsResponse(results=[result]), version, monkeypatch)
    resource = ConfigResource(ConfigResourceType.TOPIC, "t")
    return admin.describe_configs([resource], config_filter="all")["topic"]["t"]["cleanup.policy"]


def test_where_a_setting_comes_from_and_its_type(monkeypatch: pytest.MonkeyPatch) -> None:
    synonym = Setting.DescribeConfigsSynonym(name="n", value="v", source=NO_TYPE)
    told = {"config_source": NO_TYPE, "config_type": NO_TYPE, "synonyms": [synonym]}
    found = settings_of_a_topic(4, monkeypatch, **told)
    assert (found["value"], found["config_source"], found["config_type"]) == (
        "compact",
        "UNKNOWN",
        "UNKNOWN",
    )
    assert [synonym["source"] for synonym in found["synonyms"]] == ["UNKNOWN"]


@pytest.mark.parametrize(
    ("is_default", "source"),
    [(True, ConfigSourceType.DEFAULT_CONFIG), (False, ConfigSourceType.DYNAMIC_TOPIC_CONFIG)],
)
def test_a_server_that_does_not_say_where_a_setting_comes_from(
    monkeypatch: pytest.MonkeyPatch, is_default: bool, source: ConfigSourceType
) -> None:
    found = settings_of_a_topic(0, monkeypatch, is_default=is_default)
    assert (found["value"], found["config_source"]) == ("compact", source.name)


def test_a_new_topic_s_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    config = CreatedTopic.CreatableTopicConfigs(
        name="n", value="v", read_only=False, config_source=-1, is_sensitive=False
    )
    topic = CreatedTopic(
        name="t", error_code=0, num_partitions=1, replication_factor=1, configs=[config]
    )
    admin = admin_that_hears(CreateTopicsResponse(topics=[topic]), 5, monkeypatch)

    async def at_once(self: AdminClient, *_: Any) -> Any:
        return admin._manager.answer

    monkeypatch.setattr(AdminClient, "_send_request_to_controller", at_once)
    admin.create_topics({"t": {"num_partitions": 1, "replication_factor": 1}})


def test_a_transaction_s_state(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = ListTransactionsResponse.TransactionState(
        transactional_id="a", producer_id=1, transaction_state="New"
    )
    admin = admin_that_hears(ListTransactionsResponse(transaction_states=[listed]), 0, monkeypatch)
    [found] = admin.list_transactions(broker_ids=[1])[1]
    assert found.state.value == "Unknown"
    described = DescribeTransactionsResponse.TransactionState(
        transactional_id="a", transaction_state="New", topics=[]
    )
    answer = DescribeTransactionsResponse(transaction_states=[described])
    admin = admin_that_hears(answer, 0, monkeypatch)
    assert admin.describe_transactions(["a"])["a"].state.value == "Unknown"
