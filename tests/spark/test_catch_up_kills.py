"""Two queries of a group that catch up, killed, stopped and restarted in mid-gap (KIP-333).

Each event is one of a random course: a planner is killed at one of the points of a trigger, or
both are; a query is stopped, gracefully or not, and comes back at once, or when the other has all
its partitions. ``RANDOM_HISTORIES=5`` makes the course five times as long, and another each time.
"""

from __future__ import annotations

import random
from collections import Counter
from functools import partial

import pytest

from pyspark_kafka_rebalance import stop_gracefully
from tests.unit.histories import EVENTS_ALWAYS_THE_SAME
from tests.unit.histories import events as events_of

from . import waiting
from .conftest import SteadyProducer
from .dying_source import BEFORE_COMMIT_LOG, BEFORE_GROUP, POINTS, Death, DyingDataSource
from .test_catch_up import (
    Delivered,
    ends_of,
    everything,
    last_offset,
    newest,
    produce,
    wait_while_active,
)

PATIENCE_S = 240.0
PARTITIONS = 4

wait_until = partial(waiting.wait_until, patience_s=PATIENCE_S)

IDLING = {"processingTime": "500 milliseconds"}

#: Of those points of a trigger the sink has what the group does not know to be delivered.
DELIVERED = (BEFORE_COMMIT_LOG, BEFORE_GROUP)


class Query:
    """One of the two, with its ledger, and what may come twice because of how it ended."""

    def __init__(self, stream, name, options):
        self.stream = stream(name, **options)
        self.stream.source = DyingDataSource.name()
        self.death = Death(self.stream.options["checkpointLocation"])
        self.delivered = Delivered(self.stream, hold=self._die_before_the_commit_log)
        self.in_flight = set()

    def _die_before_the_commit_log(self):
        if self.death.come(BEFORE_COMMIT_LOG):
            raise RuntimeError(BEFORE_COMMIT_LOG)

    def start(self):
        self.stream.start(**IDLING)

    @property
    def is_dead(self):
        return not self.stream.query.isActive or self.stream.query.exception() is not None

    def reads_of(self, since):
        """The partitions of which it has delivered records since it had so many batches."""
        batches = self.delivered.batches[since:]
        return {p for _, live, caught_up in batches for p, _ in live | caught_up}

    def has_gaps(self):
        return bool(last_offset(self.stream).gaps)

    def kill(self, point):
        self.death.arm(point)
        wait_until(lambda: self.is_dead, f"it dies {point}")
        assert not self.death.is_armed, f"not {point}: {self.stream.query.exception()}"
        if point in DELIVERED:
            self._note_in_flight()

    def stop(self, gracefully):
        if gracefully:
            assert stop_gracefully(self.stream.query, timeout_s=PATIENCE_S)
        else:
            self.stream.query.stop()
            self._note_in_flight()

    def _note_in_flight(self):
        """The batch whose commit the group may not have; who is next delivers it again."""
        last = newest(self.stream)
        for batch, live, caught_up in self.delivered.batches:
            if batch == last:
                self.in_flight |= live | caught_up


def times_of(queries):
    first, second = (Counter(dict(one.delivered.times)) for one in queries)
    times = first + second
    return {record: n for record, n in times.items() if n}


@pytest.mark.long
@pytest.mark.newest_spark
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_nothing_is_missing_and_only_what_was_in_flight_at_a_kill_comes_twice(
    spark, kafka, topic_name, group_id, stream, committed, protocol
):
    seed = 16 if EVENTS_ALWAYS_THE_SAME else random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    chance = random.Random(f"{seed}-{protocol}")
    events = events_of(4)
    kafka.create_topic(topic_name, partitions=PARTITIONS)
    kafka.configure_group(group_id, {"consumer.session.timeout.ms": 6_000})
    spark.dataSource.register(DyingDataSource)
    options = {
        "parallelRebalance": "live",
        "catchUpThreshold": "1000",
        "maxCatchUpOffsetsPerTrigger": "80",
        "readers": "1",
        "kafka__session__timeout__ms": "6000",
        "kafka__group__protocol": protocol,
    }
    queries = [Query(stream, name, options) for name in ("first", "second")]

    def both(done, what):
        wait_while_active([one.stream for one in queries], done, what)

    produce(kafka, topic_name, 40, PARTITIONS)
    for one in queries:
        one.start()
    both(lambda: len(times_of(queries)) == 40, "the first are read")
    for one in queries:
        one.stop(gracefully=True)
    produce(kafka, topic_name, 8_000 + 4_000 * events, PARTITIONS)
    for one in queries:
        one.start()
    course, in_mid_gap = [], 0
    with SteadyProducer(kafka, topic_name, PARTITIONS, per_second=100) as producer:
        for _ in range(events):
            read = [len(one.delivered.batches) for one in queries]
            both(
                lambda read=read: all(
                    len(one.delivered.batches) > before + 1
                    for one, before in zip(queries, read, strict=True)
                ),
                f"after {course} both read",
            )
            in_mid_gap += any(one.has_gaps() for one in queries)
            one, other = chance.sample(queries, 2)
            what = chance.choice(["killed"] * 4 + ["both killed", "stopped", "left", "left"])
            point = chance.choice(POINTS)
            moves = chance.random() < 0.5
            course.append((what, point if "killed" in what else "", moves))
            if what == "both killed":
                one.kill(point)
                other.kill(chance.choice(POINTS))
                produce(kafka, topic_name, 6_000, PARTITIONS)  # a gap more
                other.start()
            elif what == "killed":
                one.kill(point)
            else:
                one.stop(gracefully=what == "left")
            if moves:
                since = len(other.delivered.batches)
                wait_while_active(
                    [other.stream],
                    lambda o=other, s=since: len(o.reads_of(s)) == PARTITIONS,
                    f"after {course} the other reads all",
                )
            one.start()
        print(f"{protocol}: {course}")
        both(lambda: all(one.delivered.batches for one in queries), "they go on")
        for one in queries:
            one.stop(gracefully=True)
            del one.stream.options["maxCatchUpOffsetsPerTrigger"]
            one.start()
        producer.stop()
        ends = ends_of(kafka, topic_name, PARTITIONS)
        both(lambda: committed() == ends, "all is read")
    times = times_of(queries)
    assert times.keys() == everything(ends).keys(), "missing"
    twice = {record for record, n in times.items() if n > 1}
    in_flight = queries[0].in_flight | queries[1].in_flight
    print(f"{len(times)} records, {len(twice)} twice of {len(in_flight)} in flight")
    assert twice <= in_flight
    caught_up = queries[0].delivered.caught_up | queries[1].delivered.caught_up
    assert len(caught_up) > len(times) / 2
    assert in_mid_gap == events, "too little backlog for this course"
