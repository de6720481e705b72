"""Threads of Kafka clients that a test leaves to the tests after it."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from pathlib import Path

import kafka

import pyspark_kafka_rebalance

#: What a client does on its threads is in these.
_OF_CLIENTS = tuple(
    str(Path(package.__file__).parent) for package in (kafka, pyspark_kafka_rebalance)
)
#: LocalKafka and its like may last as long as the run.
_OF_TESTS = str(Path(pyspark_kafka_rebalance.__file__).parent / "testing")

#: For those that are about to end.
_PATIENCE_S = 10.0

_seen: dict[threading.Thread, str] = {}


def note_threads(test: str) -> None:
    """Remember which test was the first after which a thread was there."""
    for thread in threading.enumerate():
        _seen.setdefault(thread, test)
    for ended in [thread for thread in _seen if not thread.is_alive()]:
        del _seen[ended]


def left_threads() -> list[str]:
    """Where the clients' threads are that do not end, and after which test they were first seen."""
    deadline = time.monotonic() + _PATIENCE_S
    while (left := _clients_threads()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return [
        f"{thread.name}, since {_seen.pop(thread, '?')}:\n{''.join(stack)}"
        for thread, stack in left.items()
    ]


def _clients_threads() -> dict[threading.Thread, list[str]]:
    frames = sys._current_frames()
    found = {}
    for thread in set(threading.enumerate()) - {threading.current_thread()}:
        if thread.ident in frames:
            stack = traceback.extract_stack(frames[thread.ident])
            files = [f.filename for f in stack if not f.filename.startswith(_OF_TESTS)]
            if any(file.startswith(_OF_CLIENTS) for file in files):
                found[thread] = stack.format()
    return found
