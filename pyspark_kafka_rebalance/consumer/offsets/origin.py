"""Origin: which query made an OffsetCommit, and which ones delivered the records below its offset.

A query commits its origin with each offset, as the first part of the commit's metadata, before the
gaps (``commit_metadata.py``)::

    query/1:e826d9a9.1f0c9a77.17.90a1c3e5f7b2d4e6-0.aa11bb22cc33dd44-4000
            checksum run      batch stretches: a query's id, and the first offset that it delivered

    queries       90a1…            aa11…
    offsets   0 ─────────────── 4000 ─────────── the committed offset

The last stretch is the committer's own. Each query that takes a partition over adds one, so a query
whose checkpoint was restored from a backup recognizes what it has delivered itself.

Where the group was set back to such a checkpoint, the batch is followed by what was set back
(``set_backs.py``). Whoever takes the partition over and has not followed that yet goes on at the
committed offset, even if its own checkpoint is further.

A ``t`` behind the number of the batch says that the query's batches are decided by transactions of
its sink, in which their offsets are committed (``sink/``). Its output is where the group is, so the
group wins over a checkpoint of that query, whether that is older or newer. Releases that do not
know the ``t`` take such a commit for one of nobody's, with the same effect.

A ``DeferredRevokeConsumer`` of an application is no query. It carries all this along, and its own
records are a stretch of nobody's.

The checksum binds an origin to its offset and topic, as it does for gaps: a tool that moves the
offset and keeps the metadata does not speak for the query. Releases that do not know origins ignore
them, together with the gaps behind them: they repeat, and skip nothing.

Pure.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .offset_set import Gap
from .set_backs import NOBODY, SET_BACKS, SetBack, joined, parse_set_backs, set_backs_text

_OURS = re.compile(r"query/([1-9][0-9]{0,8}):([^ ]*)(?: |$)")
_VERSION = 1
_PREFIX = f"query/{_VERSION}:"
_TEXT = re.compile(
    r"(?P<checksum>[0-9a-f]{8})\."
    r"(?P<body>(?P<run>[A-Za-z0-9_]{1,64})\.(?P<batch>[0-9]{1,18})"
    rf"(?P<by_sink>t?)(?P<set_backs>{SET_BACKS})"
    r"(?P<stretches>(?:\.[A-Za-z0-9_]{1,64}-[0-9]{1,19})+))"
)

#: How many stretches a commit names, of at most 38 bytes each. Older ones are dropped: their
#: records then count as delivered by others. A query that takes over adds one.
MOST_STRETCHES = 16
#: The same where the last owner left gaps, each of which adds two. They fit half of the 4,096 bytes
#: that a broker accepts by default.
MOST_STRETCHES_WITH_GAPS = 50


class Stretch(NamedTuple):
    """The records up to the next stretch, or to the commit, and who delivered them."""

    query: str  # its id
    since: int  # the first offset


@dataclass(frozen=True, slots=True)
class Origin:
    """Who committed an offset."""

    run: str  # the committer's run; part of its client ids
    batch: int  # the number of the batch that it had planned last
    #: Who delivered what, lowest first; at least one. The last one is the committer's.
    stretches: tuple[Stretch, ...]
    set_backs: tuple[SetBack, ...] = ()  #: the last ones, oldest first
    by_sink: bool = False  #: whether transactions of its sink decide the committer's batches

    @property
    def query(self) -> str:
        """The id of the query that committed."""
        return self.stretches[-1].query

    def delivered_by(self, query: str, end: int) -> tuple[tuple[int, int], ...]:
        """The ranges [start, end) below a committed offset that this query has delivered."""
        ends = (*(stretch.since for stretch in self.stretches[1:]), end)
        return tuple(
            (stretch.since, end)
            for stretch, end in zip(self.stretches, ends, strict=True)
            if stretch.query == query and stretch.since < end
        )

    def encode(self, offset: int, limit: int, bound_to: str) -> str:
        """The metadata to commit with this offset; empty if even one stretch takes too many bytes.

        The limit is in bytes; ``bound_to`` is as in ``Remaining.encode``.
        """
        return origin_text(
            self.run,
            self.batch,
            self.stretches,
            offset,
            limit,
            bound_to,
            self.set_backs,
            self.by_sink,
        )

    @classmethod
    def decode(cls, offset: int, metadata: str | None, bound_to: str) -> Origin | None:
        """Who committed this offset; None if the metadata do not say it of this very commit."""
        ours = _OURS.match(metadata or "")
        if ours is None or int(ours[1]) != _VERSION:
            return None
        text = _TEXT.fullmatch(ours[2])
        if text is None or text["checksum"] != _checksum(offset, bound_to, text["body"]):
            return None
        parts = [part.rpartition("-") for part in text["stretches"][1:].split(".")]
        stretches = tuple(Stretch(query, int(since)) for query, _, since in parts)
        set_backs = parse_set_backs(text["set_backs"])
        by_sink = bool(text["by_sink"])
        return cls(text["run"], int(text["batch"]), stretches, set_backs, by_sink)


def origin_text(
    run: str,
    batch: int,
    stretches: Sequence[Stretch],
    offset: int,
    limit: int,
    bound_to: str,
    set_backs: Sequence[SetBack] = (),
    by_sink: bool = False,
) -> str:
    """As :meth:`Origin.encode`; made for each of thousands of partitions in each commit."""
    body = f"{run}.{batch}t" if by_sink else f"{run}.{batch}"
    if set_backs:
        body += set_backs_text(set_backs)
    for query, since in stretches:
        body += f".{query}-{since}"
    text = f"{_PREFIX}{_checksum(offset, bound_to, body)}.{body}"
    if len(text) <= limit:
        return text
    if len(set_backs) > 1:
        set_backs = (joined(set_backs),)
    elif len(stretches) == 1:
        return ""
    else:
        stretches = stretches[1:]
    return origin_text(run, batch, stretches, offset, limit, bound_to, set_backs, by_sink)


def taken_over(
    before: Sequence[Stretch], query: str, since: int, gaps: Sequence[Gap]
) -> tuple[Stretch, ...]:
    """Who delivers what once a query has taken a partition over; with nobody's id, a consumer.

    It goes on at ``since``, and in the gaps that the last owner has left below.
    """
    found = _with_stretch(before, query, since)
    if not before or not gaps:
        return found[-MOST_STRETCHES:]
    lowest = gaps[0].start
    if 2 * len(gaps) + 2 > MOST_STRETCHES_WITH_GAPS:
        # All above the lowest gap counts as this query's. If it counted as the last owner's, that
        # would read the gaps when it is back, as if it were restored.
        return _with_stretch(before, query, min(since, lowest))[-MOST_STRETCHES:]
    for oldest in range(len(before) + 1):
        # What is too much counts as delivered by others, from the oldest on; never a gap.
        named = [Stretch(NOBODY, one.since) for one in before[:oldest]] + [*before[oldest:]]
        found = _with_stretch(named, query, since)
        for gap in gaps:
            found = _with_stretch(found, query, *gap)
        kept = max(MOST_STRETCHES, 1 + sum(stretch.since >= lowest for stretch in found))
        if kept <= MOST_STRETCHES_WITH_GAPS:
            break
    return found[-kept:]


def _with_stretch(
    stretches: Sequence[Stretch], query: str, start: int, end: int | None = None
) -> tuple[Stretch, ...]:
    """The same, but [start, end) is this query's; without an end, everything from there on."""
    below = [stretch for stretch in stretches if stretch.since < start]
    found = [*below, Stretch(query, start)]
    if end is not None:
        until_end = [stretch for stretch in stretches if stretch.since <= end]
        found += [Stretch(stretch.query, end) for stretch in until_end[-1:]]
        found += [stretch for stretch in stretches if stretch.since > end]
    return tuple(
        stretch
        for at, stretch in enumerate(found)
        if not at or found[at - 1].query != stretch.query
    )


def with_origin(origin: str, metadata: str) -> str:
    """The metadata of a commit: an origin in place of the one that they begin with, if any."""
    return " ".join(filter(None, (origin, without_origin(metadata))))


def without_origin(metadata: str) -> str:
    """The metadata behind an origin of whatever version; all of them if there is none."""
    ours = _OURS.match(metadata)
    return metadata if ours is None else metadata[ours.end() :]


def is_origin(metadata: str) -> bool:
    """Whether these metadata begin with an origin that this version could have written."""
    ours = _OURS.match(metadata)
    return ours is not None and int(ours[1]) <= _VERSION


def _checksum(offset: int, bound_to: str, body: str) -> str:
    return f"{zlib.crc32(f'{_VERSION} {offset} {bound_to} {body}'.encode()):08x}"
