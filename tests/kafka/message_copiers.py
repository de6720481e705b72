"""Copiers of ``transactions_test`` in processes of their own: ours, and Kafka's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from pyspark_kafka_rebalance.testing.java import find_java
from pyspark_kafka_rebalance.testing.kafka_jars import KAFKA_TOOLS, broker_jars, single_jars
from tests.transactional_message_copier.events import SHUTDOWN_COMPLETE

OURS = (sys.executable, "-m", "tests.transactional_message_copier")


def java_command() -> tuple[str, ...]:
    """Kafka's own, in a small JVM."""
    (tools,) = single_jars([KAFKA_TOOLS])
    main = "org.apache.kafka.tools.TransactionalMessageCopier"
    classes = f"{tools}{os.pathsep}{broker_jars()}/*"
    return (str(find_java().executable), "-Xmx128m", "-cp", classes, main)


class Copier:
    """A copier in a process of its own, as Kafka's service runs it."""

    def __init__(self, command: list[str], log: Path) -> None:
        self._command = command
        self._log = log
        self.lines: list[dict[str, Any]] = []
        self._process: subprocess.Popen[str] | None = None
        self.start()

    def start(self) -> None:
        if self._process is not None:  # it has ended by itself
            self._process.wait(60)
            self._follower.join(60)
        self.lines.clear()
        with self._log.open("a") as errors:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._follower = threading.Thread(target=self._follow, args=(self._process,))
        self._follower.start()

    def stop(self, number: int = signal.SIGKILL) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(60)
        self._follower.join(60)

    def restart(self, number: int) -> None:
        """Bounce it, unless it has finished."""
        if not self.is_done():
            self.stop(number)
            if not self.is_done():
                self.start()

    def progress(self) -> float:
        """From 0 to 1, as Kafka's service computes it."""
        if not self.lines:
            return 0.0
        consumed, remaining = (self.lines[-1][name] for name in ("consumed", "remaining"))
        return consumed / (consumed + remaining) if consumed + remaining else 1.0

    def is_done(self) -> bool:
        last = self.lines[-1] if self.lines else {}
        # Below 0 if more was written after it had looked for the end.
        return last.get("stage") == SHUTDOWN_COMPLETE and last["remaining"] <= 0

    def has_failed(self) -> bool:
        """Whether it has ended by itself, before it had copied all."""
        process, follower = self._process, self._follower
        return process.poll() is not None and not follower.is_alive() and not self.is_done()

    def said(self) -> str:
        return f"{self.lines[-1:]} {self._log.read_text()[-2_000:]}"

    def _follow(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self.lines.append(json.loads(line))
