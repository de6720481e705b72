"""ListenerOnLoop: a rebalance listener's coroutines run on the application's event loop.

The listener is called on the consumer's thread, in the middle of a poll, which continues once it is
done. Until then, the thread makes the calls that the listener's coroutine awaits: ``seek`` and all
others that would wait for this very poll.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future
from contextvars import ContextVar
from queue import SimpleQueue
from typing import Any

from kafka.consumer.subscription_state import (
    AsyncConsumerRebalanceListener,
    ConsumerRebalanceListener,
)
from kafka.structs import TopicPartition

_turn: ContextVar[_Turn | None] = ContextVar("turn", default=None)


class _Turn:
    """The calls of one listener's coroutine, and of the tasks that it creates, while it runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.over = False  # whether the coroutine is done

    def submit(self, function: Callable[[], Any]) -> Future[Any] | None:
        """On the event loop: have the waiting thread call this; None if it waits no more."""
        answer: Future[Any] = Future()

        def call() -> None:
            try:
                answer.set_result(function())
            except BaseException as error:
                answer.set_exception(error)

        with self._lock:
            if self.over:
                return None
            self._calls.put(call)
        return answer

    def end(self) -> None:
        """On the event loop: the coroutine is done."""
        with self._lock:
            self.over = True
            self._calls.put(None)

    def serve(self) -> None:
        """On the consumer's thread: make the calls until the coroutine is done."""
        while (call := self._calls.get()) is not None:
            call()


def in_listeners_turn(function: Callable[[], Any]) -> Future[Any] | None:
    """Have the consumer's thread call this if it waits for the listener that makes this call."""
    turn = _turn.get()
    return None if turn is None else turn.submit(function)


def is_listeners_turn() -> bool:
    """Whether a listener makes this call, for which the consumer's thread waits."""
    turn = _turn.get()
    return turn is not None and not turn.over


def run_on_loop(
    loop: asyncio.AbstractEventLoop, coroutine: Callable[..., Any], *arguments: Any
) -> Any:
    """On the consumer's thread: run a coroutine function on the loop, and wait for it."""
    turn = _Turn()

    async def run() -> Any:
        _turn.set(turn)
        try:
            return await coroutine(*arguments)
        finally:
            turn.end()

    running = asyncio.run_coroutine_threadsafe(run(), loop)
    turn.serve()
    return running.result()


class ListenerOnLoop(ConsumerRebalanceListener):  # type: ignore[misc]
    """An application's listener, whose coroutine functions run on its event loop.

    Whatever is no coroutine function is called on the consumer's thread.
    """

    def __init__(self, listener: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._listener = listener
        self._loop = loop

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        """These are new."""
        self._call(self._listener.on_partitions_assigned, assigned)

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        """The revoke of these is being completed."""
        self._call(self._listener.on_partitions_revoked, revoked)

    def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        """These are lost."""
        self._call(self._listener.on_partitions_lost, lost)

    def _call(self, method: Callable[..., Any], partitions: Collection[TopicPartition]) -> None:
        if inspect.iscoroutinefunction(method):
            run_on_loop(self._loop, method, partitions)
        else:
            method(partitions)


def on_loop(listener: Any) -> Any:
    """The listener, on the running event loop; any other object is returned unchanged."""
    if isinstance(listener, (ConsumerRebalanceListener, AsyncConsumerRebalanceListener)):
        return ListenerOnLoop(listener, asyncio.get_running_loop())
    return listener
