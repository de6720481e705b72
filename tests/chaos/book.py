"""What a member writes down, whichever client it uses: for the ledger and the checks afterwards."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pyarrow as pa
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.testing.ledger import LedgerWriter

from .invariants import Holding
from .processing import Piece, Processing

#: A piece of records is finished at most so many polls later.
LONGEST_PIECE = 12


@dataclass(frozen=True)
class MemberSettings:
    """What a member needs to know; the same in a thread and in a process.

    Attributes
    ----------
    name : str
        Its own.
    seed : int
        Of the plan.
    topics : tuple of str
        To subscribe to.
    ledger : str
        Folder of the whole churn's.
    """

    name: str
    seed: int
    topics: tuple[str, ...]
    ledger: str
    bootstrap_servers: str
    group_id: str
    group_protocol: str
    session_timeout_ms: int
    heartbeat_interval_ms: int


@dataclass(frozen=True)
class MemberReport:
    """What a member says when it has left."""

    polls: int
    holdings: tuple[Holding, ...]
    violations: tuple[str, ...]


class Book:
    """The records, holdings and violations of one member."""

    def __init__(self, settings: MemberSettings) -> None:
        self._name = settings.name
        self._ledger = LedgerWriter(Path(settings.ledger), settings.name)
        self._since: dict[TopicPartition, float] = {}
        self._holdings: list[Holding] = []
        self._violations: list[str] = []
        self.processing = Processing(Random(f"{settings.seed} {settings.name}"), LONGEST_PIECE)
        self.polls = 0

    @property
    def held(self) -> frozenset[TopicPartition]:
        """What it may process now."""
        return frozenset(self._since)

    def take(self, partitions: Iterable[TopicPartition], now: float) -> None:
        """From now on they are this member's."""
        self._since |= dict.fromkeys(partitions, now)

    def let_go(self, partitions: Collection[TopicPartition]) -> None:
        """From now on they may be another member's."""
        now = time.monotonic()
        for partition in partitions:
            since = self._since.pop(partition)
            self._holdings.append(Holding(self._name, partition, since, now))

    def note(self, violations: Iterable[str]) -> None:
        """Write down what must not have happened."""
        self._violations += [f"{self._name}, poll {self.polls}: {what}" for what in violations]

    def broken(self) -> RuntimeError:
        """What to raise when the member cannot go on."""
        before = "; ".join(self._violations) or "nothing"
        return RuntimeError(f"{self._name} broke down; wrong before that: {before}")

    def close(self) -> MemberReport:
        """Write the ledger."""
        self._ledger.write(0, _rows(self.processing.pieces), began_at=time.time())
        return MemberReport(self.polls, tuple(self._holdings), tuple(self._violations))


def _rows(pieces: list[Piece]) -> pa.Table:
    """One row for each record."""
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
