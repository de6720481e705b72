"""TokenEndpoint: an authorization server on this machine, for brokers with OAUTHBEARER.

It answers the client credentials grant (RFC 6749, section 4.4) with signed JWTs, and writes the key
set (RFC 7517) with which brokers check them.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

if TYPE_CHECKING:
    from typing_extensions import Self

_KEY_ID = "local"


class TokenEndpoint:
    """A token endpoint at a free port of 127.0.0.1; a context manager.

    ``clients`` are the secrets by client id; ``audience`` is whom the tokens are for.
    """

    def __init__(self, clients: dict[str, str], audience: str, lifetime_s: float = 600.0) -> None:
        from cryptography.hazmat.primitives.asymmetric import rsa

        self.clients = clients
        self.lifetime_s = lifetime_s
        #: The form of each request that got a token, and every token.
        self.requests: list[dict[str, list[str]]] = []
        self.issued: list[str] = []
        self._audience = audience
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """For ``sasl.oauthbearer.token.endpoint.url``."""
        return f"http://127.0.0.1:{self._server.server_port}/token"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def write_key_set(self, path: Path) -> None:
        """Write the key set, for ``sasl.oauthbearer.jwks.endpoint.url=file://…``."""
        numbers = self._key.public_key().public_numbers()
        modulus = numbers.n.to_bytes((numbers.n.bit_length() + 7) // 8, "big")
        key = {
            "kty": "RSA",
            "kid": _KEY_ID,
            "alg": "RS256",
            "use": "sig",
            "n": _base64(modulus),
            "e": _base64(numbers.e.to_bytes(3, "big")),
        }
        path.write_text(json.dumps({"keys": [key]}))

    def token(self, subject: str) -> str:
        """Return a signed token for a client."""
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import padding

        now = time.time()
        claims = {
            "sub": subject,
            "aud": self._audience,
            "iat": int(now),
            "exp": int(now + self.lifetime_s),
        }
        header = {"alg": "RS256", "kid": _KEY_ID, "typ": "JWT"}
        signed = ".".join(_base64(json.dumps(part).encode()) for part in (header, claims))
        signature = self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        self.issued.append(f"{signed}.{_base64(signature)}")
        return self.issued[-1]

    def _answer(self, authorization: str, form: dict[str, list[str]]) -> tuple[int, dict[str, Any]]:
        try:
            credentials = base64.b64decode(authorization.removeprefix("Basic ")).decode()
        except ValueError:
            credentials = ""
        client, _, secret = credentials.partition(":")
        if not secret or self.clients.get(client) != secret:
            return 401, {"error": "invalid_client", "error_description": credentials}
        self.requests.append(form)
        token = {"access_token": self.token(client), "token_type": "Bearer"}
        return 200, token | {"expires_in": self.lifetime_s}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = self.rfile.read(int(self.headers["Content-Length"])).decode()
                status, fields = endpoint._answer(
                    self.headers.get("Authorization", ""), parse_qs(form)
                )
                body = json.dumps(fields).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        return Handler


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
