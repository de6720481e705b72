"""Sought: where the application sought to, if nothing was handed out since. Pure."""

from __future__ import annotations

from kafka.structs import TopicPartition

#: A seek to the end goes beyond every record; offsets are signed 64-bit integers.
LOG_END = 2**63 - 1


class Sought(dict[TopicPartition, int | None]):
    """The offsets that were sought, by partition.

    None is the beginning of the log, wherever that is, and LOG_END its end, until a poll has found
    it.
    """

    def leads_to(self, partition: TopicPartition, position: int) -> bool:
        """Whether this position, where polls are now, is where a seek to an unknown offset led."""
        if partition not in self:
            return False
        offset = self[partition]
        return offset is None or offset > position

    def is_below(self, partition: TopicPartition, position: int) -> bool:
        """Whether polls go on below this position after a seek, with nothing handed out since."""
        offset = self.get(partition, LOG_END)
        return offset is None or offset < position
