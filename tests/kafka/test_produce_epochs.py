"""`Producer` when the epochs of its producer id are used up. Report 8.

What the coordinator remembers is written into its log. The long form really uses the epochs up: 4
minutes for each version on an idle machine, 14 on a busy one.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator

import pytest
from kafka.protocol.producer import InitProducerIdRequest
from producer_groups import read_committed
from written import ENDS_SOON, PATIENCE_MS, VERSIONS, producer_of

from pyspark_kafka_rebalance.fetch.connections import ClusterConnections
from pyspark_kafka_rebalance.produce.producer import Producer
from pyspark_kafka_rebalance.testing import LocalKafka

#: The last one that a client gets.
LAST_EPOCH = 32_766
TRANSACTION_LOG = "__transaction_state"
#: Enough to go beyond it: with v1 only a take-over needs an epoch.
TAKE_OVERS = 8


@pytest.fixture(params=VERSIONS)
def cluster(request: pytest.FixtureRequest) -> Iterator[LocalKafka]:
    features = {"transaction.version": VERSIONS[request.param]}
    with LocalKafka(features=features, broker_config=ENDS_SOON) as local:
        yield local


def identity_of(producer: Producer) -> tuple[int, int]:
    assert producer._transactions is not None
    identity = producer._transactions.identity
    return identity.producer_id, identity.producer_epoch


def use_up(cluster: LocalKafka, name: str, last: int) -> None:
    """Take the transactional id over again and again, until its epoch is ``last``."""
    connections = ClusterConnections({"bootstrap_servers": cluster.bootstrap_servers}, 2**20)
    connections.bootstrap(30)
    request = {"transactional_id": name, "transaction_timeout_ms": 60_000}
    epoch = 0
    while epoch < last:
        asked = InitProducerIdRequest(**request, producer_id=-1, producer_epoch=-1, version=4)
        answer = connections.send(asked).wait()
        if answer.error_code:
            time.sleep(0.005)
        else:
            epoch = answer.producer_epoch
    connections.close()


def write_into_log(cluster: LocalKafka, name: str, producer_id: int, epoch: int) -> None:
    """Have the coordinator find another epoch when it starts."""
    encoded = name.encode()
    key = struct.pack(">hh", 0, len(encoded)) + encoded
    empty, no_partitions, now_ms = 0, -1, int(time.time() * 1000)
    timeout_ms = 60_000
    value = struct.pack(
        *(">hqhibiqq", 0, producer_id, epoch, timeout_ms, empty, no_partitions, now_ms, -1)
    )
    # Brokers let this client alone write to their topics.
    with producer_of(cluster, client_id="__admin_client") as producer:
        partition = abs(java_hash(name)) % producer.partitions_for(TRANSACTION_LOG)
        producer.send(TRANSACTION_LOG, value, key, partition=partition)
        producer.flush(PATIENCE_MS)
    cluster.restart()


def java_hash(text: str) -> int:
    found = 0
    for character in text:
        found = (31 * found + ord(character)) % 2**32
    return found - 2**32 if found >= 2**31 else found


@pytest.mark.parametrize("really", [False, pytest.param(True, marks=pytest.mark.long)])
def test_epochs_end(cluster: LocalKafka, topic_name: str, really: bool) -> None:
    cluster.create_topic(topic_name)
    with producer_of(cluster, topic_name) as producer:
        producer.initialize()
        first = identity_of(producer)
    if really:
        use_up(cluster, topic_name, LAST_EPOCH - 6)
    else:
        write_into_log(cluster, topic_name, first[0], LAST_EPOCH - 6)
    identities = []
    for takes_over in range(TAKE_OVERS):
        with producer_of(cluster, topic_name) as producer:
            for n in range(4):
                with producer.transaction() as one:
                    one.send(topic_name, b"%d" % (takes_over * 4 + n))
                identities.append(identity_of(producer))
    written = [b"%d" % n for n in range(4 * TAKE_OVERS)]
    assert read_committed(cluster, topic_name) == written
    ids = [producer_id for producer_id, _ in identities]
    assert ids[0] == first[0]
    assert identities[0][1] > LAST_EPOCH - 6
    assert ids[-1] != first[0], "another producer id"
    assert max(epoch for _, epoch in identities) <= LAST_EPOCH
