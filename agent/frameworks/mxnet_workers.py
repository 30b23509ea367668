"""The threads of MXNet's engine that run operators on the CPU."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from manifests.errors import ConfigurationError

_BARRIER_TIMEOUT_S = 10.0


class CpuWorkers:
    """The engine's CPU workers, and the OpenMP threads that each may use.

    OpenMP keeps that number per thread, so that ``MXSetNumOMPThreads``, which sets it for the thread that
    calls it, has no effect on operators. Here a function is pushed to the engine, which sets and reads the
    number on the workers themselves.

    Args:
        mxnet: The package.
    """

    def __init__(self, mxnet: Any) -> None:
        self._mxnet = mxnet
        self._found: list[int] | None = None

    def fix(
        self, threads: int | None, default: Callable[[int], int] = lambda frameworks_own: frameworks_own
    ) -> int | None:
        """Gives every worker ``threads`` OpenMP threads, at the first call; returns what they have.

        It is done once: oneDNN sizes its scratch memory when it prepares an operator, MXNet keeps what was
        prepared for all later models, and running that with more threads corrupts the heap (seen as an
        abort).

        Args:
            threads: None leaves the number as it is, or as ``default`` says.
            default: Takes the number that they have, and returns the one that they are to have if none was
                asked for. It counts at the first call only, and is never a reason to fail.

        Raises:
            ConfigurationError: It was called before, and the number is another one since.
        """
        if self._found is None:
            self._found = self.read() if threads is None else self._run(lambda: self._set(threads))
            if threads is None and any(default(own) != own for own in self._found):
                self._found = self._run(lambda: self._set(default(self._get())))
        different = set(self._found)
        if threads is not None and different != {threads}:
            raise ConfigurationError(
                f"threads: found {threads}; MXNet takes the number once in a process, and here it is "
                f"{' or '.join(map(str, sorted(different))) or 'unknown'}; use another process"
            )
        return different.pop() if len(different) == 1 else None

    def read(self) -> list[int]:
        """The OpenMP threads that each worker may use, as the workers themselves read them."""
        return self._run(self._get)

    def _get(self) -> int:
        return int(self._mxnet.base._LIB.omp_get_max_threads())

    def _set(self, threads: int) -> int:
        self._mxnet.base._LIB.omp_set_num_threads(threads)
        return self._get()

    def _run(self, action: Callable[[], int]) -> list[int]:
        """Runs ``action`` on each of the workers and returns what it gave."""
        naive = os.environ.get("MXNET_ENGINE_TYPE") == "NaiveEngine"  # it runs all on the calling thread
        workers = 1 if naive else int(os.environ.get("MXNET_CPU_WORKER_NTHREADS") or 1)
        # Several workers wait for each other, so that none takes two of the functions.
        barrier = threading.Barrier(workers)
        results: list[int] = []

        def run(_context: object, _parameter: object) -> None:
            with suppress(threading.BrokenBarrierError):
                barrier.wait(_BARRIER_TIMEOUT_S)
                results.append(action())

        function = _EngineFunction(run)
        context = _EngineContext(self._mxnet.cpu().device_typeid, 0)
        push = self._mxnet.base._LIB.MXEnginePushSyncND
        written = [self._mxnet.nd.zeros((1,)) for _ in range(workers)]
        for array in written:
            handles = (ctypes.c_void_p * 1)(array.handle)
            arguments = (function, None, None, ctypes.byref(context), None, 0, handles, 1, None, 0)
            self._mxnet.base.check_call(push(*arguments, b"set_threads"))
        for array in written:
            array.wait_to_read()
        return results if len(results) == workers else []


class _EngineContext(ctypes.Structure):
    """MXNet's ``Context`` as its C interface takes it."""

    _fields_ = (("device_type", ctypes.c_int), ("device_id", ctypes.c_int32))


_EngineFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
