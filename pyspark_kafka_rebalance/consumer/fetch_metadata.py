"""FetchMetadata: where a partition stood when a fetch of it was last answered (KIP-695). Pure.

A broker leaves out of an answer whatever has not changed since its last answer to this client
(KIP-227, incremental fetch sessions). An answer that leaves a partition out is an answer all the
same: there is nothing new. Most empty answers look like that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from kafka.structs import TopicPartition


@dataclass(frozen=True)
class FetchMetadata:
    """Position, end and lag of a partition, as of the last answer to a fetch of it.

    Attributes
    ----------
    position : int
        The next offset that a poll will return, so that records which were fetched but not yet
        returned lie after it and count as lag.
    lag : int
        ``end_offset - position``; 0 where the end lies before the position (a follower that is
        behind its leader, or a position that the group committed under another isolation level).
    end_offset : int
        The high watermark, or the last stable offset under ``read_committed``.
    fetched_at_ms : int
        When the answer arrived, in milliseconds since the epoch.
    """

    position: int
    lag: int
    end_offset: int
    fetched_at_ms: int


@dataclass(frozen=True)
class EndOffset:
    """Where a partition ended, and when (milliseconds since the epoch) the answer arrived."""

    offset: int
    fetched_at_ms: int

    def seen_from(self, position: int) -> FetchMetadata:
        """The metadata of a consumer that will read ``position`` next."""
        lag = max(0, self.offset - position)
        return FetchMetadata(position, lag, self.offset, self.fetched_at_ms)


def end_offsets(
    asked: Collection[TopicPartition],
    response: Any,
    told: Mapping[TopicPartition, int],
    read_committed: bool,
) -> dict[TopicPartition, int]:
    """The end offset of every partition that a fetch response answers.

    Without partitions whose answer is an error or reports a truncated log. ``asked`` is what the
    fetch session held when the request was sent. The response is v4 or later, without an error of
    its own; what the session's previous answers ``told`` still holds for what it leaves out.
    """
    ends = {partition: told[partition] for partition in asked if partition in told}
    for topic in response.responses:
        for answer in topic.partitions:
            partition = TopicPartition(topic.topic, answer.partition_index)
            end: int = answer.last_stable_offset if read_committed else answer.high_watermark
            diverging = answer.diverging_epoch  # v12, KIP-595
            truncated = diverging is not None and diverging.end_offset >= 0
            if answer.error_code or truncated or end < 0:
                ends.pop(partition, None)
            else:
                ends[partition] = end
    return ends


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class EndOffsets:
    """The end offsets that fetches brought.

    :meth:`answered` runs on the I/O loop, everything else on the thread that polls. The newest end
    offset of each partition waits until a poll collects it. It only changes what that poll reports,
    and takes no more memory however many answers arrive in between.
    """

    def __init__(self, read_committed: bool, now_ms: Callable[[], int] = _now_ms) -> None:
        self._read_committed = read_committed
        self._now_ms = now_ms
        self._told: dict[Any, dict[TopicPartition, int]] = {}  # by node; only for the I/O loop
        self._arriving = threading.Lock()
        self._arrived: dict[TopicPartition, EndOffset] = {}
        self._latest: dict[TopicPartition, EndOffset] = {}
        self._fresh: set[TopicPartition] = set()

    def answered(self, node_id: Any, asked: Collection[TopicPartition], response: Any) -> None:
        """A node answered a fetch; called before the consumer can see the records."""
        if response.error_code:  # the session is gone: the next answer is complete
            self._told.pop(node_id, None)
            return
        if response.throttle_time_ms and not response.responses:
            return  # over a quota (KIP-219): the broker did not look
        ends = end_offsets(asked, response, self._told.get(node_id, {}), self._read_committed)
        self._told[node_id] = ends
        at = self._now_ms()
        with self._arriving:
            self._arrived |= {partition: EndOffset(end, at) for partition, end in ends.items()}

    def collect(self, owned: Collection[TopicPartition]) -> None:
        """Take in what arrived; forget partitions that are not owned."""
        for partition in self._latest.keys() - set(owned):
            del self._latest[partition]
        self._fresh.intersection_update(owned)
        with self._arriving:
            arrived, self._arrived = self._arrived, {}
        for partition, end in arrived.items():
            if partition in owned:
                self._latest[partition] = end
                self._fresh.add(partition)

    def take_fresh(self) -> set[TopicPartition]:
        """The partitions answered since the last call."""
        fresh, self._fresh = self._fresh, set()
        return fresh

    def latest(self, partition: TopicPartition) -> EndOffset | None:
        """The end offset in the last answer; None if there was none."""
        return self._latest.get(partition)
