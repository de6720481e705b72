"""TimestampOrderedRecords: the records of several partitions in timestamp order (KIP-695).

Does the work that Kafka Streams does in front of a task, on top of a
:class:`DeferredRevokeConsumer`. The consumer polls ahead of the returned records. ``read_ahead.py``
tracks the application's positions, ``timestamp_merge.py`` decides which record is next, and
``idling.py`` whether to wait for more.

Invariants:
 1. Buffered records are not handed out, not even a gap's (KIP-333): a record enters ``HandOuts``
    when it is returned.
 2. No buffered record is returned of a partition whose revoke is requested, or that is lost or
    sought.
 3. A poll with news of the rebalance ends the wait: no second poll follows before the news are
    returned. (An iteration returns the next record.)
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from kafka.structs import TopicPartition

from ...errors import OptionError, UnreadableRecordError
from ..consumer import DeferredRevokeConsumer
from ..kafka_python.polling import is_closed
from ..kafka_python.records import ReadableRecords
from ..offsets.read_ahead import ReadAhead
from ..poll_result import PollResult
from ..taken import returns_what_it_takes
from .idling import checked_idle_ms
from .ordered_poll import OrderedPoll
from .timestamp_merge import Group, RecordGroup, TimestampMerge

if TYPE_CHECKING:
    import pyarrow as pa
    from kafka.consumer.fetcher import ConsumerRecord
    from typing_extensions import Self

    from ..progress.hand_outs import HandOuts

log = logging.getLogger(__name__)

#: How often a waiting poll checks fetch responses: one without records does not end it.
_SLICE_S = 0.02

#: How often to check for a rebalance and to fetch more, even with full buffers.
_POLL_EVERY_S = 0.1

#: Warn after waiting this long for a partition whose lag is unknown, or that sends nothing.
_WARN_AFTER_S = 10.0

#: The most rows of one poll_arrow.
ARROW_ROWS = 100_000


def by_number(partition: TopicPartition) -> int:
    """The ``partition_group`` of Kafka Streams' tasks: the same partition number of all topics."""
    return int(partition.partition)


class TimestampOrderedRecords:
    """The records of a consumer in the order of their timestamps (KIP-695)::

        with DeferredRevokeConsumer("clicks", "views", group_id="g", ...) as consumer:
            for record in TimestampOrderedRecords(consumer, max_task_idle_ms=1_000):
                process(record)
                partition = TopicPartition(record.topic, record.partition)
                consumer.commit_processed({partition: record.offset + 1})

    The next record is the one with the lowest timestamp among the first buffered records of all
    partitions. Within a partition, the order of the log is kept. ``max_task_idle_ms`` is how long
    to wait for a partition without buffered records; records that arrive later are out of order.

    Buffered records are not handed out: ``position``, ``commit()`` and the group know only returned
    records. The next owner of a partition delivers the rest. All other calls go to the consumer as
    before: ``commit_processed``, ``processed``, ``seek``, ``pause``. The consumer's own polls also
    return the records buffered here; this class then continues after them.

    Parameters
    ----------
    consumer : DeferredRevokeConsumer
        Subscribed, or manually assigned. Call everything on the thread that polls it.
    max_task_idle_ms : int, default -1
        -1: never wait. 0: wait while the broker has, or may have, more of a partition. n: once it
        has no more, wait n ms for that to change.
    partition_group : callable, optional
        Returns the group in whose order a partition takes part: anything hashable. By default all
        partitions are one group; `by_number` groups as Streams does. Groups do not wait for each
        other.
    buffered_records_per_partition : int, default 1000
        A partition with more buffered records is not fetched until it has at most this many. The
        records of one fetch are added to that.

    Raises
    ------
    OptionError
        The value of an option is not allowed.
    """

    def __init__(
        self,
        consumer: DeferredRevokeConsumer,
        max_task_idle_ms: int = -1,
        partition_group: Callable[[TopicPartition], Hashable] | None = None,
        buffered_records_per_partition: int = 1_000,
    ) -> None:
        bound = buffered_records_per_partition
        if isinstance(bound, bool) or not isinstance(bound, int) or bound < 1:
            raise OptionError("buffered_records_per_partition", bound, "a whole number, 1 or more")
        self._consumer = consumer
        catching_up = consumer._catching_up
        #: With "ordered", the merge returns a backlog before its partition's live records.
        self._gaps = catching_up.gaps if catching_up is not None and catching_up.in_order else None
        self._max_task_idle_ms = checked_idle_ms(max_task_idle_ms)
        self._group_of = partition_group or (lambda _: None)
        self._bound = bound
        self._subscription = consumer._io.subscription
        self._ahead: ReadAhead = self._subscription.ahead
        self._form: Callable[..., Any] | None = None
        self._merge: TimestampMerge[Any] = self._new_merge(RecordGroup)
        self._due = True
        self._polled_at = 0.0
        self._stopped: set[TopicPartition] = set()
        self._waits_since: dict[TopicPartition, float] = {}  # infinite: already warned
        self._subscription.hold_while_buffered()

    # -- records ----------------------------------------------------------------------------------

    def __iter__(self) -> Self:
        return self

    @returns_what_it_takes
    def __next__(self) -> ConsumerRecord:
        """The next record; ends as the consumer's own iteration does.

        A requested revoke is completed once the loop's body is done with the record before.

        Raises
        ------
        OptionError
            The consumer has ``parallel_rebalance="live"``, and backlogs have no place in the order.
        """
        if self._consumer._catching_up is not None:
            self._consumer.refuse_iteration_of_two()
        consumer, ends_at = self._consumer, None
        polls = consumer._polls
        while not is_closed(consumer):
            if (record := self._next_buffered()) is not None:
                return record
            now = time.monotonic()
            if ends_at is None:
                ends_at = now + consumer.config["consumer_timeout_ms"] / 1000
            elif now >= ends_at:
                break
            polls.told_in_passing(False)  # the loop's body is done with its record
            self._read(ends_at, consumer.config["max_poll_records"])
            polls.told_in_passing(True)
        raise StopIteration

    @returns_what_it_takes
    def next_buffered(self) -> ConsumerRecord | None:
        """The next record, if it is buffered and its turn; asks no broker and never waits.

        None if there is none, or if a poll must first check the rebalance or fetch more.
        """
        return self._next_buffered()

    def _next_buffered(self) -> ConsumerRecord | None:
        self._begin(ReadableRecords, RecordGroup)
        now = time.monotonic()
        if self._due or self._ahead.dirty or now - self._polled_at >= _POLL_EVERY_S:
            return None
        return self._take_one(now)

    @returns_what_it_takes
    def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> OrderedPoll:
        """The next records, by default at most ``max_poll_records``.

        For applications that process records outside the polling loop: delay the revoke of
        unfinished partitions with ``consumer.delay_revoke``. Polls and an iteration can alternate.

        Parameters
        ----------
        timeout_ms : float
            How long to wait for records that may be returned.
        max_records : int, optional
            Default: ``max_poll_records``. If backlogs are read in parallel, up to as many of their
            records are added.
        """
        number = max_records or self._consumer.config["max_poll_records"]
        return self._poll_records(timeout_ms, number, number)

    @returns_what_it_takes
    def poll_next(self, timeout_ms: float) -> OrderedPoll:
        """As ``poll``, but at most one record; others are buffered for ``next_buffered``."""
        return self._poll_records(timeout_ms, 1, self._consumer.config["max_poll_records"])

    def _poll_records(self, timeout_ms: float, number: int, read: int) -> OrderedPoll:
        self._begin(ReadableRecords, RecordGroup)

        def take() -> list[Any]:
            found: list[Any] = []
            while len(found) < number and (record := self._take_one(time.monotonic())) is not None:
                found.append(record)
            return found

        return self._poll(take, len, timeout_ms, read)

    def _take_one(self, now: float) -> Any:
        """Hand out the next record that may be returned now; None if there is none."""
        for group in self._merge.in_turn():
            while (taken := group.take(now)) is not None:
                partition, record = taken
                if self._handed_out(partition, [record], record.offset + 1, record.leader_epoch):
                    return record
        return None

    # -- Arrow ------------------------------------------------------------------------------------

    @returns_what_it_takes
    def poll_arrow(
        self, timeout_ms: float = 0, max_records: int = ARROW_ROWS, include_headers: bool = False
    ) -> OrderedPoll[pa.Table, pa.RecordBatch]:
        """The next records as one Arrow table.

        No Python object is created per record, so this is many times as fast. It can alternate with
        the other polls, which then read buffered records again.

        Parameters
        ----------
        timeout_ms : float
            How long to wait for rows that may be returned.
        max_records : int
            The most rows to return.
        include_headers : bool
            Whether there is a column ``headers``.

        Returns
        -------
        OrderedPoll
            ``records`` is a ``pyarrow.Table`` with the columns ``key``, ``value``, ``topic`` (a
            dictionary), ``partition``, ``offset``, ``timestamp``, ``timestampType``. It ends where
            the idling rule makes the merge wait. Groups follow each other, each in its own order.

        Raises
        ------
        OptionError
            A deserializer is configured: the columns hold bytes.
        """
        import pyarrow as pa

        from .arrow_merge import ArrowGroup, Rows, merged, ordered_schema

        self._begin(self._consumer._arrow_form(include_headers), ArrowGroup)

        def take() -> pa.Table:
            tables, left = [], max_records
            for group in self._merge.in_turn():
                owed = []
                for rows in group.take(left, time.monotonic()):
                    left -= len(rows)
                    partition, batches = rows.partition, rows.batches
                    end = batches[-1].column("offset")[-1].as_py() + 1
                    found = self._handed_out(partition, batches, end, -1)
                    owed.append(Rows(partition, found, rows.time))
                if any(map(len, owed)):
                    tables.append(merged(owed, include_headers))
            if not tables:
                return ordered_schema(include_headers).empty_table()
            return tables[0] if len(tables) == 1 else pa.concat_tables(tables)

        return self._poll(take, lambda table: int(table.num_rows), timeout_ms, ARROW_ROWS)

    def buffered(self, partition: TopicPartition) -> int:
        """How many records of the partition are read ahead and not returned."""
        return self._merge.buffered(partition)

    @property
    def _hand_outs(self) -> HandOuts:
        return self._consumer._hand_outs

    # -- reading ahead ----------------------------------------------------------------------------

    def _begin(self, form: Callable[..., Any], make_group: Callable[..., Group]) -> None:
        """Start over if records are buffered in another form, or for another merge."""
        if self._form == form and self._ahead.merge is self:
            return
        self._subscription.end_reading_ahead()
        self._form, self._ahead.merge = form, self
        self._merge = self._new_merge(make_group)
        self._stopped.clear()
        self._due = True

    def _new_merge(self, make_group: Callable[..., Any]) -> TimestampMerge[Any]:
        return TimestampMerge(make_group, self._max_task_idle_ms, self._group_of)

    def _poll(
        self, take: Callable[[], Any], count: Callable[[Any], int], timeout_ms: float, number: int
    ) -> OrderedPoll[Any, Any]:
        # Waits until the timeout. Ended early by a record whose turn it is, by news of the
        # rebalance, or by a wakeup.
        ends_at = time.monotonic() + timeout_ms / 1000
        while True:
            result = self._read(ends_at, number)
            found = take()
            tells = result.to_be_revoked or result.lost or result.assigned or result.revoked
            woken = self._ahead.woken.is_set()
            brought = count(found) or result.catch_up
            if brought or tells or woken or time.monotonic() >= ends_at:
                self._ahead.woken.clear()
                return OrderedPoll(
                    found,
                    result.to_be_revoked,
                    result.lost,
                    result.assigned,
                    result.revoked,
                    result.catch_up,
                )

    def _read(self, ends_at: float, number: int) -> PollResult[Any]:
        """Poll the consumer once, into the buffers; wait only if no record can be returned."""
        assert self._form is not None
        now = time.monotonic()
        self._take_notice(now)
        wait_s = 0.0
        if self._merge.is_ready(now):
            self._waits_since.clear()
        else:
            wait_s = ends_at - now  # for records, which end a poll
            if self._merge.any_buffered:
                self._warn(now)
                deadline = self._merge.next_deadline()
                wait_s = min(wait_s, _SLICE_S if deadline is None else deadline - now, _SLICE_S)
        self._ahead.reading = True
        try:
            result = self._consumer._polls.poll(self._form, max(0.0, wait_s * 1000), number)
        except UnreadableRecordError as error:
            partition = TopicPartition(error.topic, error.partition)
            if not self._merge.buffered(partition):
                raise
            self._stopped.add(partition)  # raised after the records before it
            self._ahead.held.add(partition)
            result = PollResult()
        finally:
            self._ahead.reading = False
        gaps = self._ahead.gaps
        # With a manual assignment no other part does so.
        self._ahead.note({p: found for p, found in result.records.items() if p not in gaps})
        bound = self._consumer._hand_outs.truncations.bound
        gone = self._ahead.gone(self._subscription.read_position, bound)
        self._subscription.give_back(gone)
        now = self._polled_at = time.monotonic()
        self._due = False
        self._take_notice(now)
        for partition, found in result.records.items():
            if partition in gone:
                continue  # read again, with the records before it
            self._merge.extend(partition, found)
            if self._merge.buffered(partition) > self._bound:
                self._ahead.held.add(partition)
        for partition, metadata in result.metadata.items():
            lag = metadata.lag
            if self._gaps is not None and self._gaps.any_unread:
                lag += self._gaps.lag(partition)  # its next records are a gap's
            self._merge.answered(partition, lag, now)
        return result

    def _take_notice(self, now: float) -> None:
        """Apply new seeks, revokes, losses, assignments and pauses to the merge."""
        ahead = self._ahead
        ahead.dirty = False
        while ahead.moved:
            partition = ahead.moved.pop()
            self._merge.clear(partition, now)
            self._stopped.discard(partition)
        wanted = self._consumer.assignment() - self._consumer._ownership.gated
        self._merge.set_partitions(wanted, self._subscription.paused(), now)

    def _handed_out(
        self, partition: TopicPartition, found: list[Any], end: int, leader_epoch: int
    ) -> list[Any]:
        """Hand out records that are returned now; return the ones still to be processed."""
        ahead = self._ahead
        self._subscription.taking(partition)
        left = self._merge.buffered(partition)
        if partition in ahead.gaps:
            passed = end if left else ahead.gaps.pop(partition)
            hand_out = self._consumer._hand_outs.gaps.hand_out
            owed = hand_out({partition: found}, {partition: passed}).get(partition, [])
        elif self._subscription.subscribed:
            owed = self._consumer._hand_outs.hand_out({partition: found}).get(partition, [])
        else:
            owed = found
        if not left:
            ahead.marks.pop(partition, None)
            self._due = True
        elif partition not in ahead.gaps:
            mark = ahead.marks.get(partition)
            if mark is not None:
                mark.offset, mark.leader_epoch = end, leader_epoch
        if partition in ahead.held and left <= (0 if partition in self._stopped else self._bound):
            ahead.held.discard(partition)
            self._stopped.discard(partition)
            self._due = True
        return owed

    def _warn(self, now: float) -> None:
        held_back_by = self._merge.held_back_by()
        self._waits_since = {p: self._waits_since.get(p, now) for p in held_back_by}
        for partition, since in self._waits_since.items():
            if now - since > _WARN_AFTER_S:
                self._waits_since[partition] = math.inf
                log.warning(
                    "group %s: records are held back until %s-%d delivers: nothing has come from "
                    "it for %.0f s, although its broker may have records; its leader may be "
                    "unavailable",
                    self._consumer._group_id,
                    *partition,
                    now - since,
                )
