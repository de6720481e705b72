"""An application of DeferredRevokeConsumer as the docs tell how to write one, for models."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
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
    unconfirmed: dict[int, Record] = field(default_factory=dict)  # finished, and not in ``told``
    again: str = ""  # how to repeat an explicit commit that failed
    how_ended: str = ""
    committed_then: int = 0

    @property
    def frontier(self) -> int:
        """Everything below is finished."""
        return min(self.work, default=self.next_offset)

    def covered(self) -> list[int]:
        """The unconfirmed offsets that a commit of the frontier covers."""
        return [offset for offset in self.unconfirmed if offset < self.frontier]

    def confirm(self, offsets: Collection[int]) -> None:
        """The consumer has accepted that these are finished, or the group an explicit commit."""
        self.told |= {self.unconfirmed.pop(o) for o in offsets if o in self.unconfirmed}

    def forget(self, offset: int) -> None:
        """The log became shorter: the records from this offset on no longer exist."""
        for kept in (self.work, self.unconfirmed):
            for truncated in [o for o in kept if o >= offset]:
                del kept[truncated]


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
        self.delayed: set[TopicPartition] = set()  # by one more poll, the next
        self.failures: list[Exception] = []  # of explicit commits
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
        self._commit_again()
        if self.broker.world.now - self.polled_at >= 0.9 * MAX_POLL_INTERVAL_S:
            self.idled = True
        result = self.consumer.poll_with_rebalance(timeout_ms=timeout_s * 1000)
        self.polled_at = self.broker.world.now
        for partition in result.revoked:
            stint = self._end(partition, "revoked")
            delayed = partition in self.delayed or (stint is not None and stint.work)
            assert not delayed, f"{partition} revoked, although delayed"
        for partition in result.lost:
            self._end(partition, "lost")
        for partition in result.assigned:
            self.stints[partition] = Stint(self.client_id, partition)
        for partition, records in result.records.items():
            for record in records:
                self._take(partition, record.offset, int(record.value))
        stints = {p: self.stints[p] for p in result.to_be_revoked}
        self.delayed = {p for p, stint in stints.items() if stint.work or stint.again}
        self.consumer.delay_revoke(self.delayed)

    def _take(self, partition: TopicPartition, offset: int, record: Record) -> None:
        stint = self.stints[partition]
        self.on_delivery(stint, offset, record)
        if offset < stint.next_offset:
            stint.forget(offset)
        stint.work[offset] = record
        stint.next_offset = offset + 1

    def tell(self, partition: TopicPartition, how: str, finished: Mapping[int, Record]) -> None:
        """Report these records as finished, in one of the ways there are."""
        stint = self.stints[partition]
        stint.unconfirmed |= finished
        if how == "processed":
            self._processed(stint, finished)
        elif how == "commit_processed":
            with suppress(PartitionsLostError):
                self.consumer.commit_processed({partition: stint.frontier})
                stint.confirm(stint.covered())
        else:
            offsets = {partition: OffsetAndMetadata(stint.frontier, "", -1)}
            self._commit(how, offsets, [(stint, stint.covered())])

    def _processed(self, stint: Stint, offsets: Collection[int]) -> None:
        with suppress(PartitionsLostError):
            self.consumer.processed(stint.partition, *offsets)
            stint.confirm(offsets)

    def _commit(
        self,
        how: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata] | None,
        covers: list[tuple[Stint, list[int]]],
    ) -> None:
        """Commit explicitly: the covered records count as processed once the broker accepts it.

        If it fails, they stay unprocessed until another commit, which is up to the application: an
        asynchronous commit is sent once, and the coordinator refuses it if the member's epoch
        changes before it arrives.
        """

        def answered(_: object, answer: object) -> None:
            for stint, covered in covers:
                if isinstance(answer, Exception):
                    stint.again = how
                else:
                    stint.confirm(covered)
            if isinstance(answer, Exception):
                self.failures.append(answer)

        if how == "commit_async":
            self.consumer.commit_async(offsets, answered)
            return
        try:
            self.consumer.commit(offsets, timeout_ms=3_000)
        except (PartitionsLostError, kafka_errors.KafkaError) as error:
            answered(offsets, error)
        else:
            answered(offsets, None)

    def _commit_again(self) -> None:
        """Repeat failed explicit commits before each poll, until the partition is gone."""
        for partition, stint in list(self.stints.items()):
            how, stint.again = stint.again, ""
            if how and stint.unconfirmed:
                self.tell(partition, how, dict(stint.unconfirmed))

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
