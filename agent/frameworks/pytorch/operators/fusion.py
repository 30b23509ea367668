"""What inductor and PyTorch join: read from the generated code, and from the profiler's records."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence

import torch
from torch.profiler import ProfilerActivity, profile

from inferometer.agent.frameworks.pytorch.operators.functions import Function
from inferometer.agent.frameworks.pytorch.profiler import import_inductor
from inferometer.agent.operators.runner import NotSupportedHereError

_MOST_COMPILED = 10_000
"""How many cases one process may compile; dynamo's own limit is for what compiles again by mistake."""
_CALL = re.compile(
    r"\b(?:torch\.ops\.(?P<library>\w+\.\w+)(?:\.\w+)?\((?P<arguments>.*)"
    r"|extern_kernels\.(?P<external>\w+)\("
    r"|(?P<kernel>(?:cpp|triton\w*?)_fused\w*?)_\d+(?:\.run)?\()"
)
_POST_OPERATION = re.compile(r"'(\w+)', \[")
"""What oneDNN's convolution or product applies to each output, before the list of its parameters."""
_JOINED_CALLS = re.compile(r"attention")
_NAMES = {"conv2d": "convolution", "dense": "addmm"}
"""How inductor names the parts that it does not name as the table does."""


class _Frozen(torch.nn.Module):
    """A function whose last arguments are weights of a module, so that inductor may fold them."""

    def __init__(self, function: Function, weights: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._function = function
        self._names = [f"weight_{number}" for number, _ in enumerate(weights)]
        for name, weight in zip(self._names, weights, strict=True):
            self.register_buffer(name, weight)

    def forward(self, *data: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self._function(*data, *(getattr(self, name) for name in self._names))
        return answer


def compiled(function: Function, weights: Sequence[torch.Tensor]) -> Function:
    """Returns a function compiled for tensors of which the last are constant weights, and ignores those."""
    module = torch.compile(_Frozen(function, weights).eval(), fullgraph=True, dynamic=False)
    if not weights:
        return module
    count = len(weights)
    return lambda *tensors: module(*tensors[:-count])


def compile_and_see(run: Callable[[], None], parts: Sequence[str], *, freeze: bool) -> str:
    """Runs what is compiled for the first time, and returns the calls of the generated code in order.

    Args:
        run: The first run.
        parts: The table's names of the parts.
        freeze: Whether weights of a module are constants, as in an inference: only then oneDNN's convolution
            applies the activation, and a normalisation is folded into the weight.

    Raises:
        NotSupportedHereError: No call does the work of two parts.
    """
    from torch._dynamo import config as dynamo
    from torch._inductor import config as inductor
    from torch._inductor.utils import run_and_get_code

    with (
        warnings.catch_warnings(),
        inductor.patch(freezing=freeze),
        dynamo.patch(recompile_limit=_MOST_COMPILED, accumulated_recompile_limit=_MOST_COMPILED),
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


def run_and_see(run: Callable[[], None]) -> str:
    """Runs one of PyTorch's functions in its profiler, and returns the fused operator that it called.

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
