"""Ports that stay free while their user is down.

A port that the kernel hands out (binding to 0) can be taken by any outgoing connection before a
broker binds it, or while a broker restarts. The ports here are below the range for outgoing
connections of Linux (32768 and up), macOS and BSD (49152 and up). A lock file keeps two users
apart; the lock ends with the process that holds it.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

from ..errors import LocalKafkaError

_RANGE = range(20_000, 32_000)


class ReservedPort:
    """A free port of 127.0.0.1, kept until :meth:`release`: any, or ``wanted``."""

    def __init__(self, wanted: int | None = None) -> None:
        folder = Path(tempfile.gettempdir(), f"pyspark-kafka-rebalance-ports-{os.getuid()}")
        folder.mkdir(exist_ok=True)
        # Not the generator that a test may have seeded: two runs would try the same sequence.
        tried = random.SystemRandom().sample(_RANGE, 200) if wanted is None else [wanted]
        for number in tried:
            lock = os.open(folder / str(number), os.O_CREAT | os.O_RDWR, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _bind(number)
            except OSError:
                os.close(lock)
                continue
            self.number = number
            self._lock: int | None = lock
            return
        if wanted is not None:
            raise LocalKafkaError(f"port {wanted} is taken")
        raise LocalKafkaError(f"no free port found from {_RANGE.start} to {_RANGE.stop - 1}")

    def release(self) -> None:
        """Release the port; idempotent."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


def _bind(number: int) -> None:
    """Raise OSError if a socket listens on the port."""
    with socket.socket() as probe:
        # As the broker does: ignore connections that are just closing.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", number))
