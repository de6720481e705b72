"""KeptMetadata: notices a server that does not keep the metadata of commits.

The progress beyond a committed offset is in the metadata of that commit (``commit_metadata.py``).
Some servers and proxies accept the metadata and drop them. Nothing is lost then, but the next owner
gets finished records again; without a warning, the cause would be hard to find.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from kafka import errors as kafka_errors
from kafka.structs import OffsetAndMetadata, TopicPartition

from ..protocol.lane import Lane

log = logging.getLogger(__name__)

#: The commit loop waits for the answer, so that no other commit is sent in between.
_TIMEOUT_MS = 1_000

#: Give up after this many requests without an answer.
_TRIES = 3

#: The groups that were warned about: a query has many members.
_warned: set[str] = set()


class KeptMetadata:
    """Reads back the first committed offset with metadata, once; on the I/O loop."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._tries_left = _TRIES

    async def check(self, accepted: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Compare the metadata that the broker has just accepted with its answer now."""
        if not self._tries_left:
            return
        sent = next(((p, entry) for p, entry in accepted.items() if entry.metadata), None)
        if sent is None:
            return
        partition, entry = sent
        self._tries_left -= 1
        try:
            told = await self._lane.committed([partition], stable=False, timeout_ms=_TIMEOUT_MS)
        except kafka_errors.KafkaError as error:
            log.info("group %s: commits are not compared: %r", self._lane.group_id, error)
            return
        found = told.get(partition)
        if not isinstance(found, OffsetAndMetadata) or found.offset != entry.offset:
            return  # another client has reset it
        self._tries_left = 0
        if found.metadata != entry.metadata and self._lane.group_id not in _warned:
            _warned.add(self._lane.group_id)
            log.warning(
                "group %s: the server does not keep the metadata of commits (%d characters sent "
                "with offset %d of %s-%d, %d kept): records that are processed beyond a committed "
                "offset come again to the partition's next owner",
                self._lane.group_id,
                len(entry.metadata),
                entry.offset,
                *partition,
                len(found.metadata),
            )
