"""Single operators in PyTorch: eager functions, and what ``torch.compile`` makes of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from inferometer.agent.frameworks.pytorch.modules import (
    FAILURES,
    find_device,
    framework_details,
    reason_of,
    use_threads,
)
from inferometer.agent.frameworks.pytorch.operators import fusion
from inferometer.agent.frameworks.pytorch.operators.functions import Form, Function, functions, reasons
from inferometer.agent.hardware.environment import FrameworkDetails
from inferometer.agent.hardware.threads import default_threads
from inferometer.agent.inference.predictor import prediction_failure
from inferometer.agent.operators.inputs import cotangents
from inferometer.agent.operators.operator import Case, Operator
from inferometer.agent.operators.runner import (
    PARTS,
    DeviceTimer,
    NotSupportedHereError,
    OperatorRunner,
    RunnerOptions,
    element_type,
)
from inferometer.agent.operators.table.registry import has_parts

EAGER, COMPILE = "eager", "compile"
_FAILURES = (*FAILURES, NotImplementedError, ArithmeticError)
_COMPILERS = ("g++", "clang++", "c++")


class PyTorchOperators(OperatorRunner):
    """The functions of PyTorch; see ``OperatorRunner``."""

    def __init__(self, options: RunnerOptions) -> None:
        super().__init__(options)
        self._device = find_device("operators", options.device)
        self._threads = options.threads or default_threads()
        self._waits = True
        self._compiled: tuple[object, Function] | None = None
        use_threads(self._threads)

    @property
    def threads(self) -> int | None:
        """The number that PyTorch tells."""
        return torch.get_num_threads()

    def forms(self, name: str) -> tuple[str, ...]:
        """Eager, and compiled; fused operators are eager only where one function has all parts."""
        if name not in functions():
            return ()
        if not has_parts(name):
            return (EAGER, COMPILE)
        return (*((EAGER,) if functions()[name].joined else ()), COMPILE, PARTS)

    def missing(self, name: str) -> str:
        """The reason of the file that would have it."""
        return reasons().get(name, "PyTorch has no such operator")

    def prepare(
        self,
        operator: Operator,
        case: Case,
        inputs: Mapping[str, NDArray[Any]],
        *,
        gradient: bool = False,
        form: str = "",
    ) -> _Call:
        """Makes the tensors and the function; see ``OperatorRunner``."""
        if operator.name not in functions():
            raise NotSupportedHereError(self.missing(operator.name))
        if gradient and element_type(self.options.dtype).kind != "f":
            raise NotSupportedHereError("PyTorch has no gradients of integers")
        found = functions()[operator.name]
        where = f"{operator.name} in PyTorch"
        if operator.parts and form not in ("", *self.forms(operator.name)):
            raise NotSupportedHereError("PyTorch has no function that joins the parts; the form compile may")
        try:
            tensors = {name: self._tensor(array) for name, array in inputs.items()}
            if form == COMPILE or (operator.parts and not form and not found.joined):
                self._check_compiler()
                form = COMPILE
            api, function = self._chosen(operator, found, case, form, tensors, gradient)
        except _FAILURES as error:
            raise prediction_failure(f"{where}: {reason_of(error)}", error) from error
        names = [spec.name for spec in operator.tensors(case) if spec.differentiable] if gradient else []
        wait = self._wait if self._device.type == "cuda" else None
        call = _Call(where, api, function, tensors, names, wait)
        run = call.forward_for_gradient if gradient else call.forward
        if operator.parts and form == COMPILE:
            call.fused = fusion.compile_and_see(run, operator.parts, freeze=not gradient)
        elif operator.parts and form != PARTS:
            call.fused = fusion.run_and_see(run)
        return call

    def uncovered(self) -> tuple[str, ...]:
        """The operators of ``torch.ops.aten`` that no form stands for."""
        covered: set[str] = set()
        for form in functions().values():
            covered.update(form.covers or (form.api.rpartition(".")[2],))
        names = {
            schema.name.removeprefix("aten::")
            for schema in torch._C._jit_get_all_schemas()
            if schema.name.startswith("aten::")
        }
        return tuple(
            sorted(name for name in names if not name.startswith("_") and name.rstrip("_") not in covered)
        )

    def details(self) -> FrameworkDetails:
        """PyTorch's libraries, build and settings."""
        return framework_details()

    def peak_memory_bytes(self) -> int | None:
        """CUDA's caching allocator tells it; the CPU's does not."""
        if self._device.type != "cuda":
            return None
        found = int(torch.cuda.max_memory_allocated(self._device))
        torch.cuda.reset_peak_memory_stats(self._device)
        return found

    def device_timer(self) -> DeviceTimer | None:
        """CUDA's events, which do not include the way to the device."""
        if self._device.type != "cuda":
            return None
        begin, end = (
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            for _ in range(2)
        )
        stream = torch.cuda.current_stream(self._device)

        def timer(run: Callable[[], object]) -> int:
            self._waits = False  # the host's wait would be in the device's time
            try:
                begin.record(stream)
                run()
                end.record(stream)
            finally:
                self._waits = True
            end.synchronize()
            return int(begin.elapsed_time(end) * 1e6)

        return timer

    def close(self) -> None:
        """Does nothing: PyTorch keeps its threads and memory."""

    def _chosen(
        self,
        operator: Operator,
        found: Form,
        case: Case,
        form: str,
        tensors: Mapping[str, torch.Tensor],
        gradient: bool,
    ) -> tuple[str, Function]:
        """The functions that run, as PyTorch names them, and what runs them."""
        api, function = found.api, found.make(case)
        if found.joined and form != PARTS:
            api, function = found.joined
        if found.creates:
            function = partial(function, dtype=getattr(torch, self.options.dtype), device=self._device)
        if form != COMPILE:
            return api, function
        if operator.parts:
            # a gradient with respect to weights needs them to be arguments
            weights = [] if gradient else [tensors[name] for name in found.constants]
            function = fusion.compiled(function, weights)
        else:
            function = self._compiled_once((operator.name, case), function)
        return f"torch.compile({api})", function

    def _compiled_once(self, key: object, function: Function) -> Function:
        """Compiles a function, or returns what the same case was compiled to last.

        Functions of C++ share one frame, of which dynamo keeps eight, so that each case begins with none.
        """
        if self._compiled is None or self._compiled[0] != key:
            torch.compiler.reset()
            self._compiled = key, torch.compile(function, fullgraph=True, dynamic=False)
        return self._compiled[1]

    def _wait(self) -> None:
        """Waits for the device, unless its events are timed."""
        if self._waits:
            torch.cuda.synchronize(self._device)

    def _check_compiler(self) -> None:
        if self._device.type == "cpu" and not any(map(shutil.which, _COMPILERS)):
            raise NotSupportedHereError("torch.compile requires a C++ compiler, and there is none")

    def _tensor(self, array: NDArray[Any]) -> torch.Tensor:
        tensor = torch.from_numpy(array.copy()).to(self._device)
        return (
            tensor.to(torch.bfloat16)
            if self.options.dtype == "bfloat16" and array.dtype.kind == "f"
            else tensor
        )


class _Call:
    """A function and its tensors; see ``OperatorCall``."""

    def __init__(
        self,
        where: str,
        api: str,
        function: Function,
        tensors: Mapping[str, torch.Tensor],
        differentiable: Sequence[str],
        wait: Callable[[], None] | None,
    ) -> None:
        self.api = api
        self.fused = ""
        self._where = where
        self._function = function
        self._tensors = list(tensors.values())
        self._names = list(differentiable)
        self._leaves = [
            tensor.detach().requires_grad_(name in differentiable) for name, tensor in tensors.items()
        ]
        self._wanted = [leaf for leaf in self._leaves if leaf.requires_grad]
        self._heads: list[torch.Tensor] = []
        self._outputs: tuple[torch.Tensor, ...] = ()
        self._gradients: tuple[torch.Tensor | None, ...] = ()
        self._wait = wait

    def forward(self) -> None:
        self._outputs = ()  # the next may then have their memory, which is in the cache
        try:
            with torch.inference_mode():
                self._keep(self._function(*self._tensors))
        except _FAILURES as error:
            raise _failure(self._where, error) from error

    def forward_for_gradient(self) -> None:
        self._outputs = ()
        try:
            self._keep(self._function(*self._leaves))
        except _FAILURES as error:
            raise _failure(self._where, error) from error
        if not self._heads:
            self._heads = [
                torch.from_numpy(cotangents(tuple(each.shape))).to(each) for each in self._differentiable()
            ]
            if not self._heads:
                raise NotSupportedHereError("PyTorch has no gradient of it")

    def backward(self) -> None:
        try:
            self._gradients = torch.autograd.grad(
                self._differentiable(), self._wanted, self._heads, allow_unused=True
            )
        except _FAILURES as error:
            raise _failure(f"{self._where}: gradient", error) from error
        if self._wait:
            self._wait()

    def outputs(self) -> tuple[NDArray[Any], ...]:
        return tuple(_array(each) for each in self._outputs)

    def gradients(self) -> Mapping[str, NDArray[Any]]:
        return {
            name: _array(gradient)
            for name, gradient in zip(self._names, self._gradients, strict=True)
            if gradient is not None
        }

    def _keep(self, answer: Any) -> None:
        self._outputs = (answer,) if isinstance(answer, torch.Tensor) else tuple(answer)
        if self._wait:
            self._wait()

    def _differentiable(self) -> list[torch.Tensor]:
        return [each for each in self._outputs if each.requires_grad]


def _failure(where: str, error: BaseException) -> Exception:
    if "not implemented for '" in str(error):  # as every kernel says that lacks an element type
        return NotSupportedHereError(f"PyTorch has no kernel: {reason_of(error)}")
    return prediction_failure(f"{where}: {reason_of(error)}", error)


def _array(tensor: torch.Tensor) -> NDArray[Any]:
    tensor = tensor.detach()
    array: NDArray[Any] = np.array(
        (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).cpu().numpy()
    )
    return array
