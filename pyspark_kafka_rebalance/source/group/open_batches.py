"""OpenBatches: the batches that Spark was given, and what proves them. Pure.

A batch is proven when it is done and Spark has logged where it ends: then no kill makes Spark run
what it read again as part of another batch. Spark's calls say so in two ways:

* ``latestOffset(start)`` comes when the batch ending at ``start`` is done.
* ``commit(end)`` proves the batch that ends there. Spark calls it for the batch before the one that
  it builds, right after it has logged the end of the latter; with async progress tracking, for a
  batch in the log when a later one has come into the log
  (``AsyncProgressTrackingMicroBatchExecution``). In both cases a call with the start of the batch
  planned last says that the end of this very batch is in the log.

So ``latestOffset(start)`` proves a batch if that call came. Otherwise Spark tracks its progress
asynchronously, and only ``commit`` proves. (Its first batch has none before it to commit.)

Not thread-safe: the owner holds one lock around every call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...errors import KafkaRebalanceError
from ..offset_json import offset_to_json
from ..offsets import INITIAL_OFFSET

#: The start of a query's first batch.
_INITIAL = offset_to_json(INITIAL_OFFSET)


@dataclass
class OpenBatch:
    """A batch that Spark was given and that is not proven.

    Attributes
    ----------
    start : dict or None
        Where it starts; not known of a warm-up.
    end : dict
        The offset that Spark was given.
    number : int
        As QueryAssignment counts.
    logged : bool
        Whether its end is known to be in Spark's log.
    """

    start: dict[str, Any] | None
    end: dict[str, Any]
    number: int
    logged: bool


class OpenBatches:
    """In order; more than one only with async progress tracking."""

    def __init__(self) -> None:
        self._open: list[OpenBatch] = []
        self._start: dict[str, Any] | None = None  # of this trigger
        # How Spark tracks its progress, once that is known.
        self._synchronous = False
        self._asynchronous = False

    def progress_is_synchronous(self) -> None:
        """The trigger is one with which Spark does not track its progress asynchronously."""
        self._synchronous = True

    @property
    def progress_is_asynchronous(self) -> bool:
        """Whether a batch was done of whose end Spark had not said that it is logged."""
        return self._asynchronous

    @property
    def last_end(self) -> dict[str, Any] | None:
        """Where the batch planned last ends, if it is not proven."""
        return self._open[-1].end if self._open else None

    def add(self, end: dict[str, Any], number: int) -> None:
        """Spark is given the end of the next batch."""
        self._open.append(OpenBatch(self._start, end, number, logged=self._synchronous))

    def resume(self, end: dict[str, Any], number: int) -> None:
        """Spark runs a batch of its log again; this process has planned none so far."""
        self._open.append(OpenBatch(None, end, number, logged=True))

    def prove(self, end: dict[str, Any]) -> int | None:
        """The batch that ends here is proven, and all before it.

        Returns
        -------
        int or None
            Its number; None for an offset of no open batch, which says nothing: it was proven
            before.
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
            # Once async, always async: with several sources the same commit may come twice.
            self._open[-1].logged = not self._asynchronous
        return number

    def begin_trigger(self, start: dict[str, Any]) -> int | None:
        """Spark's ``latestOffset(start)``; returns as :meth:`prove`.

        Raises
        ------
        KafkaRebalanceError
            It goes on from somewhere else than where the batch planned last ends. Spark logs
            every batch that it plans, so this does not happen; a restart would put it right.
        """
        self._start = start
        last = self._open[-1] if self._open else None
        if last is None:
            return None
        if last.end != start:
            raise KafkaRebalanceError(
                "Spark goes on from an offset that is not the end of the batch planned last; "
                "restart the query from its checkpoint"
            )
        if last.logged:
            return self.prove(start)
        self._asynchronous |= last.start not in (None, _INITIAL)
        return None
