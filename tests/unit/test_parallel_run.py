"""Shares of the machine, which the processes of a run wait for."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from tests.parallel_run import SHARES, shares_of_the_machine

#: Locks of the shares those that are free, says how many, and keeps them until its input ends.
OTHER = """
import fcntl, sys
file = open(sys.argv[1], "a+b")
locked = 0
for share in map(int, sys.argv[2:]):
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, share)
        locked += 1
    except BlockingIOError:
        pass
print(locked, flush=True)
sys.stdin.read()
"""


def other_process(lock: Path, *shares: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", OTHER, str(lock), *map(str, shares)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def end(process: subprocess.Popen[str]) -> int:
    """End it; how many it had locked."""
    return int(process.communicate()[0])


def test_nobody_holds_more_than_asked_for_though_they_become_free_one_by_one(
    tmp_path: Path,
) -> None:
    lock = tmp_path / "shares"
    others = [other_process(lock, *range(SHARES - 1))]
    assert others[0].stdout is not None
    others[0].stdout.readline()
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with shares_of_the_machine(lock, 4):
            held.set()
            done.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        while end(other_process(lock, SHARES - 1)):
            pass  # until it holds the last one, the only one that is free
        assert not held.is_set()
        others.pop().communicate()
        assert held.wait(60)
        assert end(other_process(lock, *range(SHARES))) == SHARES - 4
    finally:
        done.set()
        holder.join()
    assert end(other_process(lock, *range(SHARES))) == SHARES
