"""A query dies at every point of a trigger and starts again: what is lost, and what comes twice.

The planner is killed at exactly that point, which fails the query; nothing of ours is left but
what Spark logged and what the group knows. docs/what-can-be-repeated.md has the table.

Sessions are so long that no stall of a busy machine ends one. When the group is to notice a death,
the dead member is removed by its id, which the coordinator does as at the end of a session (that
end itself is in test_rebalance.py).
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka import errors as kafka_errors
from kafka.admin import MemberToRemove
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance import DeferredRevokeConsumer, stop_gracefully
from pyspark_kafka_rebalance.consumer.group_description import describe_group
from pyspark_kafka_rebalance.source.offsets.offset_json import parse_offset

from . import waiting
from .conftest import SteadyProducer, offsets_of
from .dying_source import (
    BEFORE_COMMIT_LOG,
    BEFORE_GROUP,
    BEFORE_WAL,
    IN_READ,
    POINTS,
    SOON_STILL_S,
    Death,
    DyingDataSource,
    ImpatientDataSource,
)

PATIENCE_S = 240.0

wait_until = partial(waiting.wait_until, patience_s=PATIENCE_S)
PARTITIONS = 4
SESSION_MS = "120000"

#: Without a pause the idle triggers of two queries would take all the time there is.
IDLING = {"processingTime": "100 milliseconds"}


def wait_while_active(streams, done, what):
    """As wait_until, but if one of the queries ends, that at once, and why."""

    def still():
        for one in streams:
            assert one.query.isActive, f"{what}: {one.query.exception()}"
        return done()

    wait_until(still, what)


class Deliveries:
    """What a query's sink completed, every attempt of every batch."""

    def __init__(self, query, death=None):
        self.batches = []  # (batch, offsets, whether they were marked lost)
        self._death = death
        query.on_batch = self._keep

    def _keep(self, batch_id, rows):
        if rows.num_rows:
            offsets = list(
                zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True)
            )
            self.batches.append((batch_id, offsets, set(rows["lost"].to_pylist())))
            if self._death is not None and self._death.come(BEFORE_COMMIT_LOG):
                raise RuntimeError(BEFORE_COMMIT_LOG)

    def times(self):
        return Counter(offset for _, offsets, _ in self.batches for offset in offsets)

    def of_batch(self, batch_id):
        return [(sorted(offsets), lost) for n, offsets, lost in self.batches if n == batch_id]


def newest(checkpoint, log):
    names = [path.name for path in (checkpoint / log).iterdir() if path.name.isdigit()]
    return max(map(int, names))


def logged(checkpoint, batch_id):
    """The source's offset in Spark's log."""
    lines = (checkpoint / "offsets" / str(batch_id)).read_text("utf-8").splitlines()
    return parse_offset(json.loads(lines[-1]))


def records_of(offset, topic):
    """The (partition, offset) of every record that the batch reads."""
    ranges = [found for p, found in offset.ranges.items() if p.topic == topic]
    return sorted((found.partition, o) for found in ranges for o in range(found.start, found.end))


class Group:
    """The group, asked and changed as an administrator does."""

    def __init__(self, admin, group_id):
        self._admin = admin
        self._id = group_id

    def owners(self):
        """How many partitions each member has, of those that have any."""
        members = describe_group(self._admin, self._id).members
        return [len(member.assigned) for member in members if member.assigned]

    def has_others(self, run):
        """Whether there are members that are not of this run."""
        return any(not name.startswith(run) for name in self.clients().values())

    def members_of(self, run):
        """The ids of a run's members."""
        return {member for member, name in self.clients().items() if name.startswith(run)}

    def remove(self, run):
        """Take the members of a run that is dead from the group, as the end of their session."""
        dead = self.members_of(run)
        assert dead, f"no member of {run}"
        self.remove_members(dead)

    def remove_members(self, dead):
        """The same with members' ids."""
        members = [MemberToRemove(member_id=member) for member in sorted(dead)]
        removed = self._admin.remove_group_members(self._id, members)
        assert set(removed.values()) == {kafka_errors.NoError}, removed

    def clients(self):
        """The client ids, by member."""
        members = self._admin.describe_groups([self._id])[self._id]["members"]
        return {member["member_id"]: member["client_id"] for member in members}


@pytest.mark.parametrize(
    ("queries", "membership"),
    [
        ("alone", "dynamic"),
        ("two", "static"),
        pytest.param("alone", "static", marks=pytest.mark.long),
        pytest.param("two", "dynamic", marks=pytest.mark.long),
    ],
)
def test_a_query_dies_at_every_point_of_a_trigger_and_restarts(
    spark, kafka, topic_name, group_id, stream, queries, membership
):
    kafka.create_topic(topic_name, partitions=PARTITIONS)
    spark.dataSource.register(DyingDataSource)
    static, alone = membership == "static", queries == "alone"

    def options(name):
        given = {"readers": "1", "kafka__session__timeout__ms": SESSION_MS}
        return given | ({"kafka__group__instance__id": name} if static else {})

    victim = stream("victim", **options("victim"))
    victim.source = DyingDataSource.name()
    checkpoint = Path(victim.options["checkpointLocation"])
    death = Death(str(checkpoint))
    mine = Deliveries(victim, death)
    other = None if alone else stream("other", **options("other"))
    others = Deliveries(other) if other is not None else None
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    group = Group(admin, group_id)
    beside = [] if other is None else [other]
    expected_twice = Counter()
    with SteadyProducer(kafka, topic_name, PARTITIONS, per_second=200) as producer:
        if other is not None:
            other.start(**IDLING)
            wait_while_active([other], lambda: others.batches, "the other query reads")
        victim.start(**IDLING)
        for point in POINTS:
            read = len(mine.batches)
            wait_while_active(
                [victim, *beside],
                lambda read=read: len(mine.batches) > read + 1,
                f"{point}: it reads",
            )
            death.arm(point)
            wait_until(lambda: not victim.query.isActive, f"dies {point}")
            assert not death.is_armed, f"died, but not {point}: {victim.query.exception()}"
            planned, done = newest(checkpoint, "offsets"), newest(checkpoint, "commits")
            assert (planned == done) == (point in (BEFORE_WAL, BEFORE_GROUP)), point
            offset = logged(checkpoint, planned)
            in_flight, run = records_of(offset, topic_name), offset.run
            assert in_flight
            moves = other is not None and not static
            if moves:
                group.remove(run)
                wait_while_active(beside, lambda: group.owners() == [PARTITIONS], f"{point}: moves")
            if moves and point != BEFORE_WAL:
                wait_while_active(
                    beside,
                    lambda i=in_flight: set(i) <= others.times().keys(),
                    f"{point}: read again",
                )
            victim.start(**IDLING)
            if alone and not static:
                # Its new member waits for the rest of the group, which is the dead one.
                wait_while_active(
                    [victim], lambda run=run: group.has_others(run), f"{point}: joins"
                )
                group.remove(run)
            wait_while_active(
                [victim, *beside],
                lambda planned=planned: any(n > planned for n, _, _ in mine.batches),
                f"{point}: goes on",
            )
            attempts = mine.of_batch(planned)
            if planned != done:
                replay, lost = attempts[-1]
                assert replay == in_flight, f"{point}: the replay reads what is logged"
                assert lost == {moves}, f"{point}: marked where another query has it, too"
            # Once by each completed attempt of the batch, and once by its next owner.
            deliveries = len(attempts) + (moves and point != BEFORE_WAL)
            assert len(attempts) == (2 if point == BEFORE_COMMIT_LOG else 1), point
            expected_twice.update({o: deliveries for o in in_flight if deliveries > 1})
        producer.stop()
        consumer = KafkaConsumer(bootstrap_servers=kafka.bootstrap_servers)
        ends = consumer.end_offsets([TopicPartition(topic_name, p) for p in range(PARTITIONS)])
        consumer.close()
        wait_while_active(
            [victim, *beside], lambda: kafka.committed(group_id) == ends, "all is read"
        )
    admin.close()
    times = mine.times() + (others.times() if others is not None else Counter())
    assert sorted(times) == [(p.partition, o) for p in sorted(ends) for o in range(ends[p])]
    assert {o: n for o, n in times.items() if n > 1} == dict(expected_twice)


def delete_group(admin, group_id):
    """As an administrator does, and the broker at the end of ``offsets.retention.minutes``."""

    def deleted():
        answer = dict(admin.delete_groups([group_id]))[group_id]
        # Its members may still be on their way out.
        assert answer in ("OK", kafka_errors.NonEmptyGroupError.__name__)
        return answer == "OK"

    wait_until(deleted, "the group is deleted")


@pytest.mark.parametrize(
    ("starting", "then"),
    [("latest", "the group is deleted"), ("earliest", "another group is named")],
)
def test_a_restart_needs_no_group(kafka, topic_name, group_id, stream, then, starting):
    """Partition 2 is quiet from the beginning, 1 behind the first run."""
    kafka.create_topic(topic_name, partitions=3)
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    ends = dict.fromkeys(range(3), 0)

    def produce(*partitions):
        """A record to each; their (partition, offset)."""
        for partition in partitions:
            kafka.produce(topic_name, [b"x"], partition=partition)
            ends[partition] += 1
        return [(p, ends[p] - 1) for p in partitions]

    def run():
        nonlocal group_id
        rows = offsets_of(stream(startingOffsets=starting, kafka__group__id=group_id).run())
        if then == "the group is deleted":
            delete_group(admin, group_id)
        else:
            group_id += "-another"
        return rows

    there = produce(0, 1, 2)
    assert run() == (there if starting == "earliest" else [])
    for partitions in ((0,), (2, 0, 1)):
        new = produce(*partitions)
        assert run() == sorted(new)
    admin.close()


class Unmarked:
    """How often a query's sink completed a record that was not marked lost, and what it marked."""

    def __init__(self, query, before=lambda rows: None):
        self.times = Counter()
        self.marked = set()
        self._before = before
        query.on_batch = self._keep

    def _keep(self, batch_id, rows):
        if rows.num_rows:
            self._before(rows)
            columns = (rows[name].to_pylist() for name in ("partition", "offset", "lost"))
            for partition, offset, lost in zip(*columns, strict=True):
                if lost:
                    self.marked.add((partition, offset))
                else:
                    self.times[partition, offset] += 1


def produce(kafka, topic_name, count, start=0, partitions=2):
    """Records to all partitions in turn; each one's (partition, offset), once."""
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    numbers = range(start, start + count)
    for number in numbers:
        producer.send(topic_name, b"%d" % number, partition=number % partitions)
    producer.close()
    return {divmod(number, partitions)[::-1]: 1 for number in numbers}


@pytest.mark.newest_spark
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_rows_marked_lost_may_be_dropped_though_their_next_owner_stopped_before_them(
    kafka, topic_name, group_id, stream, protocol
):
    """The query went on behind a batch of which nobody had delivered the rest without the mark."""
    kafka.create_topic(topic_name, partitions=2)
    records = produce(kafka, topic_name, 2_000)
    one = {"readers": "1", "kafka__group__protocol": protocol}

    def fail(rows):
        raise RuntimeError("the sink is away")

    first = stream("first", **one)
    Unmarked(first, before=fail)
    first.start(**IDLING)
    wait_until(lambda: not first.query.isActive, "its sink fails")
    second = stream("second", maxOffsetsPerTrigger="40", **one)
    taken = Unmarked(second)
    second.start(**IDLING)
    wait_while_active([second], lambda: len(taken.times) > 100, "the second takes over")
    delivered = Unmarked(first)
    first.start(**IDLING)
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    group = Group(admin, group_id)
    wait_while_active(
        [first, second], lambda: group.owners() == [1, 1], "the first has one of the partitions"
    )
    admin.close()
    assert stop_gracefully(second.query, timeout_s=PATIENCE_S)
    assert len(taken.times) < len(records), "nothing is left to the first, so this shows nothing"

    def unmarked():
        return taken.times + delivered.times

    wait_while_active([first], lambda: unmarked().keys() == records.keys(), "all is read")
    assert delivered.marked <= taken.times.keys()
    assert delivered.marked, "nothing was marked, so this shows nothing"
    assert stop_gracefully(first.query, timeout_s=PATIENCE_S)
    first.start(**IDLING)
    more = produce(kafka, topic_name, 2)
    wait_while_active([first], lambda: sum(unmarked().values()) >= 2_000 + len(more), "goes on")
    assert set(unmarked().values()) == {1}


@pytest.mark.newest_spark
@pytest.mark.parametrize("membership", ["static", "dynamic"])
def test_a_replay_outlives_the_session_of_the_run_that_died(
    spark, kafka, topic_name, group_id, stream, membership
):
    """Another query took its partitions over while it was read, and nothing of it was marked."""
    kafka.create_topic(topic_name, partitions=2)
    spark.dataSource.register(DyingDataSource)

    def options(name):
        given = {"readers": "1", "kafka__session__timeout__ms": SESSION_MS}
        static = {"kafka__group__instance__id": name} if membership == "static" else {}
        return given | static

    victim = stream("victim", **options("victim"))
    victim.source = DyingDataSource.name()
    checkpoint = Path(victim.options["checkpointLocation"])
    death = Death(str(checkpoint))
    other = stream("other", **options("other"))
    reading, may_end = threading.Event(), threading.Event()

    def hold(rows):
        reading.set()
        may_end.wait(PATIENCE_S)

    others, mine = Unmarked(other), Unmarked(victim)
    records = produce(kafka, topic_name, 200)
    other.start(**IDLING)
    victim.start(**IDLING)
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    group = Group(admin, group_id)
    wait_while_active([victim, other], lambda: group.owners() == [1, 1], "they share")
    wait_while_active(
        [victim, other], lambda: (mine.times + others.times).keys() == records.keys(), "all is read"
    )
    death.arm(IN_READ)
    produce(kafka, topic_name, 200)
    records = {(p, o): 1 for p in range(2) for o in range(200)}
    wait_until(lambda: not victim.query.isActive, "dies while it reads")
    offset = logged(checkpoint, newest(checkpoint, "offsets"))
    in_flight, run = set(records_of(offset, topic_name)), offset.run
    already = mine.times.copy()
    mine, dead = Unmarked(victim, before=hold), group.members_of(run)
    victim.start(**IDLING)

    def has_joined():
        return membership == "dynamic" and len(group.clients()) == 3

    wait_while_active([victim, other], lambda: reading.is_set() or has_joined(), "it replays")
    if still := dead & group.clients().keys():  # a static member that came back has another id
        group.remove_members(still)
    wait_while_active(
        [victim, other],
        lambda: reading.is_set() and (in_flight <= others.times.keys() or group.owners() == [1, 1]),
        "its partitions are somebody's",
    )
    may_end.set()
    wait_while_active(
        [victim, other],
        lambda: (already + mine.times + others.times).keys() == records.keys(),
        "all is read once more",
    )
    produce(kafka, topic_name, 2)
    wait_while_active(
        [victim, other],
        lambda: len(already + mine.times + others.times) == len(records) + 2,
        "it goes on",
    )
    admin.close()
    twice = {o: n for o, n in (already + mine.times + others.times).items() if n > 1}
    assert twice == {}


@pytest.mark.newest_spark
@pytest.mark.parametrize("read_by_another", [True, False])
def test_a_restart_without_a_topic_marks_what_the_group_has_of_it(
    kafka, topic_name, stream, committed, read_by_another
):
    """Its rows were never marked: the query does not own them, and nobody asked the group."""
    left_out, kept = f"{topic_name}-a", f"{topic_name}-b"
    for topic in (left_out, kept):
        kafka.create_topic(topic)
        kafka.produce(topic, [b"1", b"2", b"3"])
    query = stream("query", subscribe=f"{left_out},{kept}")

    def fail(batch_id, rows):
        raise RuntimeError("the sink is away")

    query.on_batch = fail
    query.start(availableNow=True)
    wait_until(lambda: not query.query.isActive, "its sink fails")
    if read_by_another:
        assert stream("other", subscribe=left_out).run().num_rows == 3
    query.on_batch = lambda batch_id, rows: None
    query.options["subscribe"], query.batches = kept, {}
    rows = query.run().select(["topic", "offset", "lost"]).to_pylist()
    assert sorted(tuple(row.values()) for row in rows) == [
        (topic, offset, read_by_another and topic == left_out)
        for topic in (left_out, kept)
        for offset in range(3)
    ]
    assert {p.topic: at for p, at in committed().items()} == {
        kept: 3,
        left_out: 3 if read_by_another else 0,
    }


@pytest.mark.newest_spark
def test_a_replay_waits_for_what_a_dead_member_keeps_for_its_session(
    spark, kafka, topic_name, group_id, stream
):
    """KIP-848: a restarted query joins beside its dead member, and nothing moves for a session.

    It replayed all of the batch without the mark, and the next owner of some of it read that, too.
    """
    partitions, session_s = 6, 20
    options_session_ms = "10000"  # which has no meaning here
    assert int(options_session_ms) / 1000 + SOON_STILL_S < session_s
    kafka.create_topic(topic_name, partitions=partitions)
    kafka.configure_group(group_id, {"consumer.session.timeout.ms": session_s * 1000})
    spark.dataSource.register(ImpatientDataSource)
    one = {
        "readers": "1",
        "kafka__group__protocol": "consumer",
        "kafka__session__timeout__ms": options_session_ms,
    }
    victim, other = stream("victim", **one), stream("other", **one)
    victim.source = ImpatientDataSource.name()
    checkpoint = Path(victim.options["checkpointLocation"])
    death = Death(str(checkpoint))
    in_sink, may_end = threading.Event(), threading.Event()

    def hold(rows):
        in_sink.set()
        may_end.wait(PATIENCE_S)

    others, mine = Unmarked(other), Unmarked(victim, before=hold)
    records = produce(kafka, topic_name, partitions, partitions=partitions)
    other.start(**IDLING)
    wait_while_active([other], lambda: others.times == records, "the other reads")
    victim.start(**IDLING)
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    group = Group(admin, group_id)
    wait_while_active([victim, other], lambda: group.owners() == [3, 3], "they share")
    records |= produce(kafka, topic_name, partitions, start=6, partitions=partitions)
    wait_while_active([victim, other], in_sink.is_set, "the victim is in its sink")
    death.arm(IN_READ)
    records |= produce(kafka, topic_name, 60, start=12, partitions=partitions)
    may_end.set()  # its next batch has records of all its partitions
    wait_until(lambda: not victim.query.isActive, "dies while it reads")
    offset = logged(checkpoint, newest(checkpoint, "offsets"))
    in_flight = set(records_of(offset, topic_name))
    assert len(in_flight) == 30
    victim.start(**IDLING)
    wait_while_active(
        [victim, other],
        lambda: len(describe_group(admin, group_id).members) == 3,
        "it joins beside the dead one",
    )
    ends = {TopicPartition(topic_name, p): 12 for p in range(partitions)}
    wait_while_active([victim, other], lambda: kafka.committed(group_id) == ends, "all is read")
    admin.close()
    assert mine.times + others.times == records
    assert mine.marked, "the other got nothing of the batch, so this shows nothing"
    assert mine.marked == in_flight & others.times.keys()


@pytest.mark.newest_spark
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_hung_sink_does_not_keep_its_partitions(
    kafka, topic_name, group_id, stream, committed, protocol
):
    """Other members stood idle beside it for ever."""
    kafka.create_topic(topic_name, partitions=2)
    one = {"readers": "1", "kafka__group__protocol": protocol}
    may_end = threading.Event()
    hung = stream("hung", maxBatchDurationMs="2000", **one)
    mine = Unmarked(hung, before=lambda rows: may_end.wait(PATIENCE_S))
    records = produce(kafka, topic_name, 200)
    hung.start(**IDLING)
    wait_while_active([hung], lambda: hung.batches, "it reads")
    other = stream("other", **one)
    others = Unmarked(other)
    other.start(**IDLING)
    try:
        wait_while_active(
            [hung, other], lambda: others.times == records, "the other has all partitions"
        )
        records |= produce(kafka, topic_name, 300, start=200)
        wait_while_active([hung, other], lambda: others.times == records, "and goes on")
        ends = {TopicPartition(topic_name, p): 150 + 100 for p in range(2)}
        wait_while_active([hung, other], lambda: committed() == ends, "it commits")
    finally:
        may_end.set()
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    group = Group(admin, group_id)
    wait_while_active([hung, other], lambda: group.owners() == [1, 1], "they share again")
    admin.close()
    assert committed() == ends, "what was lost was not committed"
    records |= produce(kafka, topic_name, 100, start=500)
    wait_while_active(
        [hung, other],
        lambda: (mine.times + others.times).keys() == records.keys(),
        "both go on",
    )
    twice = {offset for offset, times in (mine.times + others.times).items() if times > 1}
    assert twice == {(p, o) for p in range(2) for o in range(100)}, "the batch that hung"


@pytest.mark.parametrize("before", ["a restart", "a replay"])
def test_a_hand_over_waits_for_its_row_though_all_was_read_before(
    kafka, topic_name, group_id, stream, before
):
    """Spark has kept the state of what was read, and it is to be flushed."""
    kafka.create_topic(topic_name, partitions=2)
    produce(kafka, topic_name, 20)
    read = {TopicPartition(topic_name, p): 10 for p in range(2)}
    query = stream(readers="1", includeRebalanceEvents="true")
    told, flushed = threading.Event(), threading.Event()

    def fail(batch_id, rows):
        if None in rows["event"].to_pylist():  # a record
            raise RuntimeError("the sink is away")

    def flush(batch_id, rows):
        if "revoke_requested" in rows["event"].to_pylist():
            told.set()
            assert flushed.wait(PATIENCE_S)

    if before == "a replay":
        query.on_batch = fail
        query.start(**IDLING)
        wait_until(lambda: not query.query.isActive, "its sink fails")
    else:
        query.start(**IDLING)
        wait_while_active([query], lambda: kafka.committed(group_id) == read, "all is read")
        assert stop_gracefully(query.query, timeout_s=PATIENCE_S)
    query.on_batch = flush
    query.start(**IDLING)
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    group = Group(admin, group_id)
    wait_while_active(
        [query], lambda: kafka.committed(group_id) == read and group.owners() == [2], "it has both"
    )
    admin.close()
    newcomer = DeferredRevokeConsumer(
        topic_name, bootstrap_servers=kafka.bootstrap_servers, group_id=group_id
    )

    def assigned():
        newcomer.poll(100)
        return newcomer.assignment()

    try:
        wait_while_active([query], lambda: assigned() or told.is_set(), "the row is in the sink")
        for _ in range(30):
            assert not assigned(), "handed over before the batch with the row is committed"
        flushed.set()
        wait_while_active([query], assigned, "handed over")
    finally:
        flushed.set()
        newcomer.close()


@pytest.mark.parametrize("told", ["nothing", "checkpointLocation"])
def test_a_trigger_interval_longer_than_the_revoke_timeout(
    kafka, topic_name, group_id, stream, told
):
    """What Spark has committed comes again from its next owner, unless the source sees it."""
    kafka.create_topic(topic_name, partitions=2)
    rarely = {"revokeTimeoutMs": "2000", "kafka__heartbeat__interval__ms": "500", "readers": "1"}
    if told == "nothing":
        rarely["checkpointLocation"] = ""
    query = stream(**rarely)
    mine = Unmarked(query)
    query.start(processingTime="15 seconds")
    # Later batches begin with a multiple of the interval, so that the next trigger is that far.
    wait_while_active([query], lambda: query.batches, "the first batch, without records")
    records = produce(kafka, topic_name, 200)
    wait_while_active([query], lambda: mine.times == records, "all is read")
    newcomer = DeferredRevokeConsumer(
        topic_name, bootstrap_servers=kafka.bootstrap_servers, group_id=group_id
    )
    delivered = set()

    def poll(until):
        polled = newcomer.poll_with_rebalance(100).records
        delivered.update((p.partition, r.offset) for p, found in polled.items() for r in found)
        return until()

    try:
        wait_while_active([query], lambda: poll(newcomer.assignment), "it has one of the two")
        more = produce(kafka, topic_name, 20, start=200)
        wait_while_active([query], lambda: poll(lambda: delivered & more.keys()), "it reads")
    finally:
        newcomer.close()
    assert len(delivered & records.keys()) == (100 if told == "nothing" else 0)
