"""harmless: a fault of the metrics ends these, and no poll, commit or query."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, Protocol

log = logging.getLogger(__name__)


class Ends(Protocol):
    """What can be ended."""

    end: Callable[[], None]


def harmless(method: Callable[..., None]) -> Callable[..., None]:
    """A method that, if it raises, logs that and calls ``self.end()``."""

    @functools.wraps(method)
    def told(self: Ends, *arguments: Any, **named: Any) -> None:
        try:
            method(self, *arguments, **named)
        except Exception:
            log.exception("no more metrics of this client")
            self.end()

    return told
