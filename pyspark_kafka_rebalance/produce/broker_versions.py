"""What the brokers of a cluster offer: versions of requests, and the transactions' version."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from functools import partial
from typing import Any

import kafka
from kafka import errors as kafka_errors
from kafka.protocol.metadata import ApiVersionsRequest

from ..errors import UnsupportedBrokerError
from ..fetch.connections import ClusterConnections
from .requests import Versions, versions_for

log = logging.getLogger(__name__)

_TRANSACTION_FEATURE = "transaction.version"


def versions_of(connections: ClusterConnections) -> Versions:
    """The versions to use with a cluster, which all of its brokers that answer offer.

    Raises
    ------
    UnsupportedBrokerError
        They are older than Kafka 2.5.
    kafka.errors.KafkaError or OSError
        None of them answers.
    """
    pending = {node: connections.send(_request(), node) for node in connections.broker_ids()}
    answers = []
    failure: Exception | None = None
    for node, response in pending.items():
        try:
            answers.append(response.wait())
        except (kafka_errors.KafkaError, OSError) as error:
            log.info("broker %s does not tell its versions: %r", node, error)
            failure = error
    if not answers:
        raise failure or kafka_errors.NoBrokersAvailable()
    try:
        return _versions_from(answers)
    except ValueError as error:
        raise UnsupportedBrokerError(str(error)) from error


class LatestVersions:
    """The versions to use, as brokers are upgraded and features finalized: asks again and again.

    All methods are the I/O thread's; any may read the attributes.

    Parameters
    ----------
    connections : ClusterConnections
    versions : Versions
        As `versions_of` returned them.
    every_s : float
        How long an answer counts. Seconds.

    Attributes
    ----------
    versions : Versions
        As of the last answers.
    due_at : float
        When to `ask` again, by the monotonic clock.
    """

    def __init__(self, connections: ClusterConnections, versions: Versions, every_s: float) -> None:
        self.versions = versions
        self._connections = connections
        self._every_s = every_s
        self._round = 0  # of answers that count
        self.due_at = time.monotonic() + every_s

    def ask(self) -> None:
        """Ask all brokers; returns before they answer."""
        self.due_at = time.monotonic() + self._every_s
        self._round += 1
        asked = self._round
        waiting = set(self._connections.broker_ids())
        answers: list[Any] = []

        def done(node: int, answer: Any, error: Exception | None) -> None:
            waiting.discard(node)
            if error is None:
                answers.append(answer)
            if not waiting and asked == self._round:
                self._take(answers)

        for node in tuple(waiting):
            self._connections.send_soon(_request(), node, partial(done, node))

    def is_refused(self, now: float) -> None:
        """A broker refused a request of transactions v2: they are v1 by now. Ask again."""
        if self.versions.transaction_version >= 2:
            log.warning(
                "the brokers' transactions were downgraded to v1. The coordinator may refuse this "
                "transactional id with CONCURRENT_TRANSACTIONS until its broker is restarted"
            )
        self.versions = self.versions.downgraded()
        self.due_at = now
        self._round += 1  # what was asked before is out of date

    def _take(self, answers: list[Any]) -> None:
        """Whoever did not answer offers enough: a feature is what all brokers can."""
        if not answers:
            return
        try:
            versions = _versions_from(answers)
        except ValueError as error:
            log.warning("%s; going on as before", error)
            return
        if versions != self.versions:
            log.info("the brokers offer other versions: %s", versions)
            self.versions = versions


def _versions_from(answers: Iterable[Any]) -> Versions:
    return versions_for(_offered_by_all(answers), _transaction_version(answers))


def _request() -> ApiVersionsRequest:
    return ApiVersionsRequest(
        client_software_name="kafka-python", client_software_version=kafka.__version__
    )


def _offered_by_all(answers: Iterable[Any]) -> dict[int, int]:
    newest: dict[int, int] = {}
    for answer in answers:
        for each in answer.api_keys:
            newest[each.api_key] = min(newest.get(each.api_key, each.max_version), each.max_version)
    return newest


def _transaction_version(answers: Iterable[Any]) -> int:
    """From the answer with the latest features; 0 if no broker has the feature."""
    latest = max(answers, key=lambda answer: answer.finalized_features_epoch)
    levels = {each.name: each.max_version_level for each in latest.finalized_features or ()}
    return int(levels.get(_TRANSACTION_FEATURE, 0))
