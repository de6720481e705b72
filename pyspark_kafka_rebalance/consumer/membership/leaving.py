"""Leaving: tells the coordinator that a member leaves its group.

A member can leave during its first join, too. The coordinator already knows the member by then, and
would keep it, and the partitions assigned to it, until the session times out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from kafka import errors as kafka_errors

from ..protocol.answers import gone_already
from ..protocol.member_record import Member

if TYPE_CHECKING:
    from ..kafka_python.coordinator import GroupCoordinator

log = logging.getLogger(__name__)


class Leaving:
    """Sends the leave request of one member, in the way of its protocol.

    Parameters
    ----------
    io : GroupCoordinator
        The seam to kafka-python.
    group_id : str
        For the log.
    send : callable
        A coroutine function that tells the coordinator, and returns the broker's error class.
    """

    def __init__(
        self,
        io: GroupCoordinator,
        group_id: str,
        send: Callable[[Member, str], Coroutine[Any, Any, type[Exception]]],
    ) -> None:
        self._io = io
        self._loop = io.loop
        self._group_id = group_id
        self._send = send

    def leave(self, member: Member, reason: str, timeout_ms: float | None) -> None:
        """Tell the coordinator, if it knows the member; not to be called on the I/O loop."""
        if member.member_id:
            self._loop.run(self.leave_async, member, reason, timeout_ms)

    async def leave_async(
        self, member: Member, reason: str, timeout_ms: float | None = None
    ) -> None:
        """Tell the coordinator, if it knows the member.

        If that fails, the session timeout has the same effect.
        """
        if not member.member_id:
            return
        try:
            if self._io.coordinator_unknown():
                await self._loop.wait_for(self._io.lookup_coordinator(), timeout_ms)
            error = await self._loop.wait_for(
                self._loop.spawn(self._send, member, reason), timeout_ms
            )
        except kafka_errors.KafkaError as failure:
            error = type(failure)
        if error is kafka_errors.NoError:
            log.info("group %s: member %s left: %s", self._group_id, member.member_id, reason)
        elif gone_already(error):
            log.info("group %s: member %s is gone already", self._group_id, member.member_id)
        else:
            log.warning("group %s: leaving failed: %s", self._group_id, error.__name__)
