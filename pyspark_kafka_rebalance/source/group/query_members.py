"""QueryMembers: the clients of one query, built by its pump and asked by whoever needs one."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kafka.structs import TopicPartition

from ...consumer.cluster_queries import ClusterQueries
from ...consumer.pump import Pump
from ...consumer.remaining import Remaining
from ...errors import KafkaRebalanceError
from .clients import build_clients, partitions_of
from .query_member import QueryClient, QueryMember
from .query_state import QueryState

if TYPE_CHECKING:
    from ..options import SourceOptions

log = logging.getLogger(__name__)

#: How long one look-up of committed or end offsets may take before the next tick tries again.
LOOKUP_TIMEOUT_MS = 5_000

#: How long closing may take of one of them, which leaves its group. More is not worth waiting for:
#: without a coordinator the session timeout does the same.
_CLOSE_AT_MOST_S = 3.0


class QueryMembers:
    """In the order of the readers; iterated by the pump's thread, or when they are built.

    Parameters
    ----------
    options : SourceOptions
        Those of a stream.
    run : str
        Prefix of the client ids.
    state : QueryState
        Tells whether they have a generation.
    pump : Pump
        Builds and closes them; its failure is raised by :meth:`client`.
    """

    def __init__(self, options: SourceOptions, run: str, state: QueryState, pump: Pump) -> None:
        self._options = options
        self._run = run
        self._state = state
        self._pump = pump
        self._clients: list[QueryClient] = []
        self._to_build: Iterator[QueryClient] = iter(())
        self._built = threading.Event()

    def __iter__(self) -> Iterator[QueryMember]:
        return iter([client.member for client in self._clients])

    def __len__(self) -> int:
        return len(self._clients)

    def __getitem__(self, index: int) -> QueryMember:
        return self._clients[index].member

    def cluster_of(self, index: int) -> ClusterQueries:
        """Whom to ask of the brokers what concerns a member's partitions."""
        return self._clients[index].cluster

    def committed(
        self, partitions: Collection[TopicPartition], timeout_ms: float, index: int = 0
    ) -> dict[TopicPartition, Remaining]:
        """What the group is owed, asked of one of them now; without what it has no offset of.

        What is processed beyond its offset counts with ``parallelRebalance=live`` alone: who reads
        in order cannot leave it out. Raises as ``QueryMember.committed_offsets``.
        """
        if self._options.catch_up is not None:
            return self[index].committed_remaining(partitions, timeout_ms)
        committed = self[index].committed_offsets(partitions, timeout_ms)
        return {p: Remaining(offset) for p, offset in committed.items()}

    def build_first(self) -> None:
        """Build the one that finds out whether brokers let us in.

        Raises
        ------
        KafkaRebalanceError
            As :func:`build_clients`.
        """
        self._to_build = build_clients(self._options, self._run)
        self._clients.append(next(self._to_build))

    def build_others(self) -> None:
        """Build the others, unless the pump is to stop by now; raises as :meth:`build_first`."""
        if not self._pump.is_stopping:
            self._clients.extend(self._to_build)
            log.info(
                "group %s: %d clients built for %s",
                self._options.group_id,
                len(self._clients),
                self._options.pattern or ", ".join(self._options.topics or ()),
            )
        self._built.set()

    def close(self) -> None:
        """Close them within what is left of the pump's time; one that fails keeps no other."""
        self._built.set()  # whoever waits for a member learns why there is none
        for member in self:
            left_s = min(self._pump.left_s(), _CLOSE_AT_MOST_S)
            try:
                member.close(timeout_ms=max(100.0, left_s * 1000))
            except Exception:
                log.exception("group %s: a member did not close cleanly", self._options.group_id)

    def client(self) -> ClusterQueries:
        """Wait until they are built; any of them, for what has nothing to do with membership.

        Raises
        ------
        KafkaRebalanceError
            The query was stopped before it had one; or whatever ended the pump.
        """
        self._built.wait()
        self._pump.raise_failure()
        if not self._clients:
            raise KafkaRebalanceError("the query was stopped before it had a member")
        return self._clients[0].cluster

    @contextmanager
    def asking(self) -> Iterator[ClusterQueries]:
        """The client for a look-up. If the pump ends meanwhile, why, not what that did to it."""
        client = self.client()
        try:
            yield client
        except Exception:
            self._pump.raise_failure()
            raise

    def partitions(self) -> set[TopicPartition]:
        """All that the query reads, by the first member's metadata or by name; waits for it."""
        return partitions_of(self._options, self.client())

    def has_joined(self) -> bool:
        """Whether all of them have, and no join is under way."""
        with self._state as state:
            polled = bool(state.generations)
        return polled and self.are_stable()

    def are_stable(self) -> bool:
        """Whether no join of any is under way."""
        return all(member.is_stable for member in self)

    def have_settled(self) -> bool:
        """Whether all have joined, and none of their partitions is on its way."""
        with self._state as state:
            moving = bool(state.assignment.partitions.revoking())
        return not moving and self.has_joined()

    def session_timeout_ms(self) -> float:
        """The longest of theirs; before there is one, the option.

        In the consumer protocol the broker's, once a member has joined.
        """
        given: float = self._options.consumer_config["session_timeout_ms"]
        return max((member.session_timeout_ms for member in self), default=given)
