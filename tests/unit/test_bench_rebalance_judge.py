"""What the benchmark of the peers makes of their ledgers, and of an application's processing."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from random import Random

import pyarrow as pa
import pytest
from kafka.structs import TopicPartition
from rich.console import Console

from benchmarks.rebalance.goals import goals
from benchmarks.rebalance.judge import Verdict, judge
from benchmarks.rebalance.peers import PEERS, Peer, chosen
from benchmarks.rebalance.picture import save_picture
from benchmarks.rebalance.polls import PollLog, read_polls
from benchmarks.rebalance.processing import Processing
from benchmarks.rebalance.report import as_json, print_report
from benchmarks.rebalance.scenario import Course, Settings
from measuring.rebalance_figures import Rebalance, Window

TOPIC = "t"
KEPT, MOVED = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)
#: B joins at 10; the input ends at 20.
JOIN = Rebalance("B joins", 10.0, Window(5.0, 10.0), Window(10.0, 16.0))
END = 2_000


def every_10_ms(reader: str, partition: int, offsets: range) -> list[tuple[str, int, int, float]]:
    """Record n is polled at n / 100."""
    return [(reader, partition, offset, offset / 100) for offset in offsets]


def course(rows, drained=()) -> Course:
    readers, partitions, offsets, times = map(list, zip(*rows, strict=True))
    ledger = pa.table(
        {
            "reader": readers,
            "topic": [TOPIC] * len(rows),
            "partition": partitions,
            "offset": offsets,
            "batch": [round(at * 1000) for at in times],
            "attempt": [0] * len(rows),
            "began_at": times,
            "received_at": times,
            "completed_at": times,
        }
    ).sort_by("completed_at")
    ends = {KEPT: END, MOVED: END}
    return Course("1.0", ledger, ends, [JOIN], list(drained), 1.0, 20.0)


def judged(rows, drained=(), *, name="peer", ours=False) -> Verdict:
    return judge(Peer(name, "any", ours=ours), course(rows, drained), drain=True)


def late(rows, since, until):
    """What was due between these is polled at ``until``, all at once."""
    return [
        (reader, partition, offset, until if since < at < until else at)
        for reader, partition, offset, at in rows
    ]


STEADY = every_10_ms("A", 0, range(END))
HANDED_OVER = [*every_10_ms("A", 1, range(1_100)), *every_10_ms("B", 1, range(1_140, END))]
#: What came in between is B's as well, in its first poll.
CAUGHT_UP = [*HANDED_OVER, *(("B", 1, offset, 11.4) for offset in range(1_100, 1_140))]


def test_a_rebalance_without_a_stop():
    verdict = judged([*STEADY, *CAUGHT_UP], [(11.2, MOVED)])
    (join,) = verdict.joins
    assert (join.kept, join.moved, join.at_s) == (1, 1, pytest.approx(9.0))
    assert verdict.before_s == pytest.approx(0.01)
    assert verdict.during_s == pytest.approx(0.01)
    assert verdict.ratio == pytest.approx(1.0)
    assert (verdict.duplicates, verdict.holes, verdict.records) == (0, 0, 2 * END)
    assert verdict.hand_over_median_s == verdict.hand_over_longest_s == pytest.approx(0.41)
    assert verdict.drained_to_first_s == pytest.approx(0.2)


def test_a_stop_of_a_kept_partition_is_its_silence_though_nothing_is_lost():
    verdict = judged([*late(STEADY, 10.5, 12.5), *CAUGHT_UP])
    assert verdict.during_s == pytest.approx(2.0, abs=0.02)
    assert verdict.before_s == pytest.approx(0.01)
    assert verdict.ratio == pytest.approx(200, rel=0.02)
    assert verdict.holes == verdict.duplicates == 0


def test_a_stop_of_what_moves_is_no_silence_of_what_stays():
    assert judged([*STEADY, *late(CAUGHT_UP, 11.0, 14.0)]).during_s == pytest.approx(0.01)


def test_a_kept_partition_that_never_comes_back_is_silent_until_the_end():
    until_12 = [row for row in STEADY if row[3] <= 12.0]
    verdict = judged([*until_12, *CAUGHT_UP])
    assert verdict.during_s == pytest.approx(4.0)
    assert verdict.holes == END - 1_201


def test_what_was_in_processing_and_comes_again_is_counted():
    again = [("B", 1, offset, 11.4) for offset in range(1_000, 1_100)]
    verdict = judged([*STEADY, *CAUGHT_UP, *again])
    assert (verdict.duplicates, verdict.holes) == (100, 0)


def test_offsets_that_nobody_delivered_are_counted():
    verdict = judged([*STEADY, *HANDED_OVER])
    assert (verdict.duplicates, verdict.holes) == (0, 40)


def test_no_time_since_the_drain_without_a_drain():
    assert judged([*STEADY, *CAUGHT_UP]).drained_to_first_s is None
    # That of another rebalance is none of this one.
    assert judged([*STEADY, *CAUGHT_UP], [(9.0, MOVED)]).drained_to_first_s is None
    # An eager member drains what stays as well.
    drained = [(11.2, MOVED), (11.3, KEPT)]
    assert judged([*STEADY, *CAUGHT_UP], drained).drained_to_first_s == pytest.approx(0.2)


def test_the_curve_counts_what_stayed_throughout():
    verdict = judged([*late(STEADY, 10.5, 12.5), *CAUGHT_UP])
    assert verdict.curve_partitions == 1
    assert len(verdict.curve) == 190
    assert sum(verdict.curve[10:20]) == pytest.approx(100, abs=1)
    assert sum(verdict.curve[96:114]) == 0
    assert 200 <= max(verdict.curve) <= 210


OURS = judged([*STEADY, *CAUGHT_UP], [(11.2, MOVED)], name="ours", ours=True)
PEER = judged([*late(STEADY, 10.5, 12.5), *CAUGHT_UP], [(11.2, MOVED)])


def met(*run: Verdict) -> list[bool]:
    return [goal.met for goal in goals([run])]


def test_goals_that_are_met():
    assert met(OURS, PEER) == [True, True, True, True]


def test_goals_are_for_ours_and_against_peers_that_drain():
    assert met(PEER) == []
    quick = replace(PEER, peer="quick", joins=OURS.joins)
    assert met(OURS, PEER, quick) == [True, False, True, True]
    assert met(OURS, PEER, replace(quick, drain=False)) == [True, True, True, True]


@pytest.mark.parametrize(
    ("worse", "expected"),
    [
        ({"joins": PEER.joins}, [False, False, True, True]),
        ({"duplicates": 1}, [True, True, False, True]),
        ({"holes": 1}, [True, True, False, True]),
        (
            {"joins": [replace(OURS.joins[0], drained_to_first_s=1.31)]},
            [True, True, True, False],
        ),
        (
            {"joins": [replace(OURS.joins[0], drained_to_first_s=None)]},
            [True, True, True, False],
        ),
    ],
)
def test_goals_that_are_missed(worse, expected):
    assert met(replace(OURS, **worse), PEER) == expected


def test_one_bad_moment_of_the_machine_in_three_runs_is_no_missed_goal():
    noisy = replace(OURS, joins=PEER.joins)
    assert [goal.met for goal in goals([[OURS, PEER], [noisy, PEER], [OURS, PEER]])] == [True] * 4
    assert [goal.met for goal in goals([[OURS, PEER], [noisy, PEER], [noisy, PEER]])] == [
        False,
        False,
        True,
        True,
    ]


def test_one_duplicate_in_three_runs_is_a_missed_goal():
    twice = replace(OURS, duplicates=1)
    assert [goal.met for goal in goals([[OURS], [twice], [OURS]])] == [True, False, True]


def test_the_goal_in_heartbeats_is_for_classic():
    assert met(replace(OURS, classic=False), PEER) == [True, True, True]


def test_the_report_says_what_was_missed_and_what_of():
    run = [replace(OURS, duplicates=7), PEER]
    text = io.StringIO()
    print_report(Console(file=text, width=160), Settings(), [run])
    said = text.getvalue()
    assert "missed ours: no duplicates, no holes: 7 and 0" in said
    assert "met    ours: silence during ÷ before ≤ 2: 1.00" in said
    assert "8,000 records, 800,000 bytes" in said
    written = json.loads(json.dumps(as_json(Settings(), [run])))
    assert written["results"][0][1]["during_s"] == pytest.approx(2.0, abs=0.02)
    assert [goal["met"] for goal in written["goals"]] == [True, True, False, True]


def test_a_picture_of_peers_that_keep_nothing(tmp_path):
    nothing = replace(PEER, curve_partitions=0, joins=[replace(PEER.joins[0], during_s=None)])
    save_picture(tmp_path / "new" / "picture.png", Settings(), [OURS, nothing])
    assert (tmp_path / "new" / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_every_ledger_of_a_folder_with_a_line_that_is_being_written(tmp_path):
    PollLog(tmp_path, "A").write(1.5, {0: [7, 8], 3: [1]})
    PollLog(tmp_path, "B").write(1.25, {1: [4]})
    with (tmp_path / "B.csv").open("a") as file:
        file.write("2,1.75,1,")
    found = read_polls(tmp_path, TOPIC)
    names = ("reader", "batch", "topic", "partition", "offset", "completed_at")
    assert list(zip(*(found[name].to_pylist() for name in names), strict=True)) == [
        ("B", 1, TOPIC, 1, 4, 1.25),
        ("A", 1, TOPIC, 0, 7, 1.5),
        ("A", 1, TOPIC, 0, 8, 1.5),
        ("A", 1, TOPIC, 3, 1, 1.5),
    ]


def test_an_empty_folder_is_an_empty_ledger(tmp_path):
    (tmp_path / "A.csv").touch()
    assert read_polls(tmp_path, TOPIC).num_rows == 0


class Times(Random):
    """A random number generator whose numbers are known."""

    def __init__(self, *times: float) -> None:
        super().__init__()
        self._times = list(times)

    def uniform(self, a: float, b: float) -> float:
        return self._times.pop(0)


def test_processing_ends_in_the_partitions_order():
    processing = Processing(2.0, Times(1.5, 0.25, 0.5))
    processing.begin(0, 10, now=0.0)
    processing.begin(0, 20, now=0.5)  # would end at 0.75, but the ones before end at 1.5
    processing.begin(1, 5, now=0.5)
    assert processing.processed(0.9) == {}
    assert processing.processed(1.0) == {1: 5}
    assert processing.done_at([0]) == 1.5
    assert processing.done_at([0, 1]) == 1.5
    assert processing.processed(1.5) == {0: 20, 1: 5}
    assert processing.done_at([0, 1]) == 0.0


def test_what_is_forgotten_is_never_processed():
    processing = Processing(2.0, Times(1.0, 1.0, 0.5))
    processing.begin(0, 10, now=0.0)
    processing.begin(1, 10, now=0.0)
    processing.forget([0])
    assert processing.done_at([0]) == 0.0
    processing.begin(0, 5, now=0.1)  # assigned again, from the committed offset
    assert processing.processed(2.0) == {0: 5, 1: 10}


def test_peers_are_chosen_by_how_their_names_begin():
    assert [peer.name for peer in chosen(["java", "ours-classic"])] == [
        "java-cooperative",
        "java-consumer",
        "ours-classic",
    ]
    assert chosen([""]) == list(PEERS)
    with pytest.raises(ValueError, match="no peer 'scala'; there are kafka-python-eager"):
        chosen(["scala"])
