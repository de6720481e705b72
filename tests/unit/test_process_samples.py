"""The judge of soaks: who is who among the processes, what climbs, and what is only noise."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace
from random import Random

import pytest

from tests.chaos.flatness import (
    BESIDE_HEAP_MB,
    LEAST_RUNS,
    LEAST_S,
    LIMITS,
    judge,
    medians,
    slope,
    trend,
    unbounded,
    without_warm_up,
)
from tests.chaos.process_samples import Process, Sample, heap_limit_mb, roles, take_samples

EVERY_S = 5.0
HOUR_S = 3_600.0


def life(role="q1 planner", since=0.0, until=HOUR_S, pid=1, heap_mb=None, **per_hour):
    """Samples of one process; what is named grows by so much an hour, and all of it trembles."""
    chance = Random(pid)
    found = []
    for n in range(int((until - since) / EVERY_S)):
        at = since + n * EVERY_S
        hours = (at - since) / HOUR_S
        trembling = chance.choice((-1, 0, 0, 0, 1))
        found.append(
            Sample(
                at,
                role,
                pid,
                since,
                memory_mb=80 + chance.random() + hours * per_hour.get("memory", 0),
                fds=int(20 + trembling + hours * per_hour.get("fds", 0)),
                threads=int(9 + trembling + hours * per_hour.get("threads", 0)),
                heap_mb=heap_mb,
            )
        )
    return found


def in_order(*lives):
    return sorted((sample for one in lives for sample in one), key=lambda sample: sample.at)


def climbing(*lives, **options):
    return {row.role: row.climbing for row in judge(in_order(*lives), **options) if row.climbing}


def runs(role="q2 planner", count=30, every_s=120.0, away_s=20.0, **rise):
    """One after another, each of which has so much more than the one before."""
    found = []
    for n in range(count):
        one = life(role, n * every_s, (n + 1) * every_s - away_s, pid=100 + n)
        found += [
            replace(
                sample,
                memory_mb=sample.memory_mb + n * rise.get("memory", 0),
                fds=sample.fds + n * rise.get("fds", 0),
            )
            for sample in one
        ]
    return found


# -- lines ----------------------------------------------------------------------------------------


def test_the_slope_is_that_of_the_line_and_of_least_squares():
    assert slope([(at, 7 + at / 600) for at in range(0, 1_000, 5)]) == pytest.approx(6.0)
    # y = 0, 0, 3 at x = 0, 1, 2 hours: the line's slope is 1.5.
    assert slope([(0, 0), (HOUR_S, 0), (2 * HOUR_S, 3)]) == pytest.approx(1.5)
    assert slope([(0, 5)]) == slope([]) == slope([(3, 1), (3, 9)]) == 0.0


def test_what_rises_in_the_warm_up_only_is_flat():
    points = [(at, min(at, 20.0)) for at in range(100)]
    assert slope(points) > 0
    assert slope(without_warm_up(points)) == pytest.approx(0.0)
    assert without_warm_up([]) == []


def test_an_outlier_in_a_minute_does_not_count():
    points = [(at, 1_000.0 if at % 60 == 55 else 3.0) for at in range(0, 600, 5)]
    assert [value for _, value in medians(points)] == [3.0] * 10
    assert trend(medians(points)).per_hour == 0.0


def test_the_error_of_a_slope():
    # 0, 1, 1 at 0, 1, 2 hours: residuals -1/6, 1/3, -1/6; one degree of freedom; spread 2.
    found = trend([(0, 0), (HOUR_S, 1), (2 * HOUR_S, 1)])
    assert found.per_hour == pytest.approx(0.5)
    assert found.error == pytest.approx((1 / 6 / 2) ** 0.5)
    assert trend([(0, 0), (HOUR_S, 1)]).error == 0.0


# -- processes ------------------------------------------------------------------------------------


def test_what_trembles_is_flat():
    (row,) = judge(life())
    assert (row.verdict, row.samples, row.runs) == ("flat", 720, 1)


@pytest.mark.parametrize("what", ["memory", "fds", "threads"])
def test_what_climbs_by_more_than_its_limit_is_found(what):
    limit = LIMITS["memory_mb" if what == "memory" else what]
    assert climbing(life(**{what: 2 * limit.per_hour})) == {"q1 planner": (what,)}
    assert climbing(life(until=3 * HOUR_S, **{what: limit.per_hour / 2})) == {}


def test_a_short_life_has_no_slope():
    (row,) = judge(life(until=LEAST_S / 2, memory=10_000))
    assert row.verdict == "short"


def test_a_rise_within_the_noise_is_none():
    """Four megabytes in ten minutes are 24 an hour, and may be a cache."""
    assert climbing(life(until=LEAST_S + 60, memory=24)) == {}
    assert climbing(life(until=LEAST_S + 60, memory=60)) == {"q1 planner": ("memory",)}


def test_a_rise_that_the_scatter_explains_is_none():
    chance = Random(7)
    scattered = [
        replace(sample, threads=300 + n // 120 + 60 * chance.randint(-1, 1) * (n // 12 % 2))
        for n, sample in enumerate(life())
    ]
    (row,) = judge(scattered)
    assert row.trends["threads"].per_hour > LIMITS["threads"].per_hour
    assert row.verdict == "flat"


def test_a_slope_above_the_limit_climbs_though_its_error_reaches_down_to_the_limit():
    chance = Random(2)
    scattered = [
        replace(sample, memory_mb=200 + 13 * sample.at / HOUR_S + chance.gauss(0, 9))
        for sample in life()
    ]
    (row,) = judge(scattered)
    found = row.trends["memory_mb"]
    assert 2 * found.error < LIMITS["memory_mb"].per_hour < found.per_hour
    assert found.per_hour - 2 * found.error < LIMITS["memory_mb"].per_hour
    assert row.verdict == "climbs: memory"


def test_a_command_that_is_over_at_the_next_look_has_no_row():
    assert judge([*life(), *life("q1 chmod", 50.0, 55.0, pid=2)]) == judge(life())


def test_a_heap_may_fill_up_and_descriptors_and_threads_of_a_jvm_may_not_grow():
    jvm = life("q1 JVM", heap_mb=600.0, memory=400)
    assert climbing(jvm) == {}
    assert climbing(life("q1 JVM", heap_mb=600.0, threads=12)) == {"q1 JVM": ("threads",)}
    beyond = [replace(s, memory_mb=s.memory_mb + 521 + BESIDE_HEAP_MB) for s in jvm[-3:]]
    assert climbing([*jvm[:-3], *beyond]) == {"q1 JVM": ("memory",)}


def test_who_keeps_the_history_may_grow_in_nothing_but_memory():
    may_grow = frozenset({"soak"})
    assert climbing(life("soak", memory=500), may_grow=may_grow) == {}
    assert climbing(life("soak", memory=500)) == {"soak": ("memory",)}
    assert climbing(life("soak", fds=60), may_grow=may_grow) == {"soak": ("fds",)}


def test_what_each_ended_query_leaves_in_its_driver_is_allowed():
    driver = life("q2 driver", threads=30, fds=30)
    assert climbing(driver) == {"q2 driver": ("fds", "threads")}
    assert climbing(driver, left_per_hour={"q2 driver": {"fds": 30.0, "threads": 30.0}}) == {}
    assert climbing(
        driver, left_per_hour={"q2 driver": {"fds": 20.0, "threads": 20.0}}
    ) == climbing(driver)
    growing = life("q2 driver", memory=100)
    assert climbing(growing, left_per_hour={"q2 driver": {"fds": 30.0, "threads": 30.0}}) == {
        "q2 driver": ("memory",)
    }


def test_what_is_left_may_come_a_little_sooner_or_later():
    """Four descriptors every two minutes, of which some minutes see up to ten more, in a JVM."""
    jvm = [
        replace(s, fds=s.fds + (10 if int(s.at // 60) % 2 else 0))
        for s in life("q2 JVM", heap_mb=600.0, fds=124)
    ]
    assert climbing(jvm) == {"q2 JVM": ("fds",)}
    assert climbing(jvm, left_per_hour={"q2 JVM": {"fds": 120.0}}) == {}
    assert climbing(jvm, left_per_hour={"q2 JVM": {"fds": 100.0}}) == climbing(jvm)


def test_restarts_are_judged_from_run_to_run():
    (row,) = judge(runs())
    assert (row.verdict, row.runs) == ("flat", 30)
    assert climbing(runs(memory=1)) == {"q2 planner": ("memory",)}
    assert climbing(runs(fds=1)) == {"q2 planner": ("fds",)}
    (row,) = judge(runs(count=LEAST_RUNS - 1, fds=50))
    assert row.verdict == "short"


def test_processes_that_are_left_behind_are_counted():
    left = [life("q2 planner", n * 120.0, HOUR_S, pid=100 + n) for n in range(30)]
    (verdict,) = climbing(*left).values()
    assert verdict == ("processes at once",)
    soon = [life("q2 planner", n * 60.0, LEAST_S / 2, pid=100 + n) for n in range(4)]
    assert climbing(*soon) == {}, "too short a time to say so"
    workers = [life("q1 worker", n * 120.0, (n + 2) * 120.0, pid=100 + n) for n in range(29)]
    assert climbing(*workers) == {}


def test_a_process_has_the_role_it_came_to_have():
    """Between fork and exec it looks like its parent."""
    planner = life()
    first = replace(planner[0], role="q1 JVM")
    assert [row.role for row in judge([first, *planner[1:]])] == ["q1 planner"]


def test_a_process_that_nobody_has_waited_for_had_its_role_before():
    lived = life(until=HOUR_S / 2)
    ended = [replace(s, role="q1 zombie") for s in life(since=HOUR_S / 2)]
    both = [*lived, *(replace(s, started=0.0) for s in ended)]
    assert [row.role for row in judge(both)] == ["q1 planner", "q1 zombie"]


def test_a_process_id_that_is_used_again_is_another_process():
    both = [*life(until=HOUR_S / 2), *life("q2 planner", HOUR_S / 2)]
    assert [(row.role, row.runs) for row in judge(both)] == [("q1 planner", 1), ("q2 planner", 1)]


# -- the group's lag ------------------------------------------------------------------------------


def lags(value):
    return [(at, float(value(at))) for at in range(0, 1_800, 5)]


def test_a_lag_that_comes_down_in_every_minute_is_bounded():
    assert unbounded(lags(lambda at: 3_000 if at % 60 < 40 else 200), rate=100) == []


def test_a_lag_that_does_not_come_down_is_not_bounded():
    (problem,) = unbounded(lags(lambda at: 2_000 if 600 <= at < 660 else 200), rate=100)
    assert problem.startswith("in 1 of 30 minutes, first in that after 10 min")


def test_a_lag_that_is_ever_a_minute_of_traffic_is_not_bounded():
    (problem,) = unbounded(lags(lambda at: 7_000 if at == 900 else 200), rate=100)
    assert problem.startswith("lag 7,000 after 15.0 min")


def test_minutes_without_looks_are_named():
    looks = [(at, lag) for at, lag in lags(lambda at: 200) if not 300 <= at < 480]
    (problem,) = unbounded(looks, rate=100)
    assert problem.startswith("in 3 of 30 minutes, first in that after 5 min, the lag was looked")


def test_a_minute_with_a_single_look_is_judged_by_it_and_named():
    looks = [(at, 5_000.0 if at == 300 else 200.0) for at in range(0, 600, 5)]
    looks = [(at, lag) for at, lag in looks if not 300 < at < 360]
    unseen, late = unbounded(looks, rate=100)
    assert unseen.startswith("in 1 of 10 minutes, first in that after 5 min, the lag was looked")
    assert late.startswith("in 1 of 10 minutes, first in that after 5 min, the lag never came down")


def test_a_last_look_that_begins_a_minute_is_not_a_minute():
    assert unbounded([*lags(lambda at: 200), (1_800, 5_000.0)], rate=100) == []


def test_readers_that_are_too_slow_have_no_bounded_lag():
    assert len(unbounded(lags(lambda at: 10 * at), rate=100)) == 2


# -- who is who -----------------------------------------------------------------------------------


def test_roles():
    daemon = "python3 -m pyspark.daemon pyspark.worker"
    commands = {
        1: (0, "python -m tests.chaos.soak"),
        2: (1, "python -m tests.chaos.plan_query {}"),
        3: (2, "java -Xmx600m org.apache.spark.deploy.SparkSubmit pyspark-shell"),
        4: (3, "python3 -m pyspark.sql.streaming.python_streaming_source_runner"),
        5: (3, daemon),
        6: (5, daemon),
        7: (3, "python3 -m pyspark.daemon pyspark.sql.worker.plan_data_source_read"),
        8: (1, "python -m tests.chaos.plan_member {}"),
        9: (1, "python -I -S watchdog.py 1 java -Xmx512m kafka.Kafka server.properties"),
        10: (9, "java -Xmx512m kafka.Kafka server.properties"),
        11: (3, ""),
        12: (3, "/usr/bin/chmod 700 x"),
        13: (0, "somebody else's"),
    }
    processes = {
        pid: Process(pid, parent, 0.0, command) for pid, (parent, command) in commands.items()
    }
    assert roles(processes, {1: "soak", 2: "q1", 8: "m1", 10: "broker 1"}) == {
        1: "soak",
        2: "q1 driver",
        3: "q1 JVM",
        4: "q1 planner",
        5: "q1 daemon",
        6: "q1 worker",
        7: "q1 daemon of plan_data_source_read",
        8: "m1",
        9: "soak watchdog",
        10: "broker 1",
        11: "q1 zombie",
        12: "q1 chmod",
    }


@pytest.mark.parametrize(
    ("command", "megabytes"),
    [
        ("/x/java -Xmx512m -cp x", 512),
        ("java -Xmx1g -Xmx2G", 2_048),
        ("java -cp x", None),
        ("python watchdog.py java -Xmx1g", None),
    ],
)
def test_heap_limits(command, megabytes):
    assert heap_limit_mb(command) == megabytes


def test_this_process_and_what_it_started():
    """What the kernel says goes up by what is taken."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        before = {s.pid: s for s in take_samples({os.getpid(): "tests"})}
        taken, done = bytearray(b"x" * 64_000_000), threading.Event()
        waiting = threading.Thread(target=done.wait)
        waiting.start()
        with open(os.devnull), open(os.devnull):
            after = {s.pid: s for s in take_samples({os.getpid(): "tests"})}
        done.set()
        waiting.join()
    finally:
        child.communicate()
    mine, was = after[os.getpid()], before[os.getpid()]
    assert len(taken) / 2**20 * 0.9 < mine.memory_mb - was.memory_mb
    assert (mine.fds - was.fds, mine.threads - was.threads) == (2, 1)
    assert mine.started == was.started
    assert child.pid in after
    assert after[child.pid].started >= mine.started
