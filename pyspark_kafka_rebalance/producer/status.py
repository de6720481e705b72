"""GroupStatus: how a member of a producer group stands. Asks no broker; any thread may ask."""

from __future__ import annotations

import logging
import time

from .membership import ProducerMembership
from .options import ProducerOptions
from .progress import ProducerProgress, SourcePartitionProgress
from .transactions import Transactions

log = logging.getLogger(__name__)

#: Between two lines about the progress in the log.
LOG_EVERY_S = 60.0


class GroupStatus:
    """What a member of a producer group tells of itself."""

    _log_at: float | None = None
    _options: ProducerOptions
    _membership: ProducerMembership
    _transactions: Transactions

    @property
    def restart_points(self) -> dict[int, str | None]:
        """The source partitions that are owned, with the restart points committed last."""
        with self._membership.changed:
            return self._membership.ownership.restart_points

    @property
    def to_be_revoked(self) -> frozenset[int]:
        """Those of them that the group wants back once the open transaction has ended."""
        with self._membership.changed:
            return self._membership.ownership.to_be_revoked

    @property
    def source_partition_count(self) -> int:
        """How many partitions the source has."""
        return self._membership.ownership.source_partition_count

    @property
    def member_id(self) -> str:
        """By which the group knows this member; empty before it has joined."""
        return self._membership.member_id

    @property
    def transactional_id(self) -> str:
        """That of this member's transactions."""
        return self._options.transactional_id

    @property
    def restart_topic(self) -> str:
        """The topic of membership and restart points."""
        return self._options.topic

    def progress(self) -> ProducerProgress:
        """What this member owns, and how far it is; asks no broker."""
        now = time.monotonic()
        rates = self._transactions.rates
        with self._membership.changed:
            owned = self._membership.ownership.restart_points
            revoking = self._membership.ownership.to_be_revoked
        return ProducerProgress(
            self._options.group_id,
            self.member_id,
            self.transactional_id,
            self._membership.generation,
            self.source_partition_count,
            revoking,
            tuple(
                SourcePartitionProgress(
                    p,
                    self.member_id,
                    point,
                    rates.total(p),
                    rates.per_second(p, now),
                    rates.age_s(p, now),
                )
                for p, point in owned.items()
            ),
        )

    def _log_progress(self) -> None:
        """A line a minute, whatever the application does; on the pump's thread."""
        now = time.monotonic()
        if self._log_at is None:
            self._log_at = now + LOG_EVERY_S
        elif now >= self._log_at:
            self._log_at = now + LOG_EVERY_S
            log.info("%s", self.progress().line)
