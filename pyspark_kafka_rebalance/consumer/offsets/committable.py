"""Committable: a value that can be committed for a partition. Pure."""

from __future__ import annotations

from typing import TypeAlias

from kafka.structs import OffsetAndMetadata

#: A value to commit: a next offset, alone or with metadata and the leader epoch of the last record
#: before it.
Committable: TypeAlias = "int | OffsetAndMetadata"


def as_entry(value: Committable) -> OffsetAndMetadata:
    """The next offset as it is sent, with its metadata and leader epoch (-1: unknown)."""
    if isinstance(value, OffsetAndMetadata):
        return value
    return OffsetAndMetadata(int(value), "", -1)
