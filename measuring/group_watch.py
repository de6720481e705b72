"""The group as its broker describes it: owned partitions, committed offsets, and lag."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING

from kafka import KafkaAdminClient
from kafka.admin import OffsetSpec
from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.consumer.group_description import GroupDescription, describe_group

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.2

#: A query warms up before it joins: its JVM's first batch, on a busy machine.
_PATIENCE_S = 180.0


@dataclass(frozen=True)
class View:
    """The group at one moment.

    Attributes
    ----------
    at : float
        When it was requested, from ``time.time()``.
    state : str
        As the broker names it; see ``GroupDescription``.
    members : frozenset of str
        Readers with a member in the group.
    owned : dict of str to frozenset of TopicPartition
        By reader, as of the last stable state: during a join the broker does not say.
    revoking : dict of str to frozenset of TopicPartition
        By reader: taken from it, but not released by it yet.
    committed, ends : dict of TopicPartition to int
        The group's committed offsets (the next to read), and the partitions' end offsets.
    """

    at: float = 0.0
    state: str = "Dead"
    members: frozenset[str] = frozenset()
    owned: Mapping[str, frozenset[TopicPartition]] = field(default_factory=dict)
    revoking: Mapping[str, frozenset[TopicPartition]] = field(default_factory=dict)
    committed: Mapping[TopicPartition, int] = field(default_factory=dict)
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)

    def lag(self, partitions: Collection[TopicPartition]) -> int:
        """Return the number of records of these that are not committed yet."""
        return sum(max(0, self.ends.get(p, 0) - self.committed.get(p, 0)) for p in partitions)

    def is_shared_by(self, readers: Collection[str]) -> bool:
        """Whether only these readers share all partitions evenly, and none is moving."""
        shares = [len(self.owned.get(reader, ())) for reader in readers]
        return (
            self.state == "Stable"
            and self.members == frozenset(readers)
            and sum(shares) == len(self.ends) > 0
            and max(shares) - min(shares) <= 1
        )


class GroupWatch:
    """Describes the group again and again, on a thread of its own.

    Parameters
    ----------
    bootstrap_servers, group_id : str
        The group.
    partitions : collection of TopicPartition
        Everything that it reads.
    """

    def __init__(
        self, bootstrap_servers: str, group_id: str, partitions: Collection[TopicPartition]
    ) -> None:
        self._admin = KafkaAdminClient(bootstrap_servers=bootstrap_servers)
        self._group_id = group_id
        self._partitions = list(partitions)
        self._view = View()
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join(5)
        self._admin.close()

    @property
    def view(self) -> View:
        """The latest view."""
        return self._view

    def wait_until(
        self, is_so: Callable[[View], bool], what: str, timeout_s: float = _PATIENCE_S
    ) -> View:
        """Wait for a view for which ``is_so`` is true; its TimeoutError names ``what``."""
        with self._changed:
            if not self._changed.wait_for(lambda: is_so(self._view), timeout_s):
                raise TimeoutError(f"not within {timeout_s:g} s: {what}; last seen: {self._view}")
            return self._view

    def _run(self) -> None:
        while not self._stop.wait(_LOOK_EVERY_S):
            try:
                view = self._look()
            except KafkaError as error:
                log.info("the group cannot be seen: %r", error)
                continue
            with self._changed:
                self._view = view
                self._changed.notify_all()

    def _look(self) -> View:
        at = time.time()
        group = describe_group(self._admin, self._group_id)
        ends = self._admin.list_partition_offsets(
            dict.fromkeys(self._partitions, OffsetSpec.LATEST)
        )
        committed = self._admin.list_group_offsets(self._group_id)[self._group_id]
        return next_view(
            self._view,
            at,
            group,
            {p: found.offset for p, found in committed.items()},
            {p: found.offset for p, found in ends.items()},
        )


def next_view(
    previous: View,
    at: float,
    group: GroupDescription,
    committed: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> View:
    """Return the view after ``previous``, given the broker's description of the group.

    A reader's members have its name before the first "-" of their client id.
    """
    state = group.state
    readers = frozenset(member.client_id.partition("-")[0] for member in group.members)
    if state not in ("Stable", "Empty"):
        return View(at, state, readers, previous.owned, previous.revoking, committed, ends)
    owned: dict[str, set[TopicPartition]] = {reader: set() for reader in readers}
    for member in group.members:
        owned[member.client_id.partition("-")[0]] |= member.assigned
    # In a cooperative rebalance a moving partition is unassigned until its owner, which already
    # knows, has released it.
    nobodys = ends.keys() - set().union(*owned.values())
    revoking = {
        reader: frozenset(
            nobodys
            & (previous.owned.get(reader, frozenset()) | previous.revoking.get(reader, frozenset()))
        )
        for reader in readers
    }
    return View(
        at, state, readers, {r: frozenset(o) for r, o in owned.items()}, revoking, committed, ends
    )
