from __future__ import annotations

import kafka
import pytest
from kafka import KafkaConsumer

from pyspark_kafka_rebalance.kafka_python_version import require_kafka_python


@pytest.mark.parametrize("version", ["3.0.5", "3.0.12", "3.0.99"])
def test_supported_versions_pass(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(kafka, "__version__", version)
    assert require_kafka_python({KafkaConsumer: ("poll",)}) is None


@pytest.mark.parametrize("version", ["2.3.0", "3.0.4", "3.1.0", "4.0"])
def test_other_versions_are_refused(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(kafka, "__version__", version)
    with pytest.raises(ImportError, match=rf"{version} is not supported.*>=3\.0\.5,<3\.1"):
        require_kafka_python({})


def test_a_missing_name_is_named() -> None:
    with pytest.raises(ImportError, match=r"it lacks KafkaConsumer\._no_such_name"):
        require_kafka_python({KafkaConsumer: ("poll", "_no_such_name")})
