"""The collector: what takes spans at an address; each protocol has its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan

ATTEMPT_TIMEOUT_S = 10.0
"""How long one attempt to deliver may take."""
_LONGEST_REASON = 240


class DeliveryError(Exception):
    """A collector did not take spans.

    Args:
        reason: Why, in words that follow a colon; made one line.
        again: Whether the same spans may be taken later.
        lost: How many were not taken; None means all.
    """

    def __init__(self, reason: str, *, again: bool = False, lost: int | None = None) -> None:
        line = " ".join(reason.split()) or "it gave no reason"
        self.reason = line if len(line) <= _LONGEST_REASON else f"{line[:_LONGEST_REASON]}…"
        self.again = again
        self.lost = lost
        super().__init__(self.reason)


class Collector(ABC):
    """One connection to a collector, which is not opened before the first delivery.

    ``deliver`` is called from one thread; ``close`` from any, also during a delivery.

    Attributes:
        acknowledges: Whether a delivery that returns was acknowledged by the collector.
        span_resource: The resource that the delivered spans must have.
    """

    acknowledges: ClassVar[bool] = True
    span_resource: Resource

    @abstractmethod
    def deliver(self, spans: Sequence[ReadableSpan]) -> None:
        """Sends spans, in one attempt, and returns when the collector has taken them.

        Raises:
            DeliveryError: It did not take all.
        """

    @abstractmethod
    def close(self) -> None:
        """Ends the connection, and a delivery that is under way as far as the protocol allows."""


def innermost(error: BaseException) -> str:
    """Returns what the system said first, of errors that libraries have wrapped around each other."""
    said = str(error)
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if isinstance(cause, OSError) and cause.strerror:
            said = cause.strerror
        cause = cause.__cause__ or cause.__context__
    return said or type(error).__name__
