"""Keep secrets out of kafka-python's log, where they appear at DEBUG in three ways.

An admin client logs its whole configuration. A connection logs every request, including the
password of PLAIN and the token of OAUTHBEARER. The parser logs the same again as bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from typing import Any

#: The text in place of a secret; Spark's own wording.
REDACTED = "*********(redacted)"

#: Arguments of kafka-python's clients whose values are secrets, or objects that may show some.
_SECRET_ARGUMENTS = frozenset(
    {"sasl_plain_password", "ssl_password", "sasl_oauth_token_provider", "ssl_context"}
)

#: A filter sees only the records of its own logger: these are the loggers that log secrets.
_LOGGERS = ("kafka.admin.client", "kafka.net.connection", "kafka.protocol.parser")


def redact_log() -> None:
    """Keep secrets out of the log of this process from now on; idempotent."""
    _sasl_messages()  # not by the first line that is logged, whose thread may hold locks
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_redact)


def _redact(record: logging.LogRecord) -> bool:
    if isinstance(record.args, Mapping):
        record.args = {
            name: REDACTED if name in _SECRET_ARGUMENTS else value
            for name, value in record.args.items()
        }
    elif record.args:
        record.args = tuple(_redacted(argument) for argument in record.args)
    return True


@cache
def _sasl_messages() -> tuple[type, ...]:
    """Imported late: option parsing needs this module for a constant, and not kafka-python."""
    from kafka.protocol import sasl

    return (
        sasl.SaslAuthenticateRequest,
        sasl.SaslAuthenticateResponse,
        sasl.SaslBytesRequest,
        sasl.SaslBytesResponse,
    )


def _redacted(argument: Any) -> Any:
    if isinstance(argument, _sasl_messages()):
        return f"{type(argument).__name__}({REDACTED})"
    if isinstance(argument, (bytes, bytearray, memoryview)):
        return f"<{len(argument)} bytes>"
    return argument
