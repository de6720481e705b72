"""Members beside the queries of a test, as far as it looks into them."""

from __future__ import annotations

from pyspark_kafka_rebalance import DeferredRevokeConsumer
from pyspark_kafka_rebalance.consumer.membership.classic import ClassicProtocol


def kill(member: DeferredRevokeConsumer) -> None:
    """From now on: no heartbeat, no join, no leaving; as if its process had been killed."""
    member._membership.record.closed = True
    member._client.close()


def joining(member: DeferredRevokeConsumer) -> bool:
    """Whether it is in a join of the classic protocol."""
    protocol = member._membership.protocol
    assert isinstance(protocol, ClassicProtocol)
    return protocol._joining
