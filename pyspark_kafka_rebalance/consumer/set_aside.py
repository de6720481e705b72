"""SetAside: what of one partition is set aside, and not handed out yet (KIP-333). Pure.

The live part is as ever, and begins at ``live_from``; of what lies below, some gaps are read by a
reader of their own, lowest first.

Invariant: what is unread lies below the live part. Nobody has processed it, whatever is said of
records beyond: it holds the position to commit, and nothing else takes it away than its reader, a
seek or truncation to below, or the application that gives up what is unreadable.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .gaps import Gap, above, common, holding, outside, without


class SetAside:
    """The gaps of one partition that wait for their reader.

    Parameters
    ----------
    gaps : iterable of Gap
        What the group has not processed below the live position; all of it is handed out.
    live_from : int, optional
        The live position; None where nothing was ever set aside.
    in_order : bool
        Whether nothing is handed out before what is lower. Then a position that is committed says
        that everything below is processed, as in every consumer.
    """

    def __init__(
        self, gaps: Iterable[Gap] = (), live_from: int | None = None, in_order: bool = False
    ) -> None:
        #: What is not handed out yet, in order. Replaced, never changed: it is read without a lock.
        self.unread: Sequence[Gap] = list(gaps)
        self.live_from = live_from
        self.in_order = in_order

    def __contains__(self, offset: int) -> bool:
        return holding(self.unread, offset) is not None

    def pass_to(self, end: int) -> list[Gap]:
        """The reader has passed this end; what of it was unread."""
        passed = without(self.unread, end)
        self.unread = above(self.unread, end)
        return passed

    def give_up(self, start: int, end: int) -> list[Gap]:
        """Nobody reads [start, end) any more; what of it was unread."""
        given_up = list(common(self.unread, [Gap(start, end)]))
        self.unread = without(self.unread, start, end)
        return given_up

    def forget(self, offset: int) -> None:
        """What is unread from this offset on is gone, and was never handed out."""
        self.unread = without(self.unread, offset)

    def go_back(self, offset: int) -> None:
        """From this offset on everything is the live reader's."""
        if self.live_from is not None:
            self.live_from = min(self.live_from, offset)
            self.forget(offset)

    def claimed_by(self, offset: int) -> tuple[Gap, ...]:
        """Which records a commit of this next offset says are processed.

        A commit in the live part says nothing of the gaps. One in a gap, or at the boundary, speaks
        of that gap and those below. None speaks of what nobody was handed out.
        """
        start = 0
        if self.live_from is not None and self.live_from < offset and not self.in_order:
            start = self.live_from
        return self.read_of(start, offset)

    def read_of(self, start: int, end: int) -> tuple[Gap, ...]:
        """What of [start, end) is not unread."""
        return tuple(outside(self.unread, start, end))
