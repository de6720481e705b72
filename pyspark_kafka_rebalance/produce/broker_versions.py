"""What the brokers of a cluster offer: versions of requests, and the transactions' version."""

from __future__ import annotations

import logging
from collections.abc import Iterable
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
        return versions_for(_offered_by_all(answers), _transaction_version(answers))
    except ValueError as error:
        raise UnsupportedBrokerError(str(error)) from error


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
