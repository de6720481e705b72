"""parallelRebalance=live (KIP-333) with logs that have holes, with other options, over Connect."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance import stop_gracefully
from tests.compacted_log import CompactedLog

from . import waiting
from .conftest import SteadyProducer, offsets_of
from .test_catch_up import CAP, LIVE, ends_of, everything, last_offset, produce, wait_while_active

PATIENCE_S = 240.0

wait_until = partial(waiting.wait_until, patience_s=PATIENCE_S)

#: As in test_catch_up.py.
IDLING = {"processingTime": "100 milliseconds"}


class Run:
    """A query, and what it delivers."""

    def __init__(self, query, committed):
        self.query = query
        self._committed = committed

    def rows(self):
        """All rows of records so far."""
        found = [table for _, table in sorted(self.query.batches.items()) if table.num_rows]
        return pa.concat_tables(found) if found else pa.table({"partition": [], "offset": []})

    def offsets(self, caught_up=None):
        """The (partition, offset) of these, or of those alone that are (not) of a gap."""
        rows = self.rows()
        if caught_up is not None and rows.num_rows:
            rows = rows.filter(pc.equal(rows["catch_up"], caught_up))
        if rows.num_rows:
            rows = rows.filter(pc.is_valid(rows["offset"]))
        return offsets_of(rows)

    def reads_to(self, ends):
        self.query.start(**IDLING)
        self.until(lambda: self._committed() == ends, f"all is read, to {ends}")

    def until(self, done, what):
        wait_while_active([self.query], done, what)

    def stop(self):
        assert stop_gracefully(self.query.query, timeout_s=PATIENCE_S)


@pytest.fixture
def run(stream, committed):
    """Make the query that reads."""

    def make(**options):
        return Run(stream(**{**LIVE, **options}), committed)

    return make


def assert_no_more_than(found, expected):
    """As a difference that can be read."""
    assert sorted(set(found) - set(expected)) == [], "not expected"
    assert sorted(set(expected) - set(found)) == [], "missing"
    assert len(found) == len(set(found)), "twice"


def assert_one_gap_each(found, behind):
    """From where it was stopped, 10, to the log's end when it began again, which was not lower."""
    ends = {}
    for partition, offset in found:
        ends[partition] = max(ends.get(partition, 0), offset + 1)
    assert all(ends[p.partition] >= end for p, end in behind.items())
    gaps = {(partition, offset) for partition, end in ends.items() for offset in range(10, end)}
    assert_no_more_than(found, gaps)
    return gaps


# -- holes ----------------------------------------------------------------------------------------


def test_a_gap_is_compacted_before_it_is_read_and_in_its_midst(kafka, topic_name, run, committed):
    log = CompactedLog(kafka, topic_name)
    here = log.partition
    log.write(*range(1_000, 1_010))
    reading = run(readers="2", maxCatchUpOffsetsPerTrigger="20")
    reading.reads_to({here: 10})
    reading.stop()
    log.write(*range(600))  # 10 to 609
    log.write(*range(0, 300, 2))  # 610 to 759: every second one of the first half is gone
    log.write(2_000)  # the active segment is never cleaned
    kept = [*range(10), *range(11, 310, 2), *range(310, 761)]
    log.wait_until_left(*kept)
    reading.query.start(**IDLING)
    reading.until(lambda: len(reading.offsets(caught_up=True)) > 60, "it catches up")
    reading.stop()
    offset = last_offset(reading.query)
    [gap] = offset.gaps[here]
    assert gap.end == 761, "nothing of the end of the gap is read, or this shows nothing"
    assert gap.start < 500
    log.write(*range(300, 600), 2_000)  # 761 to 1061
    log.write(*range(0, 300, 2))  # 1062 to 1211: the gap ends with a hole
    log.write(3_000)
    left = [*kept[: kept.index(310)], *range(761, 1_213)]
    log.wait_until_left(*left)
    del reading.query.options[CAP]
    reading.reads_to({here: log.end})
    found = [o for _, o in reading.offsets()]
    assert found == sorted({*found}), "twice"
    before = {o for o in found if o < gap.start}
    assert before >= {o for o in kept if o < gap.start}
    assert [o for o in found if o >= gap.start] == [o for o in left if o >= gap.start]


@pytest.mark.parametrize("ending", ["committed", "aborted"])
def test_transactions_in_a_gap_and_an_open_one_where_it_ends(
    kafka, topic_name, run, committed, ending
):
    kafka.create_topic(topic_name)
    here = TopicPartition(topic_name, 0)
    log = KafkaConsumer(bootstrap_servers=kafka.bootstrap_servers)
    producer = KafkaProducer(
        bootstrap_servers=kafka.bootstrap_servers,
        transactional_id=topic_name,
        # One is open while queries start, read and stop. The broker aborts it after a minute else.
        transaction_timeout_ms=600_000,
        linger_ms=5,
    )
    producer.init_transactions()

    def begin(count):
        producer.begin_transaction()
        for number in range(count):
            producer.send(topic_name, b"%d" % number, partition=0)
        producer.flush()

    def end(how):
        before = log.end_offsets([here])[here]
        (producer.commit_transaction if how == "committed" else producer.abort_transaction)()
        wait_until(lambda: log.end_offsets([here])[here] > before, "the marker")

    kafka.produce(topic_name, [b"x"] * 10, partition=0)
    reading = run(
        readers="2", maxCatchUpOffsetsPerTrigger="40", kafka__isolation__level="read_committed"
    )
    reading.reads_to({here: 10})
    reading.stop()
    kafka.produce(topic_name, [b"x"] * 300, partition=0)  # 10 to 309
    begin(200)  # 310 to 509
    end("aborted")  # 510
    kafka.produce(topic_name, [b"x"] * 300, partition=0)  # 511 to 810
    begin(40)  # 811 to 850
    kafka.produce(topic_name, [b"x"] * 60, partition=0)  # 851 to 910
    reading.query.start(**IDLING)
    reading.until(lambda: len(reading.offsets(caught_up=True)) > 100, "it catches up")
    reading.stop()
    [gap] = last_offset(reading.query).gaps[here]
    assert gap.end == 811, "the last stable offset"
    del reading.query.options[CAP]
    kafka.produce(topic_name, [b"x"] * 10, partition=0)  # 911 to 920
    reading.reads_to({here: 811})
    stable = [*range(310), *range(511, 811)]
    assert [o for _, o in reading.offsets()] == stable
    end(ending)  # 921
    since = [*range(811 if ending == "committed" else 851, 921)]
    reading.until(lambda: committed() == {here: 922}, "what was open")
    assert [o for _, o in reading.offsets()] == [*stable, *since]
    assert [o for _, o in reading.offsets(caught_up=True)] == stable[10:]
    reading.query.stop()
    producer.close()
    log.close()


# -- other options --------------------------------------------------------------------------------

OPTIONS = {
    "headers": {"includeHeaders": "true"},
    "events": {"includeRebalanceEvents": "true", "includeHeaders": "true"},
    "tasks": {"minPartitions": "7", "readers": "3"},
    "bytes": {"maxBytesPerTrigger": "3000"},
    "minimum": {"minOffsetsPerTrigger": "40", "maxTriggerDelay": "1s"},
    # The last few may be less than the minimum: without a delay they would wait for 15 minutes.
    "offsets": {"maxOffsetsPerTrigger": "20", "minOffsetsPerTrigger": "5", "maxTriggerDelay": "1s"},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_column_tells_gap_from_live_with_other_options(
    kafka, topic_name, run, committed, options
):
    kafka.create_topic(topic_name, partitions=2)
    produce(kafka, topic_name, 20)
    reading = run(**{"maxCatchUpOffsetsPerTrigger": "700", **options})
    reading.reads_to(ends_of(kafka, topic_name))
    reading.stop()
    headers = [[("n", b"%d" % n)] for n in range(3_000)]
    kafka.produce(topic_name, [b"%0100d" % n for n in range(3_000)], headers=headers)
    behind = ends_of(kafka, topic_name)
    # Of 20 offsets a trigger not many can wait in the end, where a trigger takes seconds.
    limited = {"maxOffsetsPerTrigger", "maxBytesPerTrigger"} & options.keys()
    per_second = 10 if limited else 100
    with SteadyProducer(kafka, topic_name, partitions=2, per_second=per_second) as producer:
        reading.query.start(**IDLING)
        reading.until(
            lambda: all(committed()[p] > end for p, end in behind.items()), "it has caught up"
        )
        producer.stop()
        ends = ends_of(kafka, topic_name)
        reading.until(lambda: committed() == ends, "all is read")
    reading.stop()
    gaps = assert_one_gap_each(reading.offsets(caught_up=True), behind)
    assert_no_more_than(reading.offsets(caught_up=False), everything(ends).keys() - gaps)
    rows = reading.rows()
    assert rows["catch_up"].null_count == 0
    if "includeHeaders" in options:
        records = rows.filter(pc.is_valid(rows["offset"])).to_pylist()
        for row in records:
            where = TopicPartition(topic_name, row["partition"])
            given = 10 <= row["offset"] < behind[where]
            value = b"%d" % int(row["value"])
            assert row["headers"] == ([{"key": "n", "value": value}] if given else None)
    if "includeRebalanceEvents" in options:
        events = rows.filter(pc.is_valid(rows["event"]))
        assert events.num_rows > 0
        assert set(events["catch_up"].to_pylist()) == {False}
    if "maxOffsetsPerTrigger" in options:
        for table in reading.query.batches.values():
            live = table.filter(pc.equal(table["catch_up"], False))
            assert live.num_rows <= 20
            assert table.num_rows - live.num_rows <= 700


# -- Spark Connect --------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.newest_spark
def test_through_spark_connect_a_restart_reads_live_records_and_the_gap(
    kafka, topic_name, group_id, stream, spark, tmp_path
):
    pytest.importorskip("grpc", reason="Spark Connect's client needs the extra pyspark[connect]")
    kafka.create_topic(topic_name, partitions=2)
    service = getattr(spark._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    url = f"sc://127.0.0.1:{getattr(service, 'MODULE$').localPort()}"
    # Without checkpointLocation, which the source of a remote server need not have.
    options = stream(**LIVE, maxCatchUpOffsetsPerTrigger="200", checkpointLocation="").options

    def client(*what):
        ran = subprocess.run(
            [
                sys.executable,
                str(Path(__file__).with_name("connect_catch_up_client.py")),
                url,
                json.dumps(options),
                str(tmp_path / "rows"),
                *what,
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    produce(kafka, topic_name, 20)
    assert "catches up: False" in client("20")
    produce(kafka, topic_name, 5_000)
    behind = ends_of(kafka, topic_name)
    with SteadyProducer(kafka, topic_name, partitions=2, per_second=100):
        assert "catches up: True" in client("600")
    ends = ends_of(kafka, topic_name)
    assert "catches up: False" in client(str(sum(ends.values())))
    assert kafka.committed(group_id) == ends
    rows = pq.read_table(tmp_path / "rows")
    assert_no_more_than(offsets_of(rows), everything(ends))
    caught_up = {*offsets_of(rows.filter(rows["catch_up"]))}  # and what came in between the runs
    assert caught_up >= {(p.partition, o) for p, end in behind.items() for o in range(10, end)}
    assert not any(offset < 10 for _, offset in caught_up)
    assert len(caught_up) < rows.num_rows - 20, "live ones, too"
