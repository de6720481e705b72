"""The instruments: their names, units and meanings; pure. docs/observability.md shows this list.

Names and attributes follow OpenTelemetry's semantic conventions for messaging (``messaging.…``)
where these have one; all others start with ``kafka_rebalance.…``. Units are UCUM's.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
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
    """One instrument; ``ALL`` lists them."""

    name: str
    kind: Kind
    unit: str
    description: str
    boundaries: tuple[float, ...] = ()  # of a histogram's buckets


class Measured(NamedTuple):
    """A value to add to an instrument, to record in it, or read for it."""

    instrument: Instrument
    value: float
    attributes: Attributes


#: All instruments, in the order of the documentation.
ALL: list[Instrument] = []


def _listed(kind: Kind, name: str, unit: str, description: str, *boundaries: float) -> Instrument:
    made = Instrument(name, kind, unit, description, boundaries)
    ALL.append(made)
    return made


_counter = partial(_listed, Kind.COUNTER)
_histogram = partial(_listed, Kind.HISTOGRAM)
_observed_counter = partial(_listed, Kind.OBSERVED_COUNTER)
_observed_sum = partial(_listed, Kind.OBSERVED_SUM)
_gauge = partial(_listed, Kind.OBSERVED_GAUGE)

#: The bucket boundaries that the conventions give for messaging.client.operation.duration.
_REQUESTS_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)

#: From an immediate hand-over to a revoke that waits for max_poll_interval_ms.
_WAITS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)

CONSUMED = _observed_counter(
    "messaging.client.consumed.messages", "{message}", "Records that polls returned"
)
LAG = _gauge(
    "kafka_rebalance.lag.offsets", "{offset}", "Offsets between the position and the end of the log"
)
LAG_TIME = _gauge(
    "kafka_rebalance.lag.time", "s", "Upper bound of how long the next record has been waiting"
)
POSITION = _gauge("kafka_rebalance.position", "{offset}", "The next offset to read")
COMMITTED = _gauge("kafka_rebalance.committed.offset", "{offset}", "The group's committed offset")
COMMIT_AGE = _gauge("kafka_rebalance.committed.age", "s", "Time since the last accepted commit")
CATCH_UP = _gauge(
    "kafka_rebalance.catch_up.offsets", "{offset}", "Offsets set aside and not caught up yet"
)
FETCHED = _observed_counter(
    "kafka_rebalance.fetched", "By", "Record batches that brokers sent, in their compressed size"
)
FETCH_LATENCY = _gauge(
    "kafka_rebalance.fetch.latency.avg",
    "s",
    "How long brokers took to answer a fetch: average of the last minute",
)
FETCH_LATENCY_MAX = _gauge(
    "kafka_rebalance.fetch.latency.max",
    "s",
    "How long brokers took to answer a fetch: maximum of the last minute",
)
DECODED = _observed_counter(
    "kafka_rebalance.decode.rows", "{row}", "Records that poll_arrow has decoded"
)
DECODE_TIME = _observed_counter(
    "kafka_rebalance.decode.time", "s", "Time that poll_arrow has spent on decoding"
)
POLL_AGE = _gauge("kafka_rebalance.poll.age", "s", "Time since the application's last sign of life")
ASSIGNED = _observed_sum(
    "kafka_rebalance.assigned_partitions",
    "{partition}",
    "Assigned partitions, including those being revoked",
)
REVOKING = _observed_sum(
    "kafka_rebalance.revoking_partitions",
    "{partition}",
    "Partitions that the group has asked back and not received yet",
)
REVOKE_AGE = _gauge(
    "kafka_rebalance.revoke.age", "s", "Time since the group asked the partition back"
)
REBALANCES = _counter(
    "kafka_rebalance.rebalances",
    "{rebalance}",
    "Assignments from the group that this member has applied",
)
LOST = _counter(
    "kafka_rebalance.lost_partitions",
    "{partition}",
    "Partitions lost with the membership, or undrained at the deadline of their revoke",
)
REVOKES = _histogram(
    "kafka_rebalance.revoke.duration",
    "s",
    "Time from a revoke request to the partition's release",
    *_WAITS_S,
)
HAND_OVERS = _histogram(
    "kafka_rebalance.hand_over.duration",
    "s",
    "Time from a partition's assignment to its first record",
    *_WAITS_S,
)
OPERATIONS = _histogram(
    "messaging.client.operation.duration", "s", "How long commits took", *_REQUESTS_S
)
SENT = _counter(
    "messaging.client.sent.messages",
    "{message}",
    "Records sent in transactions, counted when the transactions end",
)
TRANSACTIONS = _histogram(
    "kafka_rebalance.transaction.duration",
    "s",
    "Time from a transaction's first record to its end",
    *_WAITS_S,
)
COMMITTED_RECORDS = _observed_counter(
    "kafka_rebalance.producer.committed_records", "{message}", "Records committed"
)
RESTART_POINT_AGE = _gauge(
    "kafka_rebalance.restart_point.age", "s", "Time since the last commit of a restart point"
)
ROWS = _counter("kafka_rebalance.query.rows", "{row}", "Rows that batches have read")
BATCHES = _histogram(
    "kafka_rebalance.query.batch.duration", "s", "How long batches took", *_WAITS_S
)
PROGRESS_AGE = _gauge(
    "kafka_rebalance.query.progress.age", "s", "Time since the query's last progress report"
)


def of_member(group_id: str, client_id: str) -> Attributes:
    """The attributes of every metric of a group member."""
    return {SYSTEM: "kafka", GROUP: group_id, CLIENT: client_id}


def of_partition(whose: Attributes, topic: str, partition: int) -> Attributes:
    """The attributes of a partition's metrics: its client's or query's, and its name."""
    return {**whose, TOPIC: topic, PARTITION: str(partition)}
