"""PollResult: the result of one poll of a DeferredRevokeConsumer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic

from kafka.structs import TopicPartition

from .fetch_metadata import FetchMetadata

if TYPE_CHECKING:
    from kafka.consumer.fetcher import ConsumerRecord
    from typing_extensions import TypeVar

    #: ``PollResult`` alone has records; `poll_arrow`'s has ``pyarrow.RecordBatch``.
    Record = TypeVar("Record", default=ConsumerRecord)
else:
    from typing import TypeVar

    Record = TypeVar("Record")


@dataclass(frozen=True)
class PollResult(Generic[Record]):
    """The result of one poll (KIP-983, variant 1).

    Attributes
    ----------
    records : dict of TopicPartition to list of ConsumerRecord, or of Arrow record batches
        Never of a partition whose revoke is requested.
    to_be_revoked : frozenset of TopicPartition
        Their revoke is completed at the start of the next poll unless it is delayed.
    lost : frozenset of TopicPartition
        Lost during this poll: abort their processing, and commit nothing of them.
    assigned : frozenset of TopicPartition
        New since the last poll.
    revoked : frozenset of TopicPartition
        Their revoke was completed at the start of this poll.
    metadata : dict of TopicPartition to FetchMetadata
        For every partition with a fetch response since the last poll, even without records, and for
        those in ``records`` (KIP-695). Never for a partition whose revoke is requested: nothing
        more of it will be read, so its lag would never shrink.
    catch_up : dict of TopicPartition to list, as ``records``
        With ``parallel_rebalance="live"``, records of the backlog that the partition had when it
        was assigned, lowest first; ``records`` has the live ones (KIP-333).
    """

    records: dict[TopicPartition, list[Record]] = field(default_factory=dict)
    to_be_revoked: frozenset[TopicPartition] = frozenset()
    lost: frozenset[TopicPartition] = frozenset()
    assigned: frozenset[TopicPartition] = frozenset()
    revoked: frozenset[TopicPartition] = frozenset()
    metadata: dict[TopicPartition, FetchMetadata] = field(default_factory=dict)
    catch_up: dict[TopicPartition, list[Record]] = field(default_factory=dict)

    def in_one(self) -> dict[TopicPartition, list[Record]]:
        """Both kinds of records together; in a partition, the backlog's come first."""
        if not self.catch_up:
            return self.records
        partitions = dict.fromkeys([*self.catch_up, *self.records])
        return {p: self.catch_up.get(p, []) + self.records.get(p, []) for p in partitions}
