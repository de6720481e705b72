"""CommittingConsumer: what an application says of records that it has processed.

Commits in the background and commits by hand go one way, in one order (``progress.py``); what polls
handed out is in ``hand_outs.py``. Where polls go on from another offset, lower ones may follow.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

from kafka.errors import KafkaTimeoutError
from kafka.future import Future
from kafka.structs import TopicPartition

from ..errors import PartitionsLostError
from .hand_outs import LOG_END, HandOuts
from .member_status import MemberStatus


class CommittingConsumer(MemberStatus):
    """A KafkaConsumer whose commits go on during joins, and end with what is owned."""

    _hand_outs: HandOuts

    def commit_processed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Records below these next offsets are processed: commit them in the background.

        Commits are aggregated, in order and one at a time, and go on during joins. A revoke is
        only completed towards the group when the broker has acknowledged them; ``close`` drains.
        May be called on another thread than the one that polls, as may ``assignment``,
        ``acknowledged``, ``current_lag`` and the lists.

        Parameters
        ----------
        offsets : dict of TopicPartition to int
            The next offset to read (last processed + 1).

        Raises
        ------
        PartitionsLostError
            One of the partitions is not owned by this member of the group (assigned by hand:
            ``commit``), or its log was truncated since and the offset is that of a record that is
            gone; nothing of this call is committed.
        """
        self._hand_outs.commit_processed(offsets)

    def processed(self, partition: TopicPartition, *offsets: int) -> None:
        """The records of a partition at these offsets are processed, in whatever order.

        Commits, as ``commit_processed`` does, how far everything is that polls handed out: the
        lowest offset that is not processed, or the one after the last. For asynchronous workers;
        any thread may call it. Again for the same record is fine.

        Parameters
        ----------
        partition : TopicPartition
            Where the records come from.
        *offsets : int
            The records' own offsets (not the next ones).

        Raises
        ------
        PartitionsLostError
            The partition is not owned any more, or it is again and these records were handed out
            before; a worker cannot know. Whoever owns it now delivers them too.
        ValueError
            No poll has handed out one of them. As with the other error, nothing of this call
            counts.
        """
        self._hand_outs.processed(partition, offsets)

    def unprocessed(self) -> frozenset[TopicPartition]:
        """Owned partitions with records that polls handed out and nobody has ``processed``."""
        return self._hand_outs.unprocessed()

    def commit(self, offsets: Any = None, timeout_ms: float | None = None) -> None:
        """``KafkaConsumer.commit``: what the broker accepts counts as processed.

        In one order with all other commits of this consumer: what was to be committed in the
        background before is not sent after it, and what is said to be processed later only if it
        is higher. A lower offset than before moves the group back, as in Kafka's own consumers.

        Raises
        ------
        PartitionsLostError
            One of the partitions is lost, even if no poll has said so yet, or not owned; nothing of
            this call is committed.
        KafkaTimeoutError
            No final answer within ``timeout_ms`` (default ``request_timeout_ms``).
        KafkaError
            What the broker refuses.
        """
        if not self._io.subscription.subscribed:
            super().commit(offsets, timeout_ms)
            return
        offsets = self._positions() if offsets is None else offsets
        by_hand = self._hand_outs.enter(offsets, retried=True)
        if timeout_ms is None:
            timeout_ms = self.config["request_timeout_ms"]
        try:
            self._io.loop.run(self._io.loop.wait_for, by_hand.future, timeout_ms)
        except KafkaTimeoutError:
            self._membership.commits.give_up(by_hand)
            raise

    def commit_async(self, offsets: Any = None, callback: Any = None) -> Any:
        """``KafkaConsumer.commit_async``: what the broker accepts counts as processed.

        In one order with all other commits, as ``commit``. It is sent once: a failure reaches the
        future and the callback only; then the records are still ``unprocessed``, so that their
        revoke can be delayed until another commit.
        """
        if not self._io.subscription.subscribed:
            return super().commit_async(offsets, callback)
        if offsets is None:
            offsets = self._positions()
        try:
            future = self._hand_outs.enter(offsets, retried=False).future
        except PartitionsLostError as error:
            future = Future().failure(error)
        return self._io.tell_in_polls(future, offsets, callback)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """``KafkaConsumer.seek``; a lower offset than before may be committed from here on."""
        super().seek(partition, offset)
        self._hand_outs.sought([partition], offset)

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """``KafkaConsumer.seek_to_beginning``; lower offsets may be committed from there on."""
        super().seek_to_beginning(*partitions)
        self._hand_outs.sought(partitions or self._io.subscription.owned())

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """``KafkaConsumer.seek_to_end``."""
        super().seek_to_end(*partitions)
        self._hand_outs.sought(partitions or self._io.subscription.owned(), LOG_END)

    def forget_commits(self, partitions: Collection[TopicPartition]) -> None:
        """Send nothing more of what waits, and let a lower offset be committed next.

        For the one case in which a committed position must move back: the records are gone.
        Those that were handed out do not count any more; seek to where polls go on.
        """
        self._hand_outs.forget_commits(partitions)

    def take_unknown(self) -> frozenset[TopicPartition]:
        """Those whose commit was given up since the last call, since the broker has no such."""
        return self._membership.commits.take_unknown()

    def drain(self, timeout_ms: float) -> bool:
        """Wait until all commits are acknowledged; False when they are not by ``timeout_ms``."""
        deadline = time.monotonic() + timeout_ms / 1000
        while self._membership.commits.any_outstanding():
            self._membership.commits.hurry()
            if time.monotonic() >= deadline:
                return False
            self._membership.raise_if_failed()
            time.sleep(0.002)
        return True

    def __next__(self) -> Any:
        """The next record; the library's iterator, which may drop records that a poll brought."""
        while True:
            record = super().__next__()
            if not self._io.subscription.subscribed:
                return record
            partition = TopicPartition(record.topic, record.partition)
            if self._hand_outs.hand_out({partition: [record]}):
                return record

    def _positions(self) -> dict[TopicPartition, Any]:
        """What a commit by hand without offsets commits; nothing of a completed revoke."""
        consumed = self._io.subscription.consumed()
        return {p: consumed[p] for p in self.assignment() & consumed.keys()}
