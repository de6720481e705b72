"""Broker: one Kafka process, combined broker and controller, and its folder."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import watchdog
from .errors import LocalKafkaError
from .java import find_java

log = logging.getLogger(__name__)

#: A broker of a test is small, and many of them start beside something else.
DEFAULT_JAVA_OPTIONS = (
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)

_QUOTED_LINES = 30


class Broker:
    """One broker; it may be started again after it ended, on the same port and data.

    Parameters
    ----------
    broker_id : int
        From 1 up.
    port : int
        Its listener for clients.
    folder : Path
        Holds ``server.properties``, ``broker.log`` and ``data``.
    settings : mapping of str to str
        The server.properties.
    jars : Path
        Kafka's jars.
    java_options : sequence of str
        For the JVM.
    remove_when_orphaned : Path, optional
        Folder that the watchdog removes when this process dies without having stopped the broker.
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
        self._remove_when_orphaned = remove_when_orphaned
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._pid: int | None = None
        folder.mkdir(parents=True, exist_ok=True)
        lines = (f"{name}={value}\n" for name, value in settings.items())
        (folder / "server.properties").write_text("".join(lines))

    @property
    def is_running(self) -> bool:
        """Whether the process exists; a suspended one does."""
        return self._watchdog is not None and self._watchdog.poll() is None

    @property
    def pid(self) -> int | None:
        """Of the Java process; None when it does not run."""
        return self._pid if self.is_running else None

    @property
    def log_file(self) -> Path:
        """What the broker says, over all its starts."""
        return self.folder / "broker.log"

    def log_end(self) -> str:
        """The last lines of the log, for an error's text."""
        lines = self.log_file.read_text(errors="replace").splitlines()
        return "\n".join(lines[-_QUOTED_LINES:])

    def start(self) -> None:
        """Start the process and return at once.

        Raises
        ------
        LocalKafkaError
            It runs already, or the process cannot be started.
        """
        if self.is_running:
            raise LocalKafkaError(f"broker {self.broker_id} is running")
        self._collect()
        command: list[str] = [sys.executable, "-I", "-S", watchdog.__file__, str(os.getpid())]
        command += [str(self._remove_when_orphaned or "")]
        command += [str(find_java().executable), *self._java_options, "-cp", f"{self._jars}/*"]
        command += ["kafka.Kafka", str(self.folder / "server.properties")]
        with open(self.log_file, "ab") as output:
            self._watchdog = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                cwd=self.folder,
                start_new_session=True,  # Ctrl-C is for the tests, not for the broker
            )
        assert self._watchdog.stdout is not None
        answer = self._watchdog.stdout.readline()
        if not answer:
            self.wait_until_ended(5)
            raise LocalKafkaError(f"broker {self.broker_id} did not start:\n{self.log_end()}")
        self._pid = int(answer)
        log.info("broker %d starts at port %d (pid %d)", self.broker_id, self.port, self._pid)

    def send(self, number: signal.Signals) -> None:
        """Send the broker a signal; nothing when it has ended.

        With SIGSTOP it answers nothing any more when this returns.
        """
        if self._watchdog is None:
            return
        assert self._watchdog.stdin is not None
        assert self._watchdog.stdout is not None
        # The watchdog ends with the broker, possibly right now.
        with contextlib.suppress(BrokenPipeError):
            self._watchdog.stdin.write(bytes([number]))
            self._watchdog.stdin.flush()
            if number is signal.SIGSTOP:
                self._watchdog.stdout.readline()

    def wait_until_ended(self, timeout_s: float) -> bool:
        """Whether the process ended within that time."""
        if self._watchdog is not None:
            try:
                self._watchdog.wait(timeout_s)
            except subprocess.TimeoutExpired:
                return False
            self._collect()
        return True

    def _collect(self) -> None:
        if self._watchdog is not None:
            for pipe in (self._watchdog.stdin, self._watchdog.stdout):
                assert pipe is not None
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
            self._watchdog = None
