"""Single operators in MXNet: ``mx.nd``, ``mx.sym`` and Gluon's blocks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from numpy.typing import NDArray

from inferometer.agent.frameworks.mxnet import runtime
from inferometer.agent.frameworks.mxnet.operators.calls import (
    NO_GRADIENT,
    BlockCall,
    Call,
    Inputs,
    SymbolCall,
    lacks_gradient,
)
from inferometer.agent.frameworks.mxnet.operators.functions import Form, Function, functions, reasons
from inferometer.agent.frameworks.mxnet.operators.fusion import FusedCall
from inferometer.agent.frameworks.mxnet.runtime import FAILURES, WORKERS, find_context, mxnet, reason
from inferometer.agent.hardware.environment import FrameworkDetails
from inferometer.agent.hardware.threads import default_threads
from inferometer.agent.inference.predictor import prediction_failure
from inferometer.agent.operators.operator import NOTHING, Case, Operator
from inferometer.agent.operators.runner import (
    PARTS,
    NotSupportedHereError,
    OperatorRunner,
    RunnerOptions,
    element_type,
)
from inferometer.agent.operators.table.registry import has_parts

ND, SYM, GLUON = "nd", "sym", "gluon"


class MXNetOperators(OperatorRunner):
    """The operators of MXNet; see ``OperatorRunner``."""

    def __init__(self, options: RunnerOptions) -> None:
        super().__init__(options)
        if options.dtype == "bfloat16":
            raise NotSupportedHereError("MXNet has no bfloat16 outside of oneDNN's graphs")
        self._context = find_context(options.device, "operators")
        self._threads = WORKERS.fix(options.threads, default_threads())

    @property
    def threads(self) -> int | None:
        """The number that MXNet's CPU workers tell."""
        return self._threads

    def forms(self, name: str) -> tuple[str, ...]:
        """``nd``, then those of ``sym`` and ``gluon`` that there are; fused operators are symbols."""
        form = functions().get(name)
        if form is None:
            return ()
        if has_parts(name):
            return (SYM, PARTS)
        return (ND, *((SYM,) if form.symbolic else ()), *((GLUON,) if form.gluon else ()))

    def missing(self, name: str) -> str:
        """The reason of the file that would have it."""
        return reasons().get(name, "MXNet has no such operator")

    def prepare(
        self,
        operator: Operator,
        case: Case,
        inputs: Mapping[str, NDArray[Any]],
        *,
        gradient: bool = False,
        form: str = "",
    ) -> Call:
        """Copies the arrays and makes the function, the executor or the block; see ``OperatorRunner``."""
        form = form or (SYM if operator.parts else ND)
        if form not in self.forms(operator.name):
            raise NotSupportedHereError(
                f"MXNet has no {form} of it" if self.forms(operator.name) else self.missing(operator.name)
            )
        if gradient and element_type(self.options.dtype).kind != "f":
            raise NotSupportedHereError("gradients of integers are rounded")
        found = functions()[operator.name]
        where = f"{operator.name} in MXNet"
        wanted = {spec.name for spec in operator.tensors(case) if spec.differentiable} if gradient else set()
        try:
            packed = found.packed if form != GLUON else NOTHING
            given = Inputs(where, self._context, inputs, frozenset(wanted), found.training, packed)
            if form == SYM and operator.parts:
                return FusedCall(given, f"sym.{found.api}", found.make(mxnet.sym, case))
            if form == SYM:
                return SymbolCall(given, f"sym.{found.api}", self._function(found, mxnet.sym, case))
            if form == GLUON and found.gluon is not None:
                return BlockCall(given, found.gluon, case)
            return Call(given, f"nd.{found.api}", self._function(found, mxnet.nd, case))
        except FAILURES as error:
            if lacks_gradient(error):
                raise NotSupportedHereError(NO_GRADIENT) from error
            raise prediction_failure(f"{where}: {reason(error)}", error) from error

    def _function(self, form: Form, module: Any, case: Case) -> Function:
        function = form.make(module, case)
        if not form.creates:
            return function
        where = {"ctx": self._context} if module is mxnet.nd else {}  # a symbol is bound to its context
        return partial(function, dtype=self.options.dtype, **where)

    def uncovered(self) -> tuple[str, ...]:
        """The operators of MXNet's registry that no form stands for."""
        covered: set[str] = set()
        for form in functions().values():
            covered.update(form.covers or (form.api,))
        names = set(mxnet.operator.get_all_registered_operators())
        return tuple(sorted(name for name in names if not name.startswith("_") and name not in covered))

    def details(self) -> FrameworkDetails:
        """MXNet's libraries, build and settings."""
        return runtime.details()

    def close(self) -> None:
        """Waits for the engine; MXNet keeps its threads and memory."""
        mxnet.nd.waitall()
