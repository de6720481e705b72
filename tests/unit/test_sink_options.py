"""The sink's options: what is allowed, and what each refusal says."""

from __future__ import annotations

import pickle

import pytest

from pyspark_kafka_rebalance import OptionError
from pyspark_kafka_rebalance.sink.options.sink_options import SinkOptions

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}


def checked(**options: str) -> SinkOptions:
    return SinkOptions.checked({**SERVERS, **{k.replace("__", "."): v for k, v in options.items()}})


def test_a_stream_is_exactly_once_by_default_and_a_batch_at_least_once() -> None:
    options = checked(topic=" orders ")
    assert options.topic == "orders"
    assert options.for_stream().delivery == "exactly_once"
    assert options.for_batch().delivery == "at_least_once"
    assert checked(batchId="7").for_batch().delivery == "exactly_once"
    assert checked(DELIVERY="AT_LEAST_ONCE").for_stream().delivery == "at_least_once"


def test_a_batch_is_exactly_once_with_its_number_alone() -> None:
    with pytest.raises(OptionError, match="batchId gives the number"):
        checked(delivery="exactly_once").for_batch()
    with pytest.raises(OptionError, match="in foreachBatch only"):
        checked(batchId="7").for_stream()


def test_java_settings_reach_the_producer_and_the_encoder() -> None:
    options = checked(
        kafka__compression__type="zstd",
        kafka__compression__zstd__level="5",
        kafka__LINGER__MS="0",
        kafka__batch__size="1000",
        kafka__max__request__size="5000000",
        kafka__client__id="me",
    )
    assert options.producer_config["linger_ms"] == 0
    assert options.producer_config["client_id"] == "me"
    encoder = options.encoder
    assert (encoder.codec, encoder.level, encoder.batch_bytes) == (4, 5, 1000)
    assert encoder.max_request_bytes == 5_000_000


def test_the_level_of_another_codec_has_no_effect() -> None:
    options = checked(kafka__compression__gzip__level="9", kafka__compression__type="lz4")
    assert options.encoder.level is None
    assert options.without_effect == {
        "kafka.compression.gzip.level": "kafka.compression.type is lz4"
    }


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("kafka.transactional.id", "x", "is derived"),
        ("kafka.transaction.timeout.ms", "1", "is derived"),
        ("kafka.enable.idempotence", "false", "written once"),
        ("kafka.acks", "1", "on every replica"),
        ("kafka.key.serializer", "x", "keys are serialized with ByteArraySerializer"),
        ("kafka.value.serializer", "x", "values are serialized with ByteArraySerializer"),
        ("kafka.compresion.type", "lz4", "nearest is kafka.compression.type"),
        ("kafka.compression.type", "brotli", "none or gzip"),
        ("kafka.security.protocl", "SSL", "nearest is kafka.security.protocol"),
        ("kafka.topic", "x", "nearest is topic"),
        ("delivry", "exactly_once", "nearest is delivery"),
        ("delivery", "twice", "exactly_once or at_least_once"),
        ("topic", "a/b", "ASCII letters"),
        ("topic", "__kafka_deferred_sink", "another topic than sinkTopic"),
        ("batchId", "-1", "a whole number"),
        ("includeHeaders", "yes", "true or false"),
        ("checkpointLocation", "ftp://x/y", "a local path"),
    ],
)
def test_what_is_refused_says_why(name: str, value: str, said: str) -> None:
    with pytest.raises(OptionError, match=said) as raised:
        SinkOptions.checked({**SERVERS, name: value})
    assert name in str(raised.value)


def test_one_error_has_all_problems() -> None:
    with pytest.raises(OptionError) as raised:
        SinkOptions.checked({"kafka.acks": "0", "delivery": "twice"})
    assert {each.option for each in raised.value.problems} == {
        "kafka.acks",
        "kafka.bootstrap.servers",
        "delivery",
    }


def test_options_of_the_source_and_of_consumers_have_no_effect() -> None:
    options = checked(subscribe="a", startingOffsets="earliest", kafka__group__id="g", other="1")
    assert set(options.without_effect) == {
        "subscribe",
        "startingOffsets",
        "kafka.group.id",
        "other",
    }


def test_options_can_be_pickled_and_hide_what_is_secret() -> None:
    options = checked(
        kafka__security__protocol="SASL_SSL",
        kafka__sasl__mechanism="PLAIN",
        kafka__sasl__jaas__config="org.apache.kafka.common.security.plain.PlainLoginModule "
        'required username="u" password="hidden-1";',
        checkpointLocation="s3://bucket/x?secret_key=hidden-2",
    )
    assert "hidden" not in repr(options)
    assert pickle.loads(pickle.dumps(options)).producer_config.keys() == (
        options.producer_config.keys()
    )
