"""The peer: a consumer that drains inside its rebalance listener, as consumers do today.

Plain kafka-python with the cooperative assignor. A worker thread processes the polled records; when
partitions are revoked, the listener waits until their records are processed, commits, and only then
returns. That is the right way to avoid duplicates without KIP-983, and it holds up the poll loop:
no records arrive for the partitions that stay, either.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from kafka import KafkaConsumer
from kafka.consumer.subscription_state import AsyncConsumerRebalanceListener
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.structs import OffsetAndMetadata, TopicPartition

from pyspark_kafka_rebalance.testing.child_process import ChildProcess, orders, tell
from pyspark_kafka_rebalance.testing.ledger import LedgerWriter


class BlockingConsumerProcess(ChildProcess):
    """One such consumer in its own process; the same interface as ``QueryProcess``."""

    def __init__(
        self,
        name: str,
        consumer_config: Mapping[str, Any],
        *,
        topic: str,
        ledger: Path,
        work: Path,
        batch_s: float,
        on_event: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        settings = {
            "name": name,
            "topic": topic,
            "ledger": str(ledger),
            "batch_s": batch_s,
            "consumer": dict(consumer_config),
        }
        super().__init__(name, __name__, settings, work=work, on_event=on_event)

    def release(self) -> None:
        """Let the consumer join the group."""
        self.order("go")


class Worker:
    """Processes batches on a thread of its own and knows how far each partition is."""

    def __init__(self, writer: LedgerWriter, batch_s: float) -> None:
        self._writer = writer
        self._batch_s = batch_s
        self._changed = threading.Condition()
        self._waiting: dict[TopicPartition, list[int]] = {}
        self._working_on: frozenset[TopicPartition] = frozenset()
        self._processed: dict[TopicPartition, int] = {}
        self._revoked: set[TopicPartition] = set()
        self._batch = 0
        threading.Thread(target=self._run, daemon=True).start()

    def hand_over(self, records: Mapping[TopicPartition, Collection[Any]]) -> None:
        """Queue polled records for the next batch."""
        with self._changed:
            for partition, of_partition in records.items():
                if partition not in self._revoked:  # while it was on its way from poll to here
                    self._waiting.setdefault(partition, []).extend(r.offset for r in of_partition)
            self._changed.notify_all()

    def begin(self, partitions: Collection[TopicPartition]) -> None:
        """Note that these are assigned; forget how far they were processed before."""
        with self._changed:
            self._revoked -= set(partitions)
            for partition in partitions:
                self._processed.pop(partition, None)

    def end(self, partitions: Collection[TopicPartition]) -> None:
        """Note that these are no longer assigned: take no more records of them."""
        with self._changed:
            self._revoked |= set(partitions)

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Forget records that are not being processed yet."""
        with self._changed:
            for partition in partitions:
                self._waiting.pop(partition, None)

    def wait_for(self, partitions: Collection[TopicPartition]) -> None:
        """Wait until every record of these is processed."""
        theirs = set(partitions)
        with self._changed:
            self._changed.wait_for(lambda: not theirs & (self._working_on | self._waiting.keys()))

    def drain(self) -> None:
        """Wait until everything is processed."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting and not self._working_on)

    def processed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Any]:
        """Return the offsets to commit."""
        with self._changed:
            return {
                partition: OffsetAndMetadata(self._processed[partition], "", -1)
                for partition in partitions
                if partition in self._processed
            }

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting))
                batch, self._waiting = self._waiting, {}
                self._working_on = frozenset(batch)
            began_at = time.time()
            rows = [
                (p.topic, p.partition, offset) for p, offsets in batch.items() for offset in offsets
            ]
            tell("began", batch=self._batch, rows=len(rows))
            time.sleep(self._batch_s)
            names = ("topic", "partition", "offset")
            columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
            self._writer.write(self._batch, pa.table(columns), began_at)
            tell("batch", batch=self._batch, rows=len(rows), lost=0)
            with self._changed:
                self._processed |= {p: offsets[-1] + 1 for p, offsets in batch.items()}
                self._working_on = frozenset()
                self._batch += 1
                self._changed.notify_all()


class DrainingListener(AsyncConsumerRebalanceListener):  # type: ignore[misc]
    """Waits for the records of revoked partitions, and commits them, inside the callback."""

    def __init__(self, consumer: KafkaConsumer, worker: Worker) -> None:
        self._consumer = consumer
        self._worker = worker

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        """Drain and commit, which blocks the poll loop."""
        self._worker.end(revoked)
        self._worker.wait_for(revoked)
        if offsets := self._worker.processed(revoked):
            # kafka-python's synchronous listeners cannot commit; this is why it is a coroutine.
            await self._consumer.commit_async(offsets)

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        """The consumer continues at the committed offsets."""
        self._worker.begin(assigned)

    async def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        """Drop the queued records: it is too late to commit them."""
        self._worker.end(lost)
        self._worker.drop(lost)


def main(settings: dict[str, Any]) -> None:
    """Consume until "stop" on standard input, or until it ends."""
    tell("ready")
    given = orders()
    if next(given) == "stop":
        tell("stopped")
        return
    stop = threading.Event()

    def obey() -> None:
        while next(given) != "stop":
            pass
        stop.set()

    threading.Thread(target=obey, daemon=True).start()
    worker = Worker(LedgerWriter(Path(settings["ledger"]), settings["name"]), settings["batch_s"])
    consumer = KafkaConsumer(
        client_id=settings["name"],
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        partition_assignment_strategy=[CooperativeStickyAssignor],
        max_poll_records=100_000,
        **settings["consumer"],
    )
    consumer.subscribe([settings["topic"]], listener=DrainingListener(consumer, worker))
    committed: dict[TopicPartition, Any] = {}
    while not stop.is_set():
        worker.hand_over(consumer.poll(100))
        # The next commit, or the listener, makes up for one that is refused during a rebalance.
        offsets = worker.processed(consumer.assignment())
        if offsets != committed:
            consumer.commit_async(offsets)
            committed = offsets
    worker.drain()
    if offsets := worker.processed(consumer.assignment()):
        consumer.commit(offsets)
    consumer.close(autocommit=False)
    tell("stopped")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
