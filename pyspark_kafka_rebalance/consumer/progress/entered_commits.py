"""EnteredCommits: commits by hand on their way, and which handed out records they complete.

A part of ``HandOuts``, under its lock. What the broker has accepted counts as processed, except
records that were handed out again since the commit was entered.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Set
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from kafka.structs import TopicPartition

from ...errors import PartitionsLostError
from ..commits.commit_by_hand import EnteredCommit
from ..offsets.gaps import Gap

if TYPE_CHECKING:
    from .hand_outs import HandOuts


class EnteredCommits:
    """The commits by hand of one consumer."""

    def __init__(self, hand_outs: HandOuts) -> None:
        self._all = hand_outs
        self._completion = hand_outs._completion
        self._membership = hand_outs._membership
        # Weak: who sends a commit, or waits for it, keeps it alive.
        self._under_way: WeakSet[EnteredCommit] = WeakSet()

    # -- any thread -------------------------------------------------------------------------------

    def enter(
        self, offsets: Mapping[TopicPartition, Any], retried: bool, everything: bool = False
    ) -> EnteredCommit:
        """Put a commit by hand in its place among the others.

        With ``everything``, the application named no offsets: the commit is of everything that was
        handed out. Raises PartitionsLostError, and ValueError if the commit cannot carry the
        application's metadata.
        """
        by_hand = EnteredCommit(offsets, retried, self._accepted)
        if not offsets:
            by_hand.future.success(None)
            return by_hand
        with self._all.lock:
            self._all.carry_out()
            self._all.refuse_overdue(by_hand.offsets)
            if self._all.gaps.known:
                self._all.gaps.claim(by_hand, everything)
            self._membership.commit_by_hand(by_hand)
            self._under_way.add(by_hand)
        return by_hand

    # -- locked -----------------------------------------------------------------------------------

    def claims_of(self, partition: TopicPartition) -> list[Gap]:
        """What the unanswered commits, which go before the next, claim of a partition."""
        return [
            claim
            for by_hand in self._under_way
            if not by_hand.future.is_done
            for claim in by_hand.claims_of(partition)
        ]

    def handed_out_again(self, partition: TopicPartition, offset: int) -> None:
        """Answers from now on no longer mark records from this offset on as processed."""
        for by_hand in self._under_way:
            by_hand.handed_out_again(partition, offset)

    def forget(self, partitions: Set[TopicPartition]) -> None:
        """These are not owned any more: drop what was claimed of them.

        When the answer to such a commit is late, they may already be assigned again, and what the
        commit named is handed out once more.
        """
        for by_hand in self._under_way:
            for partition in by_hand.claims.keys() & partitions:
                by_hand.claims[partition] = ()

    def forget_all(self) -> None:
        """Nothing is owned any more."""
        self.forget({p for by_hand in self._under_way for p in by_hand.claims})

    # -- the I/O loop -----------------------------------------------------------------------------

    def _accepted(self, by_hand: EnteredCommit) -> None:
        """On the I/O loop: the broker has accepted the commit, or some of its partitions."""
        processed = by_hand.processed()
        with self._all.lock:
            self._all.carry_out()
            claimed = by_hand.claimed()
            below = {p: offset for p, offset in processed.items() if p not in claimed}
            for p, offset in below.items():  # the group stands there, whoever committed it
                self._completion.before.hear(p, [Gap(0, offset)])
            reached = self._completion.complete_below(below)
            for p, claims in claimed.items():
                if (found := self._completion.of(p)) is not None:
                    found.pending.discard_all(claims)
                if (position := self._completion.position(p)) is not None:
                    reached[p] = position
            # Beyond the committed offset, or beyond its part that was not handed out again since.
            beyond = {
                p: offset
                for p, offset in reached.items()
                if offset > processed[p] and p not in by_hand.moved_back
            }
            if beyond:
                # If lost since, there is nothing to commit, and the next poll reports it.
                with contextlib.suppress(PartitionsLostError):
                    self._membership.commit(self._completion.epochs.entries(beyond))
