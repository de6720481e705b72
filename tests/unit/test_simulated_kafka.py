"""The simulated Kafka is of one thread, whatever else the process does."""

from __future__ import annotations

import threading
import time

from kafka.structs import TopicPartition
from model_log import PartitionLog
from simulated_kafka import TOPIC, Broker, World

from pyspark_kafka_rebalance import DeferredRevokeConsumer

P = TopicPartition(TOPIC, 0)


def test_a_thread_that_sleeps_outside_runs_no_loop_of_this_world() -> None:
    """It did, beside the test's own: kafka-python's loop ended with an AssertionError."""
    ended = threading.Event()
    ran_by: set[int] = set()

    def doze() -> None:
        while not ended.is_set():
            time.sleep(0.0001)

    outside = threading.Thread(target=doze)
    outside.start()
    world = World()
    broker = Broker(world, {P: PartitionLog()}, 30, 60)
    broker.logs[P].produce(500)
    try:
        with world.is_real():
            world.at(world.now, lambda: ran_by.add(threading.get_ident()))
            consumer = DeferredRevokeConsumer(
                TOPIC,
                group_id="g",
                group_protocol="consumer",
                bootstrap_servers="broker:9092",
                kafka_client=broker.client,
                enable_incremental_fetch_sessions=False,
                auto_offset_reset="earliest",
                max_poll_records=1,
            )
            found: list[int] = []
            while len(found) < 500:
                world.at(world.now, lambda: ran_by.add(threading.get_ident()))
                records = consumer.poll(100)
                found += [r.offset for values in records.values() for r in values]
            for net in list(world.nets):
                net.die()
    finally:
        ended.set()
        outside.join()
    assert found == list(range(500))
    assert ran_by == {threading.get_ident()}
