"""Runs one broker, or another server, and does not let it outlive the process that wanted it.

Started by path, with nothing but the standard library, so that it is up in a moment::

    python -I -S watchdog.py PARENT_PID FOLDER_TO_REMOVE [--user=NAME] [--end=SIGNAL] COMMAND...

With ``--user`` the server runs as that user, which takes root; ``--end`` is the number of the
signal that ends an orphan, SIGKILL by default.

The parent holds the other end of standard input and writes signal numbers to it, one byte each,
which go to the broker. When that end closes, or this process has another parent than it had, the
parent is gone, by whatever means: the broker is killed, and the folder is removed unless its name
is empty. Both are looked at, since a process that the parent forked may hold the pipe open.

Standard output: the broker's pid, and a line each time that it is suspended, once it is. Exit code:
the broker's, when it ends by itself.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import select
import shutil
import signal
import subprocess
import sys
import threading

#: How soon at the latest a change of the parent is seen.
_LOOK_EVERY_S = 0.25


def _pass_signals_on(broker: subprocess.Popen[bytes], parent: int) -> None:
    """Return when the parent is gone."""
    while os.getppid() == parent:
        if not select.select([0], [], [], _LOOK_EVERY_S)[0]:
            continue
        numbers = os.read(0, 64)
        if not numbers:
            return
        for number in numbers:
            broker.send_signal(number)
            if number == signal.SIGSTOP:
                _wait_until_stopped(broker.pid)
                os.write(1, b"suspended\n")


def _wait_until_stopped(pid: int) -> None:
    """Threads that run on other processors go on for a moment, and may answer a request in it."""
    if hasattr(os, "waitid"):  # not before Python 3.13 on macOS
        with contextlib.suppress(ChildProcessError):  # has ended
            os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


def _main() -> None:
    parent, folder, *command = sys.argv[1:]
    end_with = signal.SIGKILL
    user = None
    while command[0].startswith("--"):
        name, _, value = command.pop(0).partition("=")
        if name == "--user":
            user = value
        else:
            end_with = signal.Signals(int(value))
    broker = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        user=user,
        # Neither root's group nor its others.
        group=None if user is None else pwd.getpwnam(user).pw_gid,
        extra_groups=None if user is None else [],
    )
    # Whoever ends a test run by signals means the tests; what becomes of the broker follows from
    # that. Only now: the broker would have inherited it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.write(1, f"{broker.pid}\n".encode())
    orphaned = threading.Event()

    def end_with_the_broker() -> None:
        code = broker.wait()
        if not orphaned.is_set():
            os._exit(code if code >= 0 else 128 - code)

    waiting = threading.Thread(target=end_with_the_broker)
    waiting.start()
    _pass_signals_on(broker, int(parent))
    orphaned.set()
    broker.send_signal(end_with)
    broker.send_signal(signal.SIGCONT)  # or one that was suspended would never end
    waiting.join()
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _main()
