"""What is computed from the ledger of a query that was killed and restarted."""

from __future__ import annotations

from datetime import datetime, timezone

import pyarrow as pa
import pytest
from kafka.structs import TopicPartition

from demos.catch_up.figures import History, OutageFigures, figures_of, histories_of
from demos.catch_up.report import summary
from measuring.rebalance_figures import Window

P0 = TopicPartition("t", 0)


def ledger_of(*batches):
    """Rows of (reader, batch, attempt, completed_at, {offset: when it was produced})."""
    rows = [
        {
            "topic": "t",
            "partition": 0,
            "offset": offset,
            "timestamp": datetime.fromtimestamp(produced, timezone.utc),
            # What a query with parallelRebalance=live has read of a gap.
            "catch_up": reader == "live" and 3 <= offset <= 6,
            "reader": reader,
            "batch": batch,
            "attempt": attempt,
            "completed_at": float(completed),
        }
        for reader, batch, attempt, completed, records in batches
        for offset, produced in records.items()
    ]
    return pa.Table.from_pylist(rows)


#: Offsets 0 to 9, one a second from 100 on; both are killed at 103.5 and restarted at 106.
BEFORE = {0: 100, 1: 101, 2: 102}
LEDGER = ledger_of(
    ("live", 1, 1, 103, BEFORE),
    ("live", 2, 2, 108, {7: 107}),
    ("live", 3, 2, 109, {8: 108, 3: 103, 4: 104}),
    ("live", 4, 2, 111, {9: 109, 5: 105, 6: 106}),
    ("ordered", 1, 1, 103, BEFORE),
    ("ordered", 2, 2, 108, {3: 103, 4: 104}),
    ("ordered", 3, 2, 110, {5: 105, 6: 106}),
    ("ordered", 4, 2, 112, {7: 107, 8: 108, 9: 109}),
)
KILLED, RESTARTED = 103.5, 106.0


def figures(ledger, reader, end=10):
    history = histories_of(ledger, [reader])[reader]
    return figures_of(ledger, reader, history, {P0: end}, KILLED, RESTARTED)


def test_the_age_grows_until_a_newer_row_is_delivered():
    live = histories_of(LEDGER, ["live"])["live"]
    assert live.ages(Window(102.0, 112.0)) == [
        (103.0, 1.0),
        (108.0, 6.0),
        (108.0, 1.0),
        (109.0, 2.0),
        (109.0, 1.0),
        (111.0, 3.0),
        (111.0, 2.0),
        (112.0, 3.0),
    ]


def test_an_older_row_makes_the_newest_no_younger():
    caught_up = History([1.0, 2.0, 3.0], [(3.5, 3.0), (4.0, 1.0), (5.0, 2.0)])
    assert caught_up.ages(Window(4.0, 6.0)) == [(4.0, 1.0), (6.0, 3.0)]


def test_nothing_has_no_age():
    assert History([], []).ages(Window(0.0, 1.0)) == []
    assert histories_of(LEDGER, ["none"])["none"].delivered == []


def test_the_backlog_is_what_is_produced_and_not_delivered():
    times = [100.5, 103.0, 107.5, 108.0, 110.0, 112.0]
    histories = histories_of(LEDGER, ["live", "ordered"])
    assert histories["live"].backlog(times) == [1, 1, 5, 5, 3, 0]
    assert histories["ordered"].backlog(times) == [1, 1, 5, 4, 3, 0]


def test_what_another_query_alone_has_delivered_counts_as_produced():
    ledger = ledger_of(("live", 1, 1, 103, {0: 100, 1: 101}), ("ordered", 1, 1, 103, {0: 100}))
    assert histories_of(ledger, ["ordered"])["ordered"].backlog([104.0]) == [1]


def test_what_an_outage_cost():
    live, ordered = figures(LEDGER, "live"), figures(LEDGER, "ordered")
    assert (live.first_new_after_s, ordered.first_new_after_s) == (2.0, 6.0)
    assert (live.backlog_read_after_s, ordered.backlog_read_after_s) == (5.0, 4.0)
    assert live.age_s == pytest.approx(2.5, abs=0.2)
    assert ordered.age_s == pytest.approx(5.0, abs=0.2)
    assert (live.of_gaps, ordered.of_gaps) == (4, 0)
    assert (live.delivered, live.missing, live.in_flight, live.repeated) == (10, 0, 0, 0)
    assert live.is_right
    assert ordered.is_right


def test_what_is_missing_is_wrong():
    found = figures(LEDGER, "live", end=12)
    assert found.missing == 2
    assert not found.is_right


def test_only_the_batch_that_the_kill_interrupted_may_come_twice():
    last_again = ledger_of(
        ("live", 1, 1, 101, {0: 100}),
        ("live", 2, 1, 103, {1: 101, 2: 102}),
        ("live", 2, 2, 107, {1: 101, 2: 102}),
    )
    found = figures(last_again, "live", end=3)
    assert (found.in_flight, found.repeated, found.is_right) == (2, 0, True)
    for again in (
        ("live", 1, 2, 107, {0: 100}),  # a batch before it
        ("live", 3, 2, 107, {1: 101}),  # under another number
        ("live", 2, 2, 107, {1: 101}),  # a third time
    ):
        ledger = pa.concat_tables([last_again, ledger_of(again)])
        found = figures(ledger, "live", end=3)
        assert found.repeated >= 1, again
        assert not found.is_right


def test_what_comes_twice_after_the_restart_was_not_in_flight():
    ledger = ledger_of(("live", 2, 1, 107, {0: 100}), ("live", 2, 2, 108, {0: 100}))
    assert figures(ledger, "live", end=1).repeated == 1


def test_a_query_that_delivered_nothing():
    found = figures(LEDGER, "none")
    assert found == OutageFigures(0, 10, 0, 0, 0, None, None, None)
    assert summary(10, {"none": found}) == "10 records, 10 missing"
