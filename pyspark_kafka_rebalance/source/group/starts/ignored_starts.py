"""IgnoredStarts: reports where ``startingOffsets`` has no effect, because the group has offsets.

A query without a checkpoint goes on at its group's offsets, as every group consumer does. Whoever
has deleted a checkpoint to read everything again must learn that.

Runs on the pump's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING

from kafka.structs import TopicPartition

from ..clients.query_part import QueryCore, QueryPart
from ..others.joining import Joining

if TYPE_CHECKING:
    from ...options.source_options import SourceOptions

log = logging.getLogger(__name__)

#: How many partitions one log line names.
_NAMED = 20


class IgnoredStarts(QueryPart):
    """Logs each such partition once."""

    def __init__(self, core: QueryCore, joining: Joining) -> None:
        super().__init__(core)
        self._joining = joining
        self._told_of: set[TopicPartition] = set()

    def tell(self, committed: Mapping[TopicPartition, int]) -> None:
        """Report these partitions, which start at the group's offset; each once.

        A warning, unless the group is known to have had other members: a query that joins others
        is to go on where they are, so there it is only information.
        """
        named = self._options.starting_offsets.start_of
        ignored = {
            p: offset
            for p, offset in committed.items()
            if p not in self._told_of and named(p) not in (None, offset)
        }
        if not ignored:
            return
        with self._state as state:
            if state.starts.knows_initial or state.starts.has_read:
                return
        self._told_of |= ignored.keys()
        level = logging.INFO if self._joining.found_others else logging.WARNING
        log.log(level, "%s", ignored_text(self._options, ignored))


def ignored_text(options: SourceOptions, ignored: Mapping[TopicPartition, int]) -> str:
    """The report: the partitions with their offsets, and the command that starts over; pure."""
    at = [f"{p.topic}-{p.partition} at {ignored[p]}" for p in islice(sorted(ignored), _NAMED)]
    if len(ignored) > _NAMED:
        at.append(f"and {len(ignored) - _NAMED} more partitions")
    servers = ",".join(options.client_config["bootstrap_servers"])
    topics = " ".join(f"--topic {topic}" for topic in sorted({p.topic for p in ignored}))
    return (
        f"group {options.group_id}: the query has no checkpoint, but its group has offsets, and "
        f"these count instead of {options.starting_option}: {', '.join(at)}. To start over, stop "
        "the query, delete its checkpoint, and run: kafka-consumer-groups.sh --bootstrap-server "
        f"{servers} --group {options.group_id} --delete-offsets {topics}"
    )
