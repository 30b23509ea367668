"""Maps failed HTTP requests to gRPC status codes, which the rest of the client handles."""

from __future__ import annotations

import json
import socket
import ssl
from http import HTTPStatus

import grpc

from inferometer.agent.protocol.status import ERROR_CLASS_KEY, STATUS_CODES, one_line
from inferometer.client.remote.rest.responses import NoHttpError, Response

_Code = grpc.StatusCode
_CODES = {
    400: _Code.INVALID_ARGUMENT,
    401: _Code.UNAUTHENTICATED,
    403: _Code.PERMISSION_DENIED,
    404: _Code.NOT_FOUND,
    405: _Code.UNIMPLEMENTED,
    408: _Code.DEADLINE_EXCEEDED,
    409: _Code.ALREADY_EXISTS,
    413: _Code.INVALID_ARGUMENT,
    415: _Code.INVALID_ARGUMENT,
    422: _Code.INVALID_ARGUMENT,
    429: _Code.RESOURCE_EXHAUSTED,
    499: _Code.CANCELLED,
    500: _Code.INTERNAL,
    501: _Code.UNIMPLEMENTED,
    502: _Code.UNAVAILABLE,
    503: _Code.UNAVAILABLE,
    504: _Code.DEADLINE_EXCEEDED,
}
_OF_CLASS = {kind.__name__: code for kind, code in STATUS_CODES.items()}
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST")
_TLS_ALERT = b"\x15\x03"
_CLOSED_AT_ONCE = "failed to connect: the connection was closed"
_LOST = "the connection was closed"
_MAX_TEXT_BYTES = 4096


class HttpFailure(grpc.RpcError):
    """A request that failed; ``http_status`` is that of the response, None where there was none."""

    def __init__(self, code: grpc.StatusCode, details: str, http_status: int | None = None) -> None:
        super().__init__(details)
        self._code = code
        self._details = details
        self.http_status = http_status

    def code(self) -> grpc.StatusCode:
        """Returns the closest gRPC status code."""
        return self._code

    def details(self) -> str:
        """Returns the message of the server or of the operating system."""
        return self._details


def of_response(response: Response) -> HttpFailure:
    """Returns the failure that a response without success is."""
    code = _OF_CLASS.get(response.headers.get(ERROR_CLASS_KEY, ""))
    code = code or _CODES.get(response.status, _Code.INTERNAL if response.status >= 500 else _Code.UNKNOWN)
    return HttpFailure(code, one_line(_text(response)), response.status)


def _text(response: Response) -> str:
    """Returns the message in the body: the protocol's ``error``, FastAPI's ``detail``, or plain text."""
    try:
        reason = HTTPStatus(response.status).phrase
    except ValueError:
        reason = "refused"
    content = bytes(response.body[:_MAX_TEXT_BYTES]).decode("utf-8", "replace").strip()
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        is_page = "html" in response.headers.get("content-type", "")
        return f"{response.status} {reason}" if is_page or not content else content
    said = found.get("error", found.get("detail")) if isinstance(found, dict) else None
    return str(said) if said else f"{response.status} {reason}"


def late() -> HttpFailure:
    """Returns the failure of a request that was not answered in time."""
    return HttpFailure(_Code.DEADLINE_EXCEEDED, "not answered in time")


def of_connecting(error: OSError) -> HttpFailure:
    """Returns the failure of a connection that could not be made."""
    if isinstance(error, ssl.SSLCertVerificationError):
        is_name = "mismatch" in error.verify_message
        details = (
            "Hostname Verification Check failed"
            if is_name
            else f"CERTIFICATE_VERIFY_FAILED: {error.verify_message}"
        )
    elif isinstance(error, ssl.SSLError):
        details = _of_tls(error)
    elif isinstance(error, ConnectionRefusedError):
        details = "connection refused"
    elif isinstance(error, socket.gaierror):
        details = "name resolution failed"
    elif isinstance(error, TimeoutError):
        details = "timed out"
    elif isinstance(error, ConnectionError):
        details = _CLOSED_AT_ONCE
    else:
        details = error.strerror or str(error)
    return HttpFailure(_Code.UNAVAILABLE, details)


def of_exchange(error: Exception, *, is_first: bool) -> HttpFailure:
    """Returns the failure of a request on a connection; ``is_first`` if it was the first one there."""
    if isinstance(error, TimeoutError):
        return late()
    if isinstance(error, NoHttpError):
        is_tls = error.content.startswith(_TLS_ALERT)
        return HttpFailure(_Code.UNAVAILABLE, _CLOSED_AT_ONCE if is_tls else f"no http1: {error}")
    if isinstance(error, ssl.SSLError):
        return HttpFailure(_Code.UNAVAILABLE, _of_tls(error))
    return HttpFailure(_Code.UNAVAILABLE, _CLOSED_AT_ONCE if is_first else _LOST)


def lost() -> HttpFailure:
    """Returns the failure of a request whose connection was closed."""
    return HttpFailure(_Code.UNAVAILABLE, _LOST)


def _of_tls(error: ssl.SSLError) -> str:
    reason = error.reason or str(error)
    if reason in _NO_TLS:
        return "WRONG_VERSION_NUMBER"
    # after a handshake in TLS 1.3, that is how a server asks for a certificate
    return _CLOSED_AT_ONCE if "ALERT" in reason or "EOF" in reason else f"handshake failed: {reason}"
