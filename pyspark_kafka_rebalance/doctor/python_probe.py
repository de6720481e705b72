"""The packages that a Python has, found in a separate process, started as Spark would start it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from .facts import PythonFacts

#: The first import of PySpark and pyarrow from a slow disk takes long.
_PATIENCE_S = 120

#: Runs in any Python 3. Finds data sources as PySpark's lookup_data_sources.py does.
_SCRIPT = """
import importlib, json, pkgutil, sys
def version(name):
    try:
        return str(importlib.import_module(name).__version__)
    except Exception as error:
        errors[name] = "%s: %s" % (type(error).__name__, error)
errors, ours = {}, "pyspark_kafka_rebalance"
found = {"executable": sys.executable, "prefix": sys.prefix, "errors": errors}
found["version"] = list(sys.version_info[:3])
found["versions"] = {n: version(n) for n in ("kafka", "pyarrow", "pyspark", ours)}
if "pyspark" in sys.modules:
    found["pyspark_file"] = sys.modules["pyspark"].__file__
if ours in sys.modules:
    found["package_file"] = sys.modules[ours].__file__
    compiled = {"decoder": ".fetch._record_batch", "encoder": ".produce.encoder._encoder"}
    for name, module in compiled.items():
        try:
            importlib.import_module(ours + module)
            found[name] = True
        except Exception as error:
            errors[name] = "%s: %s" % (type(error).__name__, error)
for name in sorted(m.name for m in pkgutil.iter_modules() if m.name.startswith("pyspark_")):
    found.setdefault("listed", []).append(name)
    try:
        if hasattr(importlib.import_module(name), "DefaultSource"):
            found.setdefault("sources", []).append(name)
    except Exception as error:
        errors[name] = "%s: %s" % (type(error).__name__, error)
if ours in found.get("listed", ()) and ours not in found.get("sources", ()):
    try:
        importlib.import_module(ours + ".source.data_source")
    except Exception as error:
        errors["source"] = "%s: %s" % (type(error).__name__, error)
print("\\nDOCTOR " + json.dumps(found))
"""


def ask_python(command: str, paths: Sequence[Path] = ()) -> PythonFacts:
    """Ask a Python, which is a path or a name on the PATH.

    ``paths`` are the ones that Spark puts in front of PYTHONPATH.
    """
    if shutil.which(command) is None:
        return PythonFacts(command, errors={"start": "there is no such program"})
    before = [str(path) for path in paths]
    environment = dict(os.environ)
    if given := environment.pop("PYTHONPATH", ""):
        before.append(given)
    if before:
        environment["PYTHONPATH"] = os.pathsep.join(before)
    try:
        done = subprocess.run(
            [command, "-c", _SCRIPT],
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            env=environment,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return PythonFacts(command, errors={"start": str(error)})
    _, mark, answer = done.stdout.rpartition("\nDOCTOR ")
    if not mark:
        said = (done.stderr or done.stdout).strip().splitlines()[-1:]
        reason = f"exit code {done.returncode}: {' '.join(said)}"
        return PythonFacts(command, errors={"start": reason})
    return parse_answer(command, answer)


def parse_answer(command: str, answer: str) -> PythonFacts:
    """Parse the script's output. Pure."""
    found = json.loads(answer)
    return PythonFacts(
        command,
        executable=found["executable"],
        prefix=found["prefix"],
        version=tuple(found["version"]),
        versions=found["versions"],
        package_file=found.get("package_file") or "",
        pyspark_file=found.get("pyspark_file") or "",
        decoder=found.get("decoder", False),
        encoder=found.get("encoder", False),
        listed=frozenset(found.get("listed", ())),
        sources=frozenset(found.get("sources", ())),
        errors=found["errors"],
    )
