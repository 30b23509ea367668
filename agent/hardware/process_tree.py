"""The processes that share a measurement: ranks on one host, what runs beside them, and loaders' workers."""

from __future__ import annotations

import os
from contextlib import suppress

import psutil


def process_tree(root: int) -> tuple[int, ...]:
    """Returns the numbers of a process and of all that it has started, also indirectly, but not this one's.

    A process that is gone has none.
    """
    with suppress(psutil.Error):
        process = psutil.Process(root)
        every = (process, *process.children(recursive=True))
        return tuple(each.pid for each in every if each.pid != os.getpid())
    return ()
