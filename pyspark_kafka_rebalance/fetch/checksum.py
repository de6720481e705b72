"""CRC-32C, by the fastest implementation that is installed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import cast

from .compiled_columns import compiled

log = logging.getLogger(__name__)


def _fastest() -> Callable[[memoryview], int]:
    try:
        from crc32c import crc32c as by_package

        return cast("Callable[[memoryview], int]", by_package)
    except ImportError:
        if compiled is not None:
            return cast("Callable[[memoryview], int]", compiled.crc32c)
        from kafka.record.util import calc_crc32c as interpreted

        log.warning(
            "neither the package crc32c nor the compiled decoder is installed: checksums of "
            "record batches are computed in Python, which takes most of the read time"
        )
        return cast("Callable[[memoryview], int]", interpreted)


#: The checksum of a buffer.
crc32c = _fastest()
