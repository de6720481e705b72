"""What a producer group decides without a broker: boundaries, restart points, options, figures."""

from __future__ import annotations

import pickle
from typing import Any

import numpy
import pytest

from pyspark_kafka_rebalance import (
    OptionError,
    PartitionsLostError,
    ProducerEvents,
    ProducerProgress,
    SourcePartitionProgress,
    TransactionAbortedError,
)
from pyspark_kafka_rebalance.producer.boundaries import Boundaries
from pyspark_kafka_rebalance.producer.members.listener import ProducerRebalanceListener, tell
from pyspark_kafka_rebalance.producer.options import ProducerOptions
from pyspark_kafka_rebalance.producer.rates import Rates
from pyspark_kafka_rebalance.producer.restart_points import (
    MAX_BYTES,
    RestartPoint,
    check,
    chosen_points,
    encoded,
    key_of,
    last_of,
)


def at(now: float) -> Any:
    return lambda: now


# -- boundaries -----------------------------------------------------------------------------------


def test_without_boundaries_the_application_commits() -> None:
    boundaries = Boundaries(None, None)
    boundaries.sent([0], "a", at(0))
    assert not boundaries.due(1e9)
    assert not boundaries.due(1e9, hurry=True)
    assert boundaries.points() == {0: "a"}


def test_a_transaction_ends_after_its_interval_from_the_first_record_on() -> None:
    boundaries = Boundaries(1.0, None)
    assert not boundaries.due(100)
    boundaries.sent([0], "a", at(10))
    boundaries.sent([0], "b", at(10.9))
    assert not boundaries.due(10.99)
    assert boundaries.due(11)
    boundaries.end()
    boundaries.sent([0], "c", at(12))
    assert not boundaries.due(12.5)


def test_a_transaction_ends_after_so_many_records() -> None:
    boundaries = Boundaries(None, 2)
    boundaries.sent([0], "a", at(0))
    assert not boundaries.due(0)
    boundaries.sent([0], "b", at(0))
    assert boundaries.due(0)


def test_a_transaction_ends_only_where_each_source_partition_could_be_gone_on_with() -> None:
    boundaries = Boundaries(None, 1)
    boundaries.sent([0], "a", at(0))
    boundaries.sent([1], None, at(0))
    assert not boundaries.due(0)
    with pytest.raises(OptionError, match="source partitions without: 1"):
        boundaries.points()
    boundaries.sent([1], "b", at(0))
    assert boundaries.due(0)
    assert boundaries.points() == {0: "a", 1: "b"}


def test_a_restart_point_without_records_is_committed() -> None:
    """As of a source's result that is empty; a revoke waited for the transaction's timeout."""
    boundaries = Boundaries(1.0, 10)
    boundaries.sent([0], "a", at(10), records=0)
    assert not boundaries.due(10.9)
    assert boundaries.due(10.9, hurry=True)
    assert boundaries.due(11)
    boundaries.end()
    assert not boundaries.due(99, hurry=True)


def test_who_waits_for_the_end_of_a_transaction_gets_the_next_boundary() -> None:
    boundaries = Boundaries(60.0, None)
    boundaries.sent([0], None, at(0))
    assert not boundaries.due(0, hurry=True)
    boundaries.sent([0], "a", at(0))
    assert boundaries.due(0, hurry=True)


# -- restart points -------------------------------------------------------------------------------


def test_the_last_restart_point_of_its_own_key_counts() -> None:
    key = key_of("g", 1)
    rows = [(3, key, b"a"), (5, key, "ä".encode()), (6, key_of("other", 1), b"b")]
    assert last_of(key, rows) == RestartPoint("ä", 5)
    assert last_of(key, [*rows, (7, key, None)]) == RestartPoint(None, 7)
    assert last_of(key_of("g", 2), rows) is None


def test_a_restart_point_is_a_string_of_a_mebibyte_at_most() -> None:
    assert encoded("x" * MAX_BYTES) == b"x" * MAX_BYTES
    with pytest.raises(OptionError, match="not 1048577"):
        encoded("x" * (MAX_BYTES + 1))
    with pytest.raises(OptionError, match="1048576 bytes of UTF-8"):
        encoded("ä" * MAX_BYTES)
    for wrong in (5, "x" * (MAX_BYTES + 1), "ä" * MAX_BYTES, "\ud800"):
        with pytest.raises(OptionError):
            check(wrong)
    check("x" * MAX_BYTES)
    check("ä")


def test_a_single_restart_point_is_that_of_all_that_was_sent_of() -> None:
    owned = {0: None, 1: "a"}
    assert chosen_points("x", frozenset({1}), owned) == {1: "x"}
    assert chosen_points("x", frozenset(), owned) == {0: "x", 1: "x"}
    assert chosen_points("x", frozenset(), {}) == {}


def test_what_was_sent_of_needs_a_restart_point_or_it_would_be_sent_again() -> None:
    with pytest.raises(OptionError, match="without: 1"):
        chosen_points({0: "x"}, frozenset({1}), {0: None, 1: None})
    with pytest.raises(PartitionsLostError, match=r"partitions \[2\] are not owned.* \[0, 1\]"):
        chosen_points({2: "x"}, frozenset(), {0: None, 1: None})
    assert chosen_points({0: "x"}, frozenset(), {0: None, 1: None}) == {0: "x"}


@pytest.mark.parametrize("points", [{0.0: "x"}, {"0": "x"}, {True: "x"}, {None: "x"}, 3, ["x"]])
def test_restart_points_are_by_number(points: Any) -> None:
    with pytest.raises(OptionError, match=r"restart_points.*source partitions \(integers\)"):
        chosen_points(points, frozenset(), {0: None, 1: None})
    found = chosen_points({numpy.int64(0): "x"}, frozenset(), {0: None})
    assert [type(number) for number in found] == [int]


# -- options --------------------------------------------------------------------------------------


def test_a_transaction_may_last_longer_than_a_silence() -> None:
    options = ProducerOptions.checked("g", 3, session_timeout_ms=45_000)
    assert options.transaction_timeout_ms == 90_000
    assert options.revoke_timeout_ms == 90_000
    assert options.member["max_poll_interval_ms"] == 90_000
    assert ProducerOptions.checked("g", 3).transaction_timeout_ms == 60_000


def test_a_revoke_waits_no_longer_than_a_transaction_can_last() -> None:
    options = ProducerOptions.checked(
        "g", 3, session_timeout_ms=100_000, transaction_timeout_ms=60_000
    )
    assert options.revoke_timeout_ms == options.member["revoke_timeout_ms"] == 60_000
    assert options.member["max_poll_interval_ms"] == 100_000


def test_settings_go_to_the_clients_that_have_them() -> None:
    options = ProducerOptions.checked(
        "g",
        3,
        bootstrap_servers="b:1",
        linger_ms=5,
        heartbeat_interval_ms=500,
        value_serializer=str,
    )
    assert options.topic == "__producer_group.g"
    assert options.producer["linger_ms"] == 5
    assert options.producer["transactional_id"].startswith("g/")
    assert "value_serializer" not in options.producer, "it would be applied to restart points"
    assert options.serialized("t", None, b"k", 5) == (b"k", "5")
    assert options.member["heartbeat_interval_ms"] == 500
    assert "linger_ms" not in options.member
    for config in (options.producer, options.member, options.client):
        assert config["bootstrap_servers"] == ["b:1"]


def test_a_static_member_keeps_the_name_of_its_transactions() -> None:
    options = ProducerOptions.checked("g", 3, group_instance_id="one")
    assert options.transactional_id == "g/one"
    one = ProducerOptions.checked("shop", 3, group_instance_id="eu.1")
    other = ProducerOptions.checked("shop.eu", 3, group_instance_id="1")
    assert one.transactional_id != other.transactional_id, "they would fence each other for good"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("group_id", ""),
        ("source_partition_count", 0),
        ("source_partition_count", True),
        ("session_timeout_ms", 0),
        ("commit_records", 0),
        ("commit_interval_ms", 60_000),
        ("group_instance_id", "a/b"),
        ("transactional_id", "mine"),
        ("acks", 1),
        ("enable_idempotence", True),
        ("partition_assignment_strategy", ()),
        ("max_poll_interval_ms", 5),
        ("no_such_setting", 5),
        ("buffer_memory", 0),
        ("compression_type", "brotli"),
    ],
)
def test_what_is_not_allowed_is_named_before_anything_is_connected(option: str, value: Any) -> None:
    given = {"group_id": "g", "source_partition_count": 3} | {option: value}
    with pytest.raises(OptionError) as refused:
        ProducerOptions.checked(**given)
    assert refused.value.option == option


@pytest.mark.parametrize(
    ("option", "value", "instead"),
    [
        ("partitioner", object(), r"send\(partition="),
        ("retries", 5, "delivery_timeout_ms"),
    ],
)
def test_what_the_producer_does_without_names_what_to_use_instead(
    option: str, value: Any, instead: str
) -> None:
    with pytest.raises(OptionError, match=instead):
        ProducerOptions.checked("g", 3, **{option: value})
    assert "retries" not in ProducerOptions.checked("g", 3, retries=float("inf")).producer


def test_what_only_the_member_has_is_no_setting_of_the_producer() -> None:
    options = ProducerOptions.checked("g", 3, metric_reporters=[], buffer_memory=1_000_000)
    assert "metric_reporters" in options.member
    assert "metric_reporters" not in options.producer
    assert options.producer["buffer_memory"] == 1_000_000
    assert "buffer_memory" not in options.member


# -- what is told ---------------------------------------------------------------------------------


def test_a_listener_is_told_what_is_gone_before_what_is_new() -> None:
    told = []

    class Listener(ProducerRebalanceListener):
        def on_partitions_assigned(self, restart_points: dict[int, str | None]) -> None:
            told.append(("assigned", restart_points))

        def on_partitions_lost(self, source_partitions: frozenset[int]) -> None:
            told.append(("lost", source_partitions))

    tell(Listener(), ProducerEvents({1: "a"}, frozenset({2}), frozenset({3}), frozenset({4})))
    assert told == [("lost", frozenset({4})), ("assigned", {1: "a"})]


def test_an_abort_says_where_to_go_on_also_in_another_process() -> None:
    error = pickle.loads(pickle.dumps(TransactionAbortedError("fenced", {1: "a"})))
    assert str(error) == "the transaction was aborted: fenced"
    assert error.restart_points == {1: "a"}


def test_rates_are_of_the_last_half_minute() -> None:
    rates = Rates()
    assert rates.per_second(0, 0) == 0
    assert rates.age_s(0, 0) is None
    for second in range(100):
        rates.committed({0: 50}, float(second))
    assert rates.per_second(0, 99) == pytest.approx(50)
    assert rates.total(0) == 5_000
    assert rates.age_s(0, 101) == 2
    assert rates.per_second(0, 1_000) == 0


def test_a_rate_does_not_need_two_commits_in_half_a_minute() -> None:
    rates = Rates()
    rates.committed({0: 40_000}, 0.0)
    assert rates.per_second(0, 1.0) == 0, "who knows how long that took"
    for at in (40.0, 80.0):
        rates.committed({0: 40_000}, at)
        assert rates.per_second(0, at) == 1_000
        assert rates.per_second(0, at + 10) == 800
    for at in (500.0, 501.0, 502.0):
        rates.committed({0: 50}, at)
    assert rates.per_second(0, 502.0) == 50, "not since the one before the pause"


def test_progress_is_a_table() -> None:
    progress = ProducerProgress(
        "db1",
        "m-1",
        "db1.x",
        4,
        3,
        frozenset({2}),
        (
            SourcePartitionProgress(0, "m-1", None, 0, 0.0, None),
            SourcePartitionProgress(2, "m-1", "12:34:00", 1_200, 40.0, 0.25),
        ),
    )
    assert str(progress).splitlines() == [
        "producer group db1: 2 of 3 source partitions",
        "member m-1, generation 4",
        "source partition  restart point  records  records/s  last commit",
        "0                 -              0        0.0        -",
        "2 (revoking)      12:34:00       1200     40.0       0.2 s ago",
    ]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(
            ("group_id", name)
            for name in ("", 5, "a b", "a/b", "\u65e5\u672c", "g" * 233, "\ud800")
        ),
        *(("restart_topic", name) for name in ("a b", "t" * 250, "..", 5)),
    ],
)
def test_names_that_kafka_refuses(option: str, value: Any) -> None:
    """Before anything connects; a group that makes no topic name can have its topic named."""
    given = {"group_id": "g", "source_partition_count": 1, option: value}
    with pytest.raises(OptionError, match=option):
        ProducerOptions.checked(**given)
    if option == "group_id" and isinstance(value, str) and value not in ("", "\ud800"):
        assert ProducerOptions.checked(**given, restart_topic="t").topic == "t"
