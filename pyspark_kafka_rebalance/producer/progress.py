"""A table of what a producer has committed, for ``print``, notebooks and pandas; pure."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

#: How many characters of a restart point a table shows.
_SHOWN = 32

_HEADINGS = ("source partition", "restart point", "records", "records/s", "last commit")


@dataclass(frozen=True)
class SourcePartitionProgress:
    """How far one source partition has got.

    Attributes
    ----------
    source_partition : int
        Its number.
    member_id : str
        The group's id for the member that owns it.
    restart_point : str or None
        The last one committed; None if nothing was ever committed.
    records : int
        How many records this member has committed.
    records_per_s : float
        Rate of the records that it committed in the last half minute.
    last_commit_age_s : float or None
        Seconds since its last commit; None if it has made none.
    """

    source_partition: int
    member_id: str
    restart_point: str | None
    records: int
    records_per_s: float
    last_commit_age_s: float | None


@dataclass(frozen=True)
class ProducerProgress:
    """What one member of a producer group owns, and how far it has got; ``str()`` is a table.

    Attributes
    ----------
    group_id, member_id, transactional_id : str
        The ids of the group, the member and its transactions.
    generation : int
        The generation of the assignment in force; -1 before the first.
    source_partition_count : int
        How many partitions the whole source has.
    to_be_revoked : frozenset of int
        The owned source partitions that the group wants back.
    source_partitions : tuple of SourcePartitionProgress
        The owned source partitions; empty on standby.
    """

    group_id: str
    member_id: str
    transactional_id: str
    generation: int
    source_partition_count: int
    to_be_revoked: frozenset[int]
    source_partitions: tuple[SourcePartitionProgress, ...]

    def __iter__(self) -> Iterator[SourcePartitionProgress]:
        return iter(self.source_partitions)

    def __len__(self) -> int:
        return len(self.source_partitions)

    @property
    def records_per_s(self) -> float:
        """The rate of all owned source partitions together."""
        return sum(each.records_per_s for each in self.source_partitions)

    @property
    def line(self) -> str:
        """All of it in one line, for a log."""
        ages = [p.last_commit_age_s for p in self if p.last_commit_age_s is not None]
        return (
            f"{self._summary()[0]}, generation {self.generation}, "
            f"{sum(p.records for p in self)} records, {self.records_per_s:.1f} records/s, "
            f"last commit {_ago(min(ages, default=None))}"
        )

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a data frame."""
        import pandas as pd

        names = [field.name for field in fields(SourcePartitionProgress)]
        rows = [asdict(each) for each in self.source_partitions]
        return pd.DataFrame(rows, columns=names).astype({"last_commit_age_s": "Float64"})

    def __str__(self) -> str:
        title, member = self._summary()
        if not self.source_partitions:
            return "\n".join([title, member, "on standby"])
        rows = [_HEADINGS, *self._rows()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        return "\n".join([title, member, *lines])

    def _repr_html_(self) -> str:
        caption = "<br>".join(html.escape(line) for line in self._summary())
        if not self.source_partitions:
            return f"<p>{caption}<br>on standby</p>"
        head = "".join(f"<th>{name}</th>" for name in _HEADINGS)
        body = "".join(
            f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>"
            for row in self._rows()
        )
        return (
            f"<table><caption>{caption}</caption>"
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        )

    def _summary(self) -> tuple[str, str]:
        own, count = len(self.source_partitions), self.source_partition_count
        return (
            f"producer group {self.group_id}: {own} of {count} source partitions",
            f"member {self.member_id or '-'}, generation {self.generation}",
        )

    def _rows(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = []
        for each in self.source_partitions:
            point = "-" if each.restart_point is None else each.restart_point
            rows.append(
                (
                    str(each.source_partition)
                    + (" (revoking)" if each.source_partition in self.to_be_revoked else ""),
                    point if len(point) <= _SHOWN else point[: _SHOWN - 1] + "…",
                    str(each.records),
                    f"{each.records_per_s:.1f}",
                    _ago(each.last_commit_age_s),
                )
            )
        return rows


def _ago(age_s: float | None) -> str:
    return "-" if age_s is None else f"{age_s:.1f} s ago"
