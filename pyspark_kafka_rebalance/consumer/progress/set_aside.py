"""SetAside: the part of one partition that is set aside, and not handed out yet (KIP-333). Pure.

The live part is read as usual, and begins at ``live_from``. Below it, a separate reader reads some
gaps, lowest first.

Invariant: unread offsets lie below the live part. Nobody has processed them, whatever is said of
records beyond: they hold back the position to commit. They are removed only by their reader, by a
seek or truncation to a lower offset, or by the application when it gives up what is unreadable.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..offsets.gaps import Gap, above, common, holding, outside, without


class SetAside:
    """The gaps of one partition that wait for their reader.

    Parameters
    ----------
    gaps : iterable of Gap
        What the group has not processed below the live position; all of it will be handed out.
    live_from : int, optional
        The live position; None if nothing was ever set aside.
    in_order : bool
        Whether records are handed out only after all lower ones. Then a committed position says
        that everything below is processed, as in every consumer.
    """

    def __init__(
        self, gaps: Iterable[Gap] = (), live_from: int | None = None, in_order: bool = False
    ) -> None:
        #: What is not handed out yet, in order. Replaced, never mutated: it is read without a lock.
        self.unread: Sequence[Gap] = list(gaps)
        self.live_from = live_from
        self.in_order = in_order

    def __contains__(self, offset: int) -> bool:
        return holding(self.unread, offset) is not None

    def pass_to(self, end: int) -> list[Gap]:
        """Note that the reader has passed this end; return what was unread below it."""
        passed = without(self.unread, end)
        self.unread = above(self.unread, end)
        return passed

    def give_up(self, start: int, end: int) -> list[Gap]:
        """Note that nobody reads [start, end) any more; return what was unread in it."""
        given_up = list(common(self.unread, [Gap(start, end)]))
        self.unread = without(self.unread, start, end)
        return given_up

    def forget(self, offset: int) -> None:
        """Forget what is unread from this offset on: it is gone, and was never handed out."""
        self.unread = without(self.unread, offset)

    def go_back(self, offset: int) -> None:
        """Give everything from this offset on to the live reader."""
        if self.live_from is not None:
            self.live_from = min(self.live_from, offset)
            self.forget(offset)

    def claimed_by(self, offset: int) -> tuple[Gap, ...]:
        """The ranges that a commit of this next offset declares to be processed.

        A commit in the live part says nothing about the gaps. A commit in a gap, or at the
        boundary, covers that gap and those below. No commit covers what was not handed out.
        """
        start = 0
        if self.live_from is not None and self.live_from < offset and not self.in_order:
            start = self.live_from
        return self.read_of(start, offset)

    def read_of(self, start: int, end: int) -> tuple[Gap, ...]:
        """The part of [start, end) that is not unread."""
        return tuple(outside(self.unread, start, end))
