"""A churn: members join and leave a group while its brokers restart, and nothing goes wrong.

Nothing means: no record lost, none handed out twice, no partition lost or in two members' hands,
no commit ahead of the processing or behind an earlier one (see ``invariants.py``).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.testing import LocalKafka
from pyspark_kafka_rebalance.testing.ledger import read_ledger, tally

from .book import MemberReport, MemberSettings
from .invariants import Holding, commits_astray, overlaps, unheld
from .plan import TOPICS, Plan, Step
from .processing import Piece
from .running import RunningMember, start_member
from .surroundings import PATIENCE_S, CommitWatch, RollingRestarts, SteadyInput

log = logging.getLogger(__name__)

#: A churn holds for either.
PROTOCOLS = ("classic", "consumer")

#: Longer than a coordinator's restart takes: nobody may be thought dead because of one.
SESSION_TIMEOUT_MS = 25_000
#: Without restarts. librdkafka that leaves in the middle of a join does not say so, and the group
#: waits so long for it.
SHORT_SESSION_TIMEOUT_MS = 10_000
HEARTBEAT_INTERVAL_MS = 300


@dataclass(frozen=True)
class Outcome:
    """What a churn came to.

    Attributes
    ----------
    violations : tuple of str
        Whatever must not happen and did.
    hand_overs : int
        How often a member got a partition.
    """

    violations: tuple[str, ...]
    joins: int
    leaves: int
    restarts: int
    records: int
    hand_overs: int
    polls: int
    commits_seen: int
    took_s: float


class Churn:
    """One run of a plan.

    Parameters
    ----------
    kafka : LocalKafka
        Three brokers, or one if the plan restarts none. Topics and group have names of the run's.
    plan : Plan
    work : Path
        An empty folder for the ledger and the logs of children.
    name : str
        Of the group, and in the topics' names.
    protocol : {"classic", "consumer"}
    rate : int
        Records a second.
    rounds : int
        Every broker restarts at least so often, however soon the steps are done.
    on_step : callable, optional
        Told of each step's beginning, for people who watch.
    """

    def __init__(
        self,
        kafka: LocalKafka,
        plan: Plan,
        work: Path,
        *,
        name: str,
        protocol: str,
        rate: int = 400,
        rounds: int = 1,
        on_step: Callable[[Step], None] | None = None,
    ) -> None:
        self._kafka = kafka
        self._plan = plan
        self._work = work
        self._ledger = work / "ledger"
        self._group_id = name
        self._topics = {f"{name}-{topic}": count for topic, count in TOPICS.items()}
        self._protocol = protocol
        self._session_timeout_ms = SESSION_TIMEOUT_MS if plan.restarts else SHORT_SESSION_TIMEOUT_MS
        self._rate = rate
        self._rounds = rounds
        self._on_step = on_step or (lambda step: None)
        self._present: dict[str, RunningMember] = {}
        self._leaving: list[RunningMember] = []
        self._reports: list[MemberReport] = []

    def run(self) -> Outcome:
        """Carry out the plan; the group is empty afterwards and every broker runs.

        Raises
        ------
        TimeoutError
            The group did not get somewhere within a minute.
        """
        started = time.monotonic()
        for topic, count in self._topics.items():
            self._kafka.create_topic(topic, partitions=count)
        if self._protocol == "consumer":  # there the group's settings count, not the members'
            self._kafka.configure_group(
                self._group_id,
                {
                    "consumer.session.timeout.ms": self._session_timeout_ms,
                    "consumer.heartbeat.interval.ms": HEARTBEAT_INTERVAL_MS,
                },
            )
        steps = self._plan.steps
        with ExitStack() as stack:
            stack.callback(self._end_members)
            watch = stack.enter_context(CommitWatch(self._kafka, self._topics, self._group_id))
            source = stack.enter_context(SteadyInput(self._kafka, self._topics, self._rate))
            restarts = stack.enter_context(
                RollingRestarts(
                    self._kafka,
                    self._topics,
                    self._plan.restarts,
                    rest_s=self._session_timeout_ms / 1_000 + 5.0,
                )
            )
            background = (watch, source, restarts)

            def check() -> None:
                for loop in background:
                    loop.raise_if_failed()
                self._collect()

            # The last two stay until all is read: without them nobody would be there to read it.
            for step in steps[:-2]:
                self._take(step, check)
            wanted = self._rounds * len(self._plan.restarts)
            _wait_until(lambda: restarts.restarts >= wanted, "the restarts", check)
            restarts.stop()
            source.stop()
            ends = source.end_offsets()
            _wait_until(lambda: watch.has_reached(ends), "all to be committed", check)
            for step in steps[-2:]:
                self._take(step, check)
            _wait_until(lambda: not self._leaving, "the last to leave", check)
            watch.stop()
        return self._judge(ends, source.sent, restarts.restarts, watch, time.monotonic() - started)

    def _take(self, step: Step, check: Callable[[], None]) -> None:
        if step.after_settling:
            try:
                _wait_until(self._is_settled, "the partitions to be shared evenly", check)
            except TimeoutError as error:
                raise TimeoutError(f"{error}: {self._shares()}") from None
        time.sleep(step.pause_s)
        check()
        self._on_step(step)
        if step.joins:
            self._present[step.member] = self._join(step)
        else:
            member = self._present.pop(step.member)
            member.leave()
            self._leaving.append(member)

    def _join(self, step: Step) -> RunningMember:
        settings = MemberSettings(
            name=step.member,
            seed=self._plan.seed,
            topics=tuple(self._topics),
            ledger=str(self._ledger),
            bootstrap_servers=self._kafka.bootstrap_servers,
            group_id=self._group_id,
            group_protocol=self._protocol,
            session_timeout_ms=self._session_timeout_ms,
            heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
        )
        return start_member(step.kind, settings, self._work)

    def _shares(self) -> str:
        """For the message when they do not become even."""
        owned = {member.name: member.owned for member in self._present.values()}
        leaving = [member.name for member in self._leaving]
        return f"{owned} of {sum(self._topics.values())}, leaving: {leaving}"

    def _is_settled(self) -> bool:
        shares = [member.owned for member in self._present.values()]
        return (
            not self._leaving
            and sum(shares) == sum(self._topics.values())
            and max(shares) - min(shares) <= 1
        )

    def _collect(self) -> None:
        """Take the reports of those who have left; raise the error of one who failed."""
        for member in self._present.values():
            if member.has_left:
                raise RuntimeError(f"{member.name} left unasked")
        for member in list(self._leaving):
            if member.has_left:
                self._leaving.remove(member)
                self._reports.append(member.report(PATIENCE_S))

    def _end_members(self) -> None:
        for member in (*self._present.values(), *self._leaving):
            member.end()

    def _judge(
        self,
        ends: dict[TopicPartition, int],
        sent: int,
        restarts: int,
        watch: CommitWatch,
        took_s: float,
    ) -> Outcome:
        ledger = read_ledger(self._ledger)
        counted = tally(ledger, ends)
        pieces = _pieces(ledger)
        holdings: list[Holding] = [h for report in self._reports for h in report.holdings]
        violations = [v for report in self._reports for v in report.violations]
        if sum(ends.values()) != sent:
            violations.append(f"the input itself: {sent} sent, {sum(ends.values())} in the topics")
        violations += [f"lost: {p} {offsets[:10]}" for p, offsets in counted.lost.items()]
        if counted.duplicated:
            violations.append(f"duplicated: {counted.duplicated}")
        violations += overlaps(holdings)
        violations += unheld(pieces, holdings)
        violations += commits_astray(watch.observed, [p for some in pieces.values() for p in some])
        return Outcome(
            tuple(violations),
            joins=sum(step.joins for step in self._plan.steps),
            leaves=len(self._reports),
            restarts=restarts,
            records=counted.records,
            hand_overs=len(holdings),
            polls=sum(report.polls for report in self._reports),
            commits_seen=len(watch.observed),
            took_s=took_s,
        )


def _pieces(ledger: pa.Table) -> dict[str, list[Piece]]:
    """What each member processed, from its rows in the ledger."""
    keys = ["reader", "topic", "partition", "handed_out_at", "processed_at"]
    grouped = ledger.group_by(keys).aggregate([("offset", "list")])
    pieces: dict[str, list[Piece]] = {}
    for row in grouped.to_pylist():
        pieces.setdefault(row["reader"], []).append(
            Piece(
                TopicPartition(row["topic"], row["partition"]),
                sorted(row["offset_list"]),
                row["handed_out_at"],
                0,
                row["processed_at"],
            )
        )
    return pieces


def _wait_until(done: Callable[[], bool], what: str, check: Callable[[], None]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        check()
        if done():
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited in vain for {what}")
        time.sleep(0.02)
