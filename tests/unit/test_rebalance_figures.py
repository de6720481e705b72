"""What is computed from the ledger: rates, pauses, hand-overs."""

from __future__ import annotations

import pyarrow as pa
import pytest
from kafka.structs import TopicPartition

from demos.rebalance.comparison import Run, verdict
from measuring.rebalance_figures import (
    Delivery,
    Rebalance,
    Window,
    counter_rates,
    deliveries_of,
    figures_of,
    hand_overs,
    kept_partitions,
    longest_pause,
    partition_rates,
    rates,
    rows_per_second,
    smooth,
    waits,
)
from pyspark_kafka_rebalance.testing.ledger import Tally

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def delivered(reader, partition, began, completed, rows=100, batch=None):
    number = round(completed * 100) if batch is None else batch
    return Delivery(reader, number, partition, began, began, completed, rows)


def steady(reader, partition, since, until, step=1.0):
    """Batches of 100 rows back to back."""
    count = round((until - since) / step)
    return [
        delivered(reader, partition, since + n * step, since + (n + 1) * step) for n in range(count)
    ]


def test_deliveries_are_the_ledgers_rows_by_batch_and_partition():
    ledger = pa.table(
        {
            "reader": ["A", "A", "A", "B"],
            "batch": [1, 1, 1, 1],
            "attempt": [7, 7, 7, 8],
            "topic": ["t"] * 4,
            "partition": [0, 0, 1, 0],
            "offset": [5, 6, 9, 7],
            "began_at": [1.0, 1.0, 1.0, 3.0],
            "received_at": [1.5, 1.5, 1.5, 3.5],
            "completed_at": [2.0, 2.0, 2.0, 4.0],
        }
    )
    assert deliveries_of(ledger) == [
        Delivery("A", 1, P0, 1.0, 1.5, 2.0, 2),
        Delivery("A", 1, P1, 1.0, 1.5, 2.0, 1),
        Delivery("B", 1, P0, 3.0, 3.5, 4.0, 1),
    ]
    assert deliveries_of(pa.table({})) == []


def test_rows_of_event_rows_do_not_count():
    ledger = pa.table(
        {
            "reader": ["A", "A"],
            "batch": [1, 1],
            "attempt": [7, 7],
            "topic": ["t", "t"],
            "partition": [0, 0],
            "offset": pa.array([None, 6], pa.int64()),
            "began_at": [1.0, 1.0],
            "received_at": [1.5, 1.5],
            "completed_at": [2.0, 2.0],
        }
    )
    assert [d.rows for d in deliveries_of(ledger)] == [1]


def test_a_steady_reader_has_a_steady_rate():
    found = rates(steady("A", P0, 0.0, 10.0), [0.0, 0.5, 3.25, 10.0])
    assert found == {"A": pytest.approx([100.0, 100.0, 100.0])}


def test_usual_overhead_between_batches_is_part_of_them():
    batches = [delivered("A", P0, n + 0.2, n + 1.0) for n in range(10)]
    assert rates(batches, [2.0, 2.1, 3.0])["A"] == pytest.approx([100.0, 100.0])


def test_rates_of_a_partition_are_those_of_each_of_its_readers():
    moved = [*steady("A", P0, 0.0, 2.0), *steady("B", P0, 2.0, 4.0), *steady("A", P1, 0.0, 4.0)]
    assert partition_rates(moved, [0.0, 2.0, 4.0]) == {
        (P0, "A"): [pytest.approx(100.0), 0.0],
        (P0, "B"): [0.0, pytest.approx(100.0)],
        (P1, "A"): [pytest.approx(100.0), pytest.approx(100.0)],
    }


def test_a_stall_shows_although_its_rows_come_later():
    batches = [*steady("A", P0, 0.0, 5.0), delivered("A", P0, 8.0, 9.0, rows=400)]
    assert rates(batches, [4.0, 5.0, 8.0, 9.0])["A"] == pytest.approx([100.0, 0.0, 400.0])


def test_rates_of_a_counter():
    readings = [(0.0, 0), (1.0, 100), (3.0, 500)]
    assert counter_rates(readings, [0.0, 1.0, 2.0, 3.0, 4.0]) == pytest.approx([100, 200, 200, 0])
    assert counter_rates([], [0.0, 1.0]) == [0.0]


def test_smoothing_keeps_the_level_up_to_the_ends():
    assert smooth([4.0] * 7, 3) == [4.0] * 7
    assert smooth([0.0, 3.0, 0.0], 3) == [1.5, 1.0, 1.5]


def test_a_hand_over_lasts_from_the_last_record_to_the_first():
    batches = [*steady("A", P0, 0.0, 3.0), delivered("B", P0, 3.4, 4.0)]
    (found,) = hand_overs(batches)
    assert (found.partition, found.old, found.new) == (P0, "A", "B")
    assert found.seconds == pytest.approx(0.4)


def test_a_partition_that_comes_back_was_handed_over_twice():
    batches = [
        *steady("A", P0, 0.0, 1.0),
        *steady("B", P0, 2.0, 3.0),
        *steady("A", P0, 4.0, 5.0),
    ]
    assert [(h.old, h.new) for h in hand_overs(batches)] == [("A", "B"), ("B", "A")]


def test_what_stays_has_one_reader_throughout():
    batches = steady("A", P0, 0, 4) + steady("A", P1, 0, 2) + steady("B", P1, 2, 4)
    assert kept_partitions(batches, Window(0.0, 4.0)) == {P0}
    assert kept_partitions(batches, Window(0.0, 2.0)) == {P0, P1}
    assert kept_partitions(batches, Window(0.0, 4.0), slow=["A"]) == set()


def test_a_pause_belongs_to_the_window_in_which_it_ends():
    batches = [*steady("A", P0, 0.0, 4.0), *steady("A", P0, 6.5, 10.0, step=0.5)]
    assert longest_pause(batches, {P0}, Window(0.0, 5.0)) == pytest.approx(1.0)
    assert longest_pause(batches, {P0}, Window(5.0, 10.0)) == pytest.approx(3.0)
    assert longest_pause(batches, {P1}, Window(0.0, 10.0)) is None


def test_batches_at_the_edges_of_a_window_count_by_their_share():
    batches = steady("A", P0, 0.0, 10.0)
    assert rows_per_second(batches, {P0}, Window(2.5, 5.25)) == pytest.approx(100.0)


def test_figures_of_a_join():
    batches = [
        *steady("A", P0, 0, 8),
        delivered("A", P0, 8.5, 9.5),
        *steady("A", P1, 0, 5),
        *steady("B", P1, 6.0, 10),
    ]
    join = Rebalance("B joins", 5.0, Window(1.0, 4.0), Window(4.5, 9.9))
    (found,) = figures_of(batches, [join])
    assert (found.kept, found.pause_before) == (1, pytest.approx(1.0))
    assert found.pause_during == pytest.approx(1.5)
    assert found.rate_ratio == pytest.approx((3.5 + 1.0) / 5.4)
    assert found.median_hand_over == found.longest_hand_over == pytest.approx(1.0)
    assert [h.partition for h in found.hand_overs] == [P1]


def test_a_rebalance_that_moved_nothing_has_no_hand_over():
    quiet = Rebalance("B joins", 5.0, Window(1.0, 4.0), Window(5.0, 8.0))
    (found,) = figures_of(steady("A", P0, 0, 10), [quiet])
    assert found.median_hand_over is None
    assert found.longest_hand_over is None


def test_the_partition_that_waits_longest_at_each_time():
    deliveries = [*steady("A", P0, 0.0, 10.0), *steady("A", P1, 0.0, 2.0)]
    deliveries.append(delivered("A", P1, 6.0, 7.0))
    times = [0.5, 2.0, 5.5, 7.25]
    assert waits(deliveries, {P0, P1}, times) == [0.0, 0.0, 3.5, 0.25]
    assert waits(deliveries, {P0}, times) == [0.0, 0.0, 0.5, 0.25]


def test_a_comparison_is_one_sentence_of_what_was_measured():
    rebalance = Rebalance("C joins", 10.0, Window(0.0, 10.0), Window(10.0, 30.0))
    quick = steady("A", P0, 0.0, 30.0)
    slow = [*steady("A", P0, 0.0, 10.0), delivered("A", P0, 19.5, 20.5)]
    (deferred,), (blocking,) = (figures_of(deliveries, [rebalance]) for deliveries in (quick, slow))
    runs = {
        "deferred": Run(Tally(0, {}, 0), quick, deferred),
        "blocking": Run(Tally(0, {}, 0), slow, blocking),
    }
    assert "for 1.0 s with kafka_deferred, and for 10.5 s where consumers" in verdict(runs, 5.0)
    runs["blocking"] = Run(Tally(0, {}, 0), [], *figures_of([], [rebalance]))
    assert verdict(runs, 5.0).endswith("too little was read to compare.")
