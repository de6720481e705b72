"""Compile PySpark once, so that Spark's Python processes start half a second sooner.

    python -m pyspark_kafka_rebalance.source.compiled_pyspark [--undo]

Spark's home has PySpark as a zip of sources, ``python/lib/pyspark.zip``. Every Python process that
Spark starts, such as the planner of a streaming query with a Python source, imports PySpark from
this zip and compiles it again. This command adds the compiled modules to the zip, next to the
sources. Only the Python version that runs the command uses them; others still compile the sources.
Running processes are not disturbed: the sources stay where they are in the zip. To undo it, stop
Spark, and use ``--undo`` or install PySpark again.
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

#: PySpark's own tests are never imported.
_LEFT_OUT = re.compile(r"/tests/")


def pyspark_zip() -> Path:
    """Return the zip in SPARK_HOME, or else in the installed PySpark; it may not exist."""
    home = os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent
    return Path(home) / "python" / "lib" / "pyspark.zip"


def add_compiled(path: Path) -> int:
    """Append the compiled modules to a zip of sources, unless it already has some.

    The zip is replaced atomically: any other process that starts finds the old one or the new one.
    A process that has read its directory before still finds the sources there.

    Returns how many compiled modules the zip has now. Raises OSError or BadZipFile if it cannot be
    read or written.
    """
    with ZipFile(path) as sources:
        if before := sum(name.endswith(".pyc") for name in sources.namelist()):
            return before  # replacing them would move them under processes that read them
    with tempfile.TemporaryDirectory() as folder:
        with ZipFile(path) as sources:
            sources.extractall(folder, [n for n in sources.namelist() if n.endswith(".py")])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # PySpark's own, for Spark to fix
            compileall.compile_dir(
                folder,
                maxlevels=100,
                rx=_LEFT_OUT,
                quiet=2,  # a file that this version cannot parse stays a source
                legacy=True,  # next to the source, where zipimport expects it
                stripdir=folder,
                prependdir=str(path),
                # A zip stores times to 2 s only, and is always replaced as a whole.
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
    """Leave only the sources in the zip; raises as :func:`add_compiled`."""
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
    """Yield the path of a new file next to it, which then replaces it atomically."""
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        yield part
        part.chmod(path.stat().st_mode)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m pyspark_kafka_rebalance.source.compiled_pyspark",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--undo",
        action="store_true",
        help="remove the compiled modules from the zip again; stop Spark first",
    )
    undo = parser.parse_args(arguments).undo
    path = pyspark_zip()
    if not path.exists():
        print(f"nothing to do: {path} is not there, PySpark is imported from a folder")
        return 0
    try:
        if undo:
            remove_compiled(path)
            print(f"{path}: compiled modules removed")
        else:
            print(f"{path}: compiling, which takes some seconds", flush=True)
            print(f"{path}: {add_compiled(path)} modules compiled")
    except (OSError, BadZipFile) as error:
        print(f"{path} is unchanged: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
