"""ZooKeeper, for brokers before Kafka 3.3; from Kafka's own jars."""

from __future__ import annotations

import contextlib
import signal
import socket
import time
from pathlib import Path

from ..errors import LocalKafkaError
from ..java import find_java
from ..processes.watched_process import WatchedProcess

_LOOK_EVERY_S = 0.02
_STOP_S = 20.0
_ANSWER_S = 5.0


class ZooKeeper:
    """One server, on a port of 127.0.0.1, for the brokers.

    The folder holds its settings, its log and its data. Kafka's jars have ZooKeeper's. The watchdog
    removes a folder as for ``Broker``.
    """

    def __init__(
        self, folder: Path, port: int, jars: Path, remove_when_orphaned: Path | None
    ) -> None:
        self.port = port
        self._jars = jars
        self._settings = folder / "zookeeper.properties"
        folder.mkdir(parents=True, exist_ok=True)
        settings = {
            "dataDir": folder / "data",
            "clientPort": port,
            "clientPortAddress": "127.0.0.1",
            "maxClientCnxns": 0,
            "tickTime": 1_000,  # a broker's session lasts twice as long, or longer
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "ruok,dump",
        }
        lines = (f"{name}={value}\n" for name, value in settings.items())
        self._settings.write_text("".join(lines))
        self._process = WatchedProcess(folder, folder / "zookeeper.log", remove_when_orphaned)

    def start(self, timeout_s: float) -> None:
        """Start it and wait until it answers.

        Raises LocalKafkaError if it does not come up; quotes the end of its log.
        """
        command = [str(find_java().executable), "-Xmx256m", "-XX:+UseSerialGC"]
        # Its metrics of log4j need log4j, which Kafka's jars do not have.
        command += ["-Dzookeeper.jmx.log4j.disable=true", "-cp", f"{self._jars}/*"]
        command += ["org.apache.zookeeper.server.quorum.QuorumPeerMain", str(self._settings)]
        deadline = time.monotonic() + timeout_s
        if not self._process.start(command):
            raise LocalKafkaError(f"ZooKeeper did not start:\n{self._process.log_end()}")
        while self._ask("ruok") != "imok":
            if not self._process.is_running or time.monotonic() > deadline:
                raise LocalKafkaError(f"ZooKeeper is not up:\n{self._process.log_end()}")
            time.sleep(_LOOK_EVERY_S)

    def forget(self, broker_id: int, timeout_s: float) -> None:
        """Wait until a killed broker's session has ended: the broker cannot register before.

        Raises LocalKafkaError if it has not ended in time.
        """
        deadline = time.monotonic() + timeout_s
        while f"/brokers/ids/{broker_id}\n" in f"{self._ask('dump')}\n":
            if time.monotonic() > deadline:
                raise LocalKafkaError(f"ZooKeeper still has a session of broker {broker_id}")
            time.sleep(_LOOK_EVERY_S)

    def kill(self) -> None:
        """End it; idempotent."""
        self._process.send(signal.SIGKILL)
        self._process.wait_until_ended(_STOP_S)

    def _ask(self, word: str) -> str:
        answer = bytearray()
        with (
            contextlib.suppress(OSError),  # not listening yet
            socket.create_connection(("127.0.0.1", self.port), timeout=_ANSWER_S) as connection,
        ):
            connection.sendall(word.encode())
            while piece := connection.recv(4096):
                answer += piece
        return answer.decode()
