"""A report as text, as cells of a table, and as JSON. Pure."""

from __future__ import annotations

import datetime
import json
from typing import Any

from ..consumer.group_description import GroupMember
from .report import GroupReport, Row

HEADINGS = (
    "member",
    "host",
    "member id",
    "partition",
    "position",
    "end",
    "lag",
    "lag s",
    "revoking",
    "gaps",
    "note",
)
#: The right-aligned columns.
NUMBERS = frozenset({"position", "end", "lag", "lag s"})

_UNKNOWN = "-"
#: How many characters of a member id are shown, after the client id that starts most of them.
_ID_SHOWN = 8


def summary(report: GroupReport) -> str:
    """The group in one line."""
    group = report.group
    protocol = f"{group.protocol} protocol" + (f" ({group.assignor})" if group.assignor else "")
    parts = [f"group {report.group_id}: {group.state}", protocol]
    if group.epoch is not None:
        parts.append(f"epoch {group.epoch}")
    parts += [counted(len(group.members), "member"), counted(report.partitions, "partition")]
    lag = f"lag {report.lag:,}"
    if report.unknown and report.unknown == report.partitions:
        lag = "lag unknown"
    elif report.unknown:
        lag += f" and unknown for {counted(report.unknown, 'partition')}"
    parts.append(lag)
    if report.lag_s is not None and report.lag:
        parts.append(f"the oldest record {_seconds(report.lag_s)} s old")
    return printable(", ".join(parts))


def cells(report: GroupReport, row: Row) -> tuple[str, ...]:
    """The cells of a row, one for each of ``HEADINGS``."""
    member, left = row.member, row.backlog
    who = (
        (_UNKNOWN,) * 3
        if member is None
        else (member.client_id or _UNKNOWN, member.host.lstrip("/") or _UNKNOWN, short_id(member))
    )
    where = (
        _UNKNOWN if row.partition is None else f"{row.partition.topic}-{row.partition.partition}"
    )
    return (
        *map(printable, (*who, where)),
        *(_UNKNOWN if n is None else f"{n:,}" for n in (left.position, left.end, left.lag)),
        _UNKNOWN if row.lag_s is None else _seconds(row.lag_s),
        _revoking(report, row),
        f"{left.gaps:,} ({left.gap_offsets:,} left)" if left.gaps else _UNKNOWN,
        left.note,
    )


def as_text(report: GroupReport) -> str:
    """The summary, and below it a table in aligned columns."""
    if not report.rows:
        return summary(report)
    table = [HEADINGS, *(cells(report, row) for row in report.rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = (
        "  ".join(
            cell.rjust(width) if heading in NUMBERS else cell.ljust(width)
            for cell, width, heading in zip(row, widths, HEADINGS, strict=True)
        ).rstrip()
        for row in table
    )
    return "\n".join([summary(report), *lines])


def as_json(report: GroupReport) -> str:
    """The whole report as one line of JSON; times are UTC in ISO 8601."""
    group = report.group
    return json.dumps(
        {
            "group": report.group_id,
            "at": iso_time(report.at),
            "state": group.state,
            "protocol": group.protocol,
            "assignor": group.assignor or None,
            "epoch": group.epoch,
            "lag": report.lag,
            "partitions_of_unknown_lag": report.unknown,
            "lag_seconds": _rounded(report.lag_s),
            "members": [_member(member) for member in group.members],
            "partitions": [_partition(row) for row in report.rows if row.partition is not None],
        }
    )


def printable(text: str) -> str:
    """The text with control characters as escapes: clients choose their names freely."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )


def short_id(member: GroupMember) -> str:
    """The distinctive part of a member id: most start with the client id, shown next to it."""
    own = member.member_id.removeprefix(f"{member.client_id}-")
    return own if len(own) <= _ID_SHOWN else f"{own[:_ID_SHOWN]}…"


def _member(member: GroupMember) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "client_id": member.client_id,
        "host": member.host.lstrip("/"),
        "instance_id": member.instance_id,
        "epoch": member.epoch,
        "partitions": len(member.assigned | member.revoking),
    }


def _partition(row: Row) -> dict[str, Any]:
    assert row.partition is not None
    left = row.backlog
    since = row.revoking_since
    return {
        "topic": row.partition.topic,
        "partition": row.partition.partition,
        "member_id": None if row.member is None else row.member.member_id,
        "position": left.position,
        "end": left.end,
        "lag": left.lag,
        "lag_seconds": _rounded(row.lag_s),
        "revoking": row.revoking,
        "revoking_since": None if since is None else iso_time(since),
        "gaps": left.gaps,
        "gap_offsets": left.gap_offsets,
        "note": left.note or None,
    }


def _revoking(report: GroupReport, row: Row) -> str:
    if not row.revoking:
        return _UNKNOWN
    since = row.revoking_since
    return "yes" if since is None else f"{max(0.0, report.at - since):.0f} s"


def counted(number: int, what: str) -> str:
    """The number and the noun: "1 member", "2 members"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _seconds(seconds: float) -> str:
    return f"{seconds:,.1f}" if seconds < 100 else f"{seconds:,.0f}"


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def iso_time(at: float) -> str:
    """Seconds since 1970 as UTC in ISO 8601."""
    return datetime.datetime.fromtimestamp(at, datetime.timezone.utc).isoformat()
