"""The processor's last-level cache: its size, how many copies exceed it, and emptying it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

_CPU0 = Path("/sys/devices/system/cpu/cpu0/cache")
_UNKNOWN_BYTES = 32 << 20
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_EXCEEDS = 2
_MOST_COPIES = 64
_LINE_BYTES = 64


def last_level_cache_bytes(folder: Path = _CPU0) -> int:
    """Returns the size of the last-level cache; 32 MiB if the system does not report it."""
    found: list[tuple[int, int]] = []
    with suppress(OSError, ValueError):
        for index in sorted(folder.glob("index*")):
            level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
            if kind != "Instruction":
                found.append((int(level), _bytes(size)))
    return max(found)[1] if found else _UNKNOWN_BYTES


def copies_beyond(cache_bytes: int, each_bytes: int) -> int:
    """Returns how many copies exceed twice the cache together; at most 64, which small ones do not do."""
    return min(max(2, -(-_EXCEEDS * cache_bytes // max(each_bytes, 1)) + 1), _MOST_COPIES)


def sweep(cache_bytes: int) -> Callable[[], object]:
    """Returns a function that reads twice the cache, so that it holds nothing else."""
    lines = np.ones(_EXCEEDS * cache_bytes // 8, np.int64)[:: _LINE_BYTES // 8]
    return lines.sum


def _bytes(size: str) -> int:
    """Returns the number of bytes of a size such as ``32768K``."""
    unit = _UNITS.get(size[-1:], 1)
    return int(size[:-1] if unit > 1 else size) * unit
