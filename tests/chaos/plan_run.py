"""Carries out a plan on real brokers and real Spark, and has its history judged."""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.testing import LocalKafka

from . import plan_admin
from .deletions import Deletions
from .events import Away, Produced
from .own_losses import OwnLosses
from .plan_history import History, Outcome
from .plan_input import Input, Producing, ProducingTransactions, Watch
from .plan_reader import RunningReader
from .plan_sparks import Sparks
from .random_plans import (
    ANEW,
    COMPACTED,
    DELETING,
    PRODUCED,
    PRODUCERS,
    SELDOM_S,
    SESSION_S,
    TOPICS,
    Fault,
    Plan,
    Reader,
)
from .renewed_topics import RenewedTopics
from .surroundings import PATIENCE_S, wait_until_in_sync

log = logging.getLogger(__name__)

#: So long nothing may be delivered or committed before the readers are given up. A replay that
#: waits for others waits a session and half a minute.
STILL_S = 75.0

#: Compacted every few seconds, even while it is written.
_SOON = {
    "cleanup.policy": "compact",
    "segment.ms": 1_000,
    "min.cleanable.dirty.ratio": 0.001,
    "delete.retention.ms": 600_000,
}


class PlanRun:
    """One run of a plan.

    Parameters
    ----------
    kafka : LocalKafka
        Three brokers, which run afterwards.
    sparks : Sparks
    plan : Plan
    work : Path
        Gets a folder for this run.
    """

    def __init__(self, kafka: LocalKafka, sparks: Sparks, plan: Plan, work: Path) -> None:
        self.kafka = kafka
        self.sparks = sparks
        self.plan = plan
        self.prefix = f"p{plan.seed}-{uuid.uuid4().hex[:6]}"
        self.folder = work / self.prefix
        self.folder.mkdir(parents=True)
        self.ledger = self.folder / "ledger"
        self.topics = {f"{self.prefix}-{name}": count for name, count in plan.topics.items()}
        produces = any(reader.kind == "producer" for reader in plan.readers)
        if produces:
            self.topics |= {f"{self.prefix}-{name}": count for name, count in PRODUCED.items()}
        self.input = Input()
        self.aways: list[Away] = []
        self.readers = [RunningReader(reader, self) for reader in plan.readers]
        self._brokers = ThreadPoolExecutor(1, thread_name_prefix="brokers")
        self._admin = ThreadPoolExecutor(1, thread_name_prefix="admin")
        self.deletions = Deletions(kafka.bootstrap_servers, self._partitions_of)
        self.renewed = RenewedTopics(
            kafka, {t: n for t, n in self.topics.items() if self.short(t) in ANEW}, plan
        )
        self._history = History(self)

    # -- what readers are -------------------------------------------------------------------------

    def group(self, name: str) -> str:
        return f"{self.prefix}-{name}"

    def checkpoint(self, reader: str) -> Path:
        return self.folder / f"checkpoint-{reader}"

    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(t, n) for t, count in self.topics.items() for n in range(count)]

    def _partitions_of(self, topic: str) -> list[TopicPartition]:
        return [p for p in self.partitions() if self.short(p.topic) == topic]

    def _lasting(self) -> list[TopicPartition]:
        """Those whose topic is never deleted."""
        return [p for p in self.partitions() if self.short(p.topic) not in ANEW]

    def _inputs(self) -> list[TopicPartition]:
        """Where records are sent that are not of producer groups."""
        return [p for p in self.partitions() if self.short(p.topic) in TOPICS]

    def short(self, topic: str) -> str:
        return topic.removeprefix(f"{self.prefix}-")

    @property
    def _isolation(self) -> str:
        return "read_committed" if self.plan.read_committed else "read_uncommitted"

    def query_settings(self, reader: Reader) -> dict[str, Any]:
        checkpoint = str(self.checkpoint(reader.name))
        given = dict(reader.options)
        options = {
            "kafka.bootstrap.servers": self.kafka.bootstrap_servers,
            "kafka.group.id": self.group(reader.group),
            "kafka.client.id": reader.name,
            "kafka.isolation.level": self._isolation,
            "kafka.metadata.max.age.ms": "1000",
            "startingOffsets": "earliest",
        }
        if given.pop("pattern", None):
            options["subscribePattern"] = f"{self.prefix}-.*"
        elif given.pop("assign", None):
            first = {
                f"{self.prefix}-{name}": list(range(n)) for name, n in self.plan.topics.items()
            }
            options["assign"] = json.dumps(first)
        else:
            options["subscribe"] = ",".join(self.topics)
        if "assign" not in options:
            options["kafka.session.timeout.ms"] = str(int(SESSION_S * 1_000))
            options["kafka.group.protocol"] = self.plan.protocol
        if reader.knows_checkpoint:
            options["checkpointLocation"] = checkpoint
        every = {"always": "0 seconds", "seldom": f"{SELDOM_S} seconds"}.get(reader.trigger)
        trigger = {"processingTime": every} if every else {reader.trigger: True}
        return {"options": options | given, "checkpoint": checkpoint, "trigger": trigger}

    def member_settings(self, reader: Reader) -> dict[str, Any]:
        return {
            "name": reader.name,
            "kind": reader.kind,
            "group": self.group(reader.group),
            "protocol": self.plan.protocol,
            "servers": self.kafka.bootstrap_servers,
            "topics": [topic for topic in self.topics if self.short(topic) not in ANEW],
            "isolation": self._isolation,
            "session_ms": int(SESSION_S * 1_000),
            "disorder": "disorder" in dict(reader.options),
        }

    def producer_settings(self, proxy_url: str) -> dict[str, Any]:
        (topic, count), *_ = PRODUCED.items()
        return {
            "group": {
                "group_id": self.group(PRODUCERS),
                "source_partition_count": count,
                "bootstrap_servers": self.kafka.bootstrap_servers,
                "group_protocol": self.plan.protocol,
                "session_timeout_ms": int(SESSION_S * 1_000),
                "heartbeat_interval_ms": 500,
                "reconnect_backoff_max_ms": 200,
                "proxy_url": proxy_url,
            },
            "topic": f"{self.prefix}-{topic}",
            "rows_per_commit": 5,
            "pause_s": 0.2,
        }

    # -- the run ----------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Carry the plan out; every broker runs afterwards and no reader does."""
        began = time.monotonic()
        began_at = time.time()
        for topic, count in self.topics.items():
            compacts = self.plan.compacts and self.short(topic) == COMPACTED
            self.kafka.create_topic(topic, partitions=count, config=_SOON if compacts else None)
        groups = self.plan.groups
        if self.plan.protocol == "consumer":
            settings = {"session.timeout.ms": int(SESSION_S * 1_000), "heartbeat.interval.ms": 500}
            config = {f"consumer.{name}": value for name, value in settings.items()}
            for group in [*groups, PRODUCERS]:
                self.kafka.configure_group(self.group(group), config)
        chance = Random(self.plan.seed)
        kinds = [Producing, ProducingTransactions] if self.plan.transactions else [Producing]
        servers = self.kafka.bootstrap_servers
        with ExitStack() as stack:
            for reader in self.readers:
                stack.callback(reader.end)
            stack.callback(self._brokers.shutdown, wait=True, cancel_futures=True)
            stack.callback(self._admin.shutdown, wait=True, cancel_futures=True)
            watches = {g: stack.enter_context(self._watch(g)) for g in groups}
            rate = self.plan.rate / len(kinds)
            inputs = [
                stack.enter_context(kind(servers, self._inputs, self.input, rate, chance))
                for kind in kinds
            ]
            stack.enter_context(self.renewed)
            losses = stack.enter_context(OwnLosses(self.readers))
            self.sparks.get_ready(self.plan.sparks)
            _all(reader.work.submit(reader.recover) for reader in self.readers)
            log.info("all have begun")
            if self.plan.once_all_read:
                self._wait_until_all_have_read()
            self.carry_out()
            log.info("all faults are mended")
            _all(reader.work.submit(reader.recover) for reader in self.readers)
            for one in inputs:
                one.stop()
            self.renewed.stop()
            producers = [r for r in self.readers if r.reader.kind == "producer"]
            _all(producer.work.submit(producer.finish) for producer in producers)
            produced = self._history.produced()
            log.info("%d records", len(produced))
            self._settle(produced, watches)
            log.info("settled")
            _all(reader.work.submit(reader.finish) for reader in self.readers)
            for looking in (losses, *watches.values()):
                looking.stop()
            produced = self._history.left_of(produced)
        return self._history.judged(produced, watches, began_at, time.monotonic() - began)

    def _wait_until_all_have_read(self) -> None:
        names = [r.name for r in self.plan.readers if r.kind != "producer" and not r.joins]
        deadline = time.monotonic() + PATIENCE_S
        while missing := [n for n in names if not _has_read(self.ledger / f"{n}-000.jsonl")]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{missing} have read nothing")
            time.sleep(0.1)
        log.info("all have read")

    def _watch(self, group: str) -> Watch:
        ends = any(r.group == group and r.has_an_end for r in self.plan.readers)
        servers = self.kafka.bootstrap_servers
        return Watch(
            servers, self.group(group), self.partitions, self._lasting, self._isolation, ends
        )

    def carry_out(self) -> None:
        """Let the faults happen; a subclass may look on."""
        began = time.monotonic()
        readers = {reader.name: reader for reader in self.readers}
        pending: list[Future[None]] = []
        for fault in self.plan.faults:
            time.sleep(max(0.0, began + fault.at - time.monotonic()))
            for done in [one for one in pending if one.done()]:
                done.result()
            log.info("%s", fault)
            if fault.target in readers:
                reader = readers[fault.target]
                pending.append(reader.work.submit(reader.take, fault))
            elif fault.target in self.plan.groups:
                pending.append(self._admin.submit(self._of_groups, fault))
            elif fault.what == "anew":
                topic = f"{self.prefix}-{fault.target}"
                pending.append(self._admin.submit(self.renewed.create_anew, topic, fault.s))
            elif fault.what in DELETING:
                pending.append(self._admin.submit(self.deletions.carry_out, fault))
            else:
                pending.append(self._brokers.submit(self._of_brokers, fault))
        time.sleep(max(0.0, began + self.plan.lasts_s - time.monotonic()))
        for one in pending:
            one.result()

    def _of_groups(self, fault: Fault) -> None:
        """Stop all readers of the group, move or delete its offsets, and start those again."""
        may_come = threading.Event()
        some = [r for r in self.readers if r.reader.group == fault.target]
        gone = [threading.Event() for _ in some]
        jobs = [
            reader.work.submit(reader.away, one, may_come)
            for reader, one in zip(some, gone, strict=True)
        ]
        try:
            if not all(one.wait(2 * PATIENCE_S) for one in gone):
                raise TimeoutError(f"not all readers of {fault.target} are gone")
            self._history.moves[fault.target] += plan_admin.move(
                self.kafka.bootstrap_servers,
                self.group(fault.target),
                fault.what,
                self.partitions(),
            )
        finally:
            may_come.set()
        _all(jobs)

    def _of_brokers(self, fault: Fault) -> None:
        if fault.what == "grow":
            topic = f"{self.prefix}-{fault.target}"
            count = self.topics[topic] + 1
            self.kafka.add_partitions(topic, count)
            self.topics[topic] = count
            return
        broker = int(fault.target)
        since = time.time()
        if fault.what == "pause":
            self.kafka.suspend(broker)
            time.sleep(fault.s)
            self.kafka.resume(broker)
        else:
            if fault.what == "kill":
                self.kafka.kill(broker)
                time.sleep(min(fault.s, 4.0))
            self.kafka.restart(broker)
        wait_until_in_sync(self.kafka, [*self.topics, "__consumer_offsets"], broker)
        self.aways.append(Away(since, time.time()))

    def _settle(self, produced: list[Produced], watches: Mapping[str, Watch]) -> None:
        """Wait until each group has got everywhere, or nothing has moved for long."""
        self.renewed.wait_until_known()
        last: Any = None
        moved_at = time.monotonic()
        while time.monotonic() < moved_at + STILL_S:
            for watch in watches.values():
                watch.raise_if_failed()
            for reader in self.readers:
                if reader.reader.kind != "producer":
                    reader.work.submit(reader.recover).result()
            if all(
                watch.last.get(TopicPartition(one.log.topic, one.log.partition), 0) > one.offset
                for name, watch in watches.items()
                for one in produced
                if self._history.is_for(name, one)
            ):
                return
            now = {name: watch.last for name, watch in watches.items()}
            if now != last:
                last, moved_at = now, time.monotonic()
            time.sleep(0.2)
        self._history.problems.append(f"nothing has moved for {STILL_S:g} s")


def _has_read(ledger: Path) -> bool:
    return ledger.exists() and '"event": "batch"' in ledger.read_text()


def _all(futures: Iterable[Future[None]]) -> None:
    for future in list(futures):
        future.result()
