"""Random histories of a member's transactions: whatever happens, each row is committed once.

``Transactions`` and ``SourceOwnership`` are the real ones. Writer and log are not: a commit may be
refused, or be in doubt, and a signal may interrupt each call.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from histories import histories

from pyspark_kafka_rebalance import PartitionsLostError, TransactionAbortedError
from pyspark_kafka_rebalance.errors import TransactionInDoubtError
from pyspark_kafka_rebalance.producer.members.ownership import SourceOwnership
from pyspark_kafka_rebalance.producer.options import ProducerOptions
from pyspark_kafka_rebalance.producer.restart_points import key_of
from pyspark_kafka_rebalance.producer.transactions import Handle, Transactions

SOURCE_PARTITIONS = 3


class InterruptedByASignalError(BaseException):
    pass


class Log:
    """What is committed: rows, and restart points by key."""

    def __init__(self) -> None:
        self.rows: dict[int, list[int]] = {p: [] for p in range(SOURCE_PARTITIONS)}
        self.points: dict[bytes, str] = {}

    def point(self, p: int) -> str | None:
        return self.points.get(key_of("g", p))


class OpenTransaction:
    def __init__(self, world: World) -> None:
        self.world = world
        self.rows: list[tuple[int, int]] = []
        self.points: dict[bytes, str] = {}
        self.has_ended = False

    def send(self, topic: str, value: Any, key: Any, *_: Any, **__: Any) -> Future[Any]:
        if self.has_ended:
            raise TransactionAbortedError("it has ended", {})
        fault = self.world.fault(0.02, "refused", "aborted", "before", "after")
        if fault == "refused" and topic == "rows":
            raise ValueError
        if fault == "aborted":
            self.has_ended = True
            raise TransactionAbortedError("fenced", {})
        if fault == "before":
            raise InterruptedByASignalError
        if topic == "rows":
            self.rows.append(value)
        else:
            self.points[key] = value.decode()
        if fault == "after":
            raise InterruptedByASignalError
        return Future()

    def send_batch(self, topic: str, data: Rows, **_: Any) -> None:
        for row in data.rows:
            self.send(topic, row, None)

    def abort(self, *_: Any, **__: Any) -> None:
        if self.has_ended:
            raise TransactionAbortedError("it has ended", {})
        self.has_ended = True


class Rows:
    """Instead of Arrow data."""

    def __init__(self, rows: list[tuple[int, int]]) -> None:
        self.rows = rows
        self.num_rows = len(rows)


class Writer:
    is_over = False
    transaction: OpenTransaction | None = None

    def __init__(self, world: World) -> None:
        self.world = world

    def begin(self) -> None:
        assert self.transaction is None
        if self.world.fault(0.02, "interrupted"):
            raise InterruptedByASignalError
        self.transaction = OpenTransaction(self.world)

    def announce(self, *_: Any) -> None:
        if self.world.fault(0.02, "interrupted"):
            raise InterruptedByASignalError

    def abort(self, *_: Any) -> None:
        if self.transaction is not None:
            self.transaction.has_ended = True
        self.transaction = None

    def tear(self) -> None:
        pass

    def commit(self, _: Any) -> None:
        transaction = self.transaction
        assert transaction is not None
        fault = self.world.fault(0.2, "refused", "in doubt", "interrupted")
        if transaction.has_ended or fault == "refused":
            raise TransactionAbortedError("refused", {})
        transaction.has_ended = True
        if not fault or self.world.random.random() < 0.5:
            for p, n in transaction.rows:
                self.world.log.rows[p].append(n)
            self.world.log.points |= transaction.points
        if fault == "in doubt":
            raise TransactionInDoubtError("no answer")
        if fault == "interrupted":
            raise InterruptedByASignalError
        self.transaction = None


class Membership:
    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.ownership = SourceOwnership(SOURCE_PARTITIONS)
        self.record_offsets = dict.fromkeys(range(SOURCE_PARTITIONS), 0)

    def wake(self) -> None:
        pass


class World:
    """An application that goes back to its restart points when it is told to, and a group."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.log = Log()
        self.calm = False
        self.membership = Membership()
        self.transactions = Transactions(ProducerOptions.checked("g", SOURCE_PARTITIONS))
        self.transactions.membership = self.membership  # type: ignore[assignment]
        self.transactions._writer = Writer(self)  # type: ignore[assignment]
        self.next: dict[int, int] = {}
        self.handle: Handle | None = None
        #: Those that have ended, as far as the application knows.
        self.old: list[Handle] = []
        self.membership.ownership.assigned(range(SOURCE_PARTITIONS))
        self.poll()

    def fault(self, share: float, *kinds: str) -> str | None:
        return self.random.choice(kinds) if self.random.random() < share and not self.calm else None

    def step(self) -> None:
        steps: list[Callable[[], None]] = [self.send, self.send, self.send_rows, self.commit]
        steps += [self.poll, self.begin]
        if not self.calm:
            steps += [self.late, self.abort, self.doom, self.lose]
        try:
            self.random.choice(steps)()
        except TransactionAbortedError as error:
            self.restart(error.restart_points)
        except InterruptedByASignalError:
            self.find_out()
        except PartitionsLostError:
            self.poll()

    # -- the application --------------------------------------------------------------------------

    def restart(self, points: Any) -> None:
        self.next = {p: int(point or 0) for p, point in points.items()}
        if self.handle is not None:
            self.old.append(self.handle)
            self.handle = None

    def find_out(self) -> None:
        """It does not know how far the call came."""
        if self.handle is not None:
            try:
                self.transactions.abort(self.handle)
            except TransactionAbortedError:
                pass
            except InterruptedByASignalError:
                pytest.fail("an abort of the fakes is not interrupted")
            self.poll()
            self.restart(self.membership.ownership.restart_points)
            return
        try:
            self.poll()
        except TransactionAbortedError as error:
            self.restart(error.restart_points)

    def send(self) -> None:
        p = self.random.randrange(SOURCE_PARTITIONS)
        n = self.next.get(p, 0)
        try:
            self.transactions.send(
                self.handle, p, str(n + 1), "rows", (p, n), None, None, None, None
            )
        except ValueError:
            return  # this record alone: it is sent again
        self.next[p] = n + 1

    def send_rows(self) -> None:
        p = self.random.randrange(SOURCE_PARTITIONS)
        n = self.next.get(p, 0)
        rows = Rows([(p, n + i) for i in range(3)])
        try:
            self.transactions.send_batch(self.handle, p, str(n + 3), "rows", rows, None)
        except ValueError:
            return  # the next call tells of the abort
        self.next[p] = n + 3

    def begin(self) -> None:
        if self.handle is None and not self.transactions._is_begun():
            self.handle = self.transactions.begin()

    def commit(self) -> None:
        points = None
        if self.random.random() < 0.5:
            owned = self.membership.ownership.restart_points
            points = {p: str(n) for p, n in self.next.items() if p in owned}
        self.transactions.commit(self.handle, points)
        if self.handle is not None:
            self.old.append(self.handle)
            self.handle = None

    def abort(self) -> None:
        self.transactions.abort(self.handle)
        self.restart(self.membership.ownership.restart_points)

    def late(self) -> None:
        """A thread or a task that still has an old handle."""
        if not self.old:
            return
        handle = self.random.choice(self.old)
        row = (0, 1_000)
        for call in (
            lambda: self.transactions.send(handle, 0, "late", "rows", row, None, None, None, None),
            lambda: self.transactions.send_batch(handle, 0, "late", "rows", Rows([row]), None),
            lambda: self.transactions.commit(handle, {0: "late"}),
            lambda: self.transactions.abort(handle),
        ):
            with pytest.raises(TransactionAbortedError):
                call()  # type: ignore[no-untyped-call]

    def poll(self) -> None:
        """As ``ProducerGroup.poll``, and the take-overs before it."""
        self.transactions.raise_aborted()
        ownership = self.membership.ownership
        for p, number in ownership.reading().items():
            ownership.read(p, number, self.log.point(p))
        events = ownership.turn()
        for p in events.lost | events.revoked:
            self.next.pop(p, None)
        self.next |= {p: int(point or 0) for p, point in events.assigned.items()}

    # -- the group --------------------------------------------------------------------------------

    def doom(self) -> None:
        self.membership.ownership.doom("said the test")
        if self.random.random() < 0.5:
            self.transactions.abort_doomed()

    def lose(self) -> None:
        p = self.random.randrange(SOURCE_PARTITIONS)
        self.membership.ownership.lost([p], "lost")
        self.membership.ownership.assigned([p])


@pytest.mark.parametrize("first", range(0, 600, 100))
def test_whatever_happens_each_row_is_committed_once_and_in_order(first: int) -> None:
    for seed in range(first, first + histories(100)):
        world = World(seed)
        for _ in range(250):
            world.step()
            for p, rows in world.log.rows.items():
                wanted = int(world.log.point(p) or 0)
                assert rows == list(range(wanted)), f"seed {seed}: source partition {p}"
        world.calm = True
        before = {p: len(rows) for p, rows in world.log.rows.items()}
        for _ in range(200):
            world.step()
        for p, rows in world.log.rows.items():
            assert len(rows) > before[p], f"seed {seed}: source partition {p} goes no further"
            assert rows == list(range(int(world.log.point(p) or 0)))
