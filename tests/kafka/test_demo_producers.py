"""The demo of producer groups itself, short."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_kafka_rebalance.testing import LocalKafka, PostgresServer

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.long
def test_every_row_is_there_once_though_instances_die_and_stall(
    kafka: LocalKafka, postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", kafka.bootstrap_servers)
    monkeypatch.setenv("POSTGRES_URL", postgres.url)
    command = [sys.executable, "-m", "demos.producers"]
    command += ["--seconds-per-phase", "1", "--rate", "400"]
    done = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\n0 lost, 0 twice: " in done.stdout, done.stdout
    for table in ("customers", "orders", "payments"):
        (line,) = (line for line in done.stdout.splitlines() if line.startswith(f"│ {table}"))
        cells = [cell.strip() for cell in line.strip("│").split("│")]
        assert int(cells[1].replace(",", "")) > 50
        assert cells[3:] == ["0", "0", "0", "0"], done.stdout
    picture = (tmp_path / "artifacts" / "producers.png").read_bytes()
    assert picture.startswith(PNG)
    assert len(picture) > 20_000
