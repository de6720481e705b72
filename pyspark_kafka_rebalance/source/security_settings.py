"""Java's SASL and TLS client settings, told to kafka-python.

Java keeps credentials in a JAAS line and certificates in key stores; kafka-python wants a user, a
password and PEM files. Only what means the same on both sides is mapped; the rest is refused, with
what to use instead. No error message carries a secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..errors import OptionError
from .values import REDACTED, ValueType, one_of, parse_value

_PROTOCOLS = one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL", ignore_case=True)
_HOST_NAME_CHECK = ValueType(
    one_of("https", "").parse, "https, or the empty text for certificates of other host names"
)
_STORE_TYPES = one_of("PEM", "JKS", "PKCS12", ignore_case=True)

#: The mechanisms, each with the login module that its JAAS line must name.
LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_MECHANISMS = " or ".join(LOGIN_MODULES)
_JAAS_FORM = '<login module> required username="…" password="…";'

#: The settings that :func:`map_security` reads; it ignores all others.
SECURITY_SETTINGS = frozenset(
    {
        "security.protocol",
        "sasl.mechanism",
        "sasl.jaas.config",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.password",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.type",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.type",
    }
)


def map_security(settings: Mapping[str, str]) -> dict[str, Any]:
    """Translate the security settings.

    Parameters
    ----------
    settings : Mapping[str, str]
        Java names, without Spark's ``kafka.`` in front.

    Returns
    -------
    dict[str, Any]
        kafka-python's arguments; only those that follow from what is given.

    Raises
    ------
    OptionError
        A value, or a combination, that kafka-python would not honour.
    """
    protocol = parse_value(
        "kafka.security.protocol", settings.get("security.protocol", "PLAINTEXT"), _PROTOCOLS
    )
    # Java ignores them without a word, and then speaks plaintext to a TLS port until it times out.
    for name in sorted(SECURITY_SETTINGS.intersection(settings)):
        if name[:4].rstrip(".") not in protocol.lower() and name != "security.protocol":
            kind = "SASL_SSL or SASL_PLAINTEXT" if name.startswith("sasl") else "SSL or SASL_SSL"
            raise OptionError(
                "kafka.security.protocol",
                settings.get("security.protocol"),
                f"{kind}, since kafka.{name} is given and has no effect otherwise",
            )
    config = {"security_protocol": protocol} if "security.protocol" in settings else {}
    if protocol.startswith("SASL"):
        config |= _sasl(settings)
    if protocol.endswith("SSL"):
        config |= _tls(settings)
    return config


def _sasl(settings: Mapping[str, str]) -> dict[str, Any]:
    # Java's default is GSSAPI, which is not supported here: so there is no default.
    mechanism = settings.get("sasl.mechanism")
    if mechanism is None or mechanism.strip() not in LOGIN_MODULES:
        raise OptionError("kafka.sasl.mechanism", mechanism, _MECHANISMS)
    mechanism = mechanism.strip()
    if "sasl.jaas.config" not in settings:
        raise OptionError("kafka.sasl.jaas.config", None, _JAAS_FORM)
    module, credentials = _parse_jaas(settings["sasl.jaas.config"])
    # Some platforms ship Kafka's client under a shaded package name.
    if not f".{module}".endswith(f".{LOGIN_MODULES[mechanism]}"):
        raise _jaas_error(f"the login module {LOGIN_MODULES[mechanism]} for {mechanism}")
    if set(credentials) != {"username", "password"} or not all(credentials.values()):
        raise _jaas_error(f"{_JAAS_FORM} with both, not empty, and nothing else")
    return {
        "sasl_mechanism": mechanism,
        "sasl_plain_username": credentials["username"],
        "sasl_plain_password": credentials["password"],
    }


_JAAS_TOKEN = re.compile(
    r"""\s*(?: (?P<word>[\w.$-]+) | "(?P<double>(?:[^"\\]|\\.)*)" | '(?P<single>(?:[^'\\]|\\.)*)'
        | (?P<mark>[=;]) )""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


def _parse_jaas(text: str) -> tuple[str, dict[str, str]]:
    """Parse one JAAS entry, ``Module flag key=value …;``, quoting as Java's StreamTokenizer."""
    tokens: list[str] = []
    marks: list[bool] = []
    position, text = 0, text.rstrip()
    while position < len(text):
        match = _JAAS_TOKEN.match(text, position)
        if match is None:
            raise _jaas_error(_JAAS_FORM)
        position = match.end()
        quoted = match["double"] if match["double"] is not None else match["single"]
        if quoted is not None:
            unescaped = re.sub(
                r"\\(.)", lambda m: _ESCAPES.get(m[1], m[1]), quoted, flags=re.DOTALL
            )
            tokens.append(unescaped)
        else:
            tokens.append(match["word"] or match["mark"])
        marks.append(match["mark"] is not None)
    # Module, flag, three tokens a pair, and the semicolon, which people forget: Java wants it.
    if len(tokens) < 3 or tokens[-1] != ";" or any(marks[:2]):
        raise _jaas_error(_JAAS_FORM)
    credentials: dict[str, str] = {}
    for i in range(2, len(tokens) - 1, 3):
        if marks[i : i + 3] != [False, True, False] or tokens[i + 1] != "=":
            raise _jaas_error(_JAAS_FORM)
        credentials[tokens[i]] = tokens[i + 2]
    return tokens[0], credentials


def _jaas_error(allowed: str) -> OptionError:
    return OptionError("kafka.sasl.jaas.config", REDACTED, allowed)


def _tls(settings: Mapping[str, str]) -> dict[str, Any]:
    config: dict[str, Any] = {}
    truststore = _pem_location("truststore", settings)
    if truststore is not None:
        config["ssl_cafile"] = truststore
    keystore = _pem_location("keystore", settings)
    if keystore is not None:
        # A PEM key store holds the key and the certificate chain in one file.
        config["ssl_certfile"] = config["ssl_keyfile"] = keystore
    if "ssl.key.password" in settings:
        if keystore is None:
            raise OptionError(
                "kafka.ssl.key.password",
                REDACTED,
                "only beside kafka.ssl.keystore.location, whose key it opens",
            )
        config["ssl_password"] = settings["ssl.key.password"]
    name = "ssl.endpoint.identification.algorithm"
    if name in settings:
        algorithm = parse_value(f"kafka.{name}", settings[name], _HOST_NAME_CHECK)
        config["ssl_check_hostname"] = algorithm == "https"
    return config


def _pem_location(store: str, settings: Mapping[str, str]) -> str | None:
    """Return the PEM file of the key store or trust store, None when there is none."""
    prefix = f"ssl.{store}"
    if f"{prefix}.type" in settings:
        name = f"{prefix}.type"
        if parse_value(f"kafka.{name}", settings[name], _STORE_TYPES) != "PEM":
            raise OptionError(f"kafka.{name}", settings[name], f"PEM: {_hint(store)}")
    elif f"{prefix}.location" in settings:
        # Java's default type is JKS; reading one as PEM would fail deep inside a handshake.
        raise OptionError(
            f"kafka.{prefix}.type", None, f"PEM (Java's default, JKS, is not): {_hint(store)}"
        )
    if f"{prefix}.password" in settings:
        # Java, too, refuses it for PEM stores.
        raise OptionError(
            f"kafka.{prefix}.password",
            REDACTED,
            "leave it out: PEM files have none, a private key's is kafka.ssl.key.password",
        )
    location = settings.get(f"{prefix}.location")
    if location is not None and not location.strip():
        raise OptionError(f"kafka.{prefix}.location", location, "the path of a PEM file")
    return None if location is None else location.strip()


def _hint(store: str) -> str:
    source = "-srckeystore STORE -destkeystore STORE.p12 -deststoretype PKCS12"
    what = "-nokeys" if store == "truststore" else "-nodes"
    return (
        f"convert a JKS store with 'keytool -importkeystore {source}', "
        f"a PKCS12 store with 'openssl pkcs12 -in STORE.p12 -out STORE.pem {what}'"
    )
