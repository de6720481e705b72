"""The instruments: their names, units and meanings; pure. docs/observability.md shows this list.

Names and attributes follow OpenTelemetry's semantic conventions for messaging (``messaging.…``)
where these have one; all others begin with ``kafka_rebalance.…``. Units are UCUM's.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

SYSTEM = "messaging.system"
TOPIC = "messaging.destination.name"
PARTITION = "messaging.destination.partition.id"
GROUP = "messaging.consumer.group.name"
CLIENT = "messaging.client.id"
OPERATION = "messaging.operation.name"
OPERATION_TYPE = "messaging.operation.type"
ERROR = "error.type"
QUERY = "kafka_rebalance.query.name"
REASON = "kafka_rebalance.loss.reason"
OUTCOME = "kafka_rebalance.transaction.outcome"
SOURCE_PARTITION = "kafka_rebalance.source_partition.id"

Attributes = Mapping[str, str]


class Kind(enum.Enum):
    """How an instrument gets its values: the last three are read when metrics are collected."""

    COUNTER = "counter"
    HISTOGRAM = "histogram"
    OBSERVED_COUNTER = "observable counter"
    OBSERVED_SUM = "observable up-down counter"
    OBSERVED_GAUGE = "observable gauge"


@dataclass(frozen=True)
class Instrument:
    """One instrument.

    Attributes
    ----------
    name, unit, description : str
        As in OpenTelemetry.
    kind : Kind
        How it gets its values.
    boundaries : tuple of float
        The bucket boundaries of a histogram.
    """

    name: str
    kind: Kind
    unit: str
    description: str
    boundaries: tuple[float, ...] = ()


class Measured(NamedTuple):
    """A value to add to an instrument, to record in it, or read for it."""

    instrument: Instrument
    value: float
    attributes: Attributes


#: The bucket boundaries that the conventions give for messaging.client.operation.duration.
_REQUESTS_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)

#: From an immediate hand-over to a revoke that waits for max_poll_interval_ms.
_WAITS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)

CONSUMED = Instrument(
    "messaging.client.consumed.messages",
    Kind.OBSERVED_COUNTER,
    "{message}",
    "Records that polls returned",
)
SENT = Instrument(
    "messaging.client.sent.messages",
    Kind.COUNTER,
    "{message}",
    "Records sent in transactions, counted when the transactions end",
)
OPERATIONS = Instrument(
    "messaging.client.operation.duration",
    Kind.HISTOGRAM,
    "s",
    "How long commits took",
    _REQUESTS_S,
)
LAG = Instrument(
    "kafka_rebalance.lag.offsets",
    Kind.OBSERVED_GAUGE,
    "{offset}",
    "Offsets between the position and the end of the log",
)
LAG_TIME = Instrument(
    "kafka_rebalance.lag.time",
    Kind.OBSERVED_GAUGE,
    "s",
    "Upper bound of how long the next record has been waiting",
)
POSITION = Instrument(
    "kafka_rebalance.position",
    Kind.OBSERVED_GAUGE,
    "{offset}",
    "The next offset to read",
)
COMMITTED = Instrument(
    "kafka_rebalance.committed.offset",
    Kind.OBSERVED_GAUGE,
    "{offset}",
    "The group's committed offset",
)
COMMIT_AGE = Instrument(
    "kafka_rebalance.committed.age",
    Kind.OBSERVED_GAUGE,
    "s",
    "Time since the last accepted commit",
)
CATCH_UP = Instrument(
    "kafka_rebalance.catch_up.offsets",
    Kind.OBSERVED_GAUGE,
    "{offset}",
    "Offsets set aside and not caught up yet",
)
FETCHED = Instrument(
    "kafka_rebalance.fetched",
    Kind.OBSERVED_COUNTER,
    "By",
    "Record batches that brokers sent, in their compressed size",
)
FETCH_LATENCY = Instrument(
    "kafka_rebalance.fetch.latency.avg",
    Kind.OBSERVED_GAUGE,
    "s",
    "How long brokers took to answer a fetch: average of the last minute",
)
FETCH_LATENCY_MAX = Instrument(
    "kafka_rebalance.fetch.latency.max",
    Kind.OBSERVED_GAUGE,
    "s",
    "How long brokers took to answer a fetch: maximum of the last minute",
)
DECODED = Instrument(
    "kafka_rebalance.decode.rows",
    Kind.OBSERVED_COUNTER,
    "{row}",
    "Records that poll_arrow has decoded",
)
DECODE_TIME = Instrument(
    "kafka_rebalance.decode.time",
    Kind.OBSERVED_COUNTER,
    "s",
    "Time that poll_arrow has spent on decoding",
)
POLL_AGE = Instrument(
    "kafka_rebalance.poll.age",
    Kind.OBSERVED_GAUGE,
    "s",
    "Time since the application's last sign of life",
)
ASSIGNED = Instrument(
    "kafka_rebalance.assigned_partitions",
    Kind.OBSERVED_SUM,
    "{partition}",
    "Assigned partitions, including those being revoked",
)
REVOKING = Instrument(
    "kafka_rebalance.revoking_partitions",
    Kind.OBSERVED_SUM,
    "{partition}",
    "Partitions that the group has asked back and not received yet",
)
REVOKE_AGE = Instrument(
    "kafka_rebalance.revoke.age",
    Kind.OBSERVED_GAUGE,
    "s",
    "Time since the group asked the partition back",
)
REBALANCES = Instrument(
    "kafka_rebalance.rebalances",
    Kind.COUNTER,
    "{rebalance}",
    "Assignments from the group that this member has applied",
)
LOST = Instrument(
    "kafka_rebalance.lost_partitions",
    Kind.COUNTER,
    "{partition}",
    "Partitions lost with the membership, or undrained at the deadline of their revoke",
)
REVOKES = Instrument(
    "kafka_rebalance.revoke.duration",
    Kind.HISTOGRAM,
    "s",
    "Time from a revoke request to the partition's release",
    _WAITS_S,
)
HAND_OVERS = Instrument(
    "kafka_rebalance.hand_over.duration",
    Kind.HISTOGRAM,
    "s",
    "Time from a partition's assignment to its first record",
    _WAITS_S,
)
TRANSACTIONS = Instrument(
    "kafka_rebalance.transaction.duration",
    Kind.HISTOGRAM,
    "s",
    "Time from a transaction's first record to its end",
    _WAITS_S,
)
COMMITTED_RECORDS = Instrument(
    "kafka_rebalance.producer.committed_records",
    Kind.OBSERVED_COUNTER,
    "{message}",
    "Records committed",
)
RESTART_POINT_AGE = Instrument(
    "kafka_rebalance.restart_point.age",
    Kind.OBSERVED_GAUGE,
    "s",
    "Time since the last commit of a restart point",
)
ROWS = Instrument(
    "kafka_rebalance.query.rows",
    Kind.COUNTER,
    "{row}",
    "Rows that batches have read",
)
BATCHES = Instrument(
    "kafka_rebalance.query.batch.duration",
    Kind.HISTOGRAM,
    "s",
    "How long batches took",
    _WAITS_S,
)
PROGRESS_AGE = Instrument(
    "kafka_rebalance.query.progress.age",
    Kind.OBSERVED_GAUGE,
    "s",
    "Time since the query's last progress report",
)

#: All instruments, in the order of the documentation.
ALL = (
    CONSUMED,
    LAG,
    LAG_TIME,
    POSITION,
    COMMITTED,
    COMMIT_AGE,
    CATCH_UP,
    FETCHED,
    FETCH_LATENCY,
    FETCH_LATENCY_MAX,
    DECODED,
    DECODE_TIME,
    POLL_AGE,
    ASSIGNED,
    REVOKING,
    REVOKE_AGE,
    REBALANCES,
    LOST,
    REVOKES,
    HAND_OVERS,
    OPERATIONS,
    SENT,
    TRANSACTIONS,
    COMMITTED_RECORDS,
    RESTART_POINT_AGE,
    ROWS,
    BATCHES,
    PROGRESS_AGE,
)


def of_member(group_id: str, client_id: str) -> Attributes:
    """The attributes of every metric of a group member."""
    return {SYSTEM: "kafka", GROUP: group_id, CLIENT: client_id}


def of_partition(whose: Attributes, topic: str, partition: int) -> Attributes:
    """The attributes of a partition's metrics: those of its client or query, and its name."""
    return {**whose, TOPIC: topic, PARTITION: str(partition)}
