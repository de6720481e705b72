"""A member that runs beside the churn: on a thread of this process, or in a process of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.testing.child_process import ChildProcess

from . import member
from .book import MemberReport, MemberSettings
from .invariants import Holding
from .librdkafka_member import LibrdkafkaMember
from .member import Member
from .plan import MemberKind

#: A process that has ended may have told so, and its last line not be read yet.
_LAST_WORD_S = 5.0


class RunningMember(Protocol):
    """What the churn sees of a member.

    Attributes
    ----------
    owned : int
        Its number of partitions, as far as it has said so.
    """

    name: str
    owned: int

    def leave(self) -> None:
        """Tell it to leave the group, and do not wait."""

    @property
    def has_left(self) -> bool:
        """Whether it has left the group; raises what it ended with otherwise."""

    def report(self, timeout_s: float) -> MemberReport:
        """Wait until it has left."""

    def end(self) -> None:
        """After a failure: do not leave it behind."""


def start_member(kind: MemberKind, settings: MemberSettings, work: Path) -> RunningMember:
    """Start a member; ``work`` is the folder for its log."""
    if kind == "process":
        return _InProcess(settings, work)
    return _OnThread(settings, LibrdkafkaMember if kind == "librdkafka" else Member)


class _OnThread:
    def __init__(self, settings: MemberSettings, make: Callable[..., Any]) -> None:
        self.name = settings.name
        self.owned = 0
        self._leave = threading.Event()
        self._report: MemberReport | None = None
        self._error: BaseException | None = None
        arguments = (settings, make)
        self._thread = threading.Thread(target=self._run, args=arguments, name=settings.name)
        self._thread.start()

    def leave(self) -> None:
        self._leave.set()

    @property
    def has_left(self) -> bool:
        if self._error is not None:
            raise self._error
        return self._report is not None

    def report(self, timeout_s: float) -> MemberReport:
        self._thread.join(timeout_s)
        if not self.has_left:
            raise TimeoutError(f"{self.name} has not left")
        assert self._report is not None
        return self._report

    def end(self) -> None:
        self._leave.set()
        self._thread.join()

    def _run(self, settings: MemberSettings, make: Callable[..., Any]) -> None:
        def owns(count: int) -> None:
            self.owned = count

        try:
            self._report = make(settings, owns).run(self._leave)
        except BaseException as error:
            self._error = error


class _InProcess:
    def __init__(self, settings: MemberSettings, work: Path) -> None:
        self.name = settings.name
        self.owned = 0
        self._stopped: dict[str, Any] | None = None
        self._process = ChildProcess(
            settings.name, member.__name__, asdict(settings), work=work, on_event=self._follow
        ).start()

    def leave(self) -> None:
        self._process.order("leave")

    @property
    def has_left(self) -> bool:
        if self._stopped is None and not self._process.is_running:
            deadline = time.monotonic() + _LAST_WORD_S
            while self._stopped is None and time.monotonic() < deadline:
                time.sleep(0.01)
            if self._stopped is None:
                self._process.raise_if_ended()
        return self._stopped is not None

    def report(self, timeout_s: float) -> MemberReport:
        stopped = self._process.wait_for("stopped", timeout_s)
        self._process.wait_until_ended()
        self._process.kill()  # closes the pipes
        holdings = [
            Holding(name, TopicPartition(*partition), since, until)
            for name, partition, since, until in stopped["holdings"]
        ]
        return MemberReport(stopped["polls"], tuple(holdings), tuple(stopped["violations"]))

    def end(self) -> None:
        self._process.kill()

    def _follow(self, event: dict[str, Any]) -> None:
        if event["event"] == "owns":
            self.owned = event["count"]
        elif event["event"] == "stopped":
            self._stopped = event
