"""An instance of a producer group; ``python -m tests.chaos.producer_instance`` runs one.

Row n of source partition p becomes the record ``p:n`` in partition p of the topic, and the restart
point is the number of the next row: whoever reads what is committed must find each row of each
source partition once and in order. Tells what is assigned and gone, and every commit.

Orders: "hold" has it tell "amid" and wait in the midst of the next transaction, until "go on";
"stop" leaves.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from pyspark_kafka_rebalance import (
    PartitionsLostError,
    ProducerGroup,
    ProducerRebalanceListener,
    TransactionAbortedError,
)
from pyspark_kafka_rebalance.testing.child_process import orders, tell


class Teller(ProducerRebalanceListener):
    """Tells, and knows the next row of each source partition that is owned."""

    def __init__(self) -> None:
        self.next: dict[int, int] = {}
        self.told: dict[int, str | None] = {}  # the restart points

    def go_back_to(self, restart_points: Mapping[int, str | None]) -> None:
        self.next = {p: int(point or 0) for p, point in restart_points.items()}

    def on_partitions_assigned(self, restart_points: dict[int, str | None]) -> None:
        self.next |= {p: int(point or 0) for p, point in restart_points.items()}
        self.told |= restart_points
        tell("assigned", points={str(p): point for p, point in restart_points.items()})

    def on_partitions_revoked(self, source_partitions: frozenset[int]) -> None:
        self._forget(source_partitions)
        tell("revoked", partitions=sorted(source_partitions))

    def on_partitions_lost(self, source_partitions: frozenset[int]) -> None:
        self._forget(source_partitions)
        tell("lost", partitions=sorted(source_partitions))

    def _forget(self, source_partitions: frozenset[int]) -> None:
        for p in source_partitions:
            self.next.pop(p, None)


class Orders:
    """What was ordered."""

    def __init__(self) -> None:
        self.leave = threading.Event()
        self.hold = threading.Event()
        self._go_on = threading.Event()

    def listen(self) -> None:
        for order in orders():
            if order == "hold":
                self._go_on.clear()
                self.hold.set()
            elif order == "go on":
                self._go_on.set()
            elif order == "stop":
                break
        self.leave.set()
        self._go_on.set()

    def amid(self) -> None:
        """In the midst of a transaction."""
        if self.hold.is_set():
            self.hold.clear()
            tell("amid")
            self._go_on.wait()


def run(settings: dict[str, Any], given: Orders) -> None:
    teller = Teller()
    automatic = any(name in settings["group"] for name in ("commit_interval_ms", "commit_records"))
    one_round = by_itself if automatic else commit_each_time
    with ProducerGroup(**settings["group"]) as group:
        group.subscribe(teller)
        tell("ready")
        while not given.leave.is_set():
            try:
                one_round(group, settings, teller, given)
            except TransactionAbortedError as aborted:
                teller.go_back_to(aborted.restart_points)
                tell("aborted", reason=aborted.reason)
        tell("left", owned=sorted(group.restart_points))


def commit_each_time(
    group: ProducerGroup, settings: dict[str, Any], _: Teller, given: Orders
) -> None:
    group.poll(timeout_ms=20)
    ahead = {p: int(point or 0) for p, point in group.restart_points.items()}
    if not ahead:
        return
    try:
        for _ in range(settings["rows_per_commit"]):
            for p in ahead:
                value = f"{p}:{ahead[p]}".encode()
                group.send(settings["topic"], value, partition=p, source_partition=p)
                ahead[p] += 1
            given.amid()
            time.sleep(settings["pause_s"])
        group.commit_transaction({p: str(n) for p, n in ahead.items()})
    except PartitionsLostError as lost:
        group.abort_transaction()
        tell("aborted", reason=str(lost))
    else:
        tell("committed", points={str(p): n for p, n in ahead.items()})


def by_itself(group: ProducerGroup, settings: dict[str, Any], teller: Teller, _: Orders) -> None:
    """Transactions end where they like: what was sent and not committed goes on being ahead."""
    group.poll(timeout_ms=0 if teller.next else 20)
    for p in list(teller.next):
        n = teller.next.get(p)
        if n is None:  # gone with the commit that the record before has made
            continue
        teller.next[p] = n + 1  # before it is told of, as that commit may tell of another
        value, point = f"{p}:{n}".encode(), str(n + 1)
        try:
            group.send(
                settings["topic"], value, partition=p, source_partition=p, restart_point=point
            )
        except PartitionsLostError:
            teller.next.pop(p, None)  # this record alone
    time.sleep(settings["pause_s"])
    # Those that a poll has committed, too.
    points = group.restart_points
    moved = {str(p): int(at) for p, at in points.items() if at and teller.told.get(p) != at}
    if moved:
        teller.told |= points
        tell("committed", points=moved)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    logging.getLogger("kafka").setLevel(logging.WARNING)
    given = Orders()
    threading.Thread(target=given.listen, daemon=True).start()
    run(json.loads(sys.argv[1]), given)
    tell("stopped")


if __name__ == "__main__":
    main()
