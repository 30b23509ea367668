"""Access control of the page: the secret, the accepted host names, and the browser's security policy."""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Iterable, MutableMapping
from hashlib import sha256
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inferometer.agent.protocol.metadata import bearer
from inferometer.agent.server.security.host_names import HostNames

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""What the page may load: its own files. No script and no style stands in its text."""
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_CHALLENGE = 'Basic realm="inferometer", charset="UTF-8"'


class Guard:
    """Forwards authorized requests to the page, and rejects all others.

    With a secret, each request shows it: as the password of any user, which a browser asks for and keeps, or
    as ``Authorization: Bearer SECRET``. Without one, the page answers only to its own names: see
    ``HostNames``.

    Args:
        app: What is guarded.
        secret: The secret; None for none.
        names: Further names that it answers to; None for any name. See ``HostNames``.

    Raises:
        ConfigurationError: The secret cannot be sent.
    """

    def __init__(self, app: ASGIApp, secret: str | None, names: Iterable[str] | None) -> None:
        self._app = app
        self._expected = None if secret is None else _digest(bearer(secret))
        self._names = HostNames(names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)

        async def send_strictly(message: Message) -> None:
            if message["type"] == "http.response.start":
                _add_headers(message)
            await send(message)

        refusal = self._refusal(headers)
        await (refusal or self._app)(scope, receive, send_strictly)

    def _refusal(self, headers: Headers) -> Response | None:
        if self._expected is None:
            if self._names.admits(headers.get("host")):
                return None
            return JSONResponse(
                {"error": "this page does not answer to that name; use the address that agent web printed"},
                status_code=421,
            )
        if hmac.compare_digest(_digest(_shown_secret(headers.get("authorization", ""))), self._expected):
            return None
        return JSONResponse(
            {"error": "the secret is missing or wrong"}, 401, headers={"WWW-Authenticate": _CHALLENGE}
        )


def _shown_secret(authorization: str) -> str:
    """Returns the header as ``Bearer SECRET``; a password of Basic authentication is the secret."""
    scheme, _, credentials = authorization.partition(" ")
    if scheme.lower() != "basic":
        return authorization
    try:
        login = base64.b64decode(credentials, validate=True).decode("utf-8")
    except (binascii.Error, ValueError):
        return ""
    return f"Bearer {login.partition(':')[2]}"


def _digest(value: str) -> bytes:
    """Returns a digest: to compare it reveals neither the first difference nor the length."""
    return sha256(value.encode("utf-8", "surrogateescape")).digest()


def _add_headers(message: MutableMapping[str, Any]) -> None:
    headers = MutableHeaders(scope=message)
    for name, value in _HEADERS.items():
        headers[name] = value
    headers.setdefault("Cache-Control", "no-store")
