"""A plain member of a plan: DeferredRevokeConsumer or librdkafka, in a process with a ledger.

What it is handed it completes some polls later, writes to its ledger, and then commits.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

import confluent_kafka
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance import DeferredRevokeConsumer, PartitionsLostError
from pyspark_kafka_rebalance.testing.child_process import orders, tell

from .plan_query import LedgerLines

POLL_MS = 50
#: A poll's records are completed so many polls later.
POLLS = 3
CLOSE_TIMEOUT_MS = 60_000


class Orders:
    """What it is told: to leave, or to be slow once."""

    def __init__(self) -> None:
        self.leave = threading.Event()
        self._slow_s = 0.0
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for order in orders():
            if order == "stop":
                self.leave.set()
                return
            self._slow_s = json.loads(order)["seconds"]

    def take_time(self) -> None:
        seconds, self._slow_s = self._slow_s, 0.0
        time.sleep(seconds)


def write(ledger: LedgerLines, batch: int, at: float, rows: Iterable[tuple[Any, ...]]) -> None:
    ledger.write(event="batch", at=at, completed=time.time(), batch=batch, rows=list(rows))


def run_ours(settings: dict[str, Any], ledger: LedgerLines, given: Orders) -> None:
    """Complete records in order, delay revokes until then, commit in the background.

    With ``disorder`` it commits in the background once more what is lower, which means nothing.
    """
    group = {
        "group_id": settings["group"],
        "group_protocol": settings["protocol"],
        "client_id": settings["name"],
        "session_timeout_ms": settings["session_ms"],
        "heartbeat_interval_ms": 500,
        "auto_offset_reset": "earliest",
        "isolation_level": settings["isolation"],
        "metadata_max_age_ms": 1_000,
        "reconnect_backoff_max_ms": 200,
        "proxy_url": settings["proxy_url"],
    }
    servers = settings["servers"]
    consumer = DeferredRevokeConsumer(*settings["topics"], bootstrap_servers=servers, **group)
    held: deque[tuple[int, float, TopicPartition, list[Any]]] = deque()
    polls = 0

    def turn(last: bool = False) -> None:
        nonlocal polls
        result = consumer.poll_with_rebalance(timeout_ms=POLL_MS)
        polls += 1
        now = time.time()
        if result.lost:
            ledger.write(event="lost", at=now)
        gone = result.lost | result.revoked
        kept = [one for one in held if one[2] not in gone]
        held.clear()
        held.extend(kept)
        held.extend((polls + POLLS, now, p, records) for p, records in result.records.items())
        given.take_time()
        while held and (held[0][0] <= polls or last):
            _, at, partition, records = held.popleft()
            rows = [(*partition, r.offset, r.value.decode(), False, False) for r in records]
            write(ledger, polls, at, rows)
            try:
                consumer.commit_processed({partition: records[-1].offset + 1})
                if settings["disorder"]:  # as from a thread that is late
                    consumer.commit_processed({partition: records[0].offset + 1})
            except PartitionsLostError as lost:
                tell("lost", error=str(lost))
        consumer.delay_revoke(result.to_be_revoked & {partition for _, _, partition, _ in held})

    try:
        tell("started")
        while not given.leave.is_set():
            turn()
        consumer.pause(*consumer.assignment())
        turn(last=True)  # what it commits then, is under way when it closes
    finally:
        consumer.close(timeout_ms=CLOSE_TIMEOUT_MS)


def run_librdkafka(settings: dict[str, Any], ledger: LedgerLines, given: Orders) -> None:
    """Complete each message at once, and commit after each turn and before each revoke."""
    config = {
        "bootstrap.servers": settings["servers"],
        "group.id": settings["group"],
        "client.id": settings["name"],
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "group.protocol": settings["protocol"],
        "isolation.level": settings["isolation"],
        "topic.metadata.refresh.interval.ms": 1_000,
        "reconnect.backoff.max.ms": 200,
    }
    if settings["protocol"] == "classic":
        config |= {
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": settings["session_ms"],
            "heartbeat.interval.ms": 500,
        }
    consumer = confluent_kafka.Consumer(config)
    reached: dict[TopicPartition, int] = {}

    def commit(partitions: Iterable[TopicPartition]) -> None:
        due = {p: reached.pop(p) for p in list(partitions) if p in reached}
        if due:
            try:
                named = [confluent_kafka.TopicPartition(*p, offset) for p, offset in due.items()]
                consumer.commit(offsets=named, asynchronous=False)
            except confluent_kafka.KafkaException as error:  # in the midst of a rebalance
                reached.update({p: offset for p, offset in due.items() if p not in reached})
                tell("uncommitted", error=str(error))

    def names(partitions: Iterable[Any]) -> set[TopicPartition]:
        return {TopicPartition(p.topic, p.partition) for p in partitions}

    def on_assign(_: Any, assigned: list[Any]) -> None:
        consumer.incremental_assign(assigned)

    def give_up(partitions: list[Any]) -> None:
        # What could not be committed, as in the restart of a coordinator, comes again.
        if [reached.pop(p) for p in names(partitions) if p in reached]:
            ledger.write(event="lost", at=time.time())
        consumer.incremental_unassign(partitions)

    def on_revoke(_: Any, revoked: list[Any]) -> None:
        commit(names(revoked))
        give_up(revoked)

    def on_lost(_: Any, lost: list[Any]) -> None:
        give_up(lost)

    consumer.subscribe(
        settings["topics"], on_assign=on_assign, on_revoke=on_revoke, on_lost=on_lost
    )
    tell("started")
    turns = 0
    try:
        while not given.leave.is_set():
            turns += 1
            wait_s = POLL_MS / 1_000
            for _ in range(200):
                message = consumer.poll(wait_s)
                if message is None:
                    break
                if message.error() is not None:
                    tell("error", error=str(message.error()))
                    continue
                at = time.time()
                given.take_time()
                where = message.topic(), message.partition()
                row = (*where, message.offset(), message.value().decode(), False, False)
                write(ledger, turns, at, [row])
                reached[TopicPartition(*where)] = message.offset() + 1
                wait_s = 0.0
            commit(list(reached))
        commit(list(reached))
    finally:
        consumer.close()


def main(settings: dict[str, Any]) -> None:
    """Run until standard input says "stop" or ends."""
    given = Orders()
    ledger = LedgerLines(settings["ledger"])
    run = run_librdkafka if settings["kind"] == "librdkafka" else run_ours
    run(settings, ledger, given)
    tell("stopped", complete=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
