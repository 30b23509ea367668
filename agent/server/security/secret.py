"""The secret that a client sends with every call."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from hashlib import sha256

from inferometer.agent.protocol.metadata import AUTHORIZATION_KEY, bearer

HEALTH_SERVICE = "grpc.health.v1.Health"


class SecretCheck:
    """Admits calls with the secret, and those of the health service.

    Methods that do not exist are checked too, so that nobody without the secret learns which do. The secret
    travels as it is: on a network that others can listen to, only TLS protects it. One that cannot be sent
    raises ConfigurationError.
    """

    def __init__(self, secret: str) -> None:
        self._expected = _digest(bearer(secret))

    def admits(self, path: str, metadata: Iterable[tuple[str, str | bytes]]) -> bool:
        """Returns whether a call of a method, such as ``/package.Service/Method``, may go on."""
        if path.startswith(f"/{HEALTH_SERVICE}/"):
            return True
        sent = [value for key, value in metadata if key == AUTHORIZATION_KEY]
        # every value is compared, as a digest: the time reveals neither the first difference nor the length
        return sum(hmac.compare_digest(_digest(value), self._expected) for value in sent) > 0


def _digest(value: str | bytes) -> bytes:
    return sha256(value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")).digest()
