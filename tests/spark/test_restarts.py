"""A query dies at every point of a trigger and starts again: what is lost, and what comes twice.

The planner is killed at exactly that point, which fails the query; nothing of ours is left but
what Spark logged and what the group knows. docs/what-can-be-repeated.md has the table.

Sessions are so long that no stall of a busy machine ends one. When the group is to notice a death,
the dead member is removed by its id, which the coordinator does as at the end of a session (that
end itself is in test_rebalance.py).
"""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaConsumer
from kafka import errors as kafka_errors
from kafka.admin import MemberToRemove
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.consumer.group_description import describe_group

from . import waiting
from .conftest import SteadyProducer
from .dying_source import (
    BEFORE_COMMIT_LOG,
    BEFORE_GROUP,
    BEFORE_WAL,
    POINTS,
    Death,
    DyingDataSource,
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
    return json.loads(lines[-1])


def records_of(offset, topic):
    """The (partition, offset) of every record that the batch reads."""
    ranges = offset["ranges"].get(topic, {})
    return sorted((int(p), o) for p, (start, end) in ranges.items() for o in range(start, end))


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
        return any(not name.startswith(run) for name in self._clients().values())

    def remove(self, run):
        """Take the members of a run that is dead from the group, as the end of their session."""
        clients = self._clients().items()
        dead = [MemberToRemove(member_id=m) for m, name in clients if name.startswith(run)]
        assert dead, f"no member of {run}"
        removed = self._admin.remove_group_members(self._id, dead)
        assert set(removed.values()) == {kafka_errors.NoError}, removed

    def _clients(self):
        members = self._admin.describe_groups([self._id])[self._id]["members"]
        return {member["member_id"]: member["client_id"] for member in members}


@pytest.mark.parametrize("membership", ["static", "dynamic"])
@pytest.mark.parametrize("queries", ["alone", "two"])
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
            in_flight, run = records_of(offset, topic_name), offset["state"]["run"]
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
