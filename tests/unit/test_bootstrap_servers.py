"""``bootstrap_servers`` of the Python clients: empty items are ignored, as Java does."""

from __future__ import annotations

from typing import Any

import pytest

from pyspark_kafka_rebalance import DeferredRevokeConsumer, OptionError, ProducerGroup, RangeFetcher
from pyspark_kafka_rebalance.settings.bootstrap_servers import without_empty_servers


@pytest.mark.parametrize(
    "given",
    [
        *("a:1,b:2", "a:1,b:2,", ",a:1,,b:2", " a:1 , , b:2 , "),
        *(["a:1", "b:2"], ["a:1", "", " ", "b:2"], ("a:1,", "b:2"), ["a:1,b:2"]),
    ],
)
def test_what_is_left(given: Any) -> None:
    config = without_empty_servers({"bootstrap_servers": given, "client_id": "x"})
    assert config == {"bootstrap_servers": ["a:1", "b:2"], "client_id": "x"}


def test_kafka_pythons_default_stays() -> None:
    assert without_empty_servers({}) == {}


@pytest.mark.parametrize("given", ["", ",", " , ", [], [""], ["", " "], None])
def test_an_empty_list_is_an_error_of_every_client(given: Any) -> None:
    """Else kafka-python would connect to port 9092 of this machine."""
    for make in (
        lambda: DeferredRevokeConsumer("t", group_id="g", bootstrap_servers=given),
        lambda: ProducerGroup("g", 1, bootstrap_servers=given),
        lambda: RangeFetcher({"bootstrap_servers": given}),
    ):
        with pytest.raises(OptionError, match="option 'bootstrap_servers' ") as raised:
            make()
        assert "host:port, several in a list or separated by commas" in str(raised.value)
