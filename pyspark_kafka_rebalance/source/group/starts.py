"""Where newly assigned partitions start. Pure: :class:`StartLookup` asks the brokers.

In this order:

 1. The group's committed offset, or what this query has come to, whichever is further
    (``Positioning.start_at``). Where Spark's own source has left a position and the group has
    processed anything beyond it, the group is set to that position first: that source shares its
    work with nobody, so it has delivered nothing beyond.
 2. The first record, for a partition that was created while the query ran, between two runs, or in
    the place of a deleted one: nobody else has read it, and what the options name is older. So for
    one that is first assigned when the query has read something: who had it until then never
    committed, and "latest" would be another offset by now than when the query began.
 3. What the options name for this very partition.
 4. The first record, for a partition that was created after the group began to read its topic.
 5. What the options say for every partition.

Rule 2 goes by the assignment, not by the look-up: a start that cannot be looked up before others
are read (its leader is away) is still that of the beginning, whichever member gets it then.

Not thread-safe: a part of :class:`SharedState`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING
from uuid import UUID

from kafka.structs import TopicPartition

from ...consumer.remaining import Remaining
from ..starting_offsets import Start

if TYPE_CHECKING:
    from ..options import SourceOptions


class Starts:
    """What one query knows of where its partitions start.

    Parameters
    ----------
    options : SourceOptions
        Those of a stream.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._initial: frozenset[TopicPartition] | None = None  # as the checkpoint says
        self._first_seen: frozenset[TopicPartition] = frozenset()
        self._new_to_group: frozenset[TopicPartition] = frozenset()
        self._created_anew: set[TopicPartition] = set()
        self._assigned_unread: set[TopicPartition] = set()  # before anything was read
        self._imported: set[TopicPartition] = set()
        self._resumed = False  # by a batch of Spark's log
        self._has_read = False
        self._topic_ids: dict[str, UUID] = {}
        # The topic in which each was started, by its id, and those of which it is to be found out.
        self._started_in: dict[TopicPartition, UUID] = {}
        self._unidentified: set[TopicPartition] = set()
        self._unlogged = False  # `initial` has lost some that the checkpoint may name

    # -- what is learned --------------------------------------------------------------------------

    def found(
        self, partitions: Collection[TopicPartition], topic_ids: Mapping[str, UUID] | None = None
    ) -> None:
        """These are there when the query begins, in these topics."""
        self._first_seen = frozenset(partitions)
        self._topic_ids = dict(topic_ids or {})

    def found_new_to_group(self, partitions: Collection[TopicPartition]) -> None:
        """Nobody of the group has had these (``new_to_group``)."""
        self._new_to_group = frozenset(partitions)

    def saw(self, topic_ids: Mapping[str, UUID]) -> None:
        """Starts were found in these topics, of which some may have been created since."""
        for topic, topic_id in topic_ids.items():
            self._topic_ids.setdefault(topic, topic_id)

    def replaced(
        self, partitions: Iterable[TopicPartition], topic_ids: Mapping[str, UUID]
    ) -> set[str]:
        """The topics of these partitions that are others than those first seen by these names.

        Also where there was none, and the checkpoint names the partition as one that was there.
        Each is told once. Of brokers that have no ids for topics, none is.
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
        """Those of these whose topic is another than the one that this query knows by its name.

        That is the one in which the partition was started, or if that is not known, the one first
        seen.
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
        """As :meth:`of_another_topic`, of those alone that are known to be started in a topic."""
        return self.of_another_topic([p for p in partitions if p in self._started_in], topic_ids)

    def started_in(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, UUID]:
        """In which topics these were started; without those of which it is not known."""
        known = self._started_in
        return {p: known[p] for p in partitions if p in known} if known else {}

    def created_anew(self, partitions: Collection[TopicPartition]) -> None:
        """These were deleted: what gets their name is another partition."""
        self._unlogged |= not self._found.isdisjoint(partitions)
        self._created_anew.update(partitions)
        self._unidentified.difference_update(partitions)
        for partition in partitions:
            self._started_in.pop(partition, None)

    def restore(
        self,
        positions: Collection[TopicPartition],
        initial: frozenset[TopicPartition] | None,
        imported: Collection[TopicPartition],
    ) -> None:
        """Of the offset that Spark starts this run with; parameters as in :class:`StreamOffset`."""
        if not self._resumed:  # else members have had some of them since
            self._imported = set(imported)
        self._initial = frozenset() if initial is None and positions else initial

    def resume(self, imported: Collection[TopicPartition]) -> None:
        """Spark runs a batch of its log again, so something was read."""
        self._imported, self._resumed = set(imported), True
        self._initial = frozenset()
        self._has_read = True

    def assigned(self, partitions: Collection[TopicPartition]) -> None:
        """The group has given these to a member of the query."""
        if not self._has_read:
            self._assigned_unread.update(partitions)

    def read(self) -> None:
        """Something is read from now on."""
        self._has_read = True

    def started(self, partition: TopicPartition, topic_id: UUID | None = None) -> None:
        """Its start is found; from now on it is like any other, imported or not.

        ``topic_id`` is that by which the group has assigned it, if it does that; else
        :meth:`identify` is to tell.
        """
        self._imported.discard(partition)
        self._started_in.pop(partition, None)
        if topic_id is not None:
            self._started_in[partition] = topic_id
        else:
            self._unidentified.add(partition)

    def are_created_anew(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """Those of these that were deleted, and are there again, since this run began."""
        return self._created_anew & set(partitions)

    @property
    def unidentified(self) -> frozenset[TopicPartition]:
        """Which were started in a topic that is known by its name alone."""
        return frozenset(self._unidentified)

    def identify(self, owned: Collection[TopicPartition], topic_ids: Mapping[str, UUID]) -> None:
        """These are owned since they were started, and the topics were fetched since."""
        for partition in self._unidentified & set(owned):
            if partition.topic in topic_ids:
                self._started_in[partition] = topic_ids[partition.topic]
        self._unidentified.clear()

    # -- what follows -----------------------------------------------------------------------------

    @property
    def has_read(self) -> bool:
        """Whether this query has read anything, in this run or in the batch it resumes."""
        return self._has_read

    @property
    def imported(self) -> frozenset[TopicPartition]:
        """Whose position Spark's own source has left, and which this query has not owned yet."""
        return frozenset(self._imported)

    @property
    def initial(self) -> frozenset[TopicPartition]:
        """The partitions that were there when the query first began, unless it has read since.

        Without those that were deleted since.
        """
        return self._found - self._created_anew

    def log_initial(self) -> frozenset[TopicPartition]:
        """As :attr:`initial`, none once something is read; goes into the offset that is made."""
        self._unlogged = False
        return frozenset() if self._has_read else self.initial

    @property
    def is_unlogged(self) -> bool:
        """Whether a restart would take one that is gone for one that was there at first."""
        return self._unlogged and not self._has_read

    @property
    def _found(self) -> frozenset[TopicPartition]:
        return self._first_seen if self._initial is None else self._initial

    @property
    def knows_initial(self) -> bool:
        """Whether the checkpoint says so, so that no client is needed for it."""
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

    def maybe_new_to_group(self) -> list[TopicPartition]:
        """The partitions found first for whose start it matters whether they are."""
        options = self._options
        topics = {
            p.topic
            for p in self._first_seen
            if p not in options.starting_offsets.named and options.start_of(p) != "earliest"
        }
        return [p for p in self._first_seen if p.topic in topics]

    def may_go_back(self, known: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Of what the checkpoint knows, that whose position is the group's own, and which is there.

        What is not there, the query may not be allowed to ask for.
        """
        return [p for p in known if p in self._first_seen and p not in self._imported]

    def unseen(self, known: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Of what the checkpoint knows, that which was not there when the query began."""
        return [p for p in known if p not in self._first_seen]

    def set_back(
        self, owed: Mapping[TopicPartition, Remaining], known: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Where the group is ahead of Spark's own source, and to where it must go back (rule 1).

        Parameters
        ----------
        owed : Mapping[TopicPartition, Remaining]
            What the group is owed. Its offset may be a lower one than what it has processed.
        known : Mapping[TopicPartition, int]
            What is proven; has every partition of :attr:`imported`.
        """
        return {
            p: known[p] for p, left in owed.items() if p in self._imported and left.live > known[p]
        }
