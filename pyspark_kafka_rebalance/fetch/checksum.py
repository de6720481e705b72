"""CRC-32C, by the fastest implementation that is installed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import cast

log = logging.getLogger(__name__)


def _fastest() -> Callable[[memoryview], int]:
    try:
        from crc32c import crc32c as compiled

        return cast("Callable[[memoryview], int]", compiled)
    except ImportError:
        from kafka.record.util import calc_crc32c as interpreted

        log.warning(
            "the package crc32c is not installed: checksums of record batches are computed in "
            "Python, which takes most of the time of reading"
        )
        return cast("Callable[[memoryview], int]", interpreted)


#: The checksum of a buffer.
crc32c = _fastest()
