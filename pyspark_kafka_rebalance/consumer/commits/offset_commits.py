"""OffsetCommits: the offsets that wait to be committed, are in flight, or are acknowledged.

Two kinds of commits share one order. A *background* commit reports how far everything is processed:
background commits are merged, and sent again until the answer is final. An *explicit* commit
(``by_hand``) sets the group's offset, even to a lower one: it is sent as it is.

Invariants:
 1. At most one commit is in flight, of either kind.
 2. In the background, a partition's committed position only moves forward while it is owned, unless
    the read position moved back (a seek, a truncation, a recreated topic).
 3. An offset becomes acknowledged only by the broker's answer to a commit that carried it.
 4. Nothing more is sent for a dropped (lost or released) partition, not even an explicit commit.
 5. Explicit commits are sent in the order in which they were entered. A background offset added
    before one is not sent after that commit was accepted. One added after it is sent once the
    commit is answered, and only if it is higher or the position moved back in between.
 6. If an explicit commit is not accepted, the offsets that it would have replaced are sent.

Pure: ``CommitLoop`` sends, over the lane, and holds a lock around every call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kafka.structs import OffsetAndMetadata, TopicPartition

from ..offsets.committable import Committable, as_entry
from .commit_by_hand import CommitByHand


@dataclass
class Stretch:
    """A partition's background commits between two explicit commits."""

    waiting: OffsetAndMetadata | None = None
    floor: int = -1  # lower or equal offsets are ignored
    back_to: int | None = None  # the position moved back to here
    added_after: int | None = None  # the value of back_to when ``waiting`` was added

    def add(self, entry: OffsetAndMetadata) -> None:
        """Records up to here are processed; ignored unless above ``floor``."""
        if entry.offset > self.floor:
            self.waiting, self.floor, self.added_after = entry, entry.offset, self.back_to

    def move_back(self, offset: int) -> None:
        """Polls continue at this offset, which may be lower."""
        self.floor = min(self.floor, offset - 1)
        self.back_to = _lower(self.back_to, offset)

    def passes(self, floor: int) -> bool:
        """Whether the waiting offset is news to a group that is at ``floor``."""
        return self.waiting is not None and self.waiting.offset > _lowered(floor, self.added_after)


def _lower(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)


def _lowered(floor: int, back_to: int | None) -> int:
    """The floor after a move back to ``back_to``."""
    return floor if back_to is None else min(floor, back_to - 1)


@dataclass
class CommitLine:
    """The explicit and background commits of one partition, in their order.

    Background commits form stretches, with an unanswered explicit commit between each two. A part
    of ``OffsetCommits``; the invariants are the module's.
    """

    stretches: list[Stretch] = field(default_factory=lambda: [Stretch()])
    by_hand: list[CommitByHand] = field(default_factory=list)
    acknowledged: int | None = None
    began_at: int | None = None  # the group's offset from which the partition is read
    sought_to: int | None = None  # the lowest offset the position moved back to since a commit
    left: int | None = None  # highest position above the last explicit commit that moved back
    # The last stretch at the time of a seek, and the sought offset, while nothing is handed out
    # there. Adding an offset from there on makes the seek a move back.
    sought: tuple[Stretch, int] | None = None
    sought_since: int | None = None  # the same offset, until the next commit
    described: bool = False  # the last commit has the application's own metadata

    @property
    def waits(self) -> bool:
        """Whether there is something to send."""
        return bool(self.by_hand) or self.stretches[0].waiting is not None

    def add(self, entry: OffsetAndMetadata) -> None:
        """Records up to here are processed."""
        if self.sought is not None and entry.offset >= self.sought[1]:
            self._move_back(*self.sought)
        self.stretches[-1].add(entry)

    def enter(self, by_hand: CommitByHand) -> None:
        """Enter an explicit commit after those entered before it."""
        self.by_hand.append(by_hand)
        self.stretches.append(Stretch())

    def accepted(self, by_hand: CommitByHand, offset: int) -> None:
        """The first explicit commit is accepted: drop the offsets before it (invariant 5)."""
        assert self.by_hand[0] is by_hand
        del self.by_hand[0], self.stretches[0]
        first = self.stretches[0]
        if not first.passes(offset):
            first.waiting = None
        first.floor = max(first.floor, _lowered(offset, first.back_to))
        self.acknowledged = offset

    def repeat(self, entry: OffsetAndMetadata, in_flight: bool) -> None:
        """Commit this once more, unless more waits or it would replace an explicit commit."""
        if self.waits or self.described or self.left is not None:
            return
        stands = self.began_at if self.acknowledged is None else self.acknowledged
        if in_flight or stands == entry.offset:
            self.stretches[0].waiting = entry
        elif stands is None or entry.offset > stands:
            self.stretches[0].add(entry)

    def goes_back(self, offset: int) -> bool:
        """Note an accepted explicit commit of this offset; return whether it moves the group back.

        Such a commit leaves a position behind. Later ones below that position move the group back
        too, until one reaches it, or a background commit is accepted.
        """
        before = self.began_at if self.acknowledged is None else self.acknowledged
        waits = self.stretches[0].waiting
        if waits is not None:  # added before it, and no longer sent
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
        """Remove an explicit commit as if it had never been entered (invariant 6)."""
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
        """The log was truncated here: forget the commits of the records from this offset on."""
        for stretch in self.stretches:
            if stretch.waiting is not None and stretch.waiting.offset > offset:
                stretch.waiting = None
        if self.acknowledged is not None and self.acknowledged > offset:
            self.acknowledged = None
        if self.began_at is not None and self.began_at > offset:
            self.began_at = None
        self.move_back(offset)

    def seek(self, offset: int | None) -> None:
        """Polls will continue at this offset; replaces an earlier seek; None if unknown."""
        self.sought = None if offset is None else (self.stretches[-1], offset)
        self.sought_since = offset

    def move_back(self, offset: int) -> None:
        """Polls continue at this offset."""
        self._move_back(self.stretches[-1], offset)
        self.left = None

    def _move_back(self, stretch: Stretch, offset: int) -> None:
        stretch.move_back(offset)
        self.sought_to = _lower(self.sought_to, offset)
        self.sought = self.sought_since = None


#: Interval of commits of progress behind a slow record, while there is no offset to commit.
_TELL_S = 1.0


class ChangedGaps:
    """Partitions whose progress beyond the committed offset is still to be committed.

    Their offset is committed once more, with new metadata, after a pause: usually the offset itself
    advances first. Pure. Not thread-safe; the owner holds a lock.
    """

    def __init__(self) -> None:
        self._offsets: dict[TopicPartition, Committable] = {}
        self._tell_at = 0.0

    def __bool__(self) -> bool:
        return bool(self._offsets)

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._offsets

    def note(self, offsets: Mapping[TopicPartition, Committable]) -> None:
        """The offsets to commit stay the same, but the progress beyond them has changed."""
        self._offsets.update(offsets)

    def hurry(self) -> None:
        """Commit the noted progress at once."""
        self._tell_at = 0.0

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Commit nothing of these partitions."""
        for partition in partitions:
            self._offsets.pop(partition, None)

    def forget_all(self) -> None:
        """Commit nothing of any partition."""
        self._offsets = {}

    def go_back(self, partition: TopicPartition, offset: int) -> None:
        """Polls continue at this offset: the group must not move past records that come again."""
        changed = self._offsets.get(partition)
        if changed is not None and as_entry(changed).offset > offset:
            del self._offsets[partition]

    def repeat(self, commits: OffsetCommits, now: float, idle_s: float) -> float:
        """Commit these offsets again, if it is time; how long to idle, at most ``idle_s``."""
        if not self._offsets:
            return idle_s
        if now < self._tell_at:
            return min(self._tell_at - now, idle_s)
        self._offsets = commits.repeat(self._offsets)
        # The rest waits for the answer to an explicit commit, and is checked after it.
        self._tell_at = 0.0 if self._offsets else now + _TELL_S
        return idle_s


class OffsetCommits:
    """In-order, aggregated commits with one in flight (KIP-983, problems 4 and 5)."""

    def __init__(self) -> None:
        self._lines: dict[TopicPartition, CommitLine] = {}
        self._open: set[TopicPartition] = set()  # partitions with something unsent
        self._by_hand: list[CommitByHand] = []  # in order, the one in flight included
        self._in_flight: dict[TopicPartition, OffsetAndMetadata] = {}
        #: The explicit commit in flight; None if nothing or a background commit is.
        self.sent_by_hand: CommitByHand | None = None
        self._others_first = False  # the first explicit commit was not accepted just now
        self._abandoned: set[TopicPartition] = set()  # in flight, but dropped by now

    # -- entering commits -------------------------------------------------------------------------

    def add(self, offsets: Mapping[TopicPartition, Committable]) -> None:
        """Add next offsets (exclusive): the records below are processed. Lower ones are ignored."""
        for partition, value in offsets.items():
            line = self._line(partition)
            line.add(as_entry(value))
            self._note(partition, line)

    def repeat(
        self, offsets: Mapping[TopicPartition, Committable]
    ) -> dict[TopicPartition, Committable]:
        """Commit the same positions again, because the progress beyond them has changed.

        Leaves out positions that the application committed with its own metadata, which would be
        replaced, and partitions in which it has moved the group back.

        Returns the partitions that must wait for the answer to an explicit commit.
        """
        later = {}
        for partition, value in offsets.items():
            line, entry = self._line(partition), as_entry(value)
            if line.by_hand:
                later[partition] = value
                continue
            sent = self._in_flight.get(partition)
            line.repeat(entry, in_flight=sent is not None and sent.offset == entry.offset)
            self._note(partition, line)
        return later

    def begin(self, partition: TopicPartition, offset: int, described: bool) -> None:
        """Note that the partition is read from this offset, which a former owner has committed.

        ``described``: that commit has the application's own metadata. Lower offsets are not
        committed in the background unless the position moves back; nor is the same one if
        ``described``.
        """
        line = self._line(partition)
        line.began_at = offset
        if line.acknowledged is None:  # else the application has set a position already
            line.described = described
            floor = offset if described else offset - 1
            line.stretches[0].floor = max(line.stretches[0].floor, floor)

    def enter(self, by_hand: CommitByHand) -> None:
        """Enter an explicit commit after those entered before it (invariant 5)."""
        self._by_hand.append(by_hand)
        for partition in by_hand.offsets:
            line = self._line(partition)
            line.enter(by_hand)
            self._note(partition, line)

    def withdraw(self, by_hand: CommitByHand) -> None:
        """Stop sending this explicit commit (invariant 6); one in flight cannot be recalled."""
        if by_hand in self._by_hand:
            self._by_hand.remove(by_hand)
            for partition in by_hand.offsets:
                line = self._lines.get(partition)
                if line is not None and by_hand in line.by_hand:
                    line.withdraw(by_hand)
                    self._note(partition, line)

    def move_back(self, partition: TopicPartition, offset: int) -> None:
        """Polls continue at this offset; it may be lower, and so may the next commit."""
        self._line(partition).move_back(offset)

    def seek(self, partition: TopicPartition, offset: int | None) -> None:
        """Note that polls will continue at this offset; None if it is not known yet.

        No record was read there yet. The next commit may be as low as this offset, but not lower. A
        seek elsewhere before that cancels this one.
        """
        self._line(partition).seek(offset)

    def truncate(self, partition: TopicPartition, offset: int) -> None:
        """The log was truncated here: other records may have replaced those from this offset on.

        Forgets background commits of these records. An explicit commit is sent as it is, but its
        answer acknowledges nothing of them.
        """
        line = self._line(partition)
        line.truncate(offset)
        for by_hand in line.by_hand:
            if by_hand.offsets[partition].offset > offset:
                by_hand.truncated.add(partition)
        in_flight = None if self.sent_by_hand else self._in_flight.get(partition)
        if in_flight is not None and in_flight.offset > offset:
            self._abandoned.add(partition)
        self._note(partition, line)

    def drop(self, partitions: Iterable[TopicPartition]) -> list[CommitByHand]:
        """Forget partitions that are no longer owned (invariant 4).

        A commit in flight cannot be recalled: ``outstanding`` reports it until it is answered. It
        is not sent again.

        Returns the unsent explicit commits that named one of the partitions: withdrawn as a whole.
        """
        gone = set(partitions)
        withdrawn = [
            by_hand
            for by_hand in self._by_hand
            if by_hand is not self.sent_by_hand and not gone.isdisjoint(by_hand.offsets)
        ]
        for by_hand in withdrawn:
            self.withdraw(by_hand)
        for partition in gone:
            self._lines.pop(partition, None)
            self._open.discard(partition)
            if partition in self._in_flight:
                self._abandoned.add(partition)
                if self.sent_by_hand is not None:
                    self.sent_by_hand.lost.add(partition)
        return withdrawn

    # -- sending ----------------------------------------------------------------------------------

    def take(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Take the next commit, which is then in flight; empty while one is (invariant 1)."""
        if self._in_flight:
            return {}
        taken = {} if self._by_hand and not self._others_first else self._take_waiting()
        self._others_first = False
        if not taken and self._by_hand:
            self.sent_by_hand = self._by_hand[0]
            taken = dict(self.sent_by_hand.offsets)
        self._in_flight = taken
        return dict(taken)

    def _take_waiting(self) -> dict[TopicPartition, OffsetAndMetadata]:
        taken = {}
        for partition in list(self._open):
            line = self._lines[partition]
            if not line.by_hand and (entry := line.stretches[0].waiting) is not None:
                taken[partition], line.stretches[0].waiting = entry, None
                self._open.discard(partition)
        return taken

    def recall(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The rest of a commit that was taken but not sent yet (invariant 4).

        Leaves out partitions dropped in the meantime, and as a whole an explicit commit that names
        one.
        """
        if self.sent_by_hand is not None and self.sent_by_hand.lost:
            return {}
        return {p: entry for p, entry in self._in_flight.items() if p not in self._abandoned}

    def acknowledge(self, partitions: Iterable[TopicPartition]) -> None:
        """Note that the broker accepted these partitions of the commit in flight."""
        by_hand = self.sent_by_hand
        for partition in partitions:
            entry = self._in_flight.pop(partition, None)
            if entry is None:
                continue
            if by_hand is not None:
                by_hand.offsets.pop(partition, None)
            if partition not in self._abandoned:
                line = self._line(partition)
                if by_hand is not None:
                    if line.goes_back(entry.offset):
                        by_hand.moved_back.add(partition)
                    by_hand.accepted[partition] = entry
                    line.accepted(by_hand, entry.offset)
                    line.described = bool(entry.metadata)
                    if partition in by_hand.truncated:
                        line.acknowledged = None
                else:
                    line.acknowledged, line.described = entry.offset, False
                    line.sought_to = line.sought_since = line.left = None
                self._note(partition, line)
            self._abandoned.discard(partition)
        if by_hand is not None and not by_hand.offsets and by_hand in self._by_hand:
            self._by_hand.remove(by_hand)

    def retry(self) -> None:
        """Send the offsets still in flight again: they were not accepted. Newer offsets win."""
        if self.sent_by_hand is None:
            for partition, entry in self._in_flight.items():
                if partition not in self._abandoned:
                    line = self._line(partition)
                    if line.stretches[0].waiting is None:
                        line.stretches[0].waiting = entry
                    self._note(partition, line)
        self._others_first = self.sent_by_hand is not None and bool(self._in_flight)
        self.sent_by_hand = None
        self._in_flight = {}
        self._abandoned = set()

    def settle(self, partitions: Iterable[TopicPartition]) -> None:
        """Give up the background commit of these partitions: the broker refused it for good."""
        for partition in partitions:
            entry = self._in_flight.pop(partition, None)
            if entry is not None and partition not in self._abandoned:
                line = self._line(partition)
                first = line.stretches[0]
                if first.waiting is None:  # the same may be added again
                    reached = -1 if line.acknowledged is None else line.acknowledged
                    first.floor = min(entry.offset - 1, reached)
            self._abandoned.discard(partition)

    # -- state ------------------------------------------------------------------------------------

    def outstanding(self, partition: TopicPartition) -> bool:
        """Whether a commit of the partition is waiting or in flight."""
        return partition in self._open or partition in self._in_flight

    def any_outstanding(self) -> bool:
        """Whether anything at all is waiting or in flight."""
        return bool(self._open or self._in_flight)

    def acknowledged(self, partition: TopicPartition) -> int | None:
        """The next offset that the broker last acknowledged for an owned partition."""
        line = self._lines.get(partition)
        return None if line is None else line.acknowledged

    def all_by_hand(self) -> list[CommitByHand]:
        """The unanswered explicit commits, in order."""
        return list(self._by_hand)

    def _line(self, partition: TopicPartition) -> CommitLine:
        line = self._lines.get(partition)
        if line is None:
            line = self._lines[partition] = CommitLine()
        return line

    def _note(self, partition: TopicPartition, line: CommitLine) -> None:
        if line.waits:
            self._open.add(partition)
        else:
            self._open.discard(partition)
