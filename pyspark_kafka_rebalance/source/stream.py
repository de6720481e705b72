"""KafkaDeferredStreamReader: maps Spark's calls to the query's membership.

An offset has the ranges of the batch that *ends* there, one for each partition; a range's second
number is the next offset to read. So ``partitions(start, end)`` needs only ``end``, and a replay
reads the same records, no matter who owns the partitions by then.

Spark calls ``latestOffset(start)`` when the batch ending at ``start`` is done, earlier than
``commit``, and on idle triggers, too. ``open_batches`` describes the proofs, and
``spark_versions`` how Spark 4.0 and 4.1 call instead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kafka.structs import TopicPartition
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from ..consumer.offsets.commit_metadata import Remaining
from .checkpoint.built_in_start import start_of_first_batch
from .checkpoint.location_check import LocationCheck
from .end_of_run import POSTPONED_AT_MOST_S, EndOfRun
from .group.batch_state import LeftBehind
from .offsets.offset_json import by_topic, offset_to_json, parse_offset
from .offsets.query_identity import QueryIdentity
from .offsets.stream_offset import StreamOffset
from .plan.available_now import AvailableNowRun
from .plan.batch_planner import NO_LIMIT, BatchPlanner, Gone, Postponed
from .plan.cuts import cuts_of
from .plan.data_loss import DataLoss
from .plan.tasks import ReadTask, group_into_tasks
from .query_run import QueryRun
from .reading import TaskPartition, read_task
from .spark.read_limits import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from .spark.shown_errors import shows_our_errors
from .spark.sigterm import end_silently, ignore_sigterm

if TYPE_CHECKING:
    import pyarrow as pa

    from .group.membership import QueryMembership
    from .options.source_options import SourceOptions

#: How long the first trigger waits for our members to join a group without other members. Joining
#: takes the broker's ``group.initial.rebalance.delay.ms``, 3 s by default.
_FIRST_JOIN_S = 10.0

#: How long a replay waits for the group's offsets, which a transaction of its last run may delay.
_LEAVE_OUT_WITHIN_S = 60.0

#: If Spark does not report the trigger: how long the group must not have changed before the first
#: batch, which may be the only one.
_SETTLED_FOR_S = 1.0


@shows_our_errors
class KafkaDeferredStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Answers Spark's calls. Pure and picklable until the planner process first calls it.

    ``trigger_is_told``: Spark reports AvailableNow and Once to the reader. If it does not, any
    trigger may be one of them, and the first batch must have all there is.
    """

    def __init__(self, options: SourceOptions, trigger_is_told: bool = True) -> None:
        self._options = options
        self._trigger_is_told = trigger_is_told
        self._data_loss = DataLoss(options.fail_on_data_loss)
        self._identity = QueryIdentity()
        self._run: QueryRun | None = None
        self._available_now: AvailableNowRun | None = None
        self._fixes_end = False  # of the run, as soon as its group is known
        self._planner: BatchPlanner | None = None  # of the run
        self._begun = False  # whether this run has had its first latestOffset
        self._replayed = False
        self._warms_up = True
        #: The offset planned last, as Spark has it and parsed, so that it is not parsed again.
        self._planned: tuple[dict[str, Any], StreamOffset] | None = None
        #: The ids of the topics that the batch planned last reads, where the group reports them.
        self._topic_ids: Mapping[TopicPartition, UUID] = {}
        #: The end of the batch that tasks were made for last, and the tasks: rows are marked once.
        self._tasks: tuple[dict[str, Any], list[ReadTask]] | None = None
        self._left_behind: LeftBehind | None = None  # by a run that was abandoned
        self._unchecked = options.checkpoint_location
        self._end_of_run = EndOfRun(self._data_loss)

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self._options, "trigger_is_told": self._trigger_is_told}

    def __setstate__(self, state: dict[str, Any]) -> None:
        KafkaDeferredStreamReader.__init__(self, **state)

    # -- the driver's planner process -------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """Return a constant: a partition's start is looked up when the group assigns it."""
        return offset_to_json(StreamOffset())

    def getDefaultReadLimit(self) -> ReadLimit:
        """``maxOffsetsPerTrigger``, or no limit."""
        return ReadMaxRows(self._options.max_offsets_per_trigger or NO_LIMIT)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the run: all records now in the subscribed topics, of any owner.

        With ``groupIdPrefix``, Spark's next call does it, which has the offset that names the
        query.
        """
        self._fixes_end = True
        if self._options.group_id_prefix is None:
            self._started()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch; ``start`` itself if there is nothing for one."""
        if self._run is not None and self._run.is_abandoned():
            left = self._run.abandon()
            self._left_behind = left if self._begun else None
            self._run = self._planner = self._planned = None
            self._begun = self._replayed = False
        check = self._begin_check(start)
        if not self._begun:
            self._identity.restore(parse_offset(start))
        run = self._started()
        membership = run.membership
        membership.raise_failure()
        if check is not None:
            check.raise_failure()
        if not self._begun:
            self._begun = True
            before, self._left_behind = self._left_behind, None
            run.restore(parse_offset(start), before)
            if not self._join_first(run, limit):
                return self._empty_batch(run, _number_after(start))
        membership.proofs.begin_trigger(start)
        if run.is_asked_to_stop():
            run.leave_if_proven()
            return start
        membership.join()
        planned = self._plan_batch(run, limit)
        if planned is None:
            return self._empty_batch(run, _number_after(start))
        if isinstance(planned, Postponed):
            return self._without_ranges(run, start, limit)
        return planned

    def _begin_check(self, start: dict[str, Any]) -> LocationCheck | None:
        """Start the check of the option ``checkpointLocation``; only before the first plan."""
        location, self._unchecked = self._unchecked, None
        if location is None:
            return None
        return LocationCheck(location, None if start == self.initialOffset() else start)

    def _join_first(self, run: QueryRun, limit: ReadLimit) -> bool:
        """Have the members join, and wait; False: they join next time, after a warm-up."""
        membership = run.membership
        if self._has_end(limit):
            membership.proofs.progress_is_synchronous()
            membership.join()
            self._end_of_run.wait_for_members(run, limit, self._available_now)
        elif not self._trigger_is_told:
            # This may be a run with an end. If it is not, the query must not wait for long.
            membership.join()
            membership.joining.wait_until_positioned(
                run.is_asked_to_stop, POSTPONED_AT_MOST_S, _SETTLED_FOR_S
            )
        elif not self._replayed:
            if membership.joining.has_others():
                return False
            self._warms_up = False  # no other member waits for our partitions
            membership.join()
            membership.joining.wait_until_positioned(run.is_asked_to_stop, _FIRST_JOIN_S)
        return True

    def _without_ranges(
        self, run: QueryRun, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """Return the end of a batch without records that is still needed, or ``start`` for none."""
        membership = run.membership
        if self._planned is None and (
            self._replayed or not self._trigger_is_told or not self._warms_up
        ):
            # Without a warm-up, Spark shows the last offset, which names no run or one that has
            # ended. A caller that wants to stop this run must learn its name.
            return self._empty_batch(run, None)
        # At the initial offset, a run with an end found no records: the next run must know which
        # partitions there were.
        if start == self.initialOffset() or membership.proofs.want_commit():
            return self._empty_batch(run, _number_after(start))
        if membership.wants_log(at_once=self._has_end(limit) or not self._trigger_is_told):
            return self._empty_batch(run, None)
        if self._has_end(limit):
            membership.commits.wait_until_acknowledged()
        return start

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the known end offsets of owned partitions, for ``query.lastProgress``; no I/O."""
        if self._run is None:
            return None
        return by_topic(self._run.membership.known_end_offsets())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of the batch that ends at ``end``; the same however often Spark asks."""
        if start == end:
            return []
        if self._tasks is None or self._tasks[0] != end:
            self._tasks = end, self._make_tasks(start, end)
        return [TaskPartition(task) for task in self._tasks[1]]

    def commit(self, end: dict[str, Any]) -> None:
        """Note that the batch that ends here is proven; see ``open_batches`` for other proofs."""
        if self._run is not None:
            self._run.membership.proofs.committed(end)

    def stop(self) -> None:
        """Commit proven offsets, leave the group; idempotent.

        Takes at most 3 s, or as long as a caller of ``stop_gracefully`` waits for the commits.
        """
        ignore_sigterm()
        end_silently()
        if self._run is not None:
            self._run.end()

    # -- executors --------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one task; needs no membership."""
        return read_task(partition.value, self._options)

    # -- planning ---------------------------------------------------------------------------------

    def _started(self) -> QueryRun:
        if self._run is None:
            if self._options.group_id_prefix is not None:  # else the id may not be restored yet
                self._options = self._options.in_group_of(self._identity.id)
            self._run = QueryRun(self._options, self._identity)
            self._run.start()
        if self._fixes_end:
            self._fixes_end = False
            ends = self._run.membership.log_ends.end_offsets_of_topics()
            self._available_now, self._planner = AvailableNowRun(ends), None
        return self._run

    def _empty_batch(self, run: QueryRun, warm_up: int | None) -> dict[str, Any]:
        """Plan a batch that reads nothing.

        In a group with other members, the first one warms up: the JVM and the Python workers take 4
        to 8 s to start, during which a member would hold partitions without reading them. Others
        make Spark call ``commit``.
        """
        offset = run.membership.offset_without_ranges()
        initial = run.membership.initial_partitions()
        return self._hand_to_spark(run, replace(offset, initial=initial, warm_up=warm_up))

    def _plan_batch(self, run: QueryRun, limit: ReadLimit) -> dict[str, Any] | Postponed | None:
        """Like :meth:`_plan`; in a run with an end it waits, and None asks for an empty batch."""
        if not self._has_end(limit):
            return self._plan(run, limit)
        return self._end_of_run.wait_for_batch(
            run, limit, self._available_now, lambda: self._plan(run, limit)
        )

    def _plan(self, run: QueryRun, limit: ReadLimit) -> dict[str, Any] | Postponed:
        """Plan a batch with records, or with the group's events, and return its end."""
        membership = run.membership
        if self._planner is None:
            self._planner = BatchPlanner(
                cuts_of(
                    self._options,
                    membership.log_ends,
                    membership.record_times,
                    membership.unpositioned,
                    self._available_now,
                )
            )
        positions = membership.plannable()
        # After the positions: a position in a recreated topic comes only with the news of that.
        self._note_gone(membership)
        ends = membership.log_ends.end_offsets(positions) if positions else {}
        while isinstance(plan := self._planner.plan(positions, ends, limit), Gone):
            if self._available_now is None or plan.lost:
                self._data_loss.position_is_lost(plan.lost)
                membership.commits.move_to({p: end for p, _, end in plan.lost})
                return Postponed(frozenset(positions))
            self._data_loss.run_is_shortened(self._available_now, plan.shortened)
        if isinstance(plan, Postponed):
            return plan
        if plan.ranges and self._planned is not None and plan.ranges == self._planned[1].ranges:
            # The same ranges, in a log that was recreated or truncated. Spark runs a batch only if
            # its offset differs from the previous one, so it would skip this one.
            return self._empty_batch(run, None)
        catch_up = membership.catch_up.plan(limit, self._available_now, self._data_loss, ends)
        state = membership.hand_out(plan.ranges, catch_up)
        if state is None:
            planned = plan.ranges.keys() | catch_up.keys()
            unread = planned or membership.catch_up.unread(self._available_now)
            return Postponed(frozenset(plan.postponed or unread or membership.unpositioned()))
        offset = state.offset
        self._planner.handed_out(offset.ranges)
        if self._available_now is not None:
            left = {p: found[0].start for p, found in offset.gaps.items() if p in positions}
            self._available_now.reach(left)
        if offset.ranges or offset.catch_up:
            self._end_of_run.has_read()
        else:
            offset = replace(offset, initial=membership.initial_partitions())
        told = self._hand_to_spark(run, offset)
        self._topic_ids = state.topic_ids
        return told

    def _note_gone(self, membership: QueryMembership) -> None:
        """Handle partitions deleted since the last plan: an error, a warning, or not missed."""
        run, deleted = self._available_now, membership.deletions.take()
        if run is not None:
            run.read_by_group(membership.coverage.read_by_group)
            if gone := membership.deletions.take_gone_elsewhere():
                self._data_loss.run_does_without(run, gone)
        if deleted:
            self._data_loss.is_deleted(deleted, run)

    def _has_end(self, limit: ReadLimit) -> bool:
        """Whether this is a run with AvailableNow or Once."""
        return self._available_now is not None or isinstance(limit, ReadAllAvailable)

    def _hand_to_spark(self, run: QueryRun, offset: StreamOffset) -> dict[str, Any]:
        """Give the offset the run's and the query's names; return it as Spark gets it."""
        identity = self._identity
        group = self._options.group_id if self._options.group_id_prefix is not None else None
        batch = identity.next_batch()
        offset = replace(offset, run=run.name, query=identity.id, batch=batch, group=group)
        if offset.initial is not None:
            offset = replace(offset, first_ends=run.membership.first_ends(offset.others))
        told = offset_to_json(offset)
        self._planned, self._topic_ids = (told, offset), {}
        run.membership.proofs.planned(told)
        return told

    def _make_tasks(self, start: dict[str, Any], end: dict[str, Any]) -> list[ReadTask]:
        """Make the tasks, with the rows' marks as of now (see ``foreign_ranges``)."""
        if self._planned is not None and end == self._planned[0]:
            offset, topic_ids = self._planned[1], self._topic_ids
        else:
            offset, topic_ids = self._replay(start, end), {}
        lost_below: Mapping[TopicPartition, int] = {}
        owed: Mapping[TopicPartition, Remaining] = {}
        revoking: frozenset[TopicPartition] = frozenset()
        # With ``assign`` no other query takes partitions over.
        if (offset.ranges or offset.catch_up) and self._options.partitions is None:
            membership = self._started().membership
            if offset.built_in:
                pass  # Spark's own source shares no partitions
            elif self._options.catch_up is not None or offset.catch_up:
                owed = membership.foreign_ranges.owed(offset.reads())
            else:
                lost_below = membership.foreign_ranges.lost_below(offset.ranges)
            revoking = membership.state_of(()).offset.revoking
        return group_into_tasks(
            replace(offset, revoking=revoking),
            self._options.readers,
            self._options.min_partitions,
            self._options.max_records_per_partition,
            lost_below,
            owed,
            topic_ids,
        )

    def _replay(self, start: dict[str, Any], end: dict[str, Any]) -> StreamOffset:
        """Replay a batch of Spark's log that an earlier process planned.

        The members join before it is read: the partitions of it that they get are the query's own
        until the batch is done, however long that takes.
        """
        self._replayed = True
        begin, offset = parse_offset(start), parse_offset(end)
        self._identity.restore(offset)
        if offset.built_in and start == self.initialOffset():
            location = self._options.checkpoint_location
            begin = StreamOffset(others=start_of_first_batch(location, offset.others))
        ranges, catch_up = offset.ranges_after(begin), offset.catch_up_after(begin)
        if not ranges and not catch_up:
            return offset
        replayed = replace(offset, ranges=ranges, catch_up=catch_up, warm_up=None)
        if self._options.partitions is None:
            membership = self._started().membership
            others = {p: at for p, at in offset.others.items() if p not in ranges}
            proven = {**begin.positions_before(offset), **others}
            membership.follow(offset.followed)
            if offset.by_sink:
                membership.follow_group()
            if self._options.catch_up is not None:
                membership.resume(proven, ranges, end, offset.imported, catch_up, offset.gaps)
            else:  # in order, from the first offset that the batch found unread
                below = offset.lowest_found()
                above = {p: one for p, one in ranges.items() if p not in below}
                membership.resume({**proven, **below}, above, end, offset.imported)
            membership.join()
            if offset.by_sink:
                left_out = membership.sink_batches.leave_out(end, _LEAVE_OUT_WITHIN_S)
                replayed = without(replayed, left_out)
        return replayed


def without(offset: StreamOffset, partitions: Collection[TopicPartition]) -> StreamOffset:
    """The same batch, which reads nothing of these."""
    return replace(
        offset,
        ranges={p: one for p, one in offset.ranges.items() if p not in partitions},
        catch_up={p: pieces for p, pieces in offset.catch_up.items() if p not in partitions},
    )


def _number_after(start: dict[str, Any]) -> int:
    """Return the number of the next batch that only warms up."""
    return (parse_offset(start).warm_up or 0) + 1
