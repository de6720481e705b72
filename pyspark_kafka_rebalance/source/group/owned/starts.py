"""Where newly assigned partitions start. Pure: :class:`StartLookup` asks the brokers.

In this order:

 1. The group's committed offset or this query's own position, whichever is higher
    (``Positioning.start_at``). If Spark's own source has left a position and the group has
    processed anything beyond it, the group is first set back to that position: no other reader
    shares that source's work, so nothing beyond it was delivered.
 2. The first record, for a partition that was created while the query ran, between two runs, or in
    place of a deleted one: no other reader has had it, and the options were set before. The same
    holds for a partition that is first assigned after the query has read something: its previous
    owner never committed, and "latest" is another offset now than when the query started.
 3. The options' start for this very partition.
 4. The first record, for a partition that was created after the group started to read its topic.
 5. The options' start for every partition.

``latest`` is where the log ended when the query first started, not when the partition is assigned
(``FirstEnds``). Until something is read, the offsets carry these ends, for a restart.

Rule 2 depends on the time of assignment, not of the look-up. If a partition cannot be looked up
before others are read, because it has no leader, it still starts as at the query's start, in any
member.

Not thread-safe: a part of :class:`SharedState`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING
from uuid import UUID

from kafka.structs import TopicPartition

from ....consumer.offsets.commit_metadata import Remaining
from ...options.starting_offsets import AtTimestamp, Start

if TYPE_CHECKING:
    from ...options.source_options import SourceOptions


class Starts:
    """The rules' facts: which partitions existed when, and which were assigned before any read."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._initial: frozenset[TopicPartition] | None = None  # from the checkpoint
        self._first_seen: frozenset[TopicPartition] = frozenset()
        self._new_to_group: frozenset[TopicPartition] = frozenset()
        self._created_anew: set[TopicPartition] = set()
        self._assigned_unread: set[TopicPartition] = set()  # before anything was read
        self._imported: set[TopicPartition] = set()
        self._resumed = False  # with a batch of Spark's log
        self._has_read = False
        self._topic_ids: dict[str, UUID] = {}
        # The id of the topic in which each was started, and the partitions whose id is not known.
        self._started_in: dict[TopicPartition, UUID] = {}
        self._unidentified: set[TopicPartition] = set()
        # Where the logs ended when the query first started, of partitions that existed then.
        self._first_ends: dict[TopicPartition, int] = {}
        self._unlogged = False  # `initial` lacks some partitions that the checkpoint may name

    # -- facts ------------------------------------------------------------------------------------

    def found(
        self, partitions: Collection[TopicPartition], topic_ids: Mapping[str, UUID] | None = None
    ) -> None:
        """These partitions exist when the query starts, in these topics."""
        self._first_seen = frozenset(partitions)
        self._topic_ids = dict(topic_ids or {})

    def note_first_ends(self, ends: Mapping[TopicPartition, int]) -> None:
        """The logs' ends at the start of this run; the checkpoint's take precedence."""
        self._first_ends = {**ends, **self._first_ends}

    def found_new_to_group(self, partitions: Collection[TopicPartition]) -> None:
        """No member of the group has had these (``new_to_group``)."""
        self._new_to_group = frozenset(partitions)

    def saw(self, topic_ids: Mapping[str, UUID]) -> None:
        """Starts were found in these topics; some of the topics may be new."""
        for topic, topic_id in topic_ids.items():
            self._topic_ids.setdefault(topic, topic_id)

    def replaced(
        self, partitions: Iterable[TopicPartition], topic_ids: Mapping[str, UUID]
    ) -> set[str]:
        """The topics of these partitions whose id differs from the one first seen for that name.

        A topic that was not seen is included too, if the checkpoint's ``initial`` has the
        partition. Each is returned once; none if the brokers have no topic ids.
        """
        known = self._topic_ids
        anew = {
            p.topic
            for p in partitions
            if p.topic in topic_ids
            and (p.topic in known or p in self._found)
            and topic_ids[p.topic] != known.get(p.topic)
        }
        known.update({topic: topic_ids[topic] for topic in anew})
        return anew

    def of_another_topic(
        self, partitions: Iterable[TopicPartition], topic_ids: Mapping[str, UUID]
    ) -> set[TopicPartition]:
        """The given partitions whose topic is not the one that this query knows by that name.

        The known one is that in which the partition was started or, if unknown, the one first seen.
        """
        return {
            p
            for p in partitions
            if (now := topic_ids.get(p.topic)) is not None
            and (self._started_in.get(p) or self._topic_ids.get(p.topic, now)) != now
        }

    def started_in_another(
        self, partitions: Iterable[TopicPartition], topic_ids: Mapping[str, UUID]
    ) -> set[TopicPartition]:
        """As :meth:`of_another_topic`, but only partitions whose starting topic id is known."""
        return self.of_another_topic([p for p in partitions if p in self._started_in], topic_ids)

    def started_in(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, UUID]:
        """The ids of the topics in which these were started, where known."""
        known = self._started_in
        return {p: known[p] for p in partitions if p in known} if known else {}

    def created_anew(self, partitions: Collection[TopicPartition]) -> None:
        """These were deleted: a new one of the same name is another partition."""
        self._unlogged |= not self._found.isdisjoint(partitions)
        self._created_anew.update(partitions)
        self._unidentified.difference_update(partitions)
        for partition in partitions:
            self._started_in.pop(partition, None)
            self._first_ends.pop(partition, None)

    def restore(
        self,
        positions: Collection[TopicPartition],
        initial: frozenset[TopicPartition] | None,
        imported: Collection[TopicPartition],
        first_ends: Mapping[TopicPartition, int] = MappingProxyType({}),
    ) -> None:
        """Take over the offset that Spark starts this run with; see :class:`StreamOffset`."""
        self._first_ends.update(first_ends)
        if not self._resumed:  # else members have owned some of them since
            self._imported = set(imported)
        self._initial = frozenset() if initial is None and positions else initial

    def resume(self, imported: Collection[TopicPartition]) -> None:
        """Spark reruns a batch of its log, so something was read."""
        self._imported, self._resumed = set(imported), True
        self._initial = frozenset()
        self._has_read = True

    def assigned(self, partitions: Collection[TopicPartition]) -> None:
        """The group has given these to a member of the query."""
        if not self._has_read:
            self._assigned_unread.update(partitions)

    def read(self) -> None:
        """The query has started to read."""
        self._has_read = True

    def started(self, partition: TopicPartition, topic_id: UUID | None = None) -> None:
        """The partition's start is known; an imported one is like any other from now on.

        ``topic_id`` is the id by which the group has assigned it. If the group assigns by name,
        :meth:`identify` supplies the id later.
        """
        self._imported.discard(partition)
        self._started_in.pop(partition, None)
        if topic_id is not None:
            self._started_in[partition] = topic_id
        else:
            self._unidentified.add(partition)

    def are_created_anew(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """The given partitions that were deleted and recreated during this run."""
        return self._created_anew & set(partitions)

    @property
    def unidentified(self) -> frozenset[TopicPartition]:
        """Partitions that were started in a topic known only by name."""
        return frozenset(self._unidentified)

    def identify(self, owned: Collection[TopicPartition], topic_ids: Mapping[str, UUID]) -> None:
        """Record the topic ids, fetched after the starts, of partitions owned ever since."""
        for partition in self._unidentified & set(owned):
            if partition.topic in topic_ids:
                self._started_in[partition] = topic_ids[partition.topic]
        self._unidentified.clear()

    # -- conclusions ------------------------------------------------------------------------------

    @property
    def has_read(self) -> bool:
        """Whether this query has read anything, in this run or in the batch it resumes."""
        return self._has_read

    @property
    def imported(self) -> frozenset[TopicPartition]:
        """Partitions with a position from Spark's own source that this query never owned."""
        return frozenset(self._imported)

    @property
    def initial(self) -> frozenset[TopicPartition]:
        """The partitions that existed when the query first started, except deleted ones.

        Empty if an earlier run has read something.
        """
        return self._found - self._created_anew

    def log_initial(self) -> frozenset[TopicPartition]:
        """As :attr:`initial`, for writing into an offset; empty once something is read."""
        self._unlogged = False
        return frozenset() if self._has_read else self.initial

    def log_first_ends(self) -> Mapping[TopicPartition, int]:
        """The first ends of the partitions of :meth:`log_initial`, for writing into an offset."""
        if self._has_read:
            return {}
        initial = self.initial
        return {p: end for p, end in self._first_ends.items() if p in initial}

    @property
    def is_unlogged(self) -> bool:
        """Whether a restart would take a deleted partition for one of the initial ones."""
        return self._unlogged and not self._has_read

    @property
    def _found(self) -> frozenset[TopicPartition]:
        return self._first_seen if self._initial is None else self._initial

    @property
    def knows_initial(self) -> bool:
        """Whether the checkpoint has :attr:`initial`, so that no client is needed for it."""
        return self._initial is not None

    def rule_of(self, partition: TopicPartition) -> Start:
        """Where it starts if neither the group nor this query has a position (rules 2 to 5)."""
        if partition in self._created_anew or partition not in self._found:
            return "earliest"
        if self._has_read and partition not in self._assigned_unread:
            return "earliest"
        named = partition in self._options.starting_offsets.named
        if partition in self._new_to_group and not named:
            return "earliest"
        return self._options.start_of(partition)

    def end_at_start(self, partition: TopicPartition, end: int) -> int:
        """Where ``latest`` is for a partition that :meth:`rule_of` starts there.

        That is where its log ended when the query first started, as far as that is known; its
        present end is lower if the log was truncated in between.
        """
        return min(end, self._first_ends.get(partition, end))

    def may_start_at_end(self) -> list[TopicPartition]:
        """The first seen partitions that the options start at the end, if no position is known."""
        rules = {p: self._options.start_of(p) for p in self._first_seen}
        return [
            p
            for p, rule in rules.items()
            if rule == "latest" or (isinstance(rule, AtTimestamp) and rule.or_latest)
        ]

    def maybe_new_to_group(self) -> list[TopicPartition]:
        """The first seen partitions whose start depends on whether they are new to the group."""
        options = self._options
        topics = {
            p.topic
            for p in self._first_seen
            if p not in options.starting_offsets.named and options.start_of(p) != "earliest"
        }
        return [p for p in self._first_seen if p.topic in topics]

    def may_go_back(self, known: Iterable[TopicPartition]) -> list[TopicPartition]:
        """The checkpoint's partitions that exist and whose position is the group's, not imported.

        The query may lack the permission to request the others.
        """
        return [p for p in known if p in self._first_seen and p not in self._imported]

    def unseen(self, known: Iterable[TopicPartition]) -> list[TopicPartition]:
        """The checkpoint's partitions that did not exist when the query started."""
        return [p for p in known if p not in self._first_seen]

    def set_back(
        self, owed: Mapping[TopicPartition, Remaining], known: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Where the group is ahead of Spark's own source, and the offsets to set it to (rule 1).

        The group may have processed records beyond its committed offset. The proven positions have
        every partition of :attr:`imported`.
        """
        return {
            p: known[p] for p, left in owed.items() if p in self._imported and left.live > known[p]
        }
