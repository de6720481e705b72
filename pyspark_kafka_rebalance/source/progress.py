"""progress(query): a query's position in each of its partitions, as a table.

It needs only ``query.recentProgress``, so it works wherever Spark's progress is: in a notebook on
the driver, through Spark Connect, in a ``StreamingQueryListener``, in a log. An offset names
the owners of the partitions that its batch reads, and no others (see ``stream_offset.py``); for the
rest, earlier progresses do.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from kafka.structs import TopicPartition

from .offsets.offset_json import is_own, parse_built_in, parse_offset
from .offsets.stream_offset import StreamOffset
from .progress_table import (
    ASSIGNED,
    LOST,
    OWNED,
    REVOKED,
    REVOKING,
    PartitionProgress,
    QueryProgress,
)

#: Over how many of the last batches the rate of catching up is measured.
_RATE_OF_BATCHES = 10


def progress(query: Any) -> QueryProgress:
    """Return the state of each of a query's partitions.

    Parameters
    ----------
    query : StreamingQuery, StreamingQueryProgress, dict, str, or a sequence of progresses
        A running or ended query, of classic Spark or Spark Connect; or its ``recentProgress`` or
        ``lastProgress``, the latter also as a dict or JSON. A single progress covers only the
        partitions that its batch read or whose end offset is known.

    Returns
    -------
    QueryProgress
        Empty before the first batch.

    Raises
    ------
    TypeError
        ``query`` is none of these.
    ValueError
        The query has no source of the format ``kafka_deferred``.
    OffsetFormatError
        A newer release of this package made the progress.

    Examples
    --------
    >>> print(progress(spark.streams.active[0]))  # doctest: +SKIP
    orders-etl, batch 1207, 2026-11-21T12:00:03.250Z: 2 partitions, lag 7
    topic   partition  member                     position  end offset  lag  state
    orders          0  kafka_deferred-1f0c9a77-0    10,250      10,254    4  assigned
    orders          1  kafka_deferred-1f0c9a77-1     9,870       9,873    3  revoking
    orders          2  kafka_deferred-1f0c9a77-0    10,113           -    -  revoked
    """
    progresses = [as_dict(one) for one in _progresses(query)]
    if not progresses:
        return QueryProgress(query=_name_of(query))
    told = QueryStory()
    for one in progresses:
        told.add(one)
    if told.is_foreign:
        described = ", ".join(str(s.get("description")) for s in progresses[-1].get("sources", []))
        raise ValueError(f"the query has no source of the format kafka_deferred: {described}")
    table = told.table()
    return table if getattr(query, "isActive", True) else table.ended()


class QueryStory:
    """Follows one run of a query through its progresses, from the oldest to the newest."""

    def __init__(self) -> None:
        self._stories: list[_Story] = []
        self._last: Mapping[str, Any] = {}

    def add(self, progress: Mapping[str, Any]) -> None:
        """Take in the next progress, as plain values."""
        self._last = progress
        sources = progress.get("sources") or []
        self._stories += [_Story() for _ in sources[len(self._stories) :]]
        for story, source in zip(self._stories, sources, strict=False):
            story.add(source, seconds_of(progress))

    @property
    def is_foreign(self) -> bool:
        """Whether no source is of this format."""
        return all(story.is_foreign for story in self._stories)

    def generations(self) -> dict[str, int]:
        """Return each member's generation or member epoch, as of the last batch."""
        return {
            member: number
            for story in self._stories
            for member, number in story.generations.items()
        }

    def table(self) -> QueryProgress:
        """Return the state of the query's partitions now."""
        return QueryProgress(
            query=self._last.get("name") or str(self._last.get("id")),
            batch=self._last.get("batchId"),
            timestamp=self._last.get("timestamp"),
            partitions=tuple(row for story in self._stories for row in story.rows()),
            catch_up_ends_in_s=_ends_in_s(self._stories),
            groups=tuple(story.group for story in self._stories if story.group is not None),
        )


class _Story:
    """The state that the progresses of one source add up to, from the oldest to the newest."""

    def __init__(self) -> None:
        self._states: dict[TopicPartition, str] = {}
        self._members: dict[TopicPartition, str] = {}
        self._positions: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._gaps: dict[TopicPartition, int] = {}  # how many offsets are left in them
        # For each batch: the start of its trigger, how long that took, how many offsets of gaps it
        # read.
        self._caught_up: deque[tuple[float, float, int]] = deque(maxlen=_RATE_OF_BATCHES)
        self._is_first = True
        self.generations: dict[str, int] = {}  # by member
        self.group: str | None = None  # if named after the query
        self.is_foreign = False

    def add(self, source: Mapping[str, Any], seconds: tuple[float, float] | None) -> None:
        """Add the next progress; ``seconds``: the start of its trigger, and its duration."""
        start, end = plain_offset(source.get("startOffset")), plain_offset(source.get("endOffset"))
        if not is_ours(source):
            self.is_foreign = end is not None
            return
        self.is_foreign = False
        is_first, self._is_first = self._is_first, False
        if is_first and (is_own(start) or parse_built_in(start)):
            before = parse_offset(start)
            self._positions, self._gaps = before.positions(), _left_in_gaps(before)
        # An idle trigger's progress repeats the offset of the previous batch.
        is_idle = end == start
        batch = parse_offset(end) if is_first or not is_idle else None
        if batch is not None:
            self._read(batch)
            if seconds is not None and not is_idle:
                number = sum(len(one) for pieces in batch.catch_up.values() for one in pieces)
                self._caught_up.append((*seconds, number))
        ends = plain_offset(source.get("latestOffset"))
        # Spark 4.0 and 4.1 have the end of the batch there, since they know no end offsets.
        if isinstance(ends, dict) and not is_own(ends):
            self._own(
                {
                    TopicPartition(topic, int(number)): offset
                    for topic, by_number in ends.items()
                    for number, offset in by_number.items()
                }
            )
            if batch is not None and not is_idle:
                self._fill_in(batch)
        elif batch is not None and end.get("version") != 1:  # version 1 lacks some positions
            self._forget_deleted(batch)

    def _read(self, batch: StreamOffset) -> None:
        """Take over the state at the end of a batch."""
        self._positions.update(batch.positions())
        self._gaps = _left_in_gaps(batch)
        self.group = batch.group
        if batch.members:
            self.generations.clear()
        for index, member in enumerate(batch.members):
            name = f"{batch.run}-{index}"
            self.generations[name] = member.generation
            self._members |= dict.fromkeys(member.partitions, name)
        for partition, state in self._states.items():
            if state == REVOKING:
                self._states[partition] = REVOKED
        self._states |= dict.fromkeys((*batch.ranges, *batch.catch_up), ASSIGNED)
        self._states |= dict.fromkeys(batch.revoking, REVOKING)
        self._states |= dict.fromkeys(batch.lost, LOST)

    def _forget_deleted(self, batch: StreamOffset) -> None:
        """Give up partitions without a position: an offset has one for each that still exists."""
        for partition in self._states.keys() - batch.positions().keys():
            if self._states[partition] == ASSIGNED:
                self._states[partition] = REVOKED

    def _own(self, ends: dict[TopicPartition, int]) -> None:
        """Take over the end offsets: the query owns exactly the partitions that have one."""
        self._ends = ends
        for partition in ends:
            state = self._states.get(partition)
            if state in (REVOKED, LOST):
                self._positions.pop(partition, None)  # another owner has read on in between
            if state != REVOKING:
                self._states[partition] = ASSIGNED
        for partition, state in self._states.items():
            if state in OWNED and partition not in ends:
                self._states[partition] = REVOKED

    def _fill_in(self, batch: StreamOffset) -> None:
        """Place partitions without a range at their end.

        In a batch that has ranges, they have no backlog, unless they are being revoked.
        """
        if batch.ranges:
            for partition in self._ends.keys() - batch.revoking:
                self._positions.setdefault(partition, self._ends[partition])

    def rows(self) -> Iterator[PartitionProgress]:
        """Yield the partitions as they are now."""
        for partition, state in sorted(self._states.items()):
            position = self._positions.get(partition)
            end = self._ends.get(partition) if state in OWNED else None
            lag = None if position is None or end is None else max(0, end - position)
            member = self._members.get(partition)
            left = self._gaps.get(partition, 0) if state in OWNED else 0
            yield PartitionProgress(
                partition.topic, partition.partition, member, position, end, lag, state, left
            )

    def catch_up_ends_in_s(self) -> float | None:
        """How long the owned gaps take at the rate of the last batches; None if unknown."""
        left = sum(row.catch_up_lag for row in self.rows())
        if not left:
            return 0.0
        if not self._caught_up:
            return None
        took_s = self._caught_up[-1][0] + self._caught_up[-1][1] - self._caught_up[0][0]
        read = sum(number for _, _, number in self._caught_up)
        return left * took_s / read if read and took_s > 0 else None


def _left_in_gaps(offset: StreamOffset) -> dict[TopicPartition, int]:
    return {p: sum(gap.end - gap.start for gap in found) for p, found in offset.gaps.items()}


def seconds_of(progress: Mapping[str, Any]) -> tuple[float, float] | None:
    """The start and the duration of a progress's trigger; None if the progress lacks them."""
    try:
        began_at = datetime.fromisoformat(str(progress["timestamp"]).replace("Z", "+00:00"))
        return began_at.timestamp(), float(progress["durationMs"]["triggerExecution"]) / 1000
    except (KeyError, TypeError, ValueError):
        return None


def _ends_in_s(stories: Sequence[_Story]) -> float | None:
    """When the last source will have caught up; None if that is unknown for any of them."""
    found = [story.catch_up_ends_in_s() for story in stories if not story.is_foreign]
    return None if None in found else max((one for one in found if one is not None), default=0.0)


def _progresses(query: Any) -> Sequence[Any]:
    if query is None:  # lastProgress before the first batch
        return []
    if hasattr(query, "recentProgress"):
        found: Sequence[Any] = query.recentProgress
        return found
    if isinstance(query, (str, Mapping)) or not isinstance(query, Sequence):
        return [query]
    return query


def as_dict(one: Any) -> dict[str, Any]:
    """Return a progress as plain values; from the JSON, if it is one of Spark's objects."""
    text = getattr(one, "json", one)
    found = json.loads(text) if isinstance(text, str) else text
    if not isinstance(found, Mapping) or "sources" not in found:
        raise TypeError(f"expected a streaming query or its progress, not {one!r:.200}")
    return dict(found)


def _name_of(query: Any) -> str | None:
    name = getattr(query, "name", None) or getattr(query, "id", None)
    return None if name is None else str(name)


def plain_offset(offset: Any) -> Any:
    """Parse an offset of a progress: it is nested, or text with Spark Connect, "null" for none."""
    if not isinstance(offset, str):
        return offset
    try:
        return json.loads(offset)
    except ValueError:  # a foreign source's, or "None"
        return None if offset == "None" else offset


def is_ours(source: Mapping[str, Any]) -> bool:
    """Whether a source in a progress is of this format.

    The end offset shows it, since each source makes its own. Only a batch that Spark's own source
    left in the checkpoint ends at one of that source's offsets; then the description shows it.
    """
    end = plain_offset(source.get("endOffset"))
    is_of_kafka = str(source.get("description")).startswith("Kafka")
    return is_own(end) or (parse_built_in(end) is not None and not is_of_kafka)
