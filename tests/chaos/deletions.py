"""Which records of a plan are deleted while it goes on, and when."""

from __future__ import annotations

import time
from collections.abc import Callable

from kafka.structs import TopicPartition

from . import plan_admin
from .random_plans import Fault


class Deletions:
    """Carries out what deletes a topic's records, and knows what that took.

    Parameters
    ----------
    servers : str
    partitions : callable
        Those of a topic of the plan.
    """

    def __init__(self, servers: str, partitions: Callable[[str], list[TopicPartition]]) -> None:
        self._servers = servers
        self._partitions = partitions
        self._begins: dict[TopicPartition, list[tuple[float, int]]] = {}

    def carry_out(self, fault: Fault) -> None:
        """One of ``DELETING``."""
        at = time.time()
        partitions = self._partitions(fault.target)
        begins = plan_admin.delete(self._servers, fault.what, partitions, fault.s)
        for partition, begin in begins.items():
            self._begins.setdefault(partition, []).append((at, begin))

    def look_again(self) -> None:
        """Note what was deleted since: retention of a broker that was suspended comes late."""
        if not self._begins:
            return
        for partition, begin in plan_admin.begins_of(self._servers, self._begins.keys()).items():
            at, _ = self._begins[partition][-1]
            self._begins[partition].append((at, begin))

    def when(self, partition: TopicPartition, offset: int) -> float | None:
        """Just before this record may have been deleted; None: it was not."""
        return next((at for at, begin in self._begins.get(partition, ()) if begin > offset), None)
