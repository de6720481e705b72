"""The judge of histories: what each verdict takes, and what the docs let pass."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chaos.events import (
    Away,
    Began,
    Break,
    Deleted,
    Delivered,
    End,
    Life,
    Log,
    Moved,
    Produced,
    Refused,
    Renewed,
    RestartPoint,
    Seen,
    Started,
)
from tests.chaos.oracle import Rules, judge, summary

LOG = Log("orders", "", 0)

#: Lengths of consecutive batches; one of more than two is there to be interrupted.
BATCHES = st.lists(st.integers(1, 4), min_size=3, max_size=6)


#: Of the few lengths that there are.
few = settings(max_examples=25)


def batch(first, count, number, reader="a", run=0, at=None, **flags):
    """Its sink got it at ``at``, by default at the time of its number, and took half a second."""
    at = float(number) if at is None else at
    return [
        Delivered(
            LOG, offset, f"v{offset}", reader, run, number, at, at + 0.5, place=place, **flags
        )
        for place, offset in enumerate(range(first, first + count))
    ]


def log_of(count):
    return [Produced(LOG, offset, f"v{offset}") for offset in range(count)]


def faultless(lengths):
    """Reader ``a`` delivers batch after batch, and the group has each soon after."""
    history, first = log_of(sum(lengths)), 0
    for number, count in enumerate(lengths):
        history += batch(first, count, number)
        first += count
        history.append(Seen(number + 0.8, LOG, first))
    return history


def names(history, **rules):
    return {verdict.name for verdict in judge(history, Rules(**rules))}


@few
@given(BATCHES)
def test_once_each_and_in_order(lengths):
    assert names(faultless(lengths)) == set()


@few
@given(BATCHES, st.data())
def test_a_batch_that_nobody_delivers_is_lost_below_the_commit_and_unseen_above(lengths, data):
    gone = data.draw(st.integers(0, len(lengths) - 1))
    history = [e for e in faultless(lengths) if not (isinstance(e, Delivered) and e.batch == gone)]
    found = judge(history, Rules())
    first = sum(lengths[:gone])
    assert {v.offset for v in found} == set(range(first, first + lengths[gone]))
    assert "lost write" in {v.name for v in found}
    assert ("poll skip" in {v.name for v in found}) == (0 < gone < len(lengths) - 1)

    last = len(lengths) - 1
    history = [e for e in faultless(lengths) if not (isinstance(e, Seen) and e.at > last)]
    history = [e for e in history if not (isinstance(e, Delivered) and e.batch == last)]
    assert names(history) == {"unseen"}
    assert names(history, complete=False) == set()


@few
@given(BATCHES, st.data())
def test_only_the_batch_in_flight_at_a_death_may_come_again(lengths, data):
    """``a`` dies with the last batch delivered and not committed; ``b`` delivers it and others."""
    last = len(lengths) - 1
    history = faultless(lengths)[:-1]
    history.append(Break(last + 0.6, last + 0.6, "a", 0))
    again = data.draw(st.integers(0, last))
    first = sum(lengths[:again])
    end = sum(lengths)
    assert names([*history, *batch(first, end - first, 0, "b", at=20.0)]) == (
        set() if again == last else {"duplicate"}
    )


@few
@given(BATCHES, st.data())
def test_what_came_since_a_broker_went_may_come_again_too(lengths, data):
    """Which begins with the batch in flight at that moment; its commit has no answer either."""
    last = len(lengths) - 1
    went = data.draw(st.integers(0, last))
    history = [e for e in faultless(lengths) if not (isinstance(e, Seen) and e.at > went)]
    again = data.draw(st.integers(0, last))
    first, end = sum(lengths[:again]), sum(lengths)
    history += batch(first, end - first, 0, "b", at=20.0)
    at = last + 0.6
    dies = Break(at, at, "a", 0)
    loses = replace(dies, ends_the_run=False)
    for until in (at + 1.0, max(went + 0.2, at - 5.0)):  # away, or hardly found again
        for broken in (dies, loses):
            expected = set() if again >= went else {"duplicate"}
            assert names([*history, broken, Away(went + 0.2, until)]) == expected
    for away in (Away(-9.0, at - 5.1), Away(at + 0.1, at + 1.0)):  # long back, or still there
        assert names([*history, dies, away]) == (set() if again == last else {"duplicate"})


@few
@given(BATCHES)
def test_without_a_break_nothing_comes_again(lengths):
    history = faultless(lengths)
    history += batch(sum(lengths[:-1]), lengths[-1], 0, "b", at=20.0)
    assert names(history) == {"duplicate"}
    assert names(history, members=frozenset("ab")) == {"duplicate"}


@few
@given(BATCHES)
def test_a_batch_that_was_only_begun_is_the_one_in_flight(lengths):
    """So that the one before, which is complete, may not come again: one batch is."""
    last = len(lengths) - 1
    history = faultless(lengths)[:-1]
    begun = Began(last + 0.7, "a", 0, last + 1, frozenset({LOG}))
    history += [begun, Break(last + 0.9, last + 0.9, "a", 0)]
    history += batch(sum(lengths[:-1]), lengths[-1], 0, "b", at=20.0)
    assert names(history) == {"duplicate"}


@few
@given(BATCHES)
def test_what_the_group_has_never_comes_again_even_after_a_death(lengths):
    last = len(lengths) - 1
    history = [*faultless(lengths), Break(last + 0.9, last + 0.9, "a", 0)]
    history += batch(sum(lengths[:-1]), lengths[-1], 0, "b", at=20.0)
    (verdict, *_) = judge(history, Rules())
    assert verdict.name == "duplicate"
    assert "the group had" in verdict.detail
    moved = Moved(10.0)
    assert names([*history, moved]) == set()


@few
@given(BATCHES)
def test_a_replay_is_the_same_batch_in_another_run(lengths):
    last = len(lengths) - 1
    history = faultless(lengths)[:-1]
    history += batch(sum(lengths[:-1]), lengths[-1], last, run=1, at=20.0)
    history.append(Seen(21.0, LOG, sum(lengths)))
    assert names([*history, Started("a", 1, last)]) == {"duplicate"}, "nothing had interrupted it"
    history.append(Break(last + 0.6, last + 0.6, "a", 0))
    assert names([*history, Started("a", 1, last)]) == set()


@pytest.mark.parametrize("marked", [True, False])
@few
@given(BATCHES)
def test_a_replay_of_what_another_has_committed_is_marked(marked, lengths):
    last, first = len(lengths) - 1, sum(lengths[:-1])
    history = faultless(lengths)[:-1]
    history += [Break(last + 0.6, last + 0.6, "a", 0), Started("a", 1, last)]
    history += batch(first, lengths[-1], 0, "b", at=20.0)
    history.append(Seen(21.0, LOG, sum(lengths)))
    history += batch(first, lengths[-1], last, run=1, at=30.0, lost=marked)
    assert names(history) == (set() if marked else {"duplicate"})


@few
@given(BATCHES)
def test_a_mark_says_that_somebody_has_delivered_it(lengths):
    history = faultless(lengths)
    marked = [
        replace(e, lost=True) if isinstance(e, Delivered) and e.batch == 1 else e for e in history
    ]
    assert names(marked) == {"lost write"}


@few
@given(BATCHES)
def test_a_sleeper_completes_what_it_had_in_flight_and_nothing_more(lengths):
    """``a`` stands still in its last batch, whose sink ends after ``b`` has delivered it."""
    last, first, end = len(lengths) - 1, sum(lengths[:-1]), sum(lengths)
    history = [e for e in faultless(lengths) if not (isinstance(e, Seen) and e.at > last)]
    history = [
        replace(e, completed=30.0) if isinstance(e, Delivered) and e.batch == last else e
        for e in history
    ]
    history += batch(first, lengths[-1], 0, "b", at=20.0)
    history.append(Seen(21.0, LOG, end))
    away = Break(last + 0.2, 29.0, "a", 0, ends_the_run=False)
    assert names([*history, away]) == set()
    assert names(history) == {"duplicate"}


@few
@given(BATCHES)
def test_a_member_repeats_what_it_had_not_committed(lengths):
    last = len(lengths) - 1
    history = faultless(lengths)[: -lengths[-1] - lengths[-2] - 2]
    history += batch(sum(lengths[:-2]), lengths[-2], last - 1)
    history += batch(sum(lengths[:-1]), lengths[-1], last)
    history.append(Break(last + 0.6, last + 0.6, "a", 0))
    history += batch(sum(lengths[:-2]), lengths[-2] + lengths[-1], 0, "b", at=20.0)
    history.append(Seen(21.0, LOG, sum(lengths)))
    assert names(history, members=frozenset("ab")) == set()
    assert names(history) == {"duplicate"}, "of a query it is one batch"


def test_what_a_member_had_comes_again_no_earlier_than_it_is_broken():
    history = [*log_of(2), *batch(0, 2, 0), *batch(0, 2, 0, "b", at=20.0), Seen(21.0, LOG, 2)]
    for at in (10.0, 40.0):  # the coordinator may have known it before the member
        assert names([*history, Break(at, at, "a", 0)], members=frozenset("ab")) == set()
    late = Break(3_600.0, 3_600.0, "a", 0)
    assert names([*history, late], members=frozenset("ab")) == {"duplicate"}


def test_order_within_a_run():
    history = [*log_of(4), *batch(0, 1, 0), *batch(2, 2, 1), *batch(1, 1, 2)]
    assert names(history) == {"nonmonotonic poll", "poll skip"}
    gap = [*log_of(4), *batch(0, 1, 0), *batch(2, 2, 1), *batch(1, 1, 2, catch_up=True)]
    assert names(gap, live=frozenset("a")) == set()


def test_rows_of_one_batch_out_of_order():
    swapped = [replace(d, place=3 - d.place) for d in batch(0, 4, 0)]
    assert names([*log_of(4), *swapped]) == {"nonmonotonic poll"}


def test_another_has_read_what_lies_between():
    history = [*log_of(4), *batch(0, 1, 0), *batch(1, 2, 1, "b"), *batch(3, 1, 2)]
    assert names(history) == set()


def test_transactions():
    aborted = Produced(LOG, 0, "v0", "t1", aborted=True)
    committed = Produced(LOG, 1, "v1", "t2")
    assert names([aborted, committed, *batch(1, 1, 0)]) == set()
    assert names([aborted, committed, *batch(0, 2, 0)]) == {"aborted read"}
    assert names([aborted, committed, *batch(0, 2, 0)], read_committed=False) == set()
    assert names([aborted, committed, *batch(1, 1, 0)], read_committed=False) == {"unseen"}
    torn = [aborted, replace(committed, transaction="t1"), *batch(1, 1, 0)]
    assert names(torn) == {"torn transaction"}


@pytest.mark.parametrize(
    ("rows", "wrong"),
    [
        ([0, 1, 2], set()),
        ([0, 2], {"lost write"}),
        ([0, 1, 2, 3], {"torn transaction"}),
        ([0, 2, 1], {"nonmonotonic send"}),
        ([0, 1, 2, 2], {"duplicate"}),
    ],
)
def test_rows_of_a_producer_group_and_its_restart_point(rows, wrong):
    history = [Produced(LOG, offset, f"0:{row}") for offset, row in enumerate(rows)]
    history += [
        Delivered(LOG, offset, f"0:{row}", "a", 0, offset, float(offset), offset + 0.5)
        for offset, row in enumerate(rows)
    ]
    assert names([*history, RestartPoint(LOG, 3)]) == wrong


def test_an_offset_has_one_value_and_a_value_one_offset():
    other = [replace(batch(0, 1, 0)[0], value="another")]
    assert names([*log_of(1), *other]) == {"inconsistent offsets"}
    twice = [*log_of(1), Produced(LOG, 1, "v0"), *batch(0, 1, 0)]
    twice += [replace(batch(1, 1, 1)[0], value="v0")]
    assert names(twice) == {"duplicate"}


def test_what_is_delivered_is_in_the_log_or_was():
    history = [*log_of(2), *batch(0, 2, 0)]
    ghost = replace(batch(77, 1, 1)[0], value="ghost")
    (verdict,) = judge([*history, ghost], Rules())
    assert (verdict.name, verdict.offset) == ("inconsistent offsets", 77)
    assert names([*history, ghost, Deleted(9.0, LOG, 77)]) == set()
    assert names([*history, ghost], forgets=frozenset({"orders"})) == set()
    assert names([*history, ghost], forgets=frozenset({"payments"})) == {"inconsistent offsets"}


def test_a_topic_that_is_created_anew_is_another():
    anew = LOG._replace(topic_id="2")
    history = [*log_of(1), Produced(anew, 0, "w0"), *batch(0, 1, 0)]
    history += [replace(batch(0, 1, 1)[0], log=anew, value="w0")]
    assert names(history) == set()


def test_committed_offsets():
    early = [*log_of(2), *batch(0, 2, 0), Seen(0.2, LOG, 2)]
    assert names(early) == {"commit ahead"}
    back = [*log_of(2), *batch(0, 2, 0), Seen(1.0, LOG, 2), Seen(2.0, LOG, 1)]
    assert names(back) == {"commit back"}
    assert names([*back, Moved(1.5, offset=1)]) == set()


def test_what_was_left_out_by_hand_is_not_lost():
    history = [*log_of(2), *batch(1, 1, 0), Moved(0.0, "orders", 1), Seen(1.0, LOG, 2)]
    assert names(history) == set()
    deleted = [*log_of(2), Moved(0.0, "orders")]
    assert names(deleted) == set()


def test_a_summary_has_a_line_for_neighbours():
    lines = summary(judge([*log_of(5), Seen(1.0, LOG, 3)], Rules()))
    assert [line.split(",")[0] for line in lines] == [
        "lost write: orders-0 at 0..2 (3)",
        "unseen: orders-0 at 3..4 (2)",
    ]


def test_a_mark_before_anybody_has_delivered_it():
    history = [*log_of(1), *batch(0, 1, 0, lost=True), Started("a", 0, 0)]
    assert names([*history, *batch(0, 1, 0, "b", at=20.0)]) == {"lost write"}
    assert names([*history, *batch(0, 1, 0, "b", at=-20.0)]) == set()


def test_a_row_is_marked_only_if_the_group_is_past_it():
    history = [*log_of(2), *batch(0, 2, 0), Break(0.6, 0.6, "a", 0), Started("a", 1, 0)]
    history += [*batch(0, 2, 0, run=1, at=20.0, lost=True), Seen(40.0, LOG, 2)]
    assert names([*history, Seen(19.0, LOG, 0)]) == set(), "it may have been committed since"
    assert names([*history, Seen(30.0, LOG, 2)]) == set()
    assert names([*history, Seen(30.0, LOG, 0)]) == {"lost write"}
    (verdict,) = judge([*history, Seen(30.0, LOG, 1)], Rules())
    assert verdict.offset == 1
    back = [*history, Seen(30.0, LOG, 0), Moved(25.0)]
    assert names(back) == set()
    assert names([*history, Seen(30.0, LOG, 0), Moved(10.0)]) == {"lost write"}
    assert names([*history, Seen(30.0, LOG, 0)], live=frozenset("b")) == set(), "beyond a gap"


def test_only_a_replay_has_marked_rows():
    """Or a batch that was planned before its partition was lost."""
    history = [*log_of(2), *batch(0, 2, 0), Seen(2.0, LOG, 2)]
    assert names([*history, *batch(0, 2, 0, "b", at=20.0, lost=True)]) == {"duplicate"}
    again = [*history, *batch(0, 2, 1, run=1, at=20.0, lost=True), Break(0.6, 0.6, "a", 0)]
    assert names([*again, Started("a", 1)]) == {"duplicate"}
    late = [*history, *batch(0, 2, 0, "b", at=20.0, lost=True)]
    assert names([*late, Break(0.1, 9.0, "b", None, "session ended", ends_the_run=False)]) == set()


def test_a_reader_goes_back_to_what_it_had_not_committed_when_it_lost_the_partition():
    history = [*log_of(4), *batch(0, 2, 0), *batch(2, 2, 1), *batch(2, 2, 2, at=20.0)]
    assert "nonmonotonic poll" in names(history)
    lost = [*history, Break(1.2, 10.0, "a", 0, ends_the_run=False)]
    assert names(lost, members=frozenset("a")) == set()
    assert names(lost) == {"duplicate"}, "a query knows what it has read"
    back = [*history, Seen(2.0, LOG, 4), Moved(10.0, offset=2), Seen(11.0, LOG, 2)]
    assert names([*back, Break(1.6, 1.6, "a", 0)]) == set()


def test_a_run_reads_a_record_again_only_after_it_lost_the_partition():
    """Whatever becomes of the run much later."""
    history = [*log_of(2), Break(3_600.0, 3_600.0, "a", 0), Seen(30.0, LOG, 2)]
    for_members = {"members": frozenset("a")}
    once = batch(0, 2, 0)
    twice = [replace(one, place=2 * one.place + n) for one in once for n in range(2)]
    assert names([*history, *once], **for_members) == set()
    assert names([*history, *twice], **for_members) == {"duplicate"}
    single = [*log_of(1), *history[2:3], *batch(0, 1, 0), *batch(0, 1, 1)]
    assert names(single, **for_members) == {"duplicate"}
    lost = Break(0.7, 0.7, "a", 0, "lost", ends_the_run=False)
    assert names([*single, lost], **for_members) == set()
    assert names([*single, replace(lost, since=1.1, until=1.1)], **for_members) == {"duplicate"}


def test_a_batch_has_a_record_once_even_in_a_replay():
    broken = [Break(at, at, "a", run) for run, at in enumerate((0.6, 20.6))]
    history = [*log_of(1), *broken, Started("a", 1, 0), Started("a", 2, 0)]
    replays = [*batch(0, 1, 0, run=1, at=20.0), *batch(0, 1, 0, run=2, at=30.0)]
    assert names([*history, *batch(0, 1, 0), *replays]) == set()
    for one in (*batch(0, 1, 0), *replays):
        twice = [*history, *batch(0, 1, 0), *replays, replace(one, place=1)]
        assert names(twice) == {"duplicate"}


@pytest.mark.parametrize("reads", [1, 2, 3])
def test_a_replay_reads_what_the_first_attempt_read(reads):
    history = [*log_of(3), *batch(0, 2, 0), Break(0.6, 0.6, "a", 0), Started("a", 1, 0)]
    history += [*batch(0, reads, 0, run=1, at=20.0), *batch(reads, 3 - reads, 1, run=1, at=30.0)]
    assert (
        names(history)
        == [{"inconsistent offsets", "duplicate"}, set(), {"inconsistent offsets"}][reads - 1]
    )
    begun = [Began(0.0, "a", 0, 0, frozenset({LOG})) if e in batch(0, 2, 0) else e for e in history]
    assert names(begun) == set(), "nobody knows what it read"


def test_a_replay_lacks_what_is_gone():
    history = [*log_of(1), *batch(0, 2, 0), Break(0.6, 0.6, "a", 0), Started("a", 1, 0)]
    history += batch(0, 1, 0, run=1, at=20.0)
    assert names([*history, Deleted(10.0, LOG, 1)]) == set()
    anew = LOG._replace(topic_id="2")
    other = [replace(e, log=anew) for e in batch(0, 2, 0, run=1, at=20.0)]
    others = [replace(e, log=anew) for e in log_of(2)]
    assert names([*log_of(2), *others, *history[1:-1], *other]) == set(), "another of this name"


def test_what_is_not_to_be_read_is_not_skipped():
    """An aborted record, and the offset of a marker."""
    history = [Produced(LOG, 0, "v0"), Produced(LOG, 1, "v1", "t1", aborted=True)]
    history += [Produced(LOG, 3, "v3"), *batch(0, 1, 0), *batch(3, 1, 1), Seen(0.7, LOG, 3)]
    assert names(history) == set()
    assert names(history, read_committed=False) == {"poll skip", "lost write"}


def test_after_an_offset_was_moved_forward_nothing_was_skipped():
    history = [*log_of(4), *batch(0, 1, 0), *batch(3, 1, 1, at=20.0), *batch(1, 2, 7, "b", at=30.0)]
    history += [Seen(0.6, LOG, 1), Seen(11.0, LOG, 3)]
    assert names([*history, Moved(10.0, offset=3)]) == set()
    assert names([*history, Moved(10.0, "another", 3)]) == {"poll skip", "commit ahead"}


def test_what_a_member_had_comes_again_once_the_offsets_were_moved_back():
    history = [*log_of(4), *batch(0, 4, 0), Seen(0.8, LOG, 4), Seen(11.0, LOG, 0)]
    again = [*history, *batch(0, 4, 0, "b", at=20.0), Seen(21.0, LOG, 4)]
    twice = [*again, *batch(0, 4, 1, "c", at=30.0)]
    for moved in (Moved(10.0), Moved(10.0, "orders", 0, 0)):
        assert names([*again, moved]) == set()
        assert names([*twice, moved]) == {"duplicate"}
    for other in (Moved(10.0, "orders", 0, 1), Moved(10.0, "orders", 4, 0)):
        assert "duplicate" in names([*again, other])


@pytest.mark.parametrize("moved", [Moved(10.0), Moved(10.0, "orders", 0, 0)])
def test_a_query_goes_on_where_its_checkpoint_is_whatever_the_group_says(moved):
    history = [*log_of(4), *batch(0, 4, 0), Seen(0.8, LOG, 4), Seen(11.0, LOG, 0), moved]
    history += batch(0, 4, 1, run=1, at=20.0)
    assert names(history, members=frozenset("a")) == set()
    assert names(history) == {"duplicate"}


def test_offsets_that_were_moved_to_the_end_leave_out_what_is_below_and_nothing_else():
    history = [*log_of(4), *batch(0, 1, 0), Seen(0.8, LOG, 1), Moved(10.0, "orders", 3, 0)]
    history += [Seen(11.0, LOG, 3)]
    assert names([*history, *batch(3, 1, 0, "b", at=20.0)]) == set()
    assert names([*history, Seen(21.0, LOG, 4)]) == {"lost write"}
    early = [*history, Seen(19.0, LOG, 4), *batch(3, 1, 0, "b", at=20.0)]
    assert names(early) == {"commit ahead"}
    ahead = [*log_of(4), *batch(0, 1, 0), Seen(5.0, LOG, 3), Moved(10.0, "orders", 3, 0)]
    assert names([*ahead, *batch(1, 3, 0, "b", at=20.0)]) == {"commit ahead"}


def test_what_was_left_out_is_to_be_read_once_the_offsets_were_moved_back():
    """But by a query that had begun behind it: its checkpoint is further."""
    history = [*log_of(4), Moved(1.0, offset=4), Seen(2.0, LOG, 4)]
    assert names(history) == set()
    history += [Moved(10.0, offset=0), Seen(11.5, LOG, 0), *batch(0, 2, 0, at=20.0)]
    history += [*batch(3, 1, 0, "b", at=22.0), Seen(30.0, LOG, 4)]
    found = judge(history, Rules())
    assert {(v.name, v.offset) for v in found} == {("lost write", 2)}
    between = Life("a", 0, 3.0, 9.0)
    assert names([*history, between]) == set()
    assert names([*history, between], members=frozenset("a")) == {"lost write"}
    assert names([*history, replace(between, since=12.0, until=19.0)]) == {"lost write"}
    assert names([*history, *batch(2, 1, 1, at=25.0)]) == set()


def test_what_the_group_went_past_before_its_offsets_were_moved_is_lost():
    history = [
        *log_of(4),
        Seen(0.0, LOG, 0),
        *batch(0, 2, 0),
        *batch(3, 1, 0, "b"),
        Seen(9.0, LOG, 4),
    ]
    assert names(history) == {"lost write"}
    assert names([*history, Moved(1_000.0, offset=4)]) == {"lost write"}
    assert names([*history, Moved(12.0, offset=4)]) == set(), "it may have had its effect before"


def test_after_the_offsets_were_moved_what_the_group_has_counts_again():
    history = [*log_of(4), *batch(0, 2, 0), Moved(10.0), Seen(11.0, LOG, 0)]
    history += [*batch(0, 4, 0, "b", at=20.0), Seen(21.0, LOG, 4), Break(20.9, 20.9, "b", 0)]
    assert names(history) == set()
    assert names([*history, *batch(2, 2, 0, "c", at=30.0)]) == {"duplicate"}


def test_what_a_query_has_read_it_reads_again_only_in_a_replay():
    history = [*log_of(2), *batch(0, 2, 0), Break(0.6, 0.6, "a", 0)]
    again = [*history, Started("a", 1, 0), *batch(0, 2, 0, run=1, at=20.0)]
    assert names(again) == set()
    given_up = [replace(e, completed=25.0) if e in batch(0, 2, 0) else e for e in again]
    assert names(given_up) == set(), "its sink hung until the replay was done"
    assert names([*history, *batch(0, 2, 1, run=1, at=20.0)]) == {"duplicate"}


@few
@given(BATCHES)
def test_a_batch_beyond_its_limit_comes_again_and_no_other(lengths):
    """Its sink hangs; the members have left, and ``b`` reads it meanwhile."""
    last, first, end = len(lengths) - 1, sum(lengths[:-1]), sum(lengths)
    history = [e for e in faultless(lengths) if not (isinstance(e, Seen) and e.at > last)]
    hung = [
        replace(e, completed=30.0) if isinstance(e, Delivered) and e.batch == last else e
        for e in history
    ]
    others = [*batch(first, lengths[-1], 0, "b", at=20.0), Seen(21.0, LOG, end)]
    assert names([*hung, *others], limits={"a": 6.0}) == set()
    assert names([*hung, *others], limits={"a": 60.0}) == {"duplicate"}
    assert names([*hung, *others], limits={"b": 6.0}) == {"duplicate"}
    assert names([*history, *others], limits={"a": 6.0}) == {"duplicate"}, "it was in time"
    before = batch(first - lengths[-2], lengths[-2], 0, "b", at=20.0)
    assert names([*hung, *before], limits={"a": 6.0}) == {"duplicate"}


def test_a_batch_that_hangs_for_ever_has_no_delivery_and_hinders_nobody():
    history = [*log_of(4), *batch(0, 2, 0), Seen(0.8, LOG, 2)]
    history += [Began(1.0, "a", 0, 1, frozenset({LOG})), *batch(2, 2, 0, "b", at=20.0)]
    assert names(history, limits={"a": 6.0}) == set()


RUN = Life("a", 1, 10.0, 14.0, "availableNow", has_ended=True)


def test_a_run_with_an_end_reads_what_was_there_when_it_began():
    history = [*log_of(4), *batch(0, 1, 0), Seen(0.8, LOG, 1), End(9.0, LOG, 3), End(11.0, LOG, 4)]
    history += [RUN, *batch(1, 1, 1, run=1, at=12.0), Seen(13.0, LOG, 2)]
    rest = batch(2, 2, 2, run=2, at=20.0)
    (verdict,) = judge([*history, *rest], Rules())
    assert (verdict.name, verdict.offset, verdict.who) == ("unseen", 2, "a run 1")
    for stopped in (replace(RUN, has_ended=False), replace(RUN, since=8.0)):
        assert names([stopped if e is RUN else e for e in history] + rest) == set()
    read = batch(2, 1, 2, run=1, at=13.0)
    assert names([*history, *read, *rest[1:]]) == set()


def test_a_run_with_an_end_leaves_out_what_the_group_has_and_what_a_living_reader_has():
    history = [*log_of(1), *batch(0, 1, 0, "b", at=20.0), End(9.0, LOG, 1), RUN]
    assert names(history) == {"unseen"}
    assert names([*history, Life("b", 0, 1.0, 21.0)]) == set()
    assert names([*history, Life("b", 0, 1.0, 9.5)]) == {"unseen"}, "it was dead by then"
    assert names([*history, Life("a", 0, 1.0, 11.0)]) == {"unseen"}, "the run itself does not count"
    delivered = [*log_of(1), *batch(0, 1, 0, "b", at=5.0), End(9.0, LOG, 1), RUN]
    assert names([*delivered, Seen(15.0, LOG, 1)]) == set()
    assert names([*delivered, Seen(20.0, LOG, 1)]) == {"unseen"}


def test_once_leaves_to_the_next_run_what_came_after_a_batch_that_was_broken_off():
    once = replace(RUN, trigger="once")
    history = [*log_of(2), *batch(0, 1, 0), Break(0.6, 0.6, "a", 0), End(9.0, LOG, 2), once]
    history += [*batch(0, 1, 0, run=1, at=11.0), *batch(1, 1, 1, run=2, at=20.0)]
    assert names([*history, Started("a", 1, 0)]) == set()
    available_now = [RUN if e is once else e for e in history]
    assert names([*available_now, Started("a", 1, 0)]) == {"unseen"}


def test_aborted_records_are_none_that_a_run_with_an_end_has_to_read():
    aborted = Produced(LOG, 0, "v0", "t1", aborted=True)
    assert names([aborted, End(9.0, LOG, 1), RUN]) == set()
    assert names([aborted, End(9.0, LOG, 1), RUN], read_committed=False) == {"unseen"}


@pytest.mark.parametrize("sent_at", [0.9, 1.5, 5.0])
def test_a_planner_that_stood_still_has_planned_nothing_that_was_sent_since(sent_at):
    """``a`` stands still from 1 on; ``b`` has read on before the sink of ``a`` gets a batch."""
    history = [Produced(LOG, n, f"v{n}", sent_at=0.0 if n < 2 else sent_at) for n in range(4)]
    history += [*batch(0, 2, 0), *batch(2, 2, 0, "b", at=20.0), *batch(2, 2, 1, at=20.2)]
    history.append(Break(1.0, 9.0, "a", 0, "session ended", ends_the_run=False))
    assert names(history) == (set() if sent_at < 1 else {"duplicate"})


def amid_a_replay(began_at, of_b, of_a=0.0):
    """``a`` dies in its first batch; ``b`` reads the same while ``a`` replays it for long."""
    replay = [replace(one, completed=of_a) for one in batch(0, 2, 0, run=1, at=20.0)]
    return [
        *[*log_of(2), Began(0.0, "a", 0, 0, frozenset({LOG})), Break(0.5, 0.5, "a", 0)],
        *[Started("a", 1, 0), Life("a", 1, began_at, 100.0), *replay],
        *batch(0, 2, 0, "b", at=of_b),
    ]


@pytest.mark.parametrize("of_a", [30.0, 20.5])
def test_nobody_reads_what_a_replay_reads(of_a):
    history = amid_a_replay(15.0, of_b=20.3, of_a=of_a)
    assert names(history, complete=False) == {"duplicate"}
    assert names([*history, Break(21.0, 21.0, "a", 1)], complete=False) == set()
    assert names(history, complete=False, limits={"a": 3.2}) == set()


def test_a_replay_that_has_waited_for_long_may_come_twice():
    patient = amid_a_replay(-15.0, of_b=20.3, of_a=30.0)
    assert names(patient, complete=False) == set()
    before = amid_a_replay(15.0, of_b=19.0, of_a=30.0)
    assert names(before, complete=False) == set(), "whether it is marked is judged apart"


#: The first two of four records are delivered and committed, and then the other two are deleted.
GONE = [
    *[*log_of(2), *batch(0, 2, 0), Seen(0.8, LOG, 2)],
    *[Deleted(1.0, LOG, offset) for offset in (2, 3)],
]


def test_what_is_deleted_unread_is_named_by_whoever_goes_on_behind_it():
    passed = Seen(9.0, LOG, 4)
    refused = Refused(5.0, "a", 0, LOG, 2)
    assert names(GONE) == set(), "nobody has gone on yet"
    assert names([*GONE, passed]) == {"lost write"}
    assert names([*GONE, passed, refused]) == set()
    assert names([*GONE, passed, replace(refused, at=20.0)]) == {"lost write"}, "too late"
    assert names([*GONE, passed, replace(refused, since=3)]) == {"lost write"}
    assert names([*GONE, passed, replace(refused, until=3)]) == {"lost write"}
    assert names([*GONE, passed, replace(refused, log=Log("payments", "", 0))]) == {"lost write"}


def test_what_is_deleted_nobody_has_to_name_who_is_to_go_on_without_it():
    passed = Seen(9.0, LOG, 4)
    lenient = Life("m", 0, 0.0, 20.0, goes_on_without=True)
    assert names([*GONE, passed, lenient]) == set()
    assert names([*GONE, passed, replace(lenient, since=10.0)]) == {"lost write"}
    assert names([*GONE, passed, replace(lenient, goes_on_without=False)]) == {"lost write"}
    for excuse in (Moved(5.0), Moved(5.0, offset=4)):
        assert names([*GONE, passed, excuse]) == set()
    for other in (Moved(0.0, offset=0), Moved(5.0, offset=2), Moved(1_000.0, offset=4)):
        assert "lost write" in names([*GONE, passed, other])
    begun = Seen(6.0, LOG, 2)
    assert names([*GONE, passed, Moved(0.9), begun]) == {"lost write"}, "it had begun there again"
    delivered = batch(2, 2, 1)
    assert names([*GONE, *delivered, passed]) == set()


def test_what_is_deleted_before_anybody_begins_nobody_has_to_name():
    """As in a partition that is new, whose first record is the first that there is."""
    history = [Deleted(1.0, LOG, 0), Produced(LOG, 1, "v1"), *batch(1, 1, 0, at=2.0)]
    assert names([*history, Seen(3.0, LOG, 2)]) == set()
    assert names([Seen(0.5, LOG, 0), *history, Seen(3.0, LOG, 2)]) == {"lost write"}


def test_a_topic_that_is_created_anew_makes_somebody_fail():
    renewed = Renewed(10.0, 25.0, LOG._replace(topic_id="0"))
    begun = [replace(one, log=renewed.log) for one in batch(0, 2, 0)]
    assert names([renewed, *begun]) == {"lost write"}
    assert names([renewed, *begun, Refused(14.0, "a", 0, LOG, 7)]) == set()
    assert names([renewed, *begun, Refused(9.0, "a", 0, LOG, 7)]) == {"lost write"}
    assert names([renewed, *begun, Life("a", 0, 0.0, 20.0, goes_on_without=True)]) == set()
    assert names([renewed, *batch(0, 2, 0)]) == set(), "of another topic, or of none"
    assert names([renewed, *(replace(one, completed=8.0) for one in begun)]) == set()
