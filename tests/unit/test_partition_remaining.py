"""What a partition still owes while it is owned, against the model of ``test_remaining.py``.

One partition, from owner to owner. Each takes over what the one before has committed: its metadata
are all that it knows.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kafka.structs import OffsetAndMetadata, TopicPartition
from model_partition import PartitionModel, unprocessed

from pyspark_kafka_rebalance.consumer.offsets.commit_metadata import Remaining, Told
from pyspark_kafka_rebalance.consumer.progress.partition import PartitionCompletion, inherit

P = TopicPartition("orders", 0)
#: Offsets of the model; what is at the horizon and beyond is never handed out.
HORIZON = 60
counts = st.integers(1, 6)


class Owners(RuleBasedStateMachine):
    """Every operation goes to the code and to a set of integers."""

    @initialize(log=st.sets(st.integers(0, HORIZON - 2), min_size=20), start=st.integers(0, 20))
    def assigned(self, log: set[int], start: int) -> None:
        #: The offsets that exist.
        self.log = log
        self.model = PartitionModel(start, HORIZON)
        self.partition = PartitionCompletion()
        #: Where the live reader and the gaps' reader go on.
        self.fetch_from = start
        self.unread: set[int] = set()
        #: In processing, and how far polls ever were.
        self.pending: set[int] = set()
        self.passed = start

    # -- readers ----------------------------------------------------------------------------------

    def poll(self, count: int) -> None:
        found = sorted(o for o in self.log if o >= self.fetch_from)[:count]
        if not found:
            return
        after = found[-1] + 1
        wanted = [o for o in found if o in self.model.owed]
        inherits = self.partition.inherited is not None
        assert inherits or wanted == found
        self.partition.hand_out(wanted)
        if wanted != found:
            self.partition.go_on(after)
        self.model.hand_out(self.fetch_from, after, wanted)
        self.pending |= set(wanted)
        self.fetch_from = after
        self.passed = max(self.passed, after)

    @rule(count=counts)
    def poll_on(self, count: int) -> None:
        self.poll(count)

    @rule(count=counts, beyond=st.integers(0, 3))
    def read_gaps(self, count: int, beyond: int) -> None:
        """Lowest first; the reader may be beyond the last record that it found, in no other."""
        if not self.unread:
            return
        there = sorted(self.log & self.unread)
        found, later = there[:count], there[count:]
        end = min([found[-1] + 1 + beyond, *later]) if found else max(self.unread) + 1
        self.partition.catch_up(found, end)
        self.model.owed -= {o for o in self.unread if o < end} - set(found)
        self.unread -= set(range(end))
        self.pending |= set(found)

    # -- workers ----------------------------------------------------------------------------------

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def workers_finish(self, data: st.DataObject) -> None:
        for offset in data.draw(st.sets(st.sampled_from(sorted(self.pending)), min_size=1)):
            self.partition.complete(offset)
            self.processed(offset)

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def commit_processed(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.pending))) + 1
        self.partition.complete_below(offset)
        for below in [o for o in self.pending if o < offset]:
            self.processed(below)

    def processed(self, offset: int) -> None:
        self.pending.remove(offset)
        if offset < self.fetch_from:  # else polls hand it out again, after a seek back
            self.model.process(offset, offset + 1)

    # -- seeks and truncations --------------------------------------------------------------------

    def back_to(self, offset: int) -> None:
        self.model.start_over(offset)
        self.unread -= set(range(offset, HORIZON))
        self.fetch_from = offset

    @precondition(lambda self: self.log and self.partition.continues_at is not None)
    @rule(data=st.data(), count=counts)
    def seek_back(self, data: st.DataObject, count: int) -> None:
        offset = data.draw(st.sampled_from(sorted(self.log)))
        if offset < self.fetch_from:
            self.partition.disinherit()
            self.partition.seek(offset)
            self.back_to(offset)
            self.poll(count)

    @precondition(lambda self: self.log and self.partition.continues_at is not None)
    @rule(data=st.data(), count=counts)
    def seek_forward(self, data: st.DataObject, count: int) -> None:
        """Beyond all that polls have passed; this owner does not wait for what lies between."""
        offset = data.draw(st.sampled_from(sorted(self.log)))
        if self.passed == self.fetch_from < offset:
            self.partition.disinherit()
            self.partition.seek(offset)
            self.leave_out(offset)
            self.poll(count)

    @precondition(lambda self: self.partition.continues_at is not None)
    @rule(further=st.integers(1, 3))
    def skip_what_cannot_be_read(self, further: int) -> None:
        if self.passed == self.fetch_from < HORIZON - 3 and self.partition.inherited is None:
            self.partition.skip(self.fetch_from + further)
            self.leave_out(self.fetch_from + further)

    def leave_out(self, end: int) -> None:
        self.model.start_over(self.fetch_from)  # an heir's knowledge of it is gone, too
        self.model.hand_out(self.fetch_from, end)
        self.fetch_from = self.passed = end

    @precondition(lambda self: self.unread)
    @rule(data=st.data(), count=counts)
    def give_up_what_of_a_gap_cannot_be_read(self, data: st.DataObject, count: int) -> None:
        start = data.draw(st.sampled_from(sorted(self.unread)))
        self.partition.leave_out(start, start + count)
        self.unread -= set(range(start, start + count))

    @precondition(lambda self: self.partition.continues_at is not None)
    @rule(offset=st.integers(0, HORIZON), records=st.sets(st.integers(0, HORIZON - 2)))
    def truncate(self, offset: int, records: set[int]) -> None:
        """Others are written there."""
        if offset <= self.fetch_from:
            self.partition.truncate(offset)
            self.back_to(offset)
            self.pending -= set(range(offset, HORIZON))
            self.passed = min(self.passed, offset)
            self.log = {o for o in self.log if o < offset} | {o for o in records if o >= offset}

    # -- owners -----------------------------------------------------------------------------------

    @rule(beside_live=st.booleans())
    def take_over(self, beside_live: bool) -> None:
        """After a loss: gaps are read beside the live records (KIP-333), or polls begin there."""
        position = self.partition.position
        if position is None:
            return
        remaining, epoch = self.partition.remaining(position)
        committed = OffsetAndMetadata(
            position, remaining.encode(bound_to="t", leader_epoch=epoch), -1
        )
        left, told, _ = Remaining.decode(committed.offset, committed.metadata, "t")
        assert told is (Told.GAPS if committed.metadata else Told.NOTHING)
        self.assigned(self.log, position)
        self.model.owed = unprocessed(left, HORIZON)
        if beside_live:
            self.partition.set_aside(left, in_order=False)
            self.unread = {o for gap in left.gaps for o in range(*gap)}
            self.fetch_from = self.model.live = self.passed = left.live
        else:
            self.partition.inherited = inherit(P, committed, "t")

    # -- what always holds ------------------------------------------------------------------------

    @invariant()
    def what_would_be_committed_is_the_model(self) -> None:
        position = self.partition.position
        if position is None:
            return
        owed = self.model.owed
        waits_for = {o for o in owed if o >= self.fetch_from} | self.pending | self.unread
        assert position == min(waits_for, default=HORIZON)
        assert {o for gap in self.partition.pending for o in range(*gap)} == self.pending
        remaining, _ = self.partition.remaining(position)
        told = unprocessed(remaining, HORIZON)
        expected = {o for o in owed if o >= position}
        assert told >= expected, "lost"
        assert remaining.committed() == position
        partition = self.partition
        if partition.singly or partition.inherited is not None or partition.catches_up:
            # Offsets without a record may stay in what a seek left out; that repeats nothing.
            assert told & self.log == expected & self.log, "repeated"

    @invariant()
    def a_record_is_complete_if_it_is_not_owed(self) -> None:
        position = self.partition.position
        if position is not None:
            complete = {o for o in range(position, HORIZON) if self.partition.is_complete(o)}
            assert not complete & self.model.owed


Owners.TestCase.settings = settings(deadline=None, max_examples=60, stateful_step_count=20)
TestOwners = Owners.TestCase
