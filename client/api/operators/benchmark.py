"""The classes and functions of ``inferometer.operators``, which time single operators in this process.

They are created from the table on first use.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache, partial
from types import ModuleType
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.hardware.environment import CPU, Device
from inferometer.agent.inference.registry import Registry
from inferometer.agent.operators.operator import (
    Case,
    NotSupportedHereError,
    Operator,
    OperatorCall,
    OperatorRunner,
    RunnerOptions,
    Shape,
    element_type,
    operators,
)
from inferometer.client.api.operators.table import BENCHMARKS, Definition, Inputs
from inferometer.evaluators.kinds.operators.request import draw_inputs
from inferometer.manifests.errors import ConfigurationError, InferometerError

_BACKWARD, _DTYPE, _INITIALIZER = "run_backward", "dtype", "initializer"
_NS_PER_S = 1_000_000_000


def normal(shape: Shape, dtype: str = "float32") -> NDArray[Any]:
    """Returns normally distributed values from a fixed seed.

    As an initializer, it selects the values of the operator table: normally distributed values that are
    moved into the operator's domain, such as positive values for a logarithm.
    """
    return np.random.default_rng(0).standard_normal(shape).astype(element_type(dtype))


class OperatorBenchmark:
    """Measures the time of one operator in this process, like the classes of dl-operator-benchmark.

    A time is the mean of exactly ``runs`` runs after exactly ``warmup``. Each run ends when the device has
    finished. With ``run_backward``, a run is a forward pass and the computation of the gradients. The output
    is not compared with a reference, and times include other work in the process; ``agent op run`` measures
    each operator in its own process, checks its output, and reports an interval.

    Args:
        ctx: The device: ``cpu``, ``gpu``, ``gpu(1)`` or ``cuda:1`` as a string, ``mxnet.Context`` or
            ``torch.device``; None for the CPU.
        warmup: Warm-up runs; None means the default of the class, usually 10.
        runs: Measured runs; None means the default of the class, usually 50.
        inputs: Inputs that differ from the defaults, by name. A tensor is given by its shape, or by an array
            whose values are used. An initializer is called with ``shape`` and ``dtype``, or otherwise with
            the shape alone, and returns an array of NumPy or of the framework.

    Attributes:
        ctx: The device, as given.
        warmup: The number of warm-up runs.
        runs: The number of measured runs.
        inputs: All inputs: the given ones, and the defaults of the others.
        times_ns: int64; the time of each measured run; empty before ``run_benchmark``.

    Raises:
        ValueError: An argument or an input is unknown, or its value is invalid.
    """

    framework: ClassVar[str]
    prefix: ClassVar[str]
    definition: ClassVar[Definition]

    def __init__(
        self,
        ctx: object = None,
        warmup: int | None = None,
        runs: int | None = None,
        inputs: Inputs | None = None,
    ) -> None:
        defined = self.definition
        self.ctx = ctx
        self.warmup = defined.warmup if warmup is None else warmup
        self.runs = defined.runs if runs is None else runs
        if self.warmup < 0 or self.runs < 1:
            raise ValueError(f"{self._who}: warmup must be 0 or more, and runs 1 or more")
        self.inputs = self._merged(inputs or {})
        self.times_ns: NDArray[np.int64] = np.empty(0, np.int64)
        self._results: dict[str, float] = {}
        self._device = _device(ctx)
        self._dtype = self._checked_dtype()
        self._case = self._made_case()

    def run_benchmark(self) -> None:
        """Runs the operator, and replaces the results.

        Raises:
            ConfigurationError: The framework lacks the operator, its gradient or the element type.
            FrameworkUnavailableError: The framework is not installed.
            DeviceError: The device is not available.
            PredictionError: The framework failed.
        """
        backward = bool(self.inputs[_BACKWARD])
        kind: Any = Registry().find(self.framework).load_operators()
        try:
            with kind(RunnerOptions(self._device, dtype=self._dtype)) as runner:
                run = _run_of(self._prepared(runner, backward), backward)
                for _ in range(self.warmup):
                    run()
                self.times_ns = np.array([_timed(run) for _ in range(self.runs)], np.int64)
        except NotSupportedHereError as error:
            hint = "; give run_backward=False" if backward else ""
            raise ConfigurationError(f"{self._who} in {self.framework}: {error}{hint}") from error
        passes = "Forward_Backward" if backward else "Forward"
        result = self.definition.result or self.definition.name
        gluon = "Gluon_Imperative_" if self._form == "gluon" else ""
        name = f"{self.prefix}_{gluon}{result}_{passes}_Time"
        self._results = {name: float(self.times_ns.sum()) / self.runs / _NS_PER_S}

    def print_benchmark_results(self) -> None:
        """Writes a line such as ``MX_Add_Forward_Backward_Time - 0.015201 seconds`` to stdout."""
        lines = [f"{name} - {seconds:.6f} seconds" for name, seconds in self._results.items()]
        lines = lines or [f"{self._who}: no results; call run_benchmark first"]
        sys.stdout.write("".join(f"{line}\n" for line in lines))

    def get_benchmark_results(self) -> dict[str, float]:
        """Returns the mean time in seconds by result name; empty before ``run_benchmark``."""
        return dict(self._results)

    @property
    def _who(self) -> str:
        return type(self).__name__

    @property
    def _operator(self) -> Operator:
        return operators()[self.definition.operator]

    @property
    def _form(self) -> str:
        """The framework's form of the operator that is run; empty means the default form."""
        return ""

    @property
    def _runs_backward(self) -> bool:
        """Whether a run includes the backward pass by default."""
        return self.definition.backward

    def _merged(self, given: Inputs) -> dict[str, Any]:
        defined = self.definition
        merged = {
            **defined.tensors,
            **dict.fromkeys(defined.initializers, normal),
            **defined.parameters,
            **defined.fixed,
            _BACKWARD: self._runs_backward,
            _DTYPE: "float32",
        }
        for name, value in given.items():
            if name not in merged:
                allowed = ", ".join(merged)
                raise ValueError(f'{self._who}: unknown input "{name}"; the inputs are {allowed}')
            if name in defined.fixed and value != merged[name]:
                raise ValueError(
                    f"{self._who}: {name} is {merged[name]!r} and cannot be {value!r} in this benchmark"
                )
            merged[name] = value
        return merged

    def _checked_dtype(self) -> str:
        given = self.inputs[_DTYPE]
        if given == "bfloat16":
            return "bfloat16"
        try:
            return str(np.dtype(given).name)
        except TypeError:
            raise ValueError(
                f'{self._who}: unknown dtype "{given}"; give one such as float32, float64 or int32'
            ) from None

    def _made_case(self) -> Case:
        defined, operator = self.definition, self._operator
        shapes = {self._name(name): self._shape(name) for name in defined.tensors}
        parameters = {self._name(name): self._value(name) for name in defined.parameters}
        try:
            case = operator.own_case(
                {name: shape for name, shape in shapes.items() if name in operator.given}, parameters
            )
        except ConfigurationError as error:
            raise ValueError(f"{self._who}: {error}") from error
        for spec in operator.tensors(case):
            if shapes.get(spec.name, spec.shape) != spec.shape:
                raise ValueError(
                    f"{self._who}: {spec.name} has the shape {shapes[spec.name]}, and with the other inputs "
                    f"it must be {spec.shape}"
                )
        return case

    def _name(self, name: str) -> str:
        """Returns the name of a tensor or a parameter in the operator table."""
        return self.definition.names.get(name, name)

    def _value(self, name: str) -> Any:
        """Returns the value of a parameter; a list of sizes becomes a tuple, as in the table."""
        value = self.inputs[name]
        if value is None:
            value = self.inputs[self.definition.instead_of_none.get(name, name)]
        return tuple(value) if isinstance(value, list) else value

    def _shape(self, name: str) -> Shape:
        given = self.inputs[name]
        try:
            return tuple(int(size) for size in getattr(given, "shape", given))
        except (TypeError, ValueError):
            raise ValueError(
                f"{self._who}: {name} is {given!r}; give a shape such as (1024, 1024), or an array"
            ) from None

    def _prepared(self, runner: OperatorRunner, backward: bool) -> OperatorCall:
        operator = self._operator
        if backward and not operator.has_gradient:
            specs = tuple(replace(spec, differentiable=True) for spec in operator.tensors(self._case))
            operator = replace(operator, tensors=lambda _: specs)
        drawn = draw_inputs(operator, self._case, element_type(self._dtype), seed=0)
        arrays = {**drawn, **self._given_values(drawn)}
        return runner.prepare(operator, self._case, arrays, gradient=backward, form=self._form)

    def _given_values(self, drawn: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Returns the tensors that the user gave or an initializer fills, by their names in the table."""
        found: dict[str, NDArray[Any]] = {}
        original = {self._name(name): name for name in self.definition.tensors}
        for own, values in drawn.items():
            name = original.get(own, own)
            given = self.inputs.get(name)
            initializer = self.inputs.get(f"{name}_{_INITIALIZER}", normal)
            if name in self.definition.tensors:
                initializer = self.inputs.get(_INITIALIZER, initializer)
            if hasattr(given, "shape"):
                found[own] = _array(given).astype(values.dtype)
            elif initializer is not normal:
                found[own] = self._filled(initializer, values)
        return found

    def _filled(self, initializer: Callable[..., Any], like: NDArray[Any]) -> NDArray[Any]:
        try:
            try:
                values = initializer(shape=like.shape, dtype=like.dtype.name)
            except TypeError:  # such as torch.randn, which names its arguments otherwise
                values = initializer(like.shape)
            if values is None:
                raise ValueError("it returned None")
            return np.ascontiguousarray(np.broadcast_to(_array(values), like.shape), like.dtype)
        except Exception as error:
            raise ValueError(
                f"{self._who}: the initializer {initializer!r} failed for the shape {like.shape}: {error}"
            ) from error


class MXNetBenchmark(OperatorBenchmark):
    """An operator of MXNet; see ``OperatorBenchmark``."""

    framework = "MXNet"
    prefix = "MX"

    @property
    def _form(self) -> str:
        return self.definition.form


class PyTorchBenchmark(OperatorBenchmark):
    """An operator of PyTorch; see ``OperatorBenchmark``."""

    framework = "PyTorch"
    prefix = "PT"

    @property
    def _runs_backward(self) -> bool:
        # MXNet computes gradients of zero where the operator has none, and PyTorch refuses
        return super()._runs_backward and self._operator.has_gradient


def _run_of(call: OperatorCall, backward: bool) -> Callable[[], object]:
    if not backward:
        return call.forward

    def both() -> None:
        call.forward_for_gradient()
        call.backward()

    return both


def _timed(run: Callable[[], object]) -> int:
    start_ns = time.perf_counter_ns()
    run()
    return time.perf_counter_ns() - start_ns


def _device(ctx: object) -> Device:
    """Returns the device named by a string, or by the string form of a framework's object."""
    if ctx is None:
        return CPU
    try:
        return Device.named(str(ctx))
    except ConfigurationError as error:
        raise ValueError(str(error)) from error


def _array(values: Any) -> NDArray[Any]:
    """Converts an array of MXNet, PyTorch or NumPy to a NumPy array; the array may be on a GPU."""
    if hasattr(values, "asnumpy"):
        values = values.asnumpy()
    elif hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    return np.asarray(values)


_Maker: TypeAlias = Callable[[], type[OperatorBenchmark]]
_ROOT = "inferometer.operators."
_log = logging.getLogger(__name__)


class RunAll(Protocol):
    """Runs all benchmarks of a group, and prints their results."""

    def __call__(
        self,
        ctx: object = None,
        inputs: Inputs | None = None,
        warmup: int | None = None,
        runs: int | None = None,
    ) -> list[dict[str, float]]:
        """Runs the benchmarks in order, and prints a line for each as soon as it ends.

        A failed benchmark is logged as a warning with its reason, and the others continue.

        Args:
            ctx: The device; None for the CPU.
            inputs: Inputs that differ from the defaults in all benchmarks, such as ``{"dtype": "float64"}``.
            warmup: Warm-up runs; None means the default of each class.
            runs: Measured runs; None means the default of each class.

        Returns:
            The results of each benchmark in order; the results of a failed benchmark are empty.

        Raises:
            ValueError: An input is invalid or unknown to one of the benchmarks; none of them has been run.
        """
        ...


def contents(
    module: str, *parts: ModuleType
) -> tuple[list[str], Callable[[str], object], Callable[[], list[str]]]:
    """Returns ``__all__``, ``__getattr__`` and ``__dir__`` of a module of ``inferometer.operators``.

    The module also exports the names of its ``parts``.
    """
    framework = module.removeprefix(_ROOT).partition(".")[0]
    base = MXNetBenchmark if framework == "mxnet" else PyTorchBenchmark
    makers: dict[str, Callable[[], Any]] = {
        name: partial(getattr, part, name) for part in parts for name in part.__all__
    }
    every: list[_Maker] = []
    for path, rows in BENCHMARKS.items():
        place, _, function = f"{_ROOT}{path}".rpartition(".")
        if base is PyTorchBenchmark:
            place, function = module, function.replace("gluon_", "")
        made = {row.name: partial(_made, base, row, place) for row in rows}
        every += made.values()
        if place == module:
            makers |= {**made, function: partial(_run_all, made.values())}
    if module == f"{_ROOT}{framework}":
        makers[f"run_all_{framework}_operator_benchmarks"] = partial(_run_all, every)

    @cache
    def attribute(name: str) -> object:
        if name not in makers:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return makers[name]()

    return sorted(makers), attribute, lambda: sorted({*vars(sys.modules[module]), *makers})


@cache
def _made(base: type[OperatorBenchmark], definition: Definition, module: str) -> type[OperatorBenchmark]:
    """Returns the benchmark class of a row in a framework; repeated calls return the same class."""
    own = {"__doc__": definition.summary, "__module__": module, "definition": definition}
    return type(definition.name, (base,), own)


def _run_all(made: Iterable[_Maker]) -> RunAll:
    group = [make() for make in made]

    def run(
        ctx: object = None, inputs: Inputs | None = None, warmup: int | None = None, runs: int | None = None
    ) -> list[dict[str, float]]:
        found = [benchmark(ctx, warmup, runs, inputs) for benchmark in group]
        for benchmark in found:
            try:
                benchmark.run_benchmark()
            except InferometerError as error:
                _log.warning("%s: %s", type(benchmark).__name__, error)
            else:
                benchmark.print_benchmark_results()
        return [benchmark.get_benchmark_results() for benchmark in found]

    names = ", ".join(benchmark.__name__ for benchmark in group)
    run.__doc__ = f"Runs {names}; see ``RunAll``."
    return run
