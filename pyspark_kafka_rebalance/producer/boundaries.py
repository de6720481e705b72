"""Boundaries: when a transaction is to be committed automatically; pure."""

from __future__ import annotations

from collections.abc import Callable, Collection

from ..errors import OptionError


class Boundaries:
    """The restart points given with records, and the limits of a transaction's length.

    A transaction can end only where the application has given a restart point with the last record
    of each source partition. To end it anywhere else would repeat records, or lose them.

    Parameters
    ----------
    interval_s : float, optional
        Commit this long after the transaction's first record.
    records : int, optional
        Commit after this many records.

    Attributes
    ----------
    automatic : bool
        Whether transactions are committed automatically.
    records : int
        How many the transaction has.
    last_points : dict of int to str or None
        The restart point given with the last record of each source partition.
    """

    def __init__(self, interval_s: float | None, records: int | None) -> None:
        self._interval_s = interval_s
        self._limit = records
        self.automatic = interval_s is not None or records is not None
        self._due_at: float | None = None
        self.last_points: dict[int, str | None] = {}
        self.records = 0

    def begin(self, clock: Callable[[], float]) -> None:
        """Note that the transaction has started; idempotent."""
        if self._due_at is None and self._interval_s is not None:
            self._due_at = clock() + self._interval_s

    def sent(
        self,
        partitions: Collection[int],
        point: str | None,
        clock: Callable[[], float],
        records: int = 1,
    ) -> None:
        """Note records of these source partitions; ``point`` is the restart point after them."""
        self.begin(clock)
        self.records += records
        for p in partitions:
            self.last_points[p] = point

    def sent_again(self, partition: int, point: str | None) -> None:
        """Note another record of a source partition that the transaction has already; fast."""
        self.records += 1
        self.last_points[partition] = point

    def due(self, now: float, *, hurry: bool = False) -> bool:
        """Whether to commit now; ``hurry``: somebody waits for the transaction to end."""
        if not self.automatic or not self.last_points or not self.is_boundary():
            return False
        if hurry or (self._limit is not None and self.records >= self._limit):
            return True
        return self._due_at is not None and now >= self._due_at

    def may_be_due(self, clock: Callable[[], float]) -> bool:
        """Whether ``due`` may return True though nobody waits; quick."""
        return (self._limit is not None and self.records >= self._limit) or (
            self._due_at is not None and clock() >= self._due_at
        )

    def due_with_next(self, clock: Callable[[], float]) -> bool:
        """Whether one more record may make a commit due."""
        if self._limit is not None and self.records + 1 >= self._limit:
            return True
        return self._due_at is not None and clock() >= self._due_at

    def is_boundary(self) -> bool:
        """Whether reading could go on right after what was sent."""
        return None not in self.last_points.values()

    def points(self) -> dict[int, str]:
        """Return the restart points given with the records.

        Raises
        ------
        OptionError
            The last record of some source partition came without one.
        """
        without = [p for p, point in sorted(self.last_points.items()) if point is None]
        if without:
            raise OptionError(
                "restart_point",
                None,
                "one with the last record of each source partition, or with commit_transaction; "
                f"source partitions without: {', '.join(map(str, without))}",
            )
        return {p: point for p, point in self.last_points.items() if point is not None}

    def end(self) -> None:
        """The transaction has ended."""
        self._due_at, self.last_points, self.records = None, {}, 0
