"""Owners that come and go while they catch up (KIP-333): nothing missing, nothing twice.

A record that the group's commit tells to be processed is not handed out again, whoever owns its
partition; every other one is, at the latest to the last owner. ``RANDOM_HISTORIES=5`` makes the
courses five times as long, and others each time.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from group_members import MakeMember, owns, wait_until
from kafka import KafkaConsumer
from kafka.structs import OffsetAndMetadata, TopicPartition

from pyspark_kafka_rebalance import DeferredRevokeConsumer, PartitionsLostError
from pyspark_kafka_rebalance.consumer.offsets.commit_metadata import Remaining
from pyspark_kafka_rebalance.testing import LocalKafka
from tests.unit.histories import EVENTS_ALWAYS_THE_SAME, events

Record = tuple[TopicPartition, int]


class Ledger:
    """What was handed out, and what the group knows to be processed."""

    def __init__(self, kafka: LocalKafka, topic: str, group_id: str, in_order: bool) -> None:
        self.kafka = kafka
        self.topic = topic
        self.partitions = [TopicPartition(topic, n) for n in range(2)]
        self.in_order = in_order
        self.plain = KafkaConsumer(
            bootstrap_servers=kafka.bootstrap_servers, group_id=group_id, enable_auto_commit=False
        )
        self.plain.assign(self.partitions)
        self.plain.commit({p: OffsetAndMetadata(0, "", -1) for p in self.partitions})
        self.ends = Counter[TopicPartition]()
        self.delivered = Counter[Record]()
        self.known: set[Record] = set()
        self.polls = 0

    def produce(self, number: int) -> None:
        for p in self.partitions:
            self.kafka.produce(self.topic, [b"x"] * number, partition=p.partition)
            self.ends[p] += number

    def look_at_the_group(self, bound_to: dict[TopicPartition, str]) -> None:
        for p in self.partitions:
            committed = self.plain.committed(p, metadata=True)
            left = Remaining.decode(committed.offset, committed.metadata, bound_to[p]).remaining
            self.known |= {(p, o) for o in range(self.ends[p]) if o not in left}

    def is_delivered(self) -> bool:
        """Whether each record was handed out, at least once."""
        return {r for r in self.delivered if r[1] < self.ends[r[0]]} == {
            (p, o) for p in self.partitions for o in range(self.ends[p])
        }

    def is_processed(self) -> bool:
        """Whether the group knows that all is."""
        found = {p: self.plain.committed(p, metadata=True) for p in self.partitions}
        return all((f.offset, f.metadata) == (self.ends[p], "") for p, f in found.items())

    def close(self) -> None:
        self.plain.close()


class Owner:
    """A member, and an application whose workers take their time."""

    def __init__(self, member: DeferredRevokeConsumer, ledger: Ledger, chance: random.Random):
        self.member = member
        self.ledger = ledger
        self.chance = chance
        self.working: dict[TopicPartition, set[int]] = {p: set() for p in ledger.partitions}
        self.last: dict[TopicPartition, int] = {}

    def poll(self, max_records: int = 15) -> None:
        result = self.member.poll_with_rebalance(timeout_ms=10, max_records=max_records)
        for p in result.revoked | result.lost:
            self.working[p].clear()
            self.last.pop(p, None)
        for p in {*result.catch_up, *result.records}:
            offsets = [r.offset for r in result.catch_up.get(p, [])]
            live = [r.offset for r in result.records.get(p, [])]
            if self.ledger.in_order:
                assert not offsets
                assert self.last.get(p, -1) < live[0], "something lower came before"
                self.last[p] = live[-1]
            for offset in offsets + live:
                assert (p, offset) not in self.ledger.known, "known to be processed"
                assert offset not in self.working[p], "twice to the same owner"
                self.ledger.delivered[p, offset] += 1
                self.working[p].add(offset)
        self.work(share=0.7)
        for p in result.to_be_revoked:
            if self.working[p]:
                self.member.delay_revoke([p])

    def work(self, share: float) -> None:
        for p, working in self.working.items():
            done = {o for o in working if self.chance.random() < share}
            if done:
                try:
                    self.member.processed(p, *done)
                except PartitionsLostError:
                    working.clear()  # its next owner gets them
                else:
                    working -= done


@pytest.mark.parametrize("mode", ["live", "ordered"])
@pytest.mark.parametrize("seed", [1, 2])
def test_owners_that_come_and_go_in_mid_gap(
    kafka: LocalKafka, topic_name: str, group_id: str, consumers: MakeMember, mode: str, seed: int
) -> None:
    kafka.create_topic(topic_name, partitions=2)
    found = seed if EVENTS_ALWAYS_THE_SAME else random.SystemRandom().randrange(10**6)
    print(f"seed {found}")
    chance = random.Random(f"{mode}-{found}")
    ledger = Ledger(kafka, topic_name, group_id, mode == "ordered")
    bound_to: dict[TopicPartition, str] = {}

    def begin() -> Owner:
        member = consumers(topic_name, parallel_rebalance=mode, catch_up_threshold=10)
        return Owner(member, ledger, chance)

    ledger.produce(150)
    owners = [begin()]
    course = []
    for _ in range(events(10)):
        ledger.produce(chance.randint(0, 60))
        for _ in range(chance.randint(3, 12)):
            for owner in owners:
                owner.poll()
        if not bound_to and owners[0].member.assignment():
            bound_to = {
                p: owners[0].member._hand_outs.truncations.bound(p) for p in ledger.partitions
            }
        what = chance.choice(["killed", "killed", "closed", "joined", "lost"])
        course.append(what)
        if what == "joined" and len(owners) < 3:
            owners.append(begin())
        elif what == "lost":
            chance.choice(owners).member.leave_until_polled("lost")
        elif bound_to and what in ("killed", "closed"):
            gone = owners.pop(chance.randrange(len(owners)))
            if what == "killed":
                gone.member.leave_until_polled("killed")
            else:
                gone.work(share=1)
                gone.member.close()
            ledger.look_at_the_group(bound_to)
            if not owners:
                owners.append(begin())

    def all_is_done() -> bool:
        for owner in owners:
            owner.poll(max_records=500)
            owner.work(share=1)
        at_work = any(working for owner in owners for working in owner.working.values())
        # What one that was killed had at work comes again, once its partition is assigned anew.
        return ledger.is_delivered() and not at_work and ledger.is_processed()

    wait_until(all_is_done, "every record")
    twice = sum(times > 1 for times in ledger.delivered.values())
    print(f"{dict(Counter(course))}: {len(ledger.delivered)} records, {twice} in flight, again")
    assert owners[0].member.assignment() or owns(owners[-1].member, 1)
    for owner in owners:
        owner.member.close()
    assert ledger.is_processed()
    ledger.close()
