"""What is complete of what was handed out; against a model in test_out_of_order_commits.py."""

from __future__ import annotations

import pytest
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance import PartitionsLostError
from pyspark_kafka_rebalance.consumer.offsets.commit_metadata import Remaining
from pyspark_kafka_rebalance.consumer.offsets.offset_set import Gap
from pyspark_kafka_rebalance.consumer.progress.completion import Completion
from pyspark_kafka_rebalance.consumer.progress.partition import Inherited, PartitionCompletion

P = TopicPartition("orders", 0)


def handed(*offsets: int) -> PartitionCompletion:
    completion = PartitionCompletion()
    completion.hand_out(offsets)
    return completion


def test_the_position_stops_at_the_first_record_that_is_not_complete() -> None:
    completion = handed(5, 6, 7)
    assert completion.position == 5
    completion.complete(6)
    completion.complete(7)
    assert completion.position == 5
    completion.complete(5)
    assert completion.position == 8
    assert not completion.pending


def test_a_gap_in_the_log_holds_nothing_up() -> None:
    completion = handed(5, 9)  # compaction took 6 to 8
    completion.complete(5)
    assert completion.position == 9
    completion.complete(9)
    assert completion.position == 10


def test_records_handed_out_again_after_a_seek_back_are_pending_again() -> None:
    completion = handed(5, 6, 7)
    for offset in (5, 6, 7):
        completion.complete(offset)
    completion.hand_out([6])
    completion.complete(6)
    assert completion.position == 7
    completion.hand_out([7])
    completion.hand_out([6, 7])
    assert completion.position == 6
    completion.complete(7)
    completion.complete(6)
    assert completion.position == 8


def test_a_seek_back_before_the_first_is_handed_out_too() -> None:
    completion = Completion()
    completion.partition(P).hand_out([5, 6, 7])
    assert completion.complete(P, [5, 6, 7]) == 8
    completion.partition(P).hand_out([3, 4])
    assert completion.pending() == {P}
    assert completion.complete(P, [3, 4]) == 5, "5 to 7 are handed out again"
    assert completion.complete_below({P: 5}) == {P: 5}
    completion.partition(P).hand_out([5, 6, 7])
    assert completion.complete(P, [5, 6, 7]) == 8


def test_a_forward_seek_leaves_nothing_that_waits() -> None:
    completion = Completion()
    completion.partition(P).hand_out(range(5, 8))
    completion.partition(P).hand_out(range(100, 103))
    assert completion.complete(P, [5, 6, 7]) == 100
    assert completion.complete(P, [102, 101, 100]) == 103


@pytest.mark.parametrize("offset", [4, 8, 100])
def test_a_record_that_nobody_handed_out_cannot_be_complete(offset: int) -> None:
    completion = Completion()
    with pytest.raises(ValueError, match=f"orders-0: offset {offset} was not handed out"):
        completion.complete(P, [offset])
    completion.partition(P).hand_out([5, 6, 7])
    with pytest.raises(ValueError, match=f"orders-0: offset {offset} was not handed out"):
        completion.complete(P, [5, offset])
    assert completion.complete(P, [6, 7]) is None, "a refused call counted"
    assert completion.complete(P, [5]) == 8


def test_a_late_worker_of_the_assignment_before_is_told_that_it_is_over() -> None:
    completion = Completion()
    completion.partition(P).hand_out([5, 6, 7])
    completion.forget([P])
    with pytest.raises(PartitionsLostError, match="orders-0 was lost or revoked after offset 7"):
        completion.complete(P, [7])
    completion.partition(P).hand_out([6])
    with pytest.raises(PartitionsLostError):
        completion.complete(P, [7])
    with pytest.raises(ValueError, match="was not handed out"):
        completion.complete(P, [8])
    assert completion.complete(P, [6]) == 7


def test_what_workers_completed_beyond_a_lower_commit_is_committed_with_it() -> None:
    completion = Completion()
    completion.partition(P).hand_out(range(10))
    assert completion.complete(P, range(1, 10)) is None
    assert completion.complete_below({P: 1}) == {P: 10}


def test_without_workers_exactly_what_was_asked_for_is_committed() -> None:
    completion = Completion()
    completion.partition(P).hand_out([3, 7])
    assert completion.complete_below({P: 4}) == {P: 4}


def test_memory_grows_with_the_gaps_not_with_the_records() -> None:
    completion = PartitionCompletion()
    for start in range(0, 1_000_000, 500):
        completion.hand_out(range(start, start + 500))
    completion.complete(400_000)
    assert len(completion.pending) == 2
    completion.complete_below(999_000)
    assert completion.position == 999_000


def test_assigned_again_a_partition_begins_anew() -> None:
    completion = Completion()
    completion.partition(P).hand_out([5, 6])
    completion.forget([P])
    assert completion.pending() == frozenset()
    completion.partition(P).hand_out([6])
    assert completion.complete(P, [6]) == 7


def test_records_from_where_a_log_was_truncated_are_forgotten() -> None:
    completion = Completion()
    completion.partition(P).hand_out(range(0, 100))
    completion.complete(P, [*range(10), 50, 60])
    assert completion.partition(P).truncated_at(40)
    completion.partition(P).truncate(40)
    assert completion.complete(P, range(10, 39)) == 39
    with pytest.raises(PartitionsLostError, match="truncated"):
        completion.complete(P, [70])
    completion.partition(P).hand_out(range(40, 50))
    assert completion.complete(P, [39]) == 40
    assert completion.complete(P, range(40, 50)) == 50
    assert completion.pending() == frozenset()


def test_a_commit_of_records_that_a_truncation_took_does_not_hide_those_written_since() -> None:
    completion = Completion()
    completion.partition(P).hand_out(range(0, 17))
    completion.partition(P).truncate(0)
    with pytest.raises(PartitionsLostError, match="at 17 is past 0"):
        completion.refuse_truncated({P: 17})
    completion.partition(P).hand_out(range(0, 5))
    completion.refuse_truncated({P: 5})
    with pytest.raises(PartitionsLostError, match="at 17 is past 5"):
        completion.refuse_truncated({P: 17})
    completion.refuse_truncated({P: 18})  # nobody got so far before: the application's own choice
    completion.partition(P).hand_out(range(5, 17))
    completion.refuse_truncated({P: 17})
    completion.partition(P).truncate(0)
    completion.partition(P).seek()
    with pytest.raises(PartitionsLostError, match="at 17 is past 0"):
        completion.refuse_truncated({P: 17})
    completion.partition(P).seek(17)  # the application's own word
    completion.refuse_truncated({P: 17})


def test_what_is_handed_out_again_after_a_seek_is_no_truncation() -> None:
    completion = Completion()
    completion.partition(P).hand_out(range(0, 100))
    completion.partition(P).seek()
    assert completion.partition(P).is_sought
    assert not completion.partition(P).truncated_at(40)
    completion.partition(P).hand_out(range(40, 45))
    assert not completion.partition(P).is_sought
    assert not completion.partition(P).truncated_at(45), "it goes on where the last hand-out ended"
    assert completion.partition(P).truncated_at(44)


def test_the_leader_epoch_is_that_of_the_last_record_before_an_offset() -> None:
    completion = Completion()
    assert completion.epoch_before(P, 0) == -1
    completion.partition(P).hand_out(range(0, 10), 3)
    completion.partition(P).hand_out(range(10, 20), 3)
    completion.partition(P).hand_out(range(25, 30), 5)
    epochs = {offset: completion.epoch_before(P, offset) for offset in (0, 1, 20, 25, 26, 99)}
    assert epochs == {0: -1, 1: 3, 20: 3, 25: 3, 26: 5, 99: -1}
    completion.partition(P).truncate(26)
    completion.partition(P).hand_out(range(26, 30), 6)
    assert [completion.epoch_before(P, offset) for offset in (26, 27)] == [5, 6]


def test_a_late_commit_of_the_assignment_before_does_not_pass_what_is_handed_out_since() -> None:
    completion = Completion()
    completion.partition(P).hand_out(range(0, 10))
    completion.forget([P])
    with pytest.raises(PartitionsLostError, match="at 8 is past 0"):
        completion.refuse_truncated({P: 8})
    completion.partition(P).hand_out(range(0, 3))
    completion.refuse_truncated({P: 3})
    with pytest.raises(PartitionsLostError, match="at 8 is past 3"):
        completion.refuse_truncated({P: 8})
    completion.partition(P).seek(1)
    with pytest.raises(PartitionsLostError, match="at 8 is past 3"):
        completion.refuse_truncated({P: 8})
    completion.partition(P).seek(8)
    completion.refuse_truncated({P: 8})


@pytest.mark.parametrize("sought", [2**63 - 1, 5_000, None])
def test_where_the_application_seeks_says_nothing_of_what_is_below(sought: int | None) -> None:
    """A late worker of the log before would hide what is written where it ended."""
    completion = Completion()
    completion.partition(P).hand_out(range(0, 100))
    completion.forget([P])
    completion.partition(P).seek(sought)
    for position in (None, 10, 5_000):
        with pytest.raises(PartitionsLostError, match="at 100 is past 0"):
            completion.refuse_truncated({P: 100}, {P: position})
    completion.refuse_truncated({P: 10}, {P: 10})
    completion.partition(P).hand_out(range(10, 12))
    with pytest.raises(PartitionsLostError, match="at 100 is past 12"):
        completion.refuse_truncated({P: 100}, {P: 12})


def test_behind_the_last_record_what_polls_passed_may_be_committed() -> None:
    """The marks of a transaction, where the log before had records."""
    completion = Completion()
    completion.partition(P).hand_out(range(0, 100))
    completion.forget([P])
    completion.partition(P).hand_out(range(0, 9))
    for offset in (9, 10, 12):
        completion.refuse_truncated({P: offset}, {P: 12})
    with pytest.raises(PartitionsLostError):
        completion.refuse_truncated({P: 13}, {P: 12})


@pytest.mark.parametrize(("sought", "left"), [(10, 40), (80, 72)], ids=["back", "forward"])
def test_what_a_seek_left_between_is_not_handed_out(sought: int, left: int) -> None:
    completion = Completion()
    completion.partition(P).hand_out(range(0, 100))
    completion.forget([P])
    completion.partition(P).hand_out(range(60, 65))
    completion.partition(P).seek(sought)
    completion.partition(P).hand_out(range(sought, sought + 3))
    with pytest.raises(PartitionsLostError):
        completion.complete(P, [left])
    with pytest.raises(PartitionsLostError):
        completion.refuse_truncated({P: left})
    completion.complete(P, [60, sought])
    completion.partition(P).hand_out(range(sought + 3, 100))
    if sought < left:
        completion.complete(P, [left])


def test_what_the_owner_before_had_finished_is_not_handed_out() -> None:
    completion = Completion()
    completion.partition(P).hand_out(range(0, 10))
    completion.forget([P])
    completion.partition(P).completion.inherited = Inherited(
        3, Remaining(10, (Gap(3, 4), Gap(6, 7)))
    )
    completion.partition(P).hand_out([3, 6])
    completion.partition(P).completion.go_on(10)
    completion.refuse_truncated({P: 10})
    for offset in (4, 5, 9):
        with pytest.raises(PartitionsLostError):
            completion.complete(P, [offset])
    completion.complete(P, [3, 6])
    completion.partition(P).seek(3)
    with pytest.raises(PartitionsLostError):
        completion.complete(P, [5])
    completion.partition(P).hand_out([3])
    completion.complete(P, [3])
    completion.partition(P).seek(10)
    assert completion.position(P) == 4, "a seek back gives it up"


def test_what_was_skipped_is_not_handed_out() -> None:
    completion = Completion()
    completion.partition(P).hand_out(range(5))
    completion.partition(P).skip(5, 6)
    completion.partition(P).hand_out(range(8, 10))
    with pytest.raises(ValueError, match="offset 5 was not handed out"):
        completion.complete(P, [5])
    completion.complete(P, [*range(5), 8, 9])


def test_seeks_without_end_do_not_take_memory_without_end() -> None:
    completion = Completion()
    for offset in range(0, 100_000, 10):
        completion.partition(P).seek(offset)
        completion.partition(P).hand_out([offset])
        completion.complete(P, [offset])
    with pytest.raises(ValueError, match="was not handed out"):
        completion.complete(P, [99_985])
    assert len(completion._partitions[P].completion._stretches) == 1_000


def test_between_a_seek_back_and_the_next_record_no_position_is_beyond_the_seek() -> None:
    """A worker that ends then may be one of a log that is no more."""
    completion = Completion()
    completion.partition(P).hand_out(range(0, 10))
    completion.complete(P, range(0, 9))
    completion.partition(P).seek()
    assert completion.complete(P, [9]) is None, "where the log begins is to be found out"
    completion.partition(P).seek(4)
    assert completion.position(P) == 4
    assert completion.complete(P, [9]) is None, "nothing of what comes again is processed"
    completion.partition(P).seek(40)
    assert completion.complete(P, [9]) == 10
    completion.partition(P).seek()
    completion.partition(P).hand_out(range(2, 5))
    assert completion.complete(P, [2]) == 3


def test_what_is_finished_behind_a_slow_record_is_told_after_a_seek_too() -> None:
    completion = Completion()
    completion.partition(P).hand_out(range(0, 10))
    completion.complete(P, range(1, 8))
    completion.partition(P).seek(2**63 - 1)
    told, _ = completion.remaining(P, 0)
    assert [offset for offset in range(12) if offset in told] == [0, 8, 9, 10, 11]
    completion.partition(P).seek(5)
    told, _ = completion.remaining(P, 0)
    assert [offset for offset in range(8) if offset in told] == [0, 5, 6, 7]
    completion.partition(P).seek()
    assert completion.remaining(P, 0) == (Remaining(0), -1)


def test_where_polls_left_records_out_may_be_committed() -> None:
    """By the same member too, which gets back what it had finished behind a slow record."""
    completion = Completion()
    completion.partition(P).hand_out(range(0, 10))
    completion.forget([P])
    completion.partition(P).hand_out([5])
    completion.partition(P).completion.go_on(10)
    completion.refuse_truncated({P: 10})


def test_the_epoch_of_what_was_skipped_does_not_hide_that_of_what_is_finished() -> None:
    completion = Completion()
    completion.partition(P).hand_out(range(0, 99), leader_epoch=3)
    completion.complete(P, range(1, 99))
    completion.partition(P).skip(99, 100)
    assert completion.remaining(P, 0)[1] == 3
    assert completion.epoch_before(P, 100) == -1


def test_the_epoch_of_what_was_skipped_first_is_not_known() -> None:
    completion = Completion()
    completion.partition(P).skip(10, 11)
    completion.partition(P).epochs.learn(
        9, 10, 0
    )  # that of the commit at which the partition starts
    completion.partition(P).hand_out(range(11, 20), leader_epoch=2)
    assert [completion.epoch_before(P, at) for at in (10, 11, 12)] == [0, -1, 2]


def test_the_epoch_of_what_a_forward_seek_left_out_is_not_known() -> None:
    """An heir that is told a lower one goes back, to where that epoch ended."""
    completion = Completion()
    completion.partition(P).hand_out(range(10), leader_epoch=0)
    completion.partition(P).seek()
    completion.partition(P).hand_out(range(20, 30), leader_epoch=4)
    assert [completion.epoch_before(P, at) for at in (10, 15, 20, 21, 30)] == [0, -1, -1, 4, 4]


def test_what_is_complete_is_told_until_the_last_commit_is_answered() -> None:
    completion = Completion()
    completion.partition(P).hand_out(range(10))
    completion.complete(P, range(5, 10))
    remaining, _ = completion.remaining(P, 0)
    assert remaining.count(10) == 5
    completion.leave([P])
    assert completion.remaining(P, 0)[0] == remaining
    assert completion.pending() == frozenset()
    completion.partition(P).hand_out([3])
    assert completion.position(P) == 3, "assigned anew, it begins anew"
    completion.forget([P])
    assert completion.remaining(P, 0)[0].count(10) == 10


@pytest.mark.parametrize("processed", [5, 9, 10])
def test_a_commit_that_workers_overtake_in_order_tells_nothing(processed: int) -> None:
    completion = handed(*range(10))
    for offset in range(processed):
        completion.complete(offset)
    assert completion.remaining(3) == (Remaining(3), -1), "the next commit is on its way"


def test_a_commit_that_workers_overtake_out_of_order_tells_of_it() -> None:
    completion = handed(*range(10))
    for offset in (0, 1, 2, 3, 4, 7):
        completion.complete(offset)
    remaining, _ = completion.remaining(3)
    assert [offset for offset in range(10) if offset in remaining] == [3, 5, 6, 8, 9]


@pytest.mark.parametrize(
    ("offset", "complete"), [(0, False), (4, False), (5, True), (9, True), (10, False), (25, False)]
)
def test_what_is_complete_is_what_would_not_come_again(offset: int, complete: bool) -> None:
    completion = PartitionCompletion()
    completion.hand_out(range(10))
    for done in range(5, 10):
        completion.complete(done)
    assert completion.is_complete(offset) == complete
    completion.seek(30)
    completion.hand_out([30])
    assert not completion.is_complete(25), "left out by a seek"
