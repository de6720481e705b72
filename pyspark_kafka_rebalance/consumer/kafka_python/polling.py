"""The parts of a poll: rounds of kafka-python's consumer, its fetcher, its iteration."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from kafka import KafkaConsumer
from kafka import errors as kafka_errors
from kafka.consumer.fetcher import ConsumerRecord, Fetcher
from kafka.future import Future
from kafka.structs import OffsetAndMetadata, TopicPartition
from kafka.util import Timer

from ...errors import UnreadableRecordError
from ...transport.kafka_python_version import require_names

require_names(
    {
        KafkaConsumer: ("_message_generator_v2", "_poll_once"),
        Fetcher: (
            "_fetchable_partitions",
            "_handle_fetch_response",
            "_send_fetches_async",
            "PartitionRecords",
            "_append",
            "fetch_records",
            "fetched_records",
            "in_flight_fetches",
        ),
    }
)


def watch_fetches(
    consumer: KafkaConsumer,
    answered: Callable[[Any, Collection[TopicPartition], Any], None],
) -> None:
    """Have ``answered(node_id, requested partitions, response)`` called for each fetch response.

    To be set up before the first fetch. It is called on the I/O loop, before kafka-python handles
    the response: a poll that returns its records also sees the effects of ``answered``.
    """
    fetcher = consumer._fetcher
    handle = fetcher._handle_fetch_response

    def tell_and_handle(
        node_id: Any, fetch_offsets: Mapping[TopicPartition, int], send_time: float, response: Any
    ) -> None:
        answered(node_id, fetch_offsets, response)
        handle(node_id, fetch_offsets, send_time, response)

    fetcher._handle_fetch_response = tell_and_handle


def resume_what_was_begun(consumer: KafkaConsumer) -> None:
    """Resume partitions that were paused during a fetch.

    Call it before the first fetch. kafka-python puts the rest of such a fetch aside, and resumes it
    when no other partition is next. But it checks that with ``is None``, and an exhausted partition
    stays next: the rest is never returned, and nothing more of its partition is fetched. It also
    resumes a partition only before it handles the next one: if that one is put aside, it finds
    nothing, and waits.
    """
    fetcher, paused = consumer._fetcher, consumer._subscription
    aside = fetcher._paused_partition_records
    fetched = fetcher.fetched_records

    def fetched_records(*arguments: Any, **named: Any) -> Any:
        raise_what_is_put_off(fetcher)
        while True:
            if not fetcher._next_partition_records:
                fetcher._next_partition_records = None
            records, partial = fetched(*arguments, **named)
            if records or all(paused.is_paused(partition) for partition in aside):
                return records, partial

    fetcher.fetched_records = fetched_records


def raise_what_is_put_off(fetcher: Fetcher) -> None:
    """Raise an error that the fetcher put off because it had records, if it is not about those.

    A signal handler may have raised it. The fetcher would drop it if its current partition has
    moved on.
    """
    put_off = fetcher._next_in_line_exception_metadata
    if put_off is not None and not isinstance(
        put_off.exception, (kafka_errors.KafkaError, UnreadableRecordError)
    ):
        fetcher._next_in_line_exception_metadata = None
        raise put_off.exception


def tell_before_taking(
    consumer: KafkaConsumer, taking: Callable[[TopicPartition], None] = lambda _: None
) -> None:
    """Call ``taking`` with a partition before a poll moves its position.

    If the fetcher is interrupted there, the records that it took are fetched again; otherwise they
    would have no matching position, or be left out.
    """
    fetcher = consumer._fetcher
    append = fetcher._append

    def tell_and_append(drained: Any, part: Any, max_records: int, update_offsets: bool) -> Any:
        partition = part.topic_partition
        taking(partition)
        try:
            return append(drained, part, max_records, update_offsets)
        except BaseException:  # the fetcher may return the drained records, and raise this later
            state = fetcher._subscriptions.assignment.get(partition)
            if update_offsets and state is not None and state.position is not None:
                kept = [r for r in drained.pop(partition, ()) if _end(r) <= state.position.offset]
                if kept:
                    drained[partition] = kept
            part.drain()
            raise

    fetcher._append = tell_and_append


def _end(taken: Any) -> int:
    """The offset after a record, or after an Arrow batch of them."""
    if isinstance(taken, ConsumerRecord):
        return int(taken.offset) + 1
    return int(taken.column("offset")[-1].as_py()) + 1


def iterate_with(
    consumer: KafkaConsumer,
    poll: Callable[[float], Mapping[TopicPartition, list[Any]]],
    taking: Callable[[TopicPartition], None],
) -> None:
    """Make the library's iterator poll with ``poll``, and call ``taking`` before it moves on."""

    def records() -> Iterator[Any]:
        found = poll(1000 * max(0.0, consumer._consumer_timeout - time.monotonic()))
        for partition, records in found.items():
            for record in records:
                # As in the library: sought, paused, revoked or lost by now.
                if not consumer._subscription.is_fetchable(partition):
                    break
                taking(partition)
                consumer._subscription.assignment[partition].position = OffsetAndMetadata(
                    record.offset + 1, "", record.leader_epoch
                )
                yield record

    consumer._message_generator_v2 = records


def fetch_step(consumer: KafkaConsumer, timeout_ms: float, max_records: int, update: bool) -> Any:
    """One round of kafka-python's own poll: positions, fetches, buffered records."""
    return consumer._poll_once(Timer(timeout_ms), max_records, update_offsets=update)


class StepsBeside:
    """Rounds of polling beside other work; they never wait, not even for the I/O loop.

    kafka-python waits until the loop has sent its fetches: in each round, a decoding thread would
    be blocked for some switches of the interpreter lock. Between ``step`` and ``end`` the
    consumer's assignment must not change.
    """

    def __init__(self, consumer: KafkaConsumer) -> None:
        self._consumer = consumer
        self._fetcher = consumer._fetcher
        self._sending: Future | None = None

    def step(self, max_records: int, update: bool) -> Any:
        """One round: return at most ``max_records`` fetched records, and fetch more."""
        self.raise_failure()
        self._fetcher.fetch_records = self._fetch_records
        try:
            return fetch_step(self._consumer, 0, max_records, update)
        finally:
            del self._fetcher.fetch_records

    def end(self) -> None:
        """Wait until the last round's fetches are sent, or could not be sent."""
        if self._sending is not None and not self._sending.is_done:
            self._consumer._manager.run(_settled, self._sending)

    def raise_failure(self) -> None:
        """Raise the error that kept the last round from sending its fetches.

        A round that has taken records does not report it.
        """
        self.end()
        sent, self._sending = self._sending, None
        if sent is not None and sent.exception is not None:
            raise sent.exception

    def _fetch_records(
        self, max_records: int, update_offsets: bool, timeout_ms: float
    ) -> tuple[Any, bool]:
        # The fetcher's own sends only when it has nothing left. This one also fetches from idle
        # nodes while records of other partitions are still handed out.
        records, _ = self._fetcher.fetched_records(max_records, update_offsets=update_offsets)
        if self._any_to_ask_for():
            manager = self._consumer._manager
            self._sending = manager.call_soon(self._fetcher._send_fetches_async)
        return records, False

    def _any_to_ask_for(self) -> bool:
        asked = self._fetcher._nodes_with_pending_fetch_requests
        leader_of = self._consumer._manager.cluster.leader_for_partition
        return any(leader_of(p) not in asked for p in self._fetcher._fetchable_partitions())


async def _settled(future: Future) -> None:
    with contextlib.suppress(Exception):  # the future keeps the error
        await future


def has_fetched(consumer: KafkaConsumer) -> bool:
    """Whether there are fetched records that no poll has taken, and that may be taken now."""
    fetcher, is_paused = consumer._fetcher, consumer._subscription.is_paused
    if fetcher._completed_fetches or fetcher._next_partition_records:
        return True
    aside = (*fetcher._paused_completed_fetches, *fetcher._paused_partition_records)
    return not all(is_paused(partition) for partition in aside)


def would_only_wait(consumer: KafkaConsumer) -> bool:
    """Whether a round of polling would do nothing but wait for fetches in flight."""
    fetcher = consumer._fetcher
    return (
        not has_fetched(consumer)
        and not fetcher._paused_completed_fetches
        and not fetcher._paused_partition_records
        and fetcher.in_flight_fetches()
        and consumer._subscription.has_all_fetch_positions()
    )


def hand_out_as(consumer: KafkaConsumer, form: Callable[..., Any]) -> None:
    """Hand out fetched records in another form, which replaces ``PartitionRecords``.

    Records decoded in the old form and not handed out are fetched again in the new one: the
    positions are right after the records that were handed out.
    """
    fetcher = consumer._fetcher
    if fetcher.PartitionRecords == form:
        return
    for decoded in (fetcher._next_partition_records, *fetcher._paused_partition_records.values()):
        if decoded:
            decoded.drain()
    fetcher._next_partition_records = None
    fetcher._paused_partition_records.clear()
    fetcher.PartitionRecords = form  # last: a poll that is interrupted before this starts again


def is_closed(consumer: KafkaConsumer) -> bool:
    """Whether the consumer's ``close()`` has ended, or been left halfway by an error."""
    return bool(consumer._closed)


def leave_polling_to_parent(consumer: KafkaConsumer) -> None:
    """In a forked child: the consumer is closed there, without having closed anything."""
    consumer._closed = True
    consumer._iterator = None


def end_iteration(consumer: KafkaConsumer) -> None:
    """Drop the records that ``next(consumer)`` has taken from a poll and not returned."""
    consumer._iterator = None
