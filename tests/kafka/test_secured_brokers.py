"""A broker that wants logins, certificates and permissions, with the source's own settings."""

from __future__ import annotations

import json
import logging
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from gaps_and_live import commit_foreign
from kafka.errors import TransactionalIdAuthorizationFailedError
from kafka.structs import TopicPartition
from producer_groups import Zombie, owns, read_committed
from producer_groups import poll_until as poll_members_until

from pyspark_kafka_rebalance import (
    AuthenticationError,
    AuthorizationError,
    DeferredRevokeConsumer,
    OffsetRange,
    ProducerGroup,
    RangeFetcher,
    TransactionAbortedError,
)
from pyspark_kafka_rebalance.doctor import command as doctor
from pyspark_kafka_rebalance.fetch import connections
from pyspark_kafka_rebalance.produce.producer import Producer
from pyspark_kafka_rebalance.settings.client_settings import map_client_settings
from pyspark_kafka_rebalance.status import command
from pyspark_kafka_rebalance.testing import SecuredKafka
from pyspark_kafka_rebalance.testing.java import find_java
from pyspark_kafka_rebalance.testing.secured_kafka import jaas_line
from pyspark_kafka_rebalance.transactions import command as transactions
from pyspark_kafka_rebalance.transport.secured_clients import admin_client

PATIENCE_S = 60.0
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")

#: So long a refused client would try in vain, if it went on trying.
TIMEOUT_MS = 60_000


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    with SecuredKafka(
        tmp_path_factory.mktemp("secured"),
        users={"etl": "etl-pass=word"},
        # How soon a transaction is ended whose time is up; 10 s.
        broker_config={"transaction.abort.timed.out.transaction.cleanup.interval.ms": 200},
    ) as local:
        yield local


@pytest.fixture(autouse=True)
def no_connections_of_others() -> Iterator[None]:
    yield
    connections.close_all()


def client_config(settings: dict[str, str]) -> dict[str, Any]:
    return dict(map_client_settings(settings).client)


@pytest.fixture
def member(group_id: str) -> Iterator[Callable[..., DeferredRevokeConsumer]]:
    made: list[DeferredRevokeConsumer] = []

    def make(settings: dict[str, str], **options: Any) -> DeferredRevokeConsumer:
        config = {
            "group_id": group_id,
            "auto_offset_reset": "earliest",
            "bootstrap_timeout_ms": TIMEOUT_MS,
            **options,
        }
        made.append(DeferredRevokeConsumer(**client_config(settings), **config))
        return made[-1]

    yield make
    for one in made:
        one.close(timeout_ms=2_000)


def poll_until(consumer: DeferredRevokeConsumer, done: Callable[[list[Any]], bool]) -> list[Any]:
    deadline = time.monotonic() + PATIENCE_S
    values: list[Any] = []
    while not done(values):
        assert time.monotonic() < deadline, f"only {values}"
        for records in consumer.poll(timeout_ms=200).values():
            values += [record.value for record in records]
    return values


LOGINS: dict[str, Callable[[SecuredKafka], dict[str, str]]] = {
    **{m: lambda kafka, m=m: kafka.login(m, "etl") for m in MECHANISMS},  # type: ignore[misc]
    **{
        f"{m} in TLS": lambda kafka, m=m: kafka.login(m, "etl", tls=True)  # type: ignore[misc]
        for m in ("PLAIN", "SCRAM-SHA-512")
    },
    "TLS": lambda kafka: {**tls(kafka, "TLS"), **kafka.trust()},
    "mutual TLS": lambda kafka: {**tls(kafka, "MUTUAL"), **kafka.trust(), **kafka.identity()},
    "mutual TLS, PKCS12": lambda kafka: {
        **tls(kafka, "MUTUAL"),
        **kafka.trust("PKCS12"),
        **kafka.identity("PKCS12"),
    },
    **{
        f"mutual TLS, {kind} of keytool": lambda kafka, kind=kind: {  # type: ignore[misc]
            **tls(kafka, "MUTUAL"),
            **by_keytool(kafka, kind),
        }
        for kind in ("JKS", "JCEKS")
    },
    "mutual TLS, a key in the settings": lambda kafka: {
        **tls(kafka, "MUTUAL"),
        **in_the_settings(kafka),
    },
    "options of other login modules": lambda kafka: {
        **kafka.login("SCRAM-SHA-256", "etl"),
        "sasl.jaas.config": jaas_line("SCRAM-SHA-256", "etl", kafka.users["etl"]).replace(
            ";", ' serviceName="kafka" debug=true;'
        ),
    },
}


def by_keytool(kafka: SecuredKafka, kind: str) -> dict[str, str]:
    """Java's settings for the client's stores, in one of Java's own formats."""
    stores = kafka.client_stores
    settings = {}
    for name, pkcs12 in (("keystore", stores.key_pkcs12), ("truststore", stores.trust_pkcs12)):
        made = pkcs12.with_suffix(f".{kind.lower()}")
        if not made.exists():
            keytool = [find_java().home / "bin" / "keytool", "-importkeystore", "-noprompt"]
            old = ["-srckeystore", pkcs12, "-srcstoretype", "PKCS12", "-srcstorepass"]
            new = ["-destkeystore", made, "-deststoretype", kind, "-deststorepass"]
            command = [*keytool, *old, stores.password, *new, stores.password]
            subprocess.run(list(map(str, command)), check=True, capture_output=True)
        settings |= {
            f"ssl.{name}.location": str(made),
            f"ssl.{name}.type": kind,
            f"ssl.{name}.password": stores.password,
        }
    return settings


def in_the_settings(kafka: SecuredKafka) -> dict[str, str]:
    """The stores as PEM text, with a key that is not encrypted, as Java takes it."""
    key, begins, chain = kafka.client_stores.key_pem.read_text().partition("-----BEGIN CERT")
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": key,
        "ssl.keystore.certificate.chain": begins + chain,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": kafka.client_stores.trust_pem.read_text(),
    }


def tls(kafka: SecuredKafka, listener: str) -> dict[str, str]:
    return {"bootstrap.servers": kafka.servers_of(listener), "security.protocol": "SSL"}


@pytest.mark.parametrize("how", LOGINS)
def test_members_and_range_fetchers_log_in(
    kafka: SecuredKafka, topic_name: str, member: Any, how: str
) -> None:
    settings = LOGINS[how](kafka)
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, [b"a", b"b"])
    fetcher = RangeFetcher(client_config(settings))
    with closing(fetcher):
        read = list(fetcher.read([OffsetRange(topic_name, 0, 0, 2)]))
    assert [value for _, batch in read for value in batch["value"].to_pylist()] == [b"a", b"b"]
    consumer = member(settings)
    consumer.subscribe([topic_name])
    assert poll_until(consumer, lambda values: len(values) == 2) == [b"a", b"b"]
    partition = TopicPartition(topic_name, 0)
    consumer.commit_processed({partition: 2})
    poll_until(consumer, lambda _: consumer.acknowledged(partition) == 2)


def refused_login(kafka: SecuredKafka, how: str) -> tuple[dict[str, str], str]:
    """Settings that a broker, or the client, does not accept; and what the error says."""
    if how == "no certificate":
        return {**tls(kafka, "MUTUAL"), **kafka.trust()}, "client's certificate, or requires one"
    if how == "a broker's certificate of an unknown authority":
        return tls(kafka, "TLS"), "its certificate is not accepted"
    if how == "another host name":
        settings = {**tls(kafka, "TLS"), **kafka.trust()}
        servers = settings["bootstrap.servers"].replace("127.0.0.1", "localhost")
        return {**settings, "bootstrap.servers": servers}, "Hostname mismatch"
    if how == "SASL where none is wanted":
        settings = {**kafka.login("PLAIN", "etl"), "bootstrap.servers": kafka.bootstrap_servers}
        return settings, "by PLAIN: IllegalSaslState"
    settings = kafka.login(how, "etl")
    settings["sasl.jaas.config"] = jaas_line(how, "etl", "wrong-secret")
    return settings, "401" if how == "OAUTHBEARER" else f"login by {how}"


@pytest.mark.parametrize(
    "how",
    [
        *MECHANISMS,
        "no certificate",
        "a broker's certificate of an unknown authority",
        "another host name",
        "SASL where none is wanted",
    ],
)
def test_a_refused_login_is_named_at_once(
    kafka: SecuredKafka, topic_name: str, member: Any, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Members, fetchers and administration clients alike; no attempt is made again."""
    caplog.set_level(logging.DEBUG)
    settings, said = refused_login(kafka, how)
    broker = settings["bootstrap.servers"]
    fetcher = RangeFetcher(client_config(settings), retry_timeout_ms=TIMEOUT_MS)
    attempts: dict[str, Callable[[], object]] = {
        "member": lambda: member(settings),
        "fetcher": lambda: list(fetcher.read([OffsetRange(topic_name, 0, 0, 1)])),
        "admin": lambda: admin_client(client_config(settings)),
    }
    for attempt in attempts.values():
        caplog.clear()
        with pytest.raises(AuthenticationError) as raised:
            attempt()
        assert said in str(raised.value)
        assert broker in str(raised.value)
        assert "wrong-secret" not in str(raised.value)
        assert "wrong-secret" not in caplog.text
        assert caplog.text.count("Bootstrap connection to") == 1
    fetcher.close()


def test_a_token_of_another_issuer_is_refused(kafka: SecuredKafka, member: Any) -> None:
    from pyspark_kafka_rebalance.testing.brokers.token_endpoint import TokenEndpoint

    with TokenEndpoint({"etl": "secret"}, "kafka") as other:
        settings = kafka.login("OAUTHBEARER", "etl")
        settings["sasl.jaas.config"] = jaas_line("OAUTHBEARER", "etl", "secret")
        settings["sasl.oauthbearer.token.endpoint.url"] = other.url
        with pytest.raises(AuthenticationError, match=r"login by OAUTHBEARER: .*invalid_token"):
            member(settings)


def test_a_password_that_was_put_right_works_in_the_same_process(
    kafka: SecuredKafka, topic_name: str
) -> None:
    """The worker that failed is the next task's: nothing of the refusal may stick."""
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, [b"a"])
    settings = kafka.login("SCRAM-SHA-512", "etl")
    settings["sasl.jaas.config"] = jaas_line("SCRAM-SHA-512", "late", "secret")
    fetcher = RangeFetcher(client_config(settings), retry_timeout_ms=TIMEOUT_MS)
    with closing(fetcher):
        with pytest.raises(AuthenticationError):
            list(fetcher.read([OffsetRange(topic_name, 0, 0, 1)]))
        kafka.add_user("late", "secret")
        assert list(fetcher.read([OffsetRange(topic_name, 0, 0, 1)]))


# -- permissions -----------------------------------------------------------------------------------

both_protocols = pytest.mark.parametrize("protocol", ["classic", "consumer"])


def failure_of(consumer: DeferredRevokeConsumer) -> str:
    """The AuthorizationError that ends a member, whose polls fetch nothing."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            consumer.poll_membership()
        except AuthorizationError as error:
            return str(error)
        time.sleep(0.02)
    raise AssertionError("the member goes on")


@both_protocols
@pytest.mark.parametrize("allowed", ["nothing", "DESCRIBE"])
def test_a_group_that_may_not_be_read_is_named(
    kafka: SecuredKafka, topic_name: str, group_id: str, member: Any, protocol: str, allowed: str
) -> None:
    kafka.create_topic(topic_name)
    kafka.allow("User:somebody", "READ", "GROUP", group_id)
    if allowed != "nothing":
        kafka.allow("User:etl", allowed, "GROUP", group_id)
    consumer = member(kafka.login("PLAIN", "etl"), group_protocol=protocol)
    consumer.subscribe([topic_name])
    error = failure_of(consumer)
    assert group_id in error
    assert "READ on the group" in error


@both_protocols
def test_a_topic_that_may_not_be_described_is_named(
    kafka: SecuredKafka, topic_name: str, member: Any, protocol: str
) -> None:
    kafka.create_topic(topic_name)
    kafka.allow("User:somebody", "READ", "TOPIC", topic_name)
    consumer = member(kafka.login("PLAIN", "etl"), group_protocol=protocol)
    assert consumer.hidden_topics([topic_name, "no-such-topic"], TIMEOUT_MS) == {topic_name}
    consumer.subscribe([topic_name])
    error = failure_of(consumer)
    assert topic_name in error


@both_protocols
def test_a_member_with_a_topic_that_may_not_be_described_is_told_and_leaves(
    kafka: SecuredKafka, topic_name: str, member: Any, protocol: str
) -> None:
    """One of several topics. The group does not wait for the end of its session."""
    kafka.create_topic(topic_name)
    kafka.create_topic(f"{topic_name}.secret")
    kafka.allow("User:etl", "READ", "TOPIC", topic_name)
    kafka.allow("User:somebody", "READ", "TOPIC", f"{topic_name}.secret")
    settings = kafka.login("PLAIN", "etl")
    options = {"group_protocol": protocol, "session_timeout_ms": 600_000}
    refused, other = (member(settings, **options) for _ in range(2))
    refused.subscribe([topic_name])
    poll_until(refused, lambda _: len(refused.assignment()) == 1)
    refused.subscribe([topic_name, f"{topic_name}.secret"])
    error = failure_of(refused)
    assert "READ on each of its topics" in error
    assert f"{topic_name}.secret" in error
    other.subscribe([topic_name])
    poll_until(other, lambda _: len(other.assignment()) == 1)


@both_protocols
def test_a_topic_that_may_not_be_read_is_named(
    kafka: SecuredKafka, topic_name: str, group_id: str, member: Any, protocol: str
) -> None:
    """Described it may be: the membership works, what reads and what commits does not."""
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, [b"a"])
    kafka.allow("User:etl", "DESCRIBE", "TOPIC", topic_name)
    settings = kafka.login("PLAIN", "etl")
    fetcher = RangeFetcher(client_config(settings), retry_timeout_ms=TIMEOUT_MS)
    with closing(fetcher), pytest.raises(AuthorizationError, match="READ on the topic") as raised:
        list(fetcher.read([OffsetRange(topic_name, 0, 0, 1)]))
    assert topic_name in str(raised.value)
    consumer = member(settings, group_protocol=protocol)
    consumer.subscribe([topic_name])
    deadline = time.monotonic() + PATIENCE_S
    partition = TopicPartition(topic_name, 0)
    while partition not in consumer.assignment():
        assert time.monotonic() < deadline
        consumer.poll_membership()
        time.sleep(0.02)
    consumer.commit_processed({partition: 1})
    error = failure_of(consumer)
    assert group_id in error
    assert f"{topic_name}-0" in error


@both_protocols
def test_a_new_owner_that_may_not_end_what_the_last_one_left_open_waits_for_its_timeout(
    kafka: SecuredKafka,
    topic_name: str,
    group_id: str,
    protocol: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """testTasksFailOnInabilityToFence of Kafka Connect's ExactlyOnceSourceIntegrationTest.

    There its tasks fail.
    """
    caplog.set_level(logging.INFO)
    kafka.create_topic(topic_name)
    options = {"group_protocol": protocol, "transaction_timeout_ms": 6_000}
    login = client_config(kafka.login("PLAIN", "etl"))
    with (
        ProducerGroup(group_id, 1, bootstrap_servers=kafka.bootstrap_servers, **options) as first,
        ProducerGroup(group_id, 1, **login, **options) as second,
    ):
        kafka.allow("User:somebody", "WRITE", "TRANSACTIONAL_ID", first.transactional_id)
        kafka.allow("User:etl", "WRITE", "TRANSACTIONAL_ID", second.transactional_id)
        zombie = Zombie(first)
        first.subscribe()
        first.commit_transaction("0")
        row = first.send(topic_name, b"never seen", source_partition=0, future=True)
        assert row is not None
        row.result(timeout=PATIENCE_S)
        zombie.believe()
        zombie.leave_for_good()
        second.subscribe()
        poll_members_until(owns(second, 0), second)
        assert second.restart_points == {0: "0"}
        assert "left to its timeout: TransactionalIdAuthorizationFailed" in caplog.text
        second.send(topic_name, b"seen", source_partition=0)
        second.commit_transaction("1")
        with pytest.raises(TransactionAbortedError):
            first.commit_transaction("1")
    assert read_committed(kafka, topic_name) == [b"seen"]


def test_a_producer_that_may_not_have_transactions_is_told(
    kafka: SecuredKafka, group_id: str
) -> None:
    kafka.allow("User:somebody", "WRITE", "TRANSACTIONAL_ID", f"{group_id}/one")
    config = client_config(kafka.login("PLAIN", "etl"))
    with (
        ProducerGroup(group_id, 1, **config, group_instance_id="one") as group,
        pytest.raises(TransactionalIdAuthorizationFailedError),
    ):
        group.subscribe()


def test_open_transactions_are_shown_and_aborted_as_far_as_permissions_go(
    kafka: SecuredKafka, topic_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kafka.create_topic(topic_name)
    name = f"{topic_name}-id"
    login = kafka.login("PLAIN", "etl")
    file = tmp_path / "client.properties"
    file.write_text("".join(f"{n}={v}\n" for n, v in login.items() if n != "bootstrap.servers"))
    where = ("--command-config", str(file), "--bootstrap-servers", login["bootstrap.servers"])

    def run(*words: str) -> Any:
        """What it printed; the one line of an error."""
        code = transactions.main([*words, *where, "--json"])
        shown = capsys.readouterr()
        assert code == (transactions.FAILED if shown.err else transactions.DONE)
        return shown.err if shown.err else json.loads(shown.out)

    def listed() -> set[str]:
        return {t["transactional_id"] for t in run("list")["transactions"]}

    with Producer(name, bootstrap_servers=kafka.bootstrap_servers) as producer:
        transaction = producer.transaction()
        transaction.send(topic_name, b"open")
        transaction.flush()
        assert name in listed()
        kafka.allow("User:somebody", "WRITE", "TRANSACTIONAL_ID", name)
        assert name not in listed(), "brokers leave it out, and do not say so"
        for word in ("describe", "abort"):
            refused = run(word, "--transactional-id", name)
            assert refused.startswith("error: it needs DESCRIBE on the transactional ids")
            assert name in refused
        (partition,) = run("describe", "--topic", topic_name)["partitions"]
        assert partition["open"][0]["hanging"], "as docs/transactions.md warns"
        kafka.allow("User:etl", "DESCRIBE", "TRANSACTIONAL_ID", name)
        assert name in listed()
        (partition,) = run("describe", "--topic", topic_name)["partitions"]
        assert partition["open"][0]["transaction"]["transactional_id"] == name
        refused = run("abort", "--transactional-id", name, "--yes")
        assert refused.startswith(f"error: it needs WRITE on transactional id '{name}'")
        kafka.allow("User:somebody", "READ", "TOPIC", topic_name)
        kafka.allow("User:etl", "DESCRIBE", "TOPIC", topic_name)
        (partition,) = run("describe", "--topic", topic_name)["partitions"]
        assert (partition["problem"], partition["open"]) == ("no READ on the topic", [])
        described = run("describe", "--transactional-id", name)
        assert described["partitions"][0]["problem"] == "no READ on the topic"
        kafka.allow("User:etl", "WRITE", "TRANSACTIONAL_ID", name)
        assert run("abort", "--transactional-id", name, "--yes")["aborted"]
        with pytest.raises(TransactionAbortedError):
            transaction.commit()


# -- the command that shows a group ----------------------------------------------------------------


def status(settings: dict[str, str], group_id: str, file: Path, *options: str) -> int:
    """Run it with these settings in a file, as Kafka's own tools take them."""
    lines = [f"{name}={value}\n" for name, value in settings.items()]
    file.write_text("".join(line for line in lines if not line.startswith("bootstrap.")))
    servers = ("--bootstrap-servers", settings["bootstrap.servers"])
    return command.main(
        [*servers, "--group", group_id, "--command-config", str(file), "--json", *options]
    )


def test_a_group_is_shown_as_far_as_permissions_go(
    kafka: SecuredKafka,
    topic_name: str,
    group_id: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings, file = kafka.login("SCRAM-SHA-512", "etl"), tmp_path / "client.properties"
    other = f"{topic_name}-2"
    for name in (topic_name, other):
        kafka.create_topic(name)
        kafka.produce(name, [b"a", b"b"])
    commit_foreign(kafka, group_id, {TopicPartition(name, 0): 1 for name in (topic_name, other)})
    kafka.allow("User:etl", "DESCRIBE", "TOPIC", topic_name)
    assert status(settings, group_id, file) == command.DONE
    rows = {row["topic"]: row for row in json.loads(capsys.readouterr().out)["partitions"]}
    assert {name: row["lag"] for name, row in rows.items()} == {topic_name: 1, other: 1}
    assert rows[topic_name]["lag_seconds"] is None, "to read it is not allowed"
    assert rows[other]["lag_seconds"] >= 0

    kafka.allow("User:somebody", "READ", "GROUP", group_id)
    assert status(settings, group_id, file) == command.FAILED
    (line,) = capsys.readouterr().err.splitlines()
    assert f"DESCRIBE on group '{group_id}'" in line


def test_a_refused_login_of_the_wordis_one_line(
    kafka: SecuredKafka, group_id: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = kafka.login("PLAIN", "etl")
    settings["sasl.jaas.config"] = jaas_line("PLAIN", "etl", "wrong-secret")
    began = time.monotonic()
    file = tmp_path / "client.properties"
    assert status(settings, group_id, file, "--timeout", "300") == command.FAILED
    assert time.monotonic() - began < PATIENCE_S
    (line,) = capsys.readouterr().err.splitlines()
    assert "login by PLAIN" in line
    assert "wrong-secret" not in line


def test_the_doctor_says_what_a_login_may_do(
    kafka: SecuredKafka,
    topic_name: str,
    group_id: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "local_findings", lambda: ())
    kafka.create_topic(topic_name)
    # Where there is no permission at all for a name, everybody may do everything.
    kafka.allow("User:other", "READ", "TOPIC", topic_name)
    kafka.allow("User:other", "READ", "GROUP", group_id)
    config = tmp_path / "client.properties"

    def said() -> tuple[int, str]:
        settings = kafka.login("SCRAM-SHA-512", "etl")
        servers = settings.pop("bootstrap.servers")
        config.write_text("".join(f"{name} = {value}\n" for name, value in settings.items()))
        where = ["--bootstrap-servers", servers, "--command-config", str(config)]
        code = doctor.main(["doctor", *where, "--topic", topic_name, "--group", group_id])
        return code, capsys.readouterr().out

    code, lines = said()
    assert code == 1
    assert "ok    brokers: " in lines
    assert f"fail  topic {topic_name}: " in lines
    assert "-> allow READ on the topic" in lines
    assert f"fail  group {group_id}: " in lines
    assert "-> allow READ on the group" in lines
    kafka.allow("User:etl", "READ", "TOPIC", topic_name)
    kafka.allow("User:etl", "READ", "GROUP", group_id)
    code, lines = said()
    assert code == 0, lines
    assert f"ok    topic {topic_name}: 1 partition, READ is allowed" in lines
    assert f"ok    group {group_id}: it is new" in lines
