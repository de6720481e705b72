"""Rows by event time while the broker still searches a segment whose records are deleted."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping

from confluent_kafka import Producer
from kafka import KafkaAdminClient, KafkaConsumer
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance import DeferredRevokeConsumer
from pyspark_kafka_rebalance.consumer.offsets.found_records import RecordTime
from pyspark_kafka_rebalance.fetch.offset_range import OffsetRange
from pyspark_kafka_rebalance.source.options.event_time_options import EventTimeOptions
from pyspark_kafka_rebalance.source.plan.batch_planner import BatchPlanner, Planned
from pyspark_kafka_rebalance.source.plan.event_time import EventTime
from pyspark_kafka_rebalance.source.plan.timelines import Rows
from pyspark_kafka_rebalance.source.spark.read_limits import ReadMaxRows
from pyspark_kafka_rebalance.testing import LocalKafka

RECORDS = 3000
STEP_MS = 200
TIMEOUT_MS = 30_000


class BrokersTimes:
    """The brokers' answers to a planner; nothing is cached."""

    def __init__(self, client: DeferredRevokeConsumer, reader: KafkaConsumer) -> None:
        self._client = client
        self._reader = reader

    def awaited(self, partitions: object) -> Collection[TopicPartition]:
        return ()

    def ends_asked_at(self) -> float:
        return time.monotonic()

    def anew(self) -> Collection[TopicPartition]:
        return ()

    def prepare(self, first_at: Mapping[TopicPartition, int], *, newest: bool) -> None:
        pass

    def newest(self) -> Mapping[TopicPartition, RecordTime | None]:
        return {}

    def first_at(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, RecordTime | None]:
        return self._client.first_records_now(timestamps, TIMEOUT_MS)

    def newest_of(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, RecordTime | None]:
        return self._client.latest_records_now(partitions, TIMEOUT_MS)

    def rows(self, ranges: Mapping[TopicPartition, OffsetRange]) -> dict[TopicPartition, Rows]:
        return {p: self.read(p, r.start, r.end) for p, r in ranges.items()}

    def read(self, partition: TopicPartition, start: int, end: int) -> Rows:
        at = max(start, self._reader.beginning_offsets([partition])[partition])
        offsets: list[int] = []
        timestamps: list[int] = []
        if at < end:
            self._reader.assign([partition])
            self._reader.seek(partition, at)
        while at < end:
            for record in self._reader.poll(1000).get(partition, ()):
                if record.offset < end:
                    offsets.append(record.offset)
                    timestamps.append(record.timestamp)
                at = record.offset + 1
        return Rows(offsets, timestamps, end)


def produce(kafka: LocalKafka, partition: TopicPartition, timestamps: Iterable[int]) -> None:
    """Produce in order: a second producer would begin another batch, not another segment."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "enable.idempotence": True})
    for timestamp in timestamps:
        producer.produce(partition.topic, b"x", timestamp=timestamp, partition=partition.partition)
        producer.poll(0)
    assert producer.flush(60) == 0


def test_a_partition_whose_first_segment_is_deleted_is_not_read_ahead(
    kafka: LocalKafka, topic_name: str, group_id: str
) -> None:
    """It was read to its end ahead of the other: rows came 559 s late."""
    never = {"message.timestamp.after.max.ms": str(2**63 - 1)}
    kafka.create_topic(topic_name, partitions=2, config=never)
    zero, one = TopicPartition(topic_name, 0), TopicPartition(topic_name, 1)
    base = (int(time.time()) - 3600) * 1000
    horizon = base + 3_600_000
    times = [base + 100_000 + STEP_MS * n for n in range(RECORDS)]
    times[2000] = base + 10 * 86_400_000  # brokers begin a segment, since it is days later
    produce(kafka, zero, times[:2000])
    produce(kafka, zero, times[2000:])
    produce(kafka, one, [base + STEP_MS * n for n in range(RECORDS)])
    client = DeferredRevokeConsumer(bootstrap_servers=kafka.bootstrap_servers, group_id=group_id)
    client.assign([zero, one])  # so it knows their leaders
    reader = KafkaConsumer(bootstrap_servers=kafka.bootstrap_servers, enable_auto_commit=False)
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    try:
        answers = BrokersTimes(client, reader)
        planner = BatchPlanner([EventTime(EventTimeOptions(0, 0), answers, False)])
        positions, ends = {zero: 0, one: 0}, {zero: RECORDS, one: RECORDS}
        reached = late = 0
        deleted = False
        deadline = time.monotonic() + 120
        while positions != ends:
            assert time.monotonic() < deadline, positions
            plan = planner.plan(dict(positions), ends, ReadMaxRows(400))
            assert isinstance(plan, Planned)
            batch: list[int] = []
            for p, r in plan.ranges.items():
                batch += [t for t in answers.read(p, r.start, r.end).timestamps if t < horizon]
                positions[p] = r.end
            if batch:
                late = max(late, reached - min(batch))
                reached = max(reached, *batch)
            if not deleted and positions[zero] > 30:
                deleted = True
                admin.delete_records({zero: 2800})
                asked = base + 300_000
                found = answers.first_at({zero: asked})[zero]
                assert found is None, "the broker has deleted the segment, so this proves nothing"
    finally:
        admin.close()
        reader.close()
        client.close()
    assert late == 0
