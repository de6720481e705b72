"""parse_offset_log on what Spark writes into a checkpoint."""

from __future__ import annotations

import pytest

from pyspark_kafka_rebalance.source.checkpoint.offset_log import parse_offset_log

METADATA = '{"batchWatermarkMs":0,"conf":{"a":"b:c"}}'


def test_sources_in_order() -> None:
    text = "\n".join(["v1", METADATA, '{"orders": {"0": 4}}', "-", "17", "file:{1}"])
    assert parse_offset_log(text) == [
        ("0", {"orders": {"0": 4}}),
        ("1", None),
        ("2", 17),
        ("3", None),
    ]


def test_sources_by_name() -> None:
    text = "\n".join(["v2", METADATA, 'all_orders:{"orders": {"0": 4}}', "1:-", "rates:17"])
    assert parse_offset_log(text) == [
        ("all_orders", {"orders": {"0": 4}}),
        ("1", None),
        ("rates", 17),
    ]


@pytest.mark.parametrize("text", ["", "v3\n{}\n{}", "\n", '{"orders":{}}'])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not v1 or v2"):
        parse_offset_log(text)


def test_a_file_that_is_cut_off_has_no_sources() -> None:
    assert parse_offset_log("v1") == []
    assert parse_offset_log(f"v2\n{METADATA}") == []
