"""Java's key stores and trust stores, in the form that Python's TLS takes.

A store's file is read on the machine that connects, as in Java, and again for each connection, so
that a certificate which was replaced on disk is picked up. The stores' locations and passwords are
sent to the executors, not their files.
"""

from __future__ import annotations

import base64
import os
import re
import secrets
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ..errors import OptionError

if TYPE_CHECKING:
    import socket

#: The first bytes of a store in Java's own format.
_JKS_MAGIC = bytes.fromhex("feedfeed")

_NEEDS_CRYPTOGRAPHY = (
    "a PEM file, or PKCS12 with the package cryptography: "
    "pip install 'cryptography>=36' on the driver and on every executor"
)


@dataclass(frozen=True, slots=True)
class KeyStore:
    """A key store or a trust store, as the settings describe it.

    Attributes
    ----------
    setting : {"ssl.keystore", "ssl.truststore"}
        Named in errors.
    kind : {"PEM", "PKCS12", "JKS"}
        Java's reader of JKS, its default, takes PKCS12 as well; the file tells which it is.
    location : str or None
        The store's file; None with ``pem``.
    pem : str
        PEM text given in the settings themselves.
    password : str or None
        The password of a PKCS12 store, or of a private key in PEM.
    """

    setting: Literal["ssl.keystore", "ssl.truststore"]
    kind: Literal["PEM", "PKCS12", "JKS"]
    location: str | None
    pem: str = field(default="", repr=False)
    password: str | None = field(default=None, repr=False)

    def trust_in(self, context: ssl.SSLContext) -> None:
        """Let a context accept this store's certificates."""
        with self._explained("certificates in PEM"):
            if self.kind != "PEM":
                certificates = _pkcs12_certificates(self._pkcs12_content(), self.password)
                context.load_verify_locations(cadata=certificates)
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
            content = self.pem.encode()
            if self.kind != "PEM":
                content, password = _pkcs12_identity(self._pkcs12_content(), self.password)
            with _private_file(content) as path:
                context.load_cert_chain(path, password=password)

    def _pkcs12_content(self) -> bytes:
        assert self.location is not None
        with open(self.location, "rb") as file:
            content = file.read()
        if content.startswith(_JKS_MAGIC):
            raise self._error(
                "a PKCS12 or PEM store, not JKS; convert it with 'keytool -importkeystore "
                "-srckeystore STORE -destkeystore STORE.p12 -deststoretype PKCS12'"
            )
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
        except ImportError:
            raise self._error(_NEEDS_CRYPTOGRAPHY) from None
        except ssl.SSLError as error:
            raise self._error(f"{what}, opened by {password} ({error.reason or error})") from None
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
    """Stands in for kafka-python's ``ssl.SSLContext``; built from stores for each connection.

    Unlike an ``ssl.SSLContext`` it can be pickled.

    Attributes
    ----------
    truststore : KeyStore or None
        None: what this machine trusts (OpenSSL's default; Java's is its ``cacerts``).
    keystore : KeyStore or None
        None: this client presents no certificate.
    check_hostname : bool
        Whether a broker's certificate must be for the host name that is connected to.
    """

    truststore: KeyStore | None
    keystore: KeyStore | None
    check_hostname: bool

    def context(self) -> ssl.SSLContext:
        """Read the stores.

        Raises
        ------
        OptionError
            A store cannot be read or opened; names it.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.sslsocket_class = _ClosedWhenRefused
        context.check_hostname = self.check_hostname
        if self.truststore is None:
            context.load_default_certs()
        else:
            # As in Java: what a trust store holds is trusted, whether it is a root or not.
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            self.truststore.trust_in(context)
        if self.keystore is not None:
            self.keystore.identify(context)
        return context

    def wrap_socket(self, sock: socket.socket, **options: Any) -> ssl.SSLSocket:
        """As ``ssl.SSLContext.wrap_socket``."""
        return self.context().wrap_socket(sock, **options)


_PEM_BLOCK = re.compile(r"-+BEGIN\s+([^-]*?)\s*-+([^-]*)-+END\s+\1\s*-+")


def pem_text(text: str) -> str:
    """Return PEM text from a setting, with the line breaks that a single line lacks.

    Java reads any white space as a line break, because properties are often one line; OpenSSL does
    not. Raises ValueError if there is no PEM in the text.
    """
    blocks = []
    for match in _PEM_BLOCK.finditer(text):
        body = "".join(match[2].split())
        base64.b64decode(body, validate=True)
        lines = [body[i : i + 64] for i in range(0, len(body), 64)]
        blocks += [f"-----BEGIN {match[1]}-----", *lines, f"-----END {match[1]}-----"]
    if not blocks:
        raise ValueError("no PEM")
    return "\n".join([*blocks, ""])


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
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
        pkcs12,
    )

    store = pkcs12.load_pkcs12(content, _bytes(password))
    if store.key is None or store.cert is None:
        raise ValueError("it contains no private key with a certificate")
    made_up = secrets.token_urlsafe(32)
    key = store.key.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(made_up.encode())
    )
    chain = [
        c.certificate.public_bytes(Encoding.PEM) for c in (store.cert, *store.additional_certs)
    ]
    return b"".join([key, *chain]), made_up


def _bytes(password: str | None) -> bytes | None:
    return None if password is None else password.encode()


@contextmanager
def _private_file(content: bytes) -> Iterator[str]:
    """Yield the path of a file that nobody else can read, and that is gone after its use.

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
