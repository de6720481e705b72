"""The log of a run that is a command of its own."""

from __future__ import annotations

import logging
from pathlib import Path


def log_into(folder: Path) -> None:
    """Write what this process logs into the folder's ``log``, and not among what it prints."""
    logging.basicConfig(
        filename=folder / "log",
        level=logging.INFO,
        format="%(asctime)s %(threadName)s %(name)s %(levelname)s %(message)s",
    )
