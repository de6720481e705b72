"""Carries out a plan on real brokers and real Spark, and has its history judged."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import confluent_kafka
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance import DeferredRevokeConsumer
from pyspark_kafka_rebalance.producer.stored_points import StoredPoints
from pyspark_kafka_rebalance.testing import LocalKafka
from pyspark_kafka_rebalance.testing.child_process import ChildProcess
from pyspark_kafka_rebalance.testing.query_process import SparkProcess
from tests.kafka.flaky_network import FlakyNetwork
from tests.spark import spark_home

from . import oracle, plan_member, plan_query, producer_instance
from .ended_sessions import ended_sessions
from .oracle import Break, Delivered, Log, Produced, Rules, Seen, Started, Verdict
from .random_plans import PRODUCED, PRODUCERS, SESSION_S, TOPICS, Fault, Plan, Reader
from .surroundings import Background, wait_until_in_sync

log = logging.getLogger(__name__)

#: So long nothing may be delivered or committed before the readers are given up. A replay that
#: waits for others waits a session and half a minute.
STILL_S = 75.0
PATIENCE_S = 150.0
_ROOT = Path(__file__).parents[2]


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


class PlanSpark(SparkProcess):
    """One of them; ``tells`` is called with its events by whoever uses it."""

    def __init__(self, name: str, work: Path, environment: Mapping[str, str]) -> None:
        conf = spark_home.IDLE_SELDOM | {"spark.driver.memory": "600m"}
        super().__init__(
            name,
            plan_query.__name__,
            {"name": name, "conf": conf, "parallelism": 1, "master": None},
            work=work,
            on_event=lambda event: self.tells(event),
            environment=environment,
        )
        self.forget()

    def forget(self) -> None:
        """Nobody uses it."""
        self.tells: Callable[[dict[str, Any]], None] = lambda event: None


class Sparks:
    """Processes with a Spark, used by one query after another, over all plans."""

    def __init__(self, work: Path) -> None:
        self._work = work
        self._idle: list[PlanSpark] = []
        self._all: list[PlanSpark] = []
        self._lock = threading.Lock()
        self._environment = {**spark_home.environment(), "PYTHONPATH": str(_ROOT)}

    def take(self, on_event: Callable[[dict[str, Any]], None]) -> PlanSpark:
        """One that is ready; whoever has it hears what it tells."""
        with self._lock:
            spark = self._idle.pop() if self._idle else self._start()
        spark.tells = on_event
        spark.wait_for("ready")
        return spark

    def give_back(self, spark: PlanSpark) -> None:
        """Another query may use it; if it was killed, another gets ready."""
        spark.forget()
        with self._lock:
            self._idle.append(spark if spark.is_running else self._start())

    def _start(self) -> PlanSpark:
        self._all.append(PlanSpark(f"spark-{len(self._all)}", self._work, self._environment))
        return self._all[-1].start()

    def close(self) -> None:
        for spark in self._all:
            spark.kill()


class RunningReader:
    """A reader over its lives; its orders are carried out one after the other."""

    def __init__(self, reader: Reader, run: PlanRun) -> None:
        self.reader = reader
        self.name = reader.name
        self.run = -1
        self.breaks: list[Break] = []
        self.starts: list[Started] = []
        self.problems: list[str] = []
        self.pauses: list[tuple[float, float]] = []
        self.work = ThreadPoolExecutor(1, thread_name_prefix=self.name)
        self.network = FlakyNetwork() if reader.kind in ("member", "producer") else None
        self._plan_run = run
        self._process: ChildProcess | None = None
        self._ended: dict[str, Any] | None = None
        self._to_fail = 0
        self._ends = threading.Condition()

    # -- lives ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin the next run, unless one goes on."""
        if self._process is not None:
            return
        self.run += 1
        self._ended = None
        ledger = str(self._plan_run.ledger / f"{self.name}-{self.run:03d}.jsonl")
        if self.reader.kind == "query":
            replays = _replays(self._plan_run.checkpoint(self.name))
            self.starts.append(Started(self.name, self.run, replays))
            self._process = self._plan_run.sparks.take(self._follow)
            settings = self._plan_run.query_settings(self.reader) | {"ledger": ledger}
            self._process.order(json.dumps(settings))
            self._process.wait_for("started")
            log.info("run %d begins, and replays %s", self.run, replays)
        elif self.reader.kind == "producer":
            assert self.network is not None
            settings = self._plan_run.producer_settings(self.network.url)
            self._process = self._child(producer_instance.__name__, settings)
            self._process.wait_for("ready")
        else:
            settings = self._plan_run.member_settings(self.reader) | {"ledger": ledger}
            settings["proxy_url"] = self.network and self.network.url
            self._process = self._child(plan_member.__name__, settings)
            self._process.wait_for("started")

    def _child(self, module: str, settings: Mapping[str, Any]) -> ChildProcess:
        return ChildProcess(
            f"{self.name}-{self.run}",
            module,
            settings,
            work=self._plan_run.folder,
            on_event=self._follow,
            environment={"PYTHONPATH": str(_ROOT)},
        ).start()

    def _follow(self, event: dict[str, Any]) -> None:
        if event["event"] in ("failed", "stopped"):
            with self._ends:
                self._ended = event
                self._ends.notify_all()

    def _break(self, why: str) -> None:
        now = time.time()
        log.info("run %d: %s", self.run, why)
        self.breaks.append(Break(now, now, self.name, self.run, why))

    def _wait_until_ended(self) -> dict[str, Any]:
        with self._ends:
            if not self._ends.wait_for(lambda: self._ended is not None, PATIENCE_S):
                raise TimeoutError(f"{self.name} does not end")
            assert self._ended is not None
            return self._ended

    def _let_go(self) -> None:
        """The process is free for another query, or gone."""
        assert self._process is not None
        if self.reader.kind == "query":
            assert isinstance(self._process, PlanSpark)
            self._plan_run.sparks.give_back(self._process)
        else:
            self._process.kill()
        self._process = None

    # -- faults -----------------------------------------------------------------------------------

    def take(self, fault: Fault) -> None:
        """Carry a fault out, and what mends it."""
        self.look()
        if self._process is None:
            self.start()
        log.info("run %d: %s", self.run, fault)
        getattr(self, "_" + fault.what.replace(" ", "_"))(fault.s)

    def look(self) -> None:
        """Whether it has ended by itself, and whether it should have."""
        if self._process is None:
            return
        if self._ended is None:
            if not self._process.is_running:
                self.problems.append(f"{self.name} died: {self._process.log_end(1_500)}")
                self._break("died")
                self._let_go()
            return
        error = self._ended.get("error", "")
        if self._to_fail and "the sink fails" in error:
            self._to_fail -= 1
        else:
            self.problems.append(f"{self.name} run {self.run} ended unasked: {_short(error)}")
        self._break("failed")
        self._let_go()

    def _kill(self, seconds: float) -> None:
        assert self._process is not None
        self._process.kill()
        self._break("killed")
        self._let_go()
        time.sleep(seconds)
        self.start()

    def _kill_planner(self, seconds: float) -> None:
        assert self._process is not None
        for pid in self._process.descendants("python_streaming_source_runner"):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._wait_until_ended()
        self._break("planner killed")
        self._let_go()
        time.sleep(seconds)
        self.start()

    def _stop(self, seconds: float, order: str = "stop") -> None:
        assert self._process is not None
        self._process.order(order)
        ended = self._wait_until_ended()
        if "error" in ended:
            self.look()
        else:
            if not ended.get("complete", True):
                self._break(f"{order}: not complete")
            self._let_go()
        time.sleep(seconds)
        self.start()

    def _interrupt(self, seconds: float) -> None:
        self._stop(seconds, "interrupt")

    def _pause(self, seconds: float) -> None:
        assert self._process is not None
        self._suspend([-self._process.pid], seconds)

    def _pause_planner(self, seconds: float) -> None:
        assert self._process is not None
        self._suspend(self._process.descendants("python_streaming_source_runner"), seconds)

    def _suspend(self, pids: Iterable[int], seconds: float) -> None:
        since = time.time()
        for pid in pids:
            _send(pid, signal.SIGSTOP)
        time.sleep(seconds)
        for pid in pids:
            _send(pid, signal.SIGCONT)
        self.pauses.append((since, time.time()))

    def _cut(self, seconds: float) -> None:
        assert self.network is not None
        self._disturb(self.network.cut, seconds)

    def _stall(self, seconds: float) -> None:
        assert self.network is not None
        self._disturb(self.network.stall, seconds)

    def _forget(self, seconds: float) -> None:
        assert self.network is not None
        self._disturb(self.network.forget, seconds)

    def _disturb(self, network: Callable[[], None], seconds: float) -> None:
        assert self.network is not None
        since = time.time()
        network()
        time.sleep(seconds)
        self.network.mend()
        self.pauses.append((since, time.time()))

    def _slow(self, seconds: float) -> None:
        self._tell("slow", seconds)

    def _fail_before(self, seconds: float) -> None:
        self._fail("fail before", seconds)

    def _fail_after(self, seconds: float) -> None:
        self._fail("fail after", seconds)

    def _fail(self, what: str, seconds: float) -> None:
        self._to_fail += 1
        self._tell(what, 0.0)
        with self._ends:  # in its next batch with rows, which may be another's for long
            self._ends.wait_for(lambda: self._ended is not None, SESSION_S)
        if self._ended is not None:
            self.look()
            time.sleep(seconds)
            self.start()

    def _tell(self, what: str, seconds: float) -> None:
        assert self._process is not None
        self._process.order(json.dumps({"what": what, "seconds": seconds}))

    # -- what has happened to it ------------------------------------------------------------------

    def died_before(self, at: float) -> bool:
        """Whether a session that ended then may be that of a run which died."""
        return any(at - SESSION_S - 4.0 <= one.since <= at for one in self.breaks)

    def pause_before(self, at: float) -> float | None:
        """Since when it was paused, if that is why its session ended then."""
        return next((s for s, until in self.pauses if s <= at <= until + SESSION_S + 4.0), None)

    # -- the end ----------------------------------------------------------------------------------

    def recover(self) -> None:
        """Run again if it does not."""
        self.look()
        self.start()

    def finish(self) -> None:
        """Stop for good."""
        self.look()
        if self._process is None:
            return
        self._process.order("stop")
        ended = self._wait_until_ended()
        if "error" in ended:
            self.look()
            return
        if not ended.get("complete", True):
            self.problems.append(f"{self.name}: the last stop was not complete")
        self._let_go()

    def end(self) -> None:
        """After a failure of the plan itself."""
        self.work.shutdown(wait=False, cancel_futures=True)
        if self._process is not None:
            self._process.kill()
        if self.network is not None:
            self.network.__exit__()


@dataclass
class Input:
    """What was sent: by value, where to and in which transaction."""

    sent: dict[str, tuple[TopicPartition, str | None]] = field(default_factory=dict)
    acknowledged: dict[str, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def new(self, partition: TopicPartition, transaction: str | None) -> str:
        with self.lock:
            value = str(len(self.sent))
            self.sent[value] = partition, transaction
            return value


class Producing(Background):
    """Sends records at a steady rate."""

    def __init__(
        self,
        servers: str,
        partitions: Callable[[], list[TopicPartition]],
        given: Input,
        rate: float,
        chance: Random,
    ) -> None:
        super().__init__()
        self._servers = servers
        self._partitions = partitions
        self._given = given
        self._rate = rate
        self._chance = chance

    def run(self) -> None:
        producer = KafkaProducer(
            bootstrap_servers=self._servers,
            acks="all",
            enable_idempotence=True,
            linger_ms=5,
            reconnect_backoff_max_ms=200,
            metadata_max_age_ms=1_000,
        )
        try:
            while not self._stop.is_set():
                count = self._chance.randint(1, 20)
                for _ in range(count):
                    self._send_one(producer)
                self._stop.wait(count / self._rate)
            producer.flush(timeout=PATIENCE_S)
        finally:
            with suppress(KafkaError):  # what could not be sent
                producer.close(timeout=0)

    def _send_one(self, producer: KafkaProducer) -> None:
        # It may not know a partition yet that was added just now.
        known = [p for p in self._partitions() if p[1] in producer.partitions_for(p[0])]
        partition = self._chance.choice(known)
        value = self._given.new(partition, None)
        future = producer.send(partition.topic, value.encode(), partition=partition.partition)
        future.add_callback(self._is_acknowledged, value)

    def _is_acknowledged(self, value: str, metadata: Any) -> None:
        self._given.acknowledged[value] = metadata.offset


class ProducingTransactions(Producing):
    """Sends records in transactions, of which it aborts every fourth.

    By librdkafka: kafka-python's producer may wait for the end of a transaction for ever.
    """

    _TIMEOUT_S = 10.0

    def run(self) -> None:
        name = f"transactions-{uuid.uuid4().hex[:8]}"
        config = {
            "bootstrap.servers": self._servers,
            "transactional.id": name,
            "linger.ms": 5,
            "reconnect.backoff.max.ms": 200,
            "topic.metadata.refresh.interval.ms": 1_000,
        }
        producer: Any = None
        number = 0
        while not self._stop.is_set() or producer is None:  # which aborts what is still open
            number += 1
            count = self._chance.randint(1, 20)
            try:
                if producer is None:
                    producer = confluent_kafka.Producer(config)
                    producer.init_transactions(PATIENCE_S)
                self._send(producer, f"{name}/{number}", count)
            except (confluent_kafka.KafkaException, BufferError) as error:
                log.info("%s: %r", name, error)
                producer.purge()
                producer = None
            self._stop.wait(count / self._rate)

    def _send(self, producer: Any, transaction: str, count: int) -> None:
        producer.begin_transaction()
        for _ in range(count):
            partition = self._chance.choice(self._partitions())
            value = self._given.new(partition, transaction)
            producer.produce(
                partition.topic, value, partition=partition.partition, on_delivery=self._is_there
            )
        if self._chance.random() < 0.25:
            producer.flush(self._TIMEOUT_S)
            producer.abort_transaction(self._TIMEOUT_S)
        else:
            producer.commit_transaction(self._TIMEOUT_S)

    def _is_there(self, error: Any, message: Any) -> None:
        if error is None:
            self._given.acknowledged[message.value().decode()] = message.offset()


class Watch(Background):
    """Looks at a group's committed offsets."""

    def __init__(
        self, servers: str, group: str, partitions: Callable[[], list[TopicPartition]]
    ) -> None:
        super().__init__()
        self._servers = servers
        self._group = group
        self._partitions = partitions
        self.seen: list[tuple[float, Mapping[TopicPartition, int]]] = []

    def run(self) -> None:
        consumer = DeferredRevokeConsumer(  # not subscribed: no member
            bootstrap_servers=self._servers, group_id=self._group, reconnect_backoff_max_ms=200
        )
        try:
            while not self._stop.wait(0.2):
                offsets = consumer.committed_offsets(self._partitions(), PATIENCE_S * 1_000)
                self.seen.append((time.time(), offsets))
        finally:
            consumer.close()

    @property
    def last(self) -> Mapping[TopicPartition, int]:
        return self.seen[-1][1] if self.seen else {}


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
        self.topics = {f"{self.prefix}-{name}": count for name, count in TOPICS.items()}
        produces = any(reader.kind == "producer" for reader in plan.readers)
        if produces:
            self.topics |= {f"{self.prefix}-{name}": count for name, count in PRODUCED.items()}
        self.input = Input()
        self._readers = [RunningReader(reader, self) for reader in plan.readers]
        self._brokers = ThreadPoolExecutor(1, thread_name_prefix="brokers")
        self._problems: list[str] = []

    # -- what readers are -------------------------------------------------------------------------

    def group(self, name: str) -> str:
        return f"{self.prefix}-{name}"

    def checkpoint(self, reader: str) -> Path:
        return self.folder / f"checkpoint-{reader}"

    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(t, n) for t, count in self.topics.items() for n in range(count)]

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
            first = {f"{self.prefix}-{name}": list(range(n)) for name, n in TOPICS.items()}
            options["assign"] = json.dumps(first)
        else:
            options["subscribe"] = ",".join(self.topics)
        if "assign" not in options:
            options["kafka.session.timeout.ms"] = str(int(SESSION_S * 1_000))
            options["kafka.group.protocol"] = self.plan.protocol
        if reader.knows_checkpoint:
            options["checkpointLocation"] = checkpoint
        trigger = {"processingTime": "0 seconds"}
        return {"options": options | given, "checkpoint": checkpoint, "trigger": trigger}

    def member_settings(self, reader: Reader) -> dict[str, Any]:
        return {
            "name": reader.name,
            "kind": reader.kind,
            "group": self.group(reader.group),
            "protocol": self.plan.protocol,
            "servers": self.kafka.bootstrap_servers,
            "topics": list(self.topics),
            "isolation": self._isolation,
            "session_ms": int(SESSION_S * 1_000),
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
            self.kafka.create_topic(topic, partitions=count)
        groups = sorted({r.group for r in self.plan.readers if r.kind != "producer"})
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
            watches = {
                g: stack.enter_context(Watch(servers, self.group(g), self.partitions))
                for g in groups
            }
            rate = self.plan.rate / len(kinds)
            inputs = [
                stack.enter_context(kind(servers, self._inputs, self.input, rate, chance))
                for kind in kinds
            ]
            _all(reader.work.submit(reader.start) for reader in self._readers)
            log.info("all have begun")
            self._carry_out()
            log.info("all faults are mended")
            _all(reader.work.submit(reader.recover) for reader in self._readers)
            for one in inputs:
                one.stop()
            producers = [r for r in self._readers if r.reader.kind == "producer"]
            _all(producer.work.submit(producer.finish) for producer in producers)
            produced = self._what_the_logs_have()
            log.info("%d records", len(produced))
            self._settle(produced, watches)
            log.info("settled")
            _all(reader.work.submit(reader.finish) for reader in self._readers)
            for watch in watches.values():
                watch.stop()
        return self._judge(groups, produced, watches, began_at, time.monotonic() - began)

    def _carry_out(self) -> None:
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
            else:
                pending.append(self._brokers.submit(self._of_brokers, fault))
        time.sleep(max(0.0, began + self.plan.lasts_s - time.monotonic()))
        for one in pending:
            one.result()

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
            return one.log.partition < TOPICS.get(self._short(one.log.topic), 0)
        return True

    # -- the history ------------------------------------------------------------------------------

    def _what_the_logs_have(self) -> list[Produced]:
        _wait_until_decided(self.kafka.bootstrap_servers, self.partitions())
        found = {
            isolation: _read_all(self.kafka.bootstrap_servers, self.partitions(), isolation)
            for isolation in ("read_uncommitted", "read_committed")
        }
        committed = {(p, offset) for p, offset, _ in found["read_committed"]}
        produced = []
        for partition, offset, value in found["read_uncommitted"]:
            _, transaction = self.input.sent.get(value, (partition, None))
            aborted = (partition, offset) not in committed
            produced.append(Produced(_log(*partition), offset, value, transaction, aborted))
        there = {one.value: one for one in produced}
        for value in self.input.acknowledged.keys() - there.keys():
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
            history = [one for one in produced if self._is_for(group, one) or one.aborted]
            history += delivered
            history += [start for reader in mine for start in reader.starts]
            history += breaks
            for at, offsets in watches[group].seen:
                history += [Seen(at, _log(*p), offset) for p, offset in offsets.items()]
            rules = Rules(
                self.plan.read_committed,
                members=frozenset(r.name for r in mine if r.reader.kind != "query"),
                live=frozenset(
                    r.name for r in mine if dict(r.reader.options).get("parallelRebalance")
                ),
            )
            found = oracle.judge(history, rules)
            verdicts += found
            count += sum(isinstance(one, Delivered) for one in delivered)
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
                    events += _events_of(name, run, told)
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
                asleep = [r for r in named or readers if r.pause_before(at) is not None]
                if not asleep and any(r.died_before(at) for r in named or readers):
                    continue  # the dead run's, whose death is known
                for reader in asleep or named or readers:
                    since = reader.pause_before(at) or at
                    why = f"session of {member} ended"
                    found.append(Break(since, at, reader.name, None, why, False))
        return found


def _events_of(name: str, run: int, told: dict[str, Any]) -> Iterable[oracle.Event]:
    batch = told["batch"]
    if told["event"] == "began":
        logs = frozenset(_log(*p) for p in told["logs"])
        return [oracle.Began(told["at"], name, run, batch, logs)]
    return [
        Delivered(
            _log(topic, partition),
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


def _log(topic: str, partition: int) -> Log:
    return Log(topic, "", partition)


def _replays(checkpoint: Path) -> int | None:
    """The batch that Spark's own files say it will run again."""
    planned, done = (
        max((int(f.name) for f in (checkpoint / name).glob("*") if f.name.isdigit()), default=-1)
        for name in ("offsets", "commits")
    )
    return planned if planned > done else None


def _read_all(
    servers: str, partitions: list[TopicPartition], isolation: str
) -> list[tuple[TopicPartition, int, str]]:
    """Every record up to the last stable offset."""
    consumer = KafkaConsumer(
        bootstrap_servers=servers, isolation_level=isolation, auto_offset_reset="earliest"
    )
    try:
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        found = []
        deadline = time.monotonic() + PATIENCE_S
        while any(consumer.position(p) < ends[p] for p in partitions):
            for partition, records in consumer.poll(timeout_ms=200).items():
                found += [(partition, r.offset, r.value.decode()) for r in records]
            if time.monotonic() > deadline:
                raise TimeoutError(f"cannot read the logs to their ends {ends}")
        return found
    finally:
        consumer.close()


def _wait_until_decided(servers: str, partitions: list[TopicPartition]) -> None:
    """Until no transaction is open any more."""
    committed = KafkaConsumer(bootstrap_servers=servers, isolation_level="read_committed")
    written = KafkaConsumer(bootstrap_servers=servers)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while committed.end_offsets(partitions) != written.end_offsets(partitions):
            if time.monotonic() > deadline:
                raise TimeoutError("a transaction is still open")
            time.sleep(0.1)
    finally:
        committed.close()
        written.close()


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(-pid, number) if pid < 0 else os.kill(pid, number)


def _short(error: str) -> str:
    lines = [line for line in error.splitlines() if line.strip()]
    return " | ".join(lines[:2] + lines[-3:])[:1_500]


def _all(futures: Iterable[Future[None]]) -> None:
    for future in list(futures):
        future.result()
