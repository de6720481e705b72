"""WatchedProcess: a server that does not outlive this process, however this one ends.

It is this process's handle to a server that ``watchdog.py`` runs: it starts the server, also again
after that has ended, sends it signals, and quotes its log in errors.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import watchdog

_QUOTED_LINES = 30


class WatchedProcess:
    """One server, run in a folder of its own or a shared one.

    Parameters
    ----------
    log_file : Path
        Gets the server's output, over all its starts.
    remove_when_orphaned : Path, optional
        Folder that the watchdog removes if this process dies without having ended the server.
    environment : mapping, optional
        None: this process's.
    user : str, optional
        The user that runs the server, if this process runs as root.
    orphan_ends_by : signal.Signals
        The signal that the watchdog sends the server if this process has died.
    """

    def __init__(
        self,
        folder: Path,
        log_file: Path,
        remove_when_orphaned: Path | None,
        *,
        environment: Mapping[str, str] | None = None,
        user: str | None = None,
        orphan_ends_by: signal.Signals = signal.SIGKILL,
    ) -> None:
        self.log_file = log_file
        self._folder = folder
        self._environment = environment
        self._watched = [sys.executable, "-I", "-S", watchdog.__file__, str(os.getpid())]
        self._watched += [str(remove_when_orphaned or ""), f"--end={orphan_ends_by.value}"]
        self._watched += [f"--user={user}"] if user is not None else []
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._pid: int | None = None

    @property
    def is_running(self) -> bool:
        """Whether the process exists, even if it is suspended."""
        return self._watchdog is not None and self._watchdog.poll() is None

    @property
    def pid(self) -> int | None:
        """The server's process id; None if it does not run."""
        return self._pid if self.is_running else None

    def log_end(self) -> str:
        """Return the last lines of the log, for an error's text."""
        lines = self.log_file.read_text(errors="replace").splitlines()
        return "\n".join(lines[-_QUOTED_LINES:])

    def start(self, command: Sequence[str]) -> bool:
        """Start the server and return at once; returns whether there is such a program."""
        assert not self.is_running
        self._collect()
        with open(self.log_file, "ab") as output:
            self._watchdog = subprocess.Popen(
                [*self._watched, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                cwd=self._folder,
                env=self._environment,
                start_new_session=True,  # Ctrl-C is for the tests, not for the server
            )
        assert self._watchdog.stdout is not None
        answer = self._watchdog.stdout.readline()
        if not answer:
            self._watchdog.wait()
            self._collect()
            return False
        self._pid = int(answer)
        return True

    def send(self, number: signal.Signals) -> None:
        """Send the server a signal; does nothing if it has ended.

        After SIGSTOP, the server no longer answers once this returns.
        """
        if self._watchdog is None:
            return
        assert self._watchdog.stdin is not None
        assert self._watchdog.stdout is not None
        # The watchdog ends with the server, possibly right now.
        with contextlib.suppress(BrokenPipeError):
            self._watchdog.stdin.write(bytes([number]))
            self._watchdog.stdin.flush()
            if number is signal.SIGSTOP:
                self._watchdog.stdout.readline()

    def wait_until_ended(self, timeout_s: float) -> bool:
        """Wait for the process to end; return whether it ended within that time."""
        if self._watchdog is not None:
            try:
                self._watchdog.wait(timeout_s)
            except subprocess.TimeoutExpired:
                return False
            self._collect()
        return True

    def _collect(self) -> None:
        if self._watchdog is None:
            return
        for pipe in (self._watchdog.stdin, self._watchdog.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        self._watchdog = None
