"""What has happened in a plan, from logs, ledgers and brokers, for the judge."""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.producer.stored_points import StoredPoints

from .ended_sessions import ended_sessions
from .events import (
    Began,
    Break,
    Deleted,
    Delivered,
    End,
    Event,
    Log,
    Moved,
    Produced,
    RestartPoint,
    Seen,
)
from .oracle import Rules, Verdict, judge
from .plan_input import Watch, read_all, wait_until_decided
from .random_plans import ANEW, COMPACTED, DELETING, PRODUCED, PRODUCERS, Reader

if TYPE_CHECKING:
    from .plan_reader import RunningReader
    from .plan_run import PlanRun

log = logging.getLogger(__name__)


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


class History:
    """Collects what has happened in a run of a plan.

    Attributes
    ----------
    moves : mapping
        What was done to the offsets of each group.
    problems : list of str
    """

    def __init__(self, run: PlanRun) -> None:
        self._run = run
        self._plan = run.plan
        self._deleted: list[Deleted] = []
        self.moves: dict[str, list[Moved]] = defaultdict(list)
        self.problems: list[str] = []

    # -- records ----------------------------------------------------------------------------------

    def produced(self) -> list[Produced]:
        """What the logs have, of which no transaction is open any more."""
        run = self._run
        servers = run.kafka.bootstrap_servers
        wait_until_decided(servers, run.partitions())
        found = {
            isolation: read_all(servers, run.partitions(), isolation)
            for isolation in ("read_uncommitted", "read_committed")
        }
        committed = {(p, offset) for p, offset, _ in found["read_committed"]}
        produced = []
        for partition, offset, value in found["read_uncommitted"]:
            _, transaction = run.input.sent.get(value, (partition, None))
            aborted = (partition, offset) not in committed
            where = run.renewed.log_of(*partition, value)
            sent_at = run.input.sent_at.get(value)
            produced.append(Produced(where, offset, value, transaction, aborted, sent_at))
        self._look_for_acknowledged({one.value for one in produced})
        return produced

    def _look_for_acknowledged(self, there: set[str]) -> None:
        """Each that is not there must have been deleted, or compacted away."""
        run = self._run
        run.deletions.look_again()
        self._deleted = []
        for value in run.input.acknowledged.keys() - there:
            partition, transaction = run.input.sent[value]
            offset = run.input.acknowledged[value]
            at = run.deletions.when(partition, offset)
            if at is not None:
                if transaction is None:  # otherwise it may have been aborted
                    self._deleted.append(Deleted(at, _log(*partition), offset))
            elif not (self._plan.compacts and run.short(partition.topic) == COMPACTED):
                self.problems.append(f"record {value} was acknowledged and is in no log")

    def left_of(self, produced: list[Produced]) -> list[Produced]:
        """What the cleaner has not removed meanwhile: nobody had to read the rest."""
        if not self._plan.compacts:
            return produced
        there = {(one.log, one.offset) for one in self.produced()}
        left = [one for one in produced if (one.log, one.offset) in there]
        log.info("%d records are left", len(left))
        return left

    def is_for(self, group: str, one: Produced) -> bool:
        """Whether somebody in the group is to read the record."""
        if one.aborted and self._plan.read_committed:
            return False
        some = [reader for reader in self._plan.readers if reader.group == group]
        short = self._run.short(one.log.topic)
        if short in ANEW and any(reader.is_strict for reader in some):
            return False  # of the topic that there is now: who had failed, goes on anywhere in it
        if all("assign" in dict(reader.options) for reader in some):
            return one.log.partition < self._plan.topics.get(short, 0)
        return True

    # -- judgement --------------------------------------------------------------------------------

    def judged(
        self, produced: list[Produced], watches: Mapping[str, Watch], began_at: float, took_s: float
    ) -> Outcome:
        """Have the history of each group judged, and keep it in the run's folder."""
        verdicts: list[Verdict] = []
        run, readers = self._run, self._run.readers
        problems = [*self.problems, *(p for reader in readers for p in reader.problems)]
        problems += self._refused_without_cause()
        deliveries = breaks = 0
        for group in self._plan.groups:
            mine = [reader for reader in readers if reader.reader.group == group]
            history = self._of_group(group, mine, produced, watches[group], began_at)
            rules = self._rules_of(mine)
            found = judge(history, rules)
            verdicts += found
            deliveries += sum(isinstance(one, Delivered) for one in history)
            breaks += sum(isinstance(one, Break) for one in history)
            with (run.folder / f"history-{group}.txt").open("w") as file:
                file.writelines(f"{one}\n" for one in [rules, *history, *found])
        verdicts += judge([*produced, *self._restart_points()], Rules(complete=False))
        (run.folder / "plan.txt").write_text(f"{self._plan}\n")
        return Outcome(
            tuple(verdicts),
            tuple(problems),
            records=len(produced),
            deliveries=deliveries,
            runs=sum(reader.run + 1 for reader in readers),
            breaks=breaks,
            took_s=took_s,
            work=run.folder,
        )

    def _refused_without_cause(self) -> list[str]:
        deletions, short = self._run.deletions, self._run.short
        return [
            f"{one.reader} run {one.run} says that {one.log} lacks {one.since}: it is not deleted"
            for reader in self._run.readers
            for one in reader.refusals
            if short(one.log.topic) not in ANEW
            and deletions.when(TopicPartition(one.log.topic, one.log.partition), one.since) is None
        ]

    def _rules_of(self, mine: list[RunningReader]) -> Rules:
        return Rules(
            self._plan.read_committed,
            members=frozenset(r.name for r in mine if r.reader.kind != "query"),
            live=frozenset(r.name for r in mine if dict(r.reader.options).get("parallelRebalance")),
            limits={r.name: at_most for r in mine if (at_most := _limit_s(r.reader))},
            forgets=frozenset(t for t in self._run.topics if self._forgets(self._run.short(t))),
        )

    def _forgets(self, topic: str) -> bool:
        """Whether it may have had records that no log has at the end and no event names."""
        if self._plan.compacts and topic == COMPACTED:
            return True
        deletes = any(f.what in DELETING and f.target == topic for f in self._plan.faults)
        return deletes or topic in ANEW

    def _of_group(
        self,
        group: str,
        mine: list[RunningReader],
        produced: list[Produced],
        watch: Watch,
        began_at: float,
    ) -> list[Event]:
        # One that is to be read by nobody and is read all the same, is an aborted read.
        aborted = [one for one in produced if one.aborted and self._plan.read_committed]
        history: list[Event] = [
            *aborted,
            *(one for one in produced if self.is_for(group, one)),
            *self._delivered(reader.name for reader in mine),
        ]
        for reader in mine:
            history += [*reader.starts, *reader.lives, *reader.refusals, *reader.breaks]
        history += self._ended_sessions(group, mine, began_at)
        history += self.moves[group]
        history += self._run.aways
        history += self._deleted
        for at, offsets in watch.seen:
            for p, offset in offsets.items():
                if (where := self._run.renewed.log_at(at, p)) is not None:
                    history.append(Seen(at, where, offset))
        for at, ends in watch.ends:
            history += [End(at, _log(*p), offset) for p, offset in ends.items()]
        if any(reader.reader.is_strict for reader in mine):
            history += self._run.renewed.what_was_deleted()
            history = [one for one in history if not self._is_of_a_new_topic(one)]
        return history

    def _is_of_a_new_topic(self, event: Event) -> bool:
        """Of the topic that there was not at first: who had failed, goes on anywhere in it."""
        where = getattr(event, "log", None)
        return where is not None and where.topic_id not in ("", "0")

    def _restart_points(self) -> list[Event]:
        run = self._run
        if not any(reader.kind == "producer" for reader in self._plan.readers):
            return []
        (topic, _), *_ = PRODUCED.items()
        servers = {"bootstrap_servers": run.kafka.bootstrap_servers}
        points = StoredPoints(servers, run.group(PRODUCERS)).read()
        return [
            RestartPoint(_log(f"{run.prefix}-{topic}", p), int((one and one.value) or 0))
            for p, one in points.items()
        ]

    def _delivered(self, readers: Iterable[str]) -> list[Event]:
        events: list[Event] = []
        for name in readers:
            for file in sorted(self._run.ledger.glob(f"{name}-*.jsonl")):
                number = int(file.stem.rpartition("-")[2])
                for line in file.read_text().splitlines():
                    try:
                        told = json.loads(line)
                    except json.JSONDecodeError:  # killed in the midst of the line
                        continue
                    events += events_of(name, number, told, self._run.renewed.log_of)
        return events

    def _ended_sessions(
        self, group: str, readers: list[RunningReader], began_at: float
    ) -> list[Break]:
        """What the coordinators have logged, and whose session it was as far as one can tell."""
        found = []
        kafka = self._run.kafka
        for broker in kafka.broker_ids:
            text = (kafka.folder / f"broker-{broker}" / "broker.log").read_text()
            for at, member in ended_sessions(text, self._run.group(group), began_at):
                named = [r for r in readers if member.startswith(f"{r.name}-")]
                asleep = [r for r in named or readers if r.pauses_before(at)]
                if not asleep and any(r.died_before(at) for r in named or readers):
                    continue  # the dead run's, whose death is known
                for reader in asleep or named or readers:
                    why = f"session of {member} ended"
                    for since in reader.pauses_before(at) or [at]:
                        found.append(Break(since, at, reader.name, None, why, False))
        return found


def events_of(
    name: str, run: int, told: dict[str, Any], log_of: Callable[[str, int, str], Log]
) -> Iterable[Event]:
    """What one line of a reader's ledger says."""
    if told["event"] == "lost":
        # Without an answer for a session it gives up by itself, and no coordinator logs that.
        return [Break(told["at"], told["at"], name, run, "lost", ends_the_run=False)]
    batch = told["batch"]
    if told["event"] == "began":
        logs = frozenset(_log(*p) for p in told["logs"])
        return [Began(told["at"], name, run, batch, logs)]
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
