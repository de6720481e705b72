"""Asks the brokers for addresses, version and permissions, and tries to reach each of them."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from kafka import KafkaAdminClient
from kafka import errors as kafka_errors
from kafka.protocol.broker_version_data import BROKER_API_VERSIONS

from ..consumer.group_description import describe_group
from ..consumer.kafka_python.questions import known_brokers
from ..errors import AuthenticationError
from ..transport.secured_clients import admin_client
from .facts import BrokerFacts, GroupFacts, TopicFacts

_CONSUMER_GROUP_HEARTBEAT = 68

#: kafka-python takes any later release for this one.
_NEWEST_KNOWN = max(BROKER_API_VERSIONS)

_CONNECT_S = 5.0
_COORDINATOR_S = 10.0


class BrokerProbe:
    """Asks the brokers, over one connection.

    ``servers`` are the bootstrap servers, as given; ``admin`` is connected to them.
    """

    def __init__(self, servers: str, admin: KafkaAdminClient) -> None:
        self._servers = servers
        self._admin = admin

    def brokers(self) -> BrokerFacts:
        """List the brokers, and connect to each."""
        try:
            addresses = {(b.host, b.port): b.node_id for b in known_brokers(self._admin)}
            with ThreadPoolExecutor(max_workers=16) as threads:
                met = dict(zip(addresses, threads.map(_connect, addresses), strict=True))
            reached = [address for address, failure in met.items() if not failure]
            offered = (
                self._admin.get_broker_version_data(addresses[reached[0]]) if reached else None
            )
            has_protocol = offered is not None and _CONSUMER_GROUP_HEARTBEAT in offered.api_versions
            is_on = has_protocol and self._level("group.version") > 0
        except kafka_errors.KafkaError as error:
            return BrokerFacts(self._servers, error=_said(error))
        version = tuple(offered.broker_version) if offered else ()
        return BrokerFacts(
            self._servers,
            version=version,
            may_be_newer=version == _NEWEST_KNOWN,
            has_consumer_protocol=has_protocol,
            consumer_protocol_is_on=is_on,
            reachable=tuple(map(_named, reached)),
            unreachable={_named(address): why for address, why in met.items() if why},
        )

    def _level(self, feature: str) -> int:
        """The level at which the cluster has this feature; 0 if it is off."""
        found = self._admin.describe_features().get(feature, {}).get("finalized", (0, 0))
        return int(found[1])

    def topic(self, name: str) -> TopicFacts:
        """Ask for a topic; this does not create it."""
        try:
            [topic] = self._admin.describe_topics([name])
        except kafka_errors.KafkaError as error:
            return TopicFacts(name, error=_said(error))
        if topic["error_code"]:
            return TopicFacts(name, error=kafka_errors.for_code(topic["error_code"]).__name__)
        return TopicFacts(name, partitions=len(topic["partitions"]), may_read=_may_read(topic))

    def group(self, group_id: str) -> GroupFacts:
        """Ask for a group, of either protocol."""
        try:
            group = self._describe_group(group_id)
            if group["group_state"] == "Dead":  # DescribeGroups also says so for KIP-848's groups
                described = describe_group(self._admin, group_id)
                return GroupFacts(group_id, state=described.state, members=len(described.members))
        except kafka_errors.KafkaError as error:
            return GroupFacts(group_id, error=_said(error))
        except ValueError:  # Kafka Connect's member data is not in the consumer format
            return GroupFacts(group_id, of_consumers=False)
        state = group["group_state"]
        if group["error"]:
            return GroupFacts(group_id, error=group["error"])
        return GroupFacts(
            group_id, state=state, members=len(group["members"]), may_read=_may_read(group)
        )

    def _describe_group(self, group_id: str) -> Any:
        """Ask until there is a coordinator: a cluster's first group waits for the offsets topic."""
        deadline = time.monotonic() + _COORDINATOR_S
        while True:
            try:
                return self._admin.describe_groups([group_id])[group_id]
            except kafka_errors.CoordinatorNotAvailableError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)


@contextmanager
def connected(
    servers: str, client_config: Mapping[str, Any]
) -> Iterator[BrokerProbe | BrokerFacts]:
    """Connect; on failure, yields facts with the reason instead of a probe."""
    try:
        admin = admin_client(client_config)
    except (AuthenticationError, kafka_errors.KafkaError, OSError) as error:
        yield BrokerFacts(servers, error=_said(error))
        return
    try:
        yield BrokerProbe(servers, admin)
    finally:
        admin.close()


def _connect(address: tuple[str, int]) -> str:
    try:
        socket.create_connection(address, timeout=_CONNECT_S).close()
    except OSError as error:
        return str(error)
    return ""


def _may_read(described: Mapping[str, Any]) -> bool | None:
    allowed = described.get("authorized_operations")
    return None if allowed is None else "READ" in allowed


def _named(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"


def _said(error: Exception) -> str:
    text = str(error)
    name = type(error).__name__
    return text if name in text else f"{name}: {text}"
