"""GroupStatus: the state of a producer group's member. Asks no broker; for any thread."""

from __future__ import annotations

import logging
import time

from .members.membership import ProducerMembership
from .options import ProducerOptions
from .progress import ProducerProgress, SourcePartitionProgress
from .transactions import Transactions

log = logging.getLogger(__name__)

#: Time between two progress lines in the log.
LOG_EVERY_S = 60.0


class GroupStatus:
    """The state that a member of a producer group reports."""

    _log_at: float | None = None
    _options: ProducerOptions
    _membership: ProducerMembership
    _transactions: Transactions

    @property
    def restart_points(self) -> dict[int, str | None]:
        """The owned source partitions, with the restart points committed last."""
        with self._membership.changed:
            return self._membership.ownership.restart_points

    @property
    def to_be_revoked(self) -> frozenset[int]:
        """The owned source partitions that the group wants back after the open transaction."""
        with self._membership.changed:
            return self._membership.ownership.to_be_revoked

    @property
    def source_partition_count(self) -> int:
        """How many partitions the source has."""
        return self._membership.ownership.source_partition_count

    @property
    def member_id(self) -> str:
        """The group's id for this member; empty before it has joined."""
        return self._membership.member_id

    @property
    def transactional_id(self) -> str:
        """The transactional id of this member."""
        return self._options.transactional_id

    @property
    def restart_topic(self) -> str:
        """The topic of membership and restart points."""
        return self._options.topic

    def progress(self) -> ProducerProgress:
        """Return what this member owns and how far it has got; asks no broker."""
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
        """Log a line a minute, even if the application is silent; on the pump's thread."""
        now = time.monotonic()
        if self._log_at is None:
            self._log_at = now + LOG_EVERY_S
        elif now >= self._log_at:
            self._log_at = now + LOG_EVERY_S
            log.info("%s", self.progress().line)
