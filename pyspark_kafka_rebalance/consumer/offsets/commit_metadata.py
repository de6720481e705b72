"""The metadata of an OffsetCommit: which offsets of a partition are unprocessed beyond its offset.

Those offsets are a set: some bounded gaps, and everything from the live position on. Workers that
finish out of order leave gaps (KIP-983, problem 4), and so does a consumer that starts at the end
of a log and catches up later (KIP-333)::

              gap          gap                  live position
    ──────────[70, 120)────[300, 310)───────────[4 000, ∞)

The group's committed offset is the lowest offset of the set, visible to every Kafka tool. The rest
is in the metadata string of the same commit: :class:`Remaining` is the set, and its text. While a
partition is owned, ``progress/partition.py`` keeps the set, by what is handed out and processed.

Invariants:
 1. Gaps are non-empty and in order, and neither overlap nor touch one another.
 2. No gap reaches beyond the live position. The last one may touch it: the set is the same as if
    the live position were at the gap's start, but another reader reads the gap.
 3. An offset leaves the set only when it is known to be processed, or to have no record. Metadata
    that are foreign or of another commit, and gaps that do not fit, repeat records and lose none.

The text has the lengths of gaps and of the spaces between them in exponential Golomb codes. A code
has a parameter k. A number n is written as n + 2^k in binary, with a zero before it for each of its
digits beyond k + 1. Small numbers are short, no number is too large, and no code is a prefix of
another. With k near the median of the numbers' own bit lengths, that is close to the shortest that
a fixed code can be for lengths of gaps, dense or sparse.

Pure.
"""

from __future__ import annotations

import base64
import enum
import re
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from .offset_set import Gap, common, end_of, start_of
from .origin import Origin, is_origin, taken_over, without_origin
from .set_backs import NOBODY

#: The bits of each of the two parameters: no offset has more than 63 bits.
_PARAMETER_BITS = 6


def _parameter(numbers: Sequence[int]) -> int:
    """The parameter that makes these numbers shortest, or nearly."""
    middle = sorted(numbers)[len(numbers) // 2].bit_length()
    return min(
        range(max(0, middle - 3), middle + 2),
        key=lambda k: sum(2 * (n + (1 << k)).bit_length() for n in numbers) - k * len(numbers),
    )


def packed(lengths: Sequence[int], spaces: Sequence[int]) -> bytes:
    """The two parameters, then lengths and as many spaces in turn; zeros fill the last byte."""
    orders = _parameter(lengths), _parameter(spaces)
    bits = [format(k, f"0{_PARAMETER_BITS}b") for k in orders]
    for pair in zip(lengths, spaces, strict=True):
        for number, k in zip(pair, orders, strict=True):
            written = format(number + (1 << k), "b")
            bits.append("0" * (len(written) - 1 - k) + written)
    whole = "".join(bits)
    size = (len(whole) + 7) // 8
    return int(whole.ljust(size * 8, "0"), 2).to_bytes(size, "big")


def unpacked(body: bytes) -> list[int]:
    """Lengths and spaces in turn, as packed; empty if the last one is cut off."""
    bits = format(int.from_bytes(body, "big"), f"0{len(body) * 8}b")
    if len(bits) < 2 * _PARAMETER_BITS:
        return []
    at = 2 * _PARAMETER_BITS
    orders = int(bits[:_PARAMETER_BITS], 2), int(bits[_PARAMETER_BITS:at], 2)
    numbers: list[int] = []
    while (one := bits.find("1", at)) >= 0:
        k = orders[len(numbers) % 2]
        end = one + 1 + (one - at) + k
        if end > len(bits):
            return []
        numbers.append(int(bits[one:end], 2) - (1 << k))
        at = end
    return numbers


#: The default of the broker's ``offset.metadata.max.bytes``.
DEFAULT_METADATA_BYTES = 4_096

#: The prefix of our metadata, whatever their version.
_OURS = re.compile(r"unprocessed/([1-9][0-9]{0,8}):")
_VERSION = 1
_PREFIX = f"unprocessed/{_VERSION}:"
_TEXT = re.compile(r"([A-Za-z0-9_-]+)(?:\.([0-9]{1,10}))?")

_CHECKSUM_BYTES = 4
_HIGHEST = 2**63 - 1


class Told(enum.Enum):
    """What a commit's metadata said about the records beyond its offset."""

    NOTHING = "are empty, or another client's"
    GAPS = "gaps"
    ANOTHER_COMMIT = "belong to another commit, or are damaged"
    NEWER = "were written by a newer version of this package"


class Decoded(NamedTuple):
    """The unprocessed offsets as of a commit, and whether its metadata were used."""

    remaining: Remaining
    told: Told
    #: The epoch of the highest record processed when the metadata were written; -1: unknown.
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class Remaining:
    """The unprocessed offsets of one partition as a commit reports them; immutable.

    Reports of the group, of other owners and of a query's batches are compared, merged and cut as
    such sets. The state of an owned partition is in ``PartitionCompletion``.

    All offsets from ``live``, the live position, on are unprocessed, and so are the gaps below it
    (invariants 1 and 2). Raises ValueError if the invariants do not hold; :meth:`of` takes any
    ranges.
    """

    live: int
    gaps: tuple[Gap, ...] = ()

    def __post_init__(self) -> None:
        if self.live < 0 or (self.gaps and not self._are_below()):
            raise ValueError(f"invalid gaps below the live position {self.live}: {self.gaps}")

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
        """The union of any ranges [start, end) and everything from the live position on.

        The part of a range beyond the live position is cut off: it is in the set already.
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
        """The lowest unprocessed offset that is at or above this one."""
        at = bisect_right(self.gaps, offset, key=end_of)
        if at < len(self.gaps):
            return max(offset, self.gaps[at].start)
        return max(offset, self.live)

    def between(self, start: int, end: int) -> tuple[Gap, ...]:
        """The unprocessed ranges of [start, end), in order; one touching the live part joins it."""
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
        """How many offsets below this end (exclusive) are unprocessed; at a log's end, the lag."""
        return sum(gap.end - gap.start for gap in self.between(0, end))

    # -- other sets made of it ---------------------------------------------------------------------

    def start_over(self, offset: int) -> Remaining:
        """Everything from this offset on is to be processed, also what was processed before.

        Use this after a seek back, or if a log was truncated there or recreated: the records from
        here on may be others. The gaps below stay. An offset beyond the live position changes
        nothing. If the group itself was reset, start with ``Remaining(offset)``.
        """
        live = min(self.live, offset)
        return Remaining(live, self.between(0, live))

    def trim(self, log_start: int) -> Remaining:
        """Remove what lies below the log start offset: nobody can process deleted records.

        ``count(log_start)``, called before, says how many are lost at most.
        """
        live = max(self.live, log_start)
        return Remaining(live, self.between(log_start, live))

    def merge(self, other: Remaining) -> Remaining:
        """What both hold unprocessed: each of the two views is right about what was processed.

        The live position is the higher one.
        """
        lower, higher = (self, other) if self.live < other.live else (other, self)
        if not higher.gaps:  # mostly: nothing below it is left
            return higher
        return Remaining(higher.live, tuple(common(lower.between(0, higher.live), higher.gaps)))

    def close_spaces(self, gaps: int) -> Remaining:
        """Reduce this to at most this many gaps, by closing the smallest spaces after gaps.

        The offsets in a closed space are processed once more. No other set with so few gaps repeats
        fewer offsets.
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

    # -- the metadata of an OffsetCommit ----------------------------------------------------------

    def encode(
        self, limit: int = DEFAULT_METADATA_BYTES, bound_to: str = "", leader_epoch: int = -1
    ) -> str:
        """The metadata to commit together with the offset ``committed()``.

        The text is ASCII: ``unprocessed/1:``, then in base64 for URLs (RFC 4648, without padding)
        a checksum and, in turn, the lengths of the gaps and of the spaces after them, each less
        one; then a dot and the leader epoch, if it is known. Lengths are in an exponential Golomb
        code, with one parameter for the gaps and one for the spaces. If half of the records are
        processed, that takes a tenth more than a bitset; if few are not processed, a fraction of
        one. Whole-byte numbers, deflated, would take from a quarter less (thousands of lengths
        that repeat) to half as much again (tens of gaps). Sizes in bytes, prefix and checksum
        included:

        ====================================================  ==  ==  ===  =====  ======
        gaps                                                   1  10  100  1,000  10,000
        ====================================================  ==  ==  ===  =====  ======
        half of the records, at random                        22  29   97    770   7,576
        single records, 20 processed ones between on average  22  33  142  1,208  11,833
        single records, 1,000 processed ones between          24  44  233  2,148  21,194
        runs of up to a million, as much between              29  90  718  6,998  69,697
        ====================================================  ==  ==  ===  =====  ======

        So the default limit has room for about 5,300, 3,400, 1,900 and 580 gaps.

        An explicit commit with the application's own metadata carries none of these.

        Empty if there is nothing to tell beyond the offset. The limit is in bytes, the broker's
        ``offset.metadata.max.bytes``. If the metadata do not fit, the smallest spaces between gaps
        are closed until they do: that repeats records and loses none.

        ``bound_to`` is what the commit is bound to besides its offset, such as the topic's id:
        :meth:`decode` accepts metadata only if it is given the same. The leader epoch is that of
        the highest record that is processed, -1 if unknown. A record of a later epoch is not the
        one processed at that offset: the log was truncated in between (KIP-320).
        """
        gaps, live = self.gaps, self.live
        if gaps and gaps[-1].end == live:  # the same set; metadata name no reader
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

        That is everything from the offset on, without gaps, unless the metadata say more, possibly
        somebody else's. Metadata that were written for another offset, such as those that a tool
        kept when it set the group's offset, are ignored.
        """
        plain = cls(offset)
        metadata = without_origin(metadata or "")
        ours = _OURS.match(metadata)
        if ours is None:
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
    """Whether this version could have written these metadata, for any commit."""
    rest = without_origin(metadata)
    if rest != metadata and not rest:
        return is_origin(metadata)
    ours = _OURS.match(rest)
    return ours is not None and int(ours[1]) <= _VERSION


def _checksum(offset: int, leader_epoch: int, bound_to: str, body: bytes) -> bytes:
    """CRC-32 of a commit's offset and leader epoch, of its binding, and of what it carries."""
    bound = f"{_VERSION} {offset} {leader_epoch} {bound_to}\0".encode()
    return zlib.crc32(bound + body).to_bytes(_CHECKSUM_BYTES, "big")


class GroupCommit(NamedTuple):
    """What a group has committed of one partition."""

    remaining: Remaining
    #: Which query committed; None if another client did, or an older release.
    origin: Origin | None = None

    @classmethod
    def decode(cls, offset: int, metadata: str | None, bound_to: str) -> GroupCommit:
        """As :meth:`Remaining.decode` and :meth:`Origin.decode`."""
        left = Remaining.decode(offset, metadata, bound_to).remaining
        return cls(left, Origin.decode(offset, metadata, bound_to))

    def carried_on(self) -> Origin | None:
        """The origin of commits of a consumer, no query, that goes on from this commit."""
        if self.origin is None:
            return None
        left, before = self.remaining, self.origin.stretches
        stretches = taken_over(before, NOBODY, left.live, left.gaps)
        return replace(self.origin, run=NOBODY, batch=0, stretches=stretches, by_sink=False)
