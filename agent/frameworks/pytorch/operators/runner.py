"""Single operators in PyTorch: eager functions, and the same functions through ``torch.compile``.

A ``Form`` defines how PyTorch runs an operator; the sibling modules list the forms by the table's names. The
generated code and the profiler's records show what inductor and PyTorch fuse.
"""

from __future__ import annotations

import re
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch.profiler import ProfilerActivity, profile

from inferometer.agent.frameworks.pytorch.modules import (
    FAILURES,
    find_device,
    framework_details,
    reason_of,
    use_threads,
)
from inferometer.agent.frameworks.pytorch.profiler import import_inductor
from inferometer.agent.hardware.environment import FrameworkDetails, default_threads
from inferometer.agent.inference.predictor import prediction_failure
from inferometer.agent.operators.operator import (
    NOTHING,
    PARTS,
    Case,
    DeviceTimer,
    NotSupportedHereError,
    Operator,
    OperatorRunner,
    RunnerOptions,
    cotangents,
    element_type,
)

Function: TypeAlias = Callable[..., Any]
"""Takes the input tensors in the order of the table; returns a tensor or a sequence of them."""
EAGER, COMPILE = "eager", "compile"


@dataclass(frozen=True, slots=True)
class Form:
    """How PyTorch runs an operator.

    Attributes:
        api: The function or functions that run, as named in PyTorch's documentation.
        make: Returns the function for a case.
        covers: The operators of PyTorch's registry (``aten``) that the form covers besides those of ``api``.
        creates: Whether the function also takes ``dtype`` and ``device``, because no input determines them.
        joined: For a fused operator, the single function that computes what ``make`` computes part by part.
        constants: The last inputs, which are weights that inductor may fold into each other for inference.
    """

    api: str
    make: Callable[[Case], Function]
    covers: tuple[str, ...] = ()
    creates: bool = False
    joined: tuple[str, Function] | None = None
    constants: tuple[str, ...] = ()

    def forms(self, *, fused: bool) -> tuple[str, ...]:
        """Returns ``eager`` and ``compile``; if fused, also ``parts``, and ``eager`` only if ``joined``."""
        if not fused:
            return (EAGER, COMPILE)
        return (*((EAGER,) if self.joined else ()), COMPILE, PARTS)


def function(name: str, *covers: str, fixed: Mapping[str, Any] = NOTHING, **renamed: str) -> Form:
    """Returns the form of a function of ``torch`` that takes the table's inputs as they are.

    ``renamed`` are its other arguments, each with the table's name for it, besides the ``fixed`` ones; see
    ``Form`` for ``covers``.
    """
    found = attrgetter(name)(torch)
    if not (renamed or fixed):
        return Form(f"torch.{name}", lambda _: found, covers)
    return Form(
        f"torch.{name}",
        lambda case: partial(found, **fixed, **{own: case[ours] for own, ours in renamed.items()}),
        covers,
    )


_MOST_COMPILED = 10_000
"""The number of cases that a process may compile; dynamo's own limit is for accidental recompilation."""
_CALL = re.compile(
    r"\b(?:torch\.ops\.(?P<library>\w+\.\w+)(?:\.\w+)?\((?P<arguments>.*)"
    r"|extern_kernels\.(?P<external>\w+)\("
    r"|(?P<kernel>(?:cpp|triton\w*?)_fused\w*?)_\d+(?:\.run)?\()"
)
_POST_OPERATION = re.compile(r"'(\w+)', \[")
"""Matches the operations that oneDNN applies to each output; a list of parameters follows each of them."""
_JOINED_CALLS = re.compile(r"attention")
_NAMES = {"conv2d": "convolution", "dense": "addmm"}
"""Inductor's names for parts whose names in the table differ."""


class _Frozen(torch.nn.Module):
    """A module whose weights are the last arguments of a function, so inductor may fold them."""

    def __init__(self, function: Function, weights: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._function = function
        self._names = [f"weight_{number}" for number, _ in enumerate(weights)]
        for name, weight in zip(self._names, weights, strict=True):
            self.register_buffer(name, weight)

    def forward(self, *data: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self._function(*data, *(getattr(self, name) for name in self._names))
        return answer


def _compiled(function: Function, weights: Sequence[torch.Tensor]) -> Function:
    """Returns a function compiled with constant weights; it ignores its last arguments, the weights."""
    module = torch.compile(_Frozen(function, weights).eval(), fullgraph=True, dynamic=False)
    if not weights:
        return module
    count = len(weights)
    return lambda *tensors: module(*tensors[:-count])


def _compile_and_see(run: Callable[[], None], parts: Sequence[str], *, freeze: bool) -> str:
    """Runs a compiled function for the first time, and returns the calls in the generated code in order.

    ``freeze`` is whether a module's weights are constants, as in inference: only then does oneDNN's
    convolution apply the activation, and only then is a normalisation folded into the weight.

    Raises:
        NotSupportedHereError: No call does the work of two parts.
    """
    from torch._dynamo import config as dynamo
    from torch._inductor import config as inductor
    from torch._inductor.utils import run_and_get_code

    with (
        warnings.catch_warnings(),
        inductor.patch(freezing=freeze),
        dynamo.patch(cache_size_limit=_MOST_COMPILED, accumulated_cache_size_limit=_MOST_COMPILED),
    ):
        # inductor imports deprecated parts of PyTorch, and setuptools, which finds the distutils of others
        warnings.simplefilter("ignore")
        _, codes = run_and_get_code(run)
    calls = _calls("\n".join(code[code.rfind("def call(") :] for code in codes))
    shown = ", ".join(calls)
    folded = "batch_norm" in parts and calls and not any("batch_norm" in call for call in calls)
    if folded:
        return f"{shown}; batch_norm is in the weight"
    if not any(_joins(call, parts) for call in calls):
        raise NotSupportedHereError(f"inductor runs the parts one after the other: {shown}")
    return shown


def _calls(code: str) -> list[str]:
    found = []
    for match in _CALL.finditer(code):
        name = match["library"] or match["external"] or match["kernel"]
        applied = _POST_OPERATION.search(match["arguments"] or "")
        found.append(f"{name}({applied[1]})" if applied and applied[1] != "none" else name)
    return found


def _joins(call: str, parts: Sequence[str]) -> bool:
    if call.endswith(")") or _JOINED_CALLS.search(call):
        return True
    names = {_NAMES.get(part, part) for part in parts}
    return "_fused_" in call and sum(bool(re.search(rf"_{name}(_|$)", call)) for name in names) > 1


def _run_and_see(run: Callable[[], None]) -> str:
    """Runs a PyTorch function in the profiler, and returns the fused operators that it called.

    Raises:
        NotSupportedHereError: It called none.
    """
    import_inductor()
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiled:
        run()
    names = [each.key for each in profiled.key_averages()]
    fused = [name for name in names if re.fullmatch(r"aten::_scaled_dot_product_(?!attention_math)\w+", name)]
    if not fused:
        raise NotSupportedHereError("PyTorch runs the parts one after the other here")
    return ", ".join(fused)


_FAILURES = (*FAILURES, NotImplementedError, ArithmeticError)
_COMPILERS = ("g++", "clang++", "c++")


class PyTorchOperators(OperatorRunner):
    """The functions of PyTorch; see ``OperatorRunner``."""

    framework = "PyTorch"
    package = __package__

    def __init__(self, options: RunnerOptions) -> None:
        super().__init__(options)
        self._device = find_device("operators", options.device)
        self._threads = options.threads or default_threads()
        self._waits = True
        self._compiled: tuple[object, Function] | None = None
        use_threads(self._threads)
        if self._device.type == "cuda":
            # a convolution or an RNN in TF32, cuDNN's default, keeps 10 bits of float32's 23
            torch.backends.cudnn.allow_tf32 = False

    @property
    def threads(self) -> int | None:
        return torch.get_num_threads()

    def prepare(
        self,
        operator: Operator,
        case: Case,
        inputs: Mapping[str, NDArray[Any]],
        *,
        gradient: bool = False,
        form: str = "",
    ) -> _Call:
        found: Form = self.form_of(operator.name)
        if gradient and element_type(self.options.dtype).kind != "f":
            raise NotSupportedHereError("PyTorch has no gradients for integers")
        where = f"{operator.name} in PyTorch"
        if operator.parts and form not in ("", *self.forms(operator.name)):
            raise NotSupportedHereError("PyTorch has no function that fuses the parts; try the form compile")
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
            call.fused = _compile_and_see(run, operator.parts, freeze=not gradient)
        elif operator.parts and form != PARTS:
            call.fused = _run_and_see(run)
        return call

    def uncovered(self) -> tuple[str, ...]:
        covered: set[str] = set()
        for form in self.table().values():
            covered.update(form.covers, re.findall(r"\w+(?=[\s,]|$)", form.api))
        covered.discard("unfold")  # of tensors; torch.nn.functional.unfold is im2col
        names = {
            schema.name.removeprefix("aten::")
            for schema in torch._C._jit_get_all_schemas()
            if schema.name.startswith("aten::")
        }
        return tuple(
            sorted(name for name in names if not name.startswith("_") and name.rstrip("_") not in covered)
        )

    def details(self) -> FrameworkDetails:
        return framework_details()

    def peak_memory_bytes(self) -> int | None:
        """Returns the peak memory of CUDA's caching allocator; the CPU's allocator does not report one."""
        if self._device.type != "cuda":
            return None
        found = int(torch.cuda.max_memory_allocated(self._device))
        torch.cuda.reset_peak_memory_stats(self._device)
        return found

    def device_timer(self) -> DeviceTimer | None:
        """Returns a timer based on CUDA events, so the time to reach the device is excluded."""
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
        """Returns PyTorch's names for the functions that run, and the callable that runs them."""
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
            function = _compiled(function, weights)
        else:
            function = self._compiled_once((operator.name, case), function)
        return f"torch.compile({api})", function

    def _compiled_once(self, key: object, function: Function) -> Function:
        """Compiles a function, or returns the last compiled function if it is for the same case.

        C++ functions share one frame, for which dynamo keeps eight compilations, so each case starts afresh.
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
            raise NotSupportedHereError("torch.compile requires a C++ compiler, but there is none")

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
