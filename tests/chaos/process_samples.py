"""What processes take, by role: memory, descriptors and threads, from Linux's ``/proc``.

Memory is what a process has for itself (``RssAnon`` and ``RssShmem``): the pages of files that it
maps come and go with what else the machine does.
"""

from __future__ import annotations

import os
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")

#: What a process is, by what its command line contains; the first that matches.
_PARTS = {
    "watchdog.py": "watchdog",  # whose command line has its server's
    "SparkSubmit": "JVM",
    "python_streaming_source_runner": "planner",
    "tests.chaos.plan_query": "driver",
    "tests.chaos.plan_member": "",
    "kafka.Kafka": "",
}
#: Spark's daemons, each for the workers of one module, which it forks.
_DAEMON = "pyspark.daemon"
ZOMBIE = "zombie"
_HEAP = re.compile(r"-Xmx(\d+)([mMgG])")


@dataclass(frozen=True)
class Process:
    """A process; its id may be another's later, so that its start belongs to it.

    Attributes
    ----------
    started : float
        In seconds since the machine was booted.
    command : str
        Its arguments, with blanks between them; empty once it has ended and nobody has asked how.
    """

    pid: int
    parent: int
    started: float
    command: str = ""


@dataclass(frozen=True)
class Sample:
    """What a process took at a time.

    Attributes
    ----------
    role : str
        Such as ``q1 planner``; several processes may have it, at once or one after another.
    heap_mb : float or None
        Of a JVM, what its heap may take at most.
    """

    at: float
    role: str
    pid: int
    started: float
    memory_mb: float
    fds: int
    threads: int
    heap_mb: float | None = None

    @property
    def is_zombie(self) -> bool:
        return self.role.endswith(ZOMBIE)


def take_samples(named: Mapping[int, str]) -> list[Sample]:
    """Look at the named processes and all their descendants."""
    at = time.time()
    processes = _all_processes()
    found = []
    for pid, role in roles(processes, named).items():
        process = processes[pid]
        with suppress(OSError, KeyError):  # it has just ended
            found.append(
                Sample(
                    at,
                    role,
                    pid,
                    process.started,
                    *(_taken_by(pid) if process.command else (0.0, 0, 0)),
                    heap_mb=heap_limit_mb(process.command),
                )
            )
    return found


def by_life(samples: Iterable[Sample]) -> list[list[Sample]]:
    """The samples of each process; what is left of it once it has ended is apart."""
    lives: dict[tuple[int, float, bool], list[Sample]] = defaultdict(list)
    for sample in samples:
        lives[sample.pid, sample.started, sample.is_zombie].append(sample)
    return list(lives.values())


def roles(processes: Mapping[int, Process], named: Mapping[int, str]) -> dict[int, str]:
    """The role of every process that is named or the descendant of one that is."""
    found = {}
    for pid, process in processes.items():
        nearest: Process | None = process
        while nearest is not None and nearest.pid not in named:
            nearest = processes.get(nearest.parent)
        if nearest is not None:
            part = _part(process, processes.get(process.parent), pid in named)
            found[pid] = f"{named[nearest.pid]} {part}".strip()
    return found


def _part(process: Process, parent: Process | None, is_named: bool) -> str:
    command = process.command
    if not command:
        return ZOMBIE
    if _DAEMON in command:
        module = command.rpartition(" ")[2].rpartition(".")[2]
        forked = parent is not None and parent.command == command
        kind = "worker" if forked else "daemon"
        return kind if module == "worker" else f"{kind} of {module}"
    for contained, part in _PARTS.items():
        if contained in command:
            return part
    return "" if is_named else Path(command.partition(" ")[0]).name


def heap_limit_mb(command: str) -> float | None:
    """Return what the last ``-Xmx`` of a command line says; None if it is not that of a JVM."""
    limits = _HEAP.findall(command)
    if not limits or Path(command.partition(" ")[0]).name != "java":
        return None
    number, unit = limits[-1]
    return float(number) * (1_024 if unit in "gG" else 1)


def _all_processes() -> dict[int, Process]:
    found = {}
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):  # it has just ended
            stat = (entry / "stat").read_text().rpartition(")")[2].split()
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            pid = int(entry.name)
            started = int(stat[19]) / os.sysconf("SC_CLK_TCK")
            found[pid] = Process(pid, int(stat[1]), started, command.strip())
    return found


def _taken_by(pid: int) -> tuple[float, int, int]:
    """Megabytes, descriptors and threads."""
    lines = (_PROC / str(pid) / "status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    own = sum(int(fields[name].split()[0]) for name in ("RssAnon", "RssShmem"))
    return own / 1_024, len(os.listdir(_PROC / str(pid) / "fd")), int(fields["Threads"])
