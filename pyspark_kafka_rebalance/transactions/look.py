"""Requests the state of transactions from the brokers, and has one aborted.

Reading needs DESCRIBE on transactional ids and topics, and READ on the topics for
the producers in them. Brokers leave out transactional ids without DESCRIBE and do not say so.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from kafka import KafkaAdminClient
from kafka import errors as kafka_errors
from kafka.admin import OffsetSpec
from kafka.protocol.consumer import IsolationLevel
from kafka.structs import TopicPartition

from ..errors import AuthorizationError, KafkaRebalanceError
from ..transport.secured_clients import LoginRefusedError, admin_client
from . import requests
from .report import OPEN_STATES, Log, Report, Transaction, Writer, oldest_first, unclaimed

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger(__name__)

Result = TypeVar("Result")

_ASK_AGAIN_S = 0.1

#: Until the transactional id's next producer says its own. Brokers refuse more than their maximum.
_LONGEST_TIMEOUT_MS = 60_000

_TO_LOOK = "DESCRIBE on the transactional ids, and DESCRIBE and READ on the topics"


class UnknownTransactionError(KafkaRebalanceError):
    """There is no such transactional id, topic, partition or transaction."""


@dataclass(frozen=True, slots=True)
class Filters:
    """Which transactions to list.

    Attributes
    ----------
    states : tuple of str
        Kafka's names; all states, if there are none.
    producer_ids : tuple of int
        Those of these producer ids alone, if there are any.
    longer_than_s : float or None
        Those that are open for longer, in seconds.
    """

    states: tuple[str, ...] = OPEN_STATES
    producer_ids: tuple[int, ...] = ()
    longer_than_s: float | None = None

    def admits(self, transaction: Transaction, at: float) -> bool:
        """Whether it is listed; brokers before Kafka 3.8 do not filter by duration."""
        if self.states and transaction.state not in self.states:
            return False
        if self.longer_than_s is None:
            return True
        open_for = transaction.open_for(at)
        return open_for is not None and open_for > self.longer_than_s


class TransactionsLook:
    """Reads the transactions of a cluster, and aborts one; a context manager.

    Parameters
    ----------
    client_config : mapping
        The settings common to kafka-python's clients; ``bootstrap_servers`` is a list.
    timeout_s : float
        How long the brokers may take for each call, in seconds.
    """

    def __init__(self, client_config: Mapping[str, Any], timeout_s: float = 10.0) -> None:
        self._config = {**client_config, "request_timeout_ms": max(1, int(timeout_s * 1000))}
        self._timeout_s = timeout_s
        self._admin: KafkaAdminClient | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._disconnect()

    def listing(self, filters: Filters) -> Report:
        """List transactions, with the partitions that they hold back.

        Raises
        ------
        UnsupportedBrokerError
            The brokers are older than Kafka 3.0.
        AuthenticationError, AuthorizationError
            The brokers do not let us in, or a permission is missing.
        KafkaRebalanceError
            No broker answers in time, or one refuses.
        """
        return self._asked(lambda admin: _listing(admin, filters))

    def of_id(self, transactional_id: str) -> Report:
        """Describe one transactional id. Raises UnknownTransactionError, or as :meth:`listing`."""
        return self._asked(lambda admin: _of_id(admin, transactional_id))

    def of_topics(self, topics: Sequence[str], numbers: Collection[int] = ()) -> Report:
        """Describe the partitions of topics: all, or those of these numbers.

        Raises UnknownTransactionError if there is no such topic or partition, or as
        :meth:`listing`.
        """
        return self._asked(lambda admin: _of_topics(admin, topics, numbers))

    def take_over(self, transaction: Transaction) -> tuple[int, int]:
        """Abort what is open and fence its producer; returns the new producer id and epoch.

        Returns when all markers are written.

        Raises
        ------
        AuthorizationError
            WRITE on the transactional id is missing.
        KafkaRebalanceError
            Markers were still missing at the end of the time, or as :meth:`listing`.
        """
        timeout_ms = min(int((transaction.timeout_s or 1) * 1000), _LONGEST_TIMEOUT_MS)

        def ask(admin: KafkaAdminClient) -> tuple[int, int]:
            answer = requests.take_over(admin, transaction, timeout_ms)
            return answer.producer_id, answer.producer_epoch

        return self._asked(ask, f"WRITE on transactional id {transaction.transactional_id!r}")

    def end_hanging(self, partition: TopicPartition, writer: Writer) -> None:
        """Write an abort marker for a transaction that no coordinator has.

        Raises
        ------
        AuthorizationError
            ALTER on the cluster is missing.
        KafkaRebalanceError
            The leader refuses it, or as :meth:`listing`.
        """

        def ask(admin: KafkaAdminClient) -> None:
            leaders, _ = _leaders(admin, [partition.topic])
            if (leader := leaders.get(partition, -1)) < 0:
                raise kafka_errors.LeaderNotAvailableError(f"{partition} has no leader")
            requests.write_abort_marker(admin, partition, leader, writer)

        self._asked(ask, "ALTER (or CLUSTER_ACTION) on the cluster")

    def _asked(self, ask: Callable[[KafkaAdminClient], Result], needs: str = _TO_LOOK) -> Result:
        """Ask until the time is over, as long as what is in the way passes."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                if self._admin is None:
                    self._admin = admin_client(self._config)
                    requests.require_transactions(self._admin)
                return ask(self._admin)
            except LoginRefusedError:
                raise
            except kafka_errors.AuthorizationError as error:
                raise AuthorizationError(f"it needs {needs}: {error}") from error
            except kafka_errors.KafkaError as error:
                if error.retriable and self._admin is not None and time.monotonic() < deadline:
                    log.info("cannot ask about transactions yet: %r", error)
                    if not isinstance(error, kafka_errors.ConcurrentTransactionsError):
                        self._disconnect()  # kafka-python would ask the same coordinator again
                    time.sleep(_ASK_AGAIN_S)
                    continue
                servers = ",".join(self._config["bootstrap_servers"])
                raise KafkaRebalanceError(
                    f"no answer from {servers} within {self._timeout_s:g} s: {error}"
                    if error.retriable
                    else f"{servers} refuses: {error}"
                ) from error

    def _disconnect(self) -> None:
        if self._admin is not None:
            self._admin.close()
            self._admin = None


def _listing(admin: KafkaAdminClient, filters: Filters) -> Report:
    listed, silent = requests.list_transactions(
        admin, filters.states, filters.producer_ids, filters.longer_than_s
    )
    at = time.time()
    described = requests.describe_transactions(admin, listed)
    transactions = oldest_first([t for t in described if filters.admits(t, at)])
    return Report(at, transactions, _logs(admin, _touched(transactions)), silent=silent)


def _of_id(admin: KafkaAdminClient, transactional_id: str) -> Report:
    coordinator = requests.coordinator_of(admin, transactional_id)
    described = requests.describe_transactions(
        admin, [Transaction(transactional_id, -1, "", coordinator)]
    )
    if not described:
        raise UnknownTransactionError(f"there is no transactional id {transactional_id!r}")
    at = time.time()
    return Report(at, tuple(described), _logs(admin, _touched(described)))


def _touched(transactions: Collection[Transaction]) -> frozenset[TopicPartition]:
    return frozenset().union(*(t.partitions for t in transactions if t.is_open))


def _of_topics(admin: KafkaAdminClient, topics: Sequence[str], numbers: Collection[int]) -> Report:
    """A transaction that is in a log before and after the coordinators were asked was open in
    between: if none had it, it hangs. They are asked twice, since one may have moved."""
    partitions = _partitions_of(admin, topics, numbers)
    report = _with_owners(admin, partitions)
    missing = unclaimed(report.transactions, report.logs)
    if not missing or report.silent:
        return report
    report = _with_owners(admin, partitions)
    if report.silent:
        return report
    hanging = missing & unclaimed(report.transactions, report.logs)
    return Report(report.at, report.transactions, report.logs, hanging)


def _partitions_of(
    admin: KafkaAdminClient, topics: Sequence[str], numbers: Collection[int]
) -> frozenset[TopicPartition]:
    leaders, problems = _leaders(admin, topics)
    for topic in topics:
        if topic in problems:
            raise UnknownTransactionError(f"topic {topic!r}: {problems[topic]}")
    wanted = frozenset(p for p in leaders if not numbers or p.partition in numbers)
    named = {TopicPartition(topic, number) for topic in topics for number in numbers}
    if gone := sorted(named - wanted):
        raise UnknownTransactionError(f"there is no partition {gone[0].topic}-{gone[0].partition}")
    return wanted


def _with_owners(admin: KafkaAdminClient, partitions: frozenset[TopicPartition]) -> Report:
    logs = _logs(admin, partitions)
    producer_ids = {writer.producer_id for log in logs.values() for writer in log.writers}
    if not producer_ids:
        return Report(time.time(), logs=logs)
    listed, silent = requests.list_transactions(admin, producer_ids=sorted(producer_ids))
    found = requests.describe_transactions(admin, listed)
    return Report(time.time(), oldest_first(found), logs, silent=silent)


def _logs(
    admin: KafkaAdminClient, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, Log]:
    if not partitions:
        return {}
    told, topic_problems = _leaders(admin, sorted({p.topic for p in partitions}))
    leaders = {p: told[p] for p in partitions if told.get(p, -1) >= 0}
    writers, problems = requests.describe_producers(admin, leaders)
    specs = dict.fromkeys(leaders, OffsetSpec.LATEST)
    stable = admin.list_partition_offsets(specs, IsolationLevel.READ_COMMITTED)
    ends = admin.list_partition_offsets(specs)
    missing = {
        p: Log(
            problem=topic_problems.get(p.topic, "no leader" if p in told else "no such partition")
        )
        for p in partitions
        if p not in leaders
    }
    return missing | {
        p: Log(stable[p].offset, ends[p].offset, writers.get(p, ()), problems.get(p, ""))
        for p in leaders
    }


def _leaders(
    admin: KafkaAdminClient, topics: Sequence[str]
) -> tuple[dict[TopicPartition, int], dict[str, str]]:
    """The leader of each partition, -1 without one, and what is wrong with topics."""
    leaders: dict[TopicPartition, int] = {}
    problems: dict[str, str] = {}
    for told in admin.describe_topics(list(topics)):
        error = kafka_errors.for_code(told["error_code"])
        if error is kafka_errors.UnknownTopicOrPartitionError:
            problems[told["name"]] = "no such topic"
        elif error is kafka_errors.TopicAuthorizationFailedError:
            problems[told["name"]] = "not authorized"
        elif error is not kafka_errors.NoError:
            problems[told["name"]] = error.__name__
        for part in told["partitions"]:
            leaders[TopicPartition(told["name"], part["partition_index"])] = part["leader_id"]
    return leaders, problems
