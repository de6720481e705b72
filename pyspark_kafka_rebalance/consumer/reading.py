"""Reading: the readers of one consumer's polls, and their progress.

There are two readers. The live one is kafka-python's; the gaps' reader runs beside it while
partitions catch up (KIP-333). A step's records are noted as handed out, unless it is an
iteration's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from kafka import KafkaConsumer
from kafka.structs import TopicPartition

from ..errors import UnreadableRecordError
from .fetch_metadata import EndOffsets, FetchMetadata
from .gaps_beside_live import CatchingUp, records_left
from .kafka_python.polling import end_iteration, fetch_step, hand_out_as, is_closed
from .poll_result import PollResult
from .progress.hand_outs import HandOuts

if TYPE_CHECKING:
    from .kafka_python.subscription import Subscription

#: The records of a poll, by partition.
Records = dict[TopicPartition, list[Any]]


class Reading:
    """Reads for one consumer's polls, on the polling thread; only ``answered`` is on the I/O loop.

    ``consumer`` is the live reader. ``library_poll`` is the library's own poll: timeout, number of
    records, whether to update the offsets.
    """

    def __init__(
        self,
        consumer: KafkaConsumer,
        library_poll: Callable[[float, int | None, bool], Records],
        subscription: Subscription,
        hand_outs: HandOuts,
        ends: EndOffsets,
        catching_up: CatchingUp | None = None,
    ) -> None:
        self._consumer = consumer
        self.library_poll = library_poll  # with its checks; it has no wakeup
        self._subscription = subscription
        self._hand_outs = hand_outs
        self._ends = ends
        self._catching_up = catching_up
        self._live_step = fetch_step if catching_up is None else catching_up.live_step

    @property
    def closed(self) -> bool:
        """Whether the consumer is closed."""
        return is_closed(self._consumer)

    @property
    def max_poll_records(self) -> int:
        """The most records of a poll without ``max_records``."""
        return int(self._consumer.config["max_poll_records"])

    def hand_out_as(self, form: Callable[..., Any]) -> None:
        """Hand out live records in this form from now on; see `hand_out_as`."""
        hand_out_as(self._consumer, form)

    def end_iteration(self) -> None:
        """Drop the records that ``__next__`` fetched ahead; a poll in between returns them."""
        end_iteration(self._consumer)

    def is_left_to_library(self, timeout_ms: float) -> bool:
        """Whether the library's own poll handles such a poll, or refuses it.

        It handles polls under a manual assignment.
        """
        return self.closed or timeout_ms < 0 or not self._subscription.subscribed

    def step(
        self,
        form: Callable[..., Any],
        wait_ms: float,
        max_records: int,
        update_offsets: bool,
        has_news: bool,
    ) -> tuple[Records, Records]:
        """Read live records, then gap records.

        Returns both, at most ``max_records`` together; all in the former if they have one order.
        Waits only for live records. Without ``update_offsets`` they are not handed out. A poll that
        ``has_news`` of the rebalance raises no error in reading: a later poll does.
        """
        number, catching_up = max_records, self._catching_up
        if catching_up is not None:
            number, wait_ms = catching_up.begin(max_records, wait_ms)
            if not has_news:
                catching_up.raise_failure()
        records: Records = {}
        try:
            if number or max_records <= 0:
                records = self._live_step(self._consumer, wait_ms, number, update_offsets)
        except UnreadableRecordError as error:
            if not has_news:
                self._hand_outs.seeks.stopped(error)
                raise
        looked_at = records.keys()
        if update_offsets:
            records = self._hand_outs.hand_out(records)
        self._hand_outs.look_for_truncations(looked_at)
        if catching_up is None:
            return records, {}
        left = records_left(max_records, records)
        gaps = catching_up.read(form, left, update_offsets, records)
        if gaps and catching_up.in_order:
            return PollResult(records, catch_up=gaps).in_one(), {}
        return records, gaps

    # -- the ends of the logs ---------------------------------------------------------------------

    def answered(self, node_id: Any, asked: Collection[TopicPartition], response: Any) -> None:
        """A node has answered a fetch; on the I/O loop."""
        self._ends.answered(node_id, asked, response)

    def collect_ends(self) -> None:
        """Take in the new ends of the owned partitions."""
        self._ends.collect(self._subscription.owned())

    def forget_ends(self) -> None:
        """No partition is owned any longer."""
        self._ends.collect(())

    def fresh_metadata(
        self, records: Collection[TopicPartition], gated: frozenset[TopicPartition]
    ) -> dict[TopicPartition, FetchMetadata]:
        """The metadata of the fetch responses since the last poll, as of this poll's end positions.

        Includes the partitions of its records; excludes partitions being revoked.
        """
        self.collect_ends()
        told = self._ends.take_fresh().union(records) - gated
        read_position = self._subscription.read_position
        found = ((p, self._seen_from(p, read_position(p))) for p in told)
        return {p: metadata for p, metadata in found if metadata is not None}

    def standing_of(self, partition: TopicPartition) -> FetchMetadata | None:
        """Position, end and lag of a partition; None until they are known, or if not assigned."""
        return self._seen_from(partition, self._subscription.position(partition))

    def _seen_from(self, partition: TopicPartition, position: int | None) -> FetchMetadata | None:
        end = self._ends.latest(partition)
        return None if end is None or position is None else end.seen_from(position)
