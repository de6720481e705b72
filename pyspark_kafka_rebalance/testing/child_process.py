"""A child process that prints JSON lines and takes orders on standard input.

The tests' readers, the demo's load and the benchmarks' peers are such children. A child that loses
its standard input has lost its parent, and ends by itself.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

#: A JVM, a Spark session and Python workers on a busy machine.
START_TIMEOUT_S = 120.0


class ChildProcess:
    """Starts a module of this package in its own process and follows its events.

    ``python -m`` runs it with the settings as its one argument, a JSON object. The folder ``work``
    gets the log, ``<name>.log`` (``log_path``). ``on_event`` is called with every event as it
    comes, on a thread of its own. The environment is in addition to that of this process.
    """

    def __init__(
        self,
        name: str,
        module: str,
        settings: Mapping[str, Any],
        *,
        work: Path,
        on_event: Callable[[dict[str, Any]], None] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._module = module
        self._settings = dict(settings)
        self.log_path = work / f"{name}.log"
        self._on_event = on_event
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.events: list[dict[str, Any]] = []

    def start(self) -> Self:
        """Start the process; works again after it ended, with the same settings."""
        self.kill()  # leftovers of the last process, at least its pipes
        self.events = []
        self._lines = queue.Queue()
        with self.log_path.open("a") as log_file:
            self._process = subprocess.Popen(
                self._command(self._module, self._settings),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log_file,
                text=True,
                # Its own group, so that a kill reaches JVM, planner and workers, and only them.
                start_new_session=True,
                env={**os.environ, "PYSPARK_PYTHON": sys.executable, **self._environment},
            )
        threading.Thread(
            target=self._follow, args=(self._process, self._lines), daemon=True
        ).start()
        return self

    def _command(self, module: str, settings: Mapping[str, Any]) -> list[str]:
        """Return the command to start; a child in another language overrides it."""
        return [sys.executable, "-m", module, json.dumps(settings)]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """The process id, which is also the id of its process group."""
        assert self._process is not None
        return self._process.pid

    def descendants(self, command: str) -> list[int]:
        """Return the process ids in its group whose command line contains ``command``."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                in_group = os.getpgid(int(entry.name)) == self.pid
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (ProcessLookupError, FileNotFoundError):
                continue
            if in_group and command in line:
                found.append(int(entry.name))
        return sorted(found)

    def wait_for(
        self, event: str, timeout_s: float = START_TIMEOUT_S, **match: Any
    ) -> dict[str, Any]:
        """Return the next event of this name whose fields match; errors quote the log's end."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise TimeoutError(f"{self.name}: no {event} {match}\n{self.log_end()}") from None
            if line is None:
                self._lines.put(None)
                raise RuntimeError(f"{self.name} ended before {event} {match}\n{self.log_end()}")
            self.events.append(line)
            if line["event"] == event and all(line.get(k) == v for k, v in match.items()):
                return line

    def order(self, line: str) -> None:
        """Write a line to the process's standard input."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        process.stdin.write(f"{line}\n")
        process.stdin.flush()

    def stop(self, timeout_s: float = 60.0) -> dict[str, Any]:
        """Order the process to stop, and wait for its end; return its event ``stopped``."""
        self.order("stop")
        stopped = self.wait_for("stopped", timeout_s)
        self.wait_until_ended(timeout_s)
        return stopped

    def wait_until_ended(self, timeout_s: float = 120.0) -> int:
        """Wait until the process ends by itself; return its exit code."""
        assert self._process is not None
        return self._process.wait(timeout_s)

    @property
    def is_running(self) -> bool:
        """Whether the process was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def raise_if_ended(self) -> None:
        """Raise RuntimeError, with the log's end, if the process is no longer running."""
        if not self.is_running:
            raise RuntimeError(f"{self.name} ended\n{self.log_end()}")

    def kill(self) -> None:
        """Kill the whole group by SIGKILL: for a query, JVM, planner and workers."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):  # an order that the process never read
                    stream.close()
        self._process = None

    def log_end(self, characters: int = 4_000) -> str:
        """Return the end of the process's log."""
        return self.log_path.read_text(errors="replace")[-characters:]

    def _follow(
        self, process: subprocess.Popen[str], lines: queue.Queue[dict[str, Any] | None]
    ) -> None:
        assert process.stdout is not None
        with suppress(ValueError):  # closed by kill() in mid-read
            for text in process.stdout:
                if text.startswith("{"):
                    line = json.loads(text)
                    if self._on_event is not None:
                        self._on_event(line)
                    lines.put(line)
        lines.put(None)


def tell(event: str, **fields: Any) -> None:
    """In the child: write one line to standard output."""
    print(json.dumps({"event": event, "at": time.time(), **fields}), flush=True)


def orders() -> Iterator[str]:
    """In the child: yield lines from standard input, and "stop" for ever once that has ended."""
    for line in sys.stdin:
        yield line.strip()
    while True:
        yield "stop"
