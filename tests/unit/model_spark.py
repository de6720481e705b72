"""A query as Spark's MicroBatchExecution runs it, step by step, over the real source.

The durable part is the checkpoint: the offset log, written before a batch runs, and the commit log,
written when it is done. A process is a planner with the real ``KafkaDeferredStreamReader`` and
``QueryMembership``; the pump is not a thread here but goes round when the model says so.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from kafka.structs import TopicPartition
from model_group import ModelGroup
from model_log import Record

from pyspark_kafka_rebalance.consumer.pump import Pump
from pyspark_kafka_rebalance.errors import KafkaRebalanceError
from pyspark_kafka_rebalance.source.group.membership import QueryMembership
from pyspark_kafka_rebalance.source.options.source_options import SourceOptions
from pyspark_kafka_rebalance.source.spark.read_limits import ReadMaxRows
from pyspark_kafka_rebalance.source.stream import KafkaDeferredStreamReader


class SteppedEvent(threading.Event):
    """Whoever waits for it lets the others go on."""

    while_waiting: Callable[[], None] = staticmethod(lambda: None)

    def wait(self, timeout: float | None = None) -> bool:
        self.while_waiting()
        return self.is_set()


class SteppedPump(Pump):
    """The real one without its thread: it goes round once for each :meth:`step`."""

    def __init__(self, tick: Callable[[], float | None], **calls: Any) -> None:
        super().__init__(tick, **calls)
        self._stopping = SteppedEvent()
        self.has_ended = False

    def start(self) -> None:
        if not self._started:
            self._started = True
            self._begin()

    def step(self) -> None:
        if self.has_ended:
            return
        if self.is_stopping:
            self.end()
            return
        try:
            self._tick()
        except KafkaRebalanceError as error:
            self._failure = error
            self.has_ended = True
            self._close()

    def stop(self, timeout_s: float) -> bool:
        self.leave(timeout_s)
        self.end()
        return True

    def end(self) -> None:
        if self._started and not self.has_ended:
            self.has_ended = True
            self._finish()
            self._close()


class ModelStopRequest:
    """What ``stop_gracefully`` tells the planner."""

    def __init__(self, run: str) -> None:
        self.asked: list[dict[str, Any]] | None = None
        self.told_committed: bool | None = None
        self.abandoned = False

    def is_made(self) -> bool:
        return self.asked is not None

    def is_abandoned(self) -> bool:
        return self.abandoned

    def proven(self) -> list[dict[str, Any]]:
        return self.asked or []

    def commits_wanted_s(self) -> float:
        return 60.0

    def answer(self, committed: bool) -> bool:
        self.told_committed = committed
        return False


class ClosedDoor:
    """No sink asks these planners."""

    def __init__(self, run: str, batches: Any) -> None: ...

    def open(self) -> None: ...

    def close(self) -> None: ...


class NoDriverSources:
    """There are no other sources of the driver."""

    def __init__(self, options: SourceOptions, run: str) -> None:
        pass

    def enter(self) -> None:
        pass

    def may_have_siblings(self) -> bool:
        return False

    def leave(self) -> None:
        pass


@dataclass
class Range:
    """What a batch reads of a partition; the rows below an offset say that they are lost."""

    partition: TopicPartition
    start: int
    end: int
    lost_below: int


class Stage(Enum):
    """Between two steps of a trigger."""

    IDLE = "idle"
    PLANNED = "planned"
    LOGGED = "logged"
    READING = "reading"
    SUNK = "sunk"


@dataclass
class Row:
    """A record that reached a sink."""

    query: int
    batch: int
    partition: TopicPartition
    offset: int
    record: Record
    lost: bool


@dataclass
class Process:
    """A planner."""

    reader: KafkaDeferredStreamReader
    stage: Stage = Stage.IDLE
    start: dict[str, Any] = field(default_factory=dict)
    end: dict[str, Any] | None = None
    ranges: list[Range] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    replaying: bool = False
    waiting: bool = False  # in a call

    @property
    def membership(self) -> QueryMembership | None:
        return None if self.reader._run is None else self.reader._run.membership

    @property
    def pump(self) -> SteppedPump:
        assert self.membership is not None
        assert isinstance(self.membership._pump, SteppedPump)
        return self.membership._pump

    def members(self) -> list[Any]:
        """Those that are in the group, or may come into it."""
        if self.membership is None or self.pump.has_ended:
            return []
        return list(self.membership._members)

    @property
    def run(self) -> str:
        return "" if self.reader._run is None else self.reader._run.name


def through_json(offset: dict[str, Any]) -> dict[str, Any]:
    """As it comes back from Spark."""
    parsed: dict[str, Any] = json.loads(json.dumps(offset))
    return parsed


class ModelQuery:
    """A query with its checkpoint; at most one process of it runs."""

    def __init__(self, name: int, group: ModelGroup, **options: str) -> None:
        self.name = name
        self.group = group
        self.options = {
            "subscribe": "t",
            "kafka.bootstrap.servers": "127.0.0.1:1",
            "kafka.group.id": "g",
            **options,
        }
        self.offset_log: list[dict[str, Any]] = []
        self.commit_log: set[int] = set()
        self.process: Process | None = None
        #: What its newest offset may know: how far each partition was handed out when that was
        #: planned, or earlier.
        self.knows: dict[TopicPartition, int] = {}
        self.rows: list[Row] = []  # of batches in the commit log
        self.rows_before = 0  # the process under way
        self.on_sink: Callable[[Row], None] = lambda row: None
        self.on_partitions: Callable[[list[Range], int, bool], None] = lambda *_: None

    # -- life -------------------------------------------------------------------------------------

    def begin(self) -> None:
        options = SourceOptions.parse(self.options, default_readers=1)
        self.process = process = Process(KafkaDeferredStreamReader(options))
        self.rows_before = len(self.rows)
        if self.offset_log:
            process.start = through_json(self.offset_log[-1])
            if len(self.offset_log) - 1 not in self.commit_log:
                process.replaying = True
                process.stage = Stage.LOGGED
                process.end = process.start
                process.start = (
                    through_json(self.offset_log[-2])
                    if len(self.offset_log) > 1
                    else process.reader.initialOffset()
                )
        else:
            process.start = process.reader.initialOffset()

    def die(self) -> None:
        self.process = None

    def stop(self) -> None:
        """``query.stop()``, or the end after an error."""
        assert self.process is not None
        self.process.reader.stop()
        self.process = None

    def stop_gracefully(self) -> bool:
        """Between two batches of this model; whether the planner says that all is committed."""
        assert self.process is not None
        process = self.process
        run = process.reader._run
        request = None if run is None else run.stop_request
        if process.stage is Stage.IDLE and request is not None:
            assert isinstance(request, ModelStopRequest)
            request.asked = [process.start]
            process.reader.latestOffset(process.start, ReadMaxRows(1))
            self.pump()
        self.stop()
        return isinstance(request, ModelStopRequest) and bool(request.told_committed)

    def is_asked_to_stop(self) -> ModelStopRequest | None:
        """By one who proves nothing; between two batches it leaves the group."""
        assert self.process is not None
        run = self.process.reader._run
        if run is None:
            return None
        assert isinstance(run.stop_request, ModelStopRequest)
        run.stop_request.asked = []
        self.process.reader.latestOffset(self.process.start, ReadMaxRows(1))
        self.pump()
        return run.stop_request

    def last_read(self) -> list[Row]:
        """The rows of the last batch of this process that had any, in its sink."""
        rows = self.rows[self.rows_before :]
        last = max((row.batch for row in rows), default=None)
        return [row for row in rows if row.batch == last]

    # -- a trigger --------------------------------------------------------------------------------

    @property
    def batch(self) -> int:
        """The number of the batch under way, or of the next one."""
        return len(self.offset_log) - (
            self.process is not None
            and self.process.stage in (Stage.LOGGED, Stage.READING, Stage.SUNK)
        )

    def step(self, limit: int, actions: int = 1) -> None:
        """Go one stage on."""
        process = self.process
        assert process is not None
        if process.stage is Stage.IDLE:
            process.waiting = True
            end = through_json(process.reader.latestOffset(process.start, ReadMaxRows(limit)))
            process.waiting = False
            if end != process.start:
                process.end, process.stage = end, Stage.PLANNED
                if process.membership is not None:
                    process.positions = process.membership.plannable()
        elif process.stage is Stage.PLANNED:
            assert process.end is not None
            self.offset_log.append(process.end)
            self.knows |= process.positions
            if len(self.offset_log) > 1:
                process.reader.commit(through_json(self.offset_log[-2]))
            process.stage = Stage.LOGGED
        elif process.stage is Stage.LOGGED:
            assert process.end is not None
            for _ in range(actions):
                process.waiting = True
                tasks = process.reader.partitions(process.start, process.end)
                process.waiting = False
                process.ranges = [
                    Range(
                        TopicPartition(one.range.topic, one.range.partition),
                        one.range.start,
                        one.range.end,
                        one.lost_below,
                    )
                    for task in tasks
                    for one in task.value.ranges
                ]
            self.on_partitions(process.ranges, self.name, process.replaying)
            process.stage = Stage.READING
        elif process.stage is Stage.READING:
            process.rows = [
                Row(self.name, self.batch, one.partition, offset, record, offset < one.lost_below)
                for one in process.ranges
                for offset, record in self.group.logs[one.partition].read(one.start, one.end)
            ]
            for row in process.rows:
                self.on_sink(row)
            process.stage = Stage.SUNK
        else:
            self.commit_log.add(self.batch)
            self.rows += process.rows
            assert process.end is not None
            process.start, process.end, process.stage = process.end, None, Stage.IDLE
            process.replaying = False
            process.rows = []

    def trigger(self, limit: int) -> None:
        """Go on until Spark is idle again."""
        self.step(limit)
        while self.process is not None and self.process.stage is not Stage.IDLE:
            self.step(limit)

    def pump(self) -> None:
        """The pump goes round once."""
        if self.process is not None and self.process.membership is not None:
            self.process.pump.step()


class ModelCommitLogWatch:
    """The commit log that the option ``checkpointLocation`` of the source names."""

    queries: list[ModelQuery]
    answers_at_once = True

    def __init__(self, location: str) -> None:
        self._query = next(
            q for q in self.queries if q.options.get("checkpointLocation") == location
        )

    def begin(self) -> None:
        pass

    def is_committed(self, offset: dict[str, Any]) -> bool:
        newest = len(self._query.offset_log) - 1
        return newest in self._query.commit_log and self._query.offset_log[newest] == offset

    def wait_for_answer(self, offset: dict[str, Any], timeout_s: float) -> bool:
        return self.is_committed(offset)


class ModelLocationCheck:
    """The check that the option names the query's checkpoint; it does, in this model."""

    def __init__(self, location: str, stands_at: dict[str, Any] | None) -> None:
        query = next(
            q for q in ModelCommitLogWatch.queries if q.options["checkpointLocation"] == location
        )
        assert stands_at == (query.offset_log[-1] if query.offset_log else None)

    def raise_failure(self) -> None:
        pass
