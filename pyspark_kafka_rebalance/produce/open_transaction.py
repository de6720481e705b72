"""One transaction: the requests it has sent, and those still due before it can end. Pure.

Invariants:
 1. The batches of a partition are sent in the order of their sequence numbers, and only the first
    that is not acknowledged and the four behind it are under way, acknowledged or not: a leader
    recognizes its last five as duplicates.
 2. A group's offsets are committed in the order in which they were given, one request at a time.
 3. A request without an answer is remembered, even if a later copy was answered.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

from kafka.structs import TopicPartition

from .requests import GroupMetadata, Offset
from .transaction_errors import Outcome, outcome_by_offsets
from .transaction_step import Halved

#: As many batches as a leader keeps for each producer, to recognize a repetition.
MAX_IN_FLIGHT = 5

#: Sequence numbers go from 0 to 2**31 - 1, and around.
SEQUENCES = 2**31


class Phase(enum.Enum):
    """The phase of a transaction."""

    OPEN = "open"
    COMMITTING = "committing"
    ABORTING = "aborting"
    #: Its commit was refused, and another copy may have been accepted.
    IN_DOUBT = "in doubt"


@dataclass
class Batch:
    """A batch of records on its way to a partition."""

    number: int
    record_count: int
    base_sequence: int | None = None  # when it is first sent
    under_way: bool = False
    unanswered: bool = False
    place: int = 0  # among all of its partition
    rank: tuple[int, ...] = ()  # see Produce


@dataclass
class Partition:
    """The batches of one partition.

    Attributes
    ----------
    batches : deque of Batch
        Those that are not acknowledged, in order.
    count : int
        How many there were.
    """

    batches: deque[Batch] = field(default_factory=deque)
    count: int = 0

    def add(self, batch: Batch) -> None:
        """Queue a batch."""
        batch.place = self.count
        self.count += 1
        self.batches.append(batch)

    def halve(self, batch: Batch, number: int) -> Halved:
        """Let a batch go on as two; ``number`` names the second.

        They share its sequence numbers, so nothing changes for those behind.
        """
        records = (batch.record_count + 1) // 2
        second = replace(batch, number=number, record_count=batch.record_count - records)
        if batch.base_sequence is not None:
            second.base_sequence = (batch.base_sequence + records) % SEQUENCES
        rank = batch.rank or (batch.number,)
        batch.record_count, batch.rank, second.rank = records, (*rank, 0), (*rank, 1)
        at = self.batches.index(batch) + 1
        self.batches.insert(at, second)
        self.count += 1
        for later in islice(self.batches, at, None):
            later.place += 1
        return Halved(batch.number, number, records)

    def sendable(self) -> list[Batch]:
        """The batches to send now, in order."""
        if not self.batches:
            return []
        first = self.batches[0]
        # A part may be too large, too. A leader that knows nothing of the producer yet would take
        # the next one without it.
        most = 1 if first.rank else MAX_IN_FLIGHT
        end = first.place + most
        return [b for b in islice(self.batches, most) if not b.under_way and b.place < end]

    def is_first(self, batch: Batch) -> bool:
        """Whether all batches before this one are acknowledged."""
        return bool(self.batches) and self.batches[0] is batch

    @property
    def unaccounted(self) -> bool:
        """Whether a copy of a batch that was never acknowledged may still arrive."""
        return any(batch.unanswered for batch in self.batches)


#: Returns the member that commits offsets, as of now; None if it must not commit them any more.
MemberNow = Callable[[], "GroupMetadata | None"]


@dataclass(frozen=True)
class OffsetCommit:
    """Offsets of one member, and what the group had before.

    Attributes
    ----------
    member : MemberNow or None
        Who commits them, if that may change; otherwise ``group`` does.
    """

    group: GroupMetadata
    offsets: Mapping[TopicPartition, Offset]
    before: Mapping[TopicPartition, Offset]
    member: MemberNow | None = None


@dataclass
class Group:
    """The offsets for one group.

    Attributes
    ----------
    waiting : deque of OffsetCommit
        Those that are not acknowledged, in order; the first may be under way.
    expected, before : dict of TopicPartition to Offset
        Of all that were given: the last of each partition, and the first that the group had.
    joined : bool
        Whether the coordinator has the group (transactions v1).
    unaccounted : dict of TopicPartition to Offset
        Offsets that may still arrive: a group recognizes no repetition, the last to arrive counts.
    asked : bool
        Whether the group was asked what became of the transaction.
    """

    waiting: deque[OffsetCommit] = field(default_factory=deque)
    expected: dict[TopicPartition, Offset] = field(default_factory=dict)
    before: dict[TopicPartition, Offset] = field(default_factory=dict)
    joined: bool = False
    under_way: bool = False
    unaccounted: dict[TopicPartition, Offset] = field(default_factory=dict)
    asked: bool = False

    def add(self, commit: OffsetCommit) -> None:
        """Queue offsets."""
        self.waiting.append(commit)
        self.expected.update(commit.offsets)
        for partition, offset in commit.before.items():
            self.before.setdefault(partition, offset)

    def renew(self) -> bool:
        """Take the member as of now for what waits; whether it may still commit that."""
        commit = self.waiting[0]
        if commit.member is not None:
            group = commit.member()
            if group is None:
                return False
            self.waiting[0] = replace(commit, group=group)
        return True

    def may_be_undone(self) -> bool:
        """Whether an older offset may still arrive after the one that is to be sent now."""
        late, due = self.unaccounted, self.waiting[0].offsets
        return any(late[partition] != due[partition] for partition in late.keys() & due.keys())

    @property
    def evidence(self) -> tuple[TopicPartition, ...]:
        """Partitions whose offset shows whether the transaction was committed."""
        return tuple(
            partition
            for partition, expected in self.expected.items()
            if outcome_by_offsets(self.before.get(partition), expected, expected) is not None
        )

    def outcome(self, found: Mapping[TopicPartition, Offset]) -> Outcome | None:
        """What these stable offsets of the group say about the transaction."""
        said = {
            outcome_by_offsets(self.before.get(p), self.expected[p], found.get(p))
            for p in self.evidence
        }
        said.discard(None)
        return said.pop() if len(said) == 1 else None


@dataclass
class OpenTransaction:
    """A transaction, from its start until its outcome is known.

    Attributes
    ----------
    cause : str
        Why it is aborted, or in doubt.
    unjoined : dict of TopicPartition to None
        The partitions that the coordinator does not have yet (transactions v1), in order.
    announced : dict of TopicPartition to None
        The partitions that the coordinator is to have before anything is sent to them, in order.
    touched : dict of TopicPartition to None
        The partitions where a batch may have to be sent, in order.
    sent : bool
        Whether a request of it was sent to a broker.
    unanswered : bool
        Whether a copy of one of its requests may still arrive somewhere.
    new_epoch : bool
        Whether the next transaction needs another epoch for another reason.
    waits_for_the_last : bool
        Whether the last answer was that the producer's last transaction has not ended.
    ends : int
        How many copies of its EndTxn were sent.
    renewed : bool
        Whether the producer got another epoch after all of its requests were sent.
    producer_id : int
        That of its records.
    written : dict of TopicPartition to int
        The offset of a record in each partition, to ask for if the commit is in doubt.
    """

    handle: int
    phase: Phase = Phase.OPEN
    cause: str = ""
    partitions: dict[TopicPartition, Partition] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    unjoined: dict[TopicPartition, None] = field(default_factory=dict)
    announced: dict[TopicPartition, None] = field(default_factory=dict)
    touched: dict[TopicPartition, None] = field(default_factory=dict)
    sent: bool = False
    unanswered: bool = False
    new_epoch: bool = False
    waits_for_the_last: bool = False
    ends: int = 0
    renewed: bool = False
    producer_id: int = -1
    written: dict[TopicPartition, int] = field(default_factory=dict)

    @property
    def goes_on(self) -> bool:
        """Whether it may be committed yet."""
        return self.phase in (Phase.OPEN, Phase.COMMITTING)

    def add(self, partition: TopicPartition, batch: Batch) -> None:
        """Queue a batch."""
        if partition not in self.partitions:
            self.partitions[partition] = Partition()
            self.unjoined[partition] = None
        self.partitions[partition].add(batch)
        self.touched[partition] = None

    def announce(self, partition: TopicPartition) -> None:
        """Announce a partition to the coordinator."""
        if partition not in self.partitions:
            self.partitions[partition] = Partition()
            self.unjoined[partition] = None
            self.announced[partition] = None

    def joins(self, partition: TopicPartition) -> None:
        """The coordinator has the partition."""
        self.unjoined.pop(partition, None)
        self.announced.pop(partition, None)
        self.touched[partition] = None

    def groups_not_joined(self) -> list[str]:
        """The groups that the coordinator does not have yet (transactions v1)."""
        return [group_id for group_id, group in self.groups.items() if not group.joined]

    def owes_nothing(self) -> bool:
        """Whether all of its records and offsets are acknowledged."""
        return not any(p.batches for p in self.partitions.values()) and not any(
            g.waiting for g in self.groups.values()
        )

    def leaves_a_gap(self) -> bool:
        """Whether sequence numbers were given to batches that are not acknowledged."""
        return any(b.base_sequence is not None for p in self.partitions.values() for b in p.batches)

    def unaccounted(self) -> tuple[Iterable[TopicPartition], Iterable[str]]:
        """Partitions and groups where a copy may still arrive, and would not be recognized."""
        return (
            [p for p, each in self.partitions.items() if each.unaccounted],
            [group_id for group_id, group in self.groups.items() if group.unaccounted],
        )
