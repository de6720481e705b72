"""Async progress tracking: Spark logs where batches end now and then, after they have run.

A kill makes it forget the batches that it has not logged, and run them again as part of a later
one. The group must not be ahead of the log by then: a sink may have lost what Spark has forgotten.
"""

from __future__ import annotations

import json
from functools import partial

import pyarrow.compute as pc
import pytest

from pyspark_kafka_rebalance.source.offsets.offset_json import parse_offset
from pyspark_kafka_rebalance.testing.ledger import tally

from . import waiting
from .conftest import SteadyProducer

PATIENCE_S = 240.0

wait_until = partial(waiting.wait_until, patience_s=PATIENCE_S)


def every(milliseconds):
    """The sink's options: Spark logs no more often than this."""
    return {
        "asyncProgressTrackingEnabled": "true",
        "asyncProgressTrackingCheckpointIntervalMs": str(milliseconds),
        # foreachBatch, which keeps the ledger, is none of the sinks that Spark allows.
        "_asyncProgressTrackingOverrideSinkSupportCheck": "true",
    }


def logged(folder):
    return sorted(int(entry.name) for entry in folder.iterdir() if entry.name.isdigit())


@pytest.mark.several_sparks
def test_kill_9_forgets_nothing_that_is_not_in_sparks_log(
    kafka, topic_name, queries, committed, tmp_path
):
    kafka.create_topic(topic_name, partitions=3)
    offsets, commits = (tmp_path / "checkpoint-A" / name for name in ("offsets", "commits"))

    def positions_in_log():
        positions = {}  # an entry is silent of what had nothing new and is committed
        for number in logged(offsets):
            text = (offsets / str(number)).read_text()
            positions |= parse_offset(json.loads(text.splitlines()[-1])).positions()
        return positions

    with SteadyProducer(kafka, topic_name, partitions=3, per_second=300) as producer:
        short = {"kafka__session__timeout__ms": "6000"}
        query = queries.start("A", batch_s=3.0, writer_options=every(10_000), **short)
        under_way, unlogged = 0, set()
        while not unlogged or logged(offsets)[-1] != under_way:
            under_way = query.wait_for("began", timeout_s=PATIENCE_S)["batch"]
            # In this order: what is committed first must be in the log by the time it is read.
            in_group, in_log = committed(), positions_in_log()
            ahead = {p: o for p, o in in_group.items() if o > in_log.get(p, 0)}
            assert ahead == {}, f"the group is ahead of Spark's log: {in_log}"
            unlogged = set(range(1, under_way)) - set(logged(offsets))
        query.kill()
        durable = logged(commits)[-1]
        assert durable < under_way, "the batch under way was done"
        first_attempt = set(queries.ledger()["attempt"].to_pylist())
        again = queries.start("A", batch_s=0.0, writer_options=every(500), **short)
        again.wait_for_batch(timeout_s=PATIENCE_S)
        producer.stop()
        assert queries.wait_until_all_is_read(PATIENCE_S).lost == {}
        ends = queries.ends()
        # An idle stream is committed in the end as well: empty batches make Spark go on.
        wait_until(lambda: committed() == ends, "the last batches are committed")
    ledger = queries.ledger()
    forgotten = pc.and_(
        pc.is_in(ledger["attempt"], pc.cast(list(first_attempt), ledger["attempt"].type)),
        pc.greater(ledger["batch"], durable),
    )
    assert pc.any(forgotten).as_py(), "no batch was forgotten, so this proves nothing"
    kept = ledger.filter(pc.invert(forgotten))
    assert tally(kept, ends).lost == {}, "what Spark has forgotten is not read again"


def test_async_progress_tracking_is_for_processing_time_alone(kafka, topic_name, stream):
    """Which is why AvailableNow and Once may take their last batch for logged."""
    kafka.create_topic(topic_name, partitions=1)
    for trigger in ({"availableNow": True}, {"once": True}):
        with pytest.raises(Exception, match="Async progress tracking cannot be used with"):
            stream(writer_options=every(1_000)).run(**trigger)
