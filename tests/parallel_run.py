"""How the processes of a run (pytest-xdist) share the machine and the files of tests.

Most tests wait: for sessions to time out, for rebalances, for brokers that restart. Two processes
leave two cores idle for half of the time. Of more, those that would be too much at once wait.
"""

from __future__ import annotations

import fcntl
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING

from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

#: Of the machine: what a test takes is in conftest.py. With 8 and six processes, two cores were
#: busy throughout, and a test that waits for a coordinator ran into its own patience.
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


#: What the first processes of a run take while there is any of it: with Spark, with brokers alone,
#: or unit tests. More processes begin with the first of these again.
ROLES = ("brokers", "spark", "brokers", "spark", "unit")

#: What a process takes when nothing of its own is left. That for unit tests ends.
_THEN = {"brokers": ("unit", "spark"), "spark": ("brokers", "unit"), "unit": ()}

#: The niceness of a process for unit tests: what the others wait for must not come late by it.
UNIT_TESTS_NICE = 10

_ROOT = Path(__file__).parent.parent


class FilesByWhatTheyStart(LoadFileScheduling):
    """Whole files, so that few processes start the same: Spark, three brokers, or neither.

    A Spark session and its first queries cost 30 s of a core in every process that has one, and
    three brokers 12 s. So some processes have the files with Spark (``ROLES``), and the first
    process of each kind has those with three brokers, one after the other, while there are others
    to do. The fifth process runs the unit tests while the others wait for brokers and sessions, and
    ends when no more of them are left.

    What takes long goes first, or the others would wait for it at the end: files of very many tests
    on brokers, then those of few, each of which takes long. The former also keep the latter, which
    want much of the machine, from all coming at once and waiting for each other.
    """

    def _assign_work_unit(self, node: WorkerController) -> None:
        if not self._has_any_for(node):
            return
        process = node.gateway.id
        first = min(
            self.workqueue,
            key=lambda file: (*mismatch(file, process), *_turn(file, len(self.workqueue[file]))),
        )
        self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)

    def _reschedule(self, node: WorkerController) -> None:
        if self._has_any_for(node):
            super()._reschedule(node)
        elif not node.shutting_down:
            node.shutdown()

    def _has_any_for(self, node: WorkerController) -> bool:
        role = role_of(node.gateway.id)
        return any(_kind_of(file) in (role, *_THEN[role]) for file in self.workqueue)


def role_of(process: str) -> str:
    """Return which files a process of this name takes first."""
    return ROLES[int(process.removeprefix("gw")) % len(ROLES)]


def mismatch(file: str, process: str) -> tuple[int, bool]:
    """How badly a file fits a process: of those that are left, it takes one with the lowest."""
    role = role_of(process)
    is_first_of_its_role = int(process.removeprefix("gw")) == ROLES.index(role)
    kinds = (role, *_THEN[role])
    kind = _kind_of(file)
    return (
        kinds.index(kind) if kind in kinds else len(kinds),
        needs_three_brokers(file) != is_first_of_its_role,
    )


def file_of(test: str) -> str:
    """Return the file of a test, as the processes share them."""
    return test.partition("::")[0]


def _kind_of(file: str) -> str:
    folders = {"tests/unit/": "unit", "tests/spark/": "spark"}
    return next((kind for folder, kind in folders.items() if folder in file), "brokers")


@cache
def needs_three_brokers(file: str) -> bool:
    """Whether a test of the file asks for three brokers, by the names of its fixtures."""
    path = _ROOT / file
    if not path.is_file() or _kind_of(file) == "unit":
        return False
    return re.search(r"\b(kafka3|quorum)\b", path.read_text()) is not None


def _turn(file: str, tests: int) -> tuple[int, int]:
    """Where a file stands in line: the lowest is next."""
    has_many = tests >= _MANY and _kind_of(file) != "unit"
    return (0, -tests) if has_many else (1, tests)
