"""Cluster queries that need no group member; they are retried while the brokers are busy."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from kafka import KafkaAdminClient
from kafka import errors as kafka_errors

from ..errors import KafkaRebalanceError
from ..fetch.connections import explain_final
from ..transport.secured_clients import admin_client

if TYPE_CHECKING:
    from .options import SourceOptions

log = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")


def ask_cluster(
    options: SourceOptions, what: str, ask: Callable[[KafkaAdminClient], _Answer]
) -> _Answer:
    """Ask the cluster through a new admin client.

    Retriable errors are retried ``fetchOffset.numRetries`` times, such as a leader or a
    coordinator that is moving.

    Parameters
    ----------
    options : SourceOptions
        The source's options.
    what : str
        What is asked for, as the errors name it.
    ask : callable
        The query; each retry repeats all of it.

    Raises
    ------
    AuthenticationError, AuthorizationError
        The brokers reject this client, or a permission is missing.
    KafkaRebalanceError
        The brokers do not answer, or refuse.
    """
    admin = None
    left = options.offset_lookup_retries
    try:
        while True:
            try:
                # Created once: finding that no broker is reachable takes the request timeout.
                admin = admin or admin_client(options.client_config)
                return ask(admin)
            except kafka_errors.KafkaError as error:
                final = explain_final(error, f"finding out {what}")
                if final is not None:
                    raise final from error
                if admin is None or left == 0 or not error.retriable:
                    text = f"the brokers do not tell {what}: {error!r}"
                    raise KafkaRebalanceError(text) from error
                left -= 1
                log.warning("the brokers do not tell %s, asked again: %r", what, error)
                time.sleep(options.offset_lookup_interval_ms / 1000)
    finally:
        if admin is not None:
            admin.close()
