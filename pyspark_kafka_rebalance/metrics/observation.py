"""observe(client): OpenTelemetry metrics of a consumer or a producer group, until it closes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import ref

from kafka import KafkaConsumer

from ..consumer.aio.asynchronous import AsyncDeferredRevokeConsumer
from ..consumer.aio.consumer_thread import ConsumerThread
from ..consumer.consumer import DeferredRevokeConsumer
from ..producer.asynchronous import AsyncProducerGroup
from ..producer.group import ProducerGroup
from .catalogue import of_member
from .instruments import Instruments, Source, instruments_of
from .member import MemberObservation
from .producer import ProducerObservation

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from typing_extensions import Self


class Observation:
    """The metrics of one client, until ``close`` or until the client closes; a context manager."""

    def __init__(self, instruments: Instruments) -> None:
        self._instruments = instruments
        self._sources: list[Source] = []
        self._withdraw: Callable[[], None] = lambda: None

    @property
    def closed(self) -> bool:
        """Whether it has ended."""
        return not self._sources

    def close(self) -> None:
        """Stop observing the client; its counts stay. Idempotent, and safe on any thread."""
        self._withdraw()
        sources, self._sources = self._sources, []
        for source in sources:
            self._instruments.exclude(source)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _begin(self, withdraw: Callable[[], None], *sources: Source) -> None:
        self._withdraw = withdraw
        self._sources = [*sources]
        for source in sources:
            self._instruments.include(source)


def observe(
    client: DeferredRevokeConsumer
    | AsyncDeferredRevokeConsumer
    | ProducerGroup
    | AsyncProducerGroup,
    meter_provider: MeterProvider | None = None,
) -> Observation:
    """Measure a consumer or a producer group with OpenTelemetry.

    ``docs/observability.md`` lists the instruments. Call it at any time, even before an
    asynchronous consumer is started. Events before the call are not counted.

    Parameters
    ----------
    client : DeferredRevokeConsumer, ProducerGroup, or one of their asyncio faces
        The client to measure. It is not kept alive.
    meter_provider : opentelemetry.metrics.MeterProvider, optional
        Default: the global one, which may be set later.

    Returns
    -------
    Observation
        Ends with ``close()``, at the end of its ``with`` block, or when the client closes.

    Raises
    ------
    ImportError
        OpenTelemetry is not installed; the message names the extra.
    TypeError
        The client is none of these.
    ValueError
        The client is observed already.

    Examples
    --------
    >>> with observe(consumer):  # doctest: +SKIP
    ...     run(consumer)
    """
    instruments = instruments_of(meter_provider)
    observation = Observation(instruments)
    if isinstance(client, AsyncProducerGroup):
        client = client._group
    if isinstance(client, ProducerGroup):
        _observe_group(client, instruments, observation)
    elif isinstance(client, DeferredRevokeConsumer):
        _refuse_two(client._observed.by)
        member = MemberObservation(instruments, ref(client), observation.close)
        client._observed.by = member
        observation._begin(_of_the_living(client, _forget_consumer), member)
    elif isinstance(client, AsyncDeferredRevokeConsumer):
        thread = client._thread
        _refuse_two(thread.observer)
        found = ref(thread)

        def made() -> DeferredRevokeConsumer | None:
            living = found()
            return None if living is None else living.consumer

        member = MemberObservation(instruments, made, observation.close)
        thread.observe(member)
        observation._begin(_of_the_living(thread, _forget_thread), member)
    else:
        raise TypeError(
            f"expected a consumer or producer group of this package, not {client!r:.200}"
        )
    return observation


def _observe_group(
    group: ProducerGroup, instruments: Instruments, observation: Observation
) -> None:
    _refuse_two(group._transactions.observer)
    found, options = ref(group), group._options
    client_id = options.member.get("client_id", KafkaConsumer.DEFAULT_CONFIG["client_id"])
    attributes = of_member(options.group_id, client_id)

    def member_of() -> DeferredRevokeConsumer | None:
        living = found()
        return None if living is None else living._membership.member

    end = observation.close
    member = MemberObservation(instruments, member_of, end, reads_records=False)
    transactions = ProducerObservation(instruments, found, attributes, end)
    group._membership.observe(member)
    group._transactions.observer = transactions
    observation._begin(_of_the_living(group, _forget_group), member, transactions)


def _refuse_two(observer: Any) -> None:
    if observer is not None:
        raise ValueError("it is observed already; close that observation first")


def _of_the_living(client: Any, forget: Callable[[Any], None]) -> Callable[[], None]:
    """Return a function that removes a client's observer if the client still exists."""
    found = ref(client)

    def withdraw() -> None:
        living = found()
        if living is not None:
            forget(living)

    return withdraw


def _forget_consumer(client: DeferredRevokeConsumer) -> None:
    client._observed.by = None


def _forget_thread(thread: ConsumerThread) -> None:
    thread.observe(None)


def _forget_group(group: ProducerGroup) -> None:
    group._membership.observe(None)
    group._transactions.observer = None
