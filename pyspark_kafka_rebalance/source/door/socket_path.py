"""Where the sockets of the planners on this host are.

They are in a folder of the user's own, in the temporary folder, which planner and sink share: the
same JVM starts both. A name has the JVM's process id and the hash of the run's name::

    <tmp>/pyspark-kafka-rebalance-door-<user id>/<JVM>-<hash of the run>.sock
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from pathlib import Path

_FOLDER = "pyspark-kafka-rebalance-door"
_SUFFIX = ".sock"
_HASH = 24

#: A path of a Unix socket has at most 104 bytes on macOS, 108 on Linux, the last one zero.
_MOST_BYTES = 103


def folder() -> Path:
    """The folder, which may not exist yet.

    A temporary folder of a long name leaves no room for a socket's; then it is in ``/tmp``.
    """
    name = f"{_FOLDER}-{os.getuid()}"
    found = Path(tempfile.gettempdir(), name)
    longest = found / f"{'9' * 10}-{'f' * _HASH}{_SUFFIX}"
    return found if len(os.fsencode(longest)) <= _MOST_BYTES else Path("/tmp", name)


def make_folder() -> Path:
    """Make the folder, accessible to its owner only.

    Raises PermissionError if another user has made it: anybody could then answer in place of the
    planner.
    """
    found = folder()
    found.mkdir(mode=0o700, exist_ok=True)
    if not is_own(found):
        raise PermissionError(f"{found} belongs to another user, or others can access it")
    return found


def is_own(path: Path) -> bool:
    """Whether this is a folder that its owner alone, this user, can access."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return (
        stat.S_ISDIR(found.st_mode)
        and found.st_uid == os.getuid()
        and not stat.S_IMODE(found.st_mode) & 0o077
    )


def socket_of(run: str) -> Path:
    """The socket of a run of this process, which the JVM has started."""
    return folder() / f"{os.getppid()}-{_hash(run)}{_SUFFIX}"


def sockets(run: str) -> tuple[list[Path], list[Path]]:
    """The sockets of this run, one or none, and those of all others; the nearest first.

    Those of the same JVM are nearer than others: a sink's process is its child, or a child of the
    daemon that it has started.
    """
    there = folder()
    if not is_own(there):
        return [], []
    own: list[tuple[bool, Path]] = []
    others: list[tuple[bool, Path]] = []
    for path in sorted(there.glob(f"*{_SUFFIX}")):
        jvm, _, name = path.stem.partition("-")
        (own if name == _hash(run) else others).append((jvm not in _ancestors(), path))
    return [path for _, path in sorted(own)], [path for _, path in sorted(others)]


def _ancestors() -> set[str]:
    """The process ids of the parent and, where the system tells it, of its parent."""
    parent = os.getppid()
    found = {str(parent)}
    with contextlib.suppress(OSError, IndexError):
        # "pid (name) state ppid …"; the name may have spaces and brackets.
        found.add(Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[1])
    return found


def _hash(run: str) -> str:
    # Hashed: it contains the user's client id, which may not be a valid file name.
    return hashlib.sha256(run.encode()).hexdigest()[:_HASH]
