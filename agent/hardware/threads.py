"""The default number of threads of an operator: one rule for all frameworks, so that they compare."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

from inferometer.agent.hardware.environment import usable_cores

_VARIABLE = "OMP_NUM_THREADS"
_TOPOLOGY = Path("/sys/devices/system/cpu")


def default_threads(spare_cores: int = 0) -> int:
    """Returns how many threads an operator may use on the CPU if no option says it.

    ``OMP_NUM_THREADS`` if it is set, also for frameworks that do not read it; else one thread for each core
    that this process may use. ``spare_cores`` are left free, and at least one thread remains.
    """
    threads = _threads_of_variable() or usable_physical_cores()
    if spare_cores:
        threads = min(threads, usable_cores() - spare_cores)
    return max(1, threads)


def usable_physical_cores(topology: Path = _TOPOLOGY) -> int:
    """Returns the number of cores that this process may use; its logical processors count once."""
    try:
        processors = os.sched_getaffinity(0)
        siblings = (topology / f"cpu{number}/topology/thread_siblings_list" for number in processors)
        return len({path.read_text(encoding="utf-8").strip() for path in siblings})
    except (AttributeError, OSError):  # the system has no processor affinity, or does not tell the siblings
        return min(psutil.cpu_count(logical=False) or usable_cores(), usable_cores())


def _threads_of_variable() -> int | None:
    """The number in ``OMP_NUM_THREADS``, of nested levels the outermost; None without a valid one."""
    outermost = os.environ.get(_VARIABLE, "").partition(",")[0].strip()
    return int(outermost) or None if outermost.isdecimal() else None
