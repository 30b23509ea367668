"""Operators with their inputs, parameters, reference and cost; their table; and the runner's interface.

The table does not depend on a framework. An operator's inputs are derived from the shapes that a user may
give and from its parameters, so every framework gets the same arrays. ``operators()`` returns the table,
keyed by name, from the modules of ``agent.operators.table``. A framework that runs single operators
implements ``OperatorRunner``.
"""

from __future__ import annotations

import importlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from math import prod
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inferometer.agent.closeable import Closeable
from inferometer.agent.hardware.environment import CPU, Device, FrameworkDetails
from inferometer.manifests.errors import ConfigurationError, suggestion

Shape: TypeAlias = tuple[int, ...]
ParameterValue: TypeAlias = bool | int | float | str | tuple[int, ...]
Parameters: TypeAlias = Mapping[str, Any]
"""Each value is a ``ParameterValue`` of the type that its parameter has in the table."""
Arrays: TypeAlias = Sequence[NDArray[Any]]

EPSILON = 1e-5
"""The constant that batch and layer normalisation add to the variance in fused operators."""
NOTHING: Mapping[str, Any] = MappingProxyType({})


def parameter_text(value: ParameterValue) -> str:
    """Returns a parameter as written in an option, such as ``3,3`` or ``true``."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


class Category(str, Enum):
    """The groups of operators, named as on the command line."""

    ARITHMETIC = "arithmetic"
    UNARY = "unary"
    COMPARISON = "comparison"
    LOGICAL = "logical"
    CREATION = "creation"
    RANDOM = "random"
    GEMM = "gemm"
    LINEAR_ALGEBRA = "linear_algebra"
    REDUCTION = "reduction"
    SORTING = "sorting"
    INDEXING = "indexing"
    REARRANGE = "rearrange"
    JOIN_SPLIT = "join_split"
    NORMALIZATION = "normalization"
    ACTIVATION = "activation"
    POOLING = "pooling"
    CONVOLUTION = "convolution"
    RECURRENT = "recurrent"
    BASIC = "basic"
    LOSS = "loss"
    OPTIMIZER = "optimizer"
    CUSTOM = "custom"
    FUSED = "fused"


class Preset(str, Enum):
    """The preset sizes of an operator; ``huge`` has more than 2³¹ elements and exists for few operators."""

    SMALL = "small"
    NORMAL = "normal"
    LARGE = "large"
    SKEWED = "skewed"
    HUGE = "huge"


class Values(str, Enum):
    """The distributions of an input's values; ``draw_inputs`` draws them."""

    NORMAL = "normal"
    POSITIVE = "positive"
    """Uniform in 0.5…1.5."""
    UNIT = "unit"
    """Uniform in -0.9…0.9."""
    ABOVE_ONE = "above_one"
    """Uniform in 1.1…2."""
    PROBABILITY = "probability"
    """Uniform in 0.05…0.95."""
    DISTRIBUTION = "distribution"
    """Positive, with a last axis that sums to 1; the largest value is at most three times the smallest."""
    NONZERO = "nonzero"
    """Normal, moved 0.5 away from 0."""
    SIGNS = "signs"
    """-1 or 1, so an operator that runs in place repeatedly preserves the size of its values."""
    DISTINCT = "distinct"
    """A permutation of equally spaced values, so an order has no ties."""
    BOOLEAN = "boolean"
    """0 or 1, in the type of the other inputs."""
    INDICES = "indices"
    """int64 in 0…limit-1."""
    LENGTHS = "lengths"
    """int64 in 1…limit."""
    DISTINCT_INDICES = "distinct_indices"
    """int64 in 0…limit-1, each at most once, so the result of writes does not depend on their order."""
    MASK = "mask"
    """True or False, in the framework's boolean type."""
    POSITIVE_DEFINITE = "positive_definite"
    """Symmetric and positive definite in the last two axes."""
    LOWER_TRIANGULAR = "lower_triangular"
    """Lower triangular in the last two axes, with a diagonal of 1…2."""
    ZEROS = "zeros"
    BOXES = "boxes"
    """Rows with an image index in 0…limit-1 and the left, top, right and bottom of a box in 0…scale."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input tensor of an operator.

    Attributes:
        name: Its name.
        shape: Its shape.
        values: How its values are drawn.
        limit: The upper bound of indices (exclusive) and of lengths.
        differentiable: Whether an operator with a gradient has one with respect to this input.
        scale: A factor on the drawn values; about 1 / √fan-in for a layer's weights.
        dtype: Its element type, if the type of the benchmark does not determine it.
    """

    name: str
    shape: Shape
    values: Values = Values.NORMAL
    limit: int = 0
    differentiable: bool = True
    scale: float = 1.0
    dtype: str = field(default="", repr=False)  # the values are drawn by the representation


@dataclass(frozen=True, slots=True)
class Case:
    """The sizes and the parameters of one row.

    ``preset`` is the source of the sizes and parameters: a ``Preset``, or ``own``.
    """

    shapes: Mapping[str, Shape]
    parameters: Parameters
    preset: str

    def __getitem__(self, name: str) -> Any:
        return self.parameters[name]


@dataclass(frozen=True, slots=True)
class OwnCase:
    """A user's sizes and parameters for one operator of the table.

    Shapes and parameters that are left out keep their defaults.
    """

    operator: str
    shapes: Mapping[str, Shape] = field(default_factory=lambda: NOTHING)
    parameters: Mapping[str, ParameterValue] = field(default_factory=lambda: NOTHING)


Sizes: TypeAlias = tuple[Mapping[str, Shape], Mapping[str, ParameterValue]]
"""The shapes of a preset, and the parameters that differ from the defaults."""
Presets: TypeAlias = Mapping[Preset, tuple[Sizes, ...]]


def no_flops(case: Case, outputs: Sequence[Shape]) -> int:
    """Returns the number of floating-point operations, 0, of an operator that only moves data."""
    return 0


def one_flop_per_output(case: Case, outputs: Sequence[Shape]) -> int:
    """Returns the FLOPs of an element-wise operator, counting one for each element by convention."""
    return sum(prod(shape) for shape in outputs)


@dataclass(frozen=True, kw_only=True)
class Operator:
    """An operator of the table.

    Attributes:
        name: Its usual name, such as ``conv2d``.
        category: Its group.
        summary: The computation, in one line.
        given: The inputs whose shapes a user may give; all other shapes follow from these and the parameters.
        tensors: Returns all inputs of a case in order, including those in ``given``.
        presets: Its sizes by preset; each of small, normal, large and skewed has at least one.
        parameters: Its parameters with their defaults.
        reference: Returns the outputs for float64 inputs and parameters, by NumPy; None for operators that
            draw random numbers, which use ``check`` instead.
        check: Raises ValueError with the reason if the outputs, given the inputs, cannot be right.
        loss: The function whose gradient the backward pass computes, if it ignores the gradients it gets.
        flops: Returns the floating-point operations of a forward pass from a case and the output shapes.
        backward_flops: The operations of the backward pass as a multiple of ``flops``; None if not stated.
        has_gradient: Whether frameworks differentiate it.
        in_place: The input that the result replaces; None for most.
        rtol: The relative tolerance in float32; for other types, it scales with their precision.
        atol: The absolute tolerance in float32, scaled in the same way.
        parts: The operators of the table that a fused operator combines, in order.
    """

    name: str
    category: Category
    summary: str
    given: tuple[str, ...] = ("data",)
    tensors: Callable[[Case], tuple[TensorSpec, ...]]
    presets: Presets
    parameters: Parameters = field(default_factory=dict)
    reference: Callable[[Arrays, Parameters], Arrays] | None
    check: Callable[[Arrays, Arrays, Case], None] | None = None
    loss: Callable[[Arrays, Parameters], float] | None = None
    flops: Callable[[Case, Sequence[Shape]], int] = no_flops
    backward_flops: float | None = None
    has_gradient: bool = True
    in_place: str | None = None
    rtol: float = 1e-5
    atol: float = 1e-6
    parts: tuple[str, ...] = ()

    def cases(self, preset: Preset) -> tuple[Case, ...]:
        """Returns the operator's cases for a preset; empty if it has no such sizes."""
        return tuple(
            Case(shapes, {**self.parameters, **changed}, preset.value)
            for shapes, changed in self.presets.get(preset, ())
        )

    def own_case(self, shapes: Mapping[str, Shape], parameters: Parameters = NOTHING) -> Case:
        """Returns a case with a user's sizes; the other values come from the first normal case.

        Raises:
            ConfigurationError: A name is unknown, or the sizes do not fit each other.
        """
        _require_known(f"operator {self.name}: unknown input", shapes, self.given)
        _require_known(f"operator {self.name}: unknown parameter", parameters, tuple(self.parameters))
        normal = self.cases(Preset.NORMAL)[0]
        case = Case({**normal.shapes, **shapes}, {**normal.parameters, **parameters}, "own")
        try:
            specs = self.tensors(case)
        except (ValueError, IndexError, KeyError, TypeError, ZeroDivisionError) as error:
            raise ConfigurationError(f"operator {self.name}: the sizes do not fit: {error}") from error
        if bad := next((spec for spec in specs if any(size < 1 for size in spec.shape)), None):
            raise ConfigurationError(
                f"operator {self.name}: {bad.name} has the shape {bad.shape}; sizes must be 1 or more"
            )
        return case


_OneOrSeveral: TypeAlias = Sizes | list[Sizes]


def by_preset(small: _OneOrSeveral, normal: _OneOrSeveral, large: _OneOrSeveral, *skewed: Sizes) -> Presets:
    """Returns the sizes of an operator with one case for each preset, or as many as a list has."""
    presets = {Preset.SMALL: small, Preset.NORMAL: normal, Preset.LARGE: large, Preset.SKEWED: [*skewed]}
    return {name: tuple(each) if isinstance(each, list) else (each,) for name, each in presets.items()}


def _require_known(what: str, names: Iterable[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise ConfigurationError(f'{what} "{name}"; {suggestion(name, known)}')


def same_shape(*names: str, values: Values = Values.NORMAL) -> Callable[[Case], tuple[TensorSpec, ...]]:
    """Returns the ``tensors`` of an element-wise operator: each input has the shape given for it."""

    def tensors(case: Case) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(name, case.shapes[name], values) for name in names)

    return tensors


def sized(*shape: int, **parameters: Any) -> Sizes:
    """Returns the shape of ``data`` in a preset, with the parameters that differ from the defaults."""
    return {"data": shape}, parameters


FILES = (
    *("arithmetic", "creation", "gemm", "reduction", "indexing", "rearrange"),
    *("convolution", "pooling", "normalization", "layers", "training", "optimizers", "fused"),
)
"""The modules of ``agent.operators.table`` that define operators, in the table's order."""


@cache
def operators() -> Mapping[str, Operator]:
    """Returns the operators by name."""
    found: dict[str, Operator] = {}
    for name in FILES:
        for operator in importlib.import_module(f"inferometer.agent.operators.table.{name}").OPERATORS:
            if operator.name in found:
                raise ValueError(f"two operators have the name {operator.name}")
            found[operator.name] = operator
    return MappingProxyType(found)


def chosen_operators(names: Iterable[str], categories: Iterable[str] = ()) -> Sequence[Operator]:
    """Returns the operators with the given names or in the given categories, each once, in the table's order.

    Raises:
        ConfigurationError: A name or a category is unknown.
    """
    known, wanted, groups = operators(), tuple(names), tuple(categories)
    _require_known("unknown operator", wanted, tuple(known))
    _require_known("unknown category", groups, [each.value for each in Category])
    return [each for each in known.values() if each.name in wanted or each.category.value in groups]


def cotangents(shape: Shape) -> NDArray[np.float32]:
    """Returns the gradients that a backward pass starts from: normal values that depend only on the shape.

    A scalar has the same value as a tensor with one element, because MXNet 1 has no scalars.
    """
    shape_or_one = shape or (1,)
    return np.random.default_rng([*shape_or_one]).standard_normal(shape_or_one, np.float32).reshape(shape)


PARTS = "parts"
"""The form of a fused operator that runs its parts one after the other."""


@dataclass(frozen=True, slots=True)
class RunnerOptions:
    """The device, threads and element type with which a framework runs operators.

    ``threads`` of None means ``default_threads``. All inputs but indices have the type ``dtype``: NumPy's
    name or ``bfloat16``.
    """

    device: Device = CPU
    threads: int | None = None
    dtype: str = "float32"


DeviceTimer: TypeAlias = Callable[[Callable[[], object]], int]
"""Runs a function, waits for the device, and returns the device time in nanoseconds."""


class OperatorCall(Protocol):
    """One operator on its inputs, ready to run. Each run returns when the device has finished.

    Attributes:
        api: The API that runs, as named in the framework's documentation, such as ``torch.add``.
        fused: The fusion that the framework's own graph or trace shows; empty if nothing was fused.
    """

    api: str
    fused: str

    def forward(self) -> None:
        """Runs the operator as in inference, without keeping data for a gradient."""
        ...

    def forward_for_gradient(self) -> None:
        """Runs the operator and keeps the data that ``backward`` requires."""
        ...

    def backward(self) -> None:
        """Computes the gradients of the last ``forward_for_gradient``; call it once for each such pass.

        They are the gradients of the sum of all floating-point outputs, each weighted by ``cotangents`` of
        its shape, with respect to all differentiable inputs.
        """
        ...

    def outputs(self) -> tuple[NDArray[Any], ...]:
        """Returns copies of the outputs of the last run; bfloat16 becomes float32."""
        ...

    def gradients(self) -> Mapping[str, NDArray[Any]]:
        """Returns copies of the gradients of the last ``backward``, by the name of the input."""
        ...


class NotSupportedHereError(Exception):
    """An operator, or a form of it, that a framework lacks on this device; the message is the reason."""


_FORM_FILES = ("tensors", "layers", "training")


@cache
def _joined(package: str | None, variable: str) -> Mapping[str, Any]:
    """Returns the combined mappings by operator that the modules of a framework define in ``variable``."""
    found: dict[str, Any] = {}
    for name in _FORM_FILES:
        found |= getattr(importlib.import_module(f"{package}.{name}"), variable)
    return MappingProxyType(found)


class OperatorRunner(Closeable):
    """One framework's operators in this process. Not thread-safe.

    Attributes:
        framework: The framework, as named in reasons.
        package: A package whose modules, named in ``_FORM_FILES``, define, by the table's names, ``FORMS``,
            how the framework runs operators, and ``MISSING``, why it lacks others. If it is None, override
            ``forms`` and ``missing``.

    Raises:
        ConfigurationError: The framework does not support the threads or the element type.
        DeviceError: The device is not available.
    """

    framework: ClassVar[str]
    package: ClassVar[str | None]

    def __init__(self, options: RunnerOptions) -> None:
        self.options = options

    @property
    @abstractmethod
    def threads(self) -> int | None:
        """The CPU threads of an operator; None if unknown."""

    @abstractmethod
    def prepare(
        self,
        operator: Operator,
        case: Case,
        inputs: Mapping[str, NDArray[Any]],
        *,
        gradient: bool = False,
        form: str = "",
    ) -> OperatorCall:
        """Copies the inputs to the device and builds the call.

        The inputs, from ``draw_inputs``, are not changed. With ``gradient``, ``forward_for_gradient`` and
        ``backward`` will be called. ``form`` is one of ``forms``; empty for the first.

        Raises:
            NotSupportedHereError: The framework lacks the operator, its gradient, or this form of it.
            OutOfMemoryError: The device has too little memory.
            PredictionError: The framework failed.
        """

    @classmethod
    def table(cls) -> Mapping[str, Any]:
        """Returns how the framework runs operators, by name."""
        return _joined(cls.package, "FORMS")

    def form_of(self, name: str) -> Any:
        """Returns how the framework runs the named operator; raises NotSupportedHereError if it lacks it."""
        if name not in self.table():
            raise NotSupportedHereError(self.missing(name))
        return self.table()[name]

    def forms(self, name: str) -> tuple[str, ...]:
        """Returns the forms in which the framework runs the named operator; empty if it lacks the operator.

        These are ``nd``, ``sym`` and ``gluon`` in MXNet, ``eager`` and ``compile`` in PyTorch, and ``graph``
        in ONNX Runtime. A fused operator also has ``parts``, which runs its parts one after the other.
        """
        found = self.table().get(name)
        return () if found is None else tuple(found.forms(fused=bool(operators()[name].parts)))

    def missing(self, name: str) -> str:
        """Returns why the framework lacks the named operator."""
        return str(_joined(self.package, "MISSING").get(name, f"{self.framework} has no such operator"))

    @abstractmethod
    def uncovered(self) -> tuple[str, ...]:
        """Returns the operators of the framework's own registry that the table does not use, sorted."""

    @abstractmethod
    def details(self) -> FrameworkDetails:
        """Returns the framework's libraries, build and settings."""

    def peak_memory_bytes(self) -> int | None:
        """Returns the allocator's peak memory since the last call; None if the framework reports none."""
        return None

    def device_timer(self) -> DeviceTimer | None:
        """Returns a timer based on the device's own clock; None if only the host's clock is available."""
        return None


def element_type(name: str) -> np.dtype[Any]:
    """Returns the NumPy type in which inputs of an element type are drawn: float32 for bfloat16."""
    return np.dtype(np.float32 if name == "bfloat16" else name)


def element_bytes(name: str) -> int:
    """Returns the size in bytes of an element of the named type in a framework."""
    return 2 if name == "bfloat16" else element_type(name).itemsize
