"""OpenBatches: the batches that Spark was given, and what proves them. Pure.

A batch is proven when it is done and Spark has logged where it ends. After that, no kill can make
Spark reread its ranges as part of another batch. Two of Spark's calls say so:

* ``latestOffset(start)`` comes when the batch ending at ``start`` is done.
* ``commit(end)`` proves the batch that ends there. Spark calls it for the batch before the one that
  it is building, right after logging the end of the latter. With async progress tracking, it calls
  it for a logged batch when a later one is logged (``AsyncProgressTrackingMicroBatchExecution``).
  In both cases, a call with the start of the batch planned last shows that this batch's own end is
  in the log.

So ``latestOffset(start)`` proves a batch if that ``commit`` came before. Otherwise Spark tracks its
progress asynchronously, and only ``commit`` proves. (The first batch has no earlier one to commit.)

Not thread-safe: the owner holds one lock around every call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ....errors import KafkaRebalanceError
from ...offset_json import offset_to_json
from ...offsets import INITIAL_OFFSET

#: The start of a query's first batch.
_INITIAL = offset_to_json(INITIAL_OFFSET)


@dataclass
class OpenBatch:
    """A batch that Spark was given and that is not proven.

    Attributes
    ----------
    start : dict or None
        Where it starts; None if unknown, as for a warm-up.
    end : dict
        The offset that Spark was given.
    number : int
        The batch number in QueryAssignment.
    logged : bool
        Whether its end is known to be in Spark's log.
    """

    start: dict[str, Any] | None
    end: dict[str, Any]
    number: int
    logged: bool


class OpenBatches:
    """The open batches in order; more than one only with async progress tracking."""

    def __init__(self) -> None:
        self._open: list[OpenBatch] = []
        self._start: dict[str, Any] | None = None  # of this trigger
        # How Spark tracks its progress, once known.
        self._synchronous = False
        self._asynchronous = False

    def progress_is_synchronous(self) -> None:
        """Spark does not track progress asynchronously with this query's trigger."""
        self._synchronous = True

    @property
    def progress_is_asynchronous(self) -> bool:
        """Whether some batch was done before Spark had said that its end is logged."""
        return self._asynchronous

    @property
    def last_end(self) -> dict[str, Any] | None:
        """Where the batch planned last ends, if it is not proven."""
        return self._open[-1].end if self._open else None

    def add(self, end: dict[str, Any], number: int) -> None:
        """Spark gets the end of the next batch."""
        self._open.append(OpenBatch(self._start, end, number, logged=self._synchronous))

    def resume(self, end: dict[str, Any], number: int) -> None:
        """Spark reruns a batch of its log; this process has not planned any yet."""
        self._open.append(OpenBatch(None, end, number, logged=True))

    def prove(self, end: dict[str, Any]) -> int | None:
        """The batch that ends here and all before it are proven.

        Returns
        -------
        int or None
            Its number; None if no open batch ends here, because it was proven before.
        """
        for index, batch in enumerate(self._open):
            if batch.end == end:
                del self._open[: index + 1]
                return batch.number
        return None

    def commit(self, end: dict[str, Any]) -> int | None:
        """Spark's ``commit``; returns as :meth:`prove`."""
        number = self.prove(end)
        if self._open and self._open[-1].start == end:
            # Once async, always async: with several sources the same commit can come twice.
            self._open[-1].logged = not self._asynchronous
        return number

    def begin_trigger(self, start: dict[str, Any]) -> int | None:
        """Spark's ``latestOffset(start)``; returns as :meth:`prove`.

        Raises
        ------
        KafkaRebalanceError
            Spark goes on from another offset than the end of the batch planned last. This does not
            happen, since Spark logs every batch that it plans; a restart would fix it.
        """
        self._start = start
        last = self._open[-1] if self._open else None
        if last is None:
            return None
        if last.end != start:
            raise KafkaRebalanceError(
                "Spark continues from an offset that is not the end of the last planned batch; "
                "restart the query from its checkpoint"
            )
        if last.logged:
            return self.prove(start)
        self._asynchronous |= last.start not in (None, _INITIAL)
        return None
