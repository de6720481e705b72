"""compiled_pyspark: the zip that Spark's Python processes import PySpark from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import pytest

from pyspark_kafka_rebalance.source.compiled_pyspark import main

SOURCES = {
    "pyspark/__init__.py": "import sys\nfrom pyspark import told\n",
    "pyspark/told.py": "def where():\n    raise ValueError('here')\n"
    + "".join(f"v{n} = {n * n % 977}\n" for n in range(1_000)),
    "pyspark/late.py": "x = 1\n" * 100,
    "pyspark/newer.py": "this is not of this version\n",
    "pyspark/tests/test_it.py": "",
    "pyspark/py.typed": "",
}


@pytest.fixture
def spark_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "python" / "lib"
    folder.mkdir(parents=True)
    with ZipFile(folder / "pyspark.zip", "w", ZIP_DEFLATED, compresslevel=1) as made:
        for name, text in SOURCES.items():
            made.writestr(name, text)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    return tmp_path


def content(home: Path) -> dict[str, bytes]:
    with ZipFile(home / "python/lib/pyspark.zip") as made:
        return {name: made.read(name) for name in made.namelist()}


def in_the_zip(home: Path, program: str) -> subprocess.CompletedProcess[str]:
    path = home / "python/lib/pyspark.zip"
    return subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_processes_take_the_compiled_modules(
    spark_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([]) == 0
    assert "3 modules compiled" in capsys.readouterr().out
    found = content(spark_home)
    assert {n: found[n] for n in SOURCES} == {n: t.encode() for n, t in SOURCES.items()}
    assert found.keys() - SOURCES.keys() == {
        "pyspark/__init__.pyc",
        "pyspark/late.pyc",
        "pyspark/told.pyc",
    }
    ran = in_the_zip(spark_home, "import pyspark.told as t; print(t.__cached__ or t.__file__)")
    assert ran.stdout.strip().endswith("pyspark.zip/pyspark/told.pyc"), ran.stderr


def test_a_traceback_names_the_source_as_before(spark_home: Path) -> None:
    program = "import pyspark.told as t; t.where()"
    before = in_the_zip(spark_home, program).stderr
    main([])
    assert in_the_zip(spark_home, program).stderr == before
    assert 'pyspark.zip/pyspark/told.py", line 2, in where' in before


def test_another_python_takes_the_sources(spark_home: Path) -> None:
    main([])
    path = spark_home / "python/lib/pyspark.zip"
    found = content(spark_home)
    with ZipFile(path, "w") as made:
        for name, data in found.items():
            made.writestr(name, b"old!" + data[4:] if name.endswith(".pyc") else data)
    ran = in_the_zip(spark_home, "import pyspark.told as t; print(t.__file__)")
    assert ran.stdout.strip().endswith("pyspark.zip/pyspark/told.py"), ran.stderr


def test_a_process_that_runs_goes_on_finding_its_sources(spark_home: Path) -> None:
    """It has the zip's directory in memory, and opens the file anew for each module."""
    program = (
        "import pyspark; print(1, flush=True); input(); import pyspark.late as late; print(late)"
    )
    running = subprocess.Popen(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(spark_home / "python/lib/pyspark.zip")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stdout is not None
    assert running.stdout.readline() == "1\n"
    main([])
    out, err = running.communicate("go on\n", timeout=60)
    assert "pyspark/late.py" in out, err


def test_once_more_and_undone(spark_home: Path) -> None:
    before = content(spark_home)
    main([])
    once = content(spark_home)
    main([])
    assert content(spark_home) == once
    assert main(["--undo"]) == 0
    assert content(spark_home) == before
    assert [p.name for p in (spark_home / "python/lib").iterdir()] == ["pyspark.zip"]


def test_a_spark_without_the_zip_needs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert main([]) == 0
    assert "nothing to do" in capsys.readouterr().out


def test_what_is_no_zip_stays_as_it_is(
    spark_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = spark_home / "python/lib/pyspark.zip"
    path.write_bytes(b"not a zip")
    assert main([]) == 1
    assert "is unchanged" in capsys.readouterr().err
    assert path.read_bytes() == b"not a zip"
