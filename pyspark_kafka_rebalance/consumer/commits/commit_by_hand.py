"""CommitByHand: an explicit commit of the application, and the answer to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kafka import errors as kafka_errors
from kafka.future import Future
from kafka.structs import OffsetAndMetadata, TopicPartition

from ...errors import names_of
from ..offsets.committable import Committable, as_entry
from ..offsets.offset_set import Gap, without
from ..protocol.coordinator_answers import Verdict, verdict_of

#: After these verdicts the same commit may be accepted a little later.
_PASSING = (Verdict.AFTER_JOIN, Verdict.BUSY, Verdict.COORDINATOR_GONE)


class CommitByHand:
    """One explicit commit; compared by identity."""

    def __init__(self, offsets: Mapping[TopicPartition, Committable]) -> None:
        #: The entries that are not answered yet.
        self.offsets = {partition: as_entry(value) for partition, value in offsets.items()}
        #: The entries that the broker has accepted.
        self.accepted: dict[TopicPartition, OffsetAndMetadata] = {}
        #: Partitions whose accepted offset is below the one acknowledged before, or below where
        #: reading started.
        self.moved_back: set[TopicPartition] = set()
        self.lost: set[TopicPartition] = set()  # the partitions that were dropped after it was sent
        #: Partitions in which it names a record that was truncated after it was entered.
        self.truncated: set[TopicPartition] = set()
        #: For partitions that catch up (KIP-333): the records that it marks as processed.
        self.claims: dict[TopicPartition, tuple[Gap, ...]] = {}
        #: Partitions whose records were handed out again after it was entered: it marks only
        #: offsets below these as processed.
        self.processed_below: dict[TopicPartition, int] = {}

    def handed_out_again(self, partition: TopicPartition, offset: int) -> None:
        """The position moved back to this offset: records from there on must be processed again."""
        self.processed_below[partition] = min(offset, self.processed_below.get(partition, offset))

    def processed(self) -> dict[TopicPartition, int]:
        """The next offsets below which the accepted part marks all records as processed."""
        return {
            p: min(entry.offset, self.processed_below.get(p, entry.offset))
            for p, entry in self.accepted.items()
        }

    def claims_of(self, partition: TopicPartition) -> list[Gap]:
        """Its claims for a partition, without the records handed out again after it was entered."""
        claims = self.claims.get(partition, ())
        if partition in self.processed_below:
            return without(claims, self.processed_below[partition])
        return [*claims]

    def claimed(self) -> dict[TopicPartition, list[Gap]]:
        """The claims of the accepted partitions."""
        return {p: self.claims_of(p) for p in self.claims if p in self.accepted}


class EnteredCommit(CommitByHand):
    """An explicit commit with its future, from ``CommitLoop.enter`` to the final answer."""

    def __init__(
        self,
        offsets: Mapping[TopicPartition, Committable],
        retried: bool,
        on_accepted: Callable[[EnteredCommit], None],
    ) -> None:
        super().__init__(offsets)
        #: Whether it is sent again after an error that may pass, until ``CommitLoop.give_up``.
        self.retried = retried
        #: Called on the I/O loop with this commit when the broker has accepted it, or some of its
        #: partitions, before the future is done.
        self.on_accepted = on_accepted
        #: kafka-python's; done when the answer is final. Its error is the broker's, the
        #: connection's, or PartitionsLostError.
        self.future = Future()


def final_error(
    by_hand: EnteredCommit,
    errors: Mapping[TopicPartition, type[Exception]],
    unanswered: Exception | None,
) -> Exception | None:
    """The error of an explicit commit that was not accepted; None if it is to be sent again."""
    wrong = {p: errors[p] for p in by_hand.offsets if p in errors}
    fatal = {p: error for p, error in wrong.items() if not _passes(error)}
    if not fatal and by_hand.retried:
        return None
    if unanswered is not None:
        return unanswered
    error = next(iter((fatal or wrong).values()), kafka_errors.RebalanceInProgressError)  # not sent
    told: Exception = error(names_of(p for p in by_hand.offsets if wrong.get(p, error) is error))
    return told


def _passes(error: type[Exception]) -> bool:
    if error is kafka_errors.UnknownTopicIdError:
        return False  # the assigned topic was deleted, even if another has its name now
    return verdict_of(error) in _PASSING or issubclass(error, kafka_errors.RetriableError)
