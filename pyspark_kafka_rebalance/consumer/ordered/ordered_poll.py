"""OrderedPoll: the result of one poll of a TimestampOrderedRecords."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic

from kafka.structs import TopicPartition

from ..poll_result import Record

if TYPE_CHECKING:
    from kafka.consumer.fetcher import ConsumerRecord
    from typing_extensions import TypeVar

    Records = TypeVar("Records", default=list[ConsumerRecord])
else:
    from typing import TypeVar

    Records = TypeVar("Records")


@dataclass(frozen=True)
class OrderedPoll(Generic[Records, Record]):
    """The result of one poll of a :class:`TimestampOrderedRecords`.

    Attributes
    ----------
    records : list of ConsumerRecord, or pyarrow.Table
        In timestamp order within each group of partitions; possibly none.
    catch_up : dict of TopicPartition to list
        With ``parallel_rebalance="live"``, the records of the backlogs, in no order relative to
        ``records``: as in ``PollResult``, also with `poll_arrow`.
    to_be_revoked, lost, assigned, revoked : frozenset of TopicPartition
        As in ``PollResult``.
    """

    records: Records
    to_be_revoked: frozenset[TopicPartition] = field(default=frozenset())
    lost: frozenset[TopicPartition] = field(default=frozenset())
    assigned: frozenset[TopicPartition] = field(default=frozenset())
    revoked: frozenset[TopicPartition] = field(default=frozenset())
    catch_up: dict[TopicPartition, list[Record]] = field(default_factory=dict)
