"""Queries on a broker that wants logins and permissions: what they may do, say, and never show."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import SparkSession

from pyspark_kafka_rebalance.testing import SecuredKafka
from pyspark_kafka_rebalance.testing.secured_kafka import jaas_line

from .waiting import wait_until

# None of them has a part that stands in the log or in a plan for another reason.
PASSWORD, WRONG, STORE_PASSWORD = "Zi9-xw4K7q", "mY2-vv8Ru3", "Hq6-kt1Wd5"


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    folder = tmp_path_factory.mktemp("secured")
    with SecuredKafka(folder, users={"etl": PASSWORD}, store_password=STORE_PASSWORD) as local:
        yield local


def as_options(settings: dict[str, str]) -> dict[str, str]:
    return {f"kafka.{name}": value for name, value in settings.items()}


def mutual_tls(kafka: SecuredKafka) -> dict[str, str]:
    return {
        "bootstrap.servers": kafka.servers_of("MUTUAL"),
        "security.protocol": "SSL",
        **kafka.trust("PKCS12"),
        **kafka.identity("PKCS12"),
        "ssl.key.password": STORE_PASSWORD,
    }


@pytest.mark.parametrize("how", ["SCRAM-SHA-512", "OAUTHBEARER", "mutual TLS"])
def test_a_query_logs_in_on_driver_and_executors(kafka, topic_name, stream, committed, how):
    kafka.create_topic(topic_name, partitions=2)
    kafka.produce(topic_name, [b"x"] * 10)
    settings = mutual_tls(kafka) if how == "mutual TLS" else kafka.login(how, "etl", tls=True)
    assert stream(**as_options(settings)).run().num_rows == 10
    wait_until(lambda: sorted(committed().values()) == [5, 5], "committed")


def failure_of(query: Any) -> str:
    """What ends a query, which is neither the end of a minute of trying nor shows a secret."""
    with pytest.raises(StreamingQueryException) as caught:
        query.run()
    text = str(caught.value)
    assert PASSWORD not in text
    assert WRONG not in text
    return text


@pytest.mark.newest_spark
@pytest.mark.parametrize("mechanism", ["PLAIN", "OAUTHBEARER"])
def test_a_wrong_password_ends_the_query_and_is_named(kafka, topic_name, stream, mechanism):
    kafka.create_topic(topic_name)
    settings = kafka.login(mechanism, "etl")
    settings["sasl.jaas.config"] = jaas_line(mechanism, "etl", WRONG)
    text = failure_of(stream(**as_options(settings)))
    assert "AuthenticationError" in text
    assert settings["bootstrap.servers"] in text
    assert ("by PLAIN" if mechanism == "PLAIN" else "401 (invalid_client)") in text


@pytest.mark.newest_spark
def test_a_group_without_permission_ends_the_query_and_is_named(
    kafka, topic_name, group_id, stream
):
    kafka.create_topic(topic_name)
    kafka.allow("User:somebody", "READ", "GROUP", group_id)
    text = failure_of(stream(**as_options(kafka.login("PLAIN", "etl"))))
    assert f"AuthorizationError: group '{group_id}': membership needs READ on the group" in text


@pytest.mark.newest_spark
@pytest.mark.parametrize("allowed", ["nothing", "DESCRIBE"])
def test_a_topic_without_permission_ends_the_query_and_is_named(kafka, topic_name, stream, allowed):
    """Without DESCRIBE there is no plan; without READ there are no commits, or no records."""
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, [b"x"])
    kafka.allow("User:somebody", "READ", "TOPIC", topic_name)
    if allowed != "nothing":
        kafka.allow("User:etl", allowed, "TOPIC", topic_name)
    text = failure_of(stream(**as_options(kafka.login("PLAIN", "etl"))))
    assert "AuthorizationError" in text
    assert ("DESCRIBE on the topic" if allowed == "nothing" else "READ on") in text
    assert topic_name in text


@pytest.mark.newest_spark
@pytest.mark.parametrize(("user", "where"), [("etl", "reading"), ("somebody", "finding out")])
def test_a_batch_without_permission_names_the_topic(kafka, topic_name, spark, user, where):
    """Who may describe it finds out on the executors, who may not on the driver."""
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, [b"x"])
    kafka.allow(f"User:{user}", "DESCRIBE", "TOPIC", topic_name)
    options = as_options(kafka.login("PLAIN", "etl"))
    frame = spark.read.format("kafka_deferred").options(**options, subscribe=topic_name).load()
    with pytest.raises(
        Exception, match=rf"AuthorizationError: {where} .*READ on the topic"
    ) as caught:
        frame.collect()
    assert topic_name in str(caught.value)
    assert PASSWORD not in str(caught.value)


def test_a_store_that_does_not_open_is_named_at_load(kafka, spark: SparkSession, stream):
    settings = {**mutual_tls(kafka), "ssl.truststore.password": WRONG}
    with pytest.raises(AnalysisException) as caught:
        spark.readStream.format("kafka_deferred").options(
            **stream(**as_options(settings)).options
        ).load()
    assert "OptionError: option 'kafka.ssl.truststore.location'" in str(caught.value)
    assert WRONG not in str(caught.value)


#: Python's own log at DEBUG, in every Python process that Spark starts.
VERBOSE_PYTHON = """
import logging
logging.basicConfig(level=logging.DEBUG, format="PYTHON %(name)s %(message)s")
# It logs every call to the JVM with its arguments, those of option() as well: PySpark's own.
logging.getLogger("py4j").setLevel(logging.INFO)
"""

QUERY = """
import json, sys
from pyspark_kafka_rebalance.testing.local_spark import local_spark

given = json.load(sys.stdin)
spark = local_spark("secrets", conf=given["conf"])
spark.sparkContext.setLogLevel("DEBUG")
for n, options in enumerate(given["queries"]):
    frame = spark.readStream.format("kafka_deferred").options(**options).load()
    frame.explain(True)
    query = (
        frame.writeStream.format("noop").option("checkpointLocation", f"{given['work']}/{n}")
        .trigger(availableNow=True).start()
    )
    try:
        query.awaitTermination()
    except Exception as error:
        print("FAILED", error)
    query.explain(True)
    print("PROGRESS", query.recentProgress)
spark.stop()
"""


def test_no_secret_shows_in_logs_plans_errors_offsets_or_progress(
    kafka, topic_name, group_id, tmp_path
):
    """Two queries, and one that fails, with every log at DEBUG and Spark's event log."""
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, [b"x"] * 10)
    work = tmp_path / "work"
    (tmp_path / "verbose").mkdir()
    (tmp_path / "verbose" / "sitecustomize.py").write_text(VERBOSE_PYTHON)
    (work / "events").mkdir(parents=True)
    login = kafka.login("OAUTHBEARER", "etl", tls=True)
    every_other_secret = {**mutual_tls(kafka), **login, **kafka.trust("PKCS12")}
    wrong = {**kafka.login("PLAIN", "etl"), "sasl.jaas.config": jaas_line("PLAIN", "etl", WRONG)}
    shared = {
        "subscribe": topic_name,
        "startingOffsets": "earliest",
        "readers": "1",
        "maxBytesPerTrigger": "1000000",  # makes an administration client, which logs its settings
    }
    queries = [
        {**shared, "kafka.group.id": f"{group_id}-{n}", **as_options(settings)}
        for n, settings in enumerate([kafka.login("PLAIN", "etl"), every_other_secret, wrong])
    ]
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": str(work / "events"),
        "spark.eventLog.compress": "false",
    }
    python_path = [str(tmp_path / "verbose"), os.environ.get("PYTHONPATH", ""), *sys.path]
    with open(work / "log", "wb") as log:
        done = subprocess.run(
            [sys.executable, "-c", QUERY],
            input=json.dumps({"queries": queries, "work": str(work), "conf": conf}).encode(),
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, python_path))},
            timeout=600,
        )
    text = (work / "log").read_text(errors="replace")
    assert done.returncode == 0, text[-3_000:]
    # What is looked through is all there: both logs, with the logins, plans and progress.
    for expected in (
        "PYTHON kafka.net.connection",
        "SaslAuthenticateRequest(",
        "Starting KafkaAdminClient",
        "DEBUG MicroBatchExecution",
        "StreamingRelationV2",
        "'endOffset'",
        "AuthenticationError",
    ):
        assert expected in text.replace('"endOffset"', "'endOffset'"), expected
    files = [path for path in work.rglob("*") if path.is_file()]
    assert any(path.parent.name == "offsets" for path in files)
    assert any("events" in path.parts for path in files)
    tokens = kafka.token_endpoint.issued
    assert tokens
    for path in files:
        content = path.read_bytes()
        for secret in (PASSWORD, WRONG, STORE_PASSWORD, *tokens):
            at = content.find(secret.encode())
            assert at < 0, f"{path.name}: {content[max(0, at - 300) : at + 100]!r}"
