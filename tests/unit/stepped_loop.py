"""An I/O loop without a thread, which a test runs step by step; and the requests on their way."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from typing import Any

from consumer_protocol_coordinator import Clock
from kafka import errors as kafka_errors


class Wait:
    """What a coroutine waits for; done with an answer, an error, or at a time."""

    def __init__(self, until: float = float("inf")) -> None:
        self.until = until
        self.is_done = False
        self.error: Exception | None = None
        self.answer: Any = None

    def success(self, answer: Any) -> None:
        if not self.is_done:
            self.is_done, self.answer = True, answer

    def failure(self, error: Exception) -> None:
        if not self.is_done:
            self.is_done, self.error = True, error

    def __await__(self) -> Generator[Any, Any, Any]:
        while not self.is_done:
            yield self
        if self.error is not None:
            raise self.error
        return self.answer


class Alarm:
    """As kafka-python's WakeupNotifier: a notice that nobody waits for is kept."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rung = False
        self._wait: Wait | None = None

    async def __call__(self, seconds: float) -> None:
        self._wait = Wait(self._clock.now + seconds)
        if self._rung:
            self._rung = False
            self._wait.success(None)
        await self._wait
        self._wait = None

    def notify(self) -> None:
        if self._wait is not None and not self._wait.is_done:
            self._wait.success(None)
        else:
            self._rung = True


@dataclass
class Flight:
    """A request on its way. ``arrived`` also while it is held."""

    node: str
    request: Any
    sent_at: float
    wait: Wait
    arrived: bool = False
    answer: Any = None


class SteppedLoop:
    """Coroutines of one member, and what they have sent."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.flights: list[Flight] = []
        self._tasks: list[tuple[Coroutine[Any, Any, Any], Wait, Wait]] = []

    def spawn(self, function: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> Wait:
        begin, end = Wait(), Wait()
        begin.success(None)
        self._tasks.append((function(*arguments), begin, end))
        return end

    async def sleep(self, seconds: float) -> None:
        await Alarm(self.clock)(seconds)

    async def wait_for(self, wait: Wait, timeout_ms: float | None) -> Any:
        return await wait

    async def send(self, request: Any, node: str, timeout_ms: float) -> Any:
        flight = Flight(node, request, self.clock.now, Wait())
        self.flights.append(flight)
        return await flight.wait

    def run(self) -> None:
        """Until all coroutines wait for something that is still to come."""
        went_on = True
        while went_on:
            went_on = False
            for task in list(self._tasks):
                coroutine, wait, end = task
                if wait.until <= self.clock.now:
                    wait.success(None)
                if not wait.is_done:
                    continue
                went_on = True
                self._tasks.remove(task)
                try:
                    self._tasks.append((coroutine, coroutine.send(None), end))
                except StopIteration as stop:
                    end.success(stop.value)
                except kafka_errors.KafkaError as error:
                    end.failure(error)

    def hear(self, flight: Flight) -> None:
        self.flights.remove(flight)
        flight.wait.success(flight.answer)
        self.run()

    def break_off(self, flight: Flight, error: Exception) -> None:
        if flight in self.flights:
            self.flights.remove(flight)
            flight.wait.failure(error)

    def end(self) -> None:
        for coroutine, *_ in self._tasks:
            coroutine.close()
