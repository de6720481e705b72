"""ClusterQueries: what kafka-python answers wrongly, as an error of Kafka's."""

from __future__ import annotations

from unittest import mock

import pytest
from kafka import KafkaConsumer
from kafka.errors import LeaderNotAvailableError
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.consumer.cluster_queries import ClusterQueries

P = TopicPartition("orders", 0)


@pytest.mark.parametrize("asked", ["beginning_offsets", "end_offsets"])
def test_a_leader_that_goes_away_meanwhile_is_a_passing_error(asked: str) -> None:
    consumer = ClusterQueries.__new__(ClusterQueries)
    with (
        mock.patch.object(KafkaConsumer, asked, side_effect=KeyError(P)),
        pytest.raises(LeaderNotAvailableError, match="orders") as caught,
    ):
        getattr(consumer, asked)([P], 1_000)
    assert caught.value.retriable
    with mock.patch.object(KafkaConsumer, asked, return_value={P: 7}):
        assert getattr(consumer, asked)([P], 1_000) == {P: 7}
