"""A steady producer in a process of its own, so that nothing disturbs its pace."""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

from kafka import KafkaProducer

from ..child_process import orders, tell

#: How often what is due is sent, and how often it tells how much that was.
_SEND_EVERY_S = 0.02
_TELL_EVERY_S = 0.25


def main(settings: dict[str, Any]) -> None:
    """Produce ``rate`` records a second, round the partitions, until "stop" or end of input."""
    producer = KafkaProducer(
        bootstrap_servers=settings["bootstrap_servers"], acks="all", linger_ms=5
    )
    failures: list[BaseException] = []
    stop = threading.Event()

    def obey() -> None:
        while next(given) != "stop":
            pass
        stop.set()

    given = orders()
    threading.Thread(target=obey, daemon=True).start()
    sent = 0
    start = told_at = time.monotonic()
    tell("produced", records=0)
    while not stop.wait(_SEND_EVERY_S):
        now = time.monotonic()
        for n in range(sent, int((now - start) * settings["rate"])):
            value = b"%d" % n
            future = producer.send(
                settings["topic"],
                value.ljust(settings["value_bytes"], b"."),
                partition=n % settings["partitions"],
            )
            future.add_errback(failures.append)
            sent = n + 1
        if now - told_at >= _TELL_EVERY_S:
            told_at = now
            tell("produced", records=sent)
    producer.close()
    if failures:
        raise failures[0]
    tell("stopped", records=sent)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
