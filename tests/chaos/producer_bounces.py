"""Bounces of producers: instances and brokers go down in every way, and no row is lost or repeated.

``python -m tests.chaos.producer_bounces --seed 7`` runs a hundred; a run is repeated by its seed,
and what the instances make of it is up to the machine.

After ExactlyOnceSourceIntegrationTest of Kafka Connect and the clean and hard bounces of ducktape's
test_exactly_once_source.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import logging
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom
from typing import Any

from demos.shop.ledger import committed_values
from pyspark_kafka_rebalance.producer.stored_points import StoredPoints
from pyspark_kafka_rebalance.testing import LocalKafka
from pyspark_kafka_rebalance.testing.child_process import ChildProcess

from . import producer_instance
from .bounce_plan import MIN_INSTANCES, Bounce, make_bounces
from .churn import PROTOCOLS
from .run_log import log_into
from .surroundings import PATIENCE_S, wait_until_in_sync

log = logging.getLogger(__name__)

ROOT = Path(__file__).parents[2]

#: Shorter than a broker may need to restart: then living instances are lost too, and join anew.
SESSION_TIMEOUT_MS = 6_000
HEARTBEAT_INTERVAL_MS = 500
SOURCE_PARTITIONS = 6

#: How instances commit: after so many rows, or by themselves.
_FORMS: tuple[dict[str, Any], ...] = (
    {"rows_per_commit": 5},
    {"rows_per_commit": 100},
    {"commit_interval_ms": 100},
    {"commit_records": 300},
)


@dataclass(frozen=True)
class BouncesOutcome:
    """What the bounces came to.

    Attributes
    ----------
    violations : tuple of str
        Whatever must not happen and did.
    bounces : dict of str to int
        How many of each kind.
    rows : int
        That a reader of what is committed found.
    hand_overs : int
        How often an instance was assigned a source partition.
    aborted : int
        Transactions, as far as instances lived to tell.
    """

    violations: tuple[str, ...]
    bounces: dict[str, int]
    rows: int
    hand_overs: int
    aborted: int
    took_s: float


class _Instance:
    """A process of the group, and the number of the next row of what it has committed."""

    def __init__(self, name: str, settings: dict[str, Any], work: Path) -> None:
        self.name = name
        self.suspended = False
        self.committed: dict[int, int] = {}
        self.assigned = self.aborted = 0
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        self.process = ChildProcess(
            name,
            producer_instance.__name__,
            settings,
            work=work,
            on_event=self._follow,
            environment={"PYTHONPATH": path},
        ).start()

    def _follow(self, event: dict[str, Any]) -> None:
        if event["event"] == "committed":
            self.committed |= {int(p): n for p, n in event["points"].items()}
        elif event["event"] == "assigned":
            self.assigned += len(event["points"])
        elif event["event"] == "aborted":
            self.aborted += 1

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


class ProducerBounces:
    """One run of a plan.

    Parameters
    ----------
    kafka : LocalKafka
        Three brokers, or one where the plan bounces none.
    bounces : sequence of Bounce
    work : Path
        Folder for the instances' logs.
    name : str
        Of the group and the topic.
    protocol : {"classic", "consumer"}
    on_bounce : callable, optional
        Told of each, for people who watch.
    """

    def __init__(
        self,
        kafka: LocalKafka,
        bounces: tuple[Bounce, ...],
        work: Path,
        *,
        name: str,
        protocol: str,
        on_bounce: Callable[[int, str], None] | None = None,
    ) -> None:
        self._kafka = kafka
        self._bounces = bounces
        self._work = work
        self._name = name
        self._protocol = protocol
        self._on_bounce = on_bounce or (lambda number, what: None)
        self._running: list[_Instance] = []
        self._leaving: list[_Instance] = []
        self._all: list[_Instance] = []
        self._numbers = itertools.count()
        self._waking: list[threading.Timer] = []
        self._broker: Future[None] | None = None

    def run(self) -> BouncesOutcome:
        """Carry out the plan, and read what is committed; every broker runs afterwards.

        Raises
        ------
        TimeoutError
            A source partition went no further for long.
        RuntimeError
            An instance ended by itself.
        """
        started = time.monotonic()
        self._kafka.create_topic(self._name, SOURCE_PARTITIONS)
        if self._protocol == "consumer":
            self._kafka.configure_group(
                self._name,
                {
                    "consumer.session.timeout.ms": SESSION_TIMEOUT_MS,
                    "consumer.heartbeat.interval.ms": HEARTBEAT_INTERVAL_MS,
                },
            )
        with ThreadPoolExecutor(1) as brokers, self._ended():
            self._start_up_to(MIN_INSTANCES)
            self._wait_until_all_go_on()
            for number, bounce in enumerate(self._bounces):
                if bounce.after_settling:
                    self._wait_until_all_go_on()
                time.sleep(bounce.pause_s)
                self._raise_what_failed()
                what = self._take(bounce, brokers)
                log.info("bounce %d: %s", number, what)
                self._on_bounce(number, what)
                self._start_up_to(bounce.instances)
            for timer in self._waking:
                timer.join()
            if self._broker is not None:
                self._broker.result(PATIENCE_S)
            self._wait_until_all_go_on()
            for instance in self._running:
                instance.process.order("stop")
            for instance in (*self._leaving, *self._running):
                instance.process.wait_for("stopped", PATIENCE_S)
        return self._judge(time.monotonic() - started)

    # -- bounces ----------------------------------------------------------------------------------

    def _take(self, bounce: Bounce, brokers: ThreadPoolExecutor) -> str:
        if bounce.kind in ("restart broker", "kill broker"):
            if self._broker is not None:  # one at a time, or nothing could be committed
                self._broker.result(PATIENCE_S)
            self._broker = brokers.submit(
                self._bounce_broker, bounce.broker, bounce.kind == "kill broker"
            )
            return f"{bounce.kind} {bounce.broker}"
        awake = [instance for instance in self._running if not instance.suspended]
        if not awake:
            return f"{bounce.kind}: all are suspended"
        chosen = awake[int(bounce.which * len(awake))]
        if bounce.kind == "suspend":
            self._suspend(chosen, bounce.suspended * SESSION_TIMEOUT_MS / 1000)
            return f"suspend {chosen.name} for {bounce.suspended} sessions"
        self._running.remove(chosen)
        if bounce.kind == "kill":
            chosen.process.kill()
        else:  # goes on until it has left; nobody waits for it
            chosen.process.order("stop")
            self._leaving.append(chosen)
        return f"{bounce.kind} {chosen.name}"

    def _suspend(self, instance: _Instance, seconds: float) -> None:
        def wake() -> None:
            instance.signal(signal.SIGCONT)
            instance.suspended = False

        instance.suspended = True
        instance.signal(signal.SIGSTOP)
        timer = threading.Timer(seconds, wake)
        self._waking.append(timer)
        timer.start()

    def _bounce_broker(self, broker_id: int, kill: bool) -> None:
        if kill:
            self._kafka.kill(broker_id)
        self._kafka.restart(broker_id)
        topics = (self._name, f"__producer_group.{self._name}", "__consumer_offsets")
        wait_until_in_sync(self._kafka, (*topics, "__transaction_state"), broker_id)

    def _start_up_to(self, count: int) -> None:
        while len(self._running) < count:
            number = next(self._numbers)
            form = dict(_FORMS[number % len(_FORMS)])
            rows_per_commit = form.pop("rows_per_commit", 0)
            settings = {
                "group": {
                    "group_id": self._name,
                    "source_partition_count": SOURCE_PARTITIONS,
                    "bootstrap_servers": self._kafka.bootstrap_servers,
                    "group_protocol": self._protocol,
                    "session_timeout_ms": SESSION_TIMEOUT_MS,
                    "heartbeat_interval_ms": HEARTBEAT_INTERVAL_MS,
                    "reconnect_backoff_max_ms": 200,
                    **form,
                },
                "topic": self._name,
                "rows_per_commit": rows_per_commit,
                "pause_s": 0.01,
            }
            instance = _Instance(f"i{number:03d}", settings, self._work)
            self._running.append(instance)
            self._all.append(instance)

    def _wait_until_all_go_on(self) -> None:
        """Until rows of every source partition are committed that were not when this began."""
        before = self._reached()
        deadline = time.monotonic() + PATIENCE_S
        while True:
            self._raise_what_failed()
            reached = self._reached()
            still = [p for p in range(SOURCE_PARTITIONS) if reached[p] <= before[p]]
            if not still:
                return
            if time.monotonic() > deadline:
                ends = "\n".join(f"{i.name}: {i.process.log_end(1_500)}" for i in self._running)
                raise TimeoutError(f"source partitions {still} went no further\n{ends}")
            time.sleep(0.05)

    def _reached(self) -> Counter[int]:
        reached: Counter[int] = Counter()
        for instance in self._all:
            reached |= Counter(instance.committed.copy())
        return reached

    def _raise_what_failed(self) -> None:
        for instance in self._running:
            instance.process.raise_if_ended()
        if self._broker is not None and self._broker.done():
            self._broker.result()

    @contextlib.contextmanager
    def _ended(self) -> Iterator[None]:
        try:
            yield
        finally:
            for timer in self._waking:
                timer.cancel()
            for instance in self._all:
                instance.process.kill()

    # -- what came of it --------------------------------------------------------------------------

    def _judge(self, took_s: float) -> BouncesOutcome:
        violations: list[str] = []
        points = StoredPoints(
            {"bootstrap_servers": self._kafka.bootstrap_servers}, self._name
        ).read()
        values = committed_values(self._kafka.bootstrap_servers, self._name)
        for p, stored in points.items():
            rows = [int(value.decode().removeprefix(f"{p}:")) for value in values[p]]
            wanted = 0 if stored is None else int(stored.value or 0)
            violations += _wrong(p, rows, wanted)
        return BouncesOutcome(
            tuple(violations),
            dict(Counter(bounce.kind for bounce in self._bounces)),
            rows=sum(map(len, values.values())),
            hand_overs=sum(instance.assigned for instance in self._all),
            aborted=sum(instance.aborted for instance in self._all),
            took_s=took_s,
        )


def _wrong(source_partition: int, rows: list[int], wanted: int) -> Iterator[str]:
    """What is wrong with a source partition's rows, whose restart point is the number of all."""
    times = Counter(rows)
    if lost := [n for n in range(wanted) if n not in times]:
        yield f"source partition {source_partition}: {len(lost)} lost, from {lost[:10]}"
    if twice := [n for n, count in times.items() if count > 1]:
        yield f"source partition {source_partition}: {len(twice)} twice, from {twice[:10]}"
    if beyond := [n for n in times if n >= wanted]:
        yield f"source partition {source_partition}: {beyond[:10]} beyond its end {wanted}"
    if rows != sorted(rows):
        yield f"source partition {source_partition}: not in order"


def main() -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("--seed", type=int, default=SystemRandom().randrange(10**6))
    parser.add_argument("--protocol", choices=PROTOCOLS, default=PROTOCOLS[0])
    parser.add_argument("--bounces", type=int, default=100)
    given = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="producer-bounces-"))
    log_into(work)
    print(f"seed {given.seed}, group protocol {given.protocol}; logs: {work}", flush=True)
    with LocalKafka(3) as kafka:
        outcome = ProducerBounces(
            kafka,
            make_bounces(given.seed, given.bounces),
            work,
            name="bounces",
            protocol=given.protocol,
            on_bounce=lambda number, what: print(f"{number + 1:3d} {what}", flush=True),
        ).run()
    print(
        f"{outcome.bounces} in {outcome.took_s:.0f} s: {outcome.rows:,} rows, "
        f"{outcome.hand_overs} source partitions assigned, {outcome.aborted} transactions aborted"
    )
    for violation in outcome.violations:
        print(violation)
    print(f"{len(outcome.violations)} violations")
    return 1 if outcome.violations else 0


if __name__ == "__main__":
    sys.exit(main())
