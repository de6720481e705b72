"""The clients compared, and their settings; add an entry for a new one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

#: Set on every classic member, and on the broker, which decides it for members of the consumer
#: protocol. Clients' default is 3 s, the broker's 5 s; a hand-over takes about one interval.
HEARTBEAT_INTERVAL_MS = 1_000


@dataclass(frozen=True)
class Peer:
    """One client with one protocol.

    Attributes
    ----------
    client : str
        The module in ``clients``.
    config : mapping
        The client's settings in addition to those that all clients have.
    drains : tuple of bool
        Whether to run with a listener that drains, and without.
    ours : bool
        Whether it is DeferredRevokeConsumer, to which the goals apply.
    """

    name: str
    client: str
    config: Mapping[str, Any] = field(default_factory=dict)
    drains: tuple[bool, ...] = (True, False)
    ours: bool = False
    classic: bool = True


_UNDERSCORES = {"heartbeat_interval_ms": HEARTBEAT_INTERVAL_MS}
_DOTS = {"heartbeat.interval.ms": HEARTBEAT_INTERVAL_MS}
_STRATEGY = "partition.assignment.strategy"
_COOPERATIVE_STICKY = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"

PEERS = (
    Peer(
        "kafka-python-eager",
        "kafka_python",
        {**_UNDERSCORES, "partition_assignment_strategy": "range"},
    ),
    Peer(
        "kafka-python-cooperative",
        "kafka_python",
        {**_UNDERSCORES, "partition_assignment_strategy": "cooperative-sticky"},
    ),
    Peer("aiokafka-eager", "aiokafka_client", _UNDERSCORES),
    Peer("confluent-eager", "librdkafka", {**_DOTS, _STRATEGY: "range"}),
    Peer("confluent-cooperative", "librdkafka", {**_DOTS, _STRATEGY: "cooperative-sticky"}),
    Peer("confluent-consumer", "librdkafka", {"group.protocol": "consumer"}, classic=False),
    Peer("java-cooperative", "java", {**_DOTS, _STRATEGY: _COOPERATIVE_STICKY}),
    Peer("java-consumer", "java", {"group.protocol": "consumer"}, classic=False),
    # Last: a broker that has just started is slow, which would flatter the figures before joins.
    Peer("ours-classic", "deferred", _UNDERSCORES, (True,), ours=True),
    Peer("ours-consumer", "deferred", {"group_protocol": "consumer"}, (True,), True, classic=False),
)


def chosen(names: Sequence[str]) -> list[Peer]:
    """The peers whose names are, or begin with, one of these; in the table's order.

    Raises
    ------
    ValueError
        A name fits no peer; the message lists the peers.
    """
    for name in names:
        if not any(peer.name.startswith(name) for peer in PEERS):
            raise ValueError(f"no peer {name!r}; there are {', '.join(p.name for p in PEERS)}")
    return [peer for peer in PEERS if any(peer.name.startswith(name) for name in names)]
