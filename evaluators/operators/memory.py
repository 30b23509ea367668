"""The peak memory of a run, by the framework's allocator or by the growth of resident memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from inferometer.agent.operators.runner import OperatorRunner

ALLOCATOR, PROCESS = "allocator", "process"
_OWN = Path("/proc/self")
_RESET_PEAK = "5"
_KIB = 1024


class MemoryPeak:
    """The peak memory since the creation of this object.

    If the allocator reports its peak, that is used. Otherwise the peak of resident memory is reset through
    ``/proc/self/clear_refs`` (proc(5)) after free memory was given back, and the growth is reported.

    Args:
        runner: Has the allocator.
        trim: Gives free memory back to the system.
    """

    def __init__(self, runner: OperatorRunner, trim: Callable[[], object] | None = None) -> None:
        self._runner = runner
        self._allocator = runner.peak_memory_bytes() is not None
        self._resident: int | None = None
        if not self._allocator:
            (trim or _trim)()
            with suppress(OSError):
                (_OWN / "clear_refs").write_text(_RESET_PEAK, encoding="ascii")
                self._resident = _status("VmRSS")

    def read(self) -> tuple[int | None, str]:
        """Returns the bytes and where they were seen; None and nothing where that is not known."""
        if self._allocator:
            return self._runner.peak_memory_bytes(), ALLOCATOR
        peak = None if self._resident is None else _status("VmHWM")
        if peak is None or self._resident is None:
            return None, ""
        return max(0, peak - self._resident), PROCESS


def _status(name: str) -> int | None:
    """Returns a size in bytes from this process's status; None if the system does not report it."""
    with suppress(OSError):
        for line in (_OWN / "status").read_text(encoding="utf-8").splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * _KIB
    return None


def _trim() -> None:
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL("libc.so.6").malloc_trim(0)
