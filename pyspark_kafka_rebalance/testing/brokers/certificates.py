"""Certificates for tests: a certificate authority of trustme's, and stores in PEM and PKCS12."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ..errors import LocalKafkaError


@dataclass(frozen=True)
class Stores:
    """The files of one party's stores."""

    key_pem: Path  #: private key (without a password) and certificate chain
    key_pkcs12: Path  #: the same
    trust_pem: Path  #: the authority's certificate
    trust_pkcs12: Path
    password: str  #: of both PKCS12 stores


class CertificateAuthority:
    """An authority that only the tests' brokers and clients trust; ``name`` is its organization.

    Raises LocalKafkaError if the package trustme is missing.
    """

    def __init__(self, name: str) -> None:
        try:
            import trustme
        except ImportError as error:
            raise LocalKafkaError(
                f"certificates are made with the package trustme: {error}; pip install trustme"
            ) from error
        self._authority = trustme.CA(organization_name=name)

    def write_stores(self, folder: Path, common_name: str, password: str) -> Stores:
        """Make a key with a certificate for 127.0.0.1, and write its stores and the authority's.

        The folder is created if it is missing. trustme puts the common name before an organization
        and its unit. The password is that of the PKCS12 stores.
        """
        folder.mkdir(parents=True, exist_ok=True)
        stores = Stores(
            key_pem=folder / "key.pem",
            key_pkcs12=folder / "key.p12",
            trust_pem=folder / "trust.pem",
            trust_pkcs12=folder / "trust.p12",
            password=password,
        )
        issued = self._authority.issue_cert("127.0.0.1", common_name=common_name)
        (chain,) = issued.cert_chain_pems  # without the authority's own
        trusted = self._authority.cert_pem.bytes()
        key_pem, key_pkcs12, trust_pkcs12 = _in_javas_formats(
            issued.private_key_pem.bytes(), chain.bytes(), trusted, password
        )
        contents = {
            stores.key_pem: key_pem + chain.bytes(),
            stores.key_pkcs12: key_pkcs12,
            stores.trust_pem: trusted,
            stores.trust_pkcs12: trust_pkcs12,
        }
        for path, content in contents.items():
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(content)
        return stores


def _in_javas_formats(
    key_pem: bytes, certificate_pem: bytes, authority_pem: bytes, password: str
) -> tuple[bytes, bytes, bytes]:
    """Return the key in PKCS8, and the PKCS12 stores of key and authority; trustme has neither."""
    from cryptography.hazmat.primitives import serialization as formats
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import pkcs12
    from cryptography.x509 import load_pem_x509_certificate

    key = formats.load_pem_private_key(key_pem, None)
    assert isinstance(key, EllipticCurvePrivateKey)
    authority = load_pem_x509_certificate(authority_pem)
    encryption = formats.BestAvailableEncryption(password.encode())
    return (
        key.private_bytes(
            formats.Encoding.PEM, formats.PrivateFormat.PKCS8, formats.NoEncryption()
        ),
        pkcs12.serialize_key_and_certificates(
            b"client", key, load_pem_x509_certificate(certificate_pem), [authority], encryption
        ),
        # With the attribute by which Java recognises a trusted certificate.
        pkcs12.serialize_java_truststore(
            [pkcs12.PKCS12Certificate(authority, b"authority")], encryption
        ),
    )
