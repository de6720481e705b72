"""FetchMetadata: a partition's position and end as of its last fetch response (KIP-695). Pure.

A broker's answer leaves out the partitions that have not changed since the last one (KIP-227,
incremental fetch sessions). That is an answer, too: the partition has nothing new. Most empty
answers are of this kind.
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
        The next offset that a poll will return. Records fetched but not yet returned count as lag.
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
    """The end of a partition, and when (milliseconds since the epoch) the answer arrived."""

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

    Without partitions whose answer is an error or reports a truncated log. ``asked`` are the fetch
    session's partitions when the request was sent. The response is v4 or later, without an error of
    its own; for partitions that it leaves out, the session's previous answers, ``told``, still
    hold.
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
    """Keeps the end offsets of fetch responses until a poll collects them.

    :meth:`answered` runs on the I/O loop, all else on the polling thread. Only the newest end
    offset of each partition is kept, however many answers arrive between polls.
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
        if response.error_code:  # the session has ended: the next answer is complete
            self._told.pop(node_id, None)
            return
        if response.throttle_time_ms and not response.responses:
            return  # over a quota (KIP-219): the broker did not check
        ends = end_offsets(asked, response, self._told.get(node_id, {}), self._read_committed)
        self._told[node_id] = ends
        at = self._now_ms()
        with self._arriving:
            self._arrived |= {partition: EndOffset(end, at) for partition, end in ends.items()}

    def collect(self, owned: Collection[TopicPartition]) -> None:
        """Take in the new answers; forget partitions that are not owned."""
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
