"""Single operators in PyTorch: eager functions, and what ``torch.compile`` makes of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
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
from inferometer.agent.frameworks.pytorch.operators.functions import Function, functions, reasons
from inferometer.agent.hardware.environment import FrameworkDetails
from inferometer.agent.hardware.threads import default_threads
from inferometer.agent.inference.predictor import prediction_failure
from inferometer.agent.operators.inputs import cotangents
from inferometer.agent.operators.operator import Case, Operator
from inferometer.agent.operators.runner import (
    DeviceTimer,
    NotSupportedHereError,
    OperatorRunner,
    RunnerOptions,
)

EAGER, COMPILE = "eager", "compile"
_FAILURES = (*FAILURES, NotImplementedError, ArithmeticError)
_COMPILERS = ("g++", "clang++", "c++")


class PyTorchOperators(OperatorRunner):
    """The functions of PyTorch; see ``OperatorRunner``."""

    def __init__(self, options: RunnerOptions) -> None:
        super().__init__(options)
        self._device = find_device("operators", options.device)
        self._threads = options.threads or default_threads()
        use_threads(self._threads)

    @property
    def threads(self) -> int | None:
        """The number that PyTorch tells."""
        return torch.get_num_threads()

    def forms(self, name: str) -> tuple[str, ...]:
        """Eager, and compiled."""
        return (EAGER, COMPILE) if name in functions() else ()

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
        found = functions()[operator.name]
        where = f"{operator.name} in PyTorch"
        try:
            tensors = [self._tensor(array) for array in inputs.values()]
            function = found.make(case)
            if form == COMPILE:
                if self._device.type == "cpu" and not any(map(shutil.which, _COMPILERS)):
                    raise NotSupportedHereError("torch.compile requires a C++ compiler, and there is none")
                function = torch.compile(function, fullgraph=True, dynamic=False)
        except _FAILURES as error:
            raise prediction_failure(f"{where}: {reason_of(error)}", error) from error
        names = [spec.name for spec in operator.tensors(case) if spec.differentiable] if gradient else []
        api = f"torch.compile({found.api})" if form == COMPILE else found.api
        return _Call(where, api, function, dict(zip(inputs, tensors, strict=True)), names, self._device)

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
            begin.record(stream)
            run()
            end.record(stream)
            end.synchronize()
            return int(begin.elapsed_time(end) * 1e6)

        return timer

    def close(self) -> None:
        """Does nothing: PyTorch keeps its threads and memory."""

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
        device: torch.device,
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
        self._synchronize: Callable[[], object] | None = (
            (lambda: torch.cuda.synchronize(device)) if device.type == "cuda" else None
        )

    def forward(self) -> None:
        try:
            with torch.inference_mode():
                self._keep(self._function(*self._tensors))
        except _FAILURES as error:
            raise prediction_failure(f"{self._where}: {reason_of(error)}", error) from error

    def forward_for_gradient(self) -> None:
        try:
            self._keep(self._function(*self._leaves))
        except _FAILURES as error:
            raise prediction_failure(f"{self._where}: {reason_of(error)}", error) from error
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
            raise prediction_failure(f"{self._where}: gradient: {reason_of(error)}", error) from error
        if self._synchronize:
            self._synchronize()

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
        if self._synchronize:
            self._synchronize()

    def _differentiable(self) -> list[torch.Tensor]:
        return [each for each in self._outputs if each.requires_grad]


def _array(tensor: torch.Tensor) -> NDArray[Any]:
    tensor = tensor.detach()
    array: NDArray[Any] = np.array(
        (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).cpu().numpy()
    )
    return array
