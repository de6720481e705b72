"""What Spark makes of ``CREATE TABLE … USING kafka_deferred OPTIONS (…)``, and what a read gets."""

from __future__ import annotations

import logging
import pickle
from typing import Any

import pytest

from pyspark_kafka_rebalance.errors import OptionError
from pyspark_kafka_rebalance.source.options.table_options import TableOptions, given_options

types = pytest.importorskip("pyspark.sql.types")

from pyspark_kafka_rebalance.source.data_source import KafkaDeferredDataSource  # noqa: E402

GIVEN = {"kafka.bootstrap.servers": "h:1", "kafka.group.id": "g", "subscribe": "orders"}
SECRETS = {
    "kafka.security.protocol": "SASL_PLAINTEXT",
    "kafka.sasl.mechanism": "PLAIN",
    "kafka.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="u" password="hunter2";',
}


def as_created(options: dict[str, str], **properties: str) -> dict[str, str]:
    """What the source gets from Spark 4.3 when such a table is created."""
    twice = {**options, **{f"option.{name}": text for name, text in options.items()}}
    return {**twice, "provider": "kafka_deferred", "owner": "root", **properties}


def created(options: dict[str, str], **properties: str) -> Any:
    """The columns of the table, as a catalog keeps them."""
    columns = KafkaDeferredDataSource(as_created(options, **properties)).schema()
    return types.StructType.fromJson(columns.jsonValue())


def read(columns: Any, **options: str) -> Any:
    source = KafkaDeferredDataSource({n.replace("__", "."): v for n, v in options.items()})
    return pickle.loads(pickle.dumps(source)).reader(columns)


def test_only_what_stands_in_options_counts() -> None:
    properties = {
        "comment": "c",
        "location": "file:/x",
        "path": "file:/x",
        "a": "b",
        "readers": "0",
    }
    assert given_options(as_created(GIVEN, **properties)) == (GIVEN, True)
    assert given_options({"Subscribe": "orders"}) == ({"subscribe": "orders"}, False)


def test_a_table_is_read_with_its_options(caplog: pytest.LogCaptureFixture) -> None:
    columns = created({**GIVEN, "maxrecordsperpartition": "5", "mode": "x"}, a="b")
    assert "options without effect: mode (values are bytes)" in caplog.text
    assert "'a'" not in caplog.text
    caplog.clear()
    options = read(columns, maxRecordsPerPartition="7")._options
    assert (options.topics, options.group_id, options.max_records_per_partition) == (
        *(("orders",), "g"),
        7,
    )
    assert caplog.text == ""
    source = KafkaDeferredDataSource({})
    assert type(source.streamReader(columns)).__name__ != "RefusedStreamReader"


def test_a_load_carries_nothing() -> None:
    columns = KafkaDeferredDataSource(dict(GIVEN)).schema()
    assert all(not column.metadata for column in columns)


def test_secrets_are_not_kept(caplog: pytest.LogCaptureFixture) -> None:
    columns = created({**GIVEN, **SECRETS})
    assert "hunter2" not in columns.json()
    assert "the table does not keep kafka.sasl.jaas.config" in caplog.text
    with pytest.raises(OptionError, match=r"'kafka\.sasl\.jaas\.config' is missing.*no secrets"):
        read(columns)
    jaas = SECRETS["kafka.sasl.jaas.config"]
    assert read(columns, kafka__sasl__jaas__config=jaas)._options.topics == ("orders",)


@pytest.mark.parametrize(
    "name",
    [
        *("kafka.ssl.keystore.password", "kafka.ssl.key.password", "kafka.ssl.keystore.key"),
        *("kafka.ssl.truststore.password", "kafka.sasl.jaas.config", "checkpointlocation"),
        "kafka.sasl.oauthbearer.client.credentials.client.secret",
    ],
)
def test_what_may_hold_a_secret(name: str) -> None:
    assert TableOptions.of({name: "x", "subscribe": "t"}) == TableOptions(
        {"subscribe": "t"}, (name,)
    )


def test_columns_that_a_user_declared() -> None:
    ours = KafkaDeferredDataSource(dict(GIVEN)).schema()
    with pytest.raises(OptionError, match="create it without a list of columns"):
        read(ours)
    with pytest.raises(OptionError, match="create it without a list of columns"):
        read(ours, readers="2")
    assert (
        read(ours, **{n.replace(".", "__"): v for n, v in GIVEN.items()})._options.group_id == "g"
    )
    with pytest.raises(OptionError, match=r"schema.*the schema is fixed"):
        read(types.StructType().add("a", "string"), **GIVEN)


def test_options_of_a_read_that_change_the_columns_are_refused() -> None:
    with pytest.raises(OptionError, match=r"schema.*the schema is fixed"):
        read(created(GIVEN), includeHeaders="true")


def test_no_options_at_all_are_an_error_at_load() -> None:
    with pytest.raises(OptionError, match="'subscribe' is missing"):
        KafkaDeferredDataSource({}).schema()


def test_the_warning_is_one_and_has_no_values(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    source = KafkaDeferredDataSource(
        {**GIVEN, "group.id": "x", "client.id": "hunter2", "classification": "hunter2"}
    )
    source.schema()
    pickle.loads(pickle.dumps(source)).streamReader(source.schema())
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        "options without effect: classification (this source has no such option); client.id, "
        "group.id (Kafka's settings count with kafka. in front)"
    )
