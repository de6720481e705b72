"""Spark's environment on this machine: its home, its settings file, its Pythons, its Java."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from ..testing.java import MINIMUM_VERSION, ask_java
from ..testing.spark_java import has_spark_modules
from .facts import JavaFacts


def ask_spark_java(environment: Mapping[str, str]) -> JavaFacts:
    """Ask the Java that ``bin/spark-class`` would start."""
    home = environment.get("JAVA_HOME", "")
    executable = str(Path(home, "bin", "java")) if home else shutil.which("java") or ""
    java = ask_java(Path(executable)) if executable else None
    has_modules = bool(java and java.version >= MINIMUM_VERSION and has_spark_modules(java))
    return JavaFacts(home, executable, java.version if java else None, has_modules)


def python_of_workers(environment: Mapping[str, str]) -> tuple[str, str]:
    """The variable, empty if none is set, and the Python that Spark starts for tasks."""
    named = environment.get("PYSPARK_PYTHON")
    return ("PYSPARK_PYTHON", named) if named else ("", "python3")


def python_of_planner(environment: Mapping[str, str]) -> tuple[str, str]:
    """The same for ``load()`` and the planner of a stream."""
    named = environment.get("PYSPARK_DRIVER_PYTHON")
    return ("PYSPARK_DRIVER_PYTHON", named) if named else python_of_workers(environment)


def spark_home(environment: Mapping[str, str], pyspark_file: str) -> Path | None:
    """Spark's home: SPARK_HOME, else the installed PySpark if it has Spark's jars."""
    if home := environment.get("SPARK_HOME"):
        return Path(home)
    installed = Path(pyspark_file).parent
    return installed if pyspark_file and (installed / "jars").is_dir() else None


def python_paths(home: Path | None) -> Sequence[Path]:
    """The paths that Spark puts in front of PYTHONPATH for each Python that it starts."""
    if home is None:
        return ()
    library = home / "python" / "lib"
    return [*library.glob("pyspark.zip"), *library.glob("py4j-*.zip")]


def read_defaults(environment: Mapping[str, str], home: Path | None) -> dict[str, str]:
    """The settings of ``spark-defaults.conf``; empty if there is no such file."""
    folder = environment.get("SPARK_CONF_DIR") or (home and home / "conf")
    if not folder:
        return {}
    try:
        text = Path(folder, "spark-defaults.conf").read_text("utf-8", "replace")
    except OSError:
        return {}
    lines = [line.split(None, 1) for line in text.splitlines() if line.strip()]
    return {words[0]: words[1].strip() for words in lines if len(words) == 2 and words[0][0] != "#"}


def is_compiled(home: Path | None) -> bool | None:
    """Whether PySpark's zip has compiled modules; None if Spark imports from a folder."""
    path = Path(home or os.devnull) / "python" / "lib" / "pyspark.zip"
    try:
        with ZipFile(path) as sources:
            return any(name.endswith(".pyc") for name in sources.namelist())
    except (OSError, BadZipFile):
        return None
