"""Compare the topics, as a reader finds them, with the tables at the end."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from kafka import KafkaConsumer
from kafka.structs import TopicPartition

#: A row's version: the transaction that made it, and the row's id.
Version = tuple[int, int]

_PATIENCE_S = 60.0


@dataclass(frozen=True)
class TableVerdict:
    """One table compared with its topic.

    Attributes
    ----------
    rows, records : int
        Rows in the table; records in the topic.
    lost : int
        Rows whose last version is not in the topic.
    twice : int
        Records of a version that was there before.
    out_of_order : int
        Records that come after one with a later position, in the same partition of the topic.
    never_committed : int
        Records of rows that the table has never had, because they were rolled back.
    """

    table: str
    rows: int
    records: int
    lost: int
    twice: int
    out_of_order: int
    never_committed: int

    @property
    def is_right(self) -> bool:
        """Whether the topic has each change once, in order, and nothing else."""
        return not (self.lost or self.twice or self.out_of_order or self.never_committed)


def judge(table: str, rows: Iterable[Version], records: dict[int, list[Version]]) -> TableVerdict:
    """Compare a table, from which nothing was deleted, with its topic.

    Parameters
    ----------
    table : str
        Its name.
    rows : iterable of Version
        The versions that it holds.
    records : dict of int to list of Version
        By partition of the topic, in the log's order.
    """
    held = set(rows)
    seen: set[Version] = set()
    total = out_of_order = 0
    for versions in records.values():
        total += len(versions)
        seen.update(versions)
        highest: Version = (0, 0)
        for version in versions:
            if version < highest:
                out_of_order += 1
            highest = max(highest, version)
    ids = {row for _, row in held}
    return TableVerdict(
        table=table,
        rows=len(held),
        records=total,
        lost=len(held - seen),
        twice=total - len(seen),
        out_of_order=out_of_order,
        never_committed=sum(row not in ids for _, row in seen),
    )


def versions_in_table(url: str, table: str) -> list[Version]:
    """Return the versions that the table holds."""
    import psycopg

    with psycopg.connect(url) as connection:
        found = connection.execute(f"SELECT last_change_xid::text, id FROM {table}".encode())
        return [(int(transaction), row) for transaction, row in found]


def version_of(value: bytes) -> Version:
    """Return the version in a record."""
    row = json.loads(value)
    return int(row["last_change_xid"]), row["id"]


def versions_in_topic(bootstrap_servers: str, topic: str) -> dict[int, list[Version]]:
    """Return the versions in the topic's `committed_values`."""
    return {
        partition: [version_of(value) for value in values]
        for partition, values in committed_values(bootstrap_servers, topic).items()
    }


def committed_values(bootstrap_servers: str, topic: str) -> dict[int, list[bytes]]:
    """Return the values that a read_committed reader finds, by partition, up to the log's end.

    Waits until open transactions have ended.
    """
    plain = KafkaConsumer(bootstrap_servers=bootstrap_servers)
    committed = KafkaConsumer(
        bootstrap_servers=bootstrap_servers,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        group_id=f"ledger-{uuid.uuid4().hex}",
    )
    try:
        numbers = plain.partitions_for_topic(topic) or set()
        partitions = [TopicPartition(topic, number) for number in sorted(numbers)]
        ends = plain.end_offsets(partitions)
        deadline = time.monotonic() + _PATIENCE_S
        committed.assign(partitions)
        committed.seek_to_beginning(*partitions)
        found: dict[int, list[bytes]] = {p.partition: [] for p in partitions}
        while any(committed.position(p) < ends[p] for p in partitions):
            if time.monotonic() > deadline:
                raise TimeoutError(f"topic {topic}: not read to its end within {_PATIENCE_S:g} s")
            for partition, records in committed.poll(timeout_ms=200).items():
                found[partition.partition] += [record.value for record in records]
        return found
    finally:
        plain.close()
        committed.close()
