"""Log lines once a minute that kafka-python logs many times a second.

While a subscribed topic does not exist, each metadata request, one every ``retry_backoff_ms``, and
each look-up of the topic's offsets logs the same line.
"""

from __future__ import annotations

import logging
import time
from typing import Any

#: For this long, the same line is not logged again.
_QUIET_S = 60.0

#: By logger, the start of the repeated messages.
_REPEATED = {
    "kafka.cluster": "Topic %s not found in cluster metadata",
    "kafka.consumer.fetcher": "Received unknown topic or partition error in ListOffsets",
}

_logged_at: dict[tuple[str, Any], float] = {}


def log_repeats_once() -> None:
    """Suppress repeated lines in this process from now on; idempotent."""
    for name in _REPEATED:
        logging.getLogger(name).addFilter(_is_new)


def _is_new(record: logging.LogRecord) -> bool:
    if not record.msg.startswith(_REPEATED[record.name]):
        return True
    line, now = (record.name, record.args), time.monotonic()
    if now - _logged_at.get(line, -_QUIET_S) < _QUIET_S:
        return False
    _logged_at[line] = now
    return True
