"""The policies of the allocators of memory, which can change latency and memory severalfold."""

from __future__ import annotations

import ctypes
import os
from enum import Enum
from functools import cache

from inferometer.manifests.errors import ConfigurationError

VARIABLE = "AGENT_ALLOCATOR"
"""The environment variable that sets the policy of this process and of the processes that it starts."""
SETTING = "memory allocator"
"""The name under which an environment's settings report the policy."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""The numbers of glibc's parameters M_TRIM_THRESHOLD and M_MMAP_THRESHOLD (mallopt(3))."""
_MOST = 2**31 - 1


class Allocator(str, Enum):
    """The allocator policies, by their names on the command line."""

    DEFAULT = "default"
    """The default of the C library. In glibc, a block above 32 MiB goes back to the system when it is freed,
    and the next one is paged in anew; whether smaller blocks are kept depends on what was freed before."""
    KEEP = "keep"
    """Freed blocks of less than 2 GiB stay in the process."""
    EXACT = "exact"
    """Freed blocks of 1 MiB and more go back to the system at once. ONNX Runtime's arena on the CPU takes
    blocks of the size that is requested, instead of sizes that double, and none for a whole prediction."""


_PARAMETERS = {
    Allocator.KEEP: {_MMAP_THRESHOLD: _MOST, _TRIM_THRESHOLD: _MOST},
    Allocator.EXACT: {_MMAP_THRESHOLD: 1 << 20},
}
"""What each policy sets in glibc, after which glibc no longer adapts the thresholds itself."""


def use_allocator(policy: Allocator) -> None:
    """Sets the policy of this process and of the processes that it starts; only the default can be replaced.

    Raises:
        ConfigurationError: The C library lacks the policy, or the process already has another one.
    """
    if _configure.cache_info().currsize and (used := allocator_in_use()) is not policy:
        raise ConfigurationError(
            f"allocator is {policy.value}, but this process already has {used.value}; use another process"
        )
    if policy is Allocator.DEFAULT:
        os.environ.pop(VARIABLE, None)
        return
    _configure(policy)
    os.environ[VARIABLE] = policy.value


@cache
def _configure(policy: Allocator) -> None:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError) as error:
        raise ConfigurationError(
            f"allocator {policy.value} requires glibc, which is not the C library here"
        ) from error
    if not all(mallopt(parameter, value) for parameter, value in _PARAMETERS[policy].items()):
        raise ConfigurationError(f"the C library refuses allocator {policy.value}; leave it out")


def use_allocator_of_environment() -> None:
    """Sets the environment's policy; raises ConfigurationError if it is unknown, or as ``use_allocator``."""
    if name := os.environ.get(VARIABLE):
        try:
            policy = Allocator(name.lower())
        except ValueError as error:
            known = ", ".join(each.value for each in Allocator)
            raise ConfigurationError(f'{VARIABLE} is "{name}"; allowed: {known}') from error
        use_allocator(policy)


def allocator_in_use() -> Allocator:
    """Returns this process's policy; its commands and functions first apply the environment's policy."""
    name = os.environ.get(VARIABLE, "").lower()
    return next((each for each in Allocator if each.value == name), Allocator.DEFAULT)
