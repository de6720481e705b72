"""ClientCredentialsTokens: bearer tokens for OAUTHBEARER, as Java's client gets them (KIP-768).

The client credentials grant (RFC 6749, section 4.4) over HTTP, with only the standard library.
"""

from __future__ import annotations

import base64
import json
import logging
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from kafka import errors as kafka_errors
from kafka.net.sasl.oauth import AbstractTokenProvider

from ..errors import AuthenticationError
from .values import REDACTED

log = logging.getLogger(__name__)

#: A connection that logs in waits for the token, and so does every other one of the same client.
_TIMEOUT_S = 10.0

#: A token is renewed after this part of its life: Java's sasl.login.refresh.window.factor.
_REFRESH_AT = 0.8

#: More than any answer with a token has.
_MAX_ANSWER_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Token:
    value: str = field(repr=False)
    renew_at: float  # in time.time() seconds


class ClientCredentialsTokens(AbstractTokenProvider):  # type: ignore[misc]
    """kafka-python's token provider for one client; pickled without its token.

    ``url`` is the authorization server's token endpoint. The SASL extensions (KIP-342) are sent to
    the broker with the token.
    """

    def __init__(
        self,
        url: str,
        client_id: str,
        client_secret: str,
        scope: str | None = None,
        extensions: Mapping[str, str] | None = None,
    ) -> None:
        self._url = url
        self._client_id = client_id
        self._client_secret = client_secret
        self._scope = scope
        self._extensions = dict(extensions or {})
        self._lock = threading.Lock()
        self._token: _Token | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        settings = (self._url, self._client_id, self._client_secret, self._scope, self._extensions)
        return (type(self), settings)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._url!r}, {self._client_id!r}, {REDACTED})"

    def extensions(self) -> dict[str, str]:
        """Return the SASL extensions (KIP-342)."""
        return self._extensions

    def token(self) -> str:
        """Return a valid token: the last one, until it is time to renew it.

        Raises AuthenticationError if the endpoint does not accept this client, or answers with
        something else, and kafka-python's KafkaConnectionError if it cannot be reached now; trying
        again may help.
        """
        with self._lock:
            if self._token is None or time.time() >= self._token.renew_at:
                self._token = self._fetch()
            return self._token.value

    def _fetch(self) -> _Token:
        credentials = f"{self._client_id}:{self._client_secret}".encode()
        form = {"grant_type": "client_credentials"} | (
            {"scope": self._scope} if self._scope else {}
        )
        request = urllib.request.Request(
            self._url,
            data=urlencode(form).encode(),
            headers={
                "Accept": "application/json",
                "Authorization": f"Basic {base64.b64encode(credentials).decode()}",
            },
        )
        asked_at = time.time()
        try:
            with _OPENER.open(request, timeout=_TIMEOUT_S) as response:
                answer = response.read(_MAX_ANSWER_BYTES)
        except urllib.error.HTTPError as error:
            with error:
                raise self._refused(error.code, error.read(_MAX_ANSWER_BYTES)) from None
        except OSError as error:  # URLError and timeouts included
            raise kafka_errors.KafkaConnectionError(
                f"the token endpoint {self._url} cannot be reached: {error}"
            ) from None
        token = _token_in(answer, asked_at)
        if token is None:
            raise AuthenticationError(
                f"the token endpoint {self._url} did not return JSON with an access_token"
            )
        log.info("got a new token for client %s from %s", self._client_id, self._url)
        return token

    def _refused(self, status: int, answer: bytes) -> Exception:
        text = f"the token endpoint {self._url} answers client {self._client_id!r} with {status}"
        # RFC 6749, section 5.2; the description is free text, and may repeat the request.
        code = _json_object(answer).get("error")
        if isinstance(code, str) and self._client_secret not in code:
            text += f" ({code[:100]})"
        # A redirect is not followed: it would carry the secret somewhere else.
        if status >= 500 or status == 429:
            unavailable: Exception = kafka_errors.KafkaConnectionError(text)
            return unavailable
        return AuthenticationError(text)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects)


def _token_in(answer: bytes, asked_at: float) -> _Token | None:
    """Return the token in an answer (RFC 6749, section 5.1), or None if there is none."""
    fields = _json_object(answer)
    value = fields.get("access_token")
    if not isinstance(value, str) or not value:
        return None
    lifetime_s = fields.get("expires_in")
    if not isinstance(lifetime_s, (int, float)):
        lifetime_s = _jwt_expiry(value, asked_at) - asked_at
    return _Token(value, asked_at + max(0.0, lifetime_s) * _REFRESH_AT)


def _jwt_expiry(token: str, default: float) -> float:
    """Return when a JWT expires (RFC 7519, ``exp``), in seconds since the epoch."""
    payload = token.split(".")[1:2]
    try:
        claims = _json_object(base64.urlsafe_b64decode("".join(payload) + "=="))
    except ValueError:
        return default
    expiry = claims.get("exp")
    return float(expiry) if isinstance(expiry, (int, float)) else default


def _json_object(text: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}
