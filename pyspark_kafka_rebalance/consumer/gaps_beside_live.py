"""CatchingUp: polls read gaps beside the live records while partitions catch up (KIP-333).

The live step comes first, and waits only while no gap records are ready to be handed out. The gaps'
reader never waits, and its answers end the wait of the live step. A poll with live records returns
them at once, and the next poll reads the gaps.

Invariants:
 1. An error in reading a gap is raised by its own poll: it never drops live records that a poll has
    taken.
 2. Each step computes the ranges to read from the partitions that are unread, owned, not paused and
    not to be revoked. No state of a lost partition is kept here.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from kafka import KafkaConsumer
from kafka import errors as kafka_errors
from kafka.structs import OffsetAndMetadata, TopicPartition

from ..errors import UnreadableRecordError
from .catch_up import CatchUpOptions, shares
from .kafka_python.coordinator import GroupCoordinator
from .kafka_python.polling import StepsBeside, fetch_step, would_only_wait
from .kafka_python.records import ReadableRecords
from .kafka_python.second_reader import Bell, Read, SecondReader, places
from .membership.ownership import Ownership
from .offsets.found_records import count, within
from .offsets.offset_set import Gap, above
from .progress.gap_hand_outs import GapHandOuts

log = logging.getLogger(__name__)

#: The live step runs this often even if it would find no records: it has other duties, too.
_LIVE_STEP_S = 0.01

#: The thread's pause after gap records. Polls of gaps never wait, so the I/O loop, which fetches
#: live records, would wait 5 ms for the interpreter lock after each system call.
_REST_S = 0.0003

#: A poll of at most the default number of records hands out at most this many gap records. Python's
#: garbage collector counts two objects per record, the record and its list of headers, until the
#: application drops them, and runs at 700 (``gc.get_threshold()``). Larger polls always reach that;
#: once in a few hundred of them the collector then scans every object of the process, which takes
#: longer than a live record usually waits.
_AT_ONCE = 300
_DEFAULT_RECORDS = KafkaConsumer.DEFAULT_CONFIG["max_poll_records"]


class CatchingUp:
    """Reads gaps in the polls of one consumer; runs on the polling thread.

    ``consumer`` is the live reader, ``config`` the application's configuration of it. Only gaps of
    partitions that are assigned and not to be revoked are read.
    """

    def __init__(
        self,
        options: CatchUpOptions,
        consumer: KafkaConsumer,
        io: GroupCoordinator,
        ownership: Ownership,
        gaps: GapHandOuts,
        config: Mapping[str, Any],
    ) -> None:
        self.in_order = options.in_order
        self.gaps = gaps
        self._config = config
        self._subscription = io.subscription
        self._ownership = ownership
        self._live = consumer
        self._live_steps = StepsBeside(consumer)
        self._beside = False  # whether this poll reads gaps beside its live step
        self._live_step_at = -math.inf
        self._bell = Bell(consumer)
        self._reader: SecondReader | None = None
        self._wanted: dict[TopicPartition, tuple[Gap, ...]] = {}
        self._failure: tuple[frozenset[TopicPartition], Exception] | None = None
        self._resets = consumer.config["auto_offset_reset"] not in (None, "none")
        self._polls = 0
        self._live_share = 0  # how many live records this poll may take
        self._at_once = 0  # and how many gap records
        self._stood_back = False  # whether the last poll left the gaps to this one
        # In an iteration: the live reader's positions in partitions whose gap records are returned.
        self._live_at: dict[TopicPartition, OffsetAndMetadata] = {}
        if options.in_order:
            io.subscription.hold(
                lambda partition: gaps.next_offset(partition) is not None,
                places(consumer.config["max_partition_fetch_bytes"]),
            )

    # -- a poll, step by step ---------------------------------------------------------------------

    def begin(self, max_records: int, wait_ms: float) -> tuple[int, float]:
        """Before the live step: the records that it may take and the milliseconds that it may wait.

        0 records if it is the gaps' turn, or if the step would have nothing to do.
        """
        few = max_records <= _DEFAULT_RECORDS and not self.in_order
        self._at_once = _AT_ONCE if few else max_records
        self._live_share, wait_ms = self._begin(max_records, wait_ms)
        return self._live_share, wait_ms

    def _begin(self, max_records: int, wait_ms: float) -> tuple[int, float]:
        self._live_at = {}  # a poll ends the last iteration, or is its next step
        self._beside = False
        readable = self._ownership.assignment - self._ownership.gated
        self._wanted = self.gaps.to_read(readable) if self.gaps.known else {}
        for partition, end in self._subscription.ahead.gaps.items():
            if rest := above(self._wanted.pop(partition, ()), end):
                self._wanted[partition] = tuple(rest)
        if not self._wanted:
            if self._reader is not None and not self.gaps.any_unread:
                self.close()
            return max_records, wait_ms
        for partition in self._subscription.paused():
            self._wanted.pop(partition, None)
        if self._reader is None:
            self._reader = SecondReader(
                self._live,
                self._config,
                self._bell.ring,
                self.gaps.leader_epoch,
                self._subscription.ahead.held.__contains__,
            )
        try:
            self._reader.begin()
        except Exception as error:  # raised by a poll, like errors in reading
            self._fails(error, *self._wanted)
        if not self._reader.has_some():
            if wait_ms > 0:
                self._bell.hang()
                if self._reader.has_some():  # arrived by now
                    wait_ms = 0
            return max_records, wait_ms
        self._beside = True
        now = time.monotonic()
        if would_only_wait(self._live) and now - self._live_step_at < _LIVE_STEP_S:
            return 0, 0
        self._live_step_at = now
        self._polls += 1
        return shares(max_records, self._polls)[0] if max_records > 0 else max_records, 0

    def live_step(
        self, consumer: KafkaConsumer, wait_ms: float, max_records: int, update: bool
    ) -> Any:
        """The live reader's round of a poll, within the limits that ``begin`` returned."""
        if not self._beside:
            self._live_steps.raise_failure()
            return fetch_step(consumer, wait_ms, max_records, update)
        return self._live_steps.step(max_records, update)

    def read(
        self,
        form: Callable[..., Any],
        max_records: int,
        update_offsets: bool,
        live: Mapping[TopicPartition, list[Any]],
    ) -> dict[TopicPartition, list[Any]]:
        """After the live step, hand out the gap records that are ready, beside these live ones.

        Without ``update_offsets`` they are not handed out: an iteration does that one by one.
        """
        try:
            self._stood_back = not self._stood_back and self._is_live_turn(live)
            if self._stood_back:
                return {}
            found = self._read(form, max_records, update_offsets)
            if found and not self.in_order:
                time.sleep(_REST_S)
            return found
        finally:
            self._live_steps.end()

    def _is_live_turn(self, live: Mapping[TopicPartition, list[Any]]) -> bool:
        """Whether the gaps would delay these live records, and the fetch of the next.

        Not if there are more live records than a poll takes: then each poll returns both kinds.
        """
        return not self.in_order and 0 < records_left(self._live_share, live) < self._live_share

    def _read(
        self, form: Callable[..., Any], max_records: int, update_offsets: bool
    ) -> dict[TopicPartition, list[Any]]:
        reader = self._reader
        if not self._wanted or reader is None or not reader.ready or max_records <= 0:
            return {}
        for partition, bounds in reader.take_bounds().items():
            self.gaps.trim(partition, *bounds)
            self._wanted.pop(partition, None)  # and continue in the next step
        if form is ReadableRecords:  # other forms do not make an object per record
            max_records = min(max_records, self._at_once)
        try:
            found = reader.read(self._wanted, form, max_records)
        except UnreadableRecordError as error:
            partition = TopicPartition(error.topic, error.partition)
            if self._wants(partition, error):
                self.gaps.stopped(error)
                self._fails(error, partition)
            else:  # the next step seeks past it, unless offsets without a record lie before it
                self._pass({partition: error.offset})
        except kafka_errors.OffsetOutOfRangeError as error:
            gone: dict[TopicPartition, int] = error.args[0]
            if self._resets:
                reader.ask_bounds(gone)
            else:
                self.gaps.out_of_range(gone)
                self._fails(error, *gone)
        except kafka_errors.LogTruncationError as error:
            if self._resets:
                self._go_back(error.divergent_offsets)
            else:
                self._fails(error, *error.divergent_offsets)
        except kafka_errors.KafkaError as error:
            if not error.retriable:
                self._fails(error, *self._wanted)
            else:
                log.info("catching up continues after %r", error)
        else:
            if self.in_order and self._subscription.ahead.reading:
                return self._read_ahead(found)
            if update_offsets:
                return self.gaps.hand_out(found.records, found.passed)
            looked_at = self.gaps.look_at(found.records)
            live_at = self._subscription.consumed()
            self._live_at = {p: live_at[p] for p in looked_at if p in live_at}
            self.gaps.hand_out({}, {p: to for p, to in found.passed.items() if p not in looked_at})
            return looked_at
        return {}

    def _pass(self, passed: dict[TopicPartition, int]) -> None:
        """No records remain before these offsets: compacted away, aborted, or markers."""
        if self.in_order and self._subscription.ahead.reading:
            self._read_ahead(Read({}, passed))
        else:
            self.gaps.hand_out({}, passed)

    def _read_ahead(self, found: Read) -> dict[TopicPartition, list[Any]]:
        """Buffer these for a merge; they are handed out when the merge returns them."""
        ahead = self._subscription.ahead
        wanted = {p: within(each, self._wanted.get(p, ())) for p, each in found.records.items()}
        records = self.gaps.look_at(wanted)  # the live step may have found them truncated
        for partition, end in found.passed.items():
            if partition in records or partition in ahead.gaps:
                ahead.gaps[partition] = end
            else:  # nothing was there
                self.gaps.hand_out({}, {partition: end})
        return records

    def raise_failure(self) -> None:
        """Raise the error of the gaps' reader, which will run into it again (invariant 1)."""
        failure, self._failure = self._failure, None
        if failure is not None and not failure[0].isdisjoint(self._wanted):
            raise failure[1]

    def _go_back(self, truncated: Mapping[TopicPartition, OffsetAndMetadata | None]) -> None:
        """Logs were truncated (KIP-320): the live reader reads everything from there on again."""
        for partition, end in truncated.items():
            gaps = self._wanted.get(partition)
            if gaps:
                self._subscription.go_back(
                    partition, end or OffsetAndMetadata(gaps[0].start, "", -1)
                )

    def _wants(self, partition: TopicPartition, error: UnreadableRecordError) -> bool:
        after = error.offset + 1 if error.next_offset is None else error.next_offset
        gaps = self._wanted.get(partition, ())
        return any(gap.start < after and error.offset < gap.end for gap in gaps)

    def _fails(self, error: Exception, *partitions: TopicPartition) -> None:
        self._failure = frozenset(partitions), error

    # -- outside the polls ------------------------------------------------------------------------

    def iterated(self, partition: TopicPartition, record: Any) -> bool | None:
        """The library's iterator returns a record, and has moved the live reader past it.

        Returns whether it is handed out, as a record of a gap; None if it is a live record.
        """
        live_at = self._live_at.get(partition)
        if live_at is None or record.offset >= live_at.offset:
            return None
        self._subscription.put_back(partition, live_at)
        return bool(self.gaps.hand_out({partition: [record]}, {partition: record.offset + 1}))

    def skip(self, partition: TopicPartition, offset: int) -> bool:
        """Whether a seek to this offset only skips records that the gaps' reader could not read."""
        if not self.gaps.skip(partition, offset):
            return False
        self._failure = None  # it may be this one; any other is raised again
        return True

    def skip_to_beginning(
        self, partitions: Collection[TopicPartition]
    ) -> frozenset[TopicPartition]:
        """Return and clear the partitions whose gaps a poll found out of the log's range.

        The gaps' reader, not the live one, continues at the log's start, once that is known.
        """
        skipped = self.gaps.begin_with_the_log(partitions)
        if skipped and self._reader is not None:
            self._failure = None
            self._reader.ask_bounds(skipped)
        return skipped

    def close(self) -> None:
        """Close the gaps' reader: nothing is left to read, or the consumer is closed."""
        reader, self._reader = self._reader, None
        self._wanted, self._failure = {}, None
        if reader is not None:
            reader.close()


def records_left(max_records: int, live: Mapping[TopicPartition, list[Any]]) -> int:
    """The number of gap records that a poll may add to these live ones."""
    return max_records - sum(count(found) for found in live.values())
