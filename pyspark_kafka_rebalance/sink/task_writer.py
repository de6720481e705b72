"""What a task does: rows to record batches, and these to the process that commits, or to Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from ..produce.encoder.arrow_encoder import ArrowEncoder
from ..produce.encoder.partitioner import StickyPartition
from .collected_batches import CollectedBatches
from .producers import drop_producer, producer_for
from .spill.spill_folder import spill_file_of
from .task_context import TaskIdentity
from .task_output import TaskOutput
from .topic_rows import rows_by_topic

if TYPE_CHECKING:
    import pyarrow as pa

    from ..produce.encoder.encoded_batch import EncodedBatch
    from ..produce.encoder.settings import EncoderSettings
    from .columns import Columns
    from .options.sink_options import SinkOptions

#: What all topics' and partitions' open batches may have, in bytes before compression; beyond, all
#: are closed.
_MOST_OPEN_BYTES = 64 * 1024 * 1024


def write_task(
    options: SinkOptions, columns: Columns, write_id: str, rows: Iterator[pa.RecordBatch]
) -> TaskOutput:
    """Encode a task's rows, and write them if the delivery is at least once.

    Raises
    ------
    KafkaRebalanceError, RecordTooLargeError, ValueError
        A row is not allowed.
    kafka.errors.KafkaError
        A topic is not known, or records could not be delivered.
    """
    task = TaskIdentity.current()
    if options.delivery == "at_least_once":
        return _sent(options, columns, task, rows)
    return _collected(options, columns, task, write_id, rows)


def _collected(
    options: SinkOptions,
    columns: Columns,
    task: TaskIdentity,
    write_id: str,
    rows: Iterator[pa.RecordBatch],
) -> TaskOutput:
    collected = CollectedBatches(spill_file_of(task, options.checkpoint_location, write_id))
    try:
        for topic, batches in _encoded(options, columns, rows):
            collected.add(topic, batches)
        return collected.output(task)
    except BaseException:
        collected.drop()
        raise


def _sent(
    options: SinkOptions, columns: Columns, task: TaskIdentity, rows: Iterator[pa.RecordBatch]
) -> TaskOutput:
    records = size = 0
    producer = producer_for(options)
    try:
        for topic, batches in _encoded(options, columns, rows):
            records += sum(batch.records for batch in batches)
            size += sum(len(batch.data) for batch in batches)
            producer.send_encoded(topic, batches)
        producer.flush()
    except BaseException:
        drop_producer(options)  # it has records of this attempt, or its errors
        raise
    return TaskOutput(
        task.task, task.query_id, task.run_id, task.session_checkpoint, records=records, bytes=size
    )


def _encoded(
    options: SinkOptions, columns: Columns, rows: Iterator[pa.RecordBatch]
) -> Iterator[tuple[str, list[EncodedBatch]]]:
    encoders = Encoders(options.encoder, lambda name: producer_for(options).topic_partitions(name))
    for batch in rows:
        for topic, its_rows in rows_by_topic(batch, columns, options.topic):
            if full := encoders.of(topic).add(its_rows):
                yield topic, full
        yield from encoders.flush_beyond(_MOST_OPEN_BYTES)
    yield from encoders.flush_beyond(-1)


class Encoders:
    """One encoder for each topic of a task.

    Parameters
    ----------
    settings : EncoderSettings
    partitions_of : callable
        Returns how many partitions a topic has, and which of them have a leader.
    """

    def __init__(
        self, settings: EncoderSettings, partitions_of: Callable[[str], tuple[int, list[int]]]
    ) -> None:
        self._settings = settings
        self._partitions_of = partitions_of
        self._encoders: dict[str, ArrowEncoder] = {}

    def of(self, topic: str) -> ArrowEncoder:
        """Return a topic's encoder; asks for its partitions the first time."""
        encoder = self._encoders.get(topic)
        if encoder is None:
            partitions, available = self._partitions_of(topic)
            sticky = StickyPartition(partitions, available)
            encoder = ArrowEncoder(topic, partitions, self._settings, sticky)
            self._encoders[topic] = encoder
        return encoder

    def flush_beyond(self, most_bytes: int) -> Iterable[tuple[str, list[EncodedBatch]]]:
        """Close all batches if they have more than this; yield topic and batches."""
        if sum(encoder.open_bytes for encoder in self._encoders.values()) <= most_bytes:
            return
        for topic, encoder in self._encoders.items():
            if full := encoder.flush():
                yield topic, full
