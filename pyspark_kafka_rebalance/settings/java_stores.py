"""Key stores in Java's own formats, JKS and JCEKS, by the package pyjks (the extra ``jks``)."""

from __future__ import annotations

import ssl
from typing import Any

from .private_keys import encrypted_pem

#: The first bytes of a store: JKS, JCEKS.
MAGIC = (bytes.fromhex("feedfeed"), bytes.fromhex("cececece"))

NEEDS_PYJKS = (
    "a PEM or PKCS12 store, or JKS with the package pyjks: pip install pyjks 'cryptography>=36' on "
    "the driver and on every executor"
)


def certificates(content: bytes, password: str | None) -> str:
    """Return a store's trusted certificates in PEM, each key's included, as Java does.

    Raises ImportError if pyjks is not installed, and ValueError if the password is wrong, or there
    is no certificate.
    """
    store = _opened(content, password)
    trusted = [entry.cert for entry in store.certs.values()]
    trusted += [entry.cert_chain[0][1] for entry in store.private_keys.values()]
    if not trusted:
        raise ValueError("it contains no certificate")
    return "".join(map(ssl.DER_cert_to_PEM_cert, trusted))


def identity(content: bytes, password: str | None, key_password: str | None) -> tuple[bytes, str]:
    """Return a store's first key and its certificate chain in PEM, and a new password for the key.

    Raises ImportError if pyjks is not installed, and ValueError if a password is wrong, or there is
    no key.
    """
    from cryptography.hazmat.primitives.serialization import load_der_private_key

    store = _opened(content, password)
    if not store.private_keys:
        raise ValueError("it contains no private key with a certificate")
    entry = next(iter(store.private_keys.values()))
    _decrypt(entry, key_password or password or "")
    key = load_der_private_key(entry.pkey_pkcs8, None)
    chain = [ssl.DER_cert_to_PEM_cert(certificate).encode() for _, certificate in entry.cert_chain]
    pem, made_up = encrypted_pem(key)
    return b"".join([pem, *chain]), made_up


def _opened(content: bytes, password: str | None) -> Any:
    import jks

    try:
        # Without a password, Java too reads a store and does not check that it is whole.
        return jks.KeyStore.loads(content, password, try_decrypt_keys=False)
    except jks.KeystoreSignatureException:
        raise ValueError("the password is wrong, or the file is damaged") from None
    except jks.KeystoreException as error:
        raise ValueError(str(error)) from None


def _decrypt(entry: Any, password: str) -> None:
    import jks

    try:
        entry.decrypt(password)
    except jks.DecryptionFailureException:
        raise ValueError("its private key has another one: kafka.ssl.key.password") from None
