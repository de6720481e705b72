"""ConsumerThread: a DeferredRevokeConsumer on its own thread, for an event loop.

kafka-python has its own I/O loop, not asyncio's, and a consumer belongs to one thread. Calls that
wait or change something therefore run there, in the order in which they were made, and the event
loop only awaits the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar, cast

from kafka.errors import IllegalStateError

from ...transport.forks import leave_to_parent, refuse
from ..consumer import DeferredRevokeConsumer
from ..observer import ConsumerObserver
from .listener_on_loop import in_listeners_turn, is_listeners_turn

Answer = TypeVar("Answer")


class ConsumerThread:
    """One consumer and its thread, started once and closed once. The event loop makes all calls."""

    def __init__(self, make: Callable[[], DeferredRevokeConsumer]) -> None:
        #: None until ``make`` has made it, on the thread. The event loop itself makes only calls
        #: that are safe while a poll runs, and that never wait.
        self.consumer: DeferredRevokeConsumer | None = None
        #: The running poll, or the last one until its result is taken.
        self.polling: asyncio.Future[Any] | None = None
        self._make = make
        #: The consumer's; set on the consumer as soon as that is made.
        self.observer: ConsumerObserver | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kafka-consumer")
        self._started = False
        self._outstanding: set[Future[Any]] = set()
        self._closing: asyncio.Future[None] | None = None
        self._is_the_parents = False
        leave_to_parent(self, ConsumerThread._leave_to_parent)

    async def start(self) -> None:
        """Make the consumer; IllegalStateError if called a second time."""
        if self._started:
            raise IllegalStateError("already started; make a new consumer")
        self._started = True

        def make() -> None:
            self.consumer = consumer = self._make()
            # The consumer is set first. observe() sets the observer first: one of them sees both.
            if self.observer is not None:
                consumer._observed.by = self.observer

        try:
            await asyncio.shield(asyncio.wrap_future(self._thread.submit(make)))
        except BaseException:
            self.begin_close(timeout_ms=0)  # closes the consumer that a cancelled start still makes
            raise

    def observe(self, observer: ConsumerObserver | None) -> None:
        """Set the consumer's observer, now or as soon as the consumer is made."""
        self.observer = observer
        if self.consumer is not None:
            self.consumer._observed.by = observer

    def begin_close(self, timeout_ms: float | None) -> asyncio.Future[None]:
        """Have the consumer closed, after all earlier calls; a running poll ends."""
        if self._is_the_parents:
            nothing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            nothing.set_result(None)
            return nothing
        if self._closing is None:

            def close() -> None:
                if self.consumer is not None:
                    self.consumer.close(timeout_ms=timeout_ms)

            self.wakeup()
            self._closing = asyncio.wrap_future(self._thread.submit(close))
            self._thread.shutdown(wait=False)  # ends after the submitted calls
        return self._closing

    def _leave_to_parent(self) -> None:
        """In a forked child, which has no such thread: refuse calls, and close nothing."""
        self._is_the_parents = True
        self._thread.submit = refuse  # type: ignore[method-assign]

    @property
    def closing(self) -> bool:
        """Whether a close has started."""
        return self._closing is not None

    def opened(self) -> DeferredRevokeConsumer:
        """The consumer; IllegalStateError before it is made and once it is being closed.

        The close calls the rebalance listener for the revoke, and it may still commit.
        """
        if self._closing is not None and not is_listeners_turn():
            raise IllegalStateError("the consumer is closed")
        if self.consumer is None:
            raise IllegalStateError(
                "the consumer is not started: use 'async with' or await start()"
            )
        return self.consumer

    def wakeup(self) -> None:
        """End the running poll early, if there is one."""
        if self.consumer is not None and self.polling is not None:
            self.consumer.wakeup()

    @property
    def idle(self) -> bool:
        """Whether the thread has nothing to do.

        Then the event loop itself may make calls that never wait, because only the loop gives the
        thread more to do.
        """
        return not self._outstanding

    def submit(self, function: Callable[[], Answer]) -> asyncio.Future[Answer]:
        """Run on the consumer's thread, after all earlier calls."""
        submitted = self._thread.submit(function)
        self._outstanding.add(submitted)
        submitted.add_done_callback(self._outstanding.discard)  # before the loop learns of it
        return asyncio.wrap_future(submitted)

    async def in_turn(self, function: Callable[..., Answer], *arguments: Any) -> Answer:
        """Run on the consumer's thread, after all earlier calls; a running poll ends early for it.

        If cancelled, it either does not run at all, or its answer is dropped. A rebalance
        listener's calls run in the listener's turn.
        """
        call = partial(function, *arguments)
        if (in_turn := in_listeners_turn(call)) is not None:
            return cast(Answer, await asyncio.wrap_future(in_turn))
        answer = self.submit(call)
        self.wakeup()
        return await answer
