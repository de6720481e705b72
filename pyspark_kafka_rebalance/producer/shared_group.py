"""SharedProducerGroup: a ProducerGroup for several authors, whose calls run on one thread.

``aborts.py`` decides which authors are told when a transaction is aborted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from .aborts import Author, Call
from .group import ProducerGroup
from .transactions import NOT_AT_ONCE

Answer = TypeVar("Answer")


class SharedProducerGroup(ProducerGroup):
    """A ProducerGroup that knows the author of each call."""

    def call_of(self, author: Author) -> Call:
        """Return a call that this author makes now; any thread."""
        return Call(author, self._transactions.aborts.tellings)

    def owes(self, call: Call) -> bool:
        """Whether the call's author has not heard its TransactionAbortedError yet; any thread."""
        return self._transactions.aborts.owes(call)

    def told(self, call: Call) -> None:
        """The call's author has heard its TransactionAbortedError; any thread."""
        self._transactions.aborts.told(call)

    def unheard(self, call: Call) -> None:
        """The call is done, and nobody waits for it; any thread."""
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
        future: bool = False,
    ) -> Any:
        """Send as ``send``; NOT_AT_ONCE if that waits or ends a transaction. Any thread."""
        if not self._running:
            return NOT_AT_ONCE
        self._membership.sign_of_life()
        if self._serializes:
            key, value = self._options.serialized(topic, headers, key, value)
        record = (topic, value, key, headers, partition, timestamp_ms)
        return self._transactions.send_at_once(
            call, source_partition, restart_point, *record, future=future
        )

    def end_by(self, timeout_ms: float) -> None:
        """Have the calls under way wait for brokers this long at most; any thread.

        Call ``close`` next: no transaction can be begun any more.
        """
        self._transactions.end_by(time.monotonic() + timeout_ms / 1000)
        self.wakeup()
