"""LocalKafka: one or three real brokers, of any version, on this machine.

``python -m pyspark_kafka_rebalance.testing.local_kafka`` runs one until Ctrl-C.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .brokers.broker import DEFAULT_JAVA_OPTIONS, Broker
from .brokers.broker_archive import sharing_options
from .brokers.cluster import KafkaCluster, setting
from .brokers.metadata import ask_broker
from .brokers.storage import format_storage, random_id
from .brokers.zookeeper import ZooKeeper
from .errors import LocalKafkaError
from .java import find_java
from .kafka_jars import KAFKA_TOOLS, broker_jars, single_jars
from .kafka_versions import KAFKA_VERSION, KafkaVersion
from .processes.ports import ReservedPort

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger(__name__)

_UNKNOWN_TOPIC = 3
_LOOK_EVERY_S = 0.02
_LOOK_FOR_SIGNALS_S = 1.0
#: A broker that stops cleanly first hands over its leaderships; without a quorum it cannot.
_STOP_S = 20.0


class LocalKafka(KafkaCluster):
    """Real brokers on free ports of 127.0.0.1, with their data in a temporary folder.

    A context manager. The brokers end with it, and with this process, however that ends.

    Parameters
    ----------
    brokers : {1, 3}
        Their ids are 1, 2 and 3. From Kafka 3.3 on, each is a controller as well.
    version : str
        The version of Apache Kafka, from 1.0.0 on. It is fetched the first time, which takes about
        a minute. Brokers before 3.3 come with a ZooKeeper.
    broker_config : mapping of str to object, optional
        Settings of ``server.properties`` that replace the ones chosen here or are added to them,
        for example ``{"message.max.bytes": 10_000_000}``. Broker n is in the rack ``rack-n``.
    listeners : mapping of str to str, optional
        Additional listeners, each with its security protocol, such as ``{"TLS": "SSL"}``. Put
        their ``listener.name.tls.…`` settings into ``broker_config``. ``SecuredKafka`` has some
        ready for use.
    port : int, optional
        Port of the first broker; the others take the next two. Default: any free ports.
    features : mapping of str to int, optional
        Feature levels other than the release's: ``{"group.version": 0}`` is a cluster without
        the consumer group protocol. Not before Kafka 3.3.
    java_options : sequence of str
        For the brokers' JVM. The first start with a Java makes an archive of Kafka's classes, and
        brokers start in half the time from then on, unless there is an option such as
        ``-Xshare:off``, or another ``version``.
    keep_data : bool
        Stop the brokers cleanly and leave :attr:`folder` where it is.
    folder : path, optional
        An empty or new folder; by default a temporary one.
    timeout_s : float
        How long a start, or the creation of a topic, may take.

    Examples
    --------
    >>> with LocalKafka() as kafka:  # doctest: +SKIP
    ...     kafka.create_topic("orders", partitions=12)
    ...     kafka.produce("orders", [b"a", b"b", b"c"])
    ...     run_my_job(kafka.bootstrap_servers)
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        version: str = KAFKA_VERSION,
        broker_config: Mapping[str, object] | None = None,
        listeners: Mapping[str, str] | None = None,
        port: int | None = None,
        features: Mapping[str, int] | None = None,
        java_options: Sequence[str] = DEFAULT_JAVA_OPTIONS,
        keep_data: bool = False,
        folder: str | Path | None = None,
        timeout_s: float = 90.0,
    ) -> None:
        if brokers not in (1, 3):
            raise ValueError(f"brokers={brokers}; allowed: 1 or 3, so that a majority may remain")
        self._version = KafkaVersion(version)
        if features and self._version.needs_zookeeper:
            raise ValueError(f"features={features}; Kafka {version} has none to choose from")
        # Brokers come back sooner here than the 30 s to which the clients' backoff would grow.
        super().__init__("", reconnect_backoff_max_ms=200)
        self._count = brokers
        self._broker_config = dict(broker_config or {})
        self._listeners = dict(listeners or {})
        self._wanted_port = port
        self._listener_ports: dict[str, list[int]] = {}
        self._features = dict(features or {})
        self._java_options = tuple(java_options)
        self._keep_data = keep_data
        self._wanted_folder = folder
        self._timeout_s = timeout_s
        self._resources = ExitStack()
        self._brokers: dict[int, Broker] = {}
        self._zookeeper: ZooKeeper | None = None
        self._folder: Path | None = None

    @property
    def version(self) -> str:
        """The version of Apache Kafka."""
        return self._version.number

    @property
    def folder(self) -> Path:
        """The folder with data, settings and log of each broker, in a folder of its own."""
        if self._folder is None:
            raise LocalKafkaError("LocalKafka is not started")
        return self._folder

    @property
    def bootstrap_servers(self) -> str:
        """The address of every broker, whether it runs or not."""
        return ",".join(f"127.0.0.1:{broker.port}" for broker in self._chosen(None))

    def servers_of(self, listener: str) -> str:
        """Return the address of every broker at one of ``listeners``."""
        self._chosen(None)
        return ",".join(f"127.0.0.1:{port}" for port in self._listener_ports[listener])

    @property
    def broker_ids(self) -> tuple[int, ...]:
        """The ids of all brokers, whether they run or not."""
        return tuple(self._brokers)

    @property
    def running(self) -> tuple[int, ...]:
        """The ids of the brokers that have a process, suspended ones too."""
        return tuple(b.broker_id for b in self._brokers.values() if b.process.is_running)

    def pid(self, broker_id: int = 1) -> int | None:
        """Return the process id of a broker; None if it does not run."""
        return self._chosen(broker_id)[0].process.pid

    def start(self) -> Self:
        """Start all brokers and wait until each knows all others; ``with`` does that.

        Raises
        ------
        LocalKafkaError
            Java or the jars are missing, or a broker does not come up; quotes the end of its log.
        """
        if self._brokers:
            raise LocalKafkaError("LocalKafka is started already")
        jars = broker_jars(self._version.number)
        started = time.monotonic()
        try:
            self._lay_out(jars)
            self._start(self._chosen(None))
        except BaseException:
            self.close()
            raise
        took = time.monotonic() - started
        number, servers = self._version.number, self.bootstrap_servers
        log.info("Kafka %s is up at %s (%.1f s)", number, servers, took)
        return self

    def stop(self, broker_id: int | None = None, timeout_s: float = _STOP_S) -> None:
        """Stop one broker, or all, cleanly; ``restart`` brings it back with its data.

        Brokers that have not stopped within ``timeout_s`` are killed.
        """
        chosen = self._chosen(broker_id)
        for broker in chosen:
            broker.process.send(signal.SIGCONT)
            broker.process.send(signal.SIGTERM)
        deadline = time.monotonic() + timeout_s
        for broker in chosen:
            if not broker.process.wait_until_ended(max(0.0, deadline - time.monotonic())):
                log.warning("broker %d does not stop; killing it", broker.broker_id)
                self.kill(broker.broker_id)

    def kill(self, broker_id: int | None = None) -> None:
        """End one broker, or all, by SIGKILL; ``restart`` brings it back with its data."""
        chosen = self._chosen(broker_id)
        for broker in chosen:
            broker.process.send(signal.SIGKILL)
        for broker in chosen:
            if not broker.process.wait_until_ended(_STOP_S):
                raise LocalKafkaError(
                    f"broker {broker.broker_id} does not end (pid {broker.process.pid})"
                )

    def restart(self, broker_id: int | None = None) -> None:
        """Start one broker, or all, again on the same port and data; stop it first if it runs.

        Raises
        ------
        LocalKafkaError
            It does not come up; quotes the end of its log.
        """
        self.stop(broker_id)
        self._start(self._chosen(broker_id))

    def suspend(self, broker_id: int | None = None) -> None:
        """Suspend one broker, or all, by SIGSTOP: connections stay open, nothing is answered."""
        for broker in self._chosen(broker_id):
            broker.process.send(signal.SIGSTOP)

    def resume(self, broker_id: int | None = None) -> None:
        """Let a suspended broker, or all, continue."""
        for broker in self._chosen(broker_id):
            broker.process.send(signal.SIGCONT)

    def close(self) -> None:
        """End all brokers and remove their data, unless it is to be kept; idempotent."""
        super().close()
        if not self._is_here:
            return
        if self._brokers:
            # Data that will not be read need not be intact.
            (self.stop if self._keep_data else self.kill)()
        self._resources.close()
        self._brokers = {}
        self._folder = None

    def __enter__(self) -> Self:
        return self.start()

    def _lay_out(self, jars: Path) -> None:
        """Choose ports and format the storage; start ZooKeeper if the brokers need it."""
        if self._wanted_folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="local-kafka-"))
        else:
            self._folder = Path(self._wanted_folder).absolute()
            self._folder.mkdir(parents=True, exist_ok=True)
        if not self._keep_data:
            self._resources.callback(shutil.rmtree, self._folder, ignore_errors=True)
        first = self._wanted_port
        wanted = [None if first is None else first + n for n in range(self._count)]
        ports = [(self._reserve_port(port), self._reserve_port()) for port in wanted]
        self._listener_ports = {
            name: [self._reserve_port() for _ in range(self._count)] for name in self._listeners
        }
        cluster_id = random_id()
        java_options = [*self._java_options]
        if self._version.number == KAFKA_VERSION:  # others are not started often
            java_options += sharing_options(self._java_options, jars, LocalKafka)
        remove_when_orphaned = None if self._keep_data else self._folder
        if self._version.needs_zookeeper:
            place, port = self._folder / "zookeeper", self._reserve_port()
            self._zookeeper = ZooKeeper(place, port, jars, remove_when_orphaned)
            self._resources.callback(self._zookeeper.kill)
            self._zookeeper.start(self._timeout_s)
        for broker_id, (port, _) in enumerate(ports, start=1):
            folder = self._folder / f"broker-{broker_id}"
            settings = _settings(broker_id, ports, folder / "data", self._zookeeper)
            settings["broker.rack"] = f"rack-{broker_id}"
            for name, protocol in self._listeners.items():
                at = f",{name}://127.0.0.1:{self._listener_ports[name][broker_id - 1]}"
                settings["listeners"] += at
                settings["advertised.listeners"] += at
                settings["listener.security.protocol.map"] += f",{name}:{protocol}"
            settings |= {name: setting(value) for name, value in self._broker_config.items()}
            if self._zookeeper is None:
                format_storage(jars, folder / "data", cluster_id, broker_id, self._features)
            self._brokers[broker_id] = Broker(
                broker_id, port, folder, settings, jars, java_options, remove_when_orphaned
            )

    def _reserve_port(self, wanted: int | None = None) -> int:
        port = ReservedPort(wanted)
        self._resources.callback(port.release)
        return port.number

    def _chosen(self, broker_id: int | None) -> list[Broker]:
        if not self._brokers:
            raise LocalKafkaError("LocalKafka is not started")
        if broker_id is None:
            return list(self._brokers.values())
        if broker_id not in self._brokers:
            raise LocalKafkaError(f"no broker {broker_id}; there are {list(self._brokers)}")
        return [self._brokers[broker_id]]

    def _start(self, chosen: Iterable[Broker]) -> None:
        for broker in chosen:
            if self._zookeeper is not None:
                self._zookeeper.forget(broker.broker_id, self._timeout_s)
            broker.start()
        # kafka-python's never retries a broker that was down at its last metadata request.
        self._admin_is_stale = True
        expected = set(self.running)

        def knows_all(metadata: Any) -> bool:
            return expected <= {b.node_id for b in metadata.brokers} and metadata.controller_id > 0

        self._wait_for("the brokers to know each other", (), knows_all)

    @property
    def _default_replication_factor(self) -> int:
        """The brokers' own choice, as a number: brokers before Kafka 2.4 need one."""
        chosen = self._broker_config.get("default.replication.factor")
        return self._count if chosen is None else int(str(chosen))

    def _wait_until_created(self, name: str, partitions: int) -> None:
        def has_leaders(metadata: Any) -> bool:
            (topic,) = metadata.topics
            return (
                topic.error_code == 0
                and len(topic.partitions) == partitions
                and all(p.error_code == 0 and p.leader_id > 0 for p in topic.partitions)
            )

        self._wait_for(f"the leaders of topic {name}", (name,), has_leaders)

    def _wait_until_deleted(self, name: str) -> None:
        self._wait_for(
            f"topic {name} to disappear",
            (name,),
            lambda metadata: metadata.topics[0].error_code == _UNKNOWN_TOPIC,
        )

    def _wait_for(self, what: str, topics: Sequence[str], done: Callable[[Any], bool]) -> None:
        """Wait until ``done`` is true for every running broker's metadata of ``topics``.

        Fails early if one of them ends.
        """
        deadline = time.monotonic() + self._timeout_s
        for broker in [self._brokers[broker_id] for broker_id in self.running]:
            while True:
                try:
                    if done(ask_broker(broker.port, topics)):
                        break
                except OSError:  # not listening yet
                    pass
                if not broker.process.is_running:
                    raise LocalKafkaError(
                        f"broker {broker.broker_id} ended:\n{broker.process.log_end()}"
                    )
                if time.monotonic() > deadline:
                    raise LocalKafkaError(
                        f"waited {self._timeout_s:g} s for {what} on broker {broker.broker_id}; "
                        f"the end of its log:\n{broker.process.log_end()}"
                    )
                time.sleep(_LOOK_EVERY_S)


def _settings(
    broker_id: int, ports: Sequence[tuple[int, int]], data: Path, zookeeper: ZooKeeper | None
) -> dict[str, str]:
    """Return one broker's server.properties, with shorter times than in production.

    A broker ignores the settings that its version does not have.
    """
    port, _ = ports[broker_id - 1]
    count = len(ports)
    in_sync = 1 if count == 1 else count - 1  # one broker may be down
    settings: dict[str, object] = {
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "inter.broker.listener.name": "PLAINTEXT",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": data,
        "auto.create.topics.enable": False,
        "default.replication.factor": count,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": count,
        "offsets.topic.num.partitions": 3,
        "transaction.state.log.replication.factor": count,
        "transaction.state.log.min.isr": in_sync,
        "transaction.state.log.num.partitions": 3,
        "share.coordinator.state.topic.replication.factor": count,
        "share.coordinator.state.topic.min.isr": in_sync,
        "group.initial.rebalance.delay.ms": 0,
        # A test's records can be of any age. Retention checks them 30 s after the start.
        "log.retention.ms": -1,
        # Tests of a member's death need not wait for the sessions of production.
        "group.min.session.timeout.ms": 1_000,
        "group.consumer.min.session.timeout.ms": 1_000,
        "group.consumer.min.heartbeat.interval.ms": 100,
        # How soon a killed broker is noticed; it cannot register again before that.
        "broker.session.timeout.ms": 4_000,
        "broker.heartbeat.interval.ms": 500,
        "log.cleaner.backoff.ms": 500,  # how soon a topic is compacted; default 15 s
        "log.cleaner.dedupe.buffer.size": 16 * 1024 * 1024,  # for a small heap; default 128 MiB
    }
    if zookeeper is None:
        settings |= _of_the_quorum(broker_id, ports, str(settings["listeners"]))
    else:
        settings["broker.id"] = broker_id
        settings["zookeeper.connect"] = f"127.0.0.1:{zookeeper.port}"
        settings["zookeeper.session.timeout.ms"] = 6_000  # how soon a killed broker is noticed
    return {name: setting(value) for name, value in settings.items()}


def _of_the_quorum(
    broker_id: int, ports: Sequence[tuple[int, int]], listeners: str
) -> dict[str, object]:
    """Return the settings that make a broker a controller as well (KRaft)."""
    voters = ",".join(f"{n}@127.0.0.1:{control}" for n, (_, control) in enumerate(ports, start=1))
    return {
        "process.roles": "broker,controller",
        "node.id": broker_id,
        "controller.quorum.voters": voters,
        "controller.listener.names": "CONTROLLER",
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{ports[broker_id - 1][1]}",
    }


def _topic(text: str) -> tuple[str, int]:
    """Parse ``NAME`` or ``NAME:PARTITIONS``."""
    name, _, partitions = text.partition(":")
    return name, int(partitions or 1)


def _how_to_use(kafka: LocalKafka, topics: Sequence[tuple[str, int]]) -> str:
    """Say how to reach the brokers, and how to run Kafka's own tools."""
    servers = kafka.bootstrap_servers
    name = topics[0][0] if topics else "TOPIC"
    made = ", ".join(f"{topic} ({partitions})" for topic, partitions in topics)
    try:
        (tools,) = single_jars([KAFKA_TOOLS])
    except LocalKafkaError as error:
        how = f"Kafka's own tools are missing: {error}"
    else:
        run = f"{find_java().executable} -Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        where = f"--bootstrap-server {servers}"
        package = "org.apache.kafka.tools"
        how = f"""Kafka's own tools, with its jars:
  export CLASSPATH='{tools}{os.pathsep}{broker_jars()}/*'
  {run} {package}.TopicCommand {where} --list
  {run} {package}.ConsoleProducer {where} --topic {name}
  {run} {package}.consumer.ConsoleConsumer {where} --topic {name} --from-beginning
  {run} {package}.consumer.group.ConsumerGroupCommand {where} --describe --all-groups"""
    return f"""Kafka {kafka.version} at {servers}; topics: {made or "none yet (--topic orders:12)"}
data and logs: {kafka.folder}
Spark:      .option("kafka.bootstrap.servers", "{servers}")
consumers:  bootstrap_servers="{servers}"
a group:    python -m pyspark_kafka_rebalance.status --bootstrap-servers {servers} --group GROUP
{how}
Ctrl-C to stop"""


def _main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m pyspark_kafka_rebalance.testing.local_kafka",
        description="Run a Kafka cluster until Ctrl-C. Its address is printed on standard output, "
        "how to use it on standard error.",
    )
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=1)
    parser.add_argument(
        "--version", default=KAFKA_VERSION, metavar="X.Y.Z", help="of Apache Kafka: 3.9.1"
    )
    parser.add_argument(
        "--port",
        type=int,
        metavar="N",
        help="port of the first broker, such as 9092; default: any free port",
    )
    parser.add_argument(
        "--topic",
        type=_topic,
        action="append",
        default=[],
        metavar="NAME[:PARTITIONS]",
        help="create this topic; may be repeated",
    )
    parser.add_argument("--keep-data", action="store_true", help="keep the data folder")
    given = parser.parse_args()
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logging.getLogger("kafka").setLevel(logging.ERROR)
    for number in (signal.SIGINT, signal.SIGTERM):
        # Also SIGINT: a job in the background of a script inherits that it is ignored.
        signal.signal(number, signal.default_int_handler)
    try:
        with LocalKafka(
            given.brokers, version=given.version, port=given.port, keep_data=given.keep_data
        ) as kafka:
            for name, partitions in given.topic:
                kafka.create_topic(name, partitions=partitions)
            print(_how_to_use(kafka, given.topic), file=sys.stderr)
            print(kafka.bootstrap_servers, flush=True)
            while True:  # a signal that the kernel gives to a client's thread does not end pause()
                time.sleep(_LOOK_FOR_SIGNALS_S)
    except KeyboardInterrupt:
        pass
    except LocalKafkaError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    _main()
