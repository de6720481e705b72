"""The report on a consumer group: ownership, progress, revokes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kafka.structs import OffsetAndMetadata, TopicPartition

from ..consumer.group_description import GroupDescription, GroupMember
from .backlog import Backlog, Logs, backlog_of
from .revokes import Revokes

_NONE = Backlog()


@dataclass(frozen=True, slots=True)
class Row:
    """A partition with its member, a member without partitions, or a partition without a member."""

    member: GroupMember | None = None
    partition: TopicPartition | None = None
    backlog: Backlog = _NONE
    #: The age of the oldest unprocessed record, in seconds: from its timestamp to the time when
    #: the log's end was received, by this machine's clock; 0 if no record is left, or if the
    #: timestamp is later. None if the record has no timestamp or was not read.
    lag_s: float | None = None
    revoking: bool = False  #: the group wants it back while the member still holds it
    #: When a report first had that, in seconds since 1970; None if the very first one did.
    revoking_since: float | None = None


@dataclass(frozen=True, slots=True)
class GroupReport:
    """A group at one moment."""

    group_id: str
    at: float  #: seconds since 1970
    group: GroupDescription
    rows: tuple[Row, ...] = ()  #: by member, topic and number; rows without a member are last

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        return len({row.partition for row in self.rows} - {None})

    @property
    def lag(self) -> int:
        """The total lag of all partitions whose lag is known."""
        return sum(row.backlog.lag or 0 for row in self.rows)

    @property
    def unknown(self) -> int:
        """The number of partitions whose lag is unknown."""
        return sum(row.partition is not None and row.backlog.lag is None for row in self.rows)

    @property
    def lag_s(self) -> float | None:
        """The longest lag in seconds; None if none is known."""
        return max((row.lag_s for row in self.rows if row.lag_s is not None), default=None)


def partitions_of(
    group: GroupDescription, committed: Mapping[TopicPartition, OffsetAndMetadata]
) -> frozenset[TopicPartition]:
    """All partitions of a report: members hold or will own them, or they have a commit."""
    held = (m.assigned | m.target | m.revoking for m in group.members)
    return frozenset(p for p, commit in committed.items() if commit.offset >= 0).union(*held)


def backlogs_of(
    partitions: frozenset[TopicPartition],
    committed: Mapping[TopicPartition, OffsetAndMetadata],
    logs: Logs,
) -> dict[TopicPartition, Backlog]:
    """The backlog of each partition."""
    return {p: backlog_of(p, committed.get(p), logs) for p in partitions}


def report_of(
    group_id: str,
    at: float,
    group: GroupDescription,
    backlogs: Mapping[TopicPartition, Backlog],
    timestamps: Mapping[TopicPartition, int | None],
    revokes: Revokes | None,
) -> GroupReport:
    """Put the answers together; every partition with a backlog gets a row.

    ``at`` is when the logs' end offsets were received; seconds since 1970. ``timestamps`` are the
    first unprocessed records', in ms; None if there is no record, and without partitions that were
    not read. The revokes are as of this report.
    """
    rows = []
    unheld = dict(backlogs)
    for member in sorted(group.members, key=lambda m: (m.client_id, m.member_id)):
        held = sorted(member.assigned | member.revoking)
        for p in held:
            unheld.pop(p, None)
            rows.append(
                Row(
                    member,
                    p,
                    backlogs[p],
                    _lag_s(at, backlogs[p], timestamps.get(p, -1)),
                    p in member.revoking,
                    (revokes or {}).get((member.member_id, p)) if p in member.revoking else None,
                )
            )
        if not held:
            rows.append(Row(member))
    rows += [
        Row(None, p, left, _lag_s(at, left, timestamps.get(p, -1)))
        for p, left in sorted(unheld.items())
    ]
    return GroupReport(group_id, at, group, tuple(rows))


def _lag_s(at: float, left: Backlog, timestamp_ms: int | None) -> float | None:
    """The lag in seconds; a timestamp of -1 means that it was not read, or is missing."""
    if left.lag is None:
        return None
    if left.lag == 0 or timestamp_ms is None:
        return 0.0
    return None if timestamp_ms < 0 else max(0.0, at - timestamp_ms / 1000)
