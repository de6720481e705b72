"""Queries on a standalone cluster: a master, two workers, executors with a Python of their own.

The package must be installed in the Python that runs this.
"""

from __future__ import annotations

import time

import pyarrow.compute as pc

from ..spark.conftest import SteadyProducer

PATIENCE_S = 240.0  # ten JVMs


def partitions_read_by(queries, name, since=0.0):
    ledger = queries.ledger()
    if not ledger.num_rows:
        return set()
    mine = pc.and_(pc.equal(ledger["reader"], name), pc.greater(ledger["completed_at"], since))
    return set(ledger.filter(mine)["partition"].to_pylist())


def test_two_queries_share_a_topic_on_two_workers(kafka, topic_name, queries, cluster):
    kafka.create_topic(topic_name, partitions=4)
    with SteadyProducer(kafka, topic_name, partitions=4, per_second=400) as producer:
        first = queries.start_on(cluster.master, "A")
        first.wait_for_batch(timeout_s=PATIENCE_S)
        before = cluster.finished_tasks()
        first.wait_for_batch(timeout_s=PATIENCE_S)
        first.wait_for_batch(timeout_s=PATIENCE_S)
        assert all(now > then for now, then in zip(cluster.finished_tasks(), before, strict=True))
        second = queries.start_on(cluster.master, "B", cores=1, readers="1")
        second.wait_for_batch(timeout_s=PATIENCE_S)
        joined_at = time.time()
        deadline = time.monotonic() + PATIENCE_S

        def read_since():
            return [partitions_read_by(queries, name, joined_at) for name in "AB"]

        while not (all(read_since()) and set.union(*read_since()) == {0, 1, 2, 3}):
            assert time.monotonic() < deadline, read_since()
            time.sleep(0.5)
        assert not set.intersection(*read_since()), "one owner for each"
        second.stop()
        producer.stop()
        result = queries.wait_until_all_is_read()
    assert result.lost == {}
    assert result.duplicated == 0
    assert result.records > 1_000
    first.stop()
