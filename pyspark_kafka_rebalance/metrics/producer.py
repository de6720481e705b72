"""ProducerObservation: the metrics of a producer group's transactions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from ..producer.group import ProducerGroup
from ..producer.observer import Outcome
from . import catalogue
from .catalogue import Attributes, Instrument, Measured
from .harmless import harmless
from .instruments import Instruments


class ProducerObservation:
    """Measures the transactions of one member; a MemberObservation measures its partitions.

    ``group`` returns the producer group; None once it is deleted. ``end`` is called when the group
    is closed, or the metrics fail.
    """

    def __init__(
        self,
        instruments: Instruments,
        group: Callable[[], ProducerGroup | None],
        attributes: Attributes,
        end: Callable[[], None],
    ) -> None:
        self._instruments = instruments
        self._group = group
        self._attributes = attributes
        self.end = end

    # -- called by the transactions; see ProducerObserver -----------------------------------------

    @harmless
    def transaction_ended(
        self, outcome: Outcome, records: int, took_s: float, commit_s: float | None
    ) -> None:
        """Called on the thread that ends the transaction."""
        self._instruments.push(
            *transaction_ended(self._attributes, outcome, records, took_s, commit_s)
        )

    def closed(self) -> None:
        """Called on the thread that closes."""
        self.end()

    # -- read at a collection ---------------------------------------------------------------------

    def read(self, instrument: Instrument) -> Iterator[Measured]:
        """Return this instrument's values now."""
        group = self._group()
        if group is None:
            return
        rates = group._transactions.rates
        if instrument is catalogue.COMMITTED_RECORDS:
            for p, total in rates.totals().items():
                yield Measured(instrument, total, self._of(p))
        elif instrument is catalogue.RESTART_POINT_AGE:
            now = time.monotonic()
            for p in group.restart_points:
                age_s = rates.age_s(p, now)
                if age_s is not None:
                    yield Measured(instrument, age_s, self._of(p))

    def _of(self, source_partition: int) -> Attributes:
        return {**self._attributes, catalogue.SOURCE_PARTITION: str(source_partition)}


def transaction_ended(
    attributes: Attributes, outcome: Outcome, records: int, took_s: float, commit_s: float | None
) -> Iterable[Measured]:
    """Return the values that a transaction adds when it ends; pure."""
    failed = {} if outcome is Outcome.COMMITTED else {catalogue.ERROR: outcome.value}
    if records:
        yield Measured(
            catalogue.SENT, records, {**attributes, catalogue.OPERATION: "send", **failed}
        )
    yield Measured(catalogue.TRANSACTIONS, took_s, {**attributes, catalogue.OUTCOME: outcome.value})
    if commit_s is not None:
        named = {
            catalogue.OPERATION: "commit_transaction",
            catalogue.OPERATION_TYPE: "send",
            **failed,
        }
        yield Measured(catalogue.OPERATIONS, commit_s, {**attributes, **named})
