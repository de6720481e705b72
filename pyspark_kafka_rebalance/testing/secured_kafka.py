"""SecuredKafka: a LocalKafka that accepts every login that the source supports, and checks ACLs.

The package ``trustme`` makes the certificates, and ``cryptography``, which it brings, the tokens.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ResourcePattern,
    ResourceType,
    UserScramCredentialUpsertion,
)

from ..errors import AuthenticationError
from ..transport.secured_clients import admin_client
from .brokers.broker import DEFAULT_JAVA_OPTIONS
from .brokers.certificates import CertificateAuthority, Stores
from .brokers.token_endpoint import TokenEndpoint
from .errors import LocalKafkaError
from .local_kafka import LocalKafka

if TYPE_CHECKING:
    from typing_extensions import Self

_KAFKA_SECURITY = "org.apache.kafka.common.security"
_AUDIENCE = "kafka"
_SASL_LISTENERS = {"LOGIN": "SASL_PLAINTEXT", "TLSLOGIN": "SASL_SSL"}
_TLS_LISTENERS = {"TLS": "SSL", "MUTUAL": "SSL"}
_SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_MECHANISMS = ("PLAIN", *_SCRAM, "OAUTHBEARER")
#: Without the organization and the unit that trustme gives a certificate.
_COMMON_NAME_ALONE = "RULE:^(CN=[^,]*),.*$/$1/"
_MODULES = {
    "PLAIN": "plain.PlainLoginModule",
    "SCRAM-SHA-256": "scram.ScramLoginModule",
    "SCRAM-SHA-512": "scram.ScramLoginModule",
    "OAUTHBEARER": "oauthbearer.OAuthBearerLoginModule",
}


class SecuredKafka(LocalKafka):
    """One broker with a plaintext listener for its administrator and four more.

    ``LOGIN`` takes every SASL mechanism, ``TLSLOGIN`` the same within TLS, ``TLS`` any client, and
    ``MUTUAL`` clients with a certificate of `authority`. Clients of ``bootstrap_servers`` are
    allowed everything. All others are allowed everything on resources without ACLs, and otherwise
    only as :meth:`allow` says.

    Parameters
    ----------
    folder : Path
        An existing folder, for certificates and keys.
    users : mapping of str to str
        The passwords of users, also the secrets of OAuth clients.
    store_password : str
        The password of the client's PKCS12 stores.
    **options
        As for ``LocalKafka``.

    Examples
    --------
    >>> with SecuredKafka(tmp_path, users={"etl": "secret"}) as kafka:  # doctest: +SKIP
    ...     options = {f"kafka.{k}": v for k, v in kafka.login("SCRAM-SHA-512", "etl").items()}
    ...     spark.readStream.format("kafka_deferred").options(**options)
    """

    def __init__(
        self,
        folder: Path,
        *,
        users: Mapping[str, str],
        store_password: str = "store-secret",
        **options: Any,
    ) -> None:
        self.users = dict(users)
        self.authority = CertificateAuthority("tests")
        self.client_stores: Stores = self.authority.write_stores(
            folder / "client", "client", store_password
        )
        broker_stores = self.authority.write_stores(folder / "broker", "broker", "unused")
        self.token_endpoint = TokenEndpoint(self.users, _AUDIENCE)
        key_set = folder / "key-set.json"
        self.token_endpoint.write_key_set(key_set)
        super().__init__(
            1,
            listeners={**_SASL_LISTENERS, **_TLS_LISTENERS},
            broker_config={
                **_tls_settings(broker_stores),
                **_sasl_settings(self.users, key_set),
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:ANONYMOUS",
                "ssl.principal.mapping.rules": _COMMON_NAME_ALONE,
                "allow.everyone.if.no.acl.found": True,
                **options.pop("broker_config", {}),
            },
            java_options=[
                *options.pop("java_options", DEFAULT_JAVA_OPTIONS),
                f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=file://{key_set}",
            ],
            **options,
        )

    def start(self) -> Self:
        """Start the broker and the token endpoint, and wait until every user can log in."""
        super().start()
        try:
            self._resources.enter_context(self.token_endpoint)
            for user, password in self.users.items():
                self.add_user(user, password)
        except BaseException:
            self.close()
            raise
        return self

    def login(self, mechanism: str, user: str, *, tls: bool = False) -> dict[str, str]:
        """Return the Java client's settings for a user's SASL login, including the address."""
        listener = "TLSLOGIN" if tls else "LOGIN"
        settings = {
            "bootstrap.servers": self.servers_of(listener),
            "security.protocol": _SASL_LISTENERS[listener],
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": jaas_line(mechanism, user, self.users[user]),
        }
        if mechanism == "OAUTHBEARER":
            settings["sasl.oauthbearer.token.endpoint.url"] = self.token_endpoint.url
        return settings | (self.trust() if tls else {})

    def trust(self, kind: str = "PEM") -> dict[str, str]:
        """Return the Java client's settings for the trust store."""
        stores = self.client_stores
        if kind == "PEM":
            return _store("truststore", kind, stores.trust_pem)
        return _store("truststore", kind, stores.trust_pkcs12, stores.password)

    def identity(self, kind: str = "PEM") -> dict[str, str]:
        """Return Java's settings for the key store; brokers know it as ``User:CN=client``."""
        stores = self.client_stores
        if kind == "PEM":
            return _store("keystore", kind, stores.key_pem)
        return _store("keystore", kind, stores.key_pkcs12, stores.password)

    def allow(self, principal: str, operation: str, resource: str, name: str) -> None:
        """Let a principal do this on a topic or group, and refuse others everything on it.

        Parameters
        ----------
        principal : str
            Such as ``User:etl``.
        operation : str
            ``READ``, ``DESCRIBE``, …
        resource : {"TOPIC", "GROUP"}
            The kind of resource.
        name : str
            The name of the resource.
        """
        acl = ACL(
            principal,
            "*",
            ACLOperation[operation],
            ACLPermissionType.ALLOW,
            ResourcePattern(ResourceType[resource], name),
        )
        with self._administration:
            answer = self._admin_client().create_acls([acl])
        if answer["failed"]:
            raise LocalKafkaError(f"{acl}: {answer['failed'][0].__name__}")

    def add_user(self, user: str, password: str) -> None:
        """Add a user, or change a password, for SCRAM, and wait until the login works."""
        self.users[user] = password
        deadline = time.monotonic() + self._timeout_s
        for mechanism in _SCRAM:  # a request may name a user once
            with self._administration:
                answers = self._admin_client().alter_user_scram_credentials(
                    [UserScramCredentialUpsertion(user, mechanism, password)]
                )
            if answers[user]:
                raise LocalKafkaError(f"user {user} cannot be added: {answers[user]}")
            self._wait_for_login(mechanism, user, deadline)

    def _wait_for_login(self, mechanism: str, user: str, deadline: float) -> None:
        """Wait for the login: the broker may not have read the controller's records yet."""
        while True:
            try:
                admin_client(
                    {
                        "bootstrap_servers": self.servers_of("LOGIN"),
                        "security_protocol": "SASL_PLAINTEXT",
                        "sasl_mechanism": mechanism,
                        "sasl_plain_username": user,
                        "sasl_plain_password": self.users[user],
                        "bootstrap_timeout_ms": self._timeout_s * 1000,
                    }
                ).close()
                return
            except AuthenticationError as error:
                if time.monotonic() > deadline:
                    raise LocalKafkaError(f"no login by {mechanism}: {error}") from error


def jaas_line(mechanism: str, user: str, password: str) -> str:
    """Return a client's ``sasl.jaas.config``."""
    names = ("clientId", "clientSecret") if mechanism == "OAUTHBEARER" else ("username", "password")
    module = f"{_KAFKA_SECURITY}.{_MODULES[mechanism]}"
    return f'{module} required {names[0]}="{user}" {names[1]}="{password}";'


def _store(store: str, kind: str, location: Path, password: str | None = None) -> dict[str, str]:
    settings = {f"ssl.{store}.type": kind, f"ssl.{store}.location": str(location)}
    return settings if password is None else {**settings, f"ssl.{store}.password": password}


def _tls_settings(stores: Stores) -> dict[str, str]:
    settings: dict[str, str] = {}
    for listener in ("TLSLOGIN", *_TLS_LISTENERS):
        settings |= {
            f"listener.name.{listener.lower()}.{name}": value
            for name, value in {
                **_store("keystore", "PEM", stores.key_pem),
                **_store("truststore", "PEM", stores.trust_pem),
                "ssl.client.auth": "required" if listener == "MUTUAL" else "none",
            }.items()
        }
    return settings


def _sasl_settings(users: Mapping[str, str], key_set: Path) -> dict[str, str]:
    options: dict[str, Sequence[str]] = {
        "PLAIN": [f'user_{user}="{password}"' for user, password in users.items()]
    }
    settings: dict[str, str] = {}
    for listener in map(str.lower, _SASL_LISTENERS):
        prefix = f"listener.name.{listener}"
        settings[f"{prefix}.sasl.enabled.mechanisms"] = ",".join(_MECHANISMS)
        for mechanism in _MECHANISMS:
            module = f"{_KAFKA_SECURITY}.{_MODULES[mechanism]}"
            line = " ".join([module, "required", *options.get(mechanism, ())])
            settings[f"{prefix}.{mechanism.lower()}.sasl.jaas.config"] = f"{line};"
        oauth = f"{prefix}.oauthbearer.sasl"
        settings |= {
            f"{oauth}.server.callback.handler.class": (
                f"{_KAFKA_SECURITY}.oauthbearer.OAuthBearerValidatorCallbackHandler"
            ),
            f"{oauth}.oauthbearer.jwks.endpoint.url": f"file://{key_set}",
            f"{oauth}.oauthbearer.expected.audience": _AUDIENCE,
        }
    return settings
