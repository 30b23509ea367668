"""Times that an agent tells."""

from __future__ import annotations

from datetime import datetime, timezone

_MS_PER_S = 1000


def read_unix_ms(unix_ms: int) -> datetime | None:
    """Returns a time of milliseconds since 1970, in UTC; None for 0, which says none, and for no time."""
    try:
        return datetime.fromtimestamp(unix_ms / _MS_PER_S, timezone.utc) if unix_ms else None
    except (OverflowError, ValueError, OSError):
        return None
