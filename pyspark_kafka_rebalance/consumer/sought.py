"""Sought: where the application said that polls go on, and nothing was handed out since. Pure."""

from __future__ import annotations

from kafka.structs import TopicPartition

#: A seek to the end goes beyond every record; offsets are signed and of 64 bits.
LOG_END = 2**63 - 1


class Sought(dict[TopicPartition, int | None]):
    """The offsets that were sought, by partition.

    None is the beginning, wherever that is, and LOG_END the end, until a poll has found it.
    """

    def leads_to(self, partition: TopicPartition, position: int) -> bool:
        """Whether this is where a seek leads, and nobody knew; polls stand there now."""
        if partition not in self:
            return False
        offset = self[partition]
        return offset is None or offset > position

    def is_below(self, partition: TopicPartition, position: int) -> bool:
        """Whether polls go on below this position, and handed out nothing there yet."""
        offset = self.get(partition, LOG_END)
        return offset is None or offset < position
