"""Fresh processes for both sides of a comparison, whose C library keeps the memory that is freed."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from typing import Any, TypeVar

PROCESSES = 3
_KEEP_HEAP = "glibc.malloc.trim_threshold=4294967296:glibc.malloc.mmap_threshold=4294967296"
"""Otherwise it depends on what else is in the heap whether a large tensor is mapped again in each step."""
_Found = TypeVar("_Found")


def in_fresh_process(function: Callable[..., _Found], *arguments: Any) -> _Found:
    """Returns what a function of a module returns in a fresh process that keeps its heap."""
    before = os.environ.get("GLIBC_TUNABLES")
    os.environ["GLIBC_TUNABLES"] = _KEEP_HEAP
    try:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return pool.apply(function, arguments)
    finally:
        del os.environ["GLIBC_TUNABLES"]
        if before is not None:
            os.environ["GLIBC_TUNABLES"] = before
