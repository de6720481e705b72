"""Marker: which batch of a query was written last, and by which run. Pure.

It is a record of a compacted topic, in the same transaction as the batch's output: readers see both
or neither. Unlike a group's offsets it does not expire::

    key    the query's id, or that and a digest for writes in foreachBatch
    value  {"version": 1, "batch": 17, "digest": "9f…", "written_by": "3c…",
            "run": "3c…", "host": "etl-1", "pid": 4711}

A run takes the query over with a marker of its own before it writes its first batch, which has the
batch of the marker before. So the marker always names the run that may write.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

_VERSION = 1


class MarkerFormatError(Exception):
    """A newer release has written the marker, or it is none."""


@dataclass(frozen=True, slots=True)
class Marker:
    """What a query has written.

    Attributes
    ----------
    batch : int
        The number of the batch that was written last; -1 before the first.
    digest : str
        Of what it read: see `BatchInput`.
    written_by : str
        The run of the query that wrote it; empty before the first.
    run : str
        The run of the query that may write, by Spark's id.
    host, pid
        Where that runs; for people.
    """

    batch: int
    digest: str
    written_by: str
    run: str
    host: str
    pid: int

    def to_bytes(self) -> bytes:
        """Return the record's value."""
        return json.dumps(
            {
                "version": _VERSION,
                "batch": self.batch,
                "digest": self.digest,
                "written_by": self.written_by,
                "run": self.run,
                "host": self.host,
                "pid": self.pid,
            }
        ).encode()


def parse_marker(value: bytes) -> Marker:
    """Parse a record's value; unknown fields are ignored. Raises MarkerFormatError."""
    try:
        found = json.loads(value)
        if found["version"] != _VERSION:
            raise MarkerFormatError(f"version {found['version']!r}; this release knows {_VERSION}")
        return Marker(
            int(found["batch"]),
            str(found["digest"]),
            str(found["written_by"]),
            str(found["run"]),
            str(found["host"]),
            int(found["pid"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise MarkerFormatError(f"{error!r} in {value[:80]!r}") from error
