"""The CPU time of processes that share a measurement, such as ranks on one host and loaders' workers."""

from __future__ import annotations

import os
from contextlib import suppress

import psutil


class ProcessTree:
    """A process and all that it has started so far, but not this process itself.

    Args:
        root: The number of the process; one that is gone has no tree.
    """

    def __init__(self, root: int) -> None:
        self._taken_s: dict[psutil.Process, float] = {}
        with suppress(psutil.Error):
            process = psutil.Process(root)
            for each in (process, *process.children(recursive=True)):
                if each.pid != os.getpid():
                    self._taken_s[each] = 0.0

    def __len__(self) -> int:
        """The number of the processes."""
        return len(self._taken_s)

    def cpu_s(self) -> float:
        """Their CPU time in seconds; of a process that has ended, that of the last call."""
        for process in self._taken_s:
            with suppress(psutil.Error):
                times = process.cpu_times()
                self._taken_s[process] = times.user + times.system
        return sum(self._taken_s.values())
