"""The compiled encoder, if it is installed."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

log = logging.getLogger(__name__)

#: An environment variable; "python" encodes in Python all the same, for comparison.
_CHOICE = "PYSPARK_KAFKA_REBALANCE_ENCODER"


def _compiled() -> ModuleType | None:
    if os.environ.get(_CHOICE) == "python":
        log.warning("records are encoded in Python, because %s=python", _CHOICE)
        return None
    try:
        from . import _encoder
    except ImportError as error:
        log.warning(
            "the compiled encoder is missing, so records are encoded in Python, which takes about "
            "fifty times as long; to build it, install the package on a machine with a C "
            "compiler (%s)",
            error,
        )
        return None
    return _encoder


#: The module, or None.
compiled = _compiled()
