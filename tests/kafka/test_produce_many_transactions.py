"""`Producer` over many transactions: nothing that it, or the cluster, has to remember grows.

A few thousand show it; 100,000 also use up the epochs of a producer id, with transactions v2.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka.admin import KafkaAdminClient
from producer_groups import read_committed
from written import ENDS_SOON, VERSIONS, producer_of

from pyspark_kafka_rebalance.produce.producer import Producer
from pyspark_kafka_rebalance.testing import LocalKafka

RECORDS = 3
#: Memory counts from here on: by then every buffer has been used, and every code has run.
WARM_SHARE = 5
#: How many a producer id has: epochs 0 to 32,766, of which a start may take some.
EPOCHS = 32_767

#: More than what a heap of this size is fragmented by, less than 100 bytes a transaction of the
#: long form. In the short form objects show what holds on to transactions.
GROWTH_MIB = 7
#: What the collector knows; one for every 24th transaction of the short form.
MORE_OBJECTS = 100


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def cluster(version: str) -> Iterator[LocalKafka]:
    features = {"transaction.version": VERSIONS[version]}
    with LocalKafka(features=features, broker_config=ENDS_SOON) as local:
        yield local


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def write(producer: Producer, topic: str, numbers: range) -> set[int]:
    """Write transactions of these numbers; the producer ids that they had."""
    machine = producer._machine()
    producer_ids = set()
    for number in numbers:
        with producer.transaction() as one:
            for record in range(RECORDS):
                one.send(topic, b"%d:%d" % (number, record), partition=0)
        producer_ids.add(machine.identity.producer_id)
    return producer_ids


def transactional_ids(cluster: LocalKafka) -> list[str]:
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    try:
        of_brokers = admin.list_transactions().values()
        return [each.transactional_id for listed in of_brokers for each in listed]
    finally:
        admin.close()


@pytest.mark.parametrize("transactions", [3_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_nothing_grows_with_the_number_of_transactions(
    cluster: LocalKafka, topic_name: str, version: str, transactions: int
) -> None:
    cluster.create_topic(topic_name)
    warm = transactions // WARM_SHARE
    with producer_of(cluster, topic_name) as producer:
        producer_ids = write(producer, topic_name, range(warm))
        gc.collect()
        objects, mib = len(gc.get_objects()), resident_mib()
        began = time.monotonic()
        producer_ids |= write(producer, topic_name, range(warm, transactions))
        took_s = time.monotonic() - began
        gc.collect()
        more_objects, more_mib = len(gc.get_objects()) - objects, resident_mib() - mib
        print(
            f"{mib:.1f} MiB after {warm:,} transactions; {transactions - warm:,} more in "
            f"{took_s:.0f} s: {more_mib:+.1f} MiB, {more_objects:+} objects"
        )
        assert more_mib < GROWTH_MIB
        assert more_objects < MORE_OBJECTS
        assert transactional_ids(cluster) == [topic_name]
    # With v2 each end makes an epoch.
    assert len(producer_ids) == (1 + transactions // EPOCHS if version == "v2" else 1)
    expected = [b"%d:%d" % (n, record) for n in range(transactions) for record in range(RECORDS)]
    assert read_committed(cluster, topic_name) == expected
