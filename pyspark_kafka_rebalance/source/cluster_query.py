"""Questions to the cluster that no member is needed for: asked again while the brokers are busy."""

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
    """Ask with an admin client of its own.

    A leader or a coordinator that is moving is asked again, ``fetchOffset.numRetries`` times.

    Parameters
    ----------
    options : SourceOptions
        The source's options.
    what : str
        What is asked for, for the error.
    ask : callable
        The question, asked as a whole each time.

    Raises
    ------
    AuthenticationError, AuthorizationError
        The brokers do not let us in, or a permission is missing.
    KafkaRebalanceError
        There is no answer, or it is a refusal.
    """
    admin = None
    left = options.offset_lookup_retries
    try:
        while True:
            try:
                # Made once: that no broker can be reached takes the request timeout to know.
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
