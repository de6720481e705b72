from __future__ import annotations

import logging

import pytest
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.transport import log_repeats
from pyspark_kafka_rebalance.transport.log_repeats import log_repeats_once


def test_a_topic_that_is_gone_is_not_logged_with_every_request(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_repeats, "_logged_at", {})
    log_repeats_once()
    log_repeats_once()
    metadata = logging.getLogger("kafka.cluster")
    for _ in range(3):
        metadata.error("Topic %s not found in cluster metadata", "a")
        metadata.error("Topic %s not found in cluster metadata", "b")
        metadata.error("Error fetching metadata for topic %s: %s", "a", "no")
        logging.getLogger("kafka.consumer.fetcher").warning(
            "Received unknown topic or partition error in ListOffsets request for partition %s. "
            "The topic/partition may not exist or the user may not have Describe access to it.",
            TopicPartition("a", 0),
        )
    logged = [record.getMessage()[:40] for record in caplog.records]
    assert [logged.count(line) for line in dict.fromkeys(logged)] == [1, 1, 3, 1]
