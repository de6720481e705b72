"""Which records belong to aborted transactions (KIP-98).

The log holds the records of aborted transactions like any others. Under read_committed a fetch
response lists the aborted transactions that reach into its records, each with its producer and
first offset, and the reader leaves their records out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class AbortedTransaction(NamedTuple):
    """A transaction that ended in an abort marker, from the fetch response."""

    first_offset: int
    producer_id: int


def aborted_in(answered: Sequence[Any] | None) -> list[AbortedTransaction]:
    """Return the aborted transactions that a fetch response lists for a partition, if any."""
    return [AbortedTransaction(one.first_offset, one.producer_id) for one in answered or ()]


class AbortedTransactions:
    """The producers whose records are to be left out, while batches are walked in offset order.

    A producer's records are aborted from the transaction's first offset to that producer's abort
    marker; the same producer may have committed before and after.
    """

    def __init__(self, aborted: Sequence[AbortedTransaction]) -> None:
        self._upcoming = sorted(aborted, reverse=True)
        self._open: set[int] = set()

    def advance(self, last_offset: int) -> None:
        """Open the transactions that start up to ``last_offset``."""
        upcoming = self._upcoming
        while upcoming and upcoming[-1].first_offset <= last_offset:
            self._open.add(upcoming.pop().producer_id)

    def covers(self, producer_id: int) -> bool:
        """Whether the producer's records here belong to an aborted transaction."""
        return producer_id in self._open

    def end(self, producer_id: int) -> None:
        """Note the producer's abort marker."""
        self._open.discard(producer_id)
