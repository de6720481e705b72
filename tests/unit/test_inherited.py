"""Owners that crash and take over, against a model that remembers every record.

The model knows no gaps: it keeps the log, and which of its records were ever processed. A record
is the pair of its offset and its leader epoch, so that what is written after a truncation is
another one. Two promises: nothing is left out that was not processed, and what a commit has told
to be processed is not delivered again.
"""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from kafka.consumer.fetcher import ConsumerRecord
from kafka.structs import OffsetAndMetadata, TopicPartition

from pyspark_kafka_rebalance.consumer.offsets.commit_metadata import Remaining
from pyspark_kafka_rebalance.consumer.offsets.offset_set import Gap
from pyspark_kafka_rebalance.consumer.progress.completion import Completion
from pyspark_kafka_rebalance.consumer.progress.partition import Inherited, inherit
from pyspark_kafka_rebalance.errors import PartitionsLostError

P = TopicPartition("t", 0)
#: What lies between was compacted, or is the mark of a transaction.
LOG = [0, 1, 2, 3, 5, 6, 8, 11, 12, 13, 14, 15, 17, 20, 21, 22, 23, 24, 25, 26, 28]
END = 29

Record = tuple[int, int]


def record(offset: int, epoch: int) -> ConsumerRecord:
    return ConsumerRecord("t", 0, epoch, offset, 0, 0, None, None, (), None, -1, -1, -1)


class Owners(RuleBasedStateMachine):
    """One owner after another, the log, and what the group has committed."""

    def __init__(self) -> None:
        super().__init__()
        self.log = dict.fromkeys(LOG, 0)
        self.epoch = 0
        self.processed: set[Record] = set()  # and not handed out again since, after a seek
        self.group_knows: set[Record] = set()  # what was processed when it got its commit
        self.group = OffsetAndMetadata(0, "", -1)
        self.told: set[Record] = set()  # to be processed, by the group's commit
        self.group_reads_from = 0
        self.take_over()

    def take_over(self) -> None:
        self.completion = Completion()
        self.fetch_from = self.group_reads_from
        self.start: OffsetAndMetadata | None = self.group
        self.spared: set[Record] = set()
        self.handed_out: dict[int, int] = {}
        self.processed |= self.group_knows  # what was handed out again may not be processed yet
        self.known = set(self.group_knows)

    @initialize()
    def begin(self) -> None:
        self.poll(8)

    @rule(count=st.integers(1, 10))
    def poll(self, count: int) -> None:
        found = [record(o, e) for o, e in self.log.items() if o >= self.fetch_from][:count]
        if not found:
            return
        if self.start is not None:
            told = inherit(P, self.start, "t")
            if told is not None:
                self.completion.partition(P).completion.inherited = told
                self.spared = set(self.told)
            self.start = None
        first = found[0].offset
        inherited = self.completion.partition(P).inherited_at(first)
        left = found
        if inherited is not None:
            inherited = inherited.as_seen(found)
            self.completion.partition(P).completion.inherited = inherited
            left = inherited.still_owed(found)
        delivered = {(r.offset, r.leader_epoch) for r in left}
        left_out = {(r.offset, r.leader_epoch) for r in found} - delivered
        assert left_out <= self.known, "lost"
        if inherited is not None:
            assert not delivered & self.spared, "delivered again"
        self.fetch_from = found[-1].offset + 1
        if left and self.completion.partition(P).truncated_at(left[0].offset):
            self.truncate(left[0].offset)
        self.processed -= delivered
        for one in left:
            anew = self.completion.partition(P).written_anew_from(one.offset, one.leader_epoch)
            if anew is not None:
                self.truncate(anew)
            self.completion.partition(P).hand_out([one.offset], one.leader_epoch)
            self.handed_out[one.offset] = one.leader_epoch

    def truncate(self, offset: int) -> None:
        self.completion.partition(P).truncate(offset)
        self.handed_out = {o: e for o, e in self.handed_out.items() if o < offset}

    @rule(data=st.data(), election=st.none() | st.integers(1, END))
    def crash_behind_a_slow_record(self, data: st.DataObject, election: int | None) -> None:
        in_processing = sorted(self.in_processing() & self.handed_out.keys())
        if len(in_processing) > 1:
            done = data.draw(st.sets(st.sampled_from(in_processing[1:]), min_size=1))
            self.completion.complete(P, done)
            self.processed |= {(o, self.handed_out[o]) for o in done}
        self.commit(4_096)
        if election is not None:
            self.unclean_election(election)
        self.take_over()
        self.poll(data.draw(st.integers(1, 10)))

    @rule(data=st.data())
    def workers_finish(self, data: st.DataObject) -> None:
        if self.handed_out:
            done = data.draw(st.sets(st.sampled_from(sorted(self.handed_out)), min_size=1))
            self.completion.complete(P, done)
            self.processed |= {(o, self.handed_out[o]) for o in done}

    @rule(limit=st.sampled_from([4_096, 4_096, 26, 24, 0]))
    def commit(self, limit: int) -> None:
        position = self.completion.position(P)
        if position is not None:
            self.commit_at(position, limit)

    @rule(offset=st.integers(0, END))
    def commit_processed(self, offset: int) -> None:
        if self.handed_out and offset <= min(self.in_processing(), default=0) + 3:
            reached = self.completion.complete_below({P: offset})[P]
            self.processed |= {(o, e) for o, e in self.handed_out.items() if o < offset}
            self.commit_at(reached, 4_096)

    def commit_at(self, offset: int, limit: int) -> None:
        remaining, epoch = self.completion.remaining(P, offset)
        assert remaining.committed() == offset
        metadata = remaining.encode(limit, "t", epoch)
        assert len(metadata) <= limit
        self.group = OffsetAndMetadata(offset, metadata, -1)
        self.group_reads_from = offset
        # From where polls go on all is to come again; a seek there and back leaves it as it was.
        self.group_knows = {r for r in self.processed if r[0] < self.fetch_from or r in self.known}
        everything = limit == 4_096 and metadata and not self.completion.partition(P).is_sought
        # Only what was handed out to this owner, or spared it: others may have died untold.
        known = {(o, e) for o, e in self.handed_out.items() if o < self.fetch_from} | (
            self.spared if self.completion.partition(P).inherited_at(self.fetch_from) else set()
        )
        in_processing = self.in_processing()
        in_processing.add(offset)
        self.told = {r for r in known & self.processed if r[0] not in in_processing}
        if not everything:
            self.told = set()

    def in_processing(self) -> set[int]:
        found = self.completion.remaining(P, 0)[0]
        return {o for o in range(END) if o in found}

    @rule(offset=st.integers(0, END), count=st.integers(1, 10))
    def seek(self, offset: int, count: int) -> None:
        self.poll(1)  # a truncation is noticed first: a seek to where it was would hide it
        self.completion.partition(P).seek()
        self.fetch_from = offset
        self.spared, self.known = set(), set()
        self.poll(count)

    @rule(count=st.integers(1, 10))
    def crash(self, count: int) -> None:
        self.take_over()
        self.poll(count)

    @rule(offset=st.integers(1, END))
    def unclean_election(self, offset: int) -> None:
        """The log is truncated, and other records are written at once; readers notice (KIP-320)."""
        self.epoch += 1
        self.log |= {o: self.epoch for o in LOG if o >= offset}
        self.fetch_from = min(self.fetch_from, offset)
        self.group_reads_from = min(self.group_reads_from, offset)


TestOwners = Owners.TestCase


def owners_after(*seeks: tuple[int, int]) -> Owners:
    """The first has handed out a poll's records; then seeks, each with so many records after it."""
    owners = Owners()
    owners.begin()
    for offset, count in seeks:
        owners.seek(offset, count)
    return owners


def finish(owners: Owners, *offsets: int) -> None:
    owners.completion.complete(P, offsets)
    owners.processed |= {(offset, owners.handed_out[offset]) for offset in offsets}


def test_a_heir_knows_the_epoch_of_what_was_read_again_around_a_compacted_record() -> None:
    owners = owners_after()
    finish(owners, 0, 1, 2, 3, 5)
    owners.commit(4_096)
    owners.crash(1)
    owners.seek(2, 3)
    finish(owners, 3)
    owners.commit(4_096)
    owners.unclean_election(2)
    owners.take_over()
    owners.poll(2)
    assert owners.handed_out == {2: 1, 3: 1}


def test_what_seeks_left_out_twice_is_not_taken_for_the_last_processed_record() -> None:
    owners = owners_after((14, 1), (0, 1), (16, 1))
    finish(owners, 1)
    owners.commit(4_096)
    owners.unclean_election(1)
    owners.take_over()
    owners.poll(2)
    assert owners.handed_out == {0: 0, 1: 1}


def test_records_in_the_place_of_those_handed_out_before_a_seek_back_are_other_ones() -> None:
    """Polls stand below where the log was truncated: no position goes back."""
    owners = owners_after((0, 1))
    owners.unclean_election(2)
    owners.seek(4, 1)
    with pytest.raises(PartitionsLostError):
        owners.completion.complete(P, [3])
    finish(owners, 1)
    owners.commit(4_096)
    owners.take_over()
    owners.poll(4)
    assert owners.handed_out == {0: 0, 2: 1, 3: 1}


def test_arrow_batches_are_left_their_rows() -> None:
    inherited = Inherited(5, Remaining(20, (Gap(5, 6), Gap(9, 10))))
    batches = [pa.record_batch({"offset": span}) for span in ([4, 5, 6], [7, 8], [9, 19], [20, 21])]
    left = [batch["offset"].to_pylist() for batch in inherited.still_owed(batches)]
    assert left == [[4, 5], [9], [20, 21]]


def test_metadata_that_tell_nothing_are_named_if_they_are_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert inherit(P, OffsetAndMetadata(5, "mine", -1), "t") is None
    assert not caplog.records
    assert inherit(P, OffsetAndMetadata(5, "unprocessed/2:AAAA", -1), "t") is None
    assert "a newer version of this package" in caplog.text
    assert inherit(P, OffsetAndMetadata(5, "unprocessed/1:AAAA", -1), "t") is None
    assert "another commit" in caplog.text
