"""Compile PySpark once, so that Spark's Python processes start half a second sooner.

    python -m pyspark_kafka_rebalance.source.compiled_pyspark [--undo]

In its home Spark has PySpark as a zip of sources, ``python/lib/pyspark.zip``. Each Python process
that it starts, such as the planner with which a streaming query of a Python source begins, imports
from it and compiles it anew. This puts the compiled modules beside the sources, in the same zip.
Another Python version than that of the command goes on compiling the sources. Processes that run
meanwhile are not disturbed: the sources stay where they are in the zip. What undoes it, with no
Spark running: ``--undo``, or installing PySpark again.
"""

from __future__ import annotations

import argparse
import compileall
import os
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from py_compile import PycInvalidationMode
from zipfile import ZIP_DEFLATED, BadZipFile, ZipFile

import pyspark

#: Nobody imports PySpark's own tests.
_LEFT_OUT = re.compile(r"/tests/")


def pyspark_zip() -> Path:
    """The zip in SPARK_HOME, or in the PySpark that is installed; it may not be there."""
    home = os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent
    return Path(home) / "python" / "lib" / "pyspark.zip"


def add_compiled(path: Path) -> int:
    """Put the compiled modules behind the sources in a zip, unless it has some.

    Parameters
    ----------
    path : Path
        The zip. It is replaced in one step: a process that starts meanwhile finds one of the two.
        One that has read its directory before goes on finding the sources where that says.

    Returns
    -------
    int
        How many there are by now.

    Raises
    ------
    OSError, BadZipFile
        The zip cannot be read, or not be written.
    """
    with ZipFile(path) as sources:
        if before := sum(name.endswith(".pyc") for name in sources.namelist()):
            return before  # to replace them would take them from processes that know where they are
    with tempfile.TemporaryDirectory() as folder:
        with ZipFile(path) as sources:
            sources.extractall(folder, [n for n in sources.namelist() if n.endswith(".py")])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # PySpark's, and Spark's to mend
            compileall.compile_dir(
                folder,
                maxlevels=100,
                rx=_LEFT_OUT,
                quiet=2,  # what is not of this version's syntax stays a source
                legacy=True,  # beside the source, where a zip is searched
                stripdir=folder,
                prependdir=str(path),
                # A zip's times are of two seconds; the zip is replaced as a whole.
                invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
            )
        compiled = sorted(Path(folder).rglob("*.pyc"))
        with _replacing(path) as part:
            shutil.copyfile(path, part)
            with ZipFile(part, "a", ZIP_DEFLATED) as extended:
                for file in compiled:
                    extended.write(file, str(file.relative_to(folder)))
    return len(compiled)


def remove_compiled(path: Path) -> None:
    """Leave the sources alone in the zip; raises what :func:`add_compiled` does."""
    with (
        _replacing(path) as part,
        ZipFile(path) as before,
        ZipFile(part, "w", ZIP_DEFLATED) as after,
    ):
        for entry in before.infolist():
            if not entry.filename.endswith(".pyc"):
                after.writestr(entry, before.read(entry))


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A file beside it to write to, which then takes its place in one step."""
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        yield part
        part.chmod(path.stat().st_mode)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Do as the command line says; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m pyspark_kafka_rebalance.source.compiled_pyspark",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--undo", action="store_true", help="leave the sources alone in the zip; stop Spark before"
    )
    undo = parser.parse_args(arguments).undo
    path = pyspark_zip()
    if not path.exists():
        print(f"nothing to do: {path} is not there, PySpark is imported from a folder")
        return 0
    try:
        if undo:
            remove_compiled(path)
            print(f"{path}: sources alone")
        else:
            print(f"{path}: compiling, which takes some seconds", flush=True)
            print(f"{path}: {add_compiled(path)} modules compiled")
    except (OSError, BadZipFile) as error:
        print(f"{path} is as it was: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
