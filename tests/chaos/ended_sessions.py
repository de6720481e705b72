"""Whose session has ended, as Kafka 4's coordinators log it: the members know better. Pure."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator

#: Of either protocol; also who took too long in a rebalance.
_ENDED = re.compile(
    r"^(\d\d:\d\d:\d\d\.\d\d\d) .*"
    r"(?:\[GroupId (\S+)\] Member (\S+) fenced|Member (\S+) in group (\S+) has failed)",
    re.MULTILINE,
)


def ended_sessions(broker_log: str, group_id: str, since: float) -> Iterator[tuple[float, str]]:
    """When which member of the group was put out, from ``since`` (``time.time()``) on."""
    for clock, group, member, other_member, other_group in _ENDED.findall(broker_log):
        at = _at(clock, since)
        if at >= since and group_id in (group, other_group):
            yield at, member or other_member


def _at(clock: str, since: float) -> float:
    """A time of day, within half a day of ``since``."""
    day = datetime.datetime.fromtimestamp(since).date()
    at = datetime.datetime.combine(day, datetime.time.fromisoformat(clock)).timestamp()
    return since + (at - since + 43_200) % 86_400 - 43_200
