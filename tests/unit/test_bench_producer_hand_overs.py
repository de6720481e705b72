"""What the benchmark of producer groups makes of what members tell."""

from __future__ import annotations

import pytest

from benchmarks.producer_hand_overs import HandOvers, Told, longest_silence_s, took_s

COMMITS = [
    Told(1.0, "A", 0),
    Told(1.0, "A", 1),
    Told(1.1, "A", 0),
    Told(1.2, "A", 0),
    Told(1.5, "A", 0),
    Told(1.6, "B", 1),
    Told(1.7, "A", 0),
]


def test_from_the_last_commit_to_the_first_record() -> None:
    assert took_s(COMMITS, [Told(0.9, "A", 0), Told(1.55, "B", 1)]) == [pytest.approx(0.55)]


def test_the_longest_silence_of_what_stays() -> None:
    assert longest_silence_s(COMMITS, {0: "A"}, 1.05, 1.6) == pytest.approx(0.3)
    assert longest_silence_s(COMMITS, {0: "A"}, 1.3, 1.45) == pytest.approx(0.15)


def test_what_is_judged() -> None:
    found = HandOvers([0.2, 0.4, 0.9], [(0.1, 0.1), (0.1, 0.2), (0.1, 0.5)])
    assert found.intervals == pytest.approx(0.4)
    assert found.silence_ratio == pytest.approx(2.0)
