"""A Spark standalone cluster on this machine: a master and workers, each in a JVM of its own.

It shows problems that ``local[2]`` hides: tasks run in other processes than the driver, with the
Python, the packages and the environment of *their* host::

    with LocalSparkCluster() as cluster:
        spark = local_spark("orders", master=cluster.master)

It uses the jars inside pyspark; nothing else is needed.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import LocalSparkError
from .java import find_java
from .processes.ports import ReservedPort
from .processes.watched_process import WatchedProcess
from .spark_java import java_home_for_spark

if TYPE_CHECKING:
    from typing_extensions import Self

#: A JVM on a busy machine.
_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 20.0
_LOOK_EVERY_S = 0.05

#: Spark 4's. A worker needs it before it starts an executor; Spark's own scripts set it.
_SCALA_VERSION = "2.13"

#: A daemon does next to nothing, and an executor has its own memory. The master's REST server would
#: take a fixed port.
_DAEMON_OPTIONS = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dspark.master.rest.enabled=false",
)


class LocalSparkCluster:
    """One master and some workers, only at 127.0.0.1.

    Parameters
    ----------
    workers : int
        The number of workers.
    cores : int
        Cores that each worker offers; more than the machine has is fine.
    memory_mb : int
        Memory that each worker offers, in MiB.
    environment : mapping, optional
        Variables for the workers, and so for executors and their Python, in addition to this
        process's; the value None removes a variable.
    """

    def __init__(
        self,
        workers: int = 2,
        cores: int = 2,
        memory_mb: int = 2_048,
        environment: Mapping[str, str | None] | None = None,
    ) -> None:
        self._workers = workers
        self._offer = ["--cores", str(cores), "--memory", f"{memory_mb}M"]
        self._environment = dict(environment or {})
        self._port: ReservedPort | None = None
        self._daemons: list[_Daemon] = []
        self.folder = Path()

    @property
    def master(self) -> str:
        """For ``SparkSession.builder.master`` and ``spark-submit --master``."""
        assert self._port is not None, "not started"
        return f"spark://127.0.0.1:{self._port.number}"

    def start(self) -> Self:
        """Start all processes; returns once every worker is registered with the master.

        Raises
        ------
        LocalSparkError
            pyspark or a Java is missing, or a process did not start; quotes the end of its log.
        """
        home = _spark_home()
        java_home = java_home_for_spark(find_java())
        environment = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_SCALA_VERSION": _SCALA_VERSION,
            "JAVA_HOME": str(java_home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            **self._environment,
        }
        given = {name: value for name, value in environment.items() if value is not None}
        java = [str(java_home / "bin" / "java"), *_DAEMON_OPTIONS, "-cp", f"{home}/jars/*"]
        self.folder = Path(tempfile.mkdtemp(prefix="local-spark-"))
        self._port = ReservedPort()
        where = ["--host", "127.0.0.1", "--webui-port", "0"]

        def daemon(name: str, main: str, arguments: Sequence[str]) -> _Daemon:
            command = [*java, f"org.apache.spark.deploy.{main}", *where, *arguments]
            self._daemons.append(_Daemon(name, command, self.folder, given))
            return self._daemons[-1]

        try:
            port = str(self._port.number)
            daemon("master", "master.Master", ["--port", port]).wait_for("New state: ALIVE")
            for number in range(self._workers):
                folder = ["--work-dir", str(self.folder / f"worker-{number}")]
                daemon(f"worker-{number}", "worker.Worker", [*self._offer, *folder, self.master])
            for worker in self._daemons[1:]:
                worker.wait_for("Successfully registered with master")
        except BaseException:
            self.stop()
            raise
        return self

    def finished_tasks(self) -> list[int]:
        """Return how many tasks each worker's executors have finished, over all applications."""
        return [
            sum(
                len(re.findall("Finished task", log.read_text(errors="replace")))
                for log in (self.folder / f"worker-{number}").glob("*/*/stderr")
            )
            for number in range(self._workers)
        ]

    def stop(self) -> None:
        """Stop all and remove the folder; idempotent. Executors end with their workers."""
        for daemon in reversed(self._daemons):
            daemon.process.send(signal.SIGTERM)
        for daemon in reversed(self._daemons):
            daemon.end()
        self._daemons.clear()
        if self._port is not None:
            self._port.release()
            shutil.rmtree(self.folder, ignore_errors=True)
            self._port = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.stop()


class _Daemon:
    """A Spark master or worker process."""

    def __init__(
        self, name: str, command: Sequence[str], folder: Path, environment: Mapping[str, str]
    ) -> None:
        self._name = name
        self.process = WatchedProcess(
            folder, folder / f"{name}.log", folder, environment=environment
        )
        if not self.process.start(command):
            raise LocalSparkError(f"Spark's {name} did not start:\n{self.process.log_end()}")

    def wait_for(self, text: str) -> None:
        """Wait until the process logs this text."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while text not in self.process.log_file.read_text(errors="replace"):
            ended = not self.process.is_running
            if ended or time.monotonic() > deadline:
                how = "ended" if ended else f"did not say {text!r} in {_START_TIMEOUT_S:g} s"
                raise LocalSparkError(f"Spark's {self._name} {how}:\n{self.process.log_end()}")
            time.sleep(_LOOK_EVERY_S)

    def end(self) -> None:
        """Wait for the process to end; kill it after a while."""
        if not self.process.wait_until_ended(_STOP_TIMEOUT_S):
            self.process.send(signal.SIGKILL)
            self.process.wait_until_ended(_STOP_TIMEOUT_S)


def _spark_home() -> Path:
    try:
        import pyspark
    except ImportError as error:
        raise LocalSparkError(f"a Spark cluster needs the extra 'spark': {error}") from error
    return Path(pyspark.__file__).parent
