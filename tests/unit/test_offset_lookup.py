"""What is said of offsets that name too few partitions, or too many."""

from __future__ import annotations

import pytest
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.errors import OptionError
from pyspark_kafka_rebalance.source.offset_lookup import require_all

ZERO, ONE = TopicPartition("orders", 0), TopicPartition("orders", 1)


def test_offsets_are_for_every_partition() -> None:
    require_all("startingOffsets", {ZERO: 5, ONE: "latest"}, [ZERO, ONE])
    with pytest.raises(OptionError) as raised:
        require_all("startingOffsets", {ZERO: 5, ONE: None}, [ZERO])
    assert str(raised.value) == (
        "option 'startingOffsets' leaves out partitions: orders-1; name all partitions"
    )
    with pytest.raises(OptionError) as raised:
        require_all("endingOffsets", {ZERO: 5}, [ZERO, ONE])
    assert str(raised.value) == (
        "option 'endingOffsets' names partitions that do not exist: orders-1; leave them out"
    )
