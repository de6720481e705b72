"""The coordinator that replaces a KafkaConsumer's own.

kafka-python cannot be given another coordinator. This works from 3.0.5 to 3.0.12: build the
KafkaConsumer, remove the first coordinator's listener from the cluster metadata, and replace the
coordinator by a subclass before the first poll. The subclass below uses kafka-python to find the
coordinator, for OffsetFetch and for pattern subscription. It delegates membership to
``membership.group_membership.GroupMembership``, which gets parts of it: ``io_loop.py``,
``topic_metadata.py``, ``subscription.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from kafka import KafkaConsumer
from kafka import errors as kafka_errors
from kafka.coordinator.consumer import ConsumerCoordinator
from kafka.protocol.metadata import MetadataResponse
from kafka.structs import ConsumerGroupMetadata, MemberState, OffsetAndMetadata, TopicPartition
from kafka.util import Timer, WeakMethod

from ...transport.kafka_python_version import require_names
from ..member_record import Member
from .assignor import OwnedPartitionsAssignor
from .io_loop import IoLoop
from .log_offsets import LogOffsets
from .starts import Backlogs, Starts
from .subscription import Subscription
from .topic_metadata import TopicMetadata
from .unlisted_brokers import fail_unlisted_brokers

if TYPE_CHECKING:
    from kafka.consumer.subscription_state import SubscriptionState
    from kafka.future import Future

require_names(
    {
        ConsumerCoordinator: (
            "_handle_metadata_update",
            "_handle_find_coordinator_response",
            "_send_offset_fetch_request",
            "_send_offset_commit_request",
            "_invoke_completed_offset_commit_callbacks",
            "commit_offsets_async",
            "ensure_coordinator_ready_async",
            "refresh_committed_offsets_if_needed",
            "refresh_committed_offsets_if_needed_async",
            "fetch_committed_offsets_async",
            "coordinator_dead",
        ),
        KafkaConsumer: ("_refresh_committed_offsets",),
    }
)


class Membership(Protocol):
    """The membership, as the seam calls it."""

    @property
    def handed_out_as(self) -> Member: ...
    @property
    def by_topic_id(self) -> bool: ...
    def start(self) -> None: ...
    def raise_if_failed(self) -> None: ...
    def loss_waits(self) -> bool: ...
    def on_metadata_update(self) -> None: ...
    def is_stable(self) -> bool: ...
    def leave(self, timeout_ms: float | None) -> None: ...
    def close(self, timeout_ms: float | None) -> None: ...


class GroupCoordinator(ConsumerCoordinator):  # type: ignore[misc]
    """kafka-python's coordinator with its membership replaced.

    ``coordinator_id`` is the *lane*: a connection of its own to the coordinator's broker, for
    requests that must not queue behind a held JoinGroup or a fetch that waits for data. The
    library's dedicated coordinator connection, ``join_node``, carries only JoinGroup and SyncGroup.

    Attributes
    ----------
    loop : IoLoop
        Runs the members, and sends their requests.
    metadata : TopicMetadata
        The topics that exist.
    subscription : Subscription
        The subscription, and the assignment.
    log_offsets : LogOffsets
        Where logs start and end.
    starts : Starts
        Where assigned partitions start.
    membership : Membership
        Joins the group, heartbeats and leaves.
    """

    join_node: str | None = None

    def __init__(
        self,
        client: Any,
        subscription: SubscriptionState,
        membership_of: Callable[[GroupCoordinator], Membership],
        backlogs_of: Callable[[GroupCoordinator], Backlogs | None],
        **config: Any,
    ) -> None:
        super().__init__(client, subscription, **config)
        fail_unlisted_brokers(self._manager)
        self.loop = IoLoop(self._manager)
        self.metadata = TopicMetadata(self._manager, self.loop)
        self.subscription = Subscription(subscription, self._cluster)
        self.log_offsets = LogOffsets(self._manager, self.loop, self.metadata)
        self.starts = Starts(
            subscription,
            self.loop,
            self.fetch_committed_offsets_async,
            self.config["request_timeout_ms"],
            backlogs_of(self),
        )
        self.membership = membership_of(self)

    # -- called by kafka-python -------------------------------------------------------------------

    def poll(self, timeout_ms: float | None = None) -> bool:
        """Never block a poll: joining runs on the I/O loop; its results wait to be applied."""
        self._invoke_completed_offset_commit_callbacks()
        if self.group_id is not None and self.subscription.subscribed:
            self.membership.start()
            if not self.membership.loss_waits():  # first let the poll report the loss
                self.membership.raise_if_failed()
        return True

    def time_to_next_poll(self) -> float:
        return float("inf")

    def need_rejoin(self) -> bool:
        return False

    def _handle_metadata_update(self, cluster: Any) -> None:
        super()._handle_metadata_update(cluster)
        if not self.membership.by_topic_id:
            self.subscription.forget_replaced_topics()
        self.membership.on_metadata_update()

    def _handle_find_coordinator_response(self, response: Any) -> str:
        join_node: str = super()._handle_find_coordinator_response(response)
        broker = self._cluster.broker_metadata(join_node)
        lane = f"lane-{join_node.removeprefix('coordinator-')}"
        self._cluster._coordinator_brokers[lane] = MetadataResponse.MetadataResponseBroker(
            lane, broker.host, broker.port, None
        )
        self.join_node = join_node
        self.coordinator_id = lane
        return lane

    def coordinator_dead(self, error: Any) -> None:
        """Mark the coordinator as unknown, and close the connection of a held JoinGroup.

        If its connection stayed open, a held JoinGroup would wait for the rebalance timeout.
        """
        if self.join_node is not None and self.coordinator_id is not None and not self.loop.closed:
            self.loop.spawn(self._manager.close, self.join_node)
        super().coordinator_dead(error)

    async def ensure_coordinator_ready_async(self, timeout_ms: float | None = None) -> bool:
        """Whether the coordinator was found in time (milliseconds; None: without a limit).

        Between two attempts the library requests new metadata, and raises if that fails, although
        an unreachable broker is the very thing it waits out.
        """
        timer = Timer(timeout_ms)
        while True:
            try:
                return bool(await super().ensure_coordinator_ready_async(timer.timeout_ms))
            except kafka_errors.RetriableError:
                if timer.expired:
                    return False
                await self.loop.sleep(self.config["retry_backoff_ms"] / 1000)

    def commit_offsets_async(
        self, offsets: Mapping[TopicPartition, Any], callback: Callable[..., Any] | None = None
    ) -> Future:
        """Commit; the future holds the answer to the commit; polls call the callbacks in order.

        The library's future is done once an unknown coordinator is found, before anything is
        committed, and its callbacks are called in reverse order.
        """
        return self.tell_in_polls(
            self.loop.spawn(self._find_and_commit, offsets), offsets, callback
        )

    def tell_in_polls(
        self,
        future: Future,
        offsets: Mapping[TopicPartition, Any],
        callback: Callable[..., Any] | None,
    ) -> Future:
        """Have a poll call the callback of ``commit_async`` when the future is done."""
        callback = callback or self.config["default_offset_commit_callback"]
        future.add_both(
            lambda answer: self.completed_offset_commits.append((callback, offsets, answer))
        )
        return future

    async def refresh_committed_offsets_if_needed_async(
        self, timeout_ms: float | None = None
    ) -> bool:
        return await self.starts.look_up(timeout_ms)

    async def fetch_committed_offsets_async(
        self, partitions: Collection[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The group's offsets as committed *now*; raises KafkaTimeoutError.

        The library keeps an answer that came after its caller stopped waiting, and gives it to the
        next caller with the same partitions, however stale it is.
        """
        timer = Timer(timeout_ms)
        while partitions:
            if not await self.ensure_coordinator_ready_async(timer.timeout_ms):
                timer.maybe_raise()
            question = self.loop.spawn(self._send_offset_fetch_request, list(partitions))
            try:
                answer: dict[TopicPartition, OffsetAndMetadata] = await self.loop.wait_for(
                    question, timer.timeout_ms
                )
                return answer
            except kafka_errors.KafkaError as error:
                if not error.retriable:
                    raise
            timer.maybe_raise()
            backoff_ms = self.config["retry_backoff_ms"]
            left_ms = timer.timeout_ms
            await self.loop.sleep(
                (backoff_ms if left_ms is None else min(backoff_ms, left_ms)) / 1000
            )
        return {}

    async def _find_and_commit(self, offsets: Mapping[TopicPartition, Any]) -> None:
        if self.coordinator_unknown():
            await self.lookup_coordinator()
        await self._send_offset_commit_request(offsets)

    def group_metadata(self) -> ConsumerGroupMetadata:
        """The member that owns the handed out records; after a loss, one that brokers refuse."""
        member = self.membership.handed_out_as
        return ConsumerGroupMetadata(
            group_id=self.group_id,
            generation_id=member.generation,
            member_id=member.member_id,
            group_instance_id=self.group_instance_id,
            state=MemberState.STABLE if self.membership.is_stable() else MemberState.REBALANCING,
        )

    def maybe_leave_group(self, reason: str | None = None, timeout_ms: float | None = None) -> None:
        self.membership.leave(timeout_ms)

    def close(self, autocommit: bool = True, timeout_ms: float | None = None) -> None:
        self._cluster.remove_listener(WeakMethod(self._handle_metadata_update))
        self.membership.close(timeout_ms)


def replace_coordinator(
    consumer: KafkaConsumer,
    membership_of: Callable[[GroupCoordinator], Membership],
    backlogs_of: Callable[[GroupCoordinator], Backlogs | None],
) -> GroupCoordinator:
    """Replace the consumer's coordinator by a :class:`GroupCoordinator`, before its first poll.

    This runs on the I/O loop, which iterates over the metadata's listeners whenever metadata
    arrive: if another thread changed them, the loop's metadata refresh would stop for good,
    silently.

    Parameters
    ----------
    consumer : KafkaConsumer
        The consumer.
    membership_of, backlogs_of : callable
        Make the new coordinator's membership and, if it catches up (KIP-333), its ``Backlogs``;
        called on the I/O loop, before any metadata arrive.
    """

    def replace() -> GroupCoordinator:
        first = consumer._coordinator
        consumer._cluster.remove_listener(WeakMethod(first._handle_metadata_update))
        coordinator = GroupCoordinator(
            consumer._client,
            consumer._subscription,
            membership_of,
            backlogs_of,
            metrics=None,  # the first coordinator has registered their names, and keeps them
            assignors=(OwnedPartitionsAssignor,),
            # This affects only OffsetFetch: it sets ``require_stable``, as the Java client always
            # does. Without it, a coordinator that has just taken over may return offsets older than
            # the acknowledged ones, and a new owner would start there.
            **{**consumer.config, "isolation_level": "read_committed"},
        )
        consumer._coordinator = coordinator
        return coordinator

    replaced: GroupCoordinator = consumer._net.run(replace)
    return replaced
