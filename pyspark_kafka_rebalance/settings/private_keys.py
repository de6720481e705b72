"""Private keys on their way to OpenSSL, by the package cryptography."""

from __future__ import annotations

import secrets
from typing import Any


def encrypted_pem(key: Any) -> tuple[bytes, str]:
    """Return a key in PEM, and the password that was made up for it."""
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
    )

    made_up = secrets.token_urlsafe(32)
    encryption = BestAvailableEncryption(made_up.encode())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption), made_up
