from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import kafka
import pytest
from kafka import KafkaConsumer

from pyspark_kafka_rebalance.transport.kafka_python_version import (
    require_names,
    require_supported_version,
)


@pytest.mark.parametrize("version", ["3.0.5", "3.0.12", "3.0.99"])
def test_supported_versions_pass(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(kafka, "__version__", version)
    require_supported_version()


@pytest.mark.parametrize("version", ["2.3.0", "3.0.4", "3.1.0", "4.0"])
def test_other_versions_are_refused(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(kafka, "__version__", version)
    with pytest.raises(ImportError, match=rf"{version} is not supported.*>=3\.0\.5,<3\.1"):
        require_supported_version()


def test_a_missing_name_is_named() -> None:
    with pytest.raises(ImportError, match=r"it lacks KafkaConsumer\._no_such_name; install"):
        require_names({KafkaConsumer: ("poll", "_no_such_name")})


@pytest.mark.parametrize(
    ("contents", "said"),
    [
        # Of 2.x not even the modules have the names that ours import.
        ('__version__ = "2.3.3"', "kafka-python 2.3.3 is not supported; install"),
        # 2.0.2 on Python 3.12 and later.
        ("import kafka.vendor.six.moves", "No module named 'kafka.vendor'; install"),
    ],
)
@pytest.mark.parametrize("name", ["DeferredRevokeConsumer", "RangeFetcher"])
def test_another_kafka_python_does_no_harm_until_it_is_used(
    tmp_path: Path, contents: str, said: str, name: str
) -> None:
    """Spark imports every package of a name like ours: the import must not fail."""
    package = tmp_path / "kafka"
    package.mkdir()
    (package / "__init__.py").write_text(contents)
    code = f"""
import pyspark_kafka_rebalance as package
source = package.DefaultSource(
    {{"kafka.bootstrap.servers": "b:1", "kafka.group.id": "g", "subscribe": "t"}}
)
stream = source.streamReader(source.schema())
for use in (
    lambda: package.{name},
    lambda: source.reader(source.schema()),
    lambda: stream.initialOffset(),
    lambda: next(stream.read(None)),
):
    try:
        use()
    except ImportError as error:
        print(error)
"""
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"{said} kafka-python>=3.0.5,<3.1") == 4
