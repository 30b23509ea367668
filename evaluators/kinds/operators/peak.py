"""The peak performance of the processors, and their last-level cache.

The peak is that of a matrix product and a STREAM triad, measured once. For the cache, this module determines
its size and how many copies exceed it, and empties it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from inferometer.agent.files import replacing
from inferometer.agent.operators.operator import Case, Values, element_bytes, operators
from inferometer.evaluators.kinds.operators.measurement import MachinePeak, OperatorRow

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
    """Returns how many copies together exceed twice the cache; at most 64, so too few if each is small."""
    return min(max(2, -(-_EXCEEDS * cache_bytes // max(each_bytes, 1)) + 1), _MOST_COPIES)


def sweep(cache_bytes: int) -> Callable[[], object]:
    """Returns a function that reads twice the size of the cache, so that the cache holds nothing else."""
    lines = np.ones(_EXCEEDS * cache_bytes // 8, np.int64)[:: _LINE_BYTES // 8]
    return lines.sum


def _bytes(size: str) -> int:
    """Returns the number of bytes in a size such as ``32768K``."""
    unit = _UNITS.get(size[-1:], 1)
    return int(size[:-1] if unit > 1 else size) * unit


_FILE = "machine_peaks.json"
_MOST_S = 60.0
_GEMM_S = 0.6
_TRIAD_S = 0.6
_GEMM_SIZES = (1024, 2048)
_BEYOND_CACHE = 4
"""STREAM's rule: each array is at least four times the last-level cache."""
_CHUNK = 1 << 15
_MOST_OF_MEMORY = 0.25
_TYPES = ("float32", "float64")
_ITEM_BYTES = {Values.INDICES: 8, Values.DISTINCT_INDICES: 8, Values.MASK: 1}
_MEMORY_ERROR, _FLOPS_ERROR = 2.0, 4.0
"""The factors by which an operator may exceed the measured peak; see ``beyond_peak``."""
_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def machine_peak(
    cpu_model: str, threads: int, dtype: str, folder: Path | None, *, again: bool = False
) -> MachinePeak | None:
    """Returns the peak; measures it in a fresh process unless it is stored in the folder.

    It takes about two seconds. Types other than float64 get the float32 peak, as NumPy uses only these two.

    Args:
        cpu_model: The processor's name.
        threads: The number of threads.
        dtype: The element type.
        folder: The folder for peaks; None to store none.
        again: Whether to measure a stored peak again, because other programs may have disturbed it; the
            higher figures are stored.

    Returns:
        The peak; None if it cannot be measured.
    """
    dtype = dtype if dtype in _TYPES else _TYPES[0]
    key = f"{cpu_model}, {threads} threads, {dtype}"
    known: dict[str, dict[str, float | int | str]] = {}
    if folder is not None:
        with suppress(OSError, ValueError, RecursionError):
            known = json.loads((folder / _FILE).read_text(encoding="utf-8"))
    kept: MachinePeak | None = None
    with suppress(TypeError, KeyError):
        kept = MachinePeak(**known[key])  # type: ignore[arg-type]
    if kept is not None and not again:
        return kept
    peak = _in_fresh_process(threads, dtype)
    if peak is not None and kept is not None:
        peak = replace(
            peak,
            flops_per_s=max(peak.flops_per_s, kept.flops_per_s),
            bytes_per_s=max(peak.bytes_per_s, kept.bytes_per_s),
        )
    if peak is not None and folder is not None:
        _keep(folder, {**known, key: asdict(peak)})
    return peak


def beyond_peak(row: OperatorRow, peak: MachinePeak, dtype: str) -> str:
    """Returns why the times of a row are impossible on this machine; empty if they are possible.

    The last-level cache may hold output bytes up to its size; all further bytes go to memory. An operator may
    read no inputs at all, and one that only rearranges them may return a view. Both bounds are measured and
    have errors. A triad reads the array that it writes, which its count omits, so other operators can be up
    to 4/3 as fast (McCalpin, "STREAM"); a factor of two also allows for noise. A convolution by Winograd's
    F(4×4, 3×3) needs a quarter of the products in its formula (Lavin and Gray, "Fast algorithms for
    convolutional neural networks", 2016). Types other than those of the matrix product may be faster by an
    unknown factor.
    """
    if not row.times_ns.size:
        return ""
    run_s = float(np.median(row.times_ns)) / row.block / 1e9
    written = _written_bytes(row, dtype)
    if written > _MEMORY_ERROR * peak.bytes_per_s * run_s + peak.cache_bytes:
        return _beyond(written / run_s, "GB/s", peak.bytes_per_s, run_s)
    if row.flops is not None and dtype in _TYPES and row.flops > _FLOPS_ERROR * peak.flops_per_s * run_s:
        return _beyond(row.flops / run_s, "GFLOP/s", peak.flops_per_s, run_s)
    return ""


def _written_bytes(row: OperatorRow, dtype: str) -> int:
    """Returns the output bytes of a forward pass: bytes moved minus inputs; 0 if it may write fewer."""
    operator = operators()[row.operator]
    case, itemsize = Case(row.shapes, row.parameters, row.preset), element_bytes(dtype)
    if row.moved_bytes is None or not row.flops or operator.in_place is not None:
        return 0
    inputs = sum(prod(spec.shape) * _ITEM_BYTES.get(spec.values, itemsize) for spec in operator.tensors(case))
    return row.moved_bytes - inputs


def _beyond(rate: float, unit: str, peak: float, run_s: float) -> str:
    return (
        f"a run takes {run_s * 1e6:.3g} µs, which is {rate / 1e9:.0f} {unit}; this machine reaches "
        f"{peak / 1e9:.0f}: the operator cannot have computed its outputs"
    )


def _in_fresh_process(threads: int, dtype: str) -> MachinePeak | None:
    """Measures in a fresh process, because NumPy's BLAS library reads the number of threads when loaded."""
    command = [sys.executable, "-m", __name__, str(threads), dtype]
    environment = os.environ | dict.fromkeys(_THREADS, str(threads))
    with suppress(subprocess.SubprocessError, OSError, ValueError, TypeError):
        done = subprocess.run(  # noqa: S603 - this interpreter
            command, env=environment, capture_output=True, check=True, timeout=_MOST_S
        )
        return MachinePeak(**json.loads(done.stdout))
    return None


def _keep(folder: Path, content: object) -> None:
    with suppress(OSError):  # it is measured again
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / _FILE, mode=0o600) as file:
            file.write(json.dumps(content, indent=1).encode())


def measured_peak(threads: int, dtype: str) -> MachinePeak:
    """Measures the peak in this process, whose NumPy already uses the threads."""
    cache_bytes = last_level_cache_bytes()
    flops_per_s, size = max(_gemm(size, np.dtype(dtype)) for size in _GEMM_SIZES)
    most = int(psutil.virtual_memory().available * _MOST_OF_MEMORY) // 3
    array_bytes = min(max(_BEYOND_CACHE * cache_bytes, 64 << 20), most)
    bytes_per_s = _triad(array_bytes // 8, threads)
    how = (
        f"NumPy's {dtype} matrix product of {size}, and a triad of three arrays of {array_bytes >> 20} MiB, "
        f"the best of several with {threads} thread{'s' * (threads > 1)}"
    )
    return MachinePeak(flops_per_s, bytes_per_s, cache_bytes, threads, how)


def _gemm(size: int, dtype: np.dtype[Any]) -> tuple[float, int]:
    """Returns the floating-point operations per second of a product of square matrices, and their size."""
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((size, size)).astype(dtype) for _ in range(2))
    out = np.empty_like(a)
    return 2 * size**3 / _best_s(lambda: np.matmul(a, b, out=out), _GEMM_S / len(_GEMM_SIZES)), size


def _triad(count: int, threads: int) -> float:
    """Returns the bytes per second of a = b + s · c in float64, which STREAM counts as three arrays."""
    a, b, c = (np.full(count, value) for value in (0.0, 1.0, 2.0))
    bounds = np.linspace(0, count, threads + 1).astype(int).tolist()

    def part(number: int) -> None:
        # what is multiplied stays in the cache until it is added, so that memory is passed once
        for start in range(bounds[number], bounds[number + 1], _CHUNK):
            piece = slice(start, min(start + _CHUNK, bounds[number + 1]))
            np.multiply(c[piece], 3.0, out=a[piece])
            np.add(a[piece], b[piece], out=a[piece])

    with ThreadPoolExecutor(threads) as pool:
        return 3 * a.nbytes / _best_s(lambda: list(pool.map(part, range(threads))), _TRIAD_S)


def _best_s(run: Callable[[], object], budget_s: float) -> float:
    """Returns the shortest time of several runs, after one run that is not counted."""
    run()
    until_s, best_s = time.perf_counter() + budget_s, float("inf")
    for _ in range(1000):
        start_s = time.perf_counter()
        run()
        end_s = time.perf_counter()
        best_s = min(best_s, end_s - start_s)
        if end_s >= until_s:
            break
    return best_s


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(measured_peak(int(sys.argv[1]), sys.argv[2]))))
