"""Source partitions that move between members of a producer group, and those that stay.

As a program, this is one member in its own process: it sends a record of each source partition that
it owns every 20 ms, commits every 100 ms, and reports when.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from pyspark_kafka_rebalance import ProducerGroup, TransactionAbortedError
from pyspark_kafka_rebalance.testing import LocalKafka
from pyspark_kafka_rebalance.testing.child_process import ChildProcess, orders, tell

PROTOCOLS = ("classic", "consumer")

_SOURCE_PARTITIONS = 12
_HEARTBEAT_INTERVAL_MS = 1_000
_SESSION_TIMEOUT_MS = 25_000
_CALM_S = 4.0
_COMMIT_EVERY_S = 0.1
_SEND_EVERY_S = 0.02
_PATIENCE_S = 60.0


class Told(NamedTuple):
    """A member reported a commit of rows of a source partition, or its first send."""

    at: float
    member: str
    source_partition: int


@dataclass(frozen=True)
class HandOvers:
    """The figures of some joins and leaves.

    Attributes
    ----------
    took_s : list of float
        The times from an old owner's last commit to the new owner's first record.
    silences : list of (float, float)
        For each rebalance, the longest time that any source partition that stays had no commit, in
        the calm before it and during it.
    """

    took_s: list[float]
    silences: list[tuple[float, float]]

    @property
    def median_s(self) -> float:
        """The median hand-over."""
        return median(self.took_s)

    @property
    def intervals(self) -> float:
        """The median hand-over in heartbeat intervals."""
        return self.median_s * 1000 / _HEARTBEAT_INTERVAL_MS

    @property
    def silence_before_s(self) -> float:
        """The longest silence before any rebalance."""
        return max(before for before, _ in self.silences)

    @property
    def silence_during_s(self) -> float:
        """The longest silence during any rebalance."""
        return max(during for _, during in self.silences)

    @property
    def silence_ratio(self) -> float:
        """The ratio of the silence during to that before, the median of the rebalances."""
        return median(during / before for before, during in self.silences)

    def as_dict(self) -> dict[str, Any]:
        """The figures for JSON."""
        return {
            "took_s": self.took_s,
            "median_s": self.median_s,
            "heartbeat_intervals": self.intervals,
            "silences_s": self.silences,
            "silence_ratio": self.silence_ratio,
        }


def took_s(commits: list[Told], firsts: list[Told]) -> list[float]:
    """How long each source partition took to move from another member."""
    found = []
    for first in firsts:
        before = [
            commit.at
            for commit in commits
            if commit.source_partition == first.source_partition
            and commit.member != first.member
            and commit.at < first.at
        ]
        if before:
            found.append(first.at - max(before))
    return found


def longest_silence_s(
    commits: list[Told], stay: dict[int, str], since: float, until: float
) -> float:
    """The longest time without a commit of any source partition that stays with its owner."""
    longest = 0.0
    for p, member in stay.items():
        times = sorted(c.at for c in commits if c.source_partition == p and c.member == member)
        # A silence that begins before or ends after the interval counts only with its part within.
        inside = [since, *(at for at in times if since < at < until), until]
        longest = max(longest, *(b - a for a, b in pairwise(inside)))
    return longest


def measured_hand_overs(kafka: LocalKafka, protocol: str, work: Path) -> HandOvers:
    """Have three members join one after the other and one leave, and measure the hand-overs."""
    topic = f"hand-overs-{protocol}"
    group_id = f"{topic}-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, _SOURCE_PARTITIONS)
    if protocol == "consumer":
        kafka.configure_group(
            group_id,
            {
                "consumer.session.timeout.ms": _SESSION_TIMEOUT_MS,
                "consumer.heartbeat.interval.ms": _HEARTBEAT_INTERVAL_MS,
            },
        )
    fleet = _Fleet(kafka.bootstrap_servers, topic, group_id, protocol, work)
    with ExitStack() as stack:
        stack.callback(fleet.kill)
        fleet.start("ABC")
        fleet.change({"A": "join"}, {"A": 12})
        silences = [
            fleet.change({"B": "join"}, {"A": 6, "B": 6}),
            fleet.change({"C": "join"}, {"A": 4, "B": 4, "C": 4}),
            fleet.change({"C": "stop"}, {"A": 6, "B": 6}),
        ]
    return HandOvers(took_s(fleet.commits, fleet.firsts), silences)


class _Fleet:
    def __init__(self, servers: str, topic: str, group_id: str, protocol: str, work: Path) -> None:
        self._settings = {
            "topic": topic,
            "group": {
                "group_id": group_id,
                "source_partition_count": _SOURCE_PARTITIONS,
                "bootstrap_servers": servers,
                "group_protocol": protocol,
                "session_timeout_ms": _SESSION_TIMEOUT_MS,
                "heartbeat_interval_ms": _HEARTBEAT_INTERVAL_MS,
            },
        }
        self._work = work
        self._lock = threading.Lock()
        self._processes: dict[str, ChildProcess] = {}
        self._owners: dict[int, str] = {}  # the member that last committed each
        self.commits: list[Told] = []
        self.firsts: list[Told] = []

    def start(self, names: str) -> None:
        """Start the processes before any joins, as each start takes a second of CPU time."""
        for name in names:
            self._processes[name] = ChildProcess(
                name,
                __name__,
                {**self._settings, "name": name},
                work=self._work,
                on_event=self._follow,
            ).start()
            self._processes[name].wait_for("ready")

    def change(self, orders: dict[str, str], wanted: dict[str, int]) -> tuple[float, float]:
        """Have members join or stop; return the longest silence of what stays before and during."""
        began = time.time()
        with self._lock:
            before = dict(self._owners)
        for name, order in orders.items():
            self._processes[name].order(order)
        self._wait_for(wanted)
        ended = time.time()
        time.sleep(_CALM_S)
        with self._lock:
            stay = {p: owner for p, owner in before.items() if self._owners[p] == owner}
            return (
                longest_silence_s(self.commits, stay, began - _CALM_S / 2, began),
                longest_silence_s(self.commits, stay, began, ended),
            )

    def kill(self) -> None:
        for process in self._processes.values():
            process.kill()

    def _wait_for(self, wanted: dict[str, int]) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            with self._lock:
                owners = list(self._owners.values())
            if {name: owners.count(name) for name in set(owners)} == wanted:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"the source is not shared as {wanted}: {owners}")
            time.sleep(0.02)

    def _follow(self, event: dict[str, Any]) -> None:
        with self._lock:
            for p in event.get("source_partitions", ()):
                told = Told(event["at"], event["member"], p)
                if event["event"] == "committed":
                    self.commits.append(told)
                    self._owners[p] = told.member
                else:
                    self.firsts.append(told)


def member(settings: dict[str, Any], wait: Callable[[], str]) -> None:
    """Wait for the order to join, and send until the order to stop."""
    name, topic = settings["name"], settings["topic"]
    tell("ready")
    if wait() != "join":
        return
    stop = threading.Event()
    threading.Thread(target=lambda: (wait(), stop.set()), daemon=True).start()
    mine: set[int] = set()
    with ProducerGroup(**settings["group"]) as group:
        group.subscribe()
        sent = 0
        while not stop.is_set():
            try:
                commit_at = time.monotonic() + _COMMIT_EVERY_S
                group.poll()
                while time.monotonic() < commit_at:
                    owned = group.restart_points.keys()
                    for p in owned:
                        group.send(topic, b"x" * 100, partition=p, source_partition=p)
                    if new := owned - mine:
                        tell("first", member=name, source_partitions=sorted(new))
                    mine = set(owned)
                    sent += 1
                    time.sleep(_SEND_EVERY_S)
                touched = sorted(mine)
                group.commit_transaction(str(sent))
                tell("committed", member=name, source_partitions=touched)
                mine &= group.restart_points.keys()
            except TransactionAbortedError as aborted:
                print(aborted, file=sys.stderr)
    tell("stopped")


if __name__ == "__main__":
    lines = orders()
    member(json.loads(sys.argv[1]), lambda: next(lines))
