"""kafka-python's I/O loop and the connections that it serves, as group members use them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kafka.net.wakeup_notifier import WakeupNotifier

if TYPE_CHECKING:
    from kafka.future import Future
    from kafka.net.manager import KafkaConnectionManager


class IoLoop:
    """Runs coroutines and sends requests on one consumer's I/O loop; await its own only there.

    Parameters
    ----------
    manager : KafkaConnectionManager
        The manager of the consumer's connections.
    """

    def __init__(self, manager: KafkaConnectionManager) -> None:
        self._manager = manager
        self._net = manager._net

    def spawn(self, coroutine: Callable[..., Any], *arguments: Any) -> Future:
        """Schedule a coroutine function on the I/O loop; thread-safe."""
        return self._manager.call_soon(coroutine, *arguments)

    def run(self, coroutine: Callable[..., Any], *arguments: Any) -> Any:
        """Run a coroutine function on the I/O loop and wait for it; never from the loop itself."""
        return self._net.run(coroutine, *arguments)

    async def sleep(self, seconds: float) -> None:
        """Wait on the loop."""
        await self._net.sleep(seconds)

    def alarm(self) -> WakeupNotifier:
        """A wait with a timeout (seconds) that ``notify()`` ends from any thread."""
        return WakeupNotifier(self._net)

    async def send(self, request: Any, node_id: str | None, timeout_ms: float) -> Any:
        """Send one request and await its response."""
        return await self._manager.send(request, node_id=node_id, request_timeout_ms=timeout_ms)

    async def wait_for(self, future: Future, timeout_ms: float | None) -> Any:
        """Await a future, for at most the timeout if there is one; raises KafkaTimeoutError."""
        return await self._manager.wait_for(future, timeout_ms)

    def api_version(self, request: type) -> int:
        """The version in which a request will be sent; raises IncompatibleBrokerVersion if none."""
        return int(self._manager.broker_version_data.api_version(request))

    @property
    def closed(self) -> bool:
        """Whether the consumer's connections are closed."""
        return bool(self._manager.closed)
