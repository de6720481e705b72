"""What the benchmark of KIP-333 makes of its logs: its audit must see what is wrong."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from benchmarks.catch_up.__main__ import parse, planned, settings_of
from benchmarks.catch_up.figures import client_goals, memory_goals, query_goals, waits_of
from benchmarks.catch_up.report import print_report
from benchmarks.catch_up.runs import Audit, Run, RunLog, audit, below, read_runs

ENDS = {0: 100, 1: 50}
GOOD = {"records": 150, "missing": 0, "in_flight": 8, "repeated": 0}


def runs(*spans: tuple[int, int, int]) -> list[Run]:
    return [Run(0, *span) for span in spans]


@pytest.mark.parametrize(
    ("first", "known", "second", "expected"),
    [
        ([(0, 0, 60), (1, 0, 50)], {0: 60, 1: 50}, [(0, 60, 100)], Audit(150, 0, 0, 0)),
        ([(0, 0, 60), (1, 0, 50)], {0: 52, 1: 50}, [(0, 52, 100)], Audit(150, 0, 8, 0)),
        ([(0, 0, 60), (1, 0, 50)], {0: 55, 1: 50}, [(0, 52, 100)], Audit(150, 0, 5, 3)),
        ([(0, 0, 60)], {0: 60}, [(0, 70, 100), (1, 0, 49)], Audit(139, 11, 0, 0)),
        # Live records first, then a gap in pieces, one of them twice.
        (
            [],
            {},
            [(0, 80, 100), (0, 0, 50), (0, 40, 80), (1, 0, 50)],
            Audit(150, 0, 0, 10),
        ),
        # Beyond the end that was asked for.
        ([(0, 0, 100)], {0: 100}, [(1, 0, 53)], Audit(153, 0, 0, 0)),
    ],
)
def test_an_audit_of_two_owners(first, known, second, expected):
    owned = runs(*first)
    assert audit(owned, runs(*second), ENDS, below(owned, known)) == expected


def test_a_log_keeps_runs_and_forgets_the_line_that_a_kill_cut_short(tmp_path):
    path = tmp_path / "log.csv"
    assert read_runs(path) == []
    log = RunLog(path)
    log.write(3, 1, [4, 5, 6, 9, 11, 12])
    log.write(4, 0, range(10, 20))
    log.close()
    with path.open("a") as file:
        file.write("5,0,20,2")
    assert read_runs(path) == [
        Run(3, 1, 4, 7),
        Run(3, 1, 9, 10),
        Run(3, 1, 11, 13),
        Run(4, 0, 10, 20),
    ]


def test_waits():
    assert waits_of([]) == {"records": 0, "p50_ms": None, "p99_ms": None}
    assert waits_of([*range(100, 0, -1)]) == {"records": 100, "p50_ms": 51, "p99_ms": 100}


def client_figures(form, first_live_s, rate, during_ms):
    waits = {"records": 9, "p50_ms": 5.0, "p99_ms": 10.0}
    return {
        "form": form,
        "protocol": "consumer",
        "first_live_s": first_live_s,
        "backlog": 1_000,
        "caught_up_s": 1_000 / rate,
        "records_per_second": rate,
        "records_per_cpu_second": rate,
        "before": waits,
        "during": {**waits, "p99_ms": during_ms},
        "after": {"records": 0, "p50_ms": None, "p99_ms": None},
        "audit": GOOD,
    }


def query_figures(form, first_live_s, batch_s):
    return {
        "form": form,
        "protocol": "consumer",
        "first_live_s": first_live_s,
        "batch_s": batch_s,
        "replay_s": 1.5,
        "backlog": 1_000,
        "caught_up_s": 12.0,
        "records_per_second": 83,
        "batches": 7,
        "audit": {**GOOD, "missing": 1},
    }


MEMORY = {
    "partitions": 50,
    "backlog": 50_000_000,
    "read": 20_000_000,
    "watched_s": 300.0,
    "first_half_mb": 170.0,
    "second_half_mb": 301.0,
    "peak_mb": 301.0,
}


def test_goals_are_judged_and_shown_beside_the_figures():
    clients = [client_figures("live", 0.2, 90, 25.0), client_figures("ordinary", 11.0, 100, 9_000)]
    queries = [query_figures("live", 3.9, 1.5), query_figures("ordinary", 9.0, 8.0)]
    held = {goal.what: goal.holds for goal in client_goals(clients)}
    assert held["client: assigned to first live record"]
    assert held["client: catching up ÷ reading the same backlog ordinarily"]
    assert not held["client: live p99 while catching up ÷ before"]
    assert [goal.holds for goal in query_goals(queries)] == [False, False, True]
    assert [goal.holds for goal in memory_goals([MEMORY])] == [False]
    shown = io.StringIO()
    goals = print_report(Console(file=shown, width=130), clients, queries, [MEMORY])
    assert len(goals) == 9
    expected = (
        "0.90",
        "3.90 s",
        "2.40 s",
        "≤ a batch + 1 s = 2.50 s",
        "2.5 (25 ÷ 10 ms)",
        "301 MB",
    )
    for part in expected:
        assert part in shown.getvalue(), part
    assert shown.getvalue().count("missed") == 4
    json.dumps([goal._asdict() for goal in goals])


def test_the_command_line_says_what_is_run():
    given = parse(["--quick", "--records", "500", "--protocol", "both", "--forms", "live,ordered"])
    assert (settings_of(given).records, settings_of(given).partitions) == (500, 4)
    names = [name for _, name, _ in planned(given, settings_of(given), None, None)]
    assert names == [
        "client, live, consumer",
        "client, ordered, consumer",
        "client, live, classic",
        "client, ordered, classic",
        "query, live, consumer",
        "query, live, classic",
    ]
    memory = parse(["--memory"])
    assert [kind for kind, _, _ in planned(memory, settings_of(memory), None, None)] == ["memory"]
    with pytest.raises(SystemExit):
        parse(["--what", "other"])
