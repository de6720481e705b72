"""The checkpoint of a running query, read by its source from an S3 server."""

from __future__ import annotations

import time

from kafka.structs import TopicPartition

from tests.s3_server import FolderAsBucket

PATIENCE_S = 60.0


def test_stop_finds_the_last_batch_in_the_store(kafka, topic_name, stream, committed, tmp_path):
    """Once runs a single trigger, so that nothing but the commit log tells of its batch."""
    kafka.create_topic(topic_name, partitions=2)
    kafka.produce(topic_name, [b"x"] * 20)
    with FolderAsBucket(tmp_path) as store:
        assert stream(checkpointLocation=store.uri("query")).run(once=True).num_rows == 20
        deadline = time.monotonic() + PATIENCE_S
        while committed() != {TopicPartition(topic_name, p): 10 for p in range(2)}:
            assert time.monotonic() < deadline, committed()
            time.sleep(0.05)
