"""CommitLine: the commits of one partition, by hand and in the background, in their order.

A part of ``OffsetCommits``, which has the rules and the numbered invariants for both kinds.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kafka.structs import OffsetAndMetadata

from .commit_by_hand import CommitByHand


@dataclass
class Stretch:
    """A partition's background commits between two commits by hand."""

    waiting: OffsetAndMetadata | None = None
    floor: int = -1  # only higher offsets are news
    back_to: int | None = None  # the position moved back to here
    added_after: int | None = None  # the value of back_to when ``waiting`` was added

    def add(self, entry: OffsetAndMetadata) -> None:
        """Records up to here are processed; ignored if it is no news."""
        if entry.offset > self.floor:
            self.waiting, self.floor, self.added_after = entry, entry.offset, self.back_to

    def move_back(self, offset: int) -> None:
        """Polls go on from this offset, which may be lower."""
        self.floor = min(self.floor, offset - 1)
        self.back_to = _lower(self.back_to, offset)

    def passes(self, floor: int) -> bool:
        """Whether what waits here is news to a group that stands at ``floor``."""
        return self.waiting is not None and self.waiting.offset > _lowered(floor, self.added_after)


def _lower(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)


def _lowered(floor: int, back_to: int | None) -> int:
    """The floor after a move back to ``back_to``."""
    return floor if back_to is None else min(floor, back_to - 1)


@dataclass
class CommitLine:
    """One partition: stretches, and between each two an unanswered commit by hand."""

    stretches: list[Stretch] = field(default_factory=lambda: [Stretch()])
    by_hand: list[CommitByHand] = field(default_factory=list)
    acknowledged: int | None = None
    began_at: int | None = None  # the group's offset from which the partition is read
    sought_to: int | None = None  # the lowest offset the position moved back to since a commit
    left: int | None = None  # the highest position that a lower commit by hand has left
    # The last stretch at the time of a seek, and the sought offset, while nothing is handed out
    # there. An offset from there on, once added, makes the seek a move back.
    sought: tuple[Stretch, int] | None = None
    sought_since: int | None = None  # the same offset, while nothing was committed since
    described: bool = False  # the last commit has metadata of the application's own

    @property
    def waits(self) -> bool:
        """Whether something is to be sent."""
        return bool(self.by_hand) or self.stretches[0].waiting is not None

    def add(self, entry: OffsetAndMetadata) -> None:
        """Records up to here are processed."""
        if self.sought is not None and entry.offset >= self.sought[1]:
            self._move_back(*self.sought)
        self.stretches[-1].add(entry)

    def enter(self, by_hand: CommitByHand) -> None:
        """Enter a commit by hand, after what was entered before it."""
        self.by_hand.append(by_hand)
        self.stretches.append(Stretch())

    def accepted(self, by_hand: CommitByHand, offset: int) -> None:
        """The first commit by hand is accepted: what was before it is over (invariant 5)."""
        assert self.by_hand[0] is by_hand
        del self.by_hand[0], self.stretches[0]
        first = self.stretches[0]
        if not first.passes(offset):
            first.waiting = None
        first.floor = max(first.floor, _lowered(offset, first.back_to))
        self.acknowledged = offset

    def repeat(self, entry: OffsetAndMetadata, in_flight: bool) -> None:
        """Commit this once more, unless more waits, or the application's own commit must stand."""
        if self.waits or self.described or self.left is not None:
            return
        stands = self.began_at if self.acknowledged is None else self.acknowledged
        if in_flight or stands == entry.offset:
            self.stretches[0].waiting = entry
        elif stands is None or entry.offset > stands:
            self.stretches[0].add(entry)

    def goes_back(self, offset: int) -> bool:
        """Note that a commit by hand of this offset is accepted; whether it moves the group back.

        One that does leaves a position behind. Later ones below that position move the group back
        too, until one has reached it, or the background goes on.
        """
        before = self.began_at if self.acknowledged is None else self.acknowledged
        waits = self.stretches[0].waiting
        if waits is not None:  # added before it, and not sent any more
            before = waits.offset if before is None else max(before, waits.offset)
        sought_to = _lower(self.sought_to, self.sought_since)
        if before is not None and sought_to is not None:
            before = min(before, sought_to)
        if self.left is not None:
            before = self.left if before is None else max(before, self.left)
        self.left = before if before is not None and offset < before else None
        self.sought_to = self.sought_since = None
        return self.left is not None

    def withdraw(self, by_hand: CommitByHand) -> None:
        """Remove a commit by hand as if it had never been entered (invariant 6)."""
        at = self.by_hand.index(by_hand)
        del self.by_hand[at]
        before, after = self.stretches[at], self.stretches.pop(at + 1)
        if self.sought is not None and self.sought[0] is after:
            self.sought = before, self.sought[1]
        if after.passes(before.floor):
            before.waiting = after.waiting
            before.added_after = _lower(before.back_to, after.added_after)
        if after.back_to is not None:
            before.move_back(after.back_to)
        before.floor = max(before.floor, after.floor)

    def truncate(self, offset: int) -> None:
        """The records from this offset on are gone: forget what was said about them."""
        for stretch in self.stretches:
            if stretch.waiting is not None and stretch.waiting.offset > offset:
                stretch.waiting = None
        if self.acknowledged is not None and self.acknowledged > offset:
            self.acknowledged = None
        if self.began_at is not None and self.began_at > offset:
            self.began_at = None
        self.move_back(offset)

    def seek(self, offset: int | None) -> None:
        """Polls are to go on from this offset, whatever was sought before; None if unknown."""
        self.sought = None if offset is None else (self.stretches[-1], offset)
        self.sought_since = offset

    def move_back(self, offset: int) -> None:
        """Polls go on from this offset."""
        self._move_back(self.stretches[-1], offset)
        self.left = None

    def _move_back(self, stretch: Stretch, offset: int) -> None:
        stretch.move_back(offset)
        self.sought_to = _lower(self.sought_to, offset)
        self.sought = self.sought_since = None
