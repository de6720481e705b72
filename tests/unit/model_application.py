"""An application of DeferredRevokeConsumer as the docs tell how to write one, for models."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kafka import errors as kafka_errors
from kafka.structs import OffsetAndMetadata, TopicPartition
from model_log import Record
from simulated_kafka import TOPIC, Broker

from pyspark_kafka_rebalance import DeferredRevokeConsumer
from pyspark_kafka_rebalance.errors import PartitionsLostError

MAX_POLL_INTERVAL_S = 5.0
SESSION_S = 3.0
REVOKE_TIMEOUT_S = 2.0


@dataclass
class Stint:
    """A partition's time with one application."""

    client_id: str
    partition: TopicPartition
    work: dict[int, Record] = field(default_factory=dict)  # handed out and not finished
    next_offset: int = 0  # after the highest that was handed out
    told: set[Record] = field(default_factory=set)  # finished, and the consumer took that
    how_ended: str = ""
    committed_then: int = 0

    @property
    def frontier(self) -> int:
        """Everything below is finished."""
        return min(self.work, default=self.next_offset)


class Application:
    """A process with one consumer.

    Parameters
    ----------
    name : str
        Its client id, unlike that of any other process.
    broker : Broker
        Where it connects to.
    protocol : str
        ``group_protocol``.
    on_delivery : callable
        Told of each record that a poll brings.
    **options
        What else its consumer is given.
    """

    def __init__(
        self,
        name: str,
        broker: Broker,
        protocol: str,
        on_delivery: Callable[[Stint, int, Record], None],
        **options: Any,
    ) -> None:
        self.client_id = name
        self.broker = broker
        self.on_delivery = on_delivery
        self.stints: dict[TopicPartition, Stint] = {}
        self.past: list[Stint] = []
        self.polled_at = broker.world.now
        self.fenced_at = -math.inf
        self.idled = False
        self.judged = 0  # so many of the past stints
        self.consumer = DeferredRevokeConsumer(
            TOPIC,
            group_id="g",
            client_id=self.client_id,
            bootstrap_servers="broker:9092",
            group_protocol=protocol,
            kafka_client=broker.client,
            enable_incremental_fetch_sessions=False,
            metrics_enabled=False,
            request_timeout_ms=5_000,
            max_poll_interval_ms=int(MAX_POLL_INTERVAL_S * 1000),
            max_poll_records=4,
            session_timeout_ms=int(SESSION_S * 1000),
            revoke_timeout_ms=int(REVOKE_TIMEOUT_S * 1000),
            auto_offset_reset="earliest",
            **options,
        )

    # -- what it does -----------------------------------------------------------------------------

    def poll(self, timeout_s: float) -> None:
        if self.broker.world.now - self.polled_at >= 0.9 * MAX_POLL_INTERVAL_S:
            self.idled = True
        result = self.consumer.poll_with_rebalance(timeout_ms=timeout_s * 1000)
        self.polled_at = self.broker.world.now
        for partition in result.revoked:
            stint = self._end(partition, "revoked")
            assert stint is None or not stint.work, f"{partition} revoked, although delayed"
        for partition in result.lost:
            self._end(partition, "lost")
        for partition in result.assigned:
            self.stints[partition] = Stint(self.client_id, partition)
        for partition, records in result.records.items():
            for record in records:
                self._take(partition, record.offset, int(record.value))
        self.consumer.delay_revoke(p for p in result.to_be_revoked if self.stints[p].work)

    def _take(self, partition: TopicPartition, offset: int, record: Record) -> None:
        stint = self.stints[partition]
        self.on_delivery(stint, offset, record)
        if offset < stint.next_offset:  # the log became shorter: what was behind is no more
            stint.work = {o: r for o, r in stint.work.items() if o < offset}
        stint.work[offset] = record
        stint.next_offset = offset + 1

    def tell(
        self, partition: TopicPartition, how: str, offsets: list[int], finished: set[Record]
    ) -> None:
        """Say that records at these offsets are finished, in one of the ways there are."""
        stint = self.stints[partition]
        try:
            if how == "processed":
                self.consumer.processed(partition, *offsets)
            elif how == "commit_processed":
                self.consumer.commit_processed({partition: stint.frontier})
            elif how == "commit":
                self.consumer.commit(self._by_hand(stint), timeout_ms=3_000)
            else:
                self.consumer.commit_async(self._by_hand(stint))
                return  # whether it is accepted comes later
        except (PartitionsLostError, kafka_errors.KafkaError):
            return
        stint.told |= finished

    def tell_late(self, over: Stint, how: str, offsets: list[int]) -> bool:
        """As ``tell``, of a stint that is over; whether the consumer took it.

        It does if all of it was handed out again: then that counts as finished too.
        """
        try:
            if how == "processed":
                self.consumer.processed(over.partition, *offsets)
            else:
                self.consumer.commit_processed({over.partition: over.frontier})
        except PartitionsLostError:
            return False
        stint = self.stints[over.partition]
        below = [o for o in stint.work if o < over.frontier] if how != "processed" else offsets
        for offset in below:
            if (record := stint.work.pop(offset, None)) is not None:
                stint.told.add(record)
        return True

    def look_elsewhere(self, partition: TopicPartition, offset: int) -> None:
        """Seek there and back, where nothing of a former owner is left out: that ends it."""
        position = self.consumer._io.subscription.position(partition)
        if (catching_up := self.consumer._catching_up) is not None and catching_up.in_order:
            # There is one position, and a seek to where the live reader is would leave the gap out.
            in_gap = self.consumer._hand_outs.gaps.next_offset(partition)
            position = position if in_gap is None else in_gap
        found = self.consumer._hand_outs._completion.get(partition)
        inherits = found is not None and found.completion.inherited is not None
        starts = self.consumer._io.starts.of(partition)
        if position is not None and not inherits and (starts is None or not starts.metadata):
            self.consumer.seek(partition, offset)
            self.consumer.seek(partition, position)

    def _by_hand(self, stint: Stint) -> dict[TopicPartition, OffsetAndMetadata]:
        return {stint.partition: OffsetAndMetadata(stint.frontier, "", -1)}

    def close(self) -> None:
        self.consumer.close(timeout_ms=3_000)
        self._end_all("closed")

    def die(self) -> None:
        self.consumer._net.die()
        self._end_all("killed")

    def _end(self, partition: TopicPartition, how: str) -> Stint | None:
        stint = self.stints.pop(partition, None)
        if stint is not None:
            stint.how_ended = how
            stint.committed_then = self.broker.committed.get(partition, 0)
            self.past.append(stint)
        return stint

    def _end_all(self, how: str) -> None:
        for partition in list(self.stints):
            self._end(partition, how)
