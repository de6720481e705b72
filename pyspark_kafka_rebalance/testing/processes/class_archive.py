"""Class data archives: a JVM maps the classes that an earlier one loaded, and starts twice as fast.

The JVM calls this a dynamic archive of application class data sharing. It is made once for each
Java and class path, by a run that loads the classes that later ones need, and kept in the cache
folder. An archive only saves time: a JVM that cannot use it starts as it does without one. So a
failure to make one is logged and is not an error.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ..java import Java
from ..kafka_jars import cache_folder

log = logging.getLogger(__name__)

#: JVM options with which a user has decided about archives.
_DECIDED = ("-Xshare:", "-XX:SharedArchiveFile=", "-XX:ArchiveClassesAtExit=")


def options_with_archive(archive: Path) -> list[str]:
    """Return the JVM options to use the archive, and to be silent about one that does not fit."""
    return [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", "-Xlog:cds*=off"]


def options_to_make(archive: Path) -> list[str]:
    """Return the JVM options to write the archive when the JVM ends; it must end by itself."""
    return [f"-XX:ArchiveClassesAtExit={archive}", "-Xlog:cds*=off"]


def is_decided(java_options: Iterable[str]) -> bool:
    """Whether these options already decide about archives."""
    return any(option.startswith(_DECIDED) for option in java_options)


def class_archive(
    name: str, java: Java, class_path: Sequence[Path], make: Callable[[Path], None] | None
) -> Path | None:
    """Return the archive of these classes for this Java; makes it the first time.

    Java refuses an archive of other jars, or of the same jars with another time. ``make`` runs the
    program with :func:`options_to_make` of the path that it is given; without it the archive is
    used only if it exists. None if it does not exist, or could not be made, now or earlier.
    """
    try:
        archive = cache_folder() / "class-archives" / f"{name}-{_key(java, class_path)}.jsa"
        if not archive.exists():
            if make is None:
                return None
            _make_once(archive, make)
        return archive if archive.stat().st_size else None
    except OSError as error:  # such as a read-only cache
        log.info("no class data archive of %s: %s", name, error)
        return None


def _key(java: Java, class_path: Iterable[Path]) -> str:
    said = [str(java.home), java.build]
    for jar in class_path:
        found = jar.stat()
        said.append(f"{jar} {found.st_size} {found.st_mtime_ns}")
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:12]


def _make_once(archive: Path, make: Callable[[Path], None]) -> None:
    """Make the file, which appears complete; an empty one means that this Java makes none.

    If several processes need it, one makes it and the others wait; the lock ends with its holder.
    """
    archive.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{archive}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if archive.exists():
            return
        log.info("making the class data archive %s; once, this takes some seconds", archive.name)
        partial = archive.with_suffix(f".{os.getpid()}")
        try:
            make(partial)
        except Exception as error:
            log.warning("no class data archive %s, JVMs start slower: %s", archive.name, error)
        if not partial.exists():
            partial.touch()
        partial.replace(archive)
