"""Remaining: what a partition still owes, and how that travels with its OffsetCommit.

The unprocessed offsets of a partition are a set: some bounded gaps, and everything from the live
position on. Workers that finish out of order leave gaps (KIP-983, problem 4), and so does who
begins at the end of a log and catches up later (KIP-333)::

              gap          gap                  live position
    ──────────[70, 120)────[300, 310)───────────[4 000, ∞)

The group's committed offset is the lowest number of the set, for every Kafka tool to see. The rest
is the metadata string of the same OffsetCommit.

Invariants:
 1. Gaps are not empty, in order, and neither overlap nor touch one another.
 2. No gap reaches beyond the live position. The last one may touch it: the set is the same as if
    the live position were at the gap's start, but who reads it is another.
 3. An offset leaves the set only when it is known to be processed, or to have no record. Metadata
    that are foreign or of another commit, and gaps that do not fit, repeat records and lose none.

Pure.
"""

from __future__ import annotations

import base64
import enum
import re
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from .gaps import Gap, common, end_of, joined, runs, start_of
from .golomb import packed, unpacked

#: The broker's ``offset.metadata.max.bytes`` unless it is configured otherwise.
DEFAULT_METADATA_BYTES = 4_096

#: What metadata of ours begin with, whatever their version.
_OURS = re.compile(r"unprocessed/([1-9][0-9]{0,8}):")
_VERSION = 1
_PREFIX = f"unprocessed/{_VERSION}:"
_TEXT = re.compile(r"([A-Za-z0-9_-]+)(?:\.([0-9]{1,10}))?")

_CHECKSUM_BYTES = 4
_HIGHEST = 2**63 - 1


class Told(enum.Enum):
    """What the metadata of a commit told of the records beyond its offset."""

    NOTHING = "nothing: they are empty, or somebody else's"
    GAPS = "gaps"
    ANOTHER_COMMIT = "nothing: they belong to another commit, or are damaged"
    NEWER = "nothing: a newer version of this package wrote them"


class Decoded(NamedTuple):
    """What is left to process as of a commit, and what that was read from."""

    remaining: Remaining
    told: Told
    #: Of the highest record that was processed, when the metadata were written; -1: unknown.
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class Remaining:
    """The unprocessed offsets of one partition; no operation changes it.

    Parameters
    ----------
    live : int
        The live position: all offsets from here on are unprocessed.
    gaps : tuple of Gap
        What is unprocessed below it (invariants 1 and 2).

    Raises
    ------
    ValueError
        The invariants do not hold; :meth:`of` takes any ranges.
    """

    live: int
    gaps: tuple[Gap, ...] = ()

    def __post_init__(self) -> None:
        if self.live < 0 or (self.gaps and not self._are_below()):
            raise ValueError(f"these are no gaps below the live position {self.live}: {self.gaps}")

    def _are_below(self) -> bool:
        gaps = self.gaps
        return (
            gaps[0].start >= 0
            and gaps[-1].end <= self.live
            and all(gap.start < gap.end for gap in gaps)
            and all(gap.end < after.start for gap, after in pairwise(gaps))
        )

    @classmethod
    def of(cls, ranges: Iterable[tuple[int, int]], live: int) -> Remaining:
        """The union of any ranges [start, end) and all from the live position on.

        What of a range lies beyond the live position is cut off: it is in the set already.
        """
        gaps: list[Gap] = []
        for start, end in sorted(ranges):
            end = min(end, live)
            if gaps and start <= gaps[-1].end:
                gaps[-1] = Gap(gaps[-1].start, max(gaps[-1].end, end))
            elif start < end:
                gaps.append(Gap(start, end))
        return cls(live, tuple(gaps))

    # -- questions --------------------------------------------------------------------------------

    def committed(self) -> int:
        """The offset to commit: the lowest that is not processed."""
        return self.gaps[0].start if self.gaps else self.live

    def __contains__(self, offset: int) -> bool:
        """Whether the record at this offset is still to be processed."""
        return self.next_from(offset) == offset

    def next_from(self, offset: int) -> int:
        """The lowest unprocessed offset that is not below this one."""
        at = bisect_right(self.gaps, offset, key=end_of)
        if at < len(self.gaps):
            return max(offset, self.gaps[at].start)
        return max(offset, self.live)

    def between(self, start: int, end: int) -> tuple[Gap, ...]:
        """What is unprocessed of [start, end), in order; what touches the live position is one."""
        if start >= end:
            return ()
        gaps = self.gaps[
            bisect_right(self.gaps, start, key=end_of) : bisect_left(self.gaps, end, key=start_of)
        ]
        found = [Gap(max(gap.start, start), min(gap.end, end)) for gap in gaps]
        if max(start, self.live) < end:
            beyond = Gap(max(start, self.live), end)
            if found and found[-1].end == beyond.start:
                beyond = Gap(found.pop().start, end)
            found.append(beyond)
        return tuple(found)

    def count(self, end: int) -> int:
        """How many offsets below this end (exclusive) are unprocessed: the lag, at a log's end."""
        return sum(gap.end - gap.start for gap in self.between(0, end))

    # -- what happens to a partition --------------------------------------------------------------

    def hand_out(self, start: int, end: int, offsets: Sequence[int] | None = None) -> Remaining:
        """A reader went over [start, end): what it found there remains, as a gap.

        Of any reader: of the live one, whose position is behind the gap afterwards, and of one
        that catches up within a gap. What was processed already is not to be processed again.

        Parameters
        ----------
        start, end : int
            Where the reader stood before and where it stands now. What it passed without finding
            a record (compaction, markers of transactions) does not exist, and remains no longer.
        offsets : sequence of int, optional
            Those of the records that it found, ascending, all in [start, end). By default any of
            them may exist; from the live position on that alone sets a backlog aside (KIP-333).

        Returns
        -------
        Remaining
            A live position that was below ``end`` is at ``end``. What lies between it and
            ``start`` remains; ``process`` it where it was sought past for good.
        """
        within = self.between(start, end)
        if offsets is not None and len(offsets) < end - start:
            within = tuple(common(within, tuple(runs(offsets))))
        return self._replace(start, end, within)

    def process(self, start: int, end: int) -> Remaining:
        """The records in [start, end) are processed, whether anybody handed them out or not.

        Beyond the live position too, which is at ``end`` then.
        """
        return self if start == end else self._replace(start, end, ())

    def start_over(self, offset: int) -> Remaining:
        """Everything from this offset on is to be processed, also what was before.

        After a seek back, or when a log was truncated there or created anew: the records from
        here on may be others. The gaps below stay. From beyond the live position it changes
        nothing. Where the group itself was reset, begin with ``Remaining(offset)``.
        """
        live = min(self.live, offset)
        return Remaining(live, self.between(0, live))

    def trim(self, log_start: int) -> Remaining:
        """The records below the log start offset were deleted: nobody can process them.

        ``count(log_start)`` says before how many are lost at most.
        """
        return self._replace(0, log_start, ())

    def merge(self, other: Remaining) -> Remaining:
        """What both hold unprocessed: each of two views knows truly what was processed.

        The live position is the higher one.
        """
        lower, higher = (self, other) if self.live < other.live else (other, self)
        if not higher.gaps:  # mostly: nothing below it is left
            return higher
        return Remaining(higher.live, tuple(common(lower.between(0, higher.live), higher.gaps)))

    def close_spaces(self, gaps: int) -> Remaining:
        """At most so many gaps: the smallest of the spaces behind them are closed.

        What lies in a space that is closed is processed once more. No other set of so few gaps
        repeats fewer offsets.
        """
        if len(self.gaps) <= gaps:
            return self
        spaces = [after.start - gap.end for gap, after in pairwise(self.gaps)]
        spaces.append(self.live - self.gaps[-1].end)
        wide = sorted(range(len(spaces)), key=spaces.__getitem__, reverse=True)[:gaps]
        kept: list[Gap] = []
        start = self.committed()
        for at in sorted(wide):
            kept.append(Gap(start, self.gaps[at].end))
            start = self.live if at + 1 == len(self.gaps) else self.gaps[at + 1].start
        return Remaining(start, tuple(kept))

    def _replace(self, start: int, end: int, within: Iterable[Gap]) -> Remaining:
        """The same outside of [start, end), and inside of it what is given."""
        if start > end:
            return self
        live = max(self.live, end)
        pieces = (*self.between(0, start), *within, *self.between(end, live))
        return Remaining(live, tuple(joined(pieces)))

    # -- the metadata of an OffsetCommit ----------------------------------------------------------

    def encode(
        self, limit: int = DEFAULT_METADATA_BYTES, bound_to: str = "", leader_epoch: int = -1
    ) -> str:
        """The metadata to commit together with the offset ``committed()``.

        ASCII: ``unprocessed/1:`` and, in base64 for URLs (RFC 4648, without padding), a checksum
        and the lengths of the gaps and of the spaces behind them in turn, less one; then a dot
        and the leader epoch, if it is known. A length is
        written in an exponential Golomb code, with one parameter for the gaps and one for the
        spaces. Where half of the records are processed that is a tenth more than a bitset, and
        where few are not a fraction of one. Numbers of whole bytes, deflated, take from a quarter
        less (thousands of lengths that repeat) to half as much again (tens of gaps). Sizes in
        bytes, prefix and checksum included:

        ====================================================  ==  ==  ===  =====  ======
        gaps                                                   1  10  100  1,000  10,000
        ====================================================  ==  ==  ===  =====  ======
        half of the records, at random                        22  29   97    770   7,576
        single records, 20 processed ones between on average  22  33  142  1,208  11,833
        single records, 1,000 processed ones between          24  44  233  2,148  21,194
        runs of up to a million, as much between              29  90  718  6,998  69,697
        ====================================================  ==  ==  ===  =====  ======

        So the default limit has room for about 5,300, 3,400, 1,900 and 580 gaps.

        A commit by hand with the application's own metadata carries none of these.

        Parameters
        ----------
        limit : int
            In bytes, the broker's ``offset.metadata.max.bytes``. What does not fit closes the
            smallest spaces between gaps until it does: that repeats records and loses none.
        bound_to : str
            What else than its offset the commit is bound to, such as the topic's id: metadata
            are believed only where the same is given to :meth:`decode`.
        leader_epoch : int
            Of the highest record that is processed, -1 if unknown. A record of a later epoch is
            another than the one processed there: the log was truncated in between (KIP-320).

        Returns
        -------
        str
            Empty if there is nothing to tell beyond the offset.
        """
        gaps, live = self.gaps, self.live
        if gaps and gaps[-1].end == live:  # a set; who reads what is not told
            gaps, live = gaps[:-1], gaps[-1].start
        told = Remaining(live, gaps)
        while told.gaps:
            text = told._encoded(bound_to, leader_epoch)
            if len(text) <= limit:
                return text
            fitting = len(told.gaps) * limit // len(text)
            told = told.close_spaces(min(fitting, len(told.gaps) - 1))
        return ""

    def _encoded(self, bound_to: str, leader_epoch: int) -> str:
        lengths = [gap.end - gap.start - 1 for gap in self.gaps]
        spaces = [after.start - gap.end - 1 for gap, after in pairwise(self.gaps)]
        spaces.append(self.live - self.gaps[-1].end - 1)
        body = packed(lengths, spaces)
        checksum = _checksum(self.committed(), leader_epoch, bound_to, body)
        text = base64.urlsafe_b64encode(checksum + body).rstrip(b"=").decode()
        return f"{_PREFIX}{text}.{leader_epoch}" if leader_epoch >= 0 else _PREFIX + text

    @classmethod
    def decode(cls, offset: int, metadata: str | None, bound_to: str = "") -> Decoded:
        """What is left to process as of a commit; never fails.

        Parameters
        ----------
        offset : int
            The committed offset. Metadata that were written for another one, such as those that a
            tool kept when it set the group's offset, tell nothing.
        metadata : str or None
            As committed, maybe by somebody else.
        bound_to : str
            As given to :meth:`encode`.

        Returns
        -------
        Decoded
            Without gaps, everything from the offset on, unless the metadata tell more.
        """
        plain = cls(offset)
        ours = _OURS.match(metadata or "")
        if metadata is None or ours is None:
            return Decoded(plain, Told.NOTHING)
        if int(ours[1]) > _VERSION:
            return Decoded(plain, Told.NEWER)
        text = _TEXT.fullmatch(metadata, ours.end())
        if text is None or len(text[1]) % 4 == 1:
            return Decoded(plain, Told.ANOTHER_COMMIT)
        leader_epoch = int(text[2] or -1)
        raw = base64.urlsafe_b64decode(text[1] + "=" * (-len(text[1]) % 4))
        checksum, body = raw[:_CHECKSUM_BYTES], raw[_CHECKSUM_BYTES:]
        numbers = unpacked(body)
        end = offset + sum(numbers) + len(numbers)
        if (
            checksum != _checksum(offset, leader_epoch, bound_to, body)
            or not numbers
            or len(numbers) % 2
            or end > _HIGHEST
        ):
            return Decoded(plain, Told.ANOTHER_COMMIT)
        gaps = []
        start = offset
        for length, space in zip(numbers[::2], numbers[1::2], strict=True):
            gaps.append(Gap(start, start + length + 1))
            start += length + 1 + space + 1
        return Decoded(cls(start, tuple(gaps)), Told.GAPS, leader_epoch)


def is_ours(metadata: str) -> bool:
    """Whether this version could have written these metadata, for whatever commit."""
    ours = _OURS.match(metadata)
    return ours is not None and int(ours[1]) <= _VERSION


def _checksum(offset: int, leader_epoch: int, bound_to: str, body: bytes) -> bytes:
    """CRC-32 of a commit's offset, of what else it is bound to, and of what it tells."""
    bound = f"{_VERSION} {offset} {leader_epoch} {bound_to}\0".encode()
    return zlib.crc32(bound + body).to_bytes(_CHECKSUM_BYTES, "big")
