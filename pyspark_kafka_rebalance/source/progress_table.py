"""The result of ``progress(query)``: a table of partitions, for notebooks, ``print``, pandas."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

ASSIGNED = "assigned"
REVOKING = "revoking"
REVOKED = "revoked"
LOST = "lost"
STOPPED = "stopped"

#: The states of partitions that the query owns.
OWNED = (ASSIGNED, REVOKING)

#: The states whose lag is the query's.
_COUNTED = (*OWNED, STOPPED)

_HEADINGS = ("topic", "partition", "member", "position", "end offset", "lag", "state")
_CATCH_UP = "catch-up lag"  # shown if there is any
_NUMBERS = ("partition", "position", "end offset", "lag", _CATCH_UP)
_UNKNOWN = "-"
_COLOURS = {REVOKING: "#b36b00", LOST: "#c62828", REVOKED: "#757575", STOPPED: "#757575"}


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """One partition of a query.

    Attributes
    ----------
    topic, partition : str, int
        The partition.
    member : str or None
        Client id of the query's group member that read it last; None if nothing was read yet.
    position : int or None
        The next offset: all records before it are in batches that Spark has committed, except those
        that are still to be caught up. None while no progress has it.
    end_offset : int or None
        The partition's end when the last batch was planned, exclusive: high watermark, or last
        stable offset under read_committed. None for partitions that the query no longer owns, and
        on Spark before 4.2.
    lag : int or None
        ``end_offset - position``, in offsets.
    state : {"assigned", "revoking", "revoked", "lost", "stopped"}
        ``revoking``: its revoke had been requested when the last batch was planned, and it gets no
        new records. ``revoked``: handed over by now. ``lost``: taken without a hand-over.
        ``stopped``: owned at the end of the query, which has ended.
    catch_up_lag : int
        How many offsets below the position are still to be caught up
        (``parallelRebalance=live``); only for owned partitions.
    """

    topic: str
    partition: int
    member: str | None
    position: int | None
    end_offset: int | None
    lag: int | None
    state: str
    catch_up_lag: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class QueryProgress:
    """A query's partitions, by topic and number; shown as a table everywhere.

    Attributes
    ----------
    query : str or None
        Its name, else its id.
    batch : int or None
        The last batch that has a progress; None before the first.
    timestamp : str or None
        When that progress was made, in UTC.
    partitions : tuple of PartitionProgress
        Those it owns, and those that it gave up or lost, as far back as the progress reaches.
    catch_up_ends_in_s : float or None
        How many seconds after that progress all should be caught up, at the rate of the last
        batches; 0 if there is nothing to catch up, None if the rate is unknown.
    groups : tuple of str
        The consumer groups of its sources with ``groupIdPrefix``, which name them after the query.
    """

    query: str | None = None
    batch: int | None = None
    timestamp: str | None = None
    partitions: tuple[PartitionProgress, ...] = ()
    catch_up_ends_in_s: float | None = 0.0
    groups: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[PartitionProgress]:
        return iter(self.partitions)

    def __len__(self) -> int:
        return len(self.partitions)

    @property
    def lag(self) -> int | None:
        """The total lag of all owned partitions, in offsets; None if that of any is unknown.

        Of a query that has ended, the lag of its last trigger.
        """
        lags = [p.lag for p in self.partitions if p.state in _COUNTED]
        return None if None in lags else sum(lag for lag in lags if lag is not None)

    @property
    def catch_up_lag(self) -> int:
        """How much is still to be caught up in all owned partitions together, in offsets."""
        return sum(p.catch_up_lag for p in self.partitions)

    def ended(self) -> QueryProgress:
        """Return the same of a query that has ended: it owns nothing and catches up no more."""
        partitions = tuple(
            replace(p, state=STOPPED) if p.state in OWNED else p for p in self.partitions
        )
        ends_in_s = None if self.catch_up_lag else 0.0
        return replace(self, partitions=partitions, catch_up_ends_in_s=ends_in_s)

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a data frame; unknown values are ``pandas.NA``."""
        import pandas as pd

        names = [field.name for field in fields(PartitionProgress)]
        numbers = ("partition", "position", "end_offset", "lag", "catch_up_lag")
        types = dict.fromkeys(numbers, "Int64")
        return pd.DataFrame([asdict(p) for p in self.partitions], columns=names).astype(types)

    def __repr__(self) -> str:
        if not self.partitions:
            return self._summary()
        headings = self._headings()
        rows = [headings, *(_cells(p)[: len(headings)] for p in self.partitions)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(
                cell.rjust(width) if heading in _NUMBERS else cell.ljust(width)
                for cell, width, heading in zip(row, widths, headings, strict=True)
            ).rstrip()
            for row in rows
        ]
        return "\n".join([self._summary(), *lines])

    def _repr_html_(self) -> str:
        if not self.partitions:
            return f"<p>{html.escape(self._summary())}</p>"
        headings = self._headings()
        head = "".join(f"<th{_align(name)}>{name}</th>" for name in headings)
        body = "".join(_html_row(p, headings) for p in self.partitions)
        return (
            f"<table><caption>{html.escape(self._summary())}</caption>"
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        )

    def _headings(self) -> tuple[str, ...]:
        return (*_HEADINGS, _CATCH_UP) if self.catch_up_lag else _HEADINGS

    def _summary(self) -> str:
        name = self.query or "the query"
        if self.batch is None:
            return f"{name}: no batch yet"
        what = ", ".join([name, *(f"group {group}" for group in self.groups)])
        what = f"{what}, batch {self.batch}, {self.timestamp}"
        if not self.partitions:
            return f"{what}: no partition yet"
        owned = sum(p.state in _COUNTED for p in self.partitions)
        lag = "not known" if self.lag is None else f"{self.lag:,}"
        return (
            f"{what}: {owned} partition{'' if owned == 1 else 's'}, lag {lag}{self._catching_up()}"
        )

    def _catching_up(self) -> str:
        if not self.catch_up_lag:
            return ""
        ends = self.catch_up_ends_in_s
        when = "" if ends is None else f", done in about {max(1, round(ends)):,} s"
        return f", {self.catch_up_lag:,} to catch up{when}"


def _cells(row: PartitionProgress) -> tuple[str, ...]:
    return (
        row.topic,
        str(row.partition),
        row.member or _UNKNOWN,
        *(_UNKNOWN if n is None else f"{n:,}" for n in (row.position, row.end_offset, row.lag)),
        row.state,
        f"{row.catch_up_lag:,}",
    )


def _html_row(row: PartitionProgress, headings: tuple[str, ...]) -> str:
    colour = _COLOURS.get(row.state)
    style = f' style="color: {colour}"' if colour else ""
    cells = (
        f"<td{_align(name)}>{html.escape(cell)}</td>"
        for name, cell in zip(headings, _cells(row)[: len(headings)], strict=True)
    )
    return f"<tr{style}>{''.join(cells)}</tr>"


def _align(heading: str) -> str:
    return f' style="text-align: {"right" if heading in _NUMBERS else "left"}"'
