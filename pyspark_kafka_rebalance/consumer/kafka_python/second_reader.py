"""SecondReader: KIP-333's second consumer, which reads gaps next to the live records.

It is a plain KafkaConsumer without a group. It has its own connections and I/O loop, so that its
fetches delay no others, and is made on its own thread, because that waits for the brokers.

``BUFFERED_BYTES`` bounds the fetched records that are not taken yet: partitions are read in turn,
as many at a time as fit (``catch_up.Places``). kafka-python fetches a partition again once its data
are decoded.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from kafka import KafkaConsumer
from kafka import errors as kafka_errors
from kafka.consumer.fetcher import Fetcher
from kafka.future import Future
from kafka.protocol.consumer.offsets import OffsetSpec
from kafka.structs import OffsetAndMetadata, TopicPartition

from ...errors import UnreadableRecordError
from ...transport.kafka_python_version import require_names
from ..catch_up import Places, where_to_seek
from ..offsets.offset_set import Gap
from .polling import (
    StepsBeside,
    hand_out_as,
    has_fetched,
    resume_what_was_begun,
    tell_before_taking,
)
from .questions import told_offsets
from .records import ReadableRecords, name_what_is_unreadable
from .subscription import Subscription
from .unlisted_brokers import fail_unlisted_brokers

log = logging.getLogger(__name__)

#: Bytes fetched for the gaps that may wait to be handed out, for all partitions together: only as
#: many partitions are read at a time as can have one fetch each. With "ordered", as many bytes
#: again are kept of the live records behind the gaps.
BUFFERED_BYTES = 32 * 2**20

#: The pause before the next attempt to make the reader.
_MAKE_AGAIN_S = 1.0

require_names(
    {
        Fetcher: ("_clear_pending_fetch_request",),
        KafkaConsumer: ("DEFAULT_CONFIG",),
    }
)

#: Settings of a group's member, or of the thread that polls it.
_NOT_OF_A_READER = (
    "group_id",
    "group_instance_id",
    "default_offset_commit_callback",
    "bootstrap_servers",
    "consumer_timeout_ms",
    "metric_reporters",
)


def places(fetch_bytes: int) -> int:
    """How many partitions can have one fetch each within `BUFFERED_BYTES`; at least one."""
    return max(1, BUFFERED_BYTES // fetch_bytes)


class Read(NamedTuple):
    """The result of one step: records, and the reader's position in each partition."""

    records: dict[TopicPartition, list[Any]]
    passed: dict[TopicPartition, int]


class Bell:
    """Ends a poll's wait for its own fetches, from any thread."""

    def __init__(self, consumer: KafkaConsumer) -> None:
        self._fetcher = consumer._fetcher
        self._manager = consumer._manager
        self._net = consumer._net
        self._waited_for: Future | None = None

    def hang(self) -> None:
        """Prepare before the consumer waits; on the thread that polls it."""
        if self._waited_for is None or self._waited_for.is_done:
            self._waited_for = Future()
            # On the I/O loop, which rebinds the list.
            self._manager.run(self._fetcher._fetch_futures.append, self._waited_for)

    def ring(self) -> None:
        """End the wait: records are there."""
        waited_for = self._waited_for
        if waited_for is not None and not self._manager.closed:

            def end() -> None:
                if not waited_for.is_done:
                    waited_for.success(None)

            with contextlib.suppress(RuntimeError):  # closed in the meantime
                self._manager.call_soon(end)


class SecondReader:
    """Reads gaps; used by one thread, except that another one makes the consumer.

    Parameters
    ----------
    live : KafkaConsumer
        The consumer that it reads for, which knows more brokers than its configuration.
    config : dict
        That consumer's configuration, as the application gave it.
    on_answer : callable
        Called on the reader's I/O loop when a fetch was answered.
    leader_epoch : callable
        Returns the leader epoch of the last record before a next offset, or -1. Where the reader
        starts, it is used to detect that the log was truncated (KIP-320).
    held : callable
        Returns whether enough of a partition was read for now.
    """

    def __init__(
        self,
        live: KafkaConsumer,
        config: Mapping[str, Any],
        on_answer: Callable[[], None],
        leader_epoch: Callable[[TopicPartition, int], int],
        held: Callable[[TopicPartition], bool],
    ) -> None:
        sizes = {**KafkaConsumer.DEFAULT_CONFIG, **config}
        self._config = {
            **{name: value for name, value in config.items() if name not in _NOT_OF_A_READER},
            "group_id": None,
            "enable_auto_commit": False,
            "auto_offset_reset": "none",
            "allow_auto_create_topics": False,
            "client_id": f"{config.get('client_id', 'kafka-python')}-catch-up",
            "fetch_max_bytes": min(sizes["fetch_max_bytes"], BUFFERED_BYTES),
        }
        self._live = live
        self._places = Places(places(sizes["max_partition_fetch_bytes"]))
        self._leader_epoch = leader_epoch
        self._held = held
        self._on_answer = on_answer
        self._lock = threading.Lock()
        self._making: threading.Thread | None = None
        self._consumer: KafkaConsumer | None = None
        self._steps: StepsBeside | None = None
        self._failure: Exception | None = None
        self._closed = False
        self._bounds: dict[TopicPartition, Future] = {}
        self._stumbled: set[TopicPartition] = set()  # not everything can be read there

    # -- life cycle -------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether there is a consumer to read with."""
        return self._consumer is not None

    def begin(self) -> None:
        """Make a consumer, in the background, unless there is one or one is being made.

        Raises the error of the last attempt, unless it is retriable.
        """
        if self._consumer is None and (self._making is None or not self._making.is_alive()):
            failure, self._failure = self._failure, None
            if failure is not None and not getattr(failure, "retriable", False):
                raise failure
            self._making = threading.Thread(
                target=self._make, args=(failure,), name="kafka-catch-up", daemon=True
            )
            self._making.start()

    def close(self) -> None:
        """Close the connections, even of a consumer that is still being made."""
        with self._lock:
            self._closed = True
            consumer, self._consumer = self._consumer, None
        if consumer is not None:
            _close(consumer)

    def _make(self, failure: Exception | None) -> None:
        if failure is not None:
            threading.Event().wait(_MAKE_AGAIN_S)
        if self._closed:
            return
        try:
            consumer = KafkaConsumer(**self._config, bootstrap_servers=self._brokers())
        except Exception as error:
            log.info("the second reader, for gaps, cannot connect yet: %r", error)
            self._failure = error
            return
        _form_of_records()  # imported on this thread, nothing waits for it
        fail_unlisted_brokers(consumer._manager)
        name_what_is_unreadable(consumer)
        Subscription(consumer._subscription, consumer._manager.cluster).hold(self._held, 0)
        resume_what_was_begun(consumer)
        tell_before_taking(consumer)
        fetcher = consumer._fetcher
        clear = fetcher._clear_pending_fetch_request

        def clear_and_tell(node_id: Any, answer: Any) -> None:
            clear(node_id, answer)
            self._on_answer()

        fetcher._clear_pending_fetch_request = clear_and_tell
        with self._lock:
            if not self._closed:
                self._steps = StepsBeside(consumer)
                self._consumer = consumer
                self._on_answer()
                return
        _close(consumer)

    def _brokers(self) -> list[str]:
        """The brokers that the live reader knows or was configured with, even if they are down."""
        known = [
            f"[{broker.host}]:{broker.port}"
            if ":" in broker.host
            else f"{broker.host}:{broker.port}"
            for broker in self._live._manager.cluster.brokers()
        ]
        given = self._live.config["bootstrap_servers"]
        return [*known, *(given.split(",") if isinstance(given, str) else given)]

    # -- reading ----------------------------------------------------------------------------------

    def has_some(self) -> bool:
        """Whether there are fetched records that are not taken yet."""
        consumer = self._consumer
        return consumer is not None and has_fetched(consumer)

    def read(
        self,
        wanted: Mapping[TopicPartition, tuple[Gap, ...]],
        form: Callable[..., Any],
        max_records: int,
    ) -> Read:
        """Return fetched records of these gaps, lowest first, and fetch more; never waits.

        Some may lie outside the gaps.

        Raises
        ------
        UnreadableRecordError
            Raised again until the record is no longer wanted. It may lie outside the gaps.
        kafka.errors.OffsetOutOfRangeError
            The wanted offsets are not in the log; see ``ask_bounds``.
        """
        consumer, steps = self._consumer, self._steps
        assert consumer is not None
        assert steps is not None
        steps.end()
        states = consumer._subscription.assignment
        wanted_now = [p for p in wanted if p not in self._bounds]
        leader_of = consumer._manager.cluster.leader_for_partition
        self._places.stand_back([p for p in wanted_now if leader_of(p) == -1])
        if len(wanted_now) > self._places.number:  # a held partition makes room for others
            self._places.stand_back([p for p in wanted_now if self._held(p)])
        taken = self._places.take(wanted_now)
        if states.keys() != set(taken):
            if taken:
                consumer.assign(taken)
            else:
                consumer._subscription.assign_from_user([])
        for partition in taken:
            position = states[partition].position
            offset = where_to_seek(
                None if position is None else position.offset,
                wanted[partition],
                partition not in self._stumbled,
            )
            if offset is not None:
                epoch = self._leader_epoch(partition, offset)
                consumer._subscription.seek(partition, OffsetAndMetadata(offset, "", epoch))
        hand_out_as(consumer, _form_of_records() if form is ReadableRecords else form)
        if not taken or (not self.has_some() and consumer._fetcher.in_flight_fetches()):
            return Read({}, {})
        before = {p: states[p].position.offset for p in taken}
        try:
            records = steps.step(max_records, True)
        except UnreadableRecordError as error:
            self._stumbles([TopicPartition(error.topic, error.partition)])
            raise
        except kafka_errors.OffsetOutOfRangeError as error:
            self._stumbles(error.args[0])
            raise
        passed = {p: states[p].position.offset for p in taken if states[p].position is not None}
        return Read(records, {p: to for p, to in passed.items() if to != before[p]})

    def _stumbles(self, partitions: Collection[TopicPartition]) -> None:
        self._stumbled.update(partitions)
        self._places.stand_back(partitions)

    def ask_bounds(self, partitions: Collection[TopicPartition]) -> None:
        """Request where these partitions' logs start and end; until then they are not read."""
        consumer = self._consumer
        if consumer is not None:
            for partition in partitions:
                answer = consumer._manager.call_soon(_bounds_of, consumer, partition)
                answer.add_both(lambda _: self._on_answer())
                self._bounds[partition] = answer

    def take_bounds(self) -> dict[TopicPartition, tuple[int, int]]:
        """The bounds reported since the last call; without them, reading raises the error again."""
        told = {p: answer for p, answer in self._bounds.items() if answer.is_done}
        for partition in told:
            del self._bounds[partition]
        return {
            p: answer.value
            for p, answer in told.items()
            if answer.exception is None and answer.value is not None
        }


async def _bounds_of(consumer: KafkaConsumer, partition: TopicPartition) -> tuple[int, int] | None:
    timeout_ms = consumer.config["request_timeout_ms"]
    first = after = None
    try:
        begins = await told_offsets(consumer._fetcher, {partition: OffsetSpec.EARLIEST}, timeout_ms)
        ends = await told_offsets(consumer._fetcher, {partition: OffsetSpec.LATEST}, timeout_ms)
        first, after = begins.get(partition), ends.get(partition)
    except kafka_errors.KafkaError as error:
        log.info(
            "%s-%d: the broker did not return where its log begins and ends: %r", *partition, error
        )
    if first is None or after is None:
        await consumer._net.sleep(consumer.config["retry_backoff_ms"] / 1000)
        return None
    return first, after


def _form_of_records() -> Callable[..., Any]:
    from .gap_records import GapRecords  # not at the top: only gaps need Arrow

    return GapRecords


def _close(consumer: KafkaConsumer) -> None:
    # The application's consumer uses them too; this one must not close them.
    consumer.config["key_deserializer"] = consumer.config["value_deserializer"] = None
    try:
        consumer.close(autocommit=False, timeout_ms=0)
    except kafka_errors.KafkaError as error:
        log.info("the reader that caught up did not close cleanly: %r", error)
