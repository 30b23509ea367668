"""Rows of operators that are right when they are checked, and wrong while they are timed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from inferometer.agent.operators.operator import Case, Operator, Preset, RunnerOptions, operators
from inferometer.evaluators.kinds.operators.measurement import MachinePeak, OperatorRow, RowStatus
from inferometer.evaluators.kinds.operators.measuring import Cell, Measurer
from inferometer.evaluators.kinds.operators.options import Mode, OperatorOptions
from inferometer.evaluators.kinds.operators.peak import beyond_peak
from tests.integration.operator_frameworks import Call, Numbers

ADD = operators()["add"]


class Tiring(Call):
    """Right twice; then it returns its input."""

    runs = 0

    def __init__(self, operator: Operator, case: Case, inputs: Mapping[str, NDArray[Any]]) -> None:
        super().__init__(operator, case, inputs)
        self._first = next(iter(inputs.values()))

    def forward(self) -> None:
        Tiring.runs += 1
        super().forward()

    def outputs(self) -> tuple[NDArray[Any], ...]:
        return super().outputs() if Tiring.runs <= 2 else (self._first,)


class Lazy(Numbers):
    def prepare(self, operator: Operator, case: Case, inputs: Any, **options: Any) -> Call:
        return Tiring(operator, case, inputs)


def test_a_function_that_is_right_twice_and_then_returns_its_input_is_wrong() -> None:
    Tiring.runs = 0
    options = OperatorOptions(runs=20)
    cell = Cell("add", ADD.own_case({"lhs": (300, 300), "rhs": (300, 300)}), "", Mode.FORWARD)
    row = Measurer(Lazy(RunnerOptions(threads=1)), options).row(cell)
    assert row.status is RowStatus.WRONG
    assert row.reason.startswith(
        "the outputs of a timed run differ from those of the run that was checked by "
    )
    assert row.times_ns.size == 0
    assert Measurer(Numbers(RunnerOptions(threads=1)), options).row(cell).status is RowStatus.MEASURED


PEAK = MachinePeak(50e9, 10e9, 8 << 20, 1, "")


def timed(name: str, size: int, run_us: float, block: int = 1) -> OperatorRow:
    case = ADD.own_case({"lhs": (size, size), "rhs": (size, size)})
    row = Cell(name, case, "", Mode.FORWARD).row(RowStatus.MEASURED)
    times_ns = np.full(5, run_us * 1e3 * block, np.int64)
    return replace(row, times_ns=times_ns, block=block, moved_bytes=3 * size * size * 4, flops=size * size)


@pytest.mark.parametrize("block", [1, 100])
def test_more_bytes_than_memory_can_take_are_refused(block: int) -> None:
    # outputs of 64 MB less the cache's 8 MiB take 5.6 ms at 10 GB/s, and half of that within its error
    assert beyond_peak(timed("add", 4000, 5600, block), PEAK, "float32") == ""
    assert beyond_peak(timed("add", 4000, 2900, block), PEAK, "float32") == ""
    reason = beyond_peak(timed("add", 4000, 2000, block), PEAK, "float32")
    assert reason.startswith("a run takes 2e+03 µs, which is 32 GB/s; this machine reaches 10")
    assert "5500 GB/s" in beyond_peak(timed("add", 4000, 11.636, block), PEAK, "float32")


def test_what_fits_into_the_cache_is_not_bound_by_memory() -> None:
    assert beyond_peak(replace(timed("add", 1400, 1), flops=1), PEAK, "float32") == ""


def test_inputs_need_not_be_read() -> None:
    row = timed("add", 4000, 100)
    inputs = 2 * 4000 * 4000 * 4
    assert beyond_peak(replace(row, moved_bytes=inputs + 8, flops=1), PEAK, "float32") == ""


def test_what_computes_nothing_may_return_a_view() -> None:
    assert beyond_peak(replace(timed("add", 4000, 3), flops=0), PEAK, "float32") == ""


def test_more_operations_than_the_processor_can_do_are_refused() -> None:
    row = timed("add", 100, 1000)
    assert beyond_peak(replace(row, flops=199_000_000), PEAK, "float32") == ""
    assert "210 GFLOP/s" in beyond_peak(replace(row, flops=210_000_000), PEAK, "float32")
    assert beyond_peak(replace(row, flops=210_000_000), PEAK, "bfloat16") == ""
    assert beyond_peak(replace(row, flops=None, moved_bytes=None), PEAK, "float32") == ""


def test_rows_without_times_are_as_they_are() -> None:
    case = ADD.cases(Preset.SMALL)[0]
    row = Cell("add", case, "", Mode.FORWARD).row(RowStatus.FAILED, "it failed")
    assert beyond_peak(row, PEAK, "float32") == ""
