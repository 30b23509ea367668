"""Free memory goes back to the system once a process that worked is idle."""

from __future__ import annotations

import subprocess
import sys

from inferometer.agent.serving.served_models import IdleRelease

_FREE_IN_ARENAS = """
import ctypes, psutil
from inferometer.agent.serving.served_models import release_free_memory

MIB = 2**20
process = psutil.Process()
ctypes.CDLL(None).mallopt(-3, 64 * MIB)  # M_MMAP_THRESHOLD: blocks come from the heap
blocks = [bytearray(MIB) for _ in range(200)]
del blocks[:-1]  # behind the last one, glibc returns the end of the heap by itself
before = process.memory_info().rss
release_free_memory()
print((before - process.memory_info().rss) // MIB)
"""


def test_memory_that_the_allocator_keeps_is_returned() -> None:
    done = subprocess.run([sys.executable, "-c", _FREE_IN_ARENAS], capture_output=True, text=True, check=True)

    assert int(done.stdout) > 150


class Process:
    """A process of which a test says how long it works."""

    def __init__(self) -> None:
        self.now_s = self.used_s = 0.0
        self.released = 0
        self.memory = IdleRelease(self.release, lambda: self.now_s, lambda: self.used_s)

    def release(self) -> None:
        self.released += 1
        self.used_s += 0.1

    def check_after(self, work_s: float) -> int:
        self.now_s += 5.0
        self.used_s += work_s
        self.memory.check()
        return self.released


def test_memory_is_released_once_when_a_process_becomes_idle() -> None:
    process = Process()

    assert process.check_after(4.0) == 0, "it works"
    assert process.check_after(0.5) == 0, "it works a little"
    assert process.check_after(0.01) == 1
    assert [process.check_after(0.01) for _ in range(20)] == [1] * 20, "nothing was done since"
    assert process.check_after(3.0) == 1
    assert process.check_after(0.0) == 2


def test_a_process_that_never_worked_releases_nothing() -> None:
    process = Process()

    assert [process.check_after(0.001) for _ in range(10)] == [0] * 10
