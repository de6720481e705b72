"""KafkaDeferredBatchReader: ``spark.read``, from one offset to another in every partition.

A batch joins no group, commits nothing, and reads the same records as Spark's own Kafka source.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from .offset_lookup import batch_ranges
from .plan.tasks import ReadTask, TaskRange, split_tasks
from .reading import TaskPartition, read_task
from .spark.shown_errors import shows_our_errors

if TYPE_CHECKING:
    import pyarrow as pa

    from .options.source_options import SourceOptions

log = logging.getLogger(__name__)

#: Options for streams only; Spark's own source ignores them in a batch, too.
_IGNORED = ("minOffsetsPerTrigger", "maxTriggerDelay", "maxOffsetsPerTrigger", "maxBytesPerTrigger")


@shows_our_errors
class KafkaDeferredBatchReader(DataSourceReader):
    """One batch read. Pure and picklable; Spark calls :meth:`partitions` once for each action."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks: one per partition with something to read, or more if the options ask.

        Raises KafkaRebalanceError if a topic or an offset cannot be found.
        """
        options = self._options
        if ignored := [name for name in _IGNORED if name.lower() in options.given]:
            log.warning("a batch has no triggers, and ignores %s", ", ".join(ignored))
        tasks = [
            ReadTask((TaskRange(offset_range, generation=None, revoking=False),))
            for offset_range in batch_ranges(options)
        ]
        tasks = split_tasks(tasks, options.min_partitions, options.max_records_per_partition)
        return [TaskPartition(task) for task in tasks or [ReadTask()]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one task."""
        return read_task(partition.value, self._options)
