"""How long a batch may take, and what is said of one that takes too long."""

from __future__ import annotations

from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.source.group.batches.open_batches import BatchTime, advice_on_overdue

P = TopicPartition("t", 0)


def test_each_batch_has_its_own_time() -> None:
    time = BatchTime(10.0)
    assert [time.is_over(1, now) for now in (0.0, 10.0, 10.1)] == [False, False, True]
    assert [time.is_over(2, now) for now in (10.2, 20.2, 20.3)] == [False, False, True]
    assert not time.is_over(None, 100.0)
    assert not time.is_over(2, 101.0), "as after a wait that did not count"


def test_without_a_limit_no_batch_takes_too_long() -> None:
    assert not any(BatchTime(None).is_over(1, now) for now in (0.0, 1e9))


def test_the_advice_names_what_is_not_done_yet() -> None:
    without, beside = advice_on_overdue([P], False), advice_on_overdue([P], True)
    for text in (without, beside):
        assert "t-0" in text
        assert "revokeTimeoutMs" in text
    assert "checkpointLocation" in without
    assert "checkpointLocation" not in beside
