"""ProducerObserver: callbacks for a producer's transactions, such as its metrics.

They are called once per transaction, never per record, by the thread that ends it, with the lock of
the transactions held. They must not block, and exceptions that they raise are not caught.
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
    """A producer's callbacks."""

    def transaction_ended(
        self, outcome: Outcome, records: int, took_s: float, commit_s: float | None
    ) -> None:
        """A transaction has ended.

        ``took_s`` counts since it began; ``commit_s`` is how long its commit took, None if no
        commit was started.
        """

    def closed(self) -> None:
        """Nothing more will happen."""
