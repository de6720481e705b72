"""Records that take a while: what a member has been handed and has not finished yet. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from kafka.structs import TopicPartition


@dataclass
class Piece:
    """Consecutive records of one partition that are finished together.

    ``polls_left`` is how many polls later; the times are ``time.monotonic()``, which is one clock
    for all processes of the machine.
    """

    partition: TopicPartition
    offsets: list[int]
    handed_out_at: float
    polls_left: int
    processed_at: float | None = None


class Processing:
    """The pieces of one member, in order within each partition.

    Parameters
    ----------
    random : Random
        How a poll's records are split, and how long each piece takes.
    longest : int
        Polls that a piece takes at most.
    """

    def __init__(self, random: Random, longest: int) -> None:
        self._random = random
        self._longest = longest
        self._open: dict[TopicPartition, list[Piece]] = {}
        self.pieces: list[Piece] = []  # all of them, finished or not

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """Those with something that is not finished."""
        return frozenset(self._open)

    def begin(self, partition: TopicPartition, offsets: Sequence[int], now: float) -> None:
        """These records were handed out: a part of them is finished at once, the rest later."""
        cut = self._random.randint(0, len(offsets))
        for part, polls in ((offsets[:cut], 0), (offsets[cut:], self._longest)):
            if part:
                piece = Piece(partition, list(part), now, self._random.randint(0, polls))
                self.pieces.append(piece)
                self._open.setdefault(partition, []).append(piece)

    def finish(self, now: float) -> dict[TopicPartition, int]:
        """One poll has passed: the next offsets of the partitions that got on, exclusive."""
        reached = {}
        for partition, pieces in list(self._open.items()):
            for piece in pieces:
                piece.polls_left -= 1
            while pieces and pieces[0].polls_left < 0:
                piece = pieces.pop(0)
                piece.processed_at = now
                reached[partition] = piece.offsets[-1] + 1
            if not pieces:
                del self._open[partition]
        return reached
