"""Runs one broker, or another server, and does not let it outlive the process that started it.

Started by path, with only the standard library, so that it starts quickly::

    python -I -S watchdog.py PARENT_PID FOLDER_TO_REMOVE [--user=NAME] [--end=SIGNAL] COMMAND...

With ``--user`` the server runs as that user, which needs root; ``--end`` is the number of the
signal that ends an orphan, SIGKILL by default.

The parent holds the other end of standard input and writes signal numbers to it, one byte each;
they are sent to the broker. If that end closes, or the parent of this process changes, the parent
has ended: the broker is ended too, and the folder is removed unless its name is empty. Both are
checked, because a process that the parent forked may hold the pipe open.

Standard output: the broker's pid, and a line each time the broker has been suspended. Exit code:
the broker's, if it ends by itself.
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

#: How often to check for a change of the parent.
_LOOK_EVERY_S = 0.25


def _pass_signals_on(broker: subprocess.Popen[bytes], parent: int) -> None:
    """Pass signals on to the broker until the parent has ended."""
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
    """Wait: threads on other processors run for another moment and might answer a request."""
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
        # Neither root's group nor its supplementary groups.
        group=None if user is None else pwd.getpwnam(user).pw_gid,
        extra_groups=None if user is None else [],
    )
    # Signals that end a test run are for the tests; the broker's end follows from theirs. Ignore
    # them only now, or the broker would have inherited that.
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
