"""ListenerCalls: calls to the rebalance listener of ``subscribe``, which never stop a rebalance."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING

from kafka.structs import TopicPartition

if TYPE_CHECKING:
    from .kafka_python.io_loop import IoLoop
    from .kafka_python.subscription import Subscription

log = logging.getLogger(__name__)


class ListenerCalls:
    """Calls the listener on the polling thread, and keeps what it raises.

    A turn of the rebalance does not depend on the listener's success: it is carried out to its end.
    Then the poll raises the listener's first error, as Java's consumer does.

    Parameters
    ----------
    loop : IoLoop
        Runs a listener's coroutines.
    subscription : Subscription
        Holds the listener, which is looked up at each call.
    group_id : str
        For the log.
    """

    def __init__(self, loop: IoLoop, subscription: Subscription, group_id: str) -> None:
        self._loop = loop
        self._subscription = subscription
        self._group_id = group_id
        self._failure: BaseException | None = None

    def assigned(self, partitions: Collection[TopicPartition]) -> None:
        """Call ``on_partitions_assigned``, even without partitions."""
        self._call("on_partitions_assigned", partitions)

    def revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Call ``on_partitions_revoked`` if there are any: their revoke is being completed."""
        if partitions:
            self._call("on_partitions_revoked", partitions)

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        """Call ``on_partitions_lost`` if there are any."""
        if partitions:
            self._call("on_partitions_lost", partitions)

    def raise_failure(self) -> None:
        """Raise the first error of the listener since the last call."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _call(self, method: str, partitions: Collection[TopicPartition]) -> None:
        listener = self._subscription.rebalance_listener
        if listener is None:
            return
        callback, told = getattr(listener, method), set(partitions)
        if inspect.iscoroutinefunction(callback):
            callback = partial(self._loop.run, callback)
        try:
            callback(told)
        except BaseException as error:
            if self._failure is None:
                self._failure = error
            else:
                log.exception("group %s: the rebalance listener failed again", self._group_id)
