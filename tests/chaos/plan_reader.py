"""A reader of a plan over its lives, or an instance of producers, and what is done to it."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark_kafka_rebalance.testing.child_process import ChildProcess
from tests.kafka.flaky_network import FlakyNetwork

from . import plan_member, producer_instance
from .events import Break, Life, Refused, Started
from .own_losses import MembersLog
from .plan_sparks import PlanSpark
from .random_plans import SESSION_S, Fault, Reader
from .refusals import REFUSES, refused
from .surroundings import PATIENCE_S

if TYPE_CHECKING:
    from .plan_run import PlanRun

log = logging.getLogger(__name__)

#: Spark waits ten seconds for a planner that starts.
_NOT_CONNECTED = "Python worker failed to connect back"

#: Between two runs that end by themselves.
_REST_S = 1.0


class Pause(NamedTuple):
    """When something of a run was suspended, or its network disturbed."""

    run: int
    since: float
    until: float


class RunningReader:
    """A reader over its lives; its orders are carried out one after the other."""

    def __init__(self, reader: Reader, run: PlanRun) -> None:
        self.reader = reader
        self.name = reader.name
        self.run = -1
        self.pid: int | None = None  # the last process it ran in, for a query its driver
        self.breaks: list[Break] = []
        self.starts: list[Started] = []
        self.lives: list[Life] = []
        self.refusals: list[Refused] = []
        self.problems: list[str] = []
        self.pauses: list[Pause] = []
        self.work = ThreadPoolExecutor(1, thread_name_prefix=self.name)
        self.network = FlakyNetwork() if reader.kind in ("member", "producer") else None
        self._plan_run = run
        self._release = reader.release
        self._process: ChildProcess | None = None
        self._members_log: MembersLog | None = None
        self._ended: dict[str, Any] | None = None
        self._to_fail = 0
        self._hangs = False
        self._ends = threading.Condition()
        self._is_wanted = not reader.joins
        self._forgives = self._goes_on_without = not reader.is_strict
        self._began_at = 0.0

    # -- lives ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin the next run, unless one goes on or none is wanted."""
        if self._process is not None or not self._is_wanted:
            return
        self.run += 1
        self._goes_on_without, self._forgives = self._forgives, not self.reader.is_strict
        self._ended = None
        self._began_at = time.time()
        ledger = str(self._plan_run.ledger / f"{self.name}-{self.run:03d}.jsonl")
        group = self._plan_run.group(self.reader.group)
        if self.reader.kind == "query":
            replays = _replays(self._plan_run.checkpoint(self.name))
            self.starts.append(Started(self.name, self.run, replays))
            spark = self._plan_run.sparks.take(self._follow, self._release)
            self._process, self._members_log = spark, MembersLog(spark.log_path, group)
            settings = self._plan_run.query_settings(self.reader) | {"ledger": ledger}
            if self._goes_on_without:
                settings["options"]["failOnDataLoss"] = "false"
            self._began_at = time.time()
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
            self._members_log = MembersLog(self._process.log_path, group)
            self._process.wait_for("started")
        self.pid = self._process.pid

    def _child(self, module: str, settings: Mapping[str, Any]) -> ChildProcess:
        return ChildProcess(
            f"{self.name}-{self.run}",
            module,
            settings,
            work=self._plan_run.folder,
            on_event=self._follow,
            environment=self._plan_run.sparks.path_of(self._release),
        ).start()

    def _follow(self, event: dict[str, Any]) -> None:
        if event["event"] in ("failed", "stopped", "ended"):
            with self._ends:
                self._ended = event
                self._ends.notify_all()
        if event["event"] == "hangs":
            with self._ends:
                self._hangs = True
                self._ends.notify_all()
        if event["event"] == "ended" or REFUSES in event.get("error", ""):
            with suppress(RuntimeError):  # all is over
                self.work.submit(self.recover)

    def look_at_log(self) -> None:
        """Whether its members have given up by themselves; any thread."""
        members_log, run = self._members_log, self.run
        if members_log is not None and (gave_up := members_log.gives_up()) is not None:
            log.info("run %d: no coordinator answered for a session", run)
            self.breaks.append(Break(*gave_up, self.name, run, "no answer", ends_the_run=False))

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
        self.look_at_log()
        self.lives.append(self._life())
        if self.reader.kind == "query":
            assert isinstance(self._process, PlanSpark)
            self._plan_run.sparks.give_back(self._process)
        else:
            self._process.kill()
        self._process = self._members_log = None

    def _life(self) -> Life:
        """Of the run that is over."""
        until = time.time()
        ended = self._ended is not None and self._ended["event"] == "ended"
        return Life(
            self.name,
            self.run,
            self._began_at,
            until,
            self.reader.trigger,
            ended,
            goes_on_without=self._goes_on_without,
        )

    # -- faults -----------------------------------------------------------------------------------

    def take(self, fault: Fault) -> None:
        """Carry a fault out, and what mends it; one who is not there has none."""
        self._is_wanted |= fault.what == "join"
        if not self._is_wanted:
            return
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
        if self._ended["event"] == "ended":
            self._has_ended()
            return
        error = self._ended.get("error", "")
        if self._to_fail and "the sink fails" in error:
            self._to_fail -= 1
        elif _NOT_CONNECTED in error and any(pause.run == self.run for pause in self.pauses):
            log.info("run %d: Spark did not wait for its planner, which was suspended", self.run)
        elif self._plan_run.plan.deletes and (found := refused(error)):
            log.info("run %d: %s", self.run, _short(error))
            now = time.time()
            self.refusals += [Refused(now, self.name, self.run, *one) for one in found]
            self._forgives = True  # as somebody does who has looked at it
        else:
            self.problems.append(f"{self.name} run {self.run} ended unasked: {_short(error)}")
        self._break("failed")
        self._let_go()

    def _has_ended(self) -> None:
        """A run with an end, by itself and without an error."""
        log.info("run %d has ended by itself", self.run)
        if self.reader.trigger == "once" and not self.reader.knows_checkpoint:
            self._break("nothing tells the group that the batch of Once is done")
        self._let_go()
        time.sleep(_REST_S)

    def away(self, are_gone: threading.Event, may_come: threading.Event) -> None:
        """Stop gracefully, and start again when all may."""
        try:
            self.look()
            if self._process is not None:
                self._stop_once("stop")
        finally:
            are_gone.set()
        may_come.wait()
        self.start()

    def _join(self, seconds: float) -> None:
        """It has begun."""

    def _leave(self, seconds: float) -> None:
        self._is_wanted = False
        self._stop(seconds)

    def _vanish(self, seconds: float) -> None:
        self._is_wanted = False
        self._kill(seconds)

    def _kill(self, seconds: float) -> None:
        assert self._process is not None
        self._process.kill()
        self._break("killed")
        self._let_go()
        time.sleep(seconds)
        self.start()

    def _kill_planner(self, seconds: float) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self._ended is None and time.monotonic() < deadline:
            for pid in self._planners():  # maybe that of the run before, which is still ending
                _send(pid, signal.SIGKILL)
            with self._ends:
                self._ends.wait_for(lambda: self._ended is not None, 1.0)
        if self._wait_until_ended()["event"] == "ended":
            self._has_ended()
        else:
            self._break("planner killed")
            self._let_go()
        time.sleep(seconds)
        self.start()

    def _stop(self, seconds: float, order: str = "stop") -> None:
        self._stop_once(order)
        time.sleep(seconds)
        self.start()

    def _stop_once(self, order: str, *, may_be_incomplete: bool = True) -> None:
        assert self._process is not None
        self._process.order(order)
        ended = self._wait_until_ended()
        if ended["event"] != "stopped":
            self.look()
            return
        if not ended.get("complete", True):
            alone = self._plan_run.plan.is_left_alone(self.reader) and not self.reader.has_an_end
            if not may_be_incomplete:
                self.problems.append(f"{self.name}: the last stop was not complete")
            elif order == "stop" and alone:
                self.problems.append(f"{self.name}: a stop was not complete that nothing hindered")
            elif order != "interrupt" or not self._was_between_batches():
                self._break(f"{order}: not complete")
        self._let_go()

    def _was_between_batches(self) -> bool:
        """Whether nothing of it comes again though it was only interrupted.

        With a coordinator that does not answer in the few seconds that Spark waits, it may.
        """
        checkpoint = self._plan_run.checkpoint(self.name)
        has_batches = any((checkpoint / "commits").glob("[0-9]*"))
        knows = self.reader.knows_checkpoint and self._plan_run.plan.brokers_are_up
        return knows and has_batches and _replays(checkpoint) is None

    def _upgrade(self, seconds: float) -> None:
        self._release = "this"
        self._stop(seconds)

    def _interrupt(self, seconds: float) -> None:
        self._stop(seconds, "interrupt")

    def _pause(self, seconds: float) -> None:
        assert self._process is not None
        self._suspend([-self._process.pid], seconds)

    def _pause_planner(self, seconds: float) -> None:
        self._suspend(self._planners(), seconds)

    def _planners(self) -> list[int]:
        """The process of its planner, which a query that has just been started may not have yet."""
        assert self._process is not None
        deadline = time.monotonic() + PATIENCE_S
        while not (pids := self._process.descendants("python_streaming_source_runner")):
            if self._ended is not None or time.monotonic() > deadline:
                return []
            time.sleep(0.05)
        return pids

    def _suspend(self, pids: Iterable[int], seconds: float) -> None:
        since = time.time()
        for pid in pids:
            _send(pid, signal.SIGSTOP)
        time.sleep(seconds)
        for pid in pids:
            _send(pid, signal.SIGCONT)
        self.pauses.append(Pause(self.run, since, time.time()))

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
        self.pauses.append(Pause(self.run, since, time.time()))

    def _slow(self, seconds: float) -> None:
        self._tell("slow", seconds)

    def _hang(self, seconds: float) -> None:
        self._hangs = False
        self._tell("hang", seconds)
        with self._ends:  # the next fault comes while it hangs, if it gets rows at all
            self._ends.wait_for(lambda: self._hangs or self._ended is not None, SESSION_S)

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
        ends = [one.since for one in self.breaks if one.ends_the_run]
        return any(at - SESSION_S - 4.0 <= end <= at for end in ends)

    def pauses_before(self, at: float) -> list[float]:
        """Since when it was paused, if that may be why its session ended then."""
        late_s = SESSION_S + 4.0
        return [p.since for p in self.pauses if p.since <= at <= p.until + late_s]

    # -- the end ----------------------------------------------------------------------------------

    def recover(self) -> None:
        """Run again if it does not."""
        self.look()
        self.start()

    def finish(self) -> None:
        """Stop for good."""
        self._is_wanted = False
        self.look()
        if self._process is not None:
            # Once cannot know, nor can a run with an end that has not had a batch yet. A replay may
            # lack what was deleted.
            may_fail = self._plan_run.plan.deletes and not self._goes_on_without
            self._stop_once("stop", may_be_incomplete=may_fail or self.reader.has_an_end)

    def end(self) -> None:
        """After a failure of the plan itself."""
        self.work.shutdown(wait=False, cancel_futures=True)
        if self._process is not None:
            self._process.kill()
        if self.network is not None:
            self.network.__exit__()


def _replays(checkpoint: Path) -> int | None:
    """The batch that Spark's own files say it will run again."""
    planned, done = (
        max((int(f.name) for f in (checkpoint / name).glob("*") if f.name.isdigit()), default=-1)
        for name in ("offsets", "commits")
    )
    return planned if planned > done else None


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(-pid, number) if pid < 0 else os.kill(pid, number)


def _short(error: str) -> str:
    lines = [line for line in error.splitlines() if line.strip()]
    return " | ".join(lines[:2] + lines[-3:])[:1_500]
