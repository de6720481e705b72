"""Rows of several topics, by topic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from ..errors import KafkaRebalanceError

if TYPE_CHECKING:
    from .columns import Columns


def rows_by_topic(
    batch: pa.RecordBatch, columns: Columns, topic: str | None
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield each topic's rows, in their order, with the columns that the encoder takes.

    Parameters
    ----------
    batch : pyarrow.RecordBatch
        As Spark hands it to a task.
    columns : Columns
        Where its columns are.
    topic : str, optional
        The option.

    Raises
    ------
    KafkaRebalanceError
        A row has no topic.
    """
    rows = pa.RecordBatch.from_arrays(
        [batch.column(at) for _, at in columns.encoded], [name for name, _ in columns.encoded]
    )
    if topic is not None:
        yield topic, rows
        return
    assert columns.topic is not None
    if not batch.num_rows:
        return
    encoded = batch.column(columns.topic).dictionary_encode()
    if encoded.null_count:
        raise KafkaRebalanceError(
            "null topic present in the data. Use the topic option for setting a topic."
        )
    names = encoded.dictionary.to_pylist()
    if len(names) == 1:
        yield names[0], rows
        return
    import pyarrow.compute as pc

    by_topic = pc.sort_indices(encoded.indices)  # stable
    rows = rows.take(by_topic)
    sizes = {each["values"]: each["counts"] for each in encoded.indices.value_counts().to_pylist()}
    start = 0
    for at, name in enumerate(names):
        yield name, rows.slice(start, sizes[at])
        start += sizes[at]
