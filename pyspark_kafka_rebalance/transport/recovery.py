"""Recovery: a client whose known brokers all fail asks its bootstrap servers again (KIP-899).

All brokers may come back at other addresses, behind the same bootstrap name. kafka-python never
asks that name again, and tries the old addresses for ever. Java's client goes back to it, by
default, once no known broker can be reached (``metadata.recovery.strategy=rebootstrap``).

The metadata refresh decides: lost connections and failed requests all cause one. Once it has failed
at every known broker since the last that succeeded, a bootstrap starts beside it. Whichever gets an
answer first ends the outage.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from kafka import errors as kafka_errors
from kafka.cluster import ClusterMetadata
from kafka.net.connection import KafkaConnection
from kafka.net.manager import KafkaConnectionManager
from kafka.protocol.metadata import MetadataResponse

from .kafka_python_version import require_names

if TYPE_CHECKING:
    from kafka.future import Future

    Address = tuple[str, int]

log = logging.getLogger(__name__)

require_names(
    {
        KafkaConnectionManager: ("_connect", "_do_bootstrap", "connection_delay", "reset_backoff"),
        ClusterMetadata: ("_do_refresh_metadata", "refresh_metadata", "is_bootstrap"),
    }
)


def recover_by_bootstrap(manager: KafkaConnectionManager) -> None:
    """Have this manager bootstrap again whenever none of the brokers it knows answers."""
    recovery = Recovery(manager)
    manager.cluster.refresh_metadata = recovery.refresh
    manager._connect = recovery.connect


class Recovery:
    """Watches one manager's metadata refreshes, on its I/O loop, and starts bootstraps."""

    def __init__(self, manager: KafkaConnectionManager) -> None:
        self._manager = manager
        self._cluster: ClusterMetadata = manager.cluster
        self._refresh = self._cluster.refresh_metadata
        self._ask = self._cluster._do_refresh_metadata
        self._failed: set[Any] = set()  # the brokers that have failed since the last refresh
        self._bootstrap: Future | None = None
        self._logged = False  # of the current outage
        self._connect = manager._connect
        self._address_of: WeakKeyDictionary[KafkaConnection, Address] = WeakKeyDictionary()

    async def connect(
        self, node: Any, connection: KafkaConnection, *arguments: Any, **named: Any
    ) -> None:
        """``KafkaConnectionManager._connect``, in place of which it is called."""
        self._address_of[connection] = (node.host, node.port)
        await self._connect(node, connection, *arguments, **named)

    async def refresh(self, node_id: Any = None) -> None:
        """``ClusterMetadata.refresh_metadata``, in place of which it is called."""
        if node_id is not None and self._cluster.is_bootstrap(node_id):
            # Not during a refresh, which waits for a broker that may be down.
            await self._ask(node_id)
            self._answered()
            return
        if self._cluster.metadata_refresh_in_progress:
            await self._refresh(node_id)
            return
        chosen = self._manager.least_loaded_node() if node_id is None else node_id
        try:
            await self._refresh(chosen)
        except kafka_errors.KafkaError:
            if chosen is not None:
                self._failed.add(chosen)
            if self._none_answers():
                self._start_bootstrap()
            raise
        self._answered()

    def _answered(self) -> None:
        self._failed.clear()
        self._logged = False

    def _none_answers(self) -> bool:
        """Whether each known broker has failed, or cannot be connected to right now."""
        known = [broker.node_id for broker in self._cluster.brokers()]
        delay = self._manager.connection_delay
        return bool(known) and all(node in self._failed or delay(node) > 0 for node in known)

    def _start_bootstrap(self) -> None:
        if self._manager.closed:
            return
        for under_way in (self._bootstrap, self._manager._bootstrap_future):
            if under_way is not None and not under_way.is_done:
                return
        self._bootstrap = self._manager.call_soon(self._bootstrap_again)

    async def _bootstrap_again(self) -> None:
        servers = self._cluster.config["bootstrap_servers"]
        level = logging.DEBUG if self._logged else logging.WARNING
        self._logged = True
        log.log(level, "no known broker answers; asking the bootstrap servers again: %s", servers)
        before = self._addresses()
        deadline = time.monotonic() + self._manager.config["request_timeout_ms"] / 1000
        try:
            await self._manager._do_bootstrap(deadline)
        except Exception as error:  # the next refresh that fails starts another
            if not self._manager.closed:
                log.log(level, "the bootstrap servers cannot be used either: %s", error)
            return
        left = before - self._addresses()
        log.info("the brokers answer again; addresses that none of them has now: %s", sorted(left))
        self._connect_anew(left)

    def _addresses(self) -> set[Address]:
        return {(broker.host, broker.port) for broker in self._cluster.brokers()}

    def _connect_anew(self, left: Collection[Address]) -> None:
        """Close the connections to these addresses, and connect to the new ones without a delay.

        kafka-python keeps the coordinators' addresses apart from the brokers'.
        """
        for connection in list(self._manager._conns.values()):
            if self._address_of.get(connection) in left:
                connection.close(kafka_errors.KafkaConnectionError("the broker has moved"))
        known = {str(broker.node_id): broker for broker in self._cluster.brokers()}
        coordinators = self._cluster._coordinator_brokers
        for name in list(coordinators):
            broker = known.get(str(name).rpartition("-")[2])
            if broker is not None:
                moved = MetadataResponse.MetadataResponseBroker(
                    name, broker.host, broker.port, None
                )
                coordinators[name] = moved
        for node_id in list(self._manager._backoff):
            self._manager.reset_backoff(node_id)
