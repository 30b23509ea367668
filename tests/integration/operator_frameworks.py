"""Frameworks that run single operators as a plug-in would: right, slow, wrong, failing, ending and hanging.

What happens depends on the first size of ``lhs``.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.hardware.environment import FrameworkDetails
from inferometer.agent.inference.registry import FrameworkEntry
from inferometer.agent.operators.operator import Case, NotSupportedHereError, Operator, OperatorRunner
from inferometer.manifests.errors import PredictionError

RIGHT, BUSY, RAISES, KILLED, EXITS, HANGS, WRONG, UNSUPPORTED = range(2, 10)
BUSY_NS = 5_000_000
RECORD = "OPERATOR_FRAMEWORK_RECORD"
SPENT = "OPERATOR_FRAMEWORK_SPENT"
"""Names the file in which each busy run notes how long the one before was: longer where it lost its core."""


class Call:
    """The table's own computation, with what the size asks for."""

    api = "numpy"
    fused = ""

    def __init__(self, operator: Operator, case: Case, inputs: Mapping[str, NDArray[Any]]) -> None:
        self._inputs = list(inputs.values())
        assert operator.reference is not None
        self._outputs = tuple(np.asarray(each) for each in operator.reference(self._inputs, case.parameters))
        self._fault = case.shapes.get("lhs", (0,))[0]
        self._spent_ns = 0

    def forward(self) -> None:
        if self._fault == BUSY:
            begun_ns = now_ns = time.perf_counter_ns()
            if self._spent_ns and (path := os.environ.get(SPENT)):
                with Path(path).open("ab", buffering=0) as file:
                    file.write(b"%d\n" % self._spent_ns)
            while now_ns < begun_ns + BUSY_NS:
                now_ns = time.perf_counter_ns()
            self._spent_ns = now_ns - begun_ns
        elif self._fault == RAISES:
            raise PredictionError("add in Numbers: the kernel failed\nat its second line")
        elif self._fault == KILLED:
            os.kill(os.getpid(), signal.SIGKILL)
        elif self._fault == EXITS:
            os._exit(7)
        elif self._fault == HANGS:
            signal.pause()
        else:
            sum(range(2000))

    def forward_for_gradient(self) -> None:
        self.forward()

    def backward(self) -> None:
        raise NotSupportedHereError("Numbers has no gradients")

    def outputs(self) -> tuple[NDArray[Any], ...]:
        return tuple(each + (self._fault == WRONG) for each in self._outputs)

    def gradients(self) -> Mapping[str, NDArray[Any]]:
        return {}


class Numbers(OperatorRunner):
    """Runs the references of the table."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        if options.dtype == "bfloat16":
            raise NotSupportedHereError("Numbers has no bfloat16")
        if path := os.environ.get(RECORD):
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(f"{type(self).__name__} {os.environ['OMP_NUM_THREADS']}\n")

    @property
    def threads(self) -> int | None:
        return self.options.threads

    def forms(self, name: str) -> tuple[str, ...]:
        return ("plain", "other")

    def missing(self, name: str) -> str:
        return ""

    def prepare(
        self,
        operator: Operator,
        case: Case,
        inputs: Mapping[str, NDArray[Any]],
        *,
        gradient: bool = False,
        form: str = "",
    ) -> Call:
        if case.shapes.get("lhs", (0,))[0] == UNSUPPORTED:
            raise NotSupportedHereError("Numbers has no addition of nines")
        return Call(operator, case, inputs)

    def uncovered(self) -> tuple[str, ...]:
        return ()

    def details(self) -> FrameworkDetails:
        return FrameworkDetails(libraries={"NumPy": np.__version__})

    def close(self) -> None:
        pass


class Letters(Numbers):
    """Another framework, which lacks the operator."""

    def forms(self, name: str) -> tuple[str, ...]:
        return ()

    def missing(self, name: str) -> str:
        return "Letters cannot add"


class Crashing(Numbers):
    """One that ends its process when it is opened."""

    def __init__(self, options: Any) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)


def entry(kind: type[Numbers]) -> FrameworkEntry:
    return FrameworkEntry(
        kind.__name__,
        "nowhere:None",
        ("numpy",),
        "pip install numpy",
        operators=f"{__name__}:{kind.__name__}",
    )
