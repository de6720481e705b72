"""Transactions of other producers: find out whether one is open, and abort it (KIP-664, KIP-360).

Protocol: DescribeTransactions v0, ListTransactions v0.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from kafka import KafkaAdminClient
from kafka import errors as kafka_errors
from kafka.protocol.admin import ListTransactionsRequest
from kafka.structs import TopicPartition

from ...consumer.kafka_python.questions import offered_versions
from ...errors import KafkaRebalanceError
from ...produce.producer import Producer
from ...transport.secured_clients import admin_client
from ..options import of_the_producer

log = logging.getLogger(__name__)

#: The state in which the producer may still commit its transaction.
_ONGOING = "Ongoing"


class OpenTransaction(NamedTuple):
    """A transaction that its producer may still commit, and the partitions in it so far."""

    partitions: frozenset[TopicPartition]
    started_ms: int


class OtherTransactions:
    """Finds and aborts other producers' transactions; used by one thread.

    Parameters
    ----------
    client_config : mapping
        kafka-python's configuration of an admin client.
    """

    def __init__(self, client_config: Mapping[str, Any]) -> None:
        self._client_config = dict(client_config)
        self._admin: KafkaAdminClient | None = None

    def can_list(self) -> bool:
        """Whether the brokers list transactions: from Kafka 3.0 on."""
        return ListTransactionsRequest.API_KEY in offered_versions(self._client())

    def touched_by(self, transactional_id: str) -> frozenset[TopicPartition]:
        """The partitions in a producer's open transaction; empty if none is open or known."""
        found = self.open_transaction(transactional_id)
        return frozenset() if found is None else found.partitions

    def open_transaction(self, transactional_id: str) -> OpenTransaction | None:
        """A producer's open transaction; None if none is open, or none is known.

        A transaction that is decided, but has markers still to be written, is not open.
        """
        try:
            found = self._client().describe_transactions([transactional_id])[transactional_id]
        except kafka_errors.TransactionalIdNotFoundError:
            return None
        except kafka_errors.KafkaError as error:
            self._failed(error)
            return None
        if getattr(found.state, "value", found.state) != _ONGOING:
            return None
        return OpenTransaction(
            frozenset(found.topic_partitions), found.transaction_start_time_ms or -1
        )

    def open_of(self, group_id: str) -> frozenset[str]:
        """Return the group's transactional ids with an open transaction; empty if that fails.

        Asks each broker.
        """
        try:
            found = self._client().list_transactions(state_filters=[_ONGOING])
        except kafka_errors.KafkaError as error:
            self._failed(error)
            return frozenset()
        return frozenset(
            listed.transactional_id
            for of_broker in found.values()
            for listed in of_broker
            if listed.transactional_id.rpartition("/")[0] == group_id
        )

    def fence(self, transactional_id: str, timeout_s: float) -> bool:
        """Abort what is open and fence that producer from now on; return whether that succeeded.

        As Java's ``Admin#fenceProducers`` does: by taking the transactional id.
        """
        config = {**of_the_producer(self._client_config), "transaction_timeout_ms": 1}
        try:
            successor = Producer(transactional_id, **config)
            try:
                successor.initialize(timeout_s * 1000)
            finally:
                successor.close(0)
        except (kafka_errors.KafkaError, KafkaRebalanceError, OSError) as failure:
            self._failed(failure)
            return False
        return True

    def close(self) -> None:
        """Close the connections."""
        if self._admin is not None:
            self._admin.close()
            self._admin = None

    def _client(self) -> KafkaAdminClient:
        if self._admin is None:
            self._admin = admin_client(self._client_config)
        return self._admin

    def _failed(self, error: Exception) -> None:
        """Log a failure; it only costs time: the broker ends the transaction at its timeout."""
        log.info("cannot abort a transaction, which is left to its timeout: %r", error)
        self.close()  # it would ask the same coordinator again
