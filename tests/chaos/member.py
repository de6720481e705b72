"""One member of a churn: a thread, or a process of its own (``python -m tests.chaos.member``).

It processes what it is handed over several polls, commits what is processed, delays a revoke as
long as something of the partition is in processing, and leaves when everything is finished.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance import DeferredRevokeConsumer
from pyspark_kafka_rebalance.testing.child_process import ChildProcess, orders, tell
from pyspark_kafka_rebalance.testing.ledger import LedgerWriter

from .invariants import Holding, PollChecks
from .processing import Piece, Processing

POLL_MS = 40
#: A piece of records is finished at most so many polls later.
LONGEST_PIECE = 12
#: Closing drains the last commits, and a coordinator may just be restarting.
CLOSE_TIMEOUT_MS = 60_000


@dataclass(frozen=True)
class MemberSettings:
    """What a member needs to know; the same in a thread and in a process.

    ``ledger`` is the folder of the whole churn's, ``consumer`` what DeferredRevokeConsumer is
    given beside its topics.
    """

    name: str
    seed: int
    topics: tuple[str, ...]
    ledger: str
    consumer: dict[str, Any]


@dataclass(frozen=True)
class MemberReport:
    """What a member says when it has left."""

    polls: int
    holdings: tuple[Holding, ...]
    violations: tuple[str, ...]


class Member:
    """Polls until told to leave; single-threaded.

    Parameters
    ----------
    settings : MemberSettings
    on_owned : callable
        Called with the number of partitions whenever that changes.
    """

    def __init__(self, settings: MemberSettings, on_owned: Callable[[int], None]) -> None:
        self._name = settings.name
        self._on_owned = on_owned
        self._checks = PollChecks()
        self._processing = Processing(Random(f"{settings.seed} {settings.name}"), LONGEST_PIECE)
        self._ledger = LedgerWriter(Path(settings.ledger), settings.name)
        self._since: dict[TopicPartition, float] = {}
        self._holdings: list[Holding] = []
        self._violations: list[str] = []
        self._polls = 0
        self._consumer = DeferredRevokeConsumer(*settings.topics, **settings.consumer)

    def run(self, leave: threading.Event) -> MemberReport:
        """Take part in the group until ``leave`` is set and all that was begun is finished."""
        try:
            while not leave.is_set():
                self._turn()
            while self._processing.partitions:
                self._consumer.pause(*self._consumer.assignment())
                self._turn()
            self._let_go(frozenset(self._since))
        except Exception as error:
            before = "; ".join(self._violations) or "nothing"
            raise RuntimeError(f"{self._name} broke down; wrong before that: {before}") from error
        finally:
            self._consumer.close(timeout_ms=CLOSE_TIMEOUT_MS)
            self._ledger.write(0, _rows(self._processing.pieces), began_at=time.time())
        return MemberReport(self._polls, tuple(self._holdings), tuple(self._violations))

    def _turn(self) -> None:
        """One poll, its checks, and some processing."""
        consumer = self._consumer
        result = consumer.poll_with_rebalance(timeout_ms=POLL_MS)
        now = time.monotonic()
        self._polls += 1
        owned_before = len(self._checks.owned)
        self._note(self._checks.polled(result, consumer.assignment()))
        self._since |= dict.fromkeys(result.assigned, now)
        for partition, records in result.records.items():
            self._processing.begin(partition, [record.offset for record in records], now)
        reached = self._processing.finish(now)
        self._checks.processed(reached)
        consumer.commit_processed(reached)
        committed = {p: consumer.acknowledged(p) for p in self._checks.owned}
        told = {p: offset for p, offset in committed.items() if offset is not None}
        self._note(self._checks.acknowledged(told))
        delayed = result.to_be_revoked & self._processing.partitions
        if not consumer.delay_revoke(delayed):
            self._note([f"cannot delay {sorted(delayed)}"])
        self._checks.delayed(result.to_be_revoked, delayed)
        self._let_go(result.to_be_revoked - delayed)
        if len(self._checks.owned) != owned_before:
            self._on_owned(len(self._checks.owned))

    def _note(self, violations: Iterable[str]) -> None:
        self._violations += [f"{self._name}, poll {self._polls}: {what}" for what in violations]

    def _let_go(self, partitions: frozenset[TopicPartition]) -> None:
        """From the next poll on, or from leaving on, they may be another member's."""
        now = time.monotonic()
        for partition in partitions:
            since = self._since.pop(partition)
            self._holdings.append(Holding(self._name, partition, since, now))


def _rows(pieces: list[Piece]) -> pa.Table:
    """One row for each record, for the ledger."""
    rows = [
        (*piece.partition, offset, piece.handed_out_at, piece.processed_at)
        for piece in pieces
        for offset in piece.offsets
    ]
    columns = list(zip(*rows, strict=True)) or [()] * 5
    types = (pa.string(), pa.int32(), pa.int64(), pa.float64(), pa.float64())
    names = ("topic", "partition", "offset", "handed_out_at", "processed_at")
    return pa.table(
        {
            name: pa.array(column, kind)
            for name, column, kind in zip(names, columns, types, strict=True)
        }
    )


class ThreadMember:
    """A member on a thread of this process; started at once."""

    def __init__(self, settings: MemberSettings) -> None:
        self.name = settings.name
        self.owned = 0
        self._leave = threading.Event()
        self._report: MemberReport | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(settings,), name=settings.name)
        self._thread.start()

    def leave(self) -> None:
        """Tell it to leave the group, and do not wait."""
        self._leave.set()

    @property
    def has_left(self) -> bool:
        """Whether it has left the group; raises what it ended with."""
        if self._error is not None:
            raise self._error
        return self._report is not None

    def report(self, timeout_s: float) -> MemberReport:
        """Wait until it has left."""
        self._thread.join(timeout_s)
        if not self.has_left:
            raise TimeoutError(f"{self.name} has not left")
        assert self._report is not None
        return self._report

    def end(self) -> None:
        """After a failure: do not leave it behind."""
        self._leave.set()
        self._thread.join()

    def _run(self, settings: MemberSettings) -> None:
        def owns(count: int) -> None:
            self.owned = count

        try:
            self._report = Member(settings, owns).run(self._leave)
        except BaseException as error:
            self._error = error


class ChildMember:
    """A member in a process of its own; started at once."""

    def __init__(self, settings: MemberSettings, work: Path) -> None:
        self.name = settings.name
        self.owned = 0
        self._stopped: dict[str, Any] | None = None
        self._process = ChildProcess(
            settings.name, __name__, asdict(settings), work=work, on_event=self._follow
        ).start()

    def leave(self) -> None:
        """Tell it to leave the group, and do not wait."""
        self._process.order("leave")

    @property
    def has_left(self) -> bool:
        """Whether it has left the group; raises when its process ended otherwise."""
        if self._stopped is None:
            self._process.raise_if_ended()
        return self._stopped is not None

    def report(self, timeout_s: float) -> MemberReport:
        """Wait until it has left."""
        stopped = self._process.wait_for("stopped", timeout_s)
        self._process.wait_until_ended()
        self._process.kill()  # closes the pipes
        holdings = [
            Holding(member, TopicPartition(*partition), since, until)
            for member, partition, since, until in stopped["holdings"]
        ]
        return MemberReport(stopped["polls"], tuple(holdings), tuple(stopped["violations"]))

    def end(self) -> None:
        """After a failure: do not leave it behind."""
        self._process.kill()

    def _follow(self, event: dict[str, Any]) -> None:
        if event["event"] == "owns":
            self.owned = event["count"]
        elif event["event"] == "stopped":
            self._stopped = event


def main(settings: dict[str, Any]) -> None:
    """Run a member until standard input says "leave" or ends."""
    leave = threading.Event()

    def obey() -> None:
        next(orders())
        leave.set()

    threading.Thread(target=obey, daemon=True).start()
    member = Member(MemberSettings(**settings), lambda count: tell("owns", count=count))
    report = member.run(leave)
    tell(
        "stopped",
        polls=report.polls,
        violations=report.violations,
        holdings=[(h.member, h.partition, h.since, h.until) for h in report.holdings],
    )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
