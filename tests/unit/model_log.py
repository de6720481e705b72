"""A partition's log of which every record can be told from every other, for models of a broker."""

from __future__ import annotations

from itertools import count

from kafka.structs import TopicPartition

Record = int

_records = count()


class PartitionLog:
    """The records of one partition, from offset 0 on; a record is a number that comes once."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        #: Raised by every truncation, and when the topic is deleted and created anew.
        self.epoch = 0

    @property
    def end(self) -> int:
        return len(self.records)

    def produce(self, number: int) -> None:
        self.records += [next(_records) for _ in range(number)]

    def truncate(self, end: int) -> None:
        del self.records[end:]
        self.epoch += 1

    def read(self, start: int, end: int) -> list[tuple[int, Record]]:
        """What exists of a range: offsets and records."""
        return [(o, self.records[o]) for o in range(start, min(end, self.end))]


Logs = dict[TopicPartition, PartitionLog]
