"""The clients of one query: ``readers`` group members, or a single one for ``assign``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from ....consumer.cluster_queries import ClusterQueries
from ....consumer.consumer import DeferredRevokeConsumer
from ....consumer.group_description import describe_group
from ....errors import AuthenticationError, AuthorizationError, KafkaRebalanceError, names_of
from ...cluster_query import ask_cluster, first_broker_ms, no_broker, servers_of
from .assign_client import AssignClient, has_members
from .query_member import QueryClient

if TYPE_CHECKING:
    from ...options import SourceOptions


def build_clients(options: SourceOptions, run: str) -> Iterator[QueryClient]:
    """Build the clients; none of them joins yet.

    The first is built on its own, to find out whether the brokers let us in. The others follow all
    at once, so that they join in one generation.

    Parameters
    ----------
    options : SourceOptions
        The stream's options.
    run : str
        Prefix of the client ids.

    Yields
    ------
    QueryClient
        ``readers`` of them; only one with ``assign``.

    Raises
    ------
    KafkaRebalanceError
        No broker can be used, a topic or partition does not exist, or, with ``assign``, the group
        has members (MembershipError).
    AuthenticationError, AuthorizationError
        The brokers do not let us in, or a permission is missing.
    """
    config = {**options.client_config, **options.consumer_config}
    config["bootstrap_timeout_ms"] = first_broker_ms(options)
    config["allow_auto_create_topics"] = False  # as Spark's source, which asks an admin client
    if options.partitions is not None:
        yield _fixed(options, options.partitions, {**config, "client_id": f"{run}-0"})
        return
    own = [_own_config(config, run, index) for index in range(options.readers)]
    first = _member(options, own[0], is_first=True)
    yield QueryClient(first, first)
    for other in _build_at_once(options, own[1:]):
        yield QueryClient(other, other)


def _own_config(config: dict[str, Any], run: str, index: int) -> dict[str, Any]:
    own = {**config, "client_id": f"{run}-{index}"}
    if own.get("group_instance_id"):
        own["group_instance_id"] += f"-{index}"
    return own


def _build_at_once(
    options: SourceOptions, configs: Sequence[dict[str, Any]]
) -> list[DeferredRevokeConsumer]:
    """Build all of them, or close those that were built and raise the first error."""
    if not configs:
        return []
    with ThreadPoolExecutor(len(configs), "build-clients") as threads:
        built = [threads.submit(_member, options, config, False) for config in configs]
    errors = [error for member in built if (error := member.exception()) is not None]
    if errors:
        for member in built:
            if member.exception() is None:
                member.result().close(timeout_ms=0)
        raise errors[0]
    return [member.result() for member in built]


def partitions_of(options: SourceOptions, client: ClusterQueries) -> set[TopicPartition]:
    """All partitions that the query can read: from the client's metadata, or those of ``assign``.

    With a subscription, the group decides which of them the query gets.
    """
    if options.partitions is not None:
        return set(options.partitions)
    return {
        TopicPartition(topic, partition)
        for topic in client.subscription() or ()
        for partition in client.partitions_for_topic(topic) or ()
    }


def _member(
    options: SourceOptions, config: dict[str, Any], is_first: bool
) -> DeferredRevokeConsumer:
    """Build one member of the group; the first one also checks that the topics exist."""
    with _naming_brokers(config):
        member = DeferredRevokeConsumer(
            group_id=options.group_id, revoke_timeout_ms=options.revoke_timeout_ms, **config
        )
        try:
            member.subscribe(topics=list(options.topics or ()), pattern=options.pattern)
            if is_first:
                _refuse_missing_topics(options, member, config["bootstrap_timeout_ms"])
        except BaseException:
            member.close(timeout_ms=0)
            raise
    return member


def _refuse_missing_topics(
    options: SourceOptions, member: DeferredRevokeConsumer, timeout_ms: float
) -> None:
    existing = member.existing_topics(timeout_ms)  # also resolves a pattern to its topics
    missing = sorted(set(options.topics or ()) - existing)
    if hidden := sorted(member.hidden_topics(missing, timeout_ms)):
        raise AuthorizationError(
            "subscribe names topics that need DESCRIBE on the topic, which is not granted "
            f"(brokers do not say whether they exist): {', '.join(hidden)}"
        )
    if missing:
        raise KafkaRebalanceError(
            f"subscribe names topics that do not exist: {', '.join(missing)}; a query creates none"
        )


def _fixed(
    options: SourceOptions, partitions: tuple[TopicPartition, ...], config: dict[str, Any]
) -> QueryClient:
    """Build the client of ``assign``, after checking that the group has no members.

    If a member joins later, the coordinator refuses the next commit. The group's members may then
    deliver again what batches read until that commit.
    """
    with _naming_brokers(config):
        client = DeferredRevokeConsumer(group_id=options.group_id, **config)
        member = AssignClient(client, partitions)
    try:
        group = ask_cluster(
            options,
            f"whether group {options.group_id!r} has members",
            lambda admin: describe_group(admin, options.group_id),
        )
        if group.members:
            seen = ", ".join(sorted({member.client_id for member in group.members}))
            raise has_members(options.group_id, names_of(partitions), seen)
    except BaseException:
        member.close(timeout_ms=0)
        raise
    return QueryClient(member, client)


@contextmanager
def _naming_brokers(config: dict[str, Any]) -> Iterator[None]:
    """Name the bootstrap servers in connection errors."""
    servers = servers_of(config)
    try:
        yield
    except AuthenticationError as error:
        raise AuthenticationError(f"{servers}: {error}") from error
    except kafka_errors.KafkaError as error:
        raise no_broker(config, error) from error
