"""Which option a misspelt name was meant to be, and that a name of something else is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafka_rebalance.settings.client_settings import KNOWN_SETTINGS
from pyspark_kafka_rebalance.settings.misspelt import LENIENT, meant_by
from pyspark_kafka_rebalance.source.options.source_options import _OWN_OPTIONS


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("startingOfsets", "startingOffsets"),
        ("startingOffset", "startingOffsets"),
        ("stratingOffsets", "startingOffsets"),
        ("starting-offsets", "startingOffsets"),
        ("STARTING_OFFSETS", "startingOffsets"),
        ("startingOffsetsByTime", "startingOffsetsByTimestamp"),
        ("maxOffsetPerTrigger", "maxOffsetsPerTrigger"),
        ("maxOffsets", "maxOffsetsPerTrigger"),
        ("subscribePatern", "subscribePattern"),
        ("reader", "readers"),
        # Of other sources, tools and platforms.
        *((name, None) for name in ("classification", "connectionName", "maxFilesPerTrigger")),
        *(
            (name, None)
            for name in ("header", "mode", "path", "topic", "user", "a", "", ".", "max")
        ),
        *((name, None) for name in ("startingPosition", "streamName", "trigger", "ignoreChanges")),
        *(
            (name, None)
            for name in ("numPartitions", "partitionColumn", "fetchsize", "mergeSchema")
        ),
    ],
)
def test_options(written: str, meant: str | None) -> None:
    assert meant_by(written, _OWN_OPTIONS) == meant


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("isolaton.lvel", "isolation.level"),
        ("session.timeout", "session.timeout.ms"),
        ("ssl.trustore.location", "ssl.truststore.location"),
        ("schema.registry.url", None),
        ("azure.tenant.id", None),
        ("message.timeout.ms", None),
        ("commit.interval.ms", None),
    ],
)
def test_settings_of_kafka(written: str, meant: str | None) -> None:
    assert meant_by(written, KNOWN_SETTINGS, LENIENT) == meant


@given(st.sampled_from(_OWN_OPTIONS), st.data())
def test_one_wrong_letter_in_a_long_name_is_seen_and_no_letter_is_no_misspelling(
    name: str, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(name) - 1))
    assert meant_by(name, _OWN_OPTIONS) == name
    if len(name) > 12 and name[at].isalpha():
        assert meant_by(name[:at] + name[at + 1 :], _OWN_OPTIONS) is not None
        assert meant_by(name[:at] + "x" + name[at + 1 :], _OWN_OPTIONS) is not None


@given(st.text(max_size=40))
def test_any_text_is_taken(text: str) -> None:
    assert meant_by(text, _OWN_OPTIONS) in (None, *_OWN_OPTIONS)
