"""The secret that a client shows with every call."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Any

import grpc

from manifests.errors import ConfigurationError

METADATA_KEY = "authorization"
HEALTH_SERVICE = "grpc.health.v1.Health"


def bearer(secret: str) -> str:
    """Returns what a client with the ``secret`` sends under ``METADATA_KEY``.

    Raises:
        ConfigurationError: The secret cannot be sent.
    """
    if not (secret and secret.isascii() and secret.isprintable()):
        raise ConfigurationError("the secret is empty, or has characters other than printable ASCII ones")
    return f"Bearer {secret}"


class SecretCheck(grpc.ServerInterceptor):
    """Refuses calls without the secret, except those that ask whether the agent is healthy.

    The secret travels as it is: over a network that others can listen to, put a TLS proxy before the agent.

    Args:
        secret: What clients must show.

    Raises:
        ConfigurationError: The secret cannot be sent.
    """

    def __init__(self, secret: str) -> None:
        self._expected = bearer(secret).encode()

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Returns the call's handler, or one that refuses it."""
        handler = continuation(handler_call_details)
        if handler is None or handler_call_details.method.startswith(f"/{HEALTH_SERVICE}/"):
            return handler
        shown = [value for key, value in handler_call_details.invocation_metadata if key == METADATA_KEY]
        if any(hmac.compare_digest(_as_bytes(value), self._expected) for value in shown):
            return handler
        return _refusal(handler)


def _as_bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


def _refusal(handler: grpc.RpcMethodHandler[Any, Any]) -> grpc.RpcMethodHandler[Any, Any]:
    """A handler of the same kind, so that no request is waited for that a client may not send."""
    if handler.request_streaming:
        kind = (
            grpc.stream_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.stream_unary_rpc_method_handler
        )
    elif handler.response_streaming:
        kind = grpc.unary_stream_rpc_method_handler
    else:
        kind = grpc.unary_unary_rpc_method_handler
    return kind(_refuse)


def _refuse(_: Any, context: grpc.ServicerContext) -> Any:
    context.abort(grpc.StatusCode.UNAUTHENTICATED, "the agent asks for a secret, and this is not it")
