"""FakeMember: what QueryMembership asks of a member, with a group that is a few dictionaries."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any
from uuid import UUID

from kafka.structs import OffsetAndTimestamp, TopicPartition

from pyspark_kafka_rebalance.consumer.commits.offset_commits import OffsetCommits
from pyspark_kafka_rebalance.consumer.consumer import PollResult
from pyspark_kafka_rebalance.consumer.membership.ownership import Ownership
from pyspark_kafka_rebalance.consumer.offsets.commit_metadata import GroupCommit, Remaining
from pyspark_kafka_rebalance.consumer.offsets.origin import Origin, with_origin
from pyspark_kafka_rebalance.consumer.offsets.told_remaining import ToldRemaining
from pyspark_kafka_rebalance.errors import PartitionsLostError

PARTITIONS = [TopicPartition("t", n) for n in range(4)]

#: A wait that is this long has failed.
PATIENCE_S = 20


class Group:
    """What the members share: the broker's side, and the lock for all of it."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.members: list[FakeMember] = []
        self.committed: dict[TopicPartition, int] = {}
        self.metadata: dict[TopicPartition, str] = {}  # of these commits; empty without
        self.ends: dict[TopicPartition, int] = dict.fromkeys(PARTITIONS, 1_000)
        self.high_watermarks: dict[TopicPartition, int] = {}  # under read_committed
        self.silent: set[TopicPartition] = set()  # their leaders do not tell where they begin
        self.timestamps: dict[tuple[TopicPartition, int], int | None] = {}  # of the next records
        self.topics = {"t"}
        self.hidden: set[str] = set()
        self.topic_ids: dict[str, UUID] = {}
        self.assigns_by_id = False
        self.accepts_commits = True
        self.build_error: Exception | None = None
        self.lookup_error: Exception | None = None
        self.lookups = 0

    def build(self, **config: Any) -> FakeMember:
        if self.build_error is not None:
            raise self.build_error
        member = FakeMember(self, config)
        self.members.append(member)
        return member


class FakeMember:
    """A DeferredRevokeConsumer whose group is a few dictionaries; its lists are the real ones."""

    def __init__(self, group: Group, config: dict[str, Any]) -> None:
        self.group = group
        self.config = config
        self.generation = -1
        self.is_stable = True
        self.heard_at = math.inf
        self.session_timeout_ms = 10_000
        self.member_id = f"member-{len(group.members)}"
        self.lease_holds = True
        self.ownership = Ownership(revoke_timeout_s=math.inf)
        self.commits = OffsetCommits()
        self.told = ToldRemaining()
        self.describe: Callable[[TopicPartition, int, int, str], str] = lambda *_: ""
        self.delayed: set[TopicPartition] = set()  # in the last call
        self.released: set[TopicPartition] = set()
        self.polls = 0
        self.poll_error: BaseException | None = None
        self.while_planning: Callable[[], None] = lambda: None
        self.closed = 0
        self.drained = 0
        self.left: list[str] = []
        self.may_poll = threading.Event()
        self.may_poll.set()
        self.hangs = threading.Event()
        self.unknown: set[TopicPartition] = set()
        self._to_assign: list[tuple[int, set[TopicPartition]]] = []
        self._to_revoke: set[TopicPartition] = set()
        self._to_lose: set[TopicPartition] = set()
        self._to_keep: set[TopicPartition] = set()
        self._assigned_ids: dict[TopicPartition, UUID] = {}

    @property
    def owned(self) -> frozenset[TopicPartition]:
        return self.ownership.owned

    # What a test makes happen.

    def assign(self, *partitions: TopicPartition, generation: int = 1) -> None:
        with self.group.changed:
            self._to_assign.append((generation, set(partitions)))
            if self.group.assigns_by_id:
                self._assigned_ids |= {p: self.group.topic_ids[p.topic] for p in partitions}

    def revoke(self, *partitions: TopicPartition) -> None:
        with self.group.changed:
            self._to_revoke |= set(partitions)
            self._to_keep -= set(partitions)

    def take_revoke_back(self, *partitions: TopicPartition) -> None:
        with self.group.changed:
            self._to_keep |= set(partitions)
            self._to_revoke -= set(partitions)

    def lose(self, *partitions: TopicPartition) -> None:
        with self.group.changed:
            self._to_lose |= set(partitions)

    # What the membership calls.

    def subscribe(self, topics: list[str], pattern: str | None) -> None:
        self.subscribed = (topics, pattern)

    def subscription(self) -> set[str]:
        return {"t"}

    def partitions_for_topic(self, topic: str) -> set[int]:
        return {p.partition for p in PARTITIONS if p.topic == topic}

    def existing_topics(self, timeout_ms: float) -> set[str]:
        return self.group.topics

    def hidden_topics(self, topics: Collection[str], timeout_ms: float) -> set[str]:
        return self.group.hidden & set(topics)

    def known_partitions(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        return {p for p in partitions if p.topic in self.group.topics}

    def topic_ids(self, topics: Collection[str]) -> dict[str, UUID]:
        return {t: self.group.topic_ids[t] for t in topics if t in self.group.topic_ids}

    def take_unknown(self) -> set[TopicPartition]:
        unknown, self.unknown = self.unknown, set()
        return unknown

    def assigned_topic_id(self, partition: TopicPartition) -> UUID | None:
        return self._assigned_ids.get(partition)

    def poll_membership(self) -> PollResult:
        if not self.may_poll.is_set():
            self.hangs.set()
            self.may_poll.wait(PATIENCE_S)
        with self.group.changed:
            self.polls += 1
            self.group.changed.notify_all()
            if self.poll_error is not None:
                raise self.poll_error
            ownership = self.ownership
            step = ownership.begin(self._to_lose, now=0)
            ownership.give_up(step.revoked)
            self.commits.drop(step.lost | step.revoked)
            self.told.forget(step.lost | step.revoked)
            self.released |= ownership.drained(outstanding=()).released
            self._to_lose = set()
            if not step.lost:  # as the real one: an assignment waits for the poll after a loss
                wanted = ownership.owned - ownership.revoking - self._to_revoke
                wanted |= ownership.revoking & self._to_keep
                for generation, partitions in self._to_assign:
                    self.generation = generation
                    wanted |= partitions
                ownership.assigned(wanted, self.generation, now=0)
                self._to_assign, self._to_revoke, self._to_keep = [], set(), set()
            self.exchange_commits()
            return PollResult(
                {},
                ownership.to_be_revoked,
                ownership.lost,
                ownership.added,
                ownership.revoked,
            )

    def exchange_commits(self) -> None:
        """What waits reaches the group, and its answer the member, at once."""
        if self.group.accepts_commits:
            sent = self.commits.take()
            self.accept({p: entry.offset for p, entry in sent.items()})
            self.commits.acknowledge(sent)

    def accept(self, offsets: Mapping[TopicPartition, int]) -> None:
        """These reach the group, with what is told beyond them."""
        for partition, offset in offsets.items():
            self.group.committed[partition] = offset
            self.group.metadata[partition] = self.metadata(partition, offset)

    def metadata(self, partition: TopicPartition, offset: int) -> str:
        """As the real one's: who commits, and what is told beyond the offset."""
        told = self.told.metadata(partition, offset, 4_096, str(partition))
        return with_origin(self.describe(partition, offset, 4_096, str(partition)), told or "")

    def delay_revoke(self, partitions: Iterable[TopicPartition]) -> bool:
        with self.group.changed:
            self.delayed = set(partitions)
            self.ownership.delay(self.delayed)
            return self.delayed <= self.owned

    def may_hand_out(self) -> bool:
        self.while_planning()
        return self.lease_holds

    def commit_processed(self, offsets: Mapping[TopicPartition, int]) -> None:
        with self.group.changed:
            if offsets.keys() - self.owned:
                raise PartitionsLostError(str(offsets))
            self.commits.add(offsets)

    def commit_remaining(self, remaining: Mapping[TopicPartition, Remaining]) -> None:
        with self.group.changed:
            if remaining.keys() - self.owned:
                raise PartitionsLostError(str(remaining))
            further, beyond = self.told.news(remaining)
            self.commits.add(further)
            self.told.tell({p: (remaining[p], str(p)) for p in (*further, *beyond)})
            self.commits.repeat(beyond)

    def acknowledged_remaining(self, partition: TopicPartition) -> Remaining | None:
        with self.group.changed:
            told = self.told.of(partition)
            if told is None or self.commits.outstanding(partition):
                return None
            return told if self.commits.acknowledged(partition) == told.committed() else None

    def group_commits(
        self, partitions: Collection[TopicPartition], timeout_ms: float, in_order: bool = False
    ) -> dict[TopicPartition, GroupCommit]:
        found = {}
        for p, offset in self.committed_offsets(partitions, timeout_ms).items():
            metadata = self.group.metadata.get(p)
            left = Remaining.decode(offset, metadata, str(p)).remaining
            left = Remaining(offset) if in_order else left
            found[p] = GroupCommit(left, Origin.decode(offset, metadata, str(p)))
        return found

    def describe_commits(self, describe: Callable[[TopicPartition, int, int, str], str]) -> None:
        self.describe = describe

    def acknowledged(self, partition: TopicPartition) -> int | None:
        with self.group.changed:
            return self.commits.acknowledged(partition)

    def committed_offsets(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, int]:
        with self.group.changed:
            self.group.lookups += 1
            self.group.changed.notify_all()
            if self.group.lookup_error is not None:
                raise self.group.lookup_error
            return {p: self.group.committed[p] for p in partitions if p in self.group.committed}

    def partitions_with_leader(
        self, partitions: Collection[TopicPartition]
    ) -> list[TopicPartition]:
        return [p for p in partitions if p in self.group.ends]

    def end_offsets(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, int]:
        return {p: self.group.ends[p] for p in partitions}

    def end_offsets_now(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, int]:
        return self.end_offsets(self.partitions_with_leader(partitions), timeout_ms)

    def end_offsets_soon(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> Callable[[], dict[TopicPartition, int]]:
        with self.group.changed:
            ends = {p: self.group.ends[p] for p in partitions if p not in self.group.silent}
        return lambda: ends

    def high_watermarks_now(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, int]:
        self.group.lookups += 1
        known = {**self.group.ends, **self.group.high_watermarks}
        return {p: known[p] for p in partitions}

    def beginning_offsets(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    def beginning_offsets_now(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, int]:
        return {p: 0 for p in partitions if p not in self.group.silent}

    def leaders(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return {p: p.partition + 1 for p in self.partitions_with_leader(partitions)}

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int], timeout_ms: float
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """A record a ms, from time 0 at offset 0."""
        return {
            p: OffsetAndTimestamp(at, at, 0) if at < self.group.ends[p] else None
            for p, at in times.items()
        }

    def next_timestamps_now(
        self,
        positions: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        timeout_ms: float,
    ) -> dict[TopicPartition, int | None]:
        """As in `offsets_for_times`, except for the records of ``timestamps``."""
        assert all(at < ends[p] for p, at in positions.items())
        return {
            p: self.group.timestamps.get((p, at), at)
            for p, at in positions.items()
            if p not in self.group.silent
        }

    def forget_commits(self, partitions: Collection[TopicPartition]) -> None:
        with self.group.changed:
            self.commits.drop(partitions)
            self.told.forget(partitions)

    def request_metadata(self) -> None:
        pass

    def topic_ids_now(self, topics: Collection[str], timeout_ms: float) -> dict[str, UUID]:
        return self.topic_ids(topics)

    def leave_until_polled(self, reason: str) -> None:
        with self.group.changed:
            self.left.append(reason)
            self.ownership.forget_all()
            self.group.changed.notify_all()

    def drain(self, timeout_ms: float) -> bool:
        with self.group.changed:
            self.drained += 1
            if self.group.accepts_commits:
                while sent := self.commits.take():
                    self.accept({p: entry.offset for p, entry in sent.items()})
                    self.commits.acknowledge(sent)
            return not self.commits.any_outstanding()

    def close(self, timeout_ms: float) -> None:
        with self.group.changed:
            self.closed += 1
