"""KafkaDeferredStreamReader: Spark's calls onto the query's membership.

An offset says what the batch that *ends* there reads: for each partition a range, whose second
number is the next offset to read. ``partitions(start, end)`` therefore needs ``end`` alone, and a
replay reads the same records, whoever owns the partitions by then.

``latestOffset(start)`` comes when the batch ending at ``start`` is done, earlier than ``commit``,
and on idle triggers as well. What it proves: ``open_batches``. Spark 4.0 and 4.1
call otherwise: ``spark_versions``.
"""

from __future__ import annotations

import logging
import secrets
import signal
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kafka import errors as kafka_errors
from kafka.structs import TopicPartition
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from ..errors import DataLossError, KafkaRebalanceError, OptionError, names_of
from .available_now import AvailableNowRun
from .built_in_start import start_of_first_batch
from .coverage import COVERAGE_TICK_S
from .driver_sources import DriverSources
from .group_commits import STOP_TIMEOUT_S
from .membership import QueryMembership
from .offsets import Event, MemberState, StreamOffset
from .planning import (
    BeyondEnd,
    ReadTask,
    backlog,
    find_beyond_end,
    find_data_loss,
    group_into_tasks,
    plan_batch,
)
from .reading import TaskPartition, read_task
from .shown_errors import shows_our_errors
from .spark_versions import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from .stop_request import StopRequest

if TYPE_CHECKING:
    import pyarrow as pa

    from .options import SourceOptions

log = logging.getLogger(__name__)

#: Spark knows no limit as a ``long``; it tells an unlimited trigger from ``Once``, for which Spark
#: asks with ReadAllAvailable whatever our default is.
_NO_LIMIT = 2**63 - 1

#: In a group without other members, the first trigger waits so long for ours to join: that takes
#: the broker's ``group.initial.rebalance.delay.ms``, 3 s by default.
_FIRST_JOIN_S = 10.0

#: A run with an end waits so long for brokers that restart, and for a rebalance.
_POSTPONED_AT_MOST_S = 60.0

#: Where Spark does not tell the trigger: for how long nothing must have changed in the group before
#: the first batch, which may be the only one.
_SETTLED_FOR_S = 1.0


@shows_our_errors
class KafkaDeferredStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream of one query. Pure and picklable until the planner process first calls it.

    Parameters
    ----------
    options : SourceOptions
        Validated options.
    trigger_is_told : bool
        Whether Spark lets the reader know of AvailableNow and Once. If it does not, any trigger
        may be one of them, and the first batch must have what there is.
    """

    def __init__(self, options: SourceOptions, trigger_is_told: bool = True) -> None:
        self._options = options
        self._trigger_is_told = trigger_is_told
        self._membership: QueryMembership | None = None
        self._run = ""  # client id prefix of this run
        self._stop_request: StopRequest | None = None
        self._beside: DriverSources | None = None
        self._available_now: AvailableNowRun | None = None
        self._postponed: Collection[TopicPartition] = ()  # to be read, but not in this trigger
        self._begun = False  # the first latestOffset of this process is behind us
        self._replayed = False
        self._warms_up = True
        #: As Spark has it, and what it stands for: it is not parsed again.
        self._planned: tuple[dict[str, Any], StreamOffset] | None = None
        #: The batch that tasks were made for last, by its end: its rows are marked once.
        self._tasks: tuple[dict[str, Any], list[ReadTask]] | None = None
        self._read_at: float | None = None  # when a batch with records was planned last

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self._options, "trigger_is_told": self._trigger_is_told}

    def __setstate__(self, state: dict[str, Any]) -> None:
        KafkaDeferredStreamReader.__init__(self, **state)

    # -- the driver's planner process -------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """A constant: where a partition starts is found out when the group assigns it."""
        return StreamOffset().to_json_dict()

    def getDefaultReadLimit(self) -> ReadLimit:
        """``maxOffsetsPerTrigger``, or no limit."""
        return ReadMaxRows(self._options.max_offsets_per_trigger or _NO_LIMIT)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the run: what is in the subscribed topics now, whoever owns it."""
        self._available_now = AvailableNowRun(self._started().log_ends.end_offsets_of_topics())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch; ``start`` itself when there is nothing for one."""
        if self._stop_request is not None and self._stop_request.is_abandoned():
            self._begin_again()
        membership = self._started()
        membership.raise_failure()
        if not self._begun:
            self._begun = True
            begin = StreamOffset.parse(start)
            membership.restore(begin.positions(), begin.initial, begin.imported)
            if self._has_end(limit):
                membership.proofs.progress_is_synchronous()
            if not (self._has_end(limit) or self._trigger_is_told):
                # Maybe a run with an end, and maybe not: then a query must not wait for long.
                membership.join()
                membership.wait_until_positioned(
                    self._is_asked_to_stop, _POSTPONED_AT_MOST_S, _SETTLED_FOR_S
                )
            elif self._has_end(limit):
                membership.join()
                ends = None if self._available_now is None else self._available_now.ends
                membership.coverage.wait(ends, until=self._is_asked_to_stop)
            elif not self._replayed:
                if membership.has_others():
                    return self._empty_batch(membership, _number_after(start))
                self._warms_up = False  # nobody waits for what our members own meanwhile
                membership.join()
                membership.wait_until_positioned(self._is_asked_to_stop, _FIRST_JOIN_S)
        membership.proofs.begin_trigger(start)
        if self._is_asked_to_stop():
            if self._beside is not None:
                self._beside.leave()
            if (
                not membership.proofs.are_missing()
            ):  # else whoever asked may prove it, before stop()
                membership.leave(self._stop_timeout_s())
            return start
        membership.join()
        planned = self._plan(membership, limit)
        if planned is None and self._has_end(limit):
            planned = self._plan_to_the_end(membership, limit)
        return planned or self._without_ranges(membership, start, limit)

    def _plan_to_the_end(
        self, membership: QueryMembership, limit: ReadLimit
    ) -> dict[str, Any] | None:
        """Wait for what is unread: a trigger without a batch would end a run that has an end."""
        began_at = answered_at = time.monotonic()
        while not self._is_asked_to_stop():
            now = time.monotonic()
            if self._postponed:
                if now - answered_at >= _POSTPONED_AT_MOST_S:
                    raise KafkaRebalanceError(
                        f"not read to the end within {_POSTPONED_AT_MOST_S:g} s, since their "
                        "brokers or the group's coordinator do not answer: "
                        f"{names_of(self._postponed)}"
                    )
                membership.wait_for_change()
            elif uncovered := self._uncovered(membership):
                if now - began_at >= membership.coverage.within_s:
                    raise membership.coverage.error(uncovered)
                membership.wait_for_change(COVERAGE_TICK_S)
                answered_at = now
            else:
                return None
            if (planned := self._plan(membership, limit)) is not None:
                return planned
        return None

    def _is_asked_to_stop(self) -> bool:
        return self._stop_request is not None and self._stop_request.is_made()

    def _without_ranges(
        self, membership: QueryMembership, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """The end of a batch that has no records and says something, or ``start``: no batch."""
        if self._planned is None and (
            self._replayed or not self._trigger_is_told or not self._warms_up
        ):
            # Without a warm-up Spark shows the last offset, and so a run that is gone, or none;
            # whoever wants to ask this one to stop must learn of it.
            return self._empty_batch(membership, None)
        # At the initial offset, a run with an end found nothing: the next must know what was there.
        if start == self.initialOffset() or membership.proofs.want_commit():
            return self._empty_batch(membership, _number_after(start))
        if membership.wants_log(at_once=self._has_end(limit) or not self._trigger_is_told):
            return self._empty_batch(membership, None)
        if self._has_end(limit):
            membership.commits.wait_until_acknowledged()
        return start

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The end offsets of what is owned, for ``query.lastProgress``; asks for nothing."""
        if self._membership is None:
            return None
        ends: dict[str, dict[str, int]] = {}
        for partition, end in sorted(self._membership.known_end_offsets().items()):
            ends.setdefault(partition.topic, {})[str(partition.partition)] = end
        return ends

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of the batch that ends at ``end``; the same however often Spark asks."""
        if start == end:
            return []
        if self._tasks is None or self._tasks[0] != end:
            self._tasks = end, self._make_tasks(start, end)
        return [TaskPartition(task) for task in self._tasks[1]]

    def commit(self, end: dict[str, Any]) -> None:
        """Proves the batch that ends here, and says more: ``open_batches``."""
        if self._membership is not None:
            self._membership.proofs.committed(end)

    def stop(self) -> None:
        """Commit what is proven, leave the group; idempotent.

        At most 3 s, or as long as whoever asked the query to stop waits for the commits.
        """
        _ignore_sigterm()
        self._leave()

    # -- executors --------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one task; needs no membership."""
        return read_task(partition.value, self._options)

    # -- planning ---------------------------------------------------------------------------------

    def _started(self) -> QueryMembership:
        if self._membership is None:
            prefix = self._options.client_config.get("client_id") or "kafka_deferred"
            self._run = f"{prefix}-{secrets.token_hex(4)}"
            self._membership = QueryMembership(self._options, self._run)
            self._stop_request = StopRequest(self._run)
            if self._options.partitions is None:
                self._beside = DriverSources(self._options, self._run)
                self._beside.enter()
            _stop_on_sigterm()
            self._membership.start()
        return self._membership

    def _begin_again(self) -> None:
        """Who asked to stop is gone: go on as a run that starts where Spark stands.

        Raises
        ------
        KafkaRebalanceError
            With async progress tracking, where Spark stands is not proven.
        """
        log.warning(
            "group %s: asked to stop by stop_gracefully(), and not stopped: reading on",
            self._options.group_id,
        )
        if self._membership is not None and self._membership.proofs.progress_is_asynchronous:
            raise KafkaRebalanceError(
                "stop_gracefully() asked the query to stop and was ended before it did: start the "
                "query again"
            )
        self._leave()
        self._membership = self._stop_request = self._planned = None
        self._begun = self._replayed = False

    def _leave(self) -> None:
        if self._beside is not None:
            self._beside.leave()
        if self._membership is not None and self._stop_request is not None:
            for offset in self._stop_request.proven():
                self._membership.proofs.done(offset)
            self._membership.stop(self._stop_timeout_s())
            missing = self._membership.commits.uncommitted()
            if self._stop_request.answer(committed=not missing):
                log.warning(
                    "group %s: stopped, and these are not committed as far as they are read, so "
                    "that stop_gracefully() returns False: %s",
                    self._options.group_id,
                    names_of(missing),
                )

    def _stop_timeout_s(self) -> float:
        asked = self._stop_request
        return max(STOP_TIMEOUT_S, 0.0 if asked is None else asked.commits_wanted_s())

    def _empty_batch(self, membership: QueryMembership, warm_up: int | None) -> dict[str, Any]:
        """A batch that reads nothing.

        In a group with other members the first one warms up: the JVM and the Python workers take 4
        to 8 s to start, during which a member would hold partitions without reading them. Others
        make Spark call ``commit``.
        """
        state = membership.state_without_ranges()
        offset = StreamOffset(
            pending=state.pending,
            others=state.positions,
            run=self._run,
            warm_up=warm_up,
            initial=membership.initial_partitions(),
            imported=state.imported,
        )
        return self._hand_to_spark(membership, offset)

    def _plan(self, membership: QueryMembership, limit: ReadLimit) -> dict[str, Any] | None:
        if deleted := membership.deletions.take():
            self._deleted(deleted)
        positions = membership.plannable()
        ends = membership.log_ends.end_offsets(positions) if positions else {}
        unknown = positions.keys() - ends.keys()
        in_doubt: set[TopicPartition] = set()  # whether records are gone
        if beyond := find_beyond_end(positions, ends):
            high_watermarks = membership.log_ends.high_watermarks({p: at for p, at, _ in beyond})
            if lost := find_data_loss(beyond, high_watermarks):
                self._data_loss(membership, lost)
                self._postponed = positions.keys()
                return None
            in_doubt = {p for p, _, _ in beyond if p not in high_watermarks}
        self._postponed = unknown | in_doubt
        run = self._available_now
        if run is not None:
            run.reach(positions)
            self._postponed = unknown & set(run.unread(positions)) | in_doubt
            self._check_ends(run, run.shortened(positions, ends))
        elif isinstance(limit, ReadAllAvailable):
            # Once has no second batch for what is not known yet.
            self._postponed = self._postponed or membership.unpositioned()
            if self._postponed:
                return None
        max_bytes = self._options.max_bytes_per_trigger
        sizes: Mapping[TopicPartition, float] = {}
        if max_bytes is not None and not isinstance(limit, ReadAllAvailable):
            sizes = membership.log_ends.bytes_per_offset(ends)
            if unsized := ends.keys() - sizes.keys():
                ends = {p: end for p, end in ends.items() if p in sizes}
                if run is not None:  # a trigger without a batch would end it
                    self._postponed = set(self._postponed) | unsized & set(run.unread(positions))
        if run is not None:
            ends = run.cut(ends)
        max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else _NO_LIMIT
        if self._waits_for_more(positions, ends, limit):
            positions = {}  # the group's events are told all the same
        planned = plan_batch(
            positions, ends, None if max_rows == _NO_LIMIT else max_rows, max_bytes, sizes
        )
        handed_out = membership.hand_out(planned)
        if handed_out is None:
            self._postponed = self._postponed or planned.keys() or membership.unpositioned()
            return None
        ranges, events, state = handed_out
        if ranges:
            self._read_at = time.monotonic()
        if run is not None:
            run.reach({p: handed.end for p, handed in ranges.items()})
        owned_by: list[list[TopicPartition]] = [[] for _ in state.generations]
        for partition, member in state.member_of.items():
            owned_by[member].append(partition)
        offset = StreamOffset(
            ranges=ranges,
            pending=state.pending,
            others=state.positions,
            members=tuple(
                MemberState(generation, tuple(sorted(partitions)))
                for generation, partitions in zip(state.generations, owned_by, strict=True)
            ),
            revoking=state.revoking,
            lost=state.lost,
            events=tuple(
                Event(e.event, e.partition.topic, e.partition.partition, e.generation)
                for e in events
            ),
            run=self._run,
            initial=None if ranges else membership.initial_partitions(),
            imported=state.imported,
        )
        return self._hand_to_spark(membership, offset)

    def _has_end(self, limit: ReadLimit) -> bool:
        """Whether this is a run with AvailableNow or Once."""
        return self._available_now is not None or isinstance(limit, ReadAllAvailable)

    def _waits_for_more(
        self,
        positions: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        limit: ReadLimit,
    ) -> bool:
        """``minOffsetsPerTrigger`` and ``maxTriggerDelay``; what has an end waits for nothing."""
        least = self._options.min_offsets_per_trigger
        if least is None or self._has_end(limit) or self._read_at is None:
            return False
        if backlog(positions, ends) >= least:
            return False
        waited_ms = (time.monotonic() - self._read_at) * 1000
        return waited_ms < self._options.max_trigger_delay_ms

    def _hand_to_spark(self, membership: QueryMembership, offset: StreamOffset) -> dict[str, Any]:
        told = offset.to_json_dict()
        self._planned = told, offset
        membership.proofs.planned(told)
        return told

    def _make_tasks(self, start: dict[str, Any], end: dict[str, Any]) -> list[ReadTask]:
        """The tasks, with the rows' marks as they are at this moment (``marking``)."""
        if self._planned is not None and end == self._planned[0]:
            offset = self._planned[1]
        else:
            offset = self._replay(start, end)
        lost_below: Mapping[TopicPartition, int] = {}
        revoking: frozenset[TopicPartition] = frozenset()
        # What is assigned by hand nobody else takes over.
        if offset.ranges and self._options.partitions is None:
            if not offset.built_in:  # that source shares its work with nobody
                lost_below = self._started().foreign_ranges.lost_below(offset.ranges)
            revoking = self._started().state_of(offset.ranges).revoking
        return group_into_tasks(
            replace(offset, revoking=revoking),
            self._options.readers,
            self._options.min_partitions,
            self._options.max_records_per_partition,
            lost_below,
        )

    def _replay(self, start: dict[str, Any], end: dict[str, Any]) -> StreamOffset:
        """A batch of Spark's log that a process before this one planned.

        The members join before it is read: what of it they get is the query's own until the batch
        is done, however long that takes.
        """
        self._replayed = True
        begin, offset = StreamOffset.parse(start), StreamOffset.parse(end)
        if offset.built_in and start == self.initialOffset():
            location = self._options.checkpoint_location
            begin = StreamOffset(others=start_of_first_batch(location, offset.others))
        ranges = offset.ranges_after(begin)
        if not ranges:
            return offset
        if self._options.partitions is None:
            membership = self._started()
            others = {p: at for p, at in offset.others.items() if p not in ranges}
            proven = {**begin.positions(), **others}
            membership.resume(proven, ranges, end, offset.imported)
            membership.join()
        return replace(offset, ranges=ranges, warm_up=None)

    def _data_loss(
        self, membership: QueryMembership, lost: Sequence[tuple[TopicPartition, int, int]]
    ) -> None:
        """A position past the end: the topic was deleted and created anew, or truncated."""
        text = ", ".join(
            f"{p.topic}-{p.partition}: position {position}, end offset {end}"
            for p, position, end in lost
        )
        if self._options.fail_on_data_loss:
            raise DataLossError(
                f"records are gone from Kafka ({text}); to go on at the end offsets, set "
                "failOnDataLoss=false"
            )
        log.warning("records are gone from Kafka, going on at the end offsets: %s", text)
        membership.commits.move_to({p: end for p, _, end in lost})

    def _deleted(self, deleted: Mapping[TopicPartition, int | None]) -> None:
        """Deleted while the query runs; if it has an end, what was read to it is not missed."""
        run = self._available_now
        missed = {p: at or 0 for p, at in deleted.items()}
        if run is not None:
            missed = {p: missed[p] for p in run.unread(missed)}
        if not missed:
            return
        text = ", ".join(
            f"{p.topic}-{p.partition}: {f'read to {at}' if at else 'not read'}, deleted"
            for p, at in sorted(missed.items())
        )
        if run is not None:
            self._gone(text)
            run.forget(missed)
        elif self._options.fail_on_data_loss:
            raise DataLossError(
                f"records may be gone from Kafka ({text}); to go on without these partitions, "
                "set failOnDataLoss=false"
            )
        else:
            log.warning("records may be gone from Kafka, going on without them: %s", text)

    def _check_ends(self, run: AvailableNowRun, shortened: Sequence[BeyondEnd]) -> None:
        """What was there when the run began, and is not any more."""
        if shortened:
            gone = ", ".join(
                f"{p.topic}-{p.partition}: read to {at}, end offset {end}"
                for p, at, end in shortened
            )
            self._gone(gone)
            run.give_up({p: end for p, _, end in shortened})

    def _uncovered(self, membership: QueryMembership) -> list[TopicPartition]:
        """What this run would leave unread, although no other live member has it."""
        run = self._available_now
        if run is None:
            return []
        uncovered = membership.coverage.uncovered(run.ends)
        left_behind = run.left_behind(membership.plannable())
        if not (asked := {*uncovered, *left_behind}):
            return []
        try:
            deleted = membership.deletions.ask(asked)
        except kafka_errors.KafkaTimeoutError:
            return sorted(asked)
        if missed := [p for p in deleted if (run.reached(p) or 0) < run.ends[p]]:
            self._gone(
                ", ".join(
                    f"{p.topic}-{p.partition}: read to {run.reached(p) or 0}, deleted"
                    for p in missed
                )
            )
        run.forget(deleted)
        return [p for p in uncovered if p in run.ends]

    def _gone(self, gone: str) -> None:
        text = f"records are gone from Kafka that this run was to read ({gone})"
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{text}; to go on without them, set failOnDataLoss=false")
        log.warning("%s", text)


@shows_our_errors
class RefusedStreamReader(DataSourceStreamReader):
    """What a stream gets whose options are those of a batch: the error, at Spark's first call.

    Parameters
    ----------
    error : OptionError
        What the stream lacks, or cannot do.
    """

    def __init__(self, error: OptionError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:
        """Raise: with a new checkpoint this is called first."""
        raise self._error

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        """Raise: what follows a batch that is complete."""
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Raise: what follows a batch that is not."""
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Never called."""
        raise self._error


def _number_after(start: dict[str, Any]) -> int:
    """The number of the next batch that only warms up."""
    return (StreamOffset.parse(start).warm_up or 0) + 1


def _stop_on_sigterm() -> None:
    """Give stop() its chance: Spark ends the planner process by SIGTERM, twice, without waiting.

    Raising SystemExit makes the process call ``stop()``; ignoring the signal from then on keeps
    the second one from ending it halfway.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _on_sigterm)


def _on_sigterm(signum: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(0)


def _ignore_sigterm() -> None:
    """When the socket's end comes before the signals, the first one must not end stop() either."""
    if signal.getsignal(signal.SIGTERM) is _on_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
