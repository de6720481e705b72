"""kafka_deferred whose planner dies at one point of a trigger, as by kill -9.

The point is in a file beside the checkpoint, which the death consumes. Without the file the source
is as any other.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from pyspark_kafka_rebalance.source.data_source import KafkaDeferredDataSource
from pyspark_kafka_rebalance.source.group.others import foreign_ranges as marking
from pyspark_kafka_rebalance.source.offsets.offset_json import parse_offset
from pyspark_kafka_rebalance.source.spark.spark_versions import reader_for_this_spark
from pyspark_kafka_rebalance.source.stream import KafkaDeferredStreamReader

BEFORE_WAL = "before the WAL"
BEFORE_READ = "between the WAL and the read"
IN_READ = "in the middle of the read"
BEFORE_COMMIT_LOG = "between the sink and the commit log"
BEFORE_GROUP = "between the commit log and the group's commit"
#: For how long nothing may move before a replay that waits for others gives up, where it is short.
SOON_STILL_S = 6.0

POINTS = (BEFORE_WAL, BEFORE_READ, IN_READ, BEFORE_COMMIT_LOG, BEFORE_GROUP)
#: Outside of the planner, which therefore settles the batch before (``DyingReader._settle``).
_ELSEWHERE = (IN_READ, BEFORE_COMMIT_LOG)


class Death:
    """When the planner of a query dies; used by the test, the planner, and executors."""

    def __init__(self, checkpoint: str) -> None:
        self._point = Path(f"{checkpoint}.dies")
        self._planner = Path(f"{checkpoint}.planner")
        self._settled = Path(f"{checkpoint}.settled")

    def arm(self, point: str) -> None:
        self._settled.unlink(missing_ok=True)
        unfinished = self._point.with_suffix(".half")
        unfinished.write_text(point)
        unfinished.rename(self._point)

    @property
    def is_armed(self) -> bool:
        return self._point.exists()

    def planner_is_here(self) -> None:
        self._planner.write_text(str(os.getpid()))

    def batch_is_settled(self) -> None:
        """The group has all of the batches before the one that is planned now."""
        self._settled.touch()

    def come(self, point: str) -> bool:
        """Kill the planner if this is the point; in the planner itself this does not return."""
        if not self.is_armed or self._point.read_text() != point:
            return False
        if point in _ELSEWHERE and not self._settled.exists():
            return False  # armed while this batch was under way: in the next one
        self._point.unlink()
        os.kill(int(self._planner.read_text()), signal.SIGKILL)
        return True


def has_ranges(offset: dict) -> bool:
    return bool(parse_offset(offset).ranges)


class DyingReader(KafkaDeferredStreamReader):
    @property
    def _death(self) -> Death:
        return Death(self._options.checkpoint_location)

    def _settle(self):
        """Let the group have what is proven, so that a death is at this batch's point alone."""
        while self._death.is_armed and self._run and self._run.membership.commits.are_open():
            self._run.membership.raise_failure()
            time.sleep(0.005)

    def latestOffset(self, start, limit):
        self._death.planner_is_here()
        if has_ranges(start):
            self._settle()
            self._death.come(BEFORE_GROUP)
        end = super().latestOffset(start, limit)
        if end != start and has_ranges(end):
            self._settle()
            self._death.come(BEFORE_WAL)
        return end

    def partitions(self, start, end):
        if start != end and self._death.is_armed:
            self._settle()
            if has_ranges(end):
                self._death.come(BEFORE_READ)
            self._death.batch_is_settled()
        return super().partitions(start, end)

    def read(self, partition):
        for batch in super().read(partition):
            yield batch.slice(0, 1)
            if batch.num_rows and self._death.come(IN_READ):
                raise RuntimeError(IN_READ)
            yield batch.slice(1)


class DyingDataSource(KafkaDeferredDataSource):
    @classmethod
    def name(cls):
        return "kafka_deferred_dying"

    def streamReader(self, schema):
        return reader_for_this_spark(DyingReader, self._parsed.for_stream())


class ImpatientDataSource(DyingDataSource):
    """Whose replays wait for others for less than a session, once nothing moves."""

    @classmethod
    def name(cls):
        return "kafka_deferred_impatient"

    def streamReader(self, schema):  # in the planner's process
        marking.STILL_S = SOON_STILL_S
        return super().streamReader(schema)
