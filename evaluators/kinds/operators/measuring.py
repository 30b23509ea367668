"""The measurement of one framework's rows in this process, one after the other.

The peak memory of a run comes from the framework's allocator, or is the growth of resident memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from inferometer.agent.operators.operator import (
    Case,
    NotSupportedHereError,
    Operator,
    OperatorCall,
    OperatorRunner,
    Values,
    element_type,
    operators,
)
from inferometer.evaluators.kinds.operators.checks import (
    Computed,
    LaterRuns,
    WrongRunError,
    check,
    computed,
    run_once,
)
from inferometer.evaluators.kinds.operators.measurement import OperatorRow, RowStatus
from inferometer.evaluators.kinds.operators.options import Cache, Mode, OperatorOptions
from inferometer.evaluators.kinds.operators.peak import copies_beyond, last_level_cache_bytes, sweep
from inferometer.evaluators.kinds.operators.request import draw_inputs
from inferometer.evaluators.kinds.operators.timing import time_operator
from inferometer.manifests.errors import CODE_FAILURES, InferometerError, one_line

ALLOCATOR, PROCESS = "allocator", "process"
_OWN = Path("/proc/self")
_RESET_PEAK = "5"
_KIB = 1024


class MemoryPeak:
    """The peak memory since the creation of this object.

    If the allocator reports its peak, that is used. Otherwise, free memory is returned to the system, the
    peak of resident memory is reset through ``/proc/self/clear_refs`` (proc(5)), and its growth is reported.

    Args:
        runner: The runner of the framework with the allocator.
        trim: Returns free memory to the system.
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
        """Returns the bytes and their source; None and an empty text if they are not known."""
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


TABLE, ZEROS, ONES = "table", "zeros", "ones"
_BFLOAT16 = 2
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Cell:
    """A requested row.

    Attributes:
        operator: A name in the table.
        case: Its sizes and parameters.
        form: One of the framework's forms; empty if it has none.
        mode: The timed mode.
        process: The number of the fresh process.
        reason: Why it cannot be measured; empty if no reason is known in advance.
        known: The status of its row if there is a reason.
    """

    operator: str
    case: Case
    form: str
    mode: Mode
    process: int = 1
    reason: str = ""
    known: RowStatus = RowStatus.MISSING

    def row(self, status: RowStatus, reason: str = "") -> OperatorRow:
        """Returns the row without times."""
        operator = operators()[self.operator]
        return OperatorRow(
            operator=self.operator,
            category=operator.category.value,
            preset=self.case.preset,
            shapes={spec.name: tuple(spec.shape) for spec in operator.tensors(self.case)},
            parameters=dict(self.case.parameters),
            form=self.form,
            api="",
            mode=self.mode,
            status=status,
            reason=reason,
            process=self.process,
        )


class Measurer:
    """Measures rows in a framework that is open in this process.

    Args:
        runner: The framework.
        options: How each row is measured.
    """

    def __init__(self, runner: OperatorRunner, options: OperatorOptions) -> None:
        self._runner = runner
        self._options = options
        self._cache_bytes = last_level_cache_bytes() if options.cache is Cache.COLD else 0
        self._has_run: set[bool] = set()
        # What the harness computes comes and goes in the heap of another thread (glibc has one for each): the
        # holes that it would leave in that of the operator spare page faults that a user's process has.
        self._aside = ThreadPoolExecutor(1, "check")

    def row(self, cell: Cell) -> OperatorRow:
        """Measures a row; if that fails, the row states the reason."""
        try:
            return self._measured(cell)
        except NotSupportedHereError as error:
            return cell.row(RowStatus.MISSING, one_line(error))
        except (InferometerError, *CODE_FAILURES) as error:
            return cell.row(RowStatus.FAILED, one_line(error))

    def _measured(self, cell: Cell) -> OperatorRow:
        operator, options = operators()[cell.operator], self._options
        gradient = cell.mode is not Mode.FORWARD
        if cell.reason:
            return cell.row(cell.known, cell.reason)
        if gradient and not operator.has_gradient:
            return cell.row(RowStatus.MISSING, "the operator has no gradient")
        _require_memory(operator, cell.case, options.dtype)
        aside = self._aside.submit
        inputs = aside(_filled, operator, cell.case, options).result()
        prepare = partial(
            self._runner.prepare, operator, cell.case, inputs, gradient=gradient, form=cell.form
        )
        if gradient not in self._has_run:  # what a framework sets up once is no memory of the operator
            run_once(prepare(), cell.mode)
            self._has_run.add(gradient)
        memory = MemoryPeak(self._runner)
        call = prepare()
        run_once(call, cell.mode)
        peak_bytes, memory_of = memory.read()
        found = aside(computed, call, cell.mode, cell.case, inputs).result()
        moved = _moved_bytes(found, options.dtype)
        row = replace(
            cell.row(RowStatus.MEASURED),
            api=call.api,
            fused=call.fused,
            peak_memory_bytes=peak_bytes,
            memory_of=memory_of,
            flops=_flops(operator, found, cell.mode),
            moved_bytes=moved if cell.mode is Mode.FORWARD else None,
        )
        checked = aside(check, operator, self._runner, cell.form, cell.mode, found, options.seed).result()
        row = replace(row, correctness=checked.correctness)
        if checked.wrong:
            return replace(row, status=RowStatus.WRONG, reason=one_line(checked.wrong))
        later = LaterRuns(operator, found, cell.mode, options.dtype, options.seed)
        del found
        try:
            return self._timed(row, [call], prepare, moved, later)
        except WrongRunError as error:
            return replace(row, status=RowStatus.WRONG, reason=one_line(error))

    def _timed(
        self,
        row: OperatorRow,
        calls: list[OperatorCall],
        prepare: partial[OperatorCall],
        moved: int,
        later: LaterRuns,
    ) -> OperatorRow:
        before = None
        if self._options.cache is Cache.COLD:
            copies = copies_beyond(self._cache_bytes, moved)
            calls += [prepare() for _ in range(copies - 1)]
            for call in calls:
                run_once(call, row.mode)
            if copies * moved < 2 * self._cache_bytes:
                before = sweep(self._cache_bytes)
        timing = time_operator(
            calls,
            row.mode,
            self._options,
            before=before,
            device_timer=self._runner.device_timer(),
            inspect=lambda call: self._aside.submit(later.compare, call).result(),
        )
        return replace(
            row, times_ns=timing.times_ns, block=timing.block, stop=timing.stop, floor_ns=timing.floor_ns
        )


def _filled(operator: Operator, case: Case, options: OperatorOptions) -> Mapping[str, NDArray[Any]]:
    """Returns the inputs as drawn for the table, or filled with one value, except for indices."""
    inputs = draw_inputs(operator, case, element_type(options.dtype), options.seed)
    if options.values == TABLE:
        return inputs
    value = 0 if options.values == ZEROS else 1
    kinds = {spec.name: spec.values for spec in operator.tensors(case)}
    return {
        name: array if kinds[name] is Values.INDICES else np.full_like(array, value)
        for name, array in inputs.items()
    }


def _require_memory(operator: Operator, case: Case, dtype: str) -> None:
    """Raises InferometerError if the inputs, their copies and an output do not fit into free memory.

    Otherwise, the kernel would kill this process or another one.
    """
    itemsize = element_type(dtype).itemsize
    sizes = [prod(spec.shape) * itemsize for spec in operator.tensors(case)]
    needed, free = 2 * sum(sizes) + max(sizes, default=0), psutil.virtual_memory().available
    if needed > free:
        raise InferometerError(
            f"out of memory: it needs at least {needed / _GIB:.1f} GiB, but {free / _GIB:.1f} GiB are free"
        )


def _flops(operator: Operator, found: Computed, mode: Mode) -> int | None:
    forward = operator.flops(found.case, [each.shape for each in found.outputs])
    if mode is Mode.FORWARD:
        return forward
    if operator.backward_flops is None:
        return None
    return round(forward * (operator.backward_flops + (mode is Mode.BOTH)))


def _moved_bytes(found: Computed, dtype: str) -> int:
    """Returns the bytes that a forward pass reads and writes."""

    def size(array: NDArray[Any]) -> int:
        return array.size * _BFLOAT16 if dtype == "bfloat16" and array.dtype.kind == "f" else array.nbytes

    return sum(map(size, (*found.inputs.values(), *found.outputs)))
