"""KafkaCluster: topics and records in any cluster; for tests, the demo and the examples."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any

from kafka import KafkaAdminClient, KafkaProducer
from kafka import errors as kafka_errors
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.structs import TopicPartition

from ..errors import LocalKafkaError

if TYPE_CHECKING:
    from typing_extensions import Self

#: How long the coordinator of a group may take to come up.
_COORDINATOR_TIMEOUT_S = 30.0


class KafkaCluster:
    """An existing cluster; a context manager that closes its clients.

    Safe to use from several threads.

    Parameters
    ----------
    bootstrap_servers : str
        ``host:port``, several separated by commas.
    **client_config
        For kafka-python's clients, such as its security settings.
    """

    def __init__(self, bootstrap_servers: str, **client_config: Any) -> None:
        self._pid = os.getpid()
        self._bootstrap_servers = bootstrap_servers
        self._client_config = client_config
        self._clients = threading.Lock()
        self._administration = threading.Lock()
        self._admin: KafkaAdminClient | None = None
        self._admin_is_stale = False
        self._producers: dict[str | None, KafkaProducer] = {}

    @property
    def bootstrap_servers(self) -> str:
        """For every client's ``bootstrap_servers``."""
        return self._bootstrap_servers

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        config: Mapping[str, object] | None = None,
    ) -> None:
        """Create a topic and wait until it can be used.

        Parameters
        ----------
        name : str
            The new topic's name.
        partitions : int
            Its number of partitions.
        replication_factor : int, optional
            By default, the broker's default.
        config : mapping, optional
            Topic settings, such as ``{"cleanup.policy": "compact"}``.

        Raises
        ------
        kafka.errors.TopicAlreadyExistsError
            There is a topic of that name.
        """
        options = {
            "num_partitions": partitions,
            "replication_factor": replication_factor or self._default_replication_factor,
            "configs": {key: setting(value) for key, value in (config or {}).items()},
        }
        with self._administration:
            self._admin_client().create_topics({name: options})
            self._wait_until_created(name, partitions)

    def add_partitions(self, name: str, partitions: int) -> None:
        """Raise a topic's number of partitions to ``partitions``, and wait until they can be used.

        Records that other threads produce during this are written first.
        """
        with self._administration:
            self._admin_client().create_partitions({name: partitions})
            self._wait_until_created(name, partitions)
        self._drop_producers()

    def delete_topic(self, name: str) -> None:
        """Delete a topic.

        Records that other threads produce during this are written first.
        """
        self._drop_producers()
        with self._administration:
            self._admin_client().delete_topics([name])
            self._wait_until_deleted(name)

    def configure_group(self, group_id: str, config: Mapping[str, object]) -> None:
        """Change settings of a group of the consumer protocol (KIP-848), new or with members.

        Parameters
        ----------
        group_id : str
            It need not exist yet.
        config : mapping
            Such as ``{"consumer.session.timeout.ms": 6_000}``: in this protocol the broker, not
            the member, says how often to heartbeat and when a member is dead.

        Raises
        ------
        LocalKafkaError
            The broker refuses it; says why.
        """
        settings = {key: setting(value) for key, value in config.items()}
        resource = ConfigResource(ConfigResourceType.GROUP, group_id, configs=settings)
        with self._administration:
            answers = self._admin_client().alter_configs([resource])
        answer = answers["group"][group_id]
        if answer != "OK":
            raise LocalKafkaError(f"group {group_id}: {answer}")

    def produce(
        self,
        topic: str,
        values: Iterable[bytes | None],
        *,
        partition: int | None = None,
        keys: Iterable[bytes | None] | None = None,
        headers: Iterable[Sequence[tuple[str, bytes]]] | None = None,
        timestamps_ms: Iterable[int] | None = None,
        compression: str | None = None,
    ) -> dict[int, int]:
        """Produce records and wait until every in-sync replica has them.

        Parameters
        ----------
        topic : str
            It must exist.
        values : iterable of bytes or None
            One record each.
        partition : int, optional
            The partition of all records. By default, records with keys go where their key belongs,
            and without keys the n-th goes to partition n modulo the number of partitions.
        keys, headers, timestamps_ms : iterable, optional
            One for each value.
        compression : {"gzip", "snappy", "lz4", "zstd"}, optional
            All but gzip need the library that kafka-python asks for.

        Returns
        -------
        dict of int to int
            For each partition that got records, the offset after the last of them.

        Raises
        ------
        kafka.errors.KafkaError
            The first failure; the other records may have been written.
        """
        producer = self._producer(compression)
        spread = None
        if partition is None and keys is None:
            spread = len(producer.partitions_for(topic))
        ends: dict[int, int] = {}
        failures: list[BaseException] = []

        def written(metadata: Any) -> None:
            ends[metadata.partition] = max(ends.get(metadata.partition, 0), metadata.offset + 1)

        values = list(values)
        columns: list[Iterable[Any]] = [
            repeat(None, len(values)) if column is None else column
            for column in (keys, headers, timestamps_ms)
        ]
        for n, (value, key, header, timestamp) in enumerate(zip(values, *columns, strict=True)):
            future = producer.send(
                topic,
                value,
                key=key,
                headers=None if header is None else list(header),
                partition=n % spread if spread else partition,
                timestamp_ms=timestamp,
            )
            future.add_callback(written)
            future.add_errback(failures.append)
        producer.flush()
        if failures:
            raise failures[0]
        return ends

    def committed(self, group_id: str) -> dict[TopicPartition, int]:
        """Return a group's committed offsets, as any Kafka tool sees them: the next to read."""
        deadline = time.monotonic() + _COORDINATOR_TIMEOUT_S
        while True:
            try:
                with self._administration:
                    offsets = self._admin_client().list_group_offsets(group_id)[group_id]
                break
            except kafka_errors.KafkaError as error:
                # A new cluster's first group has no coordinator for a moment.
                if not error.retriable or time.monotonic() > deadline:
                    raise
                # It may have moved, and kafka-python's admin client keeps a coordinator for good.
                self._admin_is_stale = True
                time.sleep(0.1)
        return {partition: found.offset for partition, found in offsets.items()}

    def close_clients(self) -> None:
        """Close the clients, and their threads; the next use makes new ones. Idempotent."""
        with self._clients:
            admin, self._admin = self._admin, None
            producers, self._producers = list(self._producers.values()), {}
        if admin is not None:
            admin.close()
        for producer in producers:
            # Everything is flushed already; a record that failed cannot be sent any more.
            producer.close(timeout=0)

    def close(self) -> None:
        """As ``close_clients``; a cluster that was started here also ends.

        Does nothing in a forked child of this process.
        """
        if self._is_here:
            self.close_clients()

    @property
    def _default_replication_factor(self) -> int:
        """-1: the broker chooses, from Kafka 2.4 on."""
        return -1

    @property
    def _is_here(self) -> bool:
        """Whether this is the process that made it, and no forked child."""
        return self._pid == os.getpid()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _wait_until_created(self, name: str, partitions: int) -> None:
        self._admin_client().wait_for_topics([name])

    def _wait_until_deleted(self, name: str) -> None:
        """Wait for nothing: a client can only know that the controller has deleted the topic."""

    def _admin_client(self) -> KafkaAdminClient:
        with self._clients:
            if self._admin is not None and self._admin_is_stale:
                self._admin.close()
                self._admin = None
            self._admin_is_stale = False
            if self._admin is None:
                self._admin = KafkaAdminClient(
                    bootstrap_servers=self.bootstrap_servers, **self._client_config
                )
            return self._admin

    def _producer(self, compression: str | None) -> KafkaProducer:
        with self._clients:
            if compression not in self._producers:
                self._producers[compression] = KafkaProducer(
                    bootstrap_servers=self.bootstrap_servers,
                    compression_type=compression,
                    acks="all",
                    linger_ms=5,
                    batch_size=256 * 1024,
                    **self._client_config,
                )
            return self._producers[compression]

    def _drop_producers(self) -> None:
        """Drop the producers: their next metadata, with new partitions, may take 5 minutes."""
        with self._clients:
            producers, self._producers = list(self._producers.values()), {}
        for producer in producers:
            producer.close()


def setting(value: object) -> str:
    """Return a setting as Kafka's properties spell it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
