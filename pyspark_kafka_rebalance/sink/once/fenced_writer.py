"""FencedWriter: the one producer that may write a query's batches, and the query's last marker.

A process keeps it from one batch to the next. The first batch of a process, or of a run, takes the
transactional id over: InitProducerId fences the process before, and aborts what that left open.
Then nobody can write the query's markers but this one, and the last one is read.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import pickle
import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kafka.errors import KafkaError

from ...errors import KafkaRebalanceError, TransactionAbortedError, TransactionInDoubtError
from ...produce.encoder.partitioner import partition_of_key
from ...produce.producer import GroupMetadata, Offset, Producer, Transaction
from ...source.door.snapshot import Snapshot
from .decision import may_take_over
from .marker import Marker
from .marker_topic import ensure_marker_topic, read_marker
from .query_checkpoint import QueryCheckpoint

if TYPE_CHECKING:
    from ...produce.encoder.encoded_batch import EncodedBatch
    from ..options.sink_options import SinkOptions

log = logging.getLogger(__name__)

#: Of every transaction: 10 s, and a second for each 5 MB of output, which a slow network takes. It
#: begins when all is encoded, so it is open for as long as sending takes. If its process dies,
#: readers wait for so long, and for the brokers' look at time-outs (10 s by default).
_BASE_TIMEOUT_MS = 10_000
_BYTES_PER_S = 5_000_000

#: How often a run tries to take its query over.
_CLAIMS = 3

#: ``transaction.max.timeout.ms``, unless it is set.
_BROKERS_MAXIMUM_MS = 900_000


def transactional_id_of(key: str) -> str:
    """Return the transactional id of a query, or of its writes in foreachBatch."""
    return f"kafka_deferred_sink.{key}"


def timeout_ms_for(size: int) -> int:
    """Return the timeout of a transaction with this many bytes: a power of two times 10 s.

    So that few outputs need another one than those before, which takes another InitProducerId. Not
    rounded above the brokers' default maximum.
    """
    timeout_ms, needed = _BASE_TIMEOUT_MS, _BASE_TIMEOUT_MS + size * 1000 // _BYTES_PER_S
    while timeout_ms < needed:
        timeout_ms *= 2
    return max(needed, min(timeout_ms, _BROKERS_MAXIMUM_MS))


class FencedWriter:
    """Writes batches of one query. Not thread-safe.

    Parameters
    ----------
    options : SinkOptions
    key : str
        Of the markers.
    run : str
        Spark's id of the query's run.
    checkpoint : QueryCheckpoint, optional
        Notes which run has taken over; None in foreachBatch.
    size : int
        Of the output to come, in bytes.

    Raises
    ------
    KafkaRebalanceError
        Another run has taken the query over.
    OptionError, AuthorizationError, kafka.errors.KafkaError
        As `Producer`, `ensure_marker_topic` and `read_marker`.
    """

    def __init__(
        self,
        options: SinkOptions,
        key: str,
        run: str,
        checkpoint: QueryCheckpoint | None,
        size: int,
    ) -> None:
        self._topic = options.marker_topic
        self._key = key
        self._run = run
        self._checkpoint = checkpoint
        self.timeout_ms = timeout_ms_for(size)
        client = options.client
        self.cluster_id = ensure_marker_topic(client, self._topic)
        has_owned = (key, run) in _owned or (checkpoint is not None and run in checkpoint.owners)
        if has_owned:  # if it is not the owner any more, it must not fence the newer one
            may_take_over(key, run, read_marker(client, self._topic, key), has_owned)
        config = {**options.producer_config, "transaction_timeout_ms": self.timeout_ms}
        self._producer = Producer(transactional_id_of(key), **config)
        try:
            self._producer.initialize()
            self.marker = read_marker(client, self._topic, key)
            if may_take_over(key, run, self.marker, has_owned):
                self._take_over()
        except BaseException:
            self.close()
            raise
        log.info(
            "query %s: transactional id %s, transactions of at most %g s",
            *(key, transactional_id_of(key), self.timeout_ms / 1000),
        )

    def _take_over(self) -> None:
        before = self.marker or Marker(-1, "", "", "", "", 0)
        mine = replace(before, run=self._run, host=socket.gethostname(), pid=os.getpid())
        with self._producer.transaction() as claim:
            self._send(claim, mine)
        self.marker = mine
        # Not before: a run whose claim was aborted has to claim once more.
        _owned.add((self._key, self._run))
        if self._checkpoint is not None:
            self._checkpoint.note_owner(self._run)

    def write(
        self,
        batch: int,
        digest: str,
        output: Iterator[tuple[str, EncodedBatch]],
        sources: Sequence[Snapshot],
    ) -> None:
        """Write a batch in one transaction, with the offsets of its sources and its marker.

        Raises
        ------
        TransactionAbortedError
            Nothing of it will ever be read.
        TransactionInDoubtError
            The marker says, once another writer has read it.
        kafka.errors.KafkaTimeoutError
            Likewise.
        """
        marker = Marker(batch, digest, self._run, self._run, socket.gethostname(), os.getpid())
        with self._producer.transaction() as transaction:
            for source in sources:
                if source.fenced:
                    _send_offsets(transaction, source)
            for topic, encoded in output:
                transaction.send_encoded(topic, [encoded])
            self._send(transaction, marker)
        self.marker = marker

    @property
    def is_replaced(self) -> bool:
        """Whether it cannot write any more: its producer is fenced, or has failed."""
        return self._producer.has_failed or self._producer.is_refused

    def close(self) -> None:
        """Close the producer; what is open is aborted by the next one."""
        with contextlib.suppress(KafkaError, KafkaRebalanceError):
            self._producer.close(timeout_ms=0)

    def _send(self, transaction: Transaction, marker: Marker) -> None:
        key = self._key.encode()
        partition = partition_of_key(key, self._producer.partitions_for(self._topic))
        transaction.send(self._topic, marker.to_bytes(), key, None, partition)


def _send_offsets(transaction: Transaction, source: Snapshot) -> None:
    for member in source.members:
        group = GroupMetadata(
            source.group_id, member.generation, member.member_id, member.instance_id
        )
        offsets = {p: Offset(at, metadata) for p, (at, metadata) in member.offsets.items()}
        transaction.send_offsets(group, offsets)


#: Those of this process, with the options and the run that they are for.
_writers: dict[str, tuple[bytes, FencedWriter]] = {}

#: The runs that this process has made the owners of their queries, by the keys of these. Writes in
#: foreachBatch have no checkpoint that knows.
_owned: set[tuple[str, str]] = set()


def writer_for(
    options: SinkOptions, key: str, run: str, checkpoint: QueryCheckpoint | None, size: int
) -> FencedWriter:
    """Return this process's writer of a query; makes one if there is none that suits."""
    suits = pickle.dumps((options.producer_config, options.marker_topic, run))
    found = _writers.get(key)
    if found is not None:
        if found[0] == suits and found[1].timeout_ms >= timeout_ms_for(size):
            return found[1]
        drop_writer(key)
    if not _writers:
        atexit.register(_close_all)
    writer = _claimed(options, key, run, checkpoint, size)
    _writers[key] = suits, writer
    return writer


def _claimed(
    options: SinkOptions, key: str, run: str, checkpoint: QueryCheckpoint | None, size: int
) -> FencedWriter:
    """Make a writer. An older run may fence it before its claim is written, once: it reads that."""
    for _ in range(_CLAIMS - 1):
        try:
            return FencedWriter(options, key, run, checkpoint, size)
        except (TransactionAbortedError, TransactionInDoubtError) as error:
            log.warning("query %s: claiming it again: %s", key, error)
    return FencedWriter(options, key, run, checkpoint, size)


def drop_writer(key: str) -> None:
    """Close a writer whose transaction was aborted or is in doubt; idempotent."""
    found = _writers.pop(key, None)
    if found is not None:
        found[1].close()


def _close_all() -> None:
    for key in list(_writers):
        drop_writer(key)
