"""The metadata keys of calls, which clients and agents share."""

from __future__ import annotations

from inferometer.manifests.errors import ConfigurationError

AUTHORIZATION_KEY = "authorization"
"""The secret that a client shows with every call; see ``bearer``."""
TRACEPARENT_KEY = "traceparent"
"""The W3C header; a call without it, or with one that is malformed or not sampled, is not traced."""
LEVEL_KEY = "inferometer-trace-level"
"""The trace level, from a client that takes the spans itself."""
LAYERS_KEY = "inferometer-trace-layers"
"""``0`` if the client wants no spans of layers, as in a warm-up."""


def bearer(secret: str) -> str:
    """Returns what a client with the ``secret`` sends under ``AUTHORIZATION_KEY``.

    Raises ConfigurationError if the secret cannot be sent.
    """
    if not (secret and secret.isascii() and secret.isprintable()):
        raise ConfigurationError("the secret is empty, or has characters other than printable ASCII ones")
    return f"Bearer {secret}"
