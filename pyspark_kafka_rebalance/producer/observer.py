"""ProducerObserver: who is told of a producer's transactions, such as its metrics.

Told once a transaction, never of single records, by the thread that ends it, with the lock of the
transactions held: it must not hold that up, and nothing that it raises is caught.
"""

from __future__ import annotations

import enum
from typing import Protocol


class Outcome(enum.Enum):
    """How a transaction ended."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    #: The answer to its commit is missing.
    IN_DOUBT = "in doubt"


class ProducerObserver(Protocol):
    """What a producer tells."""

    def transaction_ended(
        self, outcome: Outcome, records: int, took_s: float, commit_s: float | None
    ) -> None:
        """A transaction has ended.

        Parameters
        ----------
        outcome : Outcome
            How.
        records : int
            So many were sent in it.
        took_s : float
            Since it began.
        commit_s : float or None
            How long its commit took; None: it was not begun.
        """

    def closed(self) -> None:
        """Nothing more will happen."""
