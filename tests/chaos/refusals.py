"""What a query says is gone from Kafka when it fails because of that. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from .events import Log

#: How it fails then.
REFUSES = "DataLossError: "

#: A partition, and what is said of it: the range that a task had to read, a position, gaps.
_PARTITION = r"(?P<topic>[\w.-]+)-(?P<partition>\d+)"
_SAID = (
    re.compile(_PARTITION + r" \[(?P<since>\d+), (?P<until>\d+)\)"),
    re.compile(_PARTITION + r": (?:position|read to) (?P<since>\d+), (?:end offset|deleted)"),
    re.compile(_PARTITION + r": not read, deleted"),
)
_GAPS = re.compile(_PARTITION + r": offsets (?P<gaps>[^;)]*), the log begins at \d+")
_GAP = re.compile(r"(\d+) to (\d+)(?: and \d+ more ranges up to (\d+))?")


class Gone(NamedTuple):
    """What it was still to read; ``until`` None: to wherever the log ended."""

    log: Log
    since: int
    until: int | None


def refused(error: str) -> list[Gone]:
    """What the error names; nothing if it is another one, or names no partition."""
    _, refuses, said = error.partition(REFUSES)
    return list(_named(said)) if refuses else []


def _named(said: str) -> Iterator[Gone]:
    for found in (match for pattern in _SAID for match in pattern.finditer(said)):
        given = found.groupdict()
        until = given.get("until")
        yield Gone(_log(found), int(given.get("since") or 0), None if until is None else int(until))
    for found in _GAPS.finditer(said):
        for first, last, last_of_more in _GAP.findall(found["gaps"]):
            yield Gone(_log(found), int(first), int(last_of_more or last) + 1)


def _log(found: re.Match[str]) -> Log:
    return Log(found["topic"], "", int(found["partition"]))
