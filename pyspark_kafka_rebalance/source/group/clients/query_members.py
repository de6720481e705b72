"""QueryMembers: the clients of one query, built by its pump and shared by its other parts.

They are ``readers`` group members, or a single client for ``assign``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from ....consumer.consumer import DeferredRevokeConsumer
from ....consumer.group_description import describe_group
from ....consumer.offsets.commit_metadata import GroupCommit, Remaining
from ....consumer.pump import Pump
from ....errors import AuthenticationError, AuthorizationError, KafkaRebalanceError, names_of
from ...cluster_query import ask_cluster, first_broker_ms, no_broker, servers_of
from ..query_state import QueryState
from .assign_client import AssignClient, has_members
from .query_member import QueryClient, QueryMember

if TYPE_CHECKING:
    from ...options.source_options import SourceOptions

log = logging.getLogger(__name__)


def build_clients(options: SourceOptions, run: str) -> Iterator[QueryClient]:
    """Build the clients, ``readers`` of them or one with ``assign``; none of them joins yet.

    The first is built on its own, to find out whether the brokers let us in. The others follow all
    at once, so that they join in one generation. ``run`` is the prefix of the client ids.

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


def partitions_of(options: SourceOptions, client: DeferredRevokeConsumer) -> set[TopicPartition]:
    """All partitions that the query can read, from the client's metadata or from ``assign``.

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
    redeliver records that batches read before that commit.
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


#: Timeout of one look-up of committed or end offsets; the next tick tries again.
LOOKUP_TIMEOUT_MS = 5_000

#: How long one client may take to leave its group and close. More is not worth waiting for: without
#: a coordinator the session timeout does the same.
_CLOSE_AT_MOST_S = 3.0


class QueryMembers:
    """The members in reader order; iterate on the pump's thread, or once they are built.

    The pump builds and closes them; :meth:`client` raises its failure.
    """

    def __init__(self, options: SourceOptions, run: str, state: QueryState, pump: Pump) -> None:
        self._options = options
        self._run = run
        self._state = state
        self._pump = pump
        self._clients: list[QueryClient] = []
        self._to_build: Iterator[QueryClient] = iter(())
        self._built = threading.Event()

    def __iter__(self) -> Iterator[QueryMember]:
        return iter([client.member for client in self._clients])

    def __len__(self) -> int:
        return len(self._clients)

    def __getitem__(self, index: int) -> QueryMember:
        return self._clients[index].member

    def cluster_of(self, index: int) -> DeferredRevokeConsumer:
        """The client for broker look-ups about this member's partitions."""
        return self._clients[index].cluster

    def committed(
        self, partitions: Collection[TopicPartition], timeout_ms: float, index: int = 0
    ) -> dict[TopicPartition, Remaining]:
        """Request the group's remaining offsets; leaves out partitions without a commit.

        This query's own commits beyond its checkpoint count as owed (``OwnCommits``). Raises as
        ``QueryMember.committed_offsets``.
        """
        commits = self.group_commits(partitions, timeout_ms, index)
        with self._state as state:
            return {p: state.seen(p, commit) for p, commit in commits.items()}

    def group_commits(
        self, partitions: Collection[TopicPartition], timeout_ms: float, index: int = 0
    ) -> dict[TopicPartition, GroupCommit]:
        """As :meth:`committed`, but the group's own values, no matter who has committed.

        Records processed beyond the committed offset count only with ``parallelRebalance=live``:
        a reader that goes in order cannot skip them.
        """
        in_order = self._options.catch_up is None
        return self[index].group_commits(partitions, timeout_ms, in_order)

    def build_first(self) -> None:
        """Build the first client, which finds out whether the brokers let us in.

        Raises as :func:`build_clients`.
        """
        self._to_build = map(self._described, build_clients(self._options, self._run))
        self._clients.append(next(self._to_build))

    def _described(self, client: QueryClient) -> QueryClient:
        """Have the client's commits say that they are this query's."""
        with self._state as state:
            client.member.describe_commits(state.own_commits.describe)
        return client

    def build_others(self) -> None:
        """Build the others, unless the pump is already stopping; raises as :meth:`build_first`."""
        if not self._pump.is_stopping:
            self._clients.extend(self._to_build)
            log.info(
                "group %s: %d clients built for %s",
                self._options.group_id,
                len(self._clients),
                self._options.pattern or ", ".join(self._options.topics or ()),
            )

    def are_built(self) -> None:
        """Let :meth:`client` return."""
        self._built.set()

    def close(self) -> None:
        """Close them in the pump's remaining time; a failing one does not keep others open."""
        self._built.set()  # a thread waiting for a member learns why there is none
        for member in self:
            left_s = min(self._pump.left_s(), _CLOSE_AT_MOST_S)
            try:
                member.close(timeout_ms=max(100.0, left_s * 1000))
            except Exception:
                log.exception("group %s: a member did not close cleanly", self._options.group_id)

    def client(self) -> DeferredRevokeConsumer:
        """Wait for :meth:`are_built`; returns one for look-ups unrelated to membership.

        Raises KafkaRebalanceError if the query was stopped before, or the pump has failed.
        """
        self._built.wait()
        self._pump.raise_failure()
        if not self._clients:
            raise KafkaRebalanceError("the query was stopped before it had a member")
        return self._clients[0].cluster

    @contextmanager
    def asking(self) -> Iterator[DeferredRevokeConsumer]:
        """The client for a look-up; if the pump fails during it, raises the pump's error."""
        client = self.client()
        try:
            yield client
        except Exception:
            self._pump.raise_failure()
            raise

    def partitions(self) -> set[TopicPartition]:
        """All partitions the query can read (see ``partitions_of``); waits for the clients."""
        return partitions_of(self._options, self.client())

    def has_joined(self) -> bool:
        """Whether all members have joined, and no join is under way."""
        with self._state as state:
            polled = bool(state.generations)
        return polled and self.are_stable()

    def are_stable(self) -> bool:
        """Whether no member has a join under way."""
        return all(member.is_stable for member in self)

    def have_settled(self) -> bool:
        """Whether all members have joined, and none of their partitions is being revoked."""
        with self._state as state:
            moving = bool(state.assignment.partitions.revoking())
        return not moving and self.has_joined()

    def session_timeout_ms(self) -> float:
        """The longest session timeout of the members; the configured one before they are built.

        In the consumer protocol, the broker's value once a member has joined.
        """
        given: float = self._options.consumer_config["session_timeout_ms"]
        return max((member.session_timeout_ms for member in self), default=given)
