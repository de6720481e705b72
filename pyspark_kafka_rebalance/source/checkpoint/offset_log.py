"""The offset log of a query's checkpoint: what Spark writes into ``offsets/N``. Pure.

A version line, a line of metadata, and a line for each source, of which one that has no offset yet
has ``-``. Version 1 has the sources in the order of the plan; version 2, of queries whose sources
have names (Spark 4.2, ``spark.sql.streaming.queryEvolution.enableSourceEvolution``), has
``name:offset``. What is an offset is for the source to say; of ours, and of Spark's own Kafka
source, it is JSON.
"""

from __future__ import annotations

import json
from typing import Any


def parse_offset_log(text: str) -> list[tuple[str, Any]]:
    """Parse the file of one batch.

    Returns
    -------
    list of (str, Any)
        Of each source its name, or else its number, and its offset; None where that is not JSON.

    Raises
    ------
    ValueError
        The file is of a version that is not known, or is none of these files.
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
