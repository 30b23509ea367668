"""The secret that a client shows with every call."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import grpc

from agent.server.marks import in_steps
from agent.server.steps import Steps
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

    It is asked of methods that are not there, too, so that nobody without it learns which are. The secret
    travels as it is: over a network that others can listen to, only TLS keeps it secret.

    Args:
        secret: What clients must show.

    Raises:
        ConfigurationError: The secret cannot be sent.
    """

    def __init__(self, secret: str) -> None:
        self._expected = _digest(bearer(secret))
        # Of whatever kind the method is: one that takes a stream is refused without waiting for a request.
        self._refusal: grpc.RpcMethodHandler[Any, Any] = grpc.stream_unary_rpc_method_handler(_refuse)

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Returns the call's handler, or one that refuses it."""
        handler = continuation(handler_call_details)
        if handler_call_details.method.startswith(f"/{HEALTH_SERVICE}/"):
            return handler
        shown = [value for key, value in handler_call_details.invocation_metadata if key == METADATA_KEY]
        # each is compared, and as a digest: the time tells neither the place of the first difference nor
        # the length
        if sum(hmac.compare_digest(_digest(value), self._expected) for value in shown):
            return handler
        return self._refusal


def _digest(value: str | bytes) -> bytes:
    return sha256(value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")).digest()


@in_steps
def _refuse(_: Any, context: grpc.ServicerContext) -> Steps[None]:
    yield from ()  # at once
    context.abort(grpc.StatusCode.UNAUTHENTICATED, "the agent asks for a secret, and this is not it")
