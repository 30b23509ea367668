"""The trace context: which trace, and which span of it, a piece of work belongs to."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

from manifests.errors import ConfigurationError

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 0x01
ALL_BITS = 2**64 - 1
"""Makes an id unsigned, as it travels."""


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A place in a trace, as it travels between processes (W3C Trace Context, level 1).

    Attributes:
        trace_id: 128 bits as 32 lower-case hexadecimal digits, not all zero.
        span_id: The span that what follows hangs under, as a signed number of 64 bits, which databases and
            NumPy keep; 0 for none.
        sampled: Whether its spans are wanted.
    """

    trace_id: str
    span_id: int = 0
    sampled: bool = True

    @classmethod
    def new(cls) -> TraceContext:
        """Returns the context of a new trace."""
        return cls(f"{secrets.randbits(128) or 1:032x}")

    @classmethod
    def parse(cls, traceparent: str) -> TraceContext:
        """Returns the context that a ``traceparent`` header holds.

        Raises:
            ConfigurationError: It is none.
        """
        match = _TRACEPARENT.fullmatch(traceparent.strip())
        if match is None or match[1] == "ff" or not int(match[2], 16) or not int(match[3], 16):
            shown = repr(traceparent[:60])
            raise ConfigurationError(f"traceparent: found {shown}; allowed: 00-TRACE_ID-PARENT_ID-FLAGS")
        if match[1] == "00" and match[5]:
            raise ConfigurationError("traceparent: version 00 has four fields; found more")
        return cls(match[2], _signed(int(match[3], 16)), bool(int(match[4], 16) & _SAMPLED))

    def under(self, span_id: int) -> TraceContext:
        """Returns the context below a span of the same trace."""
        return TraceContext(self.trace_id, span_id, self.sampled)

    @property
    def traceparent(self) -> str:
        """The header's value; only for a context with a span."""
        return f"00-{self.trace_id}-{span_id_text(self.span_id)}-{int(self.sampled):02x}"


def span_id_text(span_id: int) -> str:
    """Returns the 16 hexadecimal digits of a span's id."""
    return f"{span_id & ALL_BITS:016x}"


def _signed(number: int) -> int:
    return number - (ALL_BITS + 1) if number > ALL_BITS >> 1 else number
