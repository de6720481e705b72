"""The clients that are compared, and how each is set up; a new one is one more entry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

#: Of every classic member, and of the broker for the members of the consumer protocol, whose
#: interval it sets. The clients' default is 3 s, the broker's 5 s; a hand-over takes about one.
HEARTBEAT_INTERVAL_MS = 1_000


@dataclass(frozen=True)
class Peer:
    """One client with one protocol.

    Attributes
    ----------
    client : str
        The module in ``clients``.
    config : mapping
        The client's own settings beside those that all have.
    drains : tuple of bool
        With a listener that drains and without.
    ours : bool
        DeferredRevokeConsumer, to which the goals apply.
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
    # Last: a broker that was just started is slow, and would flatter what was before the joins.
    Peer("ours-classic", "deferred", _UNDERSCORES, (True,), ours=True),
    Peer("ours-consumer", "deferred", {"group_protocol": "consumer"}, (True,), True, classic=False),
)


def chosen(names: Sequence[str]) -> list[Peer]:
    """The peers of these names, or whose names begin so, in the table's order.

    Raises
    ------
    ValueError
        A name that is none, with those there are.
    """
    for name in names:
        if not any(peer.name.startswith(name) for peer in PEERS):
            raise ValueError(f"no peer {name!r}; there are {', '.join(p.name for p in PEERS)}")
    return [peer for peer in PEERS if any(peer.name.startswith(name) for name in names)]
