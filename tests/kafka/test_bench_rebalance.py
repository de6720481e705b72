"""The scenario of the benchmark on a real broker: its judge must see what a peer does wrong."""

from __future__ import annotations

import pytest

from benchmarks.rebalance.clients.java import java_with_compiler
from benchmarks.rebalance.judge import judge
from benchmarks.rebalance.peers import chosen
from benchmarks.rebalance.scenario import Settings, Trial, run

QUICK = Settings(calm_s=1.0, longest_s=1.0)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "drain"),
    [
        ("ours-classic", True),
        ("ours-consumer", True),
        ("java-cooperative", True),
        ("kafka-python-cooperative", False),
    ],
)
def test_only_a_member_that_does_not_drain_delivers_twice(kafka, topic_name, tmp_path, name, drain):
    (peer,) = chosen([name])
    if peer.client == "java":
        try:
            java_with_compiler()
        except RuntimeError as error:
            pytest.skip(str(error))
    stages: list[str] = []
    course = run(Trial(QUICK, peer, drain, kafka, topic_name, tmp_path), stages.append)
    verdict = judge(peer, course, drain=drain)
    assert [join.name for join in verdict.joins] == ["B joins", "C joins"]
    # 12 partitions, cooperative: 6 stay and 6 move, then 8 stay and 4 move.
    assert [(join.kept, join.moved) for join in verdict.joins] == [(6, 6), (8, 4)]
    assert verdict.holes == 0
    assert verdict.records == sum(course.end_offsets.values())
    assert (verdict.duplicates == 0) == drain
    assert (verdict.drained_to_first_s is not None) == drain
    assert stages == [
        "starts",
        "A joins",
        "before B joins",
        "B joins",
        "before C joins",
        "C joins",
        "reads the rest",
    ]
