"""The consumer settings of Kafka's Java client, translated to kafka-python's.

Spark's users write ``kafka.<Java name>``. Every setting that Kafka 4.3's ``ConsumerConfig`` knows
has one line below, in one of five tables, and a setting in none of them is unknown:

* ``_MAPPED``: it has the same meaning in kafka-python, under another name;
* ``SECURITY_SETTINGS``: several of them together make up kafka-python's arguments;
* ``_ONLY``: only this value is accepted, because it describes the behaviour here anyway;
* ``_NO_EFFECT``: no value changes the records read, or how a login is checked. With the reason;
* ``_REFUSED``: users who set it rely on an effect it lacks here. With the reason and a substitute.

Nothing is ignored silently: :attr:`ClientSettings.without_effect` names the settings without
effect, for one warning. An unknown setting has none either, as with Java's client, unless it is
misspelt or about a login.
"""

from __future__ import annotations

import enum
import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..errors import OptionError
from .misspelt import LENIENT, meant_by
from .problems import Problems
from .security_settings import SECURITY_SETTINGS, map_security, unsupported_login
from .values import (
    BOOLEAN,
    INT_MAX,
    LONG_MAX,
    NON_EMPTY_TEXT,
    REDACTED,
    TEXT,
    ValueType,
    integer,
    items_of,
    one_of,
    parse_value,
)

#: kafka-python's default (Java's too) is 3 s. A hand-over takes about one heartbeat interval: after
#: a graceful stop, every remaining member learns of it by its next heartbeat.
QUERY_HEARTBEAT_INTERVAL_MS = 300

#: Reader i is the static member ``<kafka.group.instance.id>-<i>``: room for the suffix.
_INSTANCE_ID_MAX = 249 - len("-9999")


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """kafka-python's arguments, by the component that needs them."""

    #: For every connection: ``KafkaConsumer``, ``KafkaAdminClient``, ``KafkaConnectionManager``.
    client: Mapping[str, Any] = field(repr=False)
    #: Only for ``KafkaConsumer``, in addition to ``client``; no key is in both.
    consumer: Mapping[str, Any] = field(repr=False)
    #: For the executors' fetches; only given settings, as the fetcher has its own defaults.
    fetch: Mapping[str, Any] = field(repr=False)
    group_id: str | None  # ``kafka.group.id``
    #: Given settings that change nothing here, each with the reason.
    without_effect: Mapping[str, str]

    def no_effect_line(self, source: str) -> str | None:
        """Return one line for a command's user, who gave the settings in this way; or None."""
        if not self.without_effect:
            return None
        return f"{source}: these settings have no effect here: {', '.join(self.without_effect)}"


class _For(enum.Flag):
    CLIENT = enum.auto()
    CONSUMER = enum.auto()
    FETCH = enum.auto()


@dataclass(frozen=True, slots=True)
class _Mapping:
    argument: str
    value_type: ValueType
    used_by: _For


def _servers(text: str) -> list[str]:
    servers = items_of(text)
    if not servers:
        raise ValueError
    for server in servers:
        # Java requires the port, too; kafka-python by itself would take 9092.
        match = re.fullmatch(r"(?:\w+://)?([\w.-]+|\[[0-9a-fA-F:.%\w]+\]):([0-9]{1,5})", server)
        if match is None or not 0 < int(match[2]) < 65536:
            raise ValueError
        # The resolver does this first. Its UnicodeError, for a label that is empty or too long,
        # would come from deep inside the client.
        match[1].encode("idna")
    return servers


def _instance_id(text: str) -> str:
    if not re.fullmatch(rf"[A-Za-z0-9._-]{{1,{_INSTANCE_ID_MAX}}}", text) or text in (".", ".."):
        raise ValueError
    return text


_SERVERS = ValueType(_servers, "host:port, several separated by commas")
_INSTANCE_ID = ValueType(
    _instance_id, f"1 to {_INSTANCE_ID_MAX} ASCII letters, digits, '.', '_' and '-'"
)
_COUNT = integer(0, INT_MAX)
_POSITIVE = integer(1, INT_MAX)
_LONG = integer(0, LONG_MAX)
# -1 leaves the buffer to the operating system.
_BUFFER = integer(-1, INT_MAX)
_RESETS = ValueType(
    one_of("earliest", "latest").parse,
    "earliest or latest: where a partition without a committed offset starts",
)

_MAPPED = {
    "bootstrap.servers": _Mapping("bootstrap_servers", _SERVERS, _For.CLIENT),
    "client.dns.lookup": _Mapping(
        "client_dns_lookup",
        one_of("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
        _For.CLIENT,
    ),
    "client.id": _Mapping("client_id", TEXT, _For.CLIENT),
    "connections.max.idle.ms": _Mapping("connections_max_idle_ms", _POSITIVE, _For.CLIENT),
    "metadata.max.age.ms": _Mapping("metadata_max_age_ms", _LONG, _For.CLIENT),
    "reconnect.backoff.max.ms": _Mapping("reconnect_backoff_max_ms", _LONG, _For.CLIENT),
    "reconnect.backoff.ms": _Mapping("reconnect_backoff_ms", _LONG, _For.CLIENT),
    "request.timeout.ms": _Mapping("request_timeout_ms", _POSITIVE, _For.CLIENT),
    "retry.backoff.ms": _Mapping("retry_backoff_ms", _LONG, _For.CLIENT),
    "allow.auto.create.topics": _Mapping("allow_auto_create_topics", BOOLEAN, _For.CONSUMER),
    # Spark forbids it, because there startingOffsets decides everything. Here startingOffsets=group
    # means "where the group is", and this setting decides for a partition without a group offset.
    "auto.offset.reset": _Mapping("auto_offset_reset", _RESETS, _For.CONSUMER),
    "exclude.internal.topics": _Mapping("exclude_internal_topics", BOOLEAN, _For.CONSUMER),
    "group.instance.id": _Mapping("group_instance_id", _INSTANCE_ID, _For.CONSUMER),
    # Java has no "auto": it is KIP-848 if the brokers offer that.
    "group.protocol": _Mapping(
        "group_protocol", one_of("classic", "consumer", "auto", ignore_case=True), _For.CONSUMER
    ),
    "group.remote.assignor": _Mapping("group_remote_assignor", NON_EMPTY_TEXT, _For.CONSUMER),
    "heartbeat.interval.ms": _Mapping("heartbeat_interval_ms", _POSITIVE, _For.CONSUMER),
    "isolation.level": _Mapping(
        "isolation_level", one_of("read_uncommitted", "read_committed"), _For.CONSUMER
    ),
    "max.poll.interval.ms": _Mapping("max_poll_interval_ms", _POSITIVE, _For.CONSUMER),
    "metrics.num.samples": _Mapping("metrics_num_samples", _POSITIVE, _For.CONSUMER),
    "metrics.sample.window.ms": _Mapping("metrics_sample_window_ms", _LONG, _For.CONSUMER),
    "session.timeout.ms": _Mapping("session_timeout_ms", _POSITIVE, _For.CONSUMER),
    "client.rack": _Mapping("client_rack", TEXT, _For.CONSUMER | _For.FETCH),
    "check.crcs": _Mapping("check_crcs", BOOLEAN, _For.FETCH),
    "fetch.max.bytes": _Mapping("fetch_max_bytes", _COUNT, _For.FETCH),
    "fetch.max.wait.ms": _Mapping("fetch_max_wait_ms", _COUNT, _For.FETCH),
    "fetch.min.bytes": _Mapping("fetch_min_bytes", _COUNT, _For.FETCH),
    "max.partition.fetch.bytes": _Mapping("max_partition_fetch_bytes", _COUNT, _For.FETCH),
}

# kafka-python 3 has arguments for these but ignores them, so they go into the socket options.
_BUFFERS = {"receive.buffer.bytes": socket.SO_RCVBUF, "send.buffer.bytes": socket.SO_SNDBUF}

_BYTES = "org.apache.kafka.common.serialization.ByteArrayDeserializer"

_ONLY = {
    # Spark refuses these, too, whatever the value.
    "enable.auto.commit": (
        "false",
        "offsets are committed to the group when Spark has committed the batch",
    ),
    "key.deserializer": (_BYTES, "keys are bytes; deserialize them with DataFrame operations"),
    "value.deserializer": (_BYTES, "values are bytes; deserialize them with DataFrame operations"),
    "sasl.oauthbearer.header.urlencode": ("false", "client id and secret are sent as they are"),
}

#: Java's name, and the behaviour here for any value.
_ALWAYS = {
    "enable.metrics.push": ("false", "client metrics are not pushed to the broker"),
    "partition.assignment.strategy": (
        "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
        "partitions are always assigned by the cooperative-sticky assignor",
    ),
    "ssl.enabled.protocols": (
        "TLSv1.2,TLSv1.3",
        "client and broker negotiate TLSv1.3, or TLSv1.2 if the broker has no 1.3",
    ),
    "ssl.protocol": (
        "TLSv1.3",
        "client and broker negotiate TLSv1.3, or TLSv1.2 if the broker has no 1.3",
    ),
}

_TLS_VERSIONS = "ssl.enabled.protocols"

_JAVA_CLASS = "a Java class cannot run in this Python source"
_OAUTH = (
    "tokens come only from kafka.sasl.oauthbearer.token.endpoint.url, by client credentials, and "
    "are renewed before they expire"
)
_NO_ARGUMENT = "kafka-python has no such setting"
_SHARE = "it is for share groups, and this source joins a consumer group"
_TIMEOUTS = "kafka.request.timeout.ms limits the wait for a broker's answer"
_TOKENS_ARE_NOT_CHECKED = "the brokers check a token, not this client"
_TOKENS_ARE_RENEWED = "each process renews its token when 80 % of its life have passed"
_OF_KERBEROS = "it is for Kerberos, which is not supported yet"

_NO_EFFECT = {
    "auto.commit.interval.ms": "offsets are committed when Spark has committed the batch",
    "default.api.timeout.ms": _TIMEOUTS,
    "internal.throw.on.fetch.stable.offset.unsupported": "it is internal to the Java client",
    "max.poll.records": "tasks read whole offset ranges; maxOffsetsPerTrigger limits a micro-batch",
    "metadata.recovery.rebootstrap.trigger.ms": _NO_ARGUMENT,
    "metadata.recovery.strategy": _NO_ARGUMENT,
    "metric.reporters": _JAVA_CLASS,
    "metrics.recording.level": _NO_ARGUMENT,
    "retry.backoff.max.ms": "the back-off stays at kafka.retry.backoff.ms",
    "share.acknowledgement.mode": _SHARE,
    "share.acquire.mode": _SHARE,
    "socket.connection.setup.timeout.max.ms": _TIMEOUTS,
    "socket.connection.setup.timeout.ms": _TIMEOUTS,
    # Security: settings of Java's implementation alone.
    "ssl.keymanager.algorithm": _NO_ARGUMENT,
    "ssl.secure.random.implementation": "OpenSSL has its own",
    "ssl.trustmanager.algorithm": _NO_ARGUMENT,
    **dict.fromkeys(
        (
            "sasl.kerberos.kinit.cmd",
            "sasl.kerberos.min.time.before.relogin",
            "sasl.kerberos.service.name",
            "sasl.kerberos.ticket.renew.jitter",
            "sasl.kerberos.ticket.renew.window.factor",
        ),
        _OF_KERBEROS,
    ),
    **dict.fromkeys(
        (
            "sasl.login.connect.timeout.ms",
            "sasl.login.read.timeout.ms",
            "sasl.login.refresh.buffer.seconds",
            "sasl.login.refresh.min.period.seconds",
            "sasl.login.refresh.window.factor",
            "sasl.login.refresh.window.jitter",
            "sasl.login.retry.backoff.max.ms",
            "sasl.login.retry.backoff.ms",
        ),
        _TOKENS_ARE_RENEWED,
    ),
    **dict.fromkeys(
        (
            "sasl.oauthbearer.clock.skew.seconds",
            "sasl.oauthbearer.expected.audience",
            "sasl.oauthbearer.expected.issuer",
            "sasl.oauthbearer.jwks.endpoint.refresh.ms",
            "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
            "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
            "sasl.oauthbearer.jwks.endpoint.url",
            "sasl.oauthbearer.jwt.validator.class",
            "sasl.oauthbearer.scope.claim.name",
            "sasl.oauthbearer.sub.claim.name",
        ),
        _TOKENS_ARE_NOT_CHECKED,
    ),
}

_REFUSED = {
    "interceptor.classes": "an interceptor could change records, so a replay would differ",
    "config.providers": f"{_JAVA_CLASS}, so values like ${{file:…}} would be taken literally",
    "security.providers": _JAVA_CLASS,
    "ssl.cipher.suites": "kafka-python 3 ignores it; restrict the ciphers on the broker",
    "ssl.engine.factory.class": _JAVA_CLASS,
    "ssl.provider": _JAVA_CLASS,
    "sasl.client.callback.handler.class": _JAVA_CLASS,
    "sasl.login.class": _JAVA_CLASS,
    **dict.fromkeys(
        (
            "sasl.oauthbearer.assertion.algorithm",
            "sasl.oauthbearer.assertion.claim.aud",
            "sasl.oauthbearer.assertion.claim.exp.seconds",
            "sasl.oauthbearer.assertion.claim.iss",
            "sasl.oauthbearer.assertion.claim.jti.include",
            "sasl.oauthbearer.assertion.claim.nbf.seconds",
            "sasl.oauthbearer.assertion.claim.sub",
            "sasl.oauthbearer.assertion.file",
            "sasl.oauthbearer.assertion.private.key.file",
            "sasl.oauthbearer.assertion.private.key.passphrase",
            "sasl.oauthbearer.assertion.template.file",
        ),
        _OAUTH,
    ),
}

#: Settings of Java's producer that its consumer does not have; one block of options often serves
#: both.
PRODUCER_SETTINGS = frozenset(
    {
        *("acks", "batch.size", "buffer.memory", "compression.gzip.level", "compression.lz4.level"),
        *("compression.type", "compression.zstd.level", "delivery.timeout.ms"),
        *("enable.idempotence", "key.serializer", "linger.ms", "max.block.ms"),
        *("max.in.flight.requests.per.connection", "max.request.size", "metadata.max.idle.ms"),
        *("partitioner.adaptive.partitioning.enable", "partitioner.availability.timeout.ms"),
        *("partitioner.class", "partitioner.ignore.keys", "retries", "transaction.timeout.ms"),
        *("transaction.two.phase.commit.enable", "transactional.id", "value.serializer"),
    }
)

#: Settings of brokers, which do not concern a client's login.
_OF_BROKERS = frozenset(
    {
        *("sasl.enabled.mechanisms", "sasl.mechanism.inter.broker.protocol", "ssl.client.auth"),
        *("security.inter.broker.protocol", "ssl.principal.mapping.rules"),
    }
)

#: Other clients' settings, each with Java's equivalent.
_OF_OTHER_CLIENTS = {
    "sasl.username": 'write it as username="…" in kafka.sasl.jaas.config',
    "sasl.password": 'write it as password="…" in kafka.sasl.jaas.config',
    "ssl.ca.location": "use kafka.ssl.truststore.location with kafka.ssl.truststore.type=PEM",
    "ssl.certificate.location": "use kafka.ssl.keystore.location: one PEM file with the key, too",
    "ssl.key.location": "use kafka.ssl.keystore.location: one PEM file with the certificate, too",
}

#: Every setting that has a line here, supported or not.
KNOWN_SETTINGS = frozenset(
    {
        *(*_MAPPED, *_BUFFERS, *_ONLY, *_ALWAYS, *_NO_EFFECT, *_REFUSED),
        *(*SECURITY_SETTINGS, "group.id"),
    }
)

#: Settings of Java's AdminClient that a consumer does not have.
ADMIN_SETTINGS = frozenset({"bootstrap.controllers", "retries"})

#: The known settings that every client has: for its connections, logins and certificates.
CONNECTION_SETTINGS = frozenset(
    name
    for name in KNOWN_SETTINGS
    if name.startswith(("security.", "sasl.", "ssl."))
    or name in _BUFFERS
    or (name in _MAPPED and _For.CLIENT in _MAPPED[name].used_by)
)

# Used when a setting is not given: Java's defaults, but for the heartbeat interval. kafka-python's
# own depend on the broker's version (session timeout) or are longer (30 s until a reconnect).
_DEFAULTS = {
    "reconnect.backoff.max.ms": "1000",
    "auto.offset.reset": "latest",
    "group.protocol": "classic",
    "heartbeat.interval.ms": str(QUERY_HEARTBEAT_INTERVAL_MS),
    "isolation.level": "read_uncommitted",
    "max.poll.interval.ms": "300000",
    "session.timeout.ms": "45000",
}


def map_client_settings(settings: Mapping[str, str]) -> ClientSettings:
    """Translate and check client settings, without any network access.

    They have Java's names in lower case, without Spark's ``kafka.`` in front. Raises OptionError if
    one is misspelt (the error names the intended one), refused or out of range, or contradicts
    another one. One error has all problems.
    """
    problems = Problems()
    without_effect = {}
    unsupported = unsupported_login(settings)
    for name in sorted(settings):
        if unsupported is not None and name.startswith("sasl."):
            continue  # map_security raises it
        if (why := problems.of(partial(_checked, name, settings[name]), None)) is not None:
            without_effect[name] = why
    nothing: dict[str, Any] = {}
    client = problems.of(partial(map_security, settings), nothing)
    client = client | problems.of(partial(_socket_options, settings), nothing)
    by_user: dict[_For, dict[str, Any]] = {_For.CLIENT: client, _For.CONSUMER: {}, _For.FETCH: {}}
    for name, text in (_DEFAULTS | dict(settings)).items():
        if name in _MAPPED:
            mapping = _MAPPED[name]
            default = mapping.value_type.parse(_DEFAULTS[name]) if name in _DEFAULTS else None
            parse = partial(parse_value, f"kafka.{name}", text, mapping.value_type)
            value = problems.of(parse, default)
            for user, config in by_user.items():
                if user in mapping.used_by and value is not None:
                    config[mapping.argument] = value
    group_id = None
    if "group.id" in settings:
        parse = partial(parse_value, "kafka.group.id", settings["group.id"], NON_EMPTY_TEXT)
        group_id = problems.of(parse, None)
    if "bootstrap.servers" not in settings:
        problems.add(OptionError("kafka.bootstrap.servers", None, _SERVERS.allowed))
    mapped = ClientSettings(
        by_user[_For.CLIENT], by_user[_For.CONSUMER], by_user[_For.FETCH], group_id, without_effect
    )
    for error in _contradictions(mapped, settings):
        if not problems.names & {error.option, *_MENTIONED.findall(error.allowed)}:
            problems.add(error)
    problems.raise_if_any()
    return mapped


def _checked(name: str, text: str) -> str | None:
    """Return why a setting has no effect; None if it has one.

    Raises OptionError if it is misspelt or refused, or does not have its only allowed value.
    """
    option = f"kafka.{name}"
    if name in _NO_EFFECT:
        return _NO_EFFECT[name]
    if name in _ALWAYS:
        return _why_always(name, text)
    if name in PRODUCER_SETTINGS | ADMIN_SETTINGS | _OF_BROKERS:
        return "it is no setting of a consumer"
    if name in _OF_OTHER_CLIENTS:
        raise OptionError(option, REDACTED, _OF_OTHER_CLIENTS[name], problem="is unknown")
    if name in _REFUSED:
        raise OptionError(option, REDACTED, _REFUSED[name], problem="is refused, leave it out")
    if name in _ONLY:
        only, reason = _ONLY[name]
        if text.strip().lower() != only.lower():
            problem = f"is refused unless it is {only}, leave it out"
            raise OptionError(option, REDACTED, reason, problem=problem)
    if name in KNOWN_SETTINGS:
        return None
    # Redacted: a misspelt name may well hold a password.
    if (meant := meant_by(name, KNOWN_SETTINGS, LENIENT)) is not None:
        raise OptionError(option, REDACTED, f"the nearest is kafka.{meant}", problem="is unknown")
    if not name or name.startswith(("sasl.", "ssl.", "security.")):
        what_to_do = "leave it out, Kafka's consumer has no such setting"
        raise OptionError(option, REDACTED, what_to_do, problem="is unknown")
    return "Kafka's consumer has no such setting"


def _why_always(name: str, text: str) -> str | None:
    always, why = _ALWAYS[name]
    given = sorted(items_of(text.lower()))
    if name == _TLS_VERSIONS and given == ["tlsv1.3"]:
        # Less than was asked for would be enough.
        allowed = f"{always}: {why}; to allow TLSv1.3 alone, set that on the broker"
        raise OptionError(f"kafka.{name}", text, allowed)
    return None if given == always.lower().split(",") else why


def _socket_options(settings: Mapping[str, str]) -> dict[str, Any]:
    given = {
        option: parse_value(f"kafka.{name}", settings[name], _BUFFER)
        for name, option in _BUFFERS.items()
        if name in settings
    }
    sized = [(socket.SOL_SOCKET, option, size) for option, size in given.items() if size >= 0]
    if not sized:
        return {}
    # kafka-python's defaults, which ours would replace.
    usual = [
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    ]
    return {"socket_options": usual + sized}


#: The settings that an error's text compares with.
_MENTIONED = re.compile(r"kafka\.[a-z.]+[a-z]")


def _contradictions(mapped: ClientSettings, settings: Mapping[str, str]) -> Iterator[OptionError]:
    """Check settings that must fit together; the clients would find out much later."""
    assignor = mapped.consumer.get("group_remote_assignor")
    if assignor is not None and mapped.consumer["group_protocol"] == "classic":
        allowed = (
            "no value with kafka.group.protocol=classic, because the group leader assigns "
            "partitions"
        )
        yield OptionError("kafka.group.remote.assignor", assignor, allowed)
    request = mapped.client.get("request_timeout_ms", 30_000)
    idle = mapped.client.get("connections_max_idle_ms", 540_000)
    wait = mapped.fetch.get("fetch_max_wait_ms", 500)
    heartbeat = mapped.consumer["heartbeat_interval_ms"]
    session = mapped.consumer["session_timeout_ms"]
    for small, small_value, large, large_value in (
        ("heartbeat.interval.ms", heartbeat, "session.timeout.ms", session),
        ("fetch.max.wait.ms", wait, "request.timeout.ms", request),
        ("request.timeout.ms", request, "connections.max.idle.ms", idle),
    ):
        if small_value >= large_value:
            # Name the one that the user wrote.
            if small in settings or large not in settings:
                allowed = f"less than kafka.{large}, which is {large_value}"
                yield OptionError(f"kafka.{small}", small_value, allowed)
            else:
                allowed = f"more than kafka.{small}, which is {small_value}"
                yield OptionError(f"kafka.{large}", large_value, allowed)
