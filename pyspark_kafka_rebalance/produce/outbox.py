"""Which request goes to which broker, and when. Pure.

Invariants:
 1. The batches of a partition leave in their order, and none before an earlier one that waits to be
    sent again.
 2. A message has at most one batch of a partition, and batches of no more than the bound in bytes,
    unless one alone is larger.
 3. A broker has at most ``max_in_flight`` messages with records that it has not answered.
 4. A request that is not outstanding any more is not sent.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from operator import attrgetter

from kafka.structs import TopicPartition

from .requests import EndTxn, Fetch, Produce, Request

#: The wait before the first repetition. What a coordinator refuses with CONCURRENT_TRANSACTIONS,
#: right after a transaction, takes it no longer, as a rule; it is also Java's.
_FIRST_WAIT_S = 0.02


@dataclass(frozen=True)
class Backoff:
    """How long a request waits before it is sent again: twice as long each time.

    Attributes
    ----------
    longest_s : float
        Seconds.
    """

    longest_s: float = 1.0

    def wait_s(self, attempt: int) -> float:
        """Seconds before the attempt; 0 before the first, which is 0."""
        if not attempt:
            return 0.0
        return min(self.longest_s, _FIRST_WAIT_S * 2.0 ** min(attempt - 1, 10))


@dataclass(frozen=True)
class Parcel:
    """What goes to a broker in one message.

    Attributes
    ----------
    node : int or None
        The broker; None for any.
    requests : tuple of Request
        One request, or several Produce.
    """

    node: int | None
    requests: tuple[Request, ...]

    @property
    def has_records(self) -> bool:
        """Whether it is for a leader's log."""
        return isinstance(self.requests[0], Produce)


@dataclass
class _Line:
    """The batches of one partition that wait, in order."""

    waiting: list[Produce] = field(default_factory=list)
    not_before: float = 0.0


class Outbox:
    """Requests that wait to be sent.

    Parameters
    ----------
    leader_of : callable
        Which broker leads a partition; None if that is unknown. Its batches wait.
    size_of : callable
        The size of the batch of a Produce, in bytes.
    max_bytes : int
        Of the batches in one message.
    max_in_flight : int
        Messages with records that one broker may have.
    backoff : Backoff, optional
    """

    def __init__(
        self,
        leader_of: Callable[[TopicPartition], int | None],
        size_of: Callable[[Produce], int],
        max_bytes: int,
        max_in_flight: int = 5,
        backoff: Backoff | None = None,
    ) -> None:
        self._leader_of = leader_of
        self._size_of = size_of
        self._max_bytes = max_bytes
        self._max_in_flight = max_in_flight
        self._backoff = backoff or Backoff()
        self._lines: dict[TopicPartition, _Line] = {}
        self._others: list[tuple[float, Request]] = []
        self._in_flight: Counter[int] = Counter()

    def add(self, requests: Iterable[Request], now: float) -> None:
        """Queue requests; ``now`` in seconds, by any steady clock."""
        for request in requests:
            at = now + self._backoff.wait_s(request.attempt)
            if not isinstance(request, Produce):
                self._others.append((at, request))
                continue
            line = self._lines.setdefault(request.partition, _Line())
            insort(line.waiting, request, key=attrgetter("order"))
            if request.attempt:
                line.not_before = max(line.not_before, at)

    def take(self, now: float, outstanding: Container[int]) -> list[Parcel]:
        """The messages to send now.

        Parameters
        ----------
        outstanding : container of int
            The numbers of the requests that are still to be sent.
        """
        return [*self._take_others(now, outstanding), *self._take_records(now, outstanding)]

    def withdraw(self, partition: TopicPartition, batch: int) -> list[Request]:
        """Give back what waits of a batch that is given up."""
        line = self._lines.get(partition, _Line())
        withdrawn: list[Request] = [each for each in line.waiting if each.batch == batch]
        line.waiting = [each for each in line.waiting if each.batch != batch]
        return withdrawn

    def recall(self) -> list[Request]:
        """Give back all that waits for a transaction to be whole; not what ends it."""

        def is_kept(request: Request) -> bool:
            return request.transaction is None or isinstance(request, EndTxn)

        recalled = [request for _, request in self._others if not is_kept(request)]
        recalled += [request for line in self._lines.values() for request in line.waiting]
        self._lines.clear()
        self._others = [each for each in self._others if is_kept(each[1])]
        return recalled

    def done(self, parcel: Parcel) -> None:
        """A message is answered, or will not be."""
        if parcel.has_records and parcel.node is not None:
            self._in_flight[parcel.node] -= 1

    def wake_at(self) -> float | None:
        """When `take` may have something that it has not now, without another event."""
        times = [at for at, _ in self._others]
        times += [line.not_before for line in self._lines.values() if line.not_before]
        return min(times, default=None)

    def _take_others(self, now: float, outstanding: Container[int]) -> list[Parcel]:
        parcels = []
        left = []
        for at, request in self._others:
            if request.number not in outstanding:
                continue
            if at > now:
                left.append((at, request))
                continue
            node = request.node
            if isinstance(request, Fetch):
                node = self._leader_of(request.partition)
                if node is None:
                    left.append((now + _FIRST_WAIT_S, request))
                    continue
            parcels.append(Parcel(node, (request,)))
        self._others = left
        return parcels

    def _take_records(self, now: float, outstanding: Container[int]) -> list[Parcel]:
        parcels: list[Parcel] = []
        while True:
            loads: dict[int, list[Produce]] = {}
            sizes: Counter[int] = Counter()
            for partition, line in list(self._lines.items()):
                node = self._free_leader(partition, line, now, outstanding)
                if node is None:
                    continue
                size = self._size_of(line.waiting[0])
                if node in loads and sizes[node] + size > self._max_bytes:
                    continue
                sizes[node] += size
                loads.setdefault(node, []).append(line.waiting.pop(0))
                # Behind the others, which are first next time.
                del self._lines[partition]
                if line.waiting:
                    self._lines[partition] = line
            if not loads:
                return parcels
            for node, load in loads.items():
                self._in_flight[node] += 1
                parcels.append(Parcel(node, tuple(load)))

    def _free_leader(
        self, partition: TopicPartition, line: _Line, now: float, outstanding: Container[int]
    ) -> int | None:
        """The leader that the first batch of a partition can go to now, if there is one."""
        while line.waiting and line.waiting[0].number not in outstanding:
            line.waiting.pop(0)
        if not line.waiting:
            del self._lines[partition]
            return None
        if line.not_before > now:
            return None
        line.not_before = 0.0
        node = self._leader_of(partition)
        return node if node is not None and self._in_flight[node] < self._max_in_flight else None
