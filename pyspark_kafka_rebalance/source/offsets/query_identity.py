"""The id of a query, which its restarts keep. Pure.

A query gets a random id when it first plans a batch. Every offset that it logs has the id and a
number that only grows, so both travel with the checkpoint: to the next run, into a backup, and into
a copy of the checkpoint.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .stream_offset import StreamOffset

#: 64 random bits: unique among the queries of a group.
_ID_BYTES = 8


class QueryIdentity:
    """The id of one query, and the number of the batch that it planned last.

    The planner's thread changes it. Other threads may read it.
    """

    def __init__(self) -> None:
        self._id: str | None = None
        self.batch = 0  #: the number of the batch planned last; 0 before the first
        self.restored = 0  #: that number by the checkpoint with which this process started

    @property
    def id(self) -> str:
        """16 hexadecimal digits; made now if no offset has had one."""
        if self._id is None:
            self._id = secrets.token_hex(_ID_BYTES)
        return self._id

    def restore(self, offset: StreamOffset) -> None:
        """Go on as the query that logged this offset; without effect if it names none."""
        if offset.query is not None and self._id is None:
            self._id = offset.query
        self.restored = max(self.restored, offset.batch or 0)
        self.batch = max(self.batch, self.restored)

    def renew(self) -> str:
        """Become another query, because one with the present id runs elsewhere; returns the id."""
        self._id = secrets.token_hex(_ID_BYTES)
        return self._id

    def next_batch(self) -> int:
        """Count one more planned batch, and return its number."""
        self.batch += 1
        return self.batch
