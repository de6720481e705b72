"""A Kafka Connect worker in distributed mode, with exactly-once source support."""

from __future__ import annotations

import json
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark_kafka_rebalance.testing.java import find_java
from pyspark_kafka_rebalance.testing.kafka_jars import connect_jars
from pyspark_kafka_rebalance.testing.processes.ports import ReservedPort
from pyspark_kafka_rebalance.testing.processes.watched_process import WatchedProcess

_START_TIMEOUT_S = 120.0
_LOOK_EVERY_S = 0.05

#: The JVM options that connect-distributed.sh sets.
_JAVA_OPTIONS = (
    "-Xms256M",
    "-Xmx2G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)


class ConnectWorker:
    """One worker of a cluster, with its REST API on a port of its own.

    Parameters
    ----------
    name : str
        Names its log and properties files.
    servers : str
        The brokers.
    cluster : str
        Workers of one cluster share the connectors, and the topics of their configurations,
        offsets and status.
    settings : mapping
        Worker settings in addition to the required ones.
    work : Path
        The folder for its log and properties.
    """

    def __init__(
        self, name: str, servers: str, cluster: str, settings: Mapping[str, object], work: Path
    ) -> None:
        self._port = ReservedPort()
        self.address = f"127.0.0.1:{self._port.number}"  # its worker id in the cluster
        self._properties = work / f"{name}.properties"
        self._process = WatchedProcess(work, work / f"{name}.log", None)
        properties = {
            "bootstrap.servers": servers,
            "group.id": cluster,
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "exactly.once.source.support": "enabled",
            "listeners": f"http://{self.address}",
            "rest.advertised.host.name": "127.0.0.1",
            "plugin.discovery": "service_load",  # the quickest to start
        }
        for topic in ("config", "offset", "status"):
            properties[f"{topic}.storage.topic"] = f"{cluster}-{topic}"
            properties[f"{topic}.storage.replication.factor"] = "1"
        properties |= {key: str(value) for key, value in settings.items()}
        self._properties.write_text("".join(f"{k}={v}\n" for k, v in properties.items()))

    @property
    def pid(self) -> int:
        """The process id of its JVM."""
        assert self._process.pid is not None, self._process.log_end()
        return self._process.pid

    def start(self) -> None:
        """Start it and return at once."""
        command = [str(find_java().executable), *_JAVA_OPTIONS, "-cp", f"{connect_jars()}/*"]
        command += ["org.apache.kafka.connect.cli.ConnectDistributed", str(self._properties)]
        assert self._process.start(command), self._process.log_end()

    def kill(self) -> None:
        """End it with SIGKILL."""
        self._process.send(signal.SIGKILL)
        self._process.wait_until_ended(30)

    def stop(self) -> None:
        """End it with SIGTERM and wait; kill it if it has not ended after 60 s."""
        self._process.send(signal.SIGTERM)
        if not self._process.wait_until_ended(60):
            self.kill()

    def close(self) -> None:
        """Kill it and release its port."""
        self.kill()
        self._port.release()

    def read_file(self, connector: str, file: Path, topic: str, **settings: object) -> None:
        """Create a connector that reads a file, as soon as the worker answers."""
        config = {
            "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
            "tasks.max": 1,
            "file": file,
            "topic": topic,
            "exactly.once.support": "required",
            **settings,
        }
        body = {"name": connector, "config": {name: str(value) for name, value in config.items()}}
        self._ask("POST", "/connectors", body)

    def forget(self, connector: str) -> None:
        """Delete a connector."""
        self._ask("DELETE", f"/connectors/{connector}")

    def owner_of(self, connector: str) -> str | None:
        """Return the address of the worker that runs the connector's task; None if none does."""
        status = self._ask("GET", f"/connectors/{connector}/status")
        for task in status["tasks"]:
            if task["state"] == "RUNNING":
                return str(task["worker_id"])
        return None

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        """Return the REST API's answer; retry while the worker starts or the cluster rebalances."""
        request = urllib.request.Request(
            f"http://{self.address}{path}",
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
            method=method,
        )
        deadline = time.monotonic() + _START_TIMEOUT_S
        while True:
            try:
                with urllib.request.urlopen(request, timeout=_START_TIMEOUT_S) as answer:
                    return json.loads(answer.read() or "null")
            except urllib.error.HTTPError as error:
                said = error.read().decode(errors="replace")
                if error.code not in (404, 409, 500, 503) or time.monotonic() > deadline:
                    raise RuntimeError(f"{method} {path}: {error.code} {said}") from error
            except OSError as error:
                if not self._process.is_running or time.monotonic() > deadline:
                    raise RuntimeError(self._process.log_end()) from error
            time.sleep(_LOOK_EVERY_S)
