"""A member of a churn that uses DeferredRevokeConsumer; ``python -m tests.chaos.member`` runs one.

It processes what it is handed over several polls, commits what is processed, delays a revoke as
long as something of the partition is in processing, and leaves when everything is finished.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from pyspark_kafka_rebalance import DeferredRevokeConsumer
from pyspark_kafka_rebalance.testing.child_process import orders, tell

from .book import Book, MemberReport, MemberSettings
from .invariants import PollChecks

POLL_MS = 40
#: Closing drains the last commits, and a coordinator may just be restarting.
CLOSE_TIMEOUT_MS = 60_000


class Member:
    """Polls until told to leave; single-threaded.

    Parameters
    ----------
    settings : MemberSettings
    on_owned : callable
        Called with the number of partitions whenever that changes.
    """

    def __init__(self, settings: MemberSettings, on_owned: Callable[[int], None]) -> None:
        self._on_owned = on_owned
        self._checks = PollChecks()
        self._book = Book(settings)
        self._consumer = DeferredRevokeConsumer(
            *settings.topics,
            bootstrap_servers=settings.bootstrap_servers,
            group_id=settings.group_id,
            group_protocol=settings.group_protocol,
            client_id=settings.name,
            auto_offset_reset="earliest",
            session_timeout_ms=settings.session_timeout_ms,
            heartbeat_interval_ms=settings.heartbeat_interval_ms,
            # Brokers come back sooner here than the 30 s for which it would wait at the end.
            reconnect_backoff_max_ms=200,
        )

    def run(self, leave: threading.Event) -> MemberReport:
        """Take part in the group until ``leave`` is set and all that was begun is finished."""
        try:
            while not leave.is_set():
                self._turn()
            while self._book.processing.partitions:
                self._consumer.pause(*self._consumer.assignment())
                self._turn()
            self._book.let_go(self._book.held)
        except Exception as error:
            raise self._book.broken() from error
        finally:
            self._consumer.close(timeout_ms=CLOSE_TIMEOUT_MS)
        return self._book.close()

    def _turn(self) -> None:
        """One poll, its checks, and some processing."""
        book, checks, consumer = self._book, self._checks, self._consumer
        result = consumer.poll_with_rebalance(timeout_ms=POLL_MS)
        now = time.monotonic()
        book.polls += 1
        owned_before = len(checks.owned)
        book.note(checks.polled(result, consumer.assignment()))
        if len(checks.owned) != owned_before:
            self._on_owned(len(checks.owned))
        book.take(result.assigned, now)
        for partition, records in result.records.items():
            book.processing.begin(partition, [record.offset for record in records], now)
        reached = book.processing.finish(now)
        checks.processed(reached)
        consumer.commit_processed(reached)
        committed = {p: consumer.acknowledged(p) for p in checks.owned}
        told = {p: offset for p, offset in committed.items() if offset is not None}
        book.note(checks.acknowledged(told))
        delayed = result.to_be_revoked & book.processing.partitions
        if not consumer.delay_revoke(delayed):
            book.note([f"cannot delay {sorted(delayed)}"])
        checks.delayed(result.to_be_revoked, delayed)
        book.let_go(result.to_be_revoked - delayed)  # the next poll completes their revoke


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
