"""The offset log of a query's checkpoint: the files ``offsets/N``, which Spark writes. Pure.

The file has a version line, a line of metadata, and a line for each source, which is ``-`` if the
source has no offset yet. Version 1 has the sources in the order of the plan. Version 2 is for
queries whose sources have names (Spark 4.2,
``spark.sql.streaming.queryEvolution.enableSourceEvolution``), and has ``name:offset``. Each source
has its own form of offset; ours, and that of Spark's own Kafka source, is JSON.
"""

from __future__ import annotations

import json
from typing import Any


def parse_offset_log(text: str) -> list[tuple[str, Any]]:
    """Parse the file of one batch.

    Returns each source's name, or else its number, and its offset; None if that is not JSON. Raises
    ValueError if the file has an unknown version, or is no offset log.
    """
    lines = text.split("\n")
    version, sources = lines[0], lines[2:]
    if version == "v1":
        return [(str(number), _offset(line)) for number, line in enumerate(sources)]
    if version == "v2":
        named = (line.partition(":") for line in sources)
        return [(name, _offset(offset)) for name, _, offset in named]
    raise ValueError(f"an offset log of Spark's version {version[:20]!r}, not v1 or v2")


def _offset(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
