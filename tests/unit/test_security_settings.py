"""Java's SASL and TLS settings on kafka-python: what they become, and that no secret shows."""

from __future__ import annotations

import json
import logging
import os
import pickle
import ssl
import stat
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jks
import pytest
from kafka import errors as kafka_errors
from kafka.protocol.sasl import SaslAuthenticateRequest

from pyspark_kafka_rebalance.errors import AuthenticationError, OptionError
from pyspark_kafka_rebalance.settings import key_stores, oauth_tokens
from pyspark_kafka_rebalance.settings.client_settings import map_client_settings
from pyspark_kafka_rebalance.settings.oauth_tokens import ClientCredentialsTokens
from pyspark_kafka_rebalance.settings.security_settings import map_security
from pyspark_kafka_rebalance.testing.brokers.certificates import CertificateAuthority, Stores
from pyspark_kafka_rebalance.testing.brokers.token_endpoint import TokenEndpoint
from pyspark_kafka_rebalance.testing.secured_kafka import jaas_line
from pyspark_kafka_rebalance.transport.log_redaction import redact_log

SECRET = "hunter2"
LOGIN = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}
SSL = {"security.protocol": "SSL"}
OAUTH = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.jaas.config": jaas_line("OAUTHBEARER", "etl", SECRET),
    "sasl.oauthbearer.token.endpoint.url": "https://login.example/token",
}
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
BARE_OAUTH = jaas_line("OAUTHBEARER", "x", "y").partition(" required")[0] + " required;"


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    return CertificateAuthority("tests").write_stores(
        tmp_path_factory.mktemp("stores"), "client", SECRET
    )


def refusal(settings: dict[str, str]) -> OptionError:
    """The error of settings that are refused, which shows no secret and nothing below it."""

    def use() -> None:
        config = map_security(settings)
        if "ssl_context" in config:
            config["ssl_context"].context()

    with pytest.raises(OptionError) as raised:
        use()
    error = raised.value
    assert SECRET not in str(error)
    assert error.__cause__ is None
    assert error.__context__ is None or error.__suppress_context__
    return error


# -- SASL ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_user_and_a_password(mechanism: str) -> None:
    config = map_security(
        {
            "security.protocol": "sasl_plaintext",
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": jaas_line(mechanism, "etl", SECRET),
        }
    )
    assert config == {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "etl",
        "sasl_plain_password": SECRET,
    }


def test_a_scram_user_is_escaped_as_the_mechanism_asks() -> None:
    """RFC 5802: a comma separates attributes, and kafka-python sends the name as it is."""
    for mechanism, user in (("SCRAM-SHA-256", "a=3Db=2Cc"), ("PLAIN", "a=b,c")):
        line = jaas_line(mechanism, "a=b,c", SECRET)
        config = map_security({**LOGIN, "sasl.mechanism": mechanism, "sasl.jaas.config": line})
        assert config["sasl_plain_username"] == user


@pytest.mark.parametrize(
    "settings",
    [
        OAUTH,
        {
            **OAUTH,
            "sasl.login.callback.handler.class": "org.apache.kafka.common.security.oauthbearer."
            "secured.OAuthBearerLoginCallbackHandler",
        },
        {
            **OAUTH,
            "sasl.jaas.config": BARE_OAUTH,
            "sasl.oauthbearer.client.credentials.client.id": "etl",
            "sasl.oauthbearer.client.credentials.client.secret": SECRET,
        },
        # A setting goes before the option.
        {
            **OAUTH,
            "sasl.jaas.config": jaas_line("OAUTHBEARER", "other", "other"),
            "sasl.oauthbearer.client.credentials.client.id": "etl",
            "sasl.oauthbearer.client.credentials.client.secret": SECRET,
        },
    ],
)
def test_client_credentials_for_tokens(settings: dict[str, str]) -> None:
    provider = map_security(settings)["sasl_oauth_token_provider"]
    expected = ClientCredentialsTokens("https://login.example/token", "etl", SECRET)
    assert pickle.dumps(provider) == pickle.dumps(expected)


def test_the_scope_and_the_extensions_of_a_jaas_line() -> None:
    line = OAUTH["sasl.jaas.config"].replace(";", ' scope="a b" extension_logicalCluster="lkc-1";')
    provider = map_security({**OAUTH, "sasl.jaas.config": line})["sasl_oauth_token_provider"]
    assert provider.__reduce__()[1][3] == "a b"
    assert provider.extensions() == {"logicalCluster": "lkc-1"}


@pytest.mark.parametrize(
    ("culprit", "settings"),
    [
        ("sasl.mechanism", {**LOGIN, "sasl.mechanism": "GSSAPI"}),
        ("sasl.jaas.config", {**OAUTH, "sasl.jaas.config": jaas_line("PLAIN", "u", SECRET)}),
        ("sasl.jaas.config", {**OAUTH, "sasl.jaas.config": BARE_OAUTH}),
        (
            "sasl.oauthbearer.token.endpoint.url",
            {k: v for k, v in OAUTH.items() if "endpoint" not in k},
        ),
        (
            "sasl.oauthbearer.token.endpoint.url",
            {**OAUTH, "sasl.oauthbearer.token.endpoint.url": "file:///token"},
        ),
        (
            "sasl.oauthbearer.token.endpoint.url",
            {**OAUTH, "sasl.oauthbearer.token.endpoint.url": f"https://u:{SECRET}@login.example"},
        ),
        ("sasl.login.callback.handler.class", {**OAUTH, "sasl.login.callback.handler.class": "x"}),
        (
            "sasl.oauthbearer.jwt.retriever.class",
            {**OAUTH, "sasl.oauthbearer.jwt.retriever.class": "x"},
        ),
        (
            "sasl.oauthbearer.client.credentials.client.secret",
            {
                **LOGIN,
                "sasl.jaas.config": jaas_line("PLAIN", "u", SECRET),
                "sasl.oauthbearer.client.credentials.client.secret": SECRET,
            },
        ),
    ],
)
def test_a_login_that_cannot_work_is_refused(culprit: str, settings: dict[str, str]) -> None:
    assert refusal(settings).option == f"kafka.{culprit}"


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512", "OAUTHBEARER"])
@pytest.mark.parametrize(
    "more", ['serviceName="kafka"', "debug=true", "useKeyTab=false x.y='1' a-b=c", 'user="else"']
)
def test_a_login_module_ignores_what_it_does_not_know(mechanism: str, more: str) -> None:
    settings = OAUTH if mechanism == "OAUTHBEARER" else {**LOGIN, "sasl.mechanism": mechanism}
    line = jaas_line(mechanism, "etl", SECRET)
    plain = map_security({**settings, "sasl.jaas.config": line})
    for text in (line.replace(";", f" {more};"), line.replace("required", f"required {more}")):
        given = map_security({**settings, "sasl.jaas.config": text})
        assert pickle.dumps(given) == pickle.dumps(plain)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (f'{PLAIN_MODULE} required username="u" password="{SECRET}"', "semicolon at its end is m"),
        (f'{PLAIN_MODULE} required username="u" password="{SECRET};', "a quote is not closed"),
        (f"{PLAIN_MODULE} required username=u password={SECRET}!;", "is not quoted"),
        (f'{PLAIN_MODULE} required username="u" password "{SECRET}";', "option 2 after the flag"),
        (f'{PLAIN_MODULE} required username="u" password="{SECRET}"; x', "nothing after its semi"),
        (f'{PLAIN_MODULE} required username="u" passwort="{SECRET}";', "password is not there"),
        (f'{PLAIN_MODULE} required user="{SECRET}";', "username and password is not there"),
        (f'{PLAIN_MODULE} required username="u" password="";', "password is not there"),
        (f'{PLAIN_MODULE} username="u" password="{SECRET}";', "a login module and a flag"),
        (";", "a login module and a flag"),
    ],
)
def test_an_error_of_a_jaas_line_says_which_part(line: str, said: str) -> None:
    error = refusal({**LOGIN, "sasl.jaas.config": line})
    assert error.option == "kafka.sasl.jaas.config"
    assert said in str(error)


def test_a_delegation_token_is_another_login() -> None:
    line = jaas_line("SCRAM-SHA-256", "etl", SECRET).replace(";", " tokenauth=true;")
    error = refusal({**LOGIN, "sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": line})
    assert "delegation tokens (tokenauth) are not supported" in str(error)


IAM = "software.amazon.msk.auth.iam.IAM"


@pytest.mark.parametrize(
    ("settings", "option", "said"),
    [
        (
            {
                "sasl.mechanism": "AWS_MSK_IAM",
                "sasl.jaas.config": f"{IAM}LoginModule required;",
                "sasl.client.callback.handler.class": f"{IAM}ClientCallbackHandler",
            },
            "sasl.mechanism",
            "MSK's IAM is not supported yet: log in to MSK with SCRAM-SHA-512",
        ),
        (
            {
                "sasl.mechanism": "GSSAPI",
                "sasl.kerberos.service.name": "kafka",
                "sasl.jaas.config": "com.sun.security.auth.module.Krb5LoginModule required;",
            },
            "sasl.mechanism",
            "Kerberos is not supported yet: log in with PLAIN",
        ),
        (
            {"sasl.jaas.config": "com.sun.security.auth.module.Krb5LoginModule required;"},
            "sasl.mechanism",
            "Java's default is GSSAPI: Kerberos is not supported yet",
        ),
        ({"sasl.kerberos.service.name": "kafka"}, "sasl.mechanism", "Java's default is GSSAPI"),
        (
            {
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.jaas.config": BARE_OAUTH,
                "sasl.login.callback.handler.class": f"{IAM}OAuthBearerLoginCallbackHandler",
                "sasl.client.callback.handler.class": f"{IAM}OAuthBearerLoginCallbackHandler",
            },
            "sasl.client.callback.handler.class",
            "is not supported: a Java class cannot run in this Python source: log in with",
        ),
        (
            {
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.jaas.config": BARE_OAUTH,
                "sasl.login.callback.handler.class": "x.GcpLoginCallbackHandler",
            },
            "sasl.login.callback.handler.class",
            "a Java class that gets them another way is not supported yet",
        ),
    ],
)
def test_a_login_that_is_not_supported_yet_says_what_to_use(
    settings: dict[str, str], option: str, said: str
) -> None:
    """One error, whatever else belongs to that login; none says to leave a part of it out."""
    with pytest.raises(OptionError) as raised:
        map_client_settings(
            {"bootstrap.servers": "h:1", "security.protocol": "SASL_SSL", **settings}
        )
    assert raised.value.problems == (raised.value,)
    assert raised.value.option == f"kafka.{option}"
    assert said in str(raised.value)
    assert "leave it out" not in str(raised.value)


# -- tokens ----------------------------------------------------------------------------------------


class Answers:
    """A token endpoint that answers as it is told, and notes what it was asked."""

    def __init__(self) -> None:
        self.status, self.headers, self.body = 200, {}, b"{}"  # type: ignore[var-annotated]
        self.asked: list[str] = []
        answers = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                answers.asked.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
                self.send_response(answers.status)
                for name, value in answers.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answers.body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/token"


@pytest.fixture
def answers() -> Iterator[Answers]:
    made = Answers()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


def test_a_token_is_kept_until_most_of_its_life_has_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1_000_000_000.0]
    monkeypatch.setattr(oauth_tokens.time, "time", lambda: now[0])
    with TokenEndpoint({"etl": SECRET}, "kafka", lifetime_s=100) as endpoint:
        provider = ClientCredentialsTokens(endpoint.url, "etl", SECRET, scope="kafka read")
        first = provider.token()
        now[0] += 79
        assert provider.token() == first
        assert len(endpoint.requests) == 1
        now[0] += 2
        assert provider.token() != first
    assert (
        endpoint.requests == [{"grant_type": ["client_credentials"], "scope": ["kafka read"]}] * 2
    )


def test_without_expires_in_the_token_itself_says_when_it_expires(
    answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_000_000_000.0]
    monkeypatch.setattr(oauth_tokens.time, "time", lambda: now[0])
    with TokenEndpoint({}, "kafka", lifetime_s=100) as endpoint:
        answers.body = json.dumps({"access_token": endpoint.token("etl")}).encode()
    provider = ClientCredentialsTokens(answers.url, "etl", SECRET)
    provider.token()
    now[0] += 79
    provider.token()
    assert len(answers.asked) == 1
    now[0] += 2
    provider.token()
    assert len(answers.asked) == 2


@pytest.mark.parametrize(
    ("status", "body", "kind", "said"),
    [
        (
            401,
            b'{"error":"invalid_client","error_description":"hunter2"}',
            AuthenticationError,
            "invalid_client",
        ),
        (400, b"hunter2", AuthenticationError, "400"),
        (400, b'{"error":"hunter2"}', AuthenticationError, "400"),
        (200, b"<html>hunter2</html>", AuthenticationError, "access_token"),
        (503, b"", kafka_errors.KafkaConnectionError, "503"),
    ],
)
def test_an_endpoint_that_refuses_is_named_without_the_secret(
    answers: Answers, status: int, body: bytes, kind: type[Exception], said: str
) -> None:
    answers.status, answers.body = status, body
    with pytest.raises(kind) as raised:
        ClientCredentialsTokens(answers.url, "etl", SECRET).token()
    assert said in str(raised.value)
    assert answers.url in str(raised.value)
    assert SECRET not in str(raised.value)


def test_a_redirect_does_not_get_the_secret(answers: Answers) -> None:
    elsewhere = Answers()
    with elsewhere.server:
        answers.status, answers.headers = 302, {"Location": elsewhere.url}
        with pytest.raises(AuthenticationError, match="302"):
            ClientCredentialsTokens(answers.url, "etl", SECRET).token()
        assert not elsewhere.asked


def test_an_endpoint_that_is_away_may_come_back() -> None:
    provider = ClientCredentialsTokens("http://127.0.0.1:1/token", "etl", SECRET)
    with pytest.raises(kafka_errors.KafkaConnectionError, match=r"127\.0\.0\.1:1/token") as raised:
        provider.token()
    assert raised.value.retriable


def test_a_provider_travels_without_its_token_and_shows_no_secret() -> None:
    with TokenEndpoint({"etl": SECRET}, "kafka") as endpoint:
        provider = ClientCredentialsTokens(endpoint.url, "etl", SECRET)
        before = pickle.dumps(provider)
        token = provider.token()
        assert pickle.dumps(provider) == before
        assert pickle.loads(before).token()
    assert SECRET not in repr(provider)
    assert token not in repr(provider)
    assert token.encode() not in before


# -- TLS -------------------------------------------------------------------------------------------


def encrypted_pem(stores: Stores) -> str:
    """The PEM key store with its key encrypted."""
    from cryptography.hazmat.primitives import serialization as formats

    key = formats.load_pem_private_key(stores.key_pem.read_bytes(), None)
    encrypted = key.private_bytes(
        formats.Encoding.PEM,
        formats.PrivateFormat.PKCS8,
        formats.BestAvailableEncryption(SECRET.encode()),
    )
    chain = stores.key_pem.read_text().partition("-----BEGIN CERT")[2]
    return f"{encrypted.decode()}-----BEGIN CERT{chain}"


def tls_settings(stores: Stores, kind: str) -> dict[str, str]:
    if kind == "PEM":
        return {
            **SSL,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(stores.trust_pem),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(stores.key_pem),
        }
    if kind == "inline":
        key, _, chain = encrypted_pem(stores).partition("-----BEGIN CERT")
        return {
            **SSL,
            "ssl.truststore.type": "PEM",
            # On one line, as properties are.
            "ssl.truststore.certificates": stores.trust_pem.read_text().replace("\n", " "),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.key": key,
            "ssl.key.password": SECRET,
            "ssl.keystore.certificate.chain": "-----BEGIN CERT" + chain,
        }
    return {
        **SSL,
        **({} if kind == "JKS" else {"ssl.truststore.type": kind, "ssl.keystore.type": kind}),
        "ssl.truststore.location": str(stores.trust_pkcs12),
        "ssl.truststore.password": SECRET,
        "ssl.keystore.location": str(stores.key_pkcs12),
        "ssl.keystore.password": SECRET,
    }


# JKS is the default, and Java reads PKCS12 under it as well.
@pytest.mark.parametrize("kind", ["PEM", "inline", "PKCS12", "JKS"])
def test_stores_become_a_context_wherever_they_travel(stores: Stores, kind: str) -> None:
    config = map_security(tls_settings(stores, kind))
    assert config["security_protocol"] == "SSL"
    assert config["ssl_check_hostname"] is True
    assert SECRET not in repr(config)
    assert "PRIVATE" not in repr(config)
    travelled = pickle.loads(pickle.dumps(config["ssl_context"]))
    context = travelled.context()
    assert context.get_ca_certs() == [authority_of(stores)]
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_a_key_has_a_password_of_its_own_in_pem(stores: Stores, tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text(encrypted_pem(stores))
    settings = {
        **SSL,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(tmp_path / "key.pem"),
    }
    map_security({**settings, "ssl.key.password": SECRET})["ssl_context"].context()
    # And without one nobody is asked at the terminal.
    for password in ({}, {"ssl.key.password": "other"}):
        error = refusal({**settings, **password})
        assert error.option == "kafka.ssl.keystore.location"
        assert "ssl.key.password" in str(error)


def test_a_private_key_is_readable_by_nobody_else_and_does_not_stay(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int, bytes]] = []
    private_file = key_stores._private_file

    @key_stores.contextmanager
    def watched(content: bytes) -> Iterator[str]:
        with private_file(content) as path:
            seen.append((path, os.stat(path).st_mode, Path(path).read_bytes()))
            yield path

    monkeypatch.setattr(key_stores, "_private_file", watched)
    for in_memory in (True, False):
        if not in_memory:
            monkeypatch.delattr(os, "memfd_create", raising=False)
        map_security(tls_settings(stores, "PKCS12"))["ssl_context"].context()
    for path, mode, content in seen:
        assert b"BEGIN ENCRYPTED PRIVATE KEY" in content
        assert not Path(path).exists()
        if not path.startswith("/proc"):
            assert stat.S_IMODE(mode) == 0o600
    assert len(seen) == 2


@pytest.mark.parametrize("form", ["PKCS8", "TraditionalOpenSSL"])
def test_a_key_in_the_settings_need_not_be_encrypted(stores: Stores, form: str) -> None:
    """Java takes it. PKCS #1 and SEC 1 are OpenSSL's own forms, which Java's client refuses."""
    from cryptography.hazmat.primitives import serialization as formats

    made = formats.load_pem_private_key(stores.key_pem.read_bytes(), None)
    key = made.private_bytes(
        formats.Encoding.PEM, getattr(formats.PrivateFormat, form), formats.NoEncryption()
    )
    settings = tls_settings(stores, "inline")
    del settings["ssl.key.password"]
    one_line = key.decode().replace("\n", " ")
    for text in (key.decode(), one_line, one_line + settings["ssl.keystore.certificate.chain"]):
        context = map_security({**settings, "ssl.keystore.key": text})["ssl_context"]
        context.context()
        assert context.keystore.shows_its_key
    assert not map_security(tls_settings(stores, "inline"))["ssl_context"].keystore.shows_its_key
    assert not map_security(tls_settings(stores, "PEM"))["ssl_context"].keystore.shows_its_key


# -- JKS and JCEKS ---------------------------------------------------------------------------------


def authority_of(stores: Stores) -> dict[str, Any]:
    """The one certificate of the authority "tests", as Python's own ssl reads it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(stores.trust_pem)
    (authority,) = context.get_ca_certs()
    assert (("organizationName", "tests"),) in authority["subject"]
    return authority


def java_stores_of(stores: Stores, kind: str, key_password: str = SECRET) -> dict[str, str]:
    """Settings of the same stores in Java's own format, as pyjks writes it."""
    from cryptography.hazmat.primitives import serialization as formats

    pem = stores.key_pem.read_text()
    key = formats.load_pem_private_key(pem.encode(), None)
    pkcs8 = key.private_bytes(
        formats.Encoding.DER, formats.PrivateFormat.PKCS8, formats.NoEncryption()
    )
    chain = [ssl.PEM_cert_to_DER_cert("-----BEGIN CERT" + pem.partition("-----BEGIN CERT")[2])]
    authority = ssl.PEM_cert_to_DER_cert(stores.trust_pem.read_text())
    entry = jks.PrivateKeyEntry.new("client", chain, pkcs8, "pkcs8")
    entry.encrypt(key_password)
    settings = dict(SSL)
    for name, entries in (
        ("keystore", [entry]),
        ("truststore", [jks.TrustedCertEntry.new("authority", authority)]),
    ):
        path = stores.key_pem.with_name(f"{name}.{kind}.{len(key_password)}")
        path.write_bytes(jks.KeyStore.new(kind.lower(), entries).saves(SECRET))
        settings |= {
            f"ssl.{name}.location": str(path),
            f"ssl.{name}.password": SECRET,
            f"ssl.{name}.type": kind,
        }
    return settings


def subjects(context: ssl.SSLContext) -> list[Any]:
    return [c["subject"] for c in context.get_ca_certs()]


# The file says what it is; JKS is Java's default.
@pytest.mark.parametrize("declared", ["JKS", "", "PKCS12", "JCEKS"])
def test_javas_own_stores(stores: Stores, declared: str) -> None:
    settings = java_stores_of(stores, "JKS")
    for name in ("keystore", "truststore"):
        del settings[f"ssl.{name}.type"]
        settings |= {f"ssl.{name}.type": declared} if declared else {}
    config = map_security(settings)
    travelled = pickle.loads(pickle.dumps(config["ssl_context"]))
    assert travelled.context().get_ca_certs() == [authority_of(stores)]
    assert SECRET not in repr(config)


def test_a_key_of_jks_may_have_a_password_of_its_own(stores: Stores) -> None:
    settings = java_stores_of(stores, "JKS", "the key's own")
    map_security({**settings, "ssl.key.password": "the key's own"})["ssl_context"].context()
    for password in ({}, {"ssl.key.password": "other"}):
        error = refusal({**settings, **password})
        assert error.option == "kafka.ssl.keystore.location"
        assert "its private key has another one: kafka.ssl.key.password" in str(error)


def test_a_trust_store_of_jks_needs_no_password(stores: Stores) -> None:
    """As in Java, which then does not check that the file is whole."""
    settings = java_stores_of(stores, "JKS")
    trust = {n: text for n, text in settings.items() if "keystore" not in n}
    del trust["ssl.truststore.password"]
    assert subjects(map_security(trust)["ssl_context"].context())


def test_jks_that_cannot_be_opened(stores: Stores) -> None:
    settings = java_stores_of(stores, "JKS")
    wrong = refusal({**settings, "ssl.truststore.password": "other"})
    assert wrong.option == "kafka.ssl.truststore.location"
    assert "opened by kafka.ssl.truststore.password" in str(wrong)
    no_key = {**settings, "ssl.keystore.location": settings["ssl.truststore.location"]}
    assert "no private key" in str(refusal(no_key))


def test_a_damaged_jks_is_an_option_error(stores: Stores, tmp_path: Path) -> None:
    settings = java_stores_of(stores, "JKS")
    content = Path(settings["ssl.keystore.location"]).read_bytes()
    damaged = tmp_path / "damaged.jks"
    for length in [*range(4, 120), *range(120, len(content), 37)]:
        damaged.write_bytes(content[:length])
        refusal({**settings, "ssl.keystore.location": str(damaged)})
    for at in range(4, len(content), 7):
        damaged.write_bytes(content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :])
        refusal({**settings, "ssl.keystore.location": str(damaged)})


def test_without_pyjks_the_error_says_what_to_install(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = java_stores_of(stores, "JKS")
    monkeypatch.setitem(sys.modules, "jks", None)
    error = refusal(settings)
    assert error.option == "kafka.ssl.truststore.location"
    assert "pip install pyjks" in str(error)


def test_host_names_need_not_match() -> None:
    config = map_security({**SSL, "ssl.endpoint.identification.algorithm": ""})
    assert config["ssl_check_hostname"] is False
    assert config["ssl_context"].context().check_hostname is False
    assert config["ssl_context"].context().verify_mode is ssl.CERT_REQUIRED


_EMPTY_CERTIFICATE = "-----BEGIN CERTIFICATE----- aGk= -----END CERTIFICATE-----"


def bad_stores(stores: Stores) -> dict[str, tuple[str, str, dict[str, str]]]:
    """By name: the option that is wrong, what the error says, the settings."""
    pem, pkcs12 = tls_settings(stores, "PEM"), tls_settings(stores, "PKCS12")
    inline = tls_settings(stores, "inline")
    trust, identity = "ssl.truststore.location", "ssl.keystore.location"
    jks = stores.key_pem.with_name("store.jks")
    jks.write_bytes(bytes.fromhex("feedfeed00000002"))
    key = stores.key_pem.read_text().partition("-----BEGIN CERT")[0]
    other = CertificateAuthority("others").write_stores(jks.parent / "others", "x", SECRET)
    _, mark, other_chain = other.key_pem.read_text().partition("-----BEGIN CERT")
    return {
        "no such file": (trust, "No such file", {**pem, trust: "/no/such/file"}),
        "a folder": (identity, "directory", {**pkcs12, identity: "/"}),
        "another password": (
            trust,
            "opened by kafka.ssl.truststore.password",
            {**pkcs12, "ssl.truststore.password": "other"},
        ),
        "no password": (
            identity,
            "opened by kafka.ssl.keystore.password",
            {k: v for k, v in pkcs12.items() if k != "ssl.keystore.password"},
        ),
        "a damaged JKS": (trust, "opened by", {**pkcs12, trust: str(jks)}),
        "PEM without its type": (
            trust,
            "type=PEM",
            {**SSL, trust: str(stores.trust_pem), "ssl.truststore.password": SECRET},
        ),
        "PKCS12 called PEM": (trust, "certificates in PEM", {**pem, trust: str(stores.key_pkcs12)}),
        "certificates for a key store": (
            identity,
            "a private key and its certificate chain",
            {**pem, identity: str(stores.trust_pem)},
        ),
        "a trust store for a key store": (
            identity,
            "no private key",
            {**pkcs12, identity: str(stores.trust_pkcs12)},
        ),
        "another key password": (
            "ssl.key.password",
            "the same as",
            {**pkcs12, "ssl.key.password": "other"},
        ),
        "a password for PEM": (
            "ssl.keystore.password",
            "ssl.key.password",
            {**pem, "ssl.keystore.password": SECRET},
        ),
        "a key without a chain": (
            "ssl.keystore.certificate.chain",
            "together",
            {k: v for k, v in inline.items() if "chain" not in k},
        ),
        "a certificate for a key": (
            "ssl.keystore.key",
            "one -----BEGIN PRIVATE KEY-----…; it has CERTIFICATE",
            {**inline, "ssl.keystore.key": stores.trust_pem.read_text()},
        ),
        "two keys": ("ssl.keystore.key", "one -----BEGIN", {**inline, "ssl.keystore.key": key * 2}),
        "a key for a chain": (
            "ssl.keystore.certificate.chain",
            "-----BEGIN CERTIFICATE-----…; it has PRIVATE KEY",
            {**inline, "ssl.keystore.certificate.chain": key},
        ),
        "a chain of nothing": (
            "ssl.keystore.certificate.chain",
            "certificates in PEM",
            {**inline, "ssl.keystore.certificate.chain": _EMPTY_CERTIFICATE},
        ),
        "a chain of another key": (
            "ssl.keystore.key",
            "the key is not that of the first certificate",
            {**inline, "ssl.keystore.certificate.chain": mark + other_chain},
        ),
        "an encrypted key without its password": (
            "ssl.keystore.key",
            "opened by kafka.ssl.key.password",
            {k: v for k, v in inline.items() if "password" not in k},
        ),
        "inline beside a file": (trust, "no value together with", {**pem, **inline}),
        "inline in another type": (
            "ssl.keystore.type",
            "PEM",
            {**inline, "ssl.keystore.type": "PKCS12"},
        ),
        "no PEM inline": (
            "ssl.truststore.certificates",
            "-----BEGIN",
            {**inline, "ssl.truststore.certificates": SECRET},
        ),
        "half a certificate inline": (
            "ssl.truststore.certificates",
            "certificates in PEM",
            {**inline, "ssl.truststore.certificates": _EMPTY_CERTIFICATE},
        ),
    }


def test_a_store_that_cannot_be_used_is_named_without_a_secret(stores: Stores) -> None:
    for name, (culprit, said, settings) in bad_stores(stores).items():
        error = refusal(settings)
        assert error.option == f"kafka.{culprit}", name
        assert said in str(error), name
        assert "MI" not in str(error), name  # where the base64 of a key begins


def test_without_cryptography_pkcs12_says_what_to_install(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    error = refusal(tls_settings(stores, "PKCS12"))
    assert error.option == "kafka.ssl.truststore.location"
    assert "pip install 'cryptography>=36'" in str(error)
    map_security(tls_settings(stores, "PEM"))["ssl_context"].context()


# -- kafka-python's log ----------------------------------------------------------------------------


def test_what_kafka_python_logs_has_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    redact_log()
    caplog.set_level(logging.DEBUG, "kafka")
    request = SaslAuthenticateRequest(auth_bytes=b"\0etl\0" + SECRET.encode())
    config: dict[str, Any] = {"sasl_plain_password": SECRET, "client_id": "shown"}
    logging.getLogger("kafka.net.connection").debug("%s Request %d: %s", "c", 7, request)
    logging.getLogger("kafka.protocol.parser").debug("%s Send: %r", "c", SECRET.encode())
    logging.getLogger("kafka.admin.client").debug("configuration: %s", config)
    assert len(caplog.messages) == 3
    assert SECRET not in caplog.text
    assert "Request 7: SaslAuthenticateRequest(" in caplog.text
    assert "'shown'" in caplog.text
    assert config["sasl_plain_password"] == SECRET
