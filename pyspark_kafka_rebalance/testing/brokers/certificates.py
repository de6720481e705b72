"""Certificates for tests: a certificate authority, and stores in PEM and PKCS12."""

from __future__ import annotations

import datetime
import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import LocalKafkaError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

_LIFETIME = datetime.timedelta(days=2)


def _require_cryptography() -> None:
    try:
        import cryptography as cryptography
    except ImportError as error:
        raise LocalKafkaError(
            f"certificates are made with the package cryptography: {error}; "
            "pip install 'cryptography>=36'"
        ) from error


@dataclass(frozen=True)
class Stores:
    """The files of one party's stores.

    Attributes
    ----------
    key_pem : Path
        Private key (without a password) and certificate chain, in PEM.
    key_pkcs12 : Path
        The same in PKCS12, opened by ``password``.
    trust_pem, trust_pkcs12 : Path
        The authority's certificate.
    password : str
        The password of both PKCS12 stores.
    """

    key_pem: Path
    key_pkcs12: Path
    trust_pem: Path
    trust_pkcs12: Path
    password: str


class CertificateAuthority:
    """An authority that nobody else trusts.

    Parameters
    ----------
    name : str
        Its common name.
    """

    def __init__(self, name: str) -> None:
        _require_cryptography()
        self._key = _new_key()
        self._certificate = _certificate(name, self._key, None, name)
        self._name = name

    def write_stores(self, folder: Path, common_name: str, password: str) -> Stores:
        """Make a key with a certificate for 127.0.0.1, and write its stores and the authority's.

        Parameters
        ----------
        folder : Path
            For the files; created if it is missing.
        common_name : str
            The certificate's subject: brokers know a client as ``User:CN=<common_name>``.
        password : str
            For the PKCS12 stores.
        """
        from cryptography.hazmat.primitives import serialization as formats
        from cryptography.hazmat.primitives.serialization import pkcs12

        folder.mkdir(parents=True, exist_ok=True)
        key = _new_key()
        certificate = _certificate(common_name, key, self._key, self._name)
        encryption = formats.BestAvailableEncryption(password.encode())
        pem = formats.Encoding.PEM
        stores = Stores(
            key_pem=folder / "key.pem",
            key_pkcs12=folder / "key.p12",
            trust_pem=folder / "trust.pem",
            trust_pkcs12=folder / "trust.p12",
            password=password,
        )
        contents = {
            stores.key_pem: key.private_bytes(
                pem, formats.PrivateFormat.PKCS8, formats.NoEncryption()
            )
            + certificate.public_bytes(pem),
            stores.key_pkcs12: pkcs12.serialize_key_and_certificates(
                b"client", key, certificate, [self._certificate], encryption
            ),
            stores.trust_pem: self._certificate.public_bytes(pem),
            # With the attribute by which Java recognises a trusted certificate.
            stores.trust_pkcs12: pkcs12.serialize_java_truststore(
                [pkcs12.PKCS12Certificate(self._certificate, b"authority")], encryption
            ),
        }
        for path, content in contents.items():
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(content)
        return stores


def _new_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _certificate(
    common_name: str,
    key: EllipticCurvePrivateKey,
    signed_by: EllipticCurvePrivateKey | None,
    authority: str,
) -> x509.Certificate:
    """Make a certificate; without ``signed_by``, the authority's own."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import NameOID

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    now = datetime.datetime.now(datetime.timezone.utc)
    hosts = [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    issuer = signed_by or key
    return (
        x509.CertificateBuilder()
        .subject_name(named(common_name))
        .issuer_name(named(authority))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + _LIFETIME)
        .add_extension(x509.BasicConstraints(ca=signed_by is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key()), critical=False
        )
        .sign(issuer, hashes.SHA256())
    )
