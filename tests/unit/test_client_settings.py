"""Java's consumer settings on kafka-python: all known, none silently without effect."""

from __future__ import annotations

import inspect
import socket

import pytest
from kafka import KafkaAdminClient, KafkaConsumer

from pyspark_kafka_rebalance import DeferredRevokeConsumer
from pyspark_kafka_rebalance.errors import OptionError
from pyspark_kafka_rebalance.settings import client_settings
from pyspark_kafka_rebalance.settings.client_settings import ClientSettings, map_client_settings
from pyspark_kafka_rebalance.settings.security_settings import SECURITY_SETTINGS

JAAS = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "PLAIN",
    "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="u" password="hunter2";',
}
SCRAM = JAAS["sasl.jaas.config"].replace("plain.Plain", "scram.Scram")

# ConsumerConfig.configDef() of kafka-clients 4.3.0.
JAVA_SETTINGS = """
allow.auto.create.topics auto.commit.interval.ms auto.offset.reset bootstrap.servers check.crcs
client.dns.lookup client.id client.rack config.providers connections.max.idle.ms
default.api.timeout.ms enable.auto.commit enable.metrics.push exclude.internal.topics
fetch.max.bytes fetch.max.wait.ms fetch.min.bytes group.id group.instance.id group.protocol
group.remote.assignor heartbeat.interval.ms interceptor.classes
internal.throw.on.fetch.stable.offset.unsupported isolation.level key.deserializer
max.partition.fetch.bytes max.poll.interval.ms max.poll.records metadata.max.age.ms
metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy metric.reporters
metrics.num.samples metrics.recording.level metrics.sample.window.ms partition.assignment.strategy
receive.buffer.bytes reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms
retry.backoff.max.ms retry.backoff.ms sasl.client.callback.handler.class sasl.jaas.config
sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin sasl.kerberos.service.name
sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor
sasl.login.callback.handler.class sasl.login.class sasl.login.connect.timeout.ms
sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor
sasl.login.refresh.window.jitter sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms
sasl.mechanism sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file
sasl.oauthbearer.assertion.private.key.file sasl.oauthbearer.assertion.private.key.passphrase
sasl.oauthbearer.assertion.template.file sasl.oauthbearer.client.credentials.client.id
sasl.oauthbearer.client.credentials.client.secret sasl.oauthbearer.clock.skew.seconds
sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer
sasl.oauthbearer.header.urlencode sasl.oauthbearer.jwks.endpoint.refresh.ms
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.url
sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.jwt.validator.class sasl.oauthbearer.scope
sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name
sasl.oauthbearer.token.endpoint.url security.protocol security.providers send.buffer.bytes
session.timeout.ms share.acknowledgement.mode share.acquire.mode
socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms ssl.cipher.suites
ssl.enabled.protocols ssl.endpoint.identification.algorithm ssl.engine.factory.class
ssl.key.password ssl.keymanager.algorithm ssl.keystore.certificate.chain ssl.keystore.key
ssl.keystore.location ssl.keystore.password ssl.keystore.type ssl.protocol ssl.provider
ssl.secure.random.implementation ssl.trustmanager.algorithm ssl.truststore.certificates
ssl.truststore.location ssl.truststore.password ssl.truststore.type value.deserializer
"""


def map_settings(**settings: str) -> ClientSettings:
    return map_client_settings({"bootstrap.servers": "h:1", **settings})


def test_every_setting_of_the_java_consumer_is_in_exactly_one_table() -> None:
    tables = [
        client_settings._MAPPED.keys(),
        client_settings._BUFFERS.keys(),
        client_settings._ONLY.keys(),
        client_settings._ALWAYS.keys(),
        client_settings._NO_EFFECT.keys(),
        client_settings._REFUSED.keys(),
        SECURITY_SETTINGS,
        {"group.id"},
    ]
    assert sorted(name for table in tables for name in table) == JAVA_SETTINGS.split()


def test_every_argument_is_one_that_kafka_python_takes() -> None:
    everything = map_settings(
        **JAAS,
        **{
            "receive.buffer.bytes": "65536",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": "/ca.pem",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": "/key.pem",
            "ssl.key.password": "k",
            "ssl.endpoint.identification.algorithm": "",
        },
        **{
            name: next(
                text
                for text in (
                    "540001",
                    "true",
                    "earliest",
                    "read_committed",
                    "use_all_dns_ips",
                    "consumer",
                )
                if _accepts(name, text)
            )
            for name in client_settings._MAPPED.keys()
            - {"bootstrap.servers", "session.timeout.ms", "fetch.max.wait.ms", "request.timeout.ms"}
            - {"heartbeat.interval.ms"}
        },
    )
    assert everything.client.keys() <= KafkaAdminClient.DEFAULT_CONFIG.keys()
    assert everything.client.keys() <= KafkaConsumer.DEFAULT_CONFIG.keys()
    ours = inspect.signature(DeferredRevokeConsumer).parameters.keys() - {"topics", "config"}
    assert everything.consumer.keys() <= KafkaConsumer.DEFAULT_CONFIG.keys() | ours
    # KafkaConsumer(**client, **consumer) must work.
    assert not everything.client.keys() & everything.consumer.keys()


def _accepts(name: str, text: str) -> bool:
    try:
        client_settings._MAPPED[name].value_type.parse(text)
    except ValueError:
        return False
    return True


def test_defaults_are_javas_but_for_the_heartbeat() -> None:
    mapped = map_settings()
    assert mapped.client == {"bootstrap_servers": ["h:1"], "reconnect_backoff_max_ms": 1000}
    assert mapped.consumer == {
        "auto_offset_reset": "latest",
        "group_protocol": "classic",
        "heartbeat_interval_ms": 300,
        "isolation_level": "read_uncommitted",
        "max_poll_interval_ms": 300_000,
        "session_timeout_ms": 45_000,
    }
    assert mapped.fetch == {}
    assert mapped.group_id is None


def test_values_are_typed_and_sorted_by_who_needs_them() -> None:
    mapped = map_settings(
        **{
            "group.id": "g",
            "request.timeout.ms": " 20000 ",
            "heartbeat.interval.ms": "700",
            "exclude.internal.topics": "False",
            "client.rack": "r1",
            "fetch.max.bytes": "1000",
            "group.protocol": "Consumer",
            "group.remote.assignor": "range",
            "ssl.enabled.protocols": "TLSv1.3, TLSv1.2",
        }
    )
    assert mapped.group_id == "g"
    assert mapped.client["request_timeout_ms"] == 20_000
    assert mapped.consumer["group_protocol"] == "consumer"
    assert mapped.consumer["group_remote_assignor"] == "range"
    assert mapped.consumer["heartbeat_interval_ms"] == 700
    assert mapped.consumer["exclude_internal_topics"] is False
    assert mapped.consumer["client_rack"] == "r1"
    assert mapped.fetch == {"client_rack": "r1", "fetch_max_bytes": 1000}


def test_socket_buffers_go_where_kafka_python_heeds_them() -> None:
    options = map_settings(**{"receive.buffer.bytes": "65536", "send.buffer.bytes": "-1"}).client
    assert (socket.SOL_SOCKET, socket.SO_RCVBUF, 65536) in options["socket_options"]
    assert (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1) in options["socket_options"]
    assert socket.SO_SNDBUF not in [option for _, option, _ in options["socket_options"]]
    assert "socket_options" not in map_settings(**{"send.buffer.bytes": "-1"}).client


@pytest.mark.parametrize(
    ("text", "password"),
    [
        (JAAS["sasl.jaas.config"], "hunter2"),
        ("kafkashaded." + JAAS["sasl.jaas.config"], "hunter2"),
        (r'a.plain.PlainLoginModule required username=u password="a\"b\\c;=";', r"a\"b\\c;="),
        ("x required\n  password='p w'\n  username=\"u\" ;  ", "p w"),
    ],
)
def test_a_jaas_line_is_read_as_java_reads_it(text: str, password: str) -> None:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    text = text.replace("a.plain.PlainLoginModule", module).replace(
        "x required", f"{module} required"
    )
    mapped = map_settings(**{**JAAS, "sasl.jaas.config": text}).client
    assert mapped["sasl_plain_username"] == "u"
    assert mapped["sasl_plain_password"] == password.replace(r"\"", '"').replace(r"\\", "\\")
    assert mapped["sasl_mechanism"] == "PLAIN"
    assert mapped["security_protocol"] == "SASL_SSL"


SSL = {"security.protocol": "SSL"}
BAD: list[tuple[str, dict[str, str]]] = [
    ("session.timeout.ms", {"session.timeout.ms": "abc"}),
    ("session.timeout.ms", {"session.timeout.ms": "0"}),
    ("session.timeout.ms", {"session.timeout.ms": "2147483648"}),
    ("session.timeout.ms", {"session.timeout.ms": "300"}),
    ("heartbeat.interval.ms", {"heartbeat.interval.ms": "45000"}),
    ("request.timeout.ms", {"request.timeout.ms": "540000"}),
    ("connections.max.idle.ms", {"connections.max.idle.ms": "30000"}),
    ("fetch.max.wait.ms", {"fetch.max.wait.ms": "30000"}),
    ("check.crcs", {"check.crcs": "1"}),
    ("isolation.level", {"isolation.level": "READ_COMMITTED"}),
    ("auto.offset.reset", {"auto.offset.reset": "by_duration:PT1H"}),
    ("client.dns.lookup", {"client.dns.lookup": "default"}),
    ("group.id", {"group.id": ""}),
    ("group.instance.id", {"group.instance.id": "a b"}),
    ("group.instance.id", {"group.instance.id": "x" * 245}),
    ("group.protocol", {"group.protocol": "share"}),
    ("group.remote.assignor", {"group.remote.assignor": "range"}),
    ("group.remote.assignor", {"group.protocol": "consumer", "group.remote.assignor": ""}),
    ("security.protocol", {"security.protocol": "TLS"}),
    # Without effect under PLAINTEXT.
    ("security.protocol", {**JAAS, "security.protocol": "PLAINTEXT"}),
    ("security.protocol", {"sasl.mechanism": "PLAIN"}),
    ("security.protocol", {"ssl.truststore.location": "/ca.pem"}),
    ("security.protocol", {**JAAS, **SSL}),
    ("security.protocol", {**JAAS, "security.protocol": "SASL_PLAINTEXT", "ssl.key.password": "k"}),
    ("sasl.mechanism", {"security.protocol": "SASL_SSL"}),
    ("sasl.mechanism", {**JAAS, "sasl.mechanism": "GSSAPI"}),
    ("sasl.jaas.config", {**JAAS, "sasl.mechanism": "OAUTHBEARER"}),
    ("sasl.jaas.config", {k: v for k, v in JAAS.items() if k != "sasl.jaas.config"}),
    ("sasl.jaas.config", {**JAAS, "sasl.jaas.config": ""}),
    ("sasl.jaas.config", {**JAAS, "sasl.jaas.config": JAAS["sasl.jaas.config"][:-1]}),
    ("sasl.jaas.config", {**JAAS, "sasl.jaas.config": JAAS["sasl.jaas.config"] * 2}),
    ("sasl.jaas.config", {**JAAS, "sasl.jaas.config": SCRAM}),
    ("sasl.jaas.config", {**JAAS, "sasl.mechanism": "SCRAM-SHA-256"}),
    (
        "sasl.jaas.config",
        {**JAAS, "sasl.jaas.config": JAAS["sasl.jaas.config"].replace("username", "user")},
    ),
    (
        "sasl.jaas.config",
        {**JAAS, "sasl.jaas.config": JAAS["sasl.jaas.config"].replace("username=", "username;")},
    ),
    (
        "sasl.jaas.config",
        {**JAAS, "sasl.jaas.config": JAAS["sasl.jaas.config"].replace('"u"', '""')},
    ),
    (
        "sasl.jaas.config",
        {**JAAS, "sasl.jaas.config": JAAS["sasl.jaas.config"].replace('2"', "2")},
    ),
    (
        "ssl.truststore.password",
        {**SSL, "ssl.truststore.type": "PEM", "ssl.truststore.password": "hunter2"},
    ),
    ("ssl.key.password", {**SSL, "ssl.key.password": "hunter2"}),
    (
        "ssl.truststore.location",
        {**SSL, "ssl.truststore.type": "PEM", "ssl.truststore.location": " "},
    ),
    (
        "ssl.endpoint.identification.algorithm",
        {**SSL, "ssl.endpoint.identification.algorithm": "ldaps"},
    ),
    ("ssl.enabled.protocols", {**SSL, "ssl.enabled.protocols": "TLSv1.3"}),
    ("sasl.no.such.setting", {"sasl.no.such.setting": "hunter2"}),
    *((name, {name: "hunter2"}) for name in sorted(client_settings._ONLY)),
    *((name, {name: "hunter2"}) for name in sorted(client_settings._REFUSED)),
]


@pytest.mark.parametrize(("culprit", "settings"), BAD)
def test_a_bad_setting_is_named_and_no_secret_is_shown(
    culprit: str, settings: dict[str, str]
) -> None:
    with pytest.raises(OptionError) as raised:
        map_settings(**settings)
    assert raised.value.option == f"kafka.{culprit}"
    assert "hunter2" not in str(raised.value)
    # What a traceback prints below it, too.
    assert raised.value.__cause__ is None
    assert raised.value.__context__ is None or raised.value.__suppress_context__


def test_the_bootstrap_servers_are_required() -> None:
    with pytest.raises(OptionError, match=r"kafka\.bootstrap\.servers' is missing"):
        map_client_settings({})


def test_an_unknown_setting_names_the_nearest() -> None:
    with pytest.raises(OptionError, match=r"nearest is kafka\.session\.timeout\.ms"):
        map_settings(**{"session.timeout": "1"})
