"""UnheardWrites: a coordinator that waits for a write that was replicated long ago, pure.

A coordinator of Kafka 4 answers a heartbeat once what was written for its groups before is
replicated. One that has just taken over may miss that it is (seen with 4.3.0: the high watermark
rises after the log was loaded, and before anybody listens to it). Then it answers every heartbeat
after 5 s with COORDINATOR_NOT_AVAILABLE, for as long as nothing else is written to that partition
of ``__consumer_offsets``. A group that commits is out of that with its next commit. Members of a
quiet one would lose all they own at the end of their sessions, and have to make it write.
"""

from __future__ import annotations

from kafka import errors as kafka_errors

#: One such answer is that of a coordinator that goes down, too. Then the next is another one's.
_SO_MANY = 2


class UnheardWrites:
    """What the answers to one member's heartbeats say of its coordinator."""

    def __init__(self) -> None:
        self._unavailable = 0

    def answered(self, error: type[Exception]) -> bool:
        """A heartbeat was answered with this; whether something should be written now."""
        if error is not kafka_errors.CoordinatorNotAvailableError:
            self._unavailable = 0
            return False
        self._unavailable += 1
        return self._unavailable % _SO_MANY == 0
