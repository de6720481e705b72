"""Java's key stores and trust stores, in the form that Python's TLS takes.

A store's file is read on the machine that connects, as in Java, and again for each connection, so
that a certificate which was replaced on disk is picked up. The stores' locations and passwords are
sent to the executors, not their files.
"""

from __future__ import annotations

import base64
import os
import re
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ..errors import OptionError
from . import java_stores
from .private_keys import encrypted_pem
from .values import REDACTED

if TYPE_CHECKING:
    import socket

StoreKind = Literal["PEM", "PKCS12", "JKS", "JCEKS"]

_NEEDS_CRYPTOGRAPHY = (
    "a PEM file, or PKCS12 with the package cryptography: "
    "pip install 'cryptography>=36' on the driver and on every executor"
)


#: OpenSSL's reasons in other words.
_REASONS = {"KEY_VALUES_MISMATCH": "the key is not that of the first certificate"}


@dataclass(frozen=True, slots=True)
class KeyStore:
    """A key store or a trust store, as the settings describe it."""

    setting: Literal["ssl.keystore", "ssl.truststore"]  # named in errors
    #: Java's reader of JKS, its default, takes PKCS12 as well: the file's content decides.
    kind: StoreKind
    location: str | None  # the store's file; None with ``pem``
    pem: str = field(default="", repr=False)  # PEM text given in the settings themselves
    #: The password of the store, or of a private key in PEM.
    password: str | None = field(default=None, repr=False)
    #: The password of a store's private key, if it is another than the store's: in JKS only.
    key_password: str | None = field(default=None, repr=False)

    @property
    def shows_its_key(self) -> bool:
        """Whether the settings themselves have a private key that is not encrypted."""
        return "PRIVATE KEY-----" in self.pem and "-----BEGIN ENCRYPTED" not in self.pem

    def trust_in(self, context: ssl.SSLContext) -> None:
        """Let a context accept this store's certificates."""
        with self._explained("certificates in PEM"):
            if self.kind != "PEM":
                context.load_verify_locations(cadata=self._certificates(self._content()))
            elif self.location is None:
                context.load_verify_locations(cadata=self.pem)
            else:
                context.load_verify_locations(cafile=self.location)

    def identify(self, context: ssl.SSLContext) -> None:
        """Let a context present this store's certificate chain, and sign with its key."""
        with self._explained("a private key and its certificate chain in PEM"):
            # Without a password OpenSSL would ask for one at the terminal.
            password = self.password or ""
            if self.kind == "PEM" and self.location is not None:
                context.load_cert_chain(self.location, password=password)
                return
            if self.kind == "PEM":
                self._check_chain()
                content = self.pem.encode()
            else:
                content, password = self._identity(self._content())
            with _private_file(content) as path:
                context.load_cert_chain(path, password=password)

    def _check_chain(self) -> None:
        """Raise if it is the certificate chain in the settings that OpenSSL does not take."""
        chain = self.pem[self.pem.index("-----BEGIN CERT") :]
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=chain)
        except ssl.SSLError as error:
            option = "kafka.ssl.keystore.certificate.chain"
            allowed = f"certificates in PEM ({error.reason or error})"
            raise OptionError(option, "PEM text", allowed) from None

    def _certificates(self, content: bytes) -> str:
        if content.startswith(java_stores.MAGIC):
            return java_stores.certificates(content, self.password)
        return _pkcs12_certificates(content, self.password)

    def _identity(self, content: bytes) -> tuple[bytes, str]:
        if content.startswith(java_stores.MAGIC):
            return java_stores.identity(content, self.password, self.key_password)
        if self.key_password is not None and self.key_password != self.password:
            raise OptionError(
                "kafka.ssl.key.password",
                REDACTED,
                "the same as kafka.ssl.keystore.password, or leave it out: a PKCS12 store has one "
                "password",
            )
        return _pkcs12_identity(content, self.password)

    def _content(self) -> bytes:
        assert self.location is not None
        with open(self.location, "rb") as file:
            content = file.read()
        if content.lstrip().startswith(b"-----BEGIN"):
            raise self._error(f"kafka.{self.setting}.type=PEM for a file in PEM")
        return content

    @contextmanager
    def _explained(self, pem: str) -> Iterator[None]:
        """Turn an error into an OptionError that names the store and shows no secret."""
        what = f"the file of a {self.kind} store" if self.kind != "PEM" else f"{pem}"
        password = (
            "kafka.ssl.key.password" if self.kind == "PEM" else f"kafka.{self.setting}.password"
        )
        try:
            yield
        except OptionError:
            raise
        except ImportError as error:
            no_jks = (error.name or "").partition(".")[0] == "jks"
            needed = java_stores.NEEDS_PYJKS if no_jks else _NEEDS_CRYPTOGRAPHY
            raise self._error(needed) from None
        except ssl.SSLError as error:
            reason = _REASONS.get(error.reason, error.reason or error)
            raise self._error(f"{what}, opened by {password} ({reason})") from None
        except OSError as error:
            raise self._error(f"{what}, readable on this machine ({error.strerror})") from None
        except (ValueError, TypeError) as error:
            # cryptography says nothing of the content or the password.
            raise self._error(f"{what}, opened by {password} ({error})") from None

    def _error(self, allowed: str) -> OptionError:
        if self.location is None:
            inline = {
                "ssl.keystore": "ssl.keystore.key",
                "ssl.truststore": "ssl.truststore.certificates",
            }
            return OptionError(f"kafka.{inline[self.setting]}", "PEM text", allowed)
        return OptionError(f"kafka.{self.setting}.location", self.location, allowed)


class _ClosedWhenRefused(ssl.SSLSocket):
    """Closes when its handshake fails; kafka-python leaves that to the garbage collector."""

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except OSError:
            self.close()
            raise


@dataclass(frozen=True, slots=True)
class TlsContext:
    """Replaces kafka-python's ``ssl.SSLContext``; built from stores for each connection.

    Unlike an ``ssl.SSLContext`` it can be pickled.
    """

    #: None: this machine's trusted certificates (OpenSSL's default; Java's is its ``cacerts``).
    truststore: KeyStore | None
    keystore: KeyStore | None  # None: this client presents no certificate
    #: Whether a broker's certificate must be for the host name that is connected to.
    check_hostname: bool

    def context(self) -> ssl.SSLContext:
        """Read the stores.

        Raises OptionError, which names the store, if one cannot be read or opened.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.sslsocket_class = _ClosedWhenRefused
        context.check_hostname = self.check_hostname
        if self.truststore is None:
            context.load_default_certs()
        else:
            # As in Java: a trust store's certificates are trusted, whether they are roots or not.
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            self.truststore.trust_in(context)
        if self.keystore is not None:
            self.keystore.identify(context)
        return context

    def wrap_socket(self, sock: socket.socket, **options: Any) -> ssl.SSLSocket:
        """As ``ssl.SSLContext.wrap_socket``."""
        return self.context().wrap_socket(sock, **options)


_PEM_BLOCK = re.compile(r"-+BEGIN\s+([^-]*?)\s*-+([^-]*)-+END\s+\1\s*-+")


def pem_blocks(text: str) -> list[tuple[str, str]]:
    """Return the blocks of PEM text from a setting, each with its label, such as "CERTIFICATE".

    They get the line breaks that a single line lacks: Java reads any white space as a line break,
    because properties are often one line; OpenSSL does not. Raises ValueError for text that is not
    PEM.
    """
    blocks = []
    for match in _PEM_BLOCK.finditer(text):
        body = "".join(match[2].split())
        base64.b64decode(body, validate=True)
        lines = [body[i : i + 64] for i in range(0, len(body), 64)]
        lines = [f"-----BEGIN {match[1]}-----", *lines, f"-----END {match[1]}-----", ""]
        blocks.append((match[1], "\n".join(lines)))
    return blocks


def _pkcs12_certificates(content: bytes, password: str | None) -> str:
    """Return a PKCS12 store's certificates in PEM."""
    from cryptography.hazmat.primitives.serialization import Encoding, pkcs12

    store = pkcs12.load_pkcs12(content, _bytes(password))
    own = [] if store.cert is None else [store.cert]
    certificates = [c.certificate for c in (*own, *store.additional_certs)]
    if not certificates:
        raise ValueError("it contains no certificate")
    return "".join(c.public_bytes(Encoding.PEM).decode("ascii") for c in certificates)


def _pkcs12_identity(content: bytes, password: str | None) -> tuple[bytes, str]:
    """Return a PKCS12 store's key and certificate chain in PEM, and a new password for the key."""
    from cryptography.hazmat.primitives.serialization import Encoding, pkcs12

    store = pkcs12.load_pkcs12(content, _bytes(password))
    if store.key is None or store.cert is None:
        raise ValueError("it contains no private key with a certificate")
    key, made_up = encrypted_pem(store.key)
    chain = [
        c.certificate.public_bytes(Encoding.PEM) for c in (store.cert, *store.additional_certs)
    ]
    return b"".join([key, *chain]), made_up


def _bytes(password: str | None) -> bytes | None:
    return None if password is None else password.encode()


@contextmanager
def _private_file(content: bytes) -> Iterator[str]:
    """Yield the path of a file that only this user can read, and that is deleted after its use.

    Python's ``ssl`` takes a private key only from a file. On Linux that file is in memory.
    """
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("key", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, content)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
    else:
        with tempfile.NamedTemporaryFile() as file:  # only for its owner
            file.write(content)
            file.flush()
            yield file.name
