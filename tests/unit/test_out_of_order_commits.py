"""Completion and OffsetCommits together, against a model of plain sets.

The model is written from KIP-983, not from the code: it knows no ranges and no merging. It keeps
every offset that was handed out and every one that is processed, and a broker that remembers what
it was sent. The sentences that a rule or a check stands for are quoted at it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance import PartitionsLostError
from pyspark_kafka_rebalance.consumer.commits.offset_commits import OffsetCommits
from pyspark_kafka_rebalance.consumer.progress.completion import Completion

PARTITIONS = [TopicPartition("t", n) for n in range(2)]
#: The offsets that exist. What lies between was compacted, or is the mark of a transaction.
LOG = [0, 1, 2, 3, 5, 6, 8, 11, 12, 13, 14, 15, 17, 20, 21]
partitions = st.sampled_from(PARTITIONS)


@dataclass
class Owned:
    """One partition as the application sees it, from its assignment to its end."""

    fetch_from: int
    goes_on: int = 0  # behind what was handed out last
    sought: int | None = None  # and nothing handed out since
    passed: set[int] = field(default_factory=set)  # by polls, whether there is a record or not
    handed_out: set[int] = field(default_factory=set)
    processed: set[int] = field(default_factory=set)
    any_worker: bool = False
    moved_back: bool = False
    #: The highest next offset that may be committed, as far as the application has said.
    committable: int = -1
    acknowledged: int | None = None

    def in_processing(self) -> set[int]:
        return self.handed_out - self.processed

    def position(self) -> int:
        """Problem 4: "offsets must be committed in order"."""
        goes_on = self.goes_on if self.sought is None else self.after_seek()
        return min({goes_on} | self.in_processing())

    def after_seek(self) -> int:
        """Back: there. Forward: as far as polls were before; what was left out is not done."""
        assert self.sought is not None
        if self.sought <= self.goes_on:
            return self.sought
        return next(o for o in range(self.goes_on, 99) if o == self.sought or o not in self.passed)


class Asynchronous(RuleBasedStateMachine):
    """An application with workers, the code under test, and a coordinator that answers or not."""

    def __init__(self) -> None:
        super().__init__()
        self.completion = Completion()
        self.commits = OffsetCommits()
        self.owned: dict[TopicPartition, Owned] = {}
        self.broker: dict[TopicPartition, int] = {}
        self.in_flight: dict[TopicPartition, int] = {}
        self.stale: set[TopicPartition] = set()  # in flight of an assignment that is over
        self.before: dict[TopicPartition, set[int]] = {p: set() for p in PARTITIONS}

    # -- the application --------------------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        for partition in PARTITIONS:
            self.assigned(partition)
            self.poll(partition, 6)

    @rule(partition=partitions)
    def assigned(self, partition: TopicPartition) -> None:
        """ "When the second consumer starts, it starts reading at the last committed offset"."""
        # To the group it is released only when the commit in flight is answered.
        if partition not in self.owned and partition not in self.in_flight:
            self.owned[partition] = Owned(self.broker.get(partition, 0))

    @rule(partition=partitions, count=st.integers(1, 6))
    def poll(self, partition: TopicPartition, count: int) -> None:
        """ "starts processing received records"."""
        self.assigned(partition)
        if (mine := self.owned.get(partition)) is None:
            return
        records = [offset for offset in LOG if offset >= mine.fetch_from][:count]
        self.completion.partition(partition).hand_out(records)
        if records:
            went_on = mine.sought is None and bool(mine.handed_out)
            before = min({mine.goes_on} | mine.in_processing()) if mine.handed_out else -1
            mine.moved_back |= not mine.handed_out and mine.sought is not None
            mine.passed |= set(range(mine.goes_on if went_on else records[0], records[-1] + 1))
            mine.handed_out |= set(records)
            mine.processed -= set(records)  # handed out again: in processing again
            mine.fetch_from = mine.goes_on = records[-1] + 1
            mine.sought = None
            mine.moved_back = mine.moved_back or mine.position() < before

    @rule(partition=partitions, offset=st.sampled_from(LOG))
    def seek(self, partition: TopicPartition, offset: int) -> None:
        if (mine := self.owned.get(partition)) is None:
            return
        before = mine.position() if mine.handed_out else -1
        mine.fetch_from = mine.sought = offset
        self.completion.partition(partition).seek(offset)
        if mine.handed_out:
            assert self.completion.position(partition) == mine.position()
            if mine.any_worker and mine.position() > before:
                self.commits.add({partition: mine.position()})
                mine.committable = max(mine.committable, mine.position())

    @rule(partition=partitions, data=st.data())
    def workers_finish(self, partition: TopicPartition, data: st.DataObject) -> None:
        """In whatever order, also what they have finished before."""
        mine = self.owned.get(partition)
        if mine is None or not mine.handed_out:
            return
        offsets = data.draw(st.lists(st.sampled_from(sorted(mine.handed_out)), min_size=1))
        self._finish(partition, offsets)

    def _finish(self, partition: TopicPartition, offsets: list[int]) -> None:
        mine = self.owned[partition]
        before = mine.position()
        mine.processed |= set(offsets)
        mine.any_worker = True
        moved = mine.position() != before
        # Back with the first of what was handed out again, and not by what is to come again.
        goes_back = mine.sought is None or mine.sought >= min({mine.goes_on} | mine.in_processing())
        if mine.moved_back and goes_back and min(offsets) < mine.goes_on:
            moved = True
        mine.moved_back = mine.moved_back and not moved
        advanced = self.completion.complete(partition, offsets)
        assert advanced == (mine.position() if moved else None)
        if advanced is not None:
            self.commits.add({partition: advanced})
            mine.committable = max(mine.committable, mine.position())

    @rule(partition=partitions, offset=st.integers(-1, 25))
    def a_worker_names_what_it_was_not_given(self, partition: TopicPartition, offset: int) -> None:
        """Nothing of it counts. What was given before the partition was lost is told apart:
        "make sure to no longer commit anything from these partitions"."""
        mine = self.owned.get(partition)
        given = mine.handed_out if mine else set()
        if mine and offset in mine.passed:
            return
        late = bool(self.before[partition]) and offset <= max(self.before[partition])
        with pytest.raises(PartitionsLostError if late else ValueError):
            self.completion.complete(partition, [*given, offset])

    @rule(partition=partitions, offset=st.integers(0, 22))
    def commit_processed(self, partition: TopicPartition, offset: int) -> None:
        """ "commits offsets for records that completed processing"."""
        if (mine := self.owned.get(partition)) is None:
            return
        mine.processed |= {known for known in mine.handed_out if known < offset}
        found = self.completion.complete_below({partition: offset})
        # With it goes what workers have completed beyond; without workers, just what was asked for.
        expected = max(offset, mine.position()) if mine.any_worker else offset
        assert found == {partition: expected}
        self.commits.add(found)
        mine.committable = max(mine.committable, found[partition])

    @rule(partition=partitions)
    def the_slowest_worker_finishes(self, partition: TopicPartition) -> None:
        mine = self.owned.get(partition)
        if mine is not None and mine.in_processing():
            self._finish(partition, [min(mine.in_processing())])

    @rule(partition=partitions)
    def revoke_completed_or_lost(self, partition: TopicPartition) -> None:
        """ "make sure to no longer commit anything from these partitions"; and of one that is
        released nothing is outstanding when it is ("the consumer has released control")."""
        if (mine := self.owned.pop(partition, None)) is None:
            return
        self.before[partition] |= mine.handed_out
        self.completion.forget([partition])
        self.commits.drop([partition])
        if partition in self.in_flight:
            self.stale.add(partition)

    # -- the coordinator --------------------------------------------------------------------------

    @rule()
    def send(self) -> None:
        """Problem 5: "offsets should be aggregated before committing"; and one at a time."""
        sent = {p: entry.offset for p, entry in self.commits.take().items()}
        if self.in_flight:
            assert sent == {}, "two commits in flight"
            return
        assert sent == {
            partition: mine.committable
            for partition, mine in self.owned.items()
            if mine.committable > (-1 if mine.acknowledged is None else mine.acknowledged)
        }
        self.in_flight = sent

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        """Of each partition: accepted, not accepted, or applied without anybody hearing of it."""
        answers = data.draw(
            st.fixed_dictionaries(
                {p: st.sampled_from(["accepted", "refused", "unheard"]) for p in self.in_flight}
            )
        )
        for partition, answer in answers.items():
            mine = self.owned.get(partition) if partition not in self.stale else None
            if answer != "refused":
                if mine is not None:
                    assert self.in_flight[partition] >= self.broker.get(partition, 0) or (
                        mine.acknowledged is None
                    ), "a committed position moved back"
                self.broker[partition] = self.in_flight[partition]
            if answer == "accepted" and mine is not None:
                mine.acknowledged = self.in_flight[partition]
        self.commits.acknowledge([p for p, answer in answers.items() if answer == "accepted"])
        self.commits.retry()
        self.in_flight, self.stale = {}, set()

    # -- what always holds ------------------------------------------------------------------------

    @invariant()
    def nothing_is_committed_that_is_in_processing(self) -> None:
        for partition, mine in self.owned.items():
            first_unseen = max(mine.handed_out, default=-1) + 1
            if mine.acknowledged is not None and partition not in self.seeked_back():
                below = {o for o in mine.handed_out if o < min(mine.acknowledged, first_unseen)}
                assert below <= mine.processed

    def seeked_back(self) -> set[TopicPartition]:
        """Of these, records are processed once more that are committed already."""
        return {
            partition
            for partition, mine in self.owned.items()
            if any(o < mine.committable for o in mine.in_processing())
        }

    @invariant()
    def unprocessed_is_what_was_handed_out_and_is_not_processed(self) -> None:
        assert self.completion.pending() == {
            partition for partition, mine in self.owned.items() if mine.in_processing()
        }

    @invariant()
    def outstanding_until_the_broker_has_said_so(self) -> None:
        for partition in PARTITIONS:
            mine = self.owned.get(partition)
            owed = mine is not None and mine.committable > (
                -1 if mine.acknowledged is None else mine.acknowledged
            )
            assert self.commits.outstanding(partition) == (owed or partition in self.in_flight)
            assert self.commits.acknowledged(partition) == (mine.acknowledged if mine else None)

    def teardown(self) -> None:
        """Nothing processed is forgotten: what close drains is all that may be committed."""
        if self.in_flight:
            self.commits.acknowledge(self.in_flight.keys() - self.stale)
            self.broker |= {p: o for p, o in self.in_flight.items() if p not in self.stale}
            self.commits.retry()
        self.broker |= {p: entry.offset for p, entry in self.commits.take().items()}
        for partition, mine in self.owned.items():
            if mine.processed and not mine.in_processing():
                assert self.broker[partition] >= mine.position()  # where polls go on, after a seek


TestAsynchronous = Asynchronous.TestCase
