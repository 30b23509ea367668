"""The secret that a client shows with every call."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import grpc

from agent.closeable import Closeable
from agent.server.side_threads import SideThreads
from manifests.errors import ConfigurationError

METADATA_KEY = "authorization"
HEALTH_SERVICE = "grpc.health.v1.Health"
_THREADS = 2


def bearer(secret: str) -> str:
    """Returns what a client with the ``secret`` sends under ``METADATA_KEY``.

    Raises:
        ConfigurationError: The secret cannot be sent.
    """
    if not (secret and secret.isascii() and secret.isprintable()):
        raise ConfigurationError("the secret is empty, or has characters other than printable ASCII ones")
    return f"Bearer {secret}"


class SecretCheck(grpc.ServerInterceptor, Closeable):
    """Refuses calls without the secret, except those that ask whether the agent is healthy.

    It is asked of methods that are not there, too, so that nobody without it learns which are. The secret
    travels as it is: over a network that others can listen to, only TLS keeps it secret. Calls are refused in
    threads apart, so that one hears of it at once from a busy agent, too.

    Args:
        secret: What clients must show.

    Raises:
        ConfigurationError: The secret cannot be sent.
    """

    def __init__(self, secret: str) -> None:
        self._expected = _digest(bearer(secret))
        self._threads = SideThreads(_THREADS, "refusal")
        # Of whatever kind the method is: one that takes a stream begins without a request, so that nobody who
        # may not ask for anything can hold a thread by sending none.
        self._refusal: grpc.RpcMethodHandler[Any, Any] = grpc.stream_unary_rpc_method_handler(
            self._threads.running(_refuse)
        )

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

    def close(self) -> None:
        """Ends its threads, once nothing is answered any more."""
        self._threads.close()


def _digest(value: str | bytes) -> bytes:
    return sha256(value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")).digest()


def _refuse(_: Any, context: grpc.ServicerContext) -> Any:
    context.abort(grpc.StatusCode.UNAUTHENTICATED, "the agent asks for a secret, and this is not it")
