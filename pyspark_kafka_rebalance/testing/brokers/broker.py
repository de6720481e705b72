"""Broker: one Kafka process, combined broker and controller, and its folder."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..errors import LocalKafkaError
from ..java import find_java
from ..processes.watched_process import WatchedProcess

log = logging.getLogger(__name__)

#: A test's broker is small, and often starts while something else does.
DEFAULT_JAVA_OPTIONS = (
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)


class Broker:
    """One broker; after it has ended, it can be started again on the same port and data.

    The id is 1 or more; ``port`` is its listener for clients. The folder holds
    ``server.properties``, which are the settings, ``broker.log`` and ``data``. The watchdog removes
    ``remove_when_orphaned`` if this process dies without having stopped the broker.
    """

    def __init__(
        self,
        broker_id: int,
        port: int,
        folder: Path,
        settings: Mapping[str, str],
        jars: Path,
        java_options: Sequence[str],
        remove_when_orphaned: Path | None,
    ) -> None:
        self.broker_id = broker_id
        self.port = port
        self.folder = folder
        self._jars = jars
        self._java_options = java_options
        self.process = WatchedProcess(folder, folder / "broker.log", remove_when_orphaned)
        folder.mkdir(parents=True, exist_ok=True)
        lines = (f"{name}={value}\n" for name, value in settings.items())
        (folder / "server.properties").write_text("".join(lines))

    def start(self) -> None:
        """Start the process and return at once.

        Raises LocalKafkaError if it runs already, or the process cannot be started.
        """
        if self.process.is_running:
            raise LocalKafkaError(f"broker {self.broker_id} is running")
        command = [str(find_java().executable), *self._java_options, "-cp", f"{self._jars}/*"]
        command += ["kafka.Kafka", str(self.folder / "server.properties")]
        if not self.process.start(command):
            raise LocalKafkaError(
                f"broker {self.broker_id} did not start:\n{self.process.log_end()}"
            )
        log.info(
            "broker %d starts at port %d (pid %d)", self.broker_id, self.port, self.process.pid
        )
