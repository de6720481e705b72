"""SharedProducerGroup: a ProducerGroup that several authors use, whose calls one thread makes.

What an author is to be told when a transaction is aborted: ``aborts.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from .aborts import Author, Call
from .group import ProducerGroup

Answer = TypeVar("Answer")


class SharedProducerGroup(ProducerGroup):
    """As ProducerGroup, with calls of which it is known who makes them."""

    def call_of(self, author: Author) -> Call:
        """A call that this author makes now; any thread."""
        return Call(author, self._transactions.aborts.tellings)

    def owes(self, call: Call) -> bool:
        """Whether its author is to be told of its TransactionAbortedError; any thread."""
        return self._transactions.aborts.owes(call)

    def told(self, call: Call) -> None:
        """Its author has heard its TransactionAbortedError; any thread."""
        self._transactions.aborts.told(call)

    def unheard(self, call: Call) -> None:
        """It is done, and nobody waits for it; any thread."""
        self._transactions.aborts.unheard(call)

    def run(self, call: Call, function: Callable[..., Answer], *arguments: Any) -> Answer:
        """Run a function of this group as this call."""
        self._transactions.call = call
        return function(*arguments)

    def send_at_once(
        self,
        call: Call,
        topic: str,
        value: Any,
        key: Any,
        source_partition: int | None,
        restart_point: str | None,
        headers: list[tuple[str, bytes]] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Any:
        """As ``send``, if that waits for nothing and ends no transaction; else None. Any thread."""
        if not self._running:
            return None
        self._membership.sign_of_life()
        if self._serializes:
            key, value = self._options.serialized(topic, headers, key, value)
        record = (topic, value, key, headers, partition, timestamp_ms)
        return self._transactions.send_at_once(call, source_partition, restart_point, *record)

    def end_by(self, timeout_ms: float) -> None:
        """Have the calls under way wait for brokers this long at most; any thread.

        ``close`` is to follow: nothing is begun any more.
        """
        self._transactions.end_by(time.monotonic() + timeout_ms / 1000)
        self.wakeup()
