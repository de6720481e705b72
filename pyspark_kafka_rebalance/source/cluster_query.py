"""Cluster queries that need no group member; they are retried while the brokers are busy."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from kafka import KafkaAdminClient
from kafka import errors as kafka_errors

from ..errors import KafkaRebalanceError
from ..fetch.connections import explain_final
from ..transport.bootstrap import NoBrokerError
from ..transport.secured_clients import admin_client

if TYPE_CHECKING:
    from .options.source_options import SourceOptions

log = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")

#: How long a query or a batch tries to reach a first broker when it starts, unless
#: ``kafka.request.timeout.ms`` is given, which then counts. A running query keeps trying.
_FIRST_BROKER_MS = 15_000


def first_broker_ms(options: SourceOptions) -> int:
    """How long the start may try to reach a first broker."""
    given: int = options.client_config.get("request_timeout_ms", _FIRST_BROKER_MS)
    return given


def servers_of(config: Mapping[str, Any]) -> str:
    """Return the bootstrap servers, as an error names them."""
    return f"kafka.bootstrap.servers={','.join(config['bootstrap_servers'])}"


def no_broker(config: Mapping[str, Any], error: Exception) -> KafkaRebalanceError:
    """Return the error for brokers that cannot be used."""
    says_all = isinstance(error, kafka_errors.KafkaTimeoutError) and error.args
    why = error.args[0] if says_all else repr(error)
    return KafkaRebalanceError(f"no broker of {servers_of(config)} can be used: {why}")


def ask_cluster(
    options: SourceOptions,
    what: str,
    ask: Callable[[KafkaAdminClient], _Answer],
    *,
    is_start: bool = True,
) -> _Answer:
    """Ask the cluster through a new admin client.

    Retriable errors are retried ``fetchOffset.numRetries`` times, such as a leader or a coordinator
    that is moving; each retry repeats all of ``ask``. ``what`` names the request in errors. With
    ``is_start`` it tries to reach a first broker no longer than a start may.

    Raises
    ------
    AuthenticationError, AuthorizationError
        The brokers reject this client, or a permission is missing.
    KafkaRebalanceError
        The brokers do not answer, or refuse.
    """
    config = dict(options.client_config)
    if is_start:
        config["bootstrap_timeout_ms"] = first_broker_ms(options)
    admin = None
    left = options.offset_lookup_retries
    try:
        while True:
            try:
                admin = admin or admin_client(config)
                return ask(admin)
            except NoBrokerError as error:  # not tried again: that has been done
                raise no_broker(options.client_config, error) from error
            except kafka_errors.KafkaError as error:
                final = explain_final(error, f"finding out {what}")
                if final is not None:
                    raise final from error
                if admin is None or left == 0 or not error.retriable:
                    text = f"cannot find out {what}: {error!r}"
                    raise KafkaRebalanceError(text) from error
                left -= 1
                # A broker that has just started says so of its first group.
                expected = isinstance(error, kafka_errors.CoordinatorNotAvailableError)
                level = logging.INFO if expected else logging.WARNING
                log.log(level, "cannot find out %s, asking again: %r", what, error)
                time.sleep(options.offset_lookup_interval_ms / 1000)
    finally:
        if admin is not None:
            admin.close()
