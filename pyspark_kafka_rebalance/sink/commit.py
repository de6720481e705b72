"""Stand-in until the decision is here: the output in one transaction, without marker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..produce.producer import Producer
from .task_output import outputs_of, read_output

if TYPE_CHECKING:
    from pyspark.sql.datasource import WriterCommitMessage

    from .options.sink_options import SinkOptions


def commit_batch(
    options: SinkOptions, messages: Sequence[WriterCommitMessage | None], batch_id: int
) -> None:
    """Write a batch's output."""
    query = next((each.query_id for each in outputs_of(messages)), None)
    if query is None:
        return
    name = f"kafka_deferred_sink.{query}"
    with Producer(name, **options.producer_config) as producer, producer.transaction() as open_one:
        for topic, batch in read_output(messages):
            open_one.send_encoded(topic, [batch])
