"""The measurement of single operators: rows of raw times with their checks, and the machine's peak."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.operators.operator import ParameterValue, Shape, parameter_text
from inferometer.evaluators.kinds.operators.options import Mode, OperatorOptions


class RowStatus(str, Enum):
    """How a row ended. Only measured rows have times."""

    MEASURED = "measured"
    WRONG = "wrong"
    """Its output or a gradient is not within the tolerance of the reference, the output of a timed run
    differs from that of the checked run, or its times are impossible on this machine."""
    FAILED = "failed"
    """The framework raised an error or ran out of memory or time, or its process ended."""
    MISSING = "missing"
    """The framework lacks the operator, its gradient, its element type or this form of it."""


class Stop(str, Enum):
    """Why the measurement stopped."""

    TARGET = "target"
    """The interval of the median has reached the target."""
    NOISE = "noise"
    """The interval stopped getting narrower."""
    BUDGET = "budget"
    """The time budget was spent."""
    COUNT = "count"
    """The requested runs are done, or the row has the maximum number of times."""


@dataclass(frozen=True, slots=True)
class MachinePeak:
    """The peak performance of this machine at a number of threads, measured once and stored.

    Attributes:
        flops_per_s: The rate of a matrix product in the element type.
        bytes_per_s: The rate of a STREAM triad (McCalpin, 1995) over arrays larger than the last-level cache.
        cache_bytes: The size of the last-level cache.
        how: The programs that ran, in one line.
    """

    flops_per_s: float
    bytes_per_s: float
    cache_bytes: int
    threads: int
    how: str


@dataclass(frozen=True, slots=True)
class Correctness:
    """The result of comparing the outputs or the gradients.

    Attributes:
        against: ``reference`` for the table's own computation in float64, ``finite differences`` of it for
            gradients, ``properties`` for operators that draw random numbers, or empty for nothing.
        max_absolute: The greatest difference; None if nothing was compared.
        max_relative: The greatest difference relative to the reference's largest magnitude.
        tolerance: The maximum allowed ``max_relative``.
    """

    against: str = ""
    max_absolute: float | None = None
    max_relative: float | None = None
    tolerance: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class OperatorRow:
    """One operator, on one case of inputs, in one mode and one process.

    Attributes:
        operator: The name in the table.
        category: Its group.
        preset: The source of the sizes.
        shapes: The shapes of all inputs by name, in order.
        parameters: The operator's parameters.
        form: Which of the framework's forms ran, such as ``nd``, ``eager`` or ``graph``.
        api: The API that ran, as named in the framework's documentation.
        mode: The work that is timed.
        status: How it ended.
        reason: Why there are no times, in one line; empty for a measured row.
        process: The number of the fresh process, from 1.
        times_ns: int64; the time of each run, or of each block of runs.
        block: The number of runs in each of ``times_ns``; 1 unless one run is too short for the clock.
        stop: Why the measurement stopped; None without times.
        floor_ns: The time of a run that does nothing, in the same loop.
        flops: The floating-point operations of a run; None if they are not stated.
        moved_bytes: The bytes of the inputs and outputs of a run; None if they are not known.
        peak_memory_bytes: The peak memory; None if it is not known.
        memory_of: ``allocator``, or ``process`` for the growth of resident memory; empty if not known.
        correctness: The comparison of the results.
        fused: The evidence of a fusion in the framework's graph or trace; empty if there is none.
    """

    operator: str
    category: str
    preset: str
    shapes: Mapping[str, Shape]
    parameters: Mapping[str, ParameterValue]
    form: str
    api: str
    mode: Mode
    status: RowStatus
    reason: str = ""
    process: int = 1
    times_ns: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    block: int = 1
    stop: Stop | None = None
    floor_ns: float = 0.0
    flops: int | None = None
    moved_bytes: int | None = None
    peak_memory_bytes: int | None = None
    memory_of: str = ""
    correctness: Correctness = Correctness()
    fused: str = ""

    @property
    def inputs_text(self) -> str:
        """The shapes by name, as ``lhs=1024x1024 rhs=1024x1024``."""
        sizes = {name: "x".join(map(str, shape)) or "scalar" for name, shape in self.shapes.items()}
        return " ".join(map("=".join, sizes.items()))

    @property
    def parameters_text(self) -> str:
        """The parameters by name, as ``kernel=3,3 stride=1``."""
        return " ".join(f"{name}={parameter_text(value)}" for name, value in self.parameters.items())

    @property
    def key(self) -> tuple[str, ...]:
        """The key shared by equal rows in all processes, frameworks and evaluations; it excludes the form."""
        sizes = [f"{name}={'x'.join(map(str, shape))}" for name, shape in self.shapes.items()]
        chosen = [f"{name}={value}" for name, value in sorted(self.parameters.items())]
        return (self.operator, " ".join(sizes), " ".join(chosen), self.mode.value)


@dataclass(frozen=True, slots=True, eq=False)
class OperatorMeasurement:
    """The rows of one framework.

    Attributes:
        rows: A row for each requested operator, case, form, mode and process, in order.
        options: How they were measured.
        peak: The peak of this machine; None if it was not measured.
        elapsed_ns: The total duration.
    """

    kind: ClassVar[str] = "operators"

    rows: tuple[OperatorRow, ...]
    options: OperatorOptions
    peak: MachinePeak | None
    elapsed_ns: int

    @property
    def batch_size(self) -> int:
        """Always 1; the sizes of operators are in their rows."""
        return 1
