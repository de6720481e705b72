"""The table of what a producer has committed."""

from __future__ import annotations

from pyspark_kafka_rebalance import ProducerProgress, SourcePartitionProgress

PROGRESS = ProducerProgress(
    "db1",
    "member-1",
    "db1.1",
    generation=4,
    source_partition_count=3,
    to_be_revoked=frozenset({2}),
    source_partitions=(
        SourcePartitionProgress(0, "member-1", "<4711:3>", 1200, 20.5, 0.25),
        SourcePartitionProgress(2, "member-1", None, 0, 0.0, None),
    ),
)
STANDBY = ProducerProgress("db1", "", "db1.2", -1, 3, frozenset(), ())


def test_as_text() -> None:
    assert str(PROGRESS).splitlines() == [
        "producer group db1: 2 of 3 source partitions",
        "member member-1, generation 4",
        "source partition  restart point  records  records/s  last commit",
        "0                 <4711:3>       1200     20.5       0.2 s ago",
        "2 (revoking)      -              0        0.0        -",
    ]
    assert PROGRESS.line == (
        "producer group db1: 2 of 3 source partitions, generation 4, 1200 records, "
        "20.5 records/s, last commit 0.2 s ago"
    )
    assert STANDBY.line.endswith(
        "0 of 3 source partitions, generation -1, 0 records, 0.0 records/s, last commit -"
    )
    assert str(STANDBY).splitlines()[1:] == ["member -, generation -1", "on standby"]


def test_in_a_notebook() -> None:
    table = PROGRESS._repr_html_()
    assert "<td>&lt;4711:3&gt;</td>" in table
    assert table.count("<tr>") == 3
    assert "on standby" in STANDBY._repr_html_()


def test_in_pandas() -> None:
    frame = PROGRESS.to_pandas()
    assert list(frame["source_partition"]) == [0, 2]
    assert frame["last_commit_age_s"].isna().tolist() == [False, True]
    assert STANDBY.to_pandas().empty


def test_as_a_sequence() -> None:
    assert len(PROGRESS) == 2
    assert [each.source_partition for each in PROGRESS] == [0, 2]
    assert PROGRESS.records_per_s == 20.5
