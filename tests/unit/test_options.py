"""SourceOptions: each bad option set gives one error that names the option."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from bad_inputs import AS_IT_IS, WITHOUT_EFFECT
from hypothesis import given
from hypothesis import strategies as st
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.errors import OptionError, SeveralOptionsError
from pyspark_kafka_rebalance.settings import client_settings
from pyspark_kafka_rebalance.source.options.event_time_options import EventTimeOptions
from pyspark_kafka_rebalance.source.options.source_options import _OWN_OPTIONS, SourceOptions
from pyspark_kafka_rebalance.source.options.starting_offsets import AtTimestamp, StartingOffsets

GOOD = {
    "kafka.bootstrap.servers": "localhost:9092",
    "kafka.group.id": "g",
    "subscribe": "orders",
}

ASSIGNED: dict[str, str | None] = {"subscribe": None, "assign": '{"orders":[0]}'}


def parse(**changes: str | None) -> SourceOptions:
    return parse_all({**GOOD, **changes})


def parse_all(options: dict[str, Any]) -> SourceOptions:
    # Spark hands the names over in lower case.
    given = {name.lower(): value for name, value in options.items() if value is not None}
    return SourceOptions.parse(given, default_readers=4).for_stream()


def parse_batch(**changes: str | None) -> SourceOptions:
    options = {**GOOD, "kafka.group.id": None, **changes}
    given = {name.lower(): value for name, value in options.items() if value is not None}
    return SourceOptions.parse(given, default_readers=4).for_batch()


def test_defaults() -> None:
    options = parse()
    assert options.topics == ("orders",)
    assert options.pattern is None
    assert options.group_id == "g"
    assert options.consumer_config["group_protocol"] == "classic"
    assert options.readers == 4
    assert options.starting_offsets == StartingOffsets.GROUP
    assert options.auto_offset_reset == "latest"
    assert options.isolation_level == "read_uncommitted"
    assert options.max_offsets_per_trigger is None
    assert options.revoke_timeout_ms is None
    assert options.max_batch_duration_ms is None
    assert options.checkpoint_location is None
    assert options.fail_on_data_loss
    assert not options.include_headers
    assert not options.include_rebalance_events


def test_every_option_arrives() -> None:
    options = parse_all(
        {
            "kafka.bootstrap.servers": "a:1, b:2",
            "kafka.group.id": "g",
            "kafka.isolation.level": "read_committed",
            "kafka.auto.offset.reset": "earliest",
            "SUBSCRIBE": " orders, payments ,orders",
            "readers": "2",
            "startingOffsets": "Latest",
            "maxOffsetsPerTrigger": "1000",
            "includeHeaders": "TRUE",
            "failOnDataLoss": "False",
            "revokeTimeoutMs": "300000",
            "maxBatchDurationMs": "600000",
            "includeRebalanceEvents": "true",
            "checkpointLocation": "file:///data/check%20point",
        }
    )
    assert options.topics == ("orders", "payments")
    assert options.client_config["bootstrap_servers"] == ["a:1", "b:2"]
    assert options.isolation_level == "read_committed"
    assert options.auto_offset_reset == "earliest"
    assert options.readers == 2
    assert options.starting_offsets == StartingOffsets.LATEST
    assert options.max_offsets_per_trigger == 1000
    assert options.include_headers
    assert not options.fail_on_data_loss
    assert options.revoke_timeout_ms == 300_000
    assert options.max_batch_duration_ms == 600_000
    assert options.include_rebalance_events
    assert options.checkpoint_location == "/data/check%20point"
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize("text", ["a,b", "a,b,", ",a,b", "a,,b", " a , , b , ", "a,b,,"])
def test_empty_items_of_a_list_are_ignored(text: str) -> None:
    """Templates leave commas behind; Spark ignores them in topics, Java in servers."""
    servers = text.replace("a", "a:1").replace("b", "b:2")
    assignor = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
    versions = text.replace("a", "TLSv1.3").replace("b", "TLSv1.2")
    options = parse(
        **{
            "kafka.bootstrap.servers": servers,
            "kafka.partition.assignment.strategy": f",{assignor}, ",
            "kafka.security.protocol": "SSL",
            "kafka.ssl.enabled.protocols": versions,
            "subscribe": text,
        }
    )
    assert options.topics == ("a", "b")
    assert options.client_config["bootstrap_servers"] == ["a:1", "b:2"]


@pytest.mark.parametrize("location", ["/data/c", "file:/data/c", "file:///data/c", "/data/x/../c"])
def test_local_checkpoint_locations(location: str) -> None:
    assert parse(checkpointLocation=location).checkpoint_location == "/data/c"


@pytest.mark.parametrize(
    ("pattern", "matches", "others"),
    [
        ("orders", ["orders"], ["orders2", "myorders", "ORDERS"]),
        ("a|ab", ["a", "ab"], ["abc"]),
        ("(?i)orders-.*", ["Orders-1"], ["orders"]),
        ("(?x)orders # all of them", ["orders"], ["orders1"]),
    ],
)
def test_a_pattern_matches_whole_names(pattern: str, matches: list[str], others: list[str]) -> None:
    import re

    anchored = parse(subscribe=None, subscribePattern=pattern).pattern
    assert anchored is not None
    # kafka-python compiles the text and calls match().
    compiled = re.compile(anchored)
    assert [name for name in matches + others if compiled.match(name)] == matches


def test_starting_offsets_by_partition() -> None:
    options = parse(
        **{
            "startingOffsets": '{"orders":{"0":23,"1":-2,"2":-1}}',
            "kafka.auto.offset.reset": "earliest",
        }
    )
    starts = [options.start_of(TopicPartition("orders", partition)) for partition in range(4)]
    assert starts == [23, "earliest", "latest", "earliest"]


@pytest.mark.parametrize(("word", "start"), [("group", "latest"), ("earliest", "earliest")])
def test_starting_offsets_by_word(word: str, start: str) -> None:
    assert parse(startingOffsets=word).start_of(TopicPartition("orders", 0)) == start


def test_starting_offsets_of_a_topic_that_matches_the_pattern() -> None:
    options = parse(subscribe=None, subscribePattern="o.*", startingOffsets='{"orders":{"0":5}}')
    assert options.start_of(TopicPartition("orders", 0)) == 5


def test_secrets_stay_out_of_the_representation() -> None:
    options = parse(
        **{
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule "
            'required username="u" password="hunter2";',
        }
    )
    assert options.client_config["sasl_plain_password"] == "hunter2"
    assert "hunter2" not in repr(options)


# Each changes GOOD into something bad (None takes an option away), and names the culprit.
BAD: list[tuple[str, dict[str, str | None]]] = [
    ("kafka.bootstrap.servers", {"kafka.bootstrap.servers": None}),
    ("kafka.bootstrap.servers", {"kafka.bootstrap.servers": ""}),
    ("kafka.bootstrap.servers", {"kafka.bootstrap.servers": "host"}),
    ("kafka.bootstrap.servers", {"kafka.bootstrap.servers": "host:0"}),
    ("kafka.bootstrap.servers", {"kafka.bootstrap.servers": "host:9092,other"}),
    ("kafka.group.id", {"kafka.group.id": None}),
    ("kafka.group.id", {"kafka.group.id": " "}),
    ("subscribe", {"subscribe": None}),
    ("subscribe", {"subscribe": ""}),
    ("subscribe", {"subscribe": " , ,"}),
    ("subscribe", {"subscribe": "orders payments"}),
    ("subscribe", {"subscribe": ".."}),
    ("subscribe", {"subscribe": "ö"}),
    ("subscribe", {"subscribe": "x" * 250}),
    ("subscribePattern", {"subscribePattern": "orders.*"}),
    ("subscribePattern", {"subscribe": None, "subscribePattern": " "}),
    ("subscribePattern", {"subscribe": None, "subscribePattern": "orders("}),
    ("subscribePattern", {"subscribe": None, "subscribePattern": "a)(b"}),
    ("subscribePattern", {"subscribe": None, "subscribePattern": r"\p{Alpha}+"}),
    ("subscribePattern", {"subscribe": None, "subscribePattern": "[[ab]c]"}),
    ("subscribe", {"assign": '{"orders":[0]}'}),
    ("kafka.group.id", ASSIGNED | {"kafka.group.id": None}),
    ("kafka.group.instance.id", ASSIGNED | {"kafka.group.instance.id": "a"}),
    ("kafka.group.protocol", ASSIGNED | {"kafka.group.protocol": "consumer"}),
    ("revokeTimeoutMs", ASSIGNED | {"revokeTimeoutMs": "1000"}),
    ("maxBatchDurationMs", ASSIGNED | {"maxBatchDurationMs": "1000"}),
    ("startingOffsets", ASSIGNED | {"startingOffsets": '{"orders":{"0":5,"1":5}}'}),
    (
        "startingOffsetsByTimestamp",
        ASSIGNED
        | {"startingOffsetsByTimestamp": '{"orders":{"1":5}}', "startingOffsets": "latest"},
    ),
    ("readers", {"readers": "0"}),
    ("readers", {"readers": "-1"}),
    ("readers", {"readers": "two"}),
    ("readers", {"readers": "1_0"}),
    ("readers", {"readers": "1001"}),
    ("readers", {"readers": "9" * 5000}),
    ("startingOffsets", {"startingOffsets": "begin"}),
    ("startingOffsets", {"startingOffsets": ""}),
    ("startingOffsets", {"startingOffsets": "{"}),
    ("startingOffsets", {"startingOffsets": "{}"}),
    ("startingOffsets", {"startingOffsets": "[" * 100_000}),
    ("startingOffsets", {"startingOffsets": '["orders"]'}),
    ("startingOffsets", {"startingOffsets": '{"orders":5}'}),
    ("startingOffsets", {"startingOffsets": '{"orders":{}}'}),
    ("startingOffsets", {"startingOffsets": '{"orders":{"0":"5"}}'}),
    ("startingOffsets", {"startingOffsets": '{"orders":{"0":1.5}}'}),
    ("startingOffsets", {"startingOffsets": '{"orders":{"0":true}}'}),
    ("startingOffsets", {"startingOffsets": '{"orders":{"0":-3}}'}),
    ("startingOffsets", {"startingOffsets": '{"orders":{"0":9223372036854775808}}'}),
    ("startingOffsets", {"startingOffsets": '{"orders":{"-1":5}}'}),
    ("startingOffsets", {"startingOffsets": '{"orders":{"one":5}}'}),
    ("startingOffsets", {"startingOffsets": '{"orders":{"2147483648":5}}'}),
    ("startingOffsets", {"startingOffsets": '{"orders":{"0":5,"0":6}}'}),
    ("startingOffsets", {"startingOffsets": '{"payments":{"0":5}}'}),
    (
        "startingOffsets",
        {
            "subscribe": None,
            "subscribePattern": "orders",
            "startingOffsets": '{"orders2":{"0":5}}',
        },
    ),
    ("maxOffsetsPerTrigger", {"maxOffsetsPerTrigger": "0"}),
    ("maxOffsetsPerTrigger", {"maxOffsetsPerTrigger": "1e3"}),
    ("maxOffsetsPerTrigger", {"maxOffsetsPerTrigger": "9223372036854775808"}),
    ("includeHeaders", {"includeHeaders": "yes"}),
    ("failOnDataLoss", {"failOnDataLoss": "0"}),
    ("includeRebalanceEvents", {"includeRebalanceEvents": ""}),
    ("revokeTimeoutMs", {"revokeTimeoutMs": "0"}),
    ("maxBatchDurationMs", {"maxBatchDurationMs": "0"}),
    ("revokeTimeoutMs", {"revokeTimeoutMs": "300001"}),
    ("revokeTimeoutMs", {"revokeTimeoutMs": "2000", "kafka.max.poll.interval.ms": "1000"}),
    ("checkpointLocation", {"checkpointLocation": "dbfs:/c"}),
    ("checkpointLocation", {"checkpointLocation": "s3a://bucket"}),
    ("checkpointLocation", {"checkpointLocation": "file://host/c"}),
    ("checkpointLocation", {"checkpointLocation": "file:c"}),
    ("checkpointLocation", {"checkpointLocation": ""}),
    ("groupIdPrefix", {"kafka.group.id": None, "groupIdPrefix": ""}),
    ("shareGroup", {"shareGroup": "yes"}),
    ("endingOffsets", {"endingOffsets": '{"orders":{"0":5}}'}),
    ("endingTimestamp", {"endingTimestamp": "1"}),
    ("endingOffsetsByTimestamp", {"endingOffsetsByTimestamp": '{"orders":{"0":1}}'}),
    ("endingOffsets", {"endingOffsets": "earliest"}),
    ("endingOffsets", {"endingOffsets": '{"orders":{"0":-2}}'}),
    ("endingTimestamp", {"endingTimestamp": "tomorrow"}),
    ("startingTimestamp", {"startingTimestamp": "-1"}),
    ("startingTimestamp", {"startingTimestamp": "2026-01-01"}),
    ("startingTimestamp", {"startingTimestamp": ""}),
    ("startingOffsetsByTimestamp", {"startingOffsetsByTimestamp": "{}"}),
    ("startingOffsetsByTimestamp", {"startingOffsetsByTimestamp": '{"orders":{"0":-1}}'}),
    ("startingOffsetsByTimestamp", {"startingOffsetsByTimestamp": '{"other":{"0":1}}'}),
    (
        "startingOffsetsByTimestampStrategy",
        {"startingTimestamp": "1", "startingOffsetsByTimestampStrategy": "earliest"},
    ),
    ("minOffsetsPerTrigger", {"minOffsetsPerTrigger": "0"}),
    ("minOffsetsPerTrigger", {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}),
    ("maxTriggerDelay", {"maxTriggerDelay": "15 minutes"}),
    ("maxTriggerDelay", {"maxTriggerDelay": "-1s"}),
    ("maxTriggerDelay", {"maxTriggerDelay": "9223372036854775807d"}),
    ("minPartitions", {"minPartitions": "0"}),
    ("minPartitions", {"minPartitions": "2147483648"}),
    ("maxRecordsPerPartition", {"maxRecordsPerPartition": "0"}),
    ("maxBytesPerTrigger", {"maxBytesPerTrigger": "0"}),
    ("parallelRebalance", {"parallelRebalance": "true"}),
    ("parallelRebalance", {"parallelRebalance": "Live"}),
    ("catchUpThreshold", {"catchUpThreshold": "5m"}),
    ("catchUpThreshold", {"parallelRebalance": "live", "catchUpThreshold": "soon"}),
    ("catchUpThreshold", {"parallelRebalance": "live", "catchUpThreshold": "-1"}),
    ("catchUpBatchMs", {"parallelRebalance": "ordered", "catchUpBatchMs": "500"}),
    ("catchUpBatchMs", {"parallelRebalance": "live", "catchUpBatchMs": "1s"}),
    ("maxCatchUpOffsetsPerTrigger", {"maxCatchUpOffsetsPerTrigger": "1"}),
    (
        "maxCatchUpOffsetsPerTrigger",
        {"parallelRebalance": "live", "maxCatchUpOffsetsPerTrigger": "0"},
    ),
    ("maxTaskIdleMs", {"maxTaskIdleMs": "-2"}),
    ("maxTaskIdleMs", {"maxTaskIdleMs": "1s"}),
    ("maxTimestampDrift", {"maxTimestampDrift": "5m"}),
    ("maxTimestampDrift", {"maxTaskIdleMs": "-1", "maxTimestampDrift": "0"}),
    ("maxTimestampDrift", {"maxTaskIdleMs": "0", "maxTimestampDrift": "-1ms"}),
    ("includeFetchMetadata", {"includeFetchMetadata": "true"}),
    ("kafkaConsumer.pollTimeoutMs", {"kafkaConsumer.pollTimeoutMs": "0"}),
    ("fetchOffset.numRetries", {"fetchOffset.numRetries": "-1"}),
    ("fetchOffset.retryIntervalMs", {"fetchOffset.retryIntervalMs": "10ms"}),
    ("kafka.group.protocol", {"kafka.group.protocol": "share"}),
    ("kafka.enable.auto.commit", {"kafka.enable.auto.commit": "true"}),
    ("kafka.key.deserializer", {"kafka.key.deserializer": "x.Y"}),
    ("kafka.session.timeout.ms", {"kafka.session.timeout.ms": "abc"}),
    ("kafka.auto.offset.reset", {"kafka.auto.offset.reset": "none"}),
]


@pytest.mark.parametrize(("culprit", "changes"), BAD)
def test_a_bad_option_is_named(culprit: str, changes: dict[str, str | None]) -> None:
    with pytest.raises(OptionError) as raised:
        parse(**changes)
    assert raised.value.option == culprit
    assert repr(culprit) in str(raised.value)
    assert pickle.loads(pickle.dumps(raised.value)).option == culprit


def test_a_wrong_strategy_does_not_hide_a_wrong_start() -> None:
    with pytest.raises(SeveralOptionsError) as raised:
        parse(
            startingOffsets='{"other":{"0":1}}',
            startingOffsetsByTimestampStrategy="foo",
            shareGroup="maybe",
        )
    assert {problem.option for problem in raised.value.problems} == {
        "shareGroup",
        "startingOffsetsByTimestampStrategy",
        "startingOffsets",
    }


def test_a_group_of_its_own_for_each_query() -> None:
    prefixed = parse(**{"kafka.group.id": None, "groupIdPrefix": "orders"}).for_stream()
    assert prefixed.group_id == ""
    assert prefixed.in_group_of("1f0c").group_id == "orders-1f0c"
    assert prefixed.in_group_of("90a1").in_group_of("1f0c").group_id == "orders-1f0c"


def test_the_groups_name_counts_rather_than_a_prefix_as_with_sparks_own_source() -> None:
    named = parse(groupIdPrefix="orders").for_stream()
    assert named.in_group_of("1f0c") == named
    assert named.group_id == parse().group_id


def test_an_option_that_has_no_use_here_is_not_said_to_have_a_wrong_value() -> None:
    with pytest.raises(OptionError) as raised:
        parse(endingTimestamp="5")
    said = "option 'endingTimestamp' is for a batch only: leave it out, a stream has no end"
    assert str(raised.value) == said
    assert str(pickle.loads(pickle.dumps(raised.value))) == said


# Of a batch, for which no group needs to be named.
BAD_BATCH: list[tuple[str, dict[str, str | None]]] = [
    ("startingOffsets", {"startingOffsets": "latest"}),
    ("startingOffsets", {"startingOffsets": '{"orders":{"0":5,"1":-1}}'}),
    ("kafka.group.id", {"startingOffsets": "group"}),
    ("parallelRebalance", {"parallelRebalance": "ordered"}),
    ("parallelRebalance", {"parallelRebalance": "live"}),
    ("maxTaskIdleMs", {"maxTaskIdleMs": "-1"}),
    ("assign", {"subscribe": None, "assign": "orders"}),
    ("assign", {"subscribe": None, "assign": '{"orders":0}'}),
    ("assign", {"subscribe": None, "assign": '{"orders":[]}'}),
    ("assign", {"subscribe": None, "assign": '{"orders":[-1]}'}),
    ("assign", {"subscribe": None, "assign": '{"orders":["0"]}'}),
    ("assign", {"subscribe": None, "assign": '{"":[0]}'}),
    ("endingOffsets", {"endingOffsets": "earliest"}),
    ("endingOffsets", {"endingOffsets": '{"orders":{"0":-2}}'}),
    ("subscribePattern", {"assign": '{"orders":[0]}', "subscribe": None, "subscribePattern": "a"}),
]


@pytest.mark.parametrize(("culprit", "changes"), BAD_BATCH)
def test_a_bad_option_of_a_batch_is_named(culprit: str, changes: dict[str, str | None]) -> None:
    with pytest.raises(OptionError) as raised:
        parse_batch(**changes)
    assert raised.value.option == culprit


def test_the_order_of_timestamps_is_off_by_default() -> None:
    assert parse().event_time is None
    assert parse(maxTaskIdleMs="-1").event_time is None
    assert parse(maxTaskIdleMs="0").event_time == EventTimeOptions(0, 0)
    options = parse(maxTaskIdleMs="2000", maxTimestampDrift="5m").event_time
    assert options == EventTimeOptions(2_000, 300_000)


def test_a_batch_by_default() -> None:
    options = parse_batch()
    assert options.starting_offsets == StartingOffsets.EARLIEST
    assert options.ending_offsets.end_of(TopicPartition("orders", 0)) == "latest"
    assert (options.group_id, options.partitions) == ("", None)


def test_a_batch_of_assigned_partitions() -> None:
    options = parse_batch(subscribe=None, assign='{"b":[2,0,2],"a":[1]}')
    assert options.partitions == (
        TopicPartition("a", 1),
        TopicPartition("b", 0),
        TopicPartition("b", 2),
    )
    assert options.topics == ("a", "b")


def test_a_stream_of_assigned_partitions() -> None:
    options = parse(subscribe=None, assign='{"b":[2,0],"a":[1]}', startingOffsets='{"b":{"0":7}}')
    partitions = (TopicPartition("a", 1), TopicPartition("b", 0), TopicPartition("b", 2))
    assert options.partitions == partitions
    assert [options.start_of(p) for p in partitions] == ["latest", 7, "latest"]


def test_bounds_by_timestamp_come_before_those_by_offset() -> None:
    by_offset = {
        "startingOffsets": '{"orders":{"0":5}}',
        "endingOffsets": '{"orders":{"0":9,"1":-1}}',
    }
    by_partition = {
        "startingOffsetsByTimestamp": '{"orders":{"0":50}}',
        "endingOffsetsByTimestamp": '{"orders":{"0":90}}',
    }
    everywhere = {"startingTimestamp": "500", "endingTimestamp": "900"}
    p, q = TopicPartition("orders", 0), TopicPartition("orders", 1)

    def bounds(**given: str) -> list[Any]:
        options = parse_batch(**given)
        starts, ends = options.starting_offsets, options.ending_offsets
        return [starts.start_of(p), starts.start_of(q), ends.end_of(p), ends.end_of(q)]

    assert bounds(**by_offset) == [5, None, 9, "latest"]
    by_time = bounds(**by_offset, **by_partition)
    assert by_time == [AtTimestamp(50, False), None, AtTimestamp(90, True), None]
    start, end = AtTimestamp(500, True), AtTimestamp(900, True)
    strategy = {"startingOffsetsByTimestampStrategy": "Latest"}
    assert bounds(**by_offset, **by_partition, **everywhere, **strategy) == [start, start, end, end]


@pytest.mark.parametrize(
    ("text", "delay_ms"), [("500", 500), ("30s", 30_000), ("2MIN", 120_000), ("1d", 86_400_000)]
)
def test_the_longest_delay_of_a_trigger(text: str, delay_ms: int) -> None:
    assert parse(maxTriggerDelay=text).max_trigger_delay_ms == delay_ms
    assert parse().max_trigger_delay_ms == 15 * 60_000


def test_the_patience_of_a_fetch_is_that_of_sparks_poll() -> None:
    assert parse(**{"kafkaConsumer.pollTimeoutMs": "512"}).fetch_config["retry_timeout_ms"] == 512


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("subscribePatern", "subscribePattern"),
        ("startingOffset", "startingOffsets"),
        ("kafka.bootstrap.server", "kafka.bootstrap.servers"),
        ("bootstrap.servers", "kafka.bootstrap.servers"),
        ("kafka.ssl.key.pasword", "kafka.ssl.key.password"),
    ],
)
def test_an_unknown_option_names_the_nearest_but_no_value(name: str, nearest: str) -> None:
    with pytest.raises(OptionError) as raised:
        parse(
            **{
                **({"kafka.bootstrap.servers": None} if "servers" in nearest else {}),
                name: "hunter2",
            }
        )
    assert raised.value.option == name.lower()
    assert str(raised.value).endswith(f"the nearest is {nearest}")
    assert "hunter2" not in str(raised.value)


NAMES = st.sampled_from(sorted({name for _, changes in BAD for name in changes}))


@given(st.dictionaries(NAMES | st.text(max_size=30), st.text(max_size=30), max_size=4))
def test_whatever_is_given_is_parsed_or_refused_with_an_option_error(
    changes: dict[str, str],
) -> None:
    try:
        options = parse_all({**GOOD, **changes})
    except OptionError:
        return
    assert options.readers >= 1


@pytest.mark.parametrize(("name", "value", "why"), WITHOUT_EFFECT)
def test_what_has_no_effect_is_named_with_the_reason(name: str, value: str, why: str) -> None:
    """Spark's own source ignores these in silence; the first that are in 29 of 42 jobs' blocks."""
    [(named, reason)] = parse(**{name: value}).without_effect.items()
    assert named.lower() == name.lower()
    assert why in reason
    assert parse_batch(**{name: value}).without_effect == {named: reason}


@pytest.mark.parametrize(("name", "value"), AS_IT_IS)
def test_a_value_that_says_what_happens_anyway_needs_no_word(name: str, value: str) -> None:
    assert parse(**{name: value}).without_effect == {}


def test_the_latest_offsets_are_no_end_of_a_stream() -> None:
    """``endingOffsets=latest`` is where each batch of a stream ends; Spark refuses all values."""
    assert parse(endingOffsets="latest").given >= {"endingoffsets"}


def test_all_that_is_wrong_comes_in_one_error() -> None:
    wrong = {
        "startingOfsets": "earliest",
        "readers": "0",
        "failOnDataLoss": "no",
        "kafka.session.timeout.ms": "5s",
        "kafka.isolation_level": "x",
        "kafka.enable.auto.commit": "true",
        "kafka.security.protocol": "TLS",
        "kafka.fetch.max.wait.ms": "30000",
        "catchUpThreshold": "5",
        "maxTimestampDrift": "1s",
        "checkpointLocation": "",
        "endingOffsets": "5",
        "startingOffsets": '{"payments":{"0":1}}',
    }
    with pytest.raises(SeveralOptionsError) as raised:
        parse(**wrong)
    named = [problem.option.lower() for problem in raised.value.problems]
    assert sorted(named) == sorted(map(str.lower, wrong))
    for number, problem in enumerate(raised.value.problems, start=1):
        assert f"({number}) {problem}" in str(raised.value)
    again = pickle.loads(pickle.dumps(raised.value))
    assert (str(again), again.option) == (str(raised.value), raised.value.problems[0].option)


def test_a_group_that_only_a_stream_needs_is_named_beside_another_problem() -> None:
    with pytest.raises(SeveralOptionsError, match="is missing, if this is a stream"):
        parse_batch(readers="0")
    # But a wrong value of it is the problem, and a batch without other problems needs none.
    with pytest.raises(OptionError) as raised:
        parse(**{"kafka.group.id": " "})
    assert raised.value.problems == (raised.value,)
    assert parse_batch().group_id == ""


def test_one_misspelling_is_one_problem() -> None:
    """Although what is meant is missing as well."""
    for name, meant in (("bootstrap.servers", "servers"), ("kafka.bootstrap.server", "servers")):
        with pytest.raises(OptionError) as raised:
            parse(**{"kafka.bootstrap.servers": None, name: "h:1"})
        assert raised.value.problems == (raised.value,)
        assert raised.value.option == name
        assert str(raised.value).endswith(f"the nearest is kafka.bootstrap.{meant}")


def test_a_contradiction_is_one_of_the_problems_unless_one_of_the_two_is_bad_itself() -> None:
    with pytest.raises(SeveralOptionsError) as several:
        parse(**{"kafka.heartbeat.interval.ms": "50000", "readers": "0"})
    assert [p.option for p in several.value.problems] == ["kafka.heartbeat.interval.ms", "readers"]
    with pytest.raises(OptionError) as one:
        parse(**{"kafka.heartbeat.interval.ms": "50000", "kafka.session.timeout.ms": "long"})
    assert one.value.problems == (one.value,)


def test_a_stream_and_a_batch_name_all_that_they_cannot_do() -> None:
    with pytest.raises(SeveralOptionsError) as of_stream:
        parse(
            **{"kafka.group.id": None, "endingTimestamp": "5", "revokeTimeoutMs": "5"}, **ASSIGNED
        )
    named = [problem.option for problem in of_stream.value.problems]
    assert named == ["endingTimestamp", "revokeTimeoutMs", "kafka.group.id"]
    with pytest.raises(SeveralOptionsError) as of_batch:
        parse_batch(parallelRebalance="live", maxTaskIdleMs="5", startingOffsets="latest")
    named = [problem.option for problem in of_batch.value.problems]
    assert named == ["parallelRebalance", "maxTaskIdleMs", "startingOffsets"]


#: As jobs give them to Spark's own source, but for the group, which a stream needs here.
BLOCKS: dict[str, dict[str, str]] = {
    "Confluent Cloud": {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": "kafkashaded.org.apache.kafka.common.security.plain."
        'PlainLoginModule required username="k" password="s" serviceName="kafka";',
        "kafka.ssl.endpoint.identification.algorithm": "https",
        "kafka.client.dns.lookup": "use_all_dns_ips",
        "kafka.acks": "all",
        "kafka.schema.registry.url": "https://h",
        "kafka.basic.auth.credentials.source": "USER_INFO",
        "failOnDataLoss": "false",
    },
    "Event Hubs": {
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule "
        'required username="$ConnectionString" password="Endpoint=sb://n;Key=k=";',
        "kafka.request.timeout.ms": "60000",
        "kafka.session.timeout.ms": "60000",
        "kafka.group.instance.id": "a",
        "maxOffsetsPerTrigger": "1000",
        "eventhubs.consumerGroup": "$Default",
    },
    "AWS Glue": {
        "classification": "json",
        "connectionName": "msk",
        "inferSchema": "true",
        "startingOffsets": "earliest",
        "topicName": "orders",
        "maxOffsetsPerTrigger": "5",
    },
    "a template": {
        "kafka.bootstrap.servers": "a:9092,b:9092,",
        "subscribe": "orders, ",
        "group.id": "etl",
        "client.id": "etl",
        "enable.auto.commit": "false",
        "auto.offset.reset": "earliest",
        "key.deserializer": "org.apache.kafka.common.serialization.StringDeserializer",
        "kafka.max.poll.records": "500",
        "kafka.partition.assignment.strategy": "org.apache.kafka.clients.consumer.RangeAssignor",
        "kafka.fetch.message.max.bytes": "1048576",
    },
    "mutual TLS": {
        "kafka.security.protocol": "SSL",
        "kafka.ssl.protocol": "TLSv1.2",
        "kafka.ssl.enabled.protocols": "TLSv1.2",
        "kafka.ssl.keymanager.algorithm": "SunX509",
        "kafka.ssl.truststore.location": "/etc/kafka/trust.jks",
        "kafka.ssl.truststore.password": "p",
        "kafka.ssl.keystore.location": "/etc/kafka/key.jks",
        "kafka.ssl.keystore.password": "p",
        "kafka.ssl.key.password": "q",
        "kafka.ssl.client.auth": "required",
    },
}


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_what_runs_on_sparks_own_source_needs_no_change_but_the_group(
    block: dict[str, str],
) -> None:
    options = parse(**block)
    mapped = client_settings._MAPPED.keys() | client_settings.SECURITY_SETTINGS
    with_effect = {name.lower() for name in (*_OWN_OPTIONS, *(f"kafka.{n}" for n in mapped))}
    ignored = {name.lower() for name in options.without_effect}
    assert ignored == {name.lower() for name in block} - with_effect
