"""maxTaskIdleMs where it is hard: leaders away, queries of one group, gaps, holes, topics anew.

In each of these every record comes once, and none later than promised.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance import stop_gracefully
from pyspark_kafka_rebalance.testing.brokers.metadata import ask_broker
from tests.compacted_log import CompactedLog

from . import waiting
from .conftest import many_batches
from .test_event_time import MINUTE_MS, SINCE_MS, lateness, produce, spread

PATIENCE_S = 240.0

wait_until = partial(waiting.wait_until, patience_s=PATIENCE_S)

pytestmark = pytest.mark.newest_spark

#: As in test_catch_up.py.
IDLING = {"processingTime": "100 milliseconds"}

#: Nobody is thought dead on a machine that is busy, nor while two of three brokers are away.
ALIVE = {"kafka__session__timeout__ms": "120000"}


class Written:
    """What is produced, every value once."""

    def __init__(self, kafka):
        self._kafka = kafka
        self.values = []

    def __call__(self, topic, timestamps, partition=0):
        values = [b"%d" % (len(self.values) + n) for n in range(len(timestamps))]
        self._kafka.produce(topic, values, partition=partition, timestamps_ms=timestamps)
        self.values += values
        return values


class Watched:
    """A query whose sink may be held: what is produced meanwhile is planned together."""

    def __init__(self, query):
        self.query = query
        self._open = threading.Event()
        self._open.set()
        self._held = threading.Event()
        query.on_batch = self._pass

    def _pass(self, batch_id, rows):
        if rows.num_rows and not self._open.is_set():
            self._held.set()
            assert self._open.wait(PATIENCE_S)

    def hold(self, wake):
        """From the next batch with rows on, which this brings about."""
        self._held.clear()
        self._open.clear()
        wake()
        self.until(self._held.is_set, "a batch is held")

    def release(self):
        self._open.set()

    def until(self, done, what):
        def still():
            assert self.query.query.isActive, f"{what}: {self.query.query.exception()}"
            return done()

        wait_until(still, what)

    def records(self, caught_up=None):
        """By batch; of all, or of those alone that are (not) of a gap."""
        found = {}
        for number, rows in sorted(self.query.batches.items()):
            kept = rows.filter(pc.is_valid(rows["offset"])) if rows.num_rows else rows
            if caught_up is not None and kept.num_rows:
                kept = kept.filter(pc.equal(kept["catch_up"], caught_up))
            if kept.num_rows:
                found[number] = kept
        return found

    def column(self, name):
        return [each for rows in self.records().values() for each in rows[name].to_pylist()]


def assert_each_once(written, *queries):
    found = Counter(value for query in queries for value in query.column("value"))
    expected = set(written.values)
    assert [v for v in expected if v not in found] == [], "lost"
    assert [v for v, times in found.items() if times > 1] == [], "twice"
    assert found.keys() == expected


# -- leaders, and queries of one group ------------------------------------------------------------


def partitions_of(kafka3, topic, broker_id):
    """As this broker knows them."""
    address = kafka3.bootstrap_servers.split(",")[kafka3.broker_ids.index(broker_id)]
    (told,) = ask_broker(int(address.rpartition(":")[2]), (topic,)).topics
    return told.partitions


def leaders_of(kafka3, topic, broker_id=1):
    """By partition."""
    return {p.partition_index: p.leader_id for p in partitions_of(kafka3, topic, broker_id)}


def test_a_query_waits_for_its_own_leaders_and_not_for_another_query(quorum, topic_name, stream):
    quorum.create_topic(topic_name, partitions=3, replication_factor=1)
    leaders = leaders_of(quorum, topic_name)
    assert len({*leaders.values()}) == 3
    options = {
        "kafka__bootstrap__servers": quorum.bootstrap_servers,
        "kafka__metadata__max__age__ms": "1000",
        "readers": "1",
        "maxTaskIdleMs": "0",
        "maxOffsetsPerTrigger": "60",
    }
    queries = [Watched(stream(name, **options, **ALIVE)) for name in ("one", "other")]
    written = Written(quorum)
    for query in queries:
        query.query.start(**IDLING)

    def owners(second):
        """By partition, who reads a record of it."""
        values = {p: written(topic_name, [SINCE_MS + second * 1_000], p)[0] for p in range(3)}

        def found():
            return {p: q for p, v in values.items() for q in queries if v in q.column("value")}

        queries[0].until(lambda: len(found()) == 3, "all are read")
        return found()

    second = 0
    while len({*(owned := owners(second)).values()}) < 2:
        second += 1
        assert second < 600, "the second query gets nothing"
    counts = Counter(owned.values())
    waits, goes_on = sorted(queries, key=counts.__getitem__, reverse=True)
    behind, ahead = (p for p, query in owned.items() if query is waits)
    (others,) = (p for p, query in owned.items() if query is goes_on)

    waits.hold(lambda: written(topic_name, [SINCE_MS + 599_000], behind))
    written(topic_name, spread(300, 10, 5), behind)
    quorum.stop(leaders[behind])
    later = [set(written(topic_name, spread(300, 20, 5), p)) for p in (ahead, others)]
    waits.release()
    goes_on.until(lambda: later[1] <= {*goes_on.column("value")}, "the other query goes on")
    waits.until(
        lambda: waits.query.query.status["message"] == "Waiting for data to arrive",
        "it has looked for more than it held",
    )
    assert later[0].isdisjoint(waits.column("value")), "its leader is there, but not all are"
    quorum.restart(leaders[behind])
    waits.until(lambda: later[0] <= {*waits.column("value")}, "it is back")
    waits.until(
        lambda: sum(len(q.column("value")) for q in queries) >= len(written.values), "all is read"
    )
    assert_each_once(written, *queries)
    for query in queries:
        assert lateness(query.records()) == 0
        query.query.stop()


@pytest.mark.long
def test_what_an_unclean_election_takes_back_bounds_no_batch(quorum, topic_name, stream):
    """It was told to be there, behind the position, when the first batch was planned."""
    cut, whole = f"{topic_name}-cut", f"{topic_name}-whole"
    unclean = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    quorum.create_topic(cut, partitions=1, replication_factor=2, config=unclean)
    quorum.create_topic(whole, partitions=1, replication_factor=3)

    def seconds(since, count):
        return [SINCE_MS + second * 1_000 for second in range(since, since + count)]

    written = Written(quorum)
    written(cut, seconds(0, 100))
    written(whole, seconds(0, 400))
    (partition,) = partitions_of(quorum, cut, 1)
    leader = partition.leader_id
    (follower,) = {*partition.replica_nodes} - {leader}
    quorum.stop(follower)
    produce(
        quorum, cut, seconds(100, 100)
    )  # by a producer of its own: sequences are taken back, too
    reading = Watched(
        stream(
            kafka__bootstrap__servers=quorum.bootstrap_servers,
            kafka__metadata__max__age__ms="1000",
            subscribe=f"{cut},{whole}",
            maxTaskIdleMs="500",
            maxOffsetsPerTrigger="20",
            **ALIVE,
        )
    )
    reading.hold(lambda: reading.query.start(**IDLING))
    quorum.kill(leader)
    quorum.restart(follower)

    wait_until(lambda: leaders_of(quorum, cut, follower) == {0: follower}, "it is elected")
    written(cut, seconds(1_100, 100))
    reading.release()
    reading.until(lambda: {*written.values} <= {*reading.column("value")}, "all is read")
    reading.query.stop()
    assert_each_once(written, reading)
    assert lateness(reading.records()) == 0


# -- logs with holes ------------------------------------------------------------------------------


def over(since_ms, begin, seconds, count):
    """So many timestamps over these seconds."""
    return [since_ms + begin * 1_000 + seconds * 1_000 * n // count for n in range(count)]


class Transactions:
    """A transactional producer of one topic."""

    def __init__(self, kafka, topic, name):
        self._topic = topic
        self._producer = KafkaProducer(
            bootstrap_servers=kafka.bootstrap_servers,
            transactional_id=f"{topic}-{name}",
            # One is open while a log is compacted and a query reads: longer than a minute, maybe.
            transaction_timeout_ms=600_000,
        )
        self._producer.init_transactions()

    def begin(self, timestamps, partition):
        self._producer.begin_transaction()
        for at in timestamps:
            self._producer.send(self._topic, b"x", partition=partition, timestamp_ms=at)
        self._producer.flush()

    def commit(self):
        self._producer.commit_transaction()

    def abort(self):
        self._producer.abort_transaction()

    def close(self):
        self._producer.close(timeout=1)


def test_records_that_are_deleted_ahead_of_the_query_leave_the_others_in_order(
    kafka, topic_name, stream
):
    """Of a partition whose timestamps are read ahead: all that is read ahead at once, and more."""
    taken = {"message.timestamp.after.max.ms": str(2**63 - 1)}
    kafka.create_topic(topic_name, partitions=2, config=taken)
    times = [SINCE_MS + 100_000 + 20 * n for n in range(30_000)]
    # From here on look-ups do not help.
    times[2] = round(time.time() * 1000) + 10 * 24 * 3_600_000
    produce(kafka, topic_name, times, 0)
    produce(kafka, topic_name, [SINCE_MS + 20 * n for n in range(30_000)], 1)
    query = stream(maxTaskIdleMs="0", maxOffsetsPerTrigger="4000", failOnDataLoss="false")
    read, last = Counter(), {}

    def delete(batch_id, rows):
        before = read[0]
        read.update(rows["partition"].to_pylist())
        last.update(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))
        if before < 300 <= read[0]:
            admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
            admin.delete_records({TopicPartition(topic_name, 0): 28_000})
            admin.close()

    query.on_batch = delete
    query.start(**IDLING)
    wait_until(lambda: last == {0: 29_999, 1: 29_999}, "all is read")
    assert read[1] == 30_000
    assert 2_300 < read[0] < 10_000, "what was deleted was not read before"
    assert lateness(query.batches) == 0


@pytest.mark.long
@many_batches
def test_transactions_and_compaction_leave_nothing_out_of_order(kafka, topic_name, stream):
    since_ms = SINCE_MS
    kafka.create_topic(topic_name)
    transactional = f"{topic_name}-transactional"
    kafka.create_topic(transactional, partitions=2)
    log = CompactedLog(kafka, f"{topic_name}-compacted")
    log.write(*range(300), timestamps_ms=over(since_ms, 12, 8, 300))
    log.write(*range(0, 300, 2), timestamps_ms=over(since_ms, 21, 8, 150))
    log.write(1_000, timestamps_ms=over(since_ms, 30, 1, 1))  # the active segment is never cleaned
    kafka.produce(topic_name, [b"x"] * 400, partition=0, timestamps_ms=over(since_ms, 5, 30, 400))
    copier, opener = (Transactions(kafka, transactional, name) for name in ("copier", "opener"))
    copier.begin(over(since_ms, 0, 10, 100), 0)  # 0 to 99, marker
    copier.commit()
    copier.begin(over(since_ms, 10, 5, 50), 0)  # 101 to 150, marker
    copier.abort()
    copier.begin(over(since_ms, 8, 20, 200), 1)  # 0 to 199, and a marker at the end
    copier.commit()
    end = TopicPartition(transactional, 1)
    with KafkaConsumer(bootstrap_servers=kafka.bootstrap_servers) as consumer:
        wait_until(lambda: consumer.end_offsets([end])[end] == 201, "the last marker")
    opener.begin(over(since_ms, 16, 4, 40), 0)  # 152 to 191
    kafka.produce(
        transactional, [b"x"] * 60, partition=0, timestamps_ms=over(since_ms, 20, 6, 60)
    )  # 192 to 251
    left = [*range(1, 300, 2), *range(300, 451)]
    log.wait_until_left(*left)

    query = stream(
        subscribe=f"{topic_name},{transactional},{log.partition.topic}",
        kafka__isolation__level="read_committed",
        maxTaskIdleMs="0",
        maxOffsetsPerTrigger="150",
    )

    def ledger(rows):
        columns = (rows[name].to_pylist() for name in ("topic", "partition", "offset"))
        return sorted(zip(*columns, strict=True))

    stable = [
        *((topic_name, 0, offset) for offset in range(400)),
        *((transactional, 0, offset) for offset in range(100)),
        *((transactional, 1, offset) for offset in range(200)),
        *((log.partition.topic, 0, offset) for offset in left),
    ]
    assert ledger(query.run()) == sorted(stable)
    assert lateness(query.batches) == 0
    before = len(query.batches)
    assert before > 5
    opener.commit()
    kafka.produce(topic_name, [b"x"] * 100, timestamps_ms=over(since_ms, 36, 4, 100))
    waiting_for = TopicPartition(transactional, 0)
    with KafkaConsumer(
        bootstrap_servers=kafka.bootstrap_servers, isolation_level="read_committed"
    ) as consumer:
        wait_until(lambda: consumer.end_offsets([waiting_for])[waiting_for] == 253, "its marker")
    since = {*query.batches}
    rest = [(transactional, 0, offset) for offset in range(152, 252)]
    rest += [(topic_name, 0, offset) for offset in range(400, 500)]
    assert ledger(query.run()) == sorted(rest)
    assert lateness({n: rows for n, rows in query.batches.items() if n not in since}) == 0
    for producer in (copier, opener):
        producer.close()


# -- beside gaps ----------------------------------------------------------------------------------


@pytest.mark.long
def test_live_rows_beside_gaps_are_in_order_and_so_is_a_topic_that_is_created_anew(
    kafka, topic_name, stream
):
    anew = f"{topic_name}-anew"
    for topic, partitions in ((topic_name, 2), (anew, 1)):
        kafka.create_topic(topic, partitions=partitions)
    reading = Watched(
        stream(
            subscribe=f"{topic_name},{anew}",
            parallelRebalance="live",
            catchUpThreshold="100",
            maxCatchUpOffsetsPerTrigger="300",
            maxTaskIdleMs="0",
            maxOffsetsPerTrigger="60",
            failOnDataLoss="false",
            includeRebalanceEvents="true",
            kafka__metadata__max__age__ms="300",
            **ALIVE,
        )
    )
    written = Written(kafka)

    def all_is_read():
        return {*written.values} <= {*reading.column("value")}

    for topic, partition in ((topic_name, 0), (topic_name, 1), (anew, 0)):
        written(topic, spread(10, 0, 1), partition)
    reading.query.start(**IDLING)
    reading.until(all_is_read, "the first are read")
    assert stop_gracefully(reading.query.query, timeout_s=PATIENCE_S)

    for partition in range(2):
        written(topic_name, spread(2_000, 1, 9), partition)
    reading.query.start(**IDLING)
    reading.until(lambda: reading.records(caught_up=True), "it catches up")
    reading.hold(lambda: written(topic_name, spread(1, 19, 1), 0))
    written(topic_name, spread(200, 40, 10), 1)
    written(anew, spread(100, 30, 10))
    written(topic_name, spread(200, 20, 10), 0)
    reading.release()
    reading.until(all_is_read, "all is read")
    caught_up = reading.records(caught_up=True)
    assert sum(rows.num_rows for rows in caught_up.values()) == 4_000
    live = reading.records(caught_up=False)
    assert live.keys() & caught_up.keys(), "or this shows nothing"
    assert lateness(live) == 0

    def told(event):
        """How often of the topic that is created anew."""
        events = [
            rows.filter(pc.and_(pc.equal(rows["event"], event), pc.equal(rows["topic"], anew)))
            for rows in reading.query.batches.values()
            if rows.num_rows
        ]
        return pa.concat_tables(events).num_rows

    assigned, gone = told("assigned"), told("lost") + told("revoked")
    kafka.delete_topic(anew)
    reading.until(lambda: told("lost") + told("revoked") > gone, "the deletion is noticed")
    kafka.create_topic(anew)
    reading.until(lambda: told("assigned") > assigned, "it is assigned anew")
    reading.hold(lambda: written(topic_name, [SINCE_MS + 51 * MINUTE_MS], 1))
    written(topic_name, spread(200, 56, 2), 0)
    written(anew, spread(150, 52, 2))
    reading.release()
    reading.until(all_is_read, "all is read again")
    reading.query.stop()
    assert_each_once(written, reading)
    assert lateness(reading.records(caught_up=False)) == 0
