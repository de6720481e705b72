"""Instruments: the catalogue's, made once per meter provider, and the sources of their values.

The SDK keeps one callback per instrument and ignores others of the same name, so everything
observed in a process shares the instruments. Collections run on a thread of the SDK: a source must
be safe to read on any thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

from .catalogue import ALL, Instrument, Kind, Measured

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter, MeterProvider

log = logging.getLogger(__name__)

_SCOPE = "pyspark_kafka_rebalance"


class Source(Protocol):
    """A source of values, read at each collection."""

    def read(self, instrument: Instrument) -> Iterable[Measured]:
        """Return this instrument's values now; a counter's never decrease. Any thread."""


class Instruments:
    """Makes each instrument of a meter provider once, and reads its values from all sources."""

    def __init__(self, meter: Meter) -> None:
        self._lock = threading.Lock()
        self._sources: list[Source] = []
        self._ended = Totals()  # the counters of sources that have ended
        self._pushed: dict[Instrument, Any] = {}
        for each in ALL:
            named = {"name": each.name, "unit": each.unit, "description": each.description}
            if each.kind is Kind.COUNTER:
                self._pushed[each] = meter.create_counter(**named).add
            elif each.kind is Kind.HISTOGRAM:
                self._pushed[each] = meter.create_histogram(
                    **named, explicit_bucket_boundaries_advisory=each.boundaries
                ).record
            else:
                make: Callable[..., Any] = {
                    Kind.OBSERVED_COUNTER: meter.create_observable_counter,
                    Kind.OBSERVED_SUM: meter.create_observable_up_down_counter,
                    Kind.OBSERVED_GAUGE: meter.create_observable_gauge,
                }[each.kind]
                make(**named, callbacks=[self._callback_of(each)])

    def push(self, *measured: Measured) -> None:
        """Add to counters and record in histograms; safe on any thread."""
        for instrument, value, attributes in measured:
            self._pushed[instrument](value, attributes)

    def include(self, source: Source) -> None:
        """Read this source from now on."""
        with self._lock:
            self._sources.append(source)

    def exclude(self, source: Source) -> None:
        """Stop reading this source; its counts stay. Idempotent."""
        with self._lock:
            if source in self._sources:
                self._sources.remove(source)
                for each in ALL:
                    if each.kind is Kind.OBSERVED_COUNTER:
                        self._ended.add(source.read(each))

    def read(self, instrument: Instrument) -> Totals:
        """Return the values of all sources together."""
        with self._lock:
            totals = Totals()
            if instrument.kind is Kind.OBSERVED_COUNTER:
                totals.add(self._ended.of(instrument))
            for source in self._sources:
                try:
                    totals.add(source.read(instrument))
                except Exception:  # else the SDK would leave out the other sources
                    log.exception("%s is left out of this collection", instrument.name)
            return totals

    def _callback_of(self, instrument: Instrument) -> Callable[[Any], Iterable[Any]]:
        def observe(_: Any) -> Iterator[Any]:
            from opentelemetry.metrics import Observation

            totals = self.read(instrument)
            for beside in _left_out_beside(self):
                totals.add(beside.read(instrument).of(instrument))
            for _, value, attributes in totals.of(instrument):
                yield Observation(value, attributes)

        return observe


class Totals:
    """Values by instrument and attributes; pure.

    Members with the same client id cannot be distinguished. Their counts and sums are added up; for
    gauges the largest value is shown.
    """

    def __init__(self) -> None:
        self._values: dict[tuple[Instrument, frozenset[tuple[str, str]]], float] = {}

    def add(self, measured: Iterable[Measured]) -> None:
        """Add these values."""
        for instrument, value, attributes in measured:
            key = (instrument, frozenset(attributes.items()))
            before = self._values.get(key)
            if before is None:
                self._values[key] = value
            elif instrument.kind is Kind.OBSERVED_GAUGE:
                self._values[key] = max(before, value)
            else:
                self._values[key] = before + value

    def of(self, instrument: Instrument) -> list[Measured]:
        """Return the values of one instrument."""
        return [
            Measured(each, value, dict(attributes))
            for (each, attributes), value in self._values.items()
            if each is instrument
        ]


_made: WeakKeyDictionary[Any, Instruments] = WeakKeyDictionary()
_of_default: list[Instruments] = []
_making = threading.Lock()


def instruments_of(meter_provider: MeterProvider | None) -> Instruments:
    """Return the instruments of this provider, or of the global one; made on first use.

    Raises ImportError if OpenTelemetry is not installed.
    """
    try:
        from opentelemetry.metrics import get_meter, get_meter_provider
    except ImportError as error:
        raise ImportError(
            "metrics need OpenTelemetry: pip install 'pyspark-kafka-rebalance[otel]'"
        ) from error
    from .. import __version__

    with _making:
        present = get_meter_provider()
        named = present if meter_provider is None else meter_provider
        if named in _made:  # even if it has become the global one by now
            return _made[named]
        if named is present:
            # Before a global provider is set, its meters are proxies for the later one's.
            if not _of_default:
                _of_default.append(Instruments(get_meter(_SCOPE, __version__)))
            return _of_default[0]
        _made[named] = Instruments(named.get_meter(_SCOPE, __version__))
        return _made[named]


def _left_out_beside(instruments: Instruments) -> list[Instruments]:
    """Return the default's instruments if the SDK ignores their callbacks in favor of these.

    It does once the provider of these becomes the global one: only then does it get the
    instruments of the proxies, which have the same names.
    """
    from opentelemetry.metrics import get_meter_provider

    present = get_meter_provider()
    return _of_default if present in _made and _made[present] is instruments else []
