"""EventRows: the rebalance events that the next batch reports. Pure.

They are the rows of ``includeRebalanceEvents``, and the lost partitions. A revoke waits for the
batch with its ``revoke_requested`` row, so the number of that batch is kept.
"""

from __future__ import annotations

from collections.abc import Container

from kafka.structs import TopicPartition

from ...offsets import RebalanceEvent


class EventRows:
    """The event rows of one query.

    Parameters
    ----------
    included : bool
        Whether event rows are enabled.
    """

    def __init__(self, included: bool) -> None:
        self._included = included
        self._events: list[RebalanceEvent] = []  # not in a batch yet
        self._requests: dict[TopicPartition, int] = {}  # the unproven batch that has the row
        self._lost: set[TopicPartition] = set()  # since the last batch was planned

    def add(self, event: str, partition: TopicPartition, generation: int) -> None:
        """Record an event of a partition."""
        if event == "lost":
            self._lost.add(partition)
            self._requests.pop(partition, None)
        elif event == "assigned":
            self._lost.discard(partition)
        if self._included:
            self._events.append(RebalanceEvent(event, partition, generation))

    def wait(self) -> bool:
        """Whether rows wait for a batch."""
        return bool(self._events)

    def untold(self) -> list[RebalanceEvent]:
        """The rows that are in no batch yet; empty if event rows are disabled."""
        return list(self._events)

    def take(self, batch: int, owned: Container[TopicPartition]) -> list[RebalanceEvent]:
        """Take the rows for this batch, which is being planned."""
        events, self._events = self._events, []
        for event in events:
            if event.event == "revoke_requested" and event.partition in owned:
                self._requests[event.partition] = batch
        return events

    def take_lost(self) -> set[TopicPartition]:
        """Take the partitions lost since the last batch was planned."""
        lost, self._lost = self._lost, set()
        return lost

    def prove(self, last: int) -> None:
        """This batch and all before it are proven."""
        for partition in [p for p, batch in self._requests.items() if batch <= last]:
            del self._requests[partition]

    def have_unproven_request(self, partition: TopicPartition) -> bool:
        """Whether its ``revoke_requested`` row is in an unproven batch."""
        return partition in self._requests

    def are_unproven(self) -> bool:
        """Whether any ``revoke_requested`` row is in an unproven batch."""
        return bool(self._requests)

    def requests(self) -> set[TopicPartition]:
        """Partitions whose ``revoke_requested`` row is in no batch yet, or in an unproven one."""
        waiting = {e.partition for e in self._events if e.event == "revoke_requested"}
        return waiting | self._requests.keys()
