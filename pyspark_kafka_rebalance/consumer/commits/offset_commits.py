"""OffsetCommits: the offsets that wait to be committed, are in flight, or are acknowledged.

Two kinds of commits share one order. A *background* commit says how far everything is processed:
background commits are merged, and sent again until the answer is final. A commit *by hand* says
where the group should be, even at a lower offset: it is sent as it is.

Invariants:
 1. At most one commit is in flight, of either kind.
 2. In the background, a partition's committed position only moves forward while it is owned, unless
    the read position moved back (a seek, a truncation, a recreated topic).
 3. An offset becomes acknowledged only by the broker's answer to a commit that carried it.
 4. Nothing more is sent for a dropped (lost or released) partition, not even by hand.
 5. Commits by hand are sent in the order in which they were entered. A background offset that
    waited before one of them is not sent after that commit was accepted. One that is added after
    it is sent once the commit is answered, and only if it is higher, or if the position moved back
    in between.
 6. If a commit by hand is not accepted, the offsets that it would have replaced are sent after all.

Pure: the lane sends, this class decides what. Not thread-safe; the owner holds a lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kafka.structs import OffsetAndMetadata, TopicPartition

from ..offsets.committable import Committable, as_entry
from .commit_by_hand import CommitByHand
from .commit_line import CommitLine


class OffsetCommits:
    """In-order, aggregated commits with one in flight (KIP-983, problems 4 and 5)."""

    def __init__(self) -> None:
        self._lines: dict[TopicPartition, CommitLine] = {}
        self._open: set[TopicPartition] = set()  # partitions with something unsent
        self._by_hand: list[CommitByHand] = []  # in order, the one in flight included
        self._in_flight: dict[TopicPartition, OffsetAndMetadata] = {}
        self._sent_by_hand: CommitByHand | None = None  # the one in flight
        self._others_first = False  # the first by hand was not accepted just now
        self._abandoned: set[TopicPartition] = set()  # in flight, but dropped meanwhile

    # -- what is to be committed ------------------------------------------------------------------

    def add(self, offsets: Mapping[TopicPartition, Committable]) -> None:
        """Add next offsets (exclusive): the records below are processed. Lower ones are ignored."""
        for partition, value in offsets.items():
            line = self._line(partition)
            line.add(as_entry(value))
            self._note(partition, line)

    def repeat(
        self, offsets: Mapping[TopicPartition, Committable]
    ) -> dict[TopicPartition, Committable]:
        """Commit the same positions again, because what is processed beyond them has changed.

        Positions that the application committed with its own metadata are left out, since those
        would be replaced; so are partitions in which it has moved the group back.

        Returns
        -------
        dict of TopicPartition to Committable
            The partitions that have to wait for the answer to a commit by hand.
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

        If it is ``described``, that commit has metadata of the application's own. Lower offsets are
        not committed in the background, unless the position moves back. Nor is the same offset, if
        that would replace the metadata.
        """
        line = self._line(partition)
        line.began_at = offset
        if line.acknowledged is None:  # else the application has set a position since
            line.described = described
            floor = offset if described else offset - 1
            line.stretches[0].floor = max(line.stretches[0].floor, floor)

    def enter(self, by_hand: CommitByHand) -> None:
        """Commit this by hand, after the commits that were entered before it (invariant 5)."""
        self._by_hand.append(by_hand)
        for partition in by_hand.offsets:
            line = self._line(partition)
            line.enter(by_hand)
            self._note(partition, line)

    def withdraw(self, by_hand: CommitByHand) -> None:
        """Stop sending this commit by hand (invariant 6); one in flight cannot be recalled."""
        if by_hand in self._by_hand:
            self._by_hand.remove(by_hand)
            for partition in by_hand.offsets:
                line = self._lines.get(partition)
                if line is not None and by_hand in line.by_hand:
                    line.withdraw(by_hand)
                    self._note(partition, line)

    def move_back(self, partition: TopicPartition, offset: int) -> None:
        """Polls go on from this offset, possibly lower; then the next commit may be lower, too."""
        self._line(partition).move_back(offset)

    def seek(self, partition: TopicPartition, offset: int | None) -> None:
        """Note that polls are to go on from this offset; None if it is not known yet.

        No record has come from there yet. The next commit may be as low as this offset, and not
        lower. If polls are sent elsewhere first, this seek has no effect.
        """
        self._line(partition).seek(offset)

    def truncate(self, partition: TopicPartition, offset: int) -> None:
        """The records from this offset on are gone, and others may have replaced them by now.

        Background commits of these records are forgotten. A commit by hand is sent as it is, but
        its answer acknowledges nothing of them.
        """
        line = self._line(partition)
        line.truncate(offset)
        for by_hand in line.by_hand:
            if by_hand.offsets[partition].offset > offset:
                by_hand.truncated.add(partition)
        in_flight = None if self._sent_by_hand else self._in_flight.get(partition)
        if in_flight is not None and in_flight.offset > offset:
            self._abandoned.add(partition)
        self._note(partition, line)

    def drop(self, partitions: Iterable[TopicPartition]) -> list[CommitByHand]:
        """Forget partitions that are no longer ours (invariant 4).

        A commit in flight cannot be recalled. ``outstanding`` still reports it until it is
        answered, and it is not sent again.

        Returns
        -------
        list of CommitByHand
            The unsent commits that named one of the partitions: withdrawn as a whole.
        """
        gone = set(partitions)
        withdrawn = [
            by_hand
            for by_hand in self._by_hand
            if by_hand is not self._sent_by_hand and not gone.isdisjoint(by_hand.offsets)
        ]
        for by_hand in withdrawn:
            self.withdraw(by_hand)
        for partition in gone:
            self._lines.pop(partition, None)
            self._open.discard(partition)
            if partition in self._in_flight:
                self._abandoned.add(partition)
                if self._sent_by_hand is not None:
                    self._sent_by_hand.lost.add(partition)
        return withdrawn

    # -- what is sent -----------------------------------------------------------------------------

    @property
    def sent_by_hand(self) -> CommitByHand | None:
        """The commit by hand in flight; None if nothing is in flight, or a background commit is."""
        return self._sent_by_hand

    def take(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Take what to send now, which is then in flight; empty while a commit is (invariant 1)."""
        if self._in_flight:
            return {}
        taken = {} if self._by_hand and not self._others_first else self._take_waiting()
        self._others_first = False
        if not taken and self._by_hand:
            self._sent_by_hand = self._by_hand[0]
            taken = dict(self._sent_by_hand.offsets)
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
        """What is left to send of a commit that was taken but not sent yet (invariant 4).

        Partitions that were dropped meanwhile are left out. A commit by hand that names one of them
        is left out as a whole.
        """
        if self._sent_by_hand is not None and self._sent_by_hand.lost:
            return {}
        return {p: entry for p, entry in self._in_flight.items() if p not in self._abandoned}

    def acknowledge(self, partitions: Iterable[TopicPartition]) -> None:
        """Note that the broker accepted these partitions of the commit in flight."""
        by_hand = self._sent_by_hand
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
        """Send again what is still in flight, since it was not accepted; newer offsets win."""
        if self._sent_by_hand is None:
            for partition, entry in self._in_flight.items():
                if partition not in self._abandoned:
                    line = self._line(partition)
                    if line.stretches[0].waiting is None:
                        line.stretches[0].waiting = entry
                    self._note(partition, line)
        self._others_first = self._sent_by_hand is not None and bool(self._in_flight)
        self._sent_by_hand = None
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

    # -- how things stand -------------------------------------------------------------------------

    def outstanding(self, partition: TopicPartition) -> bool:
        """Whether a commit of the partition is waiting or in flight."""
        return partition in self._open or partition in self._in_flight

    def any_waiting(self) -> bool:
        """Whether anything waits to be sent."""
        return bool(self._open)

    def any_outstanding(self) -> bool:
        """Whether anything at all is waiting or in flight."""
        return bool(self._open or self._in_flight)

    def acknowledged(self, partition: TopicPartition) -> int | None:
        """The next offset that the broker last acknowledged for an owned partition."""
        line = self._lines.get(partition)
        return None if line is None else line.acknowledged

    def all_by_hand(self) -> list[CommitByHand]:
        """The commits by hand that are not answered, in order."""
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
