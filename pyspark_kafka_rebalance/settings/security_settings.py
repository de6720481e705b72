"""Java's SASL and TLS client settings, translated to kafka-python's.

Java keeps credentials in a JAAS line and certificates in key stores; kafka-python takes a user and
a password, an object that gets tokens, and an ``ssl.SSLContext``. Only settings with the same
meaning on both sides are mapped; the rest is refused, with a substitute. No error message carries a
secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from ..errors import OptionError
from .jaas import jaas_error, parse_jaas
from .key_stores import KeyStore, StoreKind, TlsContext, pem_blocks
from .values import NON_EMPTY_TEXT, REDACTED, ValueType, one_of, parse_value

if TYPE_CHECKING:
    from .oauth_tokens import ClientCredentialsTokens

_PROTOCOLS = one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL", ignore_case=True)
_HOST_NAME_CHECK = ValueType(
    one_of("https", "").parse,
    "https, or an empty value to accept certificates for other host names",
)
_STORE_TYPES = one_of("PEM", "PKCS12", "JKS", "JCEKS", ignore_case=True)

_KAFKA_SECURITY = "org.apache.kafka.common.security"

#: The mechanisms, each with the login module that its JAAS line must name.
LOGIN_MODULES = {
    "PLAIN": f"{_KAFKA_SECURITY}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_KAFKA_SECURITY}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_KAFKA_SECURITY}.scram.ScramLoginModule",
    "OAUTHBEARER": f"{_KAFKA_SECURITY}.oauthbearer.OAuthBearerLoginModule",
}
_MECHANISMS = " or ".join(LOGIN_MODULES)

_INSTEAD = (
    f"log in with {_MECHANISMS}, or by a certificate (kafka.security.protocol=SSL with a key store)"
)
#: Logins that Java's client supports and this one does not yet, with a substitute.
_NOT_YET = {
    "GSSAPI": f"Kerberos is not supported yet: {_INSTEAD}",
    "AWS_MSK_IAM": (
        "MSK's IAM is not supported yet: log in to MSK with SCRAM-SHA-512 (a user in AWS Secrets "
        "Manager), or by a certificate (kafka.security.protocol=SSL with a key store)"
    ),
}
_OWN_TOKENS = (
    "tokens come from kafka.sasl.oauthbearer.token.endpoint.url, by client credentials; a Java "
    "class that gets them another way is not supported yet"
)
_JAAS_FORM = '<login module> required username="…" password="…";'
_OAUTH_JAAS_FORM = '<login module> required clientId="…" clientSecret="…" scope="…";'

#: Java's classes that get tokens with the client credentials grant, also under their 3.1 names.
_LOGIN_HANDLERS = (
    f"{_KAFKA_SECURITY}.oauthbearer.OAuthBearerLoginCallbackHandler",
    f"{_KAFKA_SECURITY}.oauthbearer.secured.OAuthBearerLoginCallbackHandler",
)
_JWT_RETRIEVERS = (
    f"{_KAFKA_SECURITY}.oauthbearer.ClientCredentialsJwtRetriever",
    f"{_KAFKA_SECURITY}.oauthbearer.DefaultJwtRetriever",
)
_SASL_EXTENSION = "extension_"

#: Since Kafka 4.1 these settings replace options of the JAAS line.
_OAUTH_CREDENTIALS = {
    "clientId": "sasl.oauthbearer.client.credentials.client.id",
    "clientSecret": "sasl.oauthbearer.client.credentials.client.secret",
    "scope": "sasl.oauthbearer.scope",
}
_TOKEN_ENDPOINT = "sasl.oauthbearer.token.endpoint.url"
_LOGIN_HANDLER = "sasl.login.callback.handler.class"
_JWT_RETRIEVER = "sasl.oauthbearer.jwt.retriever.class"
_OAUTH_SETTINGS = frozenset(
    {*_OAUTH_CREDENTIALS.values(), _TOKEN_ENDPOINT, _LOGIN_HANDLER, _JWT_RETRIEVER}
)

_CERTIFICATES = "ssl.truststore.certificates"
_CHAIN = "ssl.keystore.certificate.chain"
_KEY = "ssl.keystore.key"
_KEY_PASSWORD = "ssl.key.password"
_HOST_NAME = "ssl.endpoint.identification.algorithm"

#: The settings that :func:`map_security` reads; it ignores all others.
SECURITY_SETTINGS = _OAUTH_SETTINGS | {
    "security.protocol",
    "sasl.mechanism",
    "sasl.jaas.config",
    _HOST_NAME,
    _KEY_PASSWORD,
    _KEY,
    _CHAIN,
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.keystore.type",
    _CERTIFICATES,
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.truststore.type",
}


def unsupported_login(settings: Mapping[str, str]) -> OptionError | None:
    """Return the error for a login that is not supported yet as a whole; None for any other.

    Its other ``sasl.`` settings need no errors of their own.
    """
    protocol = settings.get("security.protocol", "").strip().upper()
    if not protocol.startswith("SASL"):
        return None
    given = settings.get("sasl.mechanism")
    mechanism = (given or "").strip()
    module = settings.get("sasl.jaas.config", "")
    if mechanism in _NOT_YET:
        return OptionError("kafka.sasl.mechanism", mechanism, _NOT_YET[mechanism])
    if not mechanism and (not module or "Krb5LoginModule" in module):
        allowed = f"{_MECHANISMS}. Java's default is GSSAPI: {_NOT_YET['GSSAPI']}"
        return OptionError("kafka.sasl.mechanism", given, allowed)
    for name in ("sasl.client.callback.handler.class", "sasl.login.class"):
        if name in settings:
            what_to_do = f"a Java class cannot run in this Python source: {_INSTEAD}"
            return OptionError(f"kafka.{name}", REDACTED, what_to_do, problem="is not supported")
    return None


def map_security(settings: Mapping[str, str]) -> dict[str, Any]:
    """Translate the security settings.

    They have Java's names, without Spark's ``kafka.`` in front. Returns only the arguments of
    kafka-python that follow from given settings. Raises OptionError if kafka-python would not
    honour a value or a combination.
    """
    protocol = parse_value(
        "kafka.security.protocol", settings.get("security.protocol", "PLAINTEXT"), _PROTOCOLS
    )
    # Java ignores them silently, and then speaks plaintext to a TLS port until it times out.
    for name in sorted(SECURITY_SETTINGS.intersection(settings)):
        if name[:4].rstrip(".") not in protocol.lower() and name != "security.protocol":
            kind = "SASL_SSL or SASL_PLAINTEXT" if name.startswith("sasl") else "SSL or SASL_SSL"
            raise OptionError(
                "kafka.security.protocol",
                settings.get("security.protocol"),
                f"{kind}, because kafka.{name} is set and has no effect otherwise",
            )
    config = {"security_protocol": protocol} if "security.protocol" in settings else {}
    if protocol.startswith("SASL"):
        config |= _sasl(settings)
    if protocol.endswith("SSL"):
        config |= _tls(settings)
    return config


def _sasl(settings: Mapping[str, str]) -> dict[str, Any]:
    if (unsupported := unsupported_login(settings)) is not None:
        raise unsupported
    # Java's default is GSSAPI, which is not supported here, so there is no default.
    mechanism = settings.get("sasl.mechanism")
    if mechanism is None or mechanism.strip() not in LOGIN_MODULES:
        raise OptionError("kafka.sasl.mechanism", mechanism, _MECHANISMS)
    mechanism = mechanism.strip()
    form = _OAUTH_JAAS_FORM if mechanism == "OAUTHBEARER" else _JAAS_FORM
    if "sasl.jaas.config" not in settings:
        raise OptionError("kafka.sasl.jaas.config", None, form)
    module, options = parse_jaas(settings["sasl.jaas.config"], form)
    # Some platforms ship Kafka's client under a shaded package name.
    if not f".{module}".endswith(f".{LOGIN_MODULES[mechanism]}"):
        raise jaas_error(f"the login module {LOGIN_MODULES[mechanism]} for {mechanism}")
    config: dict[str, Any] = {"sasl_mechanism": mechanism}
    if mechanism == "OAUTHBEARER":
        return config | {"sasl_oauth_token_provider": _token_provider(settings, options)}
    for name in sorted(_OAUTH_SETTINGS.intersection(settings)):
        raise OptionError(
            f"kafka.{name}", REDACTED, f"leave it out: it has no effect with {mechanism}"
        )
    # As in Java, a module ignores options that it does not know: serviceName, debug, …
    if missing := [name for name in ("username", "password") if not options.get(name)]:
        raise jaas_error(f"{_JAAS_FORM} with both, non-empty: {' and '.join(missing)} is not there")
    if options.get("tokenauth", "").lower() == "true":
        raise jaas_error(f"{_JAAS_FORM} of a user: delegation tokens (tokenauth) are not supported")
    user = options["username"]
    if mechanism.startswith("SCRAM"):
        # RFC 5802, section 5.1; kafka-python sends the name as it is.
        user = user.replace("=", "=3D").replace(",", "=2C")
    return config | {"sasl_plain_username": user, "sasl_plain_password": options["password"]}


def _token_provider(
    settings: Mapping[str, str], options: Mapping[str, str]
) -> ClientCredentialsTokens:
    for name, known in ((_LOGIN_HANDLER, _LOGIN_HANDLERS), (_JWT_RETRIEVER, _JWT_RETRIEVERS)):
        if name in settings:
            # A shaded package name is accepted, too.
            of_kafka = ValueType(_named_like(known), f"{known[0]}: {_OWN_TOKENS}")
            parse_value(f"kafka.{name}", settings[name], of_kafka)
    if _TOKEN_ENDPOINT not in settings:
        raise OptionError(f"kafka.{_TOKEN_ENDPOINT}", None, _ENDPOINT.allowed)
    url = settings[_TOKEN_ENDPOINT]
    if "@" in url:  # credentials: not to be shown
        raise OptionError(f"kafka.{_TOKEN_ENDPOINT}", REDACTED, _ENDPOINT.allowed)
    url = parse_value(f"kafka.{_TOKEN_ENDPOINT}", url, _ENDPOINT)
    extensions = {
        name.removeprefix(_SASL_EXTENSION): value
        for name, value in options.items()
        if name.startswith(_SASL_EXTENSION)
    }
    # As in Java, a setting takes precedence over the option of the JAAS line.
    given = {
        option: settings.get(name, options.get(option, ""))
        for option, name in _OAUTH_CREDENTIALS.items()
    }
    if missing := [name for name in ("clientId", "clientSecret") if not given[name]]:
        raise jaas_error(
            f"{_OAUTH_JAAS_FORM}, with a scope if the authorization server requires one: "
            f"{' and '.join(missing)} is not there"
        )
    from .oauth_tokens import ClientCredentialsTokens  # late: it needs kafka-python

    return ClientCredentialsTokens(
        url, given["clientId"], given["clientSecret"], given["scope"] or None, extensions
    )


def _named_like(classes: tuple[str, ...]) -> Any:
    def parse(text: str) -> str:
        if not any(f".{text}".endswith(f".{name}") for name in classes):
            raise ValueError
        return text

    return parse


def _endpoint(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("https", "http") or not parts.hostname:
        raise ValueError
    return text


_ENDPOINT = ValueType(
    _endpoint, "an http or https URL of the authorization server, without credentials in it"
)


def _tls(settings: Mapping[str, str]) -> dict[str, Any]:
    algorithm = "https"
    if _HOST_NAME in settings:
        algorithm = parse_value(f"kafka.{_HOST_NAME}", settings[_HOST_NAME], _HOST_NAME_CHECK)
    check_hostname = algorithm == "https"
    context = TlsContext(_truststore(settings), _keystore(settings), check_hostname)
    return {"ssl_context": context, "ssl_check_hostname": check_hostname}


def _truststore(settings: Mapping[str, str]) -> KeyStore | None:
    kind, location = _store("ssl.truststore", settings, (_CERTIFICATES,))
    if _CERTIFICATES in settings:
        return KeyStore("ssl.truststore", "PEM", None, _pem(_CERTIFICATES, settings))
    if location is None:
        return None
    return KeyStore(
        "ssl.truststore", kind, location, password=settings.get("ssl.truststore.password")
    )


def _keystore(settings: Mapping[str, str]) -> KeyStore | None:
    kind, location = _store("ssl.keystore", settings, (_CHAIN, _KEY))
    key_password = settings.get(_KEY_PASSWORD)
    if _CHAIN in settings or _KEY in settings:
        for name in (_KEY, _CHAIN):
            if name not in settings:
                raise OptionError(
                    f"kafka.{name}", None, f"kafka.{_KEY} and kafka.{_CHAIN} together"
                )
        pem = _pem(_KEY, settings) + _pem(_CHAIN, settings)
        return KeyStore("ssl.keystore", "PEM", None, pem, key_password)
    if location is None:
        if key_password is not None:
            raise OptionError(
                f"kafka.{_KEY_PASSWORD}",
                REDACTED,
                f"only together with kafka.ssl.keystore.location or kafka.{_KEY}, whose key it "
                "decrypts",
            )
        return None
    if kind == "PEM":
        return KeyStore("ssl.keystore", kind, location, password=key_password)
    password = settings.get("ssl.keystore.password")
    return KeyStore("ssl.keystore", kind, location, password=password, key_password=key_password)


def _store(
    prefix: Literal["ssl.keystore", "ssl.truststore"],
    settings: Mapping[str, str],
    inline: tuple[str, ...],
) -> tuple[StoreKind, str | None]:
    """Return a store's type and file; no file if it is given inline or not at all."""
    kind: StoreKind = parse_value(
        f"kafka.{prefix}.type", settings.get(f"{prefix}.type", "JKS"), _STORE_TYPES
    )
    password, location = f"{prefix}.password", f"{prefix}.location"
    if kind == "PEM" and password in settings:
        # Java, too, refuses it for PEM stores.
        raise OptionError(
            f"kafka.{password}",
            REDACTED,
            "leave it out: a PEM file has no password; the private key's password is "
            f"kafka.{_KEY_PASSWORD}",
        )
    for name in inline:
        if name in settings and kind != "PEM":
            raise OptionError(
                f"kafka.{prefix}.type", settings.get(f"{prefix}.type"), f"PEM, for kafka.{name}"
            )
        if name in settings and location in settings:
            raise OptionError(
                f"kafka.{location}", settings[location], f"no value together with kafka.{name}"
            )
    if location not in settings:
        return kind, None
    return kind, parse_value(f"kafka.{location}", settings[location], NON_EMPTY_TEXT)


def _pem(name: str, settings: Mapping[str, str]) -> str:
    """Return the part of a setting's PEM text that Java uses: its one key, or its certificates."""
    what = "PRIVATE KEY" if name == _KEY else "CERTIFICATE"
    try:
        blocks = pem_blocks(settings[name])
    except ValueError:
        blocks = []
    wanted = [block for label, block in blocks if label.endswith(what)]
    if not wanted or (name == _KEY and len(wanted) > 1):
        has = f"; it has {' and '.join(label for label, _ in blocks)}" if blocks else ""
        allowed = f"PEM text: {'one ' if name == _KEY else ''}-----BEGIN {what}-----…{has}"
        raise OptionError(f"kafka.{name}", REDACTED, allowed)
    return "".join(wanted)
