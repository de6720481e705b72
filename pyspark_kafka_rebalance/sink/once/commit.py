"""The commit of a batch: decide, write, tell the sources. Runs on the driver's host.

Kafka decides, and Spark's commit log follows: whatever is interrupted here is found out by the
next attempt, from the query's marker.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kafka import errors as kafka_errors

from ...errors import KafkaRebalanceError, TransactionAbortedError, TransactionInDoubtError
from ...source.door.planner_client import ask_planner, tell_planner
from ..task_output import output_size, outputs_of, read_output
from .decision import (
    BatchAtHand,
    Decision,
    decide,
    is_written_already,
    refuse_another_cluster,
)
from .fenced_writer import FencedWriter, drop_writer, writer_for
from .query_checkpoint import BatchInput, QueryCheckpoint, checkpoint_of

if TYPE_CHECKING:
    from pyspark.sql.datasource import WriterCommitMessage

    from ...source.door.snapshot import Outcome, Snapshot
    from ..options.sink_options import SinkOptions

log = logging.getLogger(__name__)

#: How often a batch is tried whose transaction is aborted, by a time-out or since a member of the
#: group has another generation. Each time it is decided anew.
_ATTEMPTS = 5


def commit_batch(
    options: SinkOptions, messages: Sequence[WriterCommitMessage | None], batch_id: int
) -> None:
    """Write a batch once, whoever tries it, and however often.

    Parameters
    ----------
    options : SinkOptions
    messages : sequence
        What the tasks have encoded: see `TaskOutput`.
    batch_id : int
        Spark's number of the batch; in foreachBatch the option ``batchId``.

    Raises
    ------
    KafkaRebalanceError
        It is not written, and cannot be left out; says why, and what to do.
    kafka.errors.KafkaError
        The brokers refuse it, or do not answer in time.
    """
    outputs = outputs_of(messages)
    if not outputs:  # no task has run: the query needs nothing of this batch
        return
    query = next((each.query_id for each in outputs if each.query_id is not None), None)
    run = next((each.run_id for each in outputs if each.run_id is not None), None)
    if query is None or run is None:
        raise KafkaRebalanceError(
            "the query of this write is not known: batchId is for writes in foreachBatch, on the "
            "DataFrame that it gets"
        )
    if options.batch_id is not None:
        name = hashlib.sha256(f"{options.topic}".encode()).hexdigest()[:16]
        _write_once(options, messages, f"{query}.{name}", run)
        return
    session = [each.session_checkpoint for each in outputs]
    checkpoint = QueryCheckpoint(checkpoint_of(options.checkpoint_location, session, query))
    if checkpoint.query_id != query:
        raise KafkaRebalanceError(
            f"checkpointLocation names the checkpoint of query {checkpoint.query_id}, and this is "
            f"query {query}"
        )
    _commit(options, messages, checkpoint, checkpoint.input_of(batch_id), run)


def _write_once(
    options: SinkOptions, messages: Sequence[WriterCommitMessage | None], key: str, run: str
) -> None:
    """Write in foreachBatch: the number of the batch alone tells whether it was written.

    A run of a query runs each batch once, so what this run has written is no replay.
    """
    batch = options.batch_id
    assert batch is not None
    for attempt in range(1, _ATTEMPTS + 1):
        writer = writer_for(options, key, run, None, output_size(messages))
        marker = writer.marker
        if is_written_already(key, batch, marker):
            if attempt == 1 and marker is not None and marker.written_by == run:
                raise KafkaRebalanceError(
                    f"batchId {batch}: this run has written that batch to "
                    f"{options.topic or 'topics by column'} before, and a second write of it would "
                    "be taken for a repetition: write all of a batch's rows at once"
                )
            log.info("batch %d of %s is written already", batch, key)
            return
        if _is_written(writer, key, attempt, batch, "", messages, ()):
            return


def _commit(
    options: SinkOptions,
    messages: Sequence[WriterCommitMessage | None],
    checkpoint: QueryCheckpoint,
    found: BatchInput,
    run: str,
) -> None:
    query = checkpoint.query_id
    assert query is not None
    for attempt in range(1, _ATTEMPTS + 1):
        writer = writer_for(options, query, run, checkpoint, output_size(messages))
        sources = [ask_planner(each.run, each.end, by_sink=True) for each in found.group_sources]
        at_hand = BatchAtHand(
            query=query,
            batch=found.batch,
            digest=found.digest,
            run=run,
            follows_group=bool(sources)
            and not found.has_others
            and all(source.fenced for source in sources),
            is_stateful=checkpoint.is_stateful,
        )
        refuse_another_cluster(query, sources, writer.cluster_id)
        decision = decide(at_hand, writer.marker, sources)
        if decision is Decision.WRITE and not _is_written(
            writer, query, attempt, found.batch, found.digest, messages, sources
        ):
            continue
        if decision is Decision.SKIP:
            log.info("batch %d of query %s is written already", found.batch, query)
        elif decision is Decision.DROP:
            log.warning("batch %d of query %s: partitions were lost", found.batch, query)
        for each, source in zip(found.group_sources, sources, strict=True):
            is_dropped = decision is Decision.DROP and source.state != "decided"
            outcome: Outcome = "dropped" if is_dropped else "committed"
            tell_planner(each.run, each.end, outcome)
        return


def _is_written(
    writer: FencedWriter,
    key: str,
    attempt: int,
    batch: int,
    digest: str,
    messages: Sequence[WriterCommitMessage | None],
    sources: Sequence[Snapshot],
) -> bool:
    """Write a batch; False if it is to be decided again. Raises the error of the last attempt."""
    try:
        writer.write(batch, digest, read_output(messages), sources)
    except (
        TransactionAbortedError,
        TransactionInDoubtError,
        kafka_errors.KafkaTimeoutError,
    ) as error:
        # After an abort, the last marker is known, and the same producer refuses what comes late.
        if not isinstance(error, TransactionAbortedError) or writer.is_replaced:
            drop_writer(key)
        if attempt == _ATTEMPTS:
            raise
        log.warning("batch %d of %s: %s; deciding again", batch, key, error)
        return False
    except BaseException:
        drop_writer(key)
        raise
    return True
