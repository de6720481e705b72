"""The JSON lines of a copier, as Kafka's own tool writes them. Pure.

Follows ``org.apache.kafka.tools.TransactionalMessageCopier`` of Apache Kafka 4.3, field by field
and in its order. Kafka's service reads ``stage``, ``consumed`` and ``remaining``.
"""

from __future__ import annotations

import datetime
import json
from dataclasses import dataclass

REBALANCE_COMPLETE = "RebalanceComplete"
PROCESS_LOOP = "ProcessLoop"
SHUTDOWN_COMPLETE = "ShutdownComplete"

#: Java's Long.MAX_VALUE: nothing is known of the end yet.
UNBOUNDED = 2**63 - 1


@dataclass
class Progress:
    """How far the copier is.

    Attributes
    ----------
    total : int
        The records of all committed transactions.
    consumed : int
        The same since the last rebalance.
    remaining : int
        The offsets up to the end as of the start, or as of the last rebalance.
    """

    remaining: int = UNBOUNDED
    total: int = 0
    consumed: int = 0

    def committed(self, records: int) -> None:
        """A transaction with so many records is committed."""
        self.total += records
        self.consumed += records
        self.remaining -= records

    def rebalanced(self, remaining: int) -> None:
        """Another assignment is in force, with so many offsets left to copy."""
        self.consumed = 0
        self.remaining = remaining


def status_line(
    stage: str, progress: Progress, transactional_id: str, at: datetime.datetime
) -> str:
    """Return a line, without the line end."""
    status = {
        "transactionalId": transactional_id,
        "stage": stage,
        "time": f"{at:%Y/%m/%d %H:%M:%S}:{at.microsecond // 1000:03d}",
        "totalProcessed": progress.total,
        "consumed": progress.consumed,
        "remaining": progress.remaining,
    }
    return json.dumps(status, separators=(",", ":"))
