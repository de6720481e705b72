"""EventRows: what the next batch has to tell of the rebalance. Pure.

The rows of ``includeRebalanceEvents``, and what was lost. A revoke waits for the batch with its
``revoke_requested`` row, so it is kept in which batch that is.
"""

from __future__ import annotations

from collections.abc import Container

from kafka.structs import TopicPartition

from ..offsets import RebalanceEvent


class EventRows:
    """Of one query.

    Parameters
    ----------
    included : bool
        Whether there are rows at all.
    """

    def __init__(self, included: bool) -> None:
        self._included = included
        self._events: list[RebalanceEvent] = []  # not in a batch yet
        self._requests: dict[TopicPartition, int] = {}  # in which batch that is not proven
        self._lost: set[TopicPartition] = set()  # since the last batch was planned

    def add(self, event: str, partition: TopicPartition, generation: int) -> None:
        """Something has happened to a partition."""
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
        """The rows that are in no batch; none, if there are no rows at all."""
        return list(self._events)

    def take(self, batch: int, owned: Container[TopicPartition]) -> list[RebalanceEvent]:
        """The rows of this batch, which is being planned."""
        events, self._events = self._events, []
        for event in events:
            if event.event == "revoke_requested" and event.partition in owned:
                self._requests[event.partition] = batch
        return events

    def take_lost(self) -> set[TopicPartition]:
        """Lost since the last planned batch."""
        lost, self._lost = self._lost, set()
        return lost

    def prove(self, last: int) -> None:
        """This batch is proven, and all before it."""
        for partition in [p for p, batch in self._requests.items() if batch <= last]:
            del self._requests[partition]

    def have_unproven_request(self, partition: TopicPartition) -> bool:
        """Whether the row of its request is in a batch that is not proven."""
        return partition in self._requests

    def are_unproven(self) -> bool:
        """Whether the row of any request is in a batch that is not proven."""
        return bool(self._requests)

    def requests(self) -> set[TopicPartition]:
        """Whose request's row is in no batch yet, or in one that is not proven."""
        waiting = {e.partition for e in self._events if e.event == "revoke_requested"}
        return waiting | self._requests.keys()
