"""How the processes of a run (pytest-xdist) share the machine and the files of tests.

Most tests wait: for sessions to time out, for rebalances, for brokers that restart. Two processes
leave two cores idle for half of the time. Of more, those that would be too much at once wait.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

#: Of the machine: what a test takes is in conftest.py. With 8 and five processes two cores were
#: busy all the time, and a run took no less: queries that wait go on triggering. With 9, tests ran
#: into their own patience.
SHARES = 6

#: A file of so many tests on brokers is a long one.
_MANY = 30

_TURNSTILE = SHARES  # the byte behind those that stand for the shares


@contextmanager
def shares_of_the_machine(lock: Path, count: int) -> Iterator[None]:
    """Wait for so many shares, and hold them. First come, first served, so that nobody starves."""
    with open(lock, "a+b") as file:
        if count:
            fcntl.lockf(file, fcntl.LOCK_EX, 1, _TURNSTILE)
            held: set[int] = set()
            while len(held) < count:
                wanted = count - len(held)
                if not (new := _lock_free_ones(file, set(range(SHARES)) - held, wanted)):
                    time.sleep(0.05)
                held |= new
            fcntl.lockf(file, fcntl.LOCK_UN, 1, _TURNSTILE)
        yield


def _lock_free_ones(file: IO[bytes], shares: set[int], at_most: int) -> set[int]:
    """Lock those of the shares that no other process holds, at most so many."""
    locked: set[int] = set()
    for share in shares:
        if len(locked) == at_most:
            break
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, share)
        except BlockingIOError:
            continue
        locked.add(share)
    return locked


class SparkOnHalfOfThem(LoadFileScheduling):
    """Whole files, and those with Spark on every other process while there are others to do.

    A Spark session and its first queries cost 30 s of a core in every process that has one.

    What takes long goes first, or the others would wait for it at the end: files of very many tests
    on brokers, then those of few, each of which takes long. The former also keep the latter, which
    want much of the machine, from all coming at once and waiting for each other.
    """

    def _assign_work_unit(self, node: WorkerController) -> None:
        wants_spark = int(node.gateway.id.removeprefix("gw")) % 2 == 1
        first = min(
            self.workqueue,
            key=lambda file: (
                ("tests/spark/" in file) != wants_spark,
                _turn(file, len(self.workqueue[file])),
            ),
        )
        self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)


def _turn(file: str, tests: int) -> tuple[int, int]:
    """Where a file stands in line: the lowest is next."""
    has_many = tests >= _MANY and "tests/unit/" not in file
    return (0, -tests) if has_many else (1, tests)
