"""The coordinator that is put behind a KafkaConsumer in place of its own.

kafka-python has no place to put one's own coordinator. What works from 3.0.5 to 3.0.12: build the
KafkaConsumer, take the first coordinator's listener off the cluster metadata, and put a subclass
in its place before the first poll. The subclass below keeps what kafka-python does well (finding
the coordinator, OffsetFetch, pattern subscription) and hands membership over to
:class:`~pyspark_kafka_rebalance.consumer.group_membership.GroupMembership`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from kafka import KafkaConsumer
from kafka import errors as kafka_errors
from kafka.consumer.subscription_state import TopicPartitionState
from kafka.coordinator.consumer import ConsumerCoordinator
from kafka.net.wakeup_notifier import WakeupNotifier
from kafka.protocol.metadata import MetadataRequest, MetadataResponse
from kafka.structs import ConsumerGroupMetadata, MemberState, OffsetAndMetadata, TopicPartition
from kafka.util import Timer, WeakMethod

from ...transport.kafka_python_version import require_names
from .assignor import OwnedPartitionsAssignor
from .questions import first_answer

if TYPE_CHECKING:
    from kafka.future import Future

#: What kafka-python ends a refresh of metadata with, whose other topics have been updated.
_OF_A_TOPIC = (
    kafka_errors.UnknownTopicOrPartitionError,
    kafka_errors.TopicAuthorizationFailedError,
    kafka_errors.InvalidTopicError,
)

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
        # mark_pending_revocation is what sets _pending_revocation.
        TopicPartitionState: ("mark_pending_revocation", "position"),
    }
)


class Membership(Protocol):
    """What the seam asks of the membership that is put behind it."""

    @property
    def generation(self) -> int: ...
    @property
    def member_id(self) -> str: ...
    def start(self) -> None: ...
    def raise_if_failed(self) -> None: ...
    def loss_waits(self) -> bool: ...
    def on_metadata_update(self) -> None: ...
    def is_stable(self) -> bool: ...
    def leave(self, timeout_ms: float | None) -> None: ...
    def close(self, timeout_ms: float | None) -> None: ...


class GroupCoordinator(ConsumerCoordinator):  # type: ignore[misc]
    """kafka-python's coordinator with its membership replaced.

    ``coordinator_id`` is the *lane*: a connection of its own to the coordinator's broker for
    whatever must not queue behind a held JoinGroup or a fetch that waits for data. The
    library's dedicated coordinator connection, ``join_node``, carries JoinGroup and SyncGroup only.
    """

    membership: Membership
    join_node: str | None = None
    # For which assignment starts are looked up, and the answer to come.
    _starts_asked: tuple[dict[TopicPartition, TopicPartitionState], Future] | None = None
    # What was committed where partitions start, until the consumer takes it.
    _starts: dict[TopicPartition, OffsetAndMetadata]

    # -- services for the membership, all to be used on the I/O loop ------------------------------

    def spawn(self, coroutine: Callable[..., Any], *arguments: Any) -> Future:
        """Schedule a coroutine function on the I/O loop; thread-safe."""
        return self._manager.call_soon(coroutine, *arguments)

    def run(self, coroutine: Callable[..., Any], *arguments: Any) -> Any:
        """Run a coroutine function on the I/O loop and wait for it; not from the loop itself."""
        return self._net.run(coroutine, *arguments)

    async def sleep(self, seconds: float) -> None:
        """Wait on the loop."""
        await self._net.sleep(seconds)

    def alarm(self) -> WakeupNotifier:
        """A wait with a timeout (seconds) that ``notify()`` ends from any thread."""
        return WakeupNotifier(self._net)

    async def send(self, request: Any, node_id: str | None, timeout_ms: float) -> Any:
        """Send one request and await its response."""
        return await self._manager.send(request, node_id=node_id, request_timeout_ms=timeout_ms)

    async def wait_for(self, future: Future, timeout_ms: float | None) -> Any:
        """Await, with a bound if there is one; raises KafkaTimeoutError."""
        return await self._manager.wait_for(future, timeout_ms)

    @property
    def loop_closed(self) -> bool:
        """Whether the consumer's connections are closed."""
        return bool(self._manager.closed)

    @property
    def topics(self) -> frozenset[str]:
        """The topics subscribed to now (for a pattern: those that match)."""
        return frozenset(self._subscription.subscription or ())

    @property
    def pattern(self) -> str | None:
        """The regular expression subscribed to, in Python's syntax, if there is one."""
        compiled = self._subscription.subscribed_pattern
        return None if compiled is None else str(compiled.pattern)

    @property
    def internal_topics(self) -> frozenset[str]:
        """What brokers call internal among the topics that the metadata have."""
        return frozenset(self._cluster.internal_topics)

    @property
    def subscribed(self) -> bool:
        """Whether this consumer is subscribed, as against assigned by hand or nothing yet."""
        return bool(self._subscription.partitions_auto_assigned())

    def owned(self) -> frozenset[TopicPartition]:
        """The partitions of the applied assignment, those being revoked included."""
        return frozenset(self._subscription.assigned_partitions())

    def refresh_metadata(self) -> Future:
        """Ask for new metadata; the future is done when it is there."""
        return self._cluster.request_update()

    def refresh_metadata_now(self) -> Future:
        """As ``refresh_metadata``, for what is asked for the first time.

        kafka-python waits ``retry_backoff_ms`` after each answer, also after that of its bootstrap,
        which has no topics.
        """
        self.forget_backoff()
        return self._cluster.request_update()

    def forget_backoff(self) -> None:
        """The next metadata that are asked for are no retry."""
        self._cluster._last_refresh_ms = 0

    def partition_counts(self, topics: Collection[str]) -> dict[str, int]:
        """Number of partitions of each topic; 0 of a topic that the metadata does not know."""
        return {topic: len(self._cluster.partitions_for_topic(topic) or ()) for topic in topics}

    def existing_topics(self, timeout_ms: float) -> frozenset[str]:
        """All topics of the cluster that may be described, fetched now; not on the I/O loop.

        Raises KafkaTimeoutError, which kafka-python's own ``topics()`` does not: it waits for ever.
        """
        cluster = self._cluster
        if cluster.metadata_refresh_in_progress:  # it may not ask for all topics
            with suppress(*_OF_A_TOPIC, kafka_errors.KafkaConnectionError):
                self.run(self.wait_for, cluster.request_update(), timeout_ms)
        before, cluster.need_all_topic_metadata = cluster.need_all_topic_metadata, True
        try:
            self.run(first_answer, self._manager, self.refresh_metadata_now, timeout_ms)
        finally:
            cluster.need_all_topic_metadata = before
        return frozenset(cluster.topics())

    def hidden_topics(self, topics: Collection[str], timeout_ms: float) -> frozenset[str]:
        """Those of these topics that may not be described, asked now; not on the I/O loop.

        Raises KafkaTimeoutError.
        """
        if not topics:
            return frozenset()
        request = MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in topics],
            allow_auto_topic_creation=False,
            min_version=4,
        )
        response = self.run(
            first_answer, self._manager, lambda: self._manager.send(request), timeout_ms
        )
        refused = kafka_errors.TopicAuthorizationFailedError.errno
        return frozenset(t.name for t in response.topics if t.error_code == refused)

    def topic_name(self, topic_id: UUID) -> str | None:
        """The name of a topic, if the metadata have it."""
        name: str | None = self._cluster.topic_name_for_id(topic_id)
        return name

    def api_version(self, request: type) -> int:
        """The version in which a request will be sent (IncompatibleBrokerVersion if in none)."""
        return int(self._manager.broker_version_data.api_version(request))

    def watch_topics(self, topics: Collection[str]) -> None:
        """As the group's leader, also follow the metadata of the other members' topics."""
        self._subscription.group_subscribe(topics)
        self._cluster.set_topics(self._subscription.group_subscription())

    @property
    def cluster(self) -> Any:
        """The cluster metadata, for the assignor."""
        return self._cluster

    # -- services for the consumer, on the thread that polls --------------------------------------

    def set_assignment(
        self, partitions: Collection[TopicPartition], gated: Collection[TopicPartition]
    ) -> None:
        """Own exactly ``partitions``; nothing of ``gated`` is fetched or returned any more.

        The library clears the gate with every new assignment, so both are set together; 3.0.5
        does not, and has no call that would. The public ``assign_from_subscribed`` refuses a
        partition of a topic that just left the subscription (a deleted topic under a pattern),
        which is still ours until it is released.
        """
        with self._subscription._lock:
            self._subscription._apply_assignment(sorted(partitions), randomize=True)
            for partition, state in self._subscription.assignment.items():
                state._pending_revocation = partition in gated

    def position(self, partition: TopicPartition) -> int | None:
        """The next offset that a poll will return, as far as it is known; asks nobody."""
        state = self._subscription.assignment.get(partition)
        position = None if state is None else state.position
        return None if position is None else int(position.offset)

    def start_of(self, partition: TopicPartition) -> OffsetAndMetadata | None:
        """The commit at which the partition starts, until the consumer takes it."""
        return self._starts.get(partition)

    def take_start(self, partition: TopicPartition) -> OffsetAndMetadata | None:
        """The commit at which the partition has started; once, with the first records of it."""
        return self._starts.pop(partition, None)

    def topic_id(self, topic: str) -> UUID | None:
        """The id of the topic, if the metadata have it."""
        found: UUID | None = self._cluster.topic_id(topic)
        return found

    def consumed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Where each partition stands that has a position: what ``commit()`` commits."""
        consumed: dict[TopicPartition, OffsetAndMetadata] = (
            self._subscription.all_consumed_offsets()
        )
        return consumed

    @property
    def rebalance_listener(self) -> Any:
        """The listener given to ``subscribe``, or None."""
        return self._subscription.rebalance_listener

    # -- what kafka-python calls ------------------------------------------------------------------

    def poll(self, timeout_ms: float | None = None) -> bool:
        """Never holds a poll up: joining runs on the I/O loop, its results wait to be applied."""
        self._invoke_completed_offset_commit_callbacks()
        if self.group_id is not None and self.subscribed:
            self.membership.start()
            if not self.membership.loss_waits():  # first the poll that says what is lost
                self.membership.raise_if_failed()
        return True

    def time_to_next_poll(self) -> float:
        return float("inf")

    def need_rejoin(self) -> bool:
        return False

    def _handle_metadata_update(self, cluster: Any) -> None:
        super()._handle_metadata_update(cluster)
        if hasattr(self, "membership"):  # the I/O loop runs before the membership is put behind us
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
        """The coordinator is to be looked up anew; nor will it answer a JoinGroup that it holds.

        Without closing its connection a held join would wait for the rebalance timeout.
        """
        if self.join_node is not None and self.coordinator_id is not None and not self.loop_closed:
            self._manager.call_soon(self._manager.close, self.join_node)
        super().coordinator_dead(error)

    async def ensure_coordinator_ready_async(self, timeout_ms: float | None = None) -> bool:
        """Whether the coordinator was found in time (milliseconds; None: for as long as it takes).

        The library asks for new metadata between two attempts, and lets a failure of that out,
        although no broker within reach is what it is about to wait for.
        """
        timer = Timer(timeout_ms)
        while True:
            try:
                return bool(await super().ensure_coordinator_ready_async(timer.timeout_ms))
            except kafka_errors.RetriableError:
                if timer.expired:
                    return False
                await self.sleep(self.config["retry_backoff_ms"] / 1000)

    def commit_offsets_async(
        self, offsets: Mapping[TopicPartition, Any], callback: Callable[..., Any] | None = None
    ) -> Future:
        """The answer to the commit itself; the callbacks are called by polls, in order.

        The library's future is done as soon as an unknown coordinator is found, before anything
        is committed, and its callbacks come last first.
        """
        return self.tell_in_polls(
            self._manager.call_soon(self._find_and_commit, offsets), offsets, callback
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
        """Start where the group stands, with the leader epoch that was committed (KIP-320).

        The library forgets the epoch, so that a log that was truncated before the hand-over, and
        has grown since, would be read on in the midst of other records.

        One look-up goes on over short polls, but not beyond the assignment that it is for: whoever
        owns a partition in between commits as well.
        """
        states = {
            partition: self._subscription.assignment[partition]
            for partition in self._subscription.missing_fetch_positions()
        }
        if not states:
            return True
        asked, self._starts_asked = self._starts_asked, None
        # The library makes a new state with each assignment.
        if asked is None or asked[0] != states:
            look_up_ms = self.config["request_timeout_ms"]
            future = self.spawn(self.fetch_committed_offsets_async, list(states), look_up_ms)
            asked = states, future
        try:
            committed = await self.wait_for(asked[1], timeout_ms)
        except kafka_errors.KafkaTimeoutError:
            if not asked[1].is_done:
                self._starts_asked = asked
            return False
        for partition, found in committed.items():
            self._starts[partition] = found
            self._subscription.seek(
                partition, OffsetAndMetadata(found.offset, "", found.leader_epoch)
            )
        return True

    async def fetch_committed_offsets_async(
        self, partitions: Collection[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the group has committed *now*; raises KafkaTimeoutError.

        The library keeps an answer for which nobody has waited long enough, and gives it to who
        asks for the same partitions next, however much later, and whatever was committed since.
        """
        timer = Timer(timeout_ms)
        while partitions:
            if not await self.ensure_coordinator_ready_async(timer.timeout_ms):
                timer.maybe_raise()
            question = self.spawn(self._send_offset_fetch_request, list(partitions))
            try:
                answer: dict[TopicPartition, OffsetAndMetadata] = await self.wait_for(
                    question, timer.timeout_ms
                )
                return answer
            except kafka_errors.KafkaError as error:
                if not error.retriable:
                    raise
            timer.maybe_raise()
            backoff_ms = self.config["retry_backoff_ms"]
            left_ms = timer.timeout_ms
            await self.sleep((backoff_ms if left_ms is None else min(backoff_ms, left_ms)) / 1000)
        return {}

    async def _find_and_commit(self, offsets: Mapping[TopicPartition, Any]) -> None:
        if self.coordinator_unknown():
            await self.lookup_coordinator()
        await self._send_offset_commit_request(offsets)

    def group_metadata(self) -> ConsumerGroupMetadata:
        return ConsumerGroupMetadata(
            group_id=self.group_id,
            generation_id=self.membership.generation,
            member_id=self.membership.member_id,
            group_instance_id=self.group_instance_id,
            state=MemberState.STABLE if self.membership.is_stable() else MemberState.REBALANCING,
        )

    def maybe_leave_group(self, reason: str | None = None, timeout_ms: float | None = None) -> None:
        self.membership.leave(timeout_ms)

    def close(self, autocommit: bool = True, timeout_ms: float | None = None) -> None:
        self._cluster.remove_listener(WeakMethod(self._handle_metadata_update))
        self.membership.close(timeout_ms)


def replace_coordinator(consumer: KafkaConsumer) -> GroupCoordinator:
    """Put a :class:`GroupCoordinator` in the place of the consumer's own, before its first poll.

    On the I/O loop: it goes through the metadata's listeners whenever metadata arrive, and if they
    changed under its hands its refreshing would end for good, without a word.
    """

    def replace() -> GroupCoordinator:
        first = consumer._coordinator
        consumer._cluster.remove_listener(WeakMethod(first._handle_metadata_update))
        coordinator = GroupCoordinator(
            consumer._client,
            consumer._subscription,
            metrics=None,  # the first coordinator has registered their names, and stays registered
            assignors=(OwnedPartitionsAssignor,),
            # Of OffsetFetch alone: with ``require_stable``, as the Java client always asks. Without
            # it a coordinator that has just taken over may answer with offsets older than those
            # acknowledged, and a new owner would begin there.
            **{**consumer.config, "isolation_level": "read_committed"},
        )
        coordinator._starts = {}
        consumer._coordinator = coordinator
        return coordinator

    replaced: GroupCoordinator = consumer._net.run(replace)
    return replaced
