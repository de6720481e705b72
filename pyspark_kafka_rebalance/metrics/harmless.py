"""harmless: an error in the metrics ends the metrics, never a poll, commit or query."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, Protocol

log = logging.getLogger(__name__)


class Ends(Protocol):
    """Something that can be ended."""

    end: Callable[[], None]


def harmless(method: Callable[..., None]) -> Callable[..., None]:
    """Wrap a method: if it raises, log the exception and call ``self.end()``."""

    @functools.wraps(method)
    def told(self: Ends, *arguments: Any, **named: Any) -> None:
        try:
            method(self, *arguments, **named)
        except Exception:
            log.exception("metrics failed; no more metrics for this client")
            self.end()

    return told
