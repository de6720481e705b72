"""UnheardWrites: a coordinator that waits for a write that was replicated long ago. Pure.

A Kafka 4 coordinator answers a heartbeat once its earlier writes for its groups are replicated. One
that has just taken over may not notice that they are (seen with 4.3.0: the high watermark rises
after the log was loaded, and before anybody listens to it). It then answers every heartbeat with
COORDINATOR_NOT_AVAILABLE after 5 s, until something else is written to that partition of
``__consumer_offsets``. A group that commits recovers with its next commit. Members of a quiet group
would lose all they own at the end of their sessions, so they have to make it write.
"""

from __future__ import annotations

from kafka import errors as kafka_errors

#: A coordinator that shuts down gives one such answer, too; the next one comes from another.
_SO_MANY = 2


class UnheardWrites:
    """What the answers to one member's heartbeats say about its coordinator."""

    def __init__(self) -> None:
        self._unavailable = 0

    def answered(self, error: type[Exception]) -> bool:
        """Note the answer to a heartbeat; return whether something should be written now."""
        if error is not kafka_errors.CoordinatorNotAvailableError:
            self._unavailable = 0
            return False
        self._unavailable += 1
        return self._unavailable % _SO_MANY == 0
