"""A list of servers with a comma too many, as templates make it, on a real broker."""

from __future__ import annotations

from pyspark_kafka_rebalance import DeferredRevokeConsumer, OffsetRange, RangeFetcher
from pyspark_kafka_rebalance.testing import LocalKafka


def test_the_python_clients_ignore_empty_servers(
    kafka: LocalKafka, topic_name: str, group_id: str
) -> None:
    """As Java's ``ClientUtils.parseAndValidateAddresses``."""
    kafka.create_topic(topic_name, partitions=1)
    kafka.produce(topic_name, [b"x"])
    servers = f", {kafka.bootstrap_servers},,"
    with DeferredRevokeConsumer(group_id=group_id, bootstrap_servers=servers) as consumer:
        # The second reader of a catch-up starts from this list as well.
        assert consumer.config["bootstrap_servers"] == kafka.bootstrap_servers.split(",")
        assert consumer.partitions_for_topic(topic_name) == {0}
    fetcher = RangeFetcher({"bootstrap_servers": [servers, ""]})
    try:
        read = fetcher.read([OffsetRange(topic_name, 0, 0, 1)])
        assert [batch["value"].to_pylist() for _, batch in read] == [[b"x"]]
    finally:
        fetcher.close()
