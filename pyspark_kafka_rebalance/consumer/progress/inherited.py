"""Inherited: what the previous owner had processed behind a slow record, by its last commit.

Polls begin at the committed offset and meet those records again; they are left out. A record with a
later leader epoch than the commit knew is another record at the same offset: an unclean election
truncated the log in between (KIP-320). Arrow batches do not have the epoch.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

from kafka.consumer.fetcher import ConsumerRecord
from kafka.structs import OffsetAndMetadata, TopicPartition

from ..offsets.commit_metadata import Remaining, Told, is_ours

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Inherited:
    """What is left to process of a partition, as of the group's last commit.

    Parameters
    ----------
    offset : int
        The committed offset. Nothing is known of what is below.
    remaining : Remaining
        What is left from there on.
    leader_epoch : int
        The leader epoch of the highest record that was processed; -1 if unknown.
    """

    offset: int
    remaining: Remaining
    leader_epoch: int = -1

    def as_seen(self, records: list[Any]) -> Inherited:
        """The same, without what the epochs of these records prove to be gone (KIP-320).

        Epochs grow with the offsets. A record below the highest processed one that has a later
        epoch was written since, and so were all behind it.
        """
        if self.leader_epoch >= 0 and isinstance(records[0], ConsumerRecord):
            for record in records:
                if record.offset >= self.remaining.live:
                    break
                if record.leader_epoch > self.leader_epoch:
                    return replace(self, remaining=self.remaining.start_over(record.offset))
        return self

    def still_owed(self, records: list[Any]) -> list[Any]:
        """The records, or Arrow batches with the rows, that are not processed.

        Each batch yields one or none; never an empty one.
        """
        if isinstance(records[0], ConsumerRecord):
            if records[0].offset >= self.remaining.live:
                return records
            return [record for record in records if self._owes(record.offset)]
        owed = []
        for batch in records:
            offsets = batch.column("offset").to_pylist()
            rows = [row for row, offset in enumerate(offsets) if self._owes(offset)]
            if len(rows) == len(offsets):
                owed.append(batch)
            elif rows:
                owed.append(batch.take(rows))
        return owed

    def _owes(self, offset: int) -> bool:
        return offset < self.offset or offset in self.remaining


def inherit(
    partition: TopicPartition, committed: OffsetAndMetadata, bound_to: str
) -> Inherited | None:
    """The progress beyond its offset that a commit's metadata hold; None if there is none."""
    remaining, told, leader_epoch = Remaining.decode(committed.offset, committed.metadata, bound_to)
    if told is Told.GAPS:
        log.info(
            "%s-%d: from offset %d on, %d of %d records may already be processed and are skipped",
            *partition,
            committed.offset,
            remaining.live - committed.offset - remaining.count(remaining.live),
            remaining.live - committed.offset,
        )
        return Inherited(committed.offset, remaining, leader_epoch)
    if told is not Told.NOTHING:
        warn_of(partition, committed, told)
    return None


def is_described(committed: OffsetAndMetadata) -> bool:
    """Whether this commit carries metadata of the application's own."""
    return bool(committed.metadata) and not is_ours(committed.metadata)


def warn_of(partition: TopicPartition, committed: OffsetAndMetadata, told: Told) -> None:
    """Log why a commit's metadata are ignored."""
    log.warning(
        "%s-%d: records from offset %d on may come again: the commit's metadata %s",
        *partition,
        committed.offset,
        told.value,
    )
