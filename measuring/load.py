"""A steady producer in a process of its own, so that nothing disturbs its pace."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kafka import KafkaProducer

from pyspark_kafka_rebalance.testing.child_process import ChildProcess, orders, tell

#: How often to send the records that are due, and how often to report their number.
_SEND_EVERY_S = 0.02
_TELL_EVERY_S = 0.25


class LoadProcess(ChildProcess):
    """Starts the producer in a process of its own.

    Parameters
    ----------
    bootstrap_servers, topic : str
        An existing topic.
    partitions, rate, value_bytes : int
        The topic's partitions; records per second in total; bytes of each value.
    work : Path
        The folder of its log.
    on_produced : callable
        Called with the time and the records so far, on a thread of its own.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        *,
        partitions: int,
        rate: int,
        value_bytes: int,
        work: Path,
        on_produced: Callable[[float, int], None],
    ) -> None:
        def note(event: dict[str, Any]) -> None:
            if "records" in event:
                on_produced(event["at"], event["records"])

        settings = {
            "bootstrap_servers": bootstrap_servers,
            "topic": topic,
            "partitions": partitions,
            "rate": rate,
            "value_bytes": value_bytes,
        }
        super().__init__("load", __name__, settings, work=work, on_event=note)


def main(settings: dict[str, Any]) -> None:
    """Produce ``rate`` records a second, round-robin, until "stop" or the end of input."""
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
