"""Idling: whether records are handed out while another partition has none buffered (KIP-695).

The rule of Kafka Streams' ``PartitionGroup.readyToProcess``, for one group of partitions whose
records are merged by their timestamps. For each partition without buffered records:

============  =====================  ====================  ========================
its lag       max_task_idle_ms -1    0                     n > 0
============  =====================  ====================  ========================
unknown       continue               wait for an answer    wait for an answer
more than 0   continue               wait for the records  wait for the records
0             continue               continue              wait n ms, then continue
============  =====================  ====================  ========================

The n ms start once nothing is buffered and the broker has reported that there is nothing more. (In
Streams they start at its next check.) An answer without records proves nothing by itself, because
brokers send one for quotas and size limits, too; the lag in it decides.

Pure: the caller gives the times, in seconds of any one clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kafka.structs import TopicPartition

from ...errors import OptionError

#: Never wait: MAX_TASK_IDLE_MS_DISABLED in Streams.
NEVER = -1


def checked_idle_ms(value: Any) -> int:
    """Check ``max_task_idle_ms``; raises OptionError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < NEVER:
        raise OptionError("max_task_idle_ms", value, "-1 (never wait), 0, or milliseconds")
    return value


class Idling:
    """Applies the rule to one group of partitions; the caller reports fills, answers and times."""

    def __init__(self, max_task_idle_ms: int) -> None:
        self._max_idle_s = max_task_idle_ms / 1000
        self._never = max_task_idle_ms == NEVER
        self._partitions: set[TopicPartition] = set()
        self._empty_since: dict[TopicPartition, float] = {}
        self._lags: dict[TopicPartition, int] = {}
        self._zero_since: dict[TopicPartition, float] = {}
        # Once the group continues, it does so until an event: time alone does not stop it.
        self._goes_on = False

    # -- events -----------------------------------------------------------------------------------

    def add(self, partition: TopicPartition, now: float) -> None:
        """A partition joins; nothing of it is buffered or known."""
        self.remove([partition])
        self._partitions.add(partition)
        self._empty_since[partition] = now

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """These partitions leave; the others no longer wait for them."""
        for partition in partitions:
            self._partitions.discard(partition)
            self._empty_since.pop(partition, None)
            self.unknown(partition)

    def filled(self, partition: TopicPartition) -> None:
        """Records of the partition are buffered now."""
        self._empty_since.pop(partition, None)

    def emptied(self, partition: TopicPartition, now: float) -> None:
        """The partition's last buffered record was handed out, or its buffer was dropped."""
        self._empty_since.setdefault(partition, now)
        self._goes_on = False

    def answered(self, partition: TopicPartition, lag: int, now: float) -> None:
        """A fetch was answered: ``lag`` offsets follow the buffered records."""
        if partition not in self._partitions:
            return
        self._lags[partition] = lag
        if lag == 0:
            self._zero_since.setdefault(partition, now)
        else:
            self._zero_since.pop(partition, None)
        self._goes_on = False

    def unknown(self, partition: TopicPartition) -> None:
        """The last answer no longer holds: after a seek, for example."""
        self._lags.pop(partition, None)
        self._zero_since.pop(partition, None)
        self._goes_on = False

    # -- decisions --------------------------------------------------------------------------------

    def is_ready(self, now: float) -> bool:
        """Whether the buffered record with the lowest timestamp may be handed out."""
        if self._never or not self._empty_since or self._goes_on:
            return True
        if len(self._empty_since) == len(self._partitions):
            return False  # no record is buffered
        self._goes_on = all(
            (deadline := self._deadline(p)) is not None and deadline <= now
            for p in self._empty_since
        )
        return self._goes_on

    def next_deadline(self) -> float | None:
        """When time alone may make the group continue; None if it waits for an event."""
        deadlines = [self._deadline(p) for p in self._empty_since]
        known = [deadline for deadline in deadlines if deadline is not None]
        return max(known) if known and len(known) == len(deadlines) else None

    def stops_without(self, partition: TopicPartition) -> bool:
        """Whether hand-outs stop for now once the partition has nothing buffered."""
        if self._never:
            return False
        return self._max_idle_s > 0 or self._lags.get(partition) != 0

    def held_back_by(self) -> set[TopicPartition]:
        """Partitions for which the broker must report or send more before the group continues."""
        if self._never:
            return set()
        return {p for p in self._empty_since if self._deadline(p) is None}

    def lag(self, partition: TopicPartition) -> int | None:
        """The lag in the last answer; None while unknown."""
        return self._lags.get(partition)

    def _deadline(self, partition: TopicPartition) -> float | None:
        """When to stop waiting for an empty partition; None while its lag is unknown or not 0."""
        zero_since = self._zero_since.get(partition)
        if zero_since is None:
            return None
        return max(zero_since, self._empty_since[partition]) + self._max_idle_s
