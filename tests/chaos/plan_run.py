"""Carries out a plan on real brokers and real Spark, and has its history judged."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.producer.stored_points import StoredPoints
from pyspark_kafka_rebalance.testing import LocalKafka

from . import oracle, plan_admin
from .ended_sessions import ended_sessions
from .oracle import Break, Delivered, End, Log, Moved, Produced, Rules, Seen, Verdict
from .plan_input import (
    Input,
    Producing,
    ProducingTransactions,
    Watch,
    read_all,
    wait_until_decided,
)
from .plan_reader import RunningReader
from .plan_sparks import Sparks
from .random_plans import (
    ANEW,
    COMPACTED,
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


@dataclass(frozen=True)
class Outcome:
    """What a plan came to.

    Attributes
    ----------
    verdicts : tuple of Verdict
        The promises that are broken.
    problems : tuple of str
        Whatever else went wrong: a query that failed unasked, a reader that hangs.
    """

    verdicts: tuple[Verdict, ...]
    problems: tuple[str, ...]
    records: int
    deliveries: int
    runs: int
    breaks: int
    took_s: float
    work: Path

    @property
    def failed(self) -> bool:
        return bool(self.verdicts or self.problems)


def broken_off(problem: str, work: Path) -> Outcome:
    """The outcome of a plan that could not be carried out."""
    return Outcome((), (problem,), 0, 0, 0, 0, 0.0, work)


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
        self._readers = [RunningReader(reader, self) for reader in plan.readers]
        self._brokers = ThreadPoolExecutor(1, thread_name_prefix="brokers")
        self._admin = ThreadPoolExecutor(1, thread_name_prefix="admin")
        self._moves: dict[str, list[Moved]] = defaultdict(list)
        self._begins: dict[TopicPartition, int] = {}
        self._renewed = RenewedTopics(
            kafka, {t: n for t, n in self.topics.items() if self._short(t) in ANEW}, plan
        )
        self._problems: list[str] = []

    # -- what readers are -------------------------------------------------------------------------

    def group(self, name: str) -> str:
        return f"{self.prefix}-{name}"

    def checkpoint(self, reader: str) -> Path:
        return self.folder / f"checkpoint-{reader}"

    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(t, n) for t, count in self.topics.items() for n in range(count)]

    def _lasting(self) -> list[TopicPartition]:
        """Those whose topic is never deleted."""
        return [p for p in self.partitions() if self._short(p.topic) not in ANEW]

    def _inputs(self) -> list[TopicPartition]:
        """Where records are sent that are not of producer groups."""
        return [p for p in self.partitions() if self._short(p.topic) in TOPICS]

    def _short(self, topic: str) -> str:
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
            "topics": [topic for topic in self.topics if self._short(topic) not in ANEW],
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
            compacts = self.plan.compacts and self._short(topic) == COMPACTED
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
            for reader in self._readers:
                stack.callback(reader.end)
            stack.callback(self._brokers.shutdown, wait=True, cancel_futures=True)
            stack.callback(self._admin.shutdown, wait=True, cancel_futures=True)
            watches = {g: stack.enter_context(self._watch(g)) for g in groups}
            rate = self.plan.rate / len(kinds)
            inputs = [
                stack.enter_context(kind(servers, self._inputs, self.input, rate, chance))
                for kind in kinds
            ]
            stack.enter_context(self._renewed)
            self.sparks.get_ready(self.plan.sparks)
            _all(reader.work.submit(reader.recover) for reader in self._readers)
            log.info("all have begun")
            if self.plan.once_all_read:
                self._wait_until_all_have_read()
            self.carry_out()
            log.info("all faults are mended")
            _all(reader.work.submit(reader.recover) for reader in self._readers)
            for one in inputs:
                one.stop()
            self._renewed.stop()
            producers = [r for r in self._readers if r.reader.kind == "producer"]
            _all(producer.work.submit(producer.finish) for producer in producers)
            produced = self._what_the_logs_have()
            log.info("%d records", len(produced))
            self._settle(produced, watches)
            log.info("settled")
            _all(reader.work.submit(reader.finish) for reader in self._readers)
            for watch in watches.values():
                watch.stop()
            if self.plan.compacts:  # what the cleaner has removed meanwhile nobody had to read
                left = {(one.log, one.offset) for one in self._what_the_logs_have()}
                produced = [one for one in produced if (one.log, one.offset) in left]
                log.info("%d records are left", len(produced))
        return self._judge(groups, produced, watches, began_at, time.monotonic() - began)

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
        readers = {reader.name: reader for reader in self._readers}
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
                pending.append(
                    self._admin.submit(self._renewed.create_anew, f"{self.prefix}-{fault.target}")
                )
            elif fault.what in ("trim", "expire"):
                pending.append(self._admin.submit(self._delete_records, fault))
            else:
                pending.append(self._brokers.submit(self._of_brokers, fault))
        time.sleep(max(0.0, began + self.plan.lasts_s - time.monotonic()))
        for one in pending:
            one.result()

    def _of_groups(self, fault: Fault) -> None:
        """Stop all readers of the group, move or delete its offsets, and start those again."""
        may_come = threading.Event()
        some = [r for r in self._readers if r.reader.group == fault.target]
        gone = [threading.Event() for _ in some]
        jobs = [
            reader.work.submit(reader.away, one, may_come)
            for reader, one in zip(some, gone, strict=True)
        ]
        try:
            if not all(one.wait(2 * PATIENCE_S) for one in gone):
                raise TimeoutError(f"not all readers of {fault.target} are gone")
            self._moves[fault.target] += plan_admin.move(
                self.kafka.bootstrap_servers,
                self.group(fault.target),
                fault.what,
                self.partitions(),
            )
        finally:
            may_come.set()
        _all(jobs)

    def _delete_records(self, fault: Fault) -> None:
        topic = f"{self.prefix}-{fault.target}"
        if fault.what == "trim":
            partitions = [p for p in self.partitions() if p.topic == topic]
            plan_admin.trim(self.kafka.bootstrap_servers, partitions)
        else:
            plan_admin.expire(self.kafka.bootstrap_servers, topic, fault.s)

    def _of_brokers(self, fault: Fault) -> None:
        if fault.what == "grow":
            topic = f"{self.prefix}-{fault.target}"
            count = self.topics[topic] + 1
            self.kafka.add_partitions(topic, count)
            self.topics[topic] = count
            return
        broker = int(fault.target)
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

    def _settle(self, produced: list[Produced], watches: Mapping[str, Watch]) -> None:
        """Wait until each group has got everywhere, or nothing has moved for long."""
        self._renewed.wait_until_known()
        last: Any = None
        moved_at = time.monotonic()
        while time.monotonic() < moved_at + STILL_S:
            for watch in watches.values():
                watch.raise_if_failed()
            for reader in self._readers:
                if reader.reader.kind != "producer":
                    reader.work.submit(reader.recover).result()
            if all(
                watch.last.get(TopicPartition(one.log.topic, one.log.partition), 0) > one.offset
                for name, watch in watches.items()
                for one in produced
                if self._is_for(name, one)
            ):
                return
            now = {name: watch.last for name, watch in watches.items()}
            if now != last:
                last, moved_at = now, time.monotonic()
            time.sleep(0.2)
        self._problems.append(f"nothing has moved for {STILL_S:g} s")

    def _is_for(self, group: str, one: Produced) -> bool:
        """Whether somebody in the group is to read the record."""
        if one.aborted and self.plan.read_committed:
            return False
        some = [reader for reader in self.plan.readers if reader.group == group]
        if all("assign" in dict(reader.options) for reader in some):
            return one.log.partition < self.plan.topics.get(self._short(one.log.topic), 0)
        return True

    # -- the history ------------------------------------------------------------------------------

    def _what_the_logs_have(self) -> list[Produced]:
        wait_until_decided(self.kafka.bootstrap_servers, self.partitions())
        found = {
            isolation: read_all(self.kafka.bootstrap_servers, self.partitions(), isolation)
            for isolation in ("read_uncommitted", "read_committed")
        }
        committed = {(p, offset) for p, offset, _ in found["read_committed"]}
        produced = []
        for partition, offset, value in found["read_uncommitted"]:
            _, transaction = self.input.sent.get(value, (partition, None))
            aborted = (partition, offset) not in committed
            where = self._renewed.log_of(*partition, value)
            sent_at = self.input.sent_at.get(value)
            produced.append(Produced(where, offset, value, transaction, aborted, sent_at))
        if self.plan.deletes:
            self._begins = plan_admin.begins_of(self.kafka.bootstrap_servers, self._lasting())
        there = {one.value: one for one in produced}
        for value in self.input.acknowledged.keys() - there.keys():
            partition, _ = self.input.sent[value]
            if self.plan.compacts and self._short(partition.topic) == COMPACTED:
                continue
            if self.input.acknowledged[value] < self._begins.get(partition, 0):
                continue
            self._problems.append(f"record {value} was acknowledged and is in no log")
        return produced

    def _judge(
        self,
        groups: Iterable[str],
        produced: list[Produced],
        watches: Mapping[str, Watch],
        began_at: float,
        took_s: float,
    ) -> Outcome:
        verdicts: list[Verdict] = []
        problems = [*self._problems, *(p for reader in self._readers for p in reader.problems)]
        count = 0
        history: list[oracle.Event] = []
        for group in groups:
            mine = [reader for reader in self._readers if reader.reader.group == group]
            delivered = self._delivered(reader.name for reader in mine)
            breaks = [b for reader in mine for b in reader.breaks]
            breaks += self._ended_sessions(group, mine, began_at)
            # One that is to be read by nobody and is read all the same, is an aborted read.
            aborted = [one for one in produced if one.aborted and self.plan.read_committed]
            history = [*aborted, *(one for one in produced if self._is_for(group, one))]
            history += delivered
            history += [start for reader in mine for start in reader.starts]
            history += [life for reader in mine for life in reader.lives]
            history += breaks
            history += self._moves[group]
            for at, offsets in watches[group].seen:
                for p, offset in offsets.items():
                    if (where := self._renewed.log_at(at, p)) is not None:
                        history.append(Seen(at, where, offset))
            for at, ends in watches[group].ends:
                history += [End(at, _log(*p), offset) for p, offset in ends.items()]
            rules = Rules(
                self.plan.read_committed,
                members=frozenset(r.name for r in mine if r.reader.kind != "query"),
                live=frozenset(
                    r.name for r in mine if dict(r.reader.options).get("parallelRebalance")
                ),
                limits={r.name: at_most for r in mine if (at_most := _limit_s(r.reader))},
            )
            found = oracle.judge(history, rules)
            verdicts += found
            count += sum(isinstance(one, Delivered) for one in delivered)
            problems += self._unnoticed_losses(mine, delivered)
            with (self.folder / f"history-{group}.txt").open("w") as file:
                file.writelines(f"{one}\n" for one in [rules, *history, *found])
        of_producers = [*produced, *self._restart_points()]
        verdicts += oracle.judge(of_producers, Rules(complete=False))
        (self.folder / "plan.txt").write_text(f"{self.plan}\n")
        return Outcome(
            tuple(verdicts),
            tuple(problems),
            records=len(produced),
            deliveries=count,
            runs=sum(reader.run + 1 for reader in self._readers),
            breaks=sum(isinstance(one, Break) for one in history),
            took_s=took_s,
            work=self.folder,
        )

    def _unnoticed_losses(
        self, readers: list[RunningReader], delivered: list[oracle.Event]
    ) -> list[str]:
        """With failOnDataLoss=true what was deleted unread ends a query, and its error names it."""
        losses = [(one.name, error) for one in readers for error in one.data_losses]
        named = re.compile(rf"{self.prefix}-\w+-\d+\b.*\d", re.S)
        found = [
            f"{name} does not name {error}" for name, error in losses if not named.search(error)
        ]
        if losses or not all(one.reader.fails_on_data_loss for one in readers):
            return found
        read = {one.value for one in delivered if isinstance(one, Delivered)}
        unread = [
            value
            for value, offset in self.input.acknowledged.items()
            if offset < self._begins.get(self.input.sent[value][0], 0) and value not in read
        ]
        if unread:
            found.append(f"no query failed for {len(unread)} deleted records, such as {unread[0]}")
        return found

    def _restart_points(self) -> list[oracle.Event]:
        if not any(reader.kind == "producer" for reader in self.plan.readers):
            return []
        (topic, _), *_ = PRODUCED.items()
        servers = {"bootstrap_servers": self.kafka.bootstrap_servers}
        points = StoredPoints(servers, self.group(PRODUCERS)).read()
        return [
            oracle.RestartPoint(_log(f"{self.prefix}-{topic}", p), int((one and one.value) or 0))
            for p, one in points.items()
        ]

    def _delivered(self, readers: Iterable[str]) -> list[oracle.Event]:
        events: list[oracle.Event] = []
        for name in readers:
            for file in sorted(self.ledger.glob(f"{name}-*.jsonl")):
                run = int(file.stem.rpartition("-")[2])
                for line in file.read_text().splitlines():
                    try:
                        told = json.loads(line)
                    except json.JSONDecodeError:  # killed in the midst of the line
                        continue
                    events += events_of(name, run, told, self._renewed.log_of)
        return events

    def _ended_sessions(
        self, group: str, readers: list[RunningReader], began_at: float
    ) -> list[Break]:
        """What the coordinators have logged, and whose session it was as far as one can tell."""
        found = []
        for broker in self.kafka.broker_ids:
            text = (self.kafka.folder / f"broker-{broker}" / "broker.log").read_text()
            for at, member in ended_sessions(text, self.group(group), began_at):
                named = [r for r in readers if member.startswith(f"{r.name}-")]
                asleep = [r for r in named or readers if r.pauses_before(at)]
                if not asleep and any(r.died_before(at) for r in named or readers):
                    continue  # the dead run's, whose death is known
                for reader in asleep or named or readers:
                    why = f"session of {member} ended"
                    for since in reader.pauses_before(at) or [at]:
                        found.append(Break(since, at, reader.name, None, why, False))
        return found


def _has_read(ledger: Path) -> bool:
    return ledger.exists() and '"event": "batch"' in ledger.read_text()


def events_of(
    name: str, run: int, told: dict[str, Any], log_of: Callable[[str, int, str], Log]
) -> Iterable[oracle.Event]:
    """What one line of a reader's ledger says."""
    if told["event"] == "lost":
        # Without an answer for a session it gives up by itself, and no coordinator logs that.
        return [Break(told["at"], told["at"], name, run, "lost", ends_the_run=False)]
    batch = told["batch"]
    if told["event"] == "began":
        logs = frozenset(_log(*p) for p in told["logs"])
        return [oracle.Began(told["at"], name, run, batch, logs)]
    return [
        Delivered(
            log_of(topic, partition, value),
            offset,
            value,
            name,
            run,
            batch,
            told["at"],
            told["completed"],
            lost=bool(lost),
            catch_up=bool(catch_up),
            place=place,
        )
        for place, (topic, partition, offset, value, lost, catch_up) in enumerate(told["rows"])
    ]


def _limit_s(reader: Reader) -> float | None:
    """How long its batches may take before others may read what they have."""
    options = dict(reader.options)
    names = ("maxBatchDurationMs", "revokeTimeoutMs")
    return min((int(options[n]) / 1_000 for n in names if n in options), default=None)


def _log(topic: str, partition: int) -> Log:
    return Log(topic, "", partition)


def _all(futures: Iterable[Future[None]]) -> None:
    for future in list(futures):
        future.result()
