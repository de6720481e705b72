"""LeaderEpochs, against a model that remembers every offset."""

from __future__ import annotations

from copy import deepcopy

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pyspark_kafka_rebalance.consumer.offsets.leader_epochs import LeaderEpochs

END = 30


class Log(RuleBasedStateMachine):
    """What was seen, offset by offset."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs = LeaderEpochs()
        self.seen: dict[int, int] = {}

    @rule(start=st.integers(0, END - 1), length=st.integers(1, 8), epoch=st.integers(-1, 4))
    def learn(self, start: int, length: int, epoch: int) -> None:
        end = min(start + length, END)
        self.epochs.learn(start, end, epoch)
        beyond = {at: known for at, known in self.seen.items() if at >= end}
        if any(0 <= known < epoch for known in {**beyond, end: self.expected(end + 1)}.values()):
            beyond = {}
        elif beyond:
            beyond[end] = self.expected(end + 1)  # what the lower record's epoch said of it
        below = {
            at: -1 if 0 <= epoch < known else known for at, known in self.seen.items() if at < start
        }
        self.seen = {**below, **dict.fromkeys(range(start, end), epoch), **beyond}

    @rule(offset=st.integers(0, END))
    def truncate(self, offset: int) -> None:
        self.epochs.truncate(offset)
        below = {at: known for at, known in self.seen.items() if at < offset}
        if self.seen and max(self.seen) >= offset > 0 and below:
            below[offset - 1] = self.expected(offset)
        self.seen = below

    @rule(offset=st.integers(0, END))
    def forget_below(self, offset: int) -> None:
        forgetful = deepcopy(self.epochs)
        forgetful.forget_below(offset)
        for at in range(offset, END + 2):
            assert forgetful.of(at) == self.expected(at)

    def expected(self, next_offset: int) -> int:
        if not self.seen or next_offset - 1 > max(self.seen):
            return -1
        return next((self.seen[at] for at in range(next_offset - 1, -1, -1) if at in self.seen), -1)

    @invariant()
    def the_last_record_before_tells(self) -> None:
        found = [self.epochs.of(at) for at in range(END + 2)]
        assert found == [self.expected(at) for at in range(END + 2)]


TestLog = Log.TestCase


def test_what_a_former_owner_processed_is_of_its_own_epoch() -> None:
    epochs = LeaderEpochs()
    epochs.learn(0, 50, 0)
    epochs.learn(50, 100, 1)
    epochs.learn(5, 6, 0)  # handed out; the others were left out
    assert [epochs.of(at) for at in (6, 50, 51, 100)] == [0, 0, 1, 1]
    assert epochs.of(101) == -1, "nobody has seen that one"


def test_records_of_a_later_epoch_are_others_than_those_that_were_there() -> None:
    epochs = LeaderEpochs()
    epochs.learn(0, 100, 3)
    epochs.learn(40, 50, 5)
    assert [epochs.of(at) for at in (40, 41, 50, 51, 100)] == [3, 5, 5, -1, -1]
