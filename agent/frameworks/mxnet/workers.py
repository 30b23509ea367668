"""MXNet's CPU workers: how many there are, and the threads that each uses for an operator."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from inferometer.manifests.errors import ConfigurationError

_BARRIER_TIMEOUT_S = 10.0


def worker_count() -> int:
    """Returns the number of the engine's CPU workers, which is that of the operators that run at once."""
    if os.environ.get("MXNET_ENGINE_TYPE") == "NaiveEngine":  # it runs all on the calling thread
        return 1
    return int(os.environ.get("MXNET_CPU_WORKER_NTHREADS") or 1)


class CpuWorkers:
    """The engine's CPU workers and the number of their OpenMP threads.

    OpenMP keeps this number per thread, so that ``MXSetNumOMPThreads``, which sets it for the calling thread,
    has no effect on operators. Here the engine runs a function on the workers that sets and reads the number.
    """

    def __init__(self, mxnet: Any) -> None:
        self._mxnet = mxnet
        self._found: dict[int, list[int]] = {}

    def fix(self, threads: int | None, default: int, cpu: int = 0) -> int | None:
        """Gives every worker ``threads`` OpenMP threads at the first call, and returns their number.

        The number is set once: oneDNN sizes its scratch memory when it prepares an operator, and MXNet reuses
        prepared operators in all later models. Running them with more threads corrupts the heap and aborts.
        Without ``threads``, the first call sets ``default``, and later ones keep the number.

        Each ``cpu``, as MXNet numbers them, has workers of its own.

        Raises:
            ConfigurationError: An earlier call has set another number.
        """
        if cpu not in self._found:
            self._found[cpu] = self._run(lambda: self._set(threads or default), cpu)
        different = set(self._found[cpu])
        if threads is not None and different != {threads}:
            raise ConfigurationError(
                f"threads: found {threads}; MXNet takes the number once in a process, and here it is "
                f"{' or '.join(map(str, sorted(different))) or 'unknown'}; use another process"
            )
        return different.pop() if len(different) == 1 else None

    def read(self) -> list[int]:
        """The number of OpenMP threads of each worker, read on the workers."""
        return self._run(self._get)

    def _get(self) -> int:
        return int(self._mxnet.base._LIB.omp_get_max_threads())

    def _set(self, threads: int) -> int:
        self._mxnet.base._LIB.omp_set_num_threads(threads)
        return self._get()

    def _run(self, action: Callable[[], int], cpu: int = 0) -> list[int]:
        """Runs ``action`` on each of the workers and returns the results."""
        workers = worker_count()
        # The workers wait for each other, so that none runs two of the functions.
        barrier = threading.Barrier(workers)
        results: list[int] = []

        def run(_context: object, _parameter: object) -> None:
            with suppress(threading.BrokenBarrierError):
                barrier.wait(_BARRIER_TIMEOUT_S)
                results.append(action())

        function = _EngineFunction(run)
        context = _EngineContext(self._mxnet.cpu().device_typeid, cpu)
        push = self._mxnet.base._LIB.MXEnginePushSyncND
        written = [self._mxnet.nd.zeros((1,), ctx=self._mxnet.cpu(cpu)) for _ in range(workers)]
        for array in written:
            handles = (ctypes.c_void_p * 1)(array.handle)
            arguments = (function, None, None, ctypes.byref(context), None, 0, handles, 1, None, 0)
            self._mxnet.base.check_call(push(*arguments, b"set_threads"))
        for array in written:
            array.wait_to_read()
        return results if len(results) == workers else []


class _EngineContext(ctypes.Structure):
    """MXNet's ``Context`` in its C interface."""

    _fields_ = (("device_type", ctypes.c_int), ("device_id", ctypes.c_int32))


_EngineFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
